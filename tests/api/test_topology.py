"""Queues, exchanges and bindings over HTTP."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from gateway.upstreams import UpstreamState
from tests.api.conftest import problem
from tests.core.fakes import FakeUpstream

BROKER = "/v1/brokers/fake"
NAMES = [
    ("plain", "plain"),
    ("a/b:c%d é", "a%2Fb%3Ac%25d%20%C3%A9"),
    ("é" * 127 + "x", "%C3%A9" * 127 + "x"),
    ("q:purge", "q%3Apurge"),
    ("..", "%2E%2E"),
]


@pytest.mark.parametrize(("name", "encoded"), NAMES, ids=lambda name: name[:12])
async def test_queues(client: httpx.AsyncClient, upstream: FakeUpstream, name: str, encoded: str) -> None:
    path = f"{BROKER}/queues/{encoded}"
    body = {"durable": True, "arguments": {"x-max-length": {"type": "int16", "value": 5}}}
    created = await client.put(path, json=body)
    assert created.status_code == 201
    assert created.json() == {
        "broker": "fake", "name": name, "durable": True, "auto_delete": False, "messages": 0, "consumers": 0,
        "arguments": body["arguments"], "settings": {"auto_delete": False, **body},
    }  # fmt: skip
    assert (await client.put(path, json=body)).status_code == 200
    problem(await client.put(path, json={"durable": False}), 409, "precondition_failed")
    await client.post(f"{BROKER}/exchanges/amq.default:publish", json={"routing_key": name})
    assert (await client.get(path)).json()["messages"] == 1
    problem(await client.delete(f"{path}?if_empty=true"), 409, "precondition_failed")
    assert (await client.post(f"{path}:purge")).json() == {"messages": 1}
    listed = (await client.get(f"{BROKER}/queues")).json()["queues"]
    assert [item["name"] for item in listed] == [name]
    assert (await client.delete(path)).json() == {"messages": 0}
    problem(await client.delete(path), 404, "not_found")
    problem(await client.get(path), 404, "not_found")
    problem(await client.post(f"{path}:purge"), 404, "not_found")


async def test_a_name_that_is_no_utf_8(client: httpx.AsyncClient) -> None:
    created = await client.put(f"{BROKER}/queues/%FF")
    assert created.json()["name"] == {"type": "binary", "value": "/w=="}
    assert (await client.get(f"{BROKER}/queues")).json()["queues"][0]["name"] == {"type": "binary", "value": "/w=="}


async def test_exchanges(client: httpx.AsyncClient) -> None:
    path = f"{BROKER}/exchanges/ex"
    created = await client.put(path, json={"type": "topic"})
    assert created.status_code == 201
    assert created.json() == {
        "broker": "fake", "name": "ex", "type": "topic", "durable": True, "auto_delete": False, "internal": False,
        "arguments": {}, "settings": (await client.get(f"{BROKER}/exchanges")).json()["exchanges"][0]["settings"],
    }  # fmt: skip
    assert (await client.put(path, json={"type": "topic"})).status_code == 200
    problem(await client.put(path, json={"type": "fanout"}), 409, "precondition_failed")
    assert (await client.get(path)).json()["type"] == "topic"
    assert len((await client.get(f"{BROKER}/exchanges")).json()["exchanges"]) == 1
    assert (await client.delete(path)).status_code == 204
    problem(await client.delete(path), 404, "not_found")
    problem(await client.get(path), 404, "not_found")


async def test_the_default_exchange(client: httpx.AsyncClient) -> None:
    path = f"{BROKER}/exchanges/amq.default"
    assert (await client.get(path)).json()["name"] == ""
    problem(await client.put(path), 422, "unsupported")
    problem(await client.delete(path), 422, "unsupported")


async def test_bindings(client: httpx.AsyncClient, upstream: FakeUpstream) -> None:
    await client.put(f"{BROKER}/exchanges/ex")
    binding = {"exchange": "ex", "queue": "orders", "routing_key": "k", "arguments": {}}
    made = await client.post(f"{BROKER}/bindings", json=binding)
    assert made.status_code == 201
    assert made.json() == {"broker": "fake", "destination": None, "binding_key": "k", **binding}
    assert (await client.post(f"{BROKER}/bindings", json=binding)).status_code == 200
    assert (await client.get(f"{BROKER}/bindings")).json()["bindings"] == [made.json()]
    assert (await client.post(f"{BROKER}/exchanges/ex:publish", json={"routing_key": "k"})).json()["routed"]
    query = {"exchange": "ex", "queue": "orders", "routing_key": "k"}
    assert (await client.delete(f"{BROKER}/bindings", params=query)).status_code == 204
    assert (await client.get(f"{BROKER}/bindings")).json()["bindings"] == []
    assert not upstream.bindings


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"exchange": "ex"}, 422, "invalid_request"),
        ({"exchange": "ex", "queue": "q", "destination": "d"}, 422, "invalid_request"),
        ({"exchange": "ex", "queue": "x" * 256}, 422, "invalid_value"),
        ({"exchange": "ex", "queue": "orders", "routing_key": "é" * 128}, 422, "invalid_value"),
        ({"exchange": "ex", "queue": "orders", "arguments": {"a": 1 << 65}}, 422, "invalid_value"),
        ({"exchange": "missing", "queue": "orders"}, 404, "not_found"),
        ({"exchange": "amq.default", "queue": "missing"}, 404, "not_found"),
        ({"exchange": "ex", "destination": "other"}, 422, "unsupported"),
    ],
)
async def test_bad_bindings(client: httpx.AsyncClient, body: Any, status: int, code: str) -> None:
    problem(await client.post(f"{BROKER}/bindings", json=body), status, code)


@pytest.mark.parametrize("query", ["", "?exchange=e&queue=q&arguments=[]", "?exchange=e&queue=q&arguments={"])
async def test_bad_unbindings(client: httpx.AsyncClient, query: str) -> None:
    problem(await client.delete(f"{BROKER}/bindings{query}"), 422, "invalid_parameter")


@pytest.mark.parametrize("kind", ["queues", "exchanges", "bindings"])
async def test_lists_are_paged(client: httpx.AsyncClient, kind: str) -> None:
    for name in "abc":
        if kind == "bindings":
            body = {"exchange": "amq.default", "queue": "orders", "routing_key": name}
            await client.post(f"{BROKER}/bindings", json=body)
        else:
            await client.put(f"{BROKER}/{kind}/{name}")
    count = 0
    url: str | None = f"{BROKER}/{kind}?limit=2"
    while url:
        response = await client.get(url)
        count += len(response.json()[kind])
        url = response.links.get("next", {}).get("url")
    assert count == 3
    problem(await client.get(f"/v1/brokers/missing/{kind}"), 404, "broker_not_found")


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"durable": "yes"}, 422, "invalid_request"),
        ({"arguments": {"a": {"type": "int8", "value": 1000}}}, 422, "invalid_value"),
        ({"exclusive": True}, 422, "invalid_request"),
    ],
)
async def test_bad_declarations(client: httpx.AsyncClient, body: Any, status: int, code: str) -> None:
    problem(await client.put(f"{BROKER}/queues/q", json=body), status, code)


async def test_unknown_and_absent_brokers(client: httpx.AsyncClient, upstream: FakeUpstream) -> None:
    for method, path in [
        ("PUT", "/queues/q"), ("GET", "/queues/q"), ("DELETE", "/queues/q"), ("POST", "/queues/q:purge"),
        ("PUT", "/exchanges/e"), ("GET", "/exchanges/e"), ("GET", "/exchanges/amq.default"), ("DELETE", "/exchanges/e"),
    ]:  # fmt: skip
        problem(await client.request(method, f"/v1/brokers/missing{path}"), 404, "broker_not_found")
    upstream.state = UpstreamState.DOWN
    response = await client.put(f"{BROKER}/queues/q")
    problem(response, 503, "broker_unavailable")
    assert "retry-after" in response.headers
