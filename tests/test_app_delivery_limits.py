"""Delivery limits of RabbitMQ 4: nothing that takes a message and gives it back costs it.

A default quorum queue of RabbitMQ 4 drops a message that came back more than 20 times. The queues are declared by
others, so that the gateway knows nothing of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.app import running
from gateway.config import BrokerSettings, load
from gateway.upstreams import Upstream
from tests.ledgers import sqlite_ledger
from tests.test_app_subscriptions import Peer

ROUNDS = 50
SERVERS = ("rabbitmq40", "rabbitmq43")
PAYLOAD = "one message"

pytestmark = pytest.mark.broker


@pytest.fixture
async def stranger(server: str, request: pytest.FixtureRequest) -> AsyncIterator[Upstream]:
    """Somebody else's connection."""
    upstream = Upstream("stranger", BrokerSettings(url=request.getfixturevalue(server).url("0-9-1")))
    await upstream.start()
    assert await upstream.wait_up(20), upstream.reason
    yield upstream
    await upstream.close()


@pytest.fixture
async def peer(server: str, request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Peer]:
    sqlite_ledger(tmp_path)
    async with gateway(tmp_path, request.getfixturevalue(server).url("0-9-1")) as peer:
        yield peer


@asynccontextmanager
async def gateway(folder: Path, url: str) -> AsyncIterator[Peer]:
    settings: dict[str, Any] = {
        "http.port": 0, "ops.port": 0, "embedded.port": 0, "data_dir": str(folder), "brokers.peer.url": url,
    }  # fmt: skip
    async with running(load(None, {}, settings)) as app, httpx.AsyncClient(base_url=app.url, timeout=60) as client:
        assert await app.gateway.brokers["peer"].wait_up(20)
        yield Peer(app, client, "peer")


async def release(peer: Peer, queue: str) -> None:
    items = await peer.pull(queue, max_messages=1, wait=0.5)
    if items:
        assert (items[0]["message"]["payload"], items[0]["delivery_attempt"]) == (PAYLOAD, None)
        assert await peer.settle(queue, "release", items) == {"SUCCESS"}


async def expire(peer: Peer, queue: str) -> None:
    consuming = peer.app.gateway.consuming
    subscription = await peer.app.gateway.subscriptions.get(queue)
    pulled = await consuming.pull(subscription, 1, 0.5, 0.02)
    while pulled and consuming.lease_count(queue):
        await asyncio.sleep(0.01)


async def look(peer: Peer, queue: str) -> None:
    source = {"queue": {"broker": peer.broker, "queue": queue}}
    answer = await peer.client.post("/v1/replays", json={"source": source, "dry_run": True})
    assert answer.status_code == 200, answer.text


async def peek(peer: Peer, queue: str) -> None:
    """Compare both sides of a bridge whose target is the queue."""
    bridge = {
        "source": {"broker": peer.broker, "queue": f"{queue}-source"},
        "target": {"broker": peer.broker, "exchange": "", "routing_key": queue},
        "paused": True,
    }
    await peer.client.put("/v1/bridges/side", json=bridge)
    answer = await peer.client.post("/v1/bridges/side:compare", json={"peek": True})
    assert answer.status_code == 200, answer.text


async def crash(peer: Peer, queue: str) -> None:
    """The channel breaks while a consumer has the message: that counts everywhere."""
    await peer.pull(queue, max_messages=1, wait=0.5)
    for channel in list(peer.app.gateway.brokers[peer.broker]._leases._channels):
        channel.abandon()


async def dead(peer: Peer) -> list[Any]:
    rows: list[Any] = (await peer.client.get("/v1/deliveries", params={"state": "dead"})).json()["deliveries"]
    return rows


LOOKS = (look, peek)


@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize("kind", ["classic", "quorum"])
@pytest.mark.parametrize("way", [release, expire, look, peek, crash], ids=lambda way: way.__name__)
async def test_a_message_is_still_there_or_dead_with_its_reason(
    peer: Peer, stranger: Upstream, unique_name: Callable[[str], str], kind: str, way: Callable[..., Any]
) -> None:
    queue = unique_name(f"limit-{kind}")
    await stranger.declare_queue(queue, arguments={"x-queue-type": kind})
    if way not in LOOKS:
        await peer.subscribe(queue, queue=queue)
    (message_id,) = await peer.publish("amq.default", {"routing_key": queue, "payload": PAYLOAD})
    for _ in range(ROUNDS):
        await way(peer, queue)
        if kind == "quorum" and await dead(peer):
            break
    if way in LOOKS:
        await peer.subscribe(queue, queue=queue)
    items = await peer.pull(queue, max_messages=10, wait=2)
    rows = await dead(peer)
    assert len(items) + len(rows) == 1, "gone, or there twice"
    if rows:
        (row,) = rows
        assert kind == "quorum"
        assert row["reason"]["reason"].startswith("delivery limit: it was delivered and given back 1")
        assert row["reason"]["code"] == "delivery_limit"
        assert row["subscription"] == (queue if way not in LOOKS else f"queue:peer/{queue}")
        story = (await peer.client.get(f"/v1/messages/{message_id}")).json()
        assert story["state"] == "dead"
        assert (await peer.client.get(f"/v1/deliveries/{row['id']}")).json()["message"]["payload"] == PAYLOAD
        await peer.until_empty(queue)
        if way not in LOOKS:
            assert (await peer.client.post(f"/v1/deliveries/{row['id']}:retry")).status_code == 200
            items = await peer.pull(queue, wait=2)
            assert [item["delivery_attempt"] for item in items] == [None]
        else:
            target = {"broker": peer.broker, "exchange": "amq.default", "routing_key": queue}
            replay = await peer.client.post(f"/v1/deliveries/{row['id']}:replay", json={"target": target})
            assert replay.status_code == 201, replay.text
            items = await peer.pull(queue, wait=20)
        assert len(items) == 1
    for item in items:
        assert item["message"]["payload"] == PAYLOAD
        assert await peer.settle(queue, "acknowledge", [item]) == {"SUCCESS"}
    await peer.clean(queue)


