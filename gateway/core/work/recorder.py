"""Events that nobody waits for: a lease ran out, a channel died, an acknowledgement whose ledger was away.

They are written in order, one commit for all that gathered meanwhile, and kept while the ledger is away. A commit that
failed may have happened: its events are written again only if the ledger has not got them. What is kept is bounded;
beyond that the oldest go, counted in ``amqpgw_events_dropped_total`` and logged once.
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
        self._tried: deque[LogEntry] = deque()
        """The ledger may have them."""
        self._waiting: deque[LogEntry] = deque()
        self._task: asyncio.Task[None] | None = None
        self._dropping = False

    def __len__(self) -> int:
        return len(self._tried) + len(self._waiting)

    def add(self, entries: Iterable[LogEntry]) -> None:
        """Write these events some time soon."""
        self._waiting.extend(entries)
        self._begin()

    def add_again(self, entries: Iterable[LogEntry]) -> None:
        """Write these events some time soon, unless the ledger has them: it failed to say so."""
        self._tried.extend(entries)
        self._begin()

    def _begin(self) -> None:
        surplus = len(self) - KEPT_MAX
        if surplus > 0:
            for _ in range(surplus):
                (self._tried or self._waiting).popleft()
            self._metrics.events_dropped.inc(surplus)
            if not self._dropping:
                self._dropping = True
                log("ledger.events_dropped", logging.ERROR, kept=KEPT_MAX)
        if self._task is None and len(self):
            self._task = asyncio.get_running_loop().create_task(self._write(), name="recorder")

    async def _write(self) -> None:
        backoff = Backoff(PAUSE_MIN, PAUSE_MAX)
        try:
            while queue := self._tried or self._waiting:
                group = [queue.popleft() for _ in range(min(GROUP_MAX, len(queue)))]
                try:
                    await self._ledger.record(await self._ledger.unrecorded(group) if queue is self._tried else group)
                except LedgerUnavailable:
                    self._tried.extendleft(reversed(group))
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
            log("ledger.events_dropped", logging.ERROR, count=len(self))
            self._metrics.events_dropped.inc(len(self))
            self._tried.clear()
            self._waiting.clear()
