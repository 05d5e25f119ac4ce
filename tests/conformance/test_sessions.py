"""Parts of a session that no product feature needs every day, against every broker that has them: channel.flow,
basic.recover in its forms, access tickets, bindings between exchanges."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gateway.amqp.message import Message
from gateway.amqp.operations import (
    BindExchange,
    BindQueue,
    Consume,
    DeclareExchange,
    DeclareQueue,
    DeleteExchange,
    DeleteQueue,
    Deliver,
    Done,
    Flow,
    Get,
    Operation,
    Publish,
    Recover,
    SelectConfirm,
    Settle,
    Settlement,
    UnbindExchange,
)
from gateway.errors import Unsupported
from gateway.link import Channel, Link
from gateway.upstreams.keeper import Dialer
from tests.conformance.conftest import FarEnd
from tests.upstreams.fake import until

NO_FLOW = {(kind, version) for kind in ("rabbitmq", "embedded") for version in ("0-8", "0-9", "0-9-1")}
"""RabbitMQ answers 540 to a client that stops a channel, and the embedded broker looks like RabbitMQ to our client."""


class Taking(Channel):
    """A channel that keeps what it is sent."""

    def __init__(self, link: Link, number: int) -> None:
        super().__init__(link, number)
        self.taken: list[Deliver] = []

    def handle(self, operation: Operation) -> None:
        if isinstance(operation, Deliver):
            self.taken.append(operation)

    @property
    def bodies(self) -> list[bytes]:
        return [delivery.message.body for delivery in self.taken]


async def opened(link: Link) -> Taking:
    channel = link.channel(Taking)
    await channel.open()
    return channel


@pytest.fixture
async def link(far_end: FarEnd) -> Link:
    return await far_end.link()


@pytest.fixture
async def place(far_end: FarEnd, link: Link) -> AsyncIterator[str]:
    """A queue."""
    name = far_end.name("session")
    channel = await opened(link)
    await channel.request(DeclareQueue(channel.number, name, durable=True))
    yield name
    if link.ended is None:
        await channel.request(DeleteQueue(channel.number, name))


async def put(link: Link, queue: str, *bodies: bytes) -> None:
    channel = await opened(link)
    await channel.request(SelectConfirm(channel.number))
    for body in bodies:
        await channel.request(Publish(channel.number, "", queue, Message(body)))
    await channel.close()


async def test_a_client_stops_a_channel(far_end: FarEnd, link: Link, place: str) -> None:
    channel = await opened(link)
    if (far_end.kind, far_end.version) in NO_FLOW:
        with pytest.raises(Unsupported, match=r"channel\.flow"):
            channel.send(Flow(channel.number, False))
        return
    await channel.request(Consume(channel.number, place, "tag"))
    channel.send(Flow(channel.number, False))
    other = await far_end.link()
    await put(link, place, b"1", b"2")
    await asyncio.sleep(0.3)
    assert channel.bodies == []
    channel.send(Flow(channel.number, True))
    await until(lambda: channel.bodies == [b"1", b"2"], 5.0)
    for delivery in channel.taken:
        channel.send(Settle(channel.number, Settlement.ACCEPT, delivery.delivery, delivery.delivery))
    await other.close()


FORMS: dict[tuple[str, str], list[dict[str, Any]]] = {
    ("rabbitmq", "0-8"): [{}],
    ("rabbitmq", "0-9"): [{}],
    ("rabbitmq", "0-9-1"): [{}],
    ("brokerj", "0-8"): [{}, {"requeue": False}],
    ("brokerj", "0-9"): [{}, {"requeue": False}, {"asynchronous": True}],
    ("brokerj", "0-9-1"): [{}, {"requeue": False}, {"asynchronous": True}],
    ("brokerj", "0-10"): [{}],
    ("embedded", "0-8"): [{}],
    ("embedded", "0-9"): [{}],
    ("embedded", "0-9-1"): [{}],
    ("embedded", "0-10"): [{}],
}
"""How a client may ask for what is out on its channel: 60.110 (recover; Qpid's 0-9: 60.102), 60.100
with an answer (Qpid's 0-8) or without one, and releasing it in 0-10."""


async def test_recover_in_every_form(far_end: FarEnd, link: Link, place: str) -> None:
    for form in FORMS[(far_end.kind, far_end.version)]:
        channel = await opened(link)
        await put(link, place, b"1", b"2", b"3")
        await channel.request(Consume(channel.number, place, "tag"))
        await until(lambda channel=channel: len(channel.taken) == 3, 5.0)
        first = channel.taken.pop(0)
        channel.send(Settle(channel.number, Settlement.ACCEPT, first.delivery, first.delivery))
        assert isinstance(await channel.request(Recover(channel.number, **form)), Done)
        await until(lambda channel=channel: len(channel.taken) == 4, 5.0)
        again = channel.taken[2:]
        assert sorted(delivery.message.body for delivery in again) == [b"2", b"3"], form
        assert all(delivery.redelivered for delivery in again)
        for delivery in again:
            channel.send(Settle(channel.number, Settlement.ACCEPT, delivery.delivery, delivery.delivery))
        await channel.close()
        other = await opened(link)
        answer = await other.request(DeclareQueue(other.number, place, passive=True))
        assert answer.message_count == 0, form
        await other.close()


@pytest.mark.parametrize("realm", ["/data", "/data/orders"])
async def test_tickets(far_end: FarEnd, realm: str) -> None:
    """0-8 and 0-9 as published: a ticket for each channel, shown with every method that has a place for it."""
    if far_end.version not in ("0-8", "0-9"):
        return
    link = await Dialer("tickets", far_end.settings(dialect="published", realm=realm)).open("conformance")
    far_end.links.append(link)
    channel = await opened(link)
    session: Any = link.session
    granted = session.channels[channel.number].ticket
    assert granted == {"rabbitmq": 1, "brokerj": 0, "embedded": 1}[far_end.kind]
    queue = far_end.name("ticket")
    await channel.request(DeclareQueue(channel.number, queue, durable=True))
    await put(link, queue, b"body")
    got = await channel.request(Get(channel.number, queue))
    assert got.message.body == b"body"
    channel.send(Settle(channel.number, Settlement.ACCEPT, got.delivery, got.delivery))
    await channel.request(DeleteQueue(channel.number, queue))


async def test_bindings_between_exchanges(far_end: FarEnd, link: Link, place: str) -> None:
    channel = await opened(link)
    number = channel.number
    source, destination = far_end.name("source"), far_end.name("destination")
    await channel.request(DeclareExchange(number, source, "topic"))
    await channel.request(DeclareExchange(number, destination, "fanout"))
    await channel.request(BindQueue(number, place, destination, "any"))
    if link.capabilities.exchange_bindings:
        await channel.request(BindExchange(number, destination, source, "a.*"))
        publisher = await opened(link)
        await publisher.request(SelectConfirm(publisher.number))
        for key, body in (("a.b", b"1"), ("c.d", b"2"), ("a.c", b"3")):
            await publisher.request(Publish(publisher.number, source, key, Message(body), mandatory=False))
        await channel.request(UnbindExchange(number, destination, source, "a.*"))
        await publisher.request(Publish(publisher.number, source, "a.d", Message(b"4"), mandatory=False))
        await channel.request(Consume(number, place, "tag", no_ack=True))
        await until(lambda: len(channel.bodies) == 2, 5.0)
        await asyncio.sleep(0.1)
        assert channel.bodies == [b"1", b"3"]
    else:
        assert far_end.version != "0-9-1" or far_end.kind == "brokerj"
        with pytest.raises(Unsupported):
            channel.send(BindExchange(number, destination, source, "a.*"))
    for exchange in (source, destination):
        await channel.request(DeleteExchange(number, exchange))
