"""The database: engines, tables, migrations, shards, and how values lie in columns."""
