"""A server's channel: requests, their outcomes, content, confirms, and how it ends."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gateway.amqp.message import Message, Properties
from gateway.amqp.operations import (
    Alert,
    Cancelled,
    ChannelClosed,
    CloseChannel,
    Closed,
    CloseReason,
    Confirmed,
    Deliver,
    Done,
    Failed,
    Flow,
    Got,
    GotNothing,
    OpenChannel,
    Publish,
    PurgeQueue,
    Refused,
    Removed,
    Returned,
    SelectConfirm,
    Settle,
    Settlement,
)
from gateway.classic import methods as m
from gateway.classic.frames import BASIC, CONTENT_HEADER, FRAME_HEADER, HEADER
from gateway.errors import EncodeError, StateError
from gateway.limits import Limits
from gateway.session import Version
from gateway.v08.version import V0_8
from tests.classic.script import HEARS, ScriptedClient
from tests.pair import SERVER, only

PUBLISH = m.BasicPublish(0, "ex", "key", True, False)


def methods(client: ScriptedClient) -> list[Any]:
    return [item for _, item in client.heard()]


# ---------------------------------------------------------------------------------------- requests, outcomes


def test_requests_are_numbered(version: Version) -> None:
    client = ScriptedClient(version).open()
    events = client.say(m.QueuePurge(0, "a", False), m.BasicAck(5), m.QueuePurge(0, "b", False))
    assert [event.serial for event in events] == [2, 3, 4]  # type: ignore[attr-defined]


def test_answers_in_any_order(version: Version) -> None:
    client = ScriptedClient(version).open()
    client.say(m.QueuePurge(0, "a", False), m.QueuePurge(0, "b", False))
    client.send(Removed(1, 3, 3, 30), Removed(1, 2, 2, 20))
    assert methods(client) == [m.QueuePurgeOk(30), m.QueuePurgeOk(20)]
    with pytest.raises(StateError, match="request 2 waits for no outcome"):
        client.send(Removed(1, 2, 2, 20))


def test_nowait_swallows_the_answer_and_not_the_failure(version: Version) -> None:
    client = ScriptedClient(version).open()
    assert client.say(m.QueuePurge(0, "a", True)) == [PurgeQueue(1, "a", serial=2)]
    client.send(Removed(1, 2, 2, 20))
    assert methods(client) == []
    client.say(m.QueuePurge(0, "a", True))
    client.send(Failed(1, 3, 3, 404, "no queue 'a'"))
    assert methods(client) == [m.ChannelClose(404, "NOT_FOUND - no queue 'a'", 50, 30)]


def test_a_run_of_outcomes(version: Version) -> None:
    client = ScriptedClient(version).open()
    client.say(m.TxSelect(), m.TxCommit())
    client.send(Done(1, 2, 3))
    assert methods(client) == [m.TxSelectOk(), m.TxCommitOk()]


# -------------------------------------------------------------------------------------------------- content


def test_publish(version: Version) -> None:
    client = ScriptedClient(version).open()
    event = only(client.say_content(PUBLISH, b"body", b"\x00\x80\x03m-1"))
    assert event == Publish(1, "ex", "key", Message(b"body", Properties(message_id="m-1")), serial=2)
    assert event.mandatory
    assert not event.immediate


def test_many_places(version: Version) -> None:
    client = ScriptedClient(version).open()
    for index in range(600):
        event = only(client.say_content(m.BasicPublish(0, "ex", f"key-{index}", False, True)))
        assert (event.routing_key, event.mandatory, event.immediate) == (f"key-{index}", False, True)


def test_a_publish_that_is_cut(version: Version) -> None:
    octets = PUBLISH.encode()
    for cut in range(4, len(octets)):
        client = ScriptedClient(version).open()
        client.receive(b"\x01\x00\x01" + cut.to_bytes(4, "big") + octets[:cut] + b"\xce")
        assert methods(client)[0].reply_code == 502


def test_a_publish_over_the_limit(version: Version) -> None:
    client = ScriptedClient(version, config=replace(SERVER, limits=Limits(message_max=10))).open()
    assert client.say_content(PUBLISH, bytes(20)) == [
        ChannelClosed(1, 311, "20 octets are over the limit of 10", by_peer=False)
    ]
    assert methods(client) == [m.ChannelClose(311, "CONTENT_TOO_LARGE - 20 octets are over the limit of 10", 60, 40)]


def test_many_places_and_tags(version: Version) -> None:
    client = ScriptedClient(version).open()
    for number in range(1, 601):
        client.send(Deliver(1, f"tag-{number}", 0, False, "ex", f"key-{number}", Message(b"")))
        deliver, _ = methods(client)
        assert deliver == m.BasicDeliver(f"tag-{number}", number, False, "ex", f"key-{number}")


def test_a_message_that_is_too_large_is_refused_at_its_header(version: Version) -> None:
    """Its body may never come, or come for ever."""
    client = ScriptedClient(version).open()
    client.say(m.BasicPublish(0, "", "q", False, False))
    header = FRAME_HEADER.pack(HEADER, 1, 14) + CONTENT_HEADER.pack(BASIC, 0, 1 << 63) + b"\0\0\xce"
    closed = only(client.receive(header))
    assert (closed.code, str(1 << 63) in closed.text) == (311, True)
    assert client.receive(b"\x03\x00\x01\x00\x00\x00\x01x\xce" * 9) == []
    assert client.session.unfinished == 0


def test_a_content_header_with_a_weight_is_refused(version: Version) -> None:
    client = ScriptedClient(version).open()
    client.say(m.BasicPublish(0, "", "q", False, False))
    client.receive(FRAME_HEADER.pack(HEADER, 1, 14) + CONTENT_HEADER.pack(BASIC, 7, 0) + b"\0\0\xce")
    (close,) = methods(client)
    assert (close.reply_code, "weight is not 0" in close.reply_text) == (505, True)


def test_deliver_and_get(version: Version) -> None:
    client = ScriptedClient(version).open()
    client.say(m.BasicGet(0, "q", False), m.BasicGet(0, "q", False))
    message = Message(b"body", Properties(message_id="m-1", user_id="someone"))
    content = (b"\x00\x90\x03m-1\x07someone", b"body")
    deliver = Deliver(1, "tag", 0, True, "ex", "key", message)
    assert client.send(deliver, deliver) == [1, 2]
    assert client.send(Got(1, 2, 2, 0, False, "ex", "key", message, 9)) == [3]
    assert client.send(GotNothing(1, 3, 3)) == [0]
    assert methods(client) == [
        m.BasicDeliver("tag", 1, True, "ex", "key"),
        content,
        m.BasicDeliver("tag", 2, True, "ex", "key"),
        content,
        m.BasicGetOk(3, False, "ex", "key", 9),
        content,
        m.BasicGetEmpty(),
    ]
    with pytest.raises(StateError):
        client.send(Got(1, 2, 2, 0, False, "ex", "key", message, 9))


def test_what_cannot_be_delivered_takes_no_number(version: Version) -> None:
    client = ScriptedClient(version).open()
    big = Message(b"", Properties(headers={"h": "x" * 131_072}))
    with pytest.raises(EncodeError, match="does not fit the client's frame_max of 131072"):
        client.send(Deliver(1, "tag", 0, False, "ex", "key", big))
    with pytest.raises(EncodeError, match="message_id"):
        client.send(Deliver(1, "tag", 0, False, "ex", "key", Message(b"", Properties(message_id="m" * 256))))
    assert methods(client) == []
    assert client.send(Deliver(1, "tag", 0, False, "ex", "key", Message(b""))) == [1]


def test_octets_pass_through(version: Version) -> None:
    client = ScriptedClient(version).open()
    octets = b"\x00\x10\x03ann"
    event = only(client.say_content(PUBLISH, b"body", octets))
    client.send(Deliver(1, "tag", 0, False, "ex", "key", event.message))
    assert methods(client)[1] == (octets, b"body")


# ------------------------------------------------------------------------------------------------ settlement


@pytest.mark.parametrize(
    ("method", "settlement", "first", "last"),
    [
        (m.BasicAck(5), Settlement.ACCEPT, 5, 5),
        (m.BasicAck(5, True), Settlement.ACCEPT, 0, 5),
        (m.BasicAck(0, True), Settlement.ACCEPT, 0, 0),
        (m.BasicNack(5, False, True), Settlement.RELEASE, 5, 5),
        (m.BasicNack(5, True, False), Settlement.REJECT, 0, 5),
        (m.BasicReject(5, True), Settlement.RELEASE, 5, 5),
        (m.BasicReject(5, False), Settlement.REJECT, 5, 5),
    ],
)
def test_settlements(version: Version, method: m.Method, settlement: Settlement, first: int, last: int) -> None:
    client = ScriptedClient(version).open()
    assert client.say(method) == [Settle(1, settlement, first, last, serial=2)]
    client.send(Failed(1, 2, 2, 406, f"unknown delivery tag {last}"))
    text = f"PRECONDITION_FAILED - unknown delivery tag {last}"
    assert methods(client) == [m.ChannelClose(406, text, method.class_id, method.method_id)]


@pytest.mark.parametrize("method", [m.BasicAck(0), m.BasicReject(0, True), m.BasicNack(0)])
def test_delivery_0_is_none(version: Version, method: m.Method) -> None:
    client = ScriptedClient(version).open()
    assert client.say(method) == [ChannelClosed(1, 406, "unknown delivery tag 0", by_peer=False)]
    assert methods(client)[0].reply_code == 406


def test_an_ack_of_another_size(version: Version) -> None:
    client = ScriptedClient(version).open()
    client.receive(b"\x01\x00\x01\x00\x00\x00\x05\x00\x3c\x00\x50\x00\xce")
    assert methods(client)[0].reply_code == 502


# -------------------------------------------------------------------------------------------------- confirms


def confirming(version: Version, count: int) -> ScriptedClient:
    client = ScriptedClient(version).open()
    assert client.say(m.ConfirmSelect()) == [SelectConfirm(1, serial=2)]
    client.send(Done(1, 2, 2))
    assert methods(client) == [m.ConfirmSelectOk()]
    for _ in range(count):
        client.say_content(PUBLISH)
    return client


def test_confirms(version: Version) -> None:
    client = confirming(version, 7)
    client.send(Confirmed(1, 4, 4), Confirmed(1, 3, 5), Confirmed(1, 8, 9), Refused(1, 7, 7), Confirmed(1, 6, 6))
    assert methods(client) == [
        m.BasicAck(2),
        m.BasicAck(3, True),
        m.BasicAck(6),
        m.BasicAck(7),
        m.BasicNack(5, False, False),
        m.BasicAck(4),
    ]
    client.send(Confirmed(1, 3, 9), Confirmed(1, 3, 3))
    assert methods(client) == []


def test_refusing_many(version: Version) -> None:
    client = confirming(version, 3)
    client.send(Refused(1, 3, 5))
    assert methods(client) == [m.BasicNack(3, True, False)]


def test_returned_then_confirmed(version: Version) -> None:
    client = confirming(version, 2)
    message = Message(b"body")
    client.send(Returned(1, 3, 3, 312, "NO_ROUTE", "ex", "key", message), Confirmed(1, 3, 4))
    assert methods(client) == [
        m.BasicReturn(312, "NO_ROUTE", "ex", "key"),
        (b"\x00\x00", b"body"),
        m.BasicAck(2, True),
    ]
    client.send(Returned(1, 4, 4, 313, ""))
    assert methods(client)[0] == m.BasicReturn(313, "NO_CONSUMERS", "", "")


def test_a_publish_that_fails(version: Version) -> None:
    for client, serial in ((confirming(version, 1), 3), (ScriptedClient(version).open(), 2)):
        client.say_content(PUBLISH)
        client.send(Failed(1, serial, serial, 404, "NOT_FOUND - no exchange 'ex'"))
        assert methods(client) == [m.ChannelClose(404, "NOT_FOUND - no exchange 'ex'", 60, 40)]


# ----------------------------------------------------------------------------------------- flow, access, cancel


def test_flow_both_ways(version: Version) -> None:
    client = ScriptedClient(version).open()
    assert client.say(m.ChannelFlow(False)) == [Flow(1, False, serial=2)]
    assert methods(client) == [m.ChannelFlowOk(False)]
    client.send(Flow(1, False))
    assert methods(client) == [m.ChannelFlow(False)]
    assert client.say(m.ChannelFlowOk(False)) == []


@pytest.mark.parametrize("realm", ["/data", "/data/orders"])
def test_everyone_gets_a_ticket(realm: str) -> None:
    client = ScriptedClient(V0_8).open()
    assert client.say(m.AccessRequest(realm)) == []
    assert methods(client) == [m.AccessRequestOk(1)]


@pytest.mark.parametrize(("realm", "exclusive", "code"), [("/admin", False, 402), ("/data", True, 403)])
def test_a_realm_that_cannot_be_had(realm: str, exclusive: bool, code: int) -> None:
    client = ScriptedClient(V0_8).open()
    (closed,) = client.say(m.AccessRequest(realm, exclusive))
    assert isinstance(closed, ChannelClosed)
    assert closed.code == code
    ((_, close),) = client.heard()
    assert (type(close), close.reply_code, close.class_id_, close.method_id_) == (m.ChannelClose, code, 30, 10)


def test_a_realm_of_another_kind() -> None:
    client = ScriptedClient(V0_8).open()
    assert client.say(m.AccessRequest("orders")) == []
    ((_, close),) = client.heard()
    assert (type(close), close.reply_code) == (m.ConnectionClose08, 403)


def test_an_alert_is_for_0_8(version: Version) -> None:
    client = ScriptedClient(version).open()
    client.send(Alert(1, 313, "careful", {"queue": "q"}))
    alert = m.ChannelAlert(313, "NO_CONSUMERS - careful", {"queue": "q"})
    assert methods(client) == ([alert] if version is V0_8 else [])


def test_cancelled_only_for_those_who_can_hear(version: Version) -> None:
    client = ScriptedClient(version, {"product": "x", "capabilities": HEARS}).open()
    client.send(Cancelled(1, "tag"))
    assert methods(client) == [m.BasicCancel("tag", True)]
    assert client.say(m.BasicCancelOk("tag")) == []
    jms = ScriptedClient(version, {"product": "qpid"}).open()
    jms.send(Cancelled(1, "tag"))
    assert methods(jms) == [m.BasicCancelOk("tag")]
    deaf = ScriptedClient(version, {"product": "x"}).open()
    deaf.send(Cancelled(1, "tag"))
    assert methods(deaf) == []


# -------------------------------------------------------------------------------------------------- the end


def test_the_client_closes(version: Version) -> None:
    client = ScriptedClient(version).open()
    assert client.say(m.ChannelClose(200, "bye")) == [CloseChannel(1, 200, "bye", serial=2)]
    client.send(Confirmed(1, 1, 1), ChannelClosed(1, 200, ""))
    assert methods(client) == [m.ChannelCloseOk()]
    with pytest.raises(StateError, match="channel 1 is not open"):
        client.send(ChannelClosed(1, 200, ""))
    assert client.say(m.ChannelOpen()) == [OpenChannel(1, serial=1)]


def test_nobody_asked(version: Version) -> None:
    with pytest.raises(StateError, match="has not asked to close"):
        ScriptedClient(version).open().send(ChannelClosed(1, 200, ""))


def test_a_failure_while_the_client_closes(version: Version) -> None:
    client = ScriptedClient(version).open()
    client.say(m.QueuePurge(0, "a", False), m.ChannelClose(200, ""))
    client.send(Failed(1, 2, 2, 404, "no queue"))
    assert methods(client) == [m.ChannelCloseOk()]


def test_methods_behind_the_clients_close(version: Version) -> None:
    client = ScriptedClient(version).open()
    client.say(m.ChannelClose(200, ""), m.QueuePurge(0, "q", False))
    assert methods(client)[0].reply_code == 504


def test_what_comes_on_a_closing_channel_is_passed_over(version: Version) -> None:
    client = ScriptedClient(version).open()
    client.send(CloseChannel(1, 406, "enough"))
    assert methods(client) == [m.ChannelClose(406, "PRECONDITION_FAILED - enough", 0, 0)]
    assert client.say(m.QueuePurge(0, "q", False)) == []
    assert client.say_content(PUBLISH, bytes(10_000)) == []
    with pytest.raises(StateError, match="channel 1 is closing"):
        client.send(Deliver(1, "tag", 0, False, "ex", "key", Message(b"")))
    assert client.say(m.ChannelClose(200, "")) == []
    assert methods(client) == [m.ChannelCloseOk()]
    assert client.say(m.ChannelCloseOk()) == []
    assert client.say(m.ChannelOpen()) == [OpenChannel(1, serial=1)]


def test_the_cause_may_be_named(version: Version) -> None:
    client = ScriptedClient(version).open()
    client.say(m.QueuePurge(0, "q", False))
    client.send(CloseChannel(1, 404, "no queue", failed=2))
    assert methods(client) == [m.ChannelClose(404, "NOT_FOUND - no queue", 50, 30)]


@pytest.mark.parametrize("code", [503, 504, 530, 540, 541])
def test_codes_that_cost_the_connection(version: Version, code: int) -> None:
    client = ScriptedClient(version).open()
    client.say_content(PUBLISH)
    client.send(Failed(1, 2, 2, code, "no"))
    ((channel, close),) = client.heard()
    assert (channel, close.reply_code, close.class_id_, close.method_id_) == (0, code, 60, 40)
    assert client.say_content(PUBLISH) == []
    closed = client.say(client.dialect.connection_close_ok(), channel=0)
    assert closed == [Closed(0, CloseReason.LOCAL, code, "no")]


def test_a_channel_opens_once(version: Version) -> None:
    client = ScriptedClient(version).open()
    client.say(m.ChannelOpen())
    assert methods(client)[0].reply_code == 504


def test_a_method_inside_content(version: Version) -> None:
    client = ScriptedClient(version).open()
    client.say(PUBLISH, m.QueuePurge(0, "q", False))
    assert methods(client)[0].reply_code == 505
