"""``/v1/replays`` and ``/v1/deliveries``."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from base64 import b64decode
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.api.app import Api
from gateway.api.messages.pulled_json import SLICE
from gateway.budgets import ShareHolder
from gateway.config import HttpSettings
from gateway.ledger import BacklogSettlement, Ending, EventKind, id_text
from tests.api.conftest import problem
from tests.replays.conftest import House

MESSAGES = {"source": {"messages": {"broker": "fake"}}}
TURN_MAX = 0.1
"""How long a turn of the loop may take that makes an answer of 64 MiB, in seconds of its thread."""


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    house = House(tmp_path)
    await house.fake.declare_queue("orders")
    await house.other.declare_queue("orders")
    await house.start()
    yield house
    await house.stop()


@pytest.fixture
async def client(house: House) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(Api(house.gateway, HttpSettings(), replays=house.replays))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        yield client


async def ended(client: httpx.AsyncClient, id: str) -> dict[str, Any]:
    async with asyncio.timeout(60):
        while True:
            found: dict[str, Any] = (await client.get(f"/v1/replays/{id}")).json()
            if found["state"] in ("done", "failed", "cancelled"):
                return found
            await asyncio.sleep(0.01)


async def test_asked_for_watched_and_asked_for_again(client: httpx.AsyncClient, house: House) -> None:
    await house.known(3)
    answer = await client.post("/v1/replays", json={"id": "r1", **MESSAGES})
    assert (answer.status_code, answer.headers["location"]) == (201, "/v1/replays/r1")
    found = await ended(client, "r1")
    assert (found["state"], found["sent"], found["total"], found["refused"]) == ("done", 3, 3, {})
    assert found["request"] == {"id": "r1", **MESSAGES}
    again = await client.post("/v1/replays", json={"id": "r1", **MESSAGES})
    assert (again.status_code, again.json()["runs"]) == (200, 2)
    other = {"id": "r1", **MESSAGES, "rate": 1}
    problem(await client.post("/v1/replays", json=other), 409, "state")
    named = (await client.post("/v1/replays", json=MESSAGES)).json()["id"]
    assert {each["id"] for each in (await client.get("/v1/replays")).json()["replays"]} == {"r1", named}
    page = await client.get("/v1/replays?limit=1")
    assert 'rel="next"' in page.headers["link"]


async def test_steered(client: httpx.AsyncClient, house: House) -> None:
    await house.known(50)
    await client.post("/v1/replays", json={"id": "r1", **MESSAGES, "rate": 4})
    assert (await client.post("/v1/replays/r1:pause")).status_code == 200
    await house.until("r1", lambda job: job.state == "paused")
    assert (await client.post("/v1/replays/r1:resume")).status_code == 200
    assert (await client.post("/v1/replays/r1:cancel")).status_code == 200
    assert (await ended(client, "r1"))["state"] == "cancelled"
    problem(await client.post("/v1/replays/r1:resume"), 409, "state")
    problem(await client.post("/v1/replays/r2:resume"), 404, "replay_not_found")
    problem(await client.get("/v1/replays/r2"), 404, "replay_not_found")


async def test_refused(client: httpx.AsyncClient, house: House) -> None:
    without = await house.known(2, kept=False)
    await client.post("/v1/replays", json={"id": "r1", **MESSAGES})
    assert (await ended(client, "r1"))["refused"] == {"no_body": 2}
    found = await client.get("/v1/replays/r1/refused")
    assert [each["id"] for each in found.json()["refused"]] == [id_text(each) for each in without]
    assert "link" not in found.headers
    problem(await client.get("/v1/replays/r1/refused?cursor=x"), 422, "invalid_parameter")


@pytest.mark.parametrize("query", ["since=%FF", "until=%FF", "limit=%FF", "newest=%FF", "state=%FF", "message=%FF"])
async def test_a_query_that_is_no_utf_8(client: httpx.AsyncClient, query: str) -> None:
    problem(await client.get(f"/v1/deliveries?{query}"), 422, "invalid_parameter")


@pytest.mark.parametrize(
    ("body", "code", "pointer"),
    [
        ({}, "invalid_request", "/source"),
        ({"source": {}}, "invalid_value", "/source"),
        ({"source": {"messages": {}, "deliveries": {}}}, "invalid_value", "/source"),
        ({"source": {"messages": {"state": "lost"}}}, "invalid_value", "/source/messages/state"),
        ({"source": {"messages": {"ids": ["x"]}}}, "invalid_value", "/source/messages/ids"),
        ({"source": {"messages": {"ids": []}}}, "invalid_request", "/source/messages/ids"),
        ({"source": {"deliveries": {"ids": []}}}, "invalid_request", "/source/deliveries/ids"),
        ({**MESSAGES, "id": "a b"}, "invalid_request", "/id"),
        ({**MESSAGES, "id": "a\n"}, "invalid_request", "/id"),
        ({**MESSAGES, "rate": -1}, "invalid_request", "/rate"),
        ({**MESSAGES, "target": {"url": "x", "endpoint": "y"}}, "invalid_value", "/target/url"),
        ({"source": {"queue": {"broker": "fake", "queue": ""}}}, "invalid_request", "/source/queue/queue"),
    ],
)
async def test_wrong_bodies_point_at_the_culprit(
    client: httpx.AsyncClient, body: dict[str, Any], code: str, pointer: str
) -> None:
    found = problem(await client.post("/v1/replays", json=body), 422, code)
    assert found["errors"][0]["pointer"] == pointer


async def test_what_it_names_must_be_there(client: httpx.AsyncClient) -> None:
    nowhere = {**MESSAGES, "target": {"broker": "none"}}
    problem(await client.post("/v1/replays", json=nowhere), 404, "broker_not_found")
    queue = {"source": {"queue": {"broker": "fake", "queue": "none"}}}
    problem(await client.post("/v1/replays", json=queue), 404, "not_found")
    problem(await client.post("/v1/replays", json={**queue, "dry_run": True}), 404, "not_found")


async def test_a_dry_run(client: httpx.AsyncClient, house: House) -> None:
    await house.known(12)
    answer = await client.post("/v1/replays", json={**MESSAGES, "dry_run": True})
    found = answer.json()
    assert (answer.status_code, found["count"], found["complete"], len(found["sample"])) == (200, 12, True, 10)
    assert (await client.get("/v1/replays")).json() == {"replays": []}


# -------------------------------------------------------------------------------------------- deliveries


async def test_listed_and_read(client: httpx.AsyncClient, house: House) -> None:
    dead = await house.dead(2)
    alive = await house.dead(1, alive=True)
    rows = (await client.get("/v1/deliveries")).json()["deliveries"]
    assert [row["id"] for row in rows] == [id_text(each) for each in [*dead, *alive]]
    assert [row["state"] for row in rows] == ["dead", "dead", "waiting"]
    assert (rows[0]["due_in"], rows[0]["reason"], rows[0]["octets"]) == (None, {"text": "too many deliveries"}, 6)
    first = await client.get("/v1/deliveries?state=dead&subscription=billing&limit=1&newest=true")
    assert [row["id"] for row in first.json()["deliveries"]] == [id_text(dead[1])]
    second = await client.get(first.links["next"]["url"])
    assert [row["id"] for row in second.json()["deliveries"]] == [id_text(dead[0])]
    of = (await client.get(f"/v1/deliveries?message={rows[1]['message_id']}")).json()["deliveries"]
    assert of == [rows[1]]
    await house.ledger.deliveries.claim("billing", 1, 30.0)
    at = {"reason": "500", "attempt": 1, "at": 1_800_000_000_000_000}
    await house.ledger.deliveries.settle([BacklogSettlement(alive[0], Ending.RETRY, reason=at)])
    (row,) = (await client.get("/v1/deliveries?state=alive")).json()["deliveries"]
    assert row["reason"] == {"reason": "500", "attempt": 1, "at": "2027-01-15T08:00:00.000000Z"}
    (owed,) = (await client.get(f"/v1/messages/{row['message_id']}")).json()["owed"]
    assert owed["reason"] == row["reason"]
    read = (await client.get(f"/v1/deliveries/{rows[0]['id']}")).json()
    assert (read["message"]["payload"], read["message"]["exchange"]) == ("dead 0", "shop")
    for query in ("message=x", "since=yesterday", "state=lost", "cursor=zz"):
        problem(await client.get(f"/v1/deliveries?{query}"), 422, "invalid_parameter")
    for id in ("x", "01980000-0000-7000-8000-000000000000"):
        problem(await client.get(f"/v1/deliveries/{id}"), 404, "delivery_not_found")


@pytest.mark.parametrize(
    ("body", "body_max", "payload", "encoding", "count"),
    [
        (b"dead", 0, "", "string", 0),
        (b"dead", 3, "dea", "string", 3),
        (b"dead", 4, "dead", "string", 4),
        (b"dead", 1 << 20, "dead", "string", 4),
        ("ééé".encode(), 3, "é", "string", 2),
        (b"\xff\x00\x01", 2, "/wA=", "base64", 2),
        (b"ab\xff", 2, "ab", "string", 2),
        (b"ab\xc3", 3, "YWLD", "base64", 3),
        (b"", 0, "", "string", 0),
    ],
)
async def test_a_body_in_part(
    client: httpx.AsyncClient, house: House, body: bytes, body_max: int, payload: str, encoding: str, count: int
) -> None:
    (id,) = await house.dead(1, text=body)
    whole = (await client.get(f"/v1/deliveries/{id_text(id)}")).json()
    assert whole.keys().isdisjoint({"cut", "payload_bytes"})
    found = (await client.get(f"/v1/deliveries/{id_text(id)}?body_max={body_max}")).json()
    assert (found["message"]["payload"], found["message"]["payload_encoding"]) == (payload, encoding)
    assert (found["payload_bytes"], found["octets"], found["cut"]) == (count, len(body), len(body) > body_max)
    others = {"payload": "", "payload_encoding": ""}
    assert {**found["message"], **others} == {**whole["message"], **others}


@pytest.mark.parametrize(
    ("body", "encoding"),
    [(bytes(3 * SLICE), "string"), (b"a" * (2 * SLICE) + b"\xff", "base64"), (b"a" * SLICE, "string")],
    ids=["text", "binary", "small"],
)
async def test_a_large_body_in_pieces(client: httpx.AsyncClient, house: House, body: bytes, encoding: str) -> None:
    """So making it never holds others up: each byte of this text is six in JSON."""
    (id,) = await house.dead(1, text=body)
    answer = await client.get(f"/v1/deliveries/{id_text(id)}")
    found = answer.json()
    payload = found["message"].pop("payload")
    assert (payload.encode() if encoding == "string" else b64decode(payload)) == body
    assert (found["message"]["payload_encoding"], found["octets"]) == (encoding, len(body))
    assert ("content-length" in answer.headers) == (len(body) <= SLICE)
    part = (await client.get(f"/v1/deliveries/{id_text(id)}?body_max=1")).json()
    assert part["message"].pop("payload")
    assert {**part["message"], "payload_encoding": encoding} == found["message"]


@pytest.mark.parametrize(
    ("given", "expected"),
    [("-1", ">= 0"), (str((1 << 20) + 1), "<= 1048576"), ("many", "integer"), ("1.5", "integer"), ("", "integer")],
)
async def test_a_part_that_cannot_be_shown(client: httpx.AsyncClient, house: House, given: str, expected: str) -> None:
    (id,) = await house.dead(1)
    found = problem(await client.get(f"/v1/deliveries/{id_text(id)}?body_max={given}"), 422, "invalid_parameter")
    (error,) = found["errors"]
    assert (error["parameter"], given in error["detail"]) == ("body_max", True)
    assert expected in error["detail"]


async def test_a_body_as_a_file(client: httpx.AsyncClient, house: House) -> None:
    body = b"<script>alert(1)</script>" + bytes(range(256)) * 1_000
    (id,) = await house.dead(1, text=body)
    path = f"/v1/deliveries/{id_text(id)}/body"
    answer = await client.get(path)
    assert (answer.status_code, answer.content) == (200, body)
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["content-length"] == str(len(body))
    assert answer.headers["content-disposition"] == f'attachment; filename="{id_text(id)}.bin"'
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["content-security-policy"] == "default-src 'none'; sandbox"
    assert answer.headers["cache-control"] == "no-store"
    problem(await client.get(f"{path}?body_max=1"), 422, "invalid_parameter")
    problem(await client.get("/v1/deliveries/x/body"), 404, "delivery_not_found")


async def test_a_body_that_is_damaged(client: httpx.AsyncClient, house: House) -> None:
    (id,) = await house.dead(1)
    with closing(sqlite3.connect(house.url.removeprefix("sqlite:///"))) as connection, connection:
        ((before,),) = connection.execute("SELECT payload FROM bodies").fetchall()
        connection.execute("UPDATE bodies SET payload = ?", (before + b"x",))
    path = f"/v1/deliveries/{id_text(id)}"
    for query in ("", "?body_max=10"):
        assert (await client.get(path + query)).json()["message"] is None
    found = problem(await client.get(f"{path}/body"), 500, "ledger_damaged")
    assert id_text(id) in found["detail"]


async def test_a_body_is_counted_before_it_is_read(client: httpx.AsyncClient, house: House) -> None:
    """A client that holds something else may be refused, and then nothing is read."""
    (id,) = await house.dead(1, text=bytes(200_000))
    budget = house.gateway.budgets["bytes"]
    holder = ShareHolder("anonymous", is_admin=True, is_alone=True)
    budget.take(holder, budget.total)
    for path in ("", "?body_max=10", "/body"):
        problem(await client.get(f"/v1/deliveries/{id_text(id)}{path}"), 503, "overloaded")
    budget.give(holder, budget.total)
    assert len((await client.get(f"/v1/deliveries/{id_text(id)}/body")).content) == 200_000
    assert budget.held == 0


@pytest.mark.parametrize("path", ["?body_max=65536", "/body"])
async def test_a_long_body_does_not_hold_up_the_loop(client: httpx.AsyncClient, house: House, path: str) -> None:
    """What counts is the time that the loop's thread works in one turn: the machine may be busy with other things."""
    size = 64 << 20
    (id,) = await house.dead(1, text=bytes(size))
    longest = 0.0
    turns = 0

    async def watch() -> None:
        nonlocal longest, turns
        while True:
            before = time.thread_time()
            await asyncio.sleep(0)
            longest, turns = max(longest, time.thread_time() - before), turns + 1

    watching = asyncio.create_task(watch())
    await asyncio.sleep(0)
    async with client.stream("GET", f"/v1/deliveries/{id_text(id)}{path}") as answer:
        assert answer.status_code == 200
        watching.cancel()
        found = await answer.aread()
    print(f"{path}: {longest:.3f} s of {turns:,} turns")
    assert turns > 1
    assert longest < TURN_MAX
    if path == "/body":
        assert found == bytes(size)
    else:
        assert (answer.json()["payload_bytes"], answer.json()["octets"]) == (65_536, size)


