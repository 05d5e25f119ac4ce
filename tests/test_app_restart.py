"""A development gateway that starts again: its broker has nothing any more, and what was declared comes back; and what
becomes of a request that is under way when a gateway ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.api.app import CUT_OFF
from gateway.app import App, running
from gateway.config import load
from gateway.core.publishing.publisher import Publisher
from tests.ledgers import sqlite_ledger
from tests.tracing.estate import Hook

BROKERS = ("local-0-8", "local-0-9-1", "local-0-10")


@asynccontextmanager
async def gateway(folder: Path, **settings: Any) -> AsyncIterator[tuple[App, httpx.AsyncClient]]:
    config = {
        "http.port": 0, "ops.port": 0, "data_dir": str(folder), "embedded.enabled": True, "embedded.port": 0,
        "outbound.allow": ["127.0.0.1/32"], **settings,
    }  # fmt: skip
    async with (
        running(load(None, {}, config)) as app,
        httpx.AsyncClient(base_url=app.url, timeout=30, trust_env=False) as client,
    ):
        yield app, client


async def put(client: httpx.AsyncClient, path: str, body: Any) -> None:
    (await client.put(path, json=body)).raise_for_status()


async def publish(client: httpx.AsyncClient, broker: str, exchange: str, key: str, payload: str = "x") -> int:
    path = f"/v1/brokers/{broker}/exchanges/{exchange}:publish"
    answer = await client.post(path, json={"routing_key": key, "payload": payload, "mandatory": True})
    return answer.status_code


@pytest.mark.parametrize("broker", BROKERS)
async def test_what_was_declared_over_http_comes_back(tmp_path: Path, broker: str) -> None:
    sqlite_ledger(tmp_path)
    base = f"/v1/brokers/{broker}"
    async with gateway(tmp_path) as (_, client):
        await put(client, f"{base}/queues/kept", {"arguments": {"x-max-length": 2}})
        await put(client, f"{base}/queues/%ff", {})
        await put(client, f"{base}/queues/passing", {"durable": False})
        await put(client, f"{base}/queues/deleted", {})
        await put(client, f"{base}/exchanges/x", {"type": "topic"})
        for queue, key in (("kept", "a.#"), ("passing", "b"), ("deleted", "c")):
            body = {"exchange": "x", "queue": queue, "routing_key": key}
            (await client.post(f"{base}/bindings", json=body)).raise_for_status()
        (await client.delete(f"{base}/queues/deleted")).raise_for_status()
        assert await publish(client, broker, "x", "a.b") == 200
    async with gateway(tmp_path) as (_, client):
        found = (await client.get(f"{base}/queues/kept")).json()
        assert (found["messages"], found["durable"]) == (0, True), "messages were in memory"
        assert found["arguments"] == {"x-max-length": 2}
        assert (await client.get(f"{base}/queues/%ff")).status_code == 200
        assert (await client.get(f"{base}/queues/passing")).status_code == 404
        assert (await client.get(f"{base}/queues/deleted")).status_code == 404
        assert await publish(client, broker, "x", "a.b") == 200
        assert await publish(client, broker, "x", "b") == 422


async def test_a_pushed_subscription_goes_on_after_a_restart(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    sqlite_ledger(tmp_path)
    hook = Hook()
    server = await asyncio.start_server(hook.serve, "127.0.0.1", 0)
    endpoint = {"endpoints.hook.url": f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"}
    try:
        async with gateway(tmp_path, **endpoint) as (_, client):
            await put(client, "/v1/brokers/local-0-9-1/queues/q", {})
            await put(client, "/v1/subscriptions/s", {"broker": "local-0-9-1", "queue": "q", "push": "hook"})
        caplog.clear()
        async with gateway(tmp_path, **endpoint) as (_, client):
            assert await publish(client, "local-0-9-1", "amq.default", "q") == 200
            async with asyncio.timeout(10):
                while not hook.got:
                    await asyncio.sleep(0.01)
        assert "push.no_consumer" not in caplog.messages
    finally:
        server.close()


async def test_a_subscription_whose_queue_is_gone_says_what_to_do(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its queue was declared by somebody else, over AMQP, and nobody remembers it."""
    sqlite_ledger(tmp_path)
    endpoint = {"endpoints.hook.url": "http://127.0.0.1:9/"}
    async with gateway(tmp_path, **endpoint) as (app, client):
        await app.gateway.brokers["local-0-9-1"].declare_queue("a b", durable=True)
        await put(client, "/v1/subscriptions/s", {"broker": "local-0-9-1", "queue": "a b", "push": "hook"})
    async with gateway(tmp_path, **endpoint) as (_, client):
        async with asyncio.timeout(10):
            while not (reason := (await client.get("/v1/subscriptions/s")).json()["push_status"]["reason"]):
                await asyncio.sleep(0.05)
        assert "queue 'a b': not found on broker 'local-0-9-1'. Declare it: " in reason
        assert "PUT /v1/brokers/local-0-9-1/queues/a%20b" in reason
        await put(client, "/v1/brokers/local-0-9-1/queues/a%20b", {})
        async with asyncio.timeout(30):
            while (await client.get("/v1/subscriptions/s")).json()["push_status"]["reason"]:
                await asyncio.sleep(0.05)
    assert "push.no_consumer" in caplog.messages


async def test_a_request_that_takes_longer_than_the_end_waits_has_a_problem_for_its_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = asyncio.Event()

    async def publish(*_: Any, **__: Any) -> None:
        begun.set()
        await asyncio.Event().wait()

    sqlite_ledger(tmp_path)
    monkeypatch.setattr(Publisher, "publish", publish)
    async with httpx.AsyncClient(timeout=30, trust_env=False) as client:
        async with gateway(tmp_path, **{"http.drain_timeout": 1.0}) as (app, _):
            path = f"{app.url}/v1/brokers/{BROKERS[0]}/exchanges/amq.default:publish"
            request = asyncio.create_task(client.post(path, json={"routing_key": "q"}))
            await begun.wait()
        answer = await request
    assert (answer.status_code, answer.headers["content-type"]) == (504, "application/problem+json")
    assert (answer.json()["code"], answer.json()["detail"]) == ("outcome_unknown", CUT_OFF)
    assert answer.headers["connection"] == "close"
