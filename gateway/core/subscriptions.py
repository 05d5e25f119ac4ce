"""Subscriptions: queues made available to consumers.

The settings of a subscription are those of the configuration file (read-only), or a resource in the ledger. Whether it
is paused is kept in the ledger as well, for both kinds: ``paused`` of the settings says how it begins. What is done
with them is in :mod:`gateway.core.leasing.consuming`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

import msgspec

from gateway.config import SubscriptionSettings, check_subscription
from gateway.core.sources.filters import Filter
from gateway.core.sources.order_keys import OrderKey
from gateway.core.sources.own_queues import OwnQueues, queue_of
from gateway.core.work.resources import ResourceStore, StoredSettings, etag_of
from gateway.errors import (
    ConfigurationError,
    EncodeError,
    GatewayError,
    NoSuchSubscription,
    StateError,
)
from gateway.ledger import Ledger, ResourceRecord
from gateway.observing.telemetry import log
from gateway.runtime.clock import clock
from gateway.runtime.locks import Locks
from gateway.upstreams import Upstream

SUBSCRIPTION_RESOURCE: Final = "subscription"
WISH: Final = "subscription-wish"
CACHE_SECONDS: Final = 5.0
"""How long settings from the ledger are used before they are read again (another process may change them)."""
CACHED_MAX: Final = 10_000
"""How many subscriptions are remembered; when they are more, all are forgotten."""
PAGE: Final = 500


@dataclass(frozen=True, slots=True)
class SubscriptionResource:
    """A subscription and where it is defined."""

    name: str
    settings: SubscriptionSettings
    etag: str
    read_only: bool
    paused: bool = False
    """It takes and hands out nothing until it is resumed."""

    @property
    def ordered(self) -> bool:
        """Its messages are handed out one at a time for each order key."""
        return bool(self.settings.order_key)


class SubscriptionRegistry:
    """The subscriptions of a gateway."""

    def __init__(
        self,
        ledger: Ledger,
        find: Callable[[str], Upstream],
        configured: Mapping[str, SubscriptionSettings],
        own_queues: OwnQueues,
    ) -> None:
        """Raises ConfigurationError for settings of ``configured`` that are wrong."""
        self.on_change: list[Callable[[str], None]] = []
        """Called on the loop with the name of a subscription that was put, deleted, paused or resumed here."""
        self._ledger = ledger
        self._find = find
        self._own_queues = own_queues
        check_all(configured)
        self._store = ResourceStore(ledger, SUBSCRIPTION_RESOURCE, configured)
        self._cache: dict[str, tuple[float, SubscriptionResource]] = {}
        self._forgets = 0
        """How often something was forgotten: what was read before that may be out of date."""
        self._locks = Locks()

    # ---------------------------------------------------------------------------------------------- reading

    async def get(self, name: str) -> SubscriptionResource:
        """A subscription by name. Raises NoSuchSubscription."""
        now = clock.monotonic()
        cached = self._cache.get(name)
        if cached is not None and now - cached[0] < CACHE_SECONDS:
            return cached[1]
        forgets = self._forgets
        subscription = self._configured(name)
        if subscription is None:
            row = await self._store.row(name)
            if row is None:
                self._cache.pop(name, None)
                raise NoSuchSubscription(f"no subscription {name!r}")
            subscription = _of_row(row)
        wish = await self._ledger.get_resource(WISH, name)
        subscription = _with_wish(subscription, wish.spec["paused"] if wish is not None else None)
        if forgets == self._forgets:
            if len(self._cache) >= CACHED_MAX:
                self._cache.clear()
            self._cache[name] = now, subscription
        return subscription

    def forget(self, name: str) -> None:
        """Another process changed it: read it again."""
        self._forgets += 1
        self._cache.pop(name, None)

    async def page(self, cursor: str | None, limit: int) -> tuple[list[SubscriptionResource], str | None]:
        """A page of subscriptions: on the first page those of the configuration file come first."""
        return await self._page(cursor, limit, await self._wishes())

    async def _page(
        self, cursor: str | None, limit: int, wishes: Mapping[str, bool]
    ) -> tuple[list[SubscriptionResource], str | None]:
        resources, following = await self._ledger.list_resources(SUBSCRIPTION_RESOURCE, cursor, limit)
        page = [_of_row(item) for item in resources if item.name not in self._store.configured]
        if cursor is None:
            page[:0] = _read_only(self._store.configured).values()
        return [_with_wish(item, wishes.get(item.name)) for item in page], following

    async def pushed_to(self, endpoint: str) -> tuple[str, ...]:
        """The names of those that are pushed to an endpoint."""
        return tuple(each.name for each in await self.all() if each.settings.push == endpoint)

    async def all(self) -> list[SubscriptionResource]:
        """All of them."""
        wishes = await self._wishes()
        found, cursor = await self._page(None, PAGE, wishes)
        while cursor is not None:
            more, cursor = await self._page(cursor, PAGE, wishes)
            found += more
        return found

    async def queues(self) -> list[tuple[str, str]]:
        """Broker and queue of each."""
        return [(each.settings.broker, queue_of(each.name, each.settings)) for each in await self.all()]

    async def _wishes(self) -> dict[str, bool]:
        return {item.name: item.spec["paused"] async for item in self._ledger.all_resources(WISH)}

    async def declare_queues(self, broker: str) -> None:
        """A broker is up: the own queues of the configuration file's subscriptions are to be there."""
        for name, settings in list(self._store.configured.items()):
            if settings.broker == broker:
                try:
                    await self._own_queues.ensure(name, settings)
                except GatewayError as error:
                    log("subscription.queue_missing", logging.WARNING, subscription=name, reason=str(error))

    # -------------------------------------------------------------------------------------------- changing

    def reconfigure(
        self, configured: Mapping[str, SubscriptionSettings]
    ) -> list[tuple[str, SubscriptionResource | None]]:
        """Other settings in the configuration file, which were checked; what was paused stays so. Returns the names of
        those that are new, gone or not as they were, with what they were before."""
        before = _read_only(self._store.reconfigure(configured))
        after = _read_only(configured)
        changed = [(name, before.get(name)) for name in {**before, **after} if before.get(name) != after.get(name)]
        for name, _ in changed:
            self._own_queues.forget(name)
            self._changed(name)
        return changed

    async def move_queue(self, name: str, before: SubscriptionResource | None) -> None:
        """After :meth:`reconfigure`: have the own queue there and bound, and not bound any more as it was before. That
        of a subscription that is gone stays as it is, as it would if the gateway had been away meanwhile."""
        after = self._store.configured.get(name)
        if after is None:
            if before is not None and before.settings.exchange:
                queue = queue_of(name, before.settings)
                log("subscription.queue_left", logging.WARNING, subscription=name, queue=queue)
            return
        try:
            await self._own_queues.ensure(name, after)
        except GatewayError as error:  # it is tried again whenever the broker comes up
            log("subscription.queue_missing", logging.WARNING, subscription=name, reason=str(error))
            return
        if before is not None:
            await self._own_queues.abandon(name, before.settings, after)

    async def put(
        self, name: str, settings: SubscriptionSettings, if_match: str | None
    ) -> tuple[SubscriptionResource, bool]:
        """Create or replace a subscription; also says whether it is new. The same settings again change nothing
        and need no ``if_match``. Its own queue, where it has one, is there and bound when this returns.

        Raises:
            EncodeError: a setting is wrong; it names the setting.
            ReadOnly: the configuration file defines it.
            NoSuchBroker: its broker, or that of its dead-letter place, is not configured.
            EtagMismatch: see :mod:`gateway.core.work.resources`.
            StateError: it is to be pushed, and consumers have messages of it.
            NotFound, PreconditionFailed, BrokerUnavailable, RemoteError: its own queue cannot be declared and bound.
        """
        check(name, settings)
        self._find(settings.broker)
        if settings.dead_letter_broker:
            self._find(settings.dead_letter_broker)
        self._store.refuse_configured(name)
        self.forget(name)
        try:
            before: SubscriptionResource | None = await self.get(name)
        except NoSuchSubscription:
            before = None
        stored = StoredSettings(before.settings, before.etag) if before is not None else None
        condition = self._store.condition(name, stored, settings, if_match)
        if before is not None and condition is None:
            await self._own_queues.ensure(name, settings)
            return before, False
        assert condition is not None
        if settings.push and (before is None or not before.settings.push):
            out = (await self._ledger.deliveries.backlog(name)).out
            if out:  # what is pushed is taken from whoever had it before, were it a gateway that died
                raise StateError(
                    f"{out} messages of the subscription {name!r} are out with consumers: it can be pushed when they "
                    "are settled, or their leases have ended"
                )
        self._own_queues.forget(name)
        await self._own_queues.ensure(name, settings)  # before it is there, so that nothing is missed once it is
        try:
            _, created = await self._store.put(name, settings, condition)
            if before is None or before.settings.paused != settings.paused:
                await self._ledger.delete_resource(WISH, name, None)  # of before, or of another that had this name
            if before is not None and before.settings != settings:
                await self._own_queues.abandon(name, before.settings, settings)
        finally:  # where the ledger fails they may be stored all the same, and the next call finds nothing to change
            self._changed(name)
        return await self.get(name), created

    async def delete(self, name: str, if_match: str | None) -> None:
        """Delete a subscription. Its leases stay valid until they end by themselves; what the ledger owes it stays
        there, for a subscription of the same name.

        Raises:
            ReadOnly, NoSuchSubscription, EtagMismatch
        """
        self._store.refuse_configured(name)
        self.forget(name)
        before = await self.get(name)
        try:
            found = await self._store.delete(name, if_match)
        finally:  # as in put
            self._changed(name)
        if not found:
            raise NoSuchSubscription(f"no subscription {name!r}")
        await self._own_queues.abandon(name, before.settings)
        try:
            await self._ledger.delete_resource(WISH, name, None)
        except GatewayError as error:
            log("subscription.definition_left", logging.WARNING, subscription=name, reason=str(error))

    async def pause(self, name: str) -> SubscriptionResource:
        """Let it take and hand out nothing until it is resumed, also after a restart. Raises NoSuchSubscription."""
        return await self._wish(name, paused=True)

    async def resume(self, name: str) -> SubscriptionResource:
        """End a pause. Raises NoSuchSubscription."""
        return await self._wish(name, paused=False)

    async def _wish(self, name: str, *, paused: bool) -> SubscriptionResource:
        async with self._locks.of(name):  # else what is asked last could find that nothing is to be done yet
            self.forget(name)
            subscription = await self.get(name)
            if subscription.paused is not paused:
                try:
                    await self._ledger.put_resource(WISH, name, {"paused": paused}, None)
                finally:  # as in put
                    self._changed(name)
                log("subscription.state", subscription=name, state="paused" if paused else "active")
            return replace(subscription, paused=paused)

    def _changed(self, name: str) -> None:
        self.forget(name)
        for call in self.on_change:
            call(name)

    def _configured(self, name: str) -> SubscriptionResource | None:
        settings = self._store.configured.get(name)
        return None if settings is None else SubscriptionResource(name, settings, etag_of(settings), read_only=True)


