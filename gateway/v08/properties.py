"""The content properties of the classes file, stream and tunnel (0-8 section 4.2.4). Those of basic, which the gateway
lives on, are in :mod:`gateway.classic.properties`.

A property list is a word of flags, most significant first, and the values of those that are set, in order. Bit 0 says
that another word of flags follows; as no class has more than 15 properties, none ever does. The classes test and dtx
have no properties, and their lists are two octets of nothing.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Self

from gateway.classic.tables import TableCodec
from gateway.errors import EncodeError, FrameSyntaxError
from gateway.values import Table
from gateway.wire.declare import DECODE_ERRORS, ENCODE_ERRORS
from gateway.wire.emit import Reader, Writer
from gateway.wire.types import FieldType, Integer, ShortString, TableType

_FLAGS = struct.Struct(">H")

Read = Callable[[bytes, int, int, TableCodec], tuple[Any, int]]
Write = Callable[[Any, TableCodec], bytes]


def _reader(kind: FieldType) -> Read:
    """``read(data, at, end, context)``: the value and where it ends."""
    out = Reader()
    kind.emit_read(out, "value")
    out.line("return value, at")
    return out.function("read(data, at, end, context)", [], {})


def _writer(kind: FieldType) -> Write:
    """``write(value, context)``: its octets."""
    out = Writer()
    kind.emit_write(out, "value")
    out.line(f"return {out.result()}")
    return out.function("write(value, context)", [], {})


_SHORT_STRING: Final = ShortString()
_OCTET: Final = Integer("B")
_TABLE: Final = TableType()
_TIMESTAMP: Final = Integer("Q")
_CODECS: Final[Mapping[FieldType, tuple[Read, Write]]] = {
    kind: (_reader(kind), _writer(kind)) for kind in (_SHORT_STRING, _OCTET, _TABLE, _TIMESTAMP)
}


class PropertyList:
    """Base of the three. A property that is None is absent."""

    __slots__ = ()

    class_id: ClassVar[int]
    layout: ClassVar[tuple[tuple[str, FieldType], ...]]
    """Name and type, in the order of the wire; the first has flag bit 15."""

    def encode(self, tables: TableCodec) -> bytes:
        """The flags and the values of the properties that are present.

        Raises:
            EncodeError: naming the property, its value and the limit.
        """
        flags, parts = 0, [b""]
        for index, (name, kind) in enumerate(self.layout):
            value = getattr(self, name)
            if value is None:
                continue
            flags |= 1 << 15 - index
            try:
                parts.append(_CODECS[kind][1](value, tables))
            except ENCODE_ERRORS as error:
                raise EncodeError(f"{name}: {kind.misfit(value) or error}") from None
        parts[0] = _FLAGS.pack(flags)
        return b"".join(parts)

    @classmethod
    def decode(cls, octets: bytes, tables: TableCodec) -> Self:
        """The properties of a complete list.

        Raises:
            FrameSyntaxError: malformed, or followed by anything.
        """
        values: dict[str, Any] = {}
        end = len(octets)
        try:
            (flags,) = _FLAGS.unpack_from(octets)
            at = 2
            for index, (name, kind) in enumerate(cls.layout):
                if flags >> 15 - index & 1:
                    values[name], at = _CODECS[kind][0](octets, at, end, tables)
        except DECODE_ERRORS as error:
            raise FrameSyntaxError(f"{cls.__name__} cannot be decoded: {error}", 502) from None
        if flags & (1 << 16 - len(cls.layout)) - 1:
            raise FrameSyntaxError(f"{cls.__name__}: flags {flags:#06x} name a property that the class has not", 502)
        if at != end:
            raise FrameSyntaxError(f"{cls.__name__} ends at octet {at} of {end}", 502)
        return cls(**values)


@dataclass(slots=True)
class FileProperties(PropertyList):
    """Of class file."""

    class_id: ClassVar[int] = 70
    layout: ClassVar[tuple[tuple[str, FieldType], ...]] = (
        ("content_type", _SHORT_STRING),
        ("content_encoding", _SHORT_STRING),
        ("headers", _TABLE),
        ("priority", _OCTET),
        ("reply_to", _SHORT_STRING),
        ("message_id", _SHORT_STRING),
        ("filename", _SHORT_STRING),
        ("timestamp", _TIMESTAMP),
        ("cluster_id", _SHORT_STRING),
    )

    content_type: str | None = None
    content_encoding: str | None = None
    headers: Table | None = None
    priority: int | None = None
    """0 to 9."""
    reply_to: str | None = None
    message_id: str | None = None
    filename: str | None = None
    timestamp: int | None = None
    """Seconds since 1970."""
    cluster_id: str | None = None


@dataclass(slots=True)
class StreamProperties(PropertyList):
    """Of class stream."""

    class_id: ClassVar[int] = 80
    layout: ClassVar[tuple[tuple[str, FieldType], ...]] = (
        ("content_type", _SHORT_STRING),
        ("content_encoding", _SHORT_STRING),
        ("headers", _TABLE),
        ("priority", _OCTET),
        ("timestamp", _TIMESTAMP),
    )

    content_type: str | None = None
    content_encoding: str | None = None
    headers: Table | None = None
    priority: int | None = None
    """0 to 9."""
    timestamp: int | None = None
    """Seconds since 1970."""


@dataclass(slots=True)
class TunnelProperties(PropertyList):
    """Of class tunnel."""

    class_id: ClassVar[int] = 110
    layout: ClassVar[tuple[tuple[str, FieldType], ...]] = (
        ("headers", _TABLE),
        ("proxy_name", _SHORT_STRING),
        ("data_name", _SHORT_STRING),
        ("durable", _OCTET),
        ("broadcast", _OCTET),
    )

    headers: Table | None = None
    proxy_name: str | None = None
    data_name: str | None = None
    """What is in the tunnel, by name or type."""
    durable: int | None = None
    broadcast: int | None = None


PROPERTY_LISTS: Final[Mapping[int, type[PropertyList]]] = {
    kind.class_id: kind for kind in (FileProperties, StreamProperties, TunnelProperties)
}
"""By the number of the class that stands in the content header."""
