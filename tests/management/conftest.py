"""A gateway over brokers whose management is a fake, or real."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.app import App, running
from gateway.config import load
from tests.ledgers import sqlite_ledger

NOWHERE = "amqp://guest:guest@127.0.0.1:1/"
"""A broker that nobody reaches."""
Serve = Callable[..., Any]


@pytest.fixture
def serve(tmp_path: Path) -> Serve:
    """``serve(settings)``: a gateway that runs as long as the block, and its client."""

    @asynccontextmanager
    async def serve(settings: dict[str, Any], key: str = "") -> AsyncIterator[tuple[App, httpx.AsyncClient]]:
        given = {"http.port": 0, "ops.port": 0, "embedded.port": 0, "data_dir": str(tmp_path), **settings}
        sqlite_ledger(tmp_path)
        headers = {"authorization": f"Bearer {key}"} if key else {}
        async with (
            running(load(None, {}, given)) as app,
            httpx.AsyncClient(base_url=app.url, timeout=30, headers=headers) as client,
        ):
            yield app, client

    return serve


async def read(client: httpx.AsyncClient, path: str = "/v1/queues", **query: Any) -> Any:
    """A page, decoded."""
    answer = await client.get(path, params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def pages(client: httpx.AsyncClient, **query: Any) -> list[dict[str, Any]]:
    """All rows, by the links of the pages."""
    answer = await client.get("/v1/queues", params=query)
    rows: list[dict[str, Any]] = []
    while True:
        assert answer.status_code == 200, answer.text
        rows += answer.json()["queues"]
        following = answer.links.get("next", {}).get("url")
        if following is None:
            return rows
        answer = await client.get(following)
