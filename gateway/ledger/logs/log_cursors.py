"""Cursors: how far somebody has read a log, and who that is.

A cursor is claimed by an owner, and each claim gives it a greater epoch. The holder of the present epoch moves it; the
holder of an older one learns who came after. So two readers that take themselves for the same one do not both go on,
and the one that was first learns of the other by its next word. An owner that has not been heard of for :data:`QUIET`
counts as gone.

All of it runs in transactions of the writer's. A claim begins by making the row if there is none, and locks it: of two
that claim at once, one comes after the other, and finds it owned. Where a new cursor begins is written under a lock
which retention takes, too (:data:`ADVISORY_LOCK`): what a new cursor was promised does not go in the same moment.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

import sqlalchemy as sa

from gateway.errors import CursorOwned, LimitExceeded, NoSuchCursor, RangeAhead, StateError
from gateway.ledger.db.engine import Database
from gateway.ledger.db.models import log_cursors
from gateway.ledger.db.shards import INSERT
from gateway.ledger.logs import log_reads
from gateway.ledger.logs.logged import StoredCursor, UnreadLog
from gateway.logs import Log

QUIET: Final = 60_000_000
"""How long an owner may say nothing before another one may have the cursor, in microseconds."""
CURSORS_MAX: Final = 1_000
"""Most cursors of a ledger."""
EARLIEST, LATEST = "earliest", "latest"
"""Where a new cursor begins: before the first row that there is, behind the last."""
ADVISORY_LOCK: Final = 0x6C6F6773
"""Held on PostgreSQL while a cursor is made, and while floors are raised ("logs")."""

_ORDERED = sa.select(log_cursors).order_by(log_cursors.c.name)


class Cursors:
    """The statements. Times are on the database's clock, unless another stands for it (tests)."""

    def __init__(self, database: Database, clock: Callable[[], int] | None = None) -> None:
        self._there = sa.select(database.clock)
        self._clock = clock
        self._postgresql = database.is_postgresql
        self._insert = INSERT[database.dialect](log_cursors).on_conflict_do_nothing(index_elements=[log_cursors.c.name])

    def claim(
        self,
        connection: sa.Connection,
        name: str,
        log: Log,
        owner: str,
        start: str | Mapping[str, int],
        take_over: bool,
    ) -> StoredCursor:
        """Own a cursor from now on, which is made if there is none; ``start`` counts for a new one only.

        Raises:
            CursorOwned: another owner was heard of lately, and it is not to be taken over.
            StateError: it is a cursor of the other log.
            RangeAhead: ``start`` is behind the last row.
            LimitExceeded: there are :data:`CURSORS_MAX`.
        """
        now = self._now(connection)
        found = self._lock(connection, name)
        if found is None:
            self._make(connection, name, log, start, now)
            found = self._lock(connection, name)
            assert found is not None  # made just now, by us or by somebody else
        if found.log is not log:
            raise StateError(f"the cursor {name!r} is one of the log {found.log.value!r}, not {log.value!r}")
        same = found.owner == owner
        if found.owner and not same and not take_over and now - found.heard_at < QUIET:
            raise CursorOwned(_owned(found, now))
        values = {
            "owner": owner,
            "epoch": found.epoch + 1,
            "since": found.since if same else now,
            "heard_at": now,
        }
        connection.execute(sa.update(log_cursors).where(log_cursors.c.name == name).values(values))
        return _with(found, values)

    def move(
        self, connection: sa.Connection, name: str, owner: str, epoch: int, position: Mapping[str, int]
    ) -> StoredCursor:
        """Say how far the owner is; of each shard the greater number counts, so that saying it again, or saying
        something older, changes nothing.

        Raises:
            NoSuchCursor: there is none of that name.
            CursorOwned: the epoch is not the present one.
            RangeAhead: the position is behind the last row of a shard.
        """
        now = self._now(connection)
        found = self._own(connection, name, owner, epoch, now)
        _not_ahead(connection, found.log, position)
        reached = dict(found.position)
        for shard, last in position.items():
            reached[shard] = max(last, reached.get(shard, 0))
        values = {"position": _encode(reached), "heard_at": now}
        connection.execute(sa.update(log_cursors).where(log_cursors.c.name == name).values(values))
        return _with(found, {"position": reached, "heard_at": now})

    def release(self, connection: sa.Connection, name: str, owner: str, epoch: int) -> StoredCursor:
        """Own it no more; to say so twice is no error.

        Raises:
            NoSuchCursor, CursorOwned: as in :meth:`move`.
        """
        now = self._now(connection)
        found = self._lock(connection, name)
        if found is None:
            raise NoSuchCursor(f"there is no cursor {name!r}")
        if found.epoch != epoch or found.owner not in (owner, ""):
            raise CursorOwned(_owned(found, now))
        connection.execute(sa.update(log_cursors).where(log_cursors.c.name == name).values(owner="", heard_at=now))
        return _with(found, {"owner": "", "heard_at": now})

    def delete(self, connection: sa.Connection, name: str) -> None:
        """Forget it: what it has not read may go.

        Raises:
            NoSuchCursor: there is none of that name.
            CursorOwned: its owner was heard of lately.
        """
        now = self._now(connection)
        found = self._lock(connection, name)
        if found is None:
            raise NoSuchCursor(f"there is no cursor {name!r}")
        if found.owner and now - found.heard_at < QUIET:
            raise CursorOwned(_owned(found, now))
        connection.execute(sa.delete(log_cursors).where(log_cursors.c.name == name))

    def seclude(self, connection: sa.Connection) -> None:
        """No cursor is made, and no floor raised, by anybody else until the transaction ends."""
        if self._postgresql:
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(ADVISORY_LOCK)))

    def _make(self, connection: sa.Connection, name: str, log: Log, start: str | Mapping[str, int], now: int) -> None:
        self.seclude(connection)
        if connection.execute(sa.select(sa.func.count()).select_from(log_cursors)).scalar_one() >= CURSORS_MAX:
            raise LimitExceeded(f"there are {CURSORS_MAX} cursors, which is the most; delete one", "cursors")
        row = {
            "name": name,
            "log": log.value,
            "position": _encode(_begin(connection, log, start)),
            "owner": "",
            "epoch": 0,
            "since": now,
            "heard_at": 0,
            "created_at": now,
        }
        connection.execute(self._insert, row)

    def _own(self, connection: sa.Connection, name: str, owner: str, epoch: int, now: int) -> StoredCursor:
        found = self._lock(connection, name)
        if found is None:
            raise NoSuchCursor(f"there is no cursor {name!r}")
        if (found.owner, found.epoch) != (owner, epoch):
            raise CursorOwned(_owned(found, now))
        return found

    def _lock(self, connection: sa.Connection, name: str) -> StoredCursor | None:
        query = sa.select(log_cursors).where(log_cursors.c.name == name).with_for_update()
        row = connection.execute(query).one_or_none()
        return None if row is None else _cursor(row)

    def _now(self, connection: sa.Connection) -> int:
        return connection.execute(self._there).scalar_one() if self._clock is None else self._clock()


