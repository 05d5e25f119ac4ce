"""Counts per hour, and how far they go."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import sqlite

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

INTEGER = sa.BigInteger().with_variant(sqlite.INTEGER(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "statistics",
        sa.Column("hour", INTEGER, nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("broker", sa.Text(), nullable=False),
        sa.Column("subscription", sa.LargeBinary(), nullable=False),
        sa.Column("endpoint", sa.LargeBinary(), nullable=False),
        sa.Column("bridge", sa.LargeBinary(), nullable=False),
        sa.Column("events", INTEGER, nullable=False),
        sa.Column("octets", INTEGER, nullable=False),
        sa.PrimaryKeyConstraint("hour", "kind", "broker", "subscription", "endpoint", "bridge", name="statistics_pk"),
        sqlite_strict=True,
        sqlite_with_rowid=False,
    )
    op.create_table(
        "counted",
        sa.Column("shard", INTEGER, nullable=False, autoincrement=False),
        sa.Column("sequence", INTEGER, nullable=False),
        sa.PrimaryKeyConstraint("shard", name="counted_pk"),
        sqlite_strict=True,
    )


def downgrade() -> None:
    op.drop_table("counted")
    op.drop_table("statistics")
