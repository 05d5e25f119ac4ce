"""Looking into a queue: nothing about it changes, and what cannot be sure of that is not done."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from gateway.app import running
from gateway.config import load
from tests.ledgers import sqlite_ledger
from tests.servers import BrokerJ, RabbitMQ

Name = Callable[[str], str]
PEER = "/v1/brokers/peer"
HOSTILE = "<img src=x onerror=alert(1)> \u202e\u0000"


class House:
    """A gateway over one broker with management."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self.client = client

    async def call(self, method: str, path: str, body: Any = None, status: int = 200) -> Any:
        answer = await self.client.request(method, path, json=body)
        assert answer.status_code == status, f"{method} {path}: {answer.text}"
        return answer.json() if answer.content else None

    async def queue(self, name: str, broker: str = "peer", **settings: Any) -> str:
        path = f"/v1/brokers/{broker}/queues/{quote(name, safe='')}"
        await self.call("PUT", path, {"durable": True, **settings}, 201)
        return path

    async def publish(self, queue: str, payload: Any, broker: str = "peer", **more: Any) -> str:
        body = {"routing_key": queue, "payload": payload, **more}
        found = await self.call("POST", f"/v1/brokers/{broker}/exchanges/amq.default:publish", body)
        return str(found["id"])


async def _house(path: Path, settings: dict[str, Any], key: str = "") -> AsyncIterator[House]:
    given = {"http.port": 0, "ops.port": 0, "embedded.port": 0, "data_dir": str(path), **settings}
    sqlite_ledger(path)
    headers = {"authorization": f"Bearer {key}"} if key else {}
    async with (
        running(load(None, {}, given)) as app,
        httpx.AsyncClient(base_url=app.url, timeout=30, headers=headers) as client,
    ):
        for broker in app.gateway.brokers.values():
            assert await broker.wait_up(20)
        yield House(client)


