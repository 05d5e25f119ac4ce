"""Retry pauses that grow."""

from __future__ import annotations

from gateway.runtime.clock import clock
from gateway.runtime.ids import ids


def pause_after(failures: int, first_seconds: float, most_seconds: float, jitter: float = 0.5) -> float:
    """Return for how many seconds to pause where ``failures`` pauses were made before, as :class:`Backoff` does.

    For counts that are kept elsewhere, such as in a row of the ledger.
    """
    longest = min(first_seconds * 2.0 ** min(failures, 64), most_seconds)
    return ids.between(longest * (1.0 - jitter), longest)


class Backoff:
    """Pauses between tries: each twice as long as the one before, up to ``most_seconds``.

    Each pause is drawn between half of its length and the whole, so that many who failed together do not come back
    together. With ``jitter`` 1.0 it is drawn from 0.
    """

    __slots__ = ("_first", "_jitter", "_most", "failures")

    def __init__(self, first_seconds: float, most_seconds: float, jitter: float = 0.5) -> None:
        self._first = first_seconds
        self._most = most_seconds
        self._jitter = jitter
        self.failures = 0
        """Pauses since the last success."""

    @property
    def longest(self) -> float:
        """The next pause in seconds, before its jitter."""
        return min(self._first * 2.0 ** min(self.failures, 64), self._most)

    def next(self) -> float:
        """Count a failure. Return for how many seconds to pause."""
        self.failures += 1
        return pause_after(self.failures - 1, self._first, self._most, self._jitter)

    def reset(self) -> None:
        """It worked: the next pause is the shortest again."""
        self.failures = 0

    async def wait(self) -> None:
        """Count a failure and sleep."""
        await clock.sleep(self.next())

    def block(self) -> None:
        """Count a failure and sleep, in a thread or a command."""
        clock.block(self.next())
