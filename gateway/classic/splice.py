"""The reserved header, read and written in content properties that stay undecoded otherwise.

The headers of a message are walked, not decoded: from each key to its tag, and over its value by the tag's width or the
length in front. Only a table that ends exactly where its length says is written to, for one that runs over would
swallow what is put behind it. Odd input gives None, and is left to the decoder, which has the error text.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Final

from gateway.fidelity import RESERVED_OCTETS
from gateway.limits import DEFAULT_LIMITS

_length_at = struct.Struct(">I").unpack_from
_length = struct.Struct(">I").pack

_CONTENT_TYPE, _CONTENT_ENCODING, _HEADERS = 0x80, 0x40, 0x20
"""Of the first octet of the flags: the headers, and what is in front of them."""
_SIZED: Final = 255
"""Stands for a width that is written in front of the value."""
_STRING, _TABLE = 83, 70
_WIDTHS: Final[Mapping[int, int]] = {
    ord(tag): width
    for tags, width in (("V", 0), ("tbBk", 1), ("su", 2), ("Iif", 4), ("D", 5), ("lLdT", 8), ("SxAFcC", _SIZED))
    for tag in tags
}
"""Tag -> octets of a value, over all dialects."""
_KEY: Final = bytes((len(RESERVED_OCTETS),)) + RESERVED_OCTETS
_HEAD: Final = _KEY + b"F"
_EMPTY: Final = b"\x05emptyS\x00\x00\x00\x011"
_ODD: Final = (IndexError, struct.error, KeyError, UnicodeError)
"""What octets raise that are not what they should be."""


_LENGTHS: Final = tuple(_length(size) for size in range(256))
_HEADS: dict[str, bytes] = {}
"""Name of an entry -> its length, its octets and the tag of a string."""
_HEADS_MAX: Final = 64


def _entry_head(name: str) -> bytes:
    if len(_HEADS) >= _HEADS_MAX:
        _HEADS.clear()
    octets = name.encode()
    head = _HEADS[name] = bytes((len(octets),)) + octets + b"S"
    return head


def _entries(entries: Mapping[str, str]) -> bytes:
    parts: list[bytes] = []
    add = parts.append
    heads = _HEADS
    for name, value in entries.items():
        add(heads.get(name) or _entry_head(name))
        octets = value.encode()
        size = len(octets)
        add(_LENGTHS[size] if size < 256 else _length(size))
        add(octets)
    return b"".join(parts)


def _headers_at(octets: bytes) -> int:
    """Where the length of the headers is, or would be."""
    flags = octets[0]
    at = 2
    if flags & _CONTENT_TYPE:
        at += 1 + octets[at]
    if flags & _CONTENT_ENCODING:
        at += 1 + octets[at]
    return at


def _walk(octets: bytes, at: int, stop: int, key: bytes) -> tuple[int, int, int]:
    """How many entries a table has, and where the one with ``key`` begins and ends (-1 for none). Raises IndexError
    for one that does not end at ``stop``, and for one that has the key twice."""
    count = 0
    found = end = -1
    first, size = key[0], len(key)
    while at < stop:
        count += 1
        start = at
        at += 1 + octets[at]
        tag = octets[at]
        if tag == _STRING:
            at += 5 + _length_at(octets, at + 1)[0]
        else:
            width = _WIDTHS[tag]
            at += 1 + width if width != _SIZED else 5 + _length_at(octets, at + 1)[0]
        if octets[start] == first and octets[start : start + size] == key:
            if found >= 0:
                raise IndexError("twice")
            found, end = start, at
    if at != stop:
        raise IndexError("a table that does not end where it should")
    return count, found, end


def _strings(octets: bytes, at: int, stop: int) -> list[tuple[bytes, int, int, int]]:
    """The entries of a table: key, and where the entry begins, its tag is, and it ends."""
    found = []
    while at < stop:
        start = at
        at += 1 + octets[at]
        tag = at
        width = _WIDTHS[octets[tag]]
        at += 1 + width if width != _SIZED else 5 + _length_at(octets, at + 1)[0]
        found.append((octets[start + 1 : tag], start, tag, at))
    if at != stop:
        raise IndexError("a table that does not end where it should")
    return found


class ClassicSeam:
    """See :class:`gateway.amqp.message.Seam`; one serves all dialects, whose tags differ in number only."""

    __slots__ = ()

    def read(self, octets: bytes) -> Mapping[str, str] | None:
        """The strings in the reserved header."""
        try:
            if not octets[0] & _HEADERS:
                return {}
            at = _headers_at(octets)
            stop = at + 4 + _length_at(octets, at)[0]
            _, found, end = _walk(octets, at + 4, stop, _KEY)
            if stop > len(octets):
                return None
            if found < 0:
                return {}
            at = found + len(_HEAD)
            if octets[at - 1] != _TABLE:
                return {}
            return {
                str(key, "utf-8"): str(octets[tag + 5 : after], "utf-8")
                for key, _, tag, after in _strings(octets, at + 4, end)
                if octets[tag] == _STRING
            }
        except _ODD:
            return None

    def splice(self, octets: bytes, entries: Mapping[str, str]) -> bytes | None:
        """The octets with ``entries`` in the reserved header."""
        try:
            flags = octets[0]
            at = _headers_at(octets)
            added = _entries(entries)
            if not flags & _HEADERS:
                if at > len(octets):
                    return None
                table = _HEAD + _length(len(added)) + added
                head = bytes((flags | _HEADERS,)) + octets[1:at]
                return b"%b%b%b%b" % (head, _length(len(table)), table, octets[at:])
            start = at + 4
            stop = start + _length_at(octets, at)[0]
            count, found, end = _walk(octets, start, stop, _KEY)
            if stop > len(octets) or count >= DEFAULT_LIMITS.table_entries:
                return None
            if found < 0:
                kept = octets[start:stop]
                if start == stop:
                    added += _EMPTY
            else:
                inside = found + len(_HEAD)
                if octets[inside - 1] != _TABLE:
                    return None
                inside_entries = _strings(octets, inside + 4, end)
                others = []
                for key, begin, tag, after in inside_entries:
                    if str(key, "utf-8") not in entries:
                        others.append(octets[begin:after])
                    elif octets[tag] != _STRING:
                        return None  # whether it is what its tag says, only the decoder finds out
                added = b"".join((*others, added))
                kept = octets[start:found] + octets[end:stop]
            size = len(kept) + len(_HEAD) + 4 + len(added)
            return b"%b%b%b%b%b%b%b" % (
                octets[:at], _length(size), kept, _HEAD, _length(len(added)), added, octets[stop:],
            )  # fmt: skip
        except _ODD:
            return None


SEAM: Final = ClassicSeam()
"""The one there is."""
