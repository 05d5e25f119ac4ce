"""The flow of a bridge, message by message: what it holds, when it says that it is full, and what it forgets."""

from __future__ import annotations

import asyncio

import pytest

from gateway.amqp.operations import Settlement
from gateway.bridges.journal import PAUSE_MIN
from gateway.runtime.clock import clock
from tests.bridges.hands import OCTETS, Hand, Timer, arrive, bodies, given

# ------------------------------------------------------------------------------------------------ arrival


async def test_it_says_that_it_is_full_when_it_holds_more_octets_than_it_may(hand: Hand) -> None:
    flow = await hand.flow()
    arrive(flow, given(OCTETS - 1), given(1))
    assert hand.full == [], "just as many are not too many"
    arrive(flow, given(1))
    assert hand.full == [False]
    assert (flow.held, flow.octets, flow.waiting, flow.idle) == (3, OCTETS + 1, 3, False)


async def test_what_is_above_twice_its_octets_goes_back_with_all_behind_it(hand: Hand) -> None:
    flow = await hand.flow()
    first, second, over, behind, other = (
        given(2 * OCTETS), given(1), given(1), given(1), given(1, "another")
    )  # fmt: skip
    arrive(flow, first, second)
    assert (flow.held, second.told) == (2, None), "at just twice the octets another one is taken"
    arrive(flow, over)
    assert (flow.held, over.told) == (2, Settlement.RELEASE)
    assert hand.full == [False, False, True]
    flow._octets_max *= 2
    arrive(flow, behind, other)
    assert behind.told is Settlement.RELEASE, "it must not overtake those that went back"
    assert (flow.held, other.told) == (3, None)


async def test_what_its_source_has_forgotten_is_held_however_much_it_is(hand: Hand) -> None:
    flow = await hand.flow()
    flow.unheld = True
    arrive(flow, *(given(OCTETS, settled=True) for _ in range(5)))
    assert (flow.held, flow.octets) == (5, 5 * OCTETS)
    assert True not in hand.full


@pytest.mark.parametrize("unheld", [False, True])
async def test_a_source_that_nothing_holds_back_is_bounded_by_twice_the_prefetch(hand: Hand, unheld: bool) -> None:
    flow = await hand.flow(prefetch=3)
    flow.unheld = unheld
    arrive(flow, *(given() for _ in range(6)))
    assert hand.full == []
    arrive(flow, given())
    assert hand.full == ([False] if unheld else [])


async def test_what_it_holds_counts_with_that_of_others(hand: Hand) -> None:
    budget = hand.estate.gateway.parts.byte_budget
    flow = await hand.flow()
    deliveries = [given(10), given(20), given(30)]
    arrive(flow, *deliveries)
    assert budget.held == 60
    deliveries[1].lost = True
    flow.forget_lost()
    assert budget.held == 40
    await flow.stop(0.0)
    assert budget.held == 0
    flow = await hand.flow()
    arrive(flow, given(10))
    flow.abandon()
    assert budget.held == 0


