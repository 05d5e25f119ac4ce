"""What only 0-10 has: browsing and acquiring, queries of all kinds, sessions that outlive their connection. On bare
links to Broker-J and to the embedded broker."""

from __future__ import annotations

import asyncio

import pytest

from gateway.amqp.message import Message
from gateway.amqp.operations import (
    Acquire,
    Acquired,
    BindingFound,
    BindQueue,
    Cancel,
    Consume,
    Consuming,
    Declared,
    DeclareExchange,
    DeclareQueue,
    Deliver,
    Detach,
    Detached,
    Done,
    ExchangeFound,
    Get,
    Got,
    GotNothing,
    OpenChannel,
    Operation,
    Publish,
    QueryBinding,
    QueryExchange,
    QueryQueue,
    Resume,
    Resumed,
    SelectConfirm,
    Settle,
    Settlement,
)
from gateway.errors import BrokerUnavailable, NotFound, RemoteError, StateError
from gateway.link import Channel, Link
from tests.conformance.conftest import FarEnd

pytestmark = pytest.mark.parametrize(
    "far_end",
    [
        pytest.param(("brokerj", "0-10"), marks=pytest.mark.broker, id="brokerj"),
        pytest.param(("embedded", "0-10"), id="embedded"),
    ],
    indirect=True,
)


class Listening(Channel):
    """A channel that keeps what it hears."""

    __slots__ = ("heard", "rings")

    def __init__(self, link: Link, number: int) -> None:
        super().__init__(link, number)
        self.heard: list[Operation] = []
        self.rings = asyncio.Event()

    def handle(self, operation: Operation) -> None:
        self.heard.append(operation)
        self.rings.set()

    async def hear(self, count: int) -> list[Operation]:
        async with asyncio.timeout(10):
            while len(self.heard) < count:
                self.rings.clear()
                await self.rings.wait()
        return self.heard


async def opened(link: Link) -> Listening:
    channel = link.channel(Listening)
    await channel.open()
    return channel


async def filled(channel: Channel, far_end: FarEnd, bodies: list[bytes]) -> str:
    """A new queue with these messages."""
    name = far_end.name("queue")
    await channel.request(DeclareQueue(channel.number, name))
    for body in bodies:
        channel.send(Publish(channel.number, "", name, Message(body)))
    await channel.request(SelectConfirm(channel.number))
    return name


async def test_browsed_messages_stay_and_may_be_acquired(far_end: FarEnd) -> None:
    link = await far_end.link()
    plain, browser = await opened(link), await opened(link)
    name = await filled(plain, far_end, [b"1", b"2", b"3"])
    consuming = await browser.request(Consume(browser.number, name, "b", acquired=False))
    assert isinstance(consuming, Consuming)
    shown = [each for each in await browser.hear(3) if isinstance(each, Deliver)]
    assert [each.message.body for each in shown] == [b"1", b"2", b"3"]

    got = await plain.request(Get(plain.number, name))
    assert isinstance(got, Got)
    assert got.message.body == b"1"  # which the browser has left where it was
    first, _, last = (each.delivery for each in shown)
    acquired = await browser.request(Acquire(browser.number, ((first, last),)))
    assert isinstance(acquired, Acquired)
    assert acquired.deliveries == ((first + 1, last),), "somebody else has the first one"
    assert isinstance(await plain.request(Get(plain.number, name)), GotNothing)
    browser.send(Settle(browser.number, Settlement.ACCEPT, first + 1, last))
    browser.send(Settle(browser.number, Settlement.RELEASE, first, first))
    await browser.request(Cancel(browser.number, "b"))
    await browser.close()
    plain.send(Settle(plain.number, Settlement.RELEASE, got.delivery, got.delivery))
    again = await plain.request(Get(plain.number, name))
    assert isinstance(again, Got)
    assert again.message.body == b"1"
    plain.send(Settle(plain.number, Settlement.ACCEPT, again.delivery, again.delivery))
    assert isinstance(await plain.request(Get(plain.number, name)), GotNothing)


async def test_only_what_is_outstanding_is_acquired(far_end: FarEnd) -> None:
    channel = await opened(await far_end.link())
    with pytest.raises(StateError, match=r"deliveries 7\.\.7 are not outstanding"):
        channel.request(Acquire(channel.number, ((7, 7),)))


