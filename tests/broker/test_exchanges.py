"""Which queues a message comes to."""

from __future__ import annotations

import itertools
from time import process_time
from typing import Any

import pytest

from gateway.amqp.operations import (
    BindExchange,
    BindingFound,
    BindQueue,
    DeclareExchange,
    DeclareQueue,
    DeleteExchange,
    DeleteQueue,
    Done,
    ExchangeFound,
    Failed,
    QueryBinding,
    QueryExchange,
    Returned,
    UnbindExchange,
    UnbindQueue,
)
from gateway.amqp.values import Typed
from gateway.v010.version import V0_10
from tests.broker.clients import Client, make_broker, publishing
from tests.pace import pace


@pytest.fixture
def client() -> Client:
    client = Client(make_broker())
    for queue in ("a", "b", "c"):
        client(DeclareQueue(1, queue))
    return client


def reached(client: Client, exchange: str, routing_key: str, **properties: Any) -> str:
    """The queues that a message comes to, in one string."""
    client(publishing(routing_key, b"x", exchange, **properties))
    found = ""
    for queue in ("a", "b", "c"):
        bodies = client.drain(queue)
        assert bodies in ([], [b"x"])
        found += queue * len(bodies)
    return found


def test_default_exchange(client: Client) -> None:
    assert reached(client, "", "b") == "b"
    assert reached(client, "", "nowhere") == ""


@pytest.mark.parametrize("exchange", ["amq.direct", "amq.fanout", "amq.topic", "amq.headers", "amq.match"])
def test_predeclared(client: Client, exchange: str) -> None:
    found = client.one(QueryExchange(1, exchange), ExchangeFound)
    assert found.durable is True
    client.one(DeclareExchange(1, exchange, found.type or "", durable=True), Done)
    assert client.failure(DeleteExchange(1, exchange)) == (
        403,
        f"ACCESS_REFUSED - deletion of system exchange '{exchange}' in vhost '/' not allowed",
    )


def test_direct(client: Client) -> None:
    client(BindQueue(1, "a", "amq.direct", "k"), BindQueue(1, "b", "amq.direct", "k"))
    client(BindQueue(1, "b", "amq.direct", "k", {"n": 1}), BindQueue(1, "c", "amq.direct", "other"))
    assert reached(client, "amq.direct", "k") == "ab"
    client(UnbindQueue(1, "b", "amq.direct", "k"))
    assert reached(client, "amq.direct", "k") == "ab"
    client(UnbindQueue(1, "b", "amq.direct", "k", {"n": 1}))
    assert reached(client, "amq.direct", "k") == "a"
    assert reached(client, "amq.direct", "K") == ""


def test_fanout(client: Client) -> None:
    client(BindQueue(1, "a", "amq.fanout", "k"), BindQueue(1, "a", "amq.fanout", "l"), BindQueue(1, "c", "amq.fanout"))
    assert reached(client, "amq.fanout", "whatever") == "ac"
    client(UnbindQueue(1, "a", "amq.fanout", "k"))
    assert reached(client, "amq.fanout", "") == "ac"
    client(UnbindQueue(1, "a", "amq.fanout", "l"))
    assert reached(client, "amq.fanout", "") == "c"


def test_topic(client: Client) -> None:
    client(BindQueue(1, "a", "amq.topic", "stock.*"), BindQueue(1, "b", "amq.topic", "stock.#"))
    assert reached(client, "amq.topic", "stock.de") == "ab"
    assert reached(client, "amq.topic", "stock.de.x") == "b"
    client(UnbindQueue(1, "b", "amq.topic", "stock.#"))
    assert reached(client, "amq.topic", "stock.de") == "a"


