"""202: publishes of later, over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from time import time
from typing import Any

import httpx
import pytest

from gateway.core import Gateway
from gateway.core.outbox import YEAR
from gateway.upstreams import UpstreamState
from tests.api.conftest import problem
from tests.core.fakes import FakeUpstream

PUBLISH = "/v1/brokers/fake/exchanges/amq.default:publish"
ASYNC = {"prefer": "respond-async"}


async def ended(client: httpx.AsyncClient, id: str, state: str = "confirmed") -> dict[str, Any]:
    async with asyncio.timeout(60):
        while True:
            found: dict[str, Any] = (await client.get(f"/v1/scheduled/{id}")).json()
            if found["state"] == state:
                return found
            await asyncio.sleep(0.01)


async def test_respond_async(client: httpx.AsyncClient, upstream: FakeUpstream) -> None:
    answer = await client.post(PUBLISH, json={"routing_key": "orders", "payload": "x"}, headers=ASYNC)
    body = answer.json()
    assert (answer.status_code, answer.headers["preference-applied"]) == (202, "respond-async")
    assert answer.headers["location"] == f"/v1/scheduled/{body['id']}"
    assert body == {"id": body["id"], "status": "scheduled"}
    found = await ended(client, body["id"])
    assert (found["broker"], found["routing_key"], found["attempts"]) == ("fake", "orders", 0)
    assert [message.body for _, _, message in upstream.published] == [b"x"]


@pytest.mark.parametrize("prefer", ["respond-async; foo=bar", "wait=10, Respond-Async"])
async def test_the_preference_is_read_as_rfc_7240_has_it(client: httpx.AsyncClient, prefer: str) -> None:
    answer = await client.post(PUBLISH, json={"routing_key": "orders"}, headers={"prefer": prefer})
    assert answer.status_code == 202


async def test_another_preference_is_none_of_ours(client: httpx.AsyncClient) -> None:
    answer = await client.post(PUBLISH, json={"routing_key": "orders"}, headers={"prefer": "wait=10"})
    assert answer.status_code == 200


@pytest.mark.parametrize("form", ["text", "number", "query"])
async def test_not_before(client: httpx.AsyncClient, upstream: FakeUpstream, form: str) -> None:
    when = datetime.now(UTC) + timedelta(hours=1)
    value: Any = when.isoformat() if form == "text" else when.timestamp()
    if form == "query":
        answer = await client.post(
            PUBLISH,
            params={"routing_key": "orders", "not_before": str(value)},
            content=b"x",
            headers={"content-type": "text/plain"},
        )
    else:
        answer = await client.post(PUBLISH, json={"routing_key": "orders", "payload": "x", "not_before": value})
    body = answer.json()
    assert (answer.status_code, "preference-applied" in answer.headers) == (202, False)
    assert abs(datetime.fromisoformat(body["not_before"]) - when) < timedelta(milliseconds=1)
    found = (await client.get(f"/v1/scheduled/{body['id']}")).json()
    assert (found["state"], found["not_before"], found["sending"]) == ("scheduled", body["not_before"], False)
    assert (await client.get("/v1/scheduled")).json()["scheduled"] == [found]
    assert (await client.delete(f"/v1/scheduled/{body['id']}")).status_code == 204
    problem(await client.delete(f"/v1/scheduled/{body['id']}"), 409, "state")
    assert (await client.get(f"/v1/scheduled/{body['id']}")).json()["state"] == "cancelled"
    assert not upstream.published


@pytest.mark.parametrize(
    ("value", "code"),
    [
        (time() + YEAR + 86_400, "invalid_value"),  # of when it was collected, which may be long ago
        ("2026-01-01T00:00:00", "invalid_value"),
        ("tomorrow", "invalid_request"),
        (-1, "invalid_request"),
    ],
)
async def test_a_wrong_time_names_itself(client: httpx.AsyncClient, value: Any, code: str) -> None:
    found = problem(await client.post(PUBLISH, json={"routing_key": "orders", "not_before": value}), 422, code)
    assert found["errors"][0]["pointer"] == "/not_before"


@pytest.mark.parametrize("value", ["tomorrow", "2026-01-01T00:00:00", str(time() + YEAR + 86_400)])
async def test_a_wrong_time_in_the_query(client: httpx.AsyncClient, value: str) -> None:
    answer = await client.post(
        PUBLISH, params={"not_before": value}, content=b"x", headers={"content-type": "text/plain"}
    )
    assert problem(answer, 422, "invalid_value")["errors"][0]["pointer"] == "/not_before"


async def test_a_batch_may_have_both(client: httpx.AsyncClient, upstream: FakeUpstream) -> None:
    later = {"routing_key": "orders", "payload": "later", "not_before": time() + 60}
    answer = await client.post(
        PUBLISH, json={"messages": [later, {"routing_key": "orders", "payload": "now"}, {"x": 1}]}
    )
    results = answer.json()["results"]
    assert (answer.status_code, [each["status"] for each in results]) == (207, [202, 200, 422])
    assert results[0]["id"]
    assert [message.body for _, _, message in upstream.published] == [b"now"]


async def test_a_batch_of_which_the_rest_cannot_be_sent(
    client: httpx.AsyncClient, gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was promised is said, whatever becomes of the others."""
    from gateway.errors import LedgerUnavailable

    async def publish(*_: Any) -> Any:
        raise LedgerUnavailable("away")

    monkeypatch.setattr(gateway, "publish", publish)
    later = {"routing_key": "orders", "not_before": time() + 60}
    answer = await client.post(PUBLISH, json={"messages": [{"routing_key": "orders"}, later]})
    assert [each["status"] for each in answer.json()["results"]] == [503, 202]


