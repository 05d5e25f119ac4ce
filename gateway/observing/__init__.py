"""Logs, metrics, and the way to a collector of traces."""