@pytest.mark.parametrize(
    ("arguments", "headers", "matches"),
    [
        ({"x-match": "all", "n": 1, "s": "x"}, {"n": 1, "s": "x"}, True),
        ({"x-match": "all", "n": 1, "s": "x"}, {"n": 1}, False),
        ({"n": 1, "s": "x"}, {"n": 1}, False),
        ({"x-match": "any", "n": 1, "s": "x"}, {"n": 1}, True),
        ({"x-match": "any", "n": 1}, {"n": 2}, False),
        ({"x-match": "any"}, {"n": 2}, False),
        ({"x-match": "all"}, None, True),
        ({"n": None}, {"n": "anything"}, True),
        ({"n": None}, {}, False),
        ({"n": 1}, {"n": Typed("int64", 1)}, True),
        ({"n": 1}, {"n": "1"}, False),
        ({"n": 1}, {"n": True}, False),
        ({"s": "x"}, {"s": Typed("str8", "x")}, True),
        ({"t": {"a": [1, 2]}}, {"t": {"a": [1, 2]}}, True),
        ({"t": {"a": [1, 2]}}, {"t": {"a": [2, 1]}}, False),
        ({"x-match": "all", "x-n": 1}, {}, True),
        ({"x-match": "all-with-x", "x-n": 1}, {}, False),
        ({"x-match": "all-with-x", "x-n": 1}, {"x-n": 1}, True),
        ({"x-match": "any", "x-n": 1}, {"x-n": 1}, False),
        ({"x-match": "any-with-x", "x-n": 1}, {"x-n": 1}, True),
    ],
)
def test_headers(client: Client, arguments: dict[str, Any], headers: dict[str, Any] | None, matches: bool) -> None:
    client.one(BindQueue(1, "a", "amq.headers", "", arguments), Done)
    assert reached(client, "amq.headers", "", headers=headers) == ("a" if matches else "")
    client(UnbindQueue(1, "a", "amq.headers", "", arguments))
    assert reached(client, "amq.headers", "", headers=headers) == ""


def test_headers_unknown_x_match(client: Client) -> None:
    code, text = client.failure(BindQueue(1, "a", "amq.headers", "", {"x-match": "some"}))
    assert code == 406
    assert text.startswith("PRECONDITION_FAILED - Invalid x-match field value 'some'")


def test_alternate_exchange(client: Client) -> None:
    client(DeclareExchange(1, "main", "direct", arguments={"alternate-exchange": "spare"}))
    assert reached(client, "main", "k") == ""
    client(DeclareExchange(1, "spare", "fanout"), BindQueue(1, "c", "spare"), BindQueue(1, "a", "main", "k"))
    assert reached(client, "main", "k") == "a"
    assert reached(client, "main", "other") == "c"
    assert client(publishing("other", exchange="main", mandatory=True)) == []


def test_exchanges_that_are_alternates_of_each_other(client: Client) -> None:
    client(DeclareExchange(1, "x", "direct", arguments={"alternate-exchange": "y"}))
    client(DeclareExchange(1, "y", "direct", arguments={"alternate-exchange": "x"}))
    (returned,) = client(publishing("k", exchange="x", mandatory=True))
    assert isinstance(returned, Returned)


def test_exchange_to_exchange(client: Client) -> None:
    client(
        DeclareExchange(1, "top", "fanout"), DeclareExchange(1, "left", "direct"), DeclareExchange(1, "right", "topic")
    )
    client.one(BindExchange(1, "left", "top"), Done)
    client.one(BindExchange(1, "right", "top"), Done)
    client.one(BindExchange(1, "top", "left", "back"), Done)
    client(BindQueue(1, "a", "left", "k"), BindQueue(1, "b", "right", "*"), BindQueue(1, "a", "right", "#"))
    assert reached(client, "top", "k") == "ab"
    assert reached(client, "left", "back") == "ab"
    client.one(UnbindExchange(1, "right", "top"), Done)
    assert reached(client, "top", "k") == "a"
    client(DeleteExchange(1, "left"))
    assert reached(client, "top", "k") == ""


def test_binding_with_selector(client: Client) -> None:
    client(BindQueue(1, "a", "amq.topic", "k.*", {"x-filter-jms-selector": "n > 3"}))
    client(BindQueue(1, "b", "amq.topic", "k.*", {"x-filter-jms-selector": " "}))
    assert reached(client, "amq.topic", "k.x", headers={"n": 4}) == "ab"
    assert reached(client, "amq.topic", "k.x", headers={"n": 3}) == "b"
    assert reached(client, "amq.topic", "other", headers={"n": 4}) == ""
    client(UnbindQueue(1, "a", "amq.topic", "k.*", {"x-filter-jms-selector": "n > 3"}))
    assert reached(client, "amq.topic", "k.x", headers={"n": 4}) == "b"
    for exchange in ("amq.direct", "amq.fanout", "amq.headers"):
        client(BindQueue(1, "c", exchange, "k", {"x-filter-jms-selector": "n > 3"}))
        assert reached(client, exchange, "k", headers={"n": 4}) == "c"
        assert reached(client, exchange, "k", headers={"n": 1}) == ""
    code, text = client.failure(BindQueue(1, "a", "amq.topic", "k", {"x-filter-jms-selector": "n >"}))
    assert code == 406
    assert "x-filter-jms-selector" in text


