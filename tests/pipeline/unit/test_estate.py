"""What the gateway says of its queues and of who consumes them, as reconciling takes it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import httpx
import pytest

from gateway.errors import ServiceRefused
from gateway.pipeline.jobs import estate
from gateway.pipeline.jobs.estate import PAUSE, Estate, HeldPublishes, ask_estate, hands_of
from gateway.pipeline.service import Service
from gateway.pipeline.settings import Pipeline

SOURCE = {"broker": "old", "queue": "in", "exchange": ""}
ANSWERS: dict[str, Any] = {
    "/v1/bridges": {"bridges": [{"name": "b", "in_flight": 2, "settings": {"source": SOURCE, "mode": "move"}}]},
    "/v1/bridges?cursor=2": {"bridges": [
        {"name": "m", "in_flight": 0, "settings": {"source": {"broker": "old", "exchange": "e"}, "mode": "mirror"}},
        {"name": "s", "in_flight": 0, "settings": {"source": {**SOURCE, "queue": "a/b"}, "strip": True}},
    ]},
    "/v1/subscriptions": {"subscriptions": [{"name": "billing"}]},
    "/v1/subscriptions/billing": {
        "name": "billing", "broker": "new", "queue": "orders", "leases": 1, "push_status": None,
        "backlog": {"waiting": 1, "out": 2, "dead": 3, "octets": 99},
    },
    "/v1/taps": {"taps": [{"name": "t", "settings": {"broker": "gone", "queue": "q"}, "in_flight": 0}]},
    "/v1/brokers/old/queues/in": {"messages": 5},
    "/v1/brokers/old/queues/a%2Fb": {"messages": 1},
    "/v1/brokers/new/queues/orders": {"messages": 0},
}  # fmt: skip


def answer(request: httpx.Request) -> httpx.Response:
    path = request.url.raw_path.decode()
    if path.startswith("/v1/brokers/gone/"):
        return httpx.Response(422, json={"code": "unsupported", "title": "it does not tell"})
    if path not in ANSWERS:
        return httpx.Response(404, json={"code": "not_found", "title": "no such queue"})
    following = {"link": '</v1/bridges?cursor=2>; rel="next"'} if path == "/v1/bridges" else {}
    return httpx.Response(200, json=ANSWERS[path], headers=following)


def test_holders_their_queues_and_what_lies_there() -> None:
    service = Service(Pipeline(), transport=httpx.MockTransport(answer))
    assert ask_estate(service, {"old/e": "old/in"}, sleep=lambda _: None) == Estate(
        queues={
            "bridge:b": "old/in", "bridge:m": "old/gateway.bridge.m", "bridge:s": "old/a/b",
            "subscription:billing": "new/orders", "tap:t": "gone/q",
        },
        mirrors=frozenset({"bridge:m"}),
        nameless=frozenset({"bridge:s"}),
        routes={"old/e": "old/in"},
        held={"old/in": 7, "old/gateway.bridge.m": 0, "old/a/b": 1, "new/orders": 7},
        unknown={"gone/q": "http://127.0.0.1:8080: it does not tell"},
    )  # fmt: skip


def test_only_queues_from_which_somebody_takes_are_watched() -> None:
    found = Estate(queues={"bridge:m": "a/b", "bridge:n": "a/c", "tap:t": "a/c"}, mirrors=frozenset({"bridge:m"}))
    assert found.watched == {"a/c"}


@pytest.mark.parametrize(
    ("push", "backlog", "hands"),
    [
        (None, None, (0, 1)),
        ({"in_flight": 1, "held": 2, "waiting": 3, "dead": 4}, None, (10, 1)),
        ({"in_flight": 1, "held": 2, "waiting": 3, "dead": 4}, {"waiting": 3, "out": 1, "dead": 4}, (11, 1)),
    ],
)
def test_what_the_gateway_has_in_hand(push: Any, backlog: Any, hands: tuple[int, int]) -> None:
    assert hands_of({"leases": 1, "push_status": push, "backlog": backlog}) == hands
    owed, leased = hands
    assert hands_of({"lease": "ledger", "leases": 1, "push_status": push, "backlog": backlog}) == (owed + leased, 0)


def asked(answers: Mapping[str, Any], looks: int = 3) -> tuple[Estate, list[float]]:
    """What a gateway says that answers so: a list is what it answers one after the other, the last one for good."""
    left = {path: list(given) if isinstance(given, list) else [given] for path, given in answers.items()}

    def said(request: httpx.Request) -> httpx.Response:
        known = left.get(request.url.path)
        if known is None:
            return httpx.Response(404, json={"code": "not_found", "title": "nothing"})
        return httpx.Response(200, json=known.pop(0) if len(known) > 1 else known[0])

    slept: list[float] = []
    service = Service(Pipeline(), transport=httpx.MockTransport(said))
    return ask_estate(service, looks=looks, sleep=slept.append), slept


def bridge(in_flight: int, broker: str = "old", name: str = "b") -> dict[str, Any]:
    return {"name": name, "in_flight": in_flight, "settings": {"source": {"broker": broker, "queue": "in"}}}


DEPTH = "/v1/brokers/old/queues/in"


def test_the_least_of_several_looks_counts_and_an_empty_queue_is_not_looked_at_again() -> None:
    depths = [{"messages": 5}, {"messages": 2}, {"messages": 9}]
    found, slept = asked({"/v1/bridges": {"bridges": [bridge(0)]}, DEPTH: depths})
    assert (found.held, slept) == ({"old/in": 2}, [PAUSE, PAUSE])
    found, slept = asked({"/v1/bridges": {"bridges": [bridge(0)]}, DEPTH: [{"messages": 5}, {"messages": 0}]})
    assert (found.held, slept) == ({"old/in": 0}, [PAUSE])


def test_what_moves_between_queue_and_gateway_while_it_is_asked_is_in_one_of_them() -> None:
    # It was in the queue when the gateway was asked, and with the gateway when the broker was.
    bridges = [{"bridges": [bridge(0)]}, {"bridges": [bridge(1)]}]
    assert asked({"/v1/bridges": bridges, DEPTH: {"messages": 0}}, looks=1)[0].held == {"old/in": 1}
    bridges.reverse()
    assert asked({"/v1/bridges": bridges, DEPTH: {"messages": 0}}, looks=1)[0].held == {"old/in": 1}


def test_what_a_broker_counts_though_it_gave_it_out_is_not_counted_twice() -> None:
    subscription = {"name": "s", "broker": "old", "queue": "in", "leases": 2, "lease": "broker",
                    "backlog": {"waiting": 1, "out": 0, "dead": 3}}  # fmt: skip
    answers = {
        "/v1/bridges": {"bridges": [bridge(1)]},
        "/v1/subscriptions": {"subscriptions": [{"name": "s"}]},
        "/v1/subscriptions/s": subscription,
        DEPTH: {"messages": 4},
    }
    assert asked(answers)[0].held == {"old/in": 11}
    answers["/v1/brokers"] = {"brokers": [{"name": "old", "capabilities": {"counts_unacked": True}}]}
    assert asked(answers)[0].held == {"old/in": 8}


def test_a_broker_under_two_names_has_each_queue_once() -> None:
    place = {"host": "127.0.0.1", "port": 5672, "virtual_host": "/", "capabilities": None}
    brokers = [{"name": "old", **place}, {"name": "new", **place}, {"name": "test", **place, "virtual_host": "t"}]
    bridges = [bridge(1), bridge(2, "new", "c"), bridge(4, "test", "d")]
    found, _ = asked({
        "/v1/brokers": {"brokers": brokers}, "/v1/bridges": {"bridges": bridges}, DEPTH: {"messages": 1},
        "/v1/brokers/test/queues/in": {"messages": 0},
    })  # fmt: skip
    assert found.queues == {"bridge:b": "old/in", "bridge:c": "old/in", "bridge:d": "test/in"}
    assert found.same == {"new/in": "old/in"}
    assert found.held == {"old/in": 4, "test/in": 4}


def test_what_is_to_be_published_later_is_owed_while_the_gateway_holds_it(monkeypatch: pytest.MonkeyPatch) -> None:
    states = {"waits": "scheduled", "gone": "scheduled", "refused": "refused", "sent": "confirmed"}

    def said(request: httpx.Request) -> httpx.Response:
        name = request.url.path.removeprefix("/v1/scheduled").strip("/")
        if not name:
            return httpx.Response(200, json={"scheduled": [{"id": "waits"}, {"id": "refused"}]})
        if name not in states:
            return httpx.Response(404, json={"code": "message_not_found", "title": "nothing"})
        return httpx.Response(200, json={"state": states[name]})

    service = Service(Pipeline(), transport=httpx.MockTransport(said))
    outbox = HeldPublishes(service)
    owed = {name: outbox.owes(name) for name in (*states, "nobody knows")}
    assert owed == {"waits": True, "gone": False, "refused": True, "sent": True, "nobody knows": False}
    monkeypatch.setattr(estate, "HELD_MAX", 1)
    assert HeldPublishes(service).owes("gone"), "it may be one of those that were not listed"


def test_a_gateway_that_refuses_is_no_gateway_without_queues() -> None:
    transport = httpx.MockTransport(lambda _: httpx.Response(401, json={"code": "unauthorized", "title": "no key"}))
    with pytest.raises(ServiceRefused, match="no key"):
        ask_estate(Service(Pipeline(), transport=transport))
