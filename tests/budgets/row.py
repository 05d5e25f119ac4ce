"""What is measured of one budget."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

from tests.budgets.lab import Lab

Holding = AbstractAsyncContextManager[None]


@dataclass(frozen=True)
class Row:
    """One budget."""

    resource: str
    hold: Callable[[Lab, str, int], Holding]
    """Have a client hold so much."""
    more: Callable[[Lab, str, bool], Awaitable[int]]
    """Have it ask for one more, and give that back; the status. The argument says whether it is at its bound."""
    other: Callable[[Lab], Awaitable[None]]
    """Another client does its work once."""
    one: int = 1
    """The least that is held."""
    beyond: int = 0
    """What is held over the bound, where that is not refused but waits, or makes room."""
    is_refused: bool = True
    """Whether a client at its bound gets 429."""
    alternates: bool = True
    """Whether every other run begins at the bound; False: what is held over the bound is not given back alone."""
    stays: bool = False
    """What is held stays held: each run is that of another client."""
    label: Callable[[str], str] = str
    """Under which name the table of budgets knows the client."""
    bound: Callable[[int, int, int], int] = lambda share, total, reserve: share
    """Where the bound is, by share, total and reserve."""


async def more_nothing(lab: Lab, client: str, at_bound: bool) -> int:
    """Nothing: what is held is more than the bound already."""
    await asyncio.sleep(0)
    return 0