async def test_dead_letters_are_counted_by_code(client: httpx.AsyncClient, house: House) -> None:
    await house.dead(3, code="rejected")
    await house.dead(1, code="expired", subscription="gone & <b>away</b>")
    found = (await client.get("/v1/dead-letters")).json()
    assert found["more"] is False
    rows = found["groups"]
    assert [(row["code"], row["subscription"], row["endpoint"], row["count"], row["more"]) for row in rows] == [
        ("rejected", "billing", None, 3, False), ("expired", "gone & <b>away</b>", None, 1, False),
    ]  # fmt: skip
    assert rows[0]["meaning"] == "a consumer rejected it"
    assert rows[0]["first_at"] <= rows[0]["last_at"]
    for row in rows:
        listed = (await client.get(row["deliveries"])).json()["deliveries"]
        assert [each["subscription"] for each in listed] == [row["subscription"]] * row["count"]
    for query, count in {"code=expired": 1, "subscription=billing": 1, "endpoint=none": 0, "code=maxlen": 0}.items():
        assert len((await client.get(f"/v1/dead-letters?{query}")).json()["groups"]) == count
    listed = await client.get("/v1/deliveries?code=rejected&limit=2")
    assert len(listed.json()["deliveries"]) == 2
    assert len((await client.get(listed.links["next"]["url"])).json()["deliveries"]) == 1
    assert (await client.get("/v1/deliveries?endpoint=none")).json()["deliveries"] == []
    for path in ("dead-letters", "deliveries"):
        told = problem(await client.get(f"/v1/{path}?code=lost"), 422, "invalid_parameter")
        assert "expected one of rejected, expired" in told["detail"]


