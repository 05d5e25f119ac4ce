"""What becomes of a message after an attempt, and in which order.

::

    delivered    (reply published) ──> recorded ──────────────────────────────────> acknowledged
    tried again  stored with the time of the next attempt ────────────────────────> acknowledged
    given up     copied to the dead-letter place, confirmed ──> recorded ─────────> acknowledged
                 └ there is none: dead in the ledger ─────────────────────────────> acknowledged
                 └ it does not take it: stored, to be brought there later ────────> acknowledged

What the ledger held already is settled in one commit with its event instead, under the lease of the claim: where
somebody else settled it meanwhile (purged it, say), nothing happens.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, Protocol

from gateway.amqp.operations import Settlement
from gateway.core.leasing.parts import Parts
from gateway.core.sources.arrivals import Arrival, Arrivals, now_us
from gateway.core.sources.dead_letters import UndeliverableMessage, place_of
from gateway.core.sources.deduplicator import Deduplicator
from gateway.core.sources.own_queues import queue_of
from gateway.core.subscriptions import SubscriptionResource
from gateway.errors import LedgerUnavailable
from gateway.ledger import EventKind, LogEntry, id_text
from gateway.ledger.pending.owed import BacklogEntry, Ending
from gateway.observing.telemetry import log
from gateway.runtime.clock import clock
from gateway.tracing import trace_of
from gateway.webhooks.attempts.items import PushDelivery
from gateway.webhooks.attempts.journal import PushJournal
from gateway.webhooks.attempts.notes import Notes, ended, reason_of, short
from gateway.webhooks.attempts.replies import Replies
from gateway.webhooks.attempts.sender import SendOutcome
from gateway.webhooks.backlog import EndpointBacklog
from gateway.webhooks.counts import PushCounts

DEAD_LETTER_PAUSE: Final = 30.0
"""After this many seconds a dead-letter destination that did not take a message is tried again."""
GIVEN_UP: Final = "given_up"
"""In a row's reason: there are no attempts any more, but its dead-letter place has it not yet."""
REFUSED_PAUSE: Final = 30.0
"""So long a message that the ledger cannot hold stays out before it goes back, in seconds."""
ASK_PAUSE: Final = 0.5
"""After this many seconds a request to a ledger that is away is repeated."""


class PushRecorders(NamedTuple):
    """Where the outcomes of all pushed subscriptions of a process go."""

    journal: PushJournal
    """To the ledger."""
    replies: Replies
    """To the brokers, as replies."""
    counts: PushCounts
    """To the metrics."""


class MessageHolder(Protocol):
    """The pushed subscription that holds the messages."""

    def gone(self, arrival: Arrival, settlement: Settlement) -> None:
        """Tell the broker what is to become of what it holds."""

    def settled(self) -> None:
        """The ledger's row of a message is no longer in the way of others."""


