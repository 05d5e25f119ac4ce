"""What changes in a ledger that comes from a backup, before a gateway serves it: SQLite's file, or a database that
PostgreSQL's tools have put back.

All of it is one transaction (:func:`adopt`):

* The shards are retired: a process that still has a lease of one is fenced, and the next process writes to a new shard.
  So no sequence number names two events, and a reader that has read further than the backup misses nothing.
* Cursors lose their owners, and their epochs grow: a job that goes on under an old epoch is refused, and claims again.
* What the ledger still has to deliver or to publish may have been sent after the backup. It is marked as a possible
  duplicate.
* Work and peers of the old processes are forgotten.
* A row of the audit log says what was restored, and which head was known before.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import sqlalchemy as sa

from gateway.errors import BackupRefused
from gateway.ledger.access import audit
from gateway.ledger.access.audit import AuditHead, AuditKeys
from gateway.ledger.db.encoding import document, parse
from gateway.ledger.db.engine import Database
from gateway.ledger.db.models import deliveries, events, log_cursors, outbox, peers, shards, work
from gateway.ledger.db.shards import RETIRED
from gateway.ledger.pending.outbox import NOBODY

RESTORED: Final = "ledger.restored"
"""Action of the row of the audit log."""
CHUNK: Final = 1_000
"""Rows that are marked at a time."""
MARK: Final = {"resent": True}
"""In a row's reason: it may have been sent before."""


def newest(connection: sa.Connection) -> int:
    """When the newest event was written, in microseconds since 1970; 0 if there is no event."""
    last = sa.select(shards.c.shard, (shards.c.next_sequence - 1).label("sequence")).subquery()
    query = sa.select(sa.func.max(events.c.at)).where(
        events.c.shard == last.c.shard, events.c.sequence == last.c.sequence
    )
    return connection.execute(query).scalar() or 0


def check_idle(connection: sa.Connection, database: Database) -> None:
    """
    Raises:
        BackupRefused: a process has a lease that lasts.
    """
    query = sa.select(shards.c.owner).where(shards.c.owner.is_not(None), shards.c.expires_at > database.clock)
    if (owner := connection.execute(query.limit(1)).scalar()) is not None:
        raise BackupRefused(f"the ledger is in use by {owner}. Stop every gateway on it first. Nothing was changed")


def fence(connection: sa.Connection) -> None:
    """Fence every process that has a shard, as the takeover of a shard does."""
    owned = shards.c.owner.is_not(None)
    connection.execute(sa.update(shards).where(owned).values(owner=None, fence=shards.c.fence + 1))


def adopt(
    connection: sa.Connection, now: int, entry: Mapping[str, Any], keys: AuditKeys | None
) -> tuple[AuditHead, int]:
    """Make it a ledger that a new process goes on with; the new head of the audit log, and how many rows were marked.

    Args:
        now: microseconds since 1970.
        entry: what the row of the audit log says besides its action.
        keys: of the MACs of the audit log.
    """
    unfinished = shards.c.fence < RETIRED
    connection.execute(sa.update(shards).where(unfinished).values(owner=None, fence=RETIRED))
    connection.execute(sa.update(log_cursors).values(owner="", epoch=log_cursors.c.epoch + 1))
    connection.execute(sa.delete(work))
    connection.execute(sa.delete(peers))
    marked = _mark(connection, deliveries, deliveries.c.id) + _mark(connection, outbox, outbox.c.message_id)
    connection.execute(sa.update(outbox).values(shard=NOBODY, fence=0))
    head = audit.append(connection, [(now, {"action": RESTORED, **entry, "marked": marked})], keys)
    return head, marked


def _mark(connection: sa.Connection, table: sa.Table, key: sa.Column[bytes]) -> int:
    """Mark each row of a table as possibly sent before; how many there are."""
    query = sa.select(key, table.c.reason).order_by(key).limit(CHUNK)
    this = sa.bindparam("this", type_=sa.LargeBinary)
    change = sa.update(table).where(key == this).values(reason=sa.bindparam("new", type_=sa.LargeBinary))
    after, number = b"", 0
    while page := connection.execute(query.where(key > after)).all():
        connection.execute(change, [{"this": row[0], "new": document({**parse(row[1]), **MARK})} for row in page])
        after, number = page[-1][0], number + len(page)
    return number
