"""Turns: for how long one piece of work goes on before its neighbors have their turn.

Work that grows with what clients have made is a generator that yields between small pieces, a :data:`Job`. It begins
at once; what is left when the turn is over goes on in later turns of the event loop, among the jobs of others.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from itertools import islice
from math import inf
from typing import Any, TypeAlias, TypeVar

Job: TypeAlias = Generator[None, None, None]

LEAST = 0.000_5
"""Shortest turn, in seconds: one in which nothing is done would never end."""
PIECE = 64
"""Items of a list that are worked on between two looks at the clock."""

_Item = TypeVar("_Item")


class Turn:
    """One turn of the event loop.

    Args:
        clock: seconds, of any beginning; None: time does not pass, and all work is done at once.
        length: how long a turn is.
    """

    __slots__ = ("_length", "clock", "is_timed", "until")

    def __init__(self, clock: Callable[[], float] | None, length: float) -> None:
        self.is_timed = clock is not None
        """Time passes, and a turn has an end."""
        self.clock: Callable[[], float] = _stopped if clock is None else clock
        self.until = inf
        """When it is over."""
        self._length = max(length, LEAST)

    def begin(self) -> None:
        """Begin a turn."""
        if self.is_timed:
            self.until = self.clock() + self._length

    def over(self) -> bool:
        """Whether it is the turn of others."""
        return self.clock() >= self.until


def _stopped() -> float:
    return 0.0


class Jobs:
    """What goes on in later turns. Each job has a piece of it done in its turn."""

    __slots__ = ("_jobs", "turn")

    def __init__(self, turn: Turn) -> None:
        self.turn = turn
        self._jobs: deque[Job] = deque()

    def __bool__(self) -> bool:
        return bool(self._jobs)

    def start(self, job: Job) -> None:
        """Work on a job until it is done or the turn is over, and then in later turns."""
        over = self.turn.over
        while not over():
            if done(job):
                return
        self._jobs.append(job)

    def go_on(self) -> None:
        """Work until the turn is over."""
        jobs, over = self._jobs, self.turn.over
        while jobs:
            job = jobs.popleft()
            if not done(job):
                jobs.append(job)
            if over():
                return


def done(job: Job) -> bool:
    """Do one piece of a job; whether it was the last."""
    try:
        next(job)
    except StopIteration:
        return True
    return False


def drained(items: list[_Item]) -> Iterator[_Item]:
    """The items of a list that nobody else needs, each let go when it was used: to free all of them at once takes
    long."""
    rest = deque(items)
    items.clear()
    while rest:
        yield rest.popleft()


def pieces(items: Iterable[_Item], size: int = PIECE) -> Iterator[list[_Item]]:
    """The items in lists of at most ``size``."""
    rest = iter(items)
    while piece := list(islice(rest, size)):
        yield piece


def for_each(items: Iterable[_Item], work: Callable[[_Item], Any], size: int = PIECE) -> Job:
    """A job that calls ``work`` for each item."""
    for piece in pieces(items, size):
        for item in piece:
            work(item)
        yield
