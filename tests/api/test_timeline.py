"""``/v1/messages``."""

from __future__ import annotations

import httpx
import pytest

from tests.api.conftest import problem

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
    assert seen == identities[::-1]

    async def ids(query: str) -> list[str]:
        return [item["id"] for item in (await client.get(f"/v1/messages?{query}")).json()["messages"]]

    assert await ids("state=unroutable") == [identities[4], identities[1]]
    assert await ids("routing_key=%C3%A9&exchange=amq.default") == [identities[4]]
    assert await ids("broker=other") == []
    assert (await client.get("/v1/messages?limit=1&state=confirmed&exchange=amq.default")).links["next"]["url"].count(
        "exchange=amq.default"
    ) == 1


@pytest.mark.parametrize("query", ["state=nonsense", "cursor=nonsense", "limit=0"])
async def test_bad_queries(client: httpx.AsyncClient, query: str) -> None:
    problem(await client.get(f"/v1/messages?{query}"), 422, "invalid_parameter")
