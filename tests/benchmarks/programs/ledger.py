"""Writers of the ledger: each records a message and its outcome, waits until that is durable, and goes on.

With ``busy`` a thread computes beside them and holds the interpreter's lock whenever it can have it. What it spends
is not counted.
"""

from __future__ import annotations

import asyncio
import threading
import time
from hashlib import sha256
from typing import Any

import uvloop

from gateway.app import prepare_interpreter
from gateway.config import LedgerSettings
from gateway.ledger import EventKind, Ledger, LogEntry, MessageIds, NewMessage
from tests.benchmarks.programs.clock import Stopwatch, largest, percentile

BODY = b"x" * 256
MESSAGE = NewMessage(
    broker="rabbit",
    version="0-9-1",
    exchange="",
    routing_key="orders",
    size=len(BODY),
    sha256=sha256(BODY).digest(),
    origin="http",
)


class Busy:
    """A thread that computes and does nothing else."""

    def __init__(self) -> None:
        self.cpu = 0.0
        self._stop = False
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop:
            sum(range(1_000))
        self.cpu = time.thread_time()

    def end(self) -> None:
        """Stop it, and know what it has spent."""
        self._stop = True
        self._thread.join()


async def _run(job: dict[str, Any]) -> dict[str, Any]:
    ledger = await Ledger.open(job["url"], LedgerSettings(), owner="bench", migrate=True)
    ids = MessageIds()
    times: list[float] = []

    async def write() -> None:
        while (began := time.perf_counter()) < until:
            message_id = ids()
            at = time.time_ns() // 1000
            accepted = LogEntry(message_id, EventKind.ACCEPTED, at, "rabbit", "0-9-1", None, MESSAGE)
            await ledger.record([accepted, LogEntry(message_id, EventKind.CONFIRMED, at, "rabbit", "0-9-1")])
            times.append(time.perf_counter() - began)

    until = time.perf_counter() + job["seconds"] / 10
    await asyncio.gather(*(write() for _ in range(job["writers"])))  # statements are prepared, files are grown
    times.clear()
    busy = Busy() if job["busy"] else None
    try:
        until = time.perf_counter() + job["seconds"]
        with Stopwatch() as watch:
            await asyncio.gather(*(write() for _ in range(job["writers"])))
            if busy is not None:
                busy.end()
    finally:
        if busy is not None:
            busy.end()
    await ledger.close()
    times.sort()
    cpu = watch.cpu - (busy.cpu if busy is not None else 0.0)
    found = {"p50": percentile(times, 0.5), "p99": percentile(times, 0.99), "memory": largest()}
    return {**watch.result(len(times)), "cpu": cpu, **found}


def main(job: dict[str, Any]) -> dict[str, Any]:
    """The program."""
    prepare_interpreter()
    return uvloop.run(_run(job))
