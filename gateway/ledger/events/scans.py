"""Messages by what is asked of them, oldest first, a step at a time: for work that goes through all of them, and after
a restart goes on where it was.

A step looks at a few thousand messages at most, so that a filter that fits nothing takes many short reads. Where it
goes on is the id of the last message that was looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import sqlalchemy as sa

from gateway.ledger.db.batch import RowBatch, select_rows
from gateway.ledger.db.ids import first_id
from gateway.ledger.db.models import bodies, messages
from gateway.ledger.events import searches
from gateway.ledger.pending.bodies import sound
from gateway.ledger.writing.records import MessageFilter, StoredMessage
from gateway.ledger.writing.states import RULES, EventKind

STEP = 2_000
"""Most messages that are looked at in a step."""


class ScanAccess(Protocol):
    """The ledger, as its parts see it."""

    async def read(self, run: Callable[[sa.Connection], Any]) -> Any: ...


class Scans:
    """``ledger.scans``: the questions, on the event loop."""

    def __init__(self, ledger: ScanAccess) -> None:
        self._ledger = ledger

    async def step(
        self, where: MessageFilter, after: bytes = b"", limit: int = 1_000
    ) -> tuple[list[StoredMessage], bytes | None]:
        """Messages behind ``after`` that fit, oldest first, at most ``limit``; and the id to go on behind, None: there
        are no more. ``after`` empty: from the beginning. A step may find none and not be the last.

        Raises:
            LedgerUnavailable: it cannot be read.
        """
        found: tuple[list[StoredMessage], bytes | None] = await self._ledger.read(
            lambda connection: scan(connection, where, after, limit)
        )
        return found

    async def by_id(self, ids: Sequence[bytes]) -> dict[bytes, StoredMessage]:
        """These messages, as far as the ledger knows them. Raises LedgerUnavailable."""
        found: dict[bytes, StoredMessage] = await self._ledger.read(lambda connection: by_id(connection, ids))
        return found

    async def payloads(self, ids: Sequence[bytes]) -> dict[bytes, bytes]:
        """The payloads of these messages, as far as the ledger has them: because it keeps them, or owes them to
        somebody. Raises LedgerUnavailable."""
        found: dict[bytes, bytes] = await self._ledger.read(lambda connection: payloads(connection, ids))
        return found

    async def with_payload(self, ids: Sequence[bytes]) -> set[bytes]:
        """Those of the messages whose payloads the ledger has. Raises LedgerUnavailable."""
        found: set[bytes] = await self._ledger.read(lambda connection: with_payload(connection, ids))
        return found


def scan(
    connection: sa.Connection, where: MessageFilter, after: bytes, limit: int
) -> tuple[list[StoredMessage], bytes | None]:
    """See :meth:`Scans.step`."""
    least = after if where.since is None else max(after, first_id(max(0, where.since // 1000)))
    begin = messages.c.id > after if least == after else messages.c.id >= least
    bounds = [begin]
    if where.until is not None:
        bounds.append(messages.c.id < first_id(max(0, where.until // 1000)))
    edge = connection.execute(
        sa.select(messages.c.id).where(*bounds).order_by(messages.c.id).offset(STEP - 1).limit(1)
    ).scalar()
    if edge is not None:
        bounds.append(messages.c.id <= edge)
    conditions = searches._conditions(connection.dialect.name, where)
    query = sa.select(messages, searches._LAST_KIND.label("kind")).where(*bounds, *conditions)
    rows = connection.execute(query.order_by(messages.c.id).limit(limit + 1)).all()
    each = [
        searches.message_of(row, None if row.kind is None else RULES[EventKind(row.kind)].state) for row in rows[:limit]
    ]
    found = [message for message in each if searches._fits(message, where)]
    return found, rows[limit - 1].id if len(rows) > limit else edge


def by_id(connection: sa.Connection, ids: Sequence[bytes]) -> dict[bytes, StoredMessage]:
    """See :meth:`Scans.by_id`."""
    named, _ = select_rows(connection.dialect.name, (messages.c.id,))
    query = sa.select(messages, searches._LAST_KIND.label("kind")).where(messages.c.id.in_(named))
    return {
        row.id: searches.message_of(row, None if row.kind is None else RULES[EventKind(row.kind)].state)
        for row in connection.execute(query, _batch(ids).parameters())
    }


def payloads(connection: sa.Connection, ids: Sequence[bytes]) -> dict[bytes, bytes]:
    """See :meth:`Scans.payloads`. Of several that say that they are one message, any of them."""
    named, _ = select_rows(connection.dialect.name, (bodies.c.message_id,))
    query = sa.select(bodies.c.message_id, bodies.c.payload, bodies.c.digest).where(bodies.c.message_id.in_(named))
    found = connection.execute(query, _batch(ids).parameters())
    return {row.message_id: sound(row.payload, row.digest) for row in found}


def with_payload(connection: sa.Connection, ids: Sequence[bytes]) -> set[bytes]:
    """See :meth:`Scans.with_payload`."""
    named, _ = select_rows(connection.dialect.name, (bodies.c.message_id,))
    query = sa.select(bodies.c.message_id).where(bodies.c.message_id.in_(named))
    return {row.message_id for row in connection.execute(query, _batch(ids).parameters())}


def _batch(ids: Sequence[bytes]) -> RowBatch:
    batch = RowBatch()
    for message_id in ids:
        batch.add((), message_id)
    return batch