async def test_more_groups_than_are_shown(client: httpx.AsyncClient, house: House, monkeypatch: Any) -> None:
    monkeypatch.setattr("gateway.api.messages.dead_letters.GROUPS_MAX", 2)
    for code in ("rejected", "expired", "maxlen"):
        await house.dead(1, code=code)
    found = (await client.get("/v1/dead-letters")).json()
    assert (len(found["groups"]), found["more"]) == (2, True)


async def test_dead_letters_of_a_code_are_purged_by_a_job(client: httpx.AsyncClient, house: House) -> None:
    await house.dead(3, code="rejected")
    (other,) = await house.dead(1, code="expired")
    asked = {"source": {"deliveries": {"code": "rejected"}}, "target": {"purge": True}}
    assert (await client.post("/v1/replays", json={**asked, "dry_run": True})).json()["count"] == 3
    job = await ended(client, (await client.post("/v1/replays", json=asked)).json()["id"])
    assert (job["state"], job["total"], job["sent"], job["refused"]) == ("done", 3, 3, {})
    assert [row["id"] for row in (await client.get("/v1/deliveries")).json()["deliveries"]] == [id_text(other)]
    filters = {"filter": {"code": "expired", "endpoint": "none"}}
    assert (await client.post("/v1/deliveries:purge", json=filters)).json()["count"] == 0
    assert (await client.post("/v1/deliveries:retry", json={"filter": {"code": "expired"}})).json()["count"] == 1
    for bad in ({"filter": {"code": "lost"}}, {"filter": {"code": 7}}):
        assert (await client.post("/v1/deliveries:purge", json=bad)).status_code == 422
    for wrong, setting in (
        ({"source": {"deliveries": {"code": "lost"}}}, "code"),
        ({"source": {"messages": {}}, "target": {"purge": True}}, "purge"),
        ({"source": {"deliveries": {}}, "target": {"purge": True, "broker": "other"}}, "purge"),
    ):
        told = problem(await client.post("/v1/replays", json=wrong), 422, "invalid_value")
        assert setting in told["detail"]


