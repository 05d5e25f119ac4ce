"""Connections of the broker core."""

from __future__ import annotations

import pytest

from gateway.amqp import operations
from gateway.amqp.operations import (
    BindQueue,
    Cancel,
    Cancelled,
    ChannelClosed,
    Close,
    CloseChannel,
    Closed,
    CloseReason,
    Confirmed,
    Consume,
    Consuming,
    DeclareQueue,
    Deliver,
    Done,
    Flow,
    OpenChannel,
    Qos,
    Recover,
    Request,
    Returned,
    SelectConfirm,
    Settlement,
    TxCommit,
    TxRollback,
    TxSelect,
    UnbindQueue,
)
from gateway.broker.broker import Broker, rules_for
from gateway.broker.requests import HANDLERS
from gateway.config import EmbeddedSettings, EmbeddedUser
from gateway.session import Version
from gateway.v010.version import V0_10
from gateway.v08.version import V0_8
from gateway.v091.version import V0_9_1
from gateway.versions import VERSIONS
from tests.broker.clients import SECONDS_1970, Client, ack, is_closing, make_broker, publishing


def test_users() -> None:
    broker = make_broker(users=(EmbeddedUser(name="me", password="secret"),))
    assert broker.authenticate("me", "secret")
    assert not broker.authenticate("me", "")
    assert not broker.authenticate("guest", "guest")


@pytest.mark.parametrize("name", ["", "/"])
def test_the_virtual_host(name: str) -> None:
    broker = make_broker()
    assert broker.open_virtual_host("guest", name)
    assert broker.virtual_host(name) is broker.virtual_host("/")


def test_virtual_hosts_are_apart() -> None:
    broker = Broker(
        EmbeddedSettings(),
        random_octets=bytes,
        wall_clock=lambda: SECONDS_1970,
        virtual_hosts=("/", "staging"),
    )
    assert broker.open_virtual_host("guest", "/staging")
    assert not broker.open_virtual_host("guest", "other")
    one, two = Client(broker), Client(broker, vhost="/staging")
    one(DeclareQueue(1, "q"))
    assert two.failure(DeclareQueue(1, "q", passive=True)) == (404, "NOT_FOUND - no queue 'q' in vhost 'staging'")
    two(DeclareQueue(1, "q", arguments={"x-message-ttl": 1_000}))
    two.publish("q")
    assert broker.next_timeout() == 1
    broker.handle_timeout(1)
    assert two.drain("q") == []


def test_every_request_is_handled() -> None:
    requests = {kind for kind in vars(operations).values() if isinstance(kind, type) and kind.__base__ is Request}
    assert {kind.__name__ for kind in requests - set(HANDLERS)} == {
        "Close", "UpdateSecret", "OpenChannel", "CloseChannel", "Detach",
    }  # fmt: skip


def test_nothing_happens_before_open() -> None:
    broker = make_broker()
    client = Client(broker)
    connection = broker.connect(client.session, lambda: None)
    broker.receive(connection, [OpenChannel(1), DeclareQueue(1, "q")], 0)
    assert client.take() == []


@pytest.mark.parametrize("end", [Closed(0, CloseReason.EOF, 0, ""), Close(0)])
def test_the_end_of_a_connection(end: Close | Closed) -> None:
    broker = make_broker()
    client, other = Client(broker), Client(broker)
    other(DeclareQueue(1, "q"), publishing("q", b"x"), Consume(1, "q", "tag"))
    client(Consume(1, "q", "mine"))
    other.broker.receive(other.connection, [end], 0)
    assert client.bodies() == [b"x"]
    assert broker.connections == {client.connection.number: client.connection}


def test_a_channel_that_its_session_closed() -> None:
    client = Client(make_broker())
    client(DeclareQueue(1, "q"), publishing("q", b"x"), Consume(1, "q", "tag"))
    assert client(ChannelClosed(1, 504, "CHANNEL_ERROR", by_peer=False)) == []
    client(OpenChannel(1))
    assert client.drain("q") == [b"x"]


def test_stop() -> None:
    broker = make_broker()
    clients = [Client(broker) for _ in range(3)]
    broker.close_all(320, "CONNECTION_FORCED - broker stopped", 0)
    for client in clients:
        (close,) = client.take()
        assert is_closing(close)
    assert not broker.connections


def test_consumers_of_another_connection_are_woken() -> None:
    broker = make_broker()
    consumer, publisher = Client(broker), Client(broker)
    consumer(DeclareQueue(1, "q"), Consume(1, "q", "tag"))
    consumer.wakes = 0
    publisher.publish("q")
    assert consumer.wakes == 1
    assert isinstance(consumer.take()[0], Deliver)


