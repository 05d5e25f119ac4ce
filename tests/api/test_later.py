"""202: publishes of later, over HTTP."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from time import time
from typing import Any

import httpx
import pytest

from gateway.core import Gateway
from gateway.core.publishing.outbox import YEAR
from gateway.errors import OutcomeUnknown
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
    assert (await client.delete(f"/v1/scheduled/{body['id']}")).status_code == 204, "it is taken back already"
    found = (await client.get(f"/v1/scheduled/{body['id']}")).json()
    assert (found["state"], found["not_before"]) == ("cancelled", body["not_before"])
    problem(await client.post(f"/v1/scheduled/{body['id']}:retry"), 409, "state")
    assert not upstream.published


async def test_another_time(client: httpx.AsyncClient, upstream: FakeUpstream) -> None:
    made = await client.post(PUBLISH, json={"routing_key": "orders", "payload": "x", "delay_seconds": 3600})
    path = made.headers["location"]
    when = datetime.now(UTC) + timedelta(hours=9)
    for body in ({"not_before": when.isoformat()}, {"not_before": when.timestamp()}):
        moved = await client.patch(path, json=body)
        assert (moved.status_code, moved.json()["state"]) == (200, "scheduled")
        assert abs(datetime.fromisoformat(moved.json()["not_before"]) - when) < timedelta(milliseconds=1)
    assert (await client.get(path)).json() == moved.json()
    told = (await client.get(f"/v1/messages/{made.json()['id']}")).json()
    assert [event["kind"] for event in told["events"]] == ["scheduled"] * 3
    assert told["story"][-1].startswith("It got another time: not before 20")
    assert not upstream.published
    patch = {"content-type": "application/merge-patch+json"}
    at_once = await client.patch(path, content=b'{"delay_seconds": 0}', headers=patch)
    assert at_once.status_code == 200
    await ended(client, made.json()["id"])
    assert [message.body for _, _, message in upstream.published] == [b"x"]
    problem(await client.patch(path, json={"delay_seconds": 1}), 409, "state")


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({}, "invalid_request"),
        ({"not_before": "tomorrow"}, "invalid_request"),
        ({"not_before": "2026-01-01T00:00:00"}, "invalid_value"),
        ({"not_before": time() + YEAR + 86_400}, "invalid_value"),
        ({"not_before": time() + 60, "delay_seconds": 60}, "invalid_value"),
        ({"delay_seconds": -1}, "invalid_request"),
        ({"routing_key": "other"}, "invalid_request"),
    ],
)
async def test_a_wrong_change_names_itself(client: httpx.AsyncClient, body: Any, code: str) -> None:
    made = await client.post(PUBLISH, json={"routing_key": "orders", "delay_seconds": 3600})
    before = (await client.get(made.headers["location"])).json()
    found = problem(await client.patch(made.headers["location"], json=body), 422, code)
    assert found["errors"][0]["pointer"]
    assert (await client.get(made.headers["location"])).json() == before


@pytest.mark.parametrize(
    ("value", "code"),
    [
        (time() + YEAR + 86_400, "invalid_value"),  # of when it was collected, which may be long ago
        ("2026-01-01T00:00:00", "invalid_value"),
        ("0001-01-01T00:00:00+14:00", "invalid_value"),  # which is no year in UTC
        ("9999-12-31T23:59:59-14:00", "invalid_value"),
        ("tomorrow", "invalid_request"),
        (-1, "invalid_request"),
    ],
)
async def test_a_wrong_time_names_itself(client: httpx.AsyncClient, value: Any, code: str) -> None:
    found = problem(await client.post(PUBLISH, json={"routing_key": "orders", "not_before": value}), 422, code)
    assert found["errors"][0]["pointer"] == "/not_before"


@pytest.mark.parametrize(
    "value", ["tomorrow", "2026-01-01T00:00:00", "0001-01-01T00:00:00+14:00", str(time() + YEAR + 86_400)]
)
async def test_a_wrong_time_in_the_query(client: httpx.AsyncClient, value: str) -> None:
    answer = await client.post(
        PUBLISH, params={"not_before": value}, content=b"x", headers={"content-type": "text/plain"}
    )
    assert problem(answer, 422, "invalid_value")["errors"][0]["parameter"] == "not_before"


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
    body = {"routing_key": "k"}
    answer = await client.post("/v1/brokers/none/exchanges/x:publish", json=body, headers=ASYNC)
    problem(answer, 404, "broker_not_found")


async def test_taken_back_after_an_attempt_without_an_outcome(
    client: httpx.AsyncClient, upstream: FakeUpstream
) -> None:
    """204 would say that it is not published."""
    upstream.failure = OutcomeUnknown("no confirm")
    answer = await client.post(PUBLISH, json={"routing_key": "orders"}, headers=ASYNC)
    path = answer.headers["location"]
    async with asyncio.timeout(60):
        while (await client.get(path)).json()["attempts"] < 2:
            await asyncio.sleep(0.01)
        upstream.state = UpstreamState.DOWN
        while (answer := await client.delete(path)).status_code == 409:  # it is being sent
            await asyncio.sleep(0.01)
    found = answer.json()
    assert (answer.status_code, found["state"], found["reason"]) == (
        200, "cancelled", "an earlier attempt has no outcome: the message may have arrived",
    )  # fmt: skip
    again = await client.delete(path)
    assert (again.status_code, again.json()) == (200, found)
    assert (await client.get(path)).json() == found


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
    async with asyncio.timeout(60):
        while (found := await ended(client, found["id"], "refused"))[
            "reason"
        ] != "no queue took the message: 312 NO_ROUTE":
            await asyncio.sleep(0.01)
    await upstream.bind_queue("orders", "shop", "k")
    assert (await client.post(f"{path}:retry")).status_code == 200
    await ended(client, found["id"])
    problem(await client.post(f"{path}:retry"), 409, "state")
    problem(await client.delete(path), 409, "state")


async def test_what_no_queue_takes_is_kept(client: httpx.AsyncClient, upstream: FakeUpstream) -> None:
    answer = await client.post(PUBLISH, json={"routing_key": "nowhere", "payload": "x"}, headers=ASYNC)
    path = answer.headers["location"]
    found = await ended(client, answer.json()["id"], "refused")
    assert found["reason"] == "no queue took the message: 312 NO_ROUTE"
    assert (await client.get("/v1/scheduled?state=refused")).json()["scheduled"] == [found]
    await upstream.declare_queue("nowhere")
    assert (await client.post(f"{path}:retry")).status_code == 200
    await ended(client, found["id"])


async def test_the_caller_may_allow_that_no_queue_takes_it(client: httpx.AsyncClient) -> None:
    body = {"routing_key": "nowhere", "payload": "x", "mandatory": False}
    answer = await client.post(PUBLISH, json=body, headers=ASYNC)
    found = await ended(client, answer.json()["id"], "unroutable")
    assert found["reason"] == "no queue took the message, which was published with mandatory = false"
    assert (await client.get("/v1/scheduled")).json()["scheduled"] == []


@pytest.mark.parametrize("form", ["json", "batch", "stream", "query"])
async def test_a_delay(client: httpx.AsyncClient, upstream: FakeUpstream, form: str) -> None:
    body: dict[str, Any] = {"routing_key": "orders", "payload": "x", "delay_seconds": 0.5}
    began = time()
    if form == "query":
        answer = await client.post(
            PUBLISH,
            params={"routing_key": "orders", "delay_seconds": "0.5"},
            content=b"x",
            headers={"content-type": "text/plain"},
        )
    elif form == "stream":
        lines = json.dumps(body)
        answer = await client.post(PUBLISH, content=lines, headers={"content-type": "application/x-ndjson"})
    else:
        answer = await client.post(PUBLISH, json=body if form == "json" else {"messages": [body]})
    result = answer.json()["results"][0] if form == "batch" else answer.json()
    assert {202, "scheduled"} <= {answer.status_code, *result.values()}
    due = (await ended(client, result["id"]))["not_before"]
    assert began + 0.5 <= datetime.fromisoformat(due).timestamp() <= time()
    assert time() >= began + 0.5
    assert [message.body for _, _, message in upstream.published] == [b"x"]


@pytest.mark.parametrize(
    ("more", "code", "pointer"),
    [
        ({"delay_seconds": -1}, "invalid_request", "/delay_seconds"),
        ({"delay_seconds": YEAR + 1}, "invalid_request", "/delay_seconds"),
        ({"delay_seconds": "5"}, "invalid_request", "/delay_seconds"),
        ({"delay_seconds": 5, "not_before": time() + 60}, "invalid_value", "/delay_seconds"),
    ],
)
async def test_a_wrong_delay(
    client: httpx.AsyncClient, upstream: FakeUpstream, more: dict[str, Any], code: str, pointer: str
) -> None:
    found = problem(await client.post(PUBLISH, json={"routing_key": "orders", **more}), 422, code)
    assert found["errors"][0]["pointer"] == pointer
    assert not upstream.published


@pytest.mark.parametrize(
    "query", ["delay_seconds=nan", "delay_seconds=inf", "delay_seconds=1&not_before=9", "delay_seconds=x"]
)
async def test_a_wrong_delay_in_the_query(client: httpx.AsyncClient, upstream: FakeUpstream, query: str) -> None:
    path = f"{PUBLISH}?routing_key=orders&{query}"
    answer = await client.post(path, content=b"x", headers={"content-type": "text/plain"})
    assert (answer.status_code, "delay_seconds" in answer.json()["detail"]) == (422, True)
    assert not upstream.published


async def test_a_key_of_its_own_and_a_delay(client: httpx.AsyncClient) -> None:
    body = {"messages": [{"routing_key": "orders", "key": "k", "delay_seconds": 5}]}
    (result,) = (await client.post(PUBLISH, json=body)).json()["results"]
    assert (result["status"], result["problem"]["errors"][0]["pointer"]) == (422, "/delay_seconds")


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
        problem(await caller.patch(theirs.headers["location"], json={"delay_seconds": 9}), 404, "message_not_found")
        listed = (await caller.get("/v1/scheduled")).json()["scheduled"]
        assert [each["id"] for each in listed] == [mine.json()["id"]]
        assert len((await caller.get("/v1/scheduled", headers=other)).json()["scheduled"]) == 2
        assert (await caller.delete(mine.headers["location"])).status_code == 204
