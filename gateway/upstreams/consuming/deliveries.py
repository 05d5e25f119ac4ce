"""Deliveries, and the channels that hold them.

A delivery belongs to the channel on which it came: it can be settled only there, and when that channel is gone
so is the lease, and the broker delivers the message again. Settlements that are asked for in the order of
arrival leave as one range, put together when the turn of the loop ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from functools import partial

from gateway.amqp.message import Message, delivery_count
from gateway.amqp.operations import Deliver, DeliveryTooLarge, Got, Operation, Settle, Settlement
from gateway.errors import GatewayError, LeaseLost, StateError
from gateway.link import Channel, Link
from gateway.runtime.clock import clock
from gateway.upstreams.consuming.delivery_limits import DeliveryLimits, is_last, is_used_up
from gateway.upstreams.notify import notify


@dataclass(frozen=True, slots=True)
class Oversized:
    """A message over a limit (``message_max``, ``header_max``) at the head of a queue. It was not read. Where
    the queue is known to dead-letter what is rejected, it is rejected. Elsewhere that would delete it: the broker
    holds it as delivered to us, so that it is not offered again and again, until its channel closes: after
    ``lease_max`` seconds for a pull, with the consumer or its connection otherwise."""

    queue: str
    exchange: str
    routing_key: str
    size: int
    """Octets of what was over the limit."""
    limit: int
    """The limit, in octets."""


@dataclass(frozen=True, slots=True)
class HeldDeliveries:
    """What somebody holds of a queue, unacknowledged."""

    holder: tuple[str, str]
    """Kind and name; empty: leases."""
    count: int
    oldest_at: float
    """When the first of them came, on the loop's clock."""


class Delivery:
    """A message that is leased to us until it is settled."""

    __slots__ = (
        "_channel", "_done", "at", "exchange", "is_kept", "limit", "message", "number", "on_lost", "queue",
        "redelivered", "returns", "routing_key",
    )  # fmt: skip

    def __init__(
        self, channel: DeliveryChannel, queue: str, operation: Deliver | Got, *, settled: bool = False
    ) -> None:
        """``settled``: the broker has forgotten it, and there is nothing to settle."""
        self.queue = queue
        self.exchange = operation.exchange
        self.routing_key = operation.routing_key
        self.message: Message = operation.message
        self.redelivered = operation.redelivered
        self.number = operation.delivery
        self.at = channel.link.now
        """When it came, on the loop's clock."""
        self.on_lost: Callable[[Delivery], None] | None = None
        """Called once, on the loop, if the lease is lost before it is settled."""
        self.returns = 0
        """How often the broker counts that it was given back, where the queue's delivery limit matters."""
        self.limit = 0
        """That limit; 0: there is none."""
        self.is_kept = False
        """It must not go back: it is on its way to where it is safe."""
        self._channel = channel
        self._done = settled

    @property
    def channel(self) -> object:
        """What holds it: not the same for deliveries of two starts of a consumer."""
        return self._channel

    @property
    def is_used_up(self) -> bool:
        """Its queue's delivery limit allows no more returns on purpose."""
        return is_used_up(self.returns, self.limit)

    @property
    def is_last(self) -> bool:
        """Its broker may drop it when the channel that holds it breaks."""
        return is_last(self.returns, self.limit)

    @property
    def settled(self) -> bool:
        """It was settled by us."""
        return self._done

    @property
    def lost(self) -> bool:
        """The lease is gone, unsettled: the broker delivers the message again."""
        return not self._done and self._channel.deliveries.get(self.number) is not self

    def settle(self, settlement: Settlement) -> None:
        """Settle it; what is settled in one turn of the loop is written at its end.

        ``REJECT`` here is the protocol's word and may delete the message; ``Upstream.reject`` looks after it. A
        ``RELEASE`` of one that is used up does not reach the broker: it is kept (:class:`DeliveryLimits`).

        Raises:
            LeaseLost: the channel that held it is gone.
            StateError: it was settled before.
        """
        if self._done:
            raise StateError("the delivery was settled before")
        self._channel.settle(self, settlement)
        self._done = True

    def __repr__(self) -> str:
        return f"Delivery({self.queue!r}, {self.number}, {self.message!r:.80})"


