"""Message ids: UUIDv7 (RFC 9562 section 5.7), 16 octets whose order is the order of their making.

The first 48 bits are milliseconds since 1970. That makes an id its own date: the history tables are partitioned
by ranges of ids, a day each, and the newest messages are the greatest ids.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from time import time
from uuid import UUID

DAY_MS = 86_400_000
_VERSION = 0x7 << 76
_VARIANT = 0b10 << 62
_LOW = (1 << 62) - 1
_COUNTER_MAX = (1 << 12) - 1


class MessageIds:
    """Makes ids that only ever increase, also within a millisecond and when the clock steps back.

    The 12 bits after the time are a counter that starts again with each millisecond (RFC 9562 section 6.2,
    method 1); when it runs over, the next millisecond is borrowed. The other 62 bits are random.
    """

    def __init__(self, clock: Callable[[], float] = time, random_octets: Callable[[int], bytes] = os.urandom) -> None:
        self._clock = clock
        self._random = random_octets
        self._lock = threading.Lock()
        self._millisecond = 0
        self._counter = 0

    def __call__(self) -> bytes:
        """A new id."""
        low = int.from_bytes(self._random(8), "big") & _LOW
        with self._lock:
            now = int(self._clock() * 1000)
            if now > self._millisecond:
                self._millisecond, self._counter = now, 0
            elif self._counter < _COUNTER_MAX:
                self._counter += 1
            else:
                self._millisecond, self._counter = self._millisecond + 1, 0
            high = self._millisecond << 80 | _VERSION | self._counter << 64
        return (high | _VARIANT | low).to_bytes(16, "big")


def id_text(message_id: bytes) -> str:
    """An id as the API writes it."""
    return str(UUID(bytes=message_id))


def parse_id(text: str) -> bytes:
    """The id that the API wrote.

    Raises:
        ValueError: the text is no UUID.
    """
    return UUID(text).bytes


def first_id(milliseconds: int) -> bytes:
    """The lower bound of all ids made at or after this time (milliseconds since 1970)."""
    return milliseconds.to_bytes(6, "big") + bytes(10)
