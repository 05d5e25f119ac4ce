"""Publishing: what is checked, confirms, returns, transactions, memory."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.amqp.message import Message, Properties, RawProperties
from gateway.amqp.operations import (
    BindQueue,
    Blocked,
    Close,
    CloseChannel,
    Confirmed,
    Consume,
    Declared,
    DeclareExchange,
    DeclareQueue,
    DeleteExchange,
    Deliver,
    Done,
    Failed,
    OpenChannel,
    Publish,
    PurgeQueue,
    Qos,
    QueryQueue,
    Refused,
    Request,
    Returned,
    SelectConfirm,
    Settlement,
    TxCommit,
    TxRollback,
    TxSelect,
    Unblocked,
)
from gateway.errors import FrameSyntaxError
from gateway.session import Version
from gateway.v010.version import V0_10
from gateway.v08.version import V0_8
from tests.broker.clients import Client, ack, make_broker, publishing


@pytest.fixture
def client() -> Client:
    client = Client(make_broker())
    client(DeclareQueue(1, "q"))
    return client


def serials(told: list[Any]) -> list[tuple[type, int, int]]:
    return [(type(each), each.first, each.last) for each in told]


def test_messages_pass_as_they_are(client: Client) -> None:
    message = Message(b"x", Properties(headers={"n": 1}, app_id="a"))
    client(Publish(1, "", "q", message))
    got = client.get("q")
    assert got is not None
    assert got.message is message


def test_unknown_exchange(client: Client) -> None:
    assert client.failure(publishing("q", exchange="none")) == (404, "NOT_FOUND - no exchange 'none' in vhost '/'")
    assert client.drain("q") == []


def test_unroutable_without_confirms(client: Client) -> None:
    assert client.publish("nowhere") == []
    (returned,) = client(publishing("nowhere", b"x", mandatory=True, message_id="m"))
    assert isinstance(returned, Returned)
    assert (returned.code, returned.text, returned.exchange, returned.routing_key) == (312, "NO_ROUTE", "", "nowhere")
    assert returned.message == Message(b"x", Properties(message_id="m"))


@pytest.mark.parametrize(
    ("properties", "text"),
    [
        ({"user_id": "admin"}, "user_id property set to 'admin' but authenticated user was 'guest'"),
        ({"user_id": b"\xff"}, "user_id property set to"),
        ({"delivery_mode": 0}, "invalid message: delivery mode 0 is neither 1 nor 2"),
        ({"expiration": "soon"}, "invalid expiration 'soon'"),
    ],
)
def test_properties_that_are_refused(client: Client, properties: dict[str, Any], text: str) -> None:
    code, found = client.failure(publishing("q", **properties))
    assert code == 406
    assert found.startswith("PRECONDITION_FAILED - " + text)


@pytest.mark.parametrize("user_id", ["guest", b"guest", None])
def test_user_id_of_the_login(client: Client, user_id: str | bytes | None) -> None:
    assert client.publish("q", user_id=user_id) == []


def test_properties_that_are_none(client: Client) -> None:
    def broken(octets: bytes) -> Properties:
        raise FrameSyntaxError("flags run past the end", 502)

    (close,) = client(Publish(1, "", "q", Message(b"", raw=RawProperties(b"\xff", "classic", broken))))
    assert isinstance(close, Close)
    assert (close.code, close.text) == (502, "SYNTAX_ERROR - flags run past the end")
    assert not client.broker.connections


# ----------------------------------------------------------------------------------------------- confirms


def test_confirms_of_one_turn_are_told_together(client: Client) -> None:
    client(SelectConfirm(1))
    assert serials(client(*(publishing("q") for _ in range(5)))) == [(Confirmed, 4, 8)]
    assert serials(client.publish("nowhere")) == [(Confirmed, 9, 9)]


def test_returned_before_confirmed(client: Client) -> None:
    client(SelectConfirm(1))
    told = client(publishing("q"), publishing("nowhere", mandatory=True), publishing("q"))
    assert serials(told) == [(Returned, 5, 5), (Confirmed, 4, 6)]


def test_confirms_before_the_failure_of_a_later_one(client: Client) -> None:
    client(SelectConfirm(1))
    told = client(publishing("q"), publishing("q", exchange="none"), publishing("q"))
    assert serials(told) == [(Confirmed, 4, 4), (Failed, 5, 5)]
    client(OpenChannel(1))
    assert len(client.drain("q")) == 1


def test_confirms_before_close(client: Client) -> None:
    client(SelectConfirm(1))
    told = client(publishing("q"), CloseChannel(1))
    assert isinstance(told[0], Confirmed)
    assert len(told) == 2


def test_channels_confirm_for_themselves(client: Client) -> None:
    client(OpenChannel(2), SelectConfirm(1), SelectConfirm(2))
    told = client(publishing("q"), publishing("q", channel=2), publishing("q"))
    assert sorted((each.channel, each.first, each.last) for each in told if isinstance(each, Confirmed)) == [
        (1, 4, 5),
        (2, 3, 3),
    ]


def test_0_10_confirms_by_itself() -> None:
    client = Client(make_broker(), V0_10)
    client(DeclareQueue(1, "q"))
    assert serials(client.publish("q")) == [(Confirmed, 3, 3)]


# ---------------------------------------------------------------------------------------------- immediate


def test_immediate_is_not_implemented_in_0_9_1(client: Client) -> None:
    assert client.failure(publishing("q", immediate=True)) == (540, "NOT_IMPLEMENTED - immediate=true")
    assert not client.broker.connections


@pytest.mark.parametrize("version", [V0_8, V0_10])
def test_immediate(version: Version) -> None:
    broker = make_broker()
    client, consumer = Client(broker, version), Client(broker)
    client(DeclareQueue(1, "q"))
    (returned, *_) = client(publishing("q", immediate=True))
    assert isinstance(returned, Returned)
    assert (returned.code, returned.text) == (313, "NO_CONSUMERS")
    (returned, *_) = client(publishing("nowhere", immediate=True, mandatory=True))
    assert isinstance(returned, Returned)
    assert returned.code == 312
    consumer(Qos(1, 1), Consume(1, "q", "tag"))
    assert not [told for told in client(publishing("q", b"1", immediate=True)) if isinstance(told, Returned)]
    assert consumer.bodies() == [b"1"]
    assert isinstance(client(publishing("q", b"2", immediate=True))[0], Returned)


def test_immediate_and_a_single_active_consumer() -> None:
    client = Client(make_broker(), V0_8)
    client(DeclareQueue(1, "q", arguments={"x-single-active-consumer": True}))
    assert isinstance(client(publishing("q", immediate=True))[0], Returned)
    client(Consume(1, "q", "tag"))
    assert isinstance(client(publishing("q", immediate=True))[0], Deliver)


# ------------------------------------------------------------------------------------------- transactions


def count(client: Client) -> int:
    return client.one(QueryQueue(1, "q"), Declared).message_count


def test_commit(client: Client) -> None:
    client.one(TxSelect(1), Done)
    client.one(TxSelect(1), Done)
    assert client(publishing("q", b"1"), publishing("nowhere", b"2", mandatory=True)) == []
    assert count(client) == 0
    told = client(TxCommit(1))
    assert [type(each) for each in told] == [Returned, Done]
    assert client.drain("q") == [b"1"]
    assert client.broker.memory.used == 0


def test_rollback(client: Client) -> None:
    client.publish("q", b"1")
    client.publish("q", b"2")
    client(TxSelect(1))
    client.get("q", no_ack=False)
    client.get("q", no_ack=False)
    assert client(ack(2), publishing("q", b"3")) == []
    assert client.failure(ack(2))[0] == 406
    client(TxSelect(1))
    assert client.drain("q") == [b"1", b"2"]
    assert client.broker.memory.used == 0


def test_settlements_in_a_transaction(client: Client) -> None:
    for number in range(3):
        client.publish("q", b"%d" % number)
    client(TxSelect(1))
    for _ in range(3):
        client.get("q", no_ack=False)
    client(ack(2), ack(1, settlement=Settlement.RELEASE))
    assert count(client) == 0
    client.one(TxRollback(1), Done)
    client(ack(2), ack(1, settlement=Settlement.RELEASE))
    client.one(TxCommit(1), Done)
    assert count(client) == 1
    client(ack(0, 3))
    client.one(TxCommit(1), Done)
    assert client.drain("q") == [b"0"]
    assert client.broker.memory.used == 0


def test_no_transaction(client: Client) -> None:
    text = "PRECONDITION_FAILED - channel is not transactional"
    assert client.failure(TxCommit(1)) == (406, text)
    assert client.failure(TxRollback(1)) == (406, text)


@pytest.mark.parametrize("request_", [TxCommit(1), TxRollback(1)])
def test_no_transaction_in_0_10(request_: Request) -> None:
    """0-10 calls it illegal-state."""
    client = Client(make_broker(), V0_10)
    assert client.failure(request_) == (409, "ILLEGAL_STATE - channel is not transactional")


def test_either_confirms_or_transactions(client: Client) -> None:
    client(TxSelect(1))
    assert client.failure(SelectConfirm(1)) == (406, "PRECONDITION_FAILED - cannot switch from tx to confirm mode")
    client(SelectConfirm(1))
    assert client.failure(TxSelect(1)) == (406, "PRECONDITION_FAILED - cannot switch from confirm to tx mode")


def test_a_commit_that_a_queue_refuses(client: Client) -> None:
    client(DeclareQueue(1, "full", arguments={"x-max-length": 0, "x-overflow": "reject-publish"}), TxSelect(1))
    client.publish("full")
    assert client.failure(TxCommit(1)) == (406, "PRECONDITION_FAILED - partial tx completion")


def test_an_exchange_deleted_within_the_transaction(client: Client) -> None:
    client(DeclareExchange(1, "x"), TxSelect(1), publishing("k", exchange="x", mandatory=True), DeleteExchange(1, "x"))
    assert [type(each) for each in client(TxCommit(1))] == [Returned, Done]


def test_a_transaction_in_0_10() -> None:
    client = Client(make_broker(), V0_10)
    client(DeclareQueue(1, "q"), TxSelect(1))
    assert serials(client.publish("q")) == [(Confirmed, 4, 4)]
    assert count(client) == 0
    client(TxCommit(1))
    assert count(client) == 1


# ------------------------------------------------------------------------------------------------- memory


def test_memory() -> None:
    broker = make_broker(queue_memory=1 << 20)
    client, quiet = Client(broker), Client(broker)
    client(DeclareQueue(1, "q"), SelectConfirm(1))
    for _ in range(3):
        client.publish("q", b"x" * 300_000)
    told = client.publish("q", b"x" * 300_000)
    assert [type(each) for each in told] == [Blocked, Refused]
    (refused,) = client.publish("q", b"x" * 300_000)
    assert isinstance(refused, Refused)
    assert refused.code == 506
    assert quiet.take() == []
    told = client(PurgeQueue(1, "q"))
    assert [type(each) for each in told][1:] == [Unblocked]
    assert serials(client.publish("q", b"x" * 300_000))[0][0] is Confirmed
    assert broker.memory.used > 300_000


def test_memory_without_confirms() -> None:
    client = Client(make_broker(queue_memory=1 << 20))
    client.session.capabilities.blocked_notification = False
    client(DeclareQueue(1, "q"))
    assert client.failure(publishing("q", b"x" * (1 << 20))) == (
        506,
        "RESOURCE_ERROR - the memory for messages is used up",
    )


def test_a_client_that_cannot_hear_of_it() -> None:
    client = Client(make_broker(queue_memory=1 << 20))
    client.session.capabilities.blocked_notification = False
    client(DeclareQueue(1, "q"), *(publishing("q", b"x" * 300_000) for _ in range(3)))
    assert client.failure(publishing("q", b"x" * 300_000))[0] == 506


def test_empty_messages_use_memory_too() -> None:
    client = Client(make_broker(queue_memory=1 << 20))
    client(DeclareQueue(1, "q"), SelectConfirm(1))
    told = client(*(publishing("q") for _ in range(5_000)))
    assert Refused in {type(each) for each in told}


def test_a_transaction_uses_memory() -> None:
    client = Client(make_broker(queue_memory=1 << 20))
    client(DeclareQueue(1, "q"), TxSelect(1))
    client(*(publishing("q", b"x" * 300_000) for _ in range(3)))
    told = client(publishing("q", b"x" * 300_000))
    assert [type(each) for each in told] == [Blocked, Failed, Unblocked]
    assert client.broker.memory.used == 0


def test_a_body_counts_once_over_all_queues() -> None:
    client = Client(make_broker(queue_memory=1 << 20))
    for number in range(50):
        client(DeclareQueue(1, f"q{number}"))
        client(BindQueue(1, f"q{number}", "amq.fanout"))
    client.publish("", b"x" * 300_000, "amq.fanout")
    assert client.broker.memory.used < 320_000
    for number in range(50):
        assert client.broker.memory.used > 300_000
        client.get(f"q{number}")
    assert client.broker.memory.used == 0


def test_a_blocked_client_that_goes() -> None:
    broker = make_broker(queue_memory=1 << 20)
    client = Client(broker)
    client(DeclareQueue(1, "q", exclusive=True))
    for _ in range(3):
        client.publish("q", b"x" * 300_000)
    assert [type(each) for each in client.publish("q", b"x" * 300_000)] == [Blocked, Failed]
    broker.disconnect(client.connection, 0)
    assert broker.memory.used == 0