@pytest.mark.parametrize(
    ("sizes", "waits"),
    [([1] * 5, False), ([1] * 6, True), ([OCTETS // 2], False), ([OCTETS // 2 + 1], True)],
)
async def test_a_source_goes_on_when_half_of_the_prefetch_and_of_the_octets_are_left(
    hand: Hand, sizes: list[int], waits: bool
) -> None:
    flow = await hand.flow(prefetch=10)
    deliveries = [given(size) for size in sizes]
    arrive(flow, *deliveries)
    waiting = asyncio.create_task(flow.wait_low())
    await asyncio.sleep(0.01)
    assert waiting.done() is not waits
    deliveries[0].lost = True
    flow.forget_lost()
    await asyncio.wait_for(waiting, 5.0)


async def test_what_its_source_has_taken_back_is_forgotten(hand: Hand) -> None:
    """It comes again: a second copy would be published."""
    flow = await hand.flow()
    deliveries = [given(body=b"%d" % number) for number in range(6)]
    arrive(flow, *deliveries[:3])
    flow._again = flow._take(0.0)
    arrive(flow, *deliveries[3:])
    deliveries[1].lost = deliveries[4].lost = True
    flow.forget_lost()
    assert (flow.held, flow.octets, flow.waiting) == (4, 4, 4)
    assert bodies(flow._take(0.0)) == [b"0", b"2", b"3", b"5"]


# ----------------------------------------------------------------------------------------------- what goes now


async def test_what_was_lost_before_it_went_is_left_out(hand: Hand) -> None:
    flow = await hand.flow()
    deliveries = [given(body=b"%d" % number) for number in range(3)]
    arrive(flow, *deliveries)
    deliveries[1].lost = True
    assert bodies(flow._take(0.0)) == [b"0", b"2"]
    assert (flow.held, flow.octets) == (2, 2)


async def test_what_was_lost_before_it_went_again_is_left_out(hand: Hand) -> None:
    flow = await hand.flow()
    deliveries = [given(body=b"%d" % number, message_id=f"m-{number}") for number in range(3)]
    arrive(flow, *deliveries)
    flow._again = flow._look(flow._take(0.0))
    for item in flow._again:
        flow.deduplicator.launched(item)
    deliveries[1].lost = True
    assert bodies(flow._take(0.0)) == [b"0", b"2"]
    assert (flow.held, flow.octets, len(flow.deduplicator)) == (2, 2, 2)


async def test_no_more_go_than_the_gate_has_room_for(hand: Hand) -> None:
    flow = await hand.flow(prefetch=3)
    arrive(flow, *(given() for _ in range(5)))
    assert len(flow._take(0.0)) == 3
    flow._gate.outstanding = 3
    assert flow._take(0.0) == []
    flow._gate.outstanding = 2
    assert len(flow._take(0.0)) == 1


async def test_what_may_go_again_waits_for_room_and_for_no_timer(hand: Hand) -> None:
    flow = await hand.flow(prefetch=2)
    asked: list[float] = []
    flow._timer = Timer(asked)  # type: ignore[assignment]
    arrive(flow, given(), given())
    flow._again = flow._take(0.0)
    flow._gate.outstanding = 2
    assert (flow._take(0.0), asked) == ([], [])


async def test_those_that_go_again_go_first_when_they_are_due(hand: Hand) -> None:
    flow = await hand.flow(prefetch=3)
    arrive(flow, *(given(body=b"%d" % number) for number in range(3)))
    flow._again = flow._take(0.0)[::-1]
    for item, due in zip(flow._again, (7.0, 5.0, 6.0), strict=True):
        item.due = due
    arrive(flow, given(body=b"3"))
    assert bodies(flow._take(6.0)) == [b"0", b"1", b"3"]
    assert bodies(flow._take(6.9)) == []
    assert bodies(flow._take(7.0)) == [b"2"]


async def test_no_more_go_again_than_the_gate_has_room_for(hand: Hand) -> None:
    flow = await hand.flow(prefetch=4)
    arrive(flow, *(given(body=b"%d" % number) for number in range(4)))
    flow._again = flow._take(0.0)
    arrive(flow, given(body=b"4"))
    flow._gate.outstanding = 2
    assert bodies(flow._take(0.0)) == [b"0", b"1"]
    flow._gate.outstanding = 1
    assert bodies(flow._take(0.0)) == [b"2", b"3", b"4"]


@pytest.mark.parametrize("is_closed", [True, False])
async def test_what_waits_for_the_gate_or_the_ledger_goes_on_after_the_pause(
    hand: Hand, monkeypatch: pytest.MonkeyPatch, is_closed: bool
) -> None:
    flow = await hand.flow()
    asked: list[float] = []
    flow._timer = Timer(asked)  # type: ignore[assignment]
    arrive(flow, given())
    if is_closed:
        flow._gate.not_before = 10.5
    else:
        monkeypatch.setattr(flow._journal._ledger, "takes", lambda: (False, "it is locked"))
    assert flow._take(10.0) == []
    assert asked == [10.0 + PAUSE_MIN]
    assert flow._journal.faults.reason == ("" if is_closed else "ledger: it is locked")
    monkeypatch.undo()
    assert len(flow._take(10.5)) == 1
    assert not flow._journal.faults


async def test_what_is_not_due_is_waited_for(hand: Hand) -> None:
    flow = await hand.flow()
    asked: list[float] = []
    flow._timer = Timer(asked)  # type: ignore[assignment]
    arrive(flow, given(), given())
    flow._again = flow._take(0.0)
    for item, due in zip(flow._again, (8.0, 7.0), strict=True):
        item.due = due
    assert flow._take(5.0) == []
    assert asked == [7.0]
    assert len(flow._take(8.0)) == 2
    assert asked == [7.0], "nothing is left to wait for"


async def test_a_rate_lets_one_go_and_waits_for_the_next(hand: Hand) -> None:
    flow = await hand.flow(messages_per_second=1)
    asked: list[float] = []
    flow._timer = Timer(asked)  # type: ignore[assignment]
    now = clock.monotonic()
    arrive(flow, given(), given())
    assert len(flow._take(now)) == 1
    (at,) = asked
    assert now < at <= now + 1.0
    assert len(flow._take(now + 1.0)) == 1


async def test_of_a_limited_number_no_more_go_than_are_left(hand: Hand) -> None:
    flow = await hand.flow()
    flow.left = 3
    arrive(flow, *(given() for _ in range(5)))
    taken = flow._take(0.0)
    assert len(taken) == 3
    assert flow._take(0.0) == []
    flow.retaken(taken[0])
    assert len(flow._take(0.0)) == 1, "it comes again, and another may come before it"
