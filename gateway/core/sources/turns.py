"""Long work on the loop in pieces: between them the loop's other callers have their turn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from gateway.runtime.clock import clock
from gateway.runtime.threads import threads

T = TypeVar("T")

TURN: Final = 0.005
"""After this many seconds of work the others have their turn."""


ASIDE_MIN: Final = 65_536
"""Work on this number of bytes takes no longer than a turn."""
WORKERS: Final = 2
"""Threads for longer work. Each that works can keep the loop waiting for the interpreter's lock, for 1 ms."""
_workers: Final = threads.pool(WORKERS, "aside")


async def aside(size: int, function: Callable[..., T], *arguments: object) -> T:
    """Call a function that touches nothing of the loop's, and works on this size: a long one in a thread."""
    if size <= ASIDE_MIN:
        return function(*arguments)
    return await threads.submit(_workers, function, *arguments)


class Turns:
    """The turns of one piece of work. Await :meth:`over` at each step."""

    __slots__ = ("_began",)

    def __init__(self) -> None:
        self._began = clock.monotonic()

    async def over(self) -> None:
        """Let the others have their turn, if this one has lasted long enough."""
        if clock.monotonic() - self._began >= TURN:
            await clock.sleep(0)
            self._began = clock.monotonic()
