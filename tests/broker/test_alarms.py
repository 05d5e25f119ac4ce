"""What has to happen when."""

from __future__ import annotations

from gateway.broker.alarms import SLACK, Alarms


class Owner:
    def __init__(self) -> None:
        self.alarm: float | None = None


def test_in_order_and_once() -> None:
    alarms: Alarms[Owner] = Alarms()
    first, second = Owner(), Owner()
    assert alarms.next() is None
    alarms.set(second, 5)
    alarms.set(first, 3)
    assert alarms.next() == 3
    assert list(alarms.due(4)) == [first]
    assert list(alarms.due(5)) == [second]
    assert list(alarms.due(100)) == []


def test_the_sooner_time_holds() -> None:
    alarms: Alarms[Owner] = Alarms()
    owner = Owner()
    alarms.set(owner, 5)
    alarms.set(owner, 7)
    assert alarms.next() == 5
    alarms.set(owner, 2)
    assert list(alarms.due(10)) == [owner]


def test_cleared() -> None:
    alarms: Alarms[Owner] = Alarms()
    owner = Owner()
    alarms.clear(owner)
    alarms.set(owner, 5)
    alarms.clear(owner)
    assert alarms.next() is None


def test_leftovers_do_not_pile_up() -> None:
    alarms: Alarms[Owner] = Alarms()
    owners = [Owner() for _ in range(3)]
    for time in range(10_000, 0, -1):
        for owner in owners:
            alarms.set(owner, time)
    assert len(alarms._heap) <= 2 * len(owners) + SLACK
    assert alarms.next() == 1
