"""Where things are among the octets of a message's properties: the arguments of message.transfer that belong to it, in
their order, without the names and the body."""

from __future__ import annotations

import struct
from typing import Final

from gateway.wire.types import overrun

FIXED: Final = struct.Struct(">QBQBQ")
"""ttl, priority, timestamp, delivery-mode, expiration."""
LENGTH: Final = struct.Struct(">I")


def skip(data: bytes, at: int, count: int) -> int:
    """Behind so many short strings."""
    for _ in range(count):
        at += 1 + data[at]
    return at


def string(data: bytes, at: int) -> tuple[str, int]:
    """A short string, and where it ends."""
    start = at + 1
    at = start + data[at]
    return str(data[start:at], "utf-8", "surrogateescape"), at


def sized(data: bytes, at: int, end: int) -> int:
    """Behind a length of four octets and what it is of."""
    (length,) = LENGTH.unpack_from(data, at)
    if length > end - at - 4:
        raise overrun(length, end - at - 4)
    return at + 4 + int(length)


def headers_at(octets: bytes) -> int:
    """Where the application-headers begin, at their length."""
    return sized(octets, skip(octets, skip(octets, FIXED.size, 5) + 8, 4), len(octets))
