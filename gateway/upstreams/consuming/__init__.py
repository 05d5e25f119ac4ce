"""Deliveries from a broker, and how they are settled."""
