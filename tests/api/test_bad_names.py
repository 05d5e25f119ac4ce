"""Names and parameters that no database can hold: they are the caller's mistake, on every route, and nobody else's."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from gateway.api.app import Api
from gateway.app import running
from gateway.config import load
from tests.ledgers import sqlite_ledger

BAD = ("%00", "%ff", "a%00b", "%ed%b3%bf")
STREAMS = frozenset({"stream", "events"})


@pytest.fixture(params=["sqlite", "postgresql"])
async def gateway(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[tuple[Api, httpx.AsyncClient]]:
    url = sqlite_ledger(tmp_path) if request.param == "sqlite" else request.getfixturevalue("postgresql_ledger")
    settings = {
        "http.port": 0, "ops.port": 0, "data_dir": str(tmp_path), "embedded.enabled": True, "embedded.port": 0,
        "ledger.url": url,
    }  # fmt: skip
    async with (
        running(load(None, {}, settings)) as app,
        httpx.AsyncClient(base_url=app.url, timeout=30, trust_env=False) as client,
    ):
        yield app.reloads._running.api, client


def filled(path: str, names: dict[str, str]) -> str:
    return re.sub(r"{(\w+)}", lambda match: names.get(match[1], "local-0-9-1" if match[1] == "broker" else "x"), path)


async def status_of(client: httpx.AsyncClient, method: str, url: str) -> int:
    body = {"content": b"{}", "headers": {"content-type": "application/json"}} if method in ("POST", "PUT") else {}
    async with client.stream(method, url, **body) as answer:
        return answer.status_code


async def test_in_a_path(gateway: tuple[Api, httpx.AsyncClient]) -> None:
    api, client = gateway
    wrong = []
    for route in api._router.routes:
        if "reload" in route.path:
            continue
        for name in re.findall(r"{(\w+)}", route.path):
            for bad in BAD:
                status = await status_of(client, route.method, filled(route.path, {name: bad}))
                if status >= 500 or (status < 300 and name not in ("exchange", "queue")):
                    wrong.append((route.method, route.path, name, bad, status))
    assert wrong == []


async def test_in_a_query(gateway: tuple[Api, httpx.AsyncClient]) -> None:
    api, client = gateway
    wrong = []
    for route in api._router.routes:
        for field in msgspec.structs.fields(route.query) if route.query is not None else ():
            for bad in BAD:
                url = f"{filled(route.path, {})}?{field.encode_name}={bad}"
                if field.encode_name == "header":
                    url = f"{filled(route.path, {})}?header=x%3D{bad}"
                status = await status_of(client, route.method, url)
                if status >= 500:
                    wrong.append((route.method, url, status))
    assert wrong == []


@pytest.mark.parametrize("path", ["scheduled", "messages", "statistics"])
async def test_what_is_said(gateway: tuple[Api, httpx.AsyncClient], path: str) -> None:
    _, client = gateway
    for bad, why in (("%00", "contains the character U+0000"), ("%ff", "is not percent-encoded UTF-8")):
        answer = await client.get(f"/v1/{path}?broker={bad}")
        found: Any = answer.json()
        assert (answer.status_code, found["code"], found["retryable"]) == (422, "invalid_parameter", False)
        assert found["errors"] == [{"parameter": "broker", "detail": f"the value {why}"}]


async def test_names_of_amqp_may_be_any_octets(gateway: tuple[Api, httpx.AsyncClient]) -> None:
    _, client = gateway
    for name in ("%00", "%ff", "a%00b"):
        path = f"/v1/brokers/local-0-9-1/queues/{name}"
        assert (await client.put(path, json={})).status_code == 201
        assert (await client.get(path)).status_code == 200
        body = {"payload": "x", "mandatory": True, "routing_key": (await client.get(path)).json()["name"]}
        answer = await client.post("/v1/brokers/local-0-9-1/exchanges/amq.default:publish", json=body)
        assert answer.status_code == 200, answer.text
        known = (await client.get("/v1/brokers/local-0-9-1/queues")).json()["queues"]
        assert len(known) == 1
        assert (await client.delete(path)).status_code == 200
        assert (await client.get("/v1/brokers/local-0-9-1/queues")).json()["queues"] == []