def test_auto_delete_exchanges_go_with_their_last_binding(client: Client) -> None:
    client(DeclareExchange(1, "x", "fanout", auto_delete=True), DeclareExchange(1, "y", "fanout", auto_delete=True))
    client(BindExchange(1, "y", "x"), BindQueue(1, "a", "y"))
    client(DeleteQueue(1, "a"))
    assert client.failure(QueryExchange(1, "y"))[0] == 404
    assert client.failure(QueryExchange(1, "x"))[0] == 404


def test_a_long_chain_of_auto_delete_exchanges(client: Client) -> None:
    names = [f"x{number}" for number in range(3_000)]
    for name in names:
        client(DeclareExchange(1, name, "fanout", auto_delete=True))
    for source, destination in itertools.pairwise(names):
        client(BindExchange(1, destination, source))
    client(BindQueue(1, "a", names[-1]))
    assert reached(client, names[0], "") == "a"
    client(UnbindQueue(1, "a", names[-1]))
    assert client.failure(QueryExchange(1, names[0]))[0] == 404


def test_internal(client: Client) -> None:
    client(DeclareExchange(1, "x", "fanout", internal=True), DeclareExchange(1, "front", "fanout"))
    client(BindExchange(1, "x", "front"), BindQueue(1, "a", "x"))
    assert reached(client, "front", "") == "a"
    assert client.failure(publishing("k", exchange="x")) == (
        403,
        "ACCESS_REFUSED - cannot publish to internal exchange 'x' in vhost '/'",
    )


@pytest.mark.parametrize(
    ("difference", "argument"),
    [
        ({"type": "topic"}, "type"),
        ({"durable": True}, "durable"),
        ({"auto_delete": True}, "auto_delete"),
        ({"internal": True}, "internal"),
        ({"arguments": {"alternate-exchange": "y"}}, "alternate-exchange"),
    ],
)
def test_redeclare(client: Client, difference: dict[str, Any], argument: str) -> None:
    client.one(DeclareExchange(1, "x", "direct"), Done)
    client.one(DeclareExchange(1, "x", "direct"), Done)
    code, text = client.failure(DeclareExchange(1, "x", **{"type": "direct"} | difference))
    assert code == 406
    assert text.startswith(f"PRECONDITION_FAILED - inequivalent arg '{argument}' for exchange 'x' in vhost '/'")


def test_refused_declarations(client: Client) -> None:
    assert client.failure(DeclareExchange(1, "x", passive=True)) == (404, "NOT_FOUND - no exchange 'x' in vhost '/'")
    assert client.failure(DeclareExchange(1, ""))[0] == 403
    assert client.failure(DeclareExchange(1, "amq.mine")) == (
        403,
        "ACCESS_REFUSED - exchange name 'amq.mine' contains reserved prefix 'amq.*'",
    )
    code, text = client.failure(DeclareExchange(1, "x", arguments={"x-delayed-type": "direct"}))
    assert (code, text) == (406, "PRECONDITION_FAILED - unknown arg 'x-delayed-type' for exchange 'x' in vhost '/'")


def test_unknown_type_costs_the_connection(client: Client) -> None:
    assert client.failure(DeclareExchange(1, "x", "x-consistent-hash")) == (
        503,
        "COMMAND_INVALID - unknown exchange type 'x-consistent-hash'",
    )
    assert not client.broker.connections


def test_default_exchange_is_not_to_be_touched(client: Client) -> None:
    text = "ACCESS_REFUSED - operation not permitted on the default exchange"
    assert client.failure(BindQueue(1, "a", "", "k")) == (403, text)
    assert client.failure(UnbindQueue(1, "a", "", "a")) == (403, text)
    assert client.failure(DeleteExchange(1, "")) == (403, text)
    client(DeclareExchange(1, "x"))
    assert client.failure(BindExchange(1, "", "x")) == (403, text)
    assert client.failure(BindExchange(1, "x", "")) == (403, text)


