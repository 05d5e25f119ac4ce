"""The gateway about itself: the OpenAPI document, health, budgets and the console."""
