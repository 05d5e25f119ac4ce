"""Field tables of 0-8 and 0-9-1, with the tags that brokers use (RabbitMQ's errata, not the definition).

Values come back as :mod:`gateway.values` describes: plain where the plain value stands for the wire type, else
``Typed``, so that encoding what was decoded gives the same octets. Which tags exist is the dialect's to say.
Nesting, entries and the number of values in one table are bounded by :class:`~gateway.limits.Limits`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any, Final

from gateway.errors import EncodeError, FrameSyntaxError
from gateway.limits import DEFAULT_LIMITS, Limits
from gateway.values import INT32_MAX, INT32_MIN, Table, Timestamp, Typed, Value, type_of

Buffer = bytes | bytearray | memoryview

RABBITMQ_TAGS: Final[Mapping[str, str]] = {
    "t": "bool", "b": "int8", "B": "uint8", "s": "int16", "u": "uint16", "I": "int32", "i": "uint32",
    "l": "int64", "f": "float", "d": "double", "D": "decimal", "S": "string", "A": "array", "T": "timestamp",
    "F": "table", "V": "void", "x": "bytes",
}  # fmt: skip
"""Tag -> wire type, as RabbitMQ reads and writes them."""
QPID_TAGS: Final[Mapping[str, str]] = {**RABBITMQ_TAGS, "c": "str8-latin", "C": "str16-utf16", "k": "char"}
"""Qpid's: ASCII and wide strings and an ASCII character besides."""
PUBLISHED_TAGS: Final[Mapping[str, str]] = {
    "S": "string", "I": "int32", "D": "decimal", "T": "timestamp", "F": "table",
}  # fmt: skip
"""0-8 as published."""
ALIASES: Final[Mapping[str, str]] = {"L": "int64"}
"""Tags that are read, but never written."""

_FIXED: Final[Mapping[str, struct.Struct]] = {
    "int8": struct.Struct(">b"),
    "uint8": struct.Struct(">B"),
    "int16": struct.Struct(">h"),
    "uint16": struct.Struct(">H"),
    "int32": struct.Struct(">i"),
    "uint32": struct.Struct(">I"),
    "int64": struct.Struct(">q"),
    "float": struct.Struct(">f"),
    "double": struct.Struct(">d"),
}
_LENGTH = struct.Struct(">I")
_TIMESTAMP = struct.Struct(">Q")
_DECIMAL = struct.Struct(">Bi")
_STRING = struct.Struct(">BI").pack
_INT32 = struct.Struct(">Bi").pack
_LENGTHS: Final = tuple(bytes((size,)) for size in range(256))
_TEXT_CODECS: Final[Mapping[str, str]] = {"str8-latin": "latin-1", "str16-utf16": "utf-8"}

Read = Callable[["TableCodec", Buffer, int, int, int, list[int]], tuple[Value, int]]


