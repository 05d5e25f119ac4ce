"""A message that the embedded broker cannot hand to a link of the gateway: pulls, bridges and pushes go on."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.amqp.message import Message, Properties
from gateway.app import running
from gateway.config import BrokerSettings
from gateway.upstreams import Upstream
from tests.ledgers import sqlite_ledger
from tests.test_app import configuration, publish_path, pull, queue_path
from tests.webhooks.pushed import OK, Estate

LARGE = {f"h{number}": "x" * 60_000 for number in range(4)}
GOOD = ["one", "two", "three"]


async def fill(client: httpx.AsyncClient, queue: str) -> None:
    """Have the large message in a new queue, and three good ones behind it."""
    assert (await client.put(queue_path("local-0-9-1", queue))).status_code == 201
    for broker, body in (
        ("local-0-10", {"payload": "large", "headers": LARGE}),
        *(("local-0-9-1", {"payload": payload}) for payload in GOOD),
    ):
        answer = await client.post(publish_path(broker), json={"routing_key": queue, **body})
        assert answer.status_code == 200, answer.text


async def take(client: httpx.AsyncClient, path: str) -> list[str]:
    """Pull and acknowledge until nothing comes."""
    payloads: list[str] = []
    while messages := await pull(client, path, wait=5 if len(payloads) < len(GOOD) else 0):
        payloads += [item["message"]["payload"] for item in messages]
        body = {"ack_ids": [item["ack_id"] for item in messages]}
        assert (await client.post(f"{path}:acknowledge", json=body)).status_code == 200
    return payloads


@pytest.mark.parametrize("settings", [{}, {"lease": "ledger"}], ids=["broker", "ledger"])
@pytest.mark.parametrize("version", ["0-8", "0-9-1", "0-10"])
async def test_pulls(tmp_path: Path, version: str, settings: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    sqlite_ledger(tmp_path / "data")
    carried = version == "0-10"
    with caplog.at_level(logging.WARNING, "gateway"):
        async with running(configuration(tmp_path)) as app, httpx.AsyncClient(base_url=app.url, timeout=30) as client:
            await fill(client, "q")
            path = "/v1/subscriptions/s"
            answer = await client.put(path, json={"broker": f"local-{version}", "queue": "q", **settings})
            assert answer.status_code == 201, answer.text
            assert await take(client, path) == (["large", *GOOD] if carried else GOOD)
            queue = (await client.get(queue_path("local-0-9-1", "q"))).json()
            assert queue["messages"] == (not carried)
            other = "/v1/subscriptions/other"
            await client.put(other, json={"broker": "local-0-10", "queue": "q"})
            assert await take(client, other) == ([] if carried else ["large"])
            metrics = app.gateway.metrics.render().decode()
    skipped = [line for line in metrics.splitlines() if line.startswith("amqpgw_embedded_skipped_total{")]
    assert skipped == ([] if carried else [f'amqpgw_embedded_skipped_total{{version="{version}"}} 1.0'])
    events = [record.message for record in caplog.records]
    assert events.count("embedded.skipped") == (not carried)
    assert "broker.state" not in events


async def test_a_bridge(tmp_path: Path) -> None:
    sqlite_ledger(tmp_path / "data")
    async with running(configuration(tmp_path)) as app, httpx.AsyncClient(base_url=app.url, timeout=30) as client:
        await fill(client, "q")
        assert (await client.put(queue_path("local-0-9-1", "out"))).status_code == 201
        bridge = {
            "source": {"broker": "local-0-9-1", "queue": "q"},
            "target": {"broker": "local-0-8", "exchange": "", "routing_key": "out"},
        }
        assert (await client.put("/v1/bridges/b", json=bridge)).status_code == 201
        await client.put("/v1/subscriptions/out", json={"broker": "local-0-10", "queue": "out"})
        payloads: list[str] = []
        async with asyncio.timeout(20):
            while len(payloads) < 3:
                payloads += await take_some(client, "/v1/subscriptions/out")
        assert payloads == GOOD
        shown = (await client.get("/v1/bridges/b")).json()
        assert shown["state"] == "running", shown
        assert (await client.get(queue_path("local-0-9-1", "q"))).json()["messages"] == 1


async def take_some(client: httpx.AsyncClient, path: str) -> list[str]:
    messages = await pull(client, path, wait=1)
    if messages:
        await client.post(f"{path}:acknowledge", json={"ack_ids": [item["ack_id"] for item in messages]})
    return [item["message"]["payload"] for item in messages]


@pytest.mark.parametrize("version", ["0-8", "0-9-1"])
async def test_pushes(tmp_path: Path, version: str) -> None:
    estate = Estate(tmp_path, version)
    await estate.open()
    url = f"amqp://guest:guest@127.0.0.1:{estate.broker.port}/?version=0-10"
    native = Upstream("native", BrokerSettings(url=url))
    await native.start()
    assert await native.wait_up(10)
    await native.publish("", "in", Message(b"large", Properties(headers=LARGE)))
    estate.receivers.put("e", OK)
    await estate.publish(b"one", b"two", b"three")
    await estate.subscribe()
    async with asyncio.timeout(20):
        while len(estate.receivers.bodies()) < 3:
            await asyncio.sleep(0.01)
    assert sorted(estate.receivers.bodies()) == [b"one", b"three", b"two"]
    status = await estate.status()
    assert status.reason == ""
    assert await estate.depth() == 1
    (delivery,) = await native.fetch("in", 1, 5.0)
    assert delivery.message.body == b"large"
    await native.close(0.5)
    await estate.close()
