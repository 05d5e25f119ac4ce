"""Command ids: serial numbers, range sets, and the book of what was received."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import FrameSyntaxError
from gateway.v010.execution import COMPLETE_EVERY, RangeSet, Received, unwrap, unwrap_ranges
from gateway.v010.fields import SEQUENCE_SET_MAX


@given(st.integers(0, 1 << 40), st.integers(-(1 << 30), 1 << 30))
def test_serial_numbers_are_unwrapped(near: int, distance: int) -> None:
    assert unwrap((near + distance) & 0xFFFFFFFF, near) == near + distance


def test_ranges_over_the_wrap() -> None:
    assert unwrap_ranges(((0xFFFFFFFE, 3),), 1 << 32) == [((1 << 32) - 2, (1 << 32) + 3)]
    assert unwrap_ranges(((0xFFFFFFFE, 0xFFFFFFFF),), 5) == [(-2, -1)]


small = st.tuples(st.integers(0, 60), st.integers(0, 12)).map(lambda pair: (pair[0], pair[0] + pair[1]))


@given(st.lists(st.tuples(st.booleans(), small), max_size=40))
def test_a_range_set_is_a_set(steps: list[tuple[bool, tuple[int, int]]]) -> None:
    ranges, expected = RangeSet(), set[int]()
    for add, (first, last) in steps:
        if add:
            ranges.add(first, last)
            expected |= set(range(first, last + 1))
        else:
            ranges.remove(first, last)
            expected -= set(range(first, last + 1))
        pairs = list(ranges)
        assert {number for first, last in pairs for number in range(first, last + 1)} == expected
        assert all(a[1] + 1 < b[0] for a, b in pairwise(pairs))
        assert bool(ranges) == bool(expected)
        assert len(ranges) == len(pairs)
        assert {number for number in range(80) if number in ranges} == expected


def test_more_ranges_than_a_sequence_set_holds() -> None:
    ranges = RangeSet()
    for number in range(SEQUENCE_SET_MAX + 5):
        ranges.add(2 * number, 2 * number)
    chunks = list(ranges.chunks())
    assert [len(chunk) for chunk in chunks] == [SEQUENCE_SET_MAX, 5]
    ranges.clear()
    assert list(ranges.chunks()) == []


def received(count: int) -> Received:
    book = Received()
    book.next = count
    return book


def test_completions_are_told_when_they_are_wanted() -> None:
    book = received(3)
    book.want(1)
    book.complete(0, 0)
    assert book.take_due() == []
    book.complete(1, 1)
    assert book.take_due() == [((0, 1),)]
    assert book.take_due() == []


def test_completions_that_were_told_early_are_told_again_with_those_before_them() -> None:
    """Qpid's client waits until it knows all of them, and asks for the last one only."""
    book = received(4)
    book.want(2)
    book.complete(2, 2)
    assert book.take_due() == [((2, 2),)]
    book.complete(0, 0)
    assert book.take_due() == []
    book.complete(1, 1)
    assert book.take_due() == [((0, 2),)]
    book.complete(3, 3)
    assert book.take_due() == []


def test_completions_are_told_after_many_commands() -> None:
    book = received(1000)
    for number in range(COMPLETE_EVERY):
        assert not book.due
        book.complete(number, number)
    assert book.take_due() == [((0, COMPLETE_EVERY - 1),)]


def test_out_of_order() -> None:
    book = received(6)
    book.complete(2, 3)
    book.complete(5, 5)
    assert book.low == 0
    book.complete(0, 1)
    assert book.low == 4
    book.complete(4, 4)
    assert book.low == 6
    assert list(book.completed) == [(0, 5)]


def test_a_barrier_waits_for_all_before_it() -> None:
    book = received(4)
    book.complete(0, 0)
    book.barrier(2)
    assert not book.due
    book.barrier(3)
    book.complete(1, 1)
    assert book.take_due() == [((0, 3),)]
    assert book.low == 4


def test_what_is_known_is_not_repeated() -> None:
    book = received(10)
    book.complete(0, 8)
    book.known([(0, 4), (100, 1 << 40)])
    book.due = True
    assert book.take_due() == [((5, 8),)]
    book.known([(-5, 8)])
    book.due = True
    assert book.take_due() == []
    assert book.low == 9


def test_what_is_known_is_carried_out_all_the_same() -> None:
    """Commands that were complete before an earlier one are not waited for when the peer knows of them."""
    book = received(7)
    book.complete(1, 2)
    book.complete(4, 4)
    book.known([(1, 2), (4, 4)])
    book.barrier(6)
    book.complete(0, 0)
    assert book.low == 3
    book.complete(3, 3)
    assert book.low == 5
    assert not book.due
    book.complete(5, 5)
    assert book.take_due() == [((0, 0), (3, 3), (5, 6))]


def test_a_peer_that_knows_every_other_command() -> None:
    book = received(5_000)
    book.complete(0, 4_999)
    with pytest.raises(FrameSyntaxError, match="known-completed leaves more than 1024"):
        book.known([(number, number) for number in range(1, 5_000, 2)])
    book = received(5_000)
    for number in range(0, 5_000, 2):
        book.complete(number, number)
    book.known([(0, 10), (20, 20)])
    assert len(book.completed) == 2_493


def test_a_gap() -> None:
    book = received(3)
    book.gap([(4, 4), (1, 3)])
    assert (book.next, list(book.completed)) == (5, [(3, 4)])
    book.complete(0, 2)
    assert book.low == 5
    with pytest.raises(FrameSyntaxError, match=r"session.gap from 6 where 5 comes next"):
        book.gap([(6, 7)])
    book = received(3_000)
    for number in range(0, 3_000, 2):
        book.complete(number, number)
    with pytest.raises(FrameSyntaxError, match=r"session.gap leaves more than 1024"):
        book.gap([(3_000, 3_000)])


def test_command_point() -> None:
    book = Received()
    book.point(0xFFFFFFFF)
    assert (book.next, book.low) == (0xFFFFFFFF, 0xFFFFFFFF)
    book.next += 2
    book.point(1)
    with pytest.raises(FrameSyntaxError, match="command-point 5"):
        book.point(5)
