"""Intakes of subscriptions that are pulled in order: the one process that owns a subscription takes its messages into
the ledger, in the order of the queue, and pulls at any process hand them out by their keys.

Not more than ``prefetch`` messages wait for a pull that nobody has asked for yet; the queue keeps the rest.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Sequence
from typing import Final

from gateway.core.leasing.backlogs import Backlogs
from gateway.core.leasing.parts import Parts
from gateway.core.sources.intake import Intake
from gateway.core.subscriptions import SubscriptionRegistry, SubscriptionResource
from gateway.errors import GatewayError, NoSuchBroker, NoSuchSubscription
from gateway.ledger.pending.owed import BacklogEntry
from gateway.observing.telemetry import log
from gateway.runtime.clock import clock

INTAKE_WORK: Final = "intake"
"""The kind of work."""
COUNT_EVERY: Final = 0.5
"""How often the ledger is asked at most how many messages wait, in seconds."""


class OrderedIntake:
    """The intake of one subscription, and how many messages wait in the ledger."""

    def __init__(self, parts: Parts, subscription: SubscriptionResource, backlogs: Backlogs) -> None:
        self.subscription = subscription
        self._parts = parts
        self._backlog = backlogs[subscription.name]
        self._backlogs = backlogs
        self._waiting: int | None = None
        """At most so many; None: not counted yet."""
        self._counting: asyncio.Task[None] | None = None
        self._upstream = parts.find(subscription.settings.broker)
        self.intake = Intake(
            parts,
            subscription,
            self._upstream,
            on_stored=self._stored,
            room=self._room,
        )

    def _stored(self, deliveries: Sequence[BacklogEntry]) -> None:
        self._waiting = (self._waiting or 0) + len(deliveries)
        self._backlogs[self.subscription.name].news()

    def _room(self) -> int:
        room = self.subscription.settings.prefetch - self._waiting if self._waiting is not None else 0
        if room <= 0 and self._counting is None:
            self._counting = asyncio.get_running_loop().create_task(self._count(), name="waiting")
        return room

    async def _count(self) -> None:
        """Ask how many messages wait; some have been pulled, here or elsewhere."""
        try:
            if self._waiting is not None:
                await clock.sleep(COUNT_EVERY)
            self._waiting = (await self._parts.ledger.deliveries.backlog(self.subscription.name)).waiting
            self.intake.wake()
        except GatewayError as error:
            log("subscription.not_counted", logging.DEBUG, subscription=self.subscription.name, reason=str(error))
            await clock.sleep(COUNT_EVERY)
        finally:
            self._counting = None

    @property
    def stale(self) -> bool:
        """Its broker is another one now."""
        try:
            return self._parts.find(self._upstream.name) is not self._upstream
        except NoSuchBroker:
            return True

    def end(self) -> None:
        """Count no more."""
        if self._counting is not None:
            self._counting.cancel()


class Intakes:
    """The worker for work of the kind ``intake``."""

    def __init__(self, parts: Parts, subscriptions: SubscriptionRegistry, backlogs: Backlogs) -> None:
        self._parts = parts
        self._subscriptions = subscriptions
        self._backlogs = backlogs
        self._running: dict[str, OrderedIntake] = {}
        self._granted: set[str] = set()

    async def names(self) -> Collection[str]:
        """The subscriptions with an order key that are pulled."""
        return [item.name for item in await self._subscriptions.all() if _is_ours(item)]

    async def start(self, name: str) -> None:
        """Take its messages from now on."""
        self._granted.add(name)
        await self._start(name)

    async def _start(self, name: str) -> None:
        self._subscriptions.forget(name)  # another process may have changed it
        try:
            subscription = await self._subscriptions.get(name)
        except NoSuchSubscription:
            return
        if _is_ours(subscription) and name in self._granted and name not in self._running:
            ordered = self._running[name] = OrderedIntake(self._parts, subscription, self._backlogs)
            await ordered.intake.start()

    async def stop(self, name: str, within: float) -> None:
        """Take nothing more, and store what has come."""
        self._granted.discard(name)
        await self._stop(name, within)

    async def _stop(self, name: str, within: float) -> None:
        ordered = self._running.pop(name, None)
        if ordered is not None:
            ordered.end()
            await ordered.intake.stop(within)

    def lost(self, name: str) -> None:
        """Another process does it."""
        self._granted.discard(name)
        ordered = self._running.pop(name, None)
        if ordered is not None:
            ordered.end()
            ordered.intake.lost()

    async def refresh(self, name: str) -> None:
        """Its settings changed."""
        ordered = self._running.get(name)
        if ordered is not None:
            self._subscriptions.forget(name)
            try:
                subscription = await self._subscriptions.get(name)
            except NoSuchSubscription:
                return  # it is not among the names any more
            if subscription.settings == ordered.subscription.settings and not ordered.stale:
                return
            await self._stop(name, 5.0)
        await self._start(name)

    def reason(self, name: str) -> str:
        """What stands in the way of its intake here; empty: nothing, or it is not here."""
        ordered = self._running.get(name)
        return ordered.intake.reason if ordered is not None else ""


def _is_ours(subscription: SubscriptionResource) -> bool:
    settings = subscription.settings
    return bool(settings.order_key) and not settings.push and not subscription.paused
