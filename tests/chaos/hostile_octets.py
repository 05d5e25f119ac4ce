"""F21: hostile octets by the million; and F33: every property and header type there and back. Both are commands of
their own (``make fuzz``, ``python -m tests.translation.live``), run here for their figures."""

from __future__ import annotations

import asyncio
import tempfile
import time
from pathlib import Path
from typing import Final

from tests.chaos.figures import Figures
from tests.chaos.parts import Context
from tests.fuzz.run import run
from tests.translation.live.ends import PAIRS, Servers
from tests.translation.live.run import there_and_back
from tests.translation.live.test_there_and_back import QUICK

CASES: Final = {False: 20_000, True: 1_000_000}
"""In the quick and in the full form."""
PROCESSES: Final = 2
MEMORY_MAX: Final = 5 << 10
"""By how much a process may grow, in KiB."""
MESSAGES: Final = {False: 300, True: 10_000}
"""Of each pair of brokers and versions; in the quick form of those of its test."""


def fuzz(context: Context) -> list[Figures]:
    """Cases of the fuzzer: only a session's own close may come of them."""
    cases = context.messages or CASES[context.full]
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="gateway-fuzz-") as folder:
        report = run(str(context.seed), cases, Path(folder), PROCESSES)
    grown = max((end - begin for begin, end in report.rss), default=0)
    figures = Figures(
        "hostile octets, each version and role",
        report.cases,
        unexpected=len(report.failures),
        unit="cases",
        extra={
            "MB": round(report.octets / 1e6),
            "slowest_s": round(report.slowest[0], 3),
            "memory_grew_KiB": grown,
        },
        seconds=round(time.monotonic() - began, 1),
    )
    figures.must(report.cases == cases, f"{report.cases} of {cases} were played")
    figures.must(report.slowest[0] <= 1.0, f"case {report.slowest[1]} took {report.slowest[0]:.1f} s")
    figures.must(grown <= MEMORY_MAX, f"a process grew by {grown} KiB")
    figures.problems += [f"case {number}: {why}" for number, _, why in report.failures[:5]]
    return [figures]


def mapping(context: Context) -> list[Figures]:
    """There and back over real bridges, each pair of brokers and versions that is asked for."""
    servers = Servers(*map(context.server, ("rabbitmq", "rabbitmq-3.10", "brokerj")))
    found = []
    for source, target in PAIRS:
        if not context.full and (source.id, target.id) not in QUICK:
            continue
        name = f"{source.id} to {target.id} and back"
        if not context.wants(name):
            continue
        result = asyncio.run(
            there_and_back(source, target, servers, context.seed, context.messages or MESSAGES[context.full])
        )
        found.append(
            Figures(
                name,
                result.sent,
                result.sent - len(result.refused),
                len(result.lost),
                len(result.changed) + len(result.buried),
                len(result.twice),
                0,
                extra={"equal": result.equal, "in_order": result.ordered},
                seconds=round(result.seconds, 1),
                problems=[] if result.perfect else result.notes(3),
            )
        )
    return found
