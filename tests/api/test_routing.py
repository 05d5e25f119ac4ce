"""Paths are matched before they are decoded."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.api.app import ROUTES
from gateway.api.http import routing
from gateway.api.http.problems import ApiProblem
from gateway.api.http.routing import Router

ROUTER = Router(ROUTES)
BELOW = "bindings, exchanges, queues"
SLASH = "a slash that belongs to a name is written %2F"
COLON = "a colon that belongs to a name is written %3A"


def find(method: str, path: str) -> tuple[str, dict[str, str]]:
    route, names = ROUTER.find(method, path.encode())
    return route.operation, names


@pytest.mark.parametrize(
    ("method", "path", "operation", "names"),
    [
        ("GET", "/v1/brokers", "list_brokers", {}),
        ("GET", "/v1/brokers/b", "get_broker", {"broker": "b"}),
        ("HEAD", "/v1/brokers/b", "get_broker", {"broker": "b"}),
        ("POST", "/v1/brokers/b:probe", "probe_broker", {"broker": "b"}),
        ("GET", "/v1/brokers/b/queues/a%3Apurge", "get_queue", {"broker": "b", "queue": "a:purge"}),
        ("POST", "/v1/brokers/b/queues/a%3Apurge:purge", "purge_queue", {"broker": "b", "queue": "a:purge"}),
        ("POST", "/v1/brokers/b/queues/a:b:purge", "purge_queue", {"broker": "b", "queue": "a:b"}),
        ("GET", "/v1/brokers/b/queues/%2F%25%20%C3%A9", "get_queue", {"broker": "b", "queue": "/% é"}),
        ("GET", "/v1/brokers/b/queues/%FF", "get_queue", {"broker": "b", "queue": "\udcff"}),
        ("GET", "/v1/brokers/b/queues/" + "%C3%A9" * 127 + "x", "get_queue", {"broker": "b", "queue": "é" * 127 + "x"}),
        ("GET", "/v1/brokers/b/exchanges/amq.default", "get_exchange", {"broker": "b", "exchange": ""}),
        ("POST", "/v1/brokers/b/exchanges/amq.default:publish", "publish", {"broker": "b", "exchange": ""}),
        ("GET", "/v1/brokers/b/queues/amq.default", "get_queue", {"broker": "b", "queue": "amq.default"}),
        ("GET", "/", "root", {}),
    ],
)
def test_found(method: str, path: str, operation: str, names: dict[str, str]) -> None:
    assert find(method, path) == (operation, names)


@pytest.mark.parametrize(
    ("method", "path", "code"),
    [
        ("GET", "/v2", "route_not_found"),
        ("GET", "/v1/brokers/", "route_not_found"),
        ("GET", "/v1/brokers//queues/q", "route_not_found"),
        ("GET", "/v1/brokers/b/queues/a/b", "route_not_found"),
        ("GET", "/v1/brokers/b/queues/a:b", "route_not_found"),
        ("POST", "/v1/subscriptions/s:nonsense", "route_not_found"),
        ("GET", "/v1/brokers/b/queues/q:purge", "method_not_allowed"),
        ("PATCH", "/v1/brokers", "method_not_allowed"),
        ("GET", "/v1/brokers/b/queues/" + "x" * 256, "invalid_parameter"),
        ("GET", "/v1/brokers/b/queues/" + "%C3%A9" * 128, "invalid_parameter"),
    ],
)
def test_not_found(method: str, path: str, code: str) -> None:
    with pytest.raises(ApiProblem) as caught:
        find(method, path)
    assert caught.value.problem_code == code


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/v1/queue", "no resource at /v1/queue; below /v1 there is admin, audit, bridges, brokers, "),
        ("/v2", "no resource at /v2; below / there is .well-known, console, docs, openapi.json, v1"),
        ("/v1/brokers/b/queue", f"no resource at /v1/brokers/b/queue; below /v1/brokers/b there is {BELOW}; {SLASH}"),
        (
            "/v1/brokers/b/queues/a/b",
            "no resource at /v1/brokers/b/queues/a/b; "
            f"below /v1/brokers/b/queues/a there is holders, messages; {SLASH}",
        ),
        ("/v1/brokers/b:prove", f"no verb 'prove' at this resource, which has probe; {COLON}"),
    ],
)  # fmt: skip
def test_a_path_that_leads_nowhere_is_told_what_there_is(path: str, said: str) -> None:
    with pytest.raises(ApiProblem) as refused:
        find("GET", path)
    assert str(refused.value).startswith(said)


def test_what_is_allowed_is_named() -> None:
    with pytest.raises(ApiProblem) as caught:
        find("POST", "/v1/subscriptions/s")
    assert caught.value.headers == {"allow": "DELETE, GET, PATCH, PUT"}


def test_a_route_is_there_once() -> None:
    broken: Any = [ROUTES[0], ROUTES[0]]
    with pytest.raises(AssertionError, match="twice"):
        Router(broken)


def test_paths_are_remembered_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever asks for ever new paths must not fill the memory."""
    monkeypatch.setattr(routing, "REMEMBERED", 3)
    router = Router(ROUTES)
    for index in range(10):
        _, names = router.find("GET", b"/v1/brokers/b%d" % index)
        assert names == {"broker": f"b{index}"}
        assert len(router._found) <= 3
    assert router.find("GET", b"/v1/brokers/b9") is router.find("GET", b"/v1/brokers/b9")
    router = Router(ROUTES)
    long = b"/v1/brokers/" + b"%41" * 200
    assert router.find("GET", long)[1] == {"broker": "A" * 200}
    with pytest.raises(ApiProblem):
        router.find("GET", b"/nowhere")
    assert not router._found
