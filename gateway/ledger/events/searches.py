"""Messages by what is asked of them, newest first.

Messages lie in the order of their ids, which is that of their making; there is no other index over the history, since
each would be written for every message and read once in a while. So a search goes through the messages, the newest
first, a chunk at a time, and ends when the page is full, or when it has looked at :data:`ROWS` messages or for
:data:`SECONDS`. Then the page has what was found, which may be nothing, and the cursor goes on below the last message
that was looked at: a filter that fits nothing takes many short requests, never one that does not end.

The details of the events name the subscription, endpoint or bridge. They are small JSON
documents, and are searched for the octets of ``"subscription":"billing"``, which no text within JSON can hold.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec
import sqlalchemy as sa

from gateway.ledger.db.encoding import octets, parse, text
from gateway.ledger.db.ids import first_id
from gateway.ledger.db.models import events, messages
from gateway.ledger.writing.records import MessageFilter, StoredMessage
from gateway.ledger.writing.states import LATE_KINDS, RULES, EventKind, MessageState, kinds_of
from gateway.runtime.clock import monotonic_time

CHUNK_MIN, CHUNK_MAX = 500, 16_000
"""Messages that one statement looks at: few at first, so that a page of the newest comes at once."""
CHUNK_SECONDS = 0.1
"""A chunk that took longer is followed by one that is half as large."""
ROWS = 500_000
"""Most messages that are looked at for a page."""
SECONDS = 2.0
"""How long a page is searched for; a chunk that has begun is brought to its end."""
NEWEST = b"\xff" * 17
"""Behind every id."""

# The state as gateway.ledger.writing.states derives it: the last event of the latest phase.
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


def list_messages(
    connection: sa.Connection,
    where: MessageFilter,
    cursor: str | None,
    limit: int,
    clock: Callable[[], float] = monotonic_time,
) -> tuple[list[StoredMessage], str | None]:
    """A page of messages, newest first, and the cursor of the next (None: there is none). ``clock`` is in seconds.

    Raises:
        ValueError: the cursor is malformed.
    """
    below = NEWEST if where.until is None else first_id(max(0, where.until // 1000))
    if cursor is not None:
        below = min(below, _cursor(cursor))
    since = b"" if where.since is None else first_id(max(0, where.since // 1000))
    conditions = list(_conditions(connection.dialect.name, where))
    query = sa.select(messages, _LAST_KIND.label("kind")).where(*conditions).order_by(messages.c.id.desc())
    found: list[StoredMessage] = []
    seen, chunk, last = 0, max(CHUNK_MIN, limit + 1), clock()
    end = last + SECONDS
    while True:
        edge = connection.execute(_edge(since, below, chunk)).scalar()
        wanted = limit + 1 - len(found)
        rows = connection.execute(
            query.where(messages.c.id >= (edge or since), messages.c.id < below).limit(wanted)
        ).all()
        each = (message_of(row, None if row.kind is None else RULES[EventKind(row.kind)].state) for row in rows)
        found += [message for message in each if _fits(message, where)]
        if len(found) > limit:
            return found[:limit], found[limit - 1].id.hex()
        if len(rows) == wanted:
            edge = rows[-1].id  # some did not fit: the chunk was not looked at any further
        if edge is None:
            return found, None
        seen += chunk
        now = clock()
        below, chunk = edge, min(chunk * 2, CHUNK_MAX) if now - last < CHUNK_SECONDS else max(CHUNK_MIN, chunk // 2)
        last = now
        if seen >= ROWS or now >= end:
            return found, edge.hex()


def _edge(since: bytes, below: bytes, chunk: int) -> sa.Select[Any]:
    """The id of the last message of a chunk; none: there are fewer."""
    return (
        sa.select(messages.c.id)
        .where(messages.c.id >= since, messages.c.id < below)
        .order_by(messages.c.id.desc())
        .offset(chunk - 1)
        .limit(1)
    )


def _conditions(dialect: str, where: MessageFilter) -> Iterator[sa.ColumnElement[bool]]:
    for column, value in (
        (messages.c.broker, where.broker),
        (messages.c.exchange, _name(where.exchange)),
        (messages.c.routing_key, _name(where.routing_key)),
        (messages.c.client, _name(where.client)),
        (messages.c.origin, where.origin),
    ):
        if value is not None:
            yield column == value
    for name, value in {**(where.properties or {}), **(where.headers or {})}.items():
        yield contains(dialect, messages.c.properties, name, value)
    for name in ("subscription", "endpoint", "bridge"):
        value = getattr(where, name)
        if value is not None:
            there = contains(dialect, events.c.detail, name, value)
            yield sa.exists().where(events.c.message_id == messages.c.id, there).correlate(messages)
    if where.any_of is not None:
        yield sa.or_(*(sa.and_(*_conditions(dialect, each)) for each in where.any_of))
    if where.state is not None:
        yield _LAST_KIND.in_([str(kind) for kind in kinds_of(where.state)])


def contains(dialect: str, column: sa.ColumnElement[bytes], name: str, value: str) -> sa.ColumnElement[bool]:
    """Whether a document in a column of octets has this member."""
    position = sa.func.instr if dialect == "sqlite" else sa.func.pg_catalog.position
    return sa.or_(*(position(column, sa.literal(part, sa.LargeBinary)) > 0 for part in members(name, value)))


def members(name: str, value: str) -> tuple[bytes, ...]:
    """A member of a JSON object, in the ways in which :func:`gateway.ledger.db.encoding.document` writes it."""
    try:
        ours = b"%b:%b" % (msgspec.json.encode(name), msgspec.json.encode(value))
    except UnicodeEncodeError:
        ours = b""
    theirs = f"{json.dumps(name)}: {json.dumps(value)}".encode("ascii")
    return (ours, theirs) if ours else (theirs,)


def _fits(message: StoredMessage, where: MessageFilter) -> bool:
    """The octets that were found are the member that was meant."""
    return (
        where.routing_key in (None, message.routing_key)
        and _has(message.properties, where.properties)
        and _has(message.properties.get("headers", {}), where.headers)
        and (where.any_of is None or any(_fits(message, each) for each in where.any_of))
    )


def _has(there: Mapping[str, Any], wanted: Mapping[str, str] | None) -> bool:
    return not wanted or all(there.get(name) == value for name, value in wanted.items())


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


def message_of(row: Any, state: MessageState | None) -> StoredMessage:
    """A row of ``messages``."""
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
