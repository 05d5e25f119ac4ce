"""``PATCH``: a merge patch (RFC 7396) of the settings of subscriptions, endpoints, bridges and taps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from gateway.api.resources.patching import merge
from gateway.config import BridgeSettings, EndpointSettings, SubscriptionSettings
from tests.api.conftest import problem

MERGE = {"content-type": "application/merge-patch+json"}


@pytest.mark.parametrize(
    ("document", "patch", "merged"),
    [
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [1]}, {"a": [{"b": None}]}, {"a": [{"b": None}]}),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
    ],
)
def test_the_rules_of_rfc_7396(document: Any, patch: Any, merged: Any) -> None:
    assert merge(document, patch, None) == merged


def test_a_field_has_one_value_under_both_of_its_names() -> None:
    shown = {"url": "u", "deadline": 15.0, "deadline_seconds": 15.0}
    assert merge(shown, {"deadline_seconds": 5}, EndpointSettings) == {"url": "u", "deadline_seconds": 5}
    assert merge(shown, {"deadline": 5}, EndpointSettings) == {"url": "u", "deadline": 5}
    assert merge(shown, {"deadline": None}, EndpointSettings) == {"url": "u"}
    bridge = {"source": {"broker": "b", "exchange": "e", "binding_key": "a"}}
    patched = merge(bridge, {"source": {"routing_key": "b"}}, BridgeSettings)
    assert patched == {"source": {"broker": "b", "exchange": "e", "routing_key": "b"}}
    assert "binding_key" in merge({"binding_key": "a"}, {"queue": "q"}, SubscriptionSettings)


async def test_a_subscription(client: httpx.AsyncClient) -> None:
    path = "/v1/subscriptions/s"
    problem(await client.patch(path, json={"paused": True}), 404, "subscription_not_found")
    made = await client.put(path, json={"broker": "fake", "queue": "orders", "prefetch": 7})
    patch = {"ack_deadline_seconds": 60, "prefetch": None}
    problem(await client.patch(path, json=patch), 428, "precondition_required")
    problem(await client.patch(path, json=patch, headers={"if-match": '"other"'}), 412, "etag_mismatch")
    changed = await client.patch(path, json=patch, headers={"if-match": made.headers["etag"], **MERGE})
    assert changed.status_code == 200, changed.text
    settings = changed.json()["settings"]
    assert settings == {**made.json()["settings"], "ack_deadline_seconds": 60, "prefetch": 200}
    assert changed.headers["etag"] != made.headers["etag"]
    assert (await client.get(path)).json()["settings"] == settings
    same = await client.patch(path, json={"ack_deadline_seconds": 60})
    assert (same.status_code, same.headers["etag"]) == (200, changed.headers["etag"]), "nothing changes"
    problem(await client.patch(path, json=patch, headers={"if-match": made.headers["etag"]}), 412, "etag_mismatch")
    assert (await client.patch(path, json={"lease": "ledger"}, headers={"if-match": "*"})).json()["lease"] == "ledger"


@pytest.mark.parametrize(
    ("body", "code", "pointer"),
    [
        ({"ack_deadline_seconds": 1}, "invalid_request", "/ack_deadline_seconds"),
        ({"lease": "lender"}, "invalid_request", "/lease"),
        ({"leese": "ledger"}, "invalid_request", "/leese"),
        ({"broker": None}, "invalid_request", "/broker"),
        ({"filter": {"selector": 5}}, "invalid_request", "/filter/selector"),
        ({"queue": None}, "invalid_value", "/queue"),
        ([], "invalid_request", ""),
    ],
)
async def test_a_wrong_patch_changes_nothing(client: httpx.AsyncClient, body: Any, code: str, pointer: str) -> None:
    path = "/v1/subscriptions/s"
    made = await client.put(path, json={"broker": "fake", "queue": "orders"})
    found = problem(await client.patch(path, json=body, headers={"if-match": "*"}), 422, code)
    assert [each["pointer"] for each in found["errors"]] == [pointer]
    assert (await client.get(path)).headers["etag"] == made.headers["etag"]


async def test_media_types(client: httpx.AsyncClient) -> None:
    await client.put("/v1/subscriptions/s", json={"broker": "fake", "queue": "orders"})
    answer = await client.patch(
        "/v1/subscriptions/s", content=b"[]", headers={"content-type": "application/json-patch"}
    )
    assert "application/merge-patch+json" in problem(answer, 415, "unsupported_media_type")["detail"]


async def test_who_may_not_put_may_not_patch(client_with_keys: Callable[..., Any], client: httpx.AsyncClient) -> None:
    await client.put("/v1/subscriptions/s", json={"broker": "fake", "queue": "orders"})
    async with client_with_keys("consume:fake/orders") as caller:
        patch = {"paused": True}
        problem(await caller.patch("/v1/subscriptions/s", json=patch, headers={"if-match": "*"}), 403, "forbidden")
