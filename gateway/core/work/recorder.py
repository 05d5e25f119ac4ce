"""Events that nobody waits for: a lease ran out, a channel died, an acknowledgement whose ledger was away.

They are written in order, one commit for all that gathered meanwhile, and kept while the ledger is away. What is
kept is bounded; beyond that the oldest go, counted in ``amqpgw_events_dropped_total`` and logged once.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterable

from gateway.errors import GatewayError, LedgerUnavailable
from gateway.ledger import Ledger, LogEntry
from gateway.observing.telemetry import Metrics, log
from gateway.runtime.backoff import Backoff

KEPT_MAX = 100_000
"""Most events kept while the ledger is away."""
GROUP_MAX = 1_000
"""Most events of one call to the ledger."""
PAUSE_MIN, PAUSE_MAX = 0.2, 1.0
"""Pause before the ledger is tried again, in seconds; doubled each time."""


class Recorder:
    """Writes events in the background."""

    def __init__(self, ledger: Ledger, metrics: Metrics) -> None:
        self._ledger = ledger
        self._metrics = metrics
        self._waiting: deque[LogEntry] = deque()
        self._task: asyncio.Task[None] | None = None
        self._dropping = False

    def add(self, entries: Iterable[LogEntry]) -> None:
        """Write these events some time soon."""
        self._waiting.extend(entries)
        surplus = len(self._waiting) - KEPT_MAX
        if surplus > 0:
            for _ in range(surplus):
                self._waiting.popleft()
            self._metrics.events_dropped.inc(surplus)
            if not self._dropping:
                self._dropping = True
                log("ledger.events_dropped", logging.ERROR, kept=KEPT_MAX)
        if self._task is None and self._waiting:
            self._task = asyncio.get_running_loop().create_task(self._write(), name="recorder")

    async def _write(self) -> None:
        backoff = Backoff(PAUSE_MIN, PAUSE_MAX)
        try:
            while self._waiting:
                group = [self._waiting.popleft() for _ in range(min(GROUP_MAX, len(self._waiting)))]
                try:
                    await self._ledger.record(group)
                except LedgerUnavailable:
                    self._waiting.extendleft(reversed(group))
                    await backoff.wait()
                except GatewayError as error:  # some events cannot be stored; the others are
                    log("ledger.events_refused", logging.ERROR, detail=str(error))
                else:
                    backoff.reset()
                    self._dropping = False
        finally:
            self._task = None

    async def close(self, within: float) -> None:
        """Write what waits, for at most ``within`` seconds."""
        task = self._task
        if task is None:
            return
        done, _ = await asyncio.wait([task], timeout=within)
        if not done:
            task.cancel()
            await asyncio.wait([task])
            log("ledger.events_dropped", logging.ERROR, count=len(self._waiting))
            self._metrics.events_dropped.inc(len(self._waiting))
            self._waiting.clear()
