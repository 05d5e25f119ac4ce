"""Keys of callers, the log of who changed what, and branches of distributed transactions that bridges have begun."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import sqlite

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

INTEGER = sa.BigInteger().with_variant(sqlite.INTEGER(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "api_keys",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("client", sa.Text(), nullable=False),
        sa.Column("digest", sa.LargeBinary(), nullable=False),
        sa.Column("hint", sa.Text(), nullable=False),
        sa.Column("scopes", sa.LargeBinary(), nullable=False),
        sa.Column("created_by", sa.Text(), nullable=False),
        sa.Column("created_at", INTEGER, nullable=False),
        sa.Column("expires_at", INTEGER, nullable=False),
        sa.Column("revoked_at", INTEGER, nullable=False),
        sa.Column("last_used_at", INTEGER, nullable=False),
        sa.Column("changes", INTEGER, nullable=False),
        sa.CheckConstraint("length(digest) = 32", name=op.f("api_keys_digest_32")),
        sa.PrimaryKeyConstraint("id", name="api_keys_pk"),
        sqlite_strict=True,
        sqlite_with_rowid=False,
    )
    op.create_index("api_keys_by_digest", "api_keys", ["digest"], unique=True)
    op.create_index("api_keys_by_client", "api_keys", ["client"])
    op.create_table(
        "audit_log",
        sa.Column("sequence", INTEGER, nullable=False, autoincrement=False),
        sa.Column("at", INTEGER, nullable=False),
        sa.Column("entry", sa.LargeBinary(), nullable=False),
        sa.Column("previous", sa.LargeBinary(), nullable=False),
        sa.Column("hash", sa.LargeBinary(), nullable=False),
        sa.CheckConstraint("length(previous) = 32", name=op.f("audit_log_previous_32")),
        sa.CheckConstraint("length(hash) = 32", name=op.f("audit_log_hash_32")),
        sa.PrimaryKeyConstraint("sequence", name="audit_log_pk"),
        sqlite_strict=True,
    )
    op.create_table(
        "branches",
        sa.Column("id", sa.LargeBinary(), nullable=False),
        sa.Column("bridge", sa.LargeBinary(), nullable=False),
        sa.Column("broker", sa.Text(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("at", INTEGER, nullable=False),
        sa.Column("detail", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="branches_pk"),
        sa.CheckConstraint("length(id) = 16", name=op.f("branches_id_16")),
        sqlite_strict=True,
        sqlite_with_rowid=True,
    )


def downgrade() -> None:
    op.drop_table("branches")
    op.drop_table("audit_log")
    op.drop_index("api_keys_by_client", "api_keys")
    op.drop_index("api_keys_by_digest", "api_keys")
    op.drop_table("api_keys")
