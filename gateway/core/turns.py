"""Long work on the loop in pieces: between them the loop's other callers have their turn."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from time import perf_counter
from typing import Final, TypeVar

T = TypeVar("T")

TURN: Final = 0.005
"""After so many seconds of work the others have their turn."""


ASIDE_MIN: Final = 65_536
"""Work on so many bytes takes no longer than a turn."""
WORKERS: Final = 2
"""Threads for longer work. Each that works can keep the loop waiting for the interpreter's lock, for 5 ms."""
_workers: Final = ThreadPoolExecutor(WORKERS, "aside")


async def aside(size: int, function: Callable[..., T], *arguments: object) -> T:
    """Call a function that touches nothing of the loop's, and works on so many bytes: a long one in a thread."""
    if size <= ASIDE_MIN:
        return function(*arguments)
    call = partial(copy_context().run, function, *arguments)
    return await asyncio.get_running_loop().run_in_executor(_workers, call)


class Turns:
    """The turns of one piece of work. Await :meth:`over` at each step."""

    __slots__ = ("_began",)

    def __init__(self) -> None:
        self._began = perf_counter()

    async def over(self) -> None:
        """Let the others have their turn, if this one has lasted long enough."""
        if perf_counter() - self._began >= TURN:
            await asyncio.sleep(0)
            self._began = perf_counter()
