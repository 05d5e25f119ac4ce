"""What one process at a time does for a subscription: store its messages in order, or push them.

Each is work of its own kind (:mod:`gateway.core.work.ownership`), by the name of the subscription. A runner does it,
and another one takes its place when the settings of the subscription, or its broker, are others.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from typing import Final, Generic, Protocol, TypeVar

from gateway.core.subscriptions import SubscriptionRegistry, SubscriptionResource
from gateway.errors import GatewayError, NoSuchSubscription
from gateway.observing.telemetry import log
from gateway.runtime.backoff import Backoff
from gateway.runtime.locks import Locks

STOP_WITHIN: Final = 5.0
"""How long what is under way may take when a subscription is paused or changed, in seconds; the rest is done again."""
PAUSE_MIN, PAUSE_MAX = 0.5, 30.0
"""Pause before a subscription that could not start over is tried again, in seconds; doubled each time."""


class SubscriptionRunner(Protocol):
    """Does the work for one subscription. All methods belong to the event loop."""

    subscription: SubscriptionResource

    @property
    def stale(self) -> bool:
        """Its broker is another one now."""

    async def start(self) -> None:
        """Begin. An error means that nothing has begun."""

    async def stop(self, within: float) -> None:
        """Take nothing more, bring what is under way to an end within this many seconds, and give the rest back."""

    def lost(self) -> None:
        """It is another process's now: drop everything at once, acknowledge and record nothing."""

    def wake(self) -> None:
        """Somebody changed what the ledger holds for it: look now."""


T = TypeVar("T", bound=SubscriptionRunner)


class SubscriptionWork(Generic[T]):
    """The runners of this process; a worker of :class:`gateway.core.work.ownership.Ownership`."""

    kind: str
    """The kind of work."""

    def __init__(self, subscriptions: SubscriptionRegistry) -> None:
        self._subscriptions = subscriptions
        self._running: dict[str, T] = {}
        self._granted: set[str] = set()
        """What this process is to do."""
        self.outdated: Collection[str] = ()
        """See :class:`gateway.core.work.ownership.Attentive`."""
        self._troubles: dict[str, str] = {}
        """Why those of them have not started that could not."""
        self._closing = False
        self._locks = Locks()

    def has_work(self, subscription: SubscriptionResource) -> bool:
        """Whether there is anything to do for it."""
        raise NotImplementedError

    def build(self, subscription: SubscriptionResource) -> T:
        """Make a runner, which does not run yet. Raises NoSuchBroker, EncodeError: the settings are wrong."""
        raise NotImplementedError

    # ------------------------------------------------------------------------------------------- as a worker

    async def names(self) -> Collection[str]:
        """The subscriptions for which there is something to do."""
        found = await self._subscriptions.all()
        self.outdated = [each.name for each in found if self._differs(each)]
        return {each.name for each in found if self.has_work(each)}

    def _differs(self, subscription: SubscriptionResource) -> bool:
        """Whether it is done here by other settings, or not at all although it could be."""
        name = subscription.name
        if name not in self._granted or name in self._troubles:  # those are tried again
            return False
        runner = self._running.get(name)
        return self.has_work(subscription) if runner is None else runner.subscription != subscription

    async def start(self, name: str) -> None:
        """Begin the work for a subscription.

        Raises:
            NoSuchSubscription, NoSuchBroker, EncodeError: its settings are wrong.
            LedgerUnavailable: it is to be tried again.
        """
        self._granted.add(name)
        async with self._locks.of(name):
            await self._try(name)

    async def _try(self, name: str) -> None:
        """Start it, and remember why that failed."""
        try:
            await self._start(name)
        except Exception as error:
            if name in self._granted:
                self._troubles[name] = str(error) or repr(error)
            raise
        self._troubles.pop(name, None)

    async def _start(self, name: str) -> None:
        if name in self._running or self._closing:
            return
        self._subscriptions.forget(name)  # another process may have changed it
        subscription = await self._subscriptions.get(name)
        if not self.has_work(subscription) or name not in self._granted:
            return
        runner = self._running[name] = self.build(subscription)
        try:
            await runner.start()
        except BaseException:
            self._drop(name)
            raise
        if self._running.get(name) is not runner:  # it was lost while it began
            runner.lost()
            return
        log(f"{self.kind}.started", subscription=name)

    async def stop(self, name: str, within: float = STOP_WITHIN) -> None:
        """Bring the work to an end within this many seconds, and give the rest back."""
        self._granted.discard(name)
        self._troubles.pop(name, None)
        async with self._locks.of(name):
            await self._stop(name, within)

    async def _stop(self, name: str, within: float) -> None:
        runner = self._running.get(name)
        if runner is not None:
            await runner.stop(within)
            self._running.pop(name, None)
            log(f"{self.kind}.stopped", subscription=name)

    def lost(self, name: str) -> None:
        """It is another process's: drop everything."""
        self._granted.discard(name)
        self._troubles.pop(name, None)
        self._drop(name)

    def _drop(self, name: str) -> None:
        runner = self._running.pop(name, None)
        if runner is not None:
            runner.lost()

    async def refresh(self, name: str) -> None:
        """Its settings may have changed, or what the ledger holds for it. Where it cannot start over it is tried again,
        for nobody else does."""
        backoff = Backoff(PAUSE_MIN, PAUSE_MAX)
        while True:
            try:
                await self._refresh(name)
                return
            except Exception as error:  # the ledger's, or a defect
                expected = isinstance(error, GatewayError)
                level, shown = (logging.WARNING, None) if expected else (logging.ERROR, error)
                log(f"{self.kind}.not_started", level, exc_info=shown, subscription=name, reason=str(error)[:500])
            await backoff.wait()
            if name not in self._granted or self._closing:
                return

    async def _refresh(self, name: str) -> None:
        self._subscriptions.forget(name)
        async with self._locks.of(name):
            runner = self._running.get(name)
            try:
                subscription = await self._subscriptions.get(name)
            except NoSuchSubscription:
                self._troubles.pop(name, None)
                await self._stop(name, STOP_WITHIN)
                return
            if runner is not None and runner.subscription == subscription and not runner.stale:
                runner.wake()
                return
            await self._stop(name, STOP_WITHIN)
            await self._try(name)

    async def _stop_all(self, within: float) -> None:
        self._closing = True
        await asyncio.gather(*(self.stop(name, within) for name in list(self._running)))
