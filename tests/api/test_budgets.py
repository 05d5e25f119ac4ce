"""``/v1/budgets``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from gateway.budgets import RESOURCES, BudgetBounds, ShareHolder
from gateway.core import Gateway
from gateway.errors import BudgetExceeded
from tests.api.conftest import problem


async def test_each_budget_is_shown(client: httpx.AsyncClient, gateway: Gateway) -> None:
    gateway.budgets.configure(BudgetBounds(0.25, 0.1, {"streams": 40}, clients={"alice": 0.5}))
    streams = gateway.budgets["streams"]
    streams.take(ShareHolder("alice"), 20)
    streams.take(ShareHolder("bob"), 3)
    with pytest.raises(BudgetExceeded):
        streams.take(ShareHolder("alice"))
    answer = await client.get("/v1/budgets")
    assert answer.status_code == 200
    found = {each["resource"]: each for each in answer.json()["budgets"]}
    assert list(found) == list(RESOURCES)
    assert found["streams"] == {
        "resource": "streams",
        "counts": "streams and pulls that wait",
        "held": 23,
        "total": 40,
        "share": 10,
        "reserve": 4,
        "scope": "process",
        "setting": "budgets.totals",
        "refusals": {"share": 1, "total": 0, "dropped": 0},
        "largest": [
            {"client": "alice", "kind": "client", "held": 20, "share": 20},
            {"client": "bob", "kind": "client", "held": 3, "share": 10},
        ],
    }
    assert found["requests"]["largest"] == [{"client": "anonymous", "kind": "client", "held": 1, "share": 250}]


async def test_the_list_of_clients_is_bounded(client: httpx.AsyncClient, gateway: Gateway) -> None:
    for number in range(30):
        gateway.budgets["streams"].take(ShareHolder(f"client-{number}"), number + 1)
    (found,) = [each for each in (await client.get("/v1/budgets")).json()["budgets"] if each["resource"] == "streams"]
    assert [each["held"] for each in found["largest"]] == list(range(30, 20, -1))


async def test_it_is_for_admin(client_with_keys: Callable[..., Any]) -> None:
    async with client_with_keys("consume:fake/*", "history") as client:
        problem(await client.get("/v1/budgets"), 403, "forbidden")
