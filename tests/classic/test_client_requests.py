"""Every request of a client: what goes on the wire, and what its answer means."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.amqp.message import Message
from gateway.amqp.operations import (
    BindExchange,
    BindingFound,
    BindQueue,
    Cancel,
    ChannelClosed,
    Consume,
    Consuming,
    Declared,
    DeclareExchange,
    DeclareQueue,
    DeleteExchange,
    DeleteQueue,
    Done,
    ExchangeFound,
    Failed,
    Get,
    Got,
    GotNothing,
    OpenChannel,
    Publish,
    PurgeQueue,
    Qos,
    QueryBinding,
    QueryExchange,
    QueryQueue,
    Recover,
    Removed,
    UnbindExchange,
    UnbindQueue,
)
from gateway.classic import methods as m
from gateway.errors import Unsupported
from gateway.session import ClientConfig, Version
from gateway.v08.version import V0_8
from gateway.v091.version import V0_9_1
from tests.classic.script import OLD_RABBITMQ, QPID, RABBITMQ, ScriptedServer

ARGUMENTS = {"x-max-length": 5}

CASES: list[tuple[Any, m.Method, m.Method, Any]] = [
    (
        DeclareExchange(1, "ex", "topic", durable=True, internal=True, arguments=ARGUMENTS),
        m.ExchangeDeclare(0, "ex", "topic", False, True, False, True, False, ARGUMENTS),
        m.ExchangeDeclareOk(),
        Done(1, 2, 2),
    ),
    (
        DeclareExchange(1, "ex", "topic", durable=True, passive=True),
        m.ExchangeDeclare(0, "ex", "", True, False, False, False, False, {}),
        m.ExchangeDeclareOk(),
        Done(1, 2, 2),
    ),
    (
        QueryExchange(1, "ex"),
        m.ExchangeDeclare(0, "ex", "", True, False, False, False, False, {}),
        m.ExchangeDeclareOk(),
        ExchangeFound(1, 2, 2, "ex"),
    ),
    (DeleteExchange(1, "ex", True), m.ExchangeDelete(0, "ex", True, False), m.ExchangeDeleteOk(), Done(1, 2, 2)),
    (
        DeclareQueue(1, "q", durable=True, auto_delete=True, arguments=ARGUMENTS),
        m.QueueDeclare(0, "q", False, True, False, True, False, ARGUMENTS),
        m.QueueDeclareOk("q", 3, 4),
        Declared(1, 2, 2, "q", 3, 4),
    ),
    (
        QueryQueue(1, "q"),
        m.QueueDeclare(0, "q", True, False, False, False, False, {}),
        m.QueueDeclareOk("q", 3, 4),
        Declared(1, 2, 2, "q", 3, 4),
    ),
    (
        BindQueue(1, "q", "ex", "key", ARGUMENTS),
        m.QueueBind(0, "q", "ex", "key", False, ARGUMENTS),
        m.QueueBindOk(),
        Done(1, 2, 2),
    ),
    (
        UnbindQueue(1, "q", "ex", "key", ARGUMENTS),
        m.QueueUnbind(0, "q", "ex", "key", ARGUMENTS),
        m.QueueUnbindOk(),
        Done(1, 2, 2),
    ),
    (PurgeQueue(1, "q"), m.QueuePurge(0, "q", False), m.QueuePurgeOk(5), Removed(1, 2, 2, 5)),
    (DeleteQueue(1, "q", True), m.QueueDelete(0, "q", True, False, False), m.QueueDeleteOk(6), Removed(1, 2, 2, 6)),
    (Qos(1, 10, whole_channel=True), m.BasicQos(0, 10, True), m.BasicQosOk(), Done(1, 2, 2)),
    (Get(1, "q", True), m.BasicGet(0, "q", True), m.BasicGetEmpty(), GotNothing(1, 2, 2)),
]


@pytest.mark.parametrize(("request_", "method", "answer", "outcome"), CASES)
@pytest.mark.parametrize("properties", [RABBITMQ, QPID], ids=["rabbitmq", "qpid"])
def test_request_and_outcome(
    version: Version, properties: Any, request_: Any, method: m.Method, answer: m.Method, outcome: Any
) -> None:
    server = ScriptedServer(version, properties).open()
    assert server.send(request_) == [2]
    assert server.heard() == [(1, method)]
    assert server.say(answer) == [outcome]


def test_get(version: Version) -> None:
    server = ScriptedServer(version).open()
    server.send(Get(1, "q"))
    assert server.say_content(m.BasicGetOk(7, True, "ex", "key", 3), b"body") == [
        Got(1, 2, 2, 7, True, "ex", "key", Message(b"body"), 3)
    ]
    assert list(server.session.channels[1].outstanding) == [7]
    server.send(Get(1, "q", no_ack=True))
    server.say_content(m.BasicGetOk(8, True, "ex", "key", 3), b"body")
    assert list(server.session.channels[1].outstanding) == [7]


@pytest.mark.parametrize(("properties", "arguments"), [(RABBITMQ, {}), (QPID, {"x": 1})])
def test_consume_and_cancel(version: Version, properties: Any, arguments: Any) -> None:
    server = ScriptedServer(version, properties).open()
    server.send(Consume(1, "q", "tag", exclusive=True, arguments=arguments))
    sent = server.heard()[0][1]
    assert (sent.queue, sent.consumer_tag, sent.exclusive, sent.nowait) == ("q", "tag", True, False)
    assert getattr(sent, "arguments", None) == (arguments if server.dialect.consume_arguments else None)
    server.say(m.BasicConsumeOk("tag"))
    server.send(Cancel(1, "tag"))
    assert server.heard() == [(1, m.BasicCancel("tag"))]
    assert server.say(m.BasicCancelOk("tag")) == [Done(1, 3, 3)]
    assert server.session.channels[1].consumers == {}


def test_a_consumer_tag_of_the_servers(version: Version) -> None:
    server = ScriptedServer(version).open()
    server.send(Consume(1, "q", no_ack=True))
    assert server.say(m.BasicConsumeOk("amq.ctag-1")) == [Consuming(1, 2, 2, "amq.ctag-1")]
    assert server.session.channels[1].consumers == {"amq.ctag-1": True}


def test_browsing(version: Version) -> None:
    server = ScriptedServer(version, QPID).open()
    server.send(Consume(1, "q", acquired=False))
    assert server.heard()[0][1].arguments == {"x-filter-no-consume": True}
    server = ScriptedServer(version, RABBITMQ).open()
    with pytest.raises(Unsupported, match="does not acquire"):
        server.send(Consume(1, "q", acquired=False))


def test_exchange_to_exchange() -> None:
    server = ScriptedServer(V0_9_1).open()
    server.send(BindExchange(1, "to", "from", "key", ARGUMENTS), UnbindExchange(1, "to", "from", "key"))
    assert server.heard() == [
        (1, m.ExchangeBind(0, "to", "from", "key", False, ARGUMENTS)),
        (1, m.ExchangeUnbind(0, "to", "from", "key", False, {})),
    ]
    assert server.say(m.ExchangeBindOk(), m.ExchangeUnbindOk()) == [Done(1, 2, 2), Done(1, 3, 3)]


@pytest.mark.parametrize(
    ("code", "found"),
    [
        (0, BindingFound(1, 2, 2)),
        (1, BindingFound(1, 2, 2, False, True, False, False, False, False)),
        (2, BindingFound(1, 2, 2, True, False, False, False, False, False)),
        (6, BindingFound(1, 2, 2, True, True, False, False, False, False)),
        (99, BindingFound(1, 2, 2, True, True, False, False, False, False)),
    ],
)
def test_exchange_bound(version: Version, code: int, found: BindingFound) -> None:
    server = ScriptedServer(version, QPID).open()
    server.send(QueryBinding(1, "ex", "q", "key"))
    assert server.heard() == [(1, m.ExchangeBound("ex", "key", "q"))]
    assert server.say(m.ExchangeBoundOk(code, "")) == [found]


@pytest.mark.parametrize(
    ("properties", "request_"),
    [
        (RABBITMQ, QueryBinding(1, "ex", "q")),
        (QPID, QueryBinding(1, "ex", "q", arguments={"a": 1})),
        (RABBITMQ, Qos(1, 0, 1_000)),
        (RABBITMQ, Recover(1, requeue=False)),
        (QPID, BindExchange(1, "to", "from")),
        (QPID, UnbindExchange(1, "to", "from")),
    ],
)
def test_what_a_broker_has_not(version: Version, properties: Any, request_: Any) -> None:
    server = ScriptedServer(version, properties).open()
    with pytest.raises(Unsupported, match="this broker has no such thing"):
        server.send(request_)
    assert server.heard() == []


def test_old_rabbitmq_has_no_consume_arguments() -> None:
    server = ScriptedServer(V0_8, OLD_RABBITMQ).open()
    with pytest.raises(Unsupported, match=r"basic\.consume with arguments"):
        server.send(Consume(1, "q", arguments={"x-priority": 5}))


@pytest.mark.parametrize(
    ("version", "properties", "method", "answer"),
    [
        (V0_8, RABBITMQ, m.BasicRecover(True), m.BasicRecoverOk()),
        (V0_8, QPID, m.BasicRecoverAsync(True), m.BasicRecoverOk08()),
        (V0_9_1, RABBITMQ, m.BasicRecover(True), m.BasicRecoverOk()),
        (V0_9_1, QPID, m.BasicRecover(True), m.BasicRecoverOk()),
    ],
)
def test_recover_has_three_numbers(version: Version, properties: Any, method: m.Method, answer: m.Method) -> None:
    server = ScriptedServer(version, properties).open()
    server.send(Recover(1))
    stops = properties is QPID
    around = ([(1, m.ChannelFlow(False))], [(1, m.ChannelFlow(True))]) if stops else ([], [])
    assert server.heard() == [*around[0], (1, method), *around[1]]
    if stops:
        assert server.say(m.ChannelFlowOk(False)) == []
    assert server.say(answer) == [Done(1, 2, 2)]
    if stops:
        assert server.say(m.ChannelFlowOk(True)) == []


def test_the_published_0_8_wants_a_ticket() -> None:
    config = ClientConfig(secure=True, dialect="published")
    server = ScriptedServer(V0_8, {"product": "old"}, config)
    server.shake_hands()
    assert server.send(OpenChannel(1)) == [1]
    server.heard()
    assert server.say(m.ChannelOpenOk08()) == []
    assert server.heard() == [(1, m.AccessRequest("/data"))]
    assert server.say(m.AccessRequestOk(9)) == [Done(1, 1, 1)]
    with pytest.raises(Unsupported):
        server.send(UnbindQueue(1, "q", "ex"))


def test_the_ticket_is_shown_with_every_method_that_has_one() -> None:
    config = ClientConfig(secure=True, dialect="published", realm="/data/orders")
    server = ScriptedServer(V0_8, {"product": "old"}, config)
    server.shake_hands()
    server.send(OpenChannel(1))
    server.say(m.ChannelOpenOk08())
    assert server.heard()[-1] == (1, m.AccessRequest("/data/orders"))
    server.say(m.AccessRequestOk(513))
    server.send(
        DeclareExchange(1, "ex"), DeclareExchange(1, "ex", passive=True), QueryExchange(1, "ex"),
        DeleteExchange(1, "ex"), DeclareQueue(1, "q"), QueryQueue(1, "q"), BindQueue(1, "q", "ex"), PurgeQueue(1, "q"),
        DeleteQueue(1, "q"), Consume(1, "q", "tag"), Get(1, "q"), Publish(1, "ex", "key", Message(b"body")),
    )  # fmt: skip
    said = [method for _, method in server.heard() if isinstance(method, m.Method)]
    with_tickets = {
        method for method in server.dialect.methods.values()
        if "ticket" in method.__annotations__ and method.class_id in (40, 50, 60) and method is not m.QueueUnbind
    }  # fmt: skip
    assert {type(method) for method in said} | {m.BasicConsume} == with_tickets | {m.BasicConsume08, m.BasicConsume}
    assert {method.ticket for method in said} == {513}  # type: ignore[attr-defined]


def test_a_ticket_that_is_refused() -> None:
    server = ScriptedServer(V0_8, {"product": "old"}, ClientConfig(secure=True, dialect="published"))
    server.shake_hands()
    server.send(OpenChannel(1))
    server.say(m.ChannelOpenOk08())
    assert server.say(m.ChannelClose(402, "no realm", *divmod(m.AccessRequest.key, 1 << 16))) == [
        Failed(1, 1, 1, 402, "no realm"),
        ChannelClosed(1, 402, "no realm"),
    ]
