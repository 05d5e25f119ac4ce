"""What a bridge writes into the ledger: one event for each message, and the key that recognizes its redelivery.

When the ledger is away the bridge waits: what is published stays unacknowledged, nothing more is published, and it is
tried again with growing pauses.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final, TypeVar

from gateway.bridges.faults import Faults
from gateway.bridges.items import BridgeDelivery
from gateway.config import BridgeSettings
from gateway.core.leasing.consuming import printable
from gateway.core.publishing.publisher import headers_of, summary, version_name
from gateway.core.sources.dead_letters import died
from gateway.core.sources.deduplicator import IN_DOUBT
from gateway.errors import EntriesRefused, LedgerUnavailable
from gateway.ledger import EventKind, InboxRow, Ledger, LogEntry, NewMessage, Seen
from gateway.observing.telemetry import log
from gateway.runtime.backoff import Backoff
from gateway.runtime.clock import clock
from gateway.upstreams import Upstream

PAUSE_MIN: Final = 0.5
PAUSE_MAX: Final = 30.0
"""Pause before anything is tried again, in seconds; doubled each time."""
DETAILS_MAX: Final = 1_000
"""How many details are kept for the next messages of the same routing key."""
WHERE: Final = "ledger"

R = TypeVar("R")


class BridgeJournal:
    """The ledger, as one bridge sees it."""

    def __init__(
        self, bridge: str, settings: BridgeSettings, ledger: Ledger, source: Upstream, target: Upstream, faults: Faults
    ) -> None:
        self.bridge = bridge
        self.scope = json.dumps(
            [
                bridge, settings.source.broker, settings.source.queue or settings.source.exchange,
                settings.target.broker, settings.target.exchange, settings.target.routing_key,
            ],
        )  # fmt: skip
        """Whose inbox it is: a bridge that is given another source or target has forwarded nothing of it yet."""
        self._ledger = ledger
        self._source = source
        self.target = target
        self.faults = faults
        self._exchange = printable(settings.target.exchange)
        self._remember_us = settings.dedupe_seconds * 1_000_000
        self._details: dict[str, dict[str, Any]] = {}
        self._stuck = 0

    # ------------------------------------------------------------------------------------------- the ledger

    @property
    def writable(self) -> bool:
        """Something can be recorded now; where not, the fault is set."""
        if self._stuck:
            return False
        ready, reason = self._ledger.takes()
        if ready:
            self.faults.clear(WHERE)
        else:
            self.faults.set(WHERE, reason)
        return ready

    async def record(self, entries: Sequence[LogEntry], inbox: Sequence[InboxRow] = ()) -> None:
        """Write; when it returns, it is durable. Tries for as long as it takes."""
        if not entries and not inbox:
            return
        try:
            await self.patiently(lambda: self._ledger.record(entries, inbox))
        except EntriesRefused as error:
            self.refused(error)

    async def seen(self, keys: Sequence[str]) -> dict[str, Seen]:
        """What the inbox knows of these origin ids. Tries for as long as it takes."""
        backoff = Backoff(PAUSE_MIN, PAUSE_MAX)
        while True:
            try:
                return await self._ledger.seen(self.scope, keys)
            except LedgerUnavailable as error:
                self.faults.set(WHERE, str(error))
            await self._wait(backoff.next())

    async def patiently(self, write: Callable[[], Awaitable[R]]) -> R:
        """What the ledger says to a write; tries for as long as it takes.

        Raises:
            EntriesRefused: some events cannot be stored.
        """
        try:
            return await write()
        except LedgerUnavailable as error:
            return await self._again(write, error)

    async def _again(self, write: Callable[[], Awaitable[R]], error: LedgerUnavailable) -> R:
        self._stuck += 1
        backoff = Backoff(PAUSE_MIN, PAUSE_MAX)
        try:
            while True:
                self.faults.set(WHERE, str(error))
                await self._wait(backoff.next())
                try:
                    found = await write()
                    break
                except LedgerUnavailable as again:
                    error = again
        finally:
            self._stuck -= 1
        if not self._stuck:
            self.faults.clear(WHERE)
        return found

    async def _wait(self, pause: float) -> None:
        """Wait this many seconds, or until the ledger has found out that it can be written again."""
        while pause > 0:
            await clock.sleep(min(pause, PAUSE_MIN))
            pause -= PAUSE_MIN
            if self._ledger.healthy:
                break

    def refused(self, error: EntriesRefused) -> None:
        """Some events cannot be stored. Their messages are safe where they are, so the bridge goes on."""
        log("bridge.events_refused", logging.ERROR, bridge=self.bridge, reason=str(error))

    # --------------------------------------------------------------------------------------------- entries

    def forwarded(self, items: Iterable[BridgeDelivery]) -> tuple[list[LogEntry], list[InboxRow]]:
        """The target has them."""
        at = clock.now_ns() // 1000
        broker, version = self.target.name, version_name(self.target)
        source, spoken = self._source.name, version_name(self._source)
        expires_at = at + self._remember_us
        entries, inbox = [], []
        for item in items:
            message_id = item.id
            assert message_id is not None
            routing_key = item.routing_key
            detail = self._details.get(routing_key)
            if detail is None:
                detail = self._detail(routing_key)
            if item.resent:
                detail = {**detail, "resent": True}
            entries.append(
                LogEntry(
                    message_id, EventKind.FORWARDED, at, broker, version, detail, self._message(item, source, spoken)
                )
            )
            if item.losses:
                lost = [{"name": loss.name, "field": printable(loss.field)} for loss in item.losses]
                entries.append(
                    LogEntry(
                        message_id, EventKind.REDUCED, at, broker, version, {"bridge": self.bridge, "losses": lost}
                    )
                )
            if item.key and self._remember_us:
                inbox.append(InboxRow(self.scope, item.key, item.sha256, message_id, expires_at))
        return entries, inbox

    def in_doubt(self, scope: str, keys: Iterable[str], id: bytes) -> list[InboxRow]:
        """What the inbox says of origin ids of which some may be at the target; ``id`` is that of their branch."""
        expires_at = clock.now_ns() // 1000 + self._remember_us
        return [InboxRow(scope, key, IN_DOUBT, id, expires_at) for key in keys]

    def dropped(self, items: Iterable[BridgeDelivery], kind: EventKind) -> list[LogEntry]:
        """They are not forwarded, and taken off the source."""
        at = clock.now_ns() // 1000
        source, spoken = self._source.name, version_name(self._source)
        return [
            LogEntry(
                item.id or b"",
                kind,
                at,
                source,
                spoken,
                {"bridge": self.bridge, "reason": printable(item.reason)[:500]},
                self._message(item, source, spoken),
            )
            for item in items
        ]

    def dead_lettered(
        self, items: Iterable[BridgeDelivery], place: Upstream, exchange: str, routing_key: str
    ) -> list[LogEntry]:
        """The dead-letter place has them."""
        at = clock.now_ns() // 1000
        version = version_name(place)
        source, spoken = self._source.name, version_name(self._source)
        return [
            LogEntry(
                item.id or b"",
                EventKind.DEAD_LETTERED,
                at,
                place.name,
                version,
                {
                    "bridge": self.bridge,
                    "reason": printable(item.reason)[:500],
                    "exchange": printable(exchange),
                    "routing_key": printable(routing_key),
                    **died(item.code, source, item.delivery.queue, item.exchange, item.delivery.routing_key),
                },
                self._message(item, source, spoken),
            )
            for item in items
        ]

    def _message(self, item: BridgeDelivery, broker: str, version: str) -> NewMessage:
        delivery = item.delivery
        return NewMessage(
            broker=broker,
            version=version,
            exchange=item.exchange,
            routing_key=delivery.routing_key,
            size=item.size,
            sha256=item.sha256,
            origin="bridge",
            properties=summary(delivery.message),
            headers=headers_of(delivery.message),
        )

    def _detail(self, routing_key: str) -> dict[str, Any]:
        if len(self._details) >= DETAILS_MAX:
            self._details.clear()
        detail = self._details[routing_key] = {
            "bridge": self.bridge,
            "target": self.target.name,
            "exchange": self._exchange,
            "routing_key": printable(routing_key),
        }
        return detail
