"""Dead-letter queues and endpoints of a gateway that runs, with the embedded broker, in every version."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import httpx
import pika
import pytest

from gateway.app import running, with_development
from gateway.config import Config, EmbeddedSettings, HttpSettings, OpsSettings, OutboundSettings, RetentionSettings
from gateway.versions import VERSION_NAMES
from tests.ledgers import sqlite_ledger

VERSIONS = VERSION_NAMES


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    config = with_development(
        Config(
            data_dir=str(tmp_path),
            http=HttpSettings(port=0),
            ops=OpsSettings(port=0),
            embedded=EmbeddedSettings(port=0),
            outbound=OutboundSettings(allow=("127.0.0.1/32",)),
            retention=RetentionSettings(bodies="days"),
            log_level="error",
        )
    )
    sqlite_ledger(tmp_path)
    async with running(config) as app, httpx.AsyncClient(base_url=app.url, timeout=30) as client:
        yield client


class Receiver(HTTPServer):
    """An endpoint that answers what it is told."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers: list[int] = []
        self.got: list[tuple[str, dict[str, Any]]] = []
        self.signatures: list[str | None] = []


class Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        status = self.server.answers.pop(0) if self.server.answers else 204
        self.server.signatures.append(self.headers["webhook-signature"])
        self.server.got.append((self.headers["webhook-id"], json.loads(body)))
        self.send_response(status)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


async def ended(client: httpx.AsyncClient, id: str) -> dict[str, Any]:
    async with asyncio.timeout(60):
        while True:
            found: dict[str, Any] = (await client.get(f"/v1/replays/{id}")).json()
            if found["state"] in ("done", "failed", "cancelled"):
                return found
            await asyncio.sleep(0.02)


async def depth(client: httpx.AsyncClient, broker: str, queue: str) -> int:
    found: int = (await client.get(f"/v1/brokers/{broker}/queues/{queue}")).json()["messages"]
    return found


async def publish(client: httpx.AsyncClient, broker: str, queue: str, count: int) -> list[str]:
    messages = [{"routing_key": queue, "payload": f"m{number}"} for number in range(count)]
    answer = await client.post(f"/v1/brokers/{broker}/exchanges/amq.default:publish", json={"messages": messages})
    return [each["id"] for each in answer.json()["results"]]


async def pulled(client: httpx.AsyncClient, broker: str, queue: str, count: int) -> list[dict[str, Any]]:
    name = f"pull-{broker}-{queue}"
    await client.put(f"/v1/subscriptions/{name}", json={"broker": broker, "queue": queue})
    found: list[dict[str, Any]] = []
    while len(found) < count:
        part = (await client.post(f"/v1/subscriptions/{name}:pull", json={"max_messages": 100, "wait": 5})).json()
        assert part["messages"]
        found += part["messages"]
        ids = [each["ack_id"] for each in part["messages"]]
        await client.post(f"/v1/subscriptions/{name}:acknowledge", json={"ack_ids": ids})
    return found


