"""What can be asked of the ledger. Every function runs in a reader's thread, on a connection of its own."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

import sqlalchemy as sa

from gateway.ledger.db.encoding import parse
from gateway.ledger.db.engine import run
from gateway.ledger.db.models import bodies, events, messages, obligations, shards
from gateway.ledger.events import windows
from gateway.ledger.events.searches import message_of
from gateway.ledger.writing.records import EventFilter, RecordedEvent, Timeline
from gateway.ledger.writing.states import EventKind, state_of

_TIMELINE = (
    sa.select(events)
    .where(events.c.message_id == sa.bindparam("this", type_=sa.LargeBinary))
    .order_by(events.c.at, events.c.shard, events.c.sequence)
)
_KNOWN = sa.select(events.c.message_id, events.c.kind, events.c.at).where(
    events.c.message_id.in_(sa.bindparam("these", expanding=True, type_=sa.LargeBinary))
)
_MESSAGE = sa.select(messages).where(messages.c.id == sa.bindparam("this", type_=sa.LargeBinary))
_THIS = sa.bindparam("this", type_=sa.LargeBinary)
_KEEPS = sa.select(
    sa.exists().where(obligations.c.message_id == _THIS), sa.exists().where(bodies.c.message_id == _THIS)
)
_SHARDS = sa.select(shards.c.shard, shards.c.next_sequence).order_by(shards.c.shard)
_FEED = (
    "SELECT shard, sequence, message_id, kind, at, broker, version, detail FROM events "
    "WHERE shard = {0} AND sequence > {0} ORDER BY sequence LIMIT {0}"
)
_FEEDS = {"sqlite": _FEED.format("?"), "postgresql": _FEED.format("%s")}
"""Dialect -> the feed's statement, in the driver's words: rows of SQLAlchemy cost four times as much."""
IDS_MAX: Final = 500
"""Ids of messages in one statement."""
_KINDS = {kind.value: kind for kind in EventKind}


def timeline(connection: sa.Connection, message_id: bytes) -> Timeline | None:
    """A message and its events."""
    row = connection.execute(_MESSAGE, {"this": message_id}).one_or_none()
    if row is None:
        return None
    found = [_event(event) for event in connection.execute(_TIMELINE, {"this": message_id})]
    return Timeline(message_of(row, state_of(event.kind for event in found)), found)


def known(connection: sa.Connection, message_ids: Collection[bytes]) -> set[tuple[bytes, str, int]]:
    """The events of messages: message, kind and time of each."""
    ids = list(message_ids)
    return {
        (bytes(row.message_id), row.kind, row.at)
        for begin in range(0, len(ids), IDS_MAX)
        for row in connection.execute(_KNOWN, {"these": ids[begin : begin + IDS_MAX]})
    }


def keeps(connection: sa.Connection, message_id: bytes) -> tuple[bool, bool]:
    """Whether an answer is pending about a message, and whether its body is there."""
    owes, has = connection.execute(_KEEPS, {"this": message_id}).one()
    return bool(owes), bool(has)


def events_after(
    connection: sa.Connection, position: Mapping[str, int], limit: int, where: EventFilter | None = None
) -> tuple[list[RecordedEvent], dict[str, int]]:
    """The feed. Each shard gets an equal part of the limit, so that a busy one does not keep the others out. What
    ``where`` does not want counts towards the limit, and is passed."""
    ends = end(connection)
    behind = [shard for shard, last in ends.items() if position.get(shard, 0) < last]
    found: list[RecordedEvent] = []
    reached = dict(position)
    read = 0
    for place, shard in enumerate(behind):
        share = max(1, (limit - read) // (len(behind) - place))
        after = position.get(shard, 0)
        rows = run(connection, _FEEDS[connection.dialect.name], (int(shard), after, share))
        read += len(rows)
        events_of = [
            RecordedEvent(number, sequence, message_id, _KINDS[kind], at, broker, version, parse(detail))
            for number, sequence, message_id, kind, at, broker, version, detail in rows
        ]
        found += events_of if where is None else [event for event in events_of if wanted(event, where)]
        # Sequences have gaps where retention took events; whoever asked for more than there are is at the end.
        last: int = rows[-1][1] if rows else 0
        reached[shard] = last if len(rows) == share else max(last, ends[shard])
    return found, reached


def end(connection: sa.Connection) -> dict[str, int]:
    """The position behind everything that there is."""
    return {str(shard): following - 1 for shard, following in connection.execute(_SHARDS).all()}


def position_at(connection: sa.Connection, at: int) -> dict[str, int]:
    """The position before what was written at ``at``, in microseconds since 1970, or later."""
    found = connection.execute(_SHARDS).all()
    return {str(shard): windows.find(connection, shard, following, at) - 1 for shard, following in found}


def wanted(event: RecordedEvent, where: EventFilter) -> bool:
    """Whether an event is one of these."""
    if where.kinds is not None and event.kind not in where.kinds:
        return False
    if where.broker is not None and event.broker != where.broker:
        return False
    if where.message_id is not None and event.message_id != where.message_id:
        return False
    names = (("subscription", where.subscription), ("endpoint", where.endpoint), ("bridge", where.bridge))
    return all(value is None or event.detail.get(name) == value for name, value in names)


def _event(row: Any) -> RecordedEvent:
    return RecordedEvent(
        row.shard,
        row.sequence,
        row.message_id,
        EventKind(row.kind),
        row.at,
        row.broker,
        row.version,
        parse(row.detail),
    )
