"""What is 0-8's own: its numbers, its tickets, its basic.consume; and both ends talking to each other."""

from __future__ import annotations

import pytest

from gateway.amqp.message import Message
from gateway.amqp.operations import (
    Close,
    Closed,
    CloseReason,
    Confirmed,
    Consume,
    Consuming,
    Deliver,
    Done,
    Failed,
    Publish,
    Qos,
    SelectConfirm,
)
from gateway.classic import methods as m
from gateway.classic.frames import content_frames, method_frame
from gateway.errors import MethodNotImplemented
from gateway.link import connection_error
from gateway.session import Confirms, Role
from gateway.v08.dialect import RABBITMQ as RABBITMQ_08
from gateway.v08.session import ClientSession, ServerSession
from gateway.v08.unserved import UNSERVED
from gateway.v08.version import V0_8
from tests.classic.script import QPID, RABBITMQ, ScriptedClient, ScriptedServer
from tests.classic.values import TABLES, sample
from tests.pair import CLIENT, SERVER, SessionPair


def test_version_and_role() -> None:
    assert (ClientSession.version, ClientSession.role) == (V0_8, Role.CLIENT)
    assert (ServerSession.version, ServerSession.role) == (V0_8, Role.SERVER)
    assert ClientSession(CLIENT).data_to_send() == [b"AMQP\x01\x01\x08\x00"]
    assert ServerSession(SERVER).data_to_send() == []


def test_close_is_10_60() -> None:
    server = ScriptedServer(V0_8).open()
    server.send(Close(0))
    assert server.heard() == [(0, m.ConnectionClose08(200, "REPLY_SUCCESS"))]
    assert server.say(m.ConnectionCloseOk08(), channel=0) == [Closed(0, CloseReason.LOCAL, 200, "")]


def test_open_ok_has_no_arguments() -> None:
    assert m.ChannelOpenOk08().encode() == b"\x00\x14\x00\x0b"
    pair = SessionPair(V0_8).open()
    assert not pair.client.closed


def test_consume_by_dialect() -> None:
    for properties, shape in ((RABBITMQ, m.BasicConsume08), (QPID, m.BasicConsume)):
        server = ScriptedServer(V0_8, properties).open()
        server.send(Consume(1, "q", "tag"))
        assert type(server.heard()[0][1]) is shape


def test_our_own_server_confirms() -> None:
    pair = SessionPair(V0_8).open()
    assert pair.client.capabilities.confirms is Confirms.NATIVE
    pair.ask(SelectConfirm(1))
    pair.answer(Done(1, 2, 2))
    pair.ask(Publish(1, "", "q", Message(b"body")))
    assert pair.answer(Confirmed(1, 3, 3)) == [Confirmed(1, 3, 3)]


def test_our_own_server_delivers() -> None:
    pair = SessionPair(V0_8, chunk=3).open()
    pair.ask(Consume(1, "q", "tag"))
    pair.answer(Consuming(1, 2, 2, "tag"))
    deliver = Deliver(1, "tag", 1, False, "ex", "key", Message(b"body"))
    assert pair.answer(deliver) == [deliver]


@pytest.mark.parametrize("method", UNSERVED.methods, ids=lambda method: method.title)
def test_a_server_answers_540_to_classes_that_it_does_not_serve(method: type[m.Method]) -> None:
    client = ScriptedClient(V0_8).open()
    content = b"".join(content_frames(1, b"", b"\x00\x00", b"body", 4_096))
    closed = client.receive(method_frame(1, sample(method).encode(TABLES)) + content)
    assert closed == []  # the content that may follow is passed over
    ((channel, close),) = client.heard()
    assert channel == 0
    assert close == m.ConnectionClose08(
        540, f"NOT_IMPLEMENTED - {method.title} is not served", method.class_id, method.method_id
    )
    (ended,) = client.say(m.ConnectionCloseOk08(), channel=0)
    assert isinstance(ended, Closed)
    assert (ended.code, ended.reason) == (540, CloseReason.SYNTAX)


def test_a_brokers_540_names_the_method() -> None:
    server = ScriptedServer(V0_8).open()
    (serial,) = server.send(Qos(1, prefetch_count=5))
    server.heard()
    text = "basic.qos: NOT_IMPLEMENTED - not here"
    assert server.say(m.ConnectionClose08(540, "NOT_IMPLEMENTED - not here", 60, 10), channel=0) == [
        Failed(1, serial, serial, 540, text),
        Closed(0, CloseReason.PEER, 540, text),
    ]
    error = connection_error(Closed(0, CloseReason.PEER, 540, text))
    assert type(error) is MethodNotImplemented
    assert "basic.qos" in str(error)


def test_a_client_hears_nothing_of_classes_that_it_did_not_ask_for() -> None:
    server = ScriptedServer(V0_8).open()
    (closed,) = server.say_content(sample(RABBITMQ_08.methods[80 << 16 | 60]), b"body", b"\x00\x00")
    assert isinstance(closed, Closed)
    assert (closed.reason, closed.code) == (CloseReason.SYNTAX, 540)
    assert "stream.deliver" in closed.text
