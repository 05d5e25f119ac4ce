"""What both logs hold, and where in them something lies. Every function runs in a reader's thread, on a connection of
its own, or inside a transaction of the writer's.

A shard's log is read from its floor to its head. The head is what the shard's row says, which is committed with the
rows themselves: a reader that sees a number sees the rows up to it, unless they are below the floor. The floor is
raised, in a commit of its own, before anything below it goes. So a reader that finds a row missing finds, if it asks
again, a floor that tells it so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import sqlalchemy as sa

from gateway.ledger.db.engine import Row, run
from gateway.ledger.db.models import events, log_floors, message_log, shards
from gateway.ledger.db.prepared import StaticStatement
from gateway.ledger.db.shards import is_retired
from gateway.ledger.logs.logged import Extent, Floor
from gateway.logs import Log

TABLES: Mapping[Log, sa.Table] = {Log.EVENTS: events, Log.MESSAGES: message_log}
"""Log -> its table."""
_NEXT = {Log.EVENTS: shards.c.next_sequence, Log.MESSAGES: shards.c.next_log}
"""Log -> the number after its last."""
_EXTENTS = {
    log: StaticStatement(sa.select(shards.c.shard, following, is_retired()).order_by(shards.c.shard))
    for log, following in _NEXT.items()
}
_FLOORS = StaticStatement(
    sa.select(log_floors.c.shard, log_floors.c.floor, log_floors.c.reason, log_floors.c.at).where(
        log_floors.c.log == sa.bindparam("log", type_=sa.Text)
    )
)
STEP: Final = 10_000
"""Events that are looked at at a time."""
_NOTHING = Floor(1, "", 0)


def extents(connection: sa.Connection, log: Log) -> list[Extent]:
    """What can be read of each shard, by shard."""
    low = floors(connection, log)
    return [
        Extent(shard, low.get(shard, _NOTHING).floor, following - 1, bool(retired))
        for shard, following, retired in _EXTENTS[log].rows(connection)
    ]


def extent(connection: sa.Connection, log: Log, shard: int) -> tuple[Extent, Floor]:
    """What can be read of one shard, and why not more. Of a shard that is not there: nothing."""
    low = floors(connection, log).get(shard, _NOTHING)
    following = connection.execute(sa.select(_NEXT[log]).where(shards.c.shard == shard)).scalar()
    return Extent(shard, low.floor, 0 if following is None else following - 1), low


def floors(connection: sa.Connection, log: Log) -> dict[int, Floor]:
    """The floors of a log, by shard; one that was never raised is not there."""
    rows = _FLOORS.rows(connection, {"log": log.value})
    return {shard: Floor(floor, reason, at) for shard, floor, reason, at in rows}


def old_events(connection: sa.Connection, shard: int, after: int, since: int, until: int) -> tuple[int, bool]:
    """Up to which number behind ``after`` all events of a shard are from before ``since``, looking at no more than
    :data:`STEP`; and whether that is as far as it goes. What says that it is from after ``until`` has a clock that was
    wrong, and does not count. Times are in microseconds since 1970."""
    _, following = connection.execute(sa.select(shards.c.shard, _NEXT[Log.EVENTS]).where(shards.c.shard == shard)).one()
    upto = min(after + STEP, following - 1)
    there = events.c
    query = sa.select(sa.func.min(there.sequence)).where(
        there.shard == shard, there.sequence > after, there.sequence <= upto, there.at >= since, there.at <= until
    )
    found = connection.execute(query).scalar()
    return (upto, upto == following - 1) if found is None else (found - 1, True)


def before(connection: sa.Connection, shard: int, sequence: int) -> int:
    """How much was written to a shard's log of messages before the row of this number, or before the first one behind
    it that is there."""
    there = message_log.c
    query = sa.select(there.octets).where(there.shard == shard, there.sequence >= sequence)
    found = connection.execute(query.order_by(there.sequence).limit(1)).scalar()
    if found is None:  # it is the next one
        found = connection.execute(sa.select(shards.c.log_octets).where(shards.c.shard == shard)).scalar()
    return found or 0


def between(connection: sa.Connection, shard: int, after: int, upto: int) -> int:
    """How much was written to a shard's log of messages behind ``after`` and up to ``upto``."""
    return max(0, before(connection, shard, upto + 1) - before(connection, shard, after + 1)) if after < upto else 0


def segment(connection: sa.Connection, shard: int, after: int, upto: int, octets: int) -> int:
    """Where to stop, so that the rows behind ``after`` and up to there hold at most ``octets``; ``after + 1`` at
    least, ``upto`` at most. For the log of messages."""
    begin = before(connection, shard, after + 1)
    low, high = after + 1, upto
    if before(connection, shard, high + 1) - begin <= octets:
        return high
    while low < high:  # the last one that fits, by halving; ``low`` fits or is the first
        middle = (low + high + 1) // 2
        if before(connection, shard, middle + 1) - begin <= octets:
            low = middle
        else:
            high = middle - 1
    return low


def rows(connection: sa.Connection, text: str) -> list[Row]:
    """All that a statement of :func:`gateway.logs.columns.select` finds."""
    if connection.dialect.name == "postgresql":  # which would rather read all messages than look up a thousand
        connection.exec_driver_sql("SET LOCAL enable_hashjoin = off")
        connection.exec_driver_sql("SET LOCAL enable_mergejoin = off")
        text = text.replace("%", "%%")
    return run(connection, text)
