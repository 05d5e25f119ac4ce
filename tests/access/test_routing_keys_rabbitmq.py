"""Scopes of routing keys beside a real topic exchange: a pattern allows the keys that a binding with it takes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest

from gateway.app import running
from gateway.config import ApiKeySettings, BrokerSettings, Config, EmbeddedSettings, HttpSettings, OpsSettings
from tests.api.conftest import problem
from tests.ledgers import sqlite_ledger
from tests.servers import RabbitMQ

pytestmark = pytest.mark.broker

PATTERNS = ("#", "eu", "eu.*", "eu.#", "#.eu", "*", "*.*", "eu.#.a", "*.#", "#.b.#", "eu.*.a")
KEYS = ("", "eu", "us", "eu.a", "eu.b", "us.eu", "eu.a.b", "eu.x.a", "eu.x.y.a", ".", "eu.", "b", "*", "#", "EU.a")


async def test_a_pattern_allows_what_a_binding_takes(
    rabbitmq: RabbitMQ, tmp_path: Path, unique_name: Callable[[str], str]
) -> None:
    queue, exchange = unique_name("orders"), unique_name("routes/x")
    path = f"/v1/brokers/rabbit/exchanges/{quote(exchange, safe='')}"
    narrow = [
        ApiKeySettings(
            name=f"n{number}", key=f"secret-{number}", scopes=(f"route:rabbit/{quote(exchange, safe='')}/{pattern}",)
        )
        for number, pattern in enumerate(PATTERNS)
    ]  # fmt: skip
    config = Config(
        data_dir=str(tmp_path), http=HttpSettings(port=0), ops=OpsSettings(port=0),
        embedded=EmbeddedSettings(enabled=False), log_level="error",
        brokers={"rabbit": BrokerSettings(url=rabbitmq.url("0-9-1"))},
        api_keys=(ApiKeySettings(name="root", key="root-secret"), *narrow),
    )  # fmt: skip
    sqlite_ledger(tmp_path)
    async with running(config) as app, httpx.AsyncClient(base_url=app.url, timeout=60) as client:
        root = {"authorization": "Bearer root-secret"}
        try:
            assert (await client.put(f"/v1/brokers/rabbit/queues/{queue}", json={}, headers=root)).status_code == 201
            made = await client.put(path, json={"type": "topic"}, headers=root)
            assert made.status_code == 201, made.text
            lines = b"\n".join(json.dumps({"routing_key": key}).encode() for key in KEYS)
            for number, pattern in enumerate(PATTERNS):
                binding = {"exchange": exchange, "queue": queue, "routing_key": pattern}
                bound = await client.post("/v1/brokers/rabbit/bindings", json=binding, headers=root)
                assert bound.status_code < 300, bound.text
                ndjson = {"content-type": "application/x-ndjson"}
                all_keys = await client.post(f"{path}:publish", content=lines, headers=root | ndjson)
                routed = [json.loads(line)["status"] == 200 for line in all_keys.text.splitlines()]
                key = {"authorization": f"Bearer secret-{number}"}
                answer = await client.post(f"{path}:publish", content=lines, headers=key | ndjson)
                statuses = [json.loads(line)["status"] for line in answer.text.splitlines()]
                assert statuses == [200 if each else 403 for each in routed], pattern
                gone = await client.request(
                    "DELETE", "/v1/brokers/rabbit/bindings", params=binding, headers=root
                )  # fmt: skip
                assert gone.status_code < 300, gone.text
            await _copies(client, path, queue, exchange, root)
        finally:
            await client.delete(f"/v1/brokers/rabbit/queues/{queue}", headers=root)
            await client.delete(path, headers=root)


async def _copies(client: httpx.AsyncClient, path: str, queue: str, exchange: str, root: dict[str, str]) -> None:
    """The broker does route by CC, so that a key there must be allowed, too."""

    async def messages() -> int:
        found = await client.get(f"/v1/brokers/rabbit/queues/{queue}", headers=root)
        return int(found.json()["messages"])

    binding = {"exchange": exchange, "queue": queue, "routing_key": "us.a"}
    await client.post("/v1/brokers/rabbit/bindings", json=binding, headers=root)
    before = await messages()
    body = {"routing_key": "eu.a", "headers": {"CC": ["us.a"]}}
    key = {"authorization": f"Bearer secret-{PATTERNS.index('eu.*')}"}
    problem(await client.post(f"{path}:publish", json=body, headers=key), 403, "forbidden")
    assert await messages() == before
    assert (await client.post(f"{path}:publish", json=body, headers=root)).status_code == 200
    assert await messages() == before + 1
