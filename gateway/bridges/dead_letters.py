"""The dead-letter place of a bridge: what cannot be forwarded goes there, with the reason, and is confirmed.

The copy is that of :mod:`gateway.core.sources.dead_letters`, with what the bridge writes into the reserved header.

A place that takes nothing is a fault of the bridge: what waits for it stays at the source, and it is tried again with
growing pauses. Other messages go on, within the prefetch.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from gateway.bridges.items import BridgeDelivery
from gateway.bridges.journal import PAUSE_MAX, PAUSE_MIN, BridgeJournal
from gateway.bridges.routes import BridgeRoute
from gateway.core.sources.dead_letters import DeadLetterDestination, DeadLetterPublisher, UndeliverableMessage
from gateway.errors import GatewayError, Unroutable
from gateway.runtime.backoff import Backoff
from gateway.upstreams import Upstream

GROUP: Final = 500
"""Most messages that are dead-lettered at a time."""
WHERE: Final = "dead-letter place"


class BridgeDeadLetterPublisher:
    """What waits to be dead-lettered."""

    def __init__(
        self,
        route: BridgeRoute,
        place: Upstream,
        publisher: DeadLetterPublisher,
        journal: BridgeJournal,
        done: Callable[[Sequence[BridgeDelivery]], None],
        gone: Callable[[BridgeDelivery], None],
    ) -> None:
        """``done`` is called with what is safe there and recorded, ``gone`` with what the source has taken back."""
        settings = route.settings.dead_letter
        self.place = place
        self.exchange = settings.exchange
        self.own_queue = not settings.exchange and not settings.routing_key
        self.routing_key = f"gateway.dead.{route.name}" if self.own_queue else settings.routing_key
        self._publisher = publisher
        self._route = route
        self._journal = journal
        self._faults = journal.faults
        self._done = done
        self._gone = gone
        self._waiting: deque[BridgeDelivery] = deque()
        self._declared = False
        self._wake = asyncio.Event()
        self._hurry = asyncio.Event()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, item: BridgeDelivery) -> None:
        """Dead-letter it, some time soon."""
        self._waiting.append(item)
        self._wake.set()

    def hurry(self) -> None:
        """The place may be back: do not wait for the end of a pause."""
        self._hurry.set()

    async def run(self) -> None:
        """Dead-letter what there is, for ever."""
        backoff = Backoff(PAUSE_MIN, PAUSE_MAX)
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._waiting:
                trouble = await self._dead_letter(
                    [self._waiting.popleft() for _ in range(min(GROUP, len(self._waiting)))]
                )
                if trouble is None:
                    backoff.reset()
                    self._faults.clear(WHERE)
                    continue
                self._faults.set(WHERE, trouble)
                self._hurry.clear()
                try:
                    async with asyncio.timeout(backoff.next()):
                        await self._hurry.wait()
                except TimeoutError:
                    pass  # the pause is over

    async def _dead_letter(self, items: list[BridgeDelivery]) -> str | None:
        """Dead-letter some; those that the place did not take wait again. What was wrong, None: nothing."""
        items = [item for item in items if not self._lost(item)]
        if not items:
            return None
        try:
            if self.own_queue and not self._declared:
                await self.place.declare_queue(self.routing_key)
                self._declared = True
        except GatewayError as error:
            self._waiting.extendleft(reversed(items))
            return str(error)
        place = DeadLetterDestination(self.place.name, self.exchange, self.routing_key)
        outcomes = await self._publisher.publish(
            place, self._route.name, [self._letter(item) for item in items], kind="bridge"
        )
        dead_lettered: list[BridgeDelivery] = []
        left: list[BridgeDelivery] = []
        trouble: str | None = None
        for item, outcome in zip(items, outcomes, strict=True):
            if outcome is None:
                dead_lettered.append(item)
                continue
            self._declared = self._declared and not isinstance(outcome, Unroutable)
            left.append(item)
            trouble = str(outcome)
        self._waiting.extendleft(reversed(left))
        if dead_lettered:
            await self._journal.record(
                self._journal.dead_lettered(dead_lettered, self.place, self.exchange, self.routing_key)
            )
            self._done(dead_lettered)
        return trouble

    def _lost(self, item: BridgeDelivery) -> bool:
        """The source has taken it back, and delivers it again."""
        if item.delivery.lost:
            self._gone(item)
            return True
        return False

    def _letter(self, item: BridgeDelivery) -> UndeliverableMessage:
        return UndeliverableMessage(
            item.id or b"",
            item.delivery.message,
            item.reason,
            self._route.settings.source.broker,
            self._route.queue,
            item.exchange,
            item.delivery.routing_key,
            item.code,
            self._route.entries(item),
        )
