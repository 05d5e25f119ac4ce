"""What is 0-9's own, and both ends talking to each other."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gateway.amqp.message import Message, Properties
from gateway.amqp.operations import (
    Close,
    Closed,
    CloseReason,
    Confirmed,
    Consume,
    Consuming,
    Deliver,
    Done,
    Publish,
    Recover,
    SelectConfirm,
)
from gateway.amqp.values import Timestamp, Typed
from gateway.classic import methods as m
from gateway.classic.frames import content_frames, method_frame
from gateway.session import Confirms, Role
from gateway.v09.methods import BasicRecoverSync, BasicRecoverSyncOk
from gateway.v09.session import ClientSession, ServerSession
from gateway.v09.unserved import UNSERVED
from gateway.v09.version import V0_9
from tests.classic.script import QPID, ScriptedClient, ScriptedServer
from tests.classic.values import TABLES, sample
from tests.pair import CLIENT, SERVER, SessionPair, only

PROPERTIES = Properties(
    "text/plain", "utf-8", {"a": [1, {"b": None}], "t": Timestamp(5), "s": Typed("int16", 7), "x": b"\x00"}, 2, 9, "c",
    "r", "60000", "m-1", 1_700_000_000, "order", "guest", "shop", "cluster",
)  # fmt: skip


def test_version_and_role() -> None:
    assert (ClientSession.version, ClientSession.role) == (V0_9, Role.CLIENT)
    assert (ServerSession.version, ServerSession.role) == (V0_9, Role.SERVER)
    assert ClientSession(CLIENT).data_to_send() == [b"AMQP\x01\x01\x00\x09"]
    assert ServerSession(SERVER).data_to_send() == []


def test_close_is_10_50() -> None:
    server = ScriptedServer(V0_9).open()
    server.send(Close(0))
    assert server.heard() == [(0, m.ConnectionClose(200, "REPLY_SUCCESS"))]
    assert server.say(m.ConnectionCloseOk(), channel=0) == [Closed(0, CloseReason.LOCAL, 200, "")]


@pytest.fixture(params=[None, 1], ids=["whole", "byte by byte"])
def pair(request: pytest.FixtureRequest) -> SessionPair:
    return SessionPair(V0_9, chunk=request.param).open()


def test_our_own_server_confirms_and_delivers(pair: SessionPair) -> None:
    assert pair.client.capabilities.confirms is Confirms.NATIVE
    pair.ask(SelectConfirm(1))
    pair.answer(Done(1, 2, 2))
    message = Message(b"body", PROPERTIES)
    pair.ask(Publish(1, "", "q", message))
    (publish,) = pair.requests
    assert publish == Publish(1, "", "q", message, serial=3)
    assert publish.message.properties == PROPERTIES
    assert pair.answer(Confirmed(1, 3, 3)) == [Confirmed(1, 3, 3)]
    pair.ask(Consume(1, "q", "tag"))
    pair.answer(Consuming(1, 4, 4, "tag"))
    deliver = Deliver(1, "tag", 1, False, "ex", "key", message)
    assert pair.answer(deliver) == [deliver]


def test_qpids_recover() -> None:
    server = ScriptedServer(V0_9, QPID).open()
    (serial,) = server.send(Recover(1))
    stop, recover, go_on = (method for _, method in server.heard())
    assert (stop, recover, go_on) == (m.ChannelFlow(False), BasicRecoverSync(True), m.ChannelFlow(True))
    assert server.say(m.ChannelFlowOk(False), BasicRecoverSyncOk(), m.ChannelFlowOk(True)) == [Done(1, serial, serial)]


def test_our_own_server_recovers_for_qpid() -> None:
    client = ScriptedClient(V0_9, {"product": "qpid"}).open()
    (request,) = client.say(BasicRecoverSync(True))
    assert request == Recover(1, True, serial=request.serial)
    client.send(Done(1, request.serial, request.serial))
    assert client.heard() == [(1, BasicRecoverSyncOk())]


def test_a_server_sends_its_client_elsewhere() -> None:
    pair = SessionPair(
        V0_9,
        replace(CLIENT, insist=False),
        replace(SERVER, redirect=lambda user, virtual_host: ("other:5672", "third")),
    )
    pair.pump()
    closed = only(pair.events)
    assert (closed.reason, closed.redirect) == (CloseReason.PEER, ("other:5672", "third"))


@pytest.mark.parametrize("method", UNSERVED.methods, ids=lambda method: method.title)
def test_a_server_answers_540_to_methods_that_it_does_not_serve(method: type[m.Method]) -> None:
    client = ScriptedClient(V0_9).open()
    content = b"".join(content_frames(1, b"", b"\x00\x00", b"body", 4_096))
    assert client.receive(method_frame(1, sample(method).encode(TABLES)) + content) == []
    ((channel, close),) = client.heard()
    assert channel == 0
    assert close == m.ConnectionClose(
        540, f"NOT_IMPLEMENTED - {method.title} is not served", method.class_id, method.method_id
    )
