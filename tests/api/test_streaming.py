"""``GET …:stream``: server-sent events and NDJSON."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest

from gateway.api.app import Api
from gateway.config import HttpSettings
from gateway.core import Gateway
from tests.api.conftest import problem
from tests.api.test_subscriptions import BILLING, ORDERS, publish
from tests.core.test_intake import until


class Reader:
    """An ASGI caller that reads a stream, and hangs up when it is told to."""

    def __init__(self, gateway: Gateway, query: str = "", accept: str = "*/*") -> None:
        self.gone = asyncio.Event()
        self.status = 0
        self.headers: dict[str, str] = {}
        self.text = ""
        self.ended = False
        path = f"{BILLING}:stream"
        scope: Any = {
            "type": "http", "method": "GET", "path": path, "raw_path": path.encode(), "query_string": query.encode(),
            "headers": [(b"host", b"localhost"), (b"accept", accept.encode())],
        }  # fmt: skip
        self.task = asyncio.create_task(Api(gateway, HttpSettings())(scope, self._receive, self._send))

    async def _receive(self) -> Any:
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {name.decode(): value.decode() for name, value in message["headers"]}
        else:
            self.text += message["body"].decode()
            self.ended = not message["more_body"]

    @property
    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.text.split("\n") if line]

    @property
    def events(self) -> list[dict[str, str]]:
        blocks = [block for block in self.text.split("\n\n") if block and not block.startswith(":")]
        return [dict(line.split(": ", 1) for line in block.split("\n")) for block in blocks]  # type: ignore[misc]

    async def hang_up(self) -> None:
        self.gone.set()
        async with asyncio.timeout(10):
            await self.task


async def test_head_takes_nothing(client: httpx.AsyncClient) -> None:
    assert (await client.put(BILLING, json=ORDERS)).status_code == 201
    await publish(client, "one")
    async with asyncio.timeout(20):
        answer = await client.head(f"{BILLING}:stream")
    assert (answer.status_code, answer.headers["content-type"].partition(";")[0]) == (200, "text/event-stream")
    assert (await client.get(BILLING)).json()["leases"] == 0
    assert len((await client.post(f"{BILLING}:pull", json={})).json()["messages"]) == 1


@pytest.fixture
async def read(gateway: Gateway, client: httpx.AsyncClient) -> AsyncIterator[Callable[..., Reader]]:
    assert (await client.put(BILLING, json=ORDERS)).status_code == 201
    readers: list[Reader] = []

    def begin(query: str = "", accept: str = "*/*") -> Reader:
        readers.append(Reader(gateway, query, accept))
        return readers[-1]

    yield begin
    for reader in readers:
        await reader.hang_up()


async def test_server_sent_events(client: httpx.AsyncClient, read: Callable[..., Reader]) -> None:
    reader = read()
    await until(lambda: bool(reader.text))
    assert (reader.status, reader.headers["content-type"], reader.text) == (
        200,
        "text/event-stream; charset=utf-8",
        ":\n\n",
    )
    assert reader.headers["cache-control"] == "no-store"
    assert "content-length" not in reader.headers
    (identity,) = await publish(client, "line 1\nline 2")
    await until(lambda: bool(reader.events))
    (event,) = reader.events
    data = json.loads(event["data"])
    assert (event["event"], event["id"]) == ("message", data["ack_id"])
    assert (data["message"]["id"], data["message"]["payload"]) == (identity, "line 1\nline 2")
    response = await client.post(f"{BILLING}:acknowledge", json={"ack_ids": [event["id"]]})
    assert response.json()["results"][0]["status"] == "SUCCESS"
    await reader.hang_up()
    assert (await client.get(BILLING)).json()["leases"] == 0


@pytest.mark.parametrize("accept", ["application/x-ndjson", "text/html, application/jsonl;q=0.5"])
async def test_ndjson(client: httpx.AsyncClient, read: Callable[..., Reader], accept: str) -> None:
    await publish(client, "1", "2", "3")
    reader = read("max_outstanding=2", accept)
    await until(lambda: len(reader.lines) == 2)
    assert reader.headers["content-type"] == "application/x-ndjson"
    assert [line["message"]["payload"] for line in reader.lines] == ["1", "2"]
    await client.post(f"{BILLING}:acknowledge", json={"ack_ids": [reader.lines[0]["ack_id"]]})
    await until(lambda: len(reader.lines) == 3)


async def test_a_reader_stays_at_its_queue(client: httpx.AsyncClient, read: Callable[..., Reader]) -> None:
    """It was let in for the one that the subscription had."""
    reader = read()
    await until(lambda: bool(reader.text))
    changed = await client.put(BILLING, json={**ORDERS, "queue": "others"}, headers={"if-match": "*"})
    assert changed.status_code == 200
    await publish(client, "of the old queue")
    await until(lambda: reader.ended)
    assert json.loads(reader.events[-1]["data"])["reason"].endswith("takes from another queue now: start again")


async def test_what_was_not_settled_goes_back(client: httpx.AsyncClient, read: Callable[..., Reader]) -> None:
    await publish(client, "1")
    reader = read()
    await until(lambda: bool(reader.events))
    await reader.hang_up()
    answer = (await client.post(f"{BILLING}:pull", json={"wait": 5})).json()
    assert [(item["redelivered"], item["message"]["payload"]) for item in answer["messages"]] == [(True, "1")]


@pytest.mark.parametrize(
    ("accept", "end"),
    [
        ("*/*", 'event: end\ndata: {"reason":"the gateway is shutting down"}\n\n'),
        ("application/x-ndjson", '{"end":"the gateway is shutting down"}\n'),
    ],
)
async def test_the_end_is_told(gateway: Gateway, read: Callable[..., Reader], accept: str, end: str) -> None:
    reader = read("", accept)
    await until(lambda: bool(reader.text))
    gateway.drain()
    await until(lambda: reader.ended)
    assert reader.text.endswith(end)


@pytest.mark.parametrize(
    "query", ["max_outstanding=0", "max_outstanding=1001", "ack_deadline_seconds=9", "ack_deadline_seconds=601", "x=1"]
)
async def test_bad_queries(client: httpx.AsyncClient, read: Callable[..., Reader], query: str) -> None:
    problem(await client.get(f"{BILLING}:stream?{query}"), 422, "invalid_parameter")


async def test_what_cannot_be_streamed(client: httpx.AsyncClient, read: Callable[..., Reader]) -> None:
    problem(await client.get("/v1/subscriptions/missing:stream"), 404, "subscription_not_found")
    assert (await client.post(f"{BILLING}:pause")).json()["state"] == "paused"
    problem(await client.get(f"{BILLING}:stream"), 409, "state")
    problem(await client.post(f"{BILLING}:pull", json={}), 409, "state")
    assert (await client.post(f"{BILLING}:resume")).json()["state"] == "active"
    assert (await client.post(f"{BILLING}:pull", json={})).status_code == 200
