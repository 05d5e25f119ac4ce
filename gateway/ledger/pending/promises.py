"""``ledger.promises``: whether everything that the ledger promised is still accounted for.

A message never goes without a word. Every promise of the ledger is either still in a table of pending entries, or an
event says how it ended; both change in one transaction. So the auditor finds one of the two for each event that opens a
promise, or a promise was broken: by a defect of the gateway, by somebody's DELETE, by a database that was restored from
an older backup.

======== ==================================== ========================================= ==============================
promise  opened by                            kept while there is a row of              ended by
======== ==================================== ========================================= ==============================
publish  ``accepted``                         ``obligations``, ``outbox``               any outcome
later    ``scheduled``                        ``outbox``                                any outcome, ``cancelled``
delivery ``stored``, or anything else that    ``deliveries``                            ``acknowledged``, ``purged``,
         only a row of ``deliveries`` can do                                            ``dead_lettered``, ``replayed``
branch   ``prepared``                         ``branches`` of its bridge                ``forwarded`` and the like
body     a row of ``deliveries``              ``bodies``                                the end of that row
event    a number of a shard's events         ``events``, above the floor               the floor
spooled  a number of a shard's messages       ``message_log``, above the floor          the floor
======== ==================================== ========================================= ==============================

Deliveries are counted, by message and subscription, for a message may be owed twice. Where events do not tell whose
end they are, the doubt is for the ledger: what is reported is certain.

The statements of a page are not one snapshot: pending rows are read before the events, so that a promise that ends in
between is counted twice, and not missed. What begins in between can still look broken. So what is found once is looked
at again, a little later (:mod:`gateway.core.work.auditor`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final, NamedTuple, Protocol

import msgspec
import sqlalchemy as sa

from gateway.ledger.db.encoding import parse, text
from gateway.ledger.db.engine import Database, clock_of
from gateway.ledger.db.models import bodies, branches, deliveries, events, obligations, outbox, shards
from gateway.ledger.db.prepared import StaticStatement
from gateway.ledger.logs import log_reads
from gateway.ledger.logs.logged import Extent
from gateway.ledger.pending.keys import PENDING
from gateway.ledger.pending.outbox import NEVER
from gateway.ledger.writing.states import RULES, EventKind, MessagePhase
from gateway.logs import Log

SPAN: Final = 2_000
"""Numbers of a page."""
NAMED: Final = 500
"""Messages of one statement."""

ENDS_PUBLISH: Final = frozenset(str(kind) for kind, rule in RULES.items() if rule.phase is MessagePhase.PUBLISH) - {
    EventKind.ACCEPTED,
    EventKind.RESENT,
    EventKind.SCHEDULED,
    EventKind.DUPLICATE_DROPPED,
}
"""What a publish comes to."""
ENDS_DELIVERY: Final = frozenset(
    {EventKind.ACKNOWLEDGED, EventKind.DEAD_LETTERED, EventKind.DISCARDED, EventKind.PURGED, EventKind.REPLAYED}
)  # fmt: skip
HOLDS: Final = frozenset({EventKind.DEAD, EventKind.REVIVED})
"""What only a row of ``deliveries`` can be."""
ENDS_BRANCH: Final = frozenset(
    {EventKind.FORWARDED, EventKind.REDUCED, EventKind.RELEASED, EventKind.LEASE_LOST, EventKind.DEAD_LETTERED}
)
KINDS: Final = frozenset(
    {EventKind.ACCEPTED, EventKind.SCHEDULED, EventKind.STORED, EventKind.DELIVERED, EventKind.PREPARED}
) | HOLDS | ENDS_PUBLISH | ENDS_DELIVERY | ENDS_BRANCH  # fmt: skip
_FIRST_OWNED: Final = StaticStatement(sa.select(sa.func.min(shards.c.shard)).where(shards.c.owner.is_not(None)))
_KINDS: Final = sorted(str(kind) for kind in KINDS)
"""The kinds of event that are read."""


class Missing(NamedTuple):
    """A promise that is broken."""

    promise: str
    """One of the table's."""
    message_id: bytes
    """Empty: it is not known which."""
    what: str
    """The subscription or the bridge; or which numbers, of which shard."""
    number: int = 1
    """How many."""


class ObligationPage(NamedTuple):
    """What was looked at."""

    events: int
    end: Any
    """Where the next page begins; None: that was the last."""
    missing: list[Missing]


class PendingCounts(NamedTuple):
    """Pending entries beside deliveries: how many rows of each."""

    due: int
    later: int
    dead: int
    overdue: float
    """For how long the first has been due, in seconds; 0: none is."""
    pending: int
    parked: int


class Told(msgspec.Struct, frozen=True):
    """What of a detail counts here."""

    subscription: str = ""
    bridge: str = ""
    lease: Any = None


@dataclass
class MessageObligations:
    """Pending entries of one message."""

    obligation: bool = False
    outbox: bool = False
    deliveries: Counter[str] = field(default_factory=Counter)
    branches: frozenset[str] = frozenset()
    """Bridges that have a branch under way, of any message."""


