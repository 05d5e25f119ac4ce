"""The clock: the only reads of time and the only sleeps."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Final


class Clock:
    """Wall time, monotonic time, and sleep. The functions are attributes, so that reading costs no second call."""

    __slots__ = ("block", "monotonic", "now", "now_ns", "sleep")

    def __init__(self) -> None:
        self.now: Callable[[], float] = time.time
        """Return the wall time, in seconds since 1970."""
        self.now_ns: Callable[[], int] = time.time_ns
        """Return the wall time, in nanoseconds since 1970."""
        self.monotonic: Callable[[], float] = time.monotonic
        """Return the seconds since some start; they never step back. It is the event loop's clock, too: add a delay
        and hand the sum to ``loop.call_at`` or ``asyncio.timeout_at``."""
        self.sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
        """Sleep in a task, for these seconds; 0 lets the other tasks run."""
        self.block: Callable[[float], None] = time.sleep
        """Sleep in a thread or a command, for these seconds. Never in the event loop's thread."""

    def utc(self) -> datetime:
        """Return the wall time as a date in UTC."""
        return datetime.fromtimestamp(self.now(), UTC)


clock: Final = Clock()
"""The clock of this process."""


def wall_time() -> float:
    """Return the shared clock's wall time, in seconds since 1970: the default of those that are given a clock."""
    return clock.now()


def monotonic_time() -> float:
    """Return the shared clock's monotonic time, in seconds: the default of those that are given a clock."""
    return clock.monotonic()


def block(seconds: float) -> None:
    """Sleep in a thread or a command, by the shared clock: the default of those that are given a way to sleep."""
    clock.block(seconds)
