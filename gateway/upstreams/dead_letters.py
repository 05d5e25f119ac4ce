"""Rejecting a delivery so that it ends at a dead-letter place, or stays where it is.

Where the broker dead-letters by itself, reject is enough. Whether it does is a capability of the broker, and of the
queue: one that names no place would lose the message. 0-10 tells what a queue's arguments are. The classic versions
do not: there the broker's word holds only for a queue that was declared here with a place, or where the caller has
no place to offer. Elsewhere the gateway publishes a copy, and accepts the delivery once that is confirmed: a crash in
between leaves two copies and never none.

The copy is the message without its ``expiration``, for dead letters do not expire, and without a ``user_id`` that
is not our login, which the broker would refuse; both stay readable in the reserved header.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Final

from gateway.errors import LeaseLost, Unroutable, Unsupported
from gateway.fidelity import annotate
from gateway.message import Message
from gateway.operations import Settlement
from gateway.session import Capabilities
from gateway.upstreams.deliveries import Delivery
from gateway.upstreams.publisher import Publisher
from gateway.upstreams.topology import QUEUE_KNOWN, REMEMBERED, Topology

PLACES: Final = ("x-dead-letter-exchange", "alternate-exchange")
"""Arguments of a queue that say where rejected messages go."""


class DeadLetters:
    """What is rejected on one broker."""

    def __init__(self, name: str, login: str, publisher: Publisher, topology: Topology) -> None:
        self.name = name
        self._login = login
        self._publisher = publisher
        self._topology = topology
        self._known: dict[str, tuple[float, bool | None]] = {}  # queue -> until when it is known, and what
        self._loop = asyncio.get_running_loop()

    def forget(self, queue: str) -> None:
        """The queue is gone."""
        self._known.pop(queue, None)

    async def reject(
        self, delivery: Delivery, dead_letter: tuple[str, str] | None, capabilities: Capabilities | None
    ) -> None:
        """See :meth:`gateway.upstreams.upstream.Upstream.reject`."""
        if delivery.lost:
            raise LeaseLost("the channel that held the delivery is gone")
        if capabilities is not None and capabilities.native_dead_letter:
            named = await self._names_a_place(delivery.queue)
            if named or (named is None and dead_letter is None):
                delivery.settle(Settlement.REJECT)
                return
        if dead_letter is None:
            raise Unsupported(
                f"broker {self.name} does not dead-letter by itself what is rejected from {delivery.queue!r}, "
                "and no dead-letter place is given"
            )
        exchange, routing_key = dead_letter
        receipt = await self._publisher.publish(exchange, routing_key, self._copy(delivery.message))
        if not receipt.routed:
            raise Unroutable(f"no queue takes dead letters at {exchange!r} with {routing_key!r}: {receipt.reply_text}")
        delivery.settle(Settlement.ACCEPT)

    async def takes(self, queue: str, capabilities: Capabilities | None) -> bool:
        """Whether the broker is known to dead-letter by itself what is rejected from a queue."""
        if capabilities is None or not capabilities.native_dead_letter:
            return False
        return await self._names_a_place(queue) is True

    async def _names_a_place(self, queue: str) -> bool | None:
        """Whether a queue says where its rejected messages go; None: that cannot be known, since the version does not
        tell and it was not declared here. Broker-J's 0-10 keeps that argument to itself, so what was declared here
        counts."""
        until, known = self._known.get(queue, (0.0, False))
        now = self._loop.time()
        if until > now:
            return known
        told = (await self._topology.query_queue(queue)).arguments
        declared = self._topology.declared(queue)
        known = any(name in declared or (told is not None and name in told) for name in PLACES)
        if not known and told is None:
            known = None
        if len(self._known) >= REMEMBERED:
            self._known.clear()
        self._known[queue] = (now + QUEUE_KNOWN, known)
        return known

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
