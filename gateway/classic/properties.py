"""The 14 content properties of class basic, the same in 0-8 and 0-9-1 (0-9-1 section 4.2.6.1).

A property list is a word of flags, most significant first, and the values of those that are set, in order. Bit 0
says that another word of flags follows; as basic has 14 properties it never does.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Final

from gateway.classic.tables import TableCodec
from gateway.errors import EncodeError, FrameSyntaxError
from gateway.message import Properties
from gateway.wire.declare import DECODE_ERRORS
from gateway.wire.emit import Emitter
from gateway.wire.types import FieldType, Integer, ShortString, TableType

_FLAGS = struct.Struct(">H")
_TIMESTAMP = struct.Struct(">Q")

ORDER: Final = (
    "content_type", "content_encoding", "headers", "delivery_mode", "priority", "correlation_id", "reply_to",
    "expiration", "message_id", "timestamp", "type", "user_id", "app_id", "cluster_id",
)  # fmt: skip
"""In the order of the wire; the first has flag bit 15."""
FLAG: Final = {name: 1 << (15 - index) for index, name in enumerate(ORDER)}
_UNKNOWN_FLAGS: Final = 0xFFFF ^ sum(FLAG.values())
USER_ID: Final = FLAG["user_id"]


def encode(properties: Properties, tables: TableCodec) -> bytes:
    """The flags and values of the properties that are present.

    Raises:
        EncodeError: naming the property, its length and the limit.
    """
    try:
        octets: bytes = _encode(properties, tables)
    except (struct.error, AttributeError, TypeError, UnicodeEncodeError) as error:
        raise _misfit(properties, error) from None
    return octets


def decode(octets: bytes, tables: TableCodec) -> Properties:
    """The properties of a complete list.

    Raises:
        FrameSyntaxError: malformed, or followed by anything.
    """
    try:
        (flags,) = _FLAGS.unpack_from(octets)
        if flags & _UNKNOWN_FLAGS:
            raise FrameSyntaxError(f"content properties: flags {flags:#06x} name a property that basic has not", 502)
        properties = Properties()
        at, end = 2, len(octets)
        for name, flag in FLAG.items():
            if not flags & flag:
                continue
            if name == "headers":
                properties.headers, at = tables.read(octets, at, end)
            elif name == "timestamp":
                properties.timestamp = _TIMESTAMP.unpack_from(octets, at)[0]
                at += 8
            elif flag & _OCTETS:
                setattr(properties, name, octets[at])
                at += 1
            else:
                start = at + 1
                at = start + octets[at]
                setattr(properties, name, octets[start:at].decode("utf-8", "surrogateescape"))
    except DECODE_ERRORS as error:
        raise FrameSyntaxError(f"content properties cannot be decoded: {error}", 502) from None
    if at != end:
        raise FrameSyntaxError(f"content properties end at octet {at} of {end}", 502)
    return properties


_OCTETS: Final = FLAG["delivery_mode"] | FLAG["priority"]
_TYPES: Final[Mapping[str, FieldType]] = {
    **dict.fromkeys(ORDER, ShortString()),
    "headers": TableType(),
    "delivery_mode": Integer("B"),
    "priority": Integer("B"),
    "timestamp": Integer("Q"),
}


def _misfit(properties: Properties, error: Exception) -> EncodeError:
    """Which property could not be encoded, found after the fact."""
    for name in ORDER:
        value = getattr(properties, name)
        if value is not None and (reason := _TYPES[name].misfit(value)) is not None:
            return EncodeError(f"{name}: {reason}")
    return EncodeError(f"properties: {error}")


def _compile() -> Callable[[Properties, TableCodec], bytes]:
    """Straight-line code that asks for each property once."""
    out = Emitter()
    out.line("flags = 0")
    out.line("parts = [b'']")
    out.line("add = parts.append")
    for name, flag in FLAG.items():
        out.line(f"v = properties.{name}")
        with out.block("if v is not None:"):
            out.line(f"flags |= {flag}")
            if name == "headers":
                out.line("add(tables.encode(v))")
            elif isinstance(kind := _TYPES[name], Integer):
                out.line(f"add({out.name('pack', struct.Struct('>' + kind.code).pack)}(v))")
            else:
                out.line("v = v.encode('utf-8', 'surrogateescape')")
                # Over 255 octets there is no such length, and None makes the join fail.
                out.line("add(lengths[len(v)] if len(v) < 256 else None)")
                out.line("add(v)")
    out.line("parts[0] = flags_of(flags)")
    out.line("return join(parts)")
    names = {"lengths": [bytes((size,)) for size in range(256)], "flags_of": _FLAGS.pack, "join": b"".join}
    made: Callable[[Properties, TableCodec], bytes] = out.function("encode(properties, tables)", [], names)
    return made


_encode: Final = _compile()
