"""How long to wait for a gateway that is away: with pauses that grow, and not for ever."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from gateway.errors import ServiceUnreachable
from gateway.runtime.clock import block, monotonic_time
from gateway.runtime.ids import fraction

PAUSE: Final = 0.1
"""First pause, in seconds; each one is twice as long as the one before, with jitter."""
PAUSE_MAX: Final = 10.0
"""Longest pause, in seconds."""


class Patience:
    """Counts from the last time that something came. One for each thing that is waited for."""

    def __init__(
        self,
        seconds: float,
        clock: Callable[[], float] = monotonic_time,
        sleep: Callable[[float], None] = block,
        jitter: Callable[[], float] = fraction,
    ) -> None:
        """``seconds`` is how long nothing may come; 0: not a moment."""
        self._seconds = seconds
        self._clock = clock
        self._sleep = sleep
        self._jitter = jitter
        self._since: float | None = None
        """When the first of the failures was; None: the last attempt did not fail."""
        self.failures = 0
        """Attempts that failed since something came."""

    def progress(self) -> None:
        """Something came."""
        self._since = None
        self.failures = 0

    def wait(self, error: Exception, retry_after: float = 0.0) -> None:
        """Pause before the next attempt; at least for ``retry_after`` seconds, which the gateway asked for.

        Raises:
            ServiceUnreachable: it has been long enough. The text says how long, and what the last failure was.
        """
        now = self._clock()
        if self._since is None:
            self._since = now
        self.failures += 1
        left = self._seconds - (now - self._since)
        if left <= 0:
            waited = f" for {now - self._since:.0f} s, over {self.failures} attempts" if self.failures > 1 else ""
            raise ServiceUnreachable(f"{error}{waited}") from None
        pause = min(PAUSE_MAX, PAUSE * 2 ** min(self.failures - 1, 10)) * (0.5 + self._jitter() / 2)
        self._sleep(min(max(pause, min(retry_after, PAUSE_MAX)), left))
