"""Bytes of messages that pushed subscriptions, bridges and taps hold, all of them together.

Each has a bound of its own, such as ``prefetch_octets``. While half of the total is in use, each may hold no more than
an equal part of the other half: one that holds more takes nothing new, and its queue keeps the rest. So nobody is
refused, a few large ones do not keep small ones from their messages, and the total holds. One message always goes.
"""

from __future__ import annotations

from typing import Final

from gateway.budgets import ClientKind, Holder, Holdings, ShareHolder

OVERRUN: Final = 2
"""How many times its bound a part may hold: what comes above that goes back to the queue."""


class ByteBudget:
    """The bytes of all of them. All methods belong to the event loop."""

    __slots__ = ("held", "holdings", "parts")

    def __init__(self, holdings: Holdings) -> None:
        """``holdings``: of the resource ``held_bytes``."""
        self.holdings = holdings
        self.held = 0
        self.parts: dict[Part, None] = {}
        """Those that hold something."""
        holdings.measure = self._measure

    def part(self, kind: ClientKind, name: str) -> Part:
        """Return the part of a subscription, bridge or tap."""
        return Part(self, ShareHolder(name, kind=kind).holder)

    def _measure(self) -> dict[Holder, int]:
        found: dict[Holder, int] = {}
        for part in list(self.parts):  # another thread may ask
            found[part.holder] = found.get(part.holder, 0) + part.held
        return found


class Part:
    """What one of them holds."""

    __slots__ = ("_budget", "_is_closed", "held", "holder")

    def __init__(self, budget: ByteBudget, holder: Holder) -> None:
        self._budget = budget
        self._is_closed = False
        self.holder = holder
        self.held = 0

    def add(self, size: int) -> None:
        """Hold this many bytes more; below 0: fewer."""
        if self._is_closed or not size:
            return
        budget = self._budget
        self.held += size
        budget.held += size
        if self.held == size:
            budget.parts[self] = None
        elif not self.held:
            del budget.parts[self]

    def bound(self, own: int) -> int:
        """Return how many bytes it may hold now, where ``own`` is its own bound. It is at least 1."""
        budget = self._budget
        total = budget.holdings.total
        if budget.held <= total // 2:
            return own
        return min(own, max(1, total // (2 * OVERRUN * max(1, len(budget.parts)))))

    def close(self) -> None:
        """Hold nothing any more, for good."""
        self.add(-self.held)
        self._is_closed = True
