"""``ledger.audit``: who changed what, and who was refused; append-only, chained, and sealed with a MAC.

A row's hash is SHA-256 over ``sequence`` and ``at`` (8 octets each, the most significant first), the hash of the row
before (32 zeros for the first), and the entry as it is stored. Who changes, removes or reorders rows breaks the chain
from there on. Its MAC is HMAC-SHA256 over that hash and the MAC of the row before, with a key that the database does
not have. An attacker who rebuilds the chain cannot make the MACs. Rows of releases before MACs have none; the MAC of
the row behind them covers them.

Times never decrease: a row that comes late gets the time of the row before, and keeps its own in its entry.

Rows that are too old go, the oldest first, all but the last of them: the *anchor*, with which the chain begins from
then on. In the same transaction a row :data:`TRIMMED` says which one that is, for how many days rows are kept, and
what went.

What the rows alone cannot show is that the newest of them were cut off. So a process remembers the last row that it
knows of (:attr:`Audit.head`), outside the database too, and looks whether that is still there before it adds another.
If it is not, a row :data:`BROKEN` says so. :mod:`gateway.ledger.access.audit_check` checks the whole log.
"""

from __future__ import annotations

import hmac
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import sqlalchemy as sa

from gateway.ledger.db.encoding import document
from gateway.ledger.db.models import audit_log
from gateway.ledger.db.prepared import StaticStatement
from gateway.observing.telemetry import log

if TYPE_CHECKING:
    from gateway.ledger.store import Ledger

BEGIN: Final = bytes(32)
"""What the first row is chained to."""
NO_MAC: Final = bytes(32)
"""Stands for the MAC of a row that has none."""
PURPOSE: Final = "amqp-gateway audit log"
"""Purpose of the keys of the MACs: they are derived from those that seal secrets, and are good for nothing else."""
ENTRY_MAX: Final = 16 << 10
"""Largest entry, in octets."""
ADVISORY_LOCK: Final = 0x616D7171
"""Held on PostgreSQL from reading the last row to the commit of the next."""
PAGE: Final = 1_000
TRIMMED: Final = "audit.trimmed"
"""Action of the row that says with which row the chain begins: ``anchor``; for how long rows are kept: ``days``; how
many went: ``rows``, from ``first`` to ``last``; hash and MAC of the last one: ``digest``, ``mac``; and the latest time
among them: ``newest``."""
BROKEN: Final = "audit.broken"
"""Action of the row that says that a row which a gateway knows is gone, or another."""
KEYED: Final = "audit.keyed"
"""Action of the row that is written where the last row has no MAC, to cover it with its own."""
DAYS_MIN: Final = 30
"""Fewest days that rows are kept: no chain is sound that was shortened sooner."""
CHUNK: Final = 10_000
"""Most rows that go in one transaction."""
DAY: Final = 86_400_000_000
"""Microseconds of a day."""
LATE: Final = 1_000_000
"""A row whose time had to be put forward by more than this keeps its own in ``happened_at``, in microseconds."""
Entries: TypeAlias = Sequence[tuple[int, Mapping[str, Any]]]
"""Entries with their times, in microseconds since 1970."""
_COLUMNS: Final = tuple(audit_log.c)
_LAST: Final = StaticStatement(sa.select(audit_log).order_by(audit_log.c.sequence.desc()).limit(1))


class AuditRow(NamedTuple):
    """One row, as it is stored."""

    sequence: int
    at: int
    """Microseconds since 1970."""
    entry: bytes
    previous: bytes
    hash: bytes
    mac: bytes | None = None
    """None: a release before MACs wrote it."""
    mac_key: str | None = None
    """Name of the key of the MAC."""

    def document(self) -> dict[str, Any]:
        """The entry, decoded. Raises ValueError where it is no JSON any more."""
        found: dict[str, Any] = json.loads(self.entry or b"{}")  # the check of the chain names what does not fit
        return found


class AuditHead(NamedTuple):
    """The end of the chain."""

    sequence: int
    hash: bytes
    mac: bytes = b""
    """Empty: the row has none, or it is not known."""


