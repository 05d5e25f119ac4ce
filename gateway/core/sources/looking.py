"""The first messages of a queue, for somebody who only looks.

A broker that can show messages (``Capabilities.browse``) shows them to a consumer that does not acquire them: nothing
is counted, marked or moved. A queue that goes with its last consumer would go with this one, too, so it is only looked
into while it has another, or where it is known to stay.

Of any other broker messages can only be taken and given back. They are marked as redelivered, and come back to where
they were. That is done only where the broker's management says that nothing is lost by it: a queue with a delivery
limit counts each return, and one with a maximum length may have been filled up meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from copy import copy
from dataclasses import dataclass, field
from typing import Final

from gateway.amqp.message import Message
from gateway.amqp.operations import Settlement
from gateway.errors import GatewayError, Overloaded, Unsupported
from gateway.management import Inventory, ManagementProblem
from gateway.runtime.clock import clock
from gateway.upstreams import Delivery, QueueInfo, Upstream

EMBEDDED: Final = "local-0-9-1"
"""The name by which the embedded broker's queues are looked into, whichever is given: not all of its versions have
arguments of consumers."""
NO_CONSUME: Final = "x-filter-no-consume"
"""Argument of a consumer that only looks, there."""
LOOKS_MAX: Final = 4
"""Most queues that are looked into at once."""
IDLE_SECONDS: Final = 1.0
"""A queue that shows nothing for so long has no more to show."""
WITHIN_SECONDS: Final = 10.0
"""How long a queue is looked into."""
READ_MAX: Final = 64 << 20
"""After how many bytes of bodies no more messages are looked at."""
SHOWN_MAX: Final = 4 << 20
"""Most bytes of bodies that a look keeps, of all messages together."""


@dataclass(frozen=True, slots=True)
class SeenMessage:
    """A message as it lies in its queue."""

    exchange: str
    routing_key: str
    redelivered: bool
    size: int
    """Bytes of its body."""
    message: Message
    """With the beginning of its body."""

    @property
    def is_cut(self) -> bool:
        """Whether the body is longer than what is here of it."""
        return len(self.message.body) < self.size


@dataclass(slots=True)
class Look:
    """What was seen of a queue."""

    body_max: int
    """Most bytes that are kept of a body."""
    messages: list[SeenMessage] = field(default_factory=list)
    """The first ones, the head first."""
    is_complete: bool = True
    """Whether the queue had no more messages that were ready."""
    read: int = 0
    """Bytes of all bodies that came."""
    kept: int = 0
    """Bytes of them that are here."""

    def see(self, delivery: Delivery) -> None:
        """Keep what is shown of a message, and drop the rest of its body."""
        body = delivery.message.body
        part = body[: max(0, min(self.body_max, SHOWN_MAX - self.kept))]
        self.read += len(body)
        self.kept += len(part)
        message = delivery.message
        if len(part) < len(body):
            message = copy(message)
            message.body = part
        self.messages.append(
            SeenMessage(delivery.exchange, delivery.routing_key, delivery.redelivered, len(body), message)
        )


class Looker:
    """Looks into queues, a few at a time."""

    def __init__(self, inventory: Inventory, brokers: Mapping[str, Upstream]) -> None:
        """
        Args:
            inventory: asks the management of a broker about a queue.
            brokers: those that there are now, by name.
        """
        self._brokers = brokers
        self._inventory = inventory
        self._running = 0

    async def why_not_browse(self, upstream: Upstream, info: QueueInfo, declared_auto_delete: bool | None) -> str:
        """Return why a queue cannot be shown, as a sentence; empty: it can.

        Args:
            upstream: the broker.
            info: the queue, as the broker has just described it.
            declared_auto_delete: as it was declared through the gateway; None: it was not.
        """
        if not self._shows(upstream):
            named = f"{upstream.name} ({upstream.status().product or 'unknown product'})"
            return (
                f"The broker {named} cannot show a message of a queue without handing it out: that marks the message "
                "as redelivered, and counts where the queue has a delivery limit. So the gateway takes none."
            )
        if info.consumer_count:
            return ""
        auto_delete = info.auto_delete if info.auto_delete is not None else declared_auto_delete
        if auto_delete is None:
            with suppress(ManagementProblem):
                details = await self._inventory.details(upstream.name, info.queue)
                auto_delete = details.row.auto_delete if details is not None else None
        if auto_delete:
            return (
                "The queue goes with its last consumer, and has none now: it would go with the one that looks into it. "
                "Look again while it has a consumer."
            )
        if auto_delete is None:
            return (
                "The queue has no consumer, and neither the broker nor its management says whether it goes with its "
                f"last one, such as one that looks into it. Set brokers.{upstream.name}.management, or look again "
                "while it has a consumer."
            )
        return ""

    async def why_not_take(self, upstream: Upstream, queue: str) -> str:
        """Return why messages of a queue are not taken and given back, as a sentence; empty: they may be."""
        if self._shows(upstream):
            return "The broker shows messages; none need be taken."
        try:
            details = await self._inventory.details(upstream.name, queue)
        except ManagementProblem as problem:
            return f"Whether the queue has a delivery limit is not known: {problem.reason}"
        if details is None:
            return (
                "Whether the queue has a delivery limit is not known, since a policy may set it: set "
                f"brokers.{upstream.name}.management, so that the gateway can ask."
            )
        return details.return_risk

    async def browse(self, upstream: Upstream, queue: str, limit: int, body_max: int) -> Look:
        """Look at the first messages of a queue, which stay as they are. Ask :meth:`why_not_browse` before.

        Args:
            limit: most messages.
            body_max: most bytes that are kept of a body.

        Raises:
            Overloaded: as many queues are looked into as may be.
            NotFound, AccessRefused, ResourceLocked, BrokerUnavailable: the broker does not let us.
        """
        look = Look(body_max)

        def see(delivery: Delivery) -> bool:
            if len(look.messages) == limit or look.read >= READ_MAX:
                return False
            look.see(delivery)
            return True

        look.is_complete = await self._show(upstream, queue, limit + 1, see)
        return look

    async def find(self, upstream: Upstream, queue: str, position: int) -> SeenMessage | None:
        """Look at one message of a queue, with all of its body; the queue stays as it is. Ask :meth:`why_not_browse`
        before.

        Args:
            position: its place among those that are ready; 1 is the head.

        Returns:
            The message; None: the queue has no message there, or not within :data:`READ_MAX` bytes.

        Raises:
            As :meth:`browse`.
        """
        found: SeenMessage | None = None
        passed = read = 0

        def see(delivery: Delivery) -> bool:
            nonlocal found, passed, read
            size = len(delivery.message.body)
            if passed + 1 == position:
                found = SeenMessage(
                    delivery.exchange, delivery.routing_key, delivery.redelivered, size, delivery.message
                )
                return False
            passed, read = passed + 1, read + size
            return read < READ_MAX

        await self._show(upstream, queue, position, see)
        return found

    async def _show(self, upstream: Upstream, queue: str, most: int, see: Callable[[Delivery], bool]) -> bool:
        """Have the first messages of a queue shown, until ``see`` returns False for one. Return whether there were no
        more."""
        with self._turn():
            is_complete = True
            last = clock.monotonic()
            enough = asyncio.Event()

            def arrive(delivery: Delivery) -> None:
                nonlocal last, is_complete
                last = clock.monotonic()
                if not enough.is_set() and not see(delivery):
                    is_complete = False
                    enough.set()
                delivery.message = _EMPTY
                delivery.settle(Settlement.ACCEPT)  # not a return, which Broker-J would count and mark

            if self._inventory.is_embedded(upstream.name):
                upstream = self._brokers.get(EMBEDDED, upstream)
                consumer = await upstream.consume(queue, most, arrive, arguments={NO_CONSUME: True})
            else:
                consumer = await upstream.consume(queue, most, arrive, acquired=False)
            try:
                end = last + WITHIN_SECONDS
                while not enough.is_set() and (wait := min(last + IDLE_SECONDS, end) - clock.monotonic()) > 0:
                    with suppress(TimeoutError):
                        async with asyncio.timeout(wait):
                            await enough.wait()
                if clock.monotonic() >= end:
                    is_complete = False
            finally:
                await consumer.close()
            return is_complete

    async def take_and_give_back(self, upstream: Upstream, queue: str, limit: int, body_max: int) -> Look:
        """Take the first messages of a queue, and give them back at once: they are marked as redelivered.

        Args:
            limit: most messages.
            body_max: most bytes that are kept of a body.

        Raises:
            Unsupported: something may be lost by it, or need not be taken.
            Overloaded: as many queues are looked into as may be.
            NotFound, AccessRefused, ResourceLocked, LimitExceeded, BrokerUnavailable: the broker does not let us.
        """
        if why := await self.why_not_take(upstream, queue):
            raise Unsupported(f"the gateway takes no message of the queue {queue!r} to show it. {why}")
        with self._turn():
            await upstream.check_give_back(queue)
            look = Look(body_max)
            deliveries = await upstream.fetch(queue, limit, 0.0, READ_MAX)
            for delivery in reversed(deliveries):
                with suppress(GatewayError):  # its channel is gone, and it is back in its queue
                    delivery.settle(Settlement.RELEASE)
            for delivery in deliveries:
                look.see(delivery)
                delivery.message = _EMPTY
            look.is_complete = len(deliveries) < limit and look.read < READ_MAX
            return look

    def _shows(self, upstream: Upstream) -> bool:
        """Whether the broker can show messages. The embedded one can by one of its names."""
        capabilities = upstream.capabilities
        return (capabilities is not None and capabilities.browse) or self._inventory.is_embedded(upstream.name)

    @contextmanager
    def _turn(self) -> Iterator[None]:
        if self._running >= LOOKS_MAX:
            raise Overloaded(f"{LOOKS_MAX} queues are looked into now; ask again")
        self._running += 1
        try:
            yield
        finally:
            self._running -= 1


_EMPTY: Final = Message(b"")
