"""Types of fields that the other versions do not have.

``rfc1982-long-set`` is a length in octets, 16 bits, and pairs of 32-bit numbers: the first and the last of each range.
``content`` is an octet, 0 for a body and 1 for the name of a reference, and a long string that is the one or the other.
The definition gives neither; this is how Qpid wrote them when it spoke the draft.
"""

from __future__ import annotations

import struct
from typing import Annotated, Any, Final, TypeAlias
from uuid import UUID

from gateway.errors import FrameSyntaxError
from gateway.wire.emit import Reader, Writer
from gateway.wire.types import FieldType, overrun

INLINE: Final = 0
REFERENCE: Final = 1
"""The first octet of a content."""

Ranges: TypeAlias = tuple[tuple[int, int], ...]
"""Ranges of serial numbers, both ends included."""
RANGES_MAX: Final = 0xFFFF // 8
"""How many one set has room for."""
NO_UUID: Final = UUID(int=0)


class ReferenceTo(bytes):
    """The name of a reference, in the place of a body."""

    __slots__ = ()


def read_ranges(data: bytes, at: int, end: int) -> tuple[Ranges, int]:
    """The set at ``at`` and where it ends."""
    (size,) = struct.unpack_from(">H", data, at)
    at += 2
    if size > end - at:
        raise overrun(size, end - at)
    if size % 8:
        raise FrameSyntaxError(f"a rfc1982-long-set of {size} octets, which are no pairs", 502)
    return tuple(struct.iter_unpack(">II", data[at : at + size])), at + size


def write_ranges(ranges: Ranges) -> bytes:
    """A set with its length."""
    return struct.pack(">H", 8 * len(ranges)) + b"".join([struct.pack(">II", *pair) for pair in ranges])


def read_content(data: bytes, at: int, end: int) -> tuple[bytes, int]:
    """The content at ``at``, the octets of a body or a :class:`ReferenceTo`, and where it ends."""
    kind, size = struct.unpack_from(">BI", data, at)
    at += 5
    if size > end - at:
        raise overrun(size, end - at)
    if kind > REFERENCE:
        raise FrameSyntaxError(f"a content of kind {kind}, which is neither inline nor a reference", 502)
    octets = data[at : at + size]
    return ReferenceTo(octets) if kind else octets, at + size


def write_content(content: bytes) -> bytes:
    """A content with its kind and length; octets that are no ReferenceTo are a body."""
    return struct.pack(">BI", REFERENCE if isinstance(content, ReferenceTo) else INLINE, len(content)) + content


class SerialSetType(FieldType):
    """A set of ranges of serial numbers."""

    default: Any = ()

    def emit_read(self, out: Reader, target: str) -> None:
        out.line(f"{target}, at = {out.name('ranges', read_ranges)}(data, at, end)")

    def emit_write(self, out: Writer, source: str) -> None:
        out.octets(f"{out.name('ranges', write_ranges)}({source})")

    def misfit(self, value: Any) -> str | None:
        if not isinstance(value, tuple):
            return f"{value!r:.80} is no tuple of ranges"
        if len(value) > RANGES_MAX:
            return f"{len(value)} ranges are more than {RANGES_MAX}"
        for pair in value:
            try:
                struct.pack(">II", *pair)
            except (struct.error, TypeError):
                return f"{pair!r:.80} is no range of 32-bit numbers"
        return None


class ContentType(FieldType):
    """A body, or the reference to one."""

    default: Any = b""

    def emit_read(self, out: Reader, target: str) -> None:
        out.line(f"{target}, at = {out.name('content', read_content)}(data, at, end)")

    def emit_write(self, out: Writer, source: str) -> None:
        out.octets(f"{out.name('content', write_content)}({source})")

    def misfit(self, value: Any) -> str | None:
        return None if isinstance(value, bytes) else f"{value!r:.80} is no octets"


class UuidType(FieldType):
    """A UUID (RFC 9562), 16 octets."""

    default: Any = NO_UUID

    def emit_read(self, out: Reader, target: str) -> None:
        out.line(f"if end - at < 16: raise {out.name('overrun', overrun)}(16, end - at)")
        out.line(f"{target} = {out.name('uuid', UUID)}(bytes=data[at:at + 16])")
        out.line("at += 16")

    def emit_write(self, out: Writer, source: str) -> None:
        out.octets(f"{source}.bytes")

    def misfit(self, value: Any) -> str | None:
        return None if isinstance(value, UUID) else f"{value!r:.80} is no UUID"


SerialSet: TypeAlias = Annotated[Ranges, SerialSetType()]
Content: TypeAlias = Annotated[bytes, ContentType()]
Uuid: TypeAlias = Annotated[UUID, UuidType()]
