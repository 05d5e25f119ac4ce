"""How many a second, lately."""

from __future__ import annotations

import pytest

from gateway.core.rates import WINDOW, Rate


def test_what_came_within_the_window_counts() -> None:
    rate = Rate()
    assert rate.of(0.0) == 0.0
    rate.add(10, 0.0)
    rate.add(5, 1.0)
    assert rate.of(1.0) == pytest.approx(15 / WINDOW)
    assert rate.of(WINDOW) == pytest.approx(15 / WINDOW)
    assert rate.of(WINDOW + 0.01) == pytest.approx(5 / WINDOW)
    assert rate.of(WINDOW + 1.01) == 0.0


def test_no_more_steps_are_kept_than_fifty() -> None:
    rate = Rate()
    for number in range(10_000):
        rate.add(1, number * WINDOW / 1_000)
    assert 40 <= len(rate._steps) <= 52
    assert rate.of(10_000 * WINDOW / 1_000) == pytest.approx(1_000 / WINDOW, rel=0.05)


def test_what_comes_at_once_is_one_step() -> None:
    rate = Rate()
    for number in range(3):
        rate.add(2, number * WINDOW / 200)
    assert len(rate._steps) == 1
    assert rate.of(0.1) == pytest.approx(6 / WINDOW)
    rate.add(2, WINDOW / 50)
    assert len(rate._steps) == 2
