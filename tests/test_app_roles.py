"""Processes that have a part of the gateway each; and the end of one that others still send requests to."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.app import App, run, running
from gateway.config import Config, load
from gateway.errors import ConfigurationError
from gateway.ledger import Ledger
from gateway.ledger.db import schema
from gateway.ledger.db.engine import Database
from tests.servers import PostgreSQL, RabbitMQ
from tests.test_app import configuration, sqlite_ledger

ANYWHERE = {"http.port": 0, "ops.port": 0}


def settings(folder: Path, url: str, broker: RabbitMQ, role: str) -> Config:
    overrides: dict[str, Any] = {
        **ANYWHERE,
        "role": role,
        "data_dir": str(folder / role),
        "ledger.url": url,
        "brokers.rabbit.url": broker.url("0-9-1"),
    }
    return load(None, {}, overrides)


async def until(condition: Callable[[], Any], seconds: float = 30) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.02)


@pytest.mark.broker
async def test_the_api_takes_no_work_and_a_worker_serves_no_api(
    tmp_path: Path, postgresql: PostgreSQL, rabbitmq: RabbitMQ, unique_name: Callable[[str], str]
) -> None:
    url = postgresql.create_database()
    await asyncio.to_thread(Ledger.migrate, url)
    source, target = unique_name("in"), unique_name("out")
    bridge = {
        "source": {"broker": "rabbit", "queue": source},
        "target": {"broker": "rabbit", "routing_key": target},
    }

    def owned(app: App) -> bool:
        return app.gateway.ownership.has("bridge", "b")

    try:
        async with (
            running(settings(tmp_path, url, rabbitmq, "api")) as api,
            httpx.AsyncClient(base_url=api.url, timeout=30) as client,
        ):
            for queue in (source, target):
                assert (await client.put(f"/v1/brokers/rabbit/queues/{queue}")).status_code == 201
            assert (await client.put("/v1/bridges/b", json=bridge)).status_code == 201
            await asyncio.sleep(1.2)  # two looks about
            assert not owned(api)
            paused = await client.post("/v1/bridges/b:pause")
            assert (paused.status_code, paused.json()["code"]) == (503, "peer_unavailable")
            assert "is run by no worker now" in paused.json()["detail"]
            async with running(settings(tmp_path, url, rabbitmq, "worker")) as worker:
                assert (worker.url, worker.ports.http) == ("", None)
                assert worker.ready_line() == f"ready: ops {worker.ops_url}"
                assert set(worker.ports.as_dict()) == {"ops"}
                await until(lambda: owned(worker))
                body = {"routing_key": source, "payload": "hello", "mandatory": True}
                path = "/v1/brokers/rabbit/exchanges/amq.default:publish"
                assert (await client.post(path, json=body)).status_code == 200
                await until(lambda: rabbitmq.queue_depth(target) == 1)
                async with asyncio.timeout(30):  # the message is in the queue before the bridge has counted it
                    while (shown := (await client.get("/v1/bridges/b")).json())["forwarded"] != 1:
                        await asyncio.sleep(0.05)
                assert shown["state"] == "running"
                assert (await client.post("/v1/bridges/b:pause")).status_code == 200
            assert not owned(api)
    finally:
        for queue in (source, target):
            rabbitmq.delete_queue(queue)
        postgresql.drop_database(url)


@pytest.mark.parametrize("role", ["api", "worker"])
async def test_a_part_of_it_needs_a_ledger_for_several(tmp_path: Path, role: str) -> None:
    with pytest.raises(ConfigurationError, match="SQLite serves one process"):
        async with running(load(None, {}, {**ANYWHERE, "role": role, "data_dir": str(tmp_path)})):
            pass


@pytest.mark.broker
async def test_older_tables_are_refused_and_newer_ones_by_one_are_not(
    tmp_path: Path, postgresql: PostgreSQL, rabbitmq: RabbitMQ
) -> None:
    url = postgresql.create_database()
    config = settings(tmp_path, url, rabbitmq, "worker")
    try:
        await asyncio.to_thread(schema.migrate, Database(url), f"{schema.HEAD - 1:04}")
        with pytest.raises(ConfigurationError, match="run 'gateway migrate'"):
            async with running(config):
                pass
        await asyncio.to_thread(schema.migrate, Database(url))
        await asyncio.to_thread(revise, url, schema.HEAD + 1)
        async with running(config) as app:
            assert app.gateway.ready() == []
        await asyncio.to_thread(revise, url, schema.HEAD + 2)
        with pytest.raises(ConfigurationError, match="use a newer release"):
            async with running(config):
                pass
    finally:
        postgresql.drop_database(url)


def revise(url: str, revision: int) -> None:
    """Say that the tables are of that revision."""
    import psycopg

    with psycopg.connect(url.replace("+psycopg", "")) as connection:
        connection.execute("UPDATE alembic_version SET version_num = %s", (f"{revision:04}",))


async def test_between_the_signal_and_the_end_requests_are_served(tmp_path: Path) -> None:
    sqlite_ledger(tmp_path / "data")
    config = configuration(tmp_path, **{"http.drain_delay": 30.0})
    file = tmp_path / "ports.json"
    task = asyncio.get_running_loop().create_task(run(config, file))
    await until(lambda: file.exists() or task.done())
    ports = json.loads(file.read_text())
    async with httpx.AsyncClient(timeout=30) as client:
        api, ops = (f"http://127.0.0.1:{ports[name]}" for name in ("http", "ops"))
        answer = await client.get(f"{api}/v1/brokers")
        assert (answer.status_code, answer.headers.get("connection")) == (200, None)
        assert (await client.get(f"{ops}/readyz")).status_code == 200
        os.kill(os.getpid(), signal.SIGTERM)
        async with asyncio.timeout(10):
            while (await client.get(f"{ops}/readyz")).status_code == 200:
                await asyncio.sleep(0.01)
        assert (await client.get(f"{ops}/livez")).status_code == 200
        answer = await client.get(f"{api}/v1/brokers")
        assert (answer.status_code, answer.headers.get("connection")) == (200, "close")
        assert not task.done()
        os.kill(os.getpid(), signal.SIGTERM)  # a second one does not wait any longer
        assert await asyncio.wait_for(task, 20) == 0
