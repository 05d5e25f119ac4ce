"""Events between two times, for reports.

Events are found by their place in a shard, not by their time: an index over times would be written for every event and
read once in a while. Within a shard they are nearly in the order of time, since they are written soon after what they
tell; so where a time begins is found by halving, and a page is a range of sequence numbers. An event that was written
late, because the ledger was away, is out of order: what lies within :data:`LATE` of the window is read as well.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import sqlalchemy as sa

from gateway.ledger.db.encoding import parse
from gateway.ledger.db.models import events, messages, shards
from gateway.ledger.writing.states import EventKind

LATE = 3_600_000_000
"""How much later than it happened an event may be written and is still found, in microseconds."""
SPAN = 1_000
"""Sequence numbers of a page."""

_SHARD = events.c.shard == sa.bindparam("this", type_=sa.BigInteger)
_SHARDS = sa.select(shards.c.shard, shards.c.next_sequence).order_by(shards.c.shard)
_AT = (
    sa.select(events.c.at)
    .where(_SHARD, events.c.sequence >= sa.bindparam("first", type_=sa.BigInteger))
    .order_by(events.c.sequence)
    .limit(1)
)
_PAGE = (
    sa.select(events.c.kind, events.c.message_id, events.c.at, events.c.detail, messages.c.size, messages.c.sha256)
    .select_from(events.outerjoin(messages, messages.c.id == events.c.message_id))
    .where(
        _SHARD,
        events.c.sequence >= sa.bindparam("first", type_=sa.BigInteger),
        events.c.sequence < sa.bindparam("behind", type_=sa.BigInteger),
        events.c.kind.in_(sa.bindparam("kinds", expanding=True)),
    )
    .order_by(events.c.sequence)
)


class Happened(NamedTuple):
    """An event, with what is known of its message's body."""

    kind: EventKind
    message_id: bytes
    at: int
    detail: dict[str, Any]
    octets: int
    """Of the body; 0 where the message is not known."""
    sha256: bytes
    """Of the body; empty where the message is not known."""


class Position(NamedTuple):
    """Where the next page begins: shards that are to be read, with the sequence numbers that are left of each."""

    left: tuple[tuple[int, int, int], ...]
    """Shard, first sequence, and the one behind the last."""


def begin(connection: sa.Connection, since: int, until: int) -> Position:
    """Where events from ``since`` until before ``until`` are, in microseconds since 1970."""
    left = []
    for shard, next_sequence in connection.execute(_SHARDS).all():
        first = find(connection, shard, next_sequence, since - LATE)
        behind = find(connection, shard, next_sequence, until + LATE)
        if first < behind:
            left.append((shard, first, behind))
    return Position(tuple(left))


def page(
    connection: sa.Connection, position: Position, kinds: Collection[EventKind], since: int, until: int
) -> tuple[list[Happened], Position]:
    """The next events of these kinds, in the order of their shard, and where to go on; a page may be empty, and the
    last one leaves nothing."""
    (shard, first, behind), *rest = position.left
    end = min(first + SPAN, behind)
    values: Mapping[str, Any] = {"this": shard, "first": first, "behind": end, "kinds": [kind.value for kind in kinds]}
    found = [
        Happened(EventKind(row.kind), row.message_id, row.at, parse(row.detail), row.size or 0, row.sha256 or b"")
        for row in connection.execute(_PAGE, values)
        if since <= row.at < until
    ]
    left = rest if end == behind else [(shard, end, behind), *rest]
    return found, Position(tuple(left))


def find(connection: sa.Connection, shard: int, next_sequence: int, at: int) -> int:
    """By halving, the first sequence number of a shard whose event is not before ``at``."""
    low, high = 1, next_sequence
    while low < high:
        middle = (low + high) // 2
        found = connection.execute(_AT, {"this": shard, "first": middle}).scalar()
        if found is None or found >= at:
            high = middle
        else:
            low = middle + 1
    return low
