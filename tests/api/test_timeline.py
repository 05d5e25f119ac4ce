"""``/v1/messages``."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from datetime import datetime
from typing import Any

import httpx
import pytest

from gateway.core import Gateway
from gateway.ledger import EventKind, LogEntry, MessageFilter, MessageIds, Owed, id_text, parse_id
from tests.api.conftest import problem

new_id = MessageIds()
PUBLISH = "/v1/brokers/fake/exchanges/amq.default:publish"


async def test_a_timeline(client: httpx.AsyncClient) -> None:
    body = {"routing_key": "orders", "payload": "hello", "properties": {"message_id": "m-1"}}
    identity = (await client.post(PUBLISH, json=body)).json()["id"]
    found = (await client.get(f"/v1/messages/{identity}")).json()
    assert (found["id"], found["state"], found["broker"], found["exchange"]) == (identity, "confirmed", "fake", "")
    assert (found["routing_key"], found["size"], found["origin"]) == ("orders", 5, "http")
    assert found["sha256"] == "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"
    assert found["properties"] == {"message_id": "m-1"}
    first, second = found["events"]
    assert (first["kind"], first["sequence"], second["kind"], second["sequence"]) == ("accepted", 1, "confirmed", 2)
    assert (first["broker"], first["version"]) == ("fake", "0-9-1")
    assert first["at"].endswith("Z")


async def test_only_an_admin_sees_digests_of_bodies(
    client: httpx.AsyncClient, client_with_keys: Callable[..., Any]
) -> None:
    """With the digest a body of few bytes is found by trying them all."""
    identity = (await client.post(PUBLISH, json={"routing_key": "orders", "payload": "4711"})).json()["id"]
    async with client_with_keys("history") as caller:
        assert (await caller.get(f"/v1/messages/{identity}")).json()["sha256"] == ""
        (found,) = (await caller.get("/v1/messages")).json()["messages"]
        assert (found["sha256"], found["size"]) == ("", 4)
    (found,) = (await client.get("/v1/messages")).json()["messages"]
    assert found["sha256"] == hashlib.sha256(b"4711").hexdigest()


@pytest.mark.parametrize("identity", ["nonsense", "01980000-0000-7000-8000-000000000000"])
async def test_what_is_not_there(client: httpx.AsyncClient, identity: str) -> None:
    problem(await client.get(f"/v1/messages/{identity}"), 404, "message_not_found")


async def test_the_list(client: httpx.AsyncClient) -> None:
    messages = [{"routing_key": key} for key in ("orders", "nowhere", "orders", "orders", "\u00e9")]
    results = (await client.post(PUBLISH, json={"messages": messages})).json()["results"]
    identities = [item["id"] for item in results]
    seen = []
    url: str | None = "/v1/messages?limit=2"
    while url:
        response = await client.get(url)
        seen += [item["id"] for item in response.json()["messages"]]
        url = response.links.get("next", {}).get("url")
        reached = response.json()["reached"]
        assert (reached is None) == (url is None)
        if reached is not None:  # the time of an id, which is given moments before the message is taken
            took = datetime.fromisoformat(response.json()["messages"][-1]["at"]) - datetime.fromisoformat(reached)
            assert abs(took.total_seconds()) < 1.0
    assert seen == identities[::-1]

    async def ids(query: str) -> list[str]:
        return [item["id"] for item in (await client.get(f"/v1/messages?{query}")).json()["messages"]]

    assert await ids("state=unroutable") == [identities[4], identities[1]]
    assert await ids("routing_key=%C3%A9&exchange=amq.default") == [identities[4]]
    assert await ids("broker=other") == []
    assert (await client.get("/v1/messages?limit=1&state=confirmed&exchange=amq.default")).links["next"]["url"].count(
        "exchange=amq.default"
    ) == 1


async def test_names_that_are_no_utf_8(client: httpx.AsyncClient) -> None:
    message = {"routing_key": {"type": "binary", "value": "/w=="}}
    made = (await client.post(PUBLISH, json={"messages": [message, message]})).json()["results"]
    seen = []
    url: str | None = "/v1/messages?limit=1&routing_key=%FF"
    while url:
        response = await client.get(url)
        seen += [item["id"] for item in response.json()["messages"]]
        url = response.links.get("next", {}).get("url")
        reached = response.json()["reached"]
        assert (reached is None) == (url is None)
        if reached is not None:  # the time of an id, which is given moments before the message is taken
            took = datetime.fromisoformat(response.json()["messages"][-1]["at"]) - datetime.fromisoformat(reached)
            assert abs(took.total_seconds()) < 1.0
    assert seen == [item["id"] for item in made[::-1]]


async def test_what_a_broker_said_may_be_no_utf_8(client: httpx.AsyncClient, gateway: Gateway) -> None:
    identity = (await client.post(PUBLISH, json={"routing_key": "orders"})).json()["id"]
    message_id = parse_id(identity)
    await gateway.ledger.record([LogEntry(message_id, EventKind.RELEASED, 1, "fake", "0-9-1", {"text": "\udcff"})])
    events = (await client.get(f"/v1/messages/{identity}")).json()["events"]
    assert [event["detail"] for event in events if event["kind"] == "released"] == [{"text": "\udcff"}]


async def test_several_headers_must_all_hold(client: httpx.AsyncClient, gateway: Gateway) -> None:
    asked: list[MessageFilter] = []
    page = gateway.messages

    async def watched(where: MessageFilter, cursor: str | None, limit: int) -> Any:
        asked.append(where)
        return await page(where, cursor, limit)

    gateway.messages = watched  # type: ignore[method-assign]
    gateway.ledger.headers = ("tenant", "n")
    answer = await client.get("/v1/messages?header=tenant=7&header=n=a=2&limit=1")
    assert answer.status_code == 200
    assert asked[0].headers == {"tenant": "7", "n": "a=2"}


async def test_a_header_that_the_ledger_does_not_keep(client: httpx.AsyncClient, gateway: Gateway) -> None:
    """An empty page would say that there is no such message."""
    answer = await client.get("/v1/messages?header=tenant=7")
    assert (
        "'tenant' is not kept by the ledger (ledger.headers: none)"
        in problem(answer, 422, "invalid_parameter")["detail"]
    )
    gateway.ledger.headers = ("n", "tenants")
    answer = await client.get("/v1/messages?header=tenant=7")
    assert "(ledger.headers: n, tenants)" in problem(answer, 422, "invalid_parameter")["detail"]


@pytest.mark.parametrize("query", ["state=nonsense", "cursor=nonsense", "limit=0"])
async def test_bad_queries(client: httpx.AsyncClient, query: str) -> None:
    problem(await client.get(f"/v1/messages?{query}"), 422, "invalid_parameter")


async def test_every_filter(client: httpx.AsyncClient, gateway: Gateway) -> None:
    body = {"routing_key": "orders", "properties": {"message_id": "m-1", "type": "t", "correlation_id": "c"}}
    identity = (await client.post(PUBLISH, json=body)).json()["id"]
    await client.post(PUBLISH, json={"routing_key": "orders"})
    (message,), _ = await gateway.messages(MessageFilter(properties={"type": "t"}), None, 10)
    detail = {"subscription": "billing", "endpoint": "shop", "bridge": "east"}
    await gateway.ledger.record([LogEntry(message.id, EventKind.ATTEMPT_FAILED, message.at, "fake", "0-9-1", detail)])

    async def ids(**query: str) -> list[str]:
        return [item["id"] for item in (await client.get("/v1/messages", params=query)).json()["messages"]]

    for name, value in {
        "subscription": "billing", "endpoint": "shop", "bridge": "east", "state": "retrying", "message_id": "m-1",
        "type": "t", "correlation_id": "c",
    }.items():  # fmt: skip
        assert await ids(**{name: value}) == [identity], name
        assert await ids(**{name: "dead" if name == "state" else "other"}) == [], name
    assert len(await ids(origin="http")) == 2
    assert await ids(origin="bridge") == []
    assert await ids(client="nobody") == []
    gateway.ledger.headers = ("tenant",)
    assert await ids(header="tenant=7", content_type="x") == []
    for query in ("header=tenant=7&header=tenant=8", "header=x", "state=dead&state=retrying", "limit=1&limit=2"):
        problem(await client.get(f"/v1/messages?{query}"), 422, "invalid_parameter")
    assert len(await ids(since="2026-01-01T00:00:00Z")) == 2
    assert await ids(until="2026-01-01T00:00:00+01:00") == []
    query = {"limit": "1", "origin": "http", "since": "2026-01-01T00:00:00Z", "type": "", "routing_key": "orders"}
    first = await client.get("/v1/messages", params=query)
    second = await client.get(first.links["next"]["url"])
    assert [item["id"] for item in second.json()["messages"]] == [identity]


async def test_what_is_owed_and_what_can_be_done(client: httpx.AsyncClient, gateway: Gateway) -> None:
    identity = (await client.post(PUBLISH, json={"routing_key": "orders", "payload": "x"})).json()["id"]
    found = (await client.get(f"/v1/messages/{identity}")).json()
    assert (found["owed"], found["body_kept"], found["related"], len(found["story"])) == ([], False, [], 2)
    assert found["now"] == (
        "It is at the broker fake; nobody took it through the gateway yet. No subscription of the gateway takes "
        "from the queue 'orders' at the broker fake."
    )
    assert [wait["code"] for wait in found["waits"]] == ["no_subscription"]
    delivery = new_id()
    owed = Owed(
        id=delivery, message_id=parse_id(identity), subscription="billing", at=1, payload=b"x", size=1, dead=True,
        reason={"reason": "no such order"}, attempt=2,
    )  # fmt: skip
    await gateway.ledger.deliveries.store([owed])
    found = (await client.get(f"/v1/messages/{identity}")).json()
    (item,) = found["owed"]
    assert (item["id"], item["subscription"], item["state"]) == (id_text(delivery), "billing", "dead")
    assert (item["attempt"], item["reason"]) == (2, {"reason": "no such order"})
    assert found["body_kept"] is True
    assert found["now"].startswith("It is dead for the subscription billing, after 2 attempts")
    assert found["advice"][0]["command"] == f"gateway dlq redrive {id_text(delivery)}"


@pytest.mark.parametrize("query", ["header=tenant", "header==7", "since=yesterday", "until=2026-01-01T00:00:00"])
async def test_bad_filters(client: httpx.AsyncClient, query: str) -> None:
    problem(await client.get(f"/v1/messages?{query}"), 422, "invalid_parameter")
