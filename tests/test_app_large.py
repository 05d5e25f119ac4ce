"""A body as large as the configuration allows, over HTTP and through the embedded broker."""

from __future__ import annotations

import asyncio
from pathlib import Path
from time import thread_time

import httpx
import pytest

from gateway.app import running
from gateway.config import load
from gateway.versions import VERSION_NAMES
from tests.ledgers import sqlite_ledger
from tests.pace import pace

MIB = 1 << 20
RAW = {"content-type": "application/octet-stream"}


@pytest.mark.parametrize("version", VERSION_NAMES)
async def test_128_mib_are_published_and_come_back(tmp_path: Path, version: str) -> None:
    sqlite_ledger(tmp_path)
    settings = {
        "http.port": 0, "ops.port": 0, "data_dir": str(tmp_path), "embedded.enabled": True, "embedded.port": 0,
        "embedded.message_max": 128 * MIB, "http.body_max": 129 * MIB,
    }  # fmt: skip
    async with (
        running(load(None, {}, settings)) as app,
        httpx.AsyncClient(base_url=app.url, timeout=60, trust_env=False) as client,
    ):
        base = f"/v1/brokers/local-{version}"
        (await client.put(f"{base}/queues/q", json={})).raise_for_status()
        path = f"{base}/exchanges/amq.default:publish?routing_key=q"
        answer = await client.post(path, content=bytes(128 * MIB + 1), headers=RAW)
        assert (answer.status_code, answer.json()["code"]) == (413, "limit_exceeded"), answer.text
        body = bytes(range(256)) * (128 * MIB // 256)
        answer = await client.post(path, content=body, headers=RAW)
        assert (answer.status_code, answer.json()["status"]) == (200, "confirmed")
        (delivery,) = await app.gateway.brokers[f"local-{version}"].fetch("q", 1, 10.0)
        assert delivery.message.body == body


@pytest.mark.parametrize("lease", ["broker", "ledger"])
async def test_a_pull_of_large_messages_ends_at_its_bytes_and_others_have_their_turn(
    tmp_path: Path, lease: str
) -> None:
    sqlite_ledger(tmp_path)
    settings = {
        "http.port": 0, "ops.port": 0, "data_dir": str(tmp_path), "embedded.enabled": True, "embedded.port": 0,
    }  # fmt: skip
    worst = 0.0

    async def watch() -> None:
        """The most that one callback worked, in seconds of this thread: others may have the processor meanwhile."""
        nonlocal worst
        while True:
            before = thread_time()
            await asyncio.sleep(0)
            worst = max(worst, thread_time() - before)

    def pull(url: str) -> list[str]:
        with httpx.Client(base_url=url, timeout=60, trust_env=False) as client:
            answer = client.post("/v1/subscriptions/s:pull", json={"max_messages": 1_000})
            return [item["ack_id"] for item in answer.json()["messages"]]

    async with (
        running(load(None, {}, settings)) as app,
        httpx.AsyncClient(base_url=app.url, timeout=60, trust_env=False) as client,
    ):
        base = "/v1/brokers/local-0-9-1"
        (await client.put(f"{base}/queues/q", json={})).raise_for_status()
        subscription = {"broker": "local-0-9-1", "queue": "q", "lease": lease, "ack_deadline_seconds": 600}
        (await client.put("/v1/subscriptions/s", json=subscription)).raise_for_status()
        for _ in range(80):
            path = f"{base}/exchanges/amq.default:publish?routing_key=q"
            (await client.post(path, content=b"\xff" * MIB, headers=RAW)).raise_for_status()
        watching = asyncio.create_task(watch())
        got, longest = [], []
        for _ in range(3):
            worst = 0.0
            got.append(await asyncio.to_thread(pull, app.url))
            longest.append(worst)
        watching.cancel()
        assert all(20 <= len(ids) <= 33 for ids in got[:2]), [len(ids) for ids in got]
        assert sum(map(len, got)) in range(60, 81)
        assert len({ack_id for ids in got for ack_id in ids}) == sum(map(len, got))
        # What is too much comes with each of them; one alone may be a collection, or the machine's.
        assert min(longest[:2]) < 0.05 * pace(), longest
