"""Message ids: UUIDv7 (RFC 9562 section 5.7), 16 octets whose order is the order of their making.

The first 48 bits are milliseconds since 1970. That makes an id its own date: the history tables are partitioned
by ranges of ids, a day each, and the newest messages are the greatest ids.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from struct import Struct
from uuid import UUID

from gateway.runtime.clock import wall_time
from gateway.runtime.ids import random_bytes

DAY_MS = 86_400_000
_VERSION = 0x7 << 12
_VARIANT = 0b10 << 62
_LOW = (1 << 62) - 1
_COUNTER_MAX = (1 << 12) - 1
_pack = Struct(">QQ").pack
_RANDOM = Struct(">128Q")
"""Random numbers that are asked of the system at once."""


class MessageIds:
    """Makes ids that only ever increase, also within a millisecond and when the clock steps back.

    The 12 bits after the time are a counter that starts again with each millisecond (RFC 9562 section 6.2,
    method 1); when it runs over, the next millisecond is borrowed. The other 62 bits are random.
    """

    def __init__(
        self, clock: Callable[[], float] = wall_time, random_octets: Callable[[int], bytes] = random_bytes
    ) -> None:
        self._clock = clock
        self._random = random_octets
        self._lock = threading.Lock()
        self._millisecond = 0
        self._counter = 0
        self._numbers: Iterator[int] = iter(())

    def __call__(self) -> bytes:
        """A new id."""
        with self._lock:
            low = next(self._numbers, None)
            if low is None:
                self._numbers = iter(_RANDOM.unpack(self._random(_RANDOM.size)))
                low = next(self._numbers)
            now = int(self._clock() * 1000)
            if now > self._millisecond:
                self._millisecond, self._counter = now, 0
            elif self._counter < _COUNTER_MAX:
                self._counter += 1
            else:
                self._millisecond, self._counter = self._millisecond + 1, 0
            high = self._millisecond << 16 | _VERSION | self._counter
        return _pack(high, _VARIANT | low & _LOW)


def id_text(message_id: bytes) -> str:
    """An id as the API writes it."""
    text = message_id.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def parse_id(text: str) -> bytes:
    """The id that the API wrote.

    Raises:
        ValueError: the text is no UUID.
    """
    if len(text) == 36 and text[8] == text[13] == text[18] == text[23] == "-":  # as we write it
        digits = text.replace("-", "")
        if len(digits) == 32 and digits.isalnum():
            return bytes.fromhex(digits)
    return UUID(text).bytes


def first_id(milliseconds: int) -> bytes:
    """The lower bound of all ids made at or after this time (milliseconds since 1970)."""
    return milliseconds.to_bytes(6, "big") + bytes(10)


def time_of(message_id: bytes) -> int | None:
    """When a UUIDv7 was made, in milliseconds since 1970 by the clock of its maker; None: the UUID is another one."""
    is_v7 = message_id[6] >> 4 == 7 and message_id[8] >> 6 == 0b10
    return int.from_bytes(message_id[:6], "big") if is_v7 else None
