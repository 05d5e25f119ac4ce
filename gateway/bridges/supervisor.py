"""All bridges of a gateway. See :mod:`gateway.core.work.supervised` for how they are kept and changed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

from gateway.bridges.bridge import Bridge, check
from gateway.bridges.compare import Comparer, Report
from gateway.bridges.counts import BridgeCounts
from gateway.bridges.states import BridgeStatus, resting
from gateway.config import BridgeSettings
from gateway.core import Gateway
from gateway.core.sources.own_queues import queue_of
from gateway.core.work.supervised import SupervisedResource, Supervisor, WantedState
from gateway.errors import EtagMismatch, NoSuchBridge
from gateway.observing.telemetry import log
from gateway.runtime.ids import ids

BRIDGE_KIND: Final = "bridge"
"""The kind of work that a bridge is."""
IDENTITY: Final = ("gateway", "id")
"""The resource that holds the gateway's own id: the part of ``via`` behind the name."""


class BridgeSupervisor(Supervisor[BridgeSettings, Bridge, BridgeStatus]):
    """The bridges of a gateway."""

    kind = BRIDGE_KIND
    settings_type = BridgeSettings
    no_such = NoSuchBridge

    def __init__(self, gateway: Gateway, configured: Mapping[str, BridgeSettings]) -> None:
        super().__init__(gateway, configured)
        self._counts: dict[str, BridgeCounts] = {}
        self._identity = ""
        self._comparer = Comparer(gateway)

    async def start(self) -> None:
        self._identity = await self._find_identity()
        await super().start()
        for name in await self._gateway.ledger.branches.bridges():
            if name not in self._store.configured and await self._store.row(name) is None:
                reason = "there is no bridge of this name any more; one that gets it settles them"
                log("bridge.branches_left", logging.WARNING, bridge=name, reason=reason)

    async def _find_identity(self) -> str:
        """Eight hexadecimal digits that are this ledger's, made once."""
        ledger = self._gateway.ledger
        kind, name = IDENTITY
        found = await ledger.get_resource(kind, name)
        if found is None:
            try:
                await ledger.put_resource(kind, name, {"id": ids.uuid().hex[:8]}, "")
            except EtagMismatch:
                pass  # another process was quicker
            found = await ledger.get_resource(kind, name)
        assert found is not None
        return str(found.spec["id"])

    def check(self, name: str, settings: BridgeSettings, find: Callable[[str], object] | None = None) -> None:
        check(name, settings, find or self._gateway.broker)

    def build(self, resource: SupervisedResource[BridgeSettings]) -> Bridge:
        name = resource.name
        counts = self._counts.get(name)
        if counts is None:
            counts = self._counts[name] = BridgeCounts(name, self._gateway.metrics)
        return Bridge(resource, self._gateway, counts, f"{name}@{self._identity}", self._finished)

    def at_rest(self, resource: SupervisedResource[BridgeSettings]) -> BridgeStatus:
        return resting(resource)

    async def queues(self) -> list[tuple[str, str]]:
        """Broker and queue that each takes from."""
        found = await self.all_settings()
        return [(each.source.broker, queue_of(name, each.source, BRIDGE_KIND)) for name, each in found.items()]

    def has_moved(self, before: BridgeSettings, after: BridgeSettings) -> bool:
        return before.source != after.source

    def forget_counts(self, name: str) -> None:
        if (counts := self._counts.pop(name, None)) is not None:
            counts.forget()

    async def drain(self, name: str) -> BridgeStatus:
        """Forward until the source's queue is empty, then stop. Raises NoSuchBridge."""
        return await self._wish(name, WantedState.DRAIN)

    async def compare(self, name: str, **options: Any) -> Report:
        """Both sides of a bridge beside each other: see :meth:`gateway.bridges.compare.Comparer.compare`.

        Raises:
            NoSuchBridge: there is none of that name.
        """
        return await self._comparer.compare((await self._find(name)).route, **options)
