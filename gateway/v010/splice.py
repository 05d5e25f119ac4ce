"""The reserved header, read and written in a header segment that stays undecoded otherwise.

The application headers are the last field of the message-properties. They are walked, not decoded: from each key to its
type code, and over its value by the width or the size that the code implies. Only a map that holds as many entries as
it says, and ends with its struct, is written to. Odd input gives None, and is left to the decoder, which has the error
text.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Final

from gateway.errors import FrameSyntaxError
from gateway.fidelity import RESERVED_OCTETS
from gateway.limits import DEFAULT_LIMITS
from gateway.v010.codec import DECODERS, FIXED_WIDTHS
from gateway.v010.spans import spans

_sizes_at = struct.Struct(">II").unpack_from
_U16 = struct.Struct(">H").pack
_U32 = struct.Struct(">I").pack
_SIZES = struct.Struct(">II").pack

_STRING, _MAP = 0x95, 0xA8
_SIZED: Final[Mapping[int, int]] = {code: 1 << (code >> 4 & 3) for code in DECODERS if 0x80 <= code < 0xB0}
"""Type code -> octets of the size in front of its values, for those that have one."""
_KEY: Final = bytes((len(RESERVED_OCTETS),)) + RESERVED_OCTETS
_HEAD: Final = _KEY + bytes((_MAP,))
_EMPTY: Final = b"\x05empty\x95\x00\x011"
_ODD: Final = (IndexError, struct.error, KeyError, UnicodeError, FrameSyntaxError)
"""What octets raise that are not what they should be."""


_LENGTHS: Final = tuple(_U16(size) for size in range(256))
_HEADS: dict[str, bytes] = {}
"""Name of an entry -> its length, its octets and the type code of a string."""
_HEADS_MAX: Final = 64


def _entry_head(name: str) -> bytes:
    if len(_HEADS) >= _HEADS_MAX:
        _HEADS.clear()
    octets = name.encode()
    head = _HEADS[name] = bytes((len(octets),)) + octets + bytes((_STRING,))
    return head


def _entries(entries: Mapping[str, str]) -> bytes:
    parts: list[bytes] = []
    add = parts.append
    heads = _HEADS
    for name, value in entries.items():
        add(heads.get(name) or _entry_head(name))
        octets = value.encode()
        size = len(octets)
        add(_LENGTHS[size] if size < 256 else _U16(size))
        add(octets)
    return b"".join(parts)


def _walk(octets: bytes, at: int, stop: int, key: bytes) -> tuple[int, int, int]:
    """How many entries the map has whose size is at ``at`` and that ends at ``stop``, and where the one with ``key``
    begins and ends (-1 for none). Raises IndexError for what is no such map, and for one that has the key twice."""
    size, count = _sizes_at(octets, at)
    if at + 4 + size != stop:
        raise IndexError("a map that does not end where it should")
    at += 8
    number = 0
    found = end = -1
    first, length = key[0], len(key)
    widths = FIXED_WIDTHS
    while at < stop:
        number += 1
        start = at
        at += 1 + octets[at]
        code = octets[at]
        if code == _STRING:
            at += 3 + (octets[at + 1] << 8 | octets[at + 2])
        elif (width := widths.get(code)) is not None:
            at += 1 + width
        else:
            at = _behind(octets, at, code)
        if octets[start] == first and octets[start : start + length] == key:
            if found >= 0:
                raise IndexError("twice")
            found, end = start, at
    if at != stop or number != count:
        raise IndexError("a map that does not hold what it says")
    return count, found, end


def _behind(octets: bytes, at: int, code: int) -> int:
    """Where the value ends whose type code, one with a size behind it, is at ``at``."""
    size = _SIZED[code]
    return at + 1 + size + int.from_bytes(octets[at + 1 : at + 1 + size], "big")


def _strings(octets: bytes, at: int, stop: int) -> list[tuple[bytes, int, int, int]]:
    """The entries of the map whose size is at ``at``: key, and where the entry begins, its type code is, and it
    ends."""
    size, count = _sizes_at(octets, at)
    end = at + 4 + size
    at += 8
    found = []
    while at < stop:
        start = at
        at += 1 + octets[at]
        code = at
        if octets[at] == _STRING:
            at += 3 + (octets[at + 1] << 8 | octets[at + 2])
        elif (width := FIXED_WIDTHS.get(octets[at])) is not None:
            at += 1 + width
        else:
            at = _behind(octets, at, octets[at])
        found.append((octets[start + 1 : code], start, code, at))
    if at != stop or end != stop or len(found) != count:
        raise IndexError("a map that does not hold what it says")
    return found


def _map_at(octets: bytes, begin: int) -> int:
    """Where the application headers are, or would be, in the message-properties at ``begin``."""
    flags = octets[begin + 6]
    at = begin + 8
    if flags & 0x01:  # content-length
        at += 8
    if flags & 0x02:  # message-id
        at += 16
    if flags & 0x04:  # correlation-id
        at += 2 + (octets[at] << 8 | octets[at + 1])
    if flags & 0x08:  # reply-to
        at += 2 + (octets[at] << 8 | octets[at + 1])
    if flags & 0x10:  # content-type
        at += 1 + octets[at]
    if flags & 0x20:  # content-encoding
        at += 1 + octets[at]
    if flags & 0x40:  # user-id
        at += 2 + (octets[at] << 8 | octets[at + 1])
    if flags & 0x80:  # app-id
        at += 2 + (octets[at] << 8 | octets[at + 1])
    return at


class NativeSeam:
    """See :class:`gateway.amqp.message.Seam`."""

    __slots__ = ()

    def read(self, octets: bytes) -> Mapping[str, str] | None:
        """The strings in the reserved header."""
        try:
            _, _, begin, stop = spans(octets)
            if begin < 0 or not octets[begin + 7] & 0x01:
                return {}
            _, found, end = _walk(octets, _map_at(octets, begin), stop, _KEY)
            if found < 0 or octets[found + len(_KEY)] != _MAP:
                return {}
            return {
                str(name, "utf-8"): str(octets[at + 3 : after], "utf-8")
                for name, _, at, after in _strings(octets, found + len(_HEAD), end)
                if octets[at] == _STRING
            }
        except _ODD:
            return None

    def splice(self, octets: bytes, entries: Mapping[str, str]) -> bytes | None:
        """The octets with ``entries`` in the reserved header."""
        try:
            _, _, begin, stop = spans(octets)
            if begin < 0 or octets[begin + 7] > 0x01:
                return None
            at = _map_at(octets, begin)
            added = _entries(entries)
            names = len(entries)
            count = 0
            kept = b""
            if not octets[begin + 7]:
                if at != stop:
                    return None
            else:
                count, found, end = _walk(octets, at, stop, _KEY)
                if count >= DEFAULT_LIMITS.table_entries:
                    return None
                if found >= 0:
                    if octets[found + len(_KEY)] != _MAP:
                        return None
                    count -= 1
                    kept = octets[at + 8 : found] + octets[end:stop]
                    inside = _strings(octets, found + len(_HEAD), end)
                    others = [octets[b:a] for name, b, _, a in inside if str(name, "utf-8") not in entries]
                    added = b"".join((*others, added))
                    names += len(others)
                elif count:
                    kept = octets[at + 8 : stop]
                else:
                    added += _EMPTY
                    names += 1
            added = _HEAD + _SIZES(len(added) + 4, names) + added
            size = 4 + len(kept) + len(added)
            return b"%b%b%b\x01%b%b%b%b%b" % (
                octets[:begin], _U32(at + size - begin), octets[begin + 4 : begin + 7], octets[begin + 8 : at],
                _SIZES(size, count + 1), kept, added, octets[stop:],
            )  # fmt: skip
        except _ODD:
            return None


SEAM: Final = NativeSeam()
"""The one there is."""
