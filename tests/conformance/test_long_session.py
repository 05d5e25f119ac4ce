"""200,000 deliveries on one 0-10 session of Broker-J, settled out of order, one of them held throughout: completion
of what is received must not wait for settlement, or the broker ends the session after 65,536 commands."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from gateway.amqp.message import Message, Properties
from gateway.amqp.operations import (
    Consume,
    DeclareQueue,
    DeleteQueue,
    Deliver,
    Operation,
    Publish,
    Qos,
    QueryQueue,
    SelectConfirm,
    Settle,
    Settlement,
)
from gateway.errors import GatewayError
from gateway.link import Channel, Link
from tests.conformance.conftest import FarEnd

COUNT = 200_000
PREFETCH = 2_000


class Taker(Channel):
    """Holds the first delivery and accepts the others, each batch in a random order."""

    __slots__ = ("batch", "done", "error", "held", "random", "seen")

    def __init__(self, link: Link, number: int) -> None:
        super().__init__(link, number)
        self.batch: list[int] = []
        self.held = 0
        self.seen = 0
        self.random = random.Random(7)
        self.done: asyncio.Future[None] = link.loop.create_future()

    def handle(self, operation: Operation) -> None:
        assert isinstance(operation, Deliver)
        self.seen += 1
        if not self.held:
            self.held = operation.delivery
        else:
            self.batch.append(operation.delivery)
        if len(self.batch) >= PREFETCH // 4 or self.seen == COUNT:
            self.random.shuffle(self.batch)
            for number in self.batch:
                self.link.send(Settle(self.number, Settlement.ACCEPT, number, number))
            self.batch.clear()
        if self.seen == COUNT:
            self.done.set_result(None)

    def lost(self, error: GatewayError) -> None:
        if not self.done.done():
            self.done.set_exception(error)


class Feeder(Channel):
    """Publishes within a window."""

    __slots__ = ("room",)

    def __init__(self, link: Link, number: int) -> None:
        super().__init__(link, number)
        self.room = asyncio.Semaphore(5_000)

    def receive(self, operation: Operation) -> None:
        if type(operation).__name__ == "Confirmed":
            outcome: Any = operation
            for _ in range(outcome.first, outcome.last + 1):
                self.room.release()
        else:
            super().receive(operation)


@pytest.mark.broker
@pytest.mark.long
@pytest.mark.slow
async def test_two_hundred_thousand_deliveries_on_one_session(brokerj: Any) -> None:
    end = FarEnd("brokerj", "0-10", brokerj.port, "memory")
    publishing, consuming = await end.link(), await end.link()
    feeder, taker = publishing.channel(Feeder), consuming.channel(Taker)
    plain = publishing.channel(Channel)
    for channel in (feeder, taker, plain):
        await channel.open()
    queue = end.name("long")
    await plain.request(DeclareQueue(plain.number, queue))
    await feeder.request(SelectConfirm(feeder.number))
    await taker.request(Qos(taker.number, prefetch_count=PREFETCH))
    await taker.request(Consume(taker.number, queue, "taker"))
    message = Message(b"x" * 64, Properties(delivery_mode=1))
    for _ in range(COUNT):
        await feeder.room.acquire()
        feeder.send(Publish(feeder.number, "", queue, message))
    await asyncio.wait_for(taker.done, 120)
    assert taker.seen == COUNT
    assert taker.closed is None
    taker.send(Settle(taker.number, Settlement.ACCEPT, taker.held, taker.held))
    async with asyncio.timeout(10):
        while (await plain.request(QueryQueue(plain.number, queue))).message_count:
            await asyncio.sleep(0.05)
    await plain.request(DeleteQueue(plain.number, queue))
    await end.close()
