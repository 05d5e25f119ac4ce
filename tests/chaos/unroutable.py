"""F29: messages that no queue takes, on every real broker: each is reported, and none is taken for delivered.

A thousand are in flight at a time, and of four kinds in turn: to a queue; with a key that nothing is bound to; to an
exchange that is not there; through an alternate exchange to a queue. So each return races with confirms of others, in
the order that the broker has for it (RabbitMQ: return, then acknowledgement; Broker-J: refusal, then return).
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import Final
from uuid import uuid4

from gateway.amqp.message import Message, Properties
from gateway.amqp.operations import Settlement
from gateway.errors import NotFound
from gateway.upstreams import PublishReceipt, Upstream
from tests.chaos.ends import FarEnd, far_ends
from tests.chaos.figures import Figures
from tests.chaos.parts import Context

MESSAGES: Final = {False: 200, True: 20_000}
"""To each broker and version, in the quick and in the full form."""
AT_ONCE: Final = 1_000
ALTERNATE: Final = {"rabbitmq": "alternate-exchange", "brokerj": ""}
"""The argument that names one. Of Broker-J it is made with its own management, which this leaves to others."""


class Place:
    """A queue, an exchange whose keys lead nowhere, and one whose alternate leads to the queue."""

    def __init__(self, end: FarEnd, upstream: Upstream) -> None:
        self.upstream = upstream
        self.queue, self.nowhere, self.caught, self.alternate = (
            f"unroutable-{word}-{uuid4().hex[:8]}" for word in ("queue", "nowhere", "caught", "alternate")
        )
        self.missing = f"missing-{uuid4().hex[:8]}"
        self.argument = ALTERNATE[end.kind]

    async def make(self) -> None:
        """Declare them."""
        upstream = self.upstream
        await upstream.declare_queue(self.queue)
        await upstream.declare_exchange(self.nowhere, "direct")
        if self.argument:
            await upstream.declare_exchange(self.alternate, "fanout")
            await upstream.bind_queue(self.queue, self.alternate)
            await upstream.declare_exchange(self.caught, "direct", arguments={self.argument: self.alternate})

    def target(self, number: int) -> tuple[str, str, str]:
        """Exchange, key, and what must be said of it."""
        kinds = [("", self.queue, "routed"), (self.nowhere, "no such key", "returned"), (self.missing, "k", "refused")]
        if self.argument:
            kinds.append((self.caught, "no such key", "routed"))
        return kinds[number % len(kinds)]

    async def clear(self) -> None:
        """Delete them."""
        await self.upstream.delete_queue(self.queue)
        for exchange in (self.nowhere, *((self.caught, self.alternate) if self.argument else ())):
            await self.upstream.delete_exchange(exchange)


def told(outcome: PublishReceipt | BaseException) -> str:
    """What a publisher was told."""
    if isinstance(outcome, PublishReceipt):
        return "routed" if outcome.routed else "returned"
    return "refused" if isinstance(outcome, NotFound) else type(outcome).__name__


async def on(end: FarEnd, messages: int) -> Figures:
    """One broker in one version."""
    figures = Figures(f"unroutable, {end.kind} {end.version}")
    upstream = await end.upstream(publish_repeat=False)
    place = Place(end, upstream)
    await place.make()
    try:
        routed: list[bytes] = []
        said: Counter[str] = Counter()
        for first in range(0, messages, AT_ONCE):
            wanted, calls = [], []
            for number in range(first, min(first + AT_ONCE, messages)):
                exchange, key, what = place.target(number)
                body = b"%d" % number
                wanted.append((what, body))
                message = Message(body, Properties(delivery_mode=2))
                calls.append(upstream.publish(exchange, key, message, timeout=60.0))
            outcomes = await asyncio.gather(*calls, return_exceptions=True)
            for (what, body), outcome in zip(wanted, outcomes, strict=True):
                found = told(outcome)
                said[found] += 1
                figures.must(found == what, f"message {body.decode()}: {found}, not {what}")
                if found == "routed":
                    routed.append(body)
        there = await _take_all(upstream, place.queue)
    finally:
        await place.clear()
    figures.attempted = messages
    figures.acknowledged = len(routed)
    figures.lost = len(set(routed) - there.keys())
    figures.unexpected = len(there.keys() - set(routed))
    figures.duplicated = there.total() - len(there)
    figures.recovered = 0
    figures.extra = {"returned": said["returned"], "refused": said["refused"]}
    return figures


async def _take_all(upstream: Upstream, queue: str) -> Counter[bytes]:
    """Everything in the queue."""
    bodies: Counter[bytes] = Counter()
    while deliveries := await upstream.fetch(queue, 500, 0.5):
        for delivery in deliveries:
            bodies[bytes(delivery.message.body)] += 1
            delivery.settle(Settlement.ACCEPT)
    return bodies


def unroutable(context: Context) -> list[Figures]:
    """On every broker and version; one line for each."""
    found = []

    async def main() -> None:
        for end in far_ends(context):
            began = time.monotonic()
            try:
                found.append(await on(end, context.messages or MESSAGES[context.full]))
            finally:
                await end.close()
            found[-1].seconds = round(time.monotonic() - began, 1)

    asyncio.run(main())
    return found
