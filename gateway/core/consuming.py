"""Pull and settle: messages from queues, one by one, under leases.

Pull is driven by demand: nothing is taken from a broker but what a pull waits for. Before messages are handed over,
``delivered`` is in the ledger; what cannot be handed over goes back to its queue at once. To settle, the broker is
told first and the ledger afterwards: a crash in between costs a repeated delivery at most, never a message.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import time, time_ns
from typing import Any, Final

from gateway.core.leases import End, Lease, Leases, Unusable
from gateway.core.publishing import Outgoing, describe, version_name
from gateway.core.recorder import Recorder
from gateway.core.subscriptions import Subscription
from gateway.errors import FrameSyntaxError, GatewayError, LeaseLost, LedgerUnavailable, Overloaded, StateError
from gateway.fidelity import annotation
from gateway.ledger import Entry, Kind, Ledger, MessageIds, parse_id
from gateway.operations import Settlement
from gateway.telemetry import Metrics
from gateway.upstreams import Delivery, Upstream

DAY_MS: Final = 86_400_000
DELIVERY_COUNT: Final = "x-delivery-count"
"""Header in which RabbitMQ's quorum queues count earlier deliveries."""


@dataclass(slots=True)
class Pulled:
    """A message that is handed over, and its lease."""

    lease: Lease
    id: bytes
    attempt: int
    delivery: Delivery
    first: bool
    """It came without an id of ours: this is where the gateway first took it."""
    resent: bool
    """Its publisher's gateway sent it again after an unknown outcome: it may be there twice."""
    redelivered: bool
    """It was handed over before, as the broker says, or as is remembered here."""


@dataclass(slots=True)
class Settled:
    """What became of one ack id."""

    ack_id: str
    status: str
    """SUCCESS, INVALID_ACK_ID, LEASE_LOST, or FAILED with the error; a failed lease goes on."""
    error: GatewayError | None = None


