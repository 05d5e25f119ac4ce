"""Memory of what clients were handed, for a broker that forgets in a crash what it delivered.

Such a broker delivers again without a word what was not acknowledged, and what was acknowledged last. So the front
marks a delivery as redelivered when it knows the same body from the same queue, handed before the connection was
opened. A mark too many is allowed: it says that a message *may* have been delivered before.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from typing import Final

RECENT_MAX: Final = 10_000
"""How many of the last deliveries are remembered, acknowledged or not."""
BEFORE_MAX: Final = 100_000
"""How many different deliveries of connections that are over are remembered. The oldest are forgotten."""
END_OCTETS: Final = 4_096
"""How much of each end of a body is compared."""


def fingerprint(queue: str, body: bytes) -> int:
    """Return what a message is known by: its queue, the length of its body, and both ends of it."""
    size = len(body)
    if size > 2 * END_OCTETS:
        body = body[:END_OCTETS] + body[-END_OCTETS:]
    return hash((queue, size, body))


class HandedMemory:
    """Fingerprints of what the clients of one broker were handed: the last ones, and all that they held when their
    channel or its connection ended."""

    __slots__ = ("_before", "_recent")

    def __init__(self) -> None:
        self._recent: deque[int] = deque(maxlen=RECENT_MAX)
        self._before: dict[int, int] = {}
        """Fingerprint -> how many deliveries of it may come again."""

    def add(self, handed: int) -> bool:
        """Note the fingerprint of a delivery that a client gets. Returns whether it may have been delivered before."""
        self._recent.append(handed)
        before = self._before
        if not before or not (count := before.get(handed, 0)):
            return False
        if count == 1:
            del before[handed]
        else:
            before[handed] = count - 1
        return True

    def give_back(self, handed: Iterable[int]) -> None:
        """Note fingerprints of deliveries that clients held, and that the broker has again."""
        self._keep(Counter(handed))

    def begin(self) -> None:
        """A connection to the broker is open. Before that it may have crashed: all that was handed may come again."""
        self._keep(Counter(self._recent))
        self._recent.clear()

    def _keep(self, counted: Counter[int]) -> None:
        before = self._before
        for handed, count in counted.items():
            before[handed] = max(count, before.pop(handed, 0))
        while len(before) > BEFORE_MAX:
            del before[next(iter(before))]
