"""AMQP 0-10 types on the wire (specification section 2): the values of maps and lists.

Two tables hold everything. :data:`DECODERS` maps the octet that introduces a value of a map or list to what
reads it; :data:`ENCODERS` maps the neutral type names of :mod:`gateway.values` to what writes it, that octet
included. Typed arrays and struct32 stay opaque octets, checked but not taken apart: nothing reads into them.
What is raised while reading is :class:`~gateway.errors.FrameSyntaxError`, while writing
:class:`~gateway.errors.EncodeError`. The fields of declared structs are in ``fields.py``.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from decimal import Decimal
from typing import Any, TypeAlias
from uuid import UUID

from gateway.errors import EncodeError, FrameSyntaxError
from gateway.limits import DEFAULT_LIMITS, Limits
from gateway.values import INT32_MAX, INT32_MIN, Table, Timestamp, Typed, Value, type_of, typed

READ_ERRORS = (IndexError, struct.error, UnicodeDecodeError, ValueError)
"""What reading past an end or reading nonsense raises by itself; each becomes a FrameSyntaxError at one boundary."""

_U16 = struct.Struct(">H")
_U32 = struct.Struct(">I")
_U64 = struct.Struct(">Q")
_I32 = struct.Struct(">i")
_SIZE_COUNT = struct.Struct(">II")


# ------------------------------------------------------------------------------------------- values of maps


class Reading:
    """What is left of the limits while one map is read."""

    __slots__ = ("depth", "elements", "entries")

    def __init__(self, limits: Limits) -> None:
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


def _read_string(data: bytes, at: int, reading: Reading) -> tuple[Value, int]:
    end = at + 2 + (data[at] << 8 | data[at + 1])
    octets = data[at + 2 : end]
    try:
        return str(octets, "utf-8"), end
    except UnicodeDecodeError:
        return Typed("string", octets), end


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
    for _ in range(count):
        stop = at + 1 + data[at]
        key = str(data[at + 1 : stop], "utf-8", "surrogateescape")
        code = data[stop]
        if code == 0x95:
            at = stop + 3 + (data[stop + 1] << 8 | data[stop + 2])
            octets = data[stop + 3 : at]
            try:
                table[key] = str(octets, "utf-8")
            except UnicodeDecodeError:
                table[key] = Typed("string", octets)
        else:
            table[key], at = DECODERS[code](data, stop + 1, reading)
    if at != end:
        raise FrameSyntaxError(f"the entries of a map end {at - end:+d} octets from its end")
    reading.depth += 1
    return table, end


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
    return _decimal(data[at], int.from_bytes(data[at + 1 : at + 5], "big", signed=True)), at + 5


def _read_dec64(data: bytes, at: int, reading: Reading) -> tuple[Typed, int]:
    return Typed("dec64", _decimal(data[at], int.from_bytes(data[at + 1 : at + 9], "big", signed=True))), at + 9


def _decimal(scale: int, mantissa: int) -> Decimal:
    return Decimal((mantissa < 0, tuple(map(int, str(abs(mantissa)))), -scale))


_Decoder: TypeAlias = Callable[[bytes, int, Reading], tuple[Any, int]]


def _scalar(kind: str, form: str) -> _Decoder:
    packed = struct.Struct(form)

    def read(data: bytes, at: int, reading: Reading) -> tuple[Value, int]:
        return typed(kind, packed.unpack_from(data, at)[0]), at + packed.size

    return read


def _fixed(kind: str, width: int) -> _Decoder:
    def read(data: bytes, at: int, reading: Reading) -> tuple[Value, int]:
        return Typed(kind, data[at : at + width]), at + width

    return read


def _variable(kind: str, size_octets: int, encoding: str | None = None) -> _Decoder:
    def read(data: bytes, at: int, reading: Reading) -> tuple[Value, int]:
        start = at + size_octets
        end = start + int.from_bytes(data[at:start], "big")
        octets = data[start:end]
        return typed(kind, _decoded(octets, encoding) if encoding else octets), end

    return read


def _decoded(octets: bytes, encoding: str) -> str | bytes:
    """Text where encoding it again gives the same octets, else the octets."""
    try:
        text = str(octets, encoding)
        return text if text.encode(encoding) == octets else octets
    except UnicodeError:
        return octets


def _character(kind: str, width: int, encoding: str) -> _Decoder:
    def read(data: bytes, at: int, reading: Reading) -> tuple[Value, int]:
        return Typed(kind, _decoded(data[at : at + width], encoding)), at + width

    return read


def _constant(value: Value) -> _Decoder:
    def read(data: bytes, at: int, reading: Reading) -> tuple[Value, int]:
        return value, at

    return read


def _read_int32(data: bytes, at: int, reading: Reading) -> tuple[int, int]:
    return _I32.unpack_from(data, at)[0], at + 4


def _read_timestamp(data: bytes, at: int, reading: Reading) -> tuple[Timestamp, int]:
    return Timestamp(_U64.unpack_from(data, at)[0]), at + 8


def _read_boolean(data: bytes, at: int, reading: Reading) -> tuple[bool, int]:
    return data[at] != 0, at + 1


def _read_uuid(data: bytes, at: int, reading: Reading) -> tuple[UUID, int]:
    return UUID(bytes=data[at : at + 16]), at + 16


DECODERS: dict[int, _Decoder] = {
    0x00: _fixed("bin8", 1),
    0x01: _scalar("int8", ">b"),
    0x02: _scalar("uint8", ">B"),
    0x04: _character("char", 1, "iso-8859-15"),
    0x08: _read_boolean,
    0x10: _fixed("bin16", 2),
    0x11: _scalar("int16", ">h"),
    0x12: _scalar("uint16", ">H"),
    0x20: _fixed("bin32", 4),
    0x21: _read_int32,
    0x22: _scalar("uint32", ">I"),
    0x23: _scalar("float", ">f"),
    0x27: _character("char-utf32", 4, "utf-32-be"),
    0x30: _fixed("bin64", 8),
    0x31: _scalar("int64", ">q"),
    0x32: _scalar("uint64", ">Q"),
    0x33: _scalar("double", ">d"),
    0x38: _read_timestamp,
    0x40: _fixed("bin128", 16),
    0x48: _read_uuid,
    0x50: _fixed("bin256", 32),
    0x60: _fixed("bin512", 64),
    0x70: _fixed("bin1024", 128),
    0x80: _variable("vbin8", 1),
    0x84: _variable("str8-latin", 1, "iso-8859-15"),
    0x85: _variable("str8", 1, "utf-8"),
    0x86: _variable("str8-utf16", 1, "utf-16-be"),
    0x90: _variable("vbin16", 2),
    0x94: _variable("str16-latin", 2, "iso-8859-15"),
    0x95: _read_string,
    0x96: _variable("str16-utf16", 2, "utf-16-be"),
    0xA0: _variable("bytes", 4),
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


_Encoder: TypeAlias = Callable[[Value, int], bytes]


def write_map(table: Table, depth: int = DEFAULT_LIMITS.table_depth) -> bytes:
    """A map with its size. Raises :class:`~gateway.errors.EncodeError`."""
    if depth <= 0:
        raise EncodeError("headers nested deeper than the limit table_depth")
    parts: list[bytes] = []
    for key, value in table.items():
        try:
            name = key.encode("utf-8", "surrogateescape")
        except (UnicodeEncodeError, AttributeError) as error:
            raise EncodeError(f"the key {key!r:.80}: {error}") from None
        if len(name) > 255:
            raise EncodeError(f"the key {key!r:.80} has {len(name)} octets, over the limit of 255")
        kind = type(value)
        if kind is str and len(value) < 16384:
            try:
                text = value.encode()
            except UnicodeEncodeError as error:
                raise EncodeError(f"the value of {key!r:.80}: {error}") from None
            parts.append(b"%c%b\x95%b%b" % (len(name), name, _U16.pack(len(text)), text))
        elif kind is int and INT32_MIN <= value <= INT32_MAX:
            parts.append(b"%c%b\x21%b" % (len(name), name, _I32.pack(value)))
        else:
            parts.append(b"%c%b%b" % (len(name), name, _write_value(key, value, depth)))
    body = b"".join(parts)
    return _SIZE_COUNT.pack(len(body) + 4, len(table)) + body


def _write_value(key: object, value: Value, depth: int) -> bytes:
    try:
        kind = type_of(value)
        encoder = ENCODERS.get(kind)
        if encoder is None:
            raise EncodeError(f"the value of {key!r:.80}: 0-10 has no type {kind}")
        return encoder(value.value if isinstance(value, Typed) else value, depth)
    except (struct.error, UnicodeEncodeError, OverflowError, TypeError, ValueError) as error:
        raise EncodeError(f"the value of {key!r:.80} does not fit: {value!r:.80}: {error}") from None


def _write_list(value: Value, depth: int) -> bytes:
    if depth <= 1:
        raise EncodeError("headers nested deeper than the limit table_depth")
    body = b"".join([_write_value(index, item, depth - 1) for index, item in enumerate(value)])
    return b"\xa9" + _SIZE_COUNT.pack(len(body) + 4, len(value)) + body


def _write_decimal(value: Decimal, code: bytes, form: str) -> bytes:
    sign, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int):
        raise ValueError("not a number")
    if exponent > 0 and len(digits) + exponent > 19:
        raise ValueError("too large for a decimal")
    mantissa = int("".join(map(str, digits))) * 10 ** max(exponent, 0)
    return code + struct.pack(form, max(-exponent, 0), -mantissa if sign else mantissa)


def _packed(code: int, form: str) -> _Encoder:
    pack = struct.Struct(">B" + form).pack
    return lambda value, depth: pack(code, value)


def _as_octets(code: int, width: int) -> _Encoder:
    def write(value: Value, depth: int) -> bytes:
        if len(value) != width:
            raise ValueError(f"{len(value)} octets, not {width}")
        return bytes((code,)) + bytes(value)

    return write


def _sized(code: int, size_octets: int, encoding: str | None = None) -> _Encoder:
    def write(value: Value, depth: int) -> bytes:
        octets = value.encode(encoding) if encoding and isinstance(value, str) else bytes(value)
        return bytes((code,)) + len(octets).to_bytes(size_octets, "big") + octets

    return write


def _char(code: int, width: int, encoding: str) -> _Encoder:
    fixed = _as_octets(code, width)
    return lambda value, depth: fixed(value.encode(encoding) if isinstance(value, str) else value, depth)


ENCODERS: dict[str, _Encoder] = {
    "bool": lambda value, depth: b"\x08\x01" if value else b"\x08\x00",
    "int8": _packed(0x01, "b"),
    "uint8": _packed(0x02, "B"),
    "int16": _packed(0x11, "h"),
    "uint16": _packed(0x12, "H"),
    "int32": _packed(0x21, "i"),
    "uint32": _packed(0x22, "I"),
    "float": _packed(0x23, "f"),
    "int64": _packed(0x31, "q"),
    "uint64": _packed(0x32, "Q"),
    "double": _packed(0x33, "d"),
    "timestamp": _packed(0x38, "Q"),
    "char": _char(0x04, 1, "iso-8859-15"),
    "char-utf32": _char(0x27, 4, "utf-32-be"),
    "uuid": lambda value, depth: b"\x48" + value.bytes,
    "bin8": _as_octets(0x00, 1),
    "bin16": _as_octets(0x10, 2),
    "bin32": _as_octets(0x20, 4),
    "bin40": _as_octets(0xC0, 5),
    "bin64": _as_octets(0x30, 8),
    "bin72": _as_octets(0xD0, 9),
    "bin128": _as_octets(0x40, 16),
    "bin256": _as_octets(0x50, 32),
    "bin512": _as_octets(0x60, 64),
    "bin1024": _as_octets(0x70, 128),
    "vbin8": _sized(0x80, 1),
    "vbin16": _sized(0x90, 2),
    "bytes": _sized(0xA0, 4),
    "str8": _sized(0x85, 1, "utf-8"),
    "str8-latin": _sized(0x84, 1, "iso-8859-15"),
    "str8-utf16": _sized(0x86, 1, "utf-16-be"),
    "string": _sized(0x95, 2, "utf-8"),
    "str16-latin": _sized(0x94, 2, "iso-8859-15"),
    "str16-utf16": _sized(0x96, 2, "utf-16-be"),
    "table": lambda value, depth: b"\xa8" + write_map(value, depth - 1),
    "array": _write_list,
    "typed-array": _sized(0xAA, 4),
    "struct32": _sized(0xAB, 4),
    "decimal": lambda value, depth: _write_decimal(value, b"\xc8", ">Bi"),
    "dec64": lambda value, depth: _write_decimal(value, b"\xd8", ">Bq"),
    "void": lambda value, depth: b"\xf0",
    "bit": lambda value, depth: b"\xf1",
}
"""Neutral type name -> writer of type code and value."""


def carries(kind: str, value: Value) -> bool:
    """Whether 0-10 has the type and the value fits it. A string that is not UTF-8 does not: readers would change
    it."""
    if kind == "string" and isinstance(value, Typed):
        return False
    try:
        _write_value("", value, 2)
    except EncodeError:
        return False
    return True
