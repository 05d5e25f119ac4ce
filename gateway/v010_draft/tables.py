"""Field tables of the draft: the type octets of the final 0-10, and no count of entries.

A table is its length in octets, and entries of a short string, a type and a value. A sequence is a length, and types
with values; the definition names the type and does not say how it is written. An array is as in the final: a length,
one type, a count and the values; it stays octets, checked but not taken apart. The strings that the final does not have
are read as the octets of a long binary would be, with their type.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from gateway.amqp.values import Table, Typed, Value, type_of
from gateway.classic.tables import TableCodec
from gateway.errors import EncodeError, FrameSyntaxError
from gateway.limits import DEFAULT_LIMITS, Limits
from gateway.v010 import codec, encoders
from gateway.v010.codec import READ_ERRORS, Reading
from gateway.wire.types import overrun

_U32 = struct.Struct(">I")
_length_at = _U32.unpack_from

_Decoder: TypeAlias = Callable[[bytes, int, Reading], tuple[Any, int]]
_Encoder: TypeAlias = Callable[[Value, int], bytes]

_FINAL_ONLY: Final[Mapping[int, str]] = {0xAB: "struct32", 0xF1: "bit"}
"""What the final has and the draft has not."""
_CONTAINERS: Final[Mapping[int, str]] = {0xA8: "table", 0xA9: "array"}
"""What is written otherwise."""
WIDE: Final[Mapping[int, tuple[str, int, str]]] = {
    0x87: ("str8-utf32", 1, "utf-32-be"),
    0x97: ("str16-utf32", 2, "utf-32-be"),
    0xA4: ("str32-latin", 4, "iso-8859-15"),
    0xA5: ("str32", 4, "utf-8"),
    0xA6: ("str32-utf16", 4, "utf-16-be"),
    0xA7: ("str32-utf32", 4, "utf-32-be"),
}
"""What the draft has and the final has not: type octet -> our name of the type, octets of its length, encoding."""


def _wide_reader(kind: str, width: int, encoding: str) -> _Decoder:
    def read(data: bytes, at: int, reading: Reading) -> tuple[Typed, int]:
        start = at + width
        end = start + int.from_bytes(data[at:start], "big")
        octets = data[start:end]
        try:
            return Typed(kind, str(octets, encoding)), end
        except UnicodeDecodeError:
            return Typed(kind, octets), end

    return read


def _wide_writer(code: int, width: int, encoding: str) -> _Encoder:
    def write(value: Value, depth: int) -> bytes:
        if not isinstance(value, str | bytes):
            raise TypeError("neither text nor octets")
        octets = value.encode(encoding) if isinstance(value, str) else value
        return bytes((code,)) + len(octets).to_bytes(width, "big") + octets

    return write


def _bounds(data: bytes, at: int, end: int, reading: Reading) -> tuple[int, int]:
    """Where the entries of a table or a sequence begin and end."""
    (length,) = _length_at(data, at)
    at += 4
    if length > end - at:
        raise overrun(length, end - at)
    reading.depth -= 1
    if reading.depth < 0:
        raise FrameSyntaxError("tables or sequences nested too deep", 502)
    return at, at + length


def _count(count: int, reading: Reading) -> None:
    """One entry more."""
    reading.elements -= 1
    if count >= reading.entries or reading.elements < 0:
        raise FrameSyntaxError("too many entries in a table or a sequence, or values in a frame", 502)


def _value(data: bytes, at: int, reading: Reading) -> tuple[Value, int]:
    decoder = DECODERS.get(data[at])
    if decoder is None:
        raise FrameSyntaxError(f"unknown type 0x{data[at]:02x} in a table", 502)
    return decoder(data, at + 1, reading)


def _read_table(data: bytes, at: int, reading: Reading) -> tuple[Table, int]:
    at, stop = _bounds(data, at, len(data), reading)
    table: Table = {}
    count = 0
    while at < stop:
        _count(count, reading)
        count += 1
        start = at + 1
        at = start + data[at]
        key = str(data[start:at], "utf-8", "surrogateescape")
        table[key], at = _value(data, at, reading)
    if len(table) != count:  # nobody would see that a value is gone
        raise FrameSyntaxError(f"a table of {count} entries has but {len(table)} keys", 502)
    return table, _ended(at, stop, reading)


def _read_sequence(data: bytes, at: int, reading: Reading) -> tuple[list[Value], int]:
    at, stop = _bounds(data, at, len(data), reading)
    items: list[Value] = []
    while at < stop:
        _count(len(items), reading)
        item, at = _value(data, at, reading)
        items.append(item)
    return items, _ended(at, stop, reading)


def _ended(at: int, stop: int, reading: Reading) -> int:
    if at != stop:
        raise FrameSyntaxError(f"a table or a sequence runs {at - stop} octets past its end", 502)
    reading.depth += 1
    return stop


DECODERS: Final[Mapping[int, _Decoder]] = {
    **{code: decoder for code, decoder in codec.DECODERS.items() if code not in _FINAL_ONLY},
    **{code: _wide_reader(*wide) for code, wide in WIDE.items()},
    0xA8: _read_table,
    0xA9: _read_sequence,
}
"""Type octet -> reader of the value behind it."""

_MISFITS: Final = (struct.error, OverflowError, TypeError, ValueError, AttributeError)


class Tables(TableCodec):
    """Reads and writes the tables of the draft within one set of limits. What the handshake asks of the classic codec
    besides, the response of AMQPLAIN, is written with classic types by everyone."""

    __slots__ = ("_limits",)

    def __init__(self, limits: Limits = DEFAULT_LIMITS) -> None:
        super().__init__(limits=limits)
        self._limits = limits

    def has(self, kind: str) -> bool:
        """Whether the draft has the wire type."""
        return kind in ENCODERS

    def read(self, data: bytes, at: int, end: int, depth: int = 1, left: list[int] | None = None) -> tuple[Table, int]:
        """The table at ``data[at:]``, its length in front, and where it ends (not past ``end``).

        Raises:
            FrameSyntaxError: malformed, or over a limit.
        """
        if len(data) != end:
            data = data[:end]
        try:
            return _read_table(data, at, Reading(self._limits))
        except READ_ERRORS as error:
            raise FrameSyntaxError(f"a table cannot be decoded: {error}", 502) from None

    def read_entries(self, data: bytes) -> Table:
        """The entries of AMQPLAIN's response."""
        return TableCodec.read(self, _U32.pack(len(data)) + data, 0, 4 + len(data))[0]

    def encode(self, table: Mapping[str, Value], depth: int = 1) -> bytes:
        """The table with its length in front. ``depth`` is for the tables inside.

        Raises:
            EncodeError: naming the field, for a key over 255 octets, a value that does not fit its type or has
                none in the draft, and tables nested too deep.
        """
        return _write_table(table, self.depth_max + 1 - depth)


