"""The ledger: one suite over SQLite and PostgreSQL, by the fixture ``url``."""
