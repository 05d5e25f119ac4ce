"""What is 0-9-1's own: its numbers and RabbitMQ's extensions; and both ends talking to each other."""

from __future__ import annotations

import pytest

from gateway.amqp.message import Message, Properties
from gateway.amqp.operations import (
    BindExchange,
    Blocked,
    Cancelled,
    ChannelClosed,
    Close,
    Closed,
    CloseReason,
    Confirmed,
    Consume,
    Consuming,
    Deliver,
    Done,
    Failed,
    Get,
    Got,
    OpenChannel,
    Publish,
    QueryQueue,
    Recover,
    Returned,
    SelectConfirm,
    Settle,
    Settlement,
    Unblocked,
)
from gateway.classic import methods as m
from gateway.session import Confirms, Role
from gateway.v091.session import ClientSession, ServerSession
from gateway.v091.version import V0_9_1
from tests.classic.script import ScriptedServer
from tests.pair import CLIENT, SERVER, SessionPair, only


def test_version_and_role() -> None:
    assert (ClientSession.version, ClientSession.role) == (V0_9_1, Role.CLIENT)
    assert (ServerSession.version, ServerSession.role) == (V0_9_1, Role.SERVER)
    assert ClientSession(CLIENT).data_to_send() == [b"AMQP\x00\x00\x09\x01"]
    assert ServerSession(SERVER).data_to_send() == []


def test_close_is_10_50() -> None:
    server = ScriptedServer(V0_9_1).open()
    server.send(Close(0))
    assert server.heard() == [(0, m.ConnectionClose(200, "REPLY_SUCCESS"))]
    assert server.say(m.ConnectionCloseOk(), channel=0) == [Closed(0, CloseReason.LOCAL, 200, "")]


@pytest.fixture(params=[None, 1], ids=["whole", "byte by byte"])
def pair(request: pytest.FixtureRequest) -> SessionPair:
    return SessionPair(V0_9_1, chunk=request.param).open()


def test_confirms_and_returns(pair: SessionPair) -> None:
    assert pair.client.capabilities.confirms is Confirms.NATIVE
    pair.ask(SelectConfirm(1))
    assert pair.answer(Done(1, 2, 2)) == [Done(1, 2, 2)]
    message = Message(b"body", Properties(message_id="m-1", headers={"a": [1, {"b": None}]}))
    for serial in (3, 4, 5):
        assert pair.ask(Publish(1, "ex", "key", message)) == serial
        assert pair.requests == [Publish(1, "ex", "key", message, serial=serial)]
    returned = Returned(1, 4, 4, 312, "NO_ROUTE", "ex", "key", message)
    # Which of three equal messages it was cannot be told apart: the oldest.
    assert pair.answer(returned, Confirmed(1, 3, 5)) == [
        Returned(1, 3, 3, 312, "NO_ROUTE", "ex", "key", message),
        Confirmed(1, 4, 5),
    ]


def test_deliveries(pair: SessionPair) -> None:
    pair.ask(Consume(1, "q", "tag"))
    assert pair.answer(Consuming(1, 2, 2, "tag")) == [Consuming(1, 2, 2, "tag")]
    deliver = Deliver(1, "tag", 0, True, "ex", "key", Message(bytes(300_000), Properties(priority=9)))
    assert pair.tell(deliver, deliver) == [1, 2]
    assert [event.delivery for event in pair.events if isinstance(event, Deliver)] == [1, 2]
    assert only(pair.events[:1]).message == deliver.message
    pair.ask(Settle(1, Settlement.ACCEPT, 1, 2))
    assert pair.requests == [Settle(1, Settlement.ACCEPT, 0, 2, serial=3)]
    assert pair.answer(Cancelled(1, "tag")) == [Cancelled(1, "tag")]


def test_get(pair: SessionPair) -> None:
    serial = pair.ask(Get(1, "q"))
    got = Got(1, serial, serial, 1, False, "", "q", Message(b"body"), 5)
    assert pair.answer(got) == [got]


def test_failure(pair: SessionPair) -> None:
    serial = pair.ask(QueryQueue(1, "nope"))
    failed, closed = pair.answer(Failed(1, serial, serial, 404, "no queue 'nope'"))
    assert failed == Failed(1, serial, serial, 404, "NOT_FOUND - no queue 'nope'")
    assert type(closed) is ChannelClosed
    serial = pair.ask(OpenChannel(1))
    assert pair.answer(Done(1, 1, 1)) == [Done(1, serial, serial)]
    assert pair.ask(Recover(1)) == 2


def test_rabbitmqs_extensions(pair: SessionPair) -> None:
    assert pair.answer(Blocked(0, "low"), Unblocked(0)) == [Blocked(0, "low"), Unblocked(0)]
    serial = pair.ask(BindExchange(1, "to", "from", "key"))
    assert pair.answer(Done(1, serial, serial)) == [Done(1, serial, serial)]
