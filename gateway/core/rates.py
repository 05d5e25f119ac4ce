"""How many a second, lately."""

from __future__ import annotations

from collections import deque
from typing import Final

WINDOW: Final = 5.0
"""Seconds over which the rate is taken."""


class Rate:
    """Counts of the last seconds, in at most fifty steps."""

    def __init__(self) -> None:
        self._steps: deque[tuple[float, int]] = deque()

    def add(self, count: int, now: float) -> None:
        """So many more."""
        steps = self._steps
        if steps and now - steps[-1][0] < WINDOW / 50:
            steps[-1] = steps[-1][0], steps[-1][1] + count
        else:
            steps.append((now, count))
            self._forget(now)

    def of(self, now: float) -> float:
        """How many a second."""
        self._forget(now)
        return sum(count for _, count in self._steps) / WINDOW

    def _forget(self, now: float) -> None:
        steps = self._steps
        while steps and now - steps[0][0] > WINDOW:
            steps.popleft()
