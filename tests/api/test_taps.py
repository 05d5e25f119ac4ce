"""``/v1/taps``: settings, state, wishes; over real taps on an embedded broker."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from gateway.api.app import Api
from gateway.config import ApiKeySettings, HttpSettings
from gateway.errors import ConfigurationError
from gateway.taps import TapSupervisor
from tests.api.conftest import problem
from tests.taps.conftest import House, house, tap_settings

__all__ = ["house"]

ORDERS = "/v1/taps/orders"
SETTINGS = {"broker": "house", "queue": "in"}


@pytest.fixture
async def client(house: House) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(Api(house.gateway, HttpSettings(), taps=house.taps))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        yield client


async def test_create_read_replace_delete(client: httpx.AsyncClient) -> None:
    created = await client.put(ORDERS, json=SETTINGS)
    assert created.status_code == 201, created.text
    body = created.json()
    assert (body["name"], body["read_only"], body["queue"]) == ("orders", False, "in")
    assert body["state"] in ("starting", "running")
    assert (body["settings"]["prefetch"], body["settings"]["until"]) == (1_000, "never")
    assert (body["taken"], body["spooled"], body["depth"], body["left"]) == (0, 0, None, None)
    assert datetime.fromisoformat(body["since"]) > datetime.now(UTC) - timedelta(minutes=5)
    etag = created.headers["etag"]
    assert (await client.get(ORDERS)).headers["etag"] == etag
    assert (await client.put(ORDERS, json=SETTINGS)).status_code == 200
    other = {**SETTINGS, "prefetch": 10}
    problem(await client.put(ORDERS, json=other), 428, "precondition_required")
    problem(await client.put(ORDERS, json=other, headers={"if-match": '"x"'}), 412, "etag_mismatch")
    replaced = await client.put(ORDERS, json=other, headers={"if-match": etag})
    assert (replaced.status_code, replaced.json()["settings"]["prefetch"]) == (200, 10)
    problem(await client.delete(ORDERS, headers={"if-match": etag}), 412, "etag_mismatch")
    assert (await client.delete(ORDERS, headers={"if-match": "*"})).status_code == 204
    for method, path in (
        ("GET", ORDERS), ("DELETE", ORDERS), ("POST", f"{ORDERS}:pause"), ("POST", f"{ORDERS}:resume"),
    ):  # fmt: skip
        problem(await client.request(method, path), 404, "no_such_tap")


@pytest.mark.parametrize(
    ("body", "status", "code", "pointer"),
    [
        ({"queue": "in"}, 422, "invalid_request", "/broker"),
        ({**SETTINGS, "nonsense": 1}, 422, "invalid_request", "/nonsense"),
        ({**SETTINGS, "prefetch": 0}, 422, "invalid_request", "/prefetch"),
        ({**SETTINGS, "until": "friday"}, 422, "invalid_request", "/until"),
        ({**SETTINGS, "log_octets": -1}, 422, "invalid_request", "/log_octets"),
        ({**SETTINGS, "log_octets": 10 << 30}, 422, "invalid_value", "/log_octets"),
        ({"broker": "house"}, 422, "invalid_value", "/queue"),
        ({"broker": "house", "queue": "q" * 256}, 422, "invalid_value", "/queue"),
        ({**SETTINGS, "dead_letter_exchange": "é" * 128}, 422, "invalid_value", "/dead_letter_exchange"),
        ({**SETTINGS, "binding_key": "a"}, 422, "invalid_value", "/exchange"),
        ({**SETTINGS, "dead_letter_routing_key": "in"}, 422, "invalid_value", "/dead_letter_routing_key"),
        ({**SETTINGS, "broker": "missing"}, 404, "broker_not_found", None),
        ({**SETTINGS, "dead_letter_broker": "missing"}, 404, "broker_not_found", None),
        ({"broker": "house", "exchange": "missing"}, 404, "not_found", None),
    ],
)
async def test_bad_settings(client: httpx.AsyncClient, body: Any, status: int, code: str, pointer: str | None) -> None:
    found = problem(await client.put(ORDERS, json=body), status, code)
    if pointer is not None:
        assert [each["pointer"] for each in found["errors"]] == [pointer]
    problem(await client.get(ORDERS), 404, "no_such_tap")


async def test_a_name_that_is_none(client: httpx.AsyncClient) -> None:
    problem(await client.put("/v1/taps/" + "x" * 129, json=SETTINGS), 422, "invalid_parameter")
    problem(await client.put("/v1/taps/a%0Ab", json=SETTINGS), 422, "invalid_parameter")


async def test_a_list_by_pages(client: httpx.AsyncClient, house: House) -> None:
    for name in ("c", "a", "b"):
        assert (await client.put(f"/v1/taps/{name}", json=SETTINGS)).status_code == 201
    first = await client.get("/v1/taps", params={"limit": 2})
    assert [each["name"] for each in first.json()["taps"]] == ["a", "b"]
    second = await client.get("/v1/taps", params={"limit": 2, "cursor": "b"})
    assert [each["name"] for each in second.json()["taps"]] == ["c"]


async def test_pause_and_resume(client: httpx.AsyncClient, house: House) -> None:
    await client.put(ORDERS, json={**SETTINGS, "paused": True})
    sent = await house.fill(3)
    assert (await client.get(ORDERS)).json()["state"] == "paused"
    assert (await client.post(f"{ORDERS}:resume")).status_code == 200
    await house.wait_for("orders", spooled=3)
    shown = (await client.get(ORDERS)).json()
    assert (shown["state"], shown["spooled"], shown["octets"]) == ("running", 3, sum(map(len, sent)))
    assert (await client.post(f"{ORDERS}:pause")).json()["state"] == "paused"


async def test_an_end_is_told_of(client: httpx.AsyncClient, house: House) -> None:
    await house.fill(4)
    await client.put(ORDERS, json={**SETTINGS, "until": "depth"})
    await house.wait_for("orders", state="stopped")
    shown = (await client.get(ORDERS)).json()
    assert (shown["depth"], shown["left"], shown["reason"]) == (4, 0, "until: 4 of 4 messages are taken")


async def test_only_admins(house: House) -> None:
    keys = (ApiKeySettings(name="shop", key="k" * 20, scopes=("consume:house/in",)),)
    transport = httpx.ASGITransport(Api(house.gateway, HttpSettings(), keys, taps=house.taps))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        asked = await client.get("/v1/taps", headers={"authorization": "Bearer " + "k" * 20})
        problem(asked, 403, "forbidden")


async def test_taps_of_the_configuration_file(house: House) -> None:
    await house.close_gateway()
    await house.open({"orders": tap_settings()})
    transport = httpx.ASGITransport(Api(house.gateway, HttpSettings(), taps=house.taps))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        shown = (await client.get(ORDERS)).json()
        assert shown["read_only"]
        problem(await client.put(ORDERS, json=SETTINGS), 409, "read_only")
        problem(await client.put(ORDERS, json={"broker": "house", "exchange": "amq.topic"}), 409, "read_only")
        problem(await client.delete(ORDERS), 409, "read_only")
        assert (await client.post(f"{ORDERS}:pause")).json()["state"] == "paused"


async def test_a_wrong_tap_in_the_configuration_file(house: House) -> None:
    with pytest.raises(ConfigurationError, match=r"taps\.orders\.no broker 'missing'"):
        await TapSupervisor(house.gateway, {"orders": tap_settings(broker="missing")}).start()


async def test_a_patch(client: httpx.AsyncClient) -> None:
    problem(await client.patch(ORDERS, json={}), 404, "no_such_tap")
    made = await client.put(ORDERS, json={**SETTINGS, "prefetch": 7})
    match = {"if-match": made.headers["etag"]}
    problem(await client.patch(ORDERS, json={"paused": True}), 428, "precondition_required")
    changed = await client.patch(ORDERS, json={"paused": True, "prefetch": None}, headers=match)
    assert changed.status_code == 200, changed.text
    assert changed.json()["settings"] == {**made.json()["settings"], "paused": True, "prefetch": 1_000}
    problem(await client.patch(ORDERS, json={"prefetch": 6}, headers=match), 412, "etag_mismatch")
    found = problem(
        await client.patch(ORDERS, json={"until": "noon"}, headers={"if-match": "*"}), 422, "invalid_request"
    )
    assert found["detail"] == "until: 'noon' is not one of never, depth"
