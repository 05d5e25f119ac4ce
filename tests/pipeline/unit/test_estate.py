"""What the gateway says of its queues and of who consumes them, as reconciling takes it."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from gateway.errors import ServiceRefused
from gateway.pipeline.jobs.estate import Estate, ask, hands_of
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
    assert ask(Service(Pipeline(), transport=httpx.MockTransport(answer)), {"old/e": "old/in"}) == Estate(
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
    estate = Estate(queues={"bridge:m": "a/b", "bridge:n": "a/c", "tap:t": "a/c"}, mirrors=frozenset({"bridge:m"}))
    assert estate.watched == {"a/c"}


@pytest.mark.parametrize(
    ("push", "backlog", "hands"),
    [
        (None, None, 1),
        ({"in_flight": 1, "held": 2, "waiting": 3, "dead": 4}, None, 11),
        ({"in_flight": 1, "held": 2, "waiting": 3, "dead": 4}, {"waiting": 3, "out": 1, "dead": 4}, 12),
    ],
)
def test_what_the_gateway_has_in_hand(push: Any, backlog: Any, hands: int) -> None:
    assert hands_of({"leases": 1, "push_status": push, "backlog": backlog}) == hands


def test_a_gateway_that_refuses_is_no_gateway_without_queues() -> None:
    transport = httpx.MockTransport(lambda _: httpx.Response(401, json={"code": "unauthorized", "title": "no key"}))
    with pytest.raises(ServiceRefused, match="no key"):
        ask(Service(Pipeline(), transport=transport))
