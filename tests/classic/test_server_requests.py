"""Every request as a server receives it, and its answer on the wire."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.amqp.operations import (
    BindExchange,
    BindingFound,
    BindQueue,
    Cancel,
    Consume,
    Consuming,
    Declared,
    DeclareExchange,
    DeclareQueue,
    DeleteExchange,
    DeleteQueue,
    Done,
    ExchangeFound,
    Get,
    GotNothing,
    PurgeQueue,
    Qos,
    QueryBinding,
    Recover,
    Removed,
    SelectConfirm,
    TxCommit,
    TxRollback,
    TxSelect,
    UnbindExchange,
    UnbindQueue,
)
from gateway.classic import methods as m
from gateway.session import Version
from gateway.v08.version import V0_8
from gateway.v091.version import V0_9_1
from tests.classic.script import ScriptedClient

ARGUMENTS = {"x": 1}
DONE = Done(1, 2, 2)

CASES: list[tuple[m.Method, Any, Any, m.Method | None]] = [
    (
        m.ExchangeDeclare(0, "ex", "topic", False, True, False, True, False, ARGUMENTS),
        DeclareExchange(1, "ex", "topic", True, False, True, False, ARGUMENTS, serial=2),
        DONE,
        m.ExchangeDeclareOk(),
    ),
    (
        m.ExchangeDeclare(0, "ex", "", True, False, False, False, False, {}),
        DeclareExchange(1, "ex", "", passive=True, serial=2),
        ExchangeFound(1, 2, 2, "ex"),
        m.ExchangeDeclareOk(),
    ),
    (m.ExchangeDelete(0, "ex", True, False), DeleteExchange(1, "ex", True, serial=2), DONE, m.ExchangeDeleteOk()),
    (
        m.QueueDeclare(0, "q", False, True, True, False, False, ARGUMENTS),
        DeclareQueue(1, "q", True, True, False, False, ARGUMENTS, serial=2),
        Declared(1, 2, 2, "q", 3, 4),
        m.QueueDeclareOk("q", 3, 4),
    ),
    (
        m.QueueBind(0, "q", "ex", "key", False, ARGUMENTS),
        BindQueue(1, "q", "ex", "key", ARGUMENTS, serial=2),
        DONE,
        m.QueueBindOk(),
    ),
    (
        m.QueueUnbind(0, "q", "ex", "key", ARGUMENTS),
        UnbindQueue(1, "q", "ex", "key", ARGUMENTS, serial=2),
        DONE,
        m.QueueUnbindOk(),
    ),
    (m.QueuePurge(0, "q", False), PurgeQueue(1, "q", serial=2), Removed(1, 2, 2, 7), m.QueuePurgeOk(7)),
    (
        m.QueueDelete(0, "q", True, False, False),
        DeleteQueue(1, "q", True, serial=2),
        Removed(1, 2, 2),
        m.QueueDeleteOk(0),
    ),
    (m.BasicQos(5, 10, True), Qos(1, 10, 5, True, serial=2), DONE, m.BasicQosOk()),
    (
        m.BasicConsume(0, "q", "tag", True, False, True, False, ARGUMENTS),
        Consume(1, "q", "tag", True, False, True, ARGUMENTS, serial=2),
        Consuming(1, 2, 2, "tag"),
        m.BasicConsumeOk("tag"),
    ),
    (m.BasicCancel("tag"), Cancel(1, "tag", serial=2), DONE, m.BasicCancelOk("tag")),
    (m.BasicCancel("tag", True), Cancel(1, "tag", serial=2), DONE, None),
    (m.BasicGet(0, "q", True), Get(1, "q", True, serial=2), GotNothing(1, 2, 2), m.BasicGetEmpty()),
    (m.BasicRecover(False), Recover(1, False, serial=2), DONE, m.BasicRecoverOk()),
    (m.BasicRecoverAsync(True), Recover(1, True, serial=2), DONE, None),
    (m.ConfirmSelect(), SelectConfirm(1, serial=2), DONE, m.ConfirmSelectOk()),
    (m.ConfirmSelect(True), SelectConfirm(1, serial=2), DONE, None),
    (m.TxSelect(), TxSelect(1, serial=2), DONE, m.TxSelectOk()),
    (m.TxCommit(), TxCommit(1, serial=2), DONE, m.TxCommitOk()),
    (m.TxRollback(), TxRollback(1, serial=2), DONE, m.TxRollbackOk()),
]


@pytest.mark.parametrize(("method", "request_", "outcome", "answer"), CASES)
def test_request_and_answer(
    version: Version, method: m.Method, request_: Any, outcome: Any, answer: m.Method | None
) -> None:
    client = ScriptedClient(version).open()
    assert client.say(method) == [request_]
    client.send(outcome)
    assert client.heard() == ([] if answer is None else [(1, answer)])


def test_exchange_to_exchange() -> None:
    client = ScriptedClient(V0_9_1).open()
    assert client.say(
        m.ExchangeBind(0, "to", "from", "key", False, ARGUMENTS), m.ExchangeUnbind(0, "to", "from", "key", True, {})
    ) == [BindExchange(1, "to", "from", "key", ARGUMENTS, serial=2), UnbindExchange(1, "to", "from", "key", serial=3)]
    client.send(Done(1, 2, 3))
    assert client.heard() == [(1, m.ExchangeBindOk())]


@pytest.mark.parametrize(
    ("method", "request_", "found", "code"),
    [
        (m.ExchangeBound("ex", "key", "q"), ("ex", "q", "key"), BindingFound(1, 2, 2), 0),
        (m.ExchangeBound("ex", "key", "q"), ("ex", "q", "key"), BindingFound(1, 2, 2, False, True, False), 1),
        (m.ExchangeBound("ex", "key", "q"), ("ex", "q", "key"), BindingFound(1, 2, 2, True, False, False), 2),
        (m.ExchangeBound("ex", "", ""), ("ex", "", None), BindingFound(1, 2, 2, True, False, False), 3),
        (m.ExchangeBound("ex", "", "q"), ("ex", "q", None), BindingFound(1, 2, 2, True, True, False), 4),
        (m.ExchangeBound("ex", "key", ""), ("ex", "", "key"), BindingFound(1, 2, 2, True, False, False), 5),
        (m.ExchangeBound("ex", "key", "q"), ("ex", "q", "key"), BindingFound(1, 2, 2, True, True, False), 6),
    ],
)
def test_exchange_bound(
    version: Version, method: m.Method, request_: tuple[str, str, str | None], found: BindingFound, code: int
) -> None:
    client = ScriptedClient(version, {"product": "qpid"}).open()
    assert client.say(method) == [QueryBinding(1, *request_, serial=2)]
    client.send(found)
    assert client.heard()[0][1].reply_code == code


def test_consume_of_0_8_with_and_without_arguments() -> None:
    client = ScriptedClient(V0_8).open()
    assert client.say(
        m.BasicConsume08(0, "q", "a", False, True, False, False),
        m.BasicConsume(0, "q", "b", False, True, False, False, {"x-filter-no-consume": True}),
    ) == [
        Consume(1, "q", "a", no_ack=True, serial=2),
        Consume(1, "q", "b", no_ack=True, arguments={"x-filter-no-consume": True}, serial=3),
    ]


@pytest.mark.parametrize("shape", [m.BasicConsume08, m.BasicConsume])
def test_a_consume_that_is_cut(version: Version, shape: type[m.Method]) -> None:
    arguments: tuple[Any, ...] = (0, "q", "tag", False, True, False, False)
    method = shape(*arguments, {}) if shape is m.BasicConsume else shape(*arguments)  # type: ignore[call-arg]
    octets = method.encode(ScriptedClient(version).tables)
    whole = {len(octets)} if shape is m.BasicConsume or version is V0_8 else set()
    for cut in range(4, len(octets)):
        if version is V0_8 and shape is m.BasicConsume and cut == len(octets) - 4:
            continue  # complete without its arguments
        client = ScriptedClient(version).open()
        client.receive(b"\x01\x00\x01" + cut.to_bytes(4, "big") + octets[:cut] + b"\xce")
        assert client.heard()[0][1].reply_code == 502, cut
    assert len(whole) <= 1


def test_recover_of_qpids_0_8() -> None:
    client = ScriptedClient(V0_8, {"product": "qpid"}).open()
    assert client.say(m.BasicRecoverAsync(True)) == [Recover(1, True, serial=2)]
    client.send(Done(1, 2, 2))
    assert client.heard() == [(1, m.BasicRecoverOk08())]
    assert client.say(m.BasicRecover(True)) == [Recover(1, True, serial=3)]
    client.send(Done(1, 3, 3))
    assert client.heard() == [(1, m.BasicRecoverOk08())], "it knows no other answer"
