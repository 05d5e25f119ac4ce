"""A MAC, and the name of its key, for each row of the audit log and for each API key. Rows of before have neither."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

TABLES = ("audit_log", "api_keys")


def upgrade() -> None:
    for table in TABLES:
        op.add_column(table, sa.Column("mac", sa.LargeBinary(), nullable=True))
        op.add_column(table, sa.Column("mac_key", sa.Text(), nullable=True))


def downgrade() -> None:
    for table in reversed(TABLES):
        op.drop_column(table, "mac_key")
        op.drop_column(table, "mac")
