"""Leases that a broker holds: what is pulled stays unacknowledged on a channel until it is settled.

Nothing is taken from a broker but what a pull waits for. Before messages are handed over, ``delivered`` is in the
ledger; what cannot be handed over goes back to its queue at once. To settle, the gateway writes to the broker first and
to the ledger afterwards: a crash in between costs a repeated delivery at most, never a message.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from gateway.amqp.operations import Settlement
from gateway.budgets import ShareHolder
from gateway.core.leasing.lease_kind import LeaseKind
from gateway.core.leasing.leases import End, Lease, Leases, Unusable
from gateway.core.leasing.parts import Parts
from gateway.core.leasing.pulled import FAILED, INVALID, LOST, SUCCESS, AckOutcome, Pulled
from gateway.core.publishing.publisher import version_name
from gateway.core.sources.arrivals import Arrival, Arrivals, Readers, now_us, printable
from gateway.core.sources.dead_letters import DeadLetterDestination, UndeliverableMessage, place_of
from gateway.core.sources.fetching import Fetch, settle
from gateway.core.sources.own_queues import queue_of
from gateway.core.subscriptions import SubscriptionResource, discards_unmatched
from gateway.errors import (
    BudgetExceeded,
    GatewayError,
    LeaseLost,
    LedgerUnavailable,
    Overloaded,
    StateError,
    Unsupported,
)
from gateway.ledger import EventKind, LogEntry
from gateway.limits import PULL_MAX
from gateway.runtime.clock import clock
from gateway.upstreams import Delivery, Upstream

EXTEND_MAX: Final = 600
"""Most seconds of one extension."""


class BrokerLeases(LeaseKind):
    """Pull and settle, for subscriptions with ``lease = "broker"``."""

    def __init__(self, parts: Parts, leases: Leases, draining: asyncio.Future[None]) -> None:
        self._parts = parts
        self._leases = leases
        self._draining = draining
        self._readers = Readers(parts.ids)

    # --------------------------------------------------------------------------------------------- pull

    async def pull(
        self,
        subscription: SubscriptionResource,
        max_messages: int,
        wait: float,
        seconds: float | None,
        gone: asyncio.Future[None] | None,
        client: ShareHolder,
        bytes_max: int = PULL_MAX,
    ) -> list[Pulled]:
        """See :meth:`gateway.core.leasing.consuming.Consuming.pull`."""
        bytes_max = min(bytes_max, self._leases.byte_holdings.check(client))
        settings = subscription.settings
        upstream = self._parts.find(settings.broker)
        await self._parts.own_queues.ensure(subscription.name, settings)
        arrivals = self._readers.of(subscription, upstream)
        upstream.delivery_limits.state_native(arrivals.queue, settings.dead_letter_native)
        if not settings.dead_letter_native:
            await upstream.check_give_back(arrivals.queue)
        wanted = self._leases.reserve(client, max_messages, waits=bool(wait))
        found: list[Arrival] = []
        try:
            found = await self._find(upstream, subscription, arrivals, wanted, wait, gone, bytes_max)
        finally:
            self._leases.give_back(client, wanted - len(found))
        if not found:
            return []
        try:
            self._leases.byte_holdings.check(client)  # others may have taken what was left while this pull waited
        except (BudgetExceeded, Overloaded):
            self._leases.give_back(client, len(found))
            _release(found)
            raise
        length = seconds if seconds is not None else settings.ack_deadline_seconds
        pulled = [self._lease(upstream, subscription, arrival, length, client) for arrival in found]
        try:
            await self._parts.ledger.record(self._delivered(arrivals, found, pulled))
        except GatewayError:
            self.hand_back(pulled, "the ledger could not be written", record=False)
            raise
        except asyncio.CancelledError:
            self.hand_back(pulled, "the caller is gone")
            raise
        self._count(upstream.name, "delivered", len(pulled))
        # A lease may have ended while that was recorded, and another pull may have its message.
        return [item for item in pulled if isinstance(item.lease, Lease) and self._leases.holds(item.lease)]

    async def _find(
        self,
        upstream: Upstream,
        subscription: SubscriptionResource,
        arrivals: Arrivals,
        wanted: int,
        wait: float,
        gone: asyncio.Future[None] | None,
        bytes_max: int,
    ) -> list[Arrival]:
        """Messages that the subscription wants. As long as there are others in front of them, and time, it goes on."""
        deadline = clock.monotonic() + wait
        queue = queue_of(subscription.name, subscription.settings)
        while True:
            fetched = await self._fetch(
                upstream, queue, wanted, max(0.0, deadline - clock.monotonic()), gone, bytes_max
            )
            deliveries = await _handable(upstream, queue, fetched)
            try:
                found, unwanted = await arrivals.sort_many(deliveries)
            except BaseException:
                for delivery in deliveries:
                    settle(delivery, Settlement.RELEASE)
                raise
            if unwanted:
                try:
                    await turn_away(self._parts, arrivals, subscription, unwanted)
                except BaseException:
                    _release(found)
                    raise
                self._count(upstream.name, "filtered", len(unwanted))
            found = [arrival for arrival in found if not arrival.delivery.lost]  # another pull may have it by now
            over = self._draining.done() or (gone is not None and gone.done())
            if found or not fetched or over or (not wait and len(fetched) < wanted):
                return found

    async def _fetch(
        self,
        upstream: Upstream,
        queue: str,
        wanted: int,
        wait: float,
        gone: asyncio.Future[None] | None,
        bytes_max: int,
    ) -> list[Delivery]:
        """Fetch, but not longer than somebody waits for it."""
        if not wait:
            return await upstream.fetch(queue, wanted, 0.0, bytes_max)
        fetch = Fetch(upstream, queue, wanted, wait, bytes_max)
        try:
            await fetch.wait([self._draining] if gone is None else [self._draining, gone])
        except asyncio.CancelledError:
            fetch.close()
            raise
        return await fetch.end()

    def _lease(
        self,
        upstream: Upstream,
        subscription: SubscriptionResource,
        arrival: Arrival,
        seconds: float,
        client: ShareHolder,
    ) -> Pulled:
        delivery = arrival.delivery
        redelivered = arrival.redelivered
        if not redelivered and not arrival.first and self._leases.was_handed(subscription.name, arrival.id):
            redelivered = True
        lease = self._leases.grant(
            delivery,
            arrival.id,
            upstream.name,
            version_name(upstream),
            subscription.name,
            seconds,
            upstream.settings.lease_max,
            client,
        )
        return Pulled(lease, arrival.id, None, delivery, arrival.first, arrival.resent, redelivered)

    def _delivered(self, arrivals: Arrivals, found: Sequence[Arrival], pulled: Sequence[Pulled]) -> list[LogEntry]:
        at = now_us()
        entries = []
        for arrival, item in zip(found, pulled, strict=True):
            message = arrivals.message(arrival)
            if arrival.first:
                entries.append(
                    LogEntry(arrival.id, EventKind.RECEIVED, at, arrivals.broker, arrivals.version, None, message)
                )
            detail = {
                "subscription": arrivals.name,
                "queue": arrivals.queue,
                "redelivered": item.redelivered,
            }
            entries.append(
                LogEntry(arrival.id, EventKind.DELIVERED, at, arrivals.broker, arrivals.version, detail, message)
            )
        return entries

    def hand_back(self, pulled: Sequence[Pulled], reason: str, *, record: bool = True) -> None:
        """Release messages that were not handed over."""
        released = [
            lease
            for item in pulled
            if isinstance(lease := item.lease, Lease)
            and self._leases.holds(lease)
            and self._leases.settle(lease, Settlement.RELEASE, End.RELEASED)
        ]
        if released and record:
            self._parts.recorder.add(_entries(released, EventKind.RELEASED, {"reason": reason}))
            self._count(released[0].broker, "released", len(released))

    # ------------------------------------------------------------------------------------------- settle

    async def acknowledge(self, subscription: SubscriptionResource, ack_ids: Sequence[str]) -> list[AckOutcome]:
        """Accept messages; they are gone from their queue. A repeated acknowledgement succeeds."""
        return await self._settle(subscription, ack_ids, Settlement.ACCEPT, End.ACKNOWLEDGED, EventKind.ACKNOWLEDGED)

    async def release(
        self, subscription: SubscriptionResource, ack_ids: Sequence[str], delay: float = 0.0
    ) -> list[AckOutcome]:
        """Give messages back to their queue, at once. With a delay the result is FAILED."""
        if delay:
            return self._cannot(
                subscription, ack_ids, "a release with a delay needs a ledger to hold the message meanwhile"
            )
        return await self._settle(subscription, ack_ids, Settlement.RELEASE, End.RELEASED, EventKind.RELEASED)

    def _cannot(self, subscription: SubscriptionResource, ack_ids: Sequence[str], why: str) -> list[AckOutcome]:
        """A broker's leases cannot do that."""
        error = Unsupported(f'{why}: set lease = "ledger" for the subscription {subscription.name!r}')
        results = []
        for ack_id in ack_ids:
            found = self._leases.find(subscription.name, ack_id)
            if isinstance(found, Lease):
                results.append(AckOutcome(ack_id, FAILED, error))
            else:
                results.append(_without_lease(ack_id, found, None))
        return results

    async def _settle(
        self,
        subscription: SubscriptionResource,
        ack_ids: Sequence[str],
        settlement: Settlement,
        end: End,
        kind: EventKind,
        detail: dict[str, Any] | None = None,
    ) -> list[AckOutcome]:
        results, done, lost = [], [], []
        for ack_id in ack_ids:
            found = self._leases.find(subscription.name, ack_id)
            if not isinstance(found, Lease):
                results.append(_without_lease(ack_id, found, end))
            elif self._leases.settle(found, settlement, end):
                done.append(found)
                results.append(AckOutcome(ack_id, SUCCESS))
            else:
                lost.append(found)
                results.append(AckOutcome(ack_id, LOST))
        await self._record([*_entries(done, kind, detail), *_entries(lost, EventKind.LEASE_LOST)])
        self._count(subscription.settings.broker, kind.value, len(done))
        self._count(subscription.settings.broker, "lease_lost", len(lost))
        return results

    async def extend(
        self, subscription: SubscriptionResource, ack_ids: Sequence[str], seconds: int
    ) -> list[AckOutcome]:
        """Let leases last ``seconds`` from now, but all extensions together no longer than the broker's
        ``lease_max``. For more than EXTEND_MAX seconds the result is FAILED."""
        if seconds > EXTEND_MAX:
            why = f"ack_deadline_seconds is {seconds}, and a broker's lease is extended by {EXTEND_MAX} at most"
            return self._cannot(subscription, ack_ids, why)
        results, extended = [], []
        for ack_id in ack_ids:
            found = self._leases.find(subscription.name, ack_id)
            if not isinstance(found, Lease):
                results.append(_without_lease(ack_id, found, None))
                continue
            left = self._leases.extend(found, seconds)
            extended.extend(_entries([found], EventKind.EXTENDED, {"seconds": round(left, 3)}))
            results.append(AckOutcome(ack_id, SUCCESS))
        await self._record(extended)
        return results

    async def reject(
        self, subscription: SubscriptionResource, ack_ids: Sequence[str], reason: str, *, discard: bool = False
    ) -> list[AckOutcome]:
        """Dead-letter messages. Where the subscription has a dead-letter place, and there is a reason to send along or
        the place is another broker's, as a copy there, confirmed; else by the broker, or as a copy without a reason
        where its queue is not known to dead-letter. Where neither can be, the result is FAILED and the lease goes on.
        ``discard``: drop them instead."""
        detail: dict[str, Any] = {"reason": printable(reason)} if reason else {}
        if discard:
            return await self._settle(
                subscription, ack_ids, Settlement.ACCEPT, End.DISCARDED, EventKind.DISCARDED, detail
            )
        native = subscription.settings.dead_letter_native
        place = place_of(subscription.settings)
        if place is not None:
            detail["dead_letter_exchange"] = printable(place.exchange)
            detail["dead_letter_routing_key"] = printable(place.routing_key)
        found = [self._leases.find(subscription.name, ack_id) for ack_id in ack_ids]
        leases = list(dict.fromkeys(lease for lease in found if isinstance(lease, Lease)))
        if place is not None and (reason or place.broker != subscription.settings.broker):
            outcomes = await self._copy(place, subscription.name, leases, reason)
            detail["dead_letter_broker"] = place.broker  # which says that there is a copy, and that it is confirmed
        else:
            outcomes = [await self._reject(lease, place, native) for lease in leases]
        errors = dict(zip(leases, outcomes, strict=True))
        done: list[Lease] = []
        lost: list[Lease] = []
        for lease, error in errors.items():
            if error is None:
                self._leases.end(lease, End.REJECTED)
                done.append(lease)
            elif isinstance(error, LeaseLost | StateError) and self._leases.holds(lease):
                self._leases.end(lease, End.LOST)
                lost.append(lease)
        results = []
        for ack_id in ack_ids:
            item = self._leases.find(subscription.name, ack_id)  # others may have ended it meanwhile
            if isinstance(item, Lease):
                results.append(AckOutcome(ack_id, FAILED, errors[item]))
            else:
                results.append(_without_lease(ack_id, item, End.REJECTED))
        await self._record([*_entries(done, EventKind.REJECTED, detail), *_entries(lost, EventKind.LEASE_LOST)])
        self._count(subscription.settings.broker, "rejected", len(done))
        self._count(subscription.settings.broker, "lease_lost", len(lost))
        return results

    async def _copy(
        self, place: DeadLetterDestination, subscription: str, leases: Sequence[Lease], reason: str
    ) -> list[GatewayError | None]:
        """Copies to the dead-letter place; what is confirmed there is accepted here."""
        letters = [
            UndeliverableMessage(
                lease.message_id, lease.delivery.message, reason,
                lease.broker, lease.delivery.queue, lease.delivery.exchange, lease.delivery.routing_key, "rejected",
            )
            for lease in leases
        ]  # fmt: skip
        outcomes = await self._parts.dead_letters.publish(place, subscription, letters)
        return [
            error if error is not None or settle(lease.delivery, Settlement.ACCEPT)
            else LeaseLost("the channel that held the delivery is gone; its copy is at the dead-letter place")
            for lease, error in zip(leases, outcomes, strict=True)
        ]  # fmt: skip

    async def _reject(self, lease: Lease, place: DeadLetterDestination | None, native: bool) -> GatewayError | None:
        try:
            at = (place.exchange, place.routing_key) if place is not None else None
            await self._parts.find(lease.broker).reject(lease.delivery, at, native=native)
        except GatewayError as error:
            return error
        return None

    async def _record(self, entries: list[LogEntry]) -> None:
        """Record settlements that the broker already has; if the ledger is away, as soon as it is back."""
        if entries:
            try:
                await self._parts.ledger.record(entries)
            except LedgerUnavailable:
                self._parts.recorder.add_again(entries)

    # --------------------------------------------------------------------------------------- by themselves

    def expired(self, leases: list[Lease]) -> None:
        """Deadlines passed, and the messages went back."""
        self._parts.recorder.add(_entries(leases, EventKind.LEASE_EXPIRED))
        for lease in leases:
            self._count(lease.broker, "lease_expired", 1)

    def lost(self, lease: Lease) -> None:
        """A channel died with a lease on it."""
        self._parts.recorder.add(_entries([lease], EventKind.LEASE_LOST))
        self._count(lease.broker, "lease_lost", 1)

    async def close(self) -> None:
        """Give everything back that is out."""
        released = [
            lease for lease in self._leases.all() if self._leases.settle(lease, Settlement.RELEASE, End.RELEASED)
        ]
        self._parts.recorder.add(_entries(released, EventKind.RELEASED, {"reason": "the gateway shut down"}))
        self._leases.close()

    def _count(self, broker: str, event: str, count: int) -> None:
        if count:
            self._parts.metrics.deliveries.labels(broker, event).inc(count)
        self._parts.metrics.leases.set(len(self._leases))


