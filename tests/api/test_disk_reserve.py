"""What the gateway refuses, and what it goes on with, while only the reserve of the ledger's disk is left."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from gateway.core import Gateway
from gateway.ledger.db import disk
from tests.api.conftest import problem
from tests.core.fakes import FakeUpstream

PUBLISH = "/v1/brokers/fake/exchanges/amq.default:publish"
MESSAGE = {"routing_key": "orders", "payload": "x"}


def leave(gateway: Gateway, monkeypatch: pytest.MonkeyPatch, free: int) -> None:
    monkeypatch.setattr(disk.shutil, "disk_usage", lambda _: SimpleNamespace(total=1 << 40, free=free))
    gateway.ledger.disk.look()


async def test_nothing_new_is_promised_and_what_was_is_settled(
    client: httpx.AsyncClient, gateway: Gateway, upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, lease in (("broker", "broker"), ("ledger", "ledger")):
        await upstream.declare_queue(name)
        settings = {"broker": "fake", "queue": name, "lease": lease}
        assert (await client.put(f"/v1/subscriptions/{name}", json=settings)).status_code == 201
        for _ in range(3):
            assert (await client.post(PUBLISH, json={**MESSAGE, "routing_key": name})).status_code == 200
    later = await client.post(PUBLISH, json={**MESSAGE, "delay_seconds": 1.0})
    assert later.status_code == 202
    held: dict[str, list[Any]] = {}
    for name in ("broker", "ledger"):
        pulled = await client.post(f"/v1/subscriptions/{name}:pull", json={"max_messages": 2})
        held[name] = [message["ack_id"] for message in pulled.json()["messages"]]
        assert len(held[name]) == 2

    leave(gateway, monkeypatch, 1 << 20)
    full = problem(await client.post(PUBLISH, json=MESSAGE), 507, "ledger_full")
    assert "ledger.disk_reserve" in full["detail"]
    assert (full["retryable"], full["outcome"]) == (True, "not_sent")
    problem(await client.post(PUBLISH, json={**MESSAGE, "delay_seconds": 60}), 507, "ledger_full")
    problem(await client.post(PUBLISH, json=MESSAGE, headers={"prefer": "respond-async"}), 507, "ledger_full")
    for body in (MESSAGE, {**MESSAGE, "delay_seconds": 60}):
        problem(await client.post(PUBLISH, json=body, headers={"idempotency-key": "k"}), 507, "ledger_full")
    for name in ("broker", "ledger"):
        problem(await client.post(f"/v1/subscriptions/{name}:pull", json={}), 507, "ledger_full")
        problem(await client.get(f"/v1/subscriptions/{name}:stream"), 507, "ledger_full")
    assert any("ledger.disk_reserve" in reason for reason in gateway.ready())

    for name, verb in (("broker", "acknowledge"), ("ledger", "reject")):
        settled = await client.post(f"/v1/subscriptions/{name}:{verb}", json={"ack_ids": held[name]})
        assert [item["status"] for item in settled.json()["results"]] == ["SUCCESS", "SUCCESS"]
    async with asyncio.timeout(10):  # the scheduled publish is sent
        while (await client.get(f"/v1/scheduled/{later.json()['id']}")).json()["state"] == "scheduled":
            await asyncio.sleep(0.05)

    leave(gateway, monkeypatch, 1 << 39)
    assert (await client.post(PUBLISH, json=MESSAGE)).status_code == 200
    assert gateway.ready() == []
    gateway.measure()
    page = gateway.metrics.render().decode()
    assert "amqpgw_ledger_disk_reserve_bytes 2.68435456e+08" in page