class TableCodec:
    """Reads and writes the tables of one dialect within one set of limits."""

    __slots__ = ("_readers", "_tags", "depth_max", "elements_max", "entries_max")

    def __init__(self, tags: Mapping[str, str] = RABBITMQ_TAGS, limits: Limits = DEFAULT_LIMITS) -> None:
        self._tags = {kind: tag.encode() for tag, kind in tags.items()}
        known = {tag: kind for tag, kind in {**ALIASES, **tags}.items() if kind in tags.values()}
        self._readers: dict[int, Read] = {ord(tag): _READERS[kind] for tag, kind in known.items()}
        self.depth_max = limits.table_depth
        self.entries_max = limits.table_entries
        self.elements_max = limits.frame_elements

    def has(self, kind: str) -> bool:
        """Whether the dialect has a tag for the wire type."""
        return kind in self._tags

    # -------------------------------------------------------------------------------------------- decoding

    def read(self, data: Buffer, at: int, end: int) -> tuple[Table, int]:
        """The table at ``data[at:]``, its length in front, and where it ends (not past ``end``).

        Raises:
            FrameSyntaxError: malformed, or over a limit.
        """
        try:
            return self._read_table(data, at, end, 1, [self.elements_max])
        except (IndexError, struct.error) as error:
            raise FrameSyntaxError(f"a table cannot be decoded: {error}", 502) from None

    def read_entries(self, data: Buffer, at: int, end: int) -> Table:
        """The entries that fill ``data[at:end]``, without a length in front (AMQPLAIN's response)."""
        try:
            return self._read_entries(data, at, end, 1, [self.elements_max])
        except (IndexError, struct.error) as error:
            raise FrameSyntaxError(f"a table cannot be decoded: {error}", 502) from None

    def _read_table(self, data: Buffer, at: int, end: int, depth: int, left: list[int]) -> tuple[Table, int]:
        stop = _stop(data, at, end)
        return self._read_entries(data, at + 4, stop, depth, left), stop

    def _read_entries(self, data: Buffer, at: int, stop: int, depth: int, left: list[int]) -> Table:
        if depth > self.depth_max:
            raise FrameSyntaxError(f"tables are nested more than {self.depth_max} deep", 502)
        readers = self._readers
        table: Table = {}
        room = min(self.entries_max, left[0])
        while at < stop:
            room -= 1
            if room < 0:
                raise FrameSyntaxError(
                    f"a table of more than {self.entries_max} entries or {self.elements_max} values", 502
                )
            start = at + 1
            at = start + data[at]
            key = str(data[start:at], "utf-8", "surrogateescape")
            tag = data[at]
            at += 1
            if tag == 83:  # S, inline: most headers are strings
                start = at + 4
                at = _stop(data, at, stop)
                octets = bytes(data[start:at])
                try:
                    table[key] = octets.decode()
                except UnicodeDecodeError:
                    table[key] = Typed("string", octets)
                continue
            read = readers.get(tag)
            if read is None:
                raise FrameSyntaxError(f"table field {key!r:.80}: there is no type with the tag {chr(tag)!r}", 502)
            table[key], at = read(self, data, at, stop, depth, left)
        if at != stop:
            raise FrameSyntaxError(f"a table runs {at - stop} octets past its end", 502)
        left[0] -= len(table)
        if left[0] < 0:
            raise FrameSyntaxError(f"tables of more than {self.elements_max} values", 502)
        return table

    def _read_array(self, data: Buffer, at: int, end: int, depth: int, left: list[int]) -> tuple[list[Value], int]:
        depth += 1
        if depth > self.depth_max:
            raise FrameSyntaxError(f"tables are nested more than {self.depth_max} deep", 502)
        stop = _stop(data, at, end)
        at += 4
        values: list[Value] = []
        while at < stop:
            if len(values) >= self.entries_max or left[0] <= 0:
                raise FrameSyntaxError(
                    f"an array of more than {self.entries_max} entries, or a table of more than"
                    f" {self.elements_max} values",
                    502,
                )
            tag = data[at]
            read = self._readers.get(tag)
            if read is None:
                raise FrameSyntaxError(f"array: there is no type with the tag {chr(tag)!r}", 502)
            left[0] -= 1
            value, at = read(self, data, at + 1, stop, depth, left)
            values.append(value)
        if at != stop:
            raise FrameSyntaxError(f"an array runs {at - stop} octets past its end", 502)
        return values, stop

    # -------------------------------------------------------------------------------------------- encoding

    def encode(self, table: Table) -> bytes:
        """The table with its length in front.

        Raises:
            EncodeError: naming the field, for a key over 255 octets, a value that does not fit its type or has
                none in the dialect, and tables nested too deep.
        """
        if not table:
            return b"\x00\x00\x00\x00"
        parts: list[bytes] = []
        self._write_entries(table, parts, 1)
        octets = b"".join(parts)
        return _LENGTH.pack(len(octets)) + octets

    def _write_entries(self, table: Mapping[str, Value], parts: list[bytes], depth: int) -> None:
        if depth > self.depth_max:
            raise EncodeError(f"tables are nested more than {self.depth_max} deep")
        if len(table) > self.entries_max:
            raise EncodeError(f"a table of {len(table)} entries is over the limit of {self.entries_max}")
        for key, value in table.items():
            try:
                octets = key.encode("utf-8", "surrogateescape")
            except (AttributeError, UnicodeEncodeError) as error:
                raise EncodeError(f"table key {key!r:.80}: {error}") from None
            if len(octets) > 255:
                raise EncodeError(f"table key {key[:40]!r}…: {len(octets)} octets are more than 255")
            parts.append(_LENGTHS[len(octets)])
            parts.append(octets)
            self._write_value(key, value, parts, depth)

    def _write_value(self, key: str, value: Value, parts: list[bytes], depth: int) -> None:
        if type(value) is str:
            try:
                octets = value.encode("utf-8", "surrogateescape")
            except UnicodeEncodeError as error:
                raise EncodeError(f"table field {key!r:.80}: {error}") from None
            parts.append(_STRING(83, len(octets)))
            parts.append(octets)
            return
        if type(value) is int and INT32_MIN <= value <= INT32_MAX:
            parts.append(_INT32(73, value))
            return
        try:
            kind = type_of(value)
        except (TypeError, OverflowError) as error:
            raise EncodeError(f"table field {key!r:.80}: {error}") from None
        tag = self._tags.get(kind)
        if tag is None:
            raise EncodeError(f"table field {key!r:.80}: this version has no type {kind}")
        plain = value.value if isinstance(value, Typed) else value
        parts.append(tag)
        if kind in ("table", "array"):
            inner: list[bytes] = []
            if kind == "table":
                self._write_entries(plain, inner, depth + 1)
            else:
                self._write_items(key, plain, inner, depth + 1)
            octets = b"".join(inner)
            parts.append(_LENGTH.pack(len(octets)))
            parts.append(octets)
            return
        try:
            parts.append(_WRITERS[kind](plain))
        except (struct.error, TypeError, ValueError, OverflowError) as error:
            raise EncodeError(f"table field {key!r:.80}: {plain!r:.80} does not fit {kind}: {error}") from None

    def _write_items(self, key: str, items: list[Value], parts: list[bytes], depth: int) -> None:
        if depth > self.depth_max:
            raise EncodeError(f"tables are nested more than {self.depth_max} deep")
        if len(items) > self.entries_max:
            raise EncodeError(f"table field {key!r:.80}: {len(items)} items are over the limit of {self.entries_max}")
        for item in items:
            self._write_value(key, item, parts, depth)


