"""Small models of the promises, in Alloy: what may happen in which order, checked over all orders up to a bound."""
