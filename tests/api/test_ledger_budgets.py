"""What one client may have the ledger keep: scheduled publishes, their bytes, Idempotency-Keys."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from gateway.api.app import Api
from gateway.budgets import BudgetBounds, Budgets, ShareHolder
from gateway.config import ApiKeySettings, HttpSettings, SubscriptionSettings
from gateway.core import Gateway
from gateway.core.work.ledger_budgets import CREATED, LedgerBudgets
from gateway.upstreams import UpstreamState
from tests.api.conftest import problem
from tests.core.fakes import FakeUpstream

PUBLISH = "/v1/brokers/fake/exchanges/amq.default:publish"
NDJSON = {"content-type": "application/x-ndjson"}


@pytest.fixture
async def caller(gateway: Gateway) -> AsyncIterator[Any]:
    """``caller(client, message, **headers)`` publishes as that client."""
    totals = {"scheduled": 40, "scheduled_bytes": 40_000, "idempotency_keys": 40}
    gateway.budgets.configure(BudgetBounds(0.25, 0.1, totals))
    keys = [
        ApiKeySettings(name=name, key=f"{name}-secret", scopes=scopes)
        for name, scopes in (("alice", ("publish:fake/*",)), ("bob", ("publish:fake/*",)), ("root", ("admin",)))
    ]
    transport = httpx.ASGITransport(Api(gateway, HttpSettings(), keys))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:

        async def call(name: str, body: Any, **headers: str) -> httpx.Response:
            headers = {"x-api-key": f"{name}-secret", **{key.replace("_", "-"): headers[key] for key in headers}}
            if isinstance(body, str):
                return await client.post(PUBLISH, content=body, headers=NDJSON | headers)
            return await client.post(PUBLISH, json=body, headers=headers)

        call.client = client  # type: ignore[attr-defined]
        yield call


def later(payload: str = "x", **more: Any) -> dict[str, Any]:
    return {"routing_key": "orders", "payload": payload, "delay_seconds": 86_400, **more}


def held(gateway: Gateway, resource: str) -> dict[str, int]:
    return {client.name: held for client, held in gateway.budgets[resource].largest(10)}


async def test_scheduled_publishes_of_one_client_are_bounded(gateway: Gateway, caller: Any) -> None:
    assert (await caller("alice", {"messages": [later() for _ in range(10)]})).status_code == 207
    refused = problem(await caller("alice", later()), 429, "budget_exceeded")
    assert "budget scheduled: 'alice' holds 10" in refused["detail"]
    problem(
        await caller("alice", {"routing_key": "orders", "payload": "x"}, prefer="respond-async"), 429, "budget_exceeded"
    )
    problem(await caller("alice", {"messages": [later()]}), 429, "budget_exceeded")
    problem(await caller("alice", later(), idempotency_key="one"), 429, "budget_exceeded")
    assert (await caller("alice", {"routing_key": "orders", "payload": "now"})).status_code == 200
    answer = await caller("bob", later())
    assert answer.status_code == 202
    assert held(gateway, "scheduled") == {"alice": 10, "bob": 1}
    assert held(gateway, "idempotency_keys") == {}
    path = f"/v1/scheduled/{answer.json()['id']}"
    cancelled = await caller.client.delete(path, headers={"x-api-key": "bob-secret"})
    assert cancelled.status_code == 204, cancelled.text
    assert held(gateway, "scheduled") == {"alice": 10}
    await gateway.ledger_budgets.count()
    assert held(gateway, "scheduled") == {"alice": 10}


async def test_bytes_of_scheduled_publishes_are_bounded(gateway: Gateway, caller: Any) -> None:
    batch = {"messages": [later("x" * 3_000) for _ in range(3)]}
    assert (await caller("alice", batch)).status_code == 207
    refused = problem(await caller("alice", batch), 429, "budget_exceeded")
    assert "budget scheduled_bytes: 'alice' holds 9," in refused["detail"]
    assert (await caller("bob", batch)).status_code == 207
    before = held(gateway, "scheduled_bytes")
    await gateway.ledger_budgets.count()
    assert held(gateway, "scheduled_bytes") == before


async def test_what_is_sent_is_given_back(gateway: Gateway, upstream: FakeUpstream, caller: Any) -> None:
    body = {"messages": [{"routing_key": "orders", "payload": "x"} for _ in range(10)]}
    for _ in range(3):
        assert (await caller("alice", body, prefer="respond-async")).status_code == 207
        async with asyncio.timeout(30):
            while held(gateway, "scheduled"):
                await asyncio.sleep(0.01)
    assert held(gateway, "scheduled_bytes") == {}


async def test_keys_of_one_client_are_bounded(gateway: Gateway, caller: Any) -> None:
    now = {"routing_key": "orders", "payload": "x"}
    lines = "\n".join(json.dumps({**now, "key": f"key-{number}"}) for number in range(9))
    first = await caller("alice", lines)
    assert first.text.count('"confirmed"') == 9
    assert (await caller("alice", now, idempotency_key="whole")).status_code == 200
    refused = problem(await caller("alice", now, idempotency_key="other"), 429, "budget_exceeded")
    assert "budget idempotency_keys: 'alice' holds 10" in refused["detail"]
    again = await caller("alice", now, idempotency_key="whole")
    assert (again.status_code, again.headers["idempotent-replayed"]) == (200, "true")
    assert (await caller("alice", lines)).text.count('"confirmed"') == 9
    new = await caller("alice", json.dumps({**now, "key": "new"}))
    assert "budget_exceeded" in new.text
    assert (await caller("bob", now, idempotency_key="whole")).status_code == 200
    assert held(gateway, "idempotency_keys") == {"alice": 10, "bob": 1}
    await gateway.ledger_budgets.count()
    assert held(gateway, "idempotency_keys") == {"alice": 10, "bob": 1}


async def test_a_repeat_of_what_was_scheduled_with_a_key_needs_no_share(gateway: Gateway, caller: Any) -> None:
    first = await caller("alice", {"messages": [later() for _ in range(10)]}, idempotency_key="k")
    assert first.status_code == 207
    again = await caller("alice", {"messages": [later() for _ in range(10)]}, idempotency_key="k")
    assert again.json() == first.json()
    problem(await caller("alice", later(), idempotency_key="other"), 429, "budget_exceeded")


async def test_the_reserve_is_for_admin(gateway: Gateway, caller: Any) -> None:
    gateway.budgets.configure(BudgetBounds(0.9, 0.5, {"scheduled": 4}))
    assert (await caller("alice", {"messages": [later(), later()]})).status_code == 207
    problem(await caller("bob", later()), 503, "overloaded")
    assert (await caller("root", {"messages": [later(), later()]})).status_code == 207


async def test_keys_that_are_freed_or_expire_are_given_back(
    gateway: Gateway, upstream: FakeUpstream, caller: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = {"routing_key": "orders", "payload": "x"}
    upstream.state = UpstreamState.CONNECTING
    problem(await caller("alice", now, idempotency_key="k"), 503, "broker_unavailable")
    assert "broker_unavailable" in (await caller("alice", json.dumps({**now, "key": "k"}))).text
    assert held(gateway, "idempotency_keys") == {}
    upstream.state = UpstreamState.UP
    monkeypatch.setattr(gateway.ledger._keys, "retention", -1)
    for number in range(3):
        assert (await caller("alice", now, idempotency_key=f"key-{number}")).status_code == 200
    assert held(gateway, "idempotency_keys") == {"alice": 3}
    assert gateway.ledger._forgot(await gateway.ledger._task(gateway.ledger._forget_keys)) == 3
    assert held(gateway, "idempotency_keys") == {}


async def test_subscriptions_of_one_client_are_bounded(gateway: Gateway, upstream: FakeUpstream) -> None:
    gateway.budgets.configure(BudgetBounds(0.5, 0.0, {"subscriptions": 4}))
    keys = [ApiKeySettings(name=name, key=f"{name}-secret", scopes=("subscribe:fake/*",)) for name in ("alice", "bob")]
    transport = httpx.ASGITransport(Api(gateway, HttpSettings(), keys))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        alice, bob = ({"x-api-key": f"{name}-secret"} for name in ("alice", "bob"))
        settings = {"broker": "fake", "queue": "orders"}
        for number in range(2):
            made = await client.put(f"/v1/subscriptions/a{number}", json=settings, headers=alice)
            assert made.status_code == 201, made.text
        refused = problem(
            await client.put("/v1/subscriptions/a2", json=settings, headers=alice), 429, "budget_exceeded"
        )
        assert "budget subscriptions: 'alice' holds 2 subscriptions; its share is 2 of 4" in refused["detail"]
        assert (await client.put("/v1/subscriptions/a1", json=settings, headers=alice)).status_code == 200
        assert (await client.put("/v1/subscriptions/b", json=settings, headers=bob)).status_code == 201
        for _ in range(2):
            assert held(gateway, "subscriptions") == {"alice": 2, "bob": 1}
            await gateway.ledger_budgets.count()
        assert (
            await client.delete("/v1/subscriptions/a1", headers=bob)
        ).status_code == 204  # who deletes it is no matter
        assert held(gateway, "subscriptions") == {"alice": 1, "bob": 1}
        assert (await client.put("/v1/subscriptions/a2", json=settings, headers=alice)).status_code == 201
        await gateway.subscriptions.put("old", SubscriptionSettings(**settings), None)
        await gateway.ledger_budgets.count()
        assert held(gateway, "subscriptions") == {"alice": 2, "": 1, "bob": 1}
        problem(await client.put("/v1/subscriptions/b2", json=settings, headers=bob), 503, "overloaded")


async def test_who_created_it_counts_after_a_restart(gateway: Gateway) -> None:
    budgets, alice = gateway.ledger_budgets, ShareHolder("alice")
    for kind in CREATED:
        async with budgets.creating(alice, kind, "x"):
            await gateway.ledger.put_resource(kind, "x", {}, None)
            await budgets.created(alice, kind, "x")
    again = LedgerBudgets(gateway.ledger, Budgets())
    await again.count()
    for resource in CREATED.values():
        assert again._budgets[resource].largest(9) == [(ShareHolder("alice"), 1)]
    for kind in CREATED:
        await gateway.ledger.delete_resource(kind, "x")
        await budgets.deleted(kind, "x")
    await again.count()
    assert again._budgets["taps"].standing().held == 0