class DeliveryChannel(Channel):
    """A channel that holds deliveries of one queue."""

    __slots__ = (
        "_first", "_last", "_settlement", "deliveries", "emptied", "limits", "on_oversized", "oversized", "queue",
        "rejected",
    )  # fmt: skip

    def __init__(self, link: Link, number: int) -> None:
        super().__init__(link, number)
        self.queue = ""
        self.deliveries: dict[int, Delivery] = {}
        """What is out on this channel, oldest first."""
        self.emptied: asyncio.Future[None] | None = None
        """Where somebody waits for it: done when nothing is out any more."""
        self.oversized = 0
        """How many deliveries over a limit came."""
        self.rejected = 0
        """How many of those it does not hold any more."""
        self.on_oversized: Callable[[Oversized, Callable[[], None]], None] | None = None
        """Told of each, with what rejects it."""
        self.limits: DeliveryLimits | None = None
        """The delivery limits of its queues; None: what goes back on it does not count."""
        self._settlement: Settlement | None = None  # the run first-last that waits for the end of the turn
        self._first = self._last = 0

    def take(self, operation: Deliver | Got) -> Delivery:
        """Lease what came."""
        delivery = Delivery(self, self.queue, operation)
        self.deliveries[delivery.number] = delivery
        if delivery.redelivered and self.limits is not None and (count := delivery_count(delivery.message)):
            delivery.returns, delivery.limit = count, self.limits.of(self.queue)
        return delivery

    def keep(self, delivery: Delivery) -> bool:
        """Have a delivery kept that must not go back; False: nobody can. It stays out on this channel until then."""
        if self.limits is None or self.limits.on_used_up is None or delivery.is_kept:
            return False
        delivery.is_kept = True
        self.limits.on_used_up(delivery)
        return True

    def _keep_instead(self, delivery: Delivery) -> bool:
        """Keep what was to be given back. The part that gave it back is done with it: the kept one is another
        object."""
        kept = copy(delivery)
        kept.at, kept.on_lost = clock.monotonic(), None
        if not self.keep(kept):
            return False
        self.deliveries[delivery.number] = kept
        return True

    def settle(self, delivery: Delivery, settlement: Settlement) -> None:
        """See :meth:`Delivery.settle`."""
        number = delivery.number
        if self.link.closing:
            raise LeaseLost("the connection that holds the delivery is being closed")
        if self.deliveries.get(number) is not delivery:
            raise LeaseLost(f"the channel that held the delivery is gone: {self.closed or 'it was given back'}")
        if settlement is Settlement.RELEASE and delivery.is_used_up and self._keep_instead(delivery):
            return
        del self.deliveries[number]
        if self.emptied is not None and not self.deliveries:
            self._tell_empty()
        if number == self._last + 1 and settlement is self._settlement and self._may_join(settlement):
            self._last = number
            return
        if self._settlement is None:
            self.link.before_flush(self._send_settlements)
        else:
            self.link.send(Settle(self.number, self._settlement, self._first, self._last))
        self._settlement = settlement
        self._first = self._last = number

    def _tell_empty(self) -> None:
        if self.emptied is not None and not self.emptied.done():
            self.emptied.set_result(None)

    def _may_join(self, settlement: Settlement) -> bool:
        return settlement is not Settlement.RELEASE or self.link.capabilities.release_many

    def _send_settlements(self) -> None:
        settlement, self._settlement = self._settlement, None
        if settlement is not None and self.usable:
            self.link.send(Settle(self.number, settlement, self._first, self._last))

    def expire(self, delivery: Delivery) -> None:
        """End a lease that lasted too long: give it back, and tell the holder."""
        self.settle(delivery, Settlement.RELEASE)
        if delivery.on_lost is not None:
            notify((delivery.on_lost,), delivery)

    def abandon(self) -> None:
        if self.usable:
            self._send_settlements()
            super().abandon()
            self._lose()

    def handle(self, operation: Operation) -> None:
        if isinstance(operation, DeliveryTooLarge):
            self.oversized += 1
            if self.on_oversized is not None:
                self.on_oversized(
                    Oversized(self.queue, operation.exchange, operation.routing_key, operation.size, operation.limit),
                    partial(self._reject, operation.delivery),
                )

    @property
    def stands(self) -> bool:
        """Nothing has cut it off: what was settled on it has reached the broker, or will. So it does when we close it,
        which goes behind that."""
        link = self.link
        return link.ended is None and not link.closing and (self.closed is None or isinstance(self.closed, StateError))

    @property
    def set_aside(self) -> int:
        """How many deliveries over a limit it holds."""
        return self.oversized - self.rejected

    def _reject(self, number: int) -> None:
        """Reject a delivery over a limit, whose queue dead-letters it."""
        if self.usable:
            self.rejected += 1
            self.link.send(Settle(self.number, Settlement.REJECT, number, number))

    def lost(self, error: GatewayError) -> None:
        self._lose()

    def _lose(self) -> None:
        """What is out goes back to its queue."""
        deliveries, self.deliveries = self.deliveries, {}
        self._settlement = None
        self._tell_empty()
        for delivery in deliveries.values():
            if delivery.on_lost is not None:
                notify((delivery.on_lost,), delivery)


def stands(channel: object) -> bool:
    """Whether a delivery's channel was not cut off, so that what was accepted on it does not come again."""
    return isinstance(channel, DeliveryChannel) and channel.stands
