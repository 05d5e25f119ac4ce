"""Where the structs of a header segment are."""

from __future__ import annotations

import struct
from typing import Final, TypeAlias

from gateway.errors import FrameSyntaxError
from gateway.v010.structs import DELIVERY_PROPERTIES, MESSAGE_PROPERTIES

STRUCT: Final = struct.Struct(">IHH")
"""Size (of what follows it), code, presence bits."""
Spans: TypeAlias = tuple[int, int, int, int]
"""Where the delivery-properties begin (at their size) and end, and the message-properties; -1, -1 for none."""


def spans(header: bytes) -> Spans:
    """Where the structs are. Raises :class:`~gateway.errors.FrameSyntaxError` where they do not fill the header."""
    length = len(header)
    if length >= 16:  # nearly always it is the two, in this order
        size, kind, _ = STRUCT.unpack_from(header)
        stop = size + 4
        if kind == DELIVERY_PROPERTIES and 8 <= stop <= length - 8:
            size, kind, _ = STRUCT.unpack_from(header, stop)
            if kind == MESSAGE_PROPERTIES and size == length - stop - 4:
                return 0, stop, stop, length
    found = {DELIVERY_PROPERTIES: (-1, -1), MESSAGE_PROPERTIES: (-1, -1)}
    for kind, at, stop in each_struct(header):
        if kind in found:
            found[kind] = (at, stop)
    return *found[DELIVERY_PROPERTIES], *found[MESSAGE_PROPERTIES]


def each_struct(header: bytes) -> list[tuple[int, int, int]]:
    """Code, begin (at its size) and end of each struct. Raises :class:`~gateway.errors.FrameSyntaxError` where they
    do not fill the header."""
    length = len(header)
    found = []
    at = 0
    while at < length:
        if length - at < 8:
            raise FrameSyntaxError("a header segment that ends within a struct")
        size, kind, _ = STRUCT.unpack_from(header, at)
        stop = at + 4 + size
        if size < 4 or stop > length:
            raise FrameSyntaxError(f"a struct of {size} octets in a header where {length - at - 4} are left")
        found.append((kind, at, stop))
        at = stop
    return found
