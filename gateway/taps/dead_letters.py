"""Messages that the ledger cannot hold: a copy goes to the tap's dead-letter destination and is confirmed before the
acknowledgement to the broker.

The others do not wait for it. Where the place does not take it either, it stays unacknowledged, so that its broker
keeps it, the tap says so, and it is tried again; there are never more of them than the tap's prefetch.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final

from gateway.config import TapSettings
from gateway.core.leasing.parts import Parts
from gateway.core.sources.arrivals import Arrival, now_us
from gateway.core.sources.dead_letters import DeadLetterDestination
from gateway.core.sources.taking import DEAD_LETTER_SECONDS
from gateway.errors import EntriesRefused, GatewayError, LedgerUnavailable
from gateway.ledger import LogEntry
from gateway.observing.telemetry import log
from gateway.runtime.backoff import Backoff
from gateway.taps.rows import TAP_KIND, TapOrigins

PAUSE_MIN: Final = 0.5
PAUSE_MAX: Final = 30.0
"""Pause before it is tried again, in seconds; doubled each time."""


def place_of(name: str, settings: TapSettings) -> DeadLetterDestination:
    """The dead-letter place of a tap."""
    routing_key = settings.dead_letter_routing_key
    if not settings.dead_letter_exchange and not routing_key:
        routing_key = f"gateway.dead.tap.{name}"
    return DeadLetterDestination(
        settings.dead_letter_broker or settings.broker, settings.dead_letter_exchange, routing_key
    )


class TapDeadLetterPublisher:
    """The dead-letter place of one tap."""

    def __init__(
        self,
        parts: Parts,
        origins: TapOrigins,
        settings: TapSettings,
        on_dead_lettered: Callable[[Sequence[Arrival]], None],
        on_change: Callable[[], None],
    ) -> None:
        self.place = place_of(origins.name, settings)
        self.waiting = 0
        """How many are not there yet."""
        self.reason = ""
        """Why not; empty: none waits for long."""
        self._parts = parts
        self._origins = origins
        self._own = not settings.dead_letter_exchange and not settings.dead_letter_routing_key
        self._declared = False
        self._on_dead_lettered = on_dead_lettered
        self._on_change = on_change

    async def publish(self, refused: Sequence[tuple[Arrival, str]]) -> None:
        """Publish and record these, for as long as it takes; calls ``on_dead_lettered`` with what is recorded."""
        why = refused[-1][1]
        log("tap.message_refused", logging.ERROR, tap=self._origins.name, count=len(refused), reason=why)
        self.waiting += len(refused)
        left = list(refused)
        backoff = Backoff(PAUSE_MIN, PAUSE_MAX)
        try:
            while left:
                left, trouble = await self._try(left)
                if trouble:
                    self._say(f"the ledger cannot hold {self.waiting} messages ({why}), nor takes {self.place} them: "
                              f"{trouble}")  # fmt: skip
                    await backoff.wait()
        finally:
            self.waiting -= len(left)
            if not self.waiting:
                self._say("")

    async def _try(self, letters: list[tuple[Arrival, str]]) -> tuple[list[tuple[Arrival, str]], str]:
        """Those that are not there yet, and why not."""
        here = [each for each in letters if not each[0].delivery.lost]
        self.waiting -= len(letters) - len(here)
        if not here:
            return [], ""
        if not self._parts.ledger.healthy:  # before there is a copy that nobody knows of
            return here, self._parts.ledger.ready()[1]
        try:
            await self._declare()
        except GatewayError as error:
            return here, str(error)
        outcomes = await self._parts.dead_letters.publish(
            self.place,
            self._origins.name,
            [self._origins.letter(arrival, reason, "not_stored") for arrival, reason in here],
            DEAD_LETTER_SECONDS,
            kind=TAP_KIND,
        )
        at = now_us()
        dead_lettered = [arrival for (arrival, _), error in zip(here, outcomes, strict=True) if error is None]
        await self._record(
            [
                self._origins.dead_lettered(arrival, at, self.place, reason, "not_stored")
                for (arrival, reason), error in zip(here, outcomes, strict=True)
                if error is None
            ]
        )
        self._on_dead_lettered(dead_lettered)
        self.waiting -= len(dead_lettered)
        left = [each for each, error in zip(here, outcomes, strict=True) if error is not None]
        errors = [error for error in outcomes if error is not None]
        if errors:
            self._declared = False
        return left, str(errors[0]) if errors else ""

    async def _declare(self) -> None:
        if self._own and not self._declared:
            await self._parts.find(self.place.broker).declare_queue(self.place.routing_key)
            self._declared = True

    async def _record(self, entries: Sequence[LogEntry]) -> None:
        """The copies are there: from now on it is only a matter of time."""
        backoff = Backoff(PAUSE_MIN, PAUSE_MAX)
        while entries:
            try:
                await self._parts.ledger.record(entries)
                return
            except LedgerUnavailable as error:
                self._say(str(error))
            except EntriesRefused as error:  # their messages are safe where they are
                log("tap.events_refused", logging.ERROR, tap=self._origins.name, reason=str(error))
                return
            await backoff.wait()

    def _say(self, reason: str) -> None:
        if reason != self.reason:
            self.reason = reason[:500]
            self._on_change()
