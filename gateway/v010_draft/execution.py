"""Commands are counted, not numbered: which received ones are carried out, and which the peer knows.

Both ends count the commands of a session from 0, each direction for itself; ``execution.complete`` names the last id up
to which all are carried out (-1 as 0xFFFFFFFF before the first) and, as a set, those beyond. What is not asked for is
told at the latest after :data:`COMPLETE_EVERY` commands; what was asked for (``execution.flush``) as soon as it is so.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gateway.v010.execution import RangeSet
from gateway.v010_draft.fields import RANGES_MAX
from gateway.v010_draft.methods import ExecutionComplete

COMPLETE_EVERY: Final = 256


class Executed:
    """The commands that one end of a session receives."""

    __slots__ = ("_ahead", "_since", "_untold", "_wanted", "due", "low", "next")

    def __init__(self) -> None:
        self.next = 0
        """The id of the command that comes next."""
        self.low = 0
        """All commands below are carried out."""
        self.due = False
        """The peer is to be told now."""
        self._ahead = RangeSet()
        """Carried out although an earlier one is not."""
        self._untold = RangeSet()
        """Those of them that the peer was not told of."""
        self._since = 0
        self._wanted = 0
        """Of the commands below, the peer wants to know."""

    def flush(self) -> None:
        """execution.flush: tell the peer now, and again when more of what has come by now is carried out."""
        self._wanted = self.next
        self.due = True

    def complete(self, first: int, last: int) -> None:
        """The commands ``first`` to ``last`` are carried out."""
        self._since += last - first + 1
        if first < self._wanted or self._since >= COMPLETE_EVERY:
            self.due = True
        if first > self.low:
            self._ahead.add(first, last)
            self._untold.add(first, last)
        else:
            self.low = self._ahead.absorb(max(self.low, last + 1))

    def take_due(self) -> Iterator[ExecutionComplete]:
        """What to tell the peer now; nothing where nothing is due."""
        if not self.due:
            return
        self.due = False
        self._since = 0
        mark = (self.low - 1) & 0xFFFFFFFF
        beyond = [(first & 0xFFFFFFFF, last & 0xFFFFFFFF) for first, last in self._untold if first > self.low]
        self._untold.clear()
        for start in range(0, max(len(beyond), 1), RANGES_MAX):
            yield ExecutionComplete(mark, tuple(beyond[start : start + RANGES_MAX]))
