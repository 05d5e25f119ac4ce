"""The upstream connection is lost, again and again: clients stay connected, and nothing is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import pytest
from msgspec.structs import replace as replace_settings

from gateway.amqp.message import Message
from gateway.amqp.operations import (
    BindQueue,
    Cancel,
    Cancelled,
    Close,
    CloseChannel,
    Confirmed,
    Consume,
    Consuming,
    Credit,
    Declared,
    DeclareExchange,
    DeclareQueue,
    DeleteQueue,
    Deliver,
    Done,
    ExchangeFound,
    Get,
    Got,
    GotNothing,
    Operation,
    Publish,
    Qos,
    QueryQueue,
    SelectConfirm,
    Settle,
    Settlement,
    TxCommit,
    TxRollback,
    TxSelect,
)
from gateway.broker.queues import Entry
from gateway.broker.server import EmbeddedBroker
from gateway.config import BrokerSettings, EmbeddedSettings, FrontSettings
from gateway.errors import GatewayError, NotFound
from gateway.front.channels.target import QPID
from gateway.front.client import FrontClient
from gateway.front.links import RelayChannel, SharedLink
from gateway.front.server import Front
from gateway.link import Channel, Link
from gateway.runtime.clock import clock
from gateway.upstreams.keeper import Dialer
from gateway.versions import VERSION_NAMES
from tests.front.fronts import ADMIN, LIMITED

MESSAGES = 400
CUTS = 5
TURNS = 20
"""The number of turns of the event loop that a question may take."""


class Recorded(Channel):
    """A client's channel that keeps what comes."""

    __slots__ = ("confirmed", "deliveries", "on_delivery", "others")

    def __init__(self, link: Link, number: int) -> None:
        super().__init__(link, number)
        self.confirmed: set[int] = set()
        self.deliveries: list[Deliver] = []
        self.others: list[Operation] = []
        self.on_delivery: Callable[[Deliver], None] | None = None

    def receive(self, operation: Operation) -> None:
        if isinstance(operation, Confirmed):
            self.confirmed.update(range(operation.first, operation.last + 1))
        super().receive(operation)

    def handle(self, operation: Operation) -> None:
        if isinstance(operation, Deliver):
            self.deliveries.append(operation)
            if self.on_delivery is not None:
                self.on_delivery(operation)
        else:
            self.others.append(operation)


class Estate:
    """A front and the broker behind it."""

    def __init__(self, broker: EmbeddedBroker, front: Front) -> None:
        self.broker = broker
        self.front = front
        self.links: list[Link] = []

    async def link(self, version: str = "0-9-1") -> Link:
        url = f"amqp://guest:guest@127.0.0.1:{self.front.port}/?version={version}"
        link = await Dialer("client", BrokerSettings(url=url)).open("client")
        self.links.append(link)
        return link

    async def channel(self, link: Link) -> Recorded:
        channel = link.channel(Recorded)
        await channel.open()
        return channel

    def cut(self) -> None:
        """End the front's connections to the broker."""
        for served in list(self.broker._served):
            served.stream.abort()

    def end(self, code: int) -> None:
        """Have the broker end them over something that a client has sent."""
        for served in list(self.broker._served):
            if served.connection is not None and served.connection.open:
                served.connection.send(Close(0, code, "INTERNAL_ERROR"), clock.monotonic())


@pytest.fixture(params=["0-9-1", "0-10"])
async def estate(request: pytest.FixtureRequest) -> AsyncIterator[Estate]:
    """With an upstream of each kind."""
    broker = EmbeddedBroker(EmbeddedSettings(port=0))
    await broker.start()
    url = f"amqp://guest:guest@127.0.0.1:{broker.port}/?version={request.param}"
    settings = FrontSettings(port=0, broker="upstream", users=(ADMIN, LIMITED))
    front = Front("test", settings, {"upstream": BrokerSettings(url=url, reconnect_min=0.01, reconnect_max=0.05)})
    await front.start()
    estate = Estate(broker, front)
    yield estate
    for link in estate.links:
        await link.close()
    await front.stop()
    await broker.stop()


async def until(done: Callable[[], bool]) -> None:
    async with asyncio.timeout(8):
        while not done():
            await asyncio.sleep(0.01)


async def seen(channel: Recorded, queue: str) -> list[bytes]:
    """All that is in the queue."""
    found = []
    while isinstance(got := await channel.request(Get(channel.number, queue, no_ack=True)), Got):
        found.append(bytes(got.message.body))
    assert isinstance(got, GotNothing)
    return found


