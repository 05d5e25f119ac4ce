"""Command ids: counted, never written (specification sections 6.5 to 6.7).

Both ends count the commands of a session, each direction for itself, from the command point. Here the counts are
plain integers that never wrap; on the wire they are 32-bit serial numbers in the sense of RFC 1982, which
:func:`unwrap` turns back with the help of a number nearby.

:class:`RangeSet` is a set of ids as few ranges: what was completed but is not known to be known, what is settled
together. :class:`Received` is one end's book of the commands that it receives: which are carried out, what the
peer has asked to be told, what it was told.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterator
from typing import Final

from gateway.errors import FrameSyntaxError
from gateway.v010.fields import SEQUENCE_SET_MAX, Ranges

COMPLETE_EVERY: Final = 256
"""Completions are sent at the latest after so many commands, asked for or not: the peer holds something for
each."""


def unwrap(number: int, near: int) -> int:
    """The integer nearest to ``near`` whose low 32 bits are ``number`` (RFC 1982). May be negative."""
    return near + ((number - near + 0x80000000) & 0xFFFFFFFF) - 0x80000000


def unwrap_ranges(ranges: Ranges, near: int) -> list[tuple[int, int]]:
    """Ranges off the wire as unwrapped ranges around ``near``."""
    result = []
    for first, last in ranges:
        start = unwrap(first, near)
        result.append((start, start + ((last - first) & 0xFFFFFFFF)))
    return result


class RangeSet:
    """A set of integers, kept as sorted, separate ranges. Cheap while it grows at its end."""

    __slots__ = ("_firsts", "_lasts")

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._lasts: list[int] = []

    def __bool__(self) -> bool:
        return bool(self._firsts)

    def __len__(self) -> int:
        """The number of ranges."""
        return len(self._firsts)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(zip(self._firsts, self._lasts, strict=True))

    def __contains__(self, number: int) -> bool:
        index = bisect_left(self._lasts, number)
        return index < len(self._firsts) and self._firsts[index] <= number

    def add(self, first: int, last: int) -> None:
        """Put ``first`` to ``last`` in."""
        firsts, lasts = self._firsts, self._lasts
        if not lasts or first > lasts[-1] + 1:
            firsts.append(first)
            lasts.append(last)
            return
        if first >= firsts[-1]:
            lasts[-1] = max(lasts[-1], last)
            return
        # All ranges that overlap or touch [first, last] become one.
        start = bisect_left(lasts, first - 1)
        stop = start
        while stop < len(firsts) and firsts[stop] <= last + 1:
            first, last = min(first, firsts[stop]), max(last, lasts[stop])
            stop += 1
        firsts[start:stop] = [first]
        lasts[start:stop] = [last]

    def remove(self, first: int, last: int) -> None:
        """Take ``first`` to ``last`` out."""
        firsts, lasts = self._firsts, self._lasts
        start = bisect_left(lasts, first)
        stop = start
        rest: list[tuple[int, int]] = []
        while stop < len(firsts) and firsts[stop] <= last:
            if firsts[stop] < first:
                rest.append((firsts[stop], first - 1))
            if lasts[stop] > last:
                rest.append((last + 1, lasts[stop]))
            stop += 1
        firsts[start:stop] = [pair[0] for pair in rest]
        lasts[start:stop] = [pair[1] for pair in rest]

    def clear(self) -> None:
        """Take everything out."""
        self._firsts.clear()
        self._lasts.clear()

    def chunks(self) -> Iterator[Ranges]:
        """The ranges, as many at a time as one sequence-set holds."""
        pairs = tuple(self)
        for start in range(0, len(pairs), SEQUENCE_SET_MAX):
            yield pairs[start : start + SEQUENCE_SET_MAX]


class Received:
    """The commands that one end of a session receives."""

    __slots__ = ("_barriers", "_since", "_wanted", "completed", "due", "low", "next")

    def __init__(self) -> None:
        self.next = 0
        """The id of the command that comes next."""
        self.completed = RangeSet()
        """Carried out, and the peer has not said that it knows."""
        self.low = 0
        """All commands below are carried out."""
        self.due = False
        """The peer is to be told now."""
        self._since = 0
        self._wanted: set[int] = set()
        self._barriers: deque[int] = deque()

    def point(self, command_id: int) -> None:
        """session.command-point: the next command has this id. Raises
        :class:`~gateway.errors.FrameSyntaxError` where commands were received and another id comes next."""
        if self.next == 0:
            self.next = self.low = command_id
        elif unwrap(command_id, self.next) != self.next:
            raise FrameSyntaxError(f"session.command-point {command_id} where {self.next & 0xFFFFFFFF} comes next")

    def want(self, command_id: int) -> None:
        """The sync bit: tell the peer as soon as this command is complete."""
        self._wanted.add(command_id)

    def barrier(self, command_id: int) -> None:
        """execution.sync: this command is complete when all before it are, and the peer is told then."""
        self._barriers.append(command_id)
        self._pass_barriers()

    def complete(self, first: int, last: int) -> None:
        """The commands ``first`` to ``last`` are carried out."""
        self.completed.add(first, last)
        if first <= self.low:
            self._raise_low(last)
        self._since += last - first + 1
        if self._since >= COMPLETE_EVERY:
            self.due = True
        if self._wanted:
            self._told(first, last)
        if self._barriers:
            self._pass_barriers()

    def known(self, ranges: list[tuple[int, int]]) -> None:
        """session.known-completed."""
        for first, last in ranges:
            self.completed.remove(first, min(last, self.next - 1))

    def take_due(self) -> list[Ranges]:
        """What to send in session.completed now, a list of sequence-sets; nothing where nothing is due."""
        if not self.due:
            return []
        self.due = False
        self._since = 0
        return list(self.completed.chunks())

    def _told(self, first: int, last: int) -> None:
        wanted = self._wanted
        if last - first < len(wanted):
            found = [number for number in range(first, last + 1) if number in wanted]
        else:
            found = [number for number in wanted if first <= number <= last]
        if found:
            wanted.difference_update(found)
            self.due = True

    def _raise_low(self, last: int) -> None:
        self.low = max(self.low, last + 1)
        for first, end in self.completed:
            if first > self.low:
                break
            self.low = max(self.low, end + 1)

    def _pass_barriers(self) -> None:
        while self._barriers and self._barriers[0] <= self.low:
            number = self._barriers.popleft()
            self.completed.add(number, number)
            self._raise_low(number)
            self.due = True
