"""Values at and beyond the edges of their types, as octets, for the grammar's sentences.

The writers here are the fuzzer's own: they can say what the gateway's encoders refuse to.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from random import Random
from typing import Any, Final

from gateway.classic.methods import Method
from gateway.v010.fields import Fields
from gateway.wire.types import BitType, Integer, LongString, ShortString, TableType

TEXTS: Final = (
    b"", b"q", b"tag", b"k", b"e", b"amq.direct", b"amq.fanout", b"amq.topic", b"amq.match", b"direct", b"made", b"*",
    b"#", b"/", b"guest", b"\x00guest\x00guest", b"PLAIN", b"AMQPLAIN", b"en_US", b"\xff\xfe", b"\xed\xa0\x80", b"\x00",
    b"a" * 255, b"\xe2\x98\x83", b"gateway-pull-1", b"x" * 128,
)  # fmt: skip
"""Names that mean something, and texts that mean nothing."""
TAGS: Final = b"tbBsuIilLfdDSATFVxcCk\x00Z"
CODES: Final = bytes(
    (
        0x00, 0x01, 0x02, 0x04, 0x08, 0x10, 0x11, 0x12, 0x20, 0x21, 0x22, 0x23, 0x27, 0x30, 0x31, 0x32, 0x33, 0x38,
        0x40, 0x48, 0x50, 0x60, 0x70, 0x80, 0x84, 0x85, 0x86, 0x90, 0x94, 0x95, 0x96, 0xA0, 0xA8, 0xA9, 0xAA, 0xAB,
        0xC0, 0xC8, 0xD0, 0xD8, 0xF0, 0xF1, 0x77, 0xFF,
    )
)  # fmt: skip
NESTING: Final = 4


def number(random: Random, octets: int) -> bytes:
    """An unsigned integer: small, at an edge, or any."""
    top = (1 << 8 * octets) - 1
    value = random.choice(
        (0, 1, 2, 3, random.randrange(12), top, top - 1, top >> 1, (top >> 1) + 1, random.randint(0, top))
    )
    return min(value, top).to_bytes(octets, "big")


def text(random: Random) -> bytes:
    """A name, or any octets."""
    if random.random() < 0.8:
        return random.choice(TEXTS)
    return random.randbytes(random.randrange(40))


def sized(random: Random, octets: bytes, width: int) -> bytes:
    """``octets`` behind their length, which is a lie now and then."""
    length = len(octets)
    if random.random() < 0.02:
        length = random.choice((0, length + 1, max(length - 1, 0), (1 << 8 * width) - 1, 0x7FFFFFFE))
    return min(length, (1 << 8 * width) - 1).to_bytes(width, "big") + octets[: (1 << 8 * width) - 1]


# --------------------------------------------------------------------------------------------------- classic


def table(random: Random, depth: int = 0) -> bytes:
    """A field table with its length."""
    count = random.choice((0, 0, 1, 1, 2, 3, 5))
    return sized(random, b"".join(sized(random, text(random), 1) + field(random, depth) for _ in range(count)), 4)


def field(random: Random, depth: int) -> bytes:
    """A tagged value."""
    tag = random.choice(TAGS)
    return bytes((tag,)) + _FIELDS.get(tag, _nothing)(random, depth)


def _nothing(random: Random, depth: int) -> bytes:
    return b""


def _octets(width: int) -> Callable[[Random, int], bytes]:
    return lambda random, depth: number(random, width)


def _long_text(random: Random, depth: int) -> bytes:
    return sized(random, text(random), 4)


def _array(random: Random, depth: int) -> bytes:
    count = 0 if depth >= NESTING else random.choice((0, 1, 2, 6))
    return sized(random, b"".join(field(random, depth + 1) for _ in range(count)), 4)


_FIELDS: Final[Mapping[int, Callable[[Random, int], bytes]]] = {
    **dict.fromkeys(b"tbBk", _octets(1)),
    **dict.fromkeys(b"su", _octets(2)),
    **dict.fromkeys(b"Iif", _octets(4)),
    **dict.fromkeys(b"lLdT", _octets(8)),
    ord("D"): lambda random, depth: number(random, 1) + number(random, 4),
    **dict.fromkeys(b"SxcC", _long_text),
    ord("A"): _array,
    ord("F"): lambda random, depth: table(random, depth + 1) if depth < NESTING else b"\x00\x00\x00\x00",
}  # fmt: skip


def method(random: Random, kind: type[Method]) -> bytes:
    """The payload of a method frame."""
    parts = [struct.pack(">HH", kind.class_id, kind.method_id)]
    bits = 0
    for _, declared in kind.layout:
        if isinstance(declared, BitType):
            bits += 1
            if bits % 8 == 1:
                parts.append(random.choice((b"\x00", b"\x01", b"\x02", b"\xff", random.randbytes(1))))
            continue
        bits = 0
        parts.append(_classic(random, declared))
    return b"".join(parts)


def _classic(random: Random, declared: Any) -> bytes:
    if isinstance(declared, Integer):
        return number(random, struct.calcsize(">" + declared.code))
    if isinstance(declared, ShortString):
        return sized(random, text(random)[:255], 1)
    if isinstance(declared, LongString):
        return sized(random, text(random) if random.random() < 0.9 else table(random)[4:], 4)
    assert isinstance(declared, TableType)
    return table(random)


def properties(random: Random) -> bytes:
    """A property list: flags and values, mostly of a kind."""
    flags = random.choice((0, 0x8000, 0x3000, 0xFFFC, random.randrange(1 << 16) & 0xFFFC, random.randrange(1 << 16)))
    parts = [flags.to_bytes(2, "big")]
    for bit in range(15, 1, -1):
        if flags >> bit & 1:
            if bit == 13:
                parts.append(table(random))
            elif bit in (12, 11):
                parts.append(number(random, 1))
            elif bit == 6:
                parts.append(number(random, 8))
            else:
                parts.append(sized(random, text(random)[:255], 1))
    return b"".join(parts)


# ------------------------------------------------------------------------------------------------------ 0-10


def mapping(random: Random, depth: int = 0) -> bytes:
    """A map with its size and count."""
    entries = [
        sized(random, text(random)[:255], 1) + value(random, depth) for _ in range(random.choice((0, 1, 1, 2, 4)))
    ]
    return _counted(random, entries)


def _counted(random: Random, entries: list[bytes]) -> bytes:
    count = len(entries) if random.random() < 0.97 else random.choice((0, len(entries) + 1, 0x7FFFFFFF, 0xFFFFFFFF))
    return sized(random, count.to_bytes(4, "big") + b"".join(entries), 4)


def value(random: Random, depth: int) -> bytes:
    """A value with its type code."""
    code = random.choice(CODES)
    return bytes((code,)) + body_of(random, code, depth)


def body_of(random: Random, code: int, depth: int) -> bytes:
    """The octets of a value of a type code."""
    if code in _VALUES:
        return _VALUES[code](random, depth)
    width = {0x0: 1, 0x1: 2, 0x2: 4, 0x3: 8, 0x4: 16, 0x5: 32, 0x6: 64, 0x7: 128, 0xC: 5, 0xD: 9}.get(code >> 4, 0)
    return number(random, width) if width in (1, 2, 4, 8) else random.randbytes(width)


def _list(random: Random, depth: int) -> bytes:
    count = 0 if depth >= NESTING else random.choice((0, 1, 2, 6))
    return _counted(random, [value(random, depth + 1) for _ in range(count)])


def _typed_array(random: Random, depth: int) -> bytes:
    code = random.choice(CODES)
    items = [body_of(random, code, NESTING) for _ in range(random.choice((0, 1, 3)))]
    count = len(items) if random.random() < 0.9 else 0x80000000
    return sized(random, bytes((code,)) + count.to_bytes(4, "big") + b"".join(items), 4)


def _struct(random: Random, depth: int) -> bytes:
    return sized(random, number(random, 2) + number(random, 2) + text(random), 4)


_VALUES: Final[Mapping[int, Callable[[Random, int], bytes]]] = {
    **dict.fromkeys((0x80, 0x84, 0x85, 0x86), lambda random, depth: sized(random, text(random)[:255], 1)),
    **dict.fromkeys((0x90, 0x94, 0x95, 0x96), lambda random, depth: sized(random, text(random), 2)),
    0xA0: lambda random, depth: sized(random, text(random), 4),
    0xA8: lambda random, depth: mapping(random, depth + 1) if depth < NESTING else b"\x00\x00\x00\x00",
    0xA9: _list,
    0xAA: _typed_array,
    0xAB: _struct,
}


def sequence_set(random: Random) -> bytes:
    """Ranges of command ids: plausible, empty, wide, upside down."""
    parts = []
    for _ in range(random.choice((0, 1, 1, 1, 2, 5))):
        first = random.choice((0, 1, 2, 3, random.randrange(20), 0xFFFFFFFF, 0x7FFFFFFF, random.randrange(1 << 32)))
        last = random.choice(
            (first, first, first + 1, first + 5, first - 1, first + 0x7FFFFFFF, random.randrange(1 << 32))
        )
        parts.append(struct.pack(">II", first, last & 0xFFFFFFFF))
    return sized(random, b"".join(parts), 2)


def byte_ranges(random: Random) -> bytes:
    """Parts of something large."""
    parts = [number(random, 8) + number(random, 8) for _ in range(random.choice((0, 1, 1, 3)))]
    return sized(random, b"".join(parts), 2)


def _branch(random: Random) -> bytes:
    """The fields of an xid: mostly one of three, so that what is done to it is done to the same one again."""
    if random.random() < 0.8:
        return b"\x07\x00\x00\x00\x00\x01\x02gt\x01" + random.choice((b"a", b"b", b"c"))
    flags = random.choice((0x0700, 0x0700, 0x0300, 0x0000, 0x0800))
    octets = flags.to_bytes(2, "big") + number(random, 4)
    return octets + sized(random, random.randbytes(random.choice((0, 1, 64, 65, 255))), 1) + sized(random, b"b", 1)


def xid(random: Random) -> bytes:
    """A branch in Qpid's form, or in the published one."""
    if random.random() < 0.2:
        return sized(random, _branch(random), 2)
    code = b"\x06\x04" if random.random() < 0.97 else random.choice((b"\x06\x05", b"\x00\x00"))
    return sized(random, code + _branch(random), 4)