class AuditKeys:
    """The keys of the MACs, by name. The first one makes them, all of them check them."""

    def __init__(self, keys: Mapping[str, bytes]) -> None:
        self._keys = dict(keys)
        self.name = next(iter(self._keys), "")
        """Of the key that makes MACs; empty: there is none."""

    @property
    def names(self) -> tuple[str, ...]:
        """Of all keys."""
        return tuple(self._keys)

    def mac(self, name: str, hashed: bytes, before: bytes) -> bytes:
        """The MAC of a row. ``before``: that of the row before. Raises KeyError where there is no such key."""
        return hmac.digest(self._keys[name], hashed + before, "sha256")

    def is_right(self, row: AuditRow, before: bytes) -> bool:
        """Whether a row has the MAC that its key makes. Raises KeyError where there is no such key."""
        expected = self.mac(row.mac_key or "", row.hash, before)
        return row.mac is not None and hmac.compare_digest(expected, row.mac)


def hash_of(sequence: int, at: int, entry: bytes, previous: bytes) -> bytes:
    """The hash of a row."""
    return sha256(sequence.to_bytes(8) + at.to_bytes(8) + previous + entry).digest()


def append(connection: sa.Connection, entries: Entries, keys: AuditKeys | None = None) -> AuditHead:
    """Chain entries, each with its time in microseconds, to the end; the new end. Within the caller's transaction, so
    that what is recorded and its record are one commit. ``keys`` None: without MACs."""
    _alone(connection)
    return _append(connection, last_row(connection), entries, keys)


def _append(connection: sa.Connection, last: AuditRow | None, entries: Entries, keys: AuditKeys | None) -> AuditHead:
    sequence, previous, mac, newest = 0, BEGIN, b"", 0
    if last is not None:
        sequence, previous, mac, newest = last.sequence, last.hash, last.mac or b"", last.at
    made = []
    for at, entry in entries:
        if newest - at > LATE:
            entry = {**entry, "happened_at": at}
        octets = document(entry)
        if len(octets) > ENTRY_MAX:
            octets = document({"action": str(entry.get("action", ""))[:200], "cut": len(octets)})
        sequence, newest = sequence + 1, max(at, newest)
        hashed = hash_of(sequence, newest, octets, previous)
        name = keys.name if keys is not None and keys.name else None
        mac = keys.mac(name, hashed, mac or NO_MAC) if keys is not None and name else b""
        made.append(AuditRow(sequence, newest, octets, previous, hashed, mac or None, name)._asdict())
        previous = hashed
    if made:
        connection.execute(sa.insert(audit_log), made)
    return AuditHead(sequence, previous, mac)


def _alone(connection: sa.Connection) -> None:
    """Nobody else writes to the log until this transaction is over."""
    if connection.dialect.name == "postgresql":
        connection.execute(sa.text("SELECT pg_advisory_xact_lock(:key)"), {"key": ADVISORY_LOCK})


def last_row(connection: sa.Connection) -> AuditRow | None:
    """The newest row."""
    row = _LAST.row(connection)
    return AuditRow(*row) if row is not None else None


def row_at(connection: sa.Connection, sequence: int) -> AuditRow | None:
    """The row of that number."""
    row = connection.execute(sa.select(*_COLUMNS).where(audit_log.c.sequence == sequence)).one_or_none()
    return AuditRow(*row) if row is not None else None


def read(connection: sa.Connection, after: int = 0, limit: int = PAGE) -> list[AuditRow]:
    """Rows behind a sequence number, in order."""
    query = sa.select(*_COLUMNS).where(audit_log.c.sequence > after).order_by(audit_log.c.sequence).limit(limit)
    return [AuditRow(*row) for row in connection.execute(query)]


def newest(connection: sa.Connection, before: int | None = None, limit: int = PAGE) -> list[AuditRow]:
    """Rows before a sequence number, the newest first; None: from the end."""
    query = sa.select(*_COLUMNS).order_by(audit_log.c.sequence.desc()).limit(limit)
    if before is not None:
        query = query.where(audit_log.c.sequence < before)
    return [AuditRow(*row) for row in connection.execute(query)]


