"""All pushed subscriptions of a gateway.

A subscription with an endpoint is work of the kind ``push`` (:mod:`gateway.core.work.ownership`): one process at a time
takes its messages, makes its requests and settles its rows. What all of them share is here: the endpoints at work with
their breakers and the places for requests (:mod:`~gateway.webhooks.targets`), and the way into the ledger
(:mod:`~gateway.webhooks.attempts.journal`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from gateway.core import Gateway
from gateway.core.subscriptions import SubscriptionResource
from gateway.core.work.subscription_work import SubscriptionWork
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
RECHECK: Final = "recheck"
"""The topic on which processes tell each other that an endpoint is well again."""


class Pushes(SubscriptionWork[Pusher]):
    """What of this gateway's subscriptions is pushed."""

    kind = PUSH_KIND

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
        super().__init__(gateway.subscriptions)
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
        await self._stop_all(within)
        await self.targets.close()
        await self._journal.close()

    # ------------------------------------------------------------------------------------------- as a worker

    def has_work(self, subscription: SubscriptionResource) -> bool:
        """Whether there is anything to push for it."""
        return is_pushed(subscription)

    def build(self, subscription: SubscriptionResource) -> Pusher:
        """Make the pusher of a subscription."""
        return Pusher(subscription, self._gateway.parts, self.targets, self._recorders)

    def _changed(self, name: str) -> None:
        """A subscription was put, deleted, paused or resumed here."""
        self._gateway.ownership.changed(PUSH_KIND, name)
        if name in self._granted:
            self.targets.run(self.refresh(name))

    # ----------------------------------------------------------------------------------------------- asking

    def wake(self, name: str) -> None:
        """Somebody changed what the ledger holds for a subscription: its pusher looks now."""
        pusher = self._running.get(name)
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
        return name in self._running

    def trouble(self, name: str) -> str:
        """Why a subscription that this process is to push gets or sends nothing, and nobody wanted that; empty: nothing
        is wrong, or this process does not push it."""
        pusher = self._running.get(name)
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
        pusher = self._running.get(subscription.name)
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
        for pusher in self._running.values():
            pusher.look()

    def _endpoint_changed(self, name: str) -> None:
        if name not in self._endpoints:
            self._counts.gone(name)


def is_pushed(subscription: SubscriptionResource) -> bool:
    """Whether there is anything to do for it."""
    return bool(subscription.settings.push) and not subscription.paused
