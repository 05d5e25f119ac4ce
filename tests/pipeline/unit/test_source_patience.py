"""How long a gateway that is away is waited for."""

from __future__ import annotations

from gateway.errors import ServiceUnreachable
from gateway.pipeline.source.patience import PAUSE, PAUSE_MAX, Patience
from tests.pipeline.unit.conftest import Time


def exhaust(patience: Patience) -> str:
    while True:
        try:
            patience.wait(OSError("nobody there"))
        except ServiceUnreachable as error:
            return str(error)


def test_pauses_grow_up_to_a_limit_and_end_in_time(clock: Time) -> None:
    patience = Patience(60, clock, clock.sleep, lambda: 1.0)
    assert exhaust(patience) == "nobody there for 60 s, over 13 attempts"
    assert clock.slept[:4] == [PAUSE, 2 * PAUSE, 4 * PAUSE, 8 * PAUSE]
    assert max(clock.slept) == PAUSE_MAX
    assert clock.now == 1_060


def test_jitter_halves_a_pause_at_most(clock: Time) -> None:
    patience = Patience(60, clock, clock.sleep, lambda: 0.0)
    patience.wait(OSError())
    assert clock.slept == [PAUSE / 2]


def test_something_that_comes_begins_it_anew(clock: Time) -> None:
    patience = Patience(60, clock, clock.sleep, lambda: 1.0)
    for _ in range(50):  # more than 60 s in all
        patience.wait(OSError())
        patience.wait(OSError())
        clock.now += 5
        patience.progress()
    assert "over 13 attempts" in exhaust(patience)


def test_the_gateway_may_ask_for_a_longer_pause_but_not_for_any(clock: Time) -> None:
    patience = Patience(60, clock, clock.sleep, lambda: 1.0)
    patience.wait(OSError(), retry_after=3)
    patience.wait(OSError(), retry_after=3_600)
    assert clock.slept == [3, PAUSE_MAX]


def test_without_patience_the_first_failure_counts(clock: Time) -> None:
    assert exhaust(Patience(0, clock, clock.sleep)) == "nobody there"
    assert clock.slept == []
