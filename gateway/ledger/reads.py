"""What can be asked of the ledger. Every function runs in a reader's thread, on a connection of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from gateway.ledger.encoding import octets, parse, text
from gateway.ledger.ids import first_id
from gateway.ledger.models import events, messages, shards
from gateway.ledger.records import Event, MessageFilter, StoredMessage, Timeline
from gateway.ledger.states import LATE_KINDS, RULES, Kind, State, kinds_of, state_of

_TIMELINE = (
    sa.select(events)
    .where(events.c.message_id == sa.bindparam("this", type_=sa.LargeBinary))
    .order_by(events.c.at, events.c.shard, events.c.sequence)
)
_MESSAGE = sa.select(messages).where(messages.c.id == sa.bindparam("this", type_=sa.LargeBinary))
_SHARDS = sa.select(shards.c.shard).order_by(shards.c.shard)
_FEED = (
    sa.select(events)
    .where(
        events.c.shard == sa.bindparam("this", type_=sa.BigInteger),
        events.c.sequence > sa.bindparam("after", type_=sa.BigInteger),
    )
    .order_by(events.c.sequence)
    .limit(sa.bindparam("most", type_=sa.Integer))
)
# The state as gateway.ledger.states derives it: the last event of the latest phase.
_LAST_KIND = (
    sa.select(events.c.kind)
    .where(events.c.message_id == messages.c.id)
    .order_by(
        sa.case((events.c.kind.in_([str(kind) for kind in LATE_KINDS]), 1), else_=0).desc(),
        events.c.at.desc(),
        events.c.shard.desc(),
        events.c.sequence.desc(),
    )
    .limit(1)
    .correlate(messages)
    .scalar_subquery()
)


def timeline(connection: sa.Connection, message_id: bytes) -> Timeline | None:
    """A message and its events."""
    row = connection.execute(_MESSAGE, {"this": message_id}).one_or_none()
    if row is None:
        return None
    found = [_event(event) for event in connection.execute(_TIMELINE, {"this": message_id})]
    return Timeline(_message(row, state_of(event.kind for event in found)), found)


def list_messages(
    connection: sa.Connection, where: MessageFilter, cursor: str | None, limit: int
) -> tuple[list[StoredMessage], str | None]:
    """A page of messages, newest first."""
    query = sa.select(messages, _LAST_KIND.label("kind")).order_by(messages.c.id.desc()).limit(limit + 1)
    for column, value in (
        (messages.c.broker, where.broker),
        (messages.c.exchange, _name(where.exchange)),
        (messages.c.routing_key, _name(where.routing_key)),
        (messages.c.client, _name(where.client)),
        (messages.c.origin, where.origin),
    ):
        if value is not None:
            query = query.where(column == value)
    if where.since is not None:
        query = query.where(messages.c.id >= first_id(max(0, where.since // 1000)))
    if where.until is not None:
        query = query.where(messages.c.id < first_id(max(0, where.until // 1000)))
    if where.state is not None:
        query = query.where(_LAST_KIND.in_([str(kind) for kind in kinds_of(where.state)]))
    if cursor is not None:
        query = query.where(messages.c.id < _cursor(cursor))
    rows = connection.execute(query).all()
    page = [_message(row, None if row.kind is None else RULES[Kind(row.kind)].state) for row in rows[:limit]]
    return page, page[-1].id.hex() if len(rows) > limit else None


def events_after(
    connection: sa.Connection, position: Mapping[str, int], limit: int
) -> tuple[list[Event], dict[str, int]]:
    """The feed. Each shard gets an equal part of the limit, so that a busy one does not keep the others out."""
    numbers = connection.execute(_SHARDS).scalars().all()
    found: list[Event] = []
    reached = dict(position)
    for place, shard in enumerate(numbers):
        share = max(1, (limit - len(found)) // (len(numbers) - place))
        after = position.get(str(shard), 0)
        part = [_event(row) for row in connection.execute(_FEED, {"this": shard, "after": after, "most": share})]
        if part:
            found += part
            reached[str(shard)] = part[-1].sequence
    return found, reached


def _name(value: str | None) -> bytes | None:
    return None if value is None else octets(value)


def _cursor(cursor: str) -> bytes:
    try:
        found = bytes.fromhex(cursor)
    except ValueError:
        found = b""
    if len(found) != 16:
        raise ValueError(f"{cursor!r:.80} is no cursor of this list")
    return found


def _event(row: Any) -> Event:
    return Event(
        row.shard,
        row.sequence,
        row.message_id,
        Kind(row.kind),
        row.at,
        row.broker,
        row.version,
        parse(row.detail),
    )


def _message(row: Any, state: State | None) -> StoredMessage:
    return StoredMessage(
        id=row.id,
        at=row.at,
        broker=row.broker,
        version=row.version,
        exchange=text(row.exchange),
        routing_key=text(row.routing_key),
        size=row.size,
        sha256=row.sha256,
        origin=row.origin,
        client=text(row.client),
        properties=parse(row.properties),
        state=state,
    )
