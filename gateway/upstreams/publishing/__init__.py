"""Publishes to a broker, and what became of each."""
