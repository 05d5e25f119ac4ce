"""How often a caller may ask."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.access import rates as module
from gateway.access.access import Access
from gateway.access.rates import Rates
from tests.api.conftest import problem

LONG = "/v1/endpoints/" + "a" * 300
"""A path with a name that is none."""


def test_a_bucket_is_emptied_and_filled_again() -> None:
    rates = Rates(2.0, 4)
    assert [rates.take("a", 100.0).allowed for _ in range(6)] == [True] * 4 + [False] * 2
    assert rates.take("b", 100.0).allowed, "another caller has its own"
    assert not rates.take("a", 100.4).allowed
    assert rates.take("a", 100.5).allowed
    assert [rates.take("a", 200.0).allowed for _ in range(5)] == [True] * 4 + [False]


def test_what_answers_say() -> None:
    rates = Rates(0.5, 3)
    assert rates.policy == '"caller";q=3;w=6'
    assert rates.headers(rates.take("a", 0.0)) == {
        "ratelimit-policy": '"caller";q=3;w=6',
        "ratelimit": '"caller";r=2;t=2',
    }
    rates.take("a", 0.0)
    rates.take("a", 0.0)
    said = rates.headers(rates.take("a", 0.5))
    assert (said["ratelimit"], said["retry-after"]) == ('"caller";r=0;t=6', "2")


@given(st.floats(0.01, 1000), st.integers(1, 50), st.lists(st.floats(0, 5), max_size=60))
def test_never_more_than_burst_and_rate(rate: float, burst: int, pauses: list[float]) -> None:
    rates, now, allowed = Rates(rate, burst), 0.0, 0
    for pause in pauses:
        now += pause
        standing = rates.take("a", now)
        allowed += standing.allowed
        assert 0 <= standing.left <= burst
        assert standing.allowed or standing.retry_in >= 1
    assert allowed <= burst + now * rate + 1e-6


def test_who_waits_as_told_is_served() -> None:
    rates = Rates(0.3, 1)
    rates.take("a", 0.0)
    refused = rates.take("a", 0.0)
    assert not refused.allowed
    assert rates.take("a", float(refused.retry_in)).allowed


def test_callers_are_not_remembered_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CALLERS_MAX", 3)
    rates = Rates(1.0, 1)
    for name in "abcd":
        assert rates.take(name, 0.0).allowed
    assert not rates.take("d", 0.0).allowed
    assert rates.take("a", 0.0).allowed, "forgotten, and so full again"


def test_a_burst_by_itself() -> None:
    assert Rates(5.0).policy == '"caller";q=50;w=10'
    assert Rates(0.01).policy == '"caller";q=1;w=100'


async def test_over_http(ask: Callable[..., Any], access: Access) -> None:
    access.rates = Rates(0.001, 2)
    first = await ask("GET", "/v1/brokers")
    assert first.status_code == 200
    assert re.fullmatch(r'"caller";r=1;t=\d+', first.headers["ratelimit"])
    assert first.headers["ratelimit-policy"] == '"caller";q=2;w=2000'
    missing = await ask("GET", "/v1/bridges/none")
    assert (missing.status_code, missing.headers["ratelimit"][:12]) == (404, '"caller";r=0')
    refused = await ask("GET", "/v1/brokers")
    found = problem(refused, 429, "rate_limited")
    assert found["retryable"] is True
    assert 900 < int(refused.headers["retry-after"]) <= 1_000
    assert refused.headers.get_list("ratelimit") == [refused.headers["ratelimit"]]
    problem(await ask("GET", "/v1/brokers", ""), 401, "unauthorized")
    problem(await ask("GET", "/v1/brokers", "wrong"), 401, "unauthorized")


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/v1/none", 404), ("GET", "/v1/keys:none", 404), ("PUT", "/v1/brokers", 405), ("GET", LONG, 422)],
)
async def test_what_hits_no_route_counts(
    ask: Callable[..., Any], access: Access, method: str, path: str, status: int
) -> None:
    access.rates = Rates(0.001, 1)
    first = await ask(method, path)
    assert (first.status_code, first.headers["ratelimit"][:12]) == (status, '"caller";r=0')
    refused = await ask(method, path)
    problem(refused, 429, "rate_limited")
    assert refused.headers.get_list("ratelimit") == [refused.headers["ratelimit"]]


async def test_without_a_rate_nothing_is_said(ask: Callable[..., Any]) -> None:
    assert "ratelimit" not in (await ask("GET", "/v1/brokers")).headers
