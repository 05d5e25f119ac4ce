"""Long work on the loop in pieces: between them the loop's other callers have their turn."""

from __future__ import annotations

import asyncio
from time import perf_counter
from typing import Final

TURN: Final = 0.005
"""After so many seconds of work the others have their turn."""


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
