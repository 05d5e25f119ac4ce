"""What is 0-8's own: its numbers, its tickets, its basic.consume; and both ends talking to each other."""

from __future__ import annotations

from gateway.classic import methods as m
from gateway.message import Message
from gateway.operations import (
    Close,
    Closed,
    CloseReason,
    Confirmed,
    Consume,
    Consuming,
    Deliver,
    Done,
    Publish,
    SelectConfirm,
)
from gateway.session import Confirms, Role, Version
from gateway.v08.session import ClientSession, ServerSession
from tests.classic.script import QPID, RABBITMQ, ScriptedServer
from tests.pair import CLIENT, SERVER, SessionPair


def test_version_and_role() -> None:
    assert (ClientSession.version, ClientSession.role) == (Version.V0_8, Role.CLIENT)
    assert (ServerSession.version, ServerSession.role) == (Version.V0_8, Role.SERVER)
    assert ClientSession(CLIENT).data_to_send() == [b"AMQP\x01\x01\x08\x00"]
    assert ServerSession(SERVER).data_to_send() == []


def test_close_is_10_60() -> None:
    server = ScriptedServer(Version.V0_8).open()
    server.send(Close(0))
    assert server.heard() == [(0, m.ConnectionClose08(200, "REPLY_SUCCESS"))]
    assert server.say(m.ConnectionCloseOk08(), channel=0) == [Closed(0, CloseReason.LOCAL, 200, "")]


def test_open_ok_has_no_arguments() -> None:
    assert m.ChannelOpenOk08().encode() == b"\x00\x14\x00\x0b"
    pair = SessionPair(Version.V0_8).open()
    assert not pair.client.closed


def test_consume_by_dialect() -> None:
    for properties, shape in ((RABBITMQ, m.BasicConsume08), (QPID, m.BasicConsume)):
        server = ScriptedServer(Version.V0_8, properties).open()
        server.send(Consume(1, "q", "tag"))
        assert type(server.heard()[0][1]) is shape


def test_our_own_server_confirms() -> None:
    pair = SessionPair(Version.V0_8).open()
    assert pair.client.capabilities.confirms is Confirms.NATIVE
    pair.ask(SelectConfirm(1))
    pair.answer(Done(1, 2, 2))
    pair.ask(Publish(1, "", "q", Message(b"body")))
    assert pair.answer(Confirmed(1, 3, 3)) == [Confirmed(1, 3, 3)]


def test_our_own_server_delivers() -> None:
    pair = SessionPair(Version.V0_8, chunk=3).open()
    pair.ask(Consume(1, "q", "tag"))
    pair.answer(Consuming(1, 2, 2, "tag"))
    deliver = Deliver(1, "tag", 1, False, "ex", "key", Message(b"body"))
    assert pair.answer(deliver) == [deliver]