async def test_one_is_retried(client: httpx.AsyncClient, house: House) -> None:
    (only,) = await house.dead(1)
    woken: list[str] = []
    house.gateway.on_owed.append(woken.append)
    path = f"/v1/deliveries/{id_text(only)}"
    row = await client.post(f"{path}:retry")
    assert (row.status_code, row.json()["state"], row.json()["attempts"]) == (200, "waiting", 0)
    assert woken == ["billing"]
    found = await house.ledger.deliveries.get(only)
    assert found is not None
    assert await house.kinds(found.message_id) == [EventKind.STORED, EventKind.REVIVED]
    assert (await client.post(f"{path}:retry")).status_code == 200  # one that waits does not wait any more
    await house.ledger.deliveries.claim("billing", 1, 30.0)
    problem(await client.post(f"{path}:retry"), 409, "state")


async def test_one_is_purged(client: httpx.AsyncClient, house: House) -> None:
    (only,) = await house.dead(1)
    found = await house.ledger.deliveries.get(only)
    assert found is not None
    assert (await client.post(f"/v1/deliveries/{id_text(only)}:purge")).status_code == 204
    problem(await client.post(f"/v1/deliveries/{id_text(only)}:purge"), 404, "delivery_not_found")
    timeline = await house.ledger.timeline(found.message_id)
    assert timeline is not None
    assert timeline.events[-1].detail == {"subscription": "billing", "client": "anonymous"}