def rows(connection: sa.Connection, after: int = 0) -> Iterator[AuditRow]:
    """All rows behind a sequence number, in order, of which a page is in memory."""
    while page := read(connection, after):
        yield from page
        after = page[-1].sequence


def keys_used(connection: sa.Connection) -> dict[str, int]:
    """Name of a key -> how many rows have a MAC of it."""
    key = audit_log.c.mac_key
    query = sa.select(key, sa.func.count()).where(key.is_not(None)).group_by(key)
    return {row[0]: row[1] for row in connection.execute(query)}


def trim(connection: sa.Connection, now: int, days: int, keys: AuditKeys | None = None) -> tuple[int, AuditHead | None]:
    """Let rows go that are older than ``days``, at most :data:`CHUNK` of them, and chain a row that says so; how many
    went, and the new end. ``now``: the row's time, in microseconds. Rows go by whole days, so that this says it once a
    day."""
    _alone(connection)
    columns = audit_log.c
    due = now // DAY * DAY - days * DAY
    first = connection.execute(sa.select(sa.func.min(columns.sequence))).scalar()
    if first is None:
        return 0, None
    young = sa.select(sa.func.min(columns.sequence)).where(columns.at >= due, columns.sequence <= first + CHUNK)
    end = connection.execute(young).scalar()
    if end is None:
        last = connection.execute(sa.select(sa.func.max(columns.sequence))).scalar_one()
        end = min(last, first + CHUNK) + 1
    number = end - 1  # the last one that is due stays: what follows is chained to it
    anchor = row_at(connection, number) if number > first else None
    if anchor is None:
        return 0, None
    last_gone = row_at(connection, number - 1)
    newest = connection.execute(sa.select(sa.func.max(columns.at)).where(columns.sequence < number)).scalar()
    gone = connection.execute(sa.delete(audit_log).where(columns.sequence < number)).rowcount
    entry = {
        "action": TRIMMED, "anchor": number, "days": days, "rows": gone, "first": first, "last": number - 1,
        "digest": anchor.previous.hex(), "mac": ((last_gone and last_gone.mac) or b"").hex(), "newest": newest,
    }  # fmt: skip
    return gone, _append(connection, last_row(connection), [(now, entry)], keys)