async def test_queries(far_end: FarEnd) -> None:
    channel = await opened(await far_end.link())
    queue = await filled(channel, far_end, [b"1", b"2"])
    exchange = far_end.name("exchange")
    await channel.request(DeclareExchange(channel.number, exchange, "topic", durable=True))
    await channel.request(BindQueue(channel.number, queue, exchange, "a.*"))

    found = await channel.request(QueryExchange(channel.number, exchange))
    assert isinstance(found, ExchangeFound)
    assert (found.type, found.durable) == ("topic", True)
    with pytest.raises(NotFound):
        await channel.request(QueryExchange(channel.number, "not-there"))
    declared = await channel.request(QueryQueue(channel.number, queue))
    assert isinstance(declared, Declared)
    assert (declared.queue, declared.message_count, declared.durable) == (queue, 2, False)
    with pytest.raises(NotFound):
        await channel.request(QueryQueue(channel.number, "not-there"))

    for question, answer in {
        (exchange, queue, "a.*"): (True, True, True, True, True),
        (exchange, queue, None): (True, True, True, True, True),
        (exchange, queue, "b"): (True, True, False, False, True),
        (exchange, "not-there", None): (True, False, False, False, False),
        ("not-there", queue, None): (False, True, False, False, False),
    }.items():
        bound = await channel.request(QueryBinding(channel.number, *question))
        assert isinstance(bound, BindingFound)
        found_all = bound.exchange_found and bound.queue_found
        assert (bound.exchange_found, bound.queue_found, bound.matched) == answer[:3], question
        if found_all:
            assert (bound.key_matched, bound.arguments_matched) == answer[3:], question


async def test_message_resume(far_end: FarEnd) -> None:
    channel = await opened(await far_end.link())
    if far_end.kind == "brokerj":  # which completes it without an answer
        with pytest.raises(RemoteError, match=r"message\.resume") as caught:
            await channel.request(Resume(channel.number, "amq.direct", "unknown"))
        assert caught.value.reply_code == 540
        return
    resumed = await channel.request(Resume(channel.number, "amq.direct", "unknown"))
    assert isinstance(resumed, Resumed)
    assert resumed.offset == 0
    with pytest.raises(NotFound):
        await channel.request(Resume(channel.number, "not-there", "unknown"))


async def _moved(channel: Listening, far_end: FarEnd) -> tuple[Link, Listening]:
    """The session of the channel, detached on purpose, on another connection."""
    channel.send(Detach(channel.number))
    (detached,) = await channel.hear(1)
    assert isinstance(detached, Detached)
    link = await far_end.link()
    back = link.channel(Listening)
    assert isinstance(await back.request(OpenChannel(back.number, state=detached.state)), Done)
    return link, back


async def test_a_session_outlives_its_connection_or_is_refused(far_end: FarEnd) -> None:
    link = await far_end.link()
    channel = link.channel(Listening)
    if far_end.kind == "brokerj":  # timeout 0 is all that it grants
        with pytest.raises(RemoteError, match=r"session\.request-timeout") as caught:
            await channel.request(OpenChannel(channel.number, timeout=30))
        assert caught.value.reply_code == 540
        return
    assert isinstance(await channel.request(OpenChannel(channel.number, timeout=30)), Done)
    name = await filled(channel, far_end, [])
    assert link.stream is not None
    lost = [channel.request(Publish(channel.number, "", name, Message(b"%d" % number))) for number in range(3)]
    link.stream.abort()  # before anything of it is written
    (detached,) = await channel.hear(1)
    assert isinstance(detached, Detached)
    with pytest.raises(BrokerUnavailable):
        await lost[0]

    again = await far_end.link()
    back = again.channel(Listening)
    assert isinstance(await back.request(OpenChannel(back.number, state=detached.state)), Done)
    channel, again, back = back, *await _moved(back, far_end)
    assert channel.closed is not None
    last = await back.request(Publish(back.number, "", name, Message(b"3")))
    assert last.last == last.first
    bodies = []
    while isinstance(got := await back.request(Get(back.number, name, no_ack=True)), Got):
        bodies.append(got.message.body)
    assert bodies == [b"0", b"1", b"2", b"3"]
