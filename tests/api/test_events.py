"""``/v1/events`` and ``/v1/statistics``."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from gateway.api.app import Api
from gateway.api.history import events
from gateway.api.http.call import encode
from gateway.config import HttpSettings
from gateway.core import Gateway
from gateway.ledger import EventFilter, EventKind, LogEntry, MessageIds, RecordedEvent
from tests.api.conftest import problem
from tests.audited import ON_PURPOSE

new_id = MessageIds()


def of_bridge(kind: EventKind = EventKind.FORWARDED, **detail: Any) -> LogEntry:
    return LogEntry(new_id(), kind, 1_800_000_000_000_000, "fake", "0-9-1", {"bridge": "east", **detail})


class Reader:
    """A client that reads a stream as it comes: ASGI by hand, since a client in between would wait for the end."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.octets = b""
        self.ended = False
        self.gone = asyncio.Event()
        self.came = asyncio.Event()
        self.stuck: asyncio.Event | None = None

    async def receive(self) -> Any:
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        if self.stuck is not None:
            await self.stuck.wait()
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {name.decode(): value.decode() for name, value in message["headers"]}
        else:
            self.octets += message["body"]
            self.ended = not message["more_body"]
        self.came.set()

    async def until(self, done: Callable[[Reader], bool]) -> None:
        async with asyncio.timeout(60):
            while not done(self):
                self.came.clear()
                await self.came.wait()

    @property
    def blocks(self) -> list[dict[str, str]]:
        """What came as server-sent events."""
        whole = self.octets.decode().split("\n\n")[:-1]
        return [dict(line.split(": ", 1) for line in block.splitlines() if ": " in line) for block in whole]

    @property
    def found(self) -> list[tuple[dict[str, int], int, str]]:
        """The events: position, sequence, kind."""
        datas = [(block["id"], json.loads(block["data"])) for block in self.blocks if "data" in block]
        return [(json.loads(id), data["sequence"], data["kind"]) for id, data in datas]


Follow = Callable[..., Any]


@pytest.fixture
def follow(gateway: Gateway) -> Follow:
    """``async with follow("kind=dead") as reader``"""
    api = Api(gateway, HttpSettings())

    @asynccontextmanager
    async def follow(query: str = "", **headers: str) -> AsyncIterator[Reader]:
        reader = Reader()
        given = {"host": "localhost", **headers}
        scope = {
            "type": "http", "method": "GET", "path": "/v1/events", "raw_path": b"/v1/events",
            "query_string": query.encode(), "client": ("127.0.0.1", 1),
            "headers": [(name.replace("_", "-").encode(), value.encode()) for name, value in given.items()],
        }  # fmt: skip
        task = asyncio.create_task(api(scope, reader.receive, reader.send))
        try:
            await reader.until(lambda reader: bool(reader.status and reader.octets))
            yield reader
        finally:
            reader.gone.set()
            await task

    return follow


async def test_from_now_on_and_back_to_where_it_was(gateway: Gateway, follow: Follow) -> None:
    await gateway.ledger.record([of_bridge()])
    async with follow() as reader:
        assert reader.headers["content-type"].startswith("text/event-stream")
        assert reader.headers["cache-control"] == "no-store"
        assert "content-length" not in reader.headers
        assert reader.blocks == [{"id": '{"0":1}'}]  # where it begins
        await gateway.ledger.record([of_bridge(), of_bridge(EventKind.REDUCED)])
        await reader.until(lambda reader: len(reader.found) == 2)
        assert reader.found == [({"0": 2}, 2, "forwarded"), ({"0": 3}, 3, "reduced")]
        assert reader.blocks[1]["event"] == "message"
    assert gateway.ledger.history.followers == 0
    assert not reader.octets.endswith(b"\n\n\n")
    async with follow(last_event_id='{"0":2}') as reader:
        await reader.until(lambda reader: bool(reader.found))
        assert reader.found == [({"0": 3}, 3, "reduced")]