class PushOutcomes:
    """The messages of one subscription after an attempt. When a method returns, what follows is safe."""

    def __init__(
        self,
        subscription: SubscriptionResource,
        parts: Parts,
        recorders: PushRecorders,
        arrivals: Arrivals,
        deduplicator: Deduplicator[Arrival],
        backlog: EndpointBacklog,
        holder: MessageHolder,
    ) -> None:
        self.last_error = ""
        """Why the last attempt failed."""
        self.last_error_at: int | None = None
        settings = subscription.settings
        self._subscription = subscription.name
        self._settings = settings
        self._parts = parts
        self._journal, self._replies, self._counts = recorders
        self._arrivals = arrivals
        self._deduplicator = deduplicator
        self._notes = Notes(arrivals, settings.push)
        self._backlog = backlog
        self._place = place_of(settings)
        self._keeping: set[bytes] = set()
        """Ids of rows that are being stored."""
        self._gone = holder.gone
        self._settled = holder.settled

    async def delivered(self, item: PushDelivery, outcome: SendOutcome, *, reply: bool) -> None:
        """The endpoint took it. ``reply``: what it answered may be a reply."""
        detail = self._notes.detail(item, outcome)
        at = now_us()
        entries: list[LogEntry] = []
        if reply:
            told = await self._replies.send(self._parts.find(self._settings.broker), item, outcome)
            if told is not None:
                kind, more = told
                if kind is None:
                    detail["reply"] = more
                else:
                    entries.append(self._notes.entry(item, kind, at, {**detail, **more}))
                    self._counts.message(self._settings.push, "replied")
        entries = [*entries, *self._notes.entries(item, EventKind.ACKNOWLEDGED, at, detail)]
        if item.arrival is not None and item.arrival.first:
            entries.sort(key=lambda entry: entry.kind is not EventKind.RECEIVED)
        self._counts.message(self._settings.push, "delivered")
        await self._done(item, entries)

    async def _done(self, item: PushDelivery, entries: Sequence[LogEntry]) -> None:
        """Nothing is pending any more."""
        if item.arrival is not None:
            await self._journal.record(entries)
            self._gone(item.arrival, Settlement.ACCEPT)
        elif await self._journal.settle(ended(item, Ending.DONE, *entries)):
            self._backlog.removed()
            self._settled()

    async def again(self, item: PushDelivery, outcome: SendOutcome | None, why: str, wait: float, **more: Any) -> None:
        """There will be another attempt, ``wait`` seconds from now."""
        at = now_us()
        detail = self._notes.detail(item, outcome, reason=short(why), next_in=round(wait, 3))
        entry = self._notes.entry(item, EventKind.ATTEMPT_FAILED, at, detail)
        reason = reason_of(item, why, at, **more)
        if item.arrival is None:
            if await self._journal.settle(
                ended(item, Ending.RETRY, entry, due_in=wait, attempt=item.attempt, reason=reason)
            ):
                self._backlog.expect(wait)
        else:
            kept = self._notes.entries(
                item, EventKind.STORED, at, {"subscription": self._subscription, "queue": self._arrivals.queue}
            )
            await self._keep(item, item.arrival, at, [*kept, entry], wait, reason)
        self._counts.message(self._settings.push, "retried")

    async def _keep(
        self,
        item: PushDelivery,
        arrival: Arrival,
        at: int,
        entries: Sequence[LogEntry],
        wait: float,
        reason: dict[str, Any],
        *,
        dead: bool = False,
    ) -> None:
        """The ledger holds from now on what the broker held."""
        if not arrival.first and (item.id in self._keeping or await self._is_owed(item) or item.id in self._keeping):
            item.id = self._parts.ids()  # another copy of the same message, sent twice or replayed
        self._keeping.add(item.id)
        try:
            await self._keep_as(item, arrival, at, entries, wait, reason, dead=dead)
        finally:
            self._keeping.discard(item.id)

    async def _keep_as(
        self,
        item: PushDelivery,
        arrival: Arrival,
        at: int,
        entries: Sequence[LogEntry],
        wait: float,
        reason: dict[str, Any],
        *,
        dead: bool,
    ) -> None:
        owed = self._notes.owed(item, arrival, at, wait, reason, dead=dead)
        inbox = self._arrivals.inbox(arrival, at)
        self._deduplicator.landed(arrival)  # before its row is written, if its channel has gone
        if await self._journal.store(owed, entries, [inbox] if inbox is not None else []):
            self._backlog.added()
            self._gone(arrival, Settlement.ACCEPT)
            if not dead:
                self._backlog.expect(wait)
        else:
            await clock.sleep(REFUSED_PAUSE)
            self._gone(arrival, Settlement.RELEASE)

    async def _is_owed(self, item: PushDelivery) -> bool:
        """Whether there is a row of this id already."""
        while True:
            try:
                return await self._parts.ledger.deliveries.get(item.id) is not None
            except LedgerUnavailable:
                await clock.sleep(ASK_PAUSE)

    async def give_up(
        self, item: PushDelivery, outcome: SendOutcome | None, why: str, code: str, *, given_up: bool = False
    ) -> None:
        """There is no attempt any more: the dead-letter place gets it, or the ledger keeps it. ``code``: why, in one of
        :data:`gateway.fidelity.deaths.CODES`."""
        at = now_us()
        place = self._place
        if place is not None:
            letter = UndeliverableMessage(
                item.message_id,
                item.message,
                why,
                self._settings.broker,
                queue_of(self._subscription, self._settings),
                item.exchange,
                item.routing_key,
                code,
            )
            (error,) = await self._parts.dead_letters.publish(place, self._subscription, [letter])
            if error is None:
                self._counts.message(self._settings.push, "dead_lettered")
                log(
                    "push.dead_lettered",
                    logging.WARNING,
                    subscription=self._subscription,
                    message_id=id_text(item.message_id),
                    reason=why[:500],
                    trace_id=trace_of(item.message),
                )
                entries = self._notes.dead_lettered(item, at, why, place, code)
                if outcome is not None:
                    failed = self._notes.detail(item, outcome, reason=short(why))
                    entries.insert(len(entries) - 1, self._notes.entry(item, EventKind.ATTEMPT_FAILED, at, failed))
                await self._done(item, entries)
                return
            self.failed(f"the dead-letter place {place} does not take it: {error}")
            if given_up:  # it was told before
                if await self._journal.settle(
                    ended(item, Ending.RETRY, due_in=DEAD_LETTER_PAUSE, attempt=item.attempt, reason=item.reason)
                ):
                    self._backlog.expect(DEAD_LETTER_PAUSE)
            else:
                await self.again(item, outcome, why, DEAD_LETTER_PAUSE, **{GIVEN_UP: True, "code": code})
            return
        died = self._notes.died(item, code)
        detail = self._notes.detail(item, outcome, reason=short(why), **died)
        reason = reason_of(item, why, at, **died)
        self._counts.message(self._settings.push, "dead")
        log(
            "push.dead", logging.WARNING,
            subscription=self._subscription, message_id=id_text(item.message_id), reason=why[:500],
            trace_id=trace_of(item.message),
        )  # fmt: skip
        entries = self._notes.entries(item, EventKind.DEAD, at, detail)
        if item.arrival is not None:
            await self._keep(item, item.arrival, at, entries, 0.0, reason, dead=True)
        else:
            await self._journal.settle(ended(item, Ending.DEAD, *entries, reason=reason))
            self._settled()

    async def damaged(self, row: BacklogEntry, why: str) -> None:
        """A row whose body cannot be read: it stays, dead, for another process that can."""
        item = PushDelivery()
        item.arrival, item.id, item.message_id, item.attempt = None, row.id, row.message_id, row.attempt
        item.lease, item.redelivered, item.reason = row.lease, False, row.reason
        at = now_us()
        entry = self._notes.entry(
            item, EventKind.DEAD, at, self._notes.detail(item, None, reason=short(why), code="damaged")
        )
        await self._journal.settle(ended(item, Ending.DEAD, entry, reason=reason_of(item, why, at, code="damaged")))

    def failed(self, why: str) -> None:
        """For the status."""
        self.last_error = why[:500]
        self.last_error_at = now_us()
