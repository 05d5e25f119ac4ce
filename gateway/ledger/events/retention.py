"""What of the history goes, and how.

A message goes with its events some days after it was made, by whole days. It stays as long as something of it is
*kept*:

* something is pending: it is in ``deliveries``, ``outbox`` or ``obligations``;
* its body is there, for a replay;
* something happened to it, or was written of it, since the history begins; or it is not counted yet
  (:mod:`gateway.ledger.events.statistics`).

Where the history begins is a position, and the log of events is read from there on
(:mod:`gateway.ledger.logs.log_reads`): no event behind it goes.

So what waits for a consumer that is paused for months has its timeline all that time.

On PostgreSQL a day is two partitions, which are detached and dropped, with any number of rows. What is kept of
the day moves to the default partition in the same transaction; if that is more than :data:`KEPT_MAX` messages, the day
stays whole until it is less. Taking a partition out needs the tables for itself. It is not waited for longer than
:data:`LOCK_TIMEOUT`, since everybody else waits behind that; it is tried again a little later.

The default partition, and SQLite's tables, are swept in chunks. A chunk of the default partition locks it against
writers, who use it for what is older than the history only; so a message that becomes pending just then is pending
before the chunk, and stays, or after it, and is written again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final

import sqlalchemy as sa

from gateway.ledger.db.engine import Database
from gateway.ledger.db.ids import DAY_MS, first_id
from gateway.ledger.db.models import (
    PARTITIONED,
    bodies,
    counted,
    deliveries,
    events,
    messages,
    obligations,
    outbox,
)
from gateway.ledger.db.schema import partition_name

LOCK_TIMEOUT: Final = "200ms"
KEPT_MAX: Final = 10_000
"""Most messages of a day that are moved when the day is dropped."""
CHUNK: Final = 1_000
"""Most messages that are deleted in one transaction."""
CHUNK_EVENTS: Final = 10_000
"""Most events that are deleted in one transaction, but for those of one message."""
VACUUM_PAGES: Final = 500
"""Most pages that SQLite gives back to the disk in one transaction."""
HOLDERS: Final = (deliveries.c.message_id, outbox.c.message_id, obligations.c.message_id, bodies.c.message_id)
"""Tables that name a pending message, or one whose body is there."""

HISTORY: Final = (messages, events)
"""The tables that go together, in the order in which writers lock them."""

_DAY = re.compile(r"(messages|events)_d(\d+)")


class DropOutcome(StrEnum):
    """What became of a day."""

    GONE = "gone"
    WHOLE = "whole"
    """Too much of it is kept."""
    BUSY = "busy"
    """Somebody uses the tables; to be tried again."""


# ------------------------------------------------------------------------------------------- days, PostgreSQL


def days(connection: sa.Connection) -> list[int]:
    """The days that have partitions, the oldest first, and those that were taken out and not dropped."""
    found = map(_DAY.fullmatch, sa.inspect(connection).get_table_names())
    return sorted({int(match[2]) for match in found if match})


def drop_day(connection: sa.Connection, day: int, read: Mapping[str, int]) -> DropOutcome:
    """Drop the partitions of a day; ``connection`` is one that may wait, and is not in a transaction.

    Args:
        read: a position up to which all events are counted, and behind which they are too new to go.
    """
    names = {table.name: partition_name(table.name, day) for table in HISTORY}
    try:
        with connection.begin():
            _patience(connection)
            there = attached(connection, names)
            if there and _kept(connection, day, read) is None:
                return DropOutcome.WHOLE
        if there:
            with connection.begin() as transaction:
                _patience(connection)
                for table in there:  # in the order in which writers lock them
                    connection.exec_driver_sql(f"ALTER TABLE {table} DETACH PARTITION {names[table]}")
                if not _move(connection, day, read, names):
                    transaction.rollback()
                    return DropOutcome.WHOLE
        with connection.begin():
            for name in names.values():
                connection.exec_driver_sql(f"DROP TABLE IF EXISTS {name}")
    except sa.exc.DBAPIError as error:
        if is_busy(error):
            return DropOutcome.BUSY
        raise
    return DropOutcome.GONE


def is_busy(error: sa.exc.DBAPIError) -> bool:
    """Whether somebody used what was wanted alone: locked, a deadlock, out of time."""
    return getattr(error.orig, "sqlstate", None) in ("55P03", "40P01", "57014")


def _patience(connection: sa.Connection) -> None:
    connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT}'")
    # There is an index for everything that is asked of a day, and perhaps no statistics yet that would say so.
    connection.exec_driver_sql("SET LOCAL enable_seqscan = off")


def attached(connection: sa.Connection, names: Mapping[str, str]) -> list[str]:
    """Tables of which the day's partition is a partition still."""
    inherits = sa.text("SELECT 1 FROM pg_inherits WHERE inhrelid = to_regclass(:name)")
    return [table for table, name in names.items() if connection.execute(inherits, {"name": name}).scalar()]


