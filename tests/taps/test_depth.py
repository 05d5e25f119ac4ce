"""As many messages as the queue held, and no more: the arithmetic, without a broker."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.taps.depth import Depth


class Delivered:
    """A delivery, as far as it matters."""

    def __init__(self, number: int, channel: object) -> None:
        self.number = number
        self.channel = channel


class Queue:
    """A broker that sends as much ahead as it may."""

    def __init__(self, ready: int) -> None:
        self.ready = deque(range(ready))
        self.out: deque[Any] = deque()
        self.sent = 0
        self.channel = object()
        self.cancelled = False

    def send(self, prefetch: int) -> list[Any]:
        found = []
        while self.ready and len(self.out) < prefetch and not self.cancelled:
            found.append(Delivered(self.ready.popleft(), self.channel))
            self.out.append(found[-1])
        self.sent += len(found)
        return found

    def acknowledge(self, delivery: Any) -> None:
        self.out.remove(delivery)

    def lose(self) -> None:
        """The channel dies: what is out is at the head of the queue again."""
        self.ready.extendleft(each.number for each in reversed(self.out))
        self.out.clear()
        self.channel = object()


def drain(depth: Depth, queue: Queue, prefetch: int, batch: int) -> list[int]:
    """Take all that is wanted, in batches; what was acknowledged, in that order."""
    done: list[int] = []
    waiting: deque[Any] = deque()

    def acknowledge(delivery: Any) -> None:
        queue.acknowledge(delivery)
        done.append(delivery.number)
        depth.settled()

    prefetch = depth.begin(prefetch)
    while depth.to_come or waiting:
        for delivery in queue.send(prefetch):
            assert depth.arrive(delivery, prefetch), "more came than was wanted"
            waiting.append(delivery)
        for _ in range(min(batch, len(waiting))):
            delivery = waiting.popleft()
            if not depth.withholds(delivery):
                acknowledge(delivery)
    queue.cancelled = True
    for delivery in depth.release():
        acknowledge(delivery)
    return done


@given(st.integers(1, 60), st.integers(0, 30), st.integers(1, 70), st.integers(1, 20))
def test_no_broker_sends_more_than_is_wanted(wanted: int, more: int, prefetch: int, batch: int) -> None:
    queue = Queue(wanted + more)
    depth = Depth(wanted, wanted)
    done = drain(depth, queue, prefetch, batch)
    assert sorted(done) == list(range(wanted))
    assert list(queue.ready) == list(range(wanted, wanted + more)), "the rest was never taken"
    assert (depth.left, queue.sent) == (0, wanted)


def test_a_channel_that_dies_begins_with_what_is_left() -> None:
    queue, depth = Queue(10), Depth(6, 6)
    prefetch = depth.begin(4)
    first = queue.send(prefetch)
    assert [depth.arrive(each, prefetch) for each in first] == [True] * 4
    assert [depth.withholds(each) for each in first] == [False, False, True, True]
    for each in first[:2]:
        queue.acknowledge(each)
        depth.settled()
    more = queue.send(prefetch)
    assert [depth.arrive(each, prefetch) for each in more] == [True] * 2
    queue.lose()
    depth.lose()
    prefetch = depth.begin(prefetch)
    again = queue.send(prefetch)
    assert [each.number for each in again] == [2, 3, 4, 5]
    assert [depth.arrive(each, prefetch) for each in again] == [True] * 4
    assert (depth.left, depth.to_come) == (4, 0)
    assert not depth.release(), "what was withheld on the old channel is its no more"


def test_acknowledgements_that_may_not_have_arrived_count_as_not_given() -> None:
    """Two were sent, and the broker has sent nothing since: both may come again."""
    queue, depth = Queue(10), Depth(6, 6)
    prefetch = depth.begin(4)
    assert all(depth.arrive(each, prefetch) for each in queue.send(prefetch))
    depth.settled()
    depth.settled()
    assert depth.left == 4
    depth.lose()
    assert depth.left == 6
    depth.lose()
    assert depth.left == 6, "a channel dies once"


def test_what_came_on_a_channel_that_died_counts_against_no_other() -> None:
    """It is still being spooled when the next consumer begins; its acknowledgements cannot leave any more."""
    queue, depth = Queue(6), Depth(6, 6)
    prefetch = depth.begin(2)
    old = queue.send(prefetch)
    assert all(depth.arrive(each, prefetch) for each in old)
    queue.lose()
    depth.begin(prefetch)
    assert [depth.withholds(each) for each in old] == [False, False]
    assert sorted(drain(depth, queue, prefetch, 1)) == [0, 1, 2, 3, 4, 5]
    depth = Depth(6, 6)
    depth.begin(2)
    first = Delivered(0, object())
    assert depth.arrive(first, 2)  # type: ignore[arg-type]  # of its shape
    assert [depth.withholds(each) for each in old] == [False, False]
    assert [depth.withholds(first) for _ in range(5)] == [False] * 4 + [True]  # type: ignore[arg-type]


def test_more_than_was_wanted_is_not_taken() -> None:
    queue, depth = Queue(3), Depth(2, 2)
    depth.begin(2)
    assert [depth.arrive(each, 2) for each in queue.send(3)] == [True, True, False]


@pytest.mark.parametrize(("left", "prefetch", "expected"), [(10, 4, 4), (3, 4, 3), (1, 1, 1), (0, 5, 1)])
def test_a_prefetch_is_not_more_than_is_left(left: int, prefetch: int, expected: int) -> None:
    assert Depth(10, left).begin(prefetch) == expected


def test_what_nobody_can_take_has_come_all_the_same() -> None:
    queue, depth = Queue(2), Depth(3, 3)
    depth.begin(3)
    depth.pass_over()
    assert all(depth.arrive(each, 3) for each in queue.send(3))
    assert (depth.to_come, depth.passed, depth.left) == (0, 1, 3)


def test_a_channel_that_follows_another_begins_with_what_is_left() -> None:
    """A consumer starts again when its connection is back."""
    queue, depth = Queue(8), Depth(5, 5)
    depth.begin(2)
    assert [depth.arrive(each, 2) for each in queue.send(2)] == [True] * 2
    depth.settled()
    queue.lose()
    again = queue.send(8)
    assert [depth.arrive(each, 2) for each in again] == [True] * 4 + [False] * 4
    assert [depth.withholds(each) for each in again[:4]] == [False, False, True, True]


def test_a_channel_dies_once() -> None:
    queue, depth = Queue(10), Depth(10, 6)
    prefetch = depth.begin(4)
    assert all(depth.arrive(each, prefetch) for each in queue.send(prefetch))
    depth.settled()
    depth.settled()
    for _ in range(2):
        depth.lose()
        assert (depth.left, depth.left_at_most) == (6, 6)


def test_what_is_behind_the_end_has_not_come() -> None:
    depth = Depth(3, 1)
    depth.begin(3)
    for passed in (1, 2):
        depth.pass_over()
        assert (depth.to_come, depth.passed) == (0, passed)
    assert not depth.arrive(Delivered(0, object()), 3)  # type: ignore[arg-type]  # of its shape


def test_nothing_comes_and_nothing_is_withheld_behind_the_end() -> None:
    queue, depth = Queue(4), Depth(4, 4)
    depth.begin(4)
    first, second, third, _ = queue.send(4)
    assert depth.arrive(first, 4)
    assert depth.arrive(second, 4)
    assert depth.withholds(first)
    withheld = [depth.withholds_any]
    assert depth.release() == [first]
    withheld.append(depth.withholds_any)
    assert withheld == [True, False]
    assert not depth.withholds(second)
    assert (depth.to_come, depth.arrive(third, 4)) == (0, False)


def test_a_consumer_that_begins_again_knows_nothing_of_the_last_one() -> None:
    queue, depth = Queue(9), Depth(9, 9)
    depth.begin(3)
    for each in queue.send(3):
        assert depth.arrive(each, 3)
        depth.withholds(each)
    depth.pass_over()
    depth.settled()
    depth.release()
    for used in (depth, Depth(9, 8)):
        other = Queue(9)
        assert used.begin(3) == 3
        assert (used.to_come, used.passed, used.left, used.left_at_most, used.withholds_any) == (8, 0, 8, 8, False)
        came = other.send(9)
        assert [used.arrive(each, 3) for each in came] == [True] * 8 + [False]
        assert [used.withholds(each) for each in came[:8]] == [False] * 5 + [True] * 3
        for _ in range(5):
            used.settled()
        assert (used.left, used.left_at_most) == (3, 3)
        used.settled()
        assert (used.left, used.left_at_most) == (2, 3)
        assert used.release() == came[5:8]


def test_before_a_consumer_begins_nothing_has_come_and_everything_is_withheld() -> None:
    depth = Depth(9, 3)
    assert (depth.to_come, depth.passed, depth.left_at_most, depth.withholds_any) == (3, 0, 3, False)
    came: list[Any] = [Delivered(number, "one") for number in range(2)]
    assert [depth.arrive(each, 1) for each in came] == [True] * 2
    assert [depth.withholds(each) for each in came] == [True] * 2
    depth.settled()
    depth.settled()
    assert (depth.left, depth.left_at_most) == (1, 2)
