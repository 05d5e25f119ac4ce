"""Posts to an endpoint of somebody else's: our transport, beside bare ``httpx.AsyncClient`` posting the same bodies to
the same server. "under httpx" is our transport with an httpx client on top. Signing is not in it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.benchmarks import programs
from tests.benchmarks.bench import SIZE, Bench
from tests.benchmarks.rows import OURS, Row, Run, Sample, alternate

CALLERS = (1, 64)
HTTPX, UNDER_HTTPX = "httpx", "under httpx"


def run(bench: Bench) -> list[Row]:
    """One caller, and 64."""
    clients = [(OURS, "ours")] + ([] if bench.ours else [(UNDER_HTTPX, "under-httpx"), (HTTPX, "httpx")])
    rows: list[Row] = []
    with endpoint() as port:
        for callers in CALLERS:
            job = {"url": f"http://127.0.0.1:{port}/hook", "size": SIZE, "callers": callers, "seconds": bench.seconds}
            turns = [(name, turn(work(callers), {**job, "client": client})) for name, client in clients]
            rows += alternate("outbound", turns, bench.rounds)
    return rows


def work(callers: int) -> str:
    """As the table has it."""
    return f"POST to an endpoint, {callers} caller{'s' if callers > 1 else ''}"


def turn(name: str, job: dict[str, Any]) -> Run:
    """One round."""
    return lambda: {name: Sample(**programs.run("outbound", job))}


@contextmanager
def endpoint() -> Iterator[int]:
    """A server in a process of its own; its port."""
    command = [sys.executable, "-m", "tests.benchmarks.programs", "endpoint", "{}"]
    process = subprocess.Popen(command, cwd=programs.ROOT, env=programs.environment(), stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        yield int(json.loads(process.stdout.readline())["port"])
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()
