"""Losses of power and damaged disks: what is left of ledger, backups and archive, and what is read of it."""
