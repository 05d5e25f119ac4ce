"""What the ledger owes, for ``/metrics``: asked for every few seconds, by one process of those that share it.

Subscriptions with the most dead, then the most messages, have series of their own, as many as there may be; the others
are summed up under ``other``. A process that does not tell shows none of it, so ``max`` over the processes is the
truth.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Final

from gateway.errors import LedgerUnavailable
from gateway.ledger import BacklogCounts, Ledger
from gateway.ledger.pending.promises import PendingCounts
from gateway.observing.series import OTHER
from gateway.observing.telemetry import Metrics, log
from gateway.runtime.clock import clock

EVERY: Final = 10.0
"""Pause between two looks, in seconds."""
SHARE: Final = 30
"""The same, in times that a look took, where that is longer."""
FIRST: Final = 1.0
"""Pause before the first, in seconds."""


class Observer:
    """Asks, and shows."""

    def __init__(self, ledger: Ledger, metrics: Metrics) -> None:
        self._ledger = ledger
        self._metrics = metrics
        self._shown: set[str] = set()
        self._reading = asyncio.Lock()
        self._read: Mapping[str, BacklogCounts] = {}
        self._good_until = 0.0
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Ask, in the background."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name="observer")

    async def close(self) -> None:
        """Stop."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def _run(self) -> None:
        pause = FIRST
        while True:
            await clock.sleep(pause)
            began = clock.monotonic()
            try:
                await self.look()
            except LedgerUnavailable as error:
                log("ledger.not_observed", logging.DEBUG, reason=str(error))
            except Exception as error:  # a defect of ours; it costs numbers and no message
                log("observer.failed", logging.ERROR, error)
            pause = max(EVERY, SHARE * (clock.monotonic() - began))

    async def backlogs(self) -> Mapping[str, BacklogCounts]:
        """What the ledger owes, by subscription: as it was read last, at most :data:`EVERY` seconds ago, or
        :data:`SHARE` times as long as reading it took.

        Raises:
            LedgerUnavailable: it cannot be read.
        """
        async with self._reading:
            began = clock.monotonic()
            if began >= self._good_until:
                self._read = await self._ledger.deliveries.backlogs()
                now = clock.monotonic()
                self._good_until = now + max(EVERY, SHARE * (now - began))
            return self._read

    async def look(self) -> None:
        """Ask once, and show it.

        Raises:
            LedgerUnavailable: it cannot be read; what is shown stays.
        """
        owner, _ = await self._ledger.promises.survey()
        if owner != self._ledger.shard:
            self._show({})
            for state in ("due", "later", "refused"):
                self._metrics.outbox_messages.remove(state)
            for state in ("pending", "parked"):
                self._metrics.in_doubt.remove(state)
            self._metrics.outbox_overdue.set(0)
            return
        self._show(await self._ledger.deliveries.backlogs())
        self._stand(await self._ledger.promises.standing())

    def _stand(self, found: PendingCounts) -> None:
        metrics = self._metrics
        for state, number in (("due", found.due), ("later", found.later), ("refused", found.dead)):
            metrics.outbox_messages.labels(state).set(number)
        metrics.outbox_overdue.set(found.overdue)
        metrics.in_doubt.labels("pending").set(found.pending)
        metrics.in_doubt.labels("parked").set(found.parked)

    def _show(self, backlogs: Mapping[str, BacklogCounts]) -> None:
        now = clock.now() * 1_000_000
        first = sorted(backlogs, key=lambda name: (-backlogs[name].dead, -backlogs[name].waiting, name))
        named = first[: self._metrics.names]
        rest = [backlogs[name] for name in first[self._metrics.names :]]
        rows = {name: backlogs[name] for name in named}
        if rest:
            rows[OTHER] = BacklogCounts(
                sum(each.waiting for each in rest),
                sum(each.out for each in rest),
                sum(each.dead for each in rest),
                sum(each.octets for each in rest),
                min((each.oldest_at for each in rest if each.oldest_at is not None), default=None),
            )
        metrics = self._metrics
        for name in self._shown - rows.keys():
            for state in ("waiting", "out", "dead"):
                metrics.subscription_messages.remove(name, state)
            metrics.subscription_octets.remove(name)
            metrics.subscription_oldest.remove(name)
        self._shown = set(rows)
        for name, row in rows.items():
            for state, number in (("waiting", row.waiting), ("out", row.out), ("dead", row.dead)):
                metrics.subscription_messages.labels(name, state).set(number)
            metrics.subscription_octets.labels(name).set(row.octets)
            oldest = 0.0 if row.oldest_at is None else max(0.0, (now - row.oldest_at) / 1_000_000)
            metrics.subscription_oldest.labels(name).set(oldest)
