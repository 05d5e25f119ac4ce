"""The inbox: what bridges forwarded, so that a redelivery is recognised."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import sqlite

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

INTEGER = sa.BigInteger().with_variant(sqlite.INTEGER(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "inbox",
        sa.Column("run", INTEGER, nullable=False),
        sa.Column("id", sa.LargeBinary(), nullable=False),
        sa.Column("body_sha256", sa.LargeBinary(), nullable=False),
        sa.Column("message_id", sa.LargeBinary(), nullable=False),
        sa.Column("at", INTEGER, nullable=False),
        sa.Column("expires_at", INTEGER, nullable=False),
        sa.PrimaryKeyConstraint("run", "id", name="inbox_pk"),
        sa.CheckConstraint("length(body_sha256) = 32", name=op.f("inbox_body_sha256_32")),
        sa.CheckConstraint("length(message_id) = 16", name=op.f("inbox_message_id_16")),
        sqlite_strict=True,
        sqlite_with_rowid=False,
    )
    op.create_index("inbox_by_expires_at", "inbox", ["expires_at"])


def downgrade() -> None:
    op.drop_table("inbox")