@pytest.mark.parametrize("version", VERSION_NAMES)
async def test_what_is_confirmed_is_there(estate: Estate, version: str) -> None:
    link = await estate.link(version)
    channel = await estate.channel(link)
    await channel.request(DeclareQueue(channel.number, "kept", durable=True))
    await channel.request(SelectConfirm(channel.number))
    serials: dict[int, bytes] = {}
    for number in range(MESSAGES):
        body = b"%d" % number
        serials[channel.send(Publish(channel.number, "", "kept", Message(body)))] = body
        if number % (MESSAGES // CUTS) == 0:
            await asyncio.sleep(0.02)
            estate.cut()
    await until(lambda: serials.keys() <= channel.confirmed)
    assert link.ended is None
    bodies = await seen(await estate.channel(await estate.link()), "kept")
    assert set(bodies) == set(serials.values())
    first = {body: bodies.index(body) for body in serials.values()}
    assert sorted(first, key=lambda body: first[body]) == list(serials.values()), "the first copies are in order"


async def test_publishes_that_nobody_asks_about_survive_too(estate: Estate) -> None:
    link = await estate.link()
    channel = await estate.channel(link)
    await channel.request(DeclareQueue(channel.number, "kept", durable=True))
    for number in range(MESSAGES):
        channel.send(Publish(channel.number, "", "kept", Message(b"%d" % number)))
        if number % (MESSAGES // CUTS) == 0:
            await asyncio.sleep(0.02)
            estate.cut()
    await channel.close()  # answered behind the upstream's confirms
    other = await estate.channel(link)
    assert set(await seen(other, "kept")) == {b"%d" % number for number in range(MESSAGES)}


async def test_a_consumer_goes_on(estate: Estate) -> None:
    link = await estate.link()
    publisher, consumer = await estate.channel(link), await estate.channel(link)
    await publisher.request(DeclareQueue(publisher.number, "work", durable=True))
    await publisher.request(SelectConfirm(publisher.number))
    await consumer.request(Qos(consumer.number, 20))
    acknowledged: set[bytes] = set()

    def acknowledge(delivery: Deliver) -> None:
        acknowledged.add(bytes(delivery.message.body))
        consumer.send(Settle(consumer.number, Settlement.ACCEPT, delivery.delivery, delivery.delivery))

    consumer.on_delivery = acknowledge
    await consumer.request(Consume(consumer.number, "work", "tag"))
    for number in range(MESSAGES):
        publisher.send(Publish(publisher.number, "", "work", Message(b"%d" % number)))
        if number % (MESSAGES // CUTS) == 0:
            await asyncio.sleep(0.02)
            estate.cut()
    await until(lambda: len(acknowledged) == MESSAGES)
    assert link.ended is None
    assert not consumer.others
    queue = estate.broker.broker.virtual_host("/").queues["work"]
    await until(lambda: not queue.ready)


async def test_a_consumer_that_is_being_canceled_does_not_begin_again(
    estate: Estate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RabbitMQ ends the connection over a cancel that comes before its answer to the consume."""
    channel = await estate.channel(await estate.link())
    await channel.request(DeclareQueue(channel.number, "work", durable=True))
    for tag in ("a", "b"):
        await channel.request(Consume(channel.number, "work", tag))
    ((relayed,),) = (client.channels.values() for client in estate.front.clients.values())
    assert isinstance(relayed.up, RelayChannel)
    relayed.up.front = None  # the broker's answers are lost from now on
    canceled = channel.request(Cancel(channel.number, "a"))
    await until(lambda: any(isinstance(request, Cancel) for request in relayed.sent.values()))
    sent: list[Operation] = []
    send = RelayChannel.send
    monkeypatch.setattr(
        RelayChannel, "send", lambda self, operation: (sent.append(operation), send(self, operation))[1]
    )
    estate.cut()
    await canceled
    assert [each.consumer_tag for each in sent if isinstance(each, Consume | Cancel)] == ["b"]
    channel.send(Publish(channel.number, "", "work", Message(b"m")))
    await until(lambda: [delivery.consumer_tag for delivery in channel.deliveries] == ["b"])


async def test_exclusive_queues_come_back_with_their_bindings(estate: Estate) -> None:
    link = await estate.link()
    channel = await estate.channel(link)
    declared = await channel.request(DeclareQueue(channel.number, "", exclusive=True))
    assert isinstance(declared, Declared)
    await channel.request(DeclareExchange(channel.number, "logs", "fanout", durable=True))
    await channel.request(BindQueue(channel.number, declared.queue, "logs"))
    await channel.request(Consume(channel.number, declared.queue, "tag"))
    estate.cut()
    await asyncio.sleep(0.05)
    other = await estate.channel(link)
    await other.request(SelectConfirm(other.number))
    serial = other.send(Publish(other.number, "logs", "any", Message(b"still here")))
    await until(lambda: serial in other.confirmed)
    await until(lambda: bool(channel.deliveries))
    assert channel.deliveries[0].message.body == b"still here"
    assert not channel.others


async def test_queues_of_a_client_that_leaves_as_they_come_back_are_deleted(
    estate: Estate, monkeypatch: pytest.MonkeyPatch
) -> None:
    stays, leaves = [await estate.channel(await estate.link()) for _ in range(2)]
    await stays.request(DeclareQueue(stays.number, "kept", exclusive=True))
    await leaves.request(DeclareQueue(leaves.number, "mine", exclusive=True))
    declare = SharedLink._declare

    async def slow(self: SharedLink, link: Link, client: FrontClient) -> None:
        await declare(self, link, client)
        if "mine" in client.topology.queues:
            leaves.link.stream.abort()  # type: ignore[union-attr]
            await until(lambda: len(estate.front.clients) == 1)

    monkeypatch.setattr(SharedLink, "_declare", slow)
    estate.cut()
    ((upstream,),) = estate.front.pool.links.values()
    await until(lambda: upstream.restores == 1)
    assert set(estate.broker.broker.virtual_host("/").queues) == {"kept"}


async def test_a_delivery_of_before_is_void_and_comes_again(estate: Estate) -> None:
    link = await estate.link()
    channel = await estate.channel(link)
    await channel.request(DeclareQueue(channel.number, "work", durable=True))
    channel.send(Publish(channel.number, "", "work", Message(b"once more")))
    await channel.request(Consume(channel.number, "work", "tag"))
    await until(lambda: len(channel.deliveries) == 1)
    estate.cut()
    await until(lambda: len(channel.deliveries) == 2)
    old, again = channel.deliveries
    assert again.redelivered
    channel.send(Settle(channel.number, Settlement.ACCEPT, old.delivery, old.delivery))
    channel.send(Settle(channel.number, Settlement.ACCEPT, again.delivery, again.delivery))
    await until(lambda: estate.front.counts.of("deliveries").get("void") == 1)
    await channel.close()
    assert not await seen(await estate.channel(link), "work")


@pytest.mark.parametrize("version", VERSION_NAMES)
async def test_a_question_under_way_is_asked_again(estate: Estate, version: str) -> None:
    channel = await estate.channel(await estate.link(version))
    await channel.request(DeclareQueue(channel.number, "work", durable=True))
    for turns in range(TURNS):
        question = channel.request(QueryQueue(channel.number, "work"))
        for _ in range(turns):
            await asyncio.sleep(0)
        estate.cut()
        assert isinstance(await question, Declared)
    assert channel.closed is None


@pytest.mark.parametrize("estate", ["0-9-1"], indirect=True)
async def test_a_question_is_asked_again_where_the_broker_ends_the_connection_over_another_request(
    estate: Estate,
) -> None:
    channel = await estate.channel(await estate.link("0-10"))
    await channel.request(DeclareQueue(channel.number, "work", durable=True))
    for turns in range(TURNS):
        question = channel.request(QueryQueue(channel.number, "work"))
        for _ in range(turns):
            await asyncio.sleep(0)
        estate.end(541)
        assert isinstance(await question, Declared)
    assert channel.closed is None


def questions() -> int:
    return sum(task.get_name() == "front question" for task in asyncio.all_tasks())


@pytest.mark.parametrize("estate", ["0-9-1"], indirect=True)
async def test_nothing_is_asked_for_a_client_that_has_gone(estate: Estate) -> None:
    link = await estate.link("0-10")
    channel = await estate.channel(link)
    await channel.request(DeclareQueue(channel.number, "work", durable=True))
    channel.request(QueryQueue(channel.number, "work"))
    async with asyncio.timeout(8):
        while not questions():
            await asyncio.sleep(0)
    for listener in estate.broker._listeners:
        listener.close()
    estate.cut()
    await asyncio.sleep(0.3)
    assert questions() == 1, "it waits for the broker"
    assert link.stream is not None
    link.stream.abort()
    await until(lambda: not questions())


@pytest.fixture
def forgets(monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker forgets what it has delivered before, as Broker-J does in a crash."""
    monkeypatch.setattr(Entry, "redelivered", property(lambda entry: False, lambda entry, value: None))


@pytest.mark.usefixtures("forgets")
async def test_what_the_broker_forgot_is_marked_as_redelivered(estate: Estate) -> None:
    """Held, just acknowledged, taken by a get, or held in a channel that is over: all may come again."""
    link = await estate.link()
    channel, getter = await estate.channel(link), await estate.channel(link)
    await channel.request(DeclareQueue(channel.number, "work", durable=True))
    for number in range(10):
        channel.send(Publish(channel.number, "", "work", Message(b"%d" % number)))
    got = [await getter.request(Get(getter.number, "work")) for _ in range(2)]
    assert [each.redelivered for each in got if isinstance(each, Got)] == [False, False]
    await channel.request(Qos(channel.number, 4))
    await channel.request(Consume(channel.number, "work", "tag"))
    await until(lambda: len(channel.deliveries) == 4)
    await getter.close()
    estate.cut()
    await until(lambda: len(channel.deliveries) == 8)
    before, again = channel.deliveries[:4], channel.deliveries[4:]
    assert not any(each.redelivered for each in before)
    assert [(bytes(each.message.body), each.redelivered) for each in again] == [(b"%d" % n, True) for n in range(4)]
    channel.send(Settle(channel.number, Settlement.ACCEPT, again[0].delivery, again[-1].delivery))
    await until(lambda: len(channel.deliveries) == 12)
    assert [(bytes(each.message.body), each.redelivered) for each in channel.deliveries[8:]] == [
        (b"%d" % number, number < 6) for number in range(4, 8)
    ]
    await channel.request(SelectConfirm(channel.number))
    same = channel.send(Publish(channel.number, "", "work", Message(b"0")))  # its acknowledgement may be lost, too
    await until(lambda: same in channel.confirmed)
    estate.cut()
    await until(lambda: len(channel.deliveries) == 16)
    channel.send(Settle(channel.number, Settlement.ACCEPT, 0, channel.deliveries[15].delivery))
    await until(lambda: len(channel.deliveries) == 19)
    assert [(bytes(each.message.body), each.redelivered) for each in channel.deliveries[12:]] == [
        *((b"%d" % number, True) for number in range(4, 8)),
        (b"8", False),
        (b"9", False),
        (b"0", True),
    ]
    assert estate.front.counts.of("deliveries")["marked"] == 4 + 2 + 4 + 1


@pytest.mark.usefixtures("forgets")
async def test_nothing_is_marked_without_a_loss(estate: Estate) -> None:
    """Two messages that are the same are two messages, and each queue has its own."""
    link = await estate.link()
    channel = await estate.channel(link)
    for queue in ("one", "two"):
        await channel.request(DeclareQueue(channel.number, queue, durable=True))
        await channel.request(Consume(channel.number, queue, queue, no_ack=True))
    for queue in ("one", "two", "one"):
        channel.send(Publish(channel.number, "", queue, Message(b"ping")))
    await until(lambda: len(channel.deliveries) == 3)
    assert not any(each.redelivered for each in channel.deliveries)


async def test_a_transaction_that_loses_its_upstream_is_aborted(estate: Estate) -> None:
    link = await estate.link()
    channel = await estate.channel(link)
    await channel.request(DeclareQueue(channel.number, "work", durable=True))
    await channel.request(TxSelect(channel.number))
    channel.send(Publish(channel.number, "", "work", Message(b"never")))
    await asyncio.sleep(0.05)
    estate.cut()
    with pytest.raises(GatewayError, match="lost within a transaction"):
        await channel.request(TxCommit(channel.number))
    assert link.ended is None
    assert not await seen(await estate.channel(link), "work")


async def test_a_consumer_whose_queue_is_gone_is_canceled(estate: Estate) -> None:
    link = await estate.link()
    channel = await estate.channel(link)
    for name in ("stays", "goes"):
        await channel.request(DeclareQueue(channel.number, name, durable=True))
        await channel.request(Consume(channel.number, name, name))
    ((shared,),) = estate.front.pool.links.values()
    restore = shared.keeper._up

    async def lose_a_queue(upstream: Link) -> None:
        """Have the queue gone before anything is restored."""
        url = f"amqp://guest:guest@127.0.0.1:{estate.broker.port}/?version=0-9-1"
        direct = await Dialer("direct", BrokerSettings(url=url)).open("direct")
        deleting = await estate.channel(direct)
        await deleting.request(DeleteQueue(deleting.number, "goes"))
        await direct.close()
        await restore(upstream)

    shared.keeper._up = lose_a_queue
    estate.cut()
    await until(lambda: any(isinstance(each, Cancelled) for each in channel.others))
    other = await estate.channel(link)
    other.send(Publish(other.number, "", "stays", Message(b"to the one that stays")))
    await until(lambda: bool(channel.deliveries))
    assert link.ended is None


async def test_another_node_takes_over() -> None:
    """A node of the broker ends, the front connects to another one, and clients stay connected."""
    nodes = [EmbeddedBroker(EmbeddedSettings(port=0)) for _ in range(2)]
    for node in nodes:
        await node.start()
    url = f"amqp://guest:guest@127.0.0.1:{nodes[0].port}/?version=0-9-1"
    hosts = (f"127.0.0.1:{nodes[1].port}",)
    upstream = BrokerSettings(url=url, hosts=hosts, reconnect_min=0.01, reconnect_max=0.05)
    front = Front("test", FrontSettings(port=0, broker="upstream", users=(ADMIN,)), {"upstream": upstream})
    await front.start()
    estate = Estate(nodes[0], front)
    try:
        link = await estate.link()
        channel = await estate.channel(link)
        await channel.request(DeclareQueue(channel.number, "mine", exclusive=True))
        await channel.request(Consume(channel.number, "mine", "tag"))
        await nodes[0].stop()
        await channel.request(SelectConfirm(channel.number))
        serial = channel.send(Publish(channel.number, "", "mine", Message(b"on the other node")))
        await until(lambda: serial in channel.confirmed)
        await until(lambda: bool(channel.deliveries))
        assert link.ended is None
        assert "mine" in nodes[1].broker.virtual_host("/").queues
    finally:
        for each in estate.links:
            await each.close()
        await front.stop()
        for node in nodes:
            await node.stop()


async def test_confirm_mode_begins_behind_what_was_asked_before(estate: Estate) -> None:
    channel = await estate.channel(await estate.link())
    answered: list[str] = []
    channel.request(DeclareQueue(channel.number, "q", durable=True)).add_done_callback(lambda _: answered.append("q"))
    channel.request(SelectConfirm(channel.number)).add_done_callback(lambda _: answered.append("confirms"))
    serial = channel.send(Publish(channel.number, "", "q", Message(b"m")))
    await until(lambda: serial in channel.confirmed)
    assert answered == ["q", "confirms"]
    assert await seen(channel, "q") == [b"m"]


@pytest.mark.parametrize("leaves", [False, True])
async def test_a_publish_whose_exchange_is_asked_for_is_not_lost(estate: Estate, leaves: bool) -> None:
    """The broker is lost, or the client leaves, before the answer. The front asks brokers that would drop a publish to
    an exchange that is not there."""
    link = await estate.link()
    channel = await estate.channel(link)
    await channel.request(DeclareQueue(channel.number, "q", durable=True))
    await channel.request(BindQueue(channel.number, "q", "amq.fanout", ""))
    ((upstream,),) = estate.front.pool.links.values()
    known = replace(upstream.target.capabilities, unknown_exchange_reported=False)
    upstream.target = replace(upstream.target, capabilities=known)
    ((relayed,),) = (client.channels.values() for client in estate.front.clients.values())
    if not leaves:
        relayed.up.front = None  # the broker's answers are lost from now on
    channel.send(Publish(channel.number, "amq.fanout", "", Message(b"kept")))
    if leaves:
        await link.close()
        channel = await estate.channel(await estate.link())
    else:
        await until(lambda: relayed.asking is not None)
        estate.cut()
        await until(lambda: upstream.restores == 1)
    assert await seen(channel, "q") == [b"kept"]


class EndsWith:
    """Has the broker end the front's connections (320), or the channel (404), right behind its answer to a request."""

    def __init__(self, estate: Estate, *answers: type[Operation], channel: bool = False) -> None:
        self.done = False
        self._answers = answers
        self._channel = channel
        for served in estate.broker._served:
            session = served.session
            assert session is not None
            self._watch(session, session.send)

    def _watch(self, session: Any, send: Callable[[Operation, float], int]) -> None:
        def instead(operation: Operation, now: float) -> int:
            serial = send(operation, now)
            if isinstance(operation, self._answers) and not self.done:
                self.done = True
                if self._channel:
                    send(CloseChannel(operation.channel, 404, "NOT_FOUND"), now)
                else:
                    send(Close(0, 320, "CONNECTION_FORCED"), now)
            return serial

        session.send = instead


async def test_a_publish_whose_exchange_was_found_as_the_broker_was_lost(estate: Estate) -> None:
    channel = await estate.channel(await estate.link())
    await channel.request(DeclareQueue(channel.number, "q", durable=True))
    await channel.request(BindQueue(channel.number, "q", "amq.fanout", ""))
    ((upstream,),) = estate.front.pool.links.values()
    known = replace(upstream.target.capabilities, unknown_exchange_reported=False)
    upstream.target = replace(upstream.target, capabilities=known)
    ends = EndsWith(estate, ExchangeFound, Done)
    channel.send(Publish(channel.number, "amq.fanout", "", Message(b"kept")))
    await until(lambda: ends.done and upstream.restores == 1)
    assert await seen(channel, "q") == [b"kept"]


@pytest.mark.parametrize("estate", ["0-9-1"], indirect=True)
async def test_a_get_whose_queue_was_found_as_the_broker_was_lost(estate: Estate) -> None:
    channel = await estate.channel(await estate.link())
    await channel.request(DeclareQueue(channel.number, "q", durable=True))
    ((upstream,),) = estate.front.pool.links.values()
    upstream.target = replace(upstream.target, product=QPID)
    ends = EndsWith(estate, Declared)
    assert isinstance(await channel.request(Get(channel.number, "q")), GotNothing)
    assert ends.done


async def test_the_broker_ends_a_channel_as_the_next_publish_is_to_go(estate: Estate) -> None:
    estate.front.settings = replace_settings(estate.front.settings, publish_window=1)
    channel = await estate.channel(await estate.link())
    await channel.request(DeclareQueue(channel.number, "q", durable=True))
    EndsWith(estate, Confirmed, channel=True)
    channel.send(SelectConfirm(channel.number))
    for _ in range(3):
        channel.send(Publish(channel.number, "", "q", Message(b"m")))
    await until(lambda: channel.closed is not None)
    assert isinstance(channel.closed, NotFound), channel.closed


@pytest.mark.parametrize("estate", ["0-9-1"], indirect=True)
async def test_the_broker_is_lost_as_a_rollback_ends(estate: Estate) -> None:
    """Qpid's client gives back before it rolls back, and the front tells the broker behind the rollback."""
    channel = await estate.channel(await estate.link())
    await channel.request(DeclareQueue(channel.number, "q", durable=True))
    channel.send(Publish(channel.number, "", "q", Message(b"m")))
    other = await estate.channel(estate.links[0])
    await other.request(TxSelect(other.number))
    (client,) = estate.front.clients.values()
    client.rules = replace(client.rules, transactional_release=False)
    queue = estate.broker.broker.virtual_host("/").queues["q"]
    await until(lambda: queue.ready == 1)
    got = await other.request(Get(other.number, "q"))
    other.send(Settle(other.number, Settlement.RELEASE, got.delivery, got.delivery))
    ends = EndsWith(estate, Done)
    async with asyncio.timeout(8):
        await other.request(TxRollback(other.number))
    assert ends.done
    again = await other.request(Get(other.number, "q"))
    assert isinstance(again, Got)
    assert again.redelivered


@pytest.mark.parametrize("estate", ["0-9-1"], indirect=True)
async def test_the_broker_is_lost_as_a_consumer_begins_that_is_to_be_flushed(estate: Estate) -> None:
    channel = await estate.channel(await estate.link("0-10"))
    await channel.request(DeclareQueue(channel.number, "q", durable=True))
    (client,) = estate.front.clients.values()
    (relayed,) = client.channels.values()
    ends = EndsWith(estate, Consuming)
    begun = channel.request(Consume(channel.number, "q", "tag"))
    await until(lambda: "tag" in relayed.consumers)
    client.host.begin()
    client.receive([Credit(relayed.number, "tag", None, None, flush=True)], client.now)
    assert relayed.flushing
    async with asyncio.timeout(8):
        await begun
    assert ends.done
    await until(lambda: not relayed.flushing)
    assert channel.closed is None
