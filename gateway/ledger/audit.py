"""``ledger.audit``: who changed what, and who was refused; append-only, each row chained to the one before.

A row's hash is SHA-256 over ``sequence`` and ``at`` (8 octets each, the most significant first), the hash of the row
before (32 zeros for the first), and the entry as it is stored. Who changes, removes or reorders rows breaks the chain
from there on. What a chain alone cannot show is that its newest rows were cut off, or that all of it was made anew: for
that, keep a ``head`` elsewhere, and compare (:func:`verify`).
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


def hash_of(sequence: int, at: int, entry: bytes, previous: bytes) -> bytes:
    """The hash of a row."""
    return sha256(sequence.to_bytes(8) + at.to_bytes(8) + previous + entry).digest()


def append(connection: sa.Connection, entries: Sequence[tuple[int, Mapping[str, Any]]]) -> Head:
    """Chain entries, each with its time in microseconds, to the end; the new end. Within the caller's transaction, so
    that what is recorded and its record are one commit."""
    if connection.dialect.name == "postgresql":
        connection.execute(sa.text("SELECT pg_advisory_xact_lock(:key)"), {"key": ADVISORY_LOCK})
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


def read(connection: sa.Connection, after: int = 0, limit: int = PAGE) -> list[Row]:
    """Rows behind a sequence number, in order."""
    query = sa.select(audit_log).where(audit_log.c.sequence > after).order_by(audit_log.c.sequence).limit(limit)
    return [Row(*row) for row in connection.execute(query)]


def rows(connection: sa.Connection, after: int = 0) -> Iterator[Row]:
    """All rows behind a sequence number, in order."""
    while page := read(connection, after):
        yield from page
        after = page[-1].sequence


def verify(connection: sa.Connection, known: Head | None = None) -> Checked:
    """Walk the whole chain. ``known``: a head that was kept elsewhere, which must still be on it."""
    head, count = Head(0, BEGIN), 0
    seen = known is None
    for row in rows(connection):
        why = ""
        if row.sequence != head.sequence + 1:
            why = f"row {head.sequence + 1} is missing"
        elif row.previous != head.hash:
            why = "it is not chained to the row before"
        elif row.hash != hash_of(row.sequence, row.at, row.entry, row.previous):
            why = "it was changed: its hash is another"
        elif known is not None and row.sequence == known.sequence:
            seen = True
            if row.hash != known.hash:
                why = "it is not the row that was kept elsewhere: the chain was made anew"
        if why:
            return Checked(count, head, head.sequence + 1, why)
        head, count = Head(row.sequence, row.hash), count + 1
    if not seen and known is not None and known.sequence:
        return Checked(count, head, head.sequence + 1, f"the chain ends before row {known.sequence}: it was cut off")
    return Checked(count, head)


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
