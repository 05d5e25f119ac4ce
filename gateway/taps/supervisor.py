"""All taps of a gateway: see :mod:`gateway.core.work.supervised` for how they are kept, owned, steered and changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from gateway.config import RetentionSettings, TapSettings
from gateway.core import Gateway
from gateway.core.sources.own_queues import OwnQueues, queue_of
from gateway.core.work.supervised import SupervisedResource, Supervisor
from gateway.errors import NoSuchTap
from gateway.taps.counts import TapCounts
from gateway.taps.flow import PROGRESS
from gateway.taps.rows import TAP_KIND
from gateway.taps.states import TapStatus, resting
from gateway.taps.tap import Tap, check


class TapSupervisor(Supervisor[TapSettings, Tap, TapStatus]):
    """The taps of a gateway."""

    kind = TAP_KIND
    settings_type = TapSettings
    no_such = NoSuchTap

    def __init__(
        self, gateway: Gateway, configured: Mapping[str, TapSettings], retention: RetentionSettings | None = None
    ) -> None:
        """``retention``: how long messages are kept; None: as long as it is unless it is set."""
        super().__init__(gateway, configured)
        self._own_queues = OwnQueues(gateway.broker, TAP_KIND)
        self._parts = replace(gateway.parts, own_queues=self._own_queues)
        self._retention = retention if retention is not None else RetentionSettings()
        self._checked: RetentionSettings | None = None
        self._counts: dict[str, TapCounts] = {}

    def reconfigure(self, configured: Mapping[str, TapSettings], retention: RetentionSettings | None = None) -> None:
        """See :meth:`Supervisor.reconfigure`. ``retention`` None: as it was."""
        if retention is not None:
            self._retention = retention
        super().reconfigure(configured)
        self._own_queues.forget_all()

    async def close(self, within: float) -> None:
        await super().close(within)
        await self._own_queues.close()

    def check(self, name: str, settings: TapSettings, find: Callable[[str], object] | None = None) -> None:
        check(settings, find or self._gateway.broker, self._checked or self._retention)

    def check_all(
        self,
        configured: Mapping[str, TapSettings],
        find: Callable[[str], object] | None = None,
        retention: RetentionSettings | None = None,
    ) -> None:
        """See :meth:`Supervisor.check_all`. ``retention``: how long messages would be kept; None: as they are."""
        self._checked = retention
        try:
            super().check_all(configured, find)
        finally:
            self._checked = None

    def build(self, resource: SupervisedResource[TapSettings]) -> Tap:
        name = resource.name
        counts = self._counts.get(name)
        if counts is None:
            counts = self._counts[name] = TapCounts(name, self._gateway.metrics)
        return Tap(
            resource,
            self._gateway,
            self._parts,
            counts,
            log_octets=lambda: self._retention.log_octets // 2,
            on_finish=self._finished,
        )

    def at_rest(self, resource: SupervisedResource[TapSettings]) -> TapStatus:
        return resting(resource, queue_of(resource.name, resource.settings, TAP_KIND))

    async def queues(self) -> list[tuple[str, str]]:
        """Broker and queue that each takes from."""
        found = await self.all_settings()
        return [(each.broker, queue_of(name, each, TAP_KIND)) for name, each in found.items()]

    def has_moved(self, before: TapSettings, after: TapSettings) -> bool:
        return _source(before) != _source(after)

    def forget_counts(self, name: str) -> None:
        if (counts := self._counts.pop(name, None)) is not None:
            counts.forget()

    async def put(self, name: str, settings: TapSettings, if_match: str | None) -> tuple[TapStatus, bool]:
        """See :meth:`Supervisor.put`. Its own queue, where it has one, is there and bound when this returns: nothing is
        missed from then on.

        Raises:
            NotFound, PreconditionFailed, BrokerUnavailable, RemoteError: its own queue cannot be declared and bound.
        """
        if settings.exchange:
            self._store.refuse_configured(name)
            self.check(name, settings)
            self._own_queues.forget(name)
            await self._own_queues.ensure(name, settings)
        return await super().put(name, settings, if_match)

    async def delete(self, name: str, if_match: str | None) -> None:
        """See :meth:`Supervisor.delete`. What it has spooled stays in the log."""
        await super().delete(name, if_match)
        await self._gateway.ledger.delete_resource(PROGRESS, name, None)

    async def start_over(self, name: str) -> None:
        """See :meth:`Supervisor.start_over`."""
        await self._gateway.ledger.delete_resource(PROGRESS, name, None)


def _source(settings: TapSettings) -> object:
    return settings.broker, settings.queue, settings.exchange, settings.binding_key, settings.arguments
