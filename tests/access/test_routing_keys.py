"""Callers with ``route:`` scopes: every way to publish, and each routing key that a message names."""

from __future__ import annotations

import asyncio
import json
from base64 import b64encode
from collections.abc import Callable
from time import time
from typing import Any

import httpx
import pytest

from gateway.access.access import Access
from gateway.ledger import Ledger
from tests.api.conftest import problem
from tests.core.fakes import FakeUpstream

DEFAULT = "/v1/brokers/fake/exchanges/amq.default:publish"
EX = "/v1/brokers/fake/exchanges/ex:publish"
SCOPES = ("route:fake/ex/eu.*", "route:fake/amq.default/orders", "consume:fake/orders", "broker:fake")
"""``broker`` allows no publish."""
EVENT = {"specversion": "1.0", "id": "1", "source": "/s", "type": "t"}


@pytest.fixture
async def client(client_with_keys: Callable[..., Any], upstream: FakeUpstream) -> httpx.AsyncClient:
    upstream.exchanges["ex"] = "topic"
    await upstream.declare_queue("other")
    client: httpx.AsyncClient = client_with_keys(*SCOPES)
    return client


def refused(found: Any, key: str, where: str = "") -> None:
    assert found["code"] == "forbidden"
    assert f"'caller' may not publish to exchange 'ex' of broker 'fake' with the routing key {key!r}" in found["detail"]
    assert "lacks the scope publish:fake/ex or route:fake/ex/PATTERN that matches" in found["detail"]
    if where:
        assert [error["pointer"] for error in found["errors"]] == [where]


async def test_one_message(client: httpx.AsyncClient, upstream: FakeUpstream) -> None:
    assert (await client.post(EX, json={"routing_key": "eu.orders", "mandatory": False})).status_code == 200
    assert (await client.post(DEFAULT, json={"routing_key": "orders"})).status_code == 200
    for key in ("us.orders", "eu", "eu.a.b", "", "eu.*.x", "k" * 280):
        refused(problem(await client.post(EX, json={"routing_key": key}), 403, "forbidden"), key, "/routing_key")
    assert [key for _, key, _ in upstream.published] == ["eu.orders", "orders"]


@pytest.mark.parametrize("path", ["/v1/brokers/fake/exchanges/else:publish", "/v1/brokers/none/exchanges/ex:publish"])
async def test_another_exchange_and_another_broker(client: httpx.AsyncClient, path: str) -> None:
    problem(await client.post(path, json={"routing_key": "eu.orders"}), 403, "forbidden")


async def test_the_key_of_the_default_exchange_is_the_queue(client: httpx.AsyncClient, upstream: FakeUpstream) -> None:
    problem(await client.post(DEFAULT, json={"routing_key": "other"}), 403, "forbidden")
    assert upstream.published == []


@pytest.mark.parametrize("name", ["CC", "BCC"])
@pytest.mark.parametrize(
    ("copies", "bad", "at"),
    [
        (["eu.b"], None, ""),
        ([], None, ""),
        (["eu.b", "us.b"], "us.b", "/1"),
        (["orders"], "orders", "/0"),
        ("us.b", "us.b", ""),
        ([{"type": "bytes", "value": b64encode(b"eu.b").decode()}], None, "/0"),
        ({"type": "uint8", "value": 1}, None, ""),
    ],
)
async def test_copies(
    client: httpx.AsyncClient, upstream: FakeUpstream, name: str, copies: Any, bad: str | None, at: str
) -> None:
    body = {"routing_key": "eu.a", "headers": {name: copies}, "mandatory": False}
    answer = await client.post(EX, json=body)
    if bad is None and (copies == [] or copies == ["eu.b"]):
        assert answer.status_code == 200, answer.text
        return
    found = problem(answer, 403, "forbidden")
    assert f"in the header {name}." in found["detail"]
    assert [error["pointer"] for error in found["errors"]] == [f"/headers/{name}{at}"]
    assert bad is None or repr(bad) in found["detail"]
    assert upstream.published == []