async def test_where_to_begin(gateway: Gateway, follow: Follow) -> None:
    at = 1_800_000_000_000_000
    for number in range(4):
        entry = of_bridge()
        await gateway.ledger.record([LogEntry(entry.message_id, entry.kind, at + number * 1_000_000, "fake", "0-9-1")])
    for query, headers, first in (
        ("position={}", {}, 1),
        ('position={"0":2}', {}, 3),
        ("position={}", {"last_event_id": '{"0":3}'}, 4),
        ("since=2027-01-15T08:00:02Z", {}, 3),
        ("since=2027-01-15T09:00:02%2B01:00", {}, 3),
    ):
        async with follow(query, **headers) as reader:
            await reader.until(lambda reader: bool(reader.found))
            assert reader.found[0][1] == first, query


async def test_filters_and_what_is_passed(gateway: Gateway, follow: Follow) -> None:
    """A client that sees none of many events comes back behind them."""
    entries = [of_bridge(), of_bridge(subscription="s"), of_bridge(EventKind.DEAD, endpoint="shop"), of_bridge()]
    await gateway.ledger.record(entries)
    message = "-".join(entries[1].message_id.hex()[a:b] for a, b in ((0, 8), (8, 12), (12, 16), (16, 20), (20, 32)))
    for query, expected in (
        ("kind=dead,%20reduced", [3]),
        ("bridge=east&kind=forwarded", [1, 2, 4]),
        ("subscription=s", [2]),
        ("endpoint=shop", [3]),
        (f"message={message}", [2]),
        ("broker=other", []),
    ):
        async with follow(f"position={{}}&{query}") as reader:
            await reader.until(lambda reader: reader.blocks[-1].get("id") == '{"0":4}')
            assert [sequence for _, sequence, _ in reader.found] == expected, query


async def test_ndjson(gateway: Gateway, follow: Follow) -> None:
    await gateway.ledger.record([of_bridge(), of_bridge()])
    async with follow("position={}", accept="text/html;q=0.1, application/x-ndjson") as reader:
        await reader.until(lambda reader: reader.octets.count(b"\n") == 3)
        assert reader.headers["content-type"] == "application/x-ndjson"
        first, *lines = map(json.loads, reader.octets.splitlines())
        assert first == {"position": {}}
        assert [(line["sequence"], line["position"], line["detail"]) for line in lines] == [
            (1, {"0": 1}, {"bridge": "east"}),
            (2, {"0": 2}, {"bridge": "east"}),
        ]


async def test_what_there_is_and_no_more(gateway: Gateway, client: httpx.AsyncClient) -> None:
    await gateway.ledger.record([of_bridge(number=number) for number in range(2_500)])
    headers = {"accept": "application/x-ndjson"}
    response = await client.get("/v1/events", params={"position": "{}", "follow": "false"}, headers=headers)
    lines = [json.loads(line) for line in response.text.splitlines()]
    assert [line["sequence"] for line in lines] == list(range(1, 2_501))
    assert (await client.get("/v1/events", params={"follow": "false"})).text == ""
    assert (await client.head("/v1/events")).status_code == 200


async def test_a_stream_says_that_it_lives(follow: Follow, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "IDLE", 0.01)
    async with follow() as reader:
        await reader.until(lambda reader: len(reader.blocks) == 4)
    assert reader.octets.startswith(b':\nid: {"0":0}\n\n:\nid: {"0":0}\n\n')


async def test_it_ends_when_the_gateway_shuts_down(
    gateway: Gateway, follow: Follow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "LOOK", 0.01)
    async with follow() as reader:
        gateway.drain()
        await reader.until(lambda reader: reader.ended)
    assert gateway.ledger.history.followers == 0


async def test_who_reads_nothing_is_cut_off(gateway: Gateway, follow: Follow, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "STUCK", 0.05)
    api = Api(gateway, HttpSettings())
    reader = Reader()
    scope = {
        "type": "http", "method": "GET", "path": "/v1/events", "raw_path": b"/v1/events", "query_string": b"",
        "headers": [(b"host", b"localhost")], "client": ("127.0.0.1", 1),
    }  # fmt: skip
    task = asyncio.create_task(api(scope, reader.receive, reader.send))
    await reader.until(lambda reader: bool(reader.octets))
    reader.stuck = asyncio.Event()
    await gateway.ledger.record([of_bridge()])
    async with asyncio.timeout(60):
        await asyncio.gather(task, return_exceptions=True)
    assert gateway.ledger.history.followers == 0


async def test_a_ledger_that_goes_away_ends_the_stream(gateway: Gateway, follow: Follow) -> None:
    stream = events.EventStream(gateway, events.NDJSON, {}, EventFilter(), follow=False)
    await gateway.ledger.close()
    assert [piece async for piece in stream.pieces(asyncio.Future())] == []


