"""Subscriptions of a whole gateway, in front of every broker in every version: leases of both kinds, in order, as a
stream, with a filter, dead letters."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.app import App, running
from gateway.config import load
from tests.ledgers import sqlite_ledger
from tests.servers import serving

PEERS = [
    ("embedded", "0-8"),
    ("embedded", "0-9"),
    ("embedded", "0-9-1"),
    ("embedded", "0-10"),
    pytest.param(("rabbitmq", "0-8"), marks=pytest.mark.broker),
    pytest.param(("rabbitmq", "0-9-1"), marks=pytest.mark.broker),
    pytest.param(("brokerj", "0-8"), marks=pytest.mark.broker),
    pytest.param(("brokerj", "0-9"), marks=pytest.mark.broker),
    pytest.param(("brokerj", "0-9-1"), marks=pytest.mark.broker),
    pytest.param(("brokerj", "0-10"), marks=pytest.mark.broker),
]
COUNT = 60


class Peer:
    """A gateway with one broker, and an HTTP client for it."""

    def __init__(self, app: App, client: httpx.AsyncClient, broker: str) -> None:
        self.app = app
        self.client = client
        self.broker = broker

    async def subscribe(self, name: str, **settings: Any) -> None:
        answer = await self.client.put(f"/v1/subscriptions/{name}", json={"broker": self.broker, **settings})
        assert answer.status_code == 201, answer.text

    async def declare(self, *queues: str) -> None:
        for queue in queues:
            answer = await self.client.put(f"/v1/brokers/{self.broker}/queues/{queue}", json={})
            assert answer.status_code == 201, answer.text

    async def publish(self, exchange: str, *messages: dict[str, Any]) -> list[str]:
        path = f"/v1/brokers/{self.broker}/exchanges/{exchange}:publish"
        answer = await self.client.post(path, json={"messages": messages})
        results = answer.json()["results"]
        assert {item["status"] for item in results} == {200}, answer.text
        return [item["id"] for item in results]

    async def pull(self, name: str, **request: Any) -> list[Any]:
        answer = await self.client.post(f"/v1/subscriptions/{name}:pull", json=request)
        assert answer.status_code == 200, answer.text
        items: list[Any] = answer.json()["messages"]
        return items

    async def settle(self, name: str, verb: str, items: list[Any], **more: Any) -> set[str]:
        body = {"ack_ids": [item["ack_id"] for item in items], **more}
        answer = await self.client.post(f"/v1/subscriptions/{name}:{verb}", json=body)
        assert answer.status_code == 200, answer.text
        return {item["status"] for item in answer.json()["results"]}

    async def depth(self, queue: str) -> int:
        found: int = (await self.client.get(f"/v1/brokers/{self.broker}/queues/{queue}")).json()["messages"]
        return found

    async def until_empty(self, queue: str) -> None:
        """Some brokers count a message until they have come to its acknowledgement."""
        async with asyncio.timeout(30):
            while await self.depth(queue):
                await asyncio.sleep(0.1)

    async def clean(self, *queues: str) -> None:
        for queue in queues:
            await self.client.delete(f"/v1/brokers/{self.broker}/queues/{queue}")


@pytest.fixture(params=PEERS, ids=lambda peer: " ".join(peer))
async def peer(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Peer]:
    """A gateway with one broker, in one version."""
    kind, version = request.param
    settings: dict[str, Any] = {"http.port": 0, "ops.port": 0, "embedded.port": 0, "data_dir": str(tmp_path)}
    broker = f"local-{version}"
    if kind == "embedded":
        settings["embedded.enabled"] = True
    else:
        broker = "peer"
        settings["brokers.peer.url"] = request.getfixturevalue(serving(kind, version)).url(version)
    sqlite_ledger(tmp_path)
    async with running(load(None, {}, settings)) as app, httpx.AsyncClient(base_url=app.url, timeout=30) as client:
        assert await app.gateway.brokers[broker].wait_up(20)
        yield Peer(app, client, broker)


async def test_a_rejection_never_drops_a_message(peer: Peer, unique_name: Callable[[str], str]) -> None:
    """Nothing says where the queue's rejected messages go: each stays, until somebody discards it."""
    queue = unique_name("rejected")
    await peer.declare(queue)
    await peer.subscribe(queue, queue=queue)
    await peer.publish("amq.default", {"routing_key": queue, "payload": "x"})
    (item,) = await peer.pull(queue, wait=5)
    path = f"/v1/subscriptions/{queue}:reject"
    ids = [item["ack_id"]]
    for reason in ({}, {"reason": "no such customer"}):
        answer = await peer.client.post(path, json={"ack_ids": [*ids, "forged"], **reason})
        failed, _ = answer.json()["results"]
        assert (failed["status"], failed["problem"]["code"]) == ("FAILED", "no_dead_letter_destination")
        assert "discard" in failed["problem"]["advice"]
    answer = await peer.client.post(path, json={"ack_ids": ids})
    assert (answer.status_code, answer.json()["code"]) == (422, "no_dead_letter_destination")
    assert await peer.settle(queue, "release", [item]) == {"SUCCESS"}
    (again,) = await peer.pull(queue, wait=5)
    assert again["message"]["payload"] == "x"
    assert await peer.settle(queue, "reject", [again], reason="not wanted", discard=True) == {"SUCCESS"}
    assert await peer.settle(queue, "reject", [again], discard=True) == {"SUCCESS"}
    await peer.until_empty(queue)
    told = (await peer.client.get(f"/v1/messages/{again['message']['id']}")).json()
    assert told["state"] == "discarded"
    last = told["events"][-1]
    assert (last["kind"], last["detail"]["reason"]) == ("discarded", "not wanted")


