"""Our link: publish with confirms in a window; consume and acknowledge."""

from __future__ import annotations

import asyncio

import uvloop

from gateway.config import BrokerSettings
from gateway.errors import GatewayError
from gateway.link import Channel, Link
from gateway.message import Message, Properties
from gateway.operations import (
    Confirmed,
    Consume,
    DeclareQueue,
    Deliver,
    Operation,
    Publish,
    Qos,
    SelectConfirm,
    Settle,
    Settlement,
)
from gateway.upstreams.keeper import Dialer
from tests.benchmarks.measure import Measured, stopwatch


class Bench(Channel):
    """A channel that publishes so many messages, or takes so many and acknowledges them."""

    __slots__ = ("ack_every", "done", "message", "queue", "received", "to_publish", "unconfirmed")

    def start(self, queue: str, message: Message, number: int, ack_every: int) -> None:
        """What it is to do; ``done`` is its end."""
        self.queue, self.message = queue, message
        self.to_publish = self.unconfirmed = self.received = number
        self.ack_every = ack_every
        self.done: asyncio.Future[None] = self.link.loop.create_future()

    def publish(self, number: int) -> None:
        """Publish so many more, if so many are left."""
        send, channel, queue, message = self.link.send, self.number, self.queue, self.message
        number = min(number, self.to_publish)
        self.to_publish -= number
        for _ in range(number):
            send(Publish(channel, "", queue, message))

    def receive(self, operation: Operation) -> None:
        """Confirms make room for more; deliveries are acknowledged a run at a time."""
        if isinstance(operation, Confirmed):
            number = operation.last - operation.first + 1
            self.unconfirmed -= number
            self.publish(number)
            if not self.unconfirmed:
                self.done.set_result(None)
        elif isinstance(operation, Deliver):
            self.received -= 1
            if self.received % self.ack_every == 0:
                first = max(1, operation.delivery - self.ack_every + 1)
                self.link.send(Settle(self.number, Settlement.ACCEPT, first, operation.delivery))
            if not self.received:
                self.done.set_result(None)
        else:
            super().receive(operation)

    def lost(self, error: GatewayError) -> None:
        """The benchmark is over."""
        if not self.done.done():
            self.done.set_exception(error)


def run(url: str, queue: str, body: bytes, number: int, window: int, ack_every: int) -> tuple[Measured, Measured]:
    """Publish ``number`` messages and take them back."""
    return uvloop.run(_run(url, queue, body, number, window, ack_every))


async def _run(
    url: str, queue: str, body: bytes, number: int, window: int, ack_every: int
) -> tuple[Measured, Measured]:
    dialer = Dialer("bench", BrokerSettings(url=url))
    message = Message(body, Properties(content_type="text/plain", delivery_mode=1))
    link: Link = await dialer.open("bench")
    channel = link.channel(Bench)
    channel.start(queue, message, number, ack_every)
    await channel.open()
    await channel.request(DeclareQueue(channel.number, queue))
    await channel.request(SelectConfirm(channel.number))
    with stopwatch() as publishing:
        channel.publish(window)
        await channel.done
    await link.close()

    link = await dialer.open("bench")
    channel = link.channel(Bench)
    channel.start(queue, message, number, ack_every)
    await channel.open()
    await channel.request(Qos(channel.number, prefetch_count=window))
    with stopwatch() as consuming:
        await channel.request(Consume(channel.number, queue, "bench"))
        await channel.done
    await channel.close()
    await link.close()
    return (
        Measured("", "gateway", number, publishing.seconds, publishing.cpu),
        Measured("", "gateway", number, consuming.seconds, consuming.cpu),
    )
