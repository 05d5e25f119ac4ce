"""``/v1/bridges``: settings, state, wishes, comparison; over real bridges between embedded brokers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from gateway.api.app import Api
from gateway.config import ApiKeySettings, HttpSettings
from tests.api.conftest import problem
from tests.bridges.conftest import Estate, bridge_settings, estate

__all__ = ["estate"]

ORDERS = "/v1/bridges/orders"
SETTINGS = {"source": {"broker": "old", "queue": "in"}, "target": {"broker": "new", "routing_key": "out"}}


@pytest.fixture
async def client(estate: Estate) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(Api(estate.gateway, HttpSettings(), (), estate.bridges))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        yield client


async def test_create_read_replace_delete(client: httpx.AsyncClient) -> None:
    created = await client.put(ORDERS, json=SETTINGS)
    assert created.status_code == 201, created.text
    body = created.json()
    assert (body["name"], body["read_only"]) == ("orders", False)
    assert body["state"] in ("starting", "running")
    assert body["settings"]["source"] == {
        "broker": "old", "queue": "in", "exchange": "", "binding_key": "", "arguments": {},
    }  # fmt: skip
    assert (body["settings"]["mode"], body["settings"]["prefetch"]) == ("move", 1_000)
    assert (body["taken"], body["forwarded"], body["losses"], body["lag"]) == (0, 0, {}, None)
    assert datetime.fromisoformat(body["since"]) > datetime.now(UTC) - timedelta(minutes=5)
    etag = created.headers["etag"]
    assert (await client.get(ORDERS)).headers["etag"] == etag
    assert (await client.put(ORDERS, json=SETTINGS)).status_code == 200
    other = {**SETTINGS, "prefetch": 10}
    problem(await client.put(ORDERS, json=other), 428, "precondition_required")
    problem(await client.put(ORDERS, json=other, headers={"if-match": '"x"'}), 412, "etag_mismatch")
    problem(await client.put(ORDERS, json=other, headers={"if-match": "x"}), 422, "invalid_parameter")
    replaced = await client.put(ORDERS, json=other, headers={"if-match": etag})
    assert (replaced.status_code, replaced.json()["settings"]["prefetch"]) == (200, 10)
    assert replaced.headers["etag"] != etag
    problem(await client.delete(ORDERS, headers={"if-match": etag}), 412, "etag_mismatch")
    assert (await client.delete(ORDERS, headers={"if-match": "*"})).status_code == 204
    for method, path in (
        ("GET", ORDERS), ("DELETE", ORDERS), ("POST", f"{ORDERS}:pause"), ("POST", f"{ORDERS}:resume"),
        ("POST", f"{ORDERS}:drain"), ("POST", f"{ORDERS}:compare"),
    ):  # fmt: skip
        problem(await client.request(method, path), 404, "no_such_bridge")


@pytest.mark.parametrize(
    ("body", "status", "code", "pointer"),
    [
        ({"source": SETTINGS["source"]}, 422, "invalid_request", "/target"),
        ({**SETTINGS, "nonsense": 1}, 422, "invalid_request", "/nonsense"),
        ({**SETTINGS, "prefetch": 0}, 422, "invalid_request", "/prefetch"),
        ({**SETTINGS, "acknowledge": "no-ack"}, 422, "invalid_request", "/acknowledge"),
        ({**SETTINGS, "source": {"broker": "old"}}, 422, "invalid_value", "/source"),
        (
            {**SETTINGS, "target": {"broker": "new", "routing_key": "{nonsense}"}},
            422,
            "invalid_value",
            "/target/routing_key",
        ),
        (
            {**SETTINGS, "target": {"broker": "new", "routing_key": "k" * 256}},
            422,
            "invalid_value",
            "/target/routing_key",
        ),
        ({**SETTINGS, "source": {"broker": "old", "queue": "q" * 256}}, 422, "invalid_value", "/source/queue"),
        ({**SETTINGS, "selector": "a ="}, 422, "invalid_value", "/selector"),
        ({**SETTINGS, "target": {"broker": "missing"}}, 404, "broker_not_found", None),
    ],
)
async def test_bad_settings(client: httpx.AsyncClient, body: Any, status: int, code: str, pointer: str | None) -> None:
    found = problem(await client.put(ORDERS, json=body), status, code)
    if pointer is not None:
        assert [error["pointer"] for error in found["errors"]] == [pointer], found


async def test_bad_names(client: httpx.AsyncClient) -> None:
    problem(await client.put("/v1/bridges/" + "x" * 129, json=SETTINGS), 422, "invalid_parameter")
    problem(await client.put("/v1/bridges/%00", json=SETTINGS), 422, "invalid_parameter")


async def test_names_with_everything_in_them(client: httpx.AsyncClient) -> None:
    path = "/v1/bridges/a%2Fb%3Apause%25%20%C3%A9"
    assert (await client.put(path, json=SETTINGS)).json()["name"] == "a/b:pause% é"
    assert (await client.post(f"{path}:pause")).json()["state"] == "paused"
    assert (await client.get(path)).json()["name"] == "a/b:pause% é"


async def test_the_list_is_paged(client: httpx.AsyncClient) -> None:
    for name in "cabed":
        await client.put(f"/v1/bridges/{name}", json={**SETTINGS, "paused": True})
    seen = []
    url: str | None = "/v1/bridges?limit=2"
    while url:
        response = await client.get(url)
        seen += [item["name"] for item in response.json()["bridges"]]
        url = response.links.get("next", {}).get("url")
    assert seen == ["a", "b", "c", "d", "e"]
    problem(await client.get("/v1/bridges?limit=0"), 422, "invalid_parameter")


async def test_pause_resume_drain(client: httpx.AsyncClient, estate: Estate) -> None:
    await client.put(ORDERS, json=SETTINGS)
    await estate.wait_for("orders", state="running")
    assert (await client.post(f"{ORDERS}:pause")).json()["state"] == "paused"
    await estate.fill(5)
    resumed = await client.post(f"{ORDERS}:resume")
    assert resumed.status_code == 200
    assert resumed.headers["etag"] == (await client.get(ORDERS)).headers["etag"]
    await estate.wait_for("orders", forwarded=5)
    body = (await client.get(ORDERS)).json()
    assert (body["state"], body["taken"], body["in_flight"], body["octets"]) == ("running", 5, 0, 0)
    assert body["lag"] > 0
    assert (body["source_version"], body["target_version"]) == ("0-9-1", "0-9-1")
    assert (await client.post(f"{ORDERS}:drain")).json()["state"] == "draining"
    await estate.wait_for("orders", state="stopped")
    assert "drained" in (await client.get(ORDERS)).json()["reason"]
    problem(await client.get(f"{ORDERS}:pause"), 405, "method_not_allowed")


async def test_what_the_file_defines_is_read_only(estate: Estate) -> None:
    await estate.close_gateway()
    await estate.open_gateway({"old": "0-9-1", "new": "0-9-1"}, {"filed": bridge_settings(paused=True)})
    transport = httpx.ASGITransport(Api(estate.gateway, HttpSettings(), (), estate.bridges))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        found = await client.get("/v1/bridges/filed")
        assert (found.json()["read_only"], found.json()["state"]) == (True, "paused")
        problem(await client.put("/v1/bridges/filed", json=SETTINGS), 409, "read_only")
        problem(await client.delete("/v1/bridges/filed"), 409, "read_only")
        assert (await client.post("/v1/bridges/filed:resume")).status_code == 200


async def test_only_for_admin(estate: Estate) -> None:
    keys = [
        ApiKeySettings(name="caller", key="secret", scopes=("publish:*/*", "consume:*/*")),
        ApiKeySettings(name="chief", key="admin-secret", scopes=("admin",)),
    ]
    transport = httpx.ASGITransport(Api(estate.gateway, HttpSettings(), keys, estate.bridges))
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway.example") as client:
        for method, path in (
            ("GET", "/v1/bridges"), ("GET", ORDERS), ("PUT", ORDERS), ("DELETE", ORDERS),
            ("POST", f"{ORDERS}:pause"), ("POST", f"{ORDERS}:compare"),
        ):  # fmt: skip
            caller = {"authorization": "Bearer secret"}
            problem(await client.request(method, path, headers=caller), 403, "forbidden")
            problem(await client.request(method, path), 401, "unauthorized")
        chief = {"authorization": "Bearer admin-secret"}
        assert (await client.get("/v1/bridges", headers=chief)).json() == {"bridges": []}


# ------------------------------------------------------------------------------------------------- compare


async def test_compare(client: httpx.AsyncClient, estate: Estate) -> None:
    await client.put(ORDERS, json=SETTINGS)
    await estate.fill(6)
    await estate.wait_for("orders", forwarded=6)
    body = (await client.post(f"{ORDERS}:compare")).json()
    assert (body["bridge"], body["equal"], body["queues"]) == ("orders", True, None)
    assert [row["equal"] for row in body["ledger"]["rows"]] == [True, True, True]
    assert body["ledger"]["rows"][0] == {"name": "messages", "source": 6, "target": 6, "equal": True}
    (taken,) = await estate.new.fetch("out", 1)
    taken.settle(estate.accept)
    body = (await client.post(f"{ORDERS}:compare", json={"peek": True, "limit": 100})).json()
    assert (body["equal"], body["queues"]["missing"], len(body["queues"]["differences"])) == (False, 1, 1)


async def test_the_window_of_a_comparison(client: httpx.AsyncClient, estate: Estate) -> None:
    await client.put(ORDERS, json=SETTINGS)
    await estate.fill(2)
    await estate.wait_for("orders", forwarded=2)
    hour = timedelta(hours=1)
    now = datetime.now(UTC)
    for since, until, count in (
        (now - hour, now + hour, 2),
        (now + hour, now + 2 * hour, 0),
        (None, now - hour, 0),
        (now - hour, None, 2),
    ):
        asked = {"since": since and since.isoformat(), "until": until and until.isoformat()}
        body = (await client.post(f"{ORDERS}:compare", json=asked)).json()
        assert body["ledger"]["target"]["messages"] == count


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"since": "yesterday"}, "invalid_request"),
        ({"since": "2026-11-21T10:00:00"}, "invalid_request"),
        ({"limit": 0}, "invalid_request"),
        ({"limit": 65_536}, "invalid_request"),
        ({"nonsense": 1}, "invalid_request"),
        ({"peek": True}, "invalid_value"),
    ],
)
async def test_bad_comparisons(client: httpx.AsyncClient, body: Any, code: str) -> None:
    target = {"broker": "new", "exchange": "amq.topic"}
    await client.put(ORDERS, json={**SETTINGS, "target": target, "paused": True})
    found = problem(await client.post(f"{ORDERS}:compare", json=body), 422, code)
    if code == "invalid_value":
        assert found["errors"][0]["pointer"] == "/target_queue"


async def test_a_patch(client: httpx.AsyncClient) -> None:
    problem(await client.patch(ORDERS, json={}), 404, "no_such_bridge")
    made = await client.put(ORDERS, json=SETTINGS)
    match = {"if-match": made.headers["etag"]}
    patch = {"target": {"routing_key": "elsewhere"}, "set_headers": {"a": 1}}
    problem(await client.patch(ORDERS, json=patch), 428, "precondition_required")
    changed = await client.patch(ORDERS, json=patch, headers=match)
    assert changed.status_code == 200, changed.text
    target = {**made.json()["settings"]["target"], "routing_key": "elsewhere"}
    assert changed.json()["settings"] == {**made.json()["settings"], "target": target, "set_headers": {"a": 1}}
    problem(await client.patch(ORDERS, json=patch, headers=match), 412, "etag_mismatch")
    back = await client.patch(ORDERS, json={"set_headers": {"a": None}}, headers={"if-match": "*"})
    assert back.json()["settings"]["set_headers"] == {}
