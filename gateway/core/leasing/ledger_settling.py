"""Leases that the ledger holds, and how they end.

A lease is a number and a time in the ledger's row. It survives the process, and any process with the same key ends it:
``acknowledge`` removes the row, ``release`` makes it due again, with or without a delay, ``extend`` moves its end, and
one that runs out releases it. A settlement takes effect only under the lease that its ack id names, in one commit with
its event.

What is rejected, or has used up ``max_deliveries``, goes to the dead-letter place with the reason, confirmed, and then
from the ledger; where there is no such place, or it takes nothing, it stays dead in the ledger.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, Final

from gateway.core.leasing.ack_ids import AckIds, InvalidAckId, LedgerAckId
from gateway.core.leasing.backlogs import Backlogs
from gateway.core.leasing.parts import Parts
from gateway.core.leasing.pulled import INVALID, LOST, SUCCESS, AckOutcome, LedgerLease, Pulled
from gateway.core.publishing.envelopes import EnvelopeError
from gateway.core.sources.arrivals import now_us, printable
from gateway.core.sources.dead_letters import UndeliverableMessage, died, place_of
from gateway.core.sources.own_queues import queue_of
from gateway.core.sources.stored import open_envelope
from gateway.core.subscriptions import SubscriptionResource
from gateway.errors import EntriesRefused, GatewayError
from gateway.ledger import EventKind, LogEntry
from gateway.ledger.pending.owed import BacklogEntry, BacklogSettlement, Ending
from gateway.observing.telemetry import log
from gateway.runtime.tasks import Tasks

ENDED_MAX: Final = 10_000
"""How many leases that ended here are remembered, so that a repeated settlement gets the same answer."""


class LedgerSettling:
    """How leases that the ledger holds end; :mod:`gateway.core.leasing.ledger_leases` adds how they begin."""

    def __init__(self, parts: Parts, ack_ids: AckIds, backlogs: Backlogs) -> None:
        self.on_settled: list[Callable[[Sequence[LedgerAckId], float], None]] = []
        """Called with leases that ended here (and 0), or that end this many seconds from now."""
        self._parts = parts
        self._ack_ids = ack_ids
        self._backlogs = backlogs
        self._ended: OrderedDict[tuple[bytes, int], Ending] = OrderedDict()
        self._handing_back = Tasks("hand back")

    async def close(self) -> None:
        """Wait for what is being handed back."""
        await self._handing_back.join()

    def hand_back(self, pulled: Sequence[Pulled], reason: str) -> None:
        """Make messages due again that were not handed over, some time soon. They count as handed out: nobody knows
        how much of the answer came through."""
        leases = [item.lease for item in pulled if isinstance(item.lease, LedgerLease)]
        if leases:
            self._handing_back.start(self._hand_back(leases, reason))

    async def _hand_back(self, leases: Sequence[LedgerLease], reason: str) -> None:
        at = now_us()
        try:
            done = await self._parts.ledger.deliveries.settle(
                [
                    BacklogSettlement(
                        lease.delivery,
                        Ending.RETRY,
                        lease.number,
                        front=True,
                        entries=(_handed_back(lease, at, reason),),
                    )
                    for lease in leases
                ]
            )
        except GatewayError as error:  # they are due when their leases end
            log("subscription.not_handed_back", subscription=leases[0].subscription, reason=str(error))
            return
        if any(done):
            for name in {lease.subscription for lease in leases}:
                self._backlogs[name].news()

    # ------------------------------------------------------------------------------------------- settle

    async def acknowledge(self, subscription: SubscriptionResource, ack_ids: Sequence[str]) -> list[AckOutcome]:
        """The consumer is done with the messages: they go. A repeated acknowledgement succeeds."""
        return await self._settle(subscription, ack_ids, Ending.DONE, EventKind.ACKNOWLEDGED)

    async def release(
        self, subscription: SubscriptionResource, ack_ids: Sequence[str], delay: float = 0.0
    ) -> list[AckOutcome]:
        """Make messages due again, ``delay`` seconds from now; without a delay at their old place in line. Those that
        have used up ``max_deliveries`` are dead."""
        most = subscription.settings.max_deliveries
        if most:
            tired = [
                ack_id for ack_id in ack_ids if (lease := self._read(subscription, ack_id)) and lease.attempt >= most
            ]
            if tired:
                given_up = await self._reject(subscription, tired, used_up(most), Ending.RETRY, "delivery_limit")
                rest = [ack_id for ack_id in ack_ids if ack_id not in set(tired)]
                results = {
                    item.ack_id: item for item in [*given_up, *await self.release_alive(subscription, rest, delay)]
                }
                return [results[ack_id] for ack_id in ack_ids]
        return await self.release_alive(subscription, ack_ids, delay)

    async def release_alive(
        self, subscription: SubscriptionResource, ack_ids: Sequence[str], delay: float
    ) -> list[AckOutcome]:
        """:meth:`release`, without regard to ``max_deliveries``."""
        detail: dict[str, Any] = {"delay": delay} if delay else {}
        results = await self._settle(
            subscription, ack_ids, Ending.RETRY, EventKind.RELEASED, due_in=delay, front=not delay, **detail
        )
        if any(item.status == SUCCESS for item in results):
            self._backlogs[subscription.name].due_in(delay)
        return results

    async def extend(
        self, subscription: SubscriptionResource, ack_ids: Sequence[str], seconds: int
    ) -> list[AckOutcome]:
        """Let leases end ``seconds`` from now."""
        results = await self._settle(
            subscription, ack_ids, Ending.EXTEND, EventKind.EXTENDED, due_in=float(seconds), seconds=seconds
        )
        if any(item.status == SUCCESS for item in results):
            self._backlogs[subscription.name].due_in(float(seconds))
        return results

    async def reject(
        self, subscription: SubscriptionResource, ack_ids: Sequence[str], reason: str, *, discard: bool = False
    ) -> list[AckOutcome]:
        """Give messages up: to the dead-letter place with the reason, confirmed; where there is none, or it takes
        nothing, they stay dead in the ledger. ``discard``: drop them instead."""
        if discard:
            detail: dict[str, Any] = {"reason": printable(reason)[:500]} if reason else {}
            return await self._settle(subscription, ack_ids, Ending.DONE, EventKind.DISCARDED, **detail)
        return await self._reject(subscription, ack_ids, reason or "rejected", Ending.DEAD)

    def _read(self, subscription: SubscriptionResource, ack_id: str) -> LedgerAckId | None:
        try:
            return self._ack_ids.read_ledger(ack_id, self._ack_ids.mark(subscription.name))
        except InvalidAckId:
            return None

    async def _settle(
        self,
        subscription: SubscriptionResource,
        ack_ids: Sequence[str],
        ending: Ending,
        kind: EventKind,
        *,
        due_in: float = 0.0,
        front: bool = False,
        **detail: Any,
    ) -> list[AckOutcome]:
        """Settle in one commit. ``detail`` is for the event."""
        named = [self._read(subscription, ack_id) for ack_id in ack_ids]
        leases = [lease for lease in dict.fromkeys(named) if lease is not None]
        at = now_us()
        broker, name = subscription.settings.broker, subscription.name
        done = await self._ends(
            [
                BacklogSettlement(
                    lease.delivery,
                    ending,
                    lease.lease,
                    due_in,
                    front,
                    entries=(entry_of(lease.message_id, kind, at, broker, name, lease=lease.lease, **detail),),
                )
                for lease in leases
            ]
        )
        results = dict(zip(leases, done, strict=True))
        self._finished(subscription, [lease for lease in leases if results[lease]], ending, due_in)
        self._count(broker, kind.value, sum(done))
        return await self._answers(subscription, ack_ids, named, results, ending)

    async def _ends(self, settlements: Sequence[BacklogSettlement]) -> list[bool]:
        """Settle; what cannot be written did not take effect."""
        try:
            return await self._parts.ledger.deliveries.settle(settlements)
        except EntriesRefused as error:
            log("subscription.settlement_refused", reason=str(error))
            return [result is True for result in error.results or [False] * len(settlements)]

    def _finished(
        self, subscription: SubscriptionResource, leases: Sequence[LedgerAckId], ending: Ending, due_in: float = 0.0
    ) -> None:
        """Leases ended here, or were extended."""
        if not leases:
            return
        extended = ending is Ending.EXTEND
        for call in self.on_settled:
            call(leases, due_in if extended else 0.0)
        if extended:
            return
        for lease in leases:
            self._ended[lease.delivery, lease.lease] = ending
        while len(self._ended) > ENDED_MAX:
            self._ended.popitem(last=False)
        if ending is Ending.DONE:
            backlog = self._backlogs[subscription.name]
            backlog.held = max(0, backlog.held - len(leases))
            if subscription.ordered:
                backlog.news()  # the next of their keys

    async def _answers(
        self,
        subscription: SubscriptionResource,
        ack_ids: Sequence[str],
        named: Sequence[LedgerAckId | None],
        results: dict[LedgerAckId, bool],
        ending: Ending,
    ) -> list[AckOutcome]:
        """What is answered for each ack id."""
        answers = []
        for ack_id, lease in zip(ack_ids, named, strict=True):
            if lease is None:
                answers.append(AckOutcome(ack_id, INVALID))
                continue
            done = results[lease] or await self._ended_so(subscription, lease, ending)
            answers.append(AckOutcome(ack_id, SUCCESS if done else LOST))
        return answers

    async def _ended_so(self, subscription: SubscriptionResource, lease: LedgerAckId, ending: Ending) -> bool:
        """Whether the lease had been ended in this way before: here, or, for an acknowledgement, anywhere."""
        if ending is Ending.EXTEND:
            return False
        if (ended := self._ended.get((lease.delivery, lease.lease))) is not None:
            return ended is ending
        if ending is not Ending.DONE or await self._parts.ledger.deliveries.get(lease.delivery) is not None:
            return False
        timeline = await self._parts.ledger.timeline(lease.message_id)
        return timeline is not None and any(
            event.kind is EventKind.ACKNOWLEDGED
            and event.detail.get("subscription") == subscription.name
            and event.detail.get("lease") == lease.lease
            for event in timeline.events
        )

    # ----------------------------------------------------------------------------------------- dead letters

    async def _reject(
        self,
        subscription: SubscriptionResource,
        ack_ids: Sequence[str],
        reason: str,
        ending: Ending,
        code: str = "rejected",
    ) -> list[AckOutcome]:
        """Give up what is leased. ``ending``: what was asked for, for those who ask again."""
        named = [self._read(subscription, ack_id) for ack_id in ack_ids]
        leases = [lease for lease in dict.fromkeys(named) if lease is not None]
        rows: dict[LedgerAckId, BacklogEntry] = {}
        for lease in leases:
            row = await self._parts.ledger.deliveries.get(lease.delivery, payload=True)
            if row is not None and row.out and row.lease == lease.lease and row.subscription == subscription.name:
                rows[lease] = row
        done = await self.give_up(subscription, list(rows.values()), reason, code)
        results = dict.fromkeys(leases, False) | dict(zip(rows, done, strict=True))
        self._finished(subscription, [lease for lease in leases if results[lease]], ending)
        return await self._answers(subscription, ack_ids, named, results, ending)

    async def give_up(
        self,
        subscription: SubscriptionResource,
        rows: Sequence[BacklogEntry],
        reason: str,
        code: str,
        attempt: int | None = None,
    ) -> list[bool]:
        """To the dead-letter place, or dead in the ledger; whether each lease still held. ``code``: why, in one word;
        ``attempt``: how often they were handed out, where the row says more."""
        if not rows:
            return []
        name, broker = subscription.name, subscription.settings.broker
        at = now_us()
        place = place_of(subscription.settings)
        queue = queue_of(name, subscription.settings)
        trouble: list[GatewayError | None] = [None for _ in rows]
        letters, where = [], []
        origins: list[dict[str, Any]] = [{"code": code} for _ in rows]
        for index, row in enumerate(rows):
            try:
                stored = open_envelope(row.payload or b"")
            except EnvelopeError as error:
                trouble[index] = error
                continue
            there = broker, queue, stored.exchange, stored.routing_key
            origins[index] = died(code, *there)
            letters.append(UndeliverableMessage(row.message_id, stored.message, reason, *there, code))
            where.append(index)
        if place is not None:
            outcomes = await self._parts.dead_letters.publish(place, name, letters)
            for index, outcome in zip(where, outcomes, strict=True):
                trouble[index] = outcome
        settlements = []
        for row, why, origin in zip(rows, trouble, origins, strict=True):
            told: dict[str, Any] = {"reason": printable(reason)[:500], "attempt": attempt or row.attempt, **origin}
            if why is None and place is not None:
                told["place"] = {
                    "broker": place.broker,
                    "exchange": printable(place.exchange),
                    "routing_key": printable(place.routing_key),
                }
                entry = entry_of(row.message_id, EventKind.DEAD_LETTERED, at, broker, name, lease=row.lease, **told)
                settlements.append(BacklogSettlement(row.id, Ending.DONE, row.lease, entries=(entry,)))
                continue
            if why is not None and place is not None:
                told["dead_letter_place"] = printable(str(why))[:500]
            entry = entry_of(row.message_id, EventKind.DEAD, at, broker, name, lease=row.lease, **told)
            settlements.append(
                BacklogSettlement(row.id, Ending.DEAD, row.lease, reason={**told, "at": at}, entries=(entry,))
            )
        done = await self._ends(settlements)
        gone = sum(ended and item.ending is Ending.DONE for ended, item in zip(done, settlements, strict=True))
        self._count(broker, "dead_lettered", gone)
        self._count(broker, "dead", sum(done) - gone)
        return done

    def _count(self, broker: str, event: str, count: int) -> None:
        if count:
            self._parts.metrics.deliveries.labels(broker, event).inc(count)


def _handed_back(lease: LedgerLease, at: int, reason: str) -> LogEntry:
    return entry_of(
        lease.message_id, EventKind.RELEASED, at, lease.broker, lease.subscription, lease=lease.number, reason=reason
    )


def entry_of(message_id: bytes, kind: EventKind, at: int, broker: str, subscription: str, **detail: Any) -> LogEntry:
    """An event of a message that the ledger knows."""
    return LogEntry(message_id, kind, at, broker, "", {"subscription": subscription, **detail})


def used_up(most: int) -> str:
    """Why a message is given up."""
    return f"handed out {most} times (max_deliveries)"
