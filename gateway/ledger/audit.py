"""``ledger.audit``: who changed what, and who was refused; append-only, each row chained to the one before.

A row's hash is SHA-256 over ``sequence`` and ``at`` (8 octets each, the most significant first), the hash of the row
before (32 zeros for the first), and the entry as it is stored. Who changes, removes or reorders rows breaks the chain
from there on. What a chain alone cannot show is that its newest rows were cut off, or that all of it was made anew: for
that, keep a ``head`` elsewhere, and compare (:func:`verify`).

Rows that are too old go, the oldest first, all but the last of them: the *anchor*, with which the chain begins from
then on. In the same transaction a row :data:`TRIMMED` says which one that is, and for how many days rows are kept. The
anchor's time is within its hash, and so within the chain: rows that were removed before their time are told from those
that were due.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import sqlalchemy as sa

from gateway.ledger.encoding import document, parse
from gateway.ledger.models import audit_log

if TYPE_CHECKING:
    from gateway.ledger.store import Ledger

BEGIN: Final = bytes(32)
"""What the first row is chained to."""
ENTRY_MAX: Final = 16 << 10
"""Largest entry, in octets."""
ADVISORY_LOCK: Final = 0x616D7171
"""Held on PostgreSQL from reading the last row to the commit of the next."""
PAGE: Final = 1_000
TRIMMED: Final = "audit.trimmed"
"""Action of the row that says with which row the chain begins: ``anchor``; for how long rows are kept: ``days``; and
how many went: ``rows``."""
DAYS_MIN: Final = 30
"""Fewest days that rows are kept: no chain is sound that was shortened sooner."""
CHUNK: Final = 10_000
"""Most rows that go in one transaction."""
_DAY: Final = 86_400_000_000
"""Microseconds of a day."""
_LAST = sa.select(audit_log).order_by(audit_log.c.sequence.desc()).limit(1)


class Row(NamedTuple):
    """One row, as it is stored."""

    sequence: int
    at: int
    """Microseconds since 1970."""
    entry: bytes
    previous: bytes
    hash: bytes

    def document(self) -> dict[str, Any]:
        """The entry, decoded. Raises ValueError where it is no JSON any more."""
        return parse(self.entry)


class Head(NamedTuple):
    """The end of the chain."""

    sequence: int
    hash: bytes


class Checked(NamedTuple):
    """What :func:`verify` found."""

    rows: int
    head: Head
    """Of what is sound."""
    broken: int = 0
    """The first sequence number that is wrong; 0: none is."""
    why: str = ""
    first: int = 1
    """With which row the chain begins: those before it were too old."""


def hash_of(sequence: int, at: int, entry: bytes, previous: bytes) -> bytes:
    """The hash of a row."""
    return sha256(sequence.to_bytes(8) + at.to_bytes(8) + previous + entry).digest()


def append(connection: sa.Connection, entries: Sequence[tuple[int, Mapping[str, Any]]]) -> Head:
    """Chain entries, each with its time in microseconds, to the end; the new end. Within the caller's transaction, so
    that what is recorded and its record are one commit."""
    _alone(connection)
    last = connection.execute(_LAST).one_or_none()
    sequence, previous = (last.sequence, last.hash) if last is not None else (0, BEGIN)
    rows = []
    for at, entry in entries:
        octets = document(entry)
        if len(octets) > ENTRY_MAX:
            octets = document({"action": str(entry.get("action", ""))[:200], "cut": len(octets)})
        sequence += 1
        hashed = hash_of(sequence, at, octets, previous)
        rows.append({"sequence": sequence, "at": at, "entry": octets, "previous": previous, "hash": hashed})
        previous = hashed
    if rows:
        connection.execute(sa.insert(audit_log), rows)
    return Head(sequence, previous)


def _alone(connection: sa.Connection) -> None:
    """Nobody else writes to the log until this transaction is over."""
    if connection.dialect.name == "postgresql":
        connection.execute(sa.text("SELECT pg_advisory_xact_lock(:key)"), {"key": ADVISORY_LOCK})


def read(connection: sa.Connection, after: int = 0, limit: int = PAGE) -> list[Row]:
    """Rows behind a sequence number, in order."""
    query = sa.select(audit_log).where(audit_log.c.sequence > after).order_by(audit_log.c.sequence).limit(limit)
    return [Row(*row) for row in connection.execute(query)]


def rows(connection: sa.Connection, after: int = 0) -> Iterator[Row]:
    """All rows behind a sequence number, in order."""
    while page := read(connection, after):
        yield from page
        after = page[-1].sequence


def trim(connection: sa.Connection, now: int, days: int) -> int:
    """Let rows go that are older than ``days``, at most :data:`CHUNK` of them, and chain a row that says so; how many
    went. ``now``: the row's time, in microseconds. Rows go by whole days, so that this says it once a day."""
    _alone(connection)
    columns = audit_log.c
    due = now // _DAY * _DAY - days * _DAY
    first = connection.execute(sa.select(sa.func.min(columns.sequence))).scalar()
    if first is None:
        return 0
    young = sa.select(sa.func.min(columns.sequence)).where(columns.at >= due, columns.sequence <= first + CHUNK)
    end = connection.execute(young).scalar()
    if end is None:
        last = connection.execute(sa.select(sa.func.max(columns.sequence))).scalar_one()
        end = min(last, first + CHUNK) + 1
    anchor = end - 1  # the last one that is due stays: what follows is chained to it
    if anchor <= first:
        return 0
    gone = connection.execute(sa.delete(audit_log).where(columns.sequence < anchor)).rowcount
    append(connection, [(now, {"action": TRIMMED, "anchor": anchor, "days": days, "rows": gone})])
    return gone


