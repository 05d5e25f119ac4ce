"""What a row has measured, and what of it is too much.

Four judges look at each row: the attack itself, memory, the neighbor's waits and failed requests, and the state of the
gateway. It must run and be ready, its log must have no unhandled error, and nothing may show a planted secret.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

SHOWN: Final = 5
"""How many findings of a row are kept as text."""
COLUMNS: Final = ("row", "tries", "wrong", "before", "most", "after", "wait", "status")
_UNHANDLED: Final = re.compile(r'^Traceback .*|^.*"exception": .*$', re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Bounds:
    """The most that a row may cost others."""

    memory_mib: float = 32.0
    """Growth of the gateway's resident memory while the attack lasts."""
    wait_ms: float = 250.0
    """The most work that a request of the neighbor waits for."""
    stands_ms: float = 5_000.0
    """The neighbor's longest wait by the clock, for anything at all: on a busy machine that is long."""


@dataclass
class Record:
    """What an attack tries, and what of it went wrong. The attack itself fills it in."""

    tries: int = 0
    wrong: int = 0
    texts: list[str] = field(default_factory=list)
    """The first things that were wrong."""
    notes: dict[str, str] = field(default_factory=dict)
    """Figures of the attack's own, for the lines below the table."""

    def check(self, right: object, text: str = "") -> bool:
        """Count one try, which is wrong unless ``right``."""
        self.tries += 1
        if not right:
            self.blame(text)
        return bool(right)

    def blame(self, text: str) -> None:
        """Count something that is wrong, in no try of its own."""
        self.wrong += 1
        if len(self.texts) < SHOWN:
            self.texts.append(text[:300])


@dataclass(frozen=True, slots=True)
class Waits:
    """What a neighbor has measured since it was asked last."""

    count: int = 0
    worst_ms: float = 0.0
    """The most work that a request waited for, as long as it takes on an idle machine."""
    what: str = ""
    """The request that took so much."""
    longest_ms: float = 0.0
    """Its longest wait by the clock, without the time in which the scheduler gave gateway or neighbor no processor."""
    failures: tuple[str, ...] = ()
    """Requests that failed, the first few."""


@dataclass(frozen=True, slots=True)
class Health:
    """The state of a gateway after an attack."""

    running: bool = True
    ready: int = 200
    """Status of ``/readyz``; 0: there is no answer."""
    log: str = ""
    """What it logged meanwhile."""
    seen: tuple[str, ...] = ()
    """Where a planted secret was seen."""


@dataclass(frozen=True)
class Outcome:
    """One row, measured."""

    row: str
    bounds: Bounds
    record: Record
    waits: Waits
    health: Health
    before_mib: float
    most_mib: float
    after_mib: float
    seconds: float

    def faults(self) -> list[str]:
        """Return what is too much, one sentence each; nothing: the row is ok."""
        return [*_of_attack(self), *_of_memory(self), *_of_waits(self), *_of_health(self)]

    @property
    def slow(self) -> bool:
        """Whether nothing is too much but waits. A busy machine does that, too: try again."""
        return self.faults() == _of_waits(self) != [] and not self.waits.failures

    def line(self) -> tuple[str, ...]:
        """Return the row of the table."""
        memory = (f"{mib:.0f}" for mib in (self.before_mib, self.most_mib, self.after_mib))
        wait = f"{self.waits.worst_ms:.0f} ms"
        state = "FAILED" if self.faults() else "ok"
        return self.row, f"{self.record.tries:,}", f"{self.record.wrong:,}", *memory, wait, state


def _of_attack(outcome: Outcome) -> list[str]:
    record = outcome.record
    if not record.tries:
        return ["nothing was tried"]
    if not record.wrong:
        return []
    more = f" (and {record.wrong - len(record.texts):,} more)" if record.wrong > len(record.texts) else ""
    return [f"wrong: {'; '.join(record.texts)}{more}"]


def _of_memory(outcome: Outcome) -> list[str]:
    grown = outcome.most_mib - outcome.before_mib
    if grown <= outcome.bounds.memory_mib:
        return []
    return [f"memory grew by {grown:.0f} MiB; the limit is {outcome.bounds.memory_mib:g} MiB"]


def _of_waits(outcome: Outcome) -> list[str]:
    waits = outcome.waits
    found = [f"the neighbor's request failed: {text}" for text in waits.failures]
    if not waits.count:
        found.append("the neighbor measured nothing")
    if waits.worst_ms > outcome.bounds.wait_ms:
        limit = outcome.bounds.wait_ms
        found.append(f"the neighbor waited {waits.worst_ms:.0f} ms for {waits.what}; the limit is {limit:g} ms")
    if waits.longest_ms > outcome.bounds.stands_ms:
        limit = outcome.bounds.stands_ms
        found.append(f"the neighbor stood for {waits.longest_ms:.0f} ms; the limit is {limit:g} ms")
    return found


def _of_health(outcome: Outcome) -> list[str]:
    health = outcome.health
    found = [] if health.running else ["the gateway ended"]
    if health.ready != 200:
        found.append(f"/readyz answered {health.ready or 'nothing'}")
    if (unhandled := _UNHANDLED.search(health.log)) is not None:
        found.append(f"the log has an unhandled error: {unhandled[0][:100]} … {unhandled[0][-200:]}")
    return [*found, *(f"a planted secret was seen: {place}" for place in health.seen)]


def table(lines: Sequence[tuple[str, ...]]) -> str:
    """Return rows as a table; memory in MiB."""
    rows = [COLUMNS, *lines]
    widths = [max(len(row[column]) for row in rows) for column in range(len(COLUMNS))]
    left = (0, len(COLUMNS) - 1)
    return "\n".join(
        "  ".join(
            text.ljust(width) if column in left else text.rjust(width)
            for column, (text, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )
