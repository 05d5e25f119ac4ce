"""Bounds, unexpected errors, and everything that is no route."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from starlette.responses import Response

from gateway.access.scopes import Principal
from gateway.api.app import Api
from gateway.api.http.call import Call
from gateway.api.http.cycle import CUT
from gateway.api.http.routing import Route, Scope
from gateway.api.resources.peers import FORWARDED
from gateway.budgets import BudgetBounds, ShareHolder
from gateway.config import ApiKeySettings, HttpSettings, SubscriptionSettings
from gateway.core import Gateway
from gateway.core.publishing.publisher import Publisher
from gateway.errors import BrokerUnavailable, KeyRunning, LedgerUnavailable
from gateway.ledger import RunningRequest
from gateway.upstreams import UpstreamState
from tests.api.conftest import problem
from tests.core.fakes import FakeUpstream

PUBLISH = "/v1/brokers/fake/exchanges/amq.default:publish"


async def test_an_unexpected_error_says_nothing_of_itself(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*args: Any) -> Any:
        raise RuntimeError("secret")

    monkeypatch.setattr(Publisher, "publish", fail)
    response = await client.post(PUBLISH, json={"routing_key": "k"})
    problem(response, 500, "internal")
    assert "secret" not in response.text


async def test_what_fails_is_gone_when_it_is_answered(client: httpx.AsyncClient, upstream: FakeUpstream) -> None:
    """An error that holds its frames, and is held by one of them, would stay until the collector comes by."""
    await client.put("/v1/subscriptions/s", json={"broker": "fake", "queue": "orders"})
    upstream.state = UpstreamState.DOWN
    publish = "/v1/brokers/fake/exchanges/amq.default:publish"

    def count() -> int:
        return sum(isinstance(each, BrokerUnavailable) for each in gc.get_objects())

    gc.collect()
    gc.disable()
    before = count()  # other tests have some among their parameters
    try:
        for number in range(5):
            await client.post(publish, json={"routing_key": "orders"})
            await client.post(publish, json={"routing_key": "orders"}, headers={"idempotency-key": f"k{number}"})
            answer = await client.post("/v1/subscriptions/s:pull", json={"max_messages": 1})
            problem(answer, 503, "broker_unavailable")
        left = count() - before
    finally:
        gc.enable()
    assert left <= 1


async def test_errors_that_came_by_a_task_are_gone_too(
    client: httpx.AsyncClient, gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task holds its error, and so does what the ledger was asked for."""

    def count() -> int:
        return sum(isinstance(each, KeyRunning | LedgerUnavailable) for each in gc.get_objects())

    async def ask(key: str, status: int, code: str) -> None:
        answer = await client.post(PUBLISH, json={"routing_key": "orders"}, headers={"idempotency-key": key})
        problem(answer, status, code)

    async def running(*_: Any) -> RunningRequest:
        return RunningRequest(here=True, ids=())

    def away(*_: Any) -> None:
        raise LedgerUnavailable("away")

    gc.collect()
    gc.disable()
    before = count()
    try:
        monkeypatch.setattr(gateway.ledger, "claim_key", running)
        for number in range(5):
            await ask(f"k{number}", 409, "idempotency_key_running")
        held = count() - before
        for _ in range(5):
            with contextlib.suppress(LedgerUnavailable):
                await gateway.ledger.task(away)
        failed = count() - before - held
    finally:
        gc.enable()
    assert held == 0
    assert failed <= 1  # the last one may be what the writer still has in its hands


async def test_requests_under_way_are_bounded(gateway: Gateway) -> None:
    gateway.budgets.configure(BudgetBounds(totals={"requests": 1}))
    transport = httpx.ASGITransport(Api(gateway, HttpSettings()))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        await client.put("/v1/subscriptions/s", json={"broker": "fake", "queue": "orders"})
        waiting = asyncio.create_task(client.post("/v1/subscriptions/s:pull", json={"wait": 0.2}))
        await asyncio.sleep(0.05)
        response = await client.get("/v1/brokers")
        problem(response, 503, "overloaded")
        assert response.headers["retry-after"] == "1"
        assert (await waiting).status_code == 200
        assert (await client.get("/v1/brokers")).status_code == 200


async def test_one_client_has_its_share_of_the_requests(gateway: Gateway) -> None:
    gateway.budgets.configure(BudgetBounds(0.2, 0.1, {"requests": 10}))
    keys = [ApiKeySettings(name=name, key=f"{name}-secret", scopes=("consume:fake/*",)) for name in ("alice", "bob")]
    api = Api(gateway, HttpSettings(), keys)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(api), base_url="http://localhost") as client:
        alice, bob = ({"x-api-key": f"{name}-secret"} for name in ("alice", "bob"))
        await gateway.subscriptions.put("s", SubscriptionSettings(broker="fake", queue="orders"), None)
        pull = "/v1/subscriptions/s:pull"
        waiting = [asyncio.create_task(client.post(pull, json={"wait": 0.3}, headers=alice)) for _ in range(2)]
        await asyncio.sleep(0.05)
        refused = await client.post(pull, json={"wait": 0}, headers=alice)
        problem(refused, 429, "budget_exceeded")
        assert "budget requests: 'alice' holds 2 HTTP requests" in refused.json()["detail"]
        assert refused.headers["retry-after"] == "1"
        assert (await client.post(pull, json={"wait": 0}, headers=bob)).status_code == 200
        assert [(await each).status_code for each in waiting] == [200, 200]
        assert (await client.post(pull, json={"wait": 0}, headers=alice)).status_code == 200
    assert gateway.budgets["requests"].standing().held == 0


async def test_streams_take_no_more_than_their_part_of_the_requests(gateway: Gateway) -> None:
    gateway.budgets.configure(BudgetBounds(0.5, 0.0, {"streams": 4}))
    keys = [ApiKeySettings(name=name, key=f"{name}-secret", scopes=("admin",)) for name in ("alice", "bob")]
    api = Api(gateway, HttpSettings(), keys)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(api), base_url="http://localhost") as client:
        alice, bob = ({"x-api-key": f"{name}-secret"} for name in ("alice", "bob"))
        await gateway.subscriptions.put("s", SubscriptionSettings(broker="fake", queue="orders"), None)
        pull = "/v1/subscriptions/s:pull"
        waiting = [asyncio.create_task(client.post(pull, json={"wait": 0.3}, headers=alice)) for _ in range(2)]
        await asyncio.sleep(0.05)
        for refused in (
            await client.post(pull, json={"wait": 1}, headers=alice),
            await client.get("/v1/subscriptions/s:stream", headers=alice),
            await client.get("/v1/events", headers=alice),
            await client.post(PUBLISH, headers=alice | {"content-type": "application/x-ndjson"}),
        ):
            found = problem(refused, 429, "budget_exceeded")
            assert "'alice' holds 2 streams and pulls that wait; its share is 2 of 4." in found["detail"]
        assert (await client.post(pull, json={"wait": 0}, headers=alice)).status_code == 200
        assert (await client.post(pull, json={"wait": 0.01}, headers=bob)).status_code == 200
        assert [(await each).status_code for each in waiting] == [200, 200]
    assert gateway.budgets["streams"].standing().held == 0


async def test_a_body_over_the_share_of_its_client(gateway: Gateway) -> None:
    gateway.budgets.configure(BudgetBounds(0.25, 0.0, {"bytes": 400_000}, ones={"bytes": 100_000}))
    keys = [ApiKeySettings(name=name, key=f"{name}-secret", scopes=("admin",)) for name in ("alice", "bob")]
    api = Api(gateway, HttpSettings(body_max=100_000), keys)
    go_on = asyncio.Event()

    async def held() -> AsyncIterator[bytes]:
        yield b" " * 45_000
        yield b" " * 45_000
        await go_on.wait()
        yield b"{}"

    async with httpx.AsyncClient(transport=httpx.ASGITransport(api), base_url="http://localhost") as client:
        url, body = "/v1/brokers/fake/queues/orders", b" " * 90_000 + b"{}"
        alice, bob = ({"x-api-key": f"{name}-secret"} for name in ("alice", "bob"))
        first = asyncio.create_task(client.put(url, content=held(), headers=alice))
        await asyncio.sleep(0.05)
        found = problem(await client.put(url, content=body, headers=alice), 429, "budget_exceeded")
        assert "budget bytes: 'alice' holds 90,000 bytes" in found["detail"]
        assert "and asks for 90,002 more" in found["detail"]
        assert (await client.put(url, content=body, headers=bob)).status_code < 300
        go_on.set()
        assert (await first).status_code < 300
        assert (await client.put(url, content=body, headers=alice)).status_code < 300
    assert gateway.budgets["bytes"].standing().held == 0


async def test_answers_that_nobody_reads_count_among_the_bytes(gateway: Gateway) -> None:
    gateway.budgets.configure(BudgetBounds(0.25, 0.0, {"bytes": 800_000}))
    held = gateway.budgets["bytes"]
    large = b"x" * 150_000

    async def handler(call: Call) -> Response:
        return Response(large)

    def route(method: str, path: str, tag: str) -> Route:
        return Route(method, path, f"{method}{path}", "Large", handler, Scope.NONE, {200: ("Large.", None)}, tag=tag)

    routes = (route("GET", "/large", "brokers"), route("POST", "/large", "brokers"), route("GET", "/page", "documents"))
    keys = [ApiKeySettings(name=name, key=f"{name}-secret", scopes=("admin",)) for name in ("alice", "bob")]
    api = Api(gateway, HttpSettings(), keys, routes=routes)
    read = asyncio.Event()

    async def unread(method: str, path: str, key: str) -> list[int]:
        statuses: list[int] = []

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                statuses.append(message["status"])
            elif statuses[0] == 200:
                await read.wait()

        async def receive() -> Any:
            return {"type": "http.request", "body": b"", "more_body": False}

        scope = {
            "type": "http", "method": method, "path": path, "raw_path": path.encode(), "query_string": b"",
            "headers": [(b"host", b"localhost"), (b"x-api-key", f"{key}-secret".encode())], "client": ("192.0.2.1", 1),
        }  # fmt: skip
        await api(scope, receive, send)
        return statuses

    first = asyncio.create_task(unread("GET", "/large", "alice"))
    await asyncio.sleep(0)
    assert held.held == 150_000
    assert await unread("GET", "/large", "alice") == [429]
    others = [asyncio.create_task(unread("GET", "/large", "bob")), asyncio.create_task(unread("GET", "/page", "alice"))]
    await asyncio.sleep(0)
    assert held.held == 300_000
    others.append(asyncio.create_task(unread("POST", "/large", "alice")))
    await asyncio.sleep(0)
    assert held.held == 450_000, "what was done is said"
    read.set()
    assert [await each for each in (first, *others)] == [[200]] * 4
    assert held.held == 0


async def test_a_refusal_that_nobody_reads_holds_nothing(gateway: Gateway) -> None:
    api = Api(gateway, HttpSettings(), [ApiKeySettings(name="alice", key="secret", scopes=("admin",))])
    blocked, sent = asyncio.Event(), []

    async def send(message: Any) -> None:
        sent.append(message["type"])
        if message["type"] == CUT:
            blocked.set()
        await blocked.wait()

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    scope = {"type": "http", "method": "GET", "path": "/v1/brokers", "raw_path": b"/v1/brokers", "query_string": b"",
             "headers": [(b"host", b"localhost")], "client": ("192.0.2.1", 1)}  # fmt: skip
    scope["headers"] = [(b"host", b"localhost"), (b"x-api-key", b"wrong")]
    await asyncio.wait_for(api(scope, receive, send), 1.0)
    assert CUT in sent


@pytest.mark.parametrize("pieces", [2, 1])
async def test_the_bodies_of_all_requests_are_bounded_together(gateway: Gateway, pieces: int) -> None:
    gateway.budgets.configure(BudgetBounds(totals={"bytes": 150_000}, ones={"bytes": 100_000}))
    held_bytes = gateway.budgets["bytes"]
    api = Api(gateway, HttpSettings(body_max=100_000))
    go_on = asyncio.Event()

    async def held() -> AsyncIterator[bytes]:
        yield b" " * 45_000
        yield b" " * 45_000
        await go_on.wait()
        yield b"{}"

    async def whole() -> AsyncIterator[bytes]:
        for _ in range(pieces):
            yield b" " * (90_000 // pieces)
        yield b"{}"

    async with httpx.AsyncClient(transport=httpx.ASGITransport(api), base_url="http://localhost") as client:
        url = "/v1/brokers/fake/queues/orders"
        first = asyncio.create_task(client.put(url, content=held()))
        await asyncio.sleep(0.05)
        assert held_bytes.standing().held == 90_000
        response = await client.put(url, content=whole())
        found = problem(response, 503, "overloaded")
        assert found["detail"].startswith("budget bytes: 90,000 of 150,000 bytes")
        assert "are in use (http.bodies_max)" in found["detail"]
        assert response.headers["retry-after"] == "1"
        assert held_bytes.standing().held == 90_000
        go_on.set()
        assert (await first).status_code < 300
        assert held_bytes.standing().held == 0
        assert (await client.put(url, content=whole())).status_code < 300
        assert held_bytes.standing().held == 0


async def test_a_long_line_of_a_stream_counts_among_the_bodies(gateway: Gateway) -> None:
    gateway.budgets.configure(BudgetBounds(totals={"bytes": 400_000}, shares={"bytes": 1.0}))
    gateway.budgets["bytes"].take(ShareHolder("other"), 250_000)
    api = Api(gateway, HttpSettings(body_max=400_000))
    line = b'{"body":"' + b"x" * 200_000 + b'"}\n'
    async with httpx.AsyncClient(transport=httpx.ASGITransport(api), base_url="http://localhost") as client:

        async def lines() -> AsyncIterator[bytes]:
            yield b'{"body":"short"}\n'
            for start in range(0, len(line), 50_000):
                yield line[start : start + 50_000]

        headers = {"content-type": "application/x-ndjson"}
        response = await client.post(PUBLISH, content=lines(), headers=headers)
        assert response.status_code == 200
        results = [json.loads(each) for each in response.text.splitlines()]
        assert len(results) == 2
        assert results[1]["problem"]["code"] == "overloaded", results[1]
    assert gateway.budgets["bytes"].standing().held == 250_000


async def test_no_such_route_and_method(client: httpx.AsyncClient) -> None:
    found = problem(await client.get("/v1/nothing"), 404, "route_not_found")
    assert found["instance"] == "/v1/nothing"
    response = await client.patch("/v1/brokers")
    problem(response, 405, "method_not_allowed")
    assert response.headers["allow"] == "GET"


async def test_headers_are_bounded(client: httpx.AsyncClient) -> None:
    response = await client.get("/v1/brokers", headers={"x-large": "x" * 40_000})
    problem(response, 431, "headers_too_large")


async def test_a_body_that_stalls(gateway: Gateway) -> None:
    async def stalled() -> Any:
        yield b"{"
        await asyncio.sleep(0.2)
        yield b"}"

    transport = httpx.ASGITransport(Api(gateway, HttpSettings(body_idle=0.02)))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        headers = {"content-type": "application/json"}
        problem(await client.post(PUBLISH, content=stalled(), headers=headers), 408, "request_timeout")


async def test_a_caller_that_hangs_up_in_the_middle_of_its_body(gateway: Gateway) -> None:
    messages = [{"type": "http.request", "body": b"{", "more_body": True}, {"type": "http.disconnect"}]
    sent: list[Any] = []

    async def receive() -> Any:
        return messages.pop(0)

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http", "method": "POST", "path": PUBLISH, "raw_path": PUBLISH.encode(), "query_string": b"",
        "headers": [(b"host", b"localhost")],
    }  # fmt: skip
    await Api(gateway, HttpSettings())(scope, receive, send)
    assert sent[0]["status"] == 400


@pytest.mark.parametrize(
    ("is_draining", "passed_on", "is_answered"), [(True, False, True), (True, True, False), (False, False, False)]
)
async def test_a_request_that_is_cut_off(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch, is_draining: bool, passed_on: bool, is_answered: bool
) -> None:
    """The server cuts it off when the gateway ends. What another process passed on is cut off by that one, too."""
    begun = asyncio.Event()

    async def handler(call: Call) -> Response:
        begun.set()
        await asyncio.Event().wait()
        return Response()

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    sent: list[Any] = []
    route = Route("GET", "/slow", "slow", "Slow", handler, Scope.NONE, {200: ("Slow.", None)}, tag="brokers")
    api = Api(gateway, HttpSettings(), routes=(route,))
    scope: dict[str, Any] = {
        "type": "http", "method": "GET", "path": "/slow", "raw_path": b"/slow", "query_string": b"",
        "headers": [(b"host", b"localhost")], "client": ("192.0.2.1", 1),
    }  # fmt: skip
    if passed_on:
        scope[FORWARDED] = Principal("peer", admin=False)
    request = asyncio.create_task(api(scope, receive, send))
    await begun.wait()
    monkeypatch.setattr(gateway, "draining", is_draining)
    request.cancel()
    if is_answered:
        await request
        assert sent[0]["status"] == 504
    else:
        with pytest.raises(asyncio.CancelledError):
            await request
        assert sent == []


async def test_requests_are_counted(client: httpx.AsyncClient, gateway: Gateway) -> None:
    await client.get("/v1/brokers")
    await client.get("/v1/brokers/missing")
    text = gateway.metrics.render().decode()
    assert 'amqpgw_http_requests_total{operation="list_brokers",status="200"} 1.0' in text
    assert 'amqpgw_http_requests_total{operation="get_broker",status="404"} 1.0' in text


async def test_only_http_is_spoken(gateway: Gateway) -> None:
    with pytest.raises(RuntimeError, match="websocket"):
        await Api(gateway, HttpSettings())({"type": "websocket"}, None, None)  # type: ignore[arg-type]
