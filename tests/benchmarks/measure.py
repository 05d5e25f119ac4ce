"""One row of a benchmark, and the table of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

ROUNDS = 3
"""The best of so many counts."""


@dataclass(frozen=True)
class Measured:
    """One client doing one piece of work ``number`` times."""

    work: str
    client: str
    number: int
    seconds: float
    cpu: float
    """Seconds of this process."""

    @property
    def rate(self) -> float:
        """Times per second."""
        return self.number / self.seconds

    @property
    def microseconds(self) -> float:
        """CPU for each, in microseconds."""
        return self.cpu / self.number * 1e6


class Stopwatch:
    """Wall clock and CPU of a ``with`` block."""

    seconds = cpu = 0.0


@contextmanager
def stopwatch() -> Iterator[Stopwatch]:
    """Measure a block."""
    watch = Stopwatch()
    wall, cpu = time.perf_counter(), time.process_time()
    yield watch
    watch.seconds = time.perf_counter() - wall
    watch.cpu = time.process_time() - cpu


def best(rounds: Sequence[Measured]) -> Measured:
    """The round that cost least CPU."""
    return min(rounds, key=lambda row: row.cpu)


def calls(work: str, client: str, call: Callable[[], object], number: int) -> Measured:
    """Call a function ``number`` times, a few rounds."""
    rounds = []
    for _ in range(ROUNDS):
        with stopwatch() as watch:
            for _ in range(number):
                call()
        rounds.append(Measured(work, client, number, watch.seconds, watch.cpu))
    return best(rounds)


def table(rows: Sequence[Measured]) -> str:
    """The rows; the first of each piece of work is ours, and the others are compared with it."""
    ours = {row.work: row for row in reversed(rows)}
    lines = [f"{'work':<44} {'client':<9} {'per second':>11} {'CPU µs each':>12} {'CPU ours ×':>11}"]
    lines += [
        f"{row.work:<44} {row.client:<9} {row.rate:>11,.0f} {row.microseconds:>12.2f} "
        f"{row.microseconds / ours[row.work].microseconds:>11.2f}"
        for row in rows
    ]
    return "\n".join(lines)