def _kept(connection: sa.Connection, day: int, read: Mapping[str, int]) -> list[bytes] | None:
    """The messages of a day that stay; None: too many."""
    low, high = first_id(day * DAY_MS), first_id((day + 1) * DAY_MS)
    part = sa.table(partition_name("events", day), *(sa.column(c.name, c.type) for c in events.c))
    parts = [sa.select(column.label("id")).where(column >= low, column < high) for column in HOLDERS]
    for shard, sequence in read.items():
        parts.append(sa.select(part.c.message_id).where(part.c.shard == int(shard), part.c.sequence > sequence))
    newest = max(map(int, read), default=-1)
    parts.append(sa.select(part.c.message_id).where(part.c.shard > newest))
    most = 4 * KEPT_MAX + 1  # one message may be named several times
    rows = connection.execute(sa.union_all(*parts).limit(most)).scalars().all()
    kept = sorted(set(rows))
    return None if len(rows) == most or len(kept) > KEPT_MAX else kept


def _move(connection: sa.Connection, day: int, read: Mapping[str, int], names: Mapping[str, str]) -> bool:
    """Move what is kept of a day that was taken out to where it belongs then: the default partition."""
    kept = _kept(connection, day, read)
    if kept is None:  # more of them since it was looked at
        return False
    these = sa.bindparam("these", kept, expanding=False, type_=sa.ARRAY(sa.LargeBinary))
    for table in HISTORY:
        part = sa.table(names[table.name], *(sa.column(column.name, column.type) for column in table.c))
        rows = sa.select(*part.c).where(part.c[PARTITIONED[table.name]] == sa.func.any(these))
        connection.execute(sa.insert(table).from_select([column.name for column in table.c], rows))
    return True


# ------------------------------------------------------------------------------------- chunks, both databases


class Sweep:
    """Deletes what has no partition of its own to go with."""

    def __init__(self, database: Database) -> None:
        tables = [
            sa.table(table.name + "_default" * database.is_postgresql, *(sa.column(c.name, c.type) for c in table.c))
            for table in HISTORY
        ]
        self._messages, self._events = tables
        self._lock = f"LOCK TABLE {tables[0].name} IN SHARE ROW EXCLUSIVE MODE" if database.is_postgresql else ""

    def step(
        self, connection: sa.Connection, after: bytes, before: bytes, recent: int, read: Mapping[str, int]
    ) -> tuple[int, bytes | None]:
        """Delete what may go of the messages behind ``after`` and before ``before``, of which nothing happened at or
        after ``recent`` (microseconds since 1970), nor was written behind the position ``read``. Inside a transaction
        of the caller's.

        Returns:
            How many messages went, and after which one to go on; None: that was the last.
        """
        there, told = self._messages.c, self._events.c
        if self._lock:
            connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT}'")
            connection.exec_driver_sql(self._lock)
        edges = [
            connection.execute(
                sa.select(column).where(column > after, column < before).order_by(column).offset(number - 1).limit(1)
            ).scalar()
            for column, number in ((there.id, CHUNK), (told.message_id, CHUNK_EVENTS))
        ]
        last = min((edge for edge in edges if edge is not None), default=None)
        behind = before if last is None else last + b"\0"
        gone = connection.execute(
            sa.delete(self._messages).where(
                there.id > after,
                there.id < behind,
                *(~sa.exists().where(column == there.id) for column in HOLDERS),
                ~sa.exists().where(events.c.message_id == there.id, _new(events.c, recent, read)),
            )
        ).rowcount
        connection.execute(
            sa.delete(self._events).where(
                told.message_id > after,
                told.message_id < behind,
                ~_new(told, recent, read),
                ~sa.exists().where(messages.c.id == told.message_id),
            )
        )
        return gone, last


def _new(columns: Any, recent: int, read: Mapping[str, int]) -> sa.ColumnElement[bool]:
    """It happened lately, was written lately, or is not counted yet."""
    number = sa.select(counted.c.sequence).where(counted.c.shard == columns.shard).scalar_subquery()
    written = {int(shard): sequence for shard, sequence in read.items()}
    edge = sa.case(written, value=columns.shard, else_=0) if written else sa.literal(0)
    return sa.or_(columns.at >= recent, columns.sequence > edge, columns.sequence > sa.func.coalesce(number, 0))


def give_back(connection: sa.Connection) -> int:
    """SQLite: return free pages of the file to the disk, at most :data:`VACUUM_PAGES`; how many are left."""
    driver: Any = connection.connection.dbapi_connection
    driver.execute(f"PRAGMA incremental_vacuum({VACUUM_PAGES})").fetchall()  # a page with each row, and no column
    left: int = connection.exec_driver_sql("PRAGMA freelist_count").scalar_one()
    return left