async def test_a_stream(client: httpx.AsyncClient, upstream: FakeUpstream) -> None:
    lines = b'{"routing_key": "orders", "payload": "1"}\n{"routing_key": "orders", "payload": "2"}\n'
    headers = {"content-type": "application/x-ndjson", **ASYNC}
    answer = await client.post(PUBLISH, content=lines, headers=headers)
    assert [line.count('"status":202') for line in answer.text.splitlines()] == [1, 1]


async def test_with_a_key(client: httpx.AsyncClient, upstream: FakeUpstream) -> None:
    headers = {"idempotency-key": "k", **ASYNC}
    body = {"routing_key": "orders", "payload": "x"}
    first = await client.post(PUBLISH, json=body, headers=headers)
    again = await client.post(PUBLISH, json=body, headers=headers)
    assert (first.status_code, again.status_code, again.headers["idempotent-replayed"]) == (202, 202, "true")
    assert (first.json(), first.headers["location"]) == (again.json(), again.headers["location"])
    problem(await client.post(PUBLISH, json=body, headers={"idempotency-key": "k"}), 422, "idempotency_key_reused")
    await ended(client, first.json()["id"])
    assert len(upstream.published) == 1
    some = {"messages": [body, {**body, "not_before": time() + 60}]}
    problem(await client.post(PUBLISH, json=some, headers={"idempotency-key": "l"}), 422, "invalid_parameter")
    both = await client.post(PUBLISH, json=some, headers={"idempotency-key": "l", **ASYNC})
    assert [each["status"] for each in both.json()["results"]] == [202, 202]


async def test_a_broker_that_is_away_is_no_error(client: httpx.AsyncClient, upstream: FakeUpstream) -> None:
    upstream.state = UpstreamState.DOWN
    answer = await client.post(PUBLISH, json={"routing_key": "orders"}, headers=ASYNC)
    assert answer.status_code == 202
    found = (await client.get(answer.headers["location"])).json()
    assert (found["state"], found["reason"]) == ("scheduled", "broker fake: down")
    problem(await client.post("/v1/brokers/none/exchanges/x:publish", json={}, headers=ASYNC), 404, "broker_not_found")


async def test_refused_is_shown_and_can_be_retried(client: httpx.AsyncClient, upstream: FakeUpstream) -> None:
    answer = await client.post("/v1/brokers/fake/exchanges/shop:publish", json={"routing_key": "k"}, headers=ASYNC)
    path = answer.headers["location"]
    found = await ended(client, answer.json()["id"], "refused")
    assert found["reason"] == "404 no exchange 'shop'"
    assert (await client.get("/v1/scheduled?state=refused")).json()["scheduled"] == [found]
    assert (await client.get("/v1/scheduled?state=scheduled")).json()["scheduled"] == []
    assert (await client.get(f"/v1/messages/{found['id']}")).json()["state"] == "refused"
    await upstream.declare_exchange("shop")
    assert (await client.post(f"{path}:retry")).status_code == 200
    await ended(client, found["id"], "unroutable")
    problem(await client.post(f"{path}:retry"), 409, "state")


async def test_unknown_ids(client: httpx.AsyncClient) -> None:
    for id in ("nonsense", "01980000-0000-7000-8000-000000000000"):
        problem(await client.get(f"/v1/scheduled/{id}"), 404, "message_not_found")
    plain = (await client.post(PUBLISH, json={"routing_key": "orders"})).json()["id"]
    problem(await client.get(f"/v1/scheduled/{plain}"), 404, "message_not_found")
    problem(await client.get("/v1/scheduled?cursor=zz"), 422, "invalid_parameter")


async def test_a_key_sees_its_own_only(gateway: Gateway, client_with_keys: Callable[..., Any]) -> None:
    async with client_with_keys("publish:fake/*") as caller:
        mine = await caller.post(PUBLISH, json={"routing_key": "orders", "not_before": time() + 60})
        assert mine.status_code == 202
        other = {"authorization": "Bearer other-secret"}
        theirs = await caller.post(PUBLISH, json={"routing_key": "orders", "not_before": time() + 60}, headers=other)
        assert (await caller.get(mine.headers["location"])).status_code == 200
        path = theirs.headers["location"]
        nowhere = path[:-12] + "0" * 12
        told = [problem(await caller.get(each), 404, "message_not_found")["detail"] for each in (path, nowhere)]
        assert told[0].replace(path[-36:], nowhere[-36:]) == told[1], "it is not told whether there is another's"
        problem(await caller.delete(theirs.headers["location"]), 404, "message_not_found")
        listed = (await caller.get("/v1/scheduled")).json()["scheduled"]
        assert [each["id"] for each in listed] == [mine.json()["id"]]
        assert len((await caller.get("/v1/scheduled", headers=other)).json()["scheduled"]) == 2
        assert (await caller.delete(mine.headers["location"])).status_code == 204
