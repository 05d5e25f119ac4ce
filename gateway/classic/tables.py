"""Field tables of 0-8 and 0-9-1, with the tags that brokers use (RabbitMQ's errata, not the definition).

Values come back as :mod:`gateway.amqp.values` describes: plain where the plain value stands for the wire type, else
``Typed``, so that encoding what was decoded gives the same octets. Which tags exist is the dialect's to say.
Nesting, entries and the number of values in one table are bounded by :class:`~gateway.limits.Limits`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from decimal import Decimal
from functools import lru_cache, partial
from types import NoneType
from typing import Any, Final

from gateway.amqp.values import INT32_MAX, INT32_MIN, Table, Timestamp, Typed, Value, type_of
from gateway.errors import EncodeError, FrameSyntaxError
from gateway.limits import DEFAULT_LIMITS, Limits
from gateway.wire.types import overrun

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
_length_at = _LENGTH.unpack_from
_int32_at = _FIXED["int32"].unpack_from
_uint64_at = struct.Struct(">Q").unpack_from
_DECIMAL = struct.Struct(">Bi")
_STRING = struct.Struct(">BI").pack
_STRINGS: Final = tuple(_STRING(83, size) for size in range(256))
"""Tag and length of a string, by the length."""
_INT32 = struct.Struct(">Bi").pack
_TEXT_CODECS: Final[Mapping[str, str]] = {"str8-latin": "latin-1", "str16-utf16": "utf-8"}

Unpack = Callable[..., tuple[Any, ...]]

_PLAIN: Final[Mapping[str, tuple[Unpack, int]]] = {
    "bool": (struct.Struct(">?").unpack_from, 1),
    "double": (_FIXED["double"].unpack_from, 8),
}
"""Types of fixed size whose plain value is what unpacking gives, beside int32: how to unpack, and the size."""

KEYS_MAX: Final = 1_024
"""How many keys are kept, each way: the same few are read and written again and again."""
KEY_LENGTH: Final = 64
"""How many octets a key may have to be kept."""
_HEADS: dict[str, bytes] = {}
"""Key -> its length and its octets."""
_KEYS: dict[bytes, tuple[str, int]] = {}
"""Length, octets and tag behind them -> key and tag."""

Read = Callable[["TableCodec", bytes, int, int, int, list[int]], tuple[Value, int]]


class TableCodec:
    """Reads and writes the tables of one dialect within one set of limits."""

    __slots__ = (
        "_plain",
        "_readers",
        "_rounds",
        "_tags",
        "_writers",
        "depth_max",
        "distinct",
        "elements_max",
        "entries_max",
    )

    def __init__(self, tags: Mapping[str, str] = RABBITMQ_TAGS, limits: Limits = DEFAULT_LIMITS) -> None:
        self._tags, self._readers, self._plain, self._writers = _compiled(tuple(tags.items()))
        self._rounds = range(min(limits.table_entries, limits.frame_elements) + 1)
        self.depth_max = limits.table_depth
        self.entries_max = limits.table_entries
        self.elements_max = limits.frame_elements
        self.distinct = False
        """Whether a table with a key twice is refused; else the last value counts. It is illegal (0-9-1 section
        4.2.5.5), and brokers hand it on."""

    def of_messages(self) -> TableCodec:
        """The same codec, for the headers of messages: there nobody would see that a value is gone."""
        made = copy(self)
        made.distinct = True
        return made

    def has(self, kind: str) -> bool:
        """Whether the dialect has a tag for the wire type."""
        return kind in self._tags

    # -------------------------------------------------------------------------------------------- decoding

    def read(self, data: bytes, at: int, end: int, depth: int = 1, left: list[int] | None = None) -> tuple[Table, int]:
        """The table at ``data[at:]``, its length in front, and where it ends (not past ``end``). ``depth`` and
        ``left``, the number of values that may still come, are for the tables inside.

        Raises:
            FrameSyntaxError: malformed, or over a limit.
        """
        if depth > self.depth_max:
            raise FrameSyntaxError(f"tables are nested more than {self.depth_max} deep", 502)
        try:
            (length,) = _length_at(data, at)
            at += 4
            stop = at + length
            if stop > end:
                raise overrun(length, end - at)
            plain = self._plain
            keys = _KEYS
            table: Table = {}
            rounds = self._rounds if left is None or left[0] > self.entries_max else range(left[0] + 1)
            for count in rounds:  # noqa: B007  # used behind the loop
                if at >= stop:
                    break
                start = at
                at += data[at] + 2
                octets = data[start:at]
                try:
                    key, tag = keys[octets]
                except KeyError:
                    key, tag = _key(octets)
                if tag == 83:  # S, inline: most headers are strings
                    (length,) = _length_at(data, at)
                    start = at + 4
                    at = start + length
                    if at > stop:
                        raise overrun(length, stop - start)
                    try:
                        table[key] = data[start:at].decode()
                    except UnicodeDecodeError:
                        table[key] = Typed("string", data[start:at])
                elif tag == 73:  # I; every dialect has these two
                    (table[key],) = _int32_at(data, at)
                    at += 4
                elif (fixed := plain[tag]) is not None:
                    unpack, size = fixed
                    (table[key],) = unpack(data, at)
                    at += size
                else:
                    read = self._readers.get(tag)
                    if read is None:
                        raise FrameSyntaxError(
                            f"table field {key!r:.80}: there is no type with the tag {chr(tag)!r}", 502
                        )
                    if left is None:
                        left = [self.elements_max]
                    table[key], at = read(self, data, at, stop, depth, left)
            else:
                raise FrameSyntaxError(
                    f"a table of more than {self.entries_max} entries or {self.elements_max} values", 502
                )
        except (IndexError, struct.error) as error:
            raise FrameSyntaxError(f"a table cannot be decoded: {error}", 502) from None
        if at != stop:
            raise FrameSyntaxError(f"a table runs {at - stop} octets past its end", 502)
        if self.distinct and len(table) != count:
            raise FrameSyntaxError(f"a table of {count} entries has but {len(table)} keys", 502)
        if left is not None:
            left[0] -= len(table)
            if left[0] < 0:
                raise FrameSyntaxError(f"tables of more than {self.elements_max} values", 502)
        return table, stop

    def read_entries(self, data: bytes) -> Table:
        """The entries that ``data`` consists of, without a length in front (AMQPLAIN's response)."""
        return self.read(_LENGTH.pack(len(data)) + data, 0, 4 + len(data))[0]

    def _read_array(self, data: bytes, at: int, end: int, depth: int, left: list[int]) -> tuple[list[Value], int]:
        depth += 1
        if depth > self.depth_max:
            raise FrameSyntaxError(f"tables are nested more than {self.depth_max} deep", 502)
        (length,) = _length_at(data, at)
        at += 4
        stop = at + length
        if stop > end:
            raise overrun(length, end - at)
        readers = self._readers
        values: list[Value] = []
        room = most = min(self.entries_max, left[0])
        while at < stop:
            room -= 1
            if room < 0:
                raise FrameSyntaxError(
                    f"an array of more than {self.entries_max} entries, or a table of more than"
                    f" {self.elements_max} values",
                    502,
                )
            read = readers.get(data[at])
            if read is None:
                raise FrameSyntaxError(f"array: there is no type with the tag {chr(data[at])!r}", 502)
            value, at = read(self, data, at + 1, stop, depth, left)
            values.append(value)
        if at != stop:
            raise FrameSyntaxError(f"an array runs {at - stop} octets past its end", 502)
        left[0] -= most - room
        return values, stop

    # -------------------------------------------------------------------------------------------- encoding

    def encode(self, table: Mapping[str, Value], depth: int = 1) -> bytes:
        """The table with its length in front. ``depth`` is for the tables inside.

        Raises:
            EncodeError: naming the field, for a key over 255 octets, a value that does not fit its type or has
                none in the dialect, and tables nested too deep.
        """
        if not table:
            return b"\x00\x00\x00\x00"
        if depth > self.depth_max:
            raise EncodeError(f"tables are nested more than {self.depth_max} deep")
        if len(table) > self.entries_max:
            raise EncodeError(f"a table of {len(table)} entries is over the limit of {self.entries_max}")
        heads, writers, table_tag = _HEADS, self._writers, self._tags.get("table")
        parts: list[bytes] = []
        add = parts.append
        for key, value in table.items():
            add(heads.get(key) or _head(key))
            kind = type(value)
            if kind is str:
                try:
                    octets = value.encode()
                except UnicodeEncodeError:
                    octets = _escaped(key, value)
                size = len(octets)
                add(_STRINGS[size] if size < 256 else _STRING(83, size))
                add(octets)
            elif kind is int and INT32_MIN <= value <= INT32_MAX:
                add(_INT32(73, value))
            elif (write := writers.get(kind)) is not None:
                add(write(value))
            elif kind is dict and table_tag is not None:
                add(table_tag)
                add(self.encode(value, depth + 1))
            else:
                add(self._value(key, value, depth))
        octets = b"".join(parts)
        return _LENGTH.pack(len(octets)) + octets

    def _value(self, key: str, value: Value, depth: int) -> bytes:
        """Tag and octets of a value."""
        try:
            kind = type_of(value)
        except (TypeError, OverflowError) as error:
            raise EncodeError(f"table field {key!r:.80}: {error}") from None
        tag = self._tags.get(kind)
        if tag is None:
            raise EncodeError(f"table field {key!r:.80}: this version has no type {kind}")
        plain = value.value if isinstance(value, Typed) else value
        if kind == "table":
            return tag + self.encode(plain, depth + 1)
        if kind == "array":
            return tag + self._array(key, plain, depth + 1)
        try:
            return tag + _WRITERS[kind](plain)
        except (struct.error, AttributeError, TypeError, ValueError, OverflowError) as error:
            raise EncodeError(f"table field {key!r:.80}: {plain!r:.80} does not fit {kind}: {error}") from None

    def _array(self, key: str, items: Sequence[Value], depth: int) -> bytes:
        if depth > self.depth_max:
            raise EncodeError(f"tables are nested more than {self.depth_max} deep")
        if len(items) > self.entries_max:
            raise EncodeError(f"table field {key!r:.80}: {len(items)} items are over the limit of {self.entries_max}")
        return _sized(b"".join([self._value(key, item, depth) for item in items]))


@lru_cache(maxsize=16)
def _compiled(
    tags: tuple[tuple[str, str], ...],
) -> tuple[
    dict[str, bytes], dict[int, Read], tuple[tuple[Unpack, int] | None, ...], dict[type, Callable[[Any], bytes]]
]:
    """What the codecs of one dialect share: wire type -> tag; how to read and write what."""
    kinds = {kind: tag for tag, kind in tags}
    known = {tag: kind for tag, kind in {**ALIASES, **dict(tags)}.items() if kind in kinds}
    return (
        {kind: tag.encode() for kind, tag in kinds.items()},
        {ord(tag): _READERS[kind] for tag, kind in known.items()},
        tuple(_PLAIN.get(known.get(chr(tag), "")) for tag in range(256)),
        {type_: make(ord(kinds[kind])) for type_, (kind, make) in _PLAIN_WRITERS.items() if kind in kinds},
    )


def _key(octets: bytes) -> tuple[str, int]:
    """Key and tag at the start of an entry. Octets that were cut short begin with another length than theirs."""
    size = len(octets) - 2
    if octets[0] != size:
        raise IndexError("the end of the data")
    known = octets[1:-1].decode("utf-8", "surrogateescape"), octets[-1]
    if size <= KEY_LENGTH:
        if len(_KEYS) >= KEYS_MAX:
            _KEYS.clear()
        _KEYS[octets] = known
    return known


def _head(key: str) -> bytes:
    """The octets of a key with their length in front."""
    try:
        octets = key.encode("utf-8", "surrogateescape")
    except (AttributeError, UnicodeEncodeError) as error:
        raise EncodeError(f"table key {key!r:.80}: {error}") from None
    if len(octets) > 255:
        raise EncodeError(f"table key {key[:40]!r}…: {len(octets)} octets are more than 255")
    head = bytes((len(octets),)) + octets
    if len(octets) <= KEY_LENGTH:
        if len(_HEADS) >= KEYS_MAX:
            _HEADS.clear()
        _HEADS[key] = head
    return head


def _escaped(key: str, value: str) -> bytes:
    """The octets of a text that is not all Unicode."""
    try:
        return value.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise EncodeError(f"table field {key!r:.80}: {error}") from None


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


def _fixed_reader(kind: str) -> Read:
    """Reads a fixed-size type that no plain value stands for."""
    unpack, size = _FIXED[kind].unpack_from, _FIXED[kind].size

    def read(codec: TableCodec, data: bytes, at: int, end: int, depth: int, left: list[int]) -> tuple[Value, int]:
        return Typed(kind, unpack(data, at)[0]), at + size

    return read


def _read_int32(codec: TableCodec, data: bytes, at: int, end: int, depth: int, left: list[int]) -> tuple[Value, int]:
    return _int32_at(data, at)[0], at + 4


def _read_int64(codec: TableCodec, data: bytes, at: int, end: int, depth: int, left: list[int]) -> tuple[Value, int]:
    (value,) = _FIXED["int64"].unpack_from(data, at)
    return (Typed("int64", value) if INT32_MIN <= value <= INT32_MAX else value), at + 8


def _read_double(codec: TableCodec, data: bytes, at: int, end: int, depth: int, left: list[int]) -> tuple[Value, int]:
    return _FIXED["double"].unpack_from(data, at)[0], at + 8


def _read_bool(codec: TableCodec, data: bytes, at: int, end: int, depth: int, left: list[int]) -> tuple[Value, int]:
    return data[at] != 0, at + 1


def _read_void(codec: TableCodec, data: bytes, at: int, end: int, depth: int, left: list[int]) -> tuple[Value, int]:
    return None, at


def _read_decimal(codec: TableCodec, data: bytes, at: int, end: int, depth: int, left: list[int]) -> tuple[Value, int]:
    scale, unscaled = _DECIMAL.unpack_from(data, at)
    return Decimal(f"{unscaled}E-{scale}"), at + 5


def _read_timestamp(
    codec: TableCodec, data: bytes, at: int, end: int, depth: int, left: list[int]
) -> tuple[Value, int]:
    return Timestamp(_uint64_at(data, at)[0]), at + 8


def _read_octets(codec: TableCodec, data: bytes, at: int, end: int, depth: int, left: list[int]) -> tuple[Value, int]:
    (length,) = _length_at(data, at)
    at += 4
    stop = at + length
    if stop > end:
        raise overrun(length, end - at)
    return data[at:stop], stop


def _read_string(codec: TableCodec, data: bytes, at: int, end: int, depth: int, left: list[int]) -> tuple[Value, int]:
    octets, stop = _read_octets(codec, data, at, end, depth, left)
    try:
        return octets.decode(), stop
    except UnicodeDecodeError:
        return Typed("string", octets), stop


def _text_reader(kind: str) -> Read:
    encoding = _TEXT_CODECS[kind]

    def read(codec: TableCodec, data: bytes, at: int, end: int, depth: int, left: list[int]) -> tuple[Value, int]:
        octets, stop = _read_octets(codec, data, at, end, depth, left)
        return Typed(kind, octets.decode(encoding, "surrogateescape")), stop

    return read


def _octet_reader(kind: str, values: Iterable[Any]) -> Read:
    """Reads a type of one octet: there are but 256 values, and a frame may hold thousands."""
    made = tuple(Typed(kind, value) for value in values)

    def read(codec: TableCodec, data: bytes, at: int, end: int, depth: int, left: list[int]) -> tuple[Value, int]:
        return made[data[at]], at + 1

    return read


def _read_table(codec: TableCodec, data: bytes, at: int, end: int, depth: int, left: list[int]) -> tuple[Value, int]:
    return codec.read(data, at, end, depth + 1, left)


def _read_array(codec: TableCodec, data: bytes, at: int, end: int, depth: int, left: list[int]) -> tuple[Value, int]:
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
    "int8": _octet_reader("int8", (*range(128), *range(-128, 0))),
    "uint8": _octet_reader("uint8", range(256)),
    "char": _octet_reader("char", map(chr, range(256))),
} | {kind: _fixed_reader(kind) for kind in ("int16", "uint16", "uint32", "float")}


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
    "timestamp": struct.Struct(">Q").pack,
    "string": _write_string,
    "bytes": _sized,
    "str8-latin": lambda value: _sized(value.encode("latin-1")),
    "str16-utf16": lambda value: _sized(value.encode("utf-8", "surrogateescape")),
    "char": lambda value: bytes((ord(value),)),
} | {kind: layout.pack for kind, layout in _FIXED.items()}


_PLAIN_WRITERS: Final[Mapping[type, tuple[str, Callable[[int], Callable[[Any], bytes]]]]] = {
    bool: ("bool", lambda tag: (bytes((tag, 0)), bytes((tag, 1))).__getitem__),
    float: ("double", lambda tag: partial(struct.Struct(">Bd").pack, tag)),
    NoneType: ("void", lambda tag: {None: bytes((tag,))}.__getitem__),
}
"""Type -> its wire type, and what makes of a tag the function that writes tag and value; beside str and int."""
