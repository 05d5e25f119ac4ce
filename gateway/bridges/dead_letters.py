"""The dead-letter place of a bridge: what cannot be forwarded goes there, with the reason, and is confirmed.

The copy is the message as it came: headers that brokers act upon stay in the reserved header, and so do an
``expiration``, for dead letters do not expire, and a ``user_id`` that is not the place's login. The reserved header's
``reason`` and ``code`` say why it is there, ``at`` since when, ``bridge`` which bridge put it there, and ``broker``,
``queue``, ``exchange`` and ``routing_key`` where it came from, so that it can be driven back.

A message that is too large for its place with that reason goes without it; the ledger has it all the same.

A place that takes nothing is a fault of the bridge: what waits for it stays at the source, and it is tried again with
growing pauses. Other messages go on, within the prefetch.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from gateway.bridges.faults import Faults
from gateway.bridges.items import BridgeDelivery
from gateway.bridges.journal import PAUSE_MAX, PAUSE_MIN, BridgeJournal
from gateway.bridges.routes import BridgeRoute
from gateway.config import BridgePlace
from gateway.core.arrivals import printable
from gateway.core.dead_letters import dead_letter_copy, without_deaths
from gateway.errors import EncodeError, GatewayError, Unroutable
from gateway.fidelity.deaths import written
from gateway.message import Message
from gateway.runtime.backoff import Backoff
from gateway.runtime.clock import clock
from gateway.upstreams import Upstream

GROUP: Final = 500
"""Most messages that are dead-lettered at a time."""
CONFIRM_TIMEOUT: Final = 30.0
REASON_MAX: Final = 200
"""Longest reason in a message, in characters; the ledger has more of it."""
WHERE: Final = "dead-letter place"


class BridgeDeadLetterPublisher:
    """What waits to be dead-lettered."""

    def __init__(
        self,
        route: BridgeRoute,
        settings: BridgePlace,
        place: Upstream,
        journal: BridgeJournal,
        faults: Faults,
        done: Callable[[Sequence[BridgeDelivery]], None],
        gone: Callable[[BridgeDelivery], None],
    ) -> None:
        """``done`` is called with what is safe there and recorded, ``gone`` with what the source has taken back."""
        self.place = place
        self.exchange = settings.exchange
        self.own_queue = not settings.exchange and not settings.routing_key
        self.routing_key = f"gateway.dead.{route.name}" if self.own_queue else settings.routing_key
        self._route = route
        self._journal = journal
        self._faults = faults
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
        futures = [
            self.place.publish_nowait(
                self.exchange, self.routing_key, self._copy(item), timeout=CONFIRM_TIMEOUT, order=self._route.name
            )
            for item in items
        ]
        dead_lettered, left, trouble = [], [], None
        for item, future in zip(items, futures, strict=True):
            try:
                receipt = await future
                if not receipt.routed:
                    self._declared = False
                    raise Unroutable(f"no queue takes {self.routing_key!r} at {self.exchange!r}: {receipt.reply_text}")
            except GatewayError as error:
                item.misfits += isinstance(error, EncodeError)
                left.append(item)
                trouble = str(error)
            else:
                dead_lettered.append(item)
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

    def _copy(self, item: BridgeDelivery) -> Message:
        entries = {
            **self._route.entries(item),
            "reason": printable(item.reason[:REASON_MAX]),
            "code": item.code,
            "at": written(clock.now()),
            "bridge": self._route.name,
            "broker": self._route.settings.source.broker,
            "queue": printable(self._route.queue),
            "exchange": printable(item.exchange),
            "routing_key": printable(item.delivery.routing_key),
        }
        original = item.delivery.message
        if not item.misfits:
            return dead_letter_copy(original, entries, self.place.url.user)
        return original if item.misfits == 1 else without_deaths(original)
