"""Octets that our own sessions do not send, to either end: what is answered, and what it costs."""

from __future__ import annotations

import struct
from typing import Any
from uuid import UUID

import pytest

from gateway.amqp import operations as o
from gateway.amqp.message import Message
from gateway.classic import methods as m
from gateway.classic.frames import method_frame
from gateway.classic.methods import Method
from gateway.limits import Limits
from gateway.v010_draft import methods as t
from gateway.v010_draft.attached import METHODS
from gateway.v010_draft.fields import ReferenceTo
from gateway.v010_draft.references import REFERENCES_MAX
from gateway.v010_draft.unserved import UNSERVED
from tests.pair import SessionPair, only
from tests.v010_draft.pair import (
    confirming,
    consuming,
    framed,
    make_pair,
    opened,
    request,
    respond,
    said,
    to_client,
    to_server,
)

NAME = UUID(int=5)


def transfer(body: bytes = b"body", destination: str = "") -> t.MessageTransfer:
    return t.MessageTransfer(
        0, destination, False, True, False, 0, 0, 0, 0, 0, "", "q", "", "", "", "", "", len(body), "", "", "", "", b"",
        {}, body,
    )  # fmt: skip


def broken_server(pair: SessionPair, *octets: bytes) -> m.ConnectionClose:
    """The connection.close with which the server answers."""
    events = to_server(pair, *octets)
    close = said(pair.server)[-1]
    assert isinstance(close, m.ConnectionClose)
    assert pair.server.receive_data(framed(m.ConnectionCloseOk(), 0), pair.now)[-1].reason is o.CloseReason.SYNTAX  # type: ignore[attr-defined]
    assert not any(isinstance(event, o.Publish | o.Settle) for event in events)
    return close


def broken_client(pair: SessionPair, *octets: bytes) -> o.Closed:
    """How the client's connection ends."""
    closed = to_client(pair, *octets)[-1]
    assert isinstance(closed, o.Closed)
    assert closed.reason is o.CloseReason.SYNTAX
    return closed


def default(kind: Any) -> Any:
    return {} if kind.default is None else kind.default


@pytest.mark.parametrize("method", UNSERVED.methods, ids=lambda method: method.title)
def test_classes_that_are_not_served_are_answered_by_540(method: type[Method]) -> None:
    made = method(*(default(kind) for _, kind in method.layout))
    close = broken_server(opened(), framed(made))
    assert (close.reply_code, close.class_id_, close.method_id_) == (540, method.class_id, method.method_id)
    assert close.reply_text == f"NOT_IMPLEMENTED - {method.title} is not implemented"
    assert broken_client(opened(), framed(made)).code == 540


@pytest.mark.parametrize(
    ("octets", "code"),
    [
        (method_frame(1, struct.pack(">HH", 120, 999)), 540),
        (method_frame(1, struct.pack(">HH", 999, 1)), 540),
        (framed(t.QueueDeclareOk("q", 0, 0)), 503),
        (framed(t.SessionAttached(NAME, 0)), 503),
        (framed(t.MessageOk()), 503),
        (respond(1, 0, 0, t.MessageEmpty()), 503),
        (respond(1, 0, 0, t.QueueBind(0, "", "", "", {})), 503),
        (respond(2, 0, 0, t.MessageOk()), 503),
        (respond(1, 0, 0, t.MessageReject(2, "")), 502),
        (request(1, t.TxSelect()), 503),
        (request(0, t.ExecutionFlush()), 503),
        (framed(t.SessionOpen(0)), 503),
        (b"\x02\x00\x01\x00\x00\x00\x00\xce", 501),
        (b"\x07\x00\x01\x00\x00\x00\x00\xce", 501),
        (b"\x08\x00\x01\x00\x00\x00\x00\xce", 501),
        (b"\x01\x00\x01\x00\x00\x00\x03abc\xce", 502),
        (b"\x09\x00\x01\x00\x00\x00\x04abcd\xce", 502),
        (b"\x0a\x00\x00\x00\x00\x00\x18" + struct.pack(">QQI", 1, 0, 0) + b"\x00\x0a\x00\x32\xce", 503),
        (b"\x01\x00\x01\x00\x00\x00\x00\x00", 501),
        (b"\x01\x00\x01\xff\xff\xff\xff", 501),
        (framed(t.SessionPing(), 2), 504),
        (framed(t.TxSelect())[:-1] + b"\x00", 501),
        (method_frame(1, struct.pack(">HH", 120, 60)), 502),
    ],
)
def test_what_costs_the_connection(octets: bytes, code: int) -> None:
    assert broken_server(opened(), octets).reply_code == code


