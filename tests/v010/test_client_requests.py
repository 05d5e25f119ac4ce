"""What each request of a client becomes, and what its outcome is."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.amqp import operations as o
from gateway.amqp.message import Message
from gateway.amqp.values import Typed
from gateway.limits import Limits
from gateway.v010 import commands as c
from gateway.v010 import controls as k
from gateway.v010.client_requests import REQUESTS
from gateway.v010.structs import ExchangeBoundResult, ExchangeQueryResult, QueueQueryResult, Struct
from gateway.v010.translate import write_header
from tests.v010.peer import NOW, ClientPeer

BROKER_J = {"product": "Apache Qpid Broker-J Core"}


@pytest.fixture
def peer() -> ClientPeer:
    return ClientPeer().opened().attach(1)


def ask(peer: ClientPeer, operation: Any) -> list[tuple[Any, bool]]:
    """The commands that an operation becomes, and whether they ask for completion."""
    assert peer.session.send(operation, NOW) == 2
    return [(entry[1], entry[2]) for entry in peer.sent()]


SIMPLE = [
    (
        o.DeclareExchange(1, "x", "topic", True, True, arguments={"a": 1, "alternate-exchange": "alt"}),
        c.ExchangeDeclare("x", "topic", "alt", False, True, True, {"a": 1}),
        o.Done,
    ),
    (o.DeclareExchange(1, "x", passive=True), c.ExchangeDeclare("x", "direct", None, True), o.Done),
    (o.DeleteExchange(1, "x", True), c.ExchangeDelete("x", True), o.Done),
    (o.BindQueue(1, "q", "x", "k", {"a": 1}), c.ExchangeBind("q", "x", "k", {"a": 1}), o.Done),
    (o.UnbindQueue(1, "q", "x", "k"), c.ExchangeUnbind("q", "x", "k"), o.Done),
    (o.PurgeQueue(1, "q"), c.QueuePurge("q"), o.Removed),
    (o.DeleteQueue(1, "q", True, True), c.QueueDelete("q", True, True), o.Removed),
    (o.SelectConfirm(1), c.ExecutionSync(), o.Done),
    (o.Qos(1, 5), c.ExecutionSync(), o.Done),
    (o.TxSelect(1), c.TxSelect(), o.Done),
    (o.Recover(1), c.ExecutionSync(), o.Done),
]


@pytest.mark.parametrize(("operation", "command", "outcome"), SIMPLE, ids=lambda value: type(value).__name__)
def test_one_command(peer: ClientPeer, operation: Any, command: c.Command, outcome: Any) -> None:
    assert ask(peer, operation) == [(command, True)]
    assert peer.receive(0, k.SessionCompleted(((0, 0),))) == [outcome(1, 2, 2)]


def result(value: Struct | None) -> c.ExecutionResult:
    return c.ExecutionResult(0, None if value is None else value.encode())


QUERIES = [
    (
        o.QueryExchange(1, "x"),
        c.ExchangeQuery("x"),
        ExchangeQueryResult("topic", True, arguments={"a": 1}),
        o.ExchangeFound(1, 2, 2, "x", "topic", True, {"a": 1}),
    ),
    (
        o.QueryExchange(1, "x"),
        c.ExchangeQuery("x"),
        ExchangeQueryResult(not_found=True),
        o.Failed(1, 2, 2, 404, "not-found: no exchange 'x'"),
    ),
    (
        o.QueryQueue(1, "q"),
        c.QueueQuery("q"),
        QueueQueryResult("q", "alt", True, message_count=3, subscriber_count=1),
        o.Declared(1, 2, 2, "q", 3, 1, True, {"alternate-exchange": "alt"}, False),
    ),
    (o.QueryQueue(1, "q"), c.QueueQuery("q"), None, o.Failed(1, 2, 2, 404, "not-found: no queue 'q'")),
    (
        o.QueryBinding(1, "x", "q", "k", {"a": 1}),
        c.ExchangeBound("x", "q", "k", {"a": 1}),
        ExchangeBoundResult(),
        o.BindingFound(1, 2, 2),
    ),
    (
        o.QueryBinding(1, "x"),
        c.ExchangeBound("x"),
        ExchangeBoundResult(queue_not_found=True),
        o.BindingFound(1, 2, 2, True, False, False, False, False, False),
    ),
    (
        o.QueryBinding(1, "x"),
        c.ExchangeBound("x"),
        ExchangeBoundResult(key_not_matched=True),
        o.BindingFound(1, 2, 2, True, True, False, False, True),
    ),
]


@pytest.mark.parametrize(("operation", "command", "value", "outcome"), QUERIES)
def test_queries(
    peer: ClientPeer, operation: Any, command: c.Command, value: Struct | None, outcome: o.Operation
) -> None:
    assert ask(peer, operation) == [(command, True)]
    assert peer.receive(0, result(value), result(value), k.SessionCompleted(((0, 0),))) == [outcome]


def test_a_result_that_is_none(peer: ClientPeer) -> None:
    ask(peer, o.QueryQueue(1, "q"))
    (event,) = peer.receive(0, c.ExecutionResult(0, b"\x07\x01\x00\x00"))
    assert isinstance(event, o.Closed)
    assert event.reason is o.CloseReason.SYNTAX


@pytest.mark.parametrize("ending", [(), (k.SessionDetached(b"", 0),)], ids=["", "detached"])
def test_a_result_that_never_comes(peer: ClientPeer, ending: Any) -> None:
    """A request has an outcome in any case."""
    ask(peer, o.QueryQueue(1, "q"))
    (event,) = peer.receive(0, k.SessionCompleted(((0, 0),)), *ending)
    assert isinstance(event, o.Closed)
    assert event.text == "command 0 is complete, and its result never came"


def test_a_result_that_nobody_asked_for(peer: ClientPeer) -> None:
    ask(peer, o.PurgeQueue(1, "q"))
    assert peer.receive(0, result(QueueQueryResult()), c.ExecutionResult(9)) == []


# -------------------------------------------------------------------------------------------- declarations


def declared(peer: ClientPeer, operation: o.DeclareQueue) -> c.QueueDeclare:
    (declare, first), (query, second) = ask(peer, operation)
    assert (first, second) == (False, True)
    assert query == c.QueueQuery(declare.queue)
    assert isinstance(declare, c.QueueDeclare)
    return declare


def test_declare_then_query(peer: ClientPeer) -> None:
    declare = declared(peer, o.DeclareQueue(1, "q", True, True, True, arguments={"a": 1}))
    assert declare == c.QueueDeclare("q", None, False, True, True, True, {"a": 1})
    answer = c.ExecutionResult(1, QueueQueryResult("q", message_count=7).encode())
    assert peer.receive(0, answer, k.SessionCompleted(((0, 1),))) == [o.Declared(1, 2, 2, "q", 7, 0, False, {}, False)]


def test_a_declaration_that_fails(peer: ClientPeer) -> None:
    declared(peer, o.DeclareQueue(1, "q", passive=True))
    assert peer.receive(0, c.ExecutionException(404, 0)) == [o.Failed(1, 2, 2, 404, "not-found")]


def test_a_queue_without_a_name_gets_one(peer: ClientPeer) -> None:
    first = declared(peer, o.DeclareQueue(1, "")).queue
    peer.session.send(o.DeclareQueue(1, ""), NOW)
    second = peer.sent()[0][1].queue
    assert first.startswith("gw.")
    assert first != second


@pytest.mark.parametrize(
    ("arguments", "alternate", "rest"),
    [
        ({"alternate-exchange": "a", "n": 1}, "a", {"n": 1}),
        ({"alternate-exchange": Typed("str8", "a")}, "a", None),
        ({"alternate-exchange": 5}, None, {"alternate-exchange": 5}),
        ({"x-dead-letter-exchange": "d"}, "d", None),
        ({"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}, "dead", None),
        (
            {"x-dead-letter-exchange": "d", "x-dead-letter-routing-key": "k"},
            None,
            {"x-dead-letter-exchange": "d", "x-dead-letter-routing-key": "k"},
        ),
        ({"x-dead-letter-exchange": "d", "alternate-exchange": "a"}, "a", {"x-dead-letter-exchange": "d"}),
    ],
)
def test_where_the_dead_letters_of_broker_j_go(arguments: Any, alternate: str | None, rest: Any) -> None:
    peer = ClientPeer().opened(BROKER_J).attach(1)
    declare = declared(peer, o.DeclareQueue(1, "q", arguments=arguments))
    assert (declare.alternate_exchange, declare.arguments) == (alternate, rest)


def test_dead_letters_elsewhere_are_arguments(peer: ClientPeer) -> None:
    declare = declared(peer, o.DeclareQueue(1, "q", arguments={"x-dead-letter-exchange": "d"}))
    assert (declare.alternate_exchange, declare.arguments) == (None, {"x-dead-letter-exchange": "d"})


# ----------------------------------------------------------------------------------------------- consuming


@pytest.mark.parametrize(
    ("options", "subscribe", "credit"),
    [
        ({}, c.MessageSubscribe("q", "t"), c.UNLIMITED),
        ({"no_ack": True}, c.MessageSubscribe("q", "t", c.NONE), c.UNLIMITED),
        ({"acquired": False}, c.MessageSubscribe("q", "t", c.EXPLICIT, c.NOT_ACQUIRED), c.UNLIMITED),
        ({"exclusive": True}, c.MessageSubscribe("q", "t", exclusive=True), c.UNLIMITED),
        (
            {"no_local": True, "arguments": {"a": 1}},
            c.MessageSubscribe("q", "t", arguments={"a": 1, "x-qpid-no-local": True}),
            c.UNLIMITED,
        ),
    ],
)
def test_consume(peer: ClientPeer, options: Any, subscribe: c.Command, credit: int) -> None:
    assert ask(peer, o.Consume(1, "q", "t", **options)) == [
        (subscribe, True),
        (c.MessageSetFlowMode("t", c.CREDIT), False),
        (c.MessageFlow("t", c.OCTETS, c.UNLIMITED), False),
        (c.MessageFlow("t", c.MESSAGES, credit), False),
    ]
    assert peer.receive(0, k.SessionCompleted(((0, 0),))) == [o.Consuming(1, 2, 2, "t")]


def test_a_consumer_without_a_tag_gets_one(peer: ClientPeer) -> None:
    peer.session.send(o.Consume(1, "q", "consumer-1"), NOW)
    peer.session.send(o.Consume(1, "q"), NOW)
    assert peer.receive(0, k.SessionCompleted(((0, 4),))) == [
        o.Consuming(1, 2, 2, "consumer-1"),
        o.Consuming(1, 3, 3, "consumer-2"),
    ]


GET = [
    (c.MessageSetFlowMode("get-1", c.CREDIT), False),
    (c.MessageFlow("get-1", c.OCTETS, c.UNLIMITED), False),
    (c.MessageFlow("get-1", c.MESSAGES, 1), False),
    (c.MessageFlush("get-1"), False),
    (c.MessageCancel("get-1"), True),
]


@pytest.mark.parametrize("no_ack", [False, True])
def test_get(peer: ClientPeer, no_ack: bool) -> None:
    mode = c.NONE if no_ack else c.EXPLICIT
    assert ask(peer, o.Get(1, "q", no_ack)) == [(c.MessageSubscribe("q", "get-1", mode), False), *GET]
    header = write_header(Message(b"body"), "k", 0, "x", None)
    (got,) = peer.receive(0, (c.MessageTransfer("get-1"), header, b"body"), k.SessionCompleted(((0, 5),)))
    assert isinstance(got, o.Got)
    assert (got.first, got.last, got.delivery, got.message_count) == (2, 2, 1, None)
    assert bool(peer.session.channels[0].outstanding) is not no_ack
    assert peer.session.channels[0].subscriptions == {}


def test_get_of_nothing(peer: ClientPeer) -> None:
    ask(peer, o.Get(1, "q"))
    assert peer.receive(0, k.SessionCompleted(((0, 4),))) == []
    assert peer.receive(0, k.SessionCompleted(((0, 5),))) == [o.GotNothing(1, 2, 2)]


def test_get_from_a_missing_queue(peer: ClientPeer) -> None:
    ask(peer, o.Get(1, "q"))
    assert peer.receive(0, c.ExecutionException(404, 0)) == [o.Failed(1, 2, 2, 404, "not-found")]


def test_get_of_what_is_too_large() -> None:
    peer = ClientPeer(limits=Limits(message_max=3)).opened().attach(1)
    ask(peer, o.Get(1, "q"))
    events = peer.receive(0, (c.MessageTransfer("get-1"), b"", b"12345"), k.SessionCompleted(((0, 5),)))
    assert events == [o.DeliveryTooLarge(1, "", 1, 5, 3), o.GotNothing(1, 2, 2)]


def test_the_table_has_what_a_client_asks() -> None:
    special = {o.Publish, o.Settle, o.Flow, o.CloseChannel, o.OpenChannel, o.Close, o.Detach}
    servers = {o.Credit, o.BindExchange, o.UnbindExchange, o.UpdateSecret}
    found = {kind for kind in vars(o).values() if isinstance(kind, type) and kind.__base__ is o.Request}
    assert found == set(REQUESTS) | special | servers