@pytest.mark.parametrize("server", SERVERS)
async def test_a_known_place_gets_it(peer: Peer, stranger: Upstream, unique_name: Callable[[str], str]) -> None:
    queue, place = unique_name("limit-place"), unique_name("limit-dead")
    await stranger.declare_queue(queue, arguments={"x-queue-type": "quorum", "x-delivery-limit": 4})
    await stranger.declare_queue(place)
    await peer.client.put("/v1/subscriptions/dead", json={"broker": peer.broker, "queue": place})
    await peer.subscribe(queue, queue=queue, dead_letter_routing_key=place)
    # The gateway knows the limit of a queue that it declared: it is there already, with these arguments.
    arguments = {"x-queue-type": "quorum", "x-delivery-limit": 4}
    answer = await peer.client.put(f"/v1/brokers/peer/queues/{queue}", json={"arguments": arguments})
    assert answer.status_code in (200, 201), answer.text
    await peer.publish("amq.default", {"routing_key": queue, "payload": PAYLOAD})
    for _ in range(10):
        await crash(peer, queue)
        if await peer.depth(place):
            break
    (item,) = await peer.pull("dead", wait=5)
    assert item["message"]["payload"] == PAYLOAD
    assert await peer.settle("dead", "acknowledge", [item]) == {"SUCCESS"}
    story = (await peer.client.get(f"/v1/messages/{item['message']['id']}")).json()
    (event,) = [event for event in story["events"] if event["kind"] == "dead_lettered"]
    assert event["detail"]["reason"].startswith("delivery limit: it was delivered and given back 3 times")
    assert await dead(peer) == []
    await peer.clean(queue, place)


@pytest.mark.parametrize("server", SERVERS)
async def test_a_queue_that_is_stated_to_dead_letter_does_so_itself(
    peer: Peer, stranger: Upstream, unique_name: Callable[[str], str]
) -> None:
    queue, place = unique_name("limit-native"), unique_name("limit-dead")
    await stranger.declare_queue(place)
    arguments = {"x-queue-type": "quorum", "x-dead-letter-exchange": "", "x-dead-letter-routing-key": place}
    await stranger.declare_queue(queue, arguments=arguments)
    await peer.subscribe(queue, queue=queue, dead_letter_native=True)
    await peer.client.put("/v1/subscriptions/dead", json={"broker": peer.broker, "queue": place})
    await peer.publish("amq.default", {"routing_key": queue, "payload": PAYLOAD})
    for _ in range(ROUNDS):
        await crash(peer, queue)
        if await peer.depth(place):
            break
    (item,) = await peer.pull("dead", wait=5)
    assert item["message"]["headers"]["x-first-death-reason"] == "delivery_limit"
    assert await peer.settle("dead", "acknowledge", [item]) == {"SUCCESS"}
    assert await dead(peer) == []
    await peer.clean(queue, place)


async def test_a_maximum_that_nobody_counts_takes_a_ledger(
    request: pytest.FixtureRequest, tmp_path: Path, unique_name: Callable[[str], str]
) -> None:
    """Broker-J drops a message after a maximum of deliveries in 0-10, and does not tell how many there were."""
    queue = unique_name("limit-maximum")
    sqlite_ledger(tmp_path)
    async with gateway(tmp_path, request.getfixturevalue("brokerj").url("0-10")) as peer:
        arguments = {"x-qpid-maximum-delivery-count": 3}
        answer = await peer.client.put(f"/v1/brokers/peer/queues/{queue}", json={"arguments": arguments})
        assert answer.status_code == 201, answer.text
        await peer.publish("amq.default", {"routing_key": queue, "payload": PAYLOAD})
        await peer.subscribe("broker", queue=queue)
        answer = await peer.client.post("/v1/subscriptions/broker:pull", json={})
        assert (answer.status_code, answer.json()["code"]) == (422, "unsupported")
        source = {"queue": {"broker": "peer", "queue": queue}}
        answer = await peer.client.post("/v1/replays", json={"source": source, "dry_run": True})
        assert (answer.status_code, answer.json()["code"]) == (422, "unsupported")
        await peer.subscribe("ledger", queue=queue, lease="ledger")
        for attempt in range(1, 6):
            (item,) = await peer.pull("ledger", wait=5)
            assert (item["message"]["payload"], item["delivery_attempt"]) == (PAYLOAD, attempt)
            assert await peer.settle("ledger", "release", [item]) == {"SUCCESS"}
        await peer.clean(queue)
