"""Delivery limits of queues: how often a message may be given back before its broker drops it.

A quorum queue of RabbitMQ counts how often a message was delivered and given back (``x-delivery-count``), and drops or
dead-letters a message whose count would exceed the queue's limit. What counts differs between releases; every release
counts what a channel held when it closed (docs/reference/brokers.md). A limit that a policy sets is not visible: the
configuration of the broker says how low it may be.

A message is never given back beyond a share of the limit. What is left of it, the reserve, is for channels and
connections that break. A queue that dead-letters natively needs none of this.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from gateway.upstreams.topology import REMEMBERED, Topology

if TYPE_CHECKING:
    from gateway.upstreams.consuming.deliveries import Delivery

LIMIT_ARGUMENT: Final = "x-delivery-limit"
"""Argument of a queue that sets its delivery limit."""
RESERVE: Final = 4
"""One of so many returns is kept for channels that break."""


def is_used_up(count: int, limit: int) -> bool:
    """Return whether a message that was given back ``count`` times must not be given back on purpose."""
    return limit > 0 and count >= max(1, limit - max(1, limit // RESERVE))


def is_last(count: int, limit: int) -> bool:
    """Return whether the broker may drop the message when the next channel that holds it breaks."""
    return limit > 0 and count >= max(1, limit - 1)


class DeliveryLimits:
    """The delivery limits of one broker's queues."""

    def __init__(self, smallest: int, topology: Topology) -> None:
        """``smallest``: the smallest limit that a policy or the broker's default sets; 0: none is set."""
        self.on_used_up: Callable[[Delivery], None] | None = None
        """Takes over a delivery that must not go back: it settles the delivery when the message is safe elsewhere."""
        self._smallest = smallest
        self._topology = topology
        self._native: set[str] = set()

    def of(self, queue: str) -> int:
        """Return the limit to respect; 0: none."""
        if queue in self._native:
            return 0
        declared = self._topology.declared(queue).get(LIMIT_ARGUMENT)
        declared = getattr(declared, "value", declared)
        if type(declared) is int and declared >= 0:
            return min(declared, self._smallest) if self._smallest else declared
        return self._smallest

    def state_native(self, queue: str, native: bool) -> None:
        """State whether a queue dead-letters natively what exceeds its limit."""
        if not native:
            self._native.discard(queue)
        elif len(self._native) < REMEMBERED:
            self._native.add(queue)