@pytest.mark.parametrize("lease", ["broker", "ledger"])
async def test_every_message_once_and_dead_letters_with_a_reason(
    peer: Peer, unique_name: Callable[[str], str], lease: str
) -> None:
    queue = unique_name("pulled")
    dead = f"{queue}-dead"
    await peer.declare(queue, dead)
    await peer.subscribe(queue, queue=queue, lease=lease, dead_letter_routing_key=dead)
    await peer.subscribe(dead, queue=dead)
    messages = [{"routing_key": queue, "payload": str(n), "headers": {"n": n}} for n in range(COUNT)]
    published = await peer.publish("amq.default", *messages)
    items: list[Any] = []
    while len(items) < COUNT:
        items += await peer.pull(queue, max_messages=25, wait=5)
    assert [item["message"]["id"] for item in items] == published
    assert [item["message"]["headers"] for item in items] == [{"n": n} for n in range(COUNT)]
    counted = lease == "ledger"
    assert {(item["delivery_attempt"], item["redelivered"]) for item in items} == {(1 if counted else None, False)}
    assert await peer.settle(queue, "acknowledge", items[5:]) == {"SUCCESS"}
    assert await peer.settle(queue, "release", items[:5]) == {"SUCCESS"}
    again: list[Any] = []
    while len(again) < 5:
        again += await peer.pull(queue, wait=5)
    assert {item["message"]["id"] for item in again} == set(published[:5])
    assert {item["redelivered"] for item in again} == {True}
    assert {item["delivery_attempt"] for item in again} == {2 if counted else None}
    assert await peer.settle(queue, "reject", again, reason="no such customer") == {"SUCCESS"}
    graves: list[Any] = []
    while len(graves) < 5:
        graves += await peer.pull(dead, wait=5)
    assert {item["message"]["id"] for item in graves} == set(published[:5])
    timeline = (await peer.client.get(f"/v1/messages/{published[0]}")).json()
    assert "no such customer" in json.dumps(timeline)
    assert await peer.settle(dead, "acknowledge", graves) == {"SUCCESS"}
    assert await peer.pull(queue) == []
    await peer.clean(queue, dead)


async def test_in_order_by_key_from_an_exchange(peer: Peer, unique_name: Callable[[str], str]) -> None:
    name = unique_name("ordered")
    await peer.subscribe(
        name, exchange="amq.topic", binding_key=f"{name}.#", lease="ledger", order_key="header:customer", prefetch=20
    )
    messages = [
        {"routing_key": f"{name}.{n}", "payload": str(n), "headers": {"customer": f"c{n % 7}"}} for n in range(COUNT)
    ]
    await peer.publish("amq.topic", *messages)
    got: dict[str, list[int]] = defaultdict(list)
    count = 0
    async with asyncio.timeout(60):
        while count < COUNT:
            items = await peer.pull(name, max_messages=30, wait=5)
            keys = [item["message"]["headers"]["customer"] for item in items]
            assert len(keys) == len(set(keys)), "one of each key at a time"
            for key, item in zip(keys, items, strict=True):
                got[key].append(int(item["message"]["payload"]))
            count += len(items)
            if items:
                assert await peer.settle(name, "acknowledge", items) == {"SUCCESS"}
    assert dict(got) == {f"c{key}": list(range(key, COUNT, 7)) for key in range(7)}
    assert (await peer.client.delete(f"/v1/subscriptions/{name}")).status_code == 204
    queue = f"gateway.subscription.{name}"
    async with asyncio.timeout(20):
        while (await peer.client.get(f"/v1/brokers/{peer.broker}/queues/{queue}")).status_code != 404:
            await asyncio.sleep(0.1)