class Consuming:
    """What consumers do with a gateway's subscriptions."""

    def __init__(
        self,
        ledger: Ledger,
        leases: Leases,
        recorder: Recorder,
        ids: MessageIds,
        metrics: Metrics,
        find: Callable[[str], Upstream],
    ) -> None:
        self._ledger = ledger
        self._leases = leases
        self._recorder = recorder
        self._ids = ids
        self._metrics = metrics
        self._find = find
        self._draining = asyncio.Event()
        self._pulls = 0

    def lease_count(self, subscription: str) -> int:
        """How many messages the subscription has out."""
        return self._leases.count(subscription)

    # --------------------------------------------------------------------------------------------- pull

    async def pull(
        self,
        subscription: Subscription,
        max_messages: int,
        wait: float,
        seconds: float | None,
        gone: asyncio.Future[None] | None = None,
    ) -> list[Pulled]:
        """Take up to ``max_messages``, waiting up to ``wait`` seconds for the first, and lease them.

        Args:
            seconds: how long each is leased; None: as the subscription says.
            gone: done when the caller is gone; what was fetched goes back then.

        Raises:
            NoSuchBroker, BrokerUnavailable, NotFound: from the broker.
            LedgerUnavailable: nothing is out.
            Overloaded: the bound on leases is reached, or the gateway is shutting down.
        """
        if self._draining.is_set():
            raise Overloaded("the gateway is shutting down")
        if not self._ledger.healthy:
            raise LedgerUnavailable("the ledger cannot be written now; nothing was taken")
        room = self._leases.room - self._pulls
        if room <= 0:
            raise Overloaded("the bound on leases (http.leases_max) is reached; settle some")
        upstream = self._find(subscription.settings.broker)
        wanted = min(max_messages, room)
        self._pulls += wanted
        try:
            deliveries = await self._fetch(upstream, subscription.settings.queue, wanted, wait, gone)
        finally:
            self._pulls -= wanted
        if not deliveries:
            return []
        length = seconds if seconds is not None else subscription.settings.ack_deadline_seconds
        pulled = [self._lease(upstream, subscription, delivery, length) for delivery in deliveries]
        try:
            await self._ledger.record(self._delivered(upstream, subscription, pulled))
        except GatewayError:
            self.hand_back(pulled, "the ledger could not be written", record=False)
            raise
        except asyncio.CancelledError:
            self.hand_back(pulled, "the caller is gone")
            raise
        self._count(upstream.name, "delivered", len(pulled))
        return pulled

    async def _fetch(
        self, upstream: Upstream, queue: str, wanted: int, wait: float, gone: asyncio.Future[None] | None
    ) -> list[Delivery]:
        """Fetch, but not longer than somebody waits for it."""
        if not wait:
            return await upstream.fetch(queue, wanted, 0.0)
        loop = asyncio.get_running_loop()
        fetch = loop.create_task(upstream.fetch(queue, wanted, wait), name="fetch")
        drain = loop.create_task(self._draining.wait(), name="drain")
        watched: list[asyncio.Future[Any]] = [fetch, drain]
        if gone is not None:
            watched.append(gone)
        try:
            await asyncio.wait(watched, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            fetch.add_done_callback(_give_back)  # it may be done already
            raise
        finally:
            drain.cancel()
            fetch.cancel()  # nothing happens to one that is done; one that is not gives back what it has
        try:
            return await fetch
        except asyncio.CancelledError:
            if not fetch.cancelled():
                raise
            return []

    def _lease(self, upstream: Upstream, subscription: Subscription, delivery: Delivery, seconds: float) -> Pulled:
        known = None
        redelivered = delivery.redelivered
        attempt = 2 if redelivered else 1
        resent = False
        try:
            properties = delivery.message.properties
        except FrameSyntaxError:
            pass  # octets that are no property list are handed over as they are, under an id of our own
        else:
            known = own_id(annotation(properties, "id"))
            if known is not None:
                resent = annotation(properties, "resent") is not None
                if not redelivered and self._leases.was_handed(subscription.name, known):
                    redelivered, attempt = True, 2
            count = properties.headers.get(DELIVERY_COUNT) if properties.headers else None
            count = getattr(count, "value", count)
            if type(count) is int and 0 <= count < 1 << 31:
                attempt = count + 1
        message_id = known if known is not None else self._ids()
        lease = self._leases.grant(
            delivery,
            message_id,
            upstream.name,
            version_name(upstream),
            subscription.name,
            seconds,
            upstream.settings.lease_max,
        )
        if delivery.lost:
            self._leases.end(lease, End.LOST)
            self.lost(lease)
        return Pulled(lease, message_id, attempt, delivery, known is None, resent, redelivered)

    def _delivered(self, upstream: Upstream, subscription: Subscription, pulled: Sequence[Pulled]) -> list[Entry]:
        at = time_ns() // 1000
        name, version = upstream.name, version_name(upstream)
        entries = []
        for item in pulled:
            delivery = item.delivery
            outgoing = Outgoing(delivery.routing_key, delivery.message)
            message = describe(name, version, delivery.exchange, outgoing, "", "broker")
            detail = {
                "subscription": subscription.name,
                "queue": printable(subscription.settings.queue),
                "attempt": item.attempt,
                "redelivered": item.redelivered,
            }
            if item.first:
                entries.append(Entry(item.id, Kind.RECEIVED, at, name, version, None, message))
            entries.append(Entry(item.id, Kind.DELIVERED, at, name, version, detail, message))
        return entries

    def hand_back(self, pulled: Sequence[Pulled], reason: str, *, record: bool = True) -> None:
        """Release messages that were not handed over."""
        released = [
            item.lease
            for item in pulled
            if isinstance(self._leases.find(item.lease.subscription, item.lease.ack_id), Lease)
            and self._leases.settle(item.lease, Settlement.RELEASE, End.RELEASED)
        ]
        if released and record:
            self._recorder.add(_entries(released, Kind.RELEASED, {"reason": reason}))
            self._count(released[0].broker, "released", len(released))

    # ------------------------------------------------------------------------------------------- settle

    async def acknowledge(self, subscription: Subscription, ack_ids: Sequence[str]) -> list[Settled]:
        """Accept messages; they are gone from their queue. A repeated acknowledgement succeeds."""
        return await self._settle(subscription, ack_ids, Settlement.ACCEPT, End.ACKNOWLEDGED, Kind.ACKNOWLEDGED)

    async def release(self, subscription: Subscription, ack_ids: Sequence[str]) -> list[Settled]:
        """Give messages back to their queue, at once."""
        return await self._settle(subscription, ack_ids, Settlement.RELEASE, End.RELEASED, Kind.RELEASED)

    async def _settle(
        self, subscription: Subscription, ack_ids: Sequence[str], settlement: Settlement, end: End, kind: Kind
    ) -> list[Settled]:
        results, done, lost = [], [], []
        for ack_id in ack_ids:
            found = self._leases.find(subscription.name, ack_id)
            if not isinstance(found, Lease):
                results.append(_without_lease(ack_id, found, end))
            elif self._leases.settle(found, settlement, end):
                done.append(found)
                results.append(Settled(ack_id, "SUCCESS"))
            else:
                lost.append(found)
                results.append(Settled(ack_id, Unusable.LOST.value))
        await self._record([*_entries(done, kind), *_entries(lost, Kind.LEASE_LOST)])
        self._count(subscription.settings.broker, kind.value, len(done))
        self._count(subscription.settings.broker, "lease_lost", len(lost))
        return results

    async def modify_deadline(self, subscription: Subscription, ack_ids: Sequence[str], seconds: int) -> list[Settled]:
        """Let leases last ``seconds`` from now, but all extensions together no longer than the broker's
        ``lease_max``. 0 gives the messages back."""
        if seconds == 0:
            return await self.release(subscription, ack_ids)
        results, extended = [], []
        for ack_id in ack_ids:
            found = self._leases.find(subscription.name, ack_id)
            if not isinstance(found, Lease):
                results.append(_without_lease(ack_id, found, None))
                continue
            left = self._leases.extend(found, seconds)
            extended.extend(_entries([found], Kind.EXTENDED, {"seconds": round(left, 3)}))
            results.append(Settled(ack_id, "SUCCESS"))
        await self._record(extended)
        return results

    async def reject(self, subscription: Subscription, ack_ids: Sequence[str], reason: str) -> list[Settled]:
        """Dead-letter messages, by the broker or by a copy to the subscription's dead-letter place. Where neither
        can be, the result is FAILED and the lease goes on."""
        settings = subscription.settings
        upstream = self._find(settings.broker)
        place = None
        if settings.dead_letter_exchange or settings.dead_letter_routing_key:
            place = settings.dead_letter_exchange, settings.dead_letter_routing_key
        detail: dict[str, Any] = {"reason": printable(reason)} if reason else {}
        if place is not None:
            detail["dead_letter_exchange"], detail["dead_letter_routing_key"] = map(printable, place)
        results, entries = [], []
        for ack_id in ack_ids:
            found = self._leases.find(subscription.name, ack_id)
            if not isinstance(found, Lease):
                results.append(_without_lease(ack_id, found, End.REJECTED))
                continue
            try:
                await upstream.reject(found.delivery, place)
            except LeaseLost:
                self._leases.end(found, End.LOST)
                entries.extend(_entries([found], Kind.LEASE_LOST))
                results.append(Settled(ack_id, Unusable.LOST.value))
            except GatewayError as error:
                results.append(Settled(ack_id, "FAILED", error))
            else:
                self._leases.end(found, End.REJECTED)
                entries.extend(_entries([found], Kind.REJECTED, detail))
                results.append(Settled(ack_id, "SUCCESS"))
        await self._record(entries)
        self._count(settings.broker, "rejected", sum(result.status == "SUCCESS" for result in results))
        return results

    async def _record(self, entries: list[Entry]) -> None:
        """Record what the broker was told already; if the ledger is away, as soon as it is back."""
        if entries:
            try:
                await self._ledger.record(entries)
            except LedgerUnavailable:
                self._recorder.add(entries)

    # --------------------------------------------------------------------------------------- by themselves

    def expired(self, leases: list[Lease]) -> None:
        """Deadlines passed, and the messages went back."""
        self._recorder.add(_entries(leases, Kind.LEASE_EXPIRED))
        for lease in leases:
            self._count(lease.broker, "lease_expired", 1)

    def lost(self, lease: Lease) -> None:
        """A channel died with a lease on it."""
        self._recorder.add(_entries([lease], Kind.LEASE_LOST))
        self._count(lease.broker, "lease_lost", 1)

    def drain(self) -> None:
        """End waiting pulls, and take no new ones."""
        self._draining.set()

    def release_all(self) -> None:
        """Give everything back that is out."""
        released = [
            lease for lease in self._leases.all() if self._leases.settle(lease, Settlement.RELEASE, End.RELEASED)
        ]
        self._recorder.add(_entries(released, Kind.RELEASED, {"reason": "the gateway shut down"}))
        self._leases.close()

    def _count(self, broker: str, event: str, count: int) -> None:
        if count:
            self._metrics.deliveries.labels(broker, event).inc(count)
        self._metrics.leases.set(len(self._leases))


def _give_back(fetch: asyncio.Task[list[Delivery]]) -> None:
    """Nobody waits for what was fetched."""
    if fetch.cancelled() or fetch.exception() is not None:
        return
    for delivery in fetch.result():
        try:
            delivery.settle(Settlement.RELEASE)
        except (LeaseLost, StateError):
            continue  # then it goes back by itself


def own_id(text: str | None) -> bytes | None:
    """The id in a message's reserved header, if it is one that a gateway made: a UUIDv7 that is not from the
    future. Anybody can write that header, and ids are dates to the ledger."""
    if text is None:
        return None
    try:
        octets = parse_id(text)
    except ValueError:
        return None
    made = int.from_bytes(octets[:6], "big")
    return octets if octets[6] >> 4 == 7 and made < time() * 1000 + DAY_MS else None


def printable(text: str) -> str:
    """``text`` without lone surrogates."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def _entries(leases: Sequence[Lease], kind: Kind, detail: dict[str, Any] | None = None) -> list[Entry]:
    at = time_ns() // 1000
    return [
        Entry(
            lease.message_id,
            kind,
            at,
            lease.broker,
            lease.version,
            {"subscription": lease.subscription, **(detail or {})},
        )
        for lease in leases
    ]


def _without_lease(ack_id: str, found: End | Unusable, wanted: End | None) -> Settled:
    """The answer for an ack id that names no lease: the one it was given before, or why there is none."""
    if found is wanted:
        return Settled(ack_id, "SUCCESS")
    return Settled(ack_id, Unusable.INVALID.value if found is Unusable.INVALID else Unusable.LOST.value)
