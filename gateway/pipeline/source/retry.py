"""Repeated requests to a gateway that is away: with pauses that grow, and not for ever."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from gateway.errors import ServiceUnreachable
from gateway.runtime.backoff import Backoff
from gateway.runtime.clock import block, monotonic_time

PAUSE: Final = 0.1
"""First pause at most, in seconds. Each one may be twice as long as the one before."""
PAUSE_MAX: Final = 10.0
"""Longest pause, in seconds."""


class Retry:
    """Time limit and pauses of one request that is repeated. The time counts from the last success."""

    def __init__(
        self,
        seconds: float,
        clock: Callable[[], float] = monotonic_time,
        sleep: Callable[[float], None] = block,
    ) -> None:
        """
        Args:
            seconds: How long the gateway may be away; 0: the first failure counts.
        """
        self._seconds = seconds
        self._clock = clock
        self._sleep = sleep
        self._backoff = Backoff(PAUSE, PAUSE_MAX)
        self._since: float | None = None
        """When the first of the failures was; None: the last attempt did not fail."""

    @property
    def failures(self) -> int:
        """Attempts that failed since the last success."""
        return self._backoff.failures

    def progress(self) -> None:
        """Count from now: something came."""
        self._since = None
        self._backoff.reset()

    def wait(self, error: Exception, retry_after: float = 0.0) -> None:
        """Pause before the next attempt; at least for ``retry_after`` seconds, which the gateway asked for.

        Raises:
            ServiceUnreachable: it has been long enough. The text says how long, and what the last failure was.
        """
        now = self._clock()
        if self._since is None:
            self._since = now
        pause = self._backoff.next()
        left = self._seconds - (now - self._since)
        if left <= 0:
            waited = f" for {now - self._since:.0f} s, over {self.failures} attempts" if self.failures > 1 else ""
            raise ServiceUnreachable(f"{error}{waited}") from None
        self._sleep(min(max(pause, min(retry_after, PAUSE_MAX)), left))
