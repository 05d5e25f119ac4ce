"""How much may be under way at a target, and when: a window that closes at a fault and opens step by step.

While all is well the window is the prefetch. After a refusal that says something of the target it is one message, after
a pause of 0.5 s at most, which doubles each time, up to 30 s. When the target takes a message the pause ends and the
window doubles.
"""

from __future__ import annotations

from typing import Final

from gateway.bridges.faults import Faults
from gateway.bridges.journal import PAUSE_MAX, PAUSE_MIN
from gateway.runtime.backoff import Backoff

REFUSED_IN_A_ROW: Final = 16
"""After this number of refusals in a row, each for a reason that may be the message's own, the target is at fault."""
WHERE: Final = "target"


class Gate:
    """The way to a target."""

    __slots__ = ("_backoff", "_faults", "_most", "_refused", "_window", "not_before", "outstanding")

    def __init__(self, most: int, faults: Faults) -> None:
        self.outstanding = 0
        """How many are published, and not recorded."""
        self.not_before = 0.0
        """When the next may go, on the loop's clock."""
        self._most = most
        self._window = most
        self._backoff = Backoff(PAUSE_MIN, PAUSE_MAX)
        self._refused = 0
        self._faults = faults

    @property
    def room(self) -> int:
        """How many more may be outstanding."""
        return self._window - self.outstanding

    def taken(self, count: int) -> None:
        """The target takes messages: twice as many may go."""
        if self._refused or self._window < self._most or WHERE in self._faults:
            self._refused = 0
            self._backoff.reset()
            self.not_before = 0.0
            self._window = min(max(self._window, count) * 2, self._most)
            self._faults.clear(WHERE)

    def refused(self) -> bool:
        """It has refused a message for reasons that may be the message's; whether there are too many of them."""
        self._refused += 1
        return self._refused >= REFUSED_IN_A_ROW

    def close(self, reason: str, now: float) -> None:
        """It takes nothing: one at a time, after a pause."""
        self._window = 1
        if self.not_before <= now:
            self.not_before = now + self._backoff.next()
        self._faults.set(WHERE, reason)

    def hurry(self) -> None:
        """It may be back: do not wait for the end of the pause."""
        self.not_before = 0.0
