"""Whether the audit log is as the gateways wrote it: the whole chain, row by row, of which a page is in memory.

What is found is named by the first row that is wrong. Rows at the end that were taken away show only by a head that was
kept outside the database.

Rows of releases before MACs come first, and are checked by their chain alone. From the first row with a MAC on every
row has one. Where processes share the ledger, those of an earlier release may write for :data:`ROLLOUT` from then on;
what they write must have been covered by a MAC within that time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import sqlalchemy as sa

from gateway.ledger.access.audit import (
    BEGIN,
    BROKEN,
    DAY,
    DAYS_MIN,
    ENTRY_MAX,
    NO_MAC,
    TRIMMED,
    AuditHead,
    AuditKeys,
    AuditRow,
    hash_of,
)
from gateway.ledger.db.models import audit_log

ROLLOUT: Final = DAY
"""How long after the first row with a MAC other processes may write rows without one, in microseconds."""
PAGE: Final = 250
"""Rows that are read at once."""
NAME_MAX: Final = 64
"""Longest name of a key that is read, in characters."""
SKEW: Final = 300_000_000
"""How far the clock of a gateway may be ahead of the checker's, in microseconds."""


class AuditRules(NamedTuple):
    """What a log is checked against."""

    keys: AuditKeys | None = None
    """None: MACs are not checked, and not asked for."""
    now: int | None = None
    """Microseconds since 1970; None: times are not compared with it."""
    days: int | None = None
    """``retention.audit_days``; None: it is not known."""
    shared: bool = False
    """Whether several processes write to the ledger."""
    accepted: Sequence[range] = ()
    """Rows of which somebody knows why they have no MAC, or one of a key that is gone; let others go sooner; or say
    that the log was broken."""

    def accepts(self, sequence: int) -> bool:
        """Whether a finding about this row was looked into."""
        return any(sequence in each for each in self.accepted)


class AuditResult(NamedTuple):
    """What :func:`verify` found."""

    rows: int
    head: AuditHead
    """Of what is sound."""
    broken: int = 0
    """The first sequence number that is wrong; 0: none is."""
    why: str = ""
    first: int = 1
    """With which row the chain begins: those before it were too old."""
    keyed: int = 0
    """The first row with a MAC; 0: none has one."""
    without: int = 0
    """How many rows behind that have none."""


ANY: Final = AuditRules()
"""The chain alone."""


def verify(
    connection: sa.Connection, known: AuditHead | Sequence[AuditHead] | None = None, rules: AuditRules = ANY
) -> AuditResult:
    """Walk the whole chain, within one snapshot. ``known``: heads that were kept elsewhere, which must still be on
    it."""
    heads = [] if known is None else [known] if isinstance(known, AuditHead) else list(known)
    check = _Check(rules, heads)
    for row in _rows(connection):
        if (at := check.add(row)) is not None:
            return check.found(*at)
    return check.found(*(check.end() or (0, "")))


def _rows(connection: sa.Connection) -> Iterator[AuditRow]:
    """All rows in order, of which a page is in memory. Of a value that is longer than any that a gateway writes only so
    much is read that it is not sound."""
    columns = audit_log.c
    cut = (
        _cut(columns.entry, ENTRY_MAX, b""),
        columns.previous,
        columns.hash,
        _cut(columns.mac, len(NO_MAC), b""),
        _cut(columns.mac_key, NAME_MAX, ""),
    )
    query = sa.select(columns.sequence, columns.at, *cut).order_by(columns.sequence).limit(PAGE)
    after = 0
    while page := [AuditRow(*row) for row in connection.execute(query.where(columns.sequence > after))]:
        yield from page
        after = page[-1].sequence


def _cut(column: sa.Column[Any], most: int, empty: bytes | str) -> sa.ColumnElement[Any]:
    """A value up to one octet more than it may have. SQLite makes NULL of a part of what is empty."""
    part = sa.func.coalesce(sa.func.substr(column, 1, most + 1), empty, type_=column.type)
    return sa.case((column.is_(None), None), else_=part)


