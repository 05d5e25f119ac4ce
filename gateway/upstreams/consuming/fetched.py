"""What one fetch has brought so far, and how much more it may ask for.

A broker is asked for messages, not for bytes, and does not say beforehand how large they are. So a fetch asks for as
many as are sure to fit, as far as that is known: those before them tell what to expect. Where they turn out larger than
expected, what comes beyond the bound goes back to the queue at once, for only what is not held takes no memory.
"""

from __future__ import annotations

from contextlib import suppress

from gateway.amqp.operations import Settlement
from gateway.errors import LeaseLost, StateError
from gateway.upstreams.consuming.deliveries import Delivery


class Fetched:
    """Deliveries of one fetch, which ends with the one that reaches the bound."""

    __slots__ = ("_is_guess", "_largest", "_surplus", "bytes_max", "deliveries", "expected", "holds_surplus", "size")

    def __init__(self, bytes_max: int, expected: int | None, message_max: int) -> None:
        """``expected``: the size of the queue's messages, in bytes; None: nothing is known of them."""
        self.bytes_max = bytes_max
        self.expected = message_max if expected is None else expected
        """No message is expected to be larger."""
        self.deliveries: list[Delivery] = []
        self.size = 0
        """Bytes of their bodies and properties."""
        self.holds_surplus = False
        """What comes beyond the bound is given back by :meth:`release_surplus`, not at once."""
        self._is_guess = expected is None
        self._largest = -1
        self._surplus: list[Delivery] = []

    @property
    def fits(self) -> int:
        """How many more messages to ask for; 0: those that are here are enough. One goes however large it is."""
        left = self.bytes_max - self.size
        if not self.deliveries:
            return max(1, left // max(self.expected, 1))
        return max(0, left // max(self.expected, 1))

    def add(self, delivery: Delivery) -> None:
        """Keep a delivery, or give it back where those before it have reached the bound."""
        size = size_of(delivery)
        self._largest = max(self._largest, size)
        if not self.deliveries or self.size < self.bytes_max:
            self.deliveries.append(delivery)
            self.size += size
        elif self.holds_surplus:
            self._surplus.append(delivery)
        else:
            release([delivery])

    def learn(self) -> None:
        """Expect of the next messages what those that came tell."""
        if self._largest >= 0:
            before = 0 if self._is_guess else self.expected * 3 // 4
            self.expected, self._is_guess, self._largest = max(self._largest, before), False, -1

    def release_surplus(self) -> None:
        """Give back what came beyond the bound, and from now on at once."""
        surplus, self._surplus = self._surplus, []
        self.holds_surplus = False
        release(surplus)


def size_of(delivery: Delivery) -> int:
    """The bytes that a delivery holds: its body, and its properties as they came."""
    message = delivery.message
    return len(message.body) + (len(message.raw.octets) if message.raw is not None else 0)


def release(deliveries: list[Delivery]) -> None:
    """Give deliveries back; those whose channel is gone go back without a word."""
    for delivery in deliveries:
        with suppress(LeaseLost, StateError):
            delivery.settle(Settlement.RELEASE)