def verify(connection: sa.Connection, known: Head | None = None) -> Checked:
    """Walk the whole chain. ``known``: a head that was kept elsewhere, which must still be on it."""
    head, count = Head(0, BEGIN), 0
    begin: Row | None = None
    trimmed: Row | None = None
    seen = known is None
    for row in rows(connection):
        why = ""
        if begin is None:
            begin = row
            if row.sequence > 1:  # whether it may begin here is said further on
                head = Head(row.sequence - 1, row.previous)
        if row.sequence != head.sequence + 1:
            why = f"row {head.sequence + 1} is missing"
        elif row.previous != head.hash:
            why = "it is not chained to the row before"
        elif row.at < 0 or row.hash != hash_of(row.sequence, row.at, row.entry, row.previous):
            why = "it was changed: its hash is another"
        elif known is not None and row.sequence == known.sequence:
            seen = True
            if row.hash != known.hash:
                why = "it is not the row that was kept elsewhere: the chain was made anew"
        if why:
            return Checked(count, head, head.sequence + 1, why, begin.sequence)
        if TRIMMED.encode() in row.entry and _said(row).get("action") == TRIMMED:
            trimmed = row
        head, count = Head(row.sequence, row.hash), count + 1
    first = begin.sequence if begin is not None else 1
    if begin is not None and first > 1 and (why := _too_soon(begin, trimmed)):
        return Checked(0, Head(0, BEGIN), 1, why, first)
    if not seen and known is not None and known.sequence:
        if known.sequence < first:
            why = f"the row that was kept elsewhere, {known.sequence}, was too old and has gone: keep a newer head"
            return Checked(count, head, known.sequence, why, first)
        why = f"the chain ends before row {known.sequence}: it was cut off"
        return Checked(count, head, head.sequence + 1, why, first)
    return Checked(count, head, first=first)


def _said(row: Row) -> dict[str, Any]:
    try:
        return row.document()
    except ValueError:
        return {}


def _too_soon(begin: Row, trimmed: Row | None) -> str:
    """Why a chain may not begin with this row; empty: it may. ``trimmed``: the last row that says with which one."""
    said = _said(trimmed) if trimmed is not None else {}
    anchor, days = said.get("anchor"), said.get("days")
    if trimmed is None or anchor != begin.sequence:
        return "row 1 is missing"
    if not isinstance(days, int) or days < DAYS_MIN or trimmed.at - begin.at < days * _DAY:
        return f"row 1 is missing: rows up to {begin.sequence} went before their time"
    return ""


class Audit:
    """``ledger.audit``."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    async def append(self, entries: Sequence[tuple[int, Mapping[str, Any]]]) -> Head:
        """Chain entries to the end. Durable when it returns. Raises LedgerUnavailable."""
        head: Head = await self._ledger.task(lambda connection, _: append(connection, entries))
        return head

    async def read(self, after: int = 0, limit: int = PAGE) -> list[Row]:
        """Rows behind a sequence number, in order. Raises LedgerUnavailable."""
        found: list[Row] = await self._ledger.read(lambda connection: read(connection, after, limit))
        return found