def _release(arrivals: Sequence[Arrival]) -> None:
    for arrival in arrivals:
        settle(arrival.delivery, Settlement.RELEASE)


async def _handable(upstream: Upstream, queue: str, deliveries: list[Delivery]) -> list[Delivery]:
    """Those that may go back once more. The others are kept: a consumer that does not settle one would cost it."""
    if not any(delivery.is_used_up for delivery in deliveries):
        return deliveries
    try:
        native = await upstream.dead_letters_natively(queue)
    except BaseException:
        for delivery in deliveries:
            settle(delivery, Settlement.RELEASE)
        raise
    left = []
    for delivery in deliveries:
        if native or not delivery.is_used_up:
            left.append(delivery)
        else:
            settle(delivery, Settlement.RELEASE)
    return left


async def turn_away(
    parts: Parts, arrivals: Arrivals, subscription: SubscriptionResource, unwanted: Sequence[tuple[Arrival, str]]
) -> None:
    """What becomes of messages that the filter does not want, where the broker holds them: discarded, or at the
    dead-letter place; it is recorded, then they are accepted. Where that cannot be they go back.

    Raises:
        GatewayError: the dead-letter place took none of them, or the ledger cannot be written.
    """
    at = now_us()
    entries: list[LogEntry] = []
    errors: list[GatewayError] = []
    done = [arrival for arrival, _ in unwanted]
    try:
        if not parts.ledger.healthy:  # before there is a copy that nobody knows of
            raise LedgerUnavailable(parts.ledger.ready()[1])
        if discards_unmatched(subscription.settings):
            entries = [arrivals.entry(arrival, EventKind.FILTERED, at, reason=reason) for arrival, reason in unwanted]
        else:
            place = place_of(subscription.settings)
            assert place is not None  # the settings are checked
            letters = [arrivals.letter(arrival, reason, "filtered") for arrival, reason in unwanted]
            outcomes = await parts.dead_letters.publish(place, subscription.name, letters)
            errors = [error for error in outcomes if error is not None]
            dead_lettered = [pair for pair, error in zip(unwanted, outcomes, strict=True) if error is None]
            done = [arrival for arrival, _ in dead_lettered]
            entries = [
                arrivals.dead_lettered(arrival, at, place, reason, "filtered") for arrival, reason in dead_lettered
            ]
        await parts.ledger.record(entries)
    except BaseException:
        for arrival, _ in unwanted:
            settle(arrival.delivery, Settlement.RELEASE)
        raise
    for arrival in done:
        settle(arrival.delivery, Settlement.ACCEPT)
    for arrival, _ in unwanted:
        settle(arrival.delivery, Settlement.RELEASE)  # those that are not accepted
    if errors and not done:
        raise errors[0]


def _entries(leases: Sequence[Lease], kind: EventKind, detail: dict[str, Any] | None = None) -> list[LogEntry]:
    at = now_us()
    return [
        LogEntry(
            lease.message_id,
            kind,
            at,
            lease.broker,
            lease.version,
            {"subscription": lease.subscription, **(detail or {})},
        )
        for lease in leases
    ]


def _without_lease(ack_id: str, found: End | Unusable, wanted: End | None) -> AckOutcome:
    """The answer for an ack id that names no lease: the one it was given before, or why there is none."""
    if found is wanted:
        return AckOutcome(ack_id, SUCCESS)
    return AckOutcome(ack_id, INVALID if found is Unusable.INVALID else LOST)