class Audit:
    """``ledger.audit``."""

    def __init__(self, ledger: Ledger, keys: Mapping[str, bytes], *, shared: bool) -> None:
        """``keys``: name -> key, the first one makes MACs; none: rows get none. ``shared``: others write too."""
        self._ledger = ledger
        self._shared = shared
        self.keys = AuditKeys(keys) if keys else None
        self.head: AuditHead | None = None
        """The newest row that this process knows of; None: none yet."""
        self.broken = ""
        """What was found wrong with the log since the start; empty: nothing."""
        self.missed: AuditHead | None = None
        """The row that was known then: the head that shows what is wrong."""

    async def append(self, entries: Entries) -> AuditHead:
        """Chain entries to the end. Durable when it returns. Raises LedgerUnavailable."""
        head: AuditHead = await self._ledger.task(lambda connection, _: self.chain(connection, entries))
        return self.note(head)

    def chain(self, connection: sa.Connection, entries: Entries) -> AuditHead:
        """:func:`append` within the caller's transaction, which passes the end to :meth:`note` once that is durable."""
        _alone(connection)
        last = last_row(connection)
        if entries and (why := self._trouble(connection, last, self.head)):
            entries = [(entries[0][0], self._tell(why)), *entries]
        return _append(connection, last, entries, self.keys)

    def note(self, head: AuditHead) -> AuditHead:
        """Remember the end of the log."""
        if self.head is None or head.sequence > self.head.sequence:
            self.head = head
        return head

    async def trim(self, now: int, days: int) -> int:
        """:func:`trim` in a transaction of its own; how many rows went. Raises LedgerUnavailable."""

        def run(connection: sa.Connection, _: Any) -> tuple[int, AuditHead | None]:
            self._check(connection, now)
            return trim(connection, now, days, self.keys)

        gone, head = await self._ledger.task(run)
        if head is not None:
            self.note(head)
        return int(gone)

    async def look(self, now: int) -> None:
        """See whether the newest row is as it should be, and whether the one that is known is still there. If the
        newest row has no MAC, a row is written that covers it; if something is wrong, one that says so. ``now``: the
        time of that row, in microseconds.

        Raises:
            LedgerUnavailable: the ledger cannot be read or written.
        """
        known = self.head

        def run(connection: sa.Connection) -> tuple[AuditRow | None, bool]:
            last = last_row(connection)
            sound = not self._trouble(connection, last, known) and not self._forged(connection, last)
            return last, sound and not (last is not None and last.mac is None and self.keys is not None)

        last, sound = await self._ledger.read(run)
        if not sound:
            self.note(await self._ledger.task(lambda connection, _: self._check(connection, now)))
        elif last is not None:
            self.note(AuditHead(last.sequence, last.hash, last.mac or b""))

    def _check(self, connection: sa.Connection, now: int) -> AuditHead:
        """Write the row that :meth:`look` says, if one is needed; the end of the log."""
        _alone(connection)
        last = last_row(connection)
        entries: list[tuple[int, Mapping[str, Any]]] = []
        if why := self._trouble(connection, last, self.head) or self._forged(connection, last):
            entries.append((now, self._tell(why)))
        elif last is not None and last.mac is None and self.keys is not None:
            entries.append((now, {"action": KEYED}))
        return _append(connection, last, entries, self.keys)

    def _tell(self, why: str) -> dict[str, Any]:
        """The entry that says what is wrong. Each known row is reported once."""
        known, self.head, self.broken = self.head, None, why
        self.missed = known
        log("audit.broken", logging.ERROR, detail=why)
        head = f"{known.sequence}:{known.hash.hex()}" if known is not None else ""
        return {"action": BROKEN, "detail": why, "head": head}

    def _trouble(self, connection: sa.Connection, last: AuditRow | None, known: AuditHead | None) -> str:
        """Why the log is not one that goes on from the row that is known; empty: it is."""
        if known is None:
            return ""
        number = last.sequence if last is not None else 0
        if number < known.sequence:
            return f"the log ends with row {number}, and this gateway knows row {known.sequence}: it was cut off"
        row = last if number == known.sequence else row_at(connection, known.sequence)
        if row is None:
            first = connection.execute(sa.select(sa.func.min(audit_log.c.sequence))).scalar()
            if first is not None and first > known.sequence:
                return ""  # it was too old: what went is on record, and checked with the whole log
            return f"row {known.sequence}, which this gateway knows, is missing"
        if row.hash != known.hash or (known.mac and row.mac != known.mac):
            return f"row {known.sequence} is not the one that this gateway knows"
        return ""

    def _forged(self, connection: sa.Connection, last: AuditRow | None) -> str:
        """Why no gateway can have written the newest row; empty: one may have."""
        if last is None or self.keys is None:
            return ""
        if last.mac is None:
            if self._shared or self.head is None or not self.head.mac or self.head.sequence == last.sequence:
                return ""
            return f"row {last.sequence} has no MAC"  # an earlier release may write only where the ledger is shared
        before = row_at(connection, last.sequence - 1)
        try:
            if self.keys.is_right(last, (before.mac if before is not None else None) or NO_MAC):
                return ""
        except KeyError:
            return ""  # of another gateway's key, which the whole check names
        return f"row {last.sequence} has a MAC that its key does not make"

    async def read(self, after: int = 0, limit: int = PAGE) -> list[AuditRow]:
        """Rows behind a sequence number, in order. Raises LedgerUnavailable."""
        found: list[AuditRow] = await self._ledger.read(lambda connection: read(connection, after, limit))
        return found

    async def newest(self, before: int | None = None, limit: int = PAGE) -> list[AuditRow]:
        """Rows before a sequence number, the newest first. Raises LedgerUnavailable."""
        found: list[AuditRow] = await self._ledger.read(lambda connection: newest(connection, before, limit))
        return found