async def test_only_so_many_streams(client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "FOLLOWERS_MAX", 0)
    problem(await client.get("/v1/events"), 503, "overloaded")


def test_texts_that_json_cannot_hold_are_escaped() -> None:
    event = RecordedEvent(0, 1, new_id(), EventKind.DEAD, 0, "b", "v", {"reason": "\udcff"})
    assert json.loads(encode(events.FeedEvent(**events._fields(event))))["detail"] == {"reason": "\udcff"}


@pytest.mark.parametrize(
    "query", ["kind=nonsense", "message=x", "position=x", "position=[]", 'position={"a":1}', 'position={"0":-1}',
              "since=yesterday", "since=2026-01-01T00:00:00", "follow=x", "more=1"],
)  # fmt: skip
async def test_bad_queries(client: httpx.AsyncClient, query: str) -> None:
    problem(await client.get(f"/v1/events?{query}"), 422, "invalid_parameter")


async def test_a_position_has_a_bound(client: httpx.AsyncClient) -> None:
    position = json.dumps({str(shard): 1 for shard in range(1_000)})
    answer = await client.get("/v1/events?follow=false", headers={"last-event-id": position})
    assert "the limit is 8000" in problem(answer, 422, "invalid_parameter")["detail"]


async def test_events_are_for_admins(client_with_keys: Callable[..., httpx.AsyncClient]) -> None:
    for path in ("/v1/events", "/v1/statistics"):
        problem(await client_with_keys("publish:*/*").get(path), 403, "forbidden")


# ------------------------------------------------------------------------------------------------ statistics


async def test_counts(gateway: Gateway, client: httpx.AsyncClient) -> None:
    dead = of_bridge(EventKind.DEAD, subscription="s")
    ON_PURPOSE.add(dead.message_id)  # nothing is kept of it
    await gateway.ledger.record([of_bridge(), of_bridge(), dead])
    assert (await client.get("/v1/statistics")).json() == {"hours": []}
    await gateway.ledger.history.keeper.count()
    hours = (await client.get("/v1/statistics")).json()["hours"]
    empty = {"subscription": "", "endpoint": "", "bridge": "", "octets": 0, "hour": "2027-01-15T08:00:00.000000Z"}
    assert hours == [
        {**empty, "kind": "dead", "broker": "fake", "events": 1},
        {**empty, "kind": "forwarded", "broker": "fake", "events": 2},
    ]

    async def total(query: str) -> list[int]:
        return [each["events"] for each in (await client.get(f"/v1/statistics?{query}")).json()["hours"]]

    assert await total("by=") == [3]
    assert await total("by=bridge,subscription") == [2, 1]
    assert await total("by=&kind=dead,forwarded&bridge=east&broker=fake") == [3]
    assert await total("by=&subscription=s") == [1]
    assert await total("by=&endpoint=s") == []
    assert await total("by=&since=2027-01-15T08:30:00Z&until=2027-01-15T08:31:00Z") == [3]
    assert await total("since=2027-01-15T09:00:00Z") == []
    assert await total("until=2027-01-15T08:00:00Z") == []


async def test_counts_by_pages(gateway: Gateway, client: httpx.AsyncClient) -> None:
    entries = [of_bridge(kind) for kind in EventKind]
    ON_PURPOSE.update(each.message_id for each in entries if each.kind in (EventKind.PREPARED, EventKind.SCHEDULED))
    await gateway.ledger.record(entries)
    await gateway.ledger.history.keeper.count()
    found = []
    url: str | None = "/v1/statistics?limit=4&by=kind&since=2027-01-15T08:00:00Z&bridge=east"
    while url:
        response = await client.get(url)
        found += [each["kind"] for each in response.json()["hours"]]
        url = response.links.get("next", {}).get("url")
    assert found == sorted(EventKind)
    response = await client.get("/v1/statistics?limit=1&by=")
    assert response.links == {}


@pytest.mark.parametrize("query", ["by=hour", "kind=x", "cursor=x", "since=x", "since=null", "limit=0"])
async def test_bad_questions(client: httpx.AsyncClient, query: str) -> None:
    problem(await client.get(f"/v1/statistics?{query}"), 422, "invalid_parameter")
