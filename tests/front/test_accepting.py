"""Deliveries that a client accepts one by one are accepted at the broker as one, where they follow each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gateway.amqp.message import Message
from gateway.amqp.operations import (
    Cancel,
    CloseChannel,
    Consume,
    DeclareQueue,
    Deliver,
    Operation,
    Publish,
    QueryQueue,
    SelectConfirm,
    Settle,
    Settlement,
)
from gateway.broker.server import EmbeddedBroker
from gateway.config import BrokerSettings, EmbeddedSettings, FrontSettings
from gateway.errors import StateError
from gateway.front.links import RelayChannel
from gateway.front.server import Front
from gateway.link import Channel, Link
from gateway.upstreams.keeper import Dialer
from tests.front.fronts import ADMIN
from tests.front.test_store import until


class Wire:
    """What a relay channel needs of a link."""

    def __init__(self) -> None:
        self.sent: list[Operation] = []
        self.calls: list[Callable[[], None]] = []
        self.closing = False
        self.refuses = False

    def send(self, operation: Operation) -> int:
        if self.refuses:
            raise StateError("the channel is closing")
        self.sent.append(operation)
        return len(self.sent)

    def before_flush(self, call: Callable[[], None]) -> None:
        self.calls.append(call)

    def flush(self) -> None:
        calls, self.calls = self.calls, []
        for call in calls:
            call()


@pytest.fixture
def wire() -> Wire:
    return Wire()


@pytest.fixture
def relay(wire: Wire) -> RelayChannel:
    channel: Any = wire
    return RelayChannel(channel, 1)


def accepted(first: int, last: int) -> Settle:
    return Settle(1, Settlement.ACCEPT, first, last)


def test_what_follows_each_other_is_one(wire: Wire, relay: RelayChannel) -> None:
    for number in (1, 2, 3, 5, 6, 4, 9):
        relay.accept(number)
    assert len(wire.calls) == 1
    wire.flush()
    assert wire.sent == [accepted(1, 3), accepted(5, 6), accepted(4, 4), accepted(9, 9)]
    relay.accept(10)
    wire.flush()
    assert wire.sent[4:] == [accepted(10, 10)]


def test_it_goes_ahead_of_what_is_sent_later(wire: Wire, relay: RelayChannel) -> None:
    relay.accept(1)
    relay.accept(2)
    relay.send(Cancel(1, "tag"))
    relay.accept(3)
    relay.detach()
    wire.flush()
    assert wire.sent == [accepted(1, 2), Cancel(1, "tag"), accepted(3, 3), CloseChannel(1)]


def test_nothing_is_sent_on_what_is_over(wire: Wire, relay: RelayChannel) -> None:
    relay.accept(1)
    wire.refuses = True
    wire.flush()
    wire.refuses = False
    relay.accept(2)
    relay.end(StateError("lost"))
    wire.flush()
    assert wire.sent == []


class Taking(Channel):
    """A client's channel that accepts deliveries one by one."""

    __slots__ = ("taken",)

    def __init__(self, link: Link, number: int) -> None:
        super().__init__(link, number)
        self.taken: list[int] = []

    def handle(self, operation: Operation) -> None:
        if isinstance(operation, Deliver):
            self.taken.append(int(bytes(operation.message.body)))
            self.send(Settle(self.number, Settlement.ACCEPT, operation.delivery, operation.delivery))


@pytest.mark.parametrize("version", ["0-8", "0-9-1", "0-10"])
async def test_the_queue_is_empty_in_the_end(version: str) -> None:
    """With every kind of upstream, and two consumers on one channel."""
    broker = EmbeddedBroker(EmbeddedSettings(port=0))
    await broker.start()
    url = f"amqp://guest:guest@127.0.0.1:{broker.port}/?version={version}"
    front = Front(
        "test", FrontSettings(port=0, broker="upstream", users=(ADMIN,)), {"upstream": BrokerSettings(url=url)}
    )
    await front.start()
    link = await Dialer("client", BrokerSettings(url=f"amqp://guest:guest@127.0.0.1:{front.port}/?version=0-9-1")).open(
        "client"
    )
    channel = link.channel(Taking)
    await channel.open()
    for queue in ("p", "q"):
        await channel.request(DeclareQueue(channel.number, queue, durable=True))
        await channel.request(Consume(channel.number, queue, queue))
    publisher = link.channel(Channel)
    await publisher.open()
    await publisher.request(SelectConfirm(publisher.number))
    for number in range(1_000):
        publisher.send(Publish(publisher.number, "", "pq"[number % 2], Message(b"%d" % number)))
    await until(lambda: len(channel.taken) == 1_000)
    assert sorted(channel.taken) == list(range(1_000))
    await link.close()
    await front.stop()
    link = await Dialer("judge", BrokerSettings(url=url)).open("judge")
    judge = link.channel(Channel)
    await judge.open()
    for queue in ("p", "q"):
        assert (await judge.request(QueryQueue(judge.number, queue))).message_count == 0
    await link.close()
    await broker.stop()