def _write_table(table: Mapping[str, Value], depth: int) -> bytes:
    if depth <= 0:
        raise EncodeError("tables nested deeper than the limit table_depth")
    _few(len(table))
    parts = [b""]
    for key, value in table.items():
        try:
            name = key.encode("utf-8", "surrogateescape")
        except (UnicodeEncodeError, AttributeError) as error:
            raise EncodeError(f"table key {key!r:.80}: {error}") from None
        if len(name) > 255:
            raise EncodeError(f"table key {key[:40]!r}…: {len(name)} octets are more than 255")
        parts += (bytes((len(name),)), name, _write_value(key, value, depth))
    parts[0] = _U32.pack(sum(map(len, parts)))
    return b"".join(parts)


def _write_value(key: object, value: Value, depth: int) -> bytes:
    try:
        kind = type_of(value)
        encoder = ENCODERS.get(kind)
        if encoder is None:
            raise EncodeError(f"table field {key!r:.80}: the draft has no type {kind!r:.80}")
        return encoder(value.value if isinstance(value, Typed) else value, depth)
    except _MISFITS as error:
        raise EncodeError(f"table field {key!r:.80}: {value!r:.80} does not fit: {error}") from None


def _write_sequence(value: Value, depth: int) -> bytes:
    if depth <= 1:
        raise EncodeError("tables nested deeper than the limit table_depth")
    if not isinstance(value, Sequence) or isinstance(value, str | bytes | bytearray):
        raise TypeError("not a list")
    _few(len(value))
    body = b"".join([_write_value(index, item, depth - 1) for index, item in enumerate(value)])
    return b"\xa9" + _U32.pack(len(body)) + body


def _few(count: int) -> None:
    if count > DEFAULT_LIMITS.table_entries:
        raise EncodeError(f"{count} entries are over the limit of {DEFAULT_LIMITS.table_entries}")


ENCODERS: Final[Mapping[str, _Encoder]] = {
    **{kind: encoder for kind, encoder in encoders.ENCODERS.items() if kind not in _FINAL_ONLY.values()},
    **{kind: _wide_writer(code, width, encoding) for code, (kind, width, encoding) in WIDE.items()},
    "table": lambda value, depth: b"\xa8" + _write_table(value, depth - 1),
    "array": _write_sequence,
}
"""Neutral type name -> writer of type octet and value."""


def carries(kind: str, value: Value) -> bool:
    """Whether the draft has the type and the value fits it, of a header."""
    if kind in ("key", "item"):
        return True
    try:
        _write_value("", value, 2)
    except EncodeError:
        return False
    return True
