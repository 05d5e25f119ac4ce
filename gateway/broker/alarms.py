"""What has to happen when: one heap of times, one live time per owner.

Setting a new time for an owner leaves the old entry in the heap, to be ignored when it comes up; the heap is
rebuilt once such leftovers outnumber what is live, so it stays proportional to the number of owners.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import Generic, Protocol, TypeVar


class Alarmed(Protocol):
    """Something that wants to be called at a time."""

    alarm: float | None
    """The live time; None: no alarm is set."""


_Owner = TypeVar("_Owner", bound=Alarmed)

SLACK = 64
"""Leftovers that are not worth a rebuild."""


class Alarms(Generic[_Owner]):
    """A heap of alarms; times are on the clock of ``now``, in seconds."""

    __slots__ = ("_count", "_heap", "_live")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, _Owner]] = []
        self._count = 0
        self._live = 0

    def set(self, owner: _Owner, time: float) -> None:
        """Call ``owner`` at ``time``, unless it is to be called sooner anyway."""
        if owner.alarm is not None:
            if owner.alarm <= time:
                return
            self._live -= 1
        owner.alarm = time
        self._live += 1
        self._count += 1
        heappush(self._heap, (time, self._count, owner))
        if len(self._heap) > 2 * self._live + SLACK:
            self._heap = [item for item in self._heap if item[2].alarm == item[0]]
            heapify(self._heap)

    def clear(self, owner: _Owner) -> None:
        """Forget the owner's alarm."""
        if owner.alarm is not None:
            owner.alarm = None
            self._live -= 1

    def next(self) -> float | None:
        """The earliest time, None if there is none."""
        heap = self._heap
        while heap and heap[0][2].alarm != heap[0][0]:
            heappop(heap)
        return heap[0][0] if heap else None

    def due(self, now: float) -> Iterator[_Owner]:
        """The owners whose time has come; each alarm is cleared before its owner is yielded."""
        while (time := self.next()) is not None and time <= now:
            owner = heappop(self._heap)[2]
            self.clear(owner)
            yield owner
