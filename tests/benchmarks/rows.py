"""What was measured: samples, rows and the rounds that make them."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

SLOW = 5.0
"""A round that took longer is told as progress, in seconds."""
OURS = "gateway"
"""The client that is us."""


class ClientFailed(Exception):
    """A client did not do its work. The text is one sentence for the table."""


@dataclass(frozen=True)
class Sample:
    """One client doing one piece of work ``number`` times, once."""

    number: int = 0
    seconds: float = 0.0
    """On the wall; 0 where no time was taken."""
    cpu: float = 0.0
    """Seconds of the process that did it; 0 where that was not measured."""
    p50: float | None = None
    """Half of them took no longer, in seconds."""
    p99: float | None = None
    memory: float | None = None
    """Octets: of the process at its largest, or of one of the things that the row counts."""

    @property
    def rate(self) -> float | None:
        """Times per second."""
        return self.number / self.seconds if self.seconds else None

    @property
    def microseconds(self) -> float | None:
        """CPU for each, in microseconds."""
        return self.cpu / self.number * 1e6 if self.cpu and self.number else None

    def to_json(self) -> dict[str, Any]:
        """What was measured, and what follows from it."""
        values = {name: getattr(self, name) for name in (*self.__dataclass_fields__, "rate", "microseconds")}
        return {name: value for name, value in values.items() if value is not None}


@dataclass
class Row:
    """One client and one piece of work, over all rounds."""

    section: str
    work: str
    client: str
    samples: list[Sample] = field(default_factory=list)
    error: str = ""
    """Why it could not be measured."""

    def middle(self, measure: str) -> float | None:
        """The median of the rounds."""
        values = [value for sample in self.samples if (value := getattr(sample, measure)) is not None]
        return median(values) if values else None

    def to_json(self) -> dict[str, Any]:
        """With every round."""
        rounds = [sample.to_json() for sample in self.samples]
        return {
            "section": self.section,
            "work": self.work,
            "client": self.client,
            "error": self.error,
            "rounds": rounds,
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Row:
        """What :meth:`to_json` made."""
        samples = [
            Sample(**{name: value for name, value in each.items() if name in Sample.__dataclass_fields__})
            for each in document["rounds"]
        ]
        return cls(document["section"], document["work"], document["client"], samples, document["error"])


def quotient(over: Row, under: Row, measure: str) -> float | None:
    """How many times the one row is of the other: the median of what it was in each round."""
    pairs = zip(over.samples, under.samples, strict=False)
    found = [
        top / bottom
        for one, other in pairs
        if (top := getattr(one, measure)) is not None and (bottom := getattr(other, measure))
    ]
    return median(found) if found else None


Run = Callable[[], Mapping[str, Sample]]
"""One round of one client: what it did, by the name of the work."""


def say(text: str) -> None:
    """Progress, on the error output."""
    print(text, file=sys.stderr, flush=True)


def alternate(section: str, clients: Sequence[tuple[str, Run]], rounds: int) -> list[Row]:
    """Let the clients work in turn, every second round the other way round. One that fails is out, with the reason
    in its row; the others go on."""
    rows: dict[tuple[str, str], Row] = {}
    failed: dict[str, Row] = {}
    for number in range(rounds):
        began = time.monotonic()
        order = clients if number % 2 == 0 else clients[::-1]
        for client, run in order:
            if client in failed:
                continue
            try:
                found = run()
            except ClientFailed as error:
                say(f"  {section}: {client}: {error}")
                failed[client] = Row(section, "-", client, error=str(error))
                continue
            for work, sample in found.items():
                rows.setdefault((work, client), Row(section, work, client)).samples.append(sample)
        if (seconds := time.monotonic() - began) > SLOW:
            say(f"  {section}: round {number + 1} of {rounds} in {seconds:.0f} s")
    return by_work(rows.values(), [client for client, _ in clients]) + list(failed.values())


def by_work(rows: Iterable[Row], clients: Sequence[str]) -> list[Row]:
    """Rows of the same work together, their clients in a given order."""
    rows = list(rows)
    works = list(dict.fromkeys(row.work for row in sorted(rows, key=lambda row: clients.index(row.client))))
    return sorted(rows, key=lambda row: (works.index(row.work), clients.index(row.client)))
