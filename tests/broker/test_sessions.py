"""The broker behind real sessions: every version's client against every other's, without sockets."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from gateway.amqp.message import Message, Properties
from gateway.amqp.operations import (
    BindExchange,
    BindQueue,
    Cancel,
    ChannelClosed,
    Close,
    CloseChannel,
    Closed,
    Confirmed,
    Consume,
    Consuming,
    Declared,
    DeclareExchange,
    DeclareQueue,
    DeleteExchange,
    DeleteQueue,
    Deliver,
    Done,
    Failed,
    Get,
    Got,
    GotNothing,
    OpenChannel,
    Operation,
    Publish,
    PurgeQueue,
    Qos,
    QueryBinding,
    QueryQueue,
    Recover,
    Removed,
    Request,
    Returned,
    SelectConfirm,
    Settle,
    Settlement,
    TxCommit,
    TxRollback,
    TxSelect,
    UnbindQueue,
)
from gateway.broker.broker import Broker, Connection
from gateway.session import ClientConfig, ServerConfig, Session, Version
from gateway.versions import VERSIONS
from tests.broker.clients import make_broker
from tests.pair import RANDOM, client_session, server_session

VERSIONS = list(VERSIONS)
PRODUCT = "AMQP Gateway embedded broker"


class Peer:
    """A client session, the server session that it talks to, and the broker behind that."""

    def __init__(self, broker: Broker, version: Version, password: str = "guest", virtual_host: str = "/") -> None:
        self.broker = broker
        self.version = version
        self.now = 1_000.0
        self.client: Session = client_session(
            version,
            ClientConfig(
                password=password,
                virtual_host=virtual_host,
                secure=True,
                random_octets=os.urandom,  # the name of a 0-10 session: two clients never have the same
                wall_clock=lambda: 1_700_000_000.0,
            ),
        )
        self.server: Session = server_session(
            version,
            ServerConfig(
                authenticate=broker.authenticate,
                open_virtual_host=broker.open_virtual_host,
                properties={"product": PRODUCT, "version": "1", "platform": "Python", "durable_storage": False},
                random_octets=RANDOM,
                wall_clock=lambda: 1_700_000_000.0,
            ),
        )
        self.connection: Connection = broker.connect(self.server, lambda: None)
        self.events: list[Operation] = []
        self.pump()

    def pump(self) -> list[Operation]:
        """Carry octets both ways until nobody has any; what the client was told since the last time."""
        while True:
            to_server, to_client = self.client.data_to_send(), self.server.data_to_send()
            if not to_server and not to_client:
                break
            if to_server:
                self.broker.receive(self.connection, self.server.receive_data(b"".join(to_server), self.now), self.now)
            if to_client:
                self.broker.flushed(self.connection)
                self.broker.resume(self.connection, self.now)
                self.events += self.client.receive_data(b"".join(to_client), self.now)
        events, self.events = self.events, []
        return events

    def __call__(self, *requests: Operation) -> list[Operation]:
        for request in requests:
            self.client.send(request, self.now)
        return self.pump()

    def one(self, request: Request, kind: type[Any]) -> Any:
        """The outcome of one request, of that kind."""
        (told,) = self(request)
        assert isinstance(told, kind), told
        return told

    def deliveries(self) -> list[Deliver]:
        return [told for told in self.pump() if isinstance(told, Deliver)]

    def count(self, queue: str) -> int:
        count = self.one(DeclareQueue(1, queue, passive=True), Declared).message_count
        assert isinstance(count, int)
        return count


def publish(
    routing_key: str, body: bytes = b"", exchange: str = "", mandatory: bool = True, **properties: Any
) -> Publish:
    return Publish(1, exchange, routing_key, Message(body, Properties(**properties)), mandatory)


@pytest.fixture
def broker() -> Broker:
    return make_broker()


@pytest.fixture(params=VERSIONS, ids=lambda version: version.value)
def peer(broker: Broker, request: pytest.FixtureRequest) -> Iterator[Peer]:
    peer = Peer(broker, request.param)
    peer(OpenChannel(1))
    yield peer
    assert broker.memory.used >= 0


def test_opening(broker: Broker) -> None:
    for version in VERSIONS:
        peer = Peer(broker, version)
        assert peer.client.capabilities.product == PRODUCT
        assert peer.client.capabilities.durable_storage is False
        assert not peer.client.closed
        assert peer.connection.user == "guest"


@pytest.mark.parametrize("version", VERSIONS)
def test_wrong_password(broker: Broker, version: Version) -> None:
    peer = Peer(broker, version, password="wrong")
    assert peer.client.closed
    assert not peer.connection.open


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(("name", "known"), [("", True), ("/", True), ("none", False)])
def test_virtual_hosts(broker: Broker, version: Version, name: str, known: bool) -> None:
    assert Peer(broker, version, virtual_host=name).client.closed is not known


def test_topology(peer: Peer) -> None:
    peer.one(DeclareExchange(1, "x", "topic", durable=True), Done)
    peer.one(DeclareExchange(1, "x", passive=True), Done)
    assert peer.one(DeclareQueue(1, "q", arguments={"x-max-length": 5}), Declared).queue == "q"
    peer.one(BindQueue(1, "q", "x", "k.*"), Done)
    found = peer.one(QueryQueue(1, "q"), Declared)
    assert (found.queue, found.message_count, found.consumer_count) == ("q", 0, 0)
    peer.one(UnbindQueue(1, "q", "x", "k.*"), Done)
    assert peer.one(PurgeQueue(1, "q"), Removed).message_count in (0, None)
    peer.one(DeleteQueue(1, "q"), Removed)
    peer.one(DeleteExchange(1, "x"), Done)


def test_named_by_the_server(peer: Peer) -> None:
    name = peer.one(DeclareQueue(1, "", exclusive=True, auto_delete=True), Declared).queue
    assert name
    assert peer.one(DeclareQueue(1, name, passive=True), Declared).queue == name


def test_confirmed(peer: Peer) -> None:
    peer(DeclareQueue(1, "q"))
    peer.one(SelectConfirm(1), Done)
    serials = [peer.client.send(publish("q", b"%d" % number), peer.now) for number in range(50)]
    told = peer.pump()
    assert all(isinstance(each, Confirmed) for each in told)
    assert {
        serial for each in told if isinstance(each, Confirmed) for serial in range(each.first, each.last + 1)
    } >= set(serials)
    assert peer.count("q") == 50


def test_returned(peer: Peer) -> None:
    peer(SelectConfirm(1), DeclareQueue(1, "q"))
    serials = [peer.client.send(publish(key), peer.now) for key in ("q", "nowhere", "q")]
    told = peer.pump()
    returned = [each for each in told if isinstance(each, Returned)]
    assert [(each.first, each.last, each.final) for each in returned] == [(serials[1], serials[1], True)]
    confirmed = {serial for each in told if isinstance(each, Confirmed) for serial in range(each.first, each.last + 1)}
    assert {serials[0], serials[2]} <= confirmed


def test_unknown_exchange(peer: Peer) -> None:
    peer(SelectConfirm(1))
    told = peer(publish("q", exchange="none"))
    assert any(isinstance(each, (Failed, ChannelClosed)) and each.code == 404 for each in told), told
    assert not peer.client.closed


def test_got(peer: Peer) -> None:
    peer(DeclareQueue(1, "q"), publish("q", b"1"), publish("q", b"2"))
    got = peer.one(Get(1, "q"), Got)
    assert (got.message.body, got.redelivered, got.routing_key, got.exchange) == (b"1", False, "q", "")
    peer(Settle(1, Settlement.ACCEPT, got.delivery, got.delivery))
    peer.one(Get(1, "q", no_ack=True), Got)
    peer.one(Get(1, "q"), GotNothing)
    assert peer.broker.memory.used == 0


def test_consumed_within_prefetch(peer: Peer) -> None:
    peer(DeclareQueue(1, "q"), *(publish("q", b"%d" % number) for number in range(10)))
    peer(Qos(1, 3))
    told = peer(Consume(1, "q", "tag"))
    assert [type(each) for each in told] == [Consuming, Deliver, Deliver, Deliver]
    deliveries = [each for each in told if isinstance(each, Deliver)]
    assert [each.message.body for each in deliveries] == [b"0", b"1", b"2"]
    more = peer(Settle(1, Settlement.ACCEPT, deliveries[0].delivery, deliveries[1].delivery))
    assert [each.message.body for each in more if isinstance(each, Deliver)] == [b"3", b"4"]
    peer.one(Cancel(1, "tag"), Done)
    peer(CloseChannel(1))
    peer(OpenChannel(1))
    assert peer.count("q") == 8


def test_released_and_rejected(peer: Peer) -> None:
    arguments = {"x-dead-letter-exchange": "amq.direct", "x-dead-letter-routing-key": "k"}
    peer(DeclareQueue(1, "dead"), BindQueue(1, "dead", "amq.direct", "k"), DeclareQueue(1, "q", arguments=arguments))
    peer(publish("q", b"x"), Qos(1, 1))
    _, first = peer(Consume(1, "q", "tag"))
    assert isinstance(first, Deliver)
    (again,) = peer(Settle(1, Settlement.RELEASE, first.delivery, first.delivery))
    assert isinstance(again, Deliver)
    assert again.redelivered
    peer(Settle(1, Settlement.REJECT, again.delivery, again.delivery))
    dead = peer.one(Get(1, "dead", no_ack=True), Got)
    assert (dead.message.body, dead.routing_key) == (b"x", "k")
    for version in VERSIONS:
        other = Peer(peer.broker, version)
        other(OpenChannel(1))
        assert other.one(DeclareQueue(1, "q", arguments=arguments), Declared).queue == "q"


def test_recovered(peer: Peer) -> None:
    peer(DeclareQueue(1, "q"), publish("q", b"x"))
    peer(Consume(1, "q", "tag"))
    told = peer(Recover(1))
    assert {type(each) for each in told} == {Done, Deliver}


def test_transactions(peer: Peer) -> None:
    peer(DeclareQueue(1, "q"), OpenChannel(2))
    peer.client.send(TxSelect(2), peer.now)
    peer.pump()
    message = Message(b"x", Properties())
    peer(Publish(2, "", "q", message))
    assert peer.count("q") == 0
    assert any(isinstance(told, Done) for told in peer(TxRollback(2)))
    peer(Publish(2, "", "q", message))
    assert any(isinstance(told, Done) for told in peer(TxCommit(2)))
    assert peer.count("q") == 1


def test_passive_declare_of_nothing(peer: Peer) -> None:
    told = peer(DeclareQueue(1, "none", passive=True))
    assert isinstance(told[0], Failed)
    assert told[0].code == 404
    assert not peer.client.closed
    peer(OpenChannel(2))
    peer.client.send(DeclareQueue(2, "q"), peer.now)
    assert isinstance(peer.pump()[0], Declared)


def test_the_end_gives_back(peer: Peer) -> None:
    peer(DeclareQueue(1, "q"), DeclareQueue(1, "mine", exclusive=True), publish("q", b"x"), Consume(1, "q", "tag"))

    told = peer(Close(0))
    assert isinstance(told[-1], Closed)
    vhost = peer.broker.virtual_host("/")
    assert list(vhost.queues) == ["q"]
    assert vhost.queues["q"].ready == 1
    assert not peer.broker.connections


def test_bindings_between_exchanges_and_questions(peer: Peer) -> None:
    peer(DeclareQueue(1, "q"), BindQueue(1, "q", "amq.direct", "k"))
    capabilities = peer.client.capabilities
    if capabilities.exchange_bindings:
        peer.one(BindExchange(1, "amq.direct", "amq.fanout"), Done)
        peer(publish("k", b"x", "amq.fanout"))
        assert peer.count("q") == 1
    if capabilities.query_binding:
        (found,) = peer(QueryBinding(1, "amq.direct", "q", "k"))
        assert found.matched  # type: ignore[attr-defined]


@pytest.mark.parametrize("source", VERSIONS, ids=lambda version: version.value)
@pytest.mark.parametrize("target", VERSIONS, ids=lambda version: version.value)
def test_across(broker: Broker, source: Version, target: Version) -> None:
    properties = Properties(
        content_type="text/plain",
        content_encoding="utf-8",
        headers={"n": 1, "s": "text", "yes": True, "t": {"inner": 2.5}},
        delivery_mode=2,
        priority=4,
        correlation_id="c-1",
        reply_to="answers",
        expiration="60000",
        message_id="0198c0de-0000-7000-8000-000000000001",
        app_id="app",
    )
    publisher, consumer = Peer(broker, source), Peer(broker, target)
    publisher(OpenChannel(1), DeclareQueue(1, "q"))
    publisher(Publish(1, "", "q", Message(b"body", properties)))
    consumer(OpenChannel(1))
    got = consumer.one(Get(1, "q", no_ack=True), Got)
    found = got.message.properties
    assert got.message.body == b"body"
    for name in (
        "content_type", "content_encoding", "delivery_mode", "priority", "correlation_id", "reply_to", "message_id",
        "app_id",
    ):  # fmt: skip
        assert getattr(found, name) == getattr(properties, name), name
    assert {name: found.headers[name] for name in ("n", "s", "yes", "t")} == properties.headers