@pytest.fixture(params=["brokerj-0-9-1", "brokerj-0-10", "embedded-0-9-1", "embedded-0-10", "embedded-0-8"])
async def shows(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[tuple[House, str]]:
    """A gateway, and the name of a broker of it that can show messages."""
    kind, _, version = request.param.partition("-")
    settings: dict[str, Any] = {"embedded.enabled": kind == "embedded"}
    if kind == "brokerj":
        server: BrokerJ = request.getfixturevalue("brokerj")
        management = f"http://127.0.0.1:{server.state.ports['http']}"
        settings["brokers.peer"] = {"url": server.url(version), "management": management}
    async for house in _house(tmp_path, settings):
        yield house, f"local-{version}" if kind == "embedded" else "peer"


@pytest.fixture(params=[("rabbitmq-4.0", "0-9-1"), ("rabbitmq-3.10", "0-8")], ids=["rabbitmq-4.0", "rabbitmq-3.10"])
async def takes(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[tuple[House, RabbitMQ]]:
    """A gateway over RabbitMQ with management."""
    kind, version = request.param
    server: RabbitMQ = request.getfixturevalue(kind)
    management = f"http://127.0.0.1:{server.state.ports['management']}"
    settings = {
        "brokers.peer": {"url": server.url(version), "management": management},
        "api_keys": [{"name": "root", "key": "root-secret-1", "scopes": ["admin"]}],  # what is done is on record
    }
    async for house in _house(tmp_path, settings, "root-secret-1"):
        yield house, server


async def settled(house: House, path: str) -> Any:
    """A look, once the broker's management knows the queue's policy, which takes seconds."""
    for _ in range(60):
        found = await house.call("GET", f"{path}/messages")
        if "does not tell its policy" not in found["take_reason"]:
            return found
        await asyncio.sleep(0.3)
    raise AssertionError(found)


async def test_looking_changes_nothing(shows: tuple[House, str], unique_name: Name) -> None:
    house, broker = shows
    queue = unique_name("looked at")
    path = await house.queue(queue, broker)
    ids = [
        await house.publish(
            queue,
            {"order": number, "text": HOSTILE},
            broker,
            headers={HOSTILE[:20]: HOSTILE},
            properties={"message_id": f"m-{number}", "priority": 3},
        )
        for number in range(5)
    ]
    for _ in range(2):
        found = await house.call("GET", f"{path}/messages?limit=3")
        assert (found["how"], found["reason"], found["complete"], found["ready"]) == ("browsed", "", False, 5)
        assert (found["can_take"], found["take_reason"]) == (False, "The broker shows messages; none need be taken.")
        assert [each["message"]["id"] for each in found["messages"]] == ids[:3]
        assert [(each["position"], each["redelivered"], each["cut"]) for each in found["messages"]] == [
            (1, False, False), (2, False, False), (3, False, False),
        ]  # fmt: skip
        first = found["messages"][0]
        assert json.loads(first["message"]["payload"]) == {"order": 0, "text": HOSTILE}
        assert first["message"]["headers"] == {HOSTILE[:20]: HOSTILE}
        assert first["message"]["properties"]["message_id"] == "m-0"
    every = await house.call("GET", f"{path}/messages")
    assert (len(every["messages"]), every["complete"]) == (5, True)
    queued = await house.call("GET", path)
    assert (queued["messages"], queued["consumers"]) == (5, 0)
    await house.call("PUT", "/v1/subscriptions/reader", {"broker": broker, "queue": queue}, 201)
    pulled = await house.call("POST", "/v1/subscriptions/reader:pull", {"max_messages": 5, "wait_seconds": 5})
    assert [each["message"]["id"] for each in pulled["messages"]] == ids
    assert {each["redelivered"] for each in pulled["messages"]} == {False}
    body = {"ack_ids": [each["ack_id"] for each in pulled["messages"]]}
    await house.call("POST", "/v1/subscriptions/reader:acknowledge", body)
    empty = await house.call("GET", f"{path}/messages")
    assert (empty["how"], empty["messages"], empty["complete"]) == ("browsed", [], True)
    refused = await house.client.post(f"{path}/messages:takeAndGiveBack", json={})
    assert (refused.status_code, refused.json()["code"]) == (422, "unsupported")
    await house.call("DELETE", "/v1/subscriptions/reader", None, 204)
    await house.call("DELETE", path)


async def test_a_long_body_is_cut_where_a_character_ends(shows: tuple[House, str], unique_name: Name) -> None:
    house, broker = shows
    queue = unique_name("long")
    path = await house.queue(queue, broker)
    await house.publish(queue, "é" * 1000, broker)
    await house.publish(queue, "/wA=", broker, payload_encoding="base64")
    text, binary = (await house.call("GET", f"{path}/messages?body_max=7"))["messages"]
    assert (text["message"]["payload"], text["cut"], text["size"]) == ("ééé", True, 2000)
    assert (binary["message"]["payload"], binary["message"]["payload_encoding"]) == ("/wA=", "base64")
    (none,) = (await house.call("GET", f"{path}/messages?body_max=0&limit=1"))["messages"]
    assert (none["message"]["payload"], none["cut"]) == ("", True)
    assert [each["payload_bytes"] for each in (text, binary, none)] == [6, 2, 0]
    await house.call("DELETE", path)


async def test_a_whole_body_is_given_as_a_file(shows: tuple[House, str], unique_name: Name) -> None:
    house, broker = shows
    queue = unique_name("file")
    path = await house.queue(queue, broker)
    await house.publish(queue, "first", broker)
    id = await house.publish(queue, "/wA=", broker, payload_encoding="base64")
    for query in ("", f"?id={id}&size=2"):
        answer = await house.client.get(f"{path}/messages/2/body{query}")
        assert (answer.status_code, answer.content) == (200, b"\xff\x00")
        assert answer.headers["content-type"] == "application/octet-stream"
        assert answer.headers["content-disposition"] == f'attachment; filename="{id}.bin"'
        assert answer.headers["x-content-type-options"] == "nosniff"
    for place, said in (
        (f"1/body?id={id}", id),
        ("1/body?size=2", "its size is 5, and not 2"),
        ("3/body", "no message at position 3"),
    ):
        found = await house.call("GET", f"{path}/messages/{place}", status=409)
        assert (found["code"], said in found["detail"]) == ("state", True), found
    for position in ("0", "-1", "101", "first", "%C2%B2"):
        found = await house.call("GET", f"{path}/messages/{position}/body", status=422)
        assert (found["code"], found["errors"][0]["parameter"]) == ("invalid_parameter", "position")
        assert "is not an integer between 1 and 100" in found["detail"]
    assert (await house.call("GET", path))["messages"] == 2
    looked = (await house.call("GET", f"{path}/messages"))["messages"]
    assert [each["redelivered"] for each in looked] == [False, False]
    await house.call("DELETE", path)


async def test_a_queue_that_goes_with_its_last_consumer_stays(shows: tuple[House, str], unique_name: Name) -> None:
    house, broker = shows
    queue = unique_name("auto")
    path = await house.queue(queue, broker, auto_delete=True)
    await house.publish(queue, "still here", broker)
    found = await house.call("GET", f"{path}/messages")
    assert (found["how"], found["messages"]) == ("not_shown", [])
    assert found["reason"].startswith("The queue goes with its last consumer, and has none now")
    assert (await house.call("GET", path))["messages"] == 1
    await house.call("DELETE", path)


async def test_a_broker_that_cannot_show_messages_says_so(takes: tuple[House, RabbitMQ], unique_name: Name) -> None:
    house, server = takes
    queue = unique_name("not-shown")
    path = await house.queue(queue)
    ids = [await house.publish(queue, f"number {number}") for number in range(3)]
    await house.call("PUT", "/v1/subscriptions/held", {"broker": "peer", "queue": queue, "lease": "ledger"}, 201)
    found = await settled(house, path)
    assert (found["how"], found["messages"], found["complete"]) == ("not_shown", [], False)
    assert "cannot show a message of a queue without handing it out" in found["reason"]
    assert "RabbitMQ" in found["reason"]
    assert (found["can_take"], found["take_reason"]) == (True, "")
    refused = await house.call("GET", f"{path}/messages/1/body", status=422)
    assert (refused["code"], found["reason"] in refused["detail"]) == ("unsupported", True)
    assert [(each["what"], each["name"]) for each in found["ledger"]] == [
        ("published", ""), ("subscription", "held"), ("backlog", "held"),
    ]  # fmt: skip
    for place in found["ledger"]:
        await house.call("GET", place["path"])
    listed = await house.call("GET", found["ledger"][0]["path"])
    assert [each["id"] for each in listed["messages"]] == ids[::-1]

    taken = await house.call("POST", f"{path}/messages:takeAndGiveBack", {"limit": 2})
    assert [each["message"]["id"] for each in taken["messages"]] == ids[:2]
    assert [each["message"]["payload"] for each in taken["messages"]] == ["number 0", "number 1"]
    assert (taken["how"], taken["complete"]) == ("taken", False)
    again = await house.call("POST", f"{path}/messages:takeAndGiveBack", {"limit": 5})
    assert [(each["message"]["id"], each["redelivered"]) for each in again["messages"]] == [
        (ids[0], True), (ids[1], True), (ids[2], False),
    ]  # fmt: skip
    assert again["complete"]
    for _ in range(50):
        if server.queue_depth(queue) == 3 and (await house.call("GET", path))["messages"] == 3:
            break
        await asyncio.sleep(0.1)
    else:
        raise AssertionError("they are not back")
    trail = await house.call("GET", "/v1/audit?action=take_and_give_back")
    assert [row["object"] for row in trail["entries"]] == [f"{path}/messages:takeAndGiveBack"] * 2
    await house.call("DELETE", "/v1/subscriptions/held", None, 204)
    await house.call("DELETE", path)


RISKS = {
    "quorum": ({"x-queue-type": "quorum"}, "It is a quorum queue"),
    "length": ({"x-max-length": 5}, "It has a maximum length"),
    "stream": ({"x-queue-type": "stream"}, "only known of classic queues"),
}


@pytest.mark.parametrize("kind", RISKS)
async def test_what_may_cost_a_message_is_refused(
    rabbitmq40: RabbitMQ, tmp_path: Path, unique_name: Name, kind: str
) -> None:
    arguments, why = RISKS[kind]
    queue = unique_name(kind)
    management = f"http://127.0.0.1:{rabbitmq40.state.ports['management']}"
    rabbitmq40.api("PUT", f"queues/%2F/{queue}", {"durable": True, "arguments": arguments})
    try:
        peer = {"url": rabbitmq40.url("0-9-1"), "management": management}
        async for house in _house(tmp_path, {"brokers.peer": peer}):
            await house.publish(queue, "stays")
            found = await settled(house, f"{PEER}/queues/{queue}")
            assert not found["can_take"]
            assert why in found["take_reason"]
            refused = await house.client.post(f"{PEER}/queues/{queue}/messages:takeAndGiveBack", json={})
            assert (refused.status_code, refused.json()["code"]) == (422, "unsupported")
            assert why in refused.json()["detail"]
    finally:
        rabbitmq40.delete_queue(queue)


async def test_a_policy_counts_and_so_does_not_knowing(rabbitmq40: RabbitMQ, tmp_path: Path, unique_name: Name) -> None:
    queue = unique_name("policy")
    management = f"http://127.0.0.1:{rabbitmq40.state.ports['management']}"
    rabbitmq40.api("PUT", f"queues/%2F/{queue}", {"durable": True})
    policy = {"pattern": f"^{queue}$", "definition": {"max-length": 9}, "apply-to": "queues"}
    url = rabbitmq40.url("0-9-1")
    settings = {
        "brokers.peer": {"url": url, "management": management},
        "brokers.blind": {"url": url},
        "brokers.refused": {"url": url, "management": management.replace("://", "://guest:wrong@")},
    }
    try:
        async for house in _house(tmp_path, settings):
            assert (await settled(house, f"{PEER}/queues/{queue}"))["can_take"]
            rabbitmq40.api("PUT", f"policies/%2F/{queue}", policy)
            for _ in range(60):
                found = await house.call("GET", f"{PEER}/queues/{queue}/messages")
                if not found["can_take"]:
                    break
                await asyncio.sleep(0.3)
            assert "maximum length" in found["take_reason"]
            for broker, why in (("blind", "set brokers.blind.management"), ("refused", "refuses the login (401)")):
                found = await house.call("GET", f"/v1/brokers/{broker}/queues/{queue}/messages")
                assert not found["can_take"]
                assert why in found["take_reason"]
    finally:
        rabbitmq40.delete_queue(queue)
        rabbitmq40.api("DELETE", f"policies/%2F/{queue}")


async def test_a_message_over_a_limit_is_not_rejected_by_looking(
    brokerj: BrokerJ, tmp_path: Path, unique_name: Name
) -> None:
    queue, dead = unique_name("oversized"), unique_name("dead")
    url = brokerj.url("0-10")
    settings = {"brokers.peer": {"url": url}, "brokers.small": {"url": url, "message_max": 1024}}
    async for house in _house(tmp_path, settings):
        await house.queue(dead)
        exchange = unique_name("dlx")
        await house.call("PUT", f"{PEER}/exchanges/{exchange}", {"type": "fanout"}, 201)
        await house.call("POST", f"{PEER}/bindings", {"exchange": exchange, "queue": dead}, 201)
        await house.queue(queue, arguments={"alternate-exchange": exchange})
        await house.publish(queue, "x" * 5000)
        await house.publish(queue, "small")
        found = await house.call("GET", f"/v1/brokers/small/queues/{queue}/messages")
        assert [each["message"]["payload"] for each in found["messages"]] == ["small"]
        await asyncio.sleep(0.5)
        assert brokerj.queue_depth(queue) == 2
        assert brokerj.queue_depth(dead) == 0
        for name in (queue, dead):
            await house.call("DELETE", f"{PEER}/queues/{name}")
        await house.call("DELETE", f"{PEER}/exchanges/{exchange}", None, 204)


async def test_it_needs_the_scope_to_consume(tmp_path: Path) -> None:
    keys = [
        {"name": "root", "key": "root-secret-1", "scopes": ["admin"]},
        {"name": "broker", "key": "broker-secret-1", "scopes": ["broker:local-0-9-1", "history"]},
        {"name": "one", "key": "one-secret-123", "scopes": ["consume:local-0-9-1/mine"]},
    ]
    async for house in _house(tmp_path, {"embedded.enabled": True, "api_keys": keys}, "root-secret-1"):
        for name in ("mine", "other"):
            await house.queue(name, "local-0-9-1")
        for key, allowed in (("broker-secret-1", set()), ("one-secret-123", {"mine"})):
            for name in ("mine", "other"):
                path = f"/v1/brokers/local-0-9-1/queues/{name}/messages"
                headers = {"authorization": f"Bearer {key}"}
                found = await house.client.get(path, headers=headers)
                assert found.status_code == (200 if name in allowed else 403)
                if found.status_code == 200:
                    assert found.json()["ledger"] == []
