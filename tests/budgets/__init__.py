"""Budgets on whole gateways: one client at its bound, and how others fare."""
