"""Which process does what."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import sqlite

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

INTEGER = sa.BigInteger().with_variant(sqlite.INTEGER(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "work",
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("name", sa.LargeBinary(), nullable=False),
        sa.Column("shard", INTEGER, nullable=False),
        sa.Column("fence", INTEGER, nullable=False),
        sa.Column("at", INTEGER, nullable=False),
        sa.PrimaryKeyConstraint("kind", "name", name="work_pk"),
        sqlite_strict=True,
        sqlite_with_rowid=False,
    )
    op.create_table(
        "peers",
        sa.Column("shard", INTEGER, nullable=False, autoincrement=False),
        sa.Column("fence", INTEGER, nullable=False),
        sa.Column("id", sa.LargeBinary(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("config", sa.Text(), nullable=False),
        sa.Column("kinds", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("shard", name="peers_pk"),
        sa.CheckConstraint("length(id) = 8", name=op.f("peers_id_8")),
        sqlite_strict=True,
        sqlite_with_rowid=True,
    )


def downgrade() -> None:
    op.drop_table("peers")
    op.drop_table("work")
