"""A whole gateway in front of real brokers: the HTTP API is the same whatever they speak."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.app import running
from gateway.config import load
from tests.ledgers import sqlite_ledger
from tests.servers import serving

PEERS = [
    ("rabbitmq", "0-8"),
    ("rabbitmq", "0-9-1"),
    ("brokerj", "0-8"),
    ("brokerj", "0-9"),
    ("brokerj", "0-9-1"),
    ("brokerj", "0-10"),
]

pytestmark = pytest.mark.broker


@pytest.fixture(params=PEERS, ids=lambda peer: " ".join(peer))
async def client(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    """A gateway with one broker, ``peer``, in one version."""
    kind, version = request.param
    server: Any = request.getfixturevalue(serving(kind, version))
    settings = {"http.port": 0, "ops.port": 0, "data_dir": str(tmp_path), "brokers.peer.url": server.url(version)}
    sqlite_ledger(tmp_path)
    async with running(load(None, {}, settings)) as app, httpx.AsyncClient(base_url=app.url, timeout=30) as client:
        assert await app.gateway.brokers["peer"].wait_up(20)
        yield client


async def pull(client: httpx.AsyncClient, queue: str, count: int = 10) -> list[Any]:
    path = f"/v1/subscriptions/{queue}"
    await client.put(path, json={"broker": "peer", "queue": queue, "dead_letter_routing_key": f"{queue}-dead"})
    response = await client.post(f"{path}:pull", json={"max_messages": count, "wait": 5})
    assert response.status_code == 200, response.text
    messages: list[Any] = response.json()["messages"]
    return messages


async def settle(client: httpx.AsyncClient, queue: str, verb: str, items: list[Any]) -> list[str]:
    body = {"ack_ids": [item["ack_id"] for item in items]}
    response = await client.post(f"/v1/subscriptions/{queue}:{verb}", json=body)
    assert response.status_code == 200, response.text
    return [item["status"] for item in response.json()["results"]]


async def test_the_main_job(client: httpx.AsyncClient, unique_name: Callable[[str], str]) -> None:
    queue = unique_name("http")
    dead = f"{queue}-dead"
    for name in (queue, dead):
        created = await client.put(f"/v1/brokers/peer/queues/{name}", json={"durable": True})
        assert (created.status_code, created.json()["durable"]) == (201, True), created.text
    assert (await client.put(f"/v1/brokers/peer/queues/{queue}")).status_code == 200
    publish = "/v1/brokers/peer/exchanges/amq.default:publish"
    messages = [
        {"routing_key": queue, "payload": str(n), "headers": {"n": n}, "properties": {"message_id": f"m-{n}"}}
        for n in range(200)
    ]
    response = await client.post(publish, json={"messages": messages})
    assert response.status_code == 207
    assert {(item["status"], item["routed"], item["durable"]) for item in response.json()["results"]} == {
        (200, True, True)
    }
    unroutable = await client.post(publish, json={"routing_key": f"{queue}-missing"})
    assert (unroutable.status_code, unroutable.json()["code"]) == (422, "unroutable")
    allowed = await client.post(publish, json={"routing_key": f"{queue}-missing", "mandatory": False})
    assert (allowed.json()["status"], allowed.json()["routed"]) == ("unroutable", False)
    unknown = await client.post(f"/v1/brokers/peer/exchanges/{queue}:publish", json={"routing_key": queue})
    assert (unknown.status_code, unknown.json()["code"]) == (404, "not_found")

    items = await pull(client, queue, 200)
    while len(items) < 200:
        items += await pull(client, queue, 200)
    assert [item["message"]["payload"] for item in items] == [str(n) for n in range(200)]
    assert [item["message"]["headers"] for item in items] == [{"n": n} for n in range(200)]
    assert [item["message"]["id"] for item in items] == [item["id"] for item in response.json()["results"]]
    assert set(await settle(client, queue, "acknowledge", items[:190])) == {"SUCCESS"}
    assert set(await settle(client, queue, "release", items[190:])) == {"SUCCESS"}
    again = await pull(client, queue, 10)
    assert {item["redelivered"] for item in again} == {True}
    assert set(await settle(client, queue, "reject", again)) == {"SUCCESS"}
    async with asyncio.timeout(10):
        while (await client.get(f"/v1/brokers/peer/queues/{queue}")).json()["messages"]:
            await asyncio.sleep(0.05)
    timeline = (await client.get(f"/v1/messages/{again[0]['message']['id']}")).json()
    assert [event["kind"] for event in timeline["events"]] == [
        "accepted", "confirmed", "delivered", "released", "delivered", "rejected",
    ]  # fmt: skip
    for name in (queue, dead):
        assert (await client.delete(f"/v1/brokers/peer/queues/{name}")).status_code == 200
        assert (await client.get(f"/v1/brokers/peer/queues/{name}")).status_code == 404


@pytest.mark.parametrize(
    ("name", "encoded"),
    [("a/b:c%d é", "a%2Fb%3Ac%25d%20%C3%A9"), ("é" * 100, "%C3%A9" * 100)],
    ids=["odd", "long"],
)
async def test_names(client: httpx.AsyncClient, unique_name: Callable[[str], str], name: str, encoded: str) -> None:
    stem = unique_name("n")
    name, encoded = f"{stem}{name}", f"{stem}{encoded}"
    queue, exchange = f"/v1/brokers/peer/queues/{encoded}", f"/v1/brokers/peer/exchanges/{encoded}"
    assert (await client.put(queue)).status_code == 201
    assert (await client.put(exchange)).status_code == 201
    binding = {"exchange": name, "queue": name, "routing_key": name}
    assert (await client.post("/v1/brokers/peer/bindings", json=binding)).status_code == 201
    response = await client.post(f"{exchange}:publish", json={"routing_key": name, "mandatory": True})
    assert response.status_code == 200, response.text
    await client.put(f"/v1/subscriptions/{stem}", json={"broker": "peer", "queue": name})
    pulled = await client.post(f"/v1/subscriptions/{stem}:pull", json={"wait": 5})
    (item,) = pulled.json()["messages"]
    assert item["message"]["routing_key"] == name
    assert item["message"]["exchange"] == name
    assert (await client.delete(queue)).status_code == 200
    assert (await client.delete(exchange)).status_code == 204


async def test_declaring_with_other_settings(client: httpx.AsyncClient, unique_name: Callable[[str], str]) -> None:
    queue = f"/v1/brokers/peer/queues/{unique_name('q')}"
    exchange = f"/v1/brokers/peer/exchanges/{unique_name('e')}"
    for place in (queue, exchange):
        assert (await client.put(place, json={"durable": True})).status_code == 201
        refused = await client.put(place, json={"durable": False})
        assert (refused.status_code, refused.json()["code"]) == (409, "precondition_failed"), refused.text
        assert (await client.put(place, json={"durable": True})).status_code == 200
        assert (await client.get(place)).json()["durable"] is True
        assert (await client.delete(place)).status_code in (200, 204)
    assert (await client.put(exchange, json={"durable": False})).status_code == 201
    assert (await client.delete(exchange)).status_code in (200, 204)


async def test_a_transient_queue(client: httpx.AsyncClient, unique_name: Callable[[str], str]) -> None:
    """RabbitMQ 4 denies those that are not exclusive, and closes the connection. The answer says what to do."""
    queue = f"/v1/brokers/peer/queues/{unique_name('q')}"
    peer = (await client.get("/v1/brokers/peer")).json()
    made = await client.put(queue, json={"durable": False})
    if peer["product"] == "RabbitMQ" and int(peer["product_version"].partition(".")[0]) >= 4:
        assert (made.status_code, made.json()["code"]) == (409, "precondition_failed"), made.text
        assert "Declare the queue with durable = true." in made.json()["detail"]
        assert (await client.get(queue)).status_code == 404
    else:
        assert made.status_code == 201, made.text
        assert (await client.delete(queue)).status_code in (200, 204)


async def test_what_ends_a_channel_costs_nobody_else(
    client: httpx.AsyncClient, unique_name: Callable[[str], str]
) -> None:
    """RabbitMQ closes the channel for copies that are no array; for Broker-J that is a header like any other."""
    queue = unique_name("q")
    assert (await client.put(f"/v1/brokers/peer/queues/{queue}")).status_code == 201
    publish = "/v1/brokers/peer/exchanges/amq.default:publish"
    rabbit = (await client.get("/v1/brokers/peer")).json()["product"] == "RabbitMQ"
    for name, value in (("CC", "x"), ("BCC", [1])):
        response = await client.post(publish, json={"routing_key": queue, "headers": {name: value}})
        assert response.status_code == (422 if rabbit else 200), response.text
        assert (await client.post(publish, json={"routing_key": queue, "mandatory": True})).status_code == 200
    copies = await client.post(publish, json={"routing_key": queue, "headers": {"CC": [queue]}})
    assert copies.status_code == 200, copies.text
    assert (await client.delete(f"/v1/brokers/peer/queues/{queue}")).status_code == 200