class ObligationAccess(Protocol):
    """The ledger, as this part sees it."""

    async def read(self, run: Callable[[sa.Connection], Any]) -> Any: ...


class Promises:
    """The verbs. All of them only read."""

    def __init__(self, ledger: ObligationAccess, database: Database) -> None:
        self._ledger = ledger
        self._dialect = database.dialect

    async def survey(self) -> tuple[int, list[Extent]]:
        """The first shard that has an owner (whose owner audits), and what there is of each shard's events."""
        found: tuple[int, list[Extent]] = await self._ledger.read(_survey)
        return found

    async def page(self, shard: int, after: int, end: int) -> ObligationPage:
        """Look at the events of a shard behind one number, up to another; not more than :data:`SPAN`."""
        found: ObligationPage = await self._ledger.read(lambda connection: _page(connection, shard, after, end))
        return found

    async def bodies(self, after: bytes) -> ObligationPage:
        """Look at deliveries behind this one, whether their bodies are there."""
        found: ObligationPage = await self._ledger.read(lambda connection: _bodies(connection, after))
        return found

    async def spooled(self, shard: int, after: int) -> ObligationPage:
        """Look at the log of messages of a shard, behind this number."""
        found: ObligationPage = await self._ledger.read(lambda connection: _spooled(connection, shard, after))
        return found

    async def standing(self) -> PendingCounts:
        """Number of pending entries beside deliveries."""
        found: PendingCounts = await self._ledger.read(lambda connection: _standing(connection, self._dialect))
        return found


# ------------------------------------------------------------------------------------------------- events


def _survey(connection: sa.Connection) -> tuple[int, list[Extent]]:
    owner = _FIRST_OWNED.scalar(connection)
    return -1 if owner is None else owner, log_reads.extents(connection, Log.EVENTS)


def _page(connection: sa.Connection, shard: int, after: int, end: int) -> ObligationPage:
    end = min(end, after + SPAN)
    span = _range(events, shard, after, end)
    there = connection.execute(sa.select(sa.func.count()).select_from(events).where(*span)).scalar_one()
    missing = _gap(connection, Log.EVENTS, "event", shard, after, end, there)
    wanted = sa.select(events.c.message_id, events.c.kind, events.c.detail).where(*span, events.c.kind.in_(_KINDS))
    found = _by_message(connection.execute(wanted))
    nothing = MessageObligations()
    doubtful = [message_id for message_id, each in found.items() if any(broken(message_id, each, nothing))]
    for begin in range(0, len(doubtful), NAMED):
        missing += _look(connection, doubtful[begin : begin + NAMED])
    return ObligationPage(end - after, end, missing)


def _look(connection: sa.Connection, messages: Sequence[bytes]) -> Iterator[Missing]:
    """What is broken of these messages, by all that is known of them. First the pending entries, then the events."""
    kept: dict[bytes, MessageObligations] = {each: MessageObligations() for each in messages}
    owed = (
        sa.select(deliveries.c.message_id, deliveries.c.subscription, sa.func.count())
        .where(deliveries.c.message_id.in_(messages))
        .group_by(deliveries.c.message_id, deliveries.c.subscription)
    )
    for message_id, subscription, count in connection.execute(owed):
        kept[message_id].deliveries[text(subscription)] += count
    for (message_id,) in connection.execute(
        sa.select(obligations.c.message_id).where(obligations.c.message_id.in_(messages))
    ):
        kept[message_id].obligation = True
    for (message_id,) in connection.execute(sa.select(outbox.c.message_id).where(outbox.c.message_id.in_(messages))):
        kept[message_id].outbox = True
    bridges = frozenset(text(name) for (name,) in connection.execute(sa.select(branches.c.bridge).distinct()))
    told = sa.select(events.c.message_id, events.c.kind, events.c.detail).where(
        events.c.message_id.in_(messages), events.c.kind.in_(_KINDS)
    )
    for message_id, each in _by_message(connection.execute(told)).items():
        kept[message_id].branches = bridges
        yield from broken(message_id, each, kept[message_id])


def broken(message_id: bytes, told: Sequence[tuple[str, bytes]], kept: MessageObligations) -> Iterator[Missing]:
    """The promises of one message that are neither kept nor ended, by its events (kind and detail)."""
    kinds = {kind for kind, _ in told}
    if kinds.isdisjoint(ENDS_PUBLISH) and not kept.outbox:
        if EventKind.SCHEDULED in kinds:
            yield Missing("later", message_id, "")
        elif EventKind.ACCEPTED in kinds and not kept.obligation:
            yield Missing("publish", message_id, "")
    if EventKind.PREPARED in kinds and kinds.isdisjoint(ENDS_BRANCH):
        for bridge in sorted(
            {_told(detail).bridge for kind, detail in told if kind == EventKind.PREPARED} - kept.branches
        ):
            yield Missing("branch", message_id, bridge)
    yield from _deliveries(message_id, told, kept.deliveries)


