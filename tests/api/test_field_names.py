"""Fields and times that have more than one form: each is read in any of them, and refused in two at once."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import msgspec
import pytest

from gateway.api.about.schemas import CompareRequest
from gateway.config import BridgeSettings, BrokerSettings, EndpointSettings, SubscriptionSettings, TapSettings
from gateway.config.base import Settings
from gateway.replays.requests import ReplayRequest
from gateway.validation import ago, explain, resolve_ages
from tests.api.conftest import problem

BROKER = "/v1/brokers/fake"


@pytest.mark.parametrize(
    ("kind", "base", "old", "name", "value"),
    [
        (EndpointSettings, {"url": "u"}, "deadline", "deadline_seconds", 7.5),
        (EndpointSettings, {"url": "u"}, "batch_wait", "batch_wait_seconds", 2.5),
        (EndpointSettings, {"url": "u"}, "breaker_open_max", "breaker_open_max_seconds", 90.5),
        (BrokerSettings, {"url": "u"}, "lease_max", "lease_max_seconds", 90.5),
    ],
)
def test_a_duration_says_its_unit(kind: type[Settings], base: Any, old: str, name: str, value: float) -> None:
    for given in (old, name):
        read = msgspec.to_builtins(msgspec.json.decode(msgspec.json.encode({**base, given: value}), type=kind))
        assert (read[old], read[name]) == (value, value)
        assert msgspec.to_builtins(msgspec.convert(read, kind)) == read, "what is shown can be sent back"
    default = msgspec.to_builtins(kind(**base))
    assert default[old] == default[name] is not None
    for first in (value, default[old]):  # also where the old name has the value that it has anyhow
        document = {**base, old: first, name: value + 1}
        with pytest.raises(msgspec.ValidationError) as caught:
            msgspec.json.decode(msgspec.json.encode(document), type=kind)
        assert explain(caught.value, document, kind).pointer == f"/{old}"


@pytest.mark.parametrize("kind", [SubscriptionSettings, TapSettings])
def test_a_binding_key_may_be_called_a_routing_key(kind: type[Settings]) -> None:
    base = {"broker": "b", "exchange": "e"}
    read = msgspec.convert({**base, "routing_key": "k.*"}, kind)
    assert read == msgspec.convert({**base, "binding_key": "k.*"}, kind)
    assert "routing_key" not in msgspec.to_builtins(read)
    with pytest.raises(msgspec.ValidationError, match="another name of binding_key"):
        msgspec.convert({**base, "routing_key": "a", "binding_key": "b"}, kind)


async def test_a_subscription_with_the_other_name(client: httpx.AsyncClient) -> None:
    await client.put(f"{BROKER}/exchanges/ex", json={"type": "topic"})
    body = {"broker": "fake", "exchange": "ex", "routing_key": "a.*"}
    made = await client.put("/v1/subscriptions/s", json=body)
    assert made.status_code == 201, made.text
    assert made.json()["binding_key"] == made.json()["settings"]["binding_key"] == "a.*"
    again = await client.put("/v1/subscriptions/s", json=made.json()["settings"])
    assert again.status_code == 200, "the same settings, as they are shown"
    found = problem(await client.put("/v1/subscriptions/s", json={**body, "binding_key": "b"}), 422, "invalid_request")
    assert [each["pointer"] for each in found["errors"]] == ["/routing_key"]


async def test_a_binding_is_made_and_removed_by_either_name(client: httpx.AsyncClient) -> None:
    await client.put(f"{BROKER}/exchanges/ex", json={"type": "topic"})
    await client.put(f"{BROKER}/queues/q")
    where = {"exchange": "ex", "queue": "q"}
    made = await client.post(f"{BROKER}/bindings", json={**where, "binding_key": "k"})
    assert (made.status_code, made.json()["binding_key"], made.json()["routing_key"]) == (201, "k", "k")
    assert (await client.post(f"{BROKER}/bindings", json={**where, "routing_key": "k"})).status_code == 200
    assert (await client.get(f"{BROKER}/bindings")).json()["bindings"] == [made.json()]
    both = {**where, "binding_key": "k", "routing_key": "k"}
    problem(await client.post(f"{BROKER}/bindings", json=both), 422, "invalid_request")
    found = problem(await client.delete(f"{BROKER}/bindings", params=both), 422, "invalid_parameter")
    assert [each["parameter"] for each in found["errors"]] == ["routing_key"]
    assert (await client.delete(f"{BROKER}/bindings", params={**where, "routing_key": "k"})).status_code == 204
    assert (await client.get(f"{BROKER}/bindings")).json()["bindings"] == []


async def test_a_pull_waits_by_either_name(client: httpx.AsyncClient) -> None:
    await client.put(f"{BROKER}/queues/q")
    await client.put("/v1/subscriptions/s", json={"broker": "fake", "queue": "q"})
    for name in ("wait", "wait_seconds"):
        assert (await client.post("/v1/subscriptions/s:pull", json={name: 0.01})).json() == {"messages": []}
        found = problem(await client.post("/v1/subscriptions/s:pull", json={name: 61}), 422, "invalid_request")
        assert [each["pointer"] for each in found["errors"]] == [f"/{name}"]
    both = {"wait": 0, "wait_seconds": 0}
    found = problem(await client.post("/v1/subscriptions/s:pull", json=both), 422, "invalid_request")
    assert [each["pointer"] for each in found["errors"]] == ["/wait"]


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/statistics", "/v1/deliveries"])
async def test_a_time_may_be_how_long_ago(client: httpx.AsyncClient, path: str) -> None:
    for since in ("10m", "90s", "1.5d", "2026-11-24T10:00:00Z", "1790000000"):
        answer = await client.get(path, params={"since": since, "until": "1s"})
        assert answer.status_code == 200, answer.text
    for since in ("10 m", "10y", "999999d", "2026-11-24T10:00:00"):
        found = problem(await client.get(path, params={"since": since}), 422, "invalid_parameter")
        assert found["detail"] == (
            f"since: expected a time of RFC 3339 with an offset, or how long ago (90s, 10m, 2h, 1d), got {since!r}"
        )


async def test_the_next_page_does_not_move(client: httpx.AsyncClient) -> None:
    for _ in range(2):
        await client.post(f"{BROKER}/exchanges/amq.default:publish", json={"routing_key": "orders"})
    page = await client.get("/v1/messages", params={"since": "10m", "limit": 1})
    assert "since=20" in page.headers["link"], "a time, not how long ago"


@pytest.mark.parametrize("kind", [CompareRequest, ReplayRequest])
def test_bodies_too(kind: type) -> None:
    body: dict[str, Any] = {"since": "10m"}
    if kind is ReplayRequest:
        body = {"source": {"messages": body}}
    found = resolve_ages(body, kind)
    read = msgspec.convert(found, kind)
    since = read.source.messages.since if kind is ReplayRequest else read.since
    assert timedelta(minutes=9) < datetime.now(UTC) - since < timedelta(minutes=11)
    assert resolve_ages([1], kind) == [1]


def test_ages() -> None:
    now = datetime(2026, 11, 24, 12, tzinfo=UTC)
    assert ago("90s", now) == now - timedelta(seconds=90)
    assert ago("1.5d", now) == now - timedelta(days=1.5)
    assert ago("999999d", now) is ago("m", now) is ago("-1d", now) is ago("", now) is None


def test_the_default_exchange_has_one_name() -> None:
    bridge = {"source": {"broker": "b", "queue": "q"}, "target": {"broker": "b", "exchange": "amq.default"}}
    read = msgspec.convert({**bridge, "dead_letter": {"exchange": "amq.default"}}, BridgeSettings)
    assert (read.target.exchange, read.dead_letter.exchange) == ("", "")
    body = {"broker": "b", "queue": "q", "dead_letter_exchange": "amq.default", "dead_letter_routing_key": "dead"}
    assert msgspec.convert(body, SubscriptionSettings).dead_letter_exchange == ""


async def test_what_belongs_into_the_body_is_told(client: httpx.AsyncClient) -> None:
    found = problem(await client.put(f"{BROKER}/queues/q?durable=false"), 422, "invalid_parameter")
    assert found["errors"][0]["detail"].endswith("none is taken here; it belongs into the body")


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({"broker": "fake", "queue": "q", "order_key": "colour"}, "/order_key"),
        ({"broker": "fake", "queue": "q", "max_deliveries": 3}, "/max_deliveries"),
        ({"broker": "fake", "queue": "q", "dead_letter_routing_key": "q"}, "/dead_letter_routing_key"),
        ({"broker": "fake", "queue": "q", "filter": {"selector": "a ="}}, None),
        ({"broker": "fake", "queue": "q" * 256}, "/queue"),
        ({"broker": "fake", "queue": "q", "binding_key": "k"}, "/exchange"),
    ],
)
async def test_settings_that_do_not_go_together_have_a_place(
    client: httpx.AsyncClient, body: dict[str, Any], pointer: str | None
) -> None:
    found = problem(await client.put("/v1/subscriptions/s", json=body), 422, "invalid_value")
    (error,) = found["errors"]
    assert error["pointer"] == pointer or (pointer is None and error["pointer"])
