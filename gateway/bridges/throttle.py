"""A rate limit: two buckets of tokens, one for messages and one for octets.

A bucket holds at most what flows in within :data:`BURST` seconds. A message goes as soon as neither bucket is empty
and takes what it weighs, so that one larger than a whole bucket goes too, and is paid for afterwards.
"""

from __future__ import annotations

from typing import Final

BURST: Final = 0.1
"""How much may go at once after a rest, in seconds of the rate; one message always may."""


class Bucket:
    """Tokens that flow in at a rate."""

    __slots__ = ("_at", "_most", "_tokens", "rate")

    def __init__(self, rate: float, now: float, least: float) -> None:
        """``least``: what it holds at any rate."""
        self.rate = rate
        self._most = max(rate * BURST, least)
        self._tokens = self._most
        self._at = now

    def ready(self, now: float) -> float:
        """When something may be taken: ``now``, or later."""
        tokens = min(self._tokens + (now - self._at) * self.rate, self._most)
        self._tokens, self._at = tokens, now
        return now if tokens > 0 else now + max(-tokens, 1e-9) / self.rate

    def take(self, amount: float) -> None:
        """Take, without regard to the balance."""
        self._tokens -= amount


class Throttle:
    """A limit on messages and octets a second; 0 is no limit."""

    __slots__ = ("_messages", "_octets", "limited")

    def __init__(self, messages_per_second: float, octets_per_second: float, now: float) -> None:
        self._messages = Bucket(messages_per_second, now, 1.0) if messages_per_second else None
        self._octets = Bucket(octets_per_second, now, 1.0) if octets_per_second else None
        self.limited = bool(messages_per_second or octets_per_second)
        """There is a limit at all."""

    def ready(self, now: float) -> float:
        """When the next message may go: ``now``, or later."""
        return max([now, *(bucket.ready(now) for bucket in (self._messages, self._octets) if bucket is not None)])

    def take(self, octets: int) -> None:
        """A message of so many octets goes."""
        if self._messages is not None:
            self._messages.take(1.0)
        if self._octets is not None:
            self._octets.take(float(octets))
