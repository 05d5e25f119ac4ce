"""A checksum beside each message that is still to be published, and beside each answer under a key.

0 is a row of a release before this one, which is not checked.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import sqlite

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

NUMBER = sa.BigInteger().with_variant(sqlite.INTEGER(), "sqlite")
TABLES = ("outbox", "obligations", "idempotency_keys")


def upgrade() -> None:
    for table in TABLES:
        op.add_column(table, sa.Column("checksum", NUMBER, nullable=False, server_default="0"))


def downgrade() -> None:
    for table in TABLES:
        op.drop_column(table, "checksum")
