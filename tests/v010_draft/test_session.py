"""Every operation, from one session to the other and back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gateway.amqp import operations as o
from gateway.amqp.message import Message, Properties
from gateway.errors import EncodeError, StateError, Unsupported
from gateway.limits import Limits
from gateway.session import Confirms, Role
from gateway.v010.version import V0_10
from gateway.v010_draft import methods as t
from tests.pair import SessionPair, only
from tests.v010_draft.pair import confirming, consuming, make_pair, methods, opened, serial_of


@pytest.fixture(params=[None, 1, 7], ids=["whole", "by octet", "by seven"])
def pair(request: pytest.FixtureRequest) -> SessionPair:
    return opened(chunk=request.param)


def test_the_handshake() -> None:
    pair = opened()
    assert (pair.client.version, pair.client.role) == (V0_10, Role.CLIENT)
    assert (pair.server.version, pair.server.role) == (V0_10, Role.SERVER)
    known = pair.client.capabilities
    assert (known.confirms, known.product) == (Confirms.COMPLETION, "test-broker")
    assert pair.server.capabilities.dialect == "transitional"
    assert not pair.client.capabilities.dialect
    pair.ask(o.Close(0))
    assert only(pair.requests).reason is o.CloseReason.PEER
    assert only(pair.events).reason is o.CloseReason.LOCAL


def test_a_wrong_password_is_told() -> None:
    pair = make_pair(authenticate=lambda user, password: False, properties={})
    pair.pump()
    assert only(pair.events).reason is o.CloseReason.AUTHENTICATION


@pytest.mark.parametrize("mechanism", ["PLAIN", "AMQPLAIN", "SCRAM-SHA-256"])
def test_mechanisms(mechanism: str) -> None:
    from gateway.amqp.sasl import scram_keys

    pair = make_pair(scram=lambda user: scram_keys("guest", b"salt" * 4))
    config = replace(pair.client.config, mechanisms=(mechanism,))  # type: ignore[attr-defined]
    pair.client.config = config  # type: ignore[attr-defined]
    pair.open()


REQUESTS: list[tuple[o.Request, o.Outcome]] = [
    (o.DeclareExchange(1, "x", "topic", True, True, arguments={"a": 1, "alternate-exchange": "y"}), o.Done(1, 0, 0)),
    (o.DeclareExchange(1, "x", "direct", passive=True), o.Done(1, 0, 0)),
    (o.DeleteExchange(1, "x", True), o.Done(1, 0, 0)),
    (o.DeclareQueue(1, "q", True, True, True, True, {"a": 1}), o.Declared(1, 0, 0, "q", 5, 1)),
    (o.DeclareQueue(1, ""), o.Declared(1, 0, 0, "made", 0, 0)),
    (o.BindQueue(1, "q", "x", "key", {"a": 1}), o.Done(1, 0, 0)),
    (o.UnbindQueue(1, "q", "x", "key", {"a": 1}), o.Done(1, 0, 0)),
    (o.PurgeQueue(1, "q"), o.Removed(1, 0, 0, 7)),
    (o.DeleteQueue(1, "q", True, True), o.Removed(1, 0, 0, 7)),
    (o.QueryExchange(1, "x"), o.ExchangeFound(1, 0, 0, "x", "topic", True, {"a": 1})),
    (o.QueryBinding(1, "x", "q", "key", {"a": 1}), o.BindingFound(1, 0, 0)),
    (o.QueryBinding(1, "x", "q"), o.BindingFound(1, 0, 0, True, True, False, False, True)),
    (o.QueryBinding(1, "x", "q"), o.BindingFound(1, 0, 0, False, True, False, False, False, False)),
    (o.QueryBinding(1, "x", "q"), o.BindingFound(1, 0, 0, True, True, False, True, True, False)),
    (o.Qos(1, 10, 1_000, True), o.Done(1, 0, 0)),
    (o.TxSelect(1), o.Done(1, 0, 0)),
    (o.Recover(1, False), o.Done(1, 0, 0)),
]


@pytest.mark.parametrize(("request_", "outcome"), REQUESTS, ids=lambda value: type(value).__name__)
def test_requests_and_their_outcomes(pair: SessionPair, request_: o.Request, outcome: o.Outcome) -> None:
    serial = pair.ask(request_)
    (received,) = pair.requests
    assert replace(received, serial=0) == request_
    there = serial_of(pair)
    told = pair.answer(replace(outcome, first=there, last=there))
    assert told == [replace(outcome, first=serial, last=serial)]


def test_a_query_for_a_queue_is_a_passive_declaration() -> None:
    pair = opened()
    serial = pair.ask(o.QueryQueue(1, "q"))
    there = serial_of(pair)
    assert pair.requests == [o.DeclareQueue(1, "q", passive=True, serial=there)]
    told = pair.answer(o.Failed(1, there, there, 404, "no queue"))
    assert told == [
        o.Failed(1, serial, serial, 404, "NOT_FOUND - no queue"),
        o.ChannelClosed(1, 404, "NOT_FOUND - no queue"),
    ]


def test_an_exchange_that_is_not_there_costs_nothing() -> None:
    pair = opened()
    serial = pair.ask(o.QueryExchange(1, "x"))
    there = serial_of(pair)
    told = pair.answer(o.Failed(1, there, there, 404, "no"))
    assert told == [o.Failed(1, serial, serial, 404, "NOT_FOUND - no exchange 'x'")]
    pair.ask(o.QueryExchange(1, "x"))
    there = serial_of(pair)
    assert o.ChannelClosed(1, 403, "ACCESS_REFUSED - no") in pair.answer(o.Failed(1, there, there, 403, "no"))


MESSAGE = Message(b"body", Properties(message_id="m-1", headers={"a": 1}))


@pytest.mark.parametrize("size", [0, 4, 131_000, 400_000])
@pytest.mark.parametrize("flags", [(True, False), (False, True)])
def test_a_confirmed_publish(pair: SessionPair, size: int, flags: tuple[bool, bool]) -> None:
    confirming(pair)
    message = Message(b"x" * size, MESSAGE.properties)
    serial = pair.ask(o.Publish(1, "x", "key", message, *flags))
    there = serial_of(pair)
    assert pair.requests == [o.Publish(1, "x", "key", message, *flags, serial=there)]
    assert pair.answer(o.Confirmed(1, there, there)) == [o.Confirmed(1, serial, serial)]
    assert pair.client.unfinished == pair.server.unfinished == 0


def test_many_publishes_are_confirmed_together() -> None:
    pair = confirming(opened())
    for _ in range(10):
        last = pair.client.send(o.Publish(1, "", "q", MESSAGE), pair.now)
    pair.pump()
    serials = [request.serial for request in pair.requests]  # type: ignore[attr-defined]
    told = pair.answer(o.Confirmed(1, serials[0], serials[4]), o.Confirmed(1, serials[6], serials[-1]))
    assert told == [o.Confirmed(1, last - 9, last - 5), o.Confirmed(1, last - 3, last)]
    assert pair.answer(o.Confirmed(1, 0, 10_000)) == [o.Confirmed(1, last - 4, last - 4)]


@pytest.mark.parametrize(
    ("outcome", "told"),
    [
        (o.Returned(1, 0, 0, 312, "NO_ROUTE"), o.Returned(1, 0, 0, 312, "NO_ROUTE")),
        (o.Returned(1, 0, 0, 313, "NO_CONSUMERS"), o.Returned(1, 0, 0, 313, "NO_CONSUMERS")),
        (o.Refused(1, 0, 0, 506, "full"), o.Refused(1, 0, 0, 506, "RESOURCE_ERROR - full")),
        (o.Refused(1, 0, 0), o.Refused(1, 0, 0, 506, "RESOURCE_ERROR")),
    ],
)
def test_a_publish_that_is_not_taken(pair: SessionPair, outcome: Any, told: Any) -> None:
    confirming(pair)
    serial = pair.ask(o.Publish(1, "", "q", MESSAGE))
    there = serial_of(pair)
    operations: list[o.Operation] = [replace(outcome, first=there, last=there)]
    if type(outcome) is o.Returned:
        operations.append(o.Confirmed(1, there, there))
    assert pair.answer(*operations) == [replace(told, first=serial, last=serial)]


def test_without_confirms_only_what_was_returned_is_told() -> None:
    pair = opened()
    for _ in range(3):
        pair.client.send(o.Publish(1, "", "q", MESSAGE), pair.now)
    pair.pump()
    first, second, third = (request.serial for request in pair.requests)  # type: ignore[attr-defined]
    told = pair.answer(
        o.Confirmed(1, first, first), o.Returned(1, second, second, 312, ""), o.Refused(1, third, third, 0, "")
    )
    assert told == [o.Returned(1, 3, 3, 312, "NO_ROUTE")]


def test_a_transaction_confirms_at_its_end() -> None:
    pair = opened()
    pair.ask(o.TxSelect(1))
    there = serial_of(pair)
    pair.answer(o.Done(1, there, there))
    for _ in range(4):
        pair.client.send(o.Publish(1, "", "q", MESSAGE), pair.now)
    pair.pump()
    noted = [request.serial for request in pair.requests]  # type: ignore[attr-defined]
    assert pair.answer(o.Confirmed(1, noted[0], noted[-1])) == []
    commit = pair.ask(o.TxCommit(1))
    with pytest.raises(StateError, match="committing"):
        pair.client.send(o.Publish(1, "", "q", MESSAGE), pair.now)
    there = serial_of(pair)
    told = pair.answer(
        o.Returned(1, noted[1], noted[1], 312, ""), o.Refused(1, noted[2], noted[2], 0, ""), o.Done(1, there, there)
    )
    assert told == [o.Returned(1, 4, 4, 312, "NO_ROUTE"), o.Done(1, commit, commit)]


def test_a_rollback_gives_deliveries_back() -> None:
    pair = consuming(opened())
    pair.ask(o.TxSelect(1))
    there = serial_of(pair)
    pair.answer(o.Done(1, there, there))
    first, second = (event.delivery for event in pair.answer(*[deliver()] * 2))  # type: ignore[attr-defined]
    pair.ask(o.Settle(1, o.Settlement.ACCEPT, first, first))
    with pytest.raises(StateError):
        pair.client.send(o.Settle(1, o.Settlement.ACCEPT, first, first), pair.now)
    serial = pair.ask(o.TxRollback(1))
    there = serial_of(pair)
    assert pair.answer(o.Done(1, there, there)) == [o.Done(1, serial, serial)]
    pair.ask(o.Settle(1, o.Settlement.ACCEPT, 0, 0))
    assert only(pair.requests) == o.Settle(1, o.Settlement.ACCEPT, first, second, serial=only(pair.requests).serial)


def deliver(tag: str = "t", size: int = 4, redelivered: bool = False) -> o.Deliver:
    return o.Deliver(1, tag, 0, redelivered, "x", "key", Message(b"x" * size, MESSAGE.properties))


def test_a_consumer(pair: SessionPair) -> None:
    pair.ask(o.Consume(1, "q", "t", True, False, True, {"a": 1}))
    there = serial_of(pair)
    assert pair.requests == [o.Consume(1, "q", "t", True, False, True, {"a": 1}, serial=there)]
    assert pair.answer(o.Consuming(1, there, there, "t")) == [o.Consuming(1, 2, 2, "t")]
    numbers = pair.tell(deliver(), deliver(size=300_000, redelivered=True))
    assert pair.events == [
        replace(deliver(), delivery=numbers[0]),
        replace(deliver(size=300_000, redelivered=True), delivery=numbers[1]),
    ]
    for settlement, number in zip((o.Settlement.RELEASE, o.Settlement.REJECT), numbers, strict=True):
        pair.ask(o.Settle(1, settlement, number, number))
        assert pair.requests == [o.Settle(1, settlement, number, number, serial=serial_of(pair))]
    serial = pair.ask(o.Cancel(1, "t"))
    there = serial_of(pair)
    assert pair.answer(o.Done(1, there, there)) == [o.Done(1, serial, serial)]
    with pytest.raises(StateError, match="no consumer"):
        pair.client.send(o.Cancel(1, "t"), pair.now)
    with pytest.raises(StateError, match="no destination"):
        pair.server.send(deliver(), pair.now)


def test_a_delivery_may_come_before_its_consumer_is_complete() -> None:
    pair = opened()
    serial = pair.ask(o.Consume(1, "q", no_ack=True, acquired=False))
    (received,) = pair.requests
    assert isinstance(received, o.Consume)
    assert received.arguments == {"x-filter-no-consume": True}
    tag = received.consumer_tag
    pair.tell(deliver(tag))
    assert pair.events[0] == o.Consuming(1, serial, serial, tag)
    assert pair.answer(o.Consuming(1, received.serial, received.serial, tag)) == []
    with pytest.raises(StateError, match="no delivery"):
        pair.client.send(o.Settle(1, o.Settlement.ACCEPT, 0, 0), pair.now)
    with pytest.raises(StateError, match="in use"):
        pair.client.send(o.Consume(1, "q", tag), pair.now)


def test_a_consumer_that_the_server_ends_is_not_told() -> None:
    pair = consuming(opened())
    assert pair.answer(o.Cancelled(1, "t")) == []
    with pytest.raises(StateError):
        pair.server.send(deliver(), pair.now)


def test_names_of_consumers_are_new() -> None:
    pair = consuming(opened())
    pair.ask(o.Consume(1, "q", "consumer-1"))
    pair.ask(o.Consume(1, "q"))
    assert only(pair.requests).consumer_tag == "consumer-2"


def test_ranges_of_deliveries() -> None:
    pair = consuming(opened())
    numbers = pair.tell(*[deliver()] * 6)
    pair.ask(o.Settle(1, o.Settlement.ACCEPT, numbers[2], numbers[2]))
    pair.ask(o.Settle(1, o.Settlement.ACCEPT, numbers[0], numbers[4]))
    assert [(s.first, s.last) for s in pair.requests] == [(numbers[0], numbers[1]), (numbers[3], numbers[4])]  # type: ignore[attr-defined]
    pair.ask(o.Settle(1, o.Settlement.ACCEPT, 1, 1 << 40))
    assert only(pair.requests).first == numbers[5]


def test_recover_gives_back_what_is_out() -> None:
    pair = consuming(opened())
    (number,) = pair.tell(deliver())
    serial = pair.ask(o.Recover(1))
    there = serial_of(pair)
    pair.tell(o.Done(1, there, there), deliver(redelivered=True))
    assert pair.events[0] == o.Done(1, serial, serial)
    again = pair.events[1].delivery  # type: ignore[attr-defined]
    pair.ask(o.Settle(1, o.Settlement.ACCEPT, 0, 0))
    assert (only(pair.requests).first, only(pair.requests).last) == (again, again)
    assert again > number


@pytest.mark.parametrize("no_ack", [False, True])
def test_get(pair: SessionPair, no_ack: bool) -> None:
    serial = pair.ask(o.Get(1, "q", no_ack))
    there = serial_of(pair)
    assert pair.requests == [o.Get(1, "q", no_ack, serial=there)]
    (number,) = pair.tell(o.Got(1, there, there, 0, True, "x", "key", MESSAGE, 5))
    assert pair.events == [o.Got(1, serial, serial, number, True, "x", "key", MESSAGE)]
    serial = pair.ask(o.Get(1, "q"))
    there = serial_of(pair)
    assert pair.answer(o.GotNothing(1, there, there)) == [o.GotNothing(1, serial, serial)]
    with pytest.raises(StateError, match="not waiting"):
        pair.server.send(o.GotNothing(1, there, there), pair.now)


def test_what_is_over_the_limit_of_the_client() -> None:
    pair = consuming(opened(Limits(), Limits(message_max=1_000)))
    numbers = pair.tell(deliver(size=2_000), deliver(size=300_000))
    common = {"redelivered": False, "exchange": "x", "routing_key": "key"}
    assert pair.events == [
        o.DeliveryTooLarge(1, "t", numbers[0], 2_000, 1_000, **common),  # type: ignore[arg-type]
        o.DeliveryTooLarge(1, "t", numbers[1], 300_000, 1_000, **common),  # type: ignore[arg-type]
    ]
    pair.ask(o.Settle(1, o.Settlement.REJECT, 0, 0))
    serial = pair.ask(o.Get(1, "q"))
    there = serial_of(pair)
    large = Message(b"x" * 2_000)
    (number,) = pair.tell(o.Got(1, there, there, 0, False, "x", "key", large))
    assert pair.events == [
        o.DeliveryTooLarge(1, "", number, 2_000, 1_000, **common),  # type: ignore[arg-type]
        o.GotNothing(1, serial, serial),
    ]


@pytest.mark.parametrize("size", [2_000, 300_000])
def test_what_is_over_the_limit_of_the_server_is_refused(size: int) -> None:
    pair = confirming(opened(Limits(message_max=1_000), Limits()))
    serial = pair.ask(o.Publish(1, "", "q", Message(b"x" * size)))
    assert pair.requests == []
    assert pair.events == [
        o.Refused(1, serial, serial, 506, f"RESOURCE_ERROR - a message of {size} octets is over the limit of 1000")
    ]
    assert pair.server.unfinished == 0


def test_flow_both_ways(pair: SessionPair) -> None:
    pair.ask(o.Flow(1, False))
    assert pair.requests == [o.Flow(1, False, serial=serial_of(pair))]
    assert pair.answer(o.Flow(1, False)) == [o.Flow(1, False)]


def test_closing_a_channel(pair: SessionPair) -> None:
    consuming(pair)
    pair.ask(o.CloseChannel(1))
    with pytest.raises(StateError, match="closing"):
        pair.client.send(o.Flow(1), pair.now)
    (request,) = pair.requests
    assert request == o.CloseChannel(1, serial=serial_of(pair))
    pair.tell(deliver())  # which crosses it
    assert pair.events == []
    assert pair.answer(o.ChannelClosed(1, 200, "")) == [o.ChannelClosed(1, 200, "", False)]
    pair.ask(o.OpenChannel(1))
    assert pair.requests == [o.OpenChannel(1, serial=1)]


def test_the_server_closes_a_channel() -> None:
    pair = opened()
    assert pair.answer(o.CloseChannel(1, 406, "why")) == [o.ChannelClosed(1, 406, "PRECONDITION_FAILED - why")]
    with pytest.raises(StateError, match="not open"):
        pair.server.send(o.Flow(1), pair.now)


def test_a_channel_that_is_refused() -> None:
    pair = opened()
    pair.ask(o.OpenChannel(2))
    assert pair.answer(o.Failed(2, 1, 1, 506, "full")) == [
        o.Failed(2, 1, 1, 506, "RESOURCE_ERROR - full"),
        o.ChannelClosed(2, 506, "RESOURCE_ERROR - full"),
    ]


def test_what_a_session_does_not_send() -> None:
    pair = opened()
    with pytest.raises(Unsupported):
        pair.client.send(o.BindExchange(1, "a", "b"), pair.now)
    with pytest.raises(Unsupported):
        pair.server.send(o.Acquired(1, 1, 1), pair.now)
    with pytest.raises(StateError, match="is open"):
        pair.client.send(o.OpenChannel(1), pair.now)
    with pytest.raises(StateError, match="within"):
        pair.client.send(o.OpenChannel(1 << 20), pair.now)
    with pytest.raises(StateError, match="not transacted"):
        pair.client.send(o.TxCommit(1), pair.now)
    with pytest.raises(StateError, match="mode confirm"):
        confirming(pair).client.send(o.TxSelect(1), pair.now)
    with pytest.raises(StateError, match="has not asked"):
        pair.server.send(o.ChannelClosed(1, 200, ""), pair.now)
    with pytest.raises(StateError, match="not waiting"):
        pair.server.send(o.Done(1, 77, 77), pair.now)
    other = opened()
    other.ask(o.TxSelect(1))
    with pytest.raises(StateError, match="mode transacted"):
        other.client.send(o.SelectConfirm(1), other.now)


def test_properties_that_fit_no_frame_are_refused_and_nothing_is_sent() -> None:
    pair = opened()
    large = Message(b"", Properties(headers={"a": "x" * 60_000, "b": "x" * 60_000, "c": "x" * 60_000}))
    with pytest.raises(EncodeError, match="more than a frame"):
        pair.client.send(o.Publish(1, "", "q", large), pair.now)
    with pytest.raises(EncodeError):
        pair.client.send(o.Qos(1, 70_000), pair.now)
    assert pair.client.data_to_send() == []


def test_a_large_body_goes_by_reference() -> None:
    pair = opened()
    pair.ask(o.Publish(1, "", "q", Message(b"x" * 300_000)))
    sent = [type(method) for _, _, method in methods(pair.to_server)]
    assert sent == [t.MessageOpen, *[t.MessageAppend] * 3, t.MessageTransfer, t.MessageClose, t.ExecutionFlush]
    assert all(len(frame) <= 131_072 for frame in pair.to_server.split(b"\xce\x01"))


def test_names_of_sessions_without_random_octets() -> None:
    pair = make_pair(random_octets=None).open()
    pair.ask(o.OpenChannel(2))
    pair.tell(o.Done(2, 1, 1))
    (attached,) = [method for _, _, method in methods(pair.to_client)]
    assert attached.session_id.int == 2


def test_heartbeats_and_deadlines_are_those_of_the_classic_versions() -> None:
    pair = opened()
    at = pair.client.next_timeout()
    assert at is not None
    pair.client.handle_timeout(at)
    assert pair.client.data_to_send() == [b"\x08\x00\x00\x00\x00\x00\x00\xce"]
    assert pair.server.receive_data(b"\x08\x00\x00\x00\x00\x00\x00\xce", pair.now) == []


def test_an_answer_is_for_the_oldest_request_that_waits_for_it() -> None:
    pair = opened()
    publish = pair.client.send(o.Publish(1, "", "q", MESSAGE), pair.now)
    purge = pair.client.send(o.PurgeQueue(1, "q"), pair.now)
    delete = pair.client.send(o.DeleteQueue(1, "q"), pair.now)
    pair.pump()
    there = [request.serial for request in pair.requests]  # type: ignore[attr-defined]
    told = pair.answer(o.Removed(1, there[2], there[2], 2), o.Removed(1, there[1], there[1], 1))
    assert told == [o.Removed(1, delete, delete, 2), o.Removed(1, purge, purge, 1)]
    assert (publish, purge, delete) == (2, 3, 4)


def test_what_is_too_large_and_crosses_the_close() -> None:
    pair = consuming(opened(Limits(), Limits(message_max=10)))
    pair.ask(o.CloseChannel(1))
    pair.tell(deliver(size=20))
    assert pair.events == []
