"""The code of a dead delivery in a column of its own, with indexes, so that dead letters are counted by code.

The indexes are not made concurrently: that waits for every other transaction, that of a process that waits for the lock
of migrations included. The table only holds what is pending, so reading it once is short.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

INDEXES = {"deliveries_by_code": "code, subscription, id, status", "deliveries_by_code_id": "code, id"}
BEFORE = {
    "sqlite": (
        "UPDATE deliveries SET code = coalesce(json_extract(CAST(reason AS TEXT), '$.code'), '') "
        "WHERE status = 2 AND json_valid(CAST(reason AS TEXT))"
    ),
    "postgresql": (
        "UPDATE deliveries SET code = "
        "coalesce(substring(encode(reason, 'escape') from '\"code\": ?\"([a-z_]+)\"'), '') WHERE status = 2"
    ),
}
"""The codes of those that died before. Within a text of JSON a quotation mark follows a backslash."""


def upgrade() -> None:
    op.add_column("deliveries", sa.Column("code", sa.Text(), nullable=False, server_default=""))
    op.execute(BEFORE[op.get_context().dialect.name])
    for name, columns in INDEXES.items():
        index = f"CREATE INDEX {name} ON deliveries ({columns}) WHERE status = 2"
        op.execute(f"-- squawk-ignore require-concurrent-index-creation\n{index}")


def downgrade() -> None:
    for name in INDEXES:
        op.drop_index(name, "deliveries")
    op.drop_column("deliveries", "code")