@pytest.mark.parametrize(
    "octets",
    [
        framed(t.SessionAttached(NAME, 0)),
        framed(t.QueueDeclareOk("q", 0, 0)),
        framed(transfer(destination="nobody")),
        framed(t.MessageClose(b"r")),
        framed(t.TxSelect()),
        framed(t.SessionPing(), 2),
        respond(1, 0, 0, t.MessageOffset(0)),
    ],
)
def test_what_a_server_must_not_send(octets: bytes) -> None:
    assert broken_client(opened(), octets).code in (503, 504)


@pytest.mark.parametrize("response", [t.MessageOk(), t.MessageEmpty(), t.MessageReject(0, "")])
def test_responses_to_what_they_do_not_answer(response: Method) -> None:
    pair = opened()
    pair.ask(o.PurgeQueue(1, "q"))
    assert broken_client(pair, respond(1, 0, 0, response)).code == 503


def test_empty_is_no_answer_to_a_transfer() -> None:
    pair = opened()
    pair.ask(o.Publish(1, "", "q", Message(b"")))
    assert broken_client(pair, respond(1, 0, 0, t.MessageEmpty())).code == 503


def test_ok_confirms_a_publish_as_well() -> None:
    pair = confirming(opened())
    serial = pair.ask(o.Publish(1, "", "q", Message(b"")))
    pair.ask(o.Publish(1, "", "q", Message(b"")))
    assert to_client(pair, respond(1, 1, 1 << 31, t.MessageOk())) == [
        o.Confirmed(1, serial, serial), o.Confirmed(1, serial + 1, serial + 1)
    ]  # fmt: skip
    assert to_client(pair, respond(2, 1, 5, t.MessageOk()), respond(3, 1 << 60, 5, t.MessageReject(1, ""))) == []


def test_a_rejection_that_names_no_code_means_unroutable() -> None:
    pair = confirming(opened())
    serial = pair.ask(o.Publish(1, "", "q", Message(b"")))
    assert to_client(pair, respond(1, 1, 0, t.MessageReject(0, "sorry"))) == [
        o.Returned(1, serial, serial, 312, "sorry")
    ]


def test_completions_of_what_was_never_sent_say_nothing() -> None:
    pair = confirming(opened())
    serial = pair.ask(o.Publish(1, "", "q", Message(b"")))
    pair.ask(o.Get(1, "q"))
    lies = t.ExecutionComplete(0xFFFFFFFF, ((5, 4), (9, 0x7FFFFFFF), (1, 1), (1, 2)))
    assert to_client(pair, framed(lies)) == [o.Confirmed(1, serial, serial)]
    assert to_client(pair, framed(t.ExecutionComplete(77, ()))) == []


def test_a_response_of_the_client_may_name_what_was_never_sent() -> None:
    pair = consuming(opened())
    (number,) = pair.tell(o.Deliver(1, "t", 0, False, "", "q", Message(b"")))
    settled = to_server(pair, respond(1, 0, 0xFFFFFFFF, t.MessageOk()), respond(2, 1 << 50, 5, t.MessageOk()))
    assert [(settle.first, settle.last) for settle in settled] == [(1, number)]  # type: ignore[attr-defined]


def test_requests_name_the_id_that_they_have_anyway() -> None:
    pair = opened()
    events = to_server(pair, request(0, t.TxSelect()), framed(t.TxCommit()), request(2, t.TxRollback()))
    assert [type(event) for event in events] == [o.TxSelect, o.TxCommit, o.TxRollback]


def test_nowait_is_not_answered() -> None:
    pair = opened()
    methods = (
        t.QueueDeclare(0, "q", "alternate", False, False, False, False, True, {}),
        t.QueuePurge(0, "q", True),
        t.QueueDelete(0, "q", False, False, True),
    )
    declared, purged, deleted = to_server(pair, *map(framed, methods), framed(t.ExecutionFlush()))
    assert isinstance(declared, o.DeclareQueue)
    assert declared.arguments == {"alternate-exchange": "alternate"}
    for outcome in (o.Declared(1, 2, 2, "q"), o.Removed(1, 3, 3, 1), o.Removed(1, 4, 4, 1)):
        pair.server.send(outcome, pair.now)
    assert said(pair.server) == [t.ExecutionComplete(2, ())]
    assert isinstance(purged, o.PurgeQueue)
    assert isinstance(deleted, o.DeleteQueue)


def test_tickets_are_for_the_asking() -> None:
    pair = opened()
    assert to_server(pair, framed(m.AccessRequest("/data"))) == []
    assert said(pair.server) == [m.AccessRequestOk(1)]


