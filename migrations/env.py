"""Alembic's environment: migrate over the connection that ``gateway.ledger.db.schema`` hands over.

``alembic upgrade --sql`` works too, for those who review migrations before they run them.
"""

from __future__ import annotations

from alembic import context

from gateway.ledger.db.schema import configuration

config = context.config
connection = config.attributes.get("connection")

if connection is None:
    context.configure(
        dialect_name=config.get_main_option("dialect", "postgresql"), literal_binds=True, **configuration()
    )
else:
    context.configure(connection=connection, **configuration())

with context.begin_transaction():
    context.run_migrations()
