"""``/v1/brokers``."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from gateway.api.resources import brokers
from gateway.core import Gateway
from gateway.session import Capabilities
from gateway.upstreams import Attempt, Probe
from gateway.v010.version import V0_10
from gateway.v091.version import V0_9_1
from tests.api.conftest import problem
from tests.core.fakes import FakeUpstream


async def test_a_broker(client: httpx.AsyncClient, upstream: FakeUpstream) -> None:
    found = (await client.get("/v1/brokers/fake")).json()
    assert (found["name"], found["state"], found["version"], found["virtual_host"]) == ("fake", "up", "0-9-1", "/")
    assert found["capabilities"]["confirms"] == "tx"
    assert "password" not in str(found)
    upstream.version = upstream.capabilities = None
    found = (await client.get("/v1/brokers/fake")).json()
    assert (found["version"], found["capabilities"]) == (None, None)
    problem(await client.get("/v1/brokers/missing"), 404, "broker_not_found")


async def test_the_list_is_paged(client: httpx.AsyncClient, gateway: Gateway) -> None:
    for name in ("second", "third"):
        gateway.brokers[name] = FakeUpstream(name)  # type: ignore[assignment]
    first = await client.get("/v1/brokers?limit=2")
    assert [item["name"] for item in first.json()["brokers"]] == ["fake", "second"]
    last = await client.get(first.links["next"]["url"])
    assert [item["name"] for item in last.json()["brokers"]] == ["third"]
    assert "next" not in last.links
    problem(await client.get("/v1/brokers?cursor=nonsense"), 422, "invalid_parameter")


async def test_probe(client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    async def probe(settings: Any, resolve: Any) -> Probe:
        speaks = Attempt(V0_9_1, True, "RabbitMQ", "3.10", ("PLAIN",), "", None, Capabilities(), 0.01)
        silent = Attempt(V0_10, False, "", "", (), "no AMQP", "0-9-1", None, 0.02)
        return Probe("localhost", 5672, (speaks, silent))

    monkeypatch.setattr(brokers, "probe", probe)
    found = (await client.post("/v1/brokers/fake:probe")).json()
    assert found["versions"] == ["0-9-1"]
    assert [item["speaks"] for item in found["attempts"]] == [True, False]
    problem(await client.post("/v1/brokers/missing:probe"), 404, "broker_not_found")
