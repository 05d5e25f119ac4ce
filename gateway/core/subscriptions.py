"""Subscriptions: queues made available to consumers.

The settings of a subscription are those of the configuration file (read-only), or a resource in the ledger. What is
done with them is in :mod:`gateway.core.consuming`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

import msgspec

from gateway.config import SubscriptionSettings
from gateway.errors import EtagMismatch, NoSuchSubscription, ReadOnly
from gateway.ledger import Ledger
from gateway.upstreams import Upstream

RESOURCE: Final = "subscription"
CACHE_SECONDS: Final = 5.0
"""How long settings from the ledger are used before they are read again (another process may change them)."""


@dataclass(frozen=True, slots=True)
class Subscription:
    """A subscription and where it is defined."""

    name: str
    settings: SubscriptionSettings
    etag: str
    read_only: bool


class Subscriptions:
    """The subscriptions of a gateway."""

    def __init__(
        self, ledger: Ledger, find: Callable[[str], Upstream], configured: Mapping[str, SubscriptionSettings]
    ) -> None:
        self._ledger = ledger
        self._find = find
        self._configured = {
            name: Subscription(name, settings, _etag(settings), read_only=True) for name, settings in configured.items()
        }
        self._cache: dict[str, tuple[float, Subscription]] = {}

    async def get(self, name: str) -> Subscription:
        """A subscription by name. Raises NoSuchSubscription."""
        if (configured := self._configured.get(name)) is not None:
            return configured
        now = asyncio.get_running_loop().time()
        cached = self._cache.get(name)
        if cached is not None and now - cached[0] < CACHE_SECONDS:
            return cached[1]
        resource = await self._ledger.get_resource(RESOURCE, name)
        if resource is None:
            self._cache.pop(name, None)
            raise NoSuchSubscription(f"no subscription {name!r}")
        settings = msgspec.convert(resource.spec, SubscriptionSettings)
        subscription = Subscription(name, settings, resource.etag, read_only=False)
        self._cache[name] = now, subscription
        return subscription

    async def put(self, name: str, settings: SubscriptionSettings, if_match: str | None) -> tuple[Subscription, bool]:
        """Create or replace a subscription; also says whether it is new. The same settings again change nothing
        and need no ``if_match``.

        Raises:
            ReadOnly: the configuration file defines it.
            NoSuchBroker: its broker is not configured.
            EtagMismatch: it was changed in between; or, with ``if_match`` None, it exists with other settings.
        """
        self._find(settings.broker)
        self._refuse_configured(name)
        if if_match is None:
            try:
                present = await self.get(name)
            except NoSuchSubscription:
                if_match = ""
            else:
                if present.settings == settings:
                    return present, False
                raise EtagMismatch(f"the subscription {name!r} exists with other settings")
        spec = msgspec.to_builtins(settings)
        self._cache.pop(name, None)
        etag, created = await self._ledger.put_resource(RESOURCE, name, spec, if_match)
        return Subscription(name, settings, etag, read_only=False), created

    async def delete(self, name: str, if_match: str | None) -> None:
        """Delete a subscription. Its leases stay valid until they end by themselves.

        Raises:
            ReadOnly, NoSuchSubscription, EtagMismatch
        """
        self._refuse_configured(name)
        self._cache.pop(name, None)
        if not await self._ledger.delete_resource(RESOURCE, name, if_match):
            raise NoSuchSubscription(f"no subscription {name!r}")

    async def page(self, cursor: str | None, limit: int) -> tuple[list[Subscription], str | None]:
        """A page of subscriptions: on the first page those of the configuration file come first."""
        resources, following = await self._ledger.list_resources(RESOURCE, cursor, limit)
        page = [
            Subscription(item.name, msgspec.convert(item.spec, SubscriptionSettings), item.etag, read_only=False)
            for item in resources
            if item.name not in self._configured
        ]
        if cursor is None:
            page[:0] = self._configured.values()
        return page, following

    def _refuse_configured(self, name: str) -> None:
        if name in self._configured:
            raise ReadOnly(f"the subscription {name!r} is defined by the configuration file")


def _etag(settings: SubscriptionSettings) -> str:
    return sha256(msgspec.json.encode(settings)).hexdigest()[:16]
