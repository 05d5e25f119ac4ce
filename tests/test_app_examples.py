"""The examples of the OpenAPI document, sent as they stand to a gateway with its embedded broker."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from gateway.app import running
from gateway.notation.cloudevents import BATCH, STRUCTURED
from tests.ledgers import sqlite_ledger
from tests.test_app import configuration, publish_path, pull, queue_path

STORY = ("put_queue", "put_exchange", "post_binding", "put_subscription", "publish", "pull", "acknowledge")
"""The order that the document recommends."""
ORDER = (*STORY, "claim_log_cursor")
"""What comes first of all operations. The others follow as the document has them."""
PULLS = 12
"""How often a pull is repeated until its message is there: it waits five seconds each time."""
WITHOUT_A_KEY = {STRUCTURED, BATCH, "*/*"}
"""Bodies that have no routing key: the reader gives it in the query."""

REFUSED = {"take_and_give_back": 422, "redeem_login": 422}
"""Operations that this gateway refuses: the embedded broker shows its messages, so that nobody needs to take them, and
nobody logs in at an issuer."""


class Example(NamedTuple):
    """One request, as a page offers it."""

    operation: str
    method: str
    path: str
    media: str
    title: str
    headers: dict[str, str]
    body: Any


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    sqlite_ledger(tmp_path / "data")
    async with running(configuration(tmp_path)) as app, httpx.AsyncClient(base_url=app.url, timeout=30) as client:
        yield client


def examples(document: Any) -> Iterator[Example]:
    """Every example of the document, with the path and the headers that go with it."""
    for path, item in document["paths"].items():
        for method, operation in item.items():
            filled, headers = path, {}
            for each in operation.get("parameters", ()):
                if each["in"] == "path" and "example" in each:
                    filled = filled.replace("{" + each["name"] + "}", each["example"])
                elif each["in"] == "header" and "example" in each:
                    headers[each["name"]] = each["example"]
            for media, content in operation.get("requestBody", {}).get("content", {}).items():
                alone = {"alone": {"value": content["example"]}} if "example" in content else {}
                for title, found in {**alone, **content.get("examples", {})}.items():
                    yield Example(
                        operation["operationId"], method.upper(), filled, media, title, headers, found["value"]
                    )


async def send(client: httpx.AsyncClient, example: Example, **names: str) -> httpx.Response:
    """Send it; ``names`` are ids that the gateway has given."""
    body = example.body
    content = body if isinstance(body, str) else json.dumps(body)
    media = "text/plain" if example.media == "*/*" else example.media
    query = {"routing_key": "orders"} if example.operation == "publish" and example.media in WITHOUT_A_KEY else {}
    path = example.path
    for name, value in names.items():
        path = path.replace("{" + name + "}", value)
    assert "{" not in path, path
    headers = {**example.headers, "content-type": media}
    return await client.request(example.method, path, params=query, content=content, headers=headers)


async def in_order(client: httpx.AsyncClient) -> list[Example]:
    found = list(examples((await client.get("/openapi.json")).json()))
    return sorted(found, key=lambda each: ORDER.index(each.operation) if each.operation in ORDER else len(ORDER))


async def delivery_of(client: httpx.AsyncClient) -> str:
    """The id of a delivery that the ledger holds."""
    path = "/v1/subscriptions/letters"
    settings = {"broker": "local-0-9-1", "queue": "letters", "lease": "ledger"}
    assert (await client.put(queue_path("local-0-9-1", "letters"))).status_code == 201
    assert (await client.put(path, json=settings)).status_code == 201
    body = {"routing_key": "letters", "payload": "x"}
    assert (await client.post(publish_path("local-0-9-1"), json=body)).status_code == 200
    assert len(await pull(client, path, wait=20)) == 1
    (found,) = (await client.get("/v1/deliveries")).json()["deliveries"]
    return str(found["id"])


async def scheduled_by(client: httpx.AsyncClient) -> str:
    """The id of a message that is to be published later."""
    body = {"routing_key": "letters", "payload": "x", "delay_seconds": 600}
    answer = await client.post(publish_path("local-0-9-1"), json=body)
    assert answer.status_code == 202, answer.text
    return str(answer.json()["id"])


async def test_the_story_publishes_and_pulls(client: httpx.AsyncClient) -> None:
    """What a reader of ``/docs`` executes first, in the order of its introduction."""
    found: dict[str, Any] = {}
    ack_ids: list[str] = []
    for example in await in_order(client):
        if example.operation not in STORY or example.operation in found or example.media != "application/json":
            continue
        if example.operation == "acknowledge":
            example = example._replace(body={**example.body, "ack_ids": ack_ids})
        for _ in range(PULLS):
            answer = await send(client, example)
            assert answer.is_success, (example, answer.text)
            found[example.operation] = answer.json()
            if example.operation != "pull":
                break
            if ack_ids := [each["ack_id"] for each in found["pull"]["messages"]]:
                break
    assert found.keys() == set(STORY)
    assert [each["message"]["id"] for each in found["pull"]["messages"]] == [found["publish"]["id"]]
    assert [each["status"] for each in found["acknowledge"]["results"]] == ["SUCCESS"]


async def test_every_example_works_as_it_stands(client: httpx.AsyncClient) -> None:
    names = {"delivery": await delivery_of(client), "scheduled": await scheduled_by(client)}
    for example in await in_order(client):
        answer = await send(client, example, **names)
        if example.operation in REFUSED:
            assert answer.status_code == REFUSED[example.operation], answer.text
            continue
        assert answer.is_success, (example, answer.status_code, answer.text)
        if answer.status_code == 207:
            assert {each["status"] for each in answer.json()["results"]} == {200}, (example, answer.text)
        if example.media == "application/x-ndjson":
            lines = [json.loads(line) for line in answer.text.splitlines()]
            assert {each["status"] for each in lines} == {200}, answer.text
        if example.operation == "create_key":
            names["key"] = answer.json()["id"]
