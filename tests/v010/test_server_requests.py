"""What each command means to a server, and how outcomes are put."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.amqp import operations as o
from gateway.v010 import commands as c
from gateway.v010 import controls as k
from gateway.v010.server_requests import MISSING, REQUESTS, RESULTS
from gateway.v010.structs import ExchangeBoundResult, ExchangeQueryResult, QueueQueryResult, Struct
from tests.v010.peer import NOW, ServerPeer


@pytest.fixture
def peer() -> ServerPeer:
    return ServerPeer().opened().attach()


REQUESTED = [
    (
        c.ExchangeDeclare("x", "topic", "alt", True, True, True, {"a": 1}),
        o.DeclareExchange(1, "x", "topic", True, True, False, True, {"a": 1, "alternate-exchange": "alt"}),
        o.Done,
    ),
    (c.ExchangeDeclare("x", passive=True), o.DeclareExchange(1, "x", "", passive=True), o.Done),
    (c.ExchangeDelete("x", True), o.DeleteExchange(1, "x", True), o.Done),
    (c.ExchangeBind("q", "x", "k", {"a": 1}), o.BindQueue(1, "q", "x", "k", {"a": 1}), o.Done),
    (c.ExchangeUnbind("q", "x", "k"), o.UnbindQueue(1, "q", "x", "k"), o.Done),
    (
        c.QueueDeclare("q", "alt", False, True, True, True, {"a": 1}),
        o.DeclareQueue(1, "q", True, True, True, False, {"a": 1, "alternate-exchange": "alt"}),
        o.Done,
    ),
    (c.QueueDelete("q", True, True), o.DeleteQueue(1, "q", True, True), o.Removed),
    (c.QueuePurge("q"), o.PurgeQueue(1, "q"), o.Removed),
    (c.MessageCancel("d"), o.Cancel(1, "d"), o.Done),
    (c.TxSelect(), o.TxSelect(1), o.Done),
    (c.TxCommit(), o.TxCommit(1), o.Done),
    (c.TxRollback(), o.TxRollback(1), o.Done),
]


@pytest.mark.parametrize(("command", "operation", "outcome"), REQUESTED, ids=lambda value: type(value).__name__)
def test_requests(peer: ServerPeer, command: c.Command, operation: Any, outcome: Any) -> None:
    (event,) = peer.receive(0, command, sync=True)
    operation.serial = 2
    assert event == operation
    assert peer.sent() == []
    peer.session.send(outcome(1, 2, 2), NOW)
    assert peer.sent() == [(0, k.SessionCompleted(((0, 0),)))]


def test_a_declaration_is_complete_without_a_result(peer: ServerPeer) -> None:
    peer.receive(0, c.QueueDeclare("q"), sync=True)
    peer.session.send(o.Declared(1, 2, 2, "q", 3), NOW)
    assert peer.sent() == [(0, k.SessionCompleted(((0, 0),)))]


ANSWERED = [
    (
        c.QueueQuery("q"),
        o.QueryQueue(1, "q"),
        o.Declared(1, 2, 2, "q", 3, 1, True, {"a": 1, "alternate-exchange": "alt"}),
        QueueQueryResult("q", "alt", True, arguments={"a": 1}, message_count=3, subscriber_count=1),
    ),
    (c.QueueQuery("q"), o.QueryQueue(1, "q"), o.Failed(1, 2, 2, 404, "no"), QueueQueryResult()),
    (
        c.ExchangeQuery("x"),
        o.QueryExchange(1, "x"),
        o.ExchangeFound(1, 2, 2, "x", "topic", True),
        ExchangeQueryResult("topic", True, arguments={}),
    ),
    (c.ExchangeQuery(), o.QueryExchange(1, ""), o.Failed(1, 2, 2, 404, "no"), ExchangeQueryResult(not_found=True)),
    (
        c.ExchangeBound("x", "q", "k", {"a": 1}),
        o.QueryBinding(1, "x", "q", "k", {"a": 1}),
        o.BindingFound(1, 2, 2),
        ExchangeBoundResult(),
    ),
    (
        c.ExchangeBound(queue="q"),
        o.QueryBinding(1, "", "q"),
        o.BindingFound(1, 2, 2, False, True, False),
        ExchangeBoundResult(exchange_not_found=True),
    ),
    (
        c.ExchangeBound("x", "q"),
        o.QueryBinding(1, "x", "q"),
        o.BindingFound(1, 2, 2, True, True, False, queue_matched=False),
        ExchangeBoundResult(queue_not_matched=True),
    ),
    (
        c.ExchangeBound("x", "q", "k"),
        o.QueryBinding(1, "x", "q", "k"),
        o.BindingFound(1, 2, 2, True, True, False, False),
        ExchangeBoundResult(key_not_matched=True),
    ),
    (
        c.ExchangeBound("x", "q", "k", {"a": 1}),
        o.QueryBinding(1, "x", "q", "k", {"a": 1}),
        o.BindingFound(1, 2, 2, True, True, False, False, False, False),
        ExchangeBoundResult(queue_not_matched=True, key_not_matched=True, args_not_matched=True),
    ),
    (
        c.ExchangeBound("x", "q", "k"),
        o.QueryBinding(1, "x", "q", "k"),
        o.BindingFound(1, 2, 2, True, False, False, False, True, False),
        ExchangeBoundResult(queue_not_found=True, key_not_matched=True),
    ),
]


@pytest.mark.parametrize(("command", "operation", "outcome", "result"), ANSWERED)
def test_results(peer: ServerPeer, command: c.Command, operation: Any, outcome: Any, result: Struct) -> None:
    (event,) = peer.receive(0, command, sync=True)
    operation.serial = 2
    assert event == operation
    peer.session.send(outcome, NOW)
    (_, answer, _), completed = peer.sent()
    assert answer.command_id == 0
    assert type(result).decode(answer.value) == result
    assert completed == (0, k.SessionCompleted(((0, 0),)))


def test_a_query_may_fail_for_other_reasons(peer: ServerPeer) -> None:
    peer.receive(0, c.QueueQuery("q"))
    peer.session.send(o.Failed(1, 2, 2, 405, "locked"), NOW)
    assert isinstance(peer.sent()[0][1], c.ExecutionException)


def test_every_request_of_a_table_is_a_command() -> None:
    tables = {*REQUESTS, *(command for command, _ in RESULTS), *MISSING}
    assert tables <= set(c.COMMANDS.values())
