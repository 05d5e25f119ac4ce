"""Query parameters: each route takes those that it declares, once, and says what is wrong with any other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from gateway.api.about.openapi import document
from gateway.api.app import ROUTES
from gateway.api.http.routing import Route
from gateway.validation import fields_of
from tests.api.conftest import problem

PATHS = {route.operation: route.path.replace("{", "").replace("}", "") for route in ROUTES}


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.operation)
async def test_what_a_route_does_not_declare_is_refused(client: httpx.AsyncClient, route: Route) -> None:
    answer = await client.request(route.method, PATHS[route.operation], params={"no_such_parameter": "1"})
    found = problem(answer, 422, "invalid_parameter")
    known = list(fields_of(route.query)) if route.query is not None else []
    (error,) = found["errors"]
    assert (error["parameter"], error.get("expected", [])) == ("no_such_parameter", known)
    assert found["detail"] == f"no_such_parameter: {error['detail']}"
    assert all(name in error["detail"] for name in known)
    if not known:
        assert error["detail"] == "there is no such query parameter; none is taken here"


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.operation)
def test_the_document_lists_what_is_taken(route: Route) -> None:
    operation = document(ROUTES)["paths"][route.path][route.method.lower()]
    listed = [each["name"] for each in operation.get("parameters", ()) if each["in"] == "query"]
    assert listed == (list(fields_of(route.query)) if route.query is not None else [])
    assert "invalid_parameter" in operation["responses"]["422"]["description"]


@pytest.mark.parametrize(
    ("method", "path", "query", "name", "detail"),
    [
        ("PUT", "/v1/brokers/fake/queues/tt", "durable=false", "durable",
         "there is no such query parameter; none is taken here; it belongs into the body"),
        ("DELETE", "/v1/brokers/fake/queues/tt", "ifempty=true", "ifempty",
         "there is no such query parameter; did you mean if_empty? There are if_unused, if_empty"),
        ("GET", "/v1/subscriptions", "limit=1&limit=2", "limit", "it is given more than once"),
        ("GET", "/v1/subscriptions", "limit=abc", "limit", "expected an integer, got 'abc'"),
        ("GET", "/v1/subscriptions", "limit=1001", "limit", "expected an integer <= 1000, got '1001'"),
        ("GET", "/v1/scheduled", "state=foo", "state", "'foo' is not one of scheduled, refused"),
        ("GET", "/v1/messages", "state=foo", "state", None),
        ("GET", "/v1/events", "kind=foo", "kind", None),
        ("GET", "/v1/statistics", "by=foo", "by", None),
        ("GET", "/v1/messages", "since=noon", "since", None),
        ("GET", "/v1/messages", "since=1&until=253402300800", "until", "the time is not in the years 1 to 9999"),
        ("GET", "/v1/events", "since=253402300800", "since", "the time is not in the years 1 to 9999"),
        ("DELETE", "/v1/brokers/fake/bindings", "", "exchange", "it is required, and missing"),
        ("GET", "/v1/subscriptions", "limit=%FF", "limit", "the value is not percent-encoded UTF-8"),
    ],
)  # fmt: skip
async def test_what_is_wrong_with_a_parameter(
    client: httpx.AsyncClient, method: str, path: str, query: str, name: str, detail: str | None
) -> None:
    found = problem(await client.request(method, f"{path}?{query}"), 422, "invalid_parameter")
    (error,) = found["errors"]
    assert error["parameter"] == name
    assert found["detail"] == f"{name}: {error['detail']}"
    assert detail is None or error["detail"] == detail


async def test_a_header_is_named(client: httpx.AsyncClient) -> None:
    headers = {"if-match": "abc"}
    body = {"broker": "fake", "queue": "q"}
    found = problem(await client.put("/v1/subscriptions/s", json=body, headers=headers), 422, "invalid_parameter")
    assert [error["header"] for error in found["errors"]] == ["If-Match"]


async def test_who_may_not_call_is_told_nothing_of_parameters(client_with_keys: Callable[..., Any]) -> None:
    async with client_with_keys("publish:fake/other") as caller:
        problem(await caller.put("/v1/brokers/fake/queues/tt?durable=false"), 403, "forbidden")
        caller.headers["authorization"] = "Bearer wrong"
        problem(await caller.put("/v1/brokers/fake/queues/tt?durable=false"), 401, "unauthorized")
