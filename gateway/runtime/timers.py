"""Timers of the event loop that wake somebody."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from gateway.runtime.clock import clock

EARLY: Final = 0.001
"""By less than this a loop calls too early, in seconds: those that count time in milliseconds."""


class WakeTimer:
    """One timer, set to the soonest of the times that were asked for."""

    __slots__ = ("_at", "_call", "_handle", "_loop")

    def __init__(self, call: Callable[[], None]) -> None:
        """``call`` is called on the loop at that time, never before it; then the timer is not set any more."""
        self._call = call
        self._loop = asyncio.get_running_loop()
        self._handle: asyncio.TimerHandle | None = None
        self._at = 0.0  # uvloop's handles do not all say when they are due

    def wake_at(self, at: float) -> None:
        """Call at that time of the loop's clock, in seconds, or at the time that is set if that is sooner."""
        if self._handle is not None:
            if self._at <= at:
                return
            self._handle.cancel()
        self._at = at
        self._handle = self._loop.call_at(at, self._due)

    def cancel(self) -> None:
        """Call nobody."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _due(self) -> None:
        if self._at > clock.monotonic():  # to look now is to be called again at once
            self._handle = self._loop.call_at(self._at + EARLY, self._due)
            return
        self._handle = None
        self._call()