async def test_a_batch(client: httpx.AsyncClient, upstream: FakeUpstream) -> None:
    lines = [
        {"routing_key": "eu.a"},
        {"routing_key": "us.a"},
        {"routing_key": "eu.a", "headers": {"CC": ["us.a"]}},
        {"routing_key": "eu.a", "logged": {"headers": {"BCC": ["us.a"]}}},
        {"routing_key": "eu.b", "not_before": "2020-01-01T00:00:00Z"},
        {"routing_key": "us.b", "not_before": "2020-01-01T00:00:00Z"},
        {"routing_key": "us.b", "key": "k-1"},
        {"payload": 1},
        {"routing_key": "eu.c"},
    ]
    body = {"messages": [{"mandatory": False} | line for line in lines]}
    answer = await client.post(EX, json=body)
    results = answer.json()["results"]
    assert answer.status_code == 207
    assert [result["status"] for result in results] == [200, 403, 403, 200, 202, 403, 403, results[7]["status"], 200]
    refused(results[1]["problem"], "us.a", "/routing_key")
    async with asyncio.timeout(10):  # the scheduled one is sent soon after the answer
        while len(upstream.published) < 4:
            await asyncio.sleep(0.01)
    assert sorted(key for _, key, _ in upstream.published) == ["eu.a", "eu.a", "eu.b", "eu.c"]
    # What is published from the log keeps CC and BCC in the gateway's own header, where no broker acts upon them.
    assert not any({"CC", "BCC"} & (message.properties.headers or {}).keys() for _, _, message in upstream.published)


async def test_logged_messages_of_a_broker_without_annotations(
    client: httpx.AsyncClient, upstream: FakeUpstream
) -> None:
    upstream.settings = type(upstream.settings)(url=upstream.settings.url, annotate=False)
    body = {"messages": [{"routing_key": "eu.a", "logged": {"headers": {"CC": ["us.a"]}}}]}
    (result,) = (await client.post(EX, json=body)).json()["results"]
    assert result["status"] == 403
    assert upstream.published == []


async def test_a_stream(client: httpx.AsyncClient, upstream: FakeUpstream) -> None:
    lines = [{"routing_key": "eu.a"}, {"routing_key": "us.a"}, {"routing_key": "eu.b", "headers": {"BCC": ["us.a"]}}]
    text = "\n".join(json.dumps({"mandatory": False} | line) for line in lines)
    answer = await client.post(EX, content=text, headers={"content-type": "application/x-ndjson"})
    results = [json.loads(line) for line in answer.text.splitlines()]
    assert [result["status"] for result in results] == [200, 403, 403]
    refused(results[1]["problem"], "us.a", "/routing_key")
    refused(results[2]["problem"], "us.a", "/headers/BCC/0")
    assert [key for _, key, _ in upstream.published] == ["eu.a"]


@pytest.mark.parametrize("key", ["us.a", "eu.a"])
@pytest.mark.parametrize(
    ("content", "headers"),
    [
        (b"raw", {"content-type": "text/plain"}),
        (b"{}", {"content-type": "application/json", "amqp-priority": "1"}),
        (json.dumps(EVENT).encode(), {"content-type": "application/cloudevents+json"}),
        (b"x", {f"ce-{name}": value for name, value in EVENT.items()}),
    ],
)
@pytest.mark.parametrize("by_header", [True, False])
async def test_raw_bodies_and_events(
    client: httpx.AsyncClient, key: str, content: bytes, headers: dict[str, str], by_header: bool
) -> None:
    where: dict[str, Any] = {"params": {"routing_key": key, "mandatory": "false"}}
    if by_header:
        headers, where = headers | {"amqp-routing-key": key}, {"params": {"mandatory": "false"}}
    answer = await client.post(EX, content=content, headers=headers, **where)
    assert answer.status_code == (200 if key == "eu.a" else 403), answer.text
    if key == "us.a":
        refused(answer.json(), "us.a")
        assert "errors" not in answer.json()  # the body has no such place
    else:
        copies = headers | {"amqp-headers": json.dumps({"CC": ["us.a"]})}
        problem(await client.post(EX, content=content, headers=copies, **where), 403, "forbidden")


@pytest.mark.parametrize("key", ["us.a", "eu.a"])
async def test_a_batch_of_events(client: httpx.AsyncClient, key: str) -> None:
    headers = {"content-type": "application/cloudevents-batch+json", "amqp-routing-key": key, "amqp-mandatory": "false"}
    answer = await client.post(EX, content=json.dumps([EVENT, EVENT]), headers=headers)
    assert [result["status"] for result in answer.json()["results"]] == [200 if key == "eu.a" else 403] * 2


