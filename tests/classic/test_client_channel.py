"""A client's channel: publishes and their outcomes in every broker's order, deliveries and settlements, its end."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gateway.amqp.message import Message, Properties
from gateway.amqp.operations import (
    Alert,
    Cancelled,
    ChannelClosed,
    Close,
    CloseChannel,
    Closed,
    CloseReason,
    Confirmed,
    Consume,
    Consuming,
    Declared,
    DeclareQueue,
    Deliver,
    DeliveryTooLarge,
    Done,
    Failed,
    Flow,
    Get,
    GotNothing,
    Publish,
    QueryQueue,
    Recover,
    Refused,
    Returned,
    SelectConfirm,
    Settle,
    Settlement,
    TxCommit,
    TxRollback,
    TxSelect,
)
from gateway.classic import methods as m
from gateway.errors import EncodeError, StateError, Unsupported
from gateway.limits import Limits
from gateway.session import Version
from gateway.v08.version import V0_8
from tests.classic.script import OLD_RABBITMQ, QPID, RABBITMQ, ScriptedServer
from tests.pair import CLIENT, only

ACCEPT, RELEASE, REJECT = Settlement.ACCEPT, Settlement.RELEASE, Settlement.REJECT


def confirming(version: Version, properties: dict[str, Any] = RABBITMQ) -> ScriptedServer:
    server = ScriptedServer(version, properties).open()
    assert server.send(SelectConfirm(1)) == [2]
    assert server.heard() == [(1, m.ConfirmSelect())]
    assert server.say(m.ConfirmSelectOk()) == [Done(1, 2, 2)]
    return server


def message(text: str) -> Publish:
    return Publish(1, "ex", "key", Message(text.encode()))


def returned(server: ScriptedServer, text: str, code: int = 312) -> list[Any]:
    return server.say_content(m.BasicReturn(code, "NO_ROUTE", "ex", "key"), text.encode())


# ------------------------------------------------------------------------------------------------ confirms


def test_what_a_publish_looks_like(version: Version) -> None:
    server = ScriptedServer(version).open()
    properties = Properties(message_id="m-1")
    assert server.send(Publish(1, "ex", "key", Message(b"body", properties), mandatory=False)) == [2]
    assert server.heard() == [
        (1, m.BasicPublish(0, "ex", "key", False, False)),
        (1, (b"\x00\x80\x03m-1", b"body")),
    ]


def test_confirms_one_by_one_and_many(version: Version) -> None:
    server = confirming(version)
    assert server.send(*map(message, "abcde")) == [3, 4, 5, 6, 7]
    assert server.say(m.BasicAck(2)) == [Confirmed(1, 4, 4)]
    assert server.say(m.BasicAck(3, True)) == [Confirmed(1, 3, 5)]
    assert server.say(m.BasicAck(3, True)) == []
    assert server.say(m.BasicAck(0, True)) == [Confirmed(1, 6, 7)]


def test_other_requests_between_publishes(version: Version) -> None:
    server = confirming(version)
    assert server.send(message("a"), DeclareQueue(1, "q"), message("b")) == [3, 4, 5]
    assert server.say(m.BasicAck(2, True)) == [Confirmed(1, 3, 5)]
    assert server.say(m.QueueDeclareOk("q", 1, 2)) == [Declared(1, 4, 4, "q", 1, 2)]


def test_an_ack_of_nothing_is_a_violation(version: Version) -> None:
    server = confirming(version)
    assert only(server.say(m.BasicAck(1))).code == 503
    server = ScriptedServer(version).open()
    assert only(server.receive(b"\x01\x00\x01\x00\x00\x00\x05\x00\x3c\x00\x50\x00\xce")).code == 502


def test_rabbitmq_returns_then_acknowledges(version: Version) -> None:
    server = confirming(version)
    server.send(*map(message, "abc"))
    event = only(returned(server, "b"))
    assert (event.first, event.last, event.code, event.final) == (4, 4, 312, True)
    assert event.message == Message(b"b")
    assert server.say(m.BasicAck(2)) == []
    assert server.say(m.BasicAck(3, True)) == [Confirmed(1, 3, 5)]


def test_rabbitmq_refuses(version: Version) -> None:
    server = confirming(version)
    server.send(*map(message, "abc"))
    events = server.say(m.BasicNack(2, True))
    assert [(type(event), event.first) for event in events] == [(Refused, 3), (Refused, 4)]  # type: ignore[attr-defined]


def test_broker_j_refuses_then_returns(version: Version) -> None:
    server = confirming(version, QPID)
    server.send(*map(message, "abc"))
    assert server.say(m.BasicNack(2)) == []
    assert returned(server, "b")[0] == Returned(1, 4, 4, 312, "NO_ROUTE", "ex", "key", Message(b"b"))
    assert server.say(m.BasicAck(1)) == [Confirmed(1, 3, 3)]
    assert server.say(m.BasicNack(3)) == []
    refused, confirmed = server.say(m.ChannelFlow(True))
    assert (type(refused), refused.first) == (Refused, 5)  # type: ignore[attr-defined]
    assert confirmed == Flow(1, True)


def test_two_refusals_and_their_returns(version: Version) -> None:
    server = confirming(version, QPID)
    server.send(*map(message, "abc"))
    assert server.say(m.BasicNack(2, True)) == []
    assert [event.first for event in returned(server, "b")] == [4]
    assert [event.first for event in returned(server, "a")] == [3]
    assert server.say(m.BasicAck(3)) == [Confirmed(1, 5, 5)]


def test_broker_j_returns_what_a_full_queue_refuses(version: Version) -> None:
    server = confirming(version, QPID)
    server.send(message("a"))
    assert server.say(m.BasicNack(1)) == []
    assert returned(server, "a", 506) == [Refused(1, 3, 3, 506, "NO_ROUTE")]


def test_a_refusal_is_believed_after_a_while(version: Version) -> None:
    server = confirming(version, QPID)
    server.send(message("a"))
    server.say(m.BasicNack(1))
    assert server.session.next_timeout() == 1_000.5
    assert server.session.handle_timeout(1_000.4) == []
    assert only(server.session.handle_timeout(1_000.5)).first == 3
    assert server.session.next_timeout() == 1_030.0


def test_a_return_that_is_still_coming_is_waited_for_without_a_clock(version: Version) -> None:
    """A time that is past and never acted upon would keep the timer firing."""
    server = confirming(version, QPID)
    server.send(message("a"))
    before = server.session.next_timeout()
    server.say(m.BasicNack(1))
    assert server.say(m.BasicReturn(312, "NO_ROUTE", "ex", "key")) == []
    assert server.session.handle_timeout(1_001.0) == []
    assert server.session.next_timeout() == before


def test_a_refusal_before_the_end(version: Version) -> None:
    server = confirming(version, QPID)
    server.send(message("a"), message("b"))
    server.say(m.BasicNack(1))
    refused, closed = server.say(m.ChannelClose(404, "gone"))
    assert (type(refused), type(closed)) == (Refused, ChannelClosed)
    server = confirming(version, QPID)
    server.send(message("a"))
    server.say(m.BasicNack(1))
    refused, ended = server.session.receive_eof(0.0)
    assert (type(refused), type(ended)) == (Refused, Closed)


def test_what_cannot_be_returned_is_refused_at_once(version: Version) -> None:
    server = confirming(version, QPID)
    server.send(Publish(1, "ex", "key", Message(b"a"), mandatory=False))
    assert only(server.say(m.BasicNack(1))).first == 3


def test_a_return_of_nothing_is_passed_over(version: Version) -> None:
    server = confirming(version)
    assert returned(server, "never sent") == []


def test_without_confirms(version: Version) -> None:
    server = ScriptedServer(version).open()
    server.send(message("a"), message("b"), Publish(1, "ex", "other", Message(b""), mandatory=False))
    assert [event.first for event in returned(server, "b")] == [3]
    assert [event.first for event in returned(server, "unheard of")] == [2]
    assert [event.first for event in returned(server, "unheard of")] == [0]


def test_a_return_over_the_limit(version: Version) -> None:
    config = replace(CLIENT, limits=Limits(message_max=10))
    server = ScriptedServer(version, config=config).open()
    server.send(message("a" * 20))
    assert only(returned(server, "a" * 20)).first == 2


# ------------------------------------------------------------------------------- transactions for confirms


def emulating(version: Version) -> ScriptedServer:
    server = ScriptedServer(version, OLD_RABBITMQ).open()
    assert server.send(SelectConfirm(1)) == [2]
    assert server.heard() == [(1, m.TxSelect())]
    assert server.say(m.TxSelectOk()) == [Done(1, 2, 2)]
    return server


def methods(server: ScriptedServer) -> list[Any]:
    return [item for _, item in server.heard() if not isinstance(item, tuple)]


def test_a_commit_per_flush_and_nothing_behind_it(version: Version) -> None:
    server = emulating(version)
    publish = m.BasicPublish(0, "ex", "key", True, False)
    server.send(message("a"), message("b"))
    assert methods(server) == [publish, publish, m.TxCommit()]
    server.send(message("c"), DeclareQueue(1, "q"))
    assert methods(server) == []
    assert server.say(m.TxCommitOk()) == [Confirmed(1, 3, 4)]
    assert [type(method) for method in methods(server)] == [m.BasicPublish, m.QueueDeclare, m.TxCommit]
    assert server.say(m.QueueDeclareOk("q", 0, 0), m.TxCommitOk()) == [Declared(1, 6, 6, "q"), Confirmed(1, 5, 5)]
    assert methods(server) == []


def test_a_request_alone_needs_no_commit(version: Version) -> None:
    server = emulating(version)
    server.send(QueryQueue(1, "q"))
    assert [type(method) for method in methods(server)] == [m.QueueDeclare]


def test_returned_in_a_transaction(version: Version) -> None:
    server = emulating(version)
    server.send(message("a"), message("b"))
    server.heard()
    assert only(returned(server, "a")).first == 3
    assert server.say(m.TxCommitOk()) == [Confirmed(1, 4, 4)]
    server.send(message("c"))
    server.heard()
    returned(server, "c")
    assert server.say(m.TxCommitOk()) == []


def test_settlements_are_committed_too(version: Version) -> None:
    server = emulating(version)
    server.send(Get(1, "q"), Get(1, "q"))
    server.heard()
    for tag in (1, 2):
        server.say_content(m.BasicGetOk(tag, False, "", "q", 0))
    server.send(Settle(1, ACCEPT, 1, 1))
    assert methods(server) == [m.BasicAck(1), m.TxCommit()]
    server.send(Settle(1, REJECT, 2, 2))
    assert server.say(m.TxCommitOk()) == []
    assert methods(server) == [m.BasicReject(2, False), m.TxCommit()]


def test_settlements_of_a_range_are_committed_too(version: Version) -> None:
    server = emulating(version)
    server.send(Get(1, "q"), Get(1, "q"), Get(1, "q"))
    server.heard()
    for tag in (1, 2, 3):
        server.say_content(m.BasicGetOk(tag, False, "", "q", 0))
    server.send(Settle(1, ACCEPT, 2, 3))
    assert methods(server) == [m.BasicAck(2), m.BasicAck(3), m.TxCommit()]
    assert server.say(m.TxCommitOk()) == []


def test_close_waits_for_the_commit(version: Version) -> None:
    server = emulating(version)
    server.send(message("a"))
    server.heard()
    server.send(message("b"), CloseChannel(1))
    assert methods(server) == []
    assert server.say(m.TxCommitOk()) == [Confirmed(1, 3, 3)]
    assert methods(server)[-1] == m.TxCommit()
    assert server.say(m.TxCommitOk()) == [Confirmed(1, 4, 4)]
    assert methods(server) == [m.ChannelClose(200, "")]
    assert server.say(m.ChannelCloseOk()) == [ChannelClosed(1, 200, "", by_peer=False)]


def test_close_with_nothing_held(version: Version) -> None:
    server = emulating(version)
    server.send(CloseChannel(1))
    assert methods(server) == [m.ChannelClose(200, "")]


def test_closing_the_connection_writes_what_is_held(version: Version) -> None:
    server = emulating(version)
    server.send(message("a"), Close(0))
    assert [type(method) for method in methods(server)][-2:] == [m.TxCommit, server.dialect.connection_close]


def test_a_dead_channel_leaves_publishes_unknown(version: Version) -> None:
    server = emulating(version)
    server.send(message("a"), message("b"))
    server.heard()
    server.send(message("c"))
    assert server.say(m.ChannelClose(404, "no exchange", 60, 40)) == [ChannelClosed(1, 404, "no exchange")]
    assert methods(server) == [m.ChannelCloseOk()]


# ---------------------------------------------------------------------------------------- transactions, modes


def test_the_users_own_transaction(version: Version) -> None:
    server = ScriptedServer(version).open()
    server.send(TxSelect(1), message("a"), TxCommit(1))
    with pytest.raises(StateError, match="channel 1 is committing: no Publish"):
        server.send(message("b"))
    assert server.say(m.TxSelectOk(), m.TxCommitOk()) == [Done(1, 2, 2), Done(1, 4, 4)]
    assert server.send(message("c"), TxRollback(1)) == [5, 6]
    assert server.say(m.TxRollbackOk()) == [Done(1, 6, 6)]


def test_a_rollback_takes_settlements_back(version: Version) -> None:
    """RabbitMQ has them unacknowledged again, with their old tags."""
    server = ScriptedServer(version).open()
    server.send(TxSelect(1), Consume(1, "q", "tag"))
    server.say(m.TxSelectOk(), m.BasicConsumeOk("tag"))
    deliver(server, 1, 2, 3, 4)
    server.send(Settle(1, ACCEPT, 1, 1), Settle(1, ACCEPT, 2, 3), TxRollback(1))
    server.say(m.TxRollbackOk())
    methods(server)
    server.send(Settle(1, ACCEPT, 0, 0), TxCommit(1))
    assert methods(server)[0] == m.BasicAck(4, True)
    server.say(m.TxCommitOk())
    with pytest.raises(StateError, match="outstanding"):
        server.send(Settle(1, ACCEPT, 1, 1))


def test_modes_do_not_mix(version: Version) -> None:
    server = ScriptedServer(version).open()
    with pytest.raises(StateError, match="not transacted"):
        server.send(TxCommit(1))
    server.send(SelectConfirm(1))
    for operation in (SelectConfirm(1), TxSelect(1), TxRollback(1)):
        with pytest.raises(StateError, match="in mode confirm"):
            server.send(operation)


# --------------------------------------------------------------------------------------- refused beforehand


@pytest.mark.parametrize(
    ("operation", "error", "reason"),
    [
        (Publish(1, "e" * 256, "", Message()), EncodeError, "exchange: 256 octets are more than 255"),
        (Publish(1, "", "\u00e9" * 128, Message()), EncodeError, "routing_key: 256 octets are more than 255"),
        (Publish(1, "", "", Message(b"", Properties(message_id="m" * 256))), EncodeError, "message_id: 256"),
        (Publish(1, "", "", Message(b"", Properties(headers={"h": "x" * 131_072}))), EncodeError, "frame_max"),
        (Publish(1, "", "", Message(b"", Properties(headers={"k" * 256: 1}))), EncodeError, "256 octets"),
        (Publish(1, "", "", Message(), immediate=True), Unsupported, "540"),
        (Flow(1, False), Unsupported, "540"),
        (CloseChannel(1, 200, "x" * 256), EncodeError, "reply_text"),
        (DeclareQueue(1, "q" * 256), EncodeError, "queue: 256 octets are more than 255"),
    ],
)
def test_nothing_is_sent(version: Version, operation: Any, error: type[Exception], reason: str) -> None:
    server = confirming(version)
    with pytest.raises(error, match=reason):
        server.send(operation)
    assert server.heard() == []
    assert server.send(message("next")) == [3]


def test_broker_j_takes_them(version: Version) -> None:
    server = ScriptedServer(version, QPID).open()
    assert server.send(Publish(1, "", "q", Message(), immediate=True), Flow(1, False)) == [2, 3]
    assert methods(server) == [m.BasicPublish(0, "", "q", True, True), m.ChannelFlow(False)]
    assert server.say(m.ChannelFlowOk(False)) == []


def test_places_are_encoded_once_and_not_for_ever(version: Version) -> None:
    server = ScriptedServer(version).open()
    for index in range(200):
        server.send(Publish(1, "ex", f"key-{index}", Message()))
    keys = [method.routing_key for method in methods(server)]
    assert keys == [f"key-{index}" for index in range(200)]


# ------------------------------------------------------------------------------------------------ deliveries


def consuming(version: Version, properties: dict[str, Any] = RABBITMQ, no_ack: bool = False) -> ScriptedServer:
    server = ScriptedServer(version, properties).open()
    server.send(Consume(1, "q", "tag", no_ack=no_ack))
    server.heard()
    assert server.say(m.BasicConsumeOk("tag")) == [Consuming(1, 2, 2, "tag")]
    return server


def deliver(server: ScriptedServer, *tags: int, body: bytes = b"body", consumer: str = "tag") -> list[Any]:
    events = []
    for tag in tags:
        events += server.say_content(m.BasicDeliver(consumer, tag, tag % 2 == 0, "ex", "key"), body)
    return events


def test_deliveries(version: Version) -> None:
    server = consuming(version)
    assert deliver(server, 1, 2) == [
        Deliver(1, "tag", 1, False, "ex", "key", Message(b"body")),
        Deliver(1, "tag", 2, True, "ex", "key", Message(b"body")),
    ]


@pytest.mark.parametrize("again", [1, 2])
def test_a_delivery_tag_never_goes_back(version: Version, again: int) -> None:
    server = consuming(version)
    deliver(server, 1, 2)
    closed = only(deliver(server, again))
    assert (closed.code, closed.reason) == (503, CloseReason.SYNTAX)
    assert f"delivery tag {again} on channel 1 behind 2" in closed.text


def test_what_was_got_has_a_tag_too(version: Version) -> None:
    server = consuming(version)
    deliver(server, 1)
    server.send(Get(1, "q"))
    closed = only(server.say_content(m.BasicGetOk(1, False, "", "q", 0)))
    assert (closed.code, closed.text) == (503, "delivery tag 1 on channel 1 behind 1")


def test_many_places_and_tags(version: Version) -> None:
    server = consuming(version)
    for index in range(600):
        method = m.BasicDeliver(f"tag-{index}", index + 1, False, "ex", f"key-{index}")
        event = only(server.say_content(method))
        assert (event.consumer_tag, event.routing_key) == (f"tag-{index}", f"key-{index}")


@pytest.mark.parametrize("cut", range(4, 24))
def test_a_deliver_that_is_cut(version: Version, cut: int) -> None:
    server = consuming(version)
    deliver(server, 1)
    payload = m.BasicDeliver("tag", 2, False, "ex", "key").encode()[:cut]
    frame = b"\x01\x00\x01" + len(payload).to_bytes(4, "big") + payload + b"\xce"
    if cut < len(m.BasicDeliver("tag", 2, False, "ex", "key").encode()):
        assert only(server.receive(frame)).code == 502


def test_accepting(version: Version) -> None:
    server = consuming(version)
    deliver(server, *range(1, 10))
    server.send(Settle(1, ACCEPT, 2, 2))
    server.send(Settle(1, ACCEPT, 1, 4))
    server.send(Settle(1, ACCEPT, 6, 7))
    server.send(Settle(1, ACCEPT, 0, 0))
    assert methods(server) == [
        m.BasicAck(2),
        m.BasicAck(4, True),
        m.BasicAck(6),
        m.BasicAck(7),
        m.BasicAck(9, True),
    ]


@pytest.mark.parametrize(
    ("properties", "sent"),
    [
        (RABBITMQ, [m.BasicNack(3, True, True), m.BasicNack(4, False, False)]),
        (OLD_RABBITMQ, [*(m.BasicReject(tag, True) for tag in (1, 2, 3)), m.BasicReject(4, False)]),
        (QPID, [*(m.BasicNack(tag, False, True) for tag in (1, 2, 3)), m.BasicNack(4, False, False)]),
    ],
)
def test_releasing_and_rejecting(version: Version, properties: dict[str, Any], sent: list[m.Method]) -> None:
    server = consuming(version, properties)
    deliver(server, 1, 2, 3, 4)
    server.send(Settle(1, RELEASE, 1, 3), Settle(1, REJECT, 4, 4))
    assert methods(server) == sent


def test_what_is_not_outstanding(version: Version) -> None:
    server = consuming(version)
    deliver(server, 1)
    server.send(Settle(1, ACCEPT, 1, 1))
    for first, last in ((1, 1), (1, 5), (0, 0)):
        with pytest.raises(StateError, match="no delivery within"):
            server.send(Settle(1, ACCEPT, first, last))
    server = consuming(version, no_ack=True)
    deliver(server, 1)
    with pytest.raises(StateError):
        server.send(Settle(1, ACCEPT, 1, 1))


def test_a_delivery_over_our_limit(version: Version) -> None:
    server = ScriptedServer(version, config=replace(CLIENT, limits=Limits(message_max=10))).open()
    server.send(Consume(1, "q", "tag"), Get(1, "q"))
    server.say(m.BasicConsumeOk("tag"))
    big = bytes(5_000)
    assert deliver(server, 1, body=big) == [DeliveryTooLarge(1, "tag", 1, 5_000, 10, False, "ex", "key")]
    assert server.say_content(m.BasicGetOk(2, True, "ex", "key", 0), big) == [
        DeliveryTooLarge(1, "", 2, 5_000, 10, True, "ex", "key"),
        GotNothing(1, 3, 3),
    ]
    assert server.send(Settle(1, REJECT, 1, 2)) == [4]


def test_a_method_inside_content_is_a_violation(version: Version) -> None:
    server = consuming(version)
    server.say(m.BasicDeliver("tag", 1, False, "ex", "key"))
    closed = only(server.say(m.BasicAck(1)))
    assert (closed.code, closed.text) == (505, "a method where a content header was due")


def test_recover_forgets_what_was_out(version: Version) -> None:
    server = consuming(version)
    deliver(server, 1, 2)
    server.send(Recover(1))
    server.say(server.dialect.recover_ok())  # type: ignore[misc]
    with pytest.raises(StateError):
        server.send(Settle(1, ACCEPT, 1, 2))


def test_the_server_ends_a_consumer(version: Version) -> None:
    server = consuming(version)
    assert server.say(m.BasicCancel("tag", True)) == [Cancelled(1, "tag")]
    assert methods(server) == [m.BasicCancel("tag", True)]  # for a broker that keeps the tag: it may be used again
    assert server.say(m.BasicCancel("tag", True)) == [Cancelled(1, "tag")]
    assert server.heard() == []
    server.send(Consume(1, "q", "tag"))
    server.heard()
    assert server.say(m.BasicCancel("tag", False)) == [Cancelled(1, "tag")]
    assert methods(server) == [m.BasicCancelOk("tag")]


def test_nothing_follows_the_close_of_a_channel(version: Version) -> None:
    """RabbitMQ ends the connection over it: the cancel of a consumer whose queue is gone crosses the close."""
    server = consuming(version)
    server.send(CloseChannel(1))
    server.heard()
    assert server.say(m.BasicCancel("tag", True)) == [Cancelled(1, "tag")]
    assert server.say(m.BasicCancel("other", False)) == [Cancelled(1, "other")]
    assert server.say(m.ChannelFlow(False)) == [Flow(1, False)]
    assert server.heard() == []
    assert server.say(m.ChannelCloseOk()) == [ChannelClosed(1, 200, "", by_peer=False)]


def test_a_cancel_is_answered_where_the_broker_keeps_the_tag_for_that(version: Version) -> None:
    capabilities = {**RABBITMQ["capabilities"], "accept_consumer_cancel_ok": True}  # type: ignore[dict-item]
    server = consuming(version, {**RABBITMQ, "capabilities": capabilities})
    assert server.say(m.BasicCancel("tag", True)) == [Cancelled(1, "tag")]
    assert methods(server) == [m.BasicCancelOk("tag")]
    assert server.say(m.BasicCancel("tag", True)) == [Cancelled(1, "tag")]
    assert server.heard() == []


def test_a_consumer_tag_names_one_consumer(version: Version) -> None:
    server = consuming(version)
    with pytest.raises(StateError, match="consumer tag 'tag' is in use"):
        server.send(Consume(1, "q", "tag"))
    assert server.send(Consume(1, "q"), Consume(1, "q")) == [3, 4]


# ---------------------------------------------------------------------------------------- flow and the end


def test_the_server_stops_us(version: Version) -> None:
    server = ScriptedServer(version).open()
    assert server.say(m.ChannelFlow(False)) == [Flow(1, False)]
    assert methods(server) == [m.ChannelFlowOk(False)]
    assert server.send(message("anyway")) == [2]


def test_a_request_that_fails(version: Version) -> None:
    server = ScriptedServer(version).open()
    server.send(message("a"), QueryQueue(1, "q"), DeclareQueue(1, "other"))
    assert server.say(m.ChannelClose(404, "NOT_FOUND - no queue 'q'", 50, 10)) == [
        Failed(1, 3, 3, 404, "NOT_FOUND - no queue 'q'"),
        ChannelClosed(1, 404, "NOT_FOUND - no queue 'q'"),
    ]
    assert methods(server)[-1] == m.ChannelCloseOk()
    with pytest.raises(StateError, match="channel 1 is not open"):
        server.send(message("b"))


def test_a_failure_of_something_else(version: Version) -> None:
    server = ScriptedServer(version).open()
    server.send(message("a"), DeclareQueue(1, "q"))
    assert server.say(m.ChannelClose(404, "no exchange", 60, 40)) == [ChannelClosed(1, 404, "no exchange")]


def test_closing(version: Version) -> None:
    server = consuming(version)
    server.send(SelectConfirm(1), message("a"))
    server.say(m.ConfirmSelectOk())
    server.heard()
    assert server.send(CloseChannel(1)) == [5]
    assert methods(server) == [m.ChannelClose(200, "")]
    with pytest.raises(StateError, match="channel 1 is closing: no Publish"):
        server.send(message("b"))
    assert deliver(server, 1) == []
    assert server.say(m.BasicAck(1)) == [Confirmed(1, 4, 4)]
    assert server.say(m.ChannelCloseOk()) == [ChannelClosed(1, 200, "", by_peer=False)]


def test_a_large_delivery_while_closing(version: Version) -> None:
    server = ScriptedServer(version, config=replace(CLIENT, limits=Limits(message_max=10))).open()
    server.send(CloseChannel(1))
    assert deliver(server, 1, body=bytes(20)) == []


def test_answers_to_nothing(version: Version) -> None:
    for method in (m.ChannelCloseOk(), m.QueueBindOk(), m.BasicConsumeOk("x"), m.BasicGetOk(1, False, "", "", 0)):
        server = ScriptedServer(version).open()
        assert only(server.say(method)).code == 503


def test_answers_that_take_the_way_through_the_queue(version: Version) -> None:
    server = ScriptedServer(version).open()
    server.send(Consume(1, "q", "a"), Consume(1, "q", "b"), DeclareQueue(1, "q"))
    assert server.say(m.QueueDeclareOk("q", 0, 0), m.BasicConsumeOk("b"), m.BasicConsumeOk("a")) == [
        Declared(1, 4, 4, "q"),
        Consuming(1, 3, 3, "b"),
        Consuming(1, 2, 2, "a"),
    ]


def test_an_alert_is_told() -> None:
    server = ScriptedServer(V0_8).open()
    assert server.say(m.ChannelAlert(313, "careful", {"queue": "q"})) == [Alert(1, 313, "careful", {"queue": "q"})]


@pytest.mark.parametrize("flowing", [True, False])
def test_a_recover_that_is_not_answered(version: Version, flowing: bool) -> None:
    """The channel stands still around it, so what it gives back and what comes again are not mistaken."""
    server = ScriptedServer(version, QPID).open()
    server.send(Consume(1, "q", "tag"))
    server.say(m.BasicConsumeOk("tag"))
    server.say_content(m.BasicDeliver("tag", 1, False, "", "q"))
    assert server.send(Flow(1, flowing)) == [3]
    server.heard()
    assert server.send(Recover(1, requeue=False, asynchronous=True)) == [4]
    said = [method for _, method in server.heard()]
    assert said == [m.ChannelFlow(False), m.BasicRecoverAsync(False), m.ChannelFlow(flowing)]
    server.say_content(m.BasicDeliver("tag", 2, False, "", "q"))  # it was on its way
    assert server.say(m.ChannelFlowOk(flowing), m.ChannelFlowOk(False)) == []
    server.say_content(m.BasicDeliver("tag", 3, True, "", "q"))  # one of them, again
    assert server.say(m.ChannelFlowOk(flowing)) == [Done(1, 4, 4)]
    for gone in (1, 2):
        with pytest.raises(StateError):
            server.send(Settle(1, Settlement.ACCEPT, gone, gone))
    server.send(Settle(1, Settlement.ACCEPT, 3, 3))
    assert server.say(m.ChannelFlowOk(True)) == []  # it answers nothing


def test_broker_j_sends_them_again_before_its_answer(version: Version) -> None:
    """Seen with requeue false: what came again was taken for what had been given back, and could not be settled."""
    server = ScriptedServer(version, QPID).open()
    server.send(Consume(1, "q", "tag"))
    server.say(m.BasicConsumeOk("tag"))
    server.say_content(m.BasicDeliver("tag", 1, False, "", "q"))
    assert server.send(Recover(1, requeue=False)) == [3]
    server.say(m.ChannelFlowOk(False))
    server.say_content(m.BasicDeliver("tag", 2, True, "", "q"))
    assert server.say(server.dialect.recover_ok()) == [Done(1, 3, 3)]  # type: ignore[misc]
    server.send(Settle(1, Settlement.ACCEPT, 2, 2))
    with pytest.raises(StateError):
        server.send(Settle(1, Settlement.ACCEPT, 1, 1))


def test_a_recover_that_cannot_be_told_from_deliveries(version: Version) -> None:
    server = ScriptedServer(version).open()
    with pytest.raises(Unsupported, match="not answered"):
        server.send(Recover(1, asynchronous=True))
    assert server.heard() == []
