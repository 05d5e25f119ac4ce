"""How much of the ledger's tables each client fills: counted from time to time, with statements that read all rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import sqlalchemy as sa

from gateway.ledger.calls import key_digest
from gateway.ledger.encoding import text
from gateway.ledger.models import keys, outbox


class Scheduled(NamedTuple):
    """Publishes that the ledger holds for a client."""

    messages: int
    payload_bytes: int


def scheduled(connection: sa.Connection) -> Mapping[str, Scheduled]:
    """Return what the outbox holds of each client."""
    size = sa.func.coalesce(sa.func.sum(sa.func.length(outbox.c.payload)), 0)
    query = sa.select(outbox.c.client, sa.func.count(), size).group_by(outbox.c.client)
    return {text(client): Scheduled(int(count), int(size)) for client, count, size in connection.execute(query)}


def idempotency_keys(connection: sa.Connection) -> Mapping[str, int]:
    """Return how many Idempotency-Keys are kept of each client."""
    query = sa.select(keys.c.client, sa.func.count()).group_by(keys.c.client)
    return {text(client): int(count) for client, count in connection.execute(query)}


def known_keys(connection: sa.Connection, client: str, names: Sequence[str]) -> int:
    """Return how many of these Idempotency-Keys of a client are kept."""
    found = 0
    for begin in range(0, len(names), 500):
        ids = [key_digest(client, name) for name in names[begin : begin + 500]]
        found += connection.execute(sa.select(sa.func.count()).where(keys.c.id.in_(ids))).scalar_one()
    return found
