"""Messages that have used up their queue's delivery limit: dead, before their broker drops them.

The broker counts how often a message was given back, and drops it beyond its queue's limit
(:mod:`gateway.upstreams.consuming.delivery_limits`). A message that must not go back any more is a dead letter: a
confirmed copy at the dead-letter place of the subscription that takes from the queue, or, where there is none, dead in
the ledger with its body. Only then it is acknowledged to its broker.

A queue that no subscription takes from (a look into a queue, a bridge) has its dead letters under the name
``queue:BROKER/QUEUE``.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from gateway.amqp.operations import Settlement
from gateway.config import SubscriptionSettings
from gateway.core.leasing.parts import Parts
from gateway.core.publishing.publisher import version_name
from gateway.core.sources.arrivals import Arrivals, printable
from gateway.core.sources.dead_letters import place_of
from gateway.core.sources.fetching import settle
from gateway.core.sources.intake import turn_away
from gateway.core.sources.own_queues import queue_of
from gateway.core.subscriptions import SubscriptionResource
from gateway.errors import GatewayError
from gateway.observing.telemetry import log
from gateway.runtime.clock import clock
from gateway.runtime.tasks import Tasks
from gateway.upstreams import Delivery, Upstream

CHUNK: Final = 200
"""Most messages that are kept in one commit."""
PAUSE: Final = 1.0
"""Seconds until it is tried again where the ledger is away."""


class DeliveryLimitGuard:
    """Keeps messages that have used up their queue's delivery limit."""

    def __init__(self, parts: Parts, subscriptions: Callable[[], Awaitable[list[SubscriptionResource]]]) -> None:
        self._parts = parts
        self._subscriptions = subscriptions
        self._waiting: dict[tuple[Upstream, str], list[Delivery]] = {}
        """Broker and queue -> what is to be kept. All of it is held unacknowledged, within leases and prefetches."""
        self._tasks = Tasks("delivery limit")

    def attend(self, upstream: Upstream) -> None:
        """Keep what comes from this broker."""
        upstream.delivery_limits.on_used_up = lambda delivery: self._add(upstream, delivery)

    async def close(self, within: float) -> None:
        """Wait for what is on its way. What is not safe then goes back to its queue."""
        await self._tasks.close(within)

    def _add(self, upstream: Upstream, delivery: Delivery) -> None:
        key = (upstream, delivery.queue)
        if key in self._waiting:
            self._waiting[key].append(delivery)
            return
        self._waiting[key] = [delivery]
        self._tasks.start(self._run(upstream, delivery.queue))

    async def _run(self, upstream: Upstream, queue: str) -> None:
        waiting = self._waiting[upstream, queue]
        try:
            while waiting:
                chunk = [delivery for delivery in waiting[:CHUNK] if not delivery.lost]
                del waiting[:CHUNK]
                while chunk:
                    try:
                        await self._keep(upstream, queue, chunk)
                        break
                    except Exception as error:  # they stay held, and are tried again: nothing may strand them
                        log("queue.delivery_limit_not_kept", logging.ERROR, broker=upstream.name, queue=queue,
                            messages=len(chunk), reason=str(error))  # fmt: skip
                    await clock.sleep(PAUSE)
                    chunk = [delivery for delivery in chunk if not delivery.lost]
        finally:
            self._waiting.pop((upstream, queue), None)

    async def _keep(self, upstream: Upstream, queue: str, deliveries: Sequence[Delivery]) -> None:
        """Make messages safe, and acknowledge them."""
        if await self._dead_letters_natively(upstream, queue):
            for delivery in deliveries:
                settle(delivery, Settlement.RELEASE)
            return
        owner = await self._owner(upstream.name, queue)
        arrivals = Arrivals(owner, upstream.name, version_name(upstream), self._parts.ids)
        dead = [(arrivals.read(delivery), used_up(delivery)) for delivery in deliveries]
        await turn_away(
            self._parts, arrivals, place_of(owner.settings), False, dead, patient=True, code="delivery_limit"
        )
        for delivery in deliveries:
            settle(delivery, Settlement.ACCEPT)
        self._parts.metrics.deliveries.labels(upstream.name, "delivery_limit").inc(len(deliveries))
        log("queue.delivery_limit", logging.WARNING, broker=upstream.name, queue=queue, messages=len(deliveries),
            subscription=owner.name, reason=dead[0][1])  # fmt: skip

    async def _dead_letters_natively(self, upstream: Upstream, queue: str) -> bool:
        try:
            return await upstream.dead_letters_natively(queue)
        except GatewayError:
            return False  # it cannot be asked: the ledger is the safe place

    async def _owner(self, broker: str, queue: str) -> SubscriptionResource:
        """The first subscription that takes from the queue, or one that stands for the queue."""
        for found in await self._subscriptions():
            if found.settings.broker == broker and queue_of(found.name, found.settings) == queue:
                return found
        name = printable(f"queue:{broker}/{queue}")
        return SubscriptionResource(name, SubscriptionSettings(broker=broker, queue=queue), "", read_only=True)


def used_up(delivery: Delivery) -> str:
    """Return the reason of a message that has used up its queue's delivery limit."""
    return (
        f"delivery limit: it was delivered and given back {delivery.returns} times, and its broker may drop it after "
        f"{delivery.limit}"
    )
