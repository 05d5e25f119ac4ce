"""What the ledger owes to consumers, the bodies of it, and what is to be published later."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import sqlite

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

INTEGER = sa.BigInteger().with_variant(sqlite.INTEGER(), "sqlite")
OCTETS = sa.LargeBinary()
TEXT = sa.Text()

COLUMNS: dict[str, dict[str, Any]] = {
    "deliveries": {
        "id": OCTETS,
        "message_id": OCTETS,
        "digest": OCTETS,
        "subscription": OCTETS,
        "order_key": OCTETS,
        "at": INTEGER,
        "due_at": INTEGER,
        "attempt": INTEGER,
        "lease": INTEGER,
        "status": INTEGER,
        "size": INTEGER,
        "reason": OCTETS,
    },
    "bodies": {
        "message_id": OCTETS,
        "digest": OCTETS,
        "owed": INTEGER,
        "kept_until": INTEGER,
        "payload": OCTETS,
    },
    "outbox": {
        "message_id": OCTETS,
        "broker": TEXT,
        "exchange": OCTETS,
        "routing_key": OCTETS,
        "payload": OCTETS,
        "client": OCTETS,
        "at": INTEGER,
        "due_at": INTEGER,
        "attempt": INTEGER,
        "reason": OCTETS,
        "shard": INTEGER,
        "fence": INTEGER,
    },
}
KEYS = {"deliveries": ("id",), "bodies": ("message_id", "digest"), "outbox": ("message_id",)}
INDEXES: tuple[tuple[str, str, tuple[str, ...], str], ...] = (
    ("deliveries_by_due_at", "deliveries", ("subscription", "due_at", "id", "order_key", "status"), "status < 2"),
    (
        "deliveries_by_order_key",
        "deliveries",
        ("subscription", "order_key", "id"),
        "status < 2 AND length(order_key) > 0",
    ),
    ("deliveries_by_subscription", "deliveries", ("subscription", "id"), ""),
    ("deliveries_by_message_id", "deliveries", ("message_id",), ""),
    ("bodies_by_kept_until", "bodies", ("kept_until",), "kept_until > 0"),
    ("outbox_by_due_at", "outbox", ("due_at",), ""),
)


def upgrade() -> None:
    for table, columns in COLUMNS.items():
        ids = [name for name in ("id", "message_id") if name in columns]
        op.create_table(
            table,
            *(sa.Column(name, kind, nullable=False) for name, kind in columns.items()),
            sa.PrimaryKeyConstraint(*KEYS[table], name=f"{table}_pk"),
            *(sa.CheckConstraint(f"length({name}) = 16", name=op.f(f"{table}_{name}_16")) for name in ids),
            sqlite_strict=True,
            sqlite_with_rowid=table != "deliveries",
        )
    for name, table, columns_of, where in INDEXES:
        some = {f"{dialect}_where": sa.text(where) for dialect in ("sqlite", "postgresql")} if where else {}
        op.create_index(name, table, list(columns_of), **some)
    if op.get_context().dialect.name == "postgresql":
        # Rows come and go: they are to be cleaned up once a few thousand have gone, not a fifth of all. Payloads are
        # not worth compressing for the time that they are there.
        for table in COLUMNS:
            op.execute(
                f"ALTER TABLE {table} SET (autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_scale_factor = 0.02, "
                "autovacuum_analyze_threshold = 2000, autovacuum_analyze_scale_factor = 0.05)"
            )
        for table in ("bodies", "outbox"):
            op.execute(f"ALTER TABLE {table} ALTER COLUMN payload SET STORAGE EXTERNAL")


def downgrade() -> None:
    for table in reversed(COLUMNS):
        op.drop_table(table)
