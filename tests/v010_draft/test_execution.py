"""What is carried out, and what the peer is told of it."""

from __future__ import annotations

from gateway.v010_draft.execution import COMPLETE_EVERY, Executed
from gateway.v010_draft.fields import RANGES_MAX
from gateway.v010_draft.methods import ExecutionComplete


def received(count: int) -> Executed:
    executed = Executed()
    executed.next = count
    return executed


def test_nothing_is_said_unasked() -> None:
    executed = received(3)
    executed.complete(0, 2)
    assert list(executed.take_due()) == []
    assert executed.low == 3


def test_a_flush_is_answered_at_once_and_when_there_is_more() -> None:
    executed = received(3)
    executed.flush()
    assert list(executed.take_due()) == [ExecutionComplete(0xFFFFFFFF, ())]
    assert list(executed.take_due()) == []
    executed.complete(2, 2)
    assert list(executed.take_due()) == [ExecutionComplete(0xFFFFFFFF, ((2, 2),))]
    executed.complete(0, 1)
    assert list(executed.take_due()) == [ExecutionComplete(2, ())]
    executed.next = 4
    executed.complete(3, 3)
    assert list(executed.take_due()) == []


def test_what_was_told_beyond_the_mark_is_not_told_again() -> None:
    executed = received(10)
    executed.flush()
    executed.complete(2, 3)
    list(executed.take_due())
    executed.complete(6, 6)
    assert list(executed.take_due()) == [ExecutionComplete(0xFFFFFFFF, ((6, 6),))]
    executed.complete(0, 1)
    assert list(executed.take_due()) == [ExecutionComplete(3, ())]


def test_the_peer_is_told_after_so_many_whether_it_asks_or_not() -> None:
    executed = received(COMPLETE_EVERY)
    executed.complete(0, COMPLETE_EVERY - 2)
    assert list(executed.take_due()) == []
    executed.complete(COMPLETE_EVERY - 1, COMPLETE_EVERY - 1)
    assert list(executed.take_due()) == [ExecutionComplete(COMPLETE_EVERY - 1, ())]


def test_more_ranges_than_a_set_holds() -> None:
    count = RANGES_MAX + 1
    executed = received(2 * count + 1)
    executed.flush()
    for number in range(count):
        executed.complete(2 * number + 1, 2 * number + 1)
    first, second = executed.take_due()
    assert len(first.ranged_execution_set) == RANGES_MAX
    assert second == ExecutionComplete(0xFFFFFFFF, ((2 * count - 1, 2 * count - 1),))
