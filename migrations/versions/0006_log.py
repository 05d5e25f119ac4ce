"""The log of messages that taps spool, cursors and floors of both logs, and the runs of the pipeline.

A ledger that is older than this may have let go of events: what is behind the last gap of a shard is where its log of
events begins. That is found first, as it takes a while on a large ledger, and the tables in use are changed last.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import sqlite

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

INTEGER = sa.BigInteger().with_variant(sqlite.INTEGER(), "sqlite")
OCTETS = sa.LargeBinary()
TEXT = sa.Text()

COLUMNS: dict[str, dict[str, Any]] = {
    "log_floors": {"log": TEXT, "shard": INTEGER, "floor": INTEGER, "reason": TEXT, "at": INTEGER},
    "log_cursors": {
        "name": TEXT,
        "log": TEXT,
        "position": OCTETS,
        "owner": TEXT,
        "epoch": INTEGER,
        "since": INTEGER,
        "heard_at": INTEGER,
        "created_at": INTEGER,
    },
    "pipeline_runs": {
        "id": TEXT,
        "job": TEXT,
        "state": TEXT,
        "started_at": INTEGER,
        "ended_at": INTEGER,
        "fingerprint": TEXT,
        "detail": OCTETS,
        "updated_at": INTEGER,
    },
    "message_log": {
        "shard": INTEGER,
        "sequence": INTEGER,
        "message_id": OCTETS,
        "tap": TEXT,
        "at": INTEGER,
        "broker": TEXT,
        "version": TEXT,
        "queue": OCTETS,
        "exchange": OCTETS,
        "routing_key": OCTETS,
        "redelivered": INTEGER,
        "origin_id": OCTETS,
        "properties": OCTETS,
        "body": OCTETS,
        "sha256": OCTETS,
        "octets": INTEGER,
    },
}
KEYS = {
    "log_floors": ("log", "shard"),
    "log_cursors": ("name",),
    "pipeline_runs": ("id",),
    "message_log": ("shard", "sequence", "message_id"),
}
CHECKS = {"message_log": (("message_id", 16), ("sha256", 32))}

BEHIND_GAPS = """
INSERT INTO log_floors (log, shard, floor, reason, at)
SELECT 'events', shard, max(sequence), 'history', 0
FROM (
    SELECT shard, sequence, sequence - lag(sequence, 1, 0) OVER (PARTITION BY shard ORDER BY sequence) AS step
    FROM (SELECT shard, sequence FROM events UNION ALL SELECT shard, next_sequence FROM shards) AS there
) AS steps
WHERE step > 1
GROUP BY shard
"""


def create(name: str) -> None:
    options: dict[str, Any] = {"sqlite_strict": True, "sqlite_with_rowid": name in ("message_log", "pipeline_runs")}
    if name == "message_log":
        options["postgresql_partition_by"] = "RANGE (message_id)"
    op.create_table(
        name,
        *(sa.Column(column, kind, nullable=False, autoincrement=False) for column, kind in COLUMNS[name].items()),
        sa.PrimaryKeyConstraint(*KEYS[name], name=f"{name}_pk"),
        *(
            sa.CheckConstraint(f"length({column}) = {length}", name=op.f(f"{name}_{column}_{length}"))
            for column, length in CHECKS.get(name, ())
        ),
        **options,
    )


def upgrade() -> None:
    create("log_floors")
    op.execute(BEHIND_GAPS)
    for name in ("log_cursors", "pipeline_runs", "message_log"):
        create(name)
    op.create_index("pipeline_runs_by_started_at_id", "pipeline_runs", ["started_at", "id"])
    if op.get_context().dialect.name == "postgresql":
        op.execute("ALTER TABLE message_log ALTER COLUMN body SET STORAGE EXTERNAL")
        op.execute("CREATE TABLE message_log_default PARTITION OF message_log DEFAULT")
    # With defaults, so that a process of the release before goes on making shards.
    op.add_column("shards", sa.Column("next_log", INTEGER, nullable=False, server_default="1"))
    op.add_column("shards", sa.Column("log_octets", INTEGER, nullable=False, server_default="0"))


def downgrade() -> None:
    op.drop_column("shards", "log_octets")
    op.drop_column("shards", "next_log")
    for name in reversed(COLUMNS):
        op.drop_table(name)
