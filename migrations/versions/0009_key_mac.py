"""A MAC, and the name of its key, for each API key. Rows of before have neither."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("api_keys", sa.Column("mac", sa.LargeBinary(), nullable=True))
    op.add_column("api_keys", sa.Column("mac_key", sa.Text(), nullable=True))


def downgrade() -> None:
    op.drop_column("api_keys", "mac_key")
    op.drop_column("api_keys", "mac")