@pytest.mark.parametrize("side", ["server", "client"])
def test_pings_and_acks_of_frames(side: str) -> None:
    pair = opened()
    session, feed = (pair.server, to_server) if side == "server" else (pair.client, to_client)
    asked = (t.SessionPing(), t.SessionPong(), t.SessionAck(5, ((7, 8),)), t.SessionFlowOk(True), t.SessionSolicitAck())
    assert feed(pair, *map(framed, asked)) == []
    assert said(session) == [t.SessionPong(), t.SessionAck(4, ())]
    assert feed(pair, framed(t.SessionHighWaterMark(9))) == []
    assert said(session) == [t.SessionAck(5, ())]


# ---------------------------------------------------------------------------------------------- references


@pytest.mark.parametrize(
    ("methods", "code"),
    [
        ((t.MessageOpen(b"r"), t.MessageOpen(b"r")), 406),
        ((t.MessageOpen(b"r"), t.MessageResume(b"r", "")), 406),
        ((t.MessageAppend(b"r", b"x"),), 404),
        ((t.MessageClose(b"r"),), 404),
        ((t.MessageCheckpoint(b"r", "one"),), 404),
        ((transfer(ReferenceTo(b"r")),), 404),
        (tuple(t.MessageOpen(b"%d" % number) for number in range(REFERENCES_MAX + 1)), 506),
    ],
)
def test_what_costs_the_session(methods: tuple[Method, ...], code: int) -> None:
    pair = opened()
    (closed,) = to_server(pair, *map(framed, methods))
    assert isinstance(closed, o.ChannelClosed)
    assert (closed.code, closed.by_peer) == (code, False)
    *_, last = said(pair.server)
    assert isinstance(last, t.SessionClosed)
    assert last.reply_code == code
    # What the client has sent before it knew costs nothing; then it begins anew.
    assert to_server(pair, framed(t.TxSelect()), framed(t.SessionClose())) == []
    assert to_server(pair, framed(t.SessionOpen(0))) == [o.OpenChannel(1, serial=1)]
    assert pair.server.unfinished == 0


def test_a_transfer_before_its_body() -> None:
    pair = opened()
    methods = (
        t.MessageResume(b"r", "id"),
        transfer(ReferenceTo(b"r")),
        t.MessageAppend(b"r", b"one "),
        t.MessageCheckpoint(b"r", "id"),
        t.MessageAppend(b"r", b"two"),
    )
    assert to_server(pair, *map(framed, methods)) == []
    assert t.MessageOffset(0) in said(pair.server)
    assert pair.server.unfinished > 0
    (publish,) = to_server(pair, framed(t.MessageClose(b"r")))
    assert isinstance(publish, o.Publish)
    assert publish.message.body == b"one two"
    assert to_server(pair, respond(1, 0, 0, t.MessageOffset(0))) == []


def test_unfinished_bodies_go_with_the_session() -> None:
    pair = opened()
    to_server(pair, framed(t.MessageOpen(b"r")), framed(t.MessageAppend(b"r", b"x" * 1_000)))
    assert pair.server.unfinished > 1_000
    pair.ask(o.CloseChannel(1))
    pair.tell(o.ChannelClosed(1, 200, ""))
    assert pair.server.unfinished == 0


# ------------------------------------------------------------------------------------------ how sessions end


def test_suspend_is_the_end_of_a_session() -> None:
    pair = opened()
    (asked,) = to_server(pair, framed(t.SessionSuspend()))
    assert isinstance(asked, o.CloseChannel)
    pair.server.send(o.ChannelClosed(1, 200, ""), pair.now)
    assert said(pair.server) == [t.SessionDetached()]
    assert to_client(pair, framed(t.SessionDetached())) == [o.ChannelClosed(1, 200, "the server detached the session")]


def test_there_is_nothing_to_resume() -> None:
    pair = opened()
    assert to_server(pair, framed(t.SessionResume(NAME), 2)) == []
    (closed,) = said(pair.server)
    assert isinstance(closed, t.SessionClosed)
    assert closed.reply_code == 404


def test_either_side_may_end_a_session_unasked() -> None:
    pair = opened()
    assert to_server(pair, framed(t.SessionClosed(541, "dead"))) == [o.ChannelClosed(1, 541, "dead")]
    assert to_client(pair, framed(t.SessionClose())) == [o.ChannelClosed(1, 200, "closed by the server")]
    assert said(pair.client) == [t.SessionClosed(200, "")]


def test_a_session_that_ends_with_nothing_under_way() -> None:
    pair = opened()
    assert to_client(pair, framed(t.SessionClosed(320, "bye"))) == [o.ChannelClosed(1, 320, "bye")]


