"""What of the logs goes, and when.

The log of messages is kept for those who read it: what is below the lowest of its cursors goes. Where nobody reads, and
where somebody does not read for long, it is bounded by age and by size (``retention.log_days``, ``log_octets``). Then
rows go that a cursor has not passed; that is logged with the cursor's name, and a reader that asks for them later gets
an error.

In that order: the *floor* of a shard is raised and committed; then what is below it goes, a chunk at a time. So rows go
that nobody can ask for any more, and a reader that was in the middle of them learns that by asking for the floor again
(:mod:`gateway.api.history.log_range`). A floor is never lowered.

The log of events goes with the history: its floor is raised to where the history begins, before events go
(:mod:`gateway.ledger.events.retention`). No event above it goes, so what can be read of that log has no gaps.

On PostgreSQL a day of the log of messages is a partition, which is dropped when all of it is below the floors.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import sqlalchemy as sa

from gateway.config import RetentionSettings
from gateway.ledger.db.engine import Database
from gateway.ledger.db.models import log_floors, message_log
from gateway.ledger.db.schema import partition_name
from gateway.ledger.db.shards import INSERT
from gateway.ledger.events.retention import LOCK_TIMEOUT, DropOutcome, attached, is_busy
from gateway.ledger.logs import log_cursors, log_reads
from gateway.ledger.logs.log_cursors import Cursors
from gateway.ledger.logs.logged import Extent
from gateway.logs import Log

CHUNK: Final = 1_000
"""Most rows that are deleted in one transaction."""
DAY_US: Final = 86_400_000_000
EXACT: Final = 1_000_000
"""How exactly the time is found before which rows go for their size, in microseconds."""
CURSOR, AGE, SIZE, HISTORY = "cursor", "age", "size", "history"
_PARTITION = re.compile(r"message_log_d(\d+)")
_THERE = message_log.c


class Raise(NamedTuple):
    """A floor that is raised."""

    log: Log
    shard: int
    floor: int
    reason: str
    passed: tuple[str, ...] = ()
    """Cursors that had not read all of what goes."""


class LogRetention:
    """The statements. They run in transactions of the caller's."""

    def __init__(self, database: Database, cursors: Cursors, settings: RetentionSettings) -> None:
        self._cursors = cursors
        self.settings = settings
        insert = INSERT[database.dialect](log_floors)
        newer = insert.excluded.floor > log_floors.c.floor
        values = {name: insert.excluded[name] for name in ("floor", "reason", "at")}
        self._raise = insert.on_conflict_do_update(
            index_elements=[log_floors.c.log, log_floors.c.shard], set_=values, where=newer
        )

    def raise_history(self, connection: sa.Connection, position: Mapping[str, int], now: int) -> list[Raise]:
        """Raise the floors of the log of events to behind ``position``; those that were raised. ``now`` in
        microseconds."""
        self._cursors.seclude(connection)
        wanted = {
            each.shard: (position[str(each.shard)] + 1, HISTORY)
            for each in log_reads.extents(connection, Log.EVENTS)
            if position.get(str(each.shard), 0) >= each.floor
        }
        return self._write(connection, Log.EVENTS, wanted, now)

    def raise_messages(self, connection: sa.Connection, now: int) -> list[Raise]:
        """Raise the floors of the log of messages as far as cursors, age and size allow or ask for; those that were
        raised. ``now`` in microseconds."""
        self._cursors.seclude(connection)
        extents = log_reads.extents(connection, Log.MESSAGES)
        positions = [each.position for each in log_cursors.of_log(connection, Log.MESSAGES)]
        wanted: dict[int, tuple[int, str]] = {}
        for each in extents:
            read = min((position.get(str(each.shard), 0) for position in positions), default=0)
            old = _first_since(connection, each, now - self.settings.log_days * DAY_US)
            floor, reason = max((min(read, each.head) + 1, CURSOR), (old, AGE))
            if floor > each.floor:
                wanted[each.shard] = floor, reason
        left = [Extent(each.shard, max(each.floor, wanted.get(each.shard, (0, ""))[0]), each.head) for each in extents]
        for shard, floor in self._too_much(connection, left, now):
            wanted[shard] = floor, SIZE
        return self._write(connection, Log.MESSAGES, wanted, now)

    def delete(self, connection: sa.Connection, shard: int, floor: int) -> int:
        """Delete the first rows of a shard's log of messages that are below ``floor``, at most :data:`CHUNK`; how
        many."""
        # Rows of one number differ in their partition alone, and there is one of each.
        below = sa.select(_THERE.sequence).where(_THERE.shard == shard, _THERE.sequence < floor)
        last = connection.execute(
            sa.select(sa.func.max(below.order_by(_THERE.sequence).limit(CHUNK).subquery().c.sequence))
        ).scalar()
        if last is None:
            return 0
        query = sa.delete(message_log).where(_THERE.shard == shard, _THERE.sequence <= last)
        return connection.execute(query).rowcount

    def _too_much(self, connection: sa.Connection, extents: Sequence[Extent], now: int) -> list[tuple[int, int]]:
        """Where the shards have to begin so that all of them together are not larger than they may be: at the same
        time."""

        def size(floors: Mapping[int, int]) -> int:
            return sum(log_reads.between(connection, each.shard, floors[each.shard] - 1, each.head) for each in extents)

        if size({each.shard: each.floor for each in extents}) <= self.settings.log_octets:
            return []
        oldest = [_at(connection, each) for each in extents if each.floor <= each.head]
        low, high = min(oldest, default=now), now + 1  # what is there from ``high`` on fits
        while high - low > EXACT:
            middle = (low + high) // 2
            floors = {each.shard: _first_since(connection, each, middle) for each in extents}
            if size(floors) <= self.settings.log_octets:
                high = middle
            else:
                low = middle
        found = {each.shard: _first_since(connection, each, high) for each in extents}
        return [(each.shard, found[each.shard]) for each in extents if found[each.shard] > each.floor]

    def _write(
        self, connection: sa.Connection, log: Log, wanted: Mapping[int, tuple[int, str]], now: int
    ) -> list[Raise]:
        cursors = log_cursors.of_log(connection, log) if wanted else []
        raised = []
        for shard, (floor, reason) in sorted(wanted.items()):
            row = {"log": log.value, "shard": shard, "floor": floor, "reason": reason, "at": now}
            connection.execute(self._raise, row)
            passed = tuple(each.name for each in cursors if each.position.get(str(shard), 0) < floor - 1)
            raised.append(Raise(log, shard, floor, reason, passed))
        return raised


