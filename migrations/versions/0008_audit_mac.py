"""A MAC, and the name of its key, for each row of the log of who changed what. Rows of before have neither."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("audit_log", sa.Column("mac", sa.LargeBinary(), nullable=True))
    op.add_column("audit_log", sa.Column("mac_key", sa.Text(), nullable=True))


def downgrade() -> None:
    op.drop_column("audit_log", "mac_key")
    op.drop_column("audit_log", "mac")
