"""The ledger: messages, events, shards, idempotency keys, obligations, resources.

On PostgreSQL ``messages`` and ``events`` are partitioned by ranges of the message id; each starts with a default
partition, and ``gateway.ledger.db.schema.ensure_partitions`` makes those of the days.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import sqlite

from gateway.ledger.db.models import UInt64

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

INTEGER = sa.BigInteger().with_variant(sqlite.INTEGER(), "sqlite")
OCTETS = sa.LargeBinary()
TEXT = sa.Text()
PARTITIONED = {"messages": "id", "events": "message_id"}


def create(name: str, columns: dict[str, Any], key: tuple[str, ...], *constraints: Any, nullable: str = "") -> None:
    """A STRICT table (SQLite), partitioned where it is history (PostgreSQL)."""
    options: dict[str, Any] = {"sqlite_strict": True}
    if name in PARTITIONED:
        options |= {"postgresql_partition_by": f"RANGE ({PARTITIONED[name]})", "sqlite_with_rowid": False}
    op.create_table(
        name,
        *(
            sa.Column(column, kind, nullable=column == nullable, autoincrement=False)
            for column, kind in columns.items()
        ),
        sa.PrimaryKeyConstraint(*key, name=f"{name}_pk"),
        *constraints,
        **options,
    )


def upgrade() -> None:
    create(
        "messages",
        {
            "id": OCTETS,
            "at": INTEGER,
            "broker": TEXT,
            "version": TEXT,
            "exchange": OCTETS,
            "routing_key": OCTETS,
            "size": UInt64(),
            "sha256": OCTETS,
            "origin": TEXT,
            "client": OCTETS,
            "properties": OCTETS,
        },
        ("id",),
        sa.CheckConstraint("length(id) = 16", name=op.f("messages_id_16")),
        sa.CheckConstraint("length(sha256) = 32", name=op.f("messages_sha256_32")),
    )
    create(
        "events",
        {
            "shard": INTEGER,
            "sequence": INTEGER,
            "message_id": OCTETS,
            "kind": TEXT,
            "at": INTEGER,
            "broker": TEXT,
            "version": TEXT,
            "detail": OCTETS,
        },
        ("shard", "sequence", "message_id"),
        sa.CheckConstraint("length(message_id) = 16", name=op.f("events_message_id_16")),
    )
    op.create_index("events_by_message_id", "events", ["message_id"])
    create(
        "shards",
        {
            "shard": INTEGER,
            "owner": TEXT,
            "fence": INTEGER,
            "expires_at": INTEGER,
            "next_sequence": INTEGER,
            "commits": INTEGER,
        },
        ("shard",),
        nullable="owner",
    )
    create(
        "idempotency_keys",
        {
            "id": OCTETS,
            "client": OCTETS,
            "key": OCTETS,
            "fingerprint": OCTETS,
            "status": TEXT,
            "shard": INTEGER,
            "fence": INTEGER,
            "message_ids": OCTETS,
            "answer_status": INTEGER,
            "answer_headers": OCTETS,
            "answer_body": OCTETS,
            "expires_at": INTEGER,
        },
        ("id",),
    )
    op.create_index("idempotency_keys_by_expires_at", "idempotency_keys", ["expires_at"])
    create(
        "obligations",
        {
            "message_id": OCTETS,
            "key_id": OCTETS,
            "item": INTEGER,
            "broker": TEXT,
            "exchange": OCTETS,
            "routing_key": OCTETS,
            "payload": OCTETS,
            "at": INTEGER,
            "attempt": INTEGER,
            "status": TEXT,
            "shard": INTEGER,
            "fence": INTEGER,
        },
        ("message_id",),
        sa.CheckConstraint("length(message_id) = 16", name=op.f("obligations_message_id_16")),
    )
    op.create_index("obligations_by_key_id", "obligations", ["key_id"])
    op.create_index("obligations_by_shard_fence", "obligations", ["shard", "fence"])
    create(
        "resources",
        {
            "kind": TEXT,
            "name": OCTETS,
            "spec": OCTETS,
            "etag": TEXT,
            "created_at": INTEGER,
            "updated_at": INTEGER,
        },
        ("kind", "name"),
    )
    if op.get_context().dialect.name == "postgresql":
        for table in PARTITIONED:
            op.execute(f"CREATE TABLE {table}_default PARTITION OF {table} DEFAULT")


def downgrade() -> None:
    for table in ("resources", "obligations", "idempotency_keys", "shards", "events", "messages"):
        op.drop_table(table)