def decimal_parts(value: Decimal) -> tuple[int, int]:
    """Scale and unscaled integer of a classic decimal. Raises ``ValueError`` where it does not fit."""
    sign, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int):
        raise ValueError("not a number")  # NaN and infinities are Decimals
    unscaled = int("".join(map(str, digits)))
    if exponent > 0:
        if exponent > 10:
            raise ValueError("more than 32 bits")
        unscaled, exponent = unscaled * 10**exponent, 0
    if exponent < -255:
        raise ValueError("a scale of more than 255")
    unscaled = -unscaled if sign else unscaled
    if not INT32_MIN <= unscaled <= INT32_MAX:
        raise ValueError("more than 32 bits")
    return -exponent, unscaled


def _stop(data: Buffer, at: int, end: int) -> int:
    """Where the value whose length of four octets stands at ``at`` ends."""
    (length,) = _LENGTH.unpack_from(data, at)
    stop: int = at + 4 + length
    if stop > end:
        raise FrameSyntaxError(f"a length of {length} octets where {end - at - 4} are left", 502)
    return stop


def _fixed_reader(kind: str) -> Read:
    """Reads a fixed-size type that no plain value stands for."""
    layout = _FIXED[kind]

    def read(codec: TableCodec, data: Buffer, at: int, end: int, depth: int, left: list[int]) -> tuple[Value, int]:
        return Typed(kind, layout.unpack_from(data, at)[0]), at + layout.size

    return read


def _read_int32(codec: TableCodec, data: Buffer, at: int, end: int, depth: int, left: list[int]) -> tuple[Value, int]:
    return _FIXED["int32"].unpack_from(data, at)[0], at + 4


def _read_int64(codec: TableCodec, data: Buffer, at: int, end: int, depth: int, left: list[int]) -> tuple[Value, int]:
    (value,) = _FIXED["int64"].unpack_from(data, at)
    return (Typed("int64", value) if INT32_MIN <= value <= INT32_MAX else value), at + 8


