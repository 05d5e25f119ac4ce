"""How much of the ledger's tables each client fills: counted from time to time, with statements that read all rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa

from gateway.ledger.db.encoding import parse, text
from gateway.ledger.db.models import keys, outbox, resources
from gateway.ledger.db.prepared import StaticStatement
from gateway.ledger.writing.calls import key_digest

CREATOR = "creator:{}"
"""The kind of resource that says who has created one of a kind."""
UNKNOWN = ""
"""In place of a client: it is not known who created it."""


_SCHEDULED = StaticStatement(
    sa.select(
        outbox.c.client, sa.func.count(), sa.func.coalesce(sa.func.sum(sa.func.length(outbox.c.payload)), 0)
    ).group_by(outbox.c.client)
)
_KEYS = StaticStatement(sa.select(keys.c.client, sa.func.count()).group_by(keys.c.client))
_CREATORS = resources.alias("creators")
_CREATED = StaticStatement(
    sa.select(_CREATORS.c.spec)
    .select_from(resources)
    .outerjoin(
        _CREATORS,
        (_CREATORS.c.kind == sa.bindparam("creator", type_=sa.Text)) & (_CREATORS.c.name == resources.c.name),
    )
    .where(resources.c.kind == sa.bindparam("of", type_=sa.Text))
)


class ScheduledUse(NamedTuple):
    """Publishes that the ledger holds for a client."""

    messages: int
    payload_bytes: int


def scheduled(connection: sa.Connection) -> Mapping[str, ScheduledUse]:
    """Return what the outbox holds of each client."""
    rows = _SCHEDULED.rows(connection)
    return {text(client): ScheduledUse(int(count), int(size)) for client, count, size in rows}


def idempotency_keys(connection: sa.Connection) -> Mapping[str, int]:
    """Return how many Idempotency-Keys are kept of each client."""
    return {text(client): int(count) for client, count in _KEYS.rows(connection)}


def created(connection: sa.Connection, kind: str) -> Mapping[str, int]:
    """Return how many resources of a kind each client has created."""
    rows = _CREATED.rows(connection, {"of": kind, "creator": CREATOR.format(kind)})
    return Counter(creator_of(parse(spec) if spec else {}) for (spec,) in rows)


def creator_of(spec: Mapping[str, Any]) -> str:
    """Return the client that a resource of the kind :data:`CREATOR` names."""
    return str(spec.get("client", UNKNOWN))


def known_keys(connection: sa.Connection, client: str, names: Sequence[str]) -> int:
    """Return how many of these Idempotency-Keys of a client are kept."""
    found = 0
    for begin in range(0, len(names), 500):
        ids = [key_digest(client, name) for name in names[begin : begin + 500]]
        found += connection.execute(sa.select(sa.func.count()).where(keys.c.id.in_(ids))).scalar_one()
    return found
