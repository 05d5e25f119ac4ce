"""``/livez``, ``/readyz``, ``/metrics``."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest

from gateway.api.about.ops import Ops
from gateway.api.http.browsers import LOCAL_HOSTS, Sites
from gateway.config import HttpSettings
from gateway.core import Gateway


@pytest.fixture
async def ops(gateway: Gateway) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(Ops(gateway)), base_url="http://localhost") as client:
        yield client


async def test_alive_and_ready(ops: httpx.AsyncClient, gateway: Gateway) -> None:
    assert (await ops.get("/livez")).status_code == 200
    assert (await ops.get("/readyz")).json() == {"ready": True, "reasons": []}
    gateway.drain()
    response = await ops.get("/readyz")
    assert (response.status_code, response.json()["reasons"]) == (503, ["shutting down"])
    assert (await ops.get("/livez")).status_code == 200


async def test_started(ops: httpx.AsyncClient) -> None:
    response = await ops.get("/startupz")
    assert (response.status_code, response.json()) == (200, {"started": True, "reasons": []})


async def test_leaving_is_not_ready_and_alive(ops: httpx.AsyncClient, gateway: Gateway) -> None:
    gateway.leave()
    response = await ops.get("/readyz")
    assert (response.status_code, response.json()["reasons"]) == (503, ["shutting down"])
    assert (await ops.get("/startupz")).status_code == 200


async def test_before_the_start() -> None:
    app = Ops()
    app.waits_for = "the ledger"
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as ops:
        assert (await ops.get("/livez")).status_code == 200
        for path, name in (("/startupz", "started"), ("/readyz", "ready")):
            response = await ops.get(path)
            expected = {name: False, "reasons": ["starting: waits for the ledger"]}
            assert (response.status_code, response.json()) == (503, expected)
        response = await ops.get("/metrics")
        assert (response.status_code, response.text) == (503, "starting: waits for the ledger\n")


async def test_metrics(ops: httpx.AsyncClient) -> None:
    text = (await ops.get("/metrics")).text
    for line in ('amqpgw_build_info{version="test"} 1.0', "amqpgw_ledger_up 1.0", 'amqpgw_unconfirmed{broker="fake"}'):
        assert line in text


async def test_nothing_else(ops: httpx.AsyncClient) -> None:
    assert (await ops.get("/v1/brokers")).status_code == 404
    assert (await ops.post("/livez")).status_code == 405


@pytest.mark.parametrize(
    ("headers", "is_local", "status"),
    [
        ({"host": "rebound.example"}, True, 421),
        ({"host": "127.0.0.1:8081"}, True, 200),
        ({"host": "[::1]:8081"}, True, 200),
        ({"host": "10.1.2.3:8081"}, False, 200),
        ({"host": "127.0.0.1:8081", "sec-fetch-site": "cross-site"}, True, 403),
        ({"host": "10.1.2.3:8081", "sec-fetch-site": "same-site"}, False, 403),
        ({"host": "10.1.2.3:8081", "origin": "http://evil.example"}, False, 403),
        ({"host": "10.1.2.3:8081", "origin": "http://10.1.2.3:8081", "sec-fetch-site": "same-origin"}, False, 200),
    ],
)
async def test_no_web_page_reads_it(headers: dict[str, str], is_local: bool, status: int) -> None:
    app = Ops(sites=Sites(HttpSettings(allowed_hosts=("gateway.example",)), *LOCAL_HOSTS), is_local=is_local)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
        assert (await client.get("/livez", headers=headers)).status_code == status