def check_all(configured: Mapping[str, SubscriptionSettings]) -> None:
    """Whether the settings of the configuration file make sense. Raises ConfigurationError."""
    for name, settings in configured.items():
        try:
            check(name, settings)
        except EncodeError as error:
            raise ConfigurationError(f"subscriptions.{name}.{error}") from None


def _read_only(configured: Mapping[str, SubscriptionSettings]) -> dict[str, SubscriptionResource]:
    return {
        name: SubscriptionResource(name, settings, etag_of(settings), read_only=True)
        for name, settings in configured.items()
    }


def check(name: str, settings: SubscriptionSettings) -> None:
    """Whether the settings make sense.

    Raises:
        EncodeError: they do not; it begins with the name of the setting.
    """
    if (wrong := check_subscription(settings)) is not None:
        raise EncodeError(wrong)
    Filter(settings.filter)
    OrderKey(settings.order_key)


def discards_unmatched(settings: SubscriptionSettings) -> bool:
    """Whether messages that the filter does not want are discarded; if not, they are dead letters."""
    return settings.unmatched == "discard" or (not settings.unmatched and bool(settings.exchange))


def _of_row(row: ResourceRecord) -> SubscriptionResource:
    return SubscriptionResource(row.name, msgspec.convert(row.spec, SubscriptionSettings), row.etag, read_only=False)


def _with_wish(subscription: SubscriptionResource, paused: bool | None) -> SubscriptionResource:
    return replace(subscription, paused=subscription.settings.paused if paused is None else paused)
