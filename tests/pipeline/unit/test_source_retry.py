"""Repeated requests to a gateway that is away."""

from __future__ import annotations

import pytest

from gateway.errors import ServiceUnreachable
from gateway.pipeline.source.retry import PAUSE, PAUSE_MAX, Retry
from gateway.runtime.ids import ids
from tests.pipeline.unit.conftest import Time


def exhaust(retry: Retry) -> str:
    while True:
        try:
            retry.wait(OSError("nobody there"))
        except ServiceUnreachable as error:
            return str(error)


def test_pauses_grow_up_to_a_limit_and_end_in_time(clock: Time) -> None:
    retry = Retry(60, clock, clock.sleep)
    assert exhaust(retry) == "nobody there for 60 s, over 13 attempts"
    assert clock.slept[:4] == [PAUSE, 2 * PAUSE, 4 * PAUSE, 8 * PAUSE]
    assert max(clock.slept) == PAUSE_MAX
    assert clock.now == 1_060


def test_jitter_halves_a_pause_at_most(clock: Time, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ids, "fraction", lambda: 0.0)
    retry = Retry(60, clock, clock.sleep)
    retry.wait(OSError())
    assert clock.slept == [PAUSE / 2]


def test_something_that_comes_begins_it_anew(clock: Time) -> None:
    retry = Retry(60, clock, clock.sleep)
    for _ in range(50):  # more than 60 s in all
        retry.wait(OSError())
        retry.wait(OSError())
        clock.now += 5
        retry.progress()
    assert "over 13 attempts" in exhaust(retry)


def test_the_gateway_may_ask_for_a_longer_pause_but_not_for_any(clock: Time) -> None:
    retry = Retry(60, clock, clock.sleep)
    retry.wait(OSError(), retry_after=3)
    retry.wait(OSError(), retry_after=3_600)
    assert clock.slept == [3, PAUSE_MAX]


def test_without_time_the_first_failure_counts(clock: Time) -> None:
    assert exhaust(Retry(0, clock, clock.sleep)) == "nobody there"
    assert clock.slept == []
