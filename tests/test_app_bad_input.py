"""Bad input, end to end over HTTP: each gets its documented error, and nothing else in the process notices.

One gateway with its embedded broker, and far ends beside it that break the rules. After every item a message still
goes through every good broker.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.app import App, running, with_development
from gateway.config import load
from gateway.versions import VERSION_NAMES
from tests.ledgers import sqlite_ledger
from tests.upstreams.test_hostile import (
    garbage,
    half_a_frame,
    hang_up,
    huge_frame,
    listener,
    nothing,
    other_header,
)

GOOD = ("local-0-8", "local-0-9-1", "local-0-10")
VERSIONS = (*VERSION_NAMES, "auto")
BODY_MAX = 1_000_000
MESSAGE_MAX = 500_000
MEMBERS = {"type", "title", "status", "detail", "instance", "code", "retryable", "outcome"}
JSON = {"content-type": "application/json"}


def hostile(script: Any, version: str) -> str:
    return f"{script.__name__.replace('_', '-')}-{version}"


@pytest.fixture
def lies() -> dict[str, Any]:
    """Settings of brokers that are none; for most tests, there are none of those."""
    return {}


@pytest.fixture
async def app(tmp_path: Path, lies: dict[str, Any]) -> AsyncIterator[App]:
    settings = {
        "http.port": 0, "http.body_max": BODY_MAX, "ops.port": 0, "embedded.port": 0, "data_dir": str(tmp_path), **lies,
    }  # fmt: skip
    sqlite_ledger(tmp_path)
    async with running(with_development(load(None, {}, settings))) as app:
        yield app


@pytest.fixture
async def client(app: App) -> AsyncIterator[httpx.AsyncClient]:
    """A caller; when it is done, every good broker still takes and gives messages."""
    async with httpx.AsyncClient(base_url=app.url, timeout=30) as client:
        for broker in GOOD:
            assert (await client.put(f"/v1/brokers/{broker}/queues/orders")).status_code < 300
            subscription = {"broker": broker, "queue": "orders"}
            assert (await client.put(f"/v1/subscriptions/{broker}", json=subscription)).status_code == 201
        yield client
        for broker in GOOD:
            good = {"routing_key": "orders", "payload": "still here", "mandatory": True}
            assert (await client.post(publish_path(broker), json=good)).status_code == 200
            pulled = await client.post(f"/v1/subscriptions/{broker}:pull", json={"max_messages": 100, "wait": 5})
            items = pulled.json()["messages"]
            assert items[-1]["message"]["payload"] == "still here"
            body = {"ack_ids": [item["ack_id"] for item in items]}
            acknowledged = await client.post(f"/v1/subscriptions/{broker}:acknowledge", json=body)
            assert {result["status"] for result in acknowledged.json()["results"]} == {"SUCCESS"}


def publish_path(broker: str, exchange: str = "amq.default") -> str:
    return f"/v1/brokers/{broker}/exchanges/{exchange}:publish"


def check(response: httpx.Response, status: int, code: str) -> dict[str, Any]:
    """It is this problem, in the shape of all problems."""
    assert response.headers["content-type"] == "application/problem+json", response.text
    problem: dict[str, Any] = response.json()
    assert (response.status_code, problem["code"]) == (status, code), problem
    assert set(problem) >= MEMBERS
    assert problem["status"] == status
    return problem


# ---------------------------------------------------------------------------------------------------- unknown


async def test_unknown_broker(client: httpx.AsyncClient) -> None:
    for method, path in (
        ("GET", ""), ("POST", ":probe"), ("GET", "/queues"), ("PUT", "/queues/q"), ("GET", "/queues/q"),
        ("DELETE", "/queues/q"), ("POST", "/queues/q:purge"), ("GET", "/exchanges"), ("PUT", "/exchanges/x"),
        ("GET", "/exchanges/x"), ("DELETE", "/exchanges/x"), ("POST", "/exchanges/x:publish"), ("GET", "/bindings"),
    ):  # fmt: skip
        content = b'{"payload": "x"}' if path.endswith(":publish") else b"{}"
        body: dict[str, Any] = {"content": content, "headers": JSON} if method in ("PUT", "POST") else {}
        check(await client.request(method, f"/v1/brokers/nowhere{path}", **body), 404, "broker_not_found")


async def test_unknown_queue(client: httpx.AsyncClient) -> None:
    for broker in GOOD:
        path = f"/v1/brokers/{broker}/queues/missing"
        check(await client.get(path), 404, "not_found")
        check(await client.delete(path), 404, "not_found")
        check(await client.post(f"{path}:purge"), 404, "not_found")
        binding = {"exchange": "amq.direct", "queue": "missing", "routing_key": "k"}
        check(await client.post(f"/v1/brokers/{broker}/bindings", json=binding), 404, "not_found")
        await client.put("/v1/subscriptions/missing", json={"broker": broker, "queue": "missing"})
        check(await client.post("/v1/subscriptions/missing:pull", json={"wait": 1}), 404, "not_found")
        body = {"routing_key": "missing", "mandatory": True}
        check(await client.post(publish_path(broker), json=body), 422, "unroutable")


async def test_unknown_exchange(client: httpx.AsyncClient) -> None:
    for broker in GOOD:
        path = f"/v1/brokers/{broker}/exchanges/missing"
        check(await client.post(publish_path(broker, "missing"), json={"routing_key": "orders"}), 404, "not_found")
        binding = {"exchange": "missing", "queue": "orders", "routing_key": "k"}
        check(await client.post(f"/v1/brokers/{broker}/bindings", json=binding), 404, "not_found")
        check(await client.delete(path), 404, "not_found")
        check(await client.get(path), 404, "not_found")  # none of these made it
        assert (await client.get(f"/v1/brokers/{broker}/queues/orders")).json()["messages"] == 0


# -------------------------------------------------------------------------------------------------- the body


async def test_malformed_json(client: httpx.AsyncClient) -> None:
    for body in [
        b"",
        b"{",
        b"{'routing_key': 'orders'}",
        b'{"routing_key": "orders"} x',
        b'{"headers": {"n": NaN}}',
        b'{"payload": "\xff"}',
        b'{"payload": "\\ud800"}',
        b'{"headers": {"a": ' + b"[" * 5000 + b"]" * 5000 + b"}}",
        "{}".encode("utf-16"),
    ]:
        for broker in GOOD:
            problem = check(await client.post(publish_path(broker), content=body, headers=JSON), 400, "malformed_json")
            assert problem["outcome"] == "not_sent"


async def test_base64_that_is_none(client: httpx.AsyncClient) -> None:
    for payload in ["!!!", "YQ", "YQ= =", "Y_-="]:
        for broker in GOOD:
            body = {"routing_key": "orders", "payload": payload, "payload_encoding": "base64"}
            problem = check(await client.post(publish_path(broker), json=body), 422, "invalid_value")
            assert [error["pointer"] for error in problem["errors"]] == ["/payload"]


async def test_a_header_key_over_255_octets(client: httpx.AsyncClient) -> None:
    for key in ["k" * 256, "é" * 128]:
        for broker in GOOD:
            body = {"routing_key": "orders", "headers": {key: 1}}
            problem = check(await client.post(publish_path(broker), json=body), 422, "invalid_value")
            assert problem["errors"][0]["pointer"].startswith("/headers/")
            body = {"routing_key": "orders", "headers": {key[:-1]: 1}}
            assert (await client.post(publish_path(broker), json=body)).status_code == 200


async def test_a_property_too_long_for_the_version(client: httpx.AsyncClient) -> None:
    for broker, properties in [
        ("local-0-8", {"message_id": "m" * 256}),
        ("local-0-9-1", {"message_id": "m" * 256}),
        ("local-0-9-1", {"type": "é" * 128}),
        ("local-0-10", {"content_type": "t" * 256}),
        ("local-0-10", {"reply_to": "r" * 256}),
    ]:
        body = {"routing_key": "orders", "properties": properties}
        problem = check(await client.post(publish_path(broker), json=body), 422, "invalid_value")
        assert "255" in problem["detail"]


async def test_a_routing_key_over_255_octets(client: httpx.AsyncClient) -> None:
    for broker in GOOD:
        check(await client.post(publish_path(broker), json={"routing_key": "k" * 256}), 422, "invalid_value")


async def test_a_delivery_mode_that_is_none(client: httpx.AsyncClient) -> None:
    """RabbitMQ ends the channel over it, and with it the publishes of others."""
    for broker in GOOD:
        for mode in (0, 3, 255):
            body = {"routing_key": "orders", "properties": {"delivery_mode": mode}}
            check(await client.post(publish_path(broker), json=body), 422, "invalid_request")
            headers = {"amqp-delivery-mode": str(mode), "amqp-routing-key": "orders"}
            check(await client.post(publish_path(broker), content=b"x", headers=headers), 422, "invalid_parameter")


async def test_a_body_over_the_limit(client: httpx.AsyncClient) -> None:
    for broker in GOOD:

        async def chunks() -> AsyncIterator[bytes]:
            for _ in range(20):
                yield b"x" * (BODY_MAX // 10)

        headers = {"content-type": "text/plain", "amqp-routing-key": "orders"}
        path = publish_path(broker)
        check(await client.post(path, content=b"x" * (BODY_MAX + 1), headers=headers), 413, "body_too_large")
        check(await client.post(path, content=chunks(), headers=headers), 413, "body_too_large")
        assert (await client.post(path, content=b"x" * BODY_MAX, headers=headers)).status_code == 200
        pulled = await client.post(f"/v1/subscriptions/{broker}:pull", json={"wait": 5})
        (item,) = pulled.json()["messages"]
        assert item["message"]["payload"] == "x" * BODY_MAX
        await client.post(f"/v1/subscriptions/{broker}:acknowledge", json={"ack_ids": [item["ack_id"]]})


async def test_a_message_over_the_limit_of_its_broker(tmp_path: Path) -> None:
    settings = {
        "http.port": 0, "ops.port": 0, "embedded.port": 0, "embedded.enabled": True, "data_dir": str(tmp_path),
    }  # fmt: skip
    async with running(with_development(load(None, {}, settings))) as outer:
        port = outer.ports.amqp
        inner = {"http.port": 0, "ops.port": 0, "data_dir": str(tmp_path / "inner")}
        for version in VERSIONS:
            inner[f"brokers.b-{version}.url"] = f"amqp://guest:guest@127.0.0.1:{port}/?version={version}"
            inner[f"brokers.b-{version}.message_max"] = MESSAGE_MAX
        async with running(load(None, {}, inner)) as app, httpx.AsyncClient(base_url=app.url, timeout=30) as client:
            for version in VERSIONS:
                assert await app.gateway.brokers[f"b-{version}"].wait_up(10)
                path = publish_path(f"b-{version}") + "?mandatory=false"
                headers = {"content-type": "text/plain"}
                problem = check(
                    await client.post(path, content=b"x" * (MESSAGE_MAX + 1), headers=headers), 413, "limit_exceeded"
                )
                assert "message_max" in problem["detail"]
                assert (await client.post(path, content=b"x" * MESSAGE_MAX, headers=headers)).status_code == 200


async def test_an_expiration_that_is_no_number(client: httpx.AsyncClient) -> None:
    for expiration in ["soon", "", "-1", "+1", " 5", "1.5", "1e3", "٣"]:
        for broker in GOOD:
            body = {"routing_key": "orders", "properties": {"expiration": expiration}}
            problem = check(await client.post(publish_path(broker), json=body), 422, "invalid_value")
            assert problem["errors"][0]["pointer"] == "/properties/expiration"
            batch = await client.post(publish_path(broker), json={"messages": [body, {"routing_key": "orders"}]})
            assert [result["status"] for result in batch.json()["results"]] == [422, 200]


# --------------------------------------------------------------------------------------------------- ack ids


async def test_expired_and_foreign_ack_ids(client: httpx.AsyncClient) -> None:
    for broker in GOOD:
        await client.put("/v1/subscriptions/other", json={"broker": broker, "queue": "orders"})
        await client.post(publish_path(broker), json={"routing_key": "orders", "payload": "m"})
        path = f"/v1/subscriptions/{broker}"
        (item,) = (await client.post(f"{path}:pull", json={"wait": 5})).json()["messages"]
        ack_id = item["ack_id"]
        changed = ("B" if ack_id[0] != "B" else "C") + ack_id[1:]

        async def settle(where: str, verb: str, *ack_ids: str, **more: Any) -> list[str]:
            response = await client.post(f"{where}:{verb}", json={"ack_ids": ack_ids, **more})
            assert response.status_code == 200, response.text
            return [result["status"] for result in response.json()["results"]]

        for verb, more in (
            ("acknowledge", {}), ("release", {}), ("reject", {}), ("modifyAckDeadline", {"ack_deadline_seconds": 10}),
        ):  # fmt: skip
            assert await settle("/v1/subscriptions/other", verb, ack_id, **more) == ["INVALID_ACK_ID"]
            forged = [changed, "", "none", "x" * 10_000, "é"]
            assert await settle(path, verb, *forged, **more) == ["INVALID_ACK_ID"] * len(forged)
        assert await settle(path, "modifyAckDeadline", ack_id, ack_deadline_seconds=0) == ["SUCCESS"]  # ends the lease
        assert await settle(path, "acknowledge", ack_id) == ["LEASE_LOST"]
        (item,) = (await client.post(f"{path}:pull", json={"wait": 5})).json()["messages"]
        assert (item["message"]["payload"], item["redelivered"]) == ("m", True)
        assert await settle(path, "acknowledge", item["ack_id"]) == ["SUCCESS"]


# ------------------------------------------------------------------------------------------ far ends that lie


HOSTILE = {
    other_header: "another protocol",
    garbage: "another protocol|no AMQP",
    nothing: "did not answer in time",
    hang_up: "hung up",
    half_a_frame: "hung up|another protocol",
    huge_frame: "protocol",
}
"""What a far end does -> words of the reason that is told."""


class TestFarEnds:
    """All of them lie at the same time, in every version."""

    @pytest.fixture
    async def lies(self) -> AsyncIterator[dict[str, Any]]:
        settings: dict[str, Any] = {}
        async with AsyncExitStack() as stack:
            for script in HOSTILE:
                port = await stack.enter_async_context(listener(script))
                for version in VERSIONS:
                    name = f"brokers.{hostile(script, version)}"
                    settings[f"{name}.url"] = f"amqp://guest:guest@127.0.0.1:{port}/?version={version}"
                    settings[f"{name}.connect_timeout"] = 5.0
                    settings[f"{name}.reconnect_max"] = 1.0
            yield settings

    async def test_a_broker_that_is_none(self, app: App, client: httpx.AsyncClient) -> None:
        await asyncio.gather(
            *(
                self.check_one(client, hostile(script, version), words)
                for script, words in HOSTILE.items()
                for version in VERSIONS
            )
        )
        ready = await client.get(f"{app.ops_url}/readyz")
        assert ready.status_code == 200, ready.text

    async def check_one(self, client: httpx.AsyncClient, name: str, words: str) -> None:
        async with asyncio.timeout(60):
            while (found := (await client.get(f"/v1/brokers/{name}")).json())["state"] != "down":
                await asyncio.sleep(0.25)
        assert re.search(words, found["reason"]), found
        response = await client.post(publish_path(name), json={"routing_key": "orders"})
        problem = check(response, 503, "broker_unavailable")
        assert (problem["outcome"], problem["retryable"]) == ("not_sent", True)
        assert int(response.headers["retry-after"]) >= 1
        check(await client.put(f"/v1/brokers/{name}/queues/q"), 503, "broker_unavailable")