async def test_the_second_copy_of_a_message_is_marked(client: httpx.AsyncClient) -> None:
    """A message was sent again because nobody knew its outcome, and both copies are dead letters."""
    queues = "/v1/brokers/local-0-9-1/queues"
    for queue in ("dead", "orders"):
        await client.put(f"{queues}/{queue}", json={})
    port = (await client.get("/v1/brokers/local-0-9-1")).json()["port"]

    def send() -> None:
        """As another program does: without an id of the gateway."""
        with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port)) as connection:
            channel = connection.channel()
            for name, body in (("m-1", b"once"), ("m-2", b"twice"), ("m-2", b"twice"), ("m-2", b"another body")):
                channel.basic_publish("", "dead", body, pika.BasicProperties("text/plain", message_id=name))

    await asyncio.to_thread(send)
    source = {"queue": {"broker": "local-0-9-1", "queue": "dead"}}
    target = {"broker": "local-0-9-1", "exchange": "amq.default", "routing_key": "orders"}
    answer = await client.post("/v1/replays", json={"source": source, "target": target})
    job = await ended(client, answer.json()["id"])
    assert (job["state"], job["sent"], job["resent"]) == ("done", 4, 1)
    found = await pulled(client, "local-0-9-1", "orders", 4)
    assert [(each["message"]["payload"], each.get("resent", False)) for each in found] == [
        ("once", False), ("twice", False), ("twice", True), ("another body", False),
    ]  # fmt: skip


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_dead_letter_queue_goes_back(client: httpx.AsyncClient, version: str) -> None:
    """Rejected by a consumer, dead-lettered by the broker, driven back to the very queue, once."""
    broker = f"local-{version}"
    queues = f"/v1/brokers/{broker}/queues"
    await client.put(f"{queues}/dead", json={})
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    await client.put(f"{queues}/orders", json={"arguments": arguments})
    await publish(client, broker, "orders", 60)
    await client.put("/v1/subscriptions/s", json={"broker": broker, "queue": "orders"})
    for _ in range(3):
        part = (await client.post("/v1/subscriptions/s:pull", json={"max_messages": 20, "wait": 5})).json()["messages"]
        ids = [each["ack_id"] for each in part]
        results = (await client.post("/v1/subscriptions/s:reject", json={"ack_ids": ids, "reason": "no"})).json()
        assert {each["status"] for each in results["results"]} == {"SUCCESS"}
    async with asyncio.timeout(60):
        while await depth(client, broker, "dead") < 60:
            await asyncio.sleep(0.02)
    body = {"id": "r1", "source": {"queue": {"broker": broker, "queue": "dead"}}}
    assert (await client.post("/v1/replays", json=body)).status_code == 201
    found = await ended(client, "r1")
    assert (found["state"], found["sent"], found["refused"]) == ("done", 60, {})
    assert (await depth(client, broker, "dead"), await depth(client, broker, "orders")) == (0, 60)
    messages = await pulled(client, broker, "orders", 60)
    assert [each["message"]["payload"] for each in messages] == [f"m{number}" for number in range(60)]
    assert not any("x-death" in each["message"]["headers"] for each in messages)
    told = (await client.get(f"/v1/messages/{messages[0]['message']['id']}")).json()
    assert (told["origin"], told["events"][0]["kind"]) == ("replay", "confirmed")


@pytest.mark.parametrize("source", VERSIONS)
async def test_messages_to_another_version(client: httpx.AsyncClient, source: str) -> None:
    target = VERSIONS[(VERSIONS.index(source) + 1) % len(VERSIONS)]
    for broker, queue in ((f"local-{source}", "orders"), (f"local-{target}", "copies")):
        await client.put(f"/v1/brokers/{broker}/queues/{queue}", json={})
    ids = await publish(client, f"local-{source}", "orders", 5)
    body = {
        "id": "r1",
        "source": {"messages": {"routing_key": "orders"}},
        "target": {"broker": f"local-{target}", "exchange": "amq.default", "routing_key": "copies"},
    }
    await client.post("/v1/replays", json=body)
    assert (await ended(client, "r1"))["sent"] == 5
    messages = await pulled(client, f"local-{target}", "copies", 5)
    assert [each["message"]["payload"] for each in messages] == [f"m{number}" for number in range(5)]
    assert (await client.get(f"/v1/messages/{ids[0]}")).json()["state"] == "replayed"


async def test_messages_to_a_url(client: httpx.AsyncClient, receiver: Receiver) -> None:
    """Under the guard; what fails for now is tried again, under the same id."""
    await client.put("/v1/brokers/local-0-9-1/queues/orders", json={})
    await publish(client, "local-0-9-1", "orders", 3)
    receiver.answers = [500]
    url = f"http://127.0.0.1:{receiver.server_address[1]}/hook"
    body = {"id": "r1", "source": {"messages": {}}, "target": {"url": url}}
    await client.post("/v1/replays", json=body)
    found = await ended(client, "r1")
    assert (found["state"], found["sent"], found["resent"]) == ("done", 3, 1)
    assert sorted(each["message"]["payload"] for _, each in receiver.got[-3:]) == ["m0", "m1", "m2"]
    ids = [id for id, _ in receiver.got]
    assert (len(ids), len(set(ids))) == (4, 3)
    denied = {**body, "id": "r2", "target": {"url": "http://10.0.0.1/hook"}}
    answer = await client.post("/v1/replays", json=denied)
    assert (answer.status_code, answer.json()["code"]) == (422, "address_denied")


