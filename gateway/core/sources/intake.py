"""From a broker's queue into the ledger: a consumer, batches, one commit each, then the acknowledgements.

::

    arrived ──read──> wanted ──────────────────> stored (events and inbox in the same commit) ──> acknowledged
                 │       └─ the ledger has it ─────────────────────────────────────────────────> acknowledged
                 └─ not wanted ── discarded, or at the dead-letter place, or dead in the ledger ──> acknowledged

What is acknowledged is in the ledger, which owes it to the subscription's consumer from then on. A kill between commit
and acknowledgement brings the batch again, and :mod:`gateway.core.sources.arrivals` recognizes it. How messages are
taken, and when not, is in :mod:`gateway.core.sources.taking`; there is no room when ``room()`` says so, or when the
ledger holds ``backlog_max`` messages for the subscription.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final

from gateway.amqp.operations import Settlement
from gateway.core.leasing.parts import Parts
from gateway.core.sources.arrivals import Arrival, Arrivals, now_us, printable
from gateway.core.sources.dead_letters import DeadLetterDestination, place_of
from gateway.core.sources.fetching import settle
from gateway.core.sources.taking import DEAD_LETTER_SECONDS, PAUSE_MIN, Taker
from gateway.core.sources.turns import Turns
from gateway.core.subscriptions import SubscriptionResource, discards_unmatched
from gateway.errors import EntriesRefused, LedgerUnavailable
from gateway.ledger import EventKind, InboxRow, LogEntry
from gateway.ledger.pending.owed import BacklogEntry, Owed
from gateway.observing.telemetry import log
from gateway.runtime.clock import clock
from gateway.upstreams import Delivery, Upstream

BACKLOG_EVERY: Final = 2.0
"""How often the ledger is asked for a backlog that is full, in seconds."""


class Intake(Taker):
    """Takes messages for one subscription, from start to stop. All methods belong to the event loop."""

    def __init__(
        self,
        parts: Parts,
        subscription: SubscriptionResource,
        upstream: Upstream,
        *,
        on_stored: Callable[[Sequence[BacklogEntry]], None],
        room: Callable[[], int],
    ) -> None:
        """``on_stored`` is called with the new pending messages, in order, payloads included. ``room`` says how many
        more messages may be taken; when there is room again, call :meth:`wake`.

        Raises:
            EncodeError: a setting is wrong; it names the setting.
        """
        settings = subscription.settings
        self._arrivals = Arrivals(subscription, upstream.name, "", parts.ids)
        super().__init__(parts, subscription.name, settings, upstream, self._arrivals)
        self.subscription = subscription
        self._settings = settings
        self._on_stored = on_stored
        self._room = room
        self._place = place_of(settings)
        self._discards = discards_unmatched(settings)
        self._backlog = 0
        """Most messages that the ledger holds for it."""
        self._backlog_asked = -BACKLOG_EVERY

    async def _room_now(self) -> int:
        """How many more messages may be taken: as the caller says, and as ``backlog_max`` allows."""
        most = self._settings.backlog_max
        now = clock.monotonic()
        if self._backlog_asked < 0 or (self._backlog >= most and now - self._backlog_asked >= BACKLOG_EVERY):
            found = await self._parts.ledger.deliveries.backlog(self.subscription.name)
            self._backlog_asked = max(now, 0.0)
            self._backlog = found.waiting + found.out + found.dead
            if self._backlog >= most:
                self._trouble(f"the ledger holds {self._backlog} messages for it, and backlog_max is {most}")
            else:
                self._clear_trouble()
        return min(self._room(), most - self._backlog)

    async def _store(self, chunk: list[Delivery]) -> None:
        """Store a batch, and acknowledge it."""
        wanted, unwanted = await self._arrivals.sort_many(chunk)
        if unwanted:
            self._batch = [arrival.delivery for arrival in wanted]
            self._set_aside(self._turn_away(unwanted), "unmatched")
        if wanted:
            await self._store_wanted(wanted)

    async def _store_wanted(self, wanted: list[Arrival]) -> None:
        batch, known = await self._keep(wanted, lambda new, _: IntakeBatch(self._arrivals, new))
        for arrival in wanted:
            if arrival.id:
                settle(arrival.delivery, Settlement.ACCEPT)
        owed = batch.owed
        self._count("stored", len(owed))
        self._count("duplicate_dropped", len(known))
        self.stored += len(owed)
        self._backlog += len(owed)
        if owed:
            self._on_stored([_open(row) for row in owed])

    async def _turn_away(self, unwanted: Sequence[tuple[Arrival, str]]) -> None:
        """What the filter does not want."""
        await turn_away(self._parts, self._arrivals, self._place, self._discards, unwanted, patient=True)
        for arrival, _ in unwanted:
            settle(arrival.delivery, Settlement.ACCEPT)
        self._count("filtered", len(unwanted))

    def _count(self, event: str, count: int) -> None:
        if count:
            self._parts.metrics.deliveries.labels(self._upstream.name, event).inc(count)


# ---------------------------------------------------------------------------------- what pull does in the same way


class IntakeBatch:
    """Messages that are stored in one commit."""

    def __init__(self, arrivals: Arrivals, new: Sequence[Arrival], lease_seconds: float = 0.0) -> None:
        """``lease_seconds``: they are handed out already, for so long; 0: they wait."""
        self._arrivals = arrivals
        self._lease_seconds = lease_seconds
        self._at = now_us()
        self.new: list[Arrival] = []
        self.owed: list[Owed] = []
        self._entries: list[LogEntry] = []
        self._inbox: list[InboxRow | None] = []
        for arrival in new:
            self._add(arrival)

    @classmethod
    async def of_many(cls, arrivals: Arrivals, new: Sequence[Arrival], lease_seconds: float) -> IntakeBatch:
        """The same, made in turns: all of them may be large."""
        turns = Turns()
        batch = cls(arrivals, (), lease_seconds)
        for arrival in new:
            batch._add(arrival)
            await turns.over()
        return batch

    def _add(self, arrival: Arrival) -> None:
        arrivals, at, seconds = self._arrivals, self._at, self._lease_seconds
        self.new.append(arrival)
        self.owed.append(arrivals.owed(arrival, at, lease_seconds=seconds))
        self._entries.append(arrivals.stored(arrival, at, leased=seconds > 0))
        self._inbox.append(arrivals.inbox(arrival, at))

    def drop_lost(self) -> None:
        """Without what its broker has taken back, which it delivers again."""
        left = [index for index, arrival in enumerate(self.new) if not arrival.delivery.lost]
        self._keep(left)

    async def write(self, parts: Parts) -> None:
        """Store them. One that the ledger cannot hold costs only itself: its ``id`` is empty afterwards, and it must
        not be acknowledged.

        Raises:
            LedgerUnavailable: nothing was stored, or it cannot be told: write the same batch again.
        """
        if not self.new:
            return
        inbox = [row for row in self._inbox if row is not None]
        try:
            await parts.ledger.deliveries.store(self.owed, self._entries, inbox)
        except EntriesRefused as error:
            for index, why in error.refused.items():
                log(
                    "subscription.message_refused",
                    logging.ERROR,
                    subscription=self.owed[index].subscription,
                    reason=why,
                )
                self.new[index].id = b""
            self._keep([index for index in range(len(self.new)) if index not in error.refused])

    def _keep(self, indexes: Sequence[int]) -> None:
        self.new = [self.new[index] for index in indexes]
        self.owed = [self.owed[index] for index in indexes]
        self._entries = [self._entries[index] for index in indexes]
        self._inbox = [self._inbox[index] for index in indexes]


async def turn_away(
    parts: Parts,
    arrivals: Arrivals,
    place: DeadLetterDestination | None,
    discards: bool,
    unwanted: Sequence[tuple[Arrival, str]],
    *,
    patient: bool = False,
    code: str = "filtered",
) -> None:
    """What becomes of messages that the filter does not want: discarded, at the dead-letter place, or dead in the
    ledger. They are safe, or meant to go, when it returns: acknowledge them then. ``patient``: it waits while the
    ledger is away, and the dead-letter place is not given another copy meanwhile. ``code``: why, for dead letters.

    Raises:
        LedgerUnavailable: it is not recorded; nothing may be acknowledged. Never where it is patient.
    """
    while not parts.ledger.healthy:  # before there is a copy that nobody knows of
        if not patient:
            raise LedgerUnavailable(parts.ledger.ready()[1])
        await clock.sleep(PAUSE_MIN)
    at = now_us()
    dead: list[tuple[Arrival, str]] = []
    entries: list[LogEntry] = []
    if discards:
        entries = [arrivals.entry(arrival, EventKind.FILTERED, at, reason=reason) for arrival, reason in unwanted]
    elif place is None:
        dead = list(unwanted)
    else:
        letters = [arrivals.letter(arrival, reason, code) for arrival, reason in unwanted]
        outcomes = await parts.dead_letters.publish(place, arrivals.name, letters, DEAD_LETTER_SECONDS)
        for (arrival, reason), error in zip(unwanted, outcomes, strict=True):
            if error is None:
                entries.append(arrivals.dead_lettered(arrival, at, place, reason, code))
            else:
                dead.append((arrival, f"{reason}; the dead-letter place did not take it: {error}"))
    owed = [arrivals.owed(arrival, at, dead=reason, code=code) for arrival, reason in dead]
    entries += [
        arrivals.entry(arrival, EventKind.DEAD, at, reason=printable(reason)[:500], **arrivals.died(arrival, code))
        for arrival, reason in dead
    ]
    while True:
        try:
            await parts.ledger.deliveries.store(owed, entries)
            return
        except LedgerUnavailable:
            if not patient:
                raise
        await clock.sleep(PAUSE_MIN)


def _open(row: Owed) -> BacklogEntry:
    """Pending messages, as the ledger would hand them out."""
    return BacklogEntry(
        id=row.id,
        message_id=row.message_id,
        subscription=row.subscription,
        order_key=row.order_key,
        at=row.at,
        due_at=row.at,
        attempt=0,
        lease=0,
        dead=False,
        reason={},
        size=row.size,
        payload=row.payload,
    )
