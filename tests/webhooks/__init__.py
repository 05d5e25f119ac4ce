"""Signatures, the retry schedule and the circuit breaker."""