async def test_what_goes_to_an_endpoint_is_signed_and_what_goes_to_a_url_is_not(
    client: httpx.AsyncClient, receiver: Receiver
) -> None:
    await client.put("/v1/brokers/local-0-9-1/queues/orders", json={})
    await publish(client, "local-0-9-1", "orders", 1)
    url = f"http://127.0.0.1:{receiver.server_address[1]}/hook"
    await client.put("/v1/endpoints/hook", json={"url": url})
    await client.put("/v1/endpoints/plain", json={"url": url, "signing": []})
    for number, (target, signed) in enumerate([({"endpoint": "hook"}, True), ({"endpoint": "plain"}, False),
                                               ({"url": url}, False)]):  # fmt: skip
        body = {"id": f"r{number}", "source": {"messages": {}}, "target": target}
        assert (await client.post("/v1/replays", json=body | {"dry_run": True})).json()["signed"] is signed
        assert (await client.post("/v1/replays", json=body)).json()["signed"] is signed
        assert (await ended(client, f"r{number}"))["sent"] == 1
        assert bool(receiver.signatures.pop()) is signed


async def test_an_endpoint_that_is_gone_ends_it(client: httpx.AsyncClient, receiver: Receiver) -> None:
    await client.put("/v1/brokers/local-0-9-1/queues/orders", json={})
    await publish(client, "local-0-9-1", "orders", 3)
    receiver.answers = [410] * 3
    url = f"http://127.0.0.1:{receiver.server_address[1]}/hook"
    put = await client.put("/v1/endpoints/hook", json={"url": url, "concurrency": 1, "signing": []})
    assert put.status_code == 201, put.text
    await client.post("/v1/replays", json={"id": "r1", "source": {"messages": {}}, "target": {"endpoint": "hook"}})
    found = await ended(client, "r1")
    assert (found["state"], found["sent"]) == ("failed", 0)
    assert "410" in found["reason"]


@pytest.mark.parametrize("named", ["local-0-10", ""])
async def test_a_message_alone_sends_nobody_to_another_broker(client: httpx.AsyncClient, named: str) -> None:
    """Whoever may publish to the queue may write any header, also that the message came from another broker."""
    ours, other = "local-0-9-1", "local-0-10"
    for broker, queue in ((ours, "dead"), (ours, "orders"), (other, "secret")):
        await client.put(f"/v1/brokers/{broker}/queues/{queue}", json={})
    listed = (await client.get("/v1/brokers")).json()["brokers"]
    port = next(each["port"] for each in listed if each["name"] == ours)
    entry = (
        {"id": "01890000-0000-7000-8000-000000000000", "queue": "secret", "broker": named}
        if named
        else {"queue": "orders"}
    )

    def forge() -> None:
        parameters = pika.ConnectionParameters("127.0.0.1", port)
        with pika.BlockingConnection(parameters) as connection:
            properties = pika.BasicProperties(headers={"x-gateway": entry})
            connection.channel().basic_publish("", "dead", b"forged", properties)

    await asyncio.to_thread(forge)
    async with asyncio.timeout(30):
        while not await depth(client, ours, "dead"):
            await asyncio.sleep(0.02)
    body = {"id": "r1", "source": {"queue": {"broker": ours, "queue": "dead"}}}
    await client.post("/v1/replays", json=body)
    found = await ended(client, "r1")
    if not named:
        assert (found["sent"], await depth(client, ours, "orders")) == (1, 1)
        return
    assert (found["sent"], found["refused"]) == (0, {"unsupported": 1})
    assert (await depth(client, ours, "dead"), await depth(client, other, "secret")) == (1, 0)
    body |= {"id": "r2", "target": {"broker": other}}
    await client.post("/v1/replays", json=body)
    assert (await ended(client, "r2"))["sent"] == 1, "somebody has named the broker"
    assert await depth(client, other, "secret") == 1