def _read_double(codec: TableCodec, data: Buffer, at: int, end: int, depth: int, left: list[int]) -> tuple[Value, int]:
    return _FIXED["double"].unpack_from(data, at)[0], at + 8


def _read_bool(codec: TableCodec, data: Buffer, at: int, end: int, depth: int, left: list[int]) -> tuple[Value, int]:
    return data[at] != 0, at + 1


def _read_void(codec: TableCodec, data: Buffer, at: int, end: int, depth: int, left: list[int]) -> tuple[Value, int]:
    return None, at


def _read_decimal(codec: TableCodec, data: Buffer, at: int, end: int, depth: int, left: list[int]) -> tuple[Value, int]:
    scale, unscaled = _DECIMAL.unpack_from(data, at)
    return Decimal((int(unscaled < 0), tuple(map(int, str(abs(unscaled)))), -scale)), at + 5


def _read_timestamp(
    codec: TableCodec, data: Buffer, at: int, end: int, depth: int, left: list[int]
) -> tuple[Value, int]:
    return Timestamp(_TIMESTAMP.unpack_from(data, at)[0]), at + 8


def _read_octets(codec: TableCodec, data: Buffer, at: int, end: int, depth: int, left: list[int]) -> tuple[Value, int]:
    stop = _stop(data, at, end)
    return bytes(data[at + 4 : stop]), stop


def _read_string(codec: TableCodec, data: Buffer, at: int, end: int, depth: int, left: list[int]) -> tuple[Value, int]:
    octets, stop = _read_octets(codec, data, at, end, depth, left)
    try:
        return octets.decode(), stop
    except UnicodeDecodeError:
        return Typed("string", octets), stop


def _text_reader(kind: str) -> Read:
    encoding = _TEXT_CODECS[kind]

    def read(codec: TableCodec, data: Buffer, at: int, end: int, depth: int, left: list[int]) -> tuple[Value, int]:
        octets, stop = _read_octets(codec, data, at, end, depth, left)
        return Typed(kind, octets.decode(encoding, "surrogateescape")), stop

    return read


def _read_char(codec: TableCodec, data: Buffer, at: int, end: int, depth: int, left: list[int]) -> tuple[Value, int]:
    return Typed("char", chr(data[at])), at + 1


def _read_table(codec: TableCodec, data: Buffer, at: int, end: int, depth: int, left: list[int]) -> tuple[Value, int]:
    return codec._read_table(data, at, end, depth + 1, left)


def _read_array(codec: TableCodec, data: Buffer, at: int, end: int, depth: int, left: list[int]) -> tuple[Value, int]:
    return codec._read_array(data, at, end, depth, left)


_READERS: Final[Mapping[str, Read]] = {
    "void": _read_void,
    "bool": _read_bool,
    "int32": _read_int32,
    "int64": _read_int64,
    "double": _read_double,
    "decimal": _read_decimal,
    "timestamp": _read_timestamp,
    "string": _read_string,
    "bytes": _read_octets,
    "table": _read_table,
    "array": _read_array,
    "str8-latin": _text_reader("str8-latin"),
    "str16-utf16": _text_reader("str16-utf16"),
    "char": _read_char,
} | {kind: _fixed_reader(kind) for kind in ("int8", "uint8", "int16", "uint16", "uint32", "float")}


def _sized(octets: bytes) -> bytes:
    return _LENGTH.pack(len(octets)) + octets


def _write_decimal(value: Decimal) -> bytes:
    return _DECIMAL.pack(*decimal_parts(value))


def _write_string(value: Any) -> bytes:
    return _sized(value if isinstance(value, bytes) else value.encode("utf-8", "surrogateescape"))


_WRITERS: Final[Mapping[str, Callable[[Any], bytes]]] = {
    "void": lambda value: b"",
    "bool": lambda value: b"\x01" if value else b"\x00",
    "decimal": _write_decimal,
    "timestamp": _TIMESTAMP.pack,
    "string": _write_string,
    "bytes": _sized,
    "str8-latin": lambda value: _sized(value.encode("latin-1")),
    "str16-utf16": lambda value: _sized(value.encode("utf-8", "surrogateescape")),
    "char": lambda value: bytes((ord(value),)),
} | {kind: layout.pack for kind, layout in _FIXED.items()}
