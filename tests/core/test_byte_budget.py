"""The bytes that pushed subscriptions, bridges and taps hold together."""

from __future__ import annotations

from random import Random

from gateway.budgets import RESOURCES, BudgetBounds, Budgets, Holdings, ShareHolder
from gateway.core.sources.byte_budget import OVERRUN, ByteBudget

TOTAL = 1_000_000


def made(total: int = TOTAL) -> tuple[Holdings, ByteBudget]:
    holdings = Budgets(BudgetBounds(totals={"held_bytes": total}))["held_bytes"]
    return holdings, ByteBudget(holdings)


def test_each_has_its_own_bound_while_there_is_room() -> None:
    _, budget = made()
    one, other = budget.part("bridge", "b"), budget.part("tap", "t")
    one.add(TOTAL // 4)
    other.add(TOTAL // 4)
    assert one.bound(300_000) == 300_000
    other.add(1)
    assert one.bound(300_000) == TOTAL // 8
    assert one.bound(10) == 10
    other.add(-1)
    assert one.bound(300_000) == 300_000


def test_one_alone_has_an_equal_part_of_one() -> None:
    _, budget = made()
    part = budget.part("bridge", "b")
    part.add(TOTAL // 2 + 1)
    assert part.bound(TOTAL) == TOTAL // (2 * OVERRUN)


def test_a_message_always_goes() -> None:
    _, budget = made(2)
    part = budget.part("bridge", "b")
    part.add(100)
    assert part.bound(100) == 1


def test_what_is_held_is_shown_by_name() -> None:
    holdings, budget = made()
    parts = [budget.part("bridge", "b"), budget.part("tap", "b"), budget.part("subscription", "s")]
    for number, part in enumerate(parts):
        part.add(number + 1)
    twin = budget.part("subscription", "s")
    twin.add(10)
    assert holdings.largest(2) == [(ShareHolder("s", kind="subscription"), 13), (ShareHolder("b", kind="tap"), 2)]
    assert holdings.standing() == (16, TOTAL, TOTAL, 13)
    parts[2].close()
    parts[2].add(-3)  # what was under way when it ended
    assert (holdings.held, budget.held) == (13, 13)
    for part in (*parts, twin):
        part.close()
    assert (holdings.largest(9), budget.held, budget.parts) == ([], 0, {})


def test_together_they_hold_no_more_than_the_total() -> None:
    """Each takes what comes as its owners do: what comes above twice its bound goes back."""
    random, size = Random(7), 1_000
    _, budget = made()
    parts = [budget.part("bridge", f"b{number}") for number in range(20)]
    for _ in range(20_000):
        part = random.choice(parts)
        if random.random() < 0.2 and part.held:
            part.add(-size)
        elif part.held <= OVERRUN * part.bound(400_000):
            part.add(size)
    assert TOTAL // 2 < budget.held <= TOTAL + len(parts) * size


def test_nobody_is_refused() -> None:
    assert not RESOURCES["held_bytes"].is_split