# --------------------------------------------------------------------------------------------------- reading


def get(connection: sa.Connection, name: str) -> StoredCursor | None:
    """One by name."""
    row = connection.execute(sa.select(log_cursors).where(log_cursors.c.name == name)).one_or_none()
    return None if row is None else _cursor(row)


def page(connection: sa.Connection, cursor: str | None, limit: int) -> tuple[list[StoredCursor], str | None]:
    """Some by name, and the cursor of the next page: the last name."""
    query = _ORDERED.limit(limit + 1)
    if cursor is not None:
        query = query.where(log_cursors.c.name > cursor)
    found = [_cursor(row) for row in connection.execute(query).all()]
    return found[:limit], found[limit - 1].name if len(found) > limit else None


def of_log(connection: sa.Connection, log: Log) -> list[StoredCursor]:
    """All cursors of a log."""
    return [_cursor(row) for row in connection.execute(_ORDERED.where(log_cursors.c.log == log.value)).all()]


def backlog(connection: sa.Connection, log: Log, position: Mapping[str, int]) -> UnreadLog:
    """What of a log is behind a position, and is there."""
    rows = octets = 0
    for each in log_reads.extents(connection, log):
        begin = max(position.get(str(each.shard), 0), each.floor - 1)
        if begin < each.head:
            rows += each.head - begin
            if log is Log.MESSAGES:
                octets += log_reads.between(connection, each.shard, begin, each.head)
    return UnreadLog(rows, octets)


def unread(connection: sa.Connection, log: Log) -> UnreadLog:
    """What of a log is there that not every cursor has passed; where there is no cursor, all of it."""
    positions = [cursor.position for cursor in of_log(connection, log)]
    shards = {shard for position in positions for shard in position}
    lowest = {shard: min(position.get(shard, 0) for position in positions) for shard in shards}
    return backlog(connection, log, lowest)


def _begin(connection: sa.Connection, log: Log, start: str | Mapping[str, int]) -> dict[str, int]:
    if not isinstance(start, str):
        _not_ahead(connection, log, start)
        return dict(start)
    ends = log_reads.extents(connection, log)
    return {str(each.shard): each.floor - 1 if start == EARLIEST else each.head for each in ends}


def _not_ahead(connection: sa.Connection, log: Log, position: Mapping[str, int]) -> None:
    extents = log_reads.extents(connection, log)
    heads = {str(each.shard): each.head for each in extents}
    retired = {str(each.shard) for each in extents if each.retired}
    for shard, last in position.items():
        if last > heads.get(shard, 0) and shard not in retired:
            raise RangeAhead(
                f"the position is {last} in shard {shard} of the log {log.value!r}, which ends at {heads.get(shard, 0)}"
            )


def _owned(cursor: StoredCursor, now: int) -> str:
    if not cursor.owner:
        return f"the cursor {cursor.name!r} is nobody's since its epoch {cursor.epoch} was released; claim it again"
    held, quiet = (now - cursor.since) / 1e6, (now - cursor.heard_at) / 1e6
    return (
        f"the cursor {cursor.name!r} is owned by {cursor.owner!r}, in epoch {cursor.epoch}, for {held:.0f} s; "
        f"it was heard of {quiet:.0f} s ago"
    )


def _with(cursor: StoredCursor, values: Mapping[str, Any]) -> StoredCursor:
    fields = {name: getattr(cursor, name) for name in StoredCursor.__struct_fields__}
    return StoredCursor(**{**fields, **values})


def _encode(position: Mapping[str, int]) -> bytes:
    return json.dumps(dict(sorted(position.items(), key=lambda each: int(each[0]))), separators=(",", ":")).encode()


def _cursor(row: Any) -> StoredCursor:
    return StoredCursor(
        name=row.name,
        log=Log(row.log),
        position=json.loads(row.position),
        owner=row.owner,
        epoch=row.epoch,
        since=row.since,
        heard_at=row.heard_at,
        created_at=row.created_at,
    )
