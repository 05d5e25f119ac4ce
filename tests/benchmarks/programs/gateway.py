"""Our link: publish with confirms in a window; consume and acknowledge each message by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import uvloop

from gateway.amqp.message import Message, Properties
from gateway.amqp.operations import (
    Confirmed,
    Consume,
    DeclareQueue,
    Deliver,
    Operation,
    Publish,
    Qos,
    QueryQueue,
    SelectConfirm,
    Settle,
    Settlement,
)
from gateway.config import BrokerSettings
from gateway.errors import GatewayError
from gateway.link import Channel, Link
from gateway.upstreams.keeper import Dialer
from tests.benchmarks.programs.clock import Stopwatch, answer


class Bench(Channel):
    """A channel that publishes so many messages, or takes so many and acknowledges them."""

    __slots__ = ("done", "message", "open_serials", "queues", "received", "to_publish")

    def start(self, queues: list[str], message: Message, number: int) -> None:
        """What it is to do, over the queues in turn; ``done`` is its end."""
        self.queues, self.message = queues, message
        self.to_publish = self.received = number
        self.open_serials: set[int] = set()
        self.done: asyncio.Future[None] = self.link.loop.create_future()

    def publish(self, number: int) -> None:
        """Publish so many more, if so many are left."""
        send, channel, queues, message = self.link.send, self.number, self.queues, self.message
        left, add = self.to_publish, self.open_serials.add
        count = len(queues)
        number = min(number, left)
        self.to_publish = left - number
        for at in range(left, left - number, -1):
            add(send(Publish(channel, "", queues[at % count], message)))

    def receive(self, operation: Operation) -> None:
        """Confirms make room for more; each delivery is acknowledged."""
        if isinstance(operation, Deliver):
            delivery = operation.delivery
            self.link.send(Settle(self.number, Settlement.ACCEPT, delivery, delivery))
            self.received -= 1
            if not self.received:
                self.done.set_result(None)
        elif isinstance(operation, Confirmed):
            # Confirms of several queues come out of order, and a range of them covers some a second time.
            still_open = self.open_serials
            before = len(still_open)
            still_open.difference_update(range(operation.first, operation.last + 1))
            self.publish(before - len(still_open))
            if not still_open:
                self.done.set_result(None)
        else:
            super().receive(operation)

    def lost(self, error: GatewayError) -> None:
        """It was closed before its work was done."""
        if not self.done.done():
            self.done.set_exception(error)


CHANNEL_QUEUES = 4_000
"""Most queues that a channel consumes from. The embedded broker allows 4,096 consumers of one channel."""
MESSAGE = Properties(content_type="text/plain", delivery_mode=2)


async def publish(
    dialer: Dialer, queues: list[str], job: dict[str, Any], declare: bool = True, until: Sequence[Bench] = ()
) -> Stopwatch:
    """Publish, confirmed; the queue is declared first, not on the clock, which runs until the channels ``until`` have
    taken it all as well."""
    link = await dialer.open("bench")
    channel = link.channel(Bench)
    channel.start(queues, Message(b"x" * job["size"], MESSAGE), job["number"])
    await channel.open()
    if declare:
        for queue in queues:
            await channel.request(DeclareQueue(channel.number, queue, durable=True))
    await channel.request(SelectConfirm(channel.number))
    with Stopwatch() as watch:
        channel.publish(job["window"])
        await channel.done
        for each in until:
            await each.done
        await channel.close()
    await link.close()
    return watch


async def consumers(link: Link, queues: list[str], job: dict[str, Any]) -> list[Bench]:
    """Channels that are open and ready to consume, each from at most :data:`CHANNEL_QUEUES` of the queues."""
    channels = []
    for first in range(0, len(queues), CHANNEL_QUEUES):
        part = queues[first : first + CHANNEL_QUEUES]
        channel = link.channel(Bench)
        held = (at % len(queues) for at in range(1, job["number"] + 1))  # as they are published
        channel.start(part, Message(), sum(first <= index < first + len(part) for index in held))
        await channel.open()
        await channel.request(Qos(channel.number, prefetch_count=job["window"]))
        channels.append(channel)
    return channels


async def consume(dialer: Dialer, queues: list[str], job: dict[str, Any]) -> Stopwatch:
    """Consume and acknowledge; the clock stops when the channels are closed, behind the last acknowledgement."""
    link = await dialer.open("bench")
    channels = await consumers(link, queues, job)
    with Stopwatch() as watch:
        await asyncio.gather(
            *(each.request(Consume(each.number, queue, queue)) for each in channels for queue in each.queues)
        )
        for channel in channels:
            await channel.done
            # Broker-J's 0-10 takes back what it has not carried out yet when its session is detached.
            await channel.request(QueryQueue(channel.number, channel.queues[0]))
            await channel.close()
    await link.close()
    return watch


async def _run(job: dict[str, Any]) -> dict[str, Any]:
    dialer = Dialer("bench", BrokerSettings(url=job["url"]))
    works = {}
    if "publish" in job["works"]:
        works["publish"] = (await publish(dialer, [job["queue"]], job)).result(job["number"])
    if "consume" in job["works"]:
        works["consume"] = (await consume(dialer, [job["queue"]], job)).result(job["number"])
    return answer(works)


def main(job: dict[str, Any]) -> dict[str, Any]:
    """The program."""
    return uvloop.run(_run(job))