def test_a_publish_under_way_is_unknown_when_the_session_ends() -> None:
    pair = confirming(opened())
    pair.ask(o.Publish(1, "", "q", Message(b"")))
    assert to_client(pair, framed(t.SessionClosed(404, "no exchange"))) == [o.ChannelClosed(1, 404, "no exchange")]


def test_an_answer_that_crosses_the_close() -> None:
    pair = opened()
    pair.client.send(o.CloseChannel(1), pair.now)
    assert to_client(pair, framed(t.QueuePurgeOk(5))) == []
    assert to_client(pair, framed(t.SessionClosed(404, "no"))) == [o.ChannelClosed(1, 404, "no", False)]


def test_a_connection_that_is_closed_over_a_request_names_it() -> None:
    pair = opened()
    pair.ask(o.PurgeQueue(1, "q"))
    key = t.QueuePurge.key
    events = to_client(pair, framed(m.ConnectionClose(540, "no", key >> 16, key & 0xFFFF), 0))
    assert events[0] == o.Failed(1, 2, 2, 540, events[1].text)  # type: ignore[attr-defined]
    assert "queue.purge" in events[1].text  # type: ignore[attr-defined]
    pair = opened()
    events = to_client(pair, framed(m.ConnectionClose(540, "no", key >> 16, key & 0xFFFF), 0))
    assert [type(event) for event in events] == [o.Closed]


def test_a_redirect_ends_the_connection() -> None:
    pair = make_pair()
    pair.client.receive_data(framed(m.ConnectionStart(0, 10, {}, b"PLAIN"), 0), pair.now)
    pair.client.receive_data(framed(m.ConnectionTune(10, 0, 0), 0), pair.now)
    closed = only(pair.client.receive_data(framed(m.ConnectionRedirect09("elsewhere:5672"), 0), pair.now))
    assert isinstance(closed, o.Closed)
    assert "elsewhere" in closed.text


# ------------------------------------------------------------------------------------ channels, the older way


def test_channels_as_they_were_opened_before() -> None:
    pair = opened()
    assert to_server(pair, framed(t.ChannelOpen(""), 2)) == [o.OpenChannel(2, serial=1)]
    pair.server.send(o.Done(2, 1, 1), pair.now)
    pair.server.send(o.Flow(2, False), pair.now)
    assert said(pair.server) == [t.ChannelOpenOk(), t.ChannelFlow(False)]
    assert to_server(pair, framed(t.ChannelFlow(True), 2), framed(t.ChannelFlowOk(False), 2)) == [
        o.Flow(2, True, serial=2)
    ]
    assert said(pair.server) == [t.ChannelFlowOk(True)]
    (asked,) = to_server(pair, framed(t.ChannelClose(200, "", 0, 0), 2))
    assert isinstance(asked, o.CloseChannel)
    pair.server.send(o.ChannelClosed(2, 200, ""), pair.now)
    assert said(pair.server) == [t.ChannelCloseOk()]
    to_server(pair, framed(t.ChannelOpen(""), 2))
    pair.server.send(o.Done(2, 1, 1), pair.now)
    pair.server.send(o.Failed(2, 0, 0, 404, "no"), pair.now)
    assert said(pair.server)[-1] == t.ChannelClose(404, "NOT_FOUND - no", 0, 0)
    assert to_server(pair, framed(t.ChannelCloseOk(), 2)) == []


# ------------------------------------------------------------------------------------------------ connection


def test_no_more_sessions_than_were_agreed_on() -> None:
    pair = opened(Limits(channel_max=1))
    assert broken_server(pair, framed(t.SessionOpen(0), 2)).reply_code == 530


def test_a_session_before_the_connection_is_open() -> None:
    pair = make_pair()
    pair.server.receive_data(b"AMQP\x01\x01\x00\x0a", pair.now)
    assert broken_server(pair, framed(t.SessionOpen(0))).reply_code == 503


def test_what_comes_on_a_channel_while_the_connection_closes() -> None:
    pair = opened()
    pair.server.send(o.Close(0, 320, "bye"), pair.now)
    assert to_server(pair, framed(t.SessionOpen(0), 2), framed(t.TxSelect())) == []


def test_what_follows_the_end_is_not_read() -> None:
    pair = opened()
    events = to_client(pair, framed(m.ConnectionClose(320, "bye"), 0), framed(t.SessionPing()))
    assert [type(event) for event in events] == [o.Closed]


def test_every_method_is_where_it_belongs() -> None:
    assert len(METHODS) == 121