@pytest.mark.parametrize("publishing_version", list(VERSIONS))
@pytest.mark.parametrize("consuming_version", list(VERSIONS))
def test_from_version_to_version(publishing_version: Version, consuming_version: Version) -> None:
    broker = make_broker()
    publisher, consumer = Client(broker, publishing_version), Client(broker, consuming_version)
    publisher(DeclareQueue(1, "q"))
    publisher.publish("q", b"x", headers={"n": 1})
    got = consumer.get("q")
    assert got is not None
    assert got.message.body == b"x"


# ------------------------------------------------------------------------------------- Qpid's JMS client


@pytest.fixture(params=[V0_8, V0_9_1])
def qpid(request: pytest.FixtureRequest) -> Client:
    client = Client(make_broker(), request.param, product="qpid")
    client(DeclareQueue(1, "q"))
    return client


def test_qpid_durable_subscription(qpid: Client) -> None:
    qpid(DeclareQueue(1, "subscription", durable=True, exclusive=True))
    qpid.broker.disconnect(qpid.connection, 0)
    assert "subscription" in qpid.broker.virtual_host("/").queues


def test_qpid_confirms_within_transactions(qpid: Client) -> None:
    qpid.one(TxSelect(1), Done)
    qpid.one(SelectConfirm(1), Done)
    (confirmed,) = qpid.publish("q")
    assert isinstance(confirmed, Confirmed)
    qpid.one(TxSelect(1), Done)
    qpid.one(TxCommit(1), Done)
    assert len(qpid.drain("q")) == 1


def test_qpid_releases_at_once_and_rolls_back_the_rest(qpid: Client) -> None:
    qpid.publish("q", b"1")
    qpid.publish("q", b"2")
    qpid(TxSelect(1))
    for _ in range(2):
        qpid.get("q", no_ack=False)
    qpid(ack(2), ack(1, settlement=Settlement.RELEASE))
    assert qpid.drain("q") == [b"1"]
    qpid.one(TxRollback(1), Done)
    qpid(ack(2, settlement=Settlement.RELEASE))
    assert qpid.drain("q") == [b"2"]


def test_qpid_immediate(qpid: Client) -> None:
    (returned,) = qpid(publishing("q", immediate=True))
    assert isinstance(returned, Returned)


def test_qpid_no_local(qpid: Client) -> None:
    """A subscription's queue takes nothing that its own connection publishes."""
    qpid(DeclareQueue(1, "subscription", exclusive=True, arguments={"no-local": True}))
    qpid.publish("subscription", b"mine")
    Client(qpid.broker).publish("subscription", b"other")
    assert qpid.drain("subscription") == [b"other"]


def test_qpid_browser_that_ends_by_itself(qpid: Client) -> None:
    arguments = {"x-filter-auto-close": True, "x-filter-no-consume": "true"}
    qpid.publish("q", b"1")
    qpid.publish("q", b"2")
    told = qpid(Qos(1, 1), Consume(1, "q", "browser", arguments=arguments))
    assert [type(each) for each in told] == [Done, Consuming, Deliver]
    told = qpid(ack(1))
    assert [type(each) for each in told] == [Deliver, Cancelled]
    assert not qpid.connection.channels[1].consumers
    qpid(Cancel(1, "browser"), ack(2))
    told = qpid(Flow(1, active=False), Consume(1, "q", "again", arguments=arguments, no_ack=True), CloseChannel(1))
    assert [type(each) for each in told] == [Consuming, ChannelClosed]


def test_the_transitional_draft_unbinds_with_arguments() -> None:
    client = Client(make_broker(), V0_10)
    client.session.capabilities.dialect = "transitional"
    assert not rules_for(client.session).unbinds_by_key  # type: ignore[arg-type]


def test_0_10_unbinds_by_key() -> None:
    client = Client(make_broker(), V0_10)
    client(DeclareQueue(1, "q"), BindQueue(1, "q", "amq.topic", "k", {"x-filter-jms-selector": ""}))
    client(BindQueue(1, "q", "amq.topic", "l"))
    client(UnbindQueue(1, "q", "amq.topic", "k"))
    client.publish("k", b"x", "amq.topic")
    client.publish("l", b"y", "amq.topic")
    assert client.drain("q") == [b"y"]


def test_qpid_redelivers_before_it_answers(qpid: Client) -> None:
    """Only where the messages go to those who had them: golden transcripts ``brokerj-0-8-recover``."""
    qpid.publish("q", b"1")
    qpid(Consume(1, "q", "tag"))
    told = qpid(Recover(1, requeue=False))
    assert [type(each) for each in told] == [Deliver, Done]
    told = qpid(Recover(1, requeue=True))
    assert [type(each) for each in told] == [Done, Deliver]