async def test_one_is_sent_elsewhere(client: httpx.AsyncClient, house: House) -> None:
    (only,) = await house.dead(1)
    target = {"broker": "other", "exchange": "amq.default", "routing_key": "orders"}
    answer = await client.post(f"/v1/deliveries/{id_text(only)}:replay", json={"target": target})
    assert answer.status_code == 201
    assert (await ended(client, answer.json()["id"]))["sent"] == 1
    assert [message.body for _, _, message in house.other.published] == [b"dead 0"]
    assert await house.ledger.deliveries.get(only) is None


async def test_many_are_retried_and_purged(client: httpx.AsyncClient, house: House, monkeypatch: Any) -> None:
    monkeypatch.setattr("gateway.api.messages.deliveries.PART", 3)
    monkeypatch.setattr("gateway.api.messages.deliveries.BULK_MAX", 6)
    await house.dead(8)
    asked = {"filter": {"subscription": "billing"}}
    dry = (await client.post("/v1/deliveries:retry", json={**asked, "dry_run": True})).json()
    assert (dry["count"], dry["more"], len(dry["sample"])) == (8, False, 8)
    assert (await client.post("/v1/deliveries:retry", json=asked)).json() == {"count": 6, "more": True, "sample": []}
    assert (await client.post("/v1/deliveries:retry", json=asked)).json() == {"count": 2, "more": False, "sample": []}
    assert (await client.post("/v1/deliveries:purge", json=asked)).json()["count"] == 0  # none of them is dead now
    alive = {**asked, "alive": True}
    assert (await client.post("/v1/deliveries:purge", json={**alive, "dry_run": True})).json()["count"] == 8
    assert (await client.post("/v1/deliveries:purge", json=alive)).json() == {"count": 6, "more": True, "sample": []}
    assert (await client.post("/v1/deliveries:purge", json=alive)).json()["count"] == 2
    assert (await client.post("/v1/deliveries:purge", json={"filter": {"subscription": "none"}})).json()["count"] == 0
    problem(await client.post("/v1/deliveries:purge", json={}), 422, "invalid_request")