def _deliveries(message_id: bytes, told: Sequence[tuple[str, bytes]], rows: Mapping[str, int]) -> Iterator[Missing]:
    opened: Counter[str] = Counter()
    ended: Counter[str] = Counter()
    held: set[str] = set()
    for kind, detail in told:
        if kind == EventKind.STORED:
            opened[_told(detail).subscription] += 1
        elif kind in ENDS_DELIVERY:
            ended[_told(detail).subscription] += 1
        elif kind in HOLDS:
            held.add(_told(detail).subscription)
        elif kind == EventKind.DELIVERED:
            said = _told(detail)
            if said.lease is not None:
                held.add(said.subscription)
    for name in held - {""}:
        opened[name] = max(opened[name], 1)
    anybody = ended[""]  # it does not say whose
    for name, count in opened.items():
        left = count - ended[name] - rows.get(name, 0) - anybody
        if name and left > 0:
            yield Missing("delivery", message_id, name, left)


def _by_message(rows: Iterable[Any]) -> dict[bytes, list[tuple[str, bytes]]]:
    found: dict[bytes, list[tuple[str, bytes]]] = {}
    for message_id, kind, detail in rows:
        found.setdefault(message_id, []).append((kind, detail))
    return found


_decode = msgspec.json.Decoder(Told).decode


def _told(detail: bytes) -> Told:
    if not detail:
        return Told()
    try:
        return _decode(detail)
    except (msgspec.DecodeError, UnicodeDecodeError):  # escaped surrogates
        found = parse(detail)
        names = {name: found[name] for name in ("subscription", "bridge") if isinstance(found.get(name), str)}
        return Told(**names, lease=found.get("lease"))


# ------------------------------------------------------------------------------------------ numbers and bodies


def _range(table: sa.Table, shard: int, after: int, end: int) -> tuple[sa.ColumnElement[bool], ...]:
    return table.c.shard == shard, table.c.sequence > after, table.c.sequence <= end


def _gap(
    connection: sa.Connection, log: Log, promise: str, shard: int, after: int, end: int, there: int
) -> list[Missing]:
    """The numbers of a range that are not there, unless the floor says why."""
    if there == end - after:
        return []
    low = log_reads.floors(connection, log).get(shard)
    if low is not None and low.floor > after + 1:
        return []
    return [Missing(promise, b"", f"shard {shard}, {after + 1} to {end}", end - after - there)]


def _spooled(connection: sa.Connection, shard: int, after: int) -> ObligationPage:
    extent, _ = log_reads.extent(connection, Log.MESSAGES, shard)
    after = max(after, extent.floor - 1)
    end = min(extent.head, after + SPAN)
    if end <= after:
        return ObligationPage(0, None, [])
    table = log_reads.TABLES[Log.MESSAGES]
    query = sa.select(sa.func.count()).select_from(table).where(*_range(table, shard, after, end))
    there = connection.execute(query).scalar_one()
    return ObligationPage(end - after, end, _gap(connection, Log.MESSAGES, "spooled", shard, after, end, there))


def _bodies(connection: sa.Connection, after: bytes) -> ObligationPage:
    query = (
        sa.select(deliveries.c.id, deliveries.c.message_id, deliveries.c.subscription, bodies.c.message_id.is_(None))
        .select_from(
            deliveries.outerjoin(
                bodies, (bodies.c.message_id == deliveries.c.message_id) & (bodies.c.digest == deliveries.c.digest)
            )
        )
        .where(deliveries.c.id > after)
        .order_by(deliveries.c.id)
        .limit(SPAN)
    )
    rows = connection.execute(query).all()
    missing = [Missing("body", row[1], text(row[2])) for row in rows if row[3]]
    return ObligationPage(len(rows), rows[-1][0] if len(rows) == SPAN else None, missing)


_PENDING: Final = obligations.c.status == PENDING
_PUBLISHES: Final = StaticStatement(
    sa.select(sa.func.count().filter(_PENDING), sa.func.count().filter(~_PENDING)).select_from(obligations)
)


@cache
def _counted(dialect: str) -> StaticStatement:
    """The entries of the outbox by what they wait for, and for how long the first has been due."""
    clock, dead = clock_of(dialect), outbox.c.due_at == NEVER
    due = outbox.c.due_at <= clock
    return StaticStatement(
        sa.select(
            sa.func.count().filter(due),
            sa.func.count().filter(~due & ~dead),
            sa.func.count().filter(dead),
            clock - sa.func.min(outbox.c.due_at),
        )
    )


def _standing(connection: sa.Connection, dialect: str) -> PendingCounts:
    number, later, refused, overdue = _counted(dialect).row(connection)
    busy, parked = _PUBLISHES.row(connection)
    return PendingCounts(number, later, refused, max(0.0, float(overdue or 0) / 1_000_000), busy, parked)
