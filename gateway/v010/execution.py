"""Command ids: counted, never written (specification sections 6.5 to 6.7).

Both ends count the commands of a session, each direction for itself, from the command point. Here the counts are
plain integers that never wrap; on the wire they are 32-bit serial numbers in the sense of RFC 1982, which
:func:`unwrap` turns back with the help of a number nearby.

:class:`RangeSet` is a set of ids as few ranges: what was completed but is not known to be known, what is settled
together. :class:`Received` is one end's book of the commands that it receives: which are carried out, what the peer has
asked for, and what it knows.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from gateway.errors import FrameSyntaxError
from gateway.v010.fields import SEQUENCE_SET_MAX, Ranges

RANGES_MAX: Final = 1_024
"""Into how many ranges what was completed and is not known to be known may fall, in a session. Who carries commands
out in order needs one."""
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

    def absorb(self, number: int) -> int:
        """Take out the leading ranges that begin at or below ``number``; the number behind the last of them, or
        ``number`` itself where that is higher."""
        firsts, lasts = self._firsts, self._lasts
        stop = bisect_right(firsts, number)
        if stop:
            number = max(number, lasts[stop - 1] + 1)
            del firsts[:stop], lasts[:stop]
        return number

    def clear(self) -> None:
        """Take everything out."""
        self._firsts.clear()
        self._lasts.clear()

    def chunks(self) -> Iterator[Ranges]:
        """The ranges, as many at a time as one sequence-set holds."""
        pairs = tuple(self)
        for start in range(0, len(pairs), SEQUENCE_SET_MAX):
            yield pairs[start : start + SEQUENCE_SET_MAX]


def within(pending: Mapping[int, object], ranges: Iterable[tuple[int, int]], newest: int) -> list[int]:
    """The keys of ``pending``, which are in order, that lie within any of the ranges; in order, each once.

    A peer's ranges may overlap, be wider than everything that was ever sent, and be thousands: the work is that of
    sorting them, beside that of going through ``pending`` once.
    """
    if not pending:
        return []
    oldest = next(iter(pending))
    clipped = [(max(first, oldest), min(last, newest)) for first, last in ranges]
    if len(clipped) > 1:
        merged = RangeSet()
        for first, last in sorted(clipped):
            if first <= last:
                merged.add(first, last)
        clipped = list(merged)
    if sum(last - first + 1 for first, last in clipped) <= 2 * len(pending):
        return [number for first, last in clipped for number in range(first, last + 1) if number in pending]
    keys = list(pending)
    return [number for first, last in clipped for number in keys[bisect_left(keys, first) : bisect_right(keys, last)]]


class Received:
    """The commands that one end of a session receives."""

    __slots__ = ("_ahead", "_barriers", "_early", "_since", "_wanted", "completed", "due", "low", "next")

    def __init__(self) -> None:
        self.next = 0
        """The id of the command that comes next."""
        self.completed = RangeSet()
        """Carried out, and the peer has not said that it knows."""
        self.low = 0
        """All commands below are carried out."""
        self.due = False
        """The peer is to be told now."""
        self._ahead = RangeSet()
        """Carried out although an earlier one is not; known or not."""
        self._since = 0
        self._wanted: set[int] = set()
        self._early = -1
        """The last command that was reported although an earlier one was not complete. Qpid's client waits until all
        before it are, without asking again."""
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
        """execution.sync: this command is complete when all before it are, and the peer learns it then."""
        self._barriers.append(command_id)
        self._pass_barriers()

    def complete(self, first: int, last: int) -> None:
        """The commands ``first`` to ``last`` are carried out."""
        self.completed.add(first, last)
        self._carried_out(first, last)
        self._since += last - first + 1
        if self._since >= COMPLETE_EVERY:
            self.due = True
        if self._wanted:
            self._told(first, last)
        if 0 <= self._early < self.low:
            self._early, self.due = -1, True
        if self._barriers:
            self._pass_barriers()

    def known(self, ranges: list[tuple[int, int]]) -> None:
        """session.known-completed. Raises :class:`~gateway.errors.FrameSyntaxError` where the peer has acknowledged so
        little that more than :data:`RANGES_MAX` ranges are left."""
        completed = self.completed
        most = max(len(completed), RANGES_MAX)
        for first, last in ranges:
            completed.remove(first, min(last, self.next - 1))
            if len(completed) > most:
                raise FrameSyntaxError(f"session.known-completed leaves more than {RANGES_MAX} ranges of commands")

    def gap(self, ranges: list[tuple[int, int]]) -> None:
        """session.gap: commands that will never come count as carried out. Raises
        :class:`~gateway.errors.FrameSyntaxError` where it does not begin with the command that comes next: ids are
        counted, so what is left out could never be sent; and where more than :data:`RANGES_MAX` ranges come of it."""
        for first, last in sorted(ranges):
            if first > self.next:
                due = self.next & 0xFFFFFFFF
                raise FrameSyntaxError(f"session.gap from {first & 0xFFFFFFFF} where {due} comes next")
            if last >= self.next:
                self.complete(self.next, last)
                self.next = last + 1
        if len(self.completed) > RANGES_MAX:
            raise FrameSyntaxError(f"session.gap leaves more than {RANGES_MAX} ranges of commands")

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
            self._early = max(self._early, *found)

    def _carried_out(self, first: int, last: int) -> None:
        if first > self.low:
            self._ahead.add(first, last)
            return
        self.low = max(self.low, last + 1)
        if self._ahead:
            self.low = self._ahead.absorb(self.low)

    def _pass_barriers(self) -> None:
        while self._barriers and self._barriers[0] <= self.low:
            number = self._barriers.popleft()
            self.completed.add(number, number)
            self._carried_out(number, number)
            self.due = True