def _first_since(connection: sa.Connection, extent: Extent, at: int) -> int:
    """By halving, the first number of a shard that can be read and whose message was not spooled before ``at``; behind
    the last one: all were."""
    low, high = extent.floor, max(extent.floor, extent.head + 1)
    while low < high:
        middle = (low + high) // 2
        found = _at(connection, Extent(extent.shard, middle, extent.head))
        if found >= at:
            high = middle
        else:
            low = middle + 1
    return low


def _at(connection: sa.Connection, extent: Extent) -> int:
    """When the first message of an extent was spooled; 0: there is none."""
    query = sa.select(_THERE.at).where(_THERE.shard == extent.shard, _THERE.sequence >= extent.floor)
    return connection.execute(query.order_by(_THERE.sequence).limit(1)).scalar() or 0


# ------------------------------------------------------------------------------------------- days, PostgreSQL


def days(connection: sa.Connection) -> list[int]:
    """The days that have partitions of the log of messages, the oldest first, and those that were taken out and not
    dropped."""
    found = map(_PARTITION.fullmatch, sa.inspect(connection).get_table_names())
    return sorted(int(match[1]) for match in found if match)


def drop_day(connection: sa.Connection, day: int, between: Callable[[], None] = lambda: None) -> DropOutcome:
    """Drop the partition of a day if all of it is below the floors; ``connection`` is one that may wait, and is not in
    a transaction. ``between`` is called between looking and doing (tests)."""
    name = partition_name(message_log.name, day)
    try:
        with connection.begin():
            _patience(connection)
            if (there := attached(connection, {message_log.name: name})) and _is_needed(connection, name):
                return DropOutcome.WHOLE
        between()
        if there:
            with connection.begin() as transaction:
                _patience(connection)
                connection.exec_driver_sql(f"ALTER TABLE {message_log.name} DETACH PARTITION {name}")
                if _is_needed(connection, name):  # since it was looked at
                    transaction.rollback()
                    return DropOutcome.WHOLE
        with connection.begin():
            connection.exec_driver_sql(f"DROP TABLE IF EXISTS {name}")
    except sa.exc.DBAPIError as error:
        if is_busy(error):
            return DropOutcome.BUSY
        raise
    return DropOutcome.GONE


def _is_needed(connection: sa.Connection, name: str) -> bool:
    """Whether a partition has a row that can be read."""
    part: Any = sa.table(name, sa.column("shard", sa.BigInteger), sa.column("sequence", sa.BigInteger))
    for each in log_reads.extents(connection, Log.MESSAGES):
        there = sa.select(sa.exists().where(part.c.shard == each.shard, part.c.sequence >= each.floor))
        if connection.execute(there).scalar():
            return True
    return False


def _patience(connection: sa.Connection) -> None:
    connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT}'")
    connection.exec_driver_sql("SET LOCAL enable_seqscan = off")
