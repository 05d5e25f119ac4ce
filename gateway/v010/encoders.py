"""AMQP 0-10 types as they are written (specification section 2): the values of maps and lists.

:data:`ENCODERS` maps the neutral type names of :mod:`gateway.amqp.values` to what writes a value, with the octet that
introduces it. What does not fit is :class:`~gateway.errors.EncodeError`, which names it; nothing else is raised for
any value.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Final, TypeAlias

from gateway.amqp.values import INT32_MAX, INT32_MIN, Table, Typed, Value, type_of
from gateway.errors import EncodeError, FrameSyntaxError
from gateway.limits import DEFAULT_LIMITS
from gateway.v010.codec import DECODERS, KEY_LENGTH, KEYS_MAX, READ_ERRORS, Reading, check_array

_U16 = struct.Struct(">H")
_U32 = struct.Struct(">I")
_I32 = struct.Struct(">i")
_SIZE_COUNT = struct.Struct(">II")
_TEXT = struct.Struct(">BH").pack
_INT32 = struct.Struct(">Bi").pack

_NAMES: dict[str, bytes] = {}
"""Key -> its length and its octets, of those written lately."""

_Encoder: TypeAlias = Callable[[Value, int], bytes]


def write_map(table: Table, depth: int = DEFAULT_LIMITS.table_depth) -> bytes:
    """A map with its size. Raises :class:`~gateway.errors.EncodeError`."""
    if depth <= 0:
        raise EncodeError("headers nested deeper than the limit table_depth")
    if not isinstance(table, Mapping):
        raise EncodeError(f"a {type(table).__name__} is no table: {table!r:.80}")
    if len(table) > DEFAULT_LIMITS.table_entries:
        raise EncodeError(f"a table of {len(table)} entries, over the limit of {DEFAULT_LIMITS.table_entries}")
    names = _NAMES
    parts = [b""]
    for key, value in table.items():
        name = names.get(key) or _name(key)
        kind = type(value)
        if kind is str:
            try:
                text = value.encode()
            except UnicodeEncodeError as error:
                raise EncodeError(f"the value of {key!r:.80}: {error}") from None
            if len(text) > 0xFFFF:
                raise EncodeError(f"the value of {key!r:.80} has {len(text)} octets, over the limit of 65535")
            parts.append(name)
            parts.append(_TEXT(0x95, len(text)))
            parts.append(text)
        elif kind is int and INT32_MIN <= value <= INT32_MAX:
            parts.append(name)
            parts.append(_INT32(0x21, value))
        elif kind is bool:
            parts.append(name)
            parts.append(b"\x08\x01" if value else b"\x08\x00")
        elif kind is dict:
            parts.append(name)
            parts.append(b"\xa8" + write_map(value, depth - 1))
        else:
            parts.append(name)
            parts.append(_write_value(key, value, depth))
    parts[0] = _SIZE_COUNT.pack(sum(map(len, parts)) + 4, len(table))
    return b"".join(parts)


def _name(key: str) -> bytes:
    """The octets of a key with their length in front."""
    try:
        octets = key.encode("utf-8", "surrogateescape")
    except (UnicodeEncodeError, AttributeError) as error:
        raise EncodeError(f"the key {key!r:.80}: {error}") from None
    if len(octets) > 255:
        raise EncodeError(f"the key {key!r:.80} has {len(octets)} octets, over the limit of 255")
    name = b"%c%b" % (len(octets), octets)
    if len(octets) <= KEY_LENGTH:
        if len(_NAMES) >= KEYS_MAX:
            _NAMES.clear()
        _NAMES[key] = name
    return name


_MISFITS: Final = (struct.error, OverflowError, TypeError, ValueError, AttributeError)
"""Errors that writing a value of the wrong kind raises."""


def _write_value(key: object, value: Value, depth: int) -> bytes:
    try:
        kind = type_of(value)
        encoder = ENCODERS.get(kind)
        if encoder is None:
            raise EncodeError(f"the value of {key!r:.80}: 0-10 has no type {kind!r:.80}")
        return encoder(value.value if isinstance(value, Typed) else value, depth)
    except _MISFITS as error:
        raise EncodeError(f"the value of {key!r:.80} does not fit: {value!r:.80}: {error}") from None


def _write_list(value: Value, depth: int) -> bytes:
    if depth <= 1:
        raise EncodeError("headers nested deeper than the limit table_depth")
    if not isinstance(value, Sequence) or isinstance(value, str | bytes | bytearray):
        raise TypeError("not a list")
    if len(value) > DEFAULT_LIMITS.table_entries:
        raise EncodeError(f"a list of {len(value)} items, over the limit of {DEFAULT_LIMITS.table_entries}")
    body = b"".join([_write_value(index, item, depth - 1) for index, item in enumerate(value)])
    return b"\xa9" + _SIZE_COUNT.pack(len(body) + 4, len(value)) + body


def _write_array(value: Value, depth: int) -> bytes:
    """An opaque array, which is checked so that no peer gets a malformed one."""
    octets = _octets(value)
    size = len(octets)
    if size:
        reading = Reading(DEFAULT_LIMITS)
        try:
            count, at = check_array(octets, 0, size, reading), 5
            for _ in range(count):
                _, at = DECODERS[octets[0]](octets, at, reading)
        except (FrameSyntaxError, *READ_ERRORS) as error:
            raise ValueError(f"not an array: {error}") from None
        if at != size:
            raise ValueError("not an array: its elements do not fill it")
    return b"\xaa" + _U32.pack(size) + octets


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


def _octets(value: Value) -> bytes:
    if not isinstance(value, bytes | bytearray | memoryview):
        raise TypeError("not octets")
    return bytes(value)


def _as_octets(code: int, width: int) -> _Encoder:
    def write(value: Value, depth: int) -> bytes:
        octets = _octets(value)
        if len(octets) != width:
            raise ValueError(f"{len(octets)} octets, not {width}")
        return bytes((code,)) + octets

    return write


def _sized(code: int, size_octets: int, encoding: str | None = None) -> _Encoder:
    def write(value: Value, depth: int) -> bytes:
        octets = value.encode(encoding) if encoding and isinstance(value, str) else _octets(value)
        return bytes((code,)) + len(octets).to_bytes(size_octets, "big") + octets

    return write


def _char(code: int, width: int, encoding: str) -> _Encoder:
    fixed = _as_octets(code, width)
    return lambda value, depth: fixed(value.encode(encoding) if isinstance(value, str) else value, depth)


def _only(octets: bytes, only: Value) -> _Encoder:
    """A type of a single value."""

    def write(value: Value, depth: int) -> bytes:
        if value is not only:
            raise ValueError(f"only {only} has this type")
        return octets

    return write


def _write_bool(value: Value, depth: int) -> bytes:
    if type(value) is not bool:
        raise TypeError("neither true nor false")
    return b"\x08\x01" if value else b"\x08\x00"


ENCODERS: dict[str, _Encoder] = {
    "bool": _write_bool,
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
    "typed-array": _write_array,
    "struct32": _sized(0xAB, 4),
    "decimal": lambda value, depth: _write_decimal(value, b"\xc8", ">Bi"),
    "dec64": lambda value, depth: _write_decimal(value, b"\xd8", ">Bq"),
    "void": _only(b"\xf0", None),
    "bit": _only(b"\xf1", True),
}
"""Neutral type name -> writer of type code and value."""


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def carries(kind: str, value: Value) -> bool:
    """Whether 0-10 has the type and the value fits it. A string that is not UTF-8 does not: readers would change
    it."""
    if kind == "string" and isinstance(value, Typed):
        return False
    if kind == "key":
        return _is_utf8(value)
    if kind == "item":
        return True
    try:
        _write_value("", value, 2)
    except EncodeError:
        return False
    return True
