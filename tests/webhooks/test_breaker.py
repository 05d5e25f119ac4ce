"""The circuit breaker, under a clock that is given."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from gateway.errors import ConfigurationError
from gateway.webhooks.breaker import Breaker, BreakerSettings, BreakerState

SETTINGS = BreakerSettings(failures=3, open_first=10, open_max=40, jitter=0, probe_timeout=60)


def half() -> float:
    return 0.5


def opened(at: float = 0.0) -> Breaker:
    found = Breaker(SETTINGS)
    for _ in range(3):
        assert found.allows(at)
        found.failed(at, half)
    return found


def test_it_opens_after_so_many_failures_in_a_row() -> None:
    found = Breaker(SETTINGS)
    for _ in range(2):
        found.failed(0, half)
    assert found.state(0) is BreakerState.CLOSED
    found.succeeded()
    for number in range(3):
        assert found.allows(0)
        assert found.failures == number
        found.failed(0, half)
    assert found.state(0) is BreakerState.OPEN
    assert not found.allows(9.9)
    assert found.next(4) == 6


def test_one_probe_at_a_time_decides() -> None:
    found = opened()
    assert found.state(10) is BreakerState.HALF_OPEN
    assert found.next(10) == 0
    assert found.allows(10)
    assert not found.allows(10)
    assert found.next(10) == 60
    found.succeeded()
    assert found.state(10) is BreakerState.CLOSED
    assert found.allows(10)
    assert found.next(10) == 0


def test_each_time_it_is_open_twice_as_long_up_to_a_limit() -> None:
    found, now = opened(), 0.0
    for seconds in (10, 20, 40, 40, 40):
        assert found.next(now) == seconds
        now += seconds
        assert not found.allows(now - 0.1)
        assert found.allows(now)
        found.failed(now, half)
    found.allows(now + 40)
    found.succeeded()
    for _ in range(3):
        found.failed(now, half)
    assert found.next(now) == 10


def test_a_probe_that_nobody_tells_of_is_not_waited_for_for_ever() -> None:
    found = opened()
    assert found.allows(10)
    assert not found.allows(69.9)
    assert found.allows(70)
    found.untold()
    assert found.allows(71)


def test_late_failures_of_before_do_not_keep_it_open() -> None:
    found = opened()
    found.failed(9, half)
    assert found.next(9) == 1


def test_a_late_success_closes_it() -> None:
    found = opened()
    found.succeeded()
    assert found.allows(0)


def test_the_jitter() -> None:
    jittery = BreakerSettings(failures=1, open_first=10, jitter=0.2)
    rng = random.Random(1)
    waits = []
    for _ in range(200):
        found = Breaker(jittery)
        found.failed(0, rng.random)
        waits.append(found.next(0))
    assert 8 <= min(waits) < 8.5
    assert 11.5 < max(waits) <= 12


@pytest.mark.parametrize(
    "make",
    [
        lambda: BreakerSettings(failures=0),
        lambda: BreakerSettings(open_first=0),
        lambda: BreakerSettings(open_first=2, open_max=1),
        lambda: BreakerSettings(jitter=1),
    ],
)
def test_settings_that_make_no_sense(make: Callable[[], BreakerSettings]) -> None:
    with pytest.raises(ConfigurationError, match="circuit breaker"):
        make()


def test_times_under_a_second_make_sense() -> None:
    found = Breaker(BreakerSettings(failures=1, open_first=0.5, open_max=0.5, jitter=0))
    found.failed(0, half)
    assert found.next(0) == 0.5
    assert found.allows(0.5)


class AnyOrder(RuleBasedStateMachine):
    """Whatever is told in whatever order: it never stays shut, and never lets two probes through."""

    def __init__(self) -> None:
        super().__init__()
        self.breaker = Breaker(SETTINGS)
        self.now = 0.0
        self.probed = -1_000.0

    @rule(seconds=st.sampled_from([0.0, 1.0, 5.0, 10.0, 40.0, 60.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def asks(self) -> None:
        half_open = self.breaker.state(self.now) is BreakerState.HALF_OPEN
        if self.breaker.allows(self.now) and half_open:
            assert self.now >= self.probed + SETTINGS.probe_timeout
            self.probed = self.now

    @rule()
    def success(self) -> None:
        self.breaker.succeeded()
        self.probed = -1_000.0
        assert self.breaker.allows(self.now)

    @rule()
    def failure(self) -> None:
        half_open = self.breaker.state(self.now) is BreakerState.HALF_OPEN
        self.breaker.failed(self.now, half)
        if half_open:
            self.probed = -1_000.0

    @rule()
    def untold(self) -> None:
        self.breaker.untold()
        self.probed = -1_000.0

    @invariant()
    def it_opens_again(self) -> None:
        wait = self.breaker.next(self.now)
        assert 0 <= wait <= 60
        if wait == 0 and self.breaker.state(self.now) is BreakerState.CLOSED:
            assert self.breaker.failures < SETTINGS.failures


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=40, stateful_step_count=25)
