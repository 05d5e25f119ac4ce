"""All pushed subscriptions of a gateway.

A subscription with an endpoint is work of the kind ``push`` (:mod:`gateway.core.work.ownership`): one process at a time
takes its messages, makes its requests and settles its rows. What all of them share is here: the endpoints at work with
their breakers and the places for requests (:mod:`~gateway.webhooks.targets`), and the way into the ledger
(:mod:`~gateway.webhooks.attempts.journal`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final
from weakref import WeakValueDictionary

from gateway.core import Gateway
from gateway.core.subscriptions import SubscriptionResource
from gateway.errors import GatewayError, NoSuchSubscription
from gateway.observing.telemetry import log
from gateway.runtime.backoff import Backoff
from gateway.runtime.clock import wall_time
from gateway.runtime.ids import fraction
from gateway.webhooks.attempts.journal import PushJournal
from gateway.webhooks.attempts.outcomes import PushRecorders
from gateway.webhooks.attempts.replies import Replies
from gateway.webhooks.attempts.schedule import Chance
from gateway.webhooks.counts import PushCounts
from gateway.webhooks.lines import Send
from gateway.webhooks.pusher import Pusher
from gateway.webhooks.settings.endpoints import EndpointRegistry
from gateway.webhooks.states import PushState, PushStatus
from gateway.webhooks.targets import Targets

PUSH_KIND: Final = "push"
PLACES: Final = 256
"""Most requests to endpoints at once, unless ``outbound.requests`` says another number."""
STOP_WITHIN: Final = 5.0
"""How long requests under way may take when a subscription is paused or changed, in seconds; what they were about is
done again."""
RECHECK: Final = "recheck"
"""The topic on which processes tell each other that an endpoint is well again."""
PAUSE_MIN, PAUSE_MAX = 0.5, 30.0
"""Pause before a subscription that could not start over is tried again, in seconds; doubled each time."""


class Pushes:
    """What of this gateway's subscriptions is pushed; a worker of :class:`gateway.core.work.ownership.Ownership`."""

    def __init__(
        self,
        gateway: Gateway,
        endpoints: EndpointRegistry,
        sender: Send,
        *,
        places: int = PLACES,
        chance: Chance | None = None,
        clock: Callable[[], float] = wall_time,
    ) -> None:
        """
        Args:
            places: most requests at once.
            chance: from 0 to 1, for jitter.
            clock: seconds since 1970, for time stamps and ``Retry-After``.
        """
        self._gateway = gateway
        self._endpoints = endpoints
        self._counts = PushCounts(gateway.metrics)
        self._journal = PushJournal(gateway.ledger, self._look)
        self._recorders = PushRecorders(self._journal, Replies(gateway.ids), self._counts)
        self.targets = Targets(
            endpoints,
            sender,
            self._counts,
            places=places,
            chance=chance or fraction,  # of pauses, no secret
            clock=clock,
            writable=lambda: self._journal.writable,
        )
        self._pushers: dict[str, Pusher] = {}
        self._granted: set[str] = set()
        """What this process is to push."""
        self._troubles: dict[str, str] = {}
        """Why those of them have not started that could not."""
        self._closing = False
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        gateway.metrics.push_in_flight.set_function(lambda: self.targets.slots.in_flight)
        endpoints.on_change += [self.targets.changed, self._endpoint_changed]

    # ---------------------------------------------------------------------------------------- start, close

    def begin(self) -> None:
        """Have this process do its part from now on."""
        self._gateway.subscriptions.on_change.append(self._changed)
        self._gateway.ownership.register(PUSH_KIND, self)
        self._gateway.peers.listen(RECHECK, self._recheck)

    async def close(self, within: float) -> None:
        """End everything within this many seconds."""
        self._closing = True
        await asyncio.gather(*(self.stop(name, within) for name in list(self._pushers)))
        await self.targets.close()
        await self._journal.close()

    # ------------------------------------------------------------------------------------------- as a worker

    async def names(self) -> Collection[str]:
        """The subscriptions that are to be pushed."""
        return {each.name for each in await self._gateway.subscriptions.all() if is_pushed(each)}

    async def start(self, name: str) -> None:
        """Push a subscription.

        Raises:
            NoSuchSubscription, NoSuchBroker, EncodeError: its settings are wrong.
            LedgerUnavailable: it is to be tried again.
        """
        self._granted.add(name)
        async with self._lock(name):
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
        if name in self._pushers or self._closing:
            return
        subscription = await self._gateway.subscriptions.get(name)
        if not is_pushed(subscription) or name not in self._granted:
            return
        pusher = self._pushers[name] = Pusher(subscription, self._gateway.parts, self.targets, self._recorders)
        try:
            await pusher.start()
        except BaseException:
            self._drop(name)
            raise
        log("push.started", subscription=name, endpoint=subscription.settings.push)

    async def stop(self, name: str, within: float = STOP_WITHIN) -> None:
        """Bring a subscription to an end within this many seconds, and give the rest back."""
        self._granted.discard(name)
        self._troubles.pop(name, None)
        async with self._lock(name):
            await self._stop(name, within)

    async def _stop(self, name: str, within: float) -> None:
        pusher = self._pushers.get(name)
        if pusher is not None:
            await pusher.stop(within)
            self._pushers.pop(name, None)
            log("push.stopped", subscription=name)

    def lost(self, name: str) -> None:
        """It is another process's: drop everything."""
        self._granted.discard(name)
        self._troubles.pop(name, None)
        self._drop(name)

    def _drop(self, name: str) -> None:
        pusher = self._pushers.pop(name, None)
        if pusher is not None:
            pusher.lost()

    async def refresh(self, name: str) -> None:
        """Its settings may have changed, or what the ledger holds for it. Where it cannot start over it is tried again,
        for nobody else does."""
        backoff = Backoff(PAUSE_MIN, PAUSE_MAX)
        while True:
            try:
                await self._refresh(name)
                return
            except Exception as error:  # the ledger's, or a fault of ours
                expected = isinstance(error, GatewayError)
                level, shown = (logging.WARNING, None) if expected else (logging.ERROR, error)
                log("push.not_started", level, exc_info=shown, subscription=name, reason=str(error)[:500])
            await backoff.wait()
            if name not in self._granted or self._closing:
                return

    async def _refresh(self, name: str) -> None:
        self._gateway.subscriptions.forget(name)
        async with self._lock(name):
            pusher = self._pushers.get(name)
            try:
                subscription = await self._gateway.subscriptions.get(name)
            except NoSuchSubscription:
                self._troubles.pop(name, None)
                await self._stop(name, STOP_WITHIN)
                return
            if pusher is not None and pusher.subscription == subscription and not pusher.stale:
                pusher.wake()
                return
            await self._stop(name, STOP_WITHIN)
            await self._try(name)

    def _changed(self, name: str) -> None:
        """A subscription was put, deleted, paused or resumed here."""
        self._gateway.ownership.changed(PUSH_KIND, name)
        if name in self._granted:
            self.targets.run(self.refresh(name))

    def _lock(self, name: str) -> asyncio.Lock:
        lock = self._locks.get(name)
        if lock is None:
            lock = self._locks[name] = asyncio.Lock()
        return lock

    # ----------------------------------------------------------------------------------------------- asking

    def wake(self, name: str) -> None:
        """Somebody changed what the ledger holds for a subscription: its pusher looks now."""
        pusher = self._pushers.get(name)
        if pusher is not None:
            pusher.wake()
        else:
            self._gateway.ownership.changed(PUSH_KIND, name)

    def recheck(self, endpoint: str) -> None:
        """Somebody says that an endpoint is well again: do not wait for its breaker, here or in another process."""
        self._recheck({"name": endpoint})
        self._gateway.peers.tell(RECHECK, {"name": endpoint})

    def _recheck(self, news: Mapping[str, Any]) -> None:
        target = self.targets.get(str(news.get("name", "")))
        if target is not None:
            target.recheck()

    def here(self, name: str) -> bool:
        """Whether this process pushes it."""
        return name in self._pushers

    def trouble(self, name: str) -> str:
        """Why a subscription that this process is to push gets or sends nothing, and nobody wanted that; empty: nothing
        is wrong, or this process does not push it."""
        pusher = self._pushers.get(name)
        return pusher.trouble if pusher is not None else self._troubles.get(name, "")

    async def pending(self, endpoint: str) -> int | None:
        """Messages that wait for an endpoint in the ledger, of the subscriptions that this process pushes; None: it
        pushes none of them. Raises LedgerUnavailable."""
        target = self.targets.get(endpoint)
        if target is None:
            return None
        counts = [await self._gateway.ledger.deliveries.backlog(line.name) for line in list(target.lines)]
        return sum(each.waiting + each.out for each in counts)

    def last_error(self, endpoint: str) -> str:
        """Why the last request to an endpoint failed; empty: it did not, or this process made none."""
        target = self.targets.get(endpoint)
        return target.last_error if target is not None else ""

    async def status(self, subscription: SubscriptionResource) -> PushStatus:
        """How things stand with a pushed subscription; what only the process that pushes it knows is left out by
        another one.

        Raises:
            LedgerUnavailable: that cannot be told now.
        """
        pusher = self._pushers.get(subscription.name)
        if pusher is not None:
            return await pusher.status()
        backlog = await self._gateway.ledger.deliveries.backlog(subscription.name)
        paused, trouble = subscription.paused, self._troubles.get(subscription.name, "")
        return PushStatus(
            endpoint=subscription.settings.push,
            state=PushState.PAUSED if paused else PushState.ERROR if trouble else PushState.STOPPED,
            reason="the subscription is paused" if paused else trouble or "this process does not push it",
            code="subscription_paused" if paused else "queue_unreadable" if trouble else "",
            waiting=backlog.waiting,
            retrying=backlog.tried,
            dead=backlog.dead,
        )

    # ---------------------------------------------------------------------------------------------- by the way

    def _look(self) -> None:
        """The ledger is away, or back."""
        for pusher in self._pushers.values():
            pusher.look()

    def _endpoint_changed(self, name: str) -> None:
        if name not in self._endpoints:
            self._counts.gone(name)


def is_pushed(subscription: SubscriptionResource) -> bool:
    """Whether there is anything to do for it."""
    return bool(subscription.settings.push) and not subscription.paused
