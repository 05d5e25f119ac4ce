"""AMQP 0-10 types as they are read (specification section 2): the values of maps and lists.

:data:`DECODERS` maps the octet that introduces a value of a map or list to what reads it; ``encoders.py`` has the
table the other way round. Typed arrays and struct32 stay opaque octets, checked but not taken apart: nothing reads
into them. What is raised while reading is :class:`~gateway.errors.FrameSyntaxError`. The fields of declared structs
are in ``fields.py``.

This is work per value, and a frame may hold sixty thousand: nothing is raised and caught for a value that is merely
odd, and what has few values is made beforehand.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final, TypeAlias
from uuid import UUID

from gateway.amqp.values import Table, Timestamp, Typed, Value, typed
from gateway.errors import FrameSyntaxError
from gateway.limits import DEFAULT_LIMITS, Limits

READ_ERRORS = (IndexError, struct.error, UnicodeDecodeError, ValueError)
"""Errors that reading past an end or reading nonsense raises; each becomes a FrameSyntaxError at one boundary."""

_U8 = struct.Struct(">B")
_U16 = struct.Struct(">H")
_U32 = struct.Struct(">I")
_U64 = struct.Struct(">Q")
_DOUBLE = struct.Struct(">d")
_DECIMAL = struct.Struct(">Bi")
_DEC64 = struct.Struct(">Bq")
_int32_at = struct.Struct(">i").unpack_from

KEYS_MAX: Final = 1_024
"""How many keys are kept, each way: the same few are read and written again and again."""
KEY_LENGTH: Final = 64
"""How many octets a key may have to be kept."""
BROKEN_MAX: Final = 1_024
"""After so many strings of one map that are no UTF-16, the others are left as octets: each costs several microseconds
to find out."""
_KEYS: dict[bytes, tuple[str, int]] = {}
"""Length, octets and type code behind them -> key and type code."""


# ------------------------------------------------------------------------------------------- values of maps


class Reading:
    """What is left of the limits while one map is read."""

    __slots__ = ("broken", "depth", "elements", "entries")

    def __init__(self, limits: Limits) -> None:
        self.broken = 0
        """Strings so far that are no UTF-16."""
        self.depth = limits.table_depth
        self.elements = limits.frame_elements
        self.entries = limits.table_entries

    def enter(self, count: int, octets: int, least: int) -> None:
        """Begin a container of ``count`` values of at least ``least`` octets each in ``octets`` octets."""
        if count > self.entries or count * least > octets:
            raise FrameSyntaxError(f"{count} entries in a map, list or array of {octets} octets")
        self.elements -= count
        if self.elements < 0:
            raise FrameSyntaxError("too many values in one frame")
        self.depth -= 1
        if self.depth < 0:
            raise FrameSyntaxError("maps or lists nested too deep")


_escaped = re.compile("[\udc80-\udcff]").search
"""What octets that are no UTF-8 become. Thousands may not be, and to raise and catch would cost ten times as much."""


def _read_string(data: bytes, at: int, reading: Reading) -> tuple[Value, int]:
    end = at + 2 + (data[at] << 8 | data[at + 1])
    octets = data[at + 2 : end]
    text = str(octets, "utf-8", "surrogateescape")
    return text if text.isascii() or not _escaped(text) else Typed("string", octets), end


def _read_map(data: bytes, at: int, reading: Reading) -> tuple[Table, int]:
    size = _U32.unpack_from(data, at)[0]
    at += 4
    end = at + size
    if end > len(data):
        raise FrameSyntaxError(f"a map of {size} octets where {len(data) - at} are left")
    if size == 0:
        return {}, end
    count = _U32.unpack_from(data, at)[0]
    reading.enter(count, size - 4, 2)
    at += 4
    table: Table = {}
    known = _KEYS.get
    for _ in range(count):
        start = at
        at += data[at] + 2
        octets = data[start:at]
        key, code = known(octets) or _key(octets)
        if code == 0x95:
            start = at + 2
            at = start + (data[at] << 8 | data[at + 1])
            octets = data[start:at]
            text = str(octets, "utf-8", "surrogateescape")
            table[key] = text if text.isascii() or not _escaped(text) else Typed("string", octets)
        elif code == 0x21:
            (table[key],) = _int32_at(data, at)
            at += 4
        else:
            table[key], at = DECODERS[code](data, at, reading)
    if at != end:
        raise FrameSyntaxError(f"the entries of a map end {at - end:+d} octets from its end")
    if len(table) != count:  # a map has distinct keys, and nobody would see that a value is gone
        raise FrameSyntaxError(f"a map of {count} entries has but {len(table)} keys")
    reading.depth += 1
    return table, end


def _key(octets: bytes) -> tuple[str, int]:
    """Key and type code at the start of an entry. Octets that were cut short begin with another length than theirs."""
    size = len(octets) - 2
    if octets[0] != size:
        raise IndexError("a key runs past the end of the data")
    known = str(octets[1:-1], "utf-8", "surrogateescape"), octets[-1]
    if size <= KEY_LENGTH:
        if len(_KEYS) >= KEYS_MAX:
            _KEYS.clear()
        _KEYS[octets] = known
    return known


def _read_list(data: bytes, at: int, reading: Reading) -> tuple[list[Value], int]:
    size = _U32.unpack_from(data, at)[0]
    at += 4
    end = at + size
    if end > len(data):
        raise FrameSyntaxError(f"a list of {size} octets where {len(data) - at} are left")
    if size == 0:
        return [], end
    count = _U32.unpack_from(data, at)[0]
    reading.enter(count, size - 4, 1)
    at += 4
    items: list[Value] = []
    for _ in range(count):
        item, at = DECODERS[data[at]](data, at + 1, reading)
        items.append(item)
    if at != end:
        raise FrameSyntaxError(f"the entries of a list end {at - end:+d} octets from its end")
    reading.depth += 1
    return items, end


def _read_array(data: bytes, at: int, reading: Reading) -> tuple[Typed, int]:
    size = _U32.unpack_from(data, at)[0]
    at += 4
    end = at + size
    if end > len(data):
        raise FrameSyntaxError(f"an array of {size} octets where {len(data) - at} are left")
    if size:
        check_array(data, at, size, reading)
    return Typed("typed-array", data[at:end]), end


def check_array(data: bytes, at: int, size: int, reading: Reading) -> int:
    """The number of elements of an array, which is opaque otherwise."""
    code = data[at]
    if code not in DECODERS:
        raise FrameSyntaxError(f"an array of unknown type 0x{code:02x}")
    count: int = _U32.unpack_from(data, at + 1)[0]
    width = FIXED_WIDTHS.get(code)
    reading.enter(count, size - 5, 1 if width is None else width)
    if width is not None and width * count != size - 5:
        raise FrameSyntaxError(f"an array of {size} octets with {count} elements of {width} octets")
    reading.depth += 1
    return count


def _read_struct32(data: bytes, at: int, reading: Reading) -> tuple[Typed, int]:
    size = _U32.unpack_from(data, at)[0]
    at += 4
    if at + size > len(data):
        raise FrameSyntaxError(f"a struct of {size} octets where {len(data) - at} are left")
    return Typed("struct32", data[at : at + size]), at + size


def _read_decimal(data: bytes, at: int, reading: Reading) -> tuple[Decimal, int]:
    scale, mantissa = _DECIMAL.unpack_from(data, at)
    return Decimal(f"{mantissa}E-{scale}"), at + 5


def _read_dec64(data: bytes, at: int, reading: Reading) -> tuple[Typed, int]:
    scale, mantissa = _DEC64.unpack_from(data, at)
    return Typed("dec64", Decimal(f"{mantissa}E-{scale}")), at + 9


_Decoder: TypeAlias = Callable[[bytes, int, Reading], tuple[Any, int]]


def _octet(kind: str, value_of: Callable[[bytes], Value]) -> _Decoder:
    """A type of one octet: all its values are made beforehand."""
    values = tuple(Typed(kind, value_of(bytes((octet,)))) for octet in range(256))

    def read(data: bytes, at: int, reading: Reading) -> tuple[Value, int]:
        return values[data[at]], at + 1

    return read


def _scalar(kind: str, form: str) -> _Decoder:
    packed = struct.Struct(form)
    unpack_from, size = packed.unpack_from, packed.size

    def read(data: bytes, at: int, reading: Reading) -> tuple[Value, int]:
        return Typed(kind, unpack_from(data, at)[0]), at + size

    return read


def _wide(kind: str, form: str) -> _Decoder:
    """An integer that is plain where no narrower type would stand for it."""
    unpack_from = struct.Struct(form).unpack_from

    def read(data: bytes, at: int, reading: Reading) -> tuple[Value, int]:
        return typed(kind, unpack_from(data, at)[0]), at + 8

    return read


def _fixed(kind: str, width: int) -> _Decoder:
    def read(data: bytes, at: int, reading: Reading) -> tuple[Value, int]:
        return Typed(kind, data[at : at + width]), at + width

    return read


def _binary(kind: str, size: struct.Struct) -> _Decoder:
    size_at, size_octets = size.unpack_from, size.size

    def read(data: bytes, at: int, reading: Reading) -> tuple[Value, int]:
        start = at + size_octets
        end = start + size_at(data, at)[0]
        return Typed(kind, data[start:end]), end

    return read


def _latin(kind: str, size: struct.Struct) -> _Decoder:
    """Text of which any octets are some."""
    size_at, size_octets = size.unpack_from, size.size
    empty = Typed(kind, "")

    def read(data: bytes, at: int, reading: Reading) -> tuple[Value, int]:
        start = at + size_octets
        end = start + size_at(data, at)[0]
        return Typed(kind, str(data[start:end], "iso-8859-15")) if end > start else empty, end

    return read


def _utf16(kind: str, size: struct.Struct) -> _Decoder:
    """Text, or bytes that are no text, which encode to themselves."""
    size_at, size_octets = size.unpack_from, size.size
    empty = Typed(kind, "")

    def read(data: bytes, at: int, reading: Reading) -> tuple[Value, int]:
        start = at + size_octets
        end = start + size_at(data, at)[0]
        if end == start:
            return empty, end
        octets = data[start:end]
        if reading.broken < BROKEN_MAX:
            try:
                return Typed(kind, str(octets, "utf-16-be")), end
            except UnicodeDecodeError:
                reading.broken += 1
        return Typed(kind, octets), end

    return read


_EMPTY_STR8: Final = Typed("str8", "")


def _read_str8(data: bytes, at: int, reading: Reading) -> tuple[Typed, int]:
    end = at + 1 + data[at]
    if end == at + 1:
        return _EMPTY_STR8, end
    octets = data[at + 1 : end]
    text = str(octets, "utf-8", "surrogateescape")
    return Typed("str8", text if text.isascii() or not _escaped(text) else octets), end


def _read_octets(data: bytes, at: int, reading: Reading) -> tuple[bytes, int]:
    start = at + 4
    end = start + _U32.unpack_from(data, at)[0]
    return data[start:end], end


def _read_double(data: bytes, at: int, reading: Reading) -> tuple[float, int]:
    return _DOUBLE.unpack_from(data, at)[0], at + 8


def _read_utf32(data: bytes, at: int, reading: Reading) -> tuple[Typed, int]:
    (number,) = _U32.unpack_from(data, at)
    text = number < 0xD800 or 0xE000 <= number < 0x110000
    return Typed("char-utf32", chr(number) if text else data[at : at + 4]), at + 4


def _constant(value: Value) -> _Decoder:
    def read(data: bytes, at: int, reading: Reading) -> tuple[Value, int]:
        return value, at

    return read


def _read_int32(data: bytes, at: int, reading: Reading) -> tuple[int, int]:
    return _int32_at(data, at)[0], at + 4


def _read_timestamp(data: bytes, at: int, reading: Reading) -> tuple[Timestamp, int]:
    return Timestamp(_U64.unpack_from(data, at)[0]), at + 8


def _read_boolean(data: bytes, at: int, reading: Reading) -> tuple[bool, int]:
    return data[at] != 0, at + 1


def _read_uuid(data: bytes, at: int, reading: Reading) -> tuple[UUID, int]:
    return UUID(bytes=data[at : at + 16]), at + 16


DECODERS: dict[int, _Decoder] = {
    0x00: _octet("bin8", bytes),
    0x01: _octet("int8", lambda octet: int.from_bytes(octet, "big", signed=True)),
    0x02: _octet("uint8", lambda octet: octet[0]),
    0x04: _octet("char", lambda octet: octet.decode("iso-8859-15")),
    0x08: _read_boolean,
    0x10: _fixed("bin16", 2),
    0x11: _scalar("int16", ">h"),
    0x12: _scalar("uint16", ">H"),
    0x20: _fixed("bin32", 4),
    0x21: _read_int32,
    0x22: _scalar("uint32", ">I"),
    0x23: _scalar("float", ">f"),
    0x27: _read_utf32,
    0x30: _fixed("bin64", 8),
    0x31: _wide("int64", ">q"),
    0x32: _wide("uint64", ">Q"),
    0x33: _read_double,
    0x38: _read_timestamp,
    0x40: _fixed("bin128", 16),
    0x48: _read_uuid,
    0x50: _fixed("bin256", 32),
    0x60: _fixed("bin512", 64),
    0x70: _fixed("bin1024", 128),
    0x80: _binary("vbin8", _U8),
    0x84: _latin("str8-latin", _U8),
    0x85: _read_str8,
    0x86: _utf16("str8-utf16", _U8),
    0x90: _binary("vbin16", _U16),
    0x94: _latin("str16-latin", _U16),
    0x95: _read_string,
    0x96: _utf16("str16-utf16", _U16),
    0xA0: _read_octets,
    0xA8: _read_map,
    0xA9: _read_list,
    0xAA: _read_array,
    0xAB: _read_struct32,
    0xC0: _fixed("bin40", 5),
    0xC8: _read_decimal,
    0xD0: _fixed("bin72", 9),
    0xD8: _read_dec64,
    0xF0: _constant(None),
    0xF1: _constant(Typed("bit", True)),
}
"""Type code -> reader of the value behind it (section 2.4)."""

FIXED_WIDTHS: dict[int, int] = {
    code: {0x0: 1, 0x1: 2, 0x2: 4, 0x3: 8, 0x4: 16, 0x5: 32, 0x6: 64, 0x7: 128, 0xC: 5, 0xD: 9, 0xF: 0}[code >> 4]
    for code in DECODERS
    if not 0x80 <= code < 0xC0
}
"""Type code -> octets, for the types whose high digit fixes their width."""


def read_map(data: bytes, at: int, limits: Limits = DEFAULT_LIMITS) -> tuple[Table, int]:
    """The map at ``at`` and the offset behind it. Raises :class:`~gateway.errors.FrameSyntaxError`."""
    try:
        return _read_map(data, at, Reading(limits))
    except KeyError as error:
        raise FrameSyntaxError(f"unknown type code 0x{error.args[0]:02x} in a map") from None
    except READ_ERRORS as error:
        raise FrameSyntaxError(f"a broken map: {error}") from None