@pytest.mark.parametrize("lease", ["broker", "ledger"])
async def test_a_stream_with_a_window(peer: Peer, unique_name: Callable[[str], str], lease: str) -> None:
    queue = unique_name("streamed")
    await peer.declare(queue)
    await peer.subscribe(queue, queue=queue, lease=lease)
    await peer.publish("amq.default", *({"routing_key": queue, "payload": str(n)} for n in range(COUNT)))
    seen: list[str] = []
    path = f"/v1/subscriptions/{queue}:stream?max_outstanding=10"
    async with (
        asyncio.timeout(60),
        peer.client.stream("GET", path, headers={"accept": "application/x-ndjson"}) as answer,
    ):
        batch: list[Any] = []
        async for line in answer.aiter_lines():
            if not line:
                continue
            batch.append(json.loads(line))
            assert len(batch) <= 10
            if len(batch) == 10:
                seen += [item["message"]["payload"] for item in batch]
                if len(seen) == COUNT:
                    break  # the last ten are not acknowledged
                assert await peer.settle(queue, "acknowledge", batch) == {"SUCCESS"}
                batch = []
    assert seen == [str(n) for n in range(COUNT)]
    back: list[Any] = []
    async with asyncio.timeout(30):
        while len(back) < 10:
            back += await peer.pull(queue, max_messages=10, wait=5)
    assert sorted(int(item["message"]["payload"]) for item in back) == list(range(COUNT - 10, COUNT))
    assert {item["redelivered"] for item in back} == {True}
    assert await peer.settle(queue, "acknowledge", back) == {"SUCCESS"}
    await peer.clean(queue)


@pytest.mark.parametrize("lease", ["broker", "ledger"])
async def test_what_the_filter_does_not_want(peer: Peer, unique_name: Callable[[str], str], lease: str) -> None:
    queue = unique_name("filtered")
    dead = f"{queue}-dead"
    await peer.declare(queue, dead)
    await peer.subscribe(queue, queue=queue, lease=lease, filter={"selector": "n > 4"}, dead_letter_routing_key=dead)
    messages = [{"routing_key": queue, "payload": str(n), "headers": {"n": n}} for n in range(10)]
    await peer.publish("amq.default", *messages)
    items: list[Any] = []
    async with asyncio.timeout(30):
        while len(items) < 5:
            items += await peer.pull(queue, wait=5)
        while await peer.depth(dead) < 5:
            await asyncio.sleep(0.1)
    assert [item["message"]["payload"] for item in items] == ["5", "6", "7", "8", "9"]
    assert await peer.settle(queue, "acknowledge", items) == {"SUCCESS"}
    assert await peer.pull(queue) == []
    await peer.until_empty(queue)
    await peer.clean(queue, dead)


async def test_released_with_a_delay(peer: Peer, unique_name: Callable[[str], str]) -> None:
    queue = unique_name("delayed")
    await peer.declare(queue)
    await peer.subscribe(queue, queue=queue, lease="ledger", max_deliveries=2)
    await peer.publish("amq.default", {"routing_key": queue, "payload": "x"})
    items = await peer.pull(queue, wait=5)
    assert await peer.settle(queue, "release", items, delay_seconds=0.5) == {"SUCCESS"}
    assert await peer.pull(queue) == []
    await peer.until_empty(queue)  # the ledger holds it
    (again,) = await peer.pull(queue, wait=10)
    assert (again["delivery_attempt"], again["redelivered"]) == (2, True)
    assert await peer.settle(queue, "release", [again]) == {"SUCCESS"}
    assert await peer.pull(queue, wait=0.2) == []
    assert (await peer.client.get(f"/v1/subscriptions/{queue}")).json()["backlog"]["dead"] == 1
    await peer.clean(queue)