@pytest.mark.parametrize(
    ("more", "headers"),
    [
        ({"not_before": time() + 86_400}, {}),
        ({}, {"prefer": "respond-async"}),
        ({}, {"idempotency-key": "k"}),
        ({}, {"idempotency-key": "k", "prefer": "respond-async"}),
    ],
)
async def test_what_is_published_later_or_under_a_key(
    client: httpx.AsyncClient, upstream: FakeUpstream, more: dict[str, Any], headers: dict[str, str]
) -> None:
    """The scope is checked when the message is taken."""
    for body in ({"routing_key": "us.a"}, {"routing_key": "eu.a", "headers": {"CC": ["us.a"]}}):
        problem(await client.post(EX, json=body | more, headers=headers), 403, "forbidden")
    assert (await client.get("/v1/scheduled")).json() == {"scheduled": []}
    assert upstream.published == []


async def test_a_scheduled_message_is_retried_by_who_may_publish_it_now(
    client_with_keys: Callable[..., Any], upstream: FakeUpstream
) -> None:
    client = client_with_keys("publish:fake/amq.default")
    body = {"routing_key": "nowhere", "mandatory": True}
    found = (await client.post(DEFAULT, json=body, headers={"prefer": "respond-async"})).json()
    async with asyncio.timeout(30):
        while (await client.get(f"/v1/scheduled/{found['id']}")).json()["state"] != "refused":
            await asyncio.sleep(0.01)
    retry = f"/v1/scheduled/{found['id']}:retry"
    narrow = client_with_keys("route:fake/amq.default/orders")
    assert "'nowhere'" in problem(await narrow.post(retry), 403, "forbidden")["detail"]
    assert (await client_with_keys("route:fake/amq.default/no*".replace("no*", "*")).post(retry)).status_code == 200


async def test_what_else_such_a_caller_sees(client: httpx.AsyncClient, client_with_keys: Callable[..., Any]) -> None:
    only = client_with_keys("route:fake/amq.default/orders")
    assert [broker["name"] for broker in (await only.get("/v1/brokers")).json()["brokers"]] == ["fake"]
    assert (await only.get("/v1/brokers/fake/exchanges/amq.default")).status_code == 200
    problem(await only.get("/v1/brokers/fake/exchanges/ex"), 403, "forbidden")
    problem(await only.post("/v1/replays", json={"source": {"messages": {}}}), 403, "forbidden")
    problem(await only.put("/v1/bridges/b", json={}), 403, "forbidden")
    problem(await only.get("/v1/messages"), 403, "forbidden")
    problem(await client.post("/v1/deliveries:retry", json={}), 403, "forbidden")


async def test_publish_still_allows_every_key(client_with_keys: Callable[..., Any], upstream: FakeUpstream) -> None:
    upstream.exchanges["a/b.*"] = "topic"
    client = client_with_keys("publish:fake/a/b.*")
    path = "/v1/brokers/fake/exchanges/a%2Fb.*:publish"
    body = {"routing_key": "any.key", "headers": {"CC": ["other"]}, "mandatory": False}
    assert (await client.post(path, json=body)).status_code == 200
    problem(await client.post(path.replace("*", "x"), json=body), 403, "forbidden")


async def test_lines_that_are_refused_are_on_record(ask: Callable[..., Any], access: Access, ledger: Ledger) -> None:
    made = (await ask("POST", "/v1/keys", json={"client": "shop", "scopes": ["route:fake/ex/eu.*"]})).json()
    body = {"messages": [{"routing_key": "us.a"}, {"routing_key": "us.b"}]}
    assert (await ask("POST", EX, made["key"], json=body)).status_code == 207
    problem(await ask("POST", EX, made["key"], json={"routing_key": "us.a"}), 403, "forbidden")
    assert access.trail is not None
    await access.trail._flush()
    found = [row.document() for row in await ledger.audit.read()]
    lines = [entry for entry in found if entry.get("result") == "forbidden"]
    assert len(lines) == 2
    assert {(entry["action"], entry["actor"], entry["object"]) for entry in lines} == {("publish", "shop", EX)}
