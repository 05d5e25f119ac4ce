"""The two sessions with each other: every operation there, and its outcome back."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.amqp import operations as o
from gateway.amqp.message import Message, Properties, ReplyTo
from gateway.amqp.operations import Settlement
from gateway.v010.session import ClientSession, ServerSession
from gateway.v010.version import V0_10
from tests.pair import SessionPair, only

PROPERTIES = Properties(
    content_type="text/plain",
    content_encoding="utf-8",
    headers={"n": 1, "m": {"l": [1, "x"]}, "x-jms-type": "t"},
    delivery_mode=2,
    priority=200,
    correlation_id="c",
    reply_to=ReplyTo("x", "k"),
    expiration="1000",
    message_id="m-1",
    timestamp=1_700_000_000,
    type="t",
    app_id="a",
    cluster_id="cl",
)


@pytest.fixture(params=[None, 1, 7], ids=["whole", "octet by octet", "by sevens"])
def pair(request: pytest.FixtureRequest) -> SessionPair:
    return SessionPair(V0_10, chunk=request.param).open()


def test_what_the_module_offers(pair: SessionPair) -> None:
    assert isinstance(pair.client, ClientSession)
    assert isinstance(pair.server, ServerSession)


def requested(pair: SessionPair, operation: Any) -> Any:
    """The client asks; the one request the server makes of it."""
    pair.ask(operation)
    return only(pair.requests)


ASKED = [
    (o.DeclareExchange(1, "x", "topic", True, True, arguments={"a": 1}), o.Done),
    (o.DeleteExchange(1, "x", True), o.Done),
    (o.BindQueue(1, "q", "x", "k", {"a": 1}), o.Done),
    (o.UnbindQueue(1, "q", "x", "k"), o.Done),
    (o.PurgeQueue(1, "q"), o.Removed),
    (o.DeleteQueue(1, "q", True, True), o.Removed),
    (o.TxSelect(1), o.Done),
]


@pytest.mark.parametrize(("operation", "outcome"), ASKED, ids=lambda value: type(value).__name__)
def test_requests(pair: SessionPair, operation: Any, outcome: Any) -> None:
    request = requested(pair, operation)
    operation.serial = request.serial
    assert request == operation
    operation.serial = 0
    assert pair.answer(outcome(1, request.serial, request.serial)) == [outcome(1, 2, 2)]


def test_queries(pair: SessionPair) -> None:
    serial = requested(pair, o.QueryQueue(1, "q")).serial
    declared = o.Declared(1, serial, serial, "q", 3, 1, True, {"a": 1}, True)
    assert pair.answer(declared) == [o.Declared(1, 2, 2, "q", 3, 1, True, {"a": 1}, True)]
    serial = requested(pair, o.QueryExchange(1, "x")).serial
    found = o.ExchangeFound(1, serial, serial, "x", "topic", True, {})
    assert pair.answer(found) == [o.ExchangeFound(1, 3, 3, "x", "topic", True, {})]
    serial = requested(pair, o.QueryBinding(1, "x", "q", "k")).serial
    bound = o.BindingFound(1, serial, serial, True, True, False, False, True)
    assert pair.answer(bound) == [o.BindingFound(1, 4, 4, True, True, False, False, True)]
    for operation in (o.QueryQueue(1, "q"), o.QueryExchange(1, "x")):
        serial = requested(pair, operation).serial
        (event,) = pair.answer(o.Failed(1, serial, serial, 404, "no"))
        assert isinstance(event, o.Failed)
        assert event.code == 404


def test_declare(pair: SessionPair) -> None:
    pair.ask(o.DeclareQueue(1, "q", True, True, True, arguments={"a": 1, "alternate-exchange": "alt"}))
    declare, query = pair.requests
    assert isinstance(declare, o.DeclareQueue)
    assert (declare.durable, declare.exclusive, declare.auto_delete) == (True, True, True)
    assert declare.arguments == {"a": 1, "alternate-exchange": "alt"}
    assert isinstance(query, o.QueryQueue)
    answers = [o.Declared(1, request.serial, request.serial, "q", 3) for request in (declare, query)]
    assert pair.answer(*answers) == [o.Declared(1, 2, 2, "q", 3, 0, False, {}, False)]


def test_select_confirm_and_qos_take_their_turn(pair: SessionPair) -> None:
    for operation, serial in ((o.SelectConfirm(1), 2), (o.Qos(1, 5), 3)):
        assert pair.ask(operation) == serial
        assert pair.requests == []
        assert pair.events == [o.Done(1, serial, serial)]


def test_publishes(pair: SessionPair) -> None:
    pair.ask(o.SelectConfirm(1))
    message = Message(b"body" * 50, PROPERTIES)
    publish = requested(pair, o.Publish(1, "x", "k", message))
    assert (publish.exchange, publish.routing_key, publish.mandatory, publish.immediate) == ("x", "k", True, False)
    assert publish.message == message
    serial = publish.serial
    assert pair.answer(o.Confirmed(1, serial, serial)) == [o.Confirmed(1, 3, 3)]
    serial = requested(pair, o.Publish(1, "x", "k", message, mandatory=False, immediate=True)).serial
    answers = (o.Returned(1, serial, serial, 313, "nobody"), o.Confirmed(1, serial, serial))
    assert pair.answer(*answers) == [o.Returned(1, 4, 4, 313, "nobody")]
    serial = requested(pair, o.Publish(1, "x", "k", message)).serial
    assert pair.answer(o.Refused(1, serial, serial, 506, "full")) == [o.Refused(1, 5, 5, 0, "full")]
    serial = requested(pair, o.Publish(1, "x", "k", message)).serial
    assert pair.answer(o.Failed(1, serial, serial, 403, "no")) == [
        o.Failed(1, 6, 6, 403, "unauthorized-access: no"),
        o.ChannelClosed(1, 403, "unauthorized-access: no"),
    ]


@given(st.lists(st.sampled_from(["confirm", "return", "refuse", "none"]), min_size=1, max_size=30), st.data())
@settings(deadline=None)
def test_every_publish_has_one_outcome(fates: list[str], data: st.DataObject) -> None:
    pair = SessionPair(V0_10).open()
    pair.ask(o.SelectConfirm(1))
    serials = [pair.client.send(o.Publish(1, "x", "k", Message(fate.encode())), pair.now) for fate in fates]
    pair.pump()
    requests: list[Any] = pair.requests
    outcomes: dict[int, str] = {}
    for index in data.draw(st.permutations(range(len(fates)))):
        serial, fate = requests[index].serial, fates[index]
        if fate == "return":
            pair.server.send(o.Returned(1, serial, serial, 312, "no"), pair.now)
        if fate == "refuse":
            pair.server.send(o.Refused(1, serial, serial), pair.now)
        elif fate != "none":
            pair.server.send(o.Confirmed(1, serial, serial), pair.now)
    pair.pump()
    kinds = {o.Confirmed: "confirm", o.Returned: "return", o.Refused: "refuse"}
    pending = fates.count("none")
    while True:
        for event in pair.events:
            assert isinstance(event, o.Outcome)
            for serial in range(event.first, event.last + 1):
                if type(event) is o.Confirmed and serial in outcomes:
                    continue
                assert serial not in outcomes
                outcomes[serial] = kinds[type(event)]
        if not pending:
            break
        # The last publish asked for completion; what nobody completed comes when the rest is confirmed.
        pending = 0
        pair.server.send(o.Confirmed(1, requests[0].serial, requests[-1].serial), pair.now)
        pair.server.receive_data(b"", pair.now)
        pair.client.send(o.Qos(1, 1), pair.now)
        pair.pump()
        pair.events = [event for event in pair.events if type(event) is not o.Done]
    expected = {serial: fate if fate != "none" else "confirm" for serial, fate in zip(serials, fates, strict=True)}
    assert {serial: outcomes.get(serial, "confirm") for serial in serials} == expected


def consuming(pair: SessionPair, **options: Any) -> None:
    pair.ask(o.Consume(1, "q", "t", **options))
    consume, *credit = pair.requests
    assert isinstance(consume, o.Consume)
    assert all(isinstance(request, o.Credit) for request in credit)
    serial = consume.serial
    assert only(pair.answer(o.Consuming(1, serial, serial, "t"))).consumer_tag == "t"


def test_deliveries(pair: SessionPair) -> None:
    pair.ask(o.Qos(1, 2))
    pair.ask(o.Consume(1, "q", "t", exclusive=True, acquired=False, arguments={"a": 1}))
    consume, octets, messages = pair.requests
    assert isinstance(consume, o.Consume)
    assert (consume.exclusive, consume.acquired, consume.credit, consume.arguments) == (True, False, True, {"a": 1})
    assert isinstance(octets, o.Credit)
    assert isinstance(messages, o.Credit)
    assert (octets.octets, messages.messages) == (None, 2)
    pair.answer(o.Consuming(1, consume.serial, consume.serial, "t"))
    message = Message(b"body", PROPERTIES)
    (number,) = pair.tell(o.Deliver(1, "t", 0, True, "x", "k", message))
    delivery = only(pair.events)
    assert delivery == o.Deliver(1, "t", number, True, "x", "k", message)
    pair.ask(o.Settle(1, Settlement.REJECT, number, number))
    settle, credit = pair.requests
    assert isinstance(settle, o.Settle)
    assert (settle.settlement, settle.first, settle.last) == (Settlement.REJECT, number, number)
    assert isinstance(credit, o.Credit)
    assert (credit.messages, credit.window) == (1, False)


def test_get(pair: SessionPair) -> None:
    for there in (True, False):
        pair.ask(o.Get(1, "q"))
        consume, *_, cancel = pair.requests
        assert isinstance(consume, o.Consume)
        assert isinstance(cancel, o.Cancel)
        pair.server.send(o.Consuming(1, consume.serial, consume.serial, consume.consumer_tag), pair.now)
        if there:
            pair.server.send(o.Deliver(1, consume.consumer_tag, 0, False, "x", "k", Message(b"m")), pair.now)
        event = only(pair.answer(o.Done(1, cancel.serial, cancel.serial)))
        assert isinstance(event, o.Got if there else o.GotNothing)


def test_cancel(pair: SessionPair) -> None:
    consuming(pair)
    serial = requested(pair, o.Cancel(1, "t")).serial
    assert isinstance(only(pair.answer(o.Done(1, serial, serial))), o.Done)


def test_flow_both_ways(pair: SessionPair) -> None:
    consuming(pair)
    stop = requested(pair, o.Flow(1, active=False))
    assert (stop.consumer_tag, stop.stopped) == ("t", True)
    pair.requests.clear()
    assert pair.answer(o.Flow(1, active=False)) == [o.Flow(1, active=False)]
    assert pair.answer(o.Flow(1, active=True)) == [o.Flow(1, active=True)]


def test_close_channel(pair: SessionPair) -> None:
    assert isinstance(requested(pair, o.CloseChannel(1)), o.CloseChannel)
    assert pair.answer(o.ChannelClosed(1, 200, "")) == [o.ChannelClosed(1, 200, "", False)]
    assert isinstance(requested(pair, o.OpenChannel(1)), o.OpenChannel)


def test_close(pair: SessionPair) -> None:
    pair.ask(o.Close(0, 200, "bye"))
    assert pair.requests == [o.Closed(0, o.CloseReason.PEER, 200, "bye")]
    assert pair.events == [o.Closed(0, o.CloseReason.LOCAL, 200, "bye")]


def test_many_deliveries_settled_out_of_order_with_one_held() -> None:
    """More than the 65,536 commands after which completing at settlement ends a session."""
    pair = SessionPair(V0_10).open()
    pair.ask(o.Qos(1, 1_000))
    consuming(pair)
    held = 0
    for _ in range(70):
        deliver = o.Deliver(1, "t", 0, False, "x", "k", Message(b"m"))
        numbers = [pair.server.send(deliver, pair.now) for _ in range(1_000)]
        pair.pump()
        held = held or numbers[0]
        for number in reversed(numbers):
            if number != held:
                pair.client.send(o.Settle(1, Settlement.ACCEPT, number, number), pair.now)
        pair.pump()
    client: Any = pair.client
    server: Any = pair.server
    assert list(client.channels[0].outstanding) == [held]
    assert len(client.channels[0].received.completed) <= 1
    assert len(server.channels[0].received.completed) <= 1