class _Check:
    """The state of a walk."""

    def __init__(self, rules: AuditRules, known: Sequence[AuditHead]) -> None:
        self._rules = rules
        self._known = {head.sequence: head for head in known if head.sequence}
        self._ahead = max(self._known, default=0)
        self._head, self._count = AuditHead(0, BEGIN), 0
        self._begin: AuditRow | None = None
        self._before: AuditRow | None = None
        self._keyed: AuditRow | None = None
        self._rollout = 0
        """Until when rows without a MAC may come."""
        self._bare: AuditRow | None = None
        """The first row without a MAC that none has covered yet."""
        self._without = 0
        self._trimmed: tuple[AuditRow, dict[str, Any]] | None = None
        """The last row that says what went."""

    def found(self, broken: int, why: str) -> AuditResult:
        """The result."""
        first = self._begin.sequence if self._begin is not None else 1
        keyed = self._keyed.sequence if self._keyed is not None else 0
        if broken and broken < first:
            return AuditResult(0, AuditHead(0, BEGIN), broken, why, first, keyed, self._without)
        return AuditResult(self._count, self._head, broken, why, first, keyed, self._without)

    def add(self, row: AuditRow) -> tuple[int, str] | None:
        """The next row; what is wrong, and with which."""
        if self._begin is None:
            self._begin = row
            if row.sequence > 1:  # whether it may begin here is said at the end
                self._head = AuditHead(row.sequence - 1, row.previous)
        if why := self._chained(row) or self._timed(row) or self._same(row):
            return self._head.sequence + 1, why
        at = self._bare_row(row) if row.mac is None and row.mac_key is None else self._keyed_row(row)
        if at is None:
            at = self._say(row)
        if at is None:
            self._before = row
            self._head, self._count = AuditHead(row.sequence, row.hash, row.mac or b""), self._count + 1
        return at

    def _chained(self, row: AuditRow) -> str:
        if row.sequence != self._head.sequence + 1:
            return f"row {self._head.sequence + 1} is missing"
        if row.previous != self._head.hash:
            return "it is not chained to the row before"
        if row.at < 0 or row.hash != hash_of(row.sequence, row.at, row.entry, row.previous):
            return "it was changed: its hash is another"
        return ""

    def _timed(self, row: AuditRow) -> str:
        now = self._rules.now
        if now is not None and row.at > now + SKEW:
            return f"its time is {(row.at - now) // 1_000_000} seconds in the future"
        return ""

    def _same(self, row: AuditRow) -> str:
        known = self._known.get(row.sequence)
        if known is None or (row.hash == known.hash and (not known.mac or row.mac == known.mac)):
            return ""
        if row.hash == known.hash:
            return "it has another MAC than the row that was kept elsewhere"
        return "it is not the row that was kept elsewhere: rows were cut off, or the chain was rebuilt"

    def _bare_row(self, row: AuditRow) -> tuple[int, str] | None:
        if self._keyed is None or self._rules.keys is None:
            return None
        self._without += 1
        if self._rules.accepts(row.sequence):
            return None
        assert self._before is not None
        if self._bare is None:
            if self._before.at >= self._rollout:
                return row.sequence, f"it has no MAC, and rows from {self._keyed.sequence} on have one"
            self._bare = row
        return None

    def _keyed_row(self, row: AuditRow) -> tuple[int, str] | None:
        keys = self._rules.keys
        if self._keyed is None:
            self._keyed = row
            if self._rules.shared and row.sequence > 1:
                self._rollout = row.at + ROLLOUT
        if keys is None:
            return None
        if row.mac is None or row.mac_key is None or len(row.mac) != len(NO_MAC):
            return row.sequence, "its MAC, or the name of its key, was taken out"
        if row.mac_key not in keys.names and not self._rules.accepts(row.sequence):
            names = ", ".join(keys.names) or "none"
            return row.sequence, f"its MAC is of the key {row.mac_key[:16]!r}, and the file of keys has {names}"
        can_check = row.mac_key in keys.names and (self._before is not None or row.sequence == 1)
        if can_check and not keys.is_right(row, self._head.mac or NO_MAC):
            return row.sequence, "its MAC does not fit its key: no gateway wrote this row"
        if self._before is not None and row.at < self._before.at:
            return row.sequence, "its time is before that of the row before"
        if self._bare is not None and row.at >= self._rollout:
            return self._bare.sequence, f"it has no MAC, and rows from {self._keyed.sequence} on have one"
        self._bare = None
        return None

    def _say(self, row: AuditRow) -> tuple[int, str] | None:
        """What a row says of the log itself."""
        if b'"audit.' not in row.entry:
            return None
        said = _said(row)
        if said.get("action") == BROKEN and row.mac is not None and not self._rules.accepts(row.sequence):
            return row.sequence, f"a gateway found there: {said.get('detail')}"
        if said.get("action") == TRIMMED:
            if row.mac is not None and self._rules.keys is not None and (why := self._trim(row, said)):
                return row.sequence, why
            self._trimmed = row, said
        return None

    def _trim(self, row: AuditRow, said: dict[str, Any]) -> str:
        """Why a row with a MAC may not have let rows go as it says; empty: it may."""
        first, last, newest = (said.get(name) for name in ("first", "last", "newest"))
        if not isinstance(first, int) or not isinstance(last, int) or not isinstance(newest, int):
            return "it does not say which rows went"
        if said.get("rows") != last - first + 1 or said.get("anchor") != last + 1:
            return "it says that other rows went than those before the row with which the chain begins"
        if self._trimmed is not None and self._trimmed[0].mac is not None and self._trimmed[1].get("anchor") != first:
            return "rows went besides those that are on record"
        return self._too_few_days(row, said) or _too_soon(row, said, newest)

    def _too_few_days(self, row: AuditRow, said: dict[str, Any]) -> str:
        days, configured = said.get("days"), self._rules.days
        if configured is None or not isinstance(days, int) or days >= configured or self._rules.accepts(row.sequence):
            return ""
        return f"rows went after {days} days, and retention.audit_days is {configured}"

    def end(self) -> tuple[int, str] | None:
        """What is wrong with the whole, and from which row on."""
        return self._end_of_macs() or self._begins() or self._goes_on()

    def _end_of_macs(self) -> tuple[int, str] | None:
        rules = self._rules
        if rules.keys is None or self._begin is None:
            return None
        if self._keyed is None and not rules.accepts(self._head.sequence):
            return self._begin.sequence, "no row has a MAC: start the gateway once, or the MACs were taken out"
        if self._bare is not None and (rules.now is None or rules.now >= self._rollout):
            assert self._keyed is not None
            return self._bare.sequence, f"it has no MAC, and rows from {self._keyed.sequence} on have one"
        return None

    def _begins(self) -> tuple[int, str] | None:
        """Whether the chain may begin where it does."""
        begin = self._begin
        if begin is None:
            return None
        row, said = self._trimmed if self._trimmed is not None else (None, {})
        is_keyed = row is not None and row.mac is not None and self._rules.keys is not None
        if begin.sequence == 1 and not is_keyed:
            return None
        if row is None or said.get("anchor") != begin.sequence:
            if begin.sequence == 1:
                return 1, f"rows before {said.get('anchor')} had gone, and are there again"
            return 1, "row 1 is missing"
        if why := self._too_few_days(row, said) or _too_soon(row, said, begin.at):
            return 1, f"row 1 is missing: rows up to {begin.sequence} went before their time ({why})"
        if is_keyed and (why := self._anchored(begin, said)):
            return begin.sequence, why
        return None

    def _anchored(self, begin: AuditRow, said: dict[str, Any]) -> str:
        """Why the first row is not the one that is on record; empty: it is."""
        keys = self._rules.keys
        assert keys is not None
        if said.get("digest") != begin.previous.hex():
            return "it does not follow the rows that went"
        if begin.mac is not None and begin.mac_key in keys.names:
            before = bytes.fromhex(str(said.get("mac", ""))) or NO_MAC
            if not keys.is_right(begin, before):
                return "its MAC does not fit its key: no gateway wrote this row"
        return ""

    def _goes_on(self) -> tuple[int, str] | None:
        """Whether all of it is there that was kept elsewhere."""
        first = self._begin.sequence if self._begin is not None else 1
        if self._ahead > self._head.sequence:
            return self._head.sequence + 1, f"the chain ends before row {self._ahead}: it was cut off"
        for sequence in self._known:
            if sequence < first:
                why = f"the row that was kept elsewhere, {sequence}, was too old and has gone: keep a newer head"
                return sequence, why
        return None


def _said(row: AuditRow) -> dict[str, Any]:
    try:
        return row.document()
    except ValueError:
        return {}


def _too_soon(row: AuditRow, said: dict[str, Any], at: int) -> str:
    """Why a row of that time may not have gone when this row says so; empty: it may."""
    days = said.get("days")
    if not isinstance(days, int) or days < DAYS_MIN:
        return f"{days!r:.20} days, and {DAYS_MIN} is the least"
    if row.at - at < days * DAY:
        return f"{(row.at - at) / DAY:.1f} days old, and {days} is the least"
    return ""
