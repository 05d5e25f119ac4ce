"""Who holds unacknowledged messages of a queue: the gateway's own parts with their times, and others by management."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from gateway.config import BrokerSettings
from gateway.upstreams import Delivery, Upstream
from tests.core.test_looking import House, _house
from tests.servers import BrokerJ, RabbitMQ

Name = Callable[[str], str]
FIELDS = ("kind", "name", "client", "count")


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    keys = [
        {"name": "root", "key": "root-secret-1", "scopes": ["admin"]},
        {"name": "one", "key": "one-secret-123", "scopes": ["consume:local-0-9-1/mine"]},
    ]
    settings: dict[str, Any] = {"embedded.enabled": True, "api_keys": keys, "outbound": {"allow": ["127.0.0.1/32"]}}
    async for house in _house(tmp_path, settings, "root-secret-1"):
        yield house


def seen(found: Any) -> list[tuple[Any, ...]]:
    return [tuple(each[name] for name in FIELDS) for each in found["holders"]]


THEIRS = ("consumer", "their-tag", "guest", 2)
"""RabbitMQ says so some seconds late, and first that nothing is unacknowledged."""


async def until(house: House, path: str, check: Callable[[Any], bool]) -> Any:
    for _ in range(100):
        found = await house.call("GET", f"{path}/holders")
        if check(found):
            return found
        await asyncio.sleep(0.1)
    raise AssertionError(found)


async def test_leases_of_the_broker_and_of_the_ledger(house: House) -> None:
    path = await house.queue("leased", "local-0-9-1")
    assert (await house.call("GET", f"{path}/holders"))["holders"] == []
    for number in range(5):
        await house.publish("leased", number, "local-0-9-1")
    await house.call("PUT", "/v1/subscriptions/reader", {"broker": "local-0-9-1", "queue": "leased"}, 201)
    before = datetime.now(UTC)
    pulled = await house.call("POST", "/v1/subscriptions/reader:pull", {"max_messages": 2, "wait_seconds": 5})
    found = await house.call("GET", f"{path}/holders")
    assert seen(found) == [("lease", "reader", "root", 2)]
    since = datetime.fromisoformat(found["holders"][0]["since"])
    assert -1 < (since - before).total_seconds() < 10
    assert (found["unacknowledged"], found["others"], found["complete"]) == (2, 0, True)
    body = {"ack_ids": [each["ack_id"] for each in pulled["messages"]]}
    await house.call("POST", "/v1/subscriptions/reader:acknowledge", body)
    await house.call(
        "PUT", "/v1/subscriptions/stored", {"broker": "local-0-9-1", "queue": "leased", "lease": "ledger"}, 201
    )
    await house.call("POST", "/v1/subscriptions/stored:pull", {"max_messages": 1, "wait_seconds": 5})
    found = await until(house, path, lambda found: bool(found["holders"]))
    assert ("ledger_lease", "stored", "", 1) in seen(found)


async def test_a_bridge_whose_target_does_not_confirm(house: House) -> None:
    path = await house.queue("bridged", "local-0-9-1")
    await house.publish("bridged", "stays", "local-0-9-1")
    target = {"broker": "local-0-10", "exchange": "no-such-exchange"}
    settings = {"source": {"broker": "local-0-9-1", "queue": "bridged"}, "target": target}
    await house.call("PUT", "/v1/bridges/stuck", settings, 201)
    found = await until(house, path, lambda found: bool(found["holders"]))
    assert seen(found) == [("bridge", "stuck", "", 1)]
    assert found["holders"][0]["since"] is not None


async def test_it_needs_a_scope_of_the_queue(house: House) -> None:
    headers = {"authorization": "Bearer one-secret-123"}
    for queue, status in (("mine", 200), ("other", 403)):
        await house.queue(queue, "local-0-9-1")
        path = f"/v1/brokers/local-0-9-1/queues/{queue}/holders"
        assert (await house.client.get(path, headers=headers)).status_code == status


async def test_consumers_of_others_are_those_that_rabbitmq_lists(
    rabbitmq40: RabbitMQ, tmp_path: Path, unique_name: Name
) -> None:
    queue = unique_name("foreign")
    management = f"http://127.0.0.1:{rabbitmq40.state.ports['management']}"
    settings = {
        "brokers.peer": {"url": rabbitmq40.url("0-9-1"), "management": management},
        "brokers.blind": {"url": rabbitmq40.url("0-9-1")},
    }
    other = Upstream("other", BrokerSettings(url=rabbitmq40.url("0-9-1")))
    await other.start()
    try:
        async for house in _house(tmp_path, settings):
            assert await other.wait_up(20)
            path = await house.queue(queue)
            for number in range(4):
                await house.publish(queue, number)
            held: list[Delivery] = []
            consumer = await other.consume(queue, 3, held.append)
            found = await until(house, path, lambda found: found["others"] == 3)
            assert seen(found) == [], "its tag is that of a gateway"
            await consumer.close()
            channels = await asyncio.to_thread(_foreign, rabbitmq40, queue)
            try:
                found = await until(house, path, lambda found: found["others"] == 2 and seen(found) == [THEIRS])
                assert "127.0.0.1" in found["holders"][0]["address"]
                blind = await house.call("GET", f"/v1/brokers/blind/queues/{queue}/holders")
                assert (blind["holders"], blind["unacknowledged"], blind["others"]) == ([], None, None)
                assert "Set brokers.blind.management" in blind["reason"]
            finally:
                channels.close()
            await house.call("DELETE", path)
    finally:
        await other.close()


async def test_consumers_of_others_are_those_that_broker_j_lists(
    brokerj: BrokerJ, tmp_path: Path, unique_name: Name
) -> None:
    queue, other = unique_name("fore'ign"), unique_name("beside")
    management = f"http://127.0.0.1:{brokerj.state.ports['http']}"
    settings = {"brokers.peer": {"url": brokerj.url("0-10"), "management": management}}
    async for house in _house(tmp_path, settings):
        path = await house.queue(queue)
        await house.queue(other)
        for number in range(4):
            await house.publish(queue, number)
        connections = [await asyncio.to_thread(_foreign, brokerj, name) for name in (queue, other)]
        try:
            found = await until(house, path, lambda found: found["others"] == 2 and bool(found["holders"]))
            assert seen(found) == [("consumer", "their-tag", "guest", 2)], "not that of the other queue"
            assert found["holders"][0]["address"].startswith("127.0.0.1:")
            assert (found["unacknowledged"], found["reason"]) == (2, "")
        finally:
            for each in connections:
                each.close()
        found = await until(house, path, lambda found: not found["holders"])
        assert (found["unacknowledged"], found["others"]) == (0, 0)
        await house.call("DELETE", path)
        await house.call("DELETE", f"/v1/brokers/peer/queues/{other}")


def _foreign(server: RabbitMQ | BrokerJ, queue: str) -> Any:
    """Another client, which holds two messages if the queue has so many."""
    import pika

    connection = pika.BlockingConnection(pika.URLParameters(server.url("0-9-1").partition("?")[0]))
    channel = connection.channel()
    channel.basic_qos(prefetch_count=2)
    channel.basic_consume(queue, lambda *_: None, consumer_tag="their-tag")
    connection.process_data_events(1)
    return connection
