"""Intakes of subscriptions that are pulled in order: the one process that owns a subscription takes its messages into
the ledger, in the order of the queue, and pulls at any process hand them out by their keys.

Not more than ``prefetch`` messages wait for a pull that nobody has asked for yet; the queue keeps the rest.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

from gateway.core.leasing.backlogs import Backlogs
from gateway.core.leasing.parts import Parts
from gateway.core.sources.intake import Intake
from gateway.core.subscriptions import SubscriptionRegistry, SubscriptionResource
from gateway.core.work.subscription_work import SubscriptionWork
from gateway.errors import GatewayError, NoSuchBroker
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

    async def start(self) -> None:
        """Take messages from now on."""
        await self.intake.start()

    async def stop(self, within: float) -> None:
        """Take nothing more, and store what has come."""
        self._end()
        await self.intake.stop(within)

    def lost(self) -> None:
        """Another process does it: drop everything at once."""
        self._end()
        self.intake.lost()

    def wake(self) -> None:
        """Look whether there is room now."""
        self.intake.wake()

    def _end(self) -> None:
        """Count no more."""
        if self._counting is not None:
            self._counting.cancel()


class Intakes(SubscriptionWork[OrderedIntake]):
    """The subscriptions with an order key that are pulled."""

    kind = INTAKE_WORK

    def __init__(self, parts: Parts, subscriptions: SubscriptionRegistry, backlogs: Backlogs) -> None:
        super().__init__(subscriptions)
        self._parts = parts
        self._backlogs = backlogs

    def has_work(self, subscription: SubscriptionResource) -> bool:
        """Whether its messages are stored in order."""
        settings = subscription.settings
        return bool(settings.order_key) and not settings.push and not subscription.paused

    def build(self, subscription: SubscriptionResource) -> OrderedIntake:
        """Make the intake of a subscription."""
        return OrderedIntake(self._parts, subscription, self._backlogs)

    def reason(self, name: str) -> str:
        """What stands in the way of its intake here; empty: nothing, or it is not here."""
        intake = self._running.get(name)
        return intake.intake.reason if intake is not None else self._troubles.get(name, "")
