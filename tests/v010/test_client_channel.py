"""A client's channel against a scripted broker: publishes, deliveries, settlements, flow, and how it ends."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.amqp import operations as o
from gateway.amqp.message import Message, Properties
from gateway.amqp.operations import Settlement
from gateway.amqp.values import Typed
from gateway.errors import EncodeError, StateError, Unsupported
from gateway.limits import Limits
from gateway.v010 import commands as c
from gateway.v010 import controls as k
from gateway.v010.client_channel import SYNC_AT
from gateway.v010.translate import DISCARD_UNROUTABLE, IMMEDIATE, REDELIVERED, decode, read_delivery, write_header
from tests.v010.peer import NOW, ClientPeer


@pytest.fixture
def peer() -> ClientPeer:
    return ClientPeer().opened().attach(1)


def send(peer: ClientPeer, operation: Any) -> int:
    serial: int = peer.session.send(operation, NOW)
    return serial


def confirming(peer: ClientPeer) -> None:
    """SelectConfirm, which is command 0 and serial 2."""
    assert send(peer, o.SelectConfirm(1)) == 2
    peer.sent()
    assert peer.receive(0, k.SessionCompleted(((0, 0),))) == [o.Done(1, 2, 2)]
    peer.sent()


def publish(peer: ClientPeer, key: str = "k", **options: Any) -> int:
    return send(peer, o.Publish(1, "x", key, Message(b"body"), **options))


def consuming(peer: ClientPeer, *, prefetch: int = 10, size: int = 0, tag: str = "t", **options: Any) -> None:
    """Qos and Consume; what was sent for them is gone. Serials 2 and 3, commands 0 to 4."""
    send(peer, o.Qos(1, prefetch, size))
    serial = send(peer, o.Consume(1, "q", tag, **options))
    peer.sent()
    events = peer.receive(0, k.SessionCompleted(((0, 1),)))
    assert events[-1] == o.Consuming(1, serial, serial, tag)
    peer.sent()


def message(body: bytes = b"body", key: str = "k", flags: int = 0, tag: str = "t") -> tuple[Any, ...]:
    return (c.MessageTransfer(tag), write_header(Message(body), key, flags, "x", None), body)


# -------------------------------------------------------------------------------------------- the session


def test_attach() -> None:
    peer = ClientPeer().opened()
    assert send(peer, o.OpenChannel(5)) == 1
    (wire, attach), timeout, point = peer.sent()
    assert wire == 4
    assert timeout == (4, k.SessionRequestTimeout(0))
    assert point == (4, k.SessionCommandPoint(0, 0))
    assert peer.receive(4, k.SessionAttached(attach.name)) == [o.Done(5, 1, 1)]
    assert peer.receive(4, k.SessionAttached(attach.name)) == []


def test_a_busy_session() -> None:
    peer = ClientPeer().opened()
    send(peer, o.OpenChannel(1))
    assert peer.receive(0, k.SessionDetached(b"s", 1)) == [
        o.ChannelClosed(1, 405, "the broker detached the session: session-busy")
    ]
    assert peer.session.channels == {}


def test_close(peer: ClientPeer) -> None:
    send(peer, o.Flow(1))
    assert send(peer, o.CloseChannel(1)) == 3
    (_, detach), *_ = peer.sent()
    with pytest.raises(StateError, match="closing"):
        publish(peer)
    with pytest.raises(StateError, match="closing"):
        send(peer, o.QueryQueue(1, "q"))
    assert peer.receive(0, k.SessionDetached(detach.name, 0)) == [o.ChannelClosed(1, 200, "", False)]
    assert send(peer, o.OpenChannel(1)) == 1


def test_detached_by_the_broker(peer: ClientPeer) -> None:
    (event,) = peer.receive(0, k.SessionDetach(b"s"))
    assert isinstance(event, o.ChannelClosed)
    assert (event.code, event.by_peer) == (320, True)
    assert peer.sent() == [(0, k.SessionDetached(b"s"))]


@pytest.mark.parametrize("ending", [k.SessionDetach(b"s"), k.SessionDetached(b"s")])
def test_an_exception(peer: ClientPeer, ending: k.Control) -> None:
    first, second = send(peer, o.PurgeQueue(1, "a")), send(peer, o.PurgeQueue(1, "b"))
    events = peer.receive(
        0,
        k.SessionCompleted(((0, 0),)),
        c.ExecutionException(404, 1, description="no queue b"),
        c.MessageStop("late"),
        k.SessionRequestTimeout(0),
        ending,
    )
    assert events == [
        o.Removed(1, first, first),
        o.Failed(1, second, second, 404, "not-found: no queue b"),
        o.ChannelClosed(1, 404, "not-found: no queue b"),
    ]


def test_an_exception_that_names_nothing_of_ours(peer: ClientPeer) -> None:
    assert peer.receive(0, c.ExecutionException(408, None, description="queue deleted")) == []
    with pytest.raises(StateError, match="failed"):
        publish(peer)
    assert peer.receive(0, k.SessionDetach(b"s")) == [o.ChannelClosed(1, 404, "resource-deleted: queue deleted")]
    peer.attach(1)
    assert peer.receive(0, c.ExecutionException(541, 77)) == []


def test_an_exception_for_a_publish(peer: ClientPeer) -> None:
    confirming(peer)
    serial = publish(peer)
    peer.sent()
    assert peer.receive(0, c.ExecutionException(403, 1, description="user-id")) == [
        o.Failed(1, serial, serial, 403, "unauthorized-access: user-id")
    ]
    assert peer.sent() == []


@pytest.mark.parametrize("command", [c.QueueQuery("q"), c.TxSelect()])
def test_a_command_that_is_not_for_a_client(peer: ClientPeer, command: c.Command) -> None:
    assert peer.receive(0, command) == []
    (_, exception, _), (_, detach) = peer.sent()
    assert isinstance(exception, c.ExecutionException)
    assert (exception.error_code, exception.command_id) == (530, 0)
    (event,) = peer.receive(0, k.SessionDetached(detach.name))
    assert isinstance(event, o.ChannelClosed)
    assert event.code == 530


# ---------------------------------------------------------------------------------------------- publishes


def test_the_last_publish_of_a_flush_asks_for_completion(peer: ClientPeer) -> None:
    confirming(peer)
    serials = [publish(peer) for _ in range(3)]
    assert serials == [3, 4, 5]
    sent = peer.sent()
    assert [entry[1] for entry in sent] == [c.MessageTransfer("x", c.EXPLICIT, c.PRE_ACQUIRED)] * 3
    assert [entry[2] for entry in sent] == [False, False, True]
    assert [entry[4] for entry in sent] == [b"body"] * 3
    assert peer.receive(0, k.SessionCompleted(((0, 3),))) == [o.Confirmed(1, 3, 5)]
    assert peer.sent() == [(0, k.SessionKnownCompleted(((0, 3),)))]
    assert peer.receive(0, k.SessionCompleted(((0, 3),))) == []


def test_ranges_with_holes(peer: ClientPeer) -> None:
    confirming(peer)
    for _ in range(6):
        publish(peer)
    assert peer.receive(0, k.SessionCompleted(((1, 2), (4, 4)))) == [o.Confirmed(1, 3, 4), o.Confirmed(1, 6, 6)]
    assert peer.receive(0, k.SessionCompleted(((0, 6),))) == [o.Confirmed(1, 5, 5), o.Confirmed(1, 7, 8)]


def test_a_range_that_is_a_lie(peer: ClientPeer) -> None:
    confirming(peer)
    publish(peer)
    assert peer.receive(0, k.SessionCompleted(((0, 0x7FFFFFFF),))) == [o.Confirmed(1, 3, 3)]
    publish(peer)
    assert peer.receive(0, k.SessionCompleted(((0xFFFF0000, 0x7FFF0000 - 1),))) == [o.Confirmed(1, 4, 4)]


def test_requests_between_publishes(peer: ClientPeer) -> None:
    confirming(peer)
    publish(peer)
    send(peer, o.PurgeQueue(1, "q"))
    publish(peer)
    assert peer.receive(0, k.SessionCompleted(((1, 3),))) == [
        o.Confirmed(1, 3, 3),
        o.Removed(1, 4, 4),
        o.Confirmed(1, 5, 5),
    ]


def reject(code: int = c.UNROUTABLE, text: str | None = "Unroutable", number: int = 2) -> c.MessageReject:
    return c.MessageReject(((number, number),), code, text)


@pytest.mark.parametrize("first", ["reject", "completed"])
def test_a_message_that_is_returned(peer: ClientPeer, first: str) -> None:
    confirming(peer)
    for _ in range(3):
        publish(peer)
    both = [reject(), k.SessionCompleted(((1, 3),))]
    events = peer.receive(0, *(both if first == "reject" else both[::-1]))
    assert events == [o.Returned(1, 4, 4, 312, "Unroutable"), o.Confirmed(1, 3, 3), o.Confirmed(1, 5, 5)]


@pytest.mark.parametrize(
    ("code", "text", "event"),
    [
        (c.UNROUTABLE, None, o.Returned(1, 4, 4, 312, "unroutable")),
        (c.IMMEDIATE, "", o.Returned(1, 4, 4, 313, "immediate")),
        (c.UNSPECIFIED, "full", o.Refused(1, 4, 4, 0, "full")),
        (c.UNSPECIFIED, None, o.Refused(1, 4, 4, 0, "rejected")),
    ],
)
def test_rejects(peer: ClientPeer, code: int, text: str | None, event: o.Operation) -> None:
    confirming(peer)
    publish(peer)
    publish(peer)
    assert peer.receive(0, reject(code, text), reject(code, text, 77)) == [event]


def test_a_reject_of_what_is_no_publish(peer: ClientPeer) -> None:
    send(peer, o.PurgeQueue(1, "q"))
    assert peer.receive(0, reject(number=0)) == []
    assert peer.receive(0, k.SessionCompleted(((0, 0),))) == [o.Removed(1, 2, 2)]


def test_a_broker_that_accepts(peer: ClientPeer) -> None:
    confirming(peer)
    publish(peer)
    assert peer.receive(0, c.MessageAccept(((1, 1),))) == [o.Confirmed(1, 3, 3)]
    assert peer.receive(0, k.SessionCompleted(((1, 1),))) == []


BROKER_J = {"product": "Apache Qpid Broker-J Core"}


@pytest.fixture
def broker_j() -> ClientPeer:
    """A channel to Broker-J in mode confirm."""
    peer = ClientPeer().opened(BROKER_J).attach(1)
    confirming(peer)
    return peer


def test_broker_j_is_believed_when_it_gives_a_sign_of_life_behind_a_completion(broker_j: ClientPeer) -> None:
    for _ in range(3):
        publish(broker_j)
    broker_j.sent()
    assert broker_j.receive(0, reject(), k.SessionCompleted(((1, 3),))) == [o.Returned(1, 4, 4, 312, "Unroutable")]
    known, sync = broker_j.sent()
    assert sync == (0, c.ExecutionSync(), True)
    assert isinstance(known[1], k.SessionKnownCompleted)
    assert broker_j.receive(0, k.SessionCompleted(((1, 3),))) == []
    assert broker_j.receive(0, k.SessionCompleted(((4, 4),))) == [o.Confirmed(1, 3, 3), o.Confirmed(1, 5, 5)]
    assert [entry[1] for entry in broker_j.sent() if isinstance(entry[1], c.Command)] == []


def test_what_completes_with_such_a_sign_needs_another_one(broker_j: ClientPeer) -> None:
    publish(broker_j)
    broker_j.receive(0, k.SessionCompleted(((1, 1),)))
    publish(broker_j)
    broker_j.sent()
    assert broker_j.receive(0, k.SessionCompleted(((2, 3),))) == [o.Confirmed(1, 3, 3)]
    assert broker_j.sent()[-1] == (0, c.ExecutionSync(), True)
    assert broker_j.receive(0, k.SessionCompleted(((4, 4),))) == [o.Confirmed(1, 4, 4)]


@pytest.mark.parametrize("end", ["closing", "failed"])
def test_where_no_sign_can_be_asked_for_nothing_is_confirmed(broker_j: ClientPeer, end: str) -> None:
    publish(broker_j)
    if end == "closing":
        send(broker_j, o.CloseChannel(1))
    else:
        broker_j.receive(0, c.ExecutionException(404, 0))
    broker_j.sent()
    assert broker_j.receive(0, k.SessionCompleted(((1, 1),))) == []
    assert [entry for entry in broker_j.sent() if isinstance(entry[1], c.Command)] == []


def test_in_a_branch_the_prepare_is_the_sign(broker_j: ClientPeer) -> None:
    send(broker_j, o.DtxSelect(1))
    publish(broker_j)
    assert broker_j.receive(0, k.SessionCompleted(((1, 2),))) == [o.Done(1, 3, 3), o.Confirmed(1, 4, 4)]


def test_without_confirms_only_returns_are_told(peer: ClientPeer) -> None:
    for _ in range(3):
        publish(peer)
    assert peer.receive(0, reject(number=1), reject(c.UNSPECIFIED, "", 2), k.SessionCompleted(((0, 2),))) == [
        o.Returned(1, 3, 3, 312, "Unroutable")
    ]
    assert peer.session.channels[0].pending == {}


def test_flags(peer: ClientPeer) -> None:
    publish(peer, mandatory=False)
    publish(peer, immediate=True)
    flags = [read_delivery(entry[3])[0] & (DISCARD_UNROUTABLE | IMMEDIATE) for entry in peer.sent()]
    assert flags == [DISCARD_UNROUTABLE, IMMEDIATE]


@pytest.mark.parametrize("size", [0, 1, 16_384, 16_385, 65_523, 65_524, 200_000])
def test_bodies_of_any_size(peer: ClientPeer, size: int) -> None:
    send(peer, o.Publish(1, "x", "k", Message(bytes(size), Properties(headers={"h": "x" * (size // 10)}))))
    (sent,) = peer.sent()
    assert (sent[2], len(sent[4])) == (True, size)


def test_the_sync_bit_lies_where_it_is_set(peer: ClientPeer) -> None:
    publish(peer)
    data = b"".join(peer.session.data_to_send())
    assert data[SYNC_AT - 3 : SYNC_AT + 1] == b"\x04\x01\x01\x01"


def test_many_exchanges(peer: ClientPeer) -> None:
    for number in range(600):
        send(peer, o.Publish(1, str(number), "k", Message()))
    assert [entry[1].destination for entry in peer.sent()] == [str(number) for number in range(600)]
    assert len(peer.session.channels[0]._prefixes) <= 256


def test_what_cannot_be_published_is_not_sent(peer: ClientPeer) -> None:
    for exchange, key, properties in (
        ("x" * 256, "k", Properties()),
        ("x", "k" * 256, Properties()),
        ("x", "k", Properties(content_type="x" * 256)),
    ):
        with pytest.raises(EncodeError):
            send(peer, o.Publish(1, exchange, key, Message(b"", properties)))
    assert peer.sent() == []
    assert publish(peer) == 2


# ------------------------------------------------------------------------------------ flow from the broker


def test_the_broker_stops_and_goes_on(peer: ClientPeer) -> None:
    assert peer.receive(0, c.MessageSetFlowMode("", c.CREDIT), c.MessageStop("")) == [o.Flow(1, active=False)]
    assert peer.receive(0, c.MessageStop("")) == []
    with pytest.raises(StateError, match="no credit"):
        publish(peer)
    assert peer.receive(0, c.MessageFlow("", c.OCTETS, 5), c.MessageFlow("", c.MESSAGES, 0)) == []
    assert peer.receive(0, c.MessageFlow("", c.MESSAGES, 2)) == [o.Flow(1, active=True)]
    publish(peer)
    publish(peer)
    with pytest.raises(StateError, match="no credit"):
        publish(peer)
    assert peer.session.next_timeout() == NOW
    assert peer.session.handle_timeout(NOW) == [o.Flow(1, active=False)]
    assert peer.receive(0, c.MessageFlow("", c.MESSAGES, 0x7FFFFFFF)) == [o.Flow(1, active=True)]
    for _ in range(10):
        publish(peer)


def test_a_stop_in_window_mode(peer: ClientPeer) -> None:
    assert peer.receive(0, c.MessageStop("")) == [o.Flow(1, active=False)]
    publish(peer)
    assert peer.receive(0, c.MessageFlow("", c.MESSAGES, 1)) == [o.Flow(1, active=True)]


# ---------------------------------------------------------------------------------------------- deliveries


def test_deliveries_are_numbered_and_completed_not_settled(peer: ClientPeer) -> None:
    consuming(peer)
    events = peer.receive(0, message(), c.ExecutionSync(), message(flags=REDELIVERED, key="other"))
    assert [(e.delivery, e.redelivered, e.exchange, e.routing_key) for e in events] == [  # type: ignore[attr-defined]
        (1, False, "x", "k"),
        (3, True, "x", "other"),
    ]
    assert peer.sent() == [(0, k.SessionCompleted(((0, 2),)))]
    assert peer.receive(0, k.SessionKnownCompleted(((0, 2),)), message(), sync=True)
    assert peer.sent() == [(0, k.SessionCompleted(((3, 3),)))]


def test_completions_come_at_the_latest_after_256(peer: ClientPeer) -> None:
    consuming(peer, prefetch=0)
    for _ in range(255):
        peer.receive(0, message())
    assert peer.sent() == []
    peer.receive(0, message())
    assert peer.sent() == [(0, k.SessionCompleted(((0, 255),)))]
    peer.receive(0, k.SessionFlush(completed=True))
    assert peer.sent() == [(0, k.SessionCompleted(((0, 255),)))]


def test_an_empty_message_without_header_and_body(peer: ClientPeer) -> None:
    consuming(peer)
    (event,) = peer.receive(0, c.MessageTransfer("t"))
    assert isinstance(event, o.Deliver)
    assert (event.delivery, event.message) == (1, Message())


def test_a_delivery_before_consuming_was_told(peer: ClientPeer) -> None:
    send(peer, o.Consume(1, "q", "t"))
    events = peer.receive(0, message())
    assert [type(event) for event in events] == [o.Consuming, o.Deliver]
    assert peer.receive(0, k.SessionCompleted(((0, 0),))) == []


def test_a_delivery_for_nobody(peer: ClientPeer) -> None:
    (event,) = peer.receive(0, message())
    assert isinstance(event, o.Closed)
    assert event.reason is o.CloseReason.SYNTAX


def test_a_delivery_over_the_limit() -> None:
    peer = ClientPeer(limits=Limits(message_max=3)).opened().attach(1)
    consuming(peer, prefetch=2)
    assert peer.receive(0, message(b"12345", flags=REDELIVERED)) == [
        o.DeliveryTooLarge(1, "t", 1, 5, 3, True, "x", "k")
    ]
    send(peer, o.Settle(1, Settlement.REJECT, 1, 1))
    assert peer.sent()[0] == (0, c.MessageReject(((0, 0),)), False)


def test_nothing_is_told_while_closing(peer: ClientPeer) -> None:
    consuming(peer)
    send(peer, o.CloseChannel(1))
    assert peer.receive(0, message(), (c.MessageTransfer("t"), b"", b"x" * 20_000_00)) == []


def test_no_delivery_over_the_limit_is_told_while_closing() -> None:
    peer = ClientPeer(limits=Limits(message_max=3)).opened().attach(1)
    consuming(peer)
    send(peer, o.CloseChannel(1))
    assert peer.receive(0, message(b"12345")) == []


def test_a_header_over_the_limit_is_a_delivery_too_large() -> None:
    """Not a violation: the broker would deliver the same message to the next connection, and the next."""
    peer = ClientPeer(limits=Limits(header_max=50)).opened().attach(1)
    consuming(peer, prefetch=2)
    assert peer.receive(0, (c.MessageTransfer("t"), bytes(60), b"body")) == [o.DeliveryTooLarge(1, "t", 1, 60, 50)]
    send(peer, o.Settle(1, Settlement.REJECT, 1, 1))
    assert peer.sent()[0] == (0, c.MessageReject(((0, 0),)), False)
    assert [type(event) for event in peer.receive(0, message(b"4"))] == [o.Deliver]


def test_going_on_with_the_prefetch_used_up(peer: ClientPeer) -> None:
    consuming(peer, prefetch=2)
    delivered(peer, 2)
    send(peer, o.Flow(1, False))
    send(peer, o.Flow(1, True))
    assert [entry[1] for entry in peer.sent()] == [
        c.MessageStop("t"),
        c.MessageFlow("t", c.OCTETS, c.UNLIMITED),
    ]
    send(peer, o.Settle(1, Settlement.ACCEPT, 1, 2))
    assert [entry[1] for entry in peer.sent()] == [c.MessageAccept(((0, 1),)), c.MessageFlow("t", c.MESSAGES, 2)]


@pytest.mark.parametrize("prefetch", [1, 2])
def test_a_large_header_of_an_empty_message(prefetch: int) -> None:
    peer = ClientPeer().opened().attach(1)
    headers = {str(number): "x" * 60_000 for number in range(prefetch)}
    send(peer, o.Publish(1, "x", "k", Message(b"", Properties(headers=headers))))
    ((_, command, sync, header, body),) = peer.sent()
    assert (command, sync, body) == (c.MessageTransfer("x"), True, b"")
    assert decode(header).headers == headers


# --------------------------------------------------------------------------------------------- settlements


def delivered(peer: ClientPeer, count: int) -> None:
    events = peer.receive(0, *(message() for _ in range(count)))
    assert len(events) == count
    peer.sent()


def test_settlements_are_ranges(peer: ClientPeer) -> None:
    consuming(peer, prefetch=100)
    delivered(peer, 10)
    for number in (1, 2, 3, 7, 5):
        send(peer, o.Settle(1, Settlement.ACCEPT, number, number))
    send(peer, o.Settle(1, Settlement.RELEASE, 4, 6))
    send(peer, o.Settle(1, Settlement.REJECT, 8, 9))
    assert peer.sent() == [
        (0, c.MessageAccept(((0, 2), (4, 4), (6, 6))), False),
        (0, c.MessageRelease(((3, 3), (5, 5)), True), False),
        (0, c.MessageReject(((7, 8),)), False),
    ]
    with pytest.raises(StateError, match="delivery 1 is not outstanding"):
        send(peer, o.Settle(1, Settlement.ACCEPT, 1, 1))
    with pytest.raises(StateError, match=r"no delivery within 1\.\.9"):
        send(peer, o.Settle(1, Settlement.ACCEPT, 1, 9))
    send(peer, o.Settle(1, Settlement.ACCEPT, 0, 1 << 40))
    assert peer.sent() == [(0, c.MessageAccept(((9, 9),)), False)]


def test_everything_up_to_the_last(peer: ClientPeer) -> None:
    consuming(peer, prefetch=100)
    delivered(peer, 3)
    send(peer, o.Settle(1, Settlement.ACCEPT, 0, 0))
    assert peer.sent() == [(0, c.MessageAccept(((0, 2),)), False)]


def test_what_was_asked_before_is_sent_before(peer: ClientPeer) -> None:
    consuming(peer)
    delivered(peer, 3)
    send(peer, o.Settle(1, Settlement.ACCEPT, 1, 1))
    send(peer, o.PurgeQueue(1, "q"))
    send(peer, o.Settle(1, Settlement.ACCEPT, 2, 2))
    publish(peer)
    send(peer, o.Settle(1, Settlement.ACCEPT, 3, 3))
    send(peer, o.CloseChannel(1))
    kinds = [type(entry[1]) for entry in peer.sent()]
    assert kinds == [
        c.MessageAccept,
        c.QueuePurge,
        c.MessageAccept,
        c.MessageTransfer,
        c.MessageAccept,
        c.ExecutionSync,
    ]


def test_what_was_settled_is_complete_before_the_session_is_detached(peer: ClientPeer) -> None:
    consuming(peer)
    delivered(peer, 2)
    send(peer, o.Settle(1, Settlement.ACCEPT, 1, 2))
    send(peer, o.CloseChannel(1))
    kinds = [type(entry[1]) for entry in peer.sent()]
    assert kinds[-1] is c.ExecutionSync
    last = peer.session.channels[0].sent - 1
    assert peer.receive(0, k.SessionCompleted(((0, last - 1),))) == []
    assert k.SessionDetach not in [type(entry[1]) for entry in peer.sent()]
    assert peer.receive(0, k.SessionCompleted(((last, last),))) == []
    detach = peer.sent()[-1][1]
    assert isinstance(detach, k.SessionDetach)
    assert peer.receive(0, k.SessionDetached(detach.name, 0)) == [o.ChannelClosed(1, 200, "", False)]


def test_without_acknowledgement_nothing_is_outstanding(peer: ClientPeer) -> None:
    consuming(peer, no_ack=True)
    delivered(peer, 1)
    with pytest.raises(StateError):
        send(peer, o.Settle(1, Settlement.ACCEPT, 1, 1))


def test_recover_releases_what_is_held(peer: ClientPeer) -> None:
    consuming(peer)
    delivered(peer, 2)
    serial = send(peer, o.Recover(1))
    sent = peer.sent()
    assert sent[0] == (0, c.MessageRelease(((0, 1),), True), False)
    assert sent[1] == (0, c.ExecutionSync(), True)
    assert peer.receive(0, k.SessionCompleted(((0, 6),))) == [o.Done(1, serial, serial)]
    send(peer, o.Recover(1))
    assert [entry[1] for entry in peer.sent() if len(entry) == 3] == [c.ExecutionSync()]


# ------------------------------------------------------------------------------------------------- credit


def credits(peer: ClientPeer) -> list[Any]:
    return [entry[1] for entry in peer.sent() if isinstance(entry[1], c.MessageFlow)]


def test_credit_is_topped_up_by_settlements(peer: ClientPeer) -> None:
    consuming(peer, prefetch=4)
    delivered(peer, 3)
    send(peer, o.Settle(1, Settlement.ACCEPT, 1, 1))
    assert credits(peer) == []
    send(peer, o.Settle(1, Settlement.RELEASE, 2, 2))
    assert credits(peer) == [c.MessageFlow("t", c.MESSAGES, 2)]


def test_the_last_delivery_gives_back_what_was_settled_before(peer: ClientPeer) -> None:
    """A consumer that settles nothing more until its prefetch is full must get it full."""
    consuming(peer, prefetch=4)
    delivered(peer, 1)
    send(peer, o.Settle(1, Settlement.ACCEPT, 1, 1))
    assert credits(peer) == []
    peer.receive(0, message(), message())
    assert credits(peer) == []
    peer.receive(0, message())
    assert credits(peer) == [c.MessageFlow("t", c.MESSAGES, 1)]


def test_credit_by_octets(peer: ClientPeer) -> None:
    consuming(peer, prefetch=0, size=100)
    peer.receive(0, message(b"x" * 10))
    assert credits(peer) == [c.MessageFlow("t", c.MESSAGES, 9)]
    send(peer, o.Settle(1, Settlement.ACCEPT, 1, 1))
    assert credits(peer) == [c.MessageFlow("t", c.MESSAGES, 1)]


def test_a_cancelled_consumer_gets_no_more_credit(peer: ClientPeer) -> None:
    consuming(peer, prefetch=1)
    delivered(peer, 1)
    serial = send(peer, o.Cancel(1, "t"))
    send(peer, o.Settle(1, Settlement.ACCEPT, 1, 1))
    assert credits(peer) == []
    with pytest.raises(StateError, match="no consumer"):
        send(peer, o.Cancel(1, "t"))
    with pytest.raises(StateError, match="in use"):
        send(peer, o.Consume(1, "q", "t"))
    assert peer.receive(0, message())
    assert peer.receive(0, k.SessionCompleted(((0, 9),))) == [o.Done(1, serial, serial)]
    send(peer, o.Consume(1, "q", "t"))


def test_we_stop_and_go_on(peer: ClientPeer) -> None:
    consuming(peer, prefetch=4)
    delivered(peer, 1)
    send(peer, o.Flow(1, active=False))
    send(peer, o.Flow(1, active=False))
    assert peer.sent() == [(0, c.MessageStop("t"), False)]
    send(peer, o.Settle(1, Settlement.ACCEPT, 1, 1))
    assert credits(peer) == []
    send(peer, o.Flow(1, active=True))
    assert credits(peer) == [c.MessageFlow("t", c.OCTETS, c.UNLIMITED), c.MessageFlow("t", c.MESSAGES, 4)]


# ------------------------------------------------------------------------------------------- transactions


def test_transactions(peer: ClientPeer) -> None:
    consuming(peer)
    with pytest.raises(StateError, match="not transacted"):
        send(peer, o.TxCommit(1))
    select = send(peer, o.TxSelect(1))
    with pytest.raises(StateError, match="transacted already"):
        send(peer, o.SelectConfirm(1))
    assert peer.receive(0, k.SessionCompleted(((0, 5),))) == [o.Done(1, select, select)]
    delivered(peer, 3)
    send(peer, o.Settle(1, Settlement.ACCEPT, 1, 2))
    rollback = send(peer, o.TxRollback(1))
    for operation in (o.QueryQueue(1, "q"), o.Publish(1, "x", "k", Message()), o.Settle(1, Settlement.ACCEPT, 3, 3)):
        with pytest.raises(StateError, match="committing"):
            send(peer, operation)
    assert peer.receive(0, k.SessionCompleted(((0, 9),))) == [o.Done(1, rollback, rollback)]
    assert list(peer.session.channels[0].outstanding) == [1, 2, 3]
    send(peer, o.Settle(1, Settlement.ACCEPT, 1, 2))
    commit = send(peer, o.TxCommit(1))
    assert peer.receive(0, k.SessionCompleted(((0, 20),))) == [o.Done(1, commit, commit)]
    assert list(peer.session.channels[0].outstanding) == [3]


def test_confirms_and_transactions_exclude_each_other(peer: ClientPeer) -> None:
    confirming(peer)
    for operation in (o.TxSelect(1), o.SelectConfirm(1)):
        with pytest.raises(StateError, match="confirm already"):
            send(peer, operation)


# ------------------------------------------------------------------------------------------------- others


@pytest.mark.parametrize(
    "operation",
    [o.BindExchange(1, "a", "b"), o.UnbindExchange(1, "a", "b"), o.Credit(1, "t"), o.Done(1, 1, 1)],
    ids=lambda operation: type(operation).__name__,
)
def test_what_a_client_does_not_send(peer: ClientPeer, operation: o.Operation) -> None:
    with pytest.raises(Unsupported):
        send(peer, operation)


def test_a_request_that_does_not_fit_leaves_nothing(peer: ClientPeer) -> None:
    consuming(peer)
    delivered(peer, 1)
    send(peer, o.Settle(1, Settlement.ACCEPT, 1, 1))
    before = peer.session.channels[0].sent + 1
    for operation in (
        o.DeclareQueue(1, "q" * 256),
        o.Consume(1, "q" * 256, "u"),
        o.Consume(1, "q", "u" * 256),
        o.Get(1, "q" * 256),
        o.BindQueue(1, "q", "x", "k", {"a": object()}),
        o.Consume(1, "q", "u", arguments={"a": Typed("uuid", 5)}),
        o.DeclareQueue(1, "q", arguments={"a": Typed("table", [1])}),
        o.Qos(1, -1),
        o.Qos(1, 0xFFFFFFFF),
        o.Qos(1, 0, 1 << 32),
        o.Qos(1, "5"),  # type: ignore[arg-type]
    ):
        with pytest.raises(EncodeError):
            send(peer, operation)
    channel = peer.session.channels[0]
    assert (channel.sent, channel.pending, list(channel.subscriptions)) == (before, {}, ["t"])
    assert [entry[1] for entry in peer.sent()] == [c.MessageAccept(((0, 0),))]


def test_command_ids_wrap(peer: ClientPeer) -> None:
    channel = peer.session.channels[0]
    channel.sent = (1 << 32) - 2
    confirm = send(peer, o.SelectConfirm(1))
    serials = [publish(peer) for _ in range(3)]
    assert peer.receive(0, k.SessionCompleted(((0xFFFFFFFE, 1),))) == [
        o.Done(1, confirm, confirm),
        o.Confirmed(1, serials[0], serials[2]),
    ]


def test_delivery_ids_wrap(peer: ClientPeer) -> None:
    consuming(peer)
    channel = peer.session.channels[0]
    channel.received.next = channel.received.low = (1 << 32) - 1
    events = peer.receive(0, message(), message(), c.ExecutionSync())
    assert [event.delivery for event in events] == [1 << 32, (1 << 32) + 1]  # type: ignore[attr-defined]
    assert peer.sent() == [(0, k.SessionCompleted(((0xFFFFFFFF, 1),)))]
    send(peer, o.Settle(1, Settlement.ACCEPT, 1 << 32, (1 << 32) + 1))
    assert peer.sent() == [(0, c.MessageAccept(((0xFFFFFFFF, 0),)), False)]
