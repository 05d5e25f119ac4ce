"""Who owned which work, written down by the database.

Triggers on ``work`` and ``shards`` keep a line of every change, in the transaction that makes it and with the
database's clock: :func:`watch` makes them, before any gateway starts. From the lines follow *terms*: the time in which
one process, a shard and a fence, owned one piece of work, and the sequence numbers that it wrote meanwhile. A term
begins with its row and ends when the row goes, or is another's, or when its shard is fenced.

* No two terms of one piece of work overlap.
* What an owner alone may write, it wrote within a term: an event of a bridge under a shard, a fence and a sequence
  number that no term of that bridge has is the write of a process that had lost it.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

import psycopg

_TABLES: Final = """
CREATE TABLE audit (
    number bigserial PRIMARY KEY, at double precision NOT NULL, what text NOT NULL, kind text, name bytea,
    shard bigint NOT NULL, fence bigint NOT NULL, next_sequence bigint NOT NULL
);
CREATE FUNCTION audit_work() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE now double precision := extract(epoch FROM clock_timestamp());
BEGIN
    IF TG_OP <> 'INSERT' THEN
        INSERT INTO audit (at, what, kind, name, shard, fence, next_sequence) VALUES (now, 'ends', OLD.kind, OLD.name,
            OLD.shard, OLD.fence, (SELECT next_sequence FROM shards WHERE shards.shard = OLD.shard));
    END IF;
    IF TG_OP <> 'DELETE' THEN
        INSERT INTO audit (at, what, kind, name, shard, fence, next_sequence) VALUES (now, 'begins', NEW.kind, NEW.name,
            NEW.shard, NEW.fence, (SELECT next_sequence FROM shards WHERE shards.shard = NEW.shard));
    END IF;
    RETURN NULL;
END $$;
CREATE FUNCTION audit_shards() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO audit (at, what, shard, fence, next_sequence)
        VALUES (extract(epoch FROM clock_timestamp()), 'fenced', OLD.shard, OLD.fence, NEW.next_sequence);
    RETURN NULL;
END $$;
CREATE TRIGGER audit_work AFTER INSERT OR UPDATE OR DELETE ON work FOR EACH ROW EXECUTE FUNCTION audit_work();
CREATE TRIGGER audit_shards AFTER UPDATE ON shards FOR EACH ROW WHEN (OLD.fence <> NEW.fence)
    EXECUTE FUNCTION audit_shards();
"""


def watch(url: str) -> None:
    """Have the database write down who owns what. Its tables must be there."""
    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute(_TABLES.encode())


@dataclass(slots=True)
class Line:
    """One change."""

    at: float
    what: str
    """``begins``, ``ends`` or ``fenced``: the last of a shard, whatever it did."""
    work: tuple[str, str]
    owner: tuple[int, int]
    """Shard and fence."""
    sequence: int
    """The next sequence number of the shard at that moment."""


@dataclass(slots=True)
class Term:
    """The time in which one process owned one piece of work."""

    work: tuple[str, str]
    owner: tuple[int, int]
    begins: float
    first: int
    """The first sequence number that it could write."""
    ends: float = float("inf")
    behind: float = float("inf")
    """The first that it could not."""


@dataclass(slots=True)
class Write:
    """An event that only an owner may write."""

    work: tuple[str, str]
    shard: int
    sequence: int


@dataclass(slots=True)
class Audit:
    """What came of a run."""

    terms: list[Term] = field(default_factory=list)
    overlaps: list[str] = field(default_factory=list)
    strays: list[str] = field(default_factory=list)
    """Writes of processes that were not the owner."""
    moves: int = 0
    """How often work came from one process to another."""
    fenced: int = 0

    def owner_at(self, work: tuple[str, str], at: float) -> tuple[int, int] | None:
        """Who owned the work at a time of the database's clock."""
        return next((term.owner for term in self.terms if term.work == work and term.begins <= at < term.ends), None)

    def taken_after(self, work: tuple[str, str], at: float) -> float | None:
        """How many seconds after a time somebody else than its owner then had the work; None: nobody ever."""
        before = self.owner_at(work, at)
        later = [term.begins for term in self.terms if term.work == work and term.begins > at and term.owner != before]
        return min(later) - at if later else None


def terms_of(lines: Iterable[Line]) -> list[Term]:
    """The terms that these changes make, oldest first."""
    terms: list[Term] = []
    running: dict[tuple[str, str], Term] = {}
    for line in lines:
        if line.what == "fenced":
            ending = [term for term in running.values() if term.owner == line.owner]
        else:
            term = running.get(line.work)
            ending = [term] if term is not None and line.what == "ends" and term.owner == line.owner else []
        for term in ending:
            term.ends, term.behind = line.at, line.sequence
            if running.get(term.work) is term:
                del running[term.work]
        if line.what == "begins":
            term = Term(line.work, line.owner, line.at, line.sequence)
            terms.append(term)
            # One that still runs is not ended by the next that begins: then the two overlap, as they should not.
            running[line.work] = term
    return terms


def judge(lines: Sequence[Line], writes: Iterable[Write]) -> Audit:
    """Find what must not be."""
    audit = Audit(terms_of(lines), fenced=sum(line.what == "fenced" for line in lines))
    by_work: dict[tuple[str, str], list[Term]] = defaultdict(list)
    for term in audit.terms:
        by_work[term.work].append(term)
    for work, terms in by_work.items():
        for before, after in pairwise(terms):
            audit.moves += before.owner[0] != after.owner[0]
            if before.ends > after.begins:
                audit.overlaps.append(
                    f"{work}: {before.owner} until {before.ends:.6f}, {after.owner} from {after.begins:.6f}"
                )
    for write in writes:
        mine = (term for term in by_work[write.work] if term.owner[0] == write.shard)
        if not any(term.first <= write.sequence < term.behind for term in mine):
            audit.strays.append(f"{write.work}: event {write.sequence} of shard {write.shard}")
    return audit


def read(url: str) -> Audit:
    """Ask the database what happened."""
    with psycopg.connect(url.replace("+psycopg", "")) as connection:
        rows = connection.execute(
            "SELECT at, what, kind, name, shard, fence, next_sequence FROM audit ORDER BY number"
        ).fetchall()
        lines = [
            Line(at, what, (kind or "", bytes(name or b"").decode()), (shard, fence), sequence)
            for at, what, kind, name, shard, fence, sequence in rows
        ]
        events = connection.execute(
            "SELECT shard, sequence, detail FROM events"
            " WHERE kind IN ('forwarded', 'duplicate_dropped', 'dead_lettered')"
        ).fetchall()
    writes = []
    for shard, sequence, detail in events:
        known: dict[str, Any] = json.loads(bytes(detail) or b"{}")
        if "bridge" in known:
            writes.append(Write(("bridge", known["bridge"]), shard, sequence))
    return judge(lines, writes)
