"""``python -m tests.budgets.measure``: one client at its bound, and how long others wait.

For each budget one client holds all that it may, and goes on asking for more; another client does its work, and each of
its requests is timed. The control is the same with the first client just below its bound. Both are measured in each of
five runs, in turn, and what counts is the median of the runs' ratios of p99.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from time import monotonic, perf_counter

import uvloop

from tests.budgets.lab import ADMINS, CLIENTS, Lab, gateway, opened, until
from tests.budgets.row import Row
from tests.budgets.rows import ROWS

RATIO = 2.0
"""How much longer p99 of others may be when a client is at its bound; of the median."""
ASKS = 20
"""How often in a second the client asks for more."""
PAUSE = 0.002
"""Between two requests of the other client, in seconds."""


@dataclass(frozen=True)
class Run:
    """p99 of the other client, in seconds."""

    below: float
    at_bound: float
    refused: int
    """How often the first one was refused at its bound."""


async def measure(lab: Lab, row: Row, run: int, seconds: float) -> Run:
    """One run: below the bound and at it, the first one first in every other run."""
    client = f"alice-{run}" if row.stays else "alice"
    await until(lambda: _is_at_rest(lab))
    standing = await lab.budget(row.resource)
    bound = row.bound(standing["share"], standing["total"], standing["reserve"])
    bound -= sum(each["held"] for each in standing["largest"] if each["client"] == row.label(client))
    at_bound_first = run % 2 == 1 and row.alternates
    async with row.hold(lab, client, bound - row.one):
        if not at_bound_first:
            below, refused = await _times(lab, row, client, seconds, at_bound=False)
            assert not refused, f"{row.resource}: refused below the bound"
        async with row.hold(lab, client, row.one + row.beyond):
            at_bound, refused = await _times(lab, row, client, seconds, at_bound=True)
            assert refused or not row.is_refused, f"{row.resource}: not refused at the bound"
        if at_bound_first:
            below, _ = await _times(lab, row, client, seconds, at_bound=False)
    return Run(below, at_bound, refused)


async def _is_at_rest(lab: Lab) -> bool:
    """Whether nothing goes on but this request."""
    held = [(await lab.budget(resource))["held"] for resource in ("requests", "connections", "ops_connections")]
    return held[0] <= 1 and held[1] <= len({*CLIENTS, *ADMINS}) and not held[2]


async def _times(lab: Lab, row: Row, client: str, seconds: float, *, at_bound: bool) -> tuple[float, int]:
    """p99 of the other client, and how often the first one was refused."""
    statuses: list[int] = []

    is_over = asyncio.Event()

    async def ask_for_more() -> None:
        while not is_over.is_set():
            statuses.append(await row.more(lab, client, at_bound))
            await asyncio.sleep(1 / ASKS)

    task = asyncio.create_task(ask_for_more())
    took: list[float] = []
    end = monotonic() + seconds
    try:
        await row.other(lab)
        while not took or monotonic() < end:
            began = perf_counter()
            await row.other(lab)
            took.append(perf_counter() - began)
            await asyncio.sleep(PAUSE)
            if task.done():
                task.result()
    finally:
        is_over.set()  # what it has asked for is given back
        await task
    return percentile(took, 0.99), statuses.count(429)


def percentile(values: Iterable[float], part: float) -> float:
    """The value that so many are at most."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]


def ratio(runs: Iterable[Run]) -> float:
    """The median."""
    return statistics.median(run.at_bound / run.below for run in runs)


async def measure_all(lab: Lab, rows: Iterable[Row], runs: int, seconds: float) -> dict[str, list[Run]]:
    """All rows."""
    found: dict[str, list[Run]] = {}
    for row in rows:
        found[row.resource] = [await measure(lab, row, run, seconds) for run in range(runs)]
        print(line(row.resource, found[row.resource]), flush=True)
    return found


def line(resource: str, runs: list[Run]) -> str:
    """A row of the table."""
    below = statistics.median(run.below for run in runs) * 1_000
    at_bound = statistics.median(run.at_bound for run in runs) * 1_000
    each = " ".join(f"{run.at_bound / run.below:.2f}" for run in runs)
    refused = sum(run.refused for run in runs)
    return f"| `{resource}` | {below:.1f} | {at_bound:.1f} | {ratio(runs):.2f} | {each} | {refused} |"


def main() -> int:
    """Measure; 1: a budget does not protect others."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rows", nargs="*", help="budgets; all unless given")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.5, help="of each of the two halves of a run")
    given = parser.parse_args()
    rows = [row for row in ROWS if not given.rows or row.resource in given.rows]

    async def run() -> dict[str, list[Run]]:
        async with opened(process) as lab:
            return await measure_all(lab, rows, given.runs, given.seconds)

    print("| budget | p99 below, ms | p99 at the bound, ms | ratio, median | of each run | refused |")
    print("| --- | --- | --- | --- | --- | --- |")
    with gateway(given.runs) as process, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        found = runner.run(run())
    return int(any(ratio(runs) > RATIO for runs in found.values()))


if __name__ == "__main__":
    sys.exit(main())
