"""Rejecting a delivery so that it ends at a dead-letter destination, or stays where it is.

Reject at the broker is enough where the broker dead-letters natively and the queue names a destination that exists, or
where the caller states that its queue dead-letters. What a queue's arguments are is known from 0-10, which tells them,
and of queues that were declared here; a policy is not visible. Elsewhere the gateway publishes a copy, and accepts the
delivery once that is confirmed: a crash in between leaves two copies and never none. Where neither can be, the delivery
is not settled.

The copy is the message without its ``expiration``, for dead letters do not expire, and without a ``user_id`` that
is not our login, which the broker would refuse; both stay readable in the reserved header.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from gateway.amqp.message import Message
from gateway.amqp.operations import Settlement
from gateway.amqp.values import Table, Value
from gateway.errors import AccessRefused, LeaseLost, NoDeadLetterDestination, NotFound, Unroutable
from gateway.fidelity import annotate
from gateway.runtime.clock import clock
from gateway.session import Capabilities
from gateway.upstreams.consuming.deliveries import Delivery
from gateway.upstreams.publishing.publisher import Publisher
from gateway.upstreams.topology import QUEUE_KNOWN, REMEMBERED, Topology

DESTINATIONS: Final = ("x-dead-letter-exchange", "alternate-exchange")
"""Arguments of a queue that name the exchange for rejected messages."""
MAXIMA: Final = ("x-qpid-maximum-delivery-count", "maximumDeliveryAttempts")
"""Arguments of a queue of Broker-J that say after how many deliveries a message is dropped."""


class DeadLetters:
    """What is rejected on one broker."""

    def __init__(self, name: str, login: str, publisher: Publisher, topology: Topology) -> None:
        self.name = name
        self._login = login
        self._publisher = publisher
        self._topology = topology
        self._known: dict[str, tuple[float, bool, int]] = {}  # queue -> until when it is known, and what

    def forget(self, queue: str) -> None:
        """The queue is gone."""
        self._known.pop(queue, None)

    async def reject(
        self,
        delivery: Delivery,
        dead_letter: tuple[str, str] | None,
        capabilities: Capabilities | None,
        *,
        native: bool = False,
    ) -> None:
        """See :meth:`gateway.upstreams.upstream.Upstream.reject`."""
        if delivery.lost:
            raise LeaseLost("the channel that held the delivery is gone")
        queue = delivery.queue
        can = capabilities is not None and capabilities.native_dead_letter
        if can and (native or await self._has_destination(queue)):
            delivery.settle(Settlement.REJECT)
            return
        if dead_letter is None:
            why = (
                f"the gateway knows no dead-letter destination of the queue {queue!r}"
                if can
                else "this broker does not dead-letter what is rejected in this version, and the subscription has no "
                "dead-letter place"
            )
            raise NoDeadLetterDestination(
                f"broker {self.name}: {why}; rejecting would drop the message, so it stays leased"
            )
        exchange, routing_key = dead_letter
        receipt = await self._publisher.publish(exchange, routing_key, self._copy(delivery.message))
        if not receipt.routed:
            raise Unroutable(f"no queue takes dead letters at {exchange!r} with {routing_key!r}: {receipt.reply_text}")
        delivery.settle(Settlement.ACCEPT)

    async def takes(self, queue: str, capabilities: Capabilities | None) -> bool:
        """Whether the broker is known to dead-letter natively what is rejected from a queue."""
        if capabilities is None or not capabilities.native_dead_letter:
            return False
        return await self._has_destination(queue)

    async def drops_after(self, queue: str, capabilities: Capabilities | None) -> int:
        """Return after how many deliveries the broker drops a message of a queue without telling their number; 0: it
        does not. Broker-J does so in 0-10, where a queue has a maximum and no dead-letter destination."""
        if capabilities is None or "qpid" not in capabilities.product.lower() or not capabilities.native_dead_letter:
            return 0
        has_destination, most = await self._look_up(queue)
        return 0 if has_destination else most

    async def _has_destination(self, queue: str) -> bool:
        return (await self._look_up(queue))[0]

    async def _look_up(self, queue: str) -> tuple[bool, int]:
        """Whether a queue is known to name a dead-letter destination that exists, and its maximum of deliveries (0:
        none). Broker-J's 0-10 keeps some arguments to itself, so what was declared here counts, too."""
        until, known, most = self._known.get(queue, (0.0, False, 0))
        now = clock.monotonic()
        if until > now:
            return known, most
        told = (await self._topology.query_queue(queue)).arguments or {}
        arguments = {**told, **self._topology.declared(queue)}
        known = await self._exists(arguments)
        most = next((count for name in MAXIMA if (count := _count(arguments.get(name)))), 0)
        if len(self._known) >= REMEMBERED:
            self._known.clear()
        self._known[queue] = (now + QUEUE_KNOWN, known, most)
        return known, most

    async def _exists(self, arguments: Table) -> bool:
        """Whether the exchange that a queue's arguments name is there; of the default exchange: the queue."""
        named = next((arguments[name] for name in DESTINATIONS if name in arguments), None)
        exchange = getattr(named, "value", named)
        if not isinstance(exchange, str):
            return False
        try:
            if exchange:
                await self._topology.query_exchange(exchange)
            elif isinstance(key := arguments.get("x-dead-letter-routing-key"), str):
                await self._topology.check_queue(key)
        except NotFound:
            return False
        except AccessRefused:
            return True  # the login may not ask
        return True

    def _copy(self, message: Message) -> Message:
        properties = message.properties
        kept: dict[str, str] = {}
        if properties.expiration is not None:
            kept["expiration"] = properties.expiration
        user = properties.user_id
        if user is not None and user not in (self._login, self._login.encode()):
            kept["user_id"] = user if isinstance(user, str) else user.decode("utf-8", "backslashreplace")
        if not kept:
            return message
        return message.altered(annotate(replace(properties, **dict.fromkeys(kept)), **kept))


def _count(value: Value) -> int:
    """A number of an argument, which may be written as text; 0: it is not a number."""
    value = getattr(value, "value", value)
    if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) < 10:
        return int(value)
    return value if type(value) is int and value > 0 else 0