def test_deleting_what_is_not_there_succeeds(client: Client) -> None:
    client.one(DeleteExchange(1, "none"), Done)
    client.one(UnbindQueue(1, "none", "amq.direct", "k"), Done)
    client.one(UnbindQueue(1, "a", "none", "k"), Done)
    client.one(UnbindQueue(1, "a", "amq.direct", "k"), Done)
    client.one(UnbindExchange(1, "none", "amq.direct", "k"), Done)


def test_binding_what_is_not_there(client: Client) -> None:
    assert client.failure(BindQueue(1, "none", "amq.direct"))[0] == 404
    assert client.failure(BindQueue(1, "a", "none"))[0] == 404
    assert client.failure(BindExchange(1, "none", "amq.direct"))[0] == 404


def test_if_unused(client: Client) -> None:
    client(DeclareExchange(1, "x"), BindQueue(1, "a", "x"))
    assert client.failure(DeleteExchange(1, "x", if_unused=True)) == (
        406,
        "PRECONDITION_FAILED - exchange 'x' in vhost '/' in use",
    )
    client(UnbindQueue(1, "a", "x"))
    client.one(DeleteExchange(1, "x", if_unused=True), Done)


@pytest.mark.parametrize(
    ("question", "missing"),
    [
        (("x",), ""),
        (("x", "q1"), ""),
        (("x", "q1", "k1"), ""),
        (("x", "q2", "k2", {"a": "b"}), ""),
        (("x", "", "k1"), ""),
        (("", "q1", "q1"), ""),
        (("x", "q3"), "queue"),
        (("x", "q3", "k1"), "queue"),
        (("x", "q3", "other"), "queue key"),
        (("x", "q3", "k2", {"a": "b"}), "queue"),
        (("x", "q3", "other", {"a": "c"}), "queue key arguments"),
        (("x", "q1", "k2"), "key"),
        (("x", "q1", "other"), "key"),
        (("x", "", "other"), "key"),
        (("", "q1", "q2"), "key"),
        (("x", "q2", "k1", {"a": "b"}), "key"),
        (("x", "q2", "k2", {"a": "c"}), "arguments"),
        (("x", "q1", None, {"a": "b"}), "arguments"),
        (("x", "q1", "k2", {"a": "b"}), "key arguments"),
        (("x", "q4", "k3", {"n": 4}), "arguments"),
        (("none", "q1", "k1"), "exchange_found queue key"),
        (("x", "none"), "queue_found queue"),
        (("x", "none", "k1"), "queue_found queue"),
        (("x", "none", "other", {"a": "c"}), "queue_found queue key arguments"),
    ],
)
def test_query_binding(client: Client, question: tuple[Any, ...], missing: str) -> None:
    """As Broker-J answers exchange.bound, of which the rows are taken; but one: each of ``q4``'s bindings has half of
    what is asked for, and Broker-J is not asked that."""
    client(DeclareExchange(1, "x"), *(DeclareQueue(1, queue) for queue in ("q1", "q2", "q3", "q4")))
    client(BindQueue(1, "q1", "x", "k1"), BindQueue(1, "q2", "x", "k2", {"a": "b"}))
    client(BindQueue(1, "q4", "x", "k3", {"n": 3}), BindQueue(1, "q4", "x", "k4", {"n": 4}))
    found = client.one(QueryBinding(1, *question), BindingFound)
    words = missing.split()
    assert found.exchange_found is ("exchange_found" not in words)
    assert found.queue_found is ("queue_found" not in words)
    assert found.queue_matched is ("queue" not in words)
    assert found.key_matched is ("key" not in words)
    assert found.arguments_matched is ("arguments" not in words)
    assert found.matched is (not words)


def test_a_question_for_a_binding_takes_one_look_at_each(client: Client) -> None:
    """Half of them have the key, half the arguments, none has both."""
    client(DeclareExchange(1, "x", "fanout"))
    for number in range(4_000):
        client(BindQueue(1, "a", "x", "k", {"u": number}), BindQueue(1, "a", "x", f"x{number}", {"z": 1}))
    began = process_time()
    found = client.one(QueryBinding(1, "x", "a", "k", {"z": 1}), BindingFound)
    assert not found.matched
    assert process_time() - began < 0.2 * pace()


def test_query_costs_nothing_in_0_10() -> None:
    client = Client(make_broker(), V0_10)
    failed = client.one(QueryExchange(1, "none"), Failed)
    assert failed.code == 404
    assert client.one(QueryExchange(1, "amq.topic"), ExchangeFound).type == "topic"
