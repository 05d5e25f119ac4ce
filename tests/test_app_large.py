"""A body as large as the configuration allows, over HTTP and through the embedded broker."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from gateway.app import running
from gateway.config import load
from tests.ledgers import sqlite_ledger

MIB = 1 << 20
RAW = {"content-type": "application/octet-stream"}


@pytest.mark.parametrize("version", ["0-8", "0-9-1", "0-10"])
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