_KINDS: Final[Mapping[str, Callable[[Random], bytes]]] = {
    "uint8": lambda random: number(random, 1),
    "uint16": lambda random: number(random, 2),
    "uint32": lambda random: number(random, 4),
    "uint64": lambda random: number(random, 8),
    "datetime": lambda random: number(random, 8),
    "sequence-no": lambda random: number(random, 4),
    "uuid": lambda random: random.randbytes(16),
    "str8": lambda random: sized(random, text(random)[:255], 1),
    "str16": lambda random: sized(random, text(random), 2),
    "vbin8": lambda random: sized(random, text(random)[:255], 1),
    "vbin16": lambda random: sized(random, text(random), 2),
    "vbin32": lambda random: sized(random, text(random), 4),
    "struct32": lambda random: _struct(random, 0),
    "map": mapping,
    "array": lambda random: _typed_array(random, 0),
    "str16-array": lambda random: sized(
        random, b"\x95\x00\x00\x00\x02" + b"".join(sized(random, text(random), 2) for _ in range(2)), 4
    ),
    "sequence-set": sequence_set,
    "byte-ranges": byte_ranges,
    "xid": xid,
    "reply-to": lambda random: sized(random, b"\x03\x00" + sized(random, b"e", 1) + sized(random, b"k", 1), 2),
}


def fields(random: Random, kind: type[Fields]) -> bytes:
    """Presence bits and fields of a declared struct; nearly always all that it must have."""
    flags, parts = 0, [b""]
    for _, mask, declared, absent in kind.layout:
        if random.random() < (0.25 if declared is None else 0.3 if absent is None else 0.95):
            flags |= mask
            if declared is not None:
                parts.append(_KINDS[declared.name](random))
    if random.random() < 0.02:
        flags ^= 1 << random.randrange(16)
    parts[0] = flags.to_bytes(2, "big")
    return b"".join(parts)
