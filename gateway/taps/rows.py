"""A delivery as a row of the message log, with its event and its row of the inbox: written together, or not at all.

A message is known again by the id that a gateway gave it; else by its publisher's message id, behind the name of the
broker; else not at all. What is known is compared by the digest of its body as well.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from gateway.amqp.message import Message
from gateway.config import TapSettings
from gateway.core.leasing.parts import Parts
from gateway.core.sources.arrivals import Arrival, Origins, now_us, printable, sound
from gateway.core.sources.own_queues import queue_of
from gateway.errors import EntriesRefused, FrameSyntaxError, LedgerUnavailable
from gateway.ledger import EventKind, InboxRow, MessageIds
from gateway.ledger.logs.logged import Spooled
from gateway.notation.logged import to_json
from gateway.observing.telemetry import log
from gateway.upstreams import Delivery

TAP_KIND: Final = "tap"
"""The kind of work that a tap is, and the first word of what is named after one."""


class TapOrigins(Origins):
    """How one tap's deliveries are read and stored."""

    def __init__(self, name: str, settings: TapSettings, broker: str, ids: MessageIds) -> None:
        queue = queue_of(name, settings, TAP_KIND)
        super().__init__(f"{TAP_KIND}:{name}", {TAP_KIND: name, "queue": printable(queue)}, broker, "", ids)
        self.name = name
        self._queue = queue
        self._remember_us = settings.dedupe_seconds * 1_000_000

    def read(self, delivery: Delivery) -> Arrival:
        """Look at a delivery, all of it."""
        arrival = super().read(delivery)
        arrival.properties = to_json(delivery.message)
        return arrival

    def unread(self, delivery: Delivery) -> Arrival:
        """One that could not be looked at."""
        arrival = Arrival(delivery)
        arrival.id = self._ids()
        return arrival

    def row(self, arrival: Arrival, at: int) -> Spooled:
        """The row of the log."""
        delivery = arrival.delivery
        return Spooled(
            message_id=arrival.id,
            tap=self.name,
            at=at,
            broker=self.broker,
            version=self.version,
            queue=self._queue,
            exchange=delivery.exchange,
            routing_key=delivery.routing_key,
            redelivered=arrival.redelivered,
            origin_id=arrival.key,
            properties=arrival.properties,
            body=delivery.message.body,
            sha256=arrival.sha256,
        )

    def _stranger(self, message: Message) -> str:
        try:
            message_id = message.properties.message_id
        except FrameSyntaxError:
            return ""
        return sound(f"{self.broker}/{message_id}") if message_id else ""


class TapBatch:
    """Messages that are spooled in one commit, and the events of those that are in the log already."""

    def __init__(self, origins: TapOrigins, new: Sequence[Arrival], known: Collection[Arrival]) -> None:
        at = now_us()
        self.kept: list[Arrival] = []
        """In the log."""
        self.refused: list[tuple[Arrival, str]] = []
        """What the ledger cannot hold, and why."""
        self._new = list(new)
        self._rows = [origins.row(arrival, at) for arrival in new]
        self._entries = [
            origins.entry(arrival, EventKind.SPOOLED, at, redelivered=arrival.redelivered) for arrival in new
        ]
        self._inbox: list[InboxRow | None] = [origins.inbox(arrival, at) for arrival in new]
        self._dropped = [
            origins.entry(arrival, EventKind.DUPLICATE_DROPPED, at, reason="it is in the log already")
            for arrival in known
        ]

    def drop_lost(self) -> None:
        """Without what its broker has taken back, which it delivers again."""
        self._leave([index for index, arrival in enumerate(self._new) if not arrival.delivery.lost])

    async def write(self, parts: Parts) -> None:
        """Write them; says in ``kept`` and ``refused`` what became of each.

        Raises:
            LedgerUnavailable: what is neither kept nor refused is not in the log: write the same batch again.
        """
        if self._new:
            inbox = [row for row in self._inbox if row is not None]
            try:
                await parts.ledger.log.spool(self._rows, self._entries, inbox)
            except EntriesRefused as error:
                self._sort(len(self._new), error.refused)
            except LedgerUnavailable as error:
                self._sort(error.written, error.refused)
                raise
            else:
                self._sort(len(self._new), {})
        if self._dropped:  # when what they are copies of is there
            dropped, self._dropped = self._dropped, []
            try:
                await parts.ledger.record(dropped)
            except LedgerUnavailable:
                self._dropped = dropped
                raise
            except EntriesRefused as error:  # they are in the log, and so is that
                log("tap.events_refused", logging.ERROR, reason=str(error))

    def _sort(self, written: int, refused: Mapping[int, str]) -> None:
        """So many, from the first on, are done with."""
        for index, arrival in enumerate(self._new[:written]):
            if index in refused:
                self.refused.append((arrival, refused[index]))
            else:
                self.kept.append(arrival)
        self._leave(range(written, len(self._new)))

    def _leave(self, indexes: Sequence[int]) -> None:
        self._new = [self._new[index] for index in indexes]
        self._rows = [self._rows[index] for index in indexes]
        self._entries = [self._entries[index] for index in indexes]
        self._inbox = [self._inbox[index] for index in indexes]
