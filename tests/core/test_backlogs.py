"""Whether anything may be due in the ledger."""

from __future__ import annotations

import asyncio

import pytest

from gateway.core.leasing import backlogs
from gateway.core.leasing.backlogs import LOOK_MAX, LOOK_MIN, Backlogs, SubscriptionBacklog


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def emptied(backlog: SubscriptionBacklog) -> None:
    assert backlog.may_be_due()
    backlog.asked()
    backlog.emptied()


def test_it_is_looked_less_and_less_often() -> None:
    clock = Clock()
    backlog = SubscriptionBacklog(clock)
    pauses = []
    for _ in range(6):
        emptied(backlog)
        assert not backlog.may_be_due()
        pauses.append(backlog.next_look() - clock.now)
        clock.now = backlog.next_look()
    assert pauses == [LOOK_MIN, 2.0, 4.0, LOOK_MAX, LOOK_MAX, LOOK_MAX]


def test_after_news_it_is_looked_often_again() -> None:
    backlog = SubscriptionBacklog(clock := Clock())
    for _ in range(4):
        emptied(backlog)
        clock.now = backlog.next_look()
    backlog.news()
    emptied(backlog)
    assert backlog.next_look() - clock.now == LOOK_MIN


def test_what_is_due_later_is_known_to_the_second() -> None:
    clock = Clock()
    backlog = SubscriptionBacklog(clock)
    emptied(backlog)
    for _ in range(1_000):
        backlog.due_in(0.3)
    assert len(backlog._dues) == 1, "one entry a second, whatever the number of leases"
    assert backlog.next_look() == 101.0
    clock.now = 101.0
    emptied(backlog)
    assert not backlog._dues


def test_news_during_a_claim_are_not_forgotten() -> None:
    backlog = SubscriptionBacklog(Clock())
    assert backlog.may_be_due()
    backlog.asked()
    backlog.news()
    backlog.emptied()
    assert backlog.may_be_due()


async def test_who_waits_is_woken() -> None:
    backlog = Backlogs()["billing"]
    waiter = backlog.wait()
    assert not backlog.idle
    backlog.due_in(0)
    async with asyncio.timeout(30):
        await waiter
    backlog.leave(waiter)
    assert backlog.idle


async def test_no_more_are_remembered_than_documented(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backlogs, "SHELVES_MAX", 10)
    found = Backlogs()
    used = found["used"]
    used.pulls = 1
    for number in range(25):
        found[f"s{number}"].news()
    assert len(found._backlogs) <= 11
    assert found["used"] is used


async def test_a_pull_waits_for_those_that_store_the_same_and_began_before() -> None:
    backlog = Backlogs()["billing"]
    gates = {name: asyncio.Event() for name in ("same", "other", "unread", "mine", "later")}
    works = {name: asyncio.create_task(gate.wait()) for name, gate in gates.items()}
    for work in works.values():
        backlog.store(work)
    assert not backlog.idle
    for name, keys in (("same", {"a", "b"}), ("other", {"c"}), ("mine", {"a"}), ("later", {"a"})):
        backlog.storing[works[name]] = frozenset(keys)
    waiting = asyncio.create_task(backlog.stored_before({"a"}, works["mine"]))
    for name in ("unread", "same"):
        await asyncio.sleep(0.01)
        assert not waiting.done()
        gates[name].set()
    async with asyncio.timeout(30):
        await waiting
    assert set(backlog.storing) == {works[name] for name in ("other", "mine", "later")}
    for gate in gates.values():
        gate.set()
    await asyncio.gather(*works.values())
    await asyncio.sleep(0)
    assert backlog.idle


def test_what_came_due_stays_due_until_it_is_asked_for() -> None:
    clock = Clock()
    backlog = SubscriptionBacklog(clock)
    for _ in range(4):  # it would be looked late
        emptied(backlog)
        clock.now = backlog.next_look()
    emptied(backlog)
    backlog.due_in(2.0)
    assert not backlog.may_be_due()
    clock.now += 2.0
    assert backlog.may_be_due()
    assert backlog.may_be_due()
    assert backlog.next_look() == clock.now
    backlog.asked()
    assert not backlog.may_be_due()
    backlog.due_in(0.0)
    assert backlog.may_be_due()


def test_where_as_much_was_found_as_was_wanted_there_may_be_more() -> None:
    backlog = SubscriptionBacklog(Clock())
    emptied(backlog)
    backlog.found()
    assert backlog.may_be_due()


async def test_who_waits_is_woken_by_what_is_due_sooner() -> None:
    backlog = SubscriptionBacklog(clock := Clock())
    emptied(backlog)
    waiters = [backlog.wait()]
    backlog.due_in(50.0)
    assert waiters[0].done()
    waiters.append(backlog.wait())
    backlog.due_in(60.0)
    backlog.due_in(50.0)
    assert not waiters[1].done(), "it is no sooner"
    backlog.due_in(30.0)
    assert waiters[1].done()
    assert clock.now < backlog.next_look()


def test_as_many_are_remembered_as_documented(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backlogs, "SHELVES_MAX", 2)
    found = Backlogs()
    first, second = found["a"], found["b"]
    assert (found["a"], found["b"]) == (first, second)
    assert first.idle
    _ = found["c"]
    assert len(found._backlogs) == 1
    assert found["a"] is not first
