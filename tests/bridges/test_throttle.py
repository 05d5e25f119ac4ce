"""Rate limits: time is an argument."""

from __future__ import annotations

from gateway.bridges.throttle import BURST, Throttle


def run(throttle: Throttle, size: int, until: float) -> list[float]:
    """When messages of this size go that all wait from the start."""
    went, now = [], 0.0
    while now <= until:
        at = throttle.ready(now)
        if at > now:
            now = at
            continue
        throttle.take(size)
        went.append(now)
    return went


def test_messages_a_second() -> None:
    went = run(Throttle(100, 0, 0.0), 10, 2.0)
    assert 200 <= len(went) <= 200 + 100 * BURST + 2
    assert sum(at <= 1e-9 for at in went) <= 100 * BURST + 1


def test_octets_a_second() -> None:
    went = run(Throttle(0, 1_000, 0.0), 100, 3.0)
    assert 30 <= len(went) <= 33


def test_the_tighter_one_holds() -> None:
    assert len(run(Throttle(1_000, 1_000, 0.0), 100, 1.0)) <= 13
    assert len(run(Throttle(5, 1_000_000, 0.0), 100, 1.0)) <= 7


def test_one_that_is_larger_than_a_bucket_goes_and_is_paid_for() -> None:
    throttle = Throttle(0, 100, 0.0)
    assert throttle.ready(0.0) == 0.0
    throttle.take(1_000)
    assert 9.0 <= throttle.ready(0.0) <= 10.0
    assert throttle.ready(10.1) == 10.1


def test_a_rest_saves_up_no_more_than_a_burst() -> None:
    throttle = Throttle(10, 0, 0.0)
    assert throttle.ready(1_000.0) == 1_000.0
    assert len([at for at in run(throttle, 1, 0.0) if at == 0.0]) <= 2


def test_no_limit() -> None:
    throttle = Throttle(0, 0, 0.0)
    assert not throttle.limited
    throttle.take(1 << 30)
    assert throttle.ready(5.0) == 5.0


def test_an_empty_bucket_is_waited_for() -> None:
    throttle = Throttle(1, 0, 0.0)
    throttle.take(5)
    assert 0.0 < throttle.ready(0.0) < 0.001
    assert throttle.ready(0.5) == 0.5


def test_either_limit_is_one() -> None:
    assert [Throttle(1, 0, 0.0).limited, Throttle(0, 1, 0.0).limited, Throttle(1, 1, 0.0).limited] == [True] * 3
