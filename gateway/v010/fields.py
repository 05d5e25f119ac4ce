"""Declared structs of AMQP 0-10: fields with presence bits (specification section 3.2).

A declared struct names its fields in the order of the specification, each annotated with one of the wire types
below (``Str8``, ``Bit``, …). A field is on the wire if its presence bit is set; the bits are packed into as many
octets as the specification's ``pack`` says, nearly always two, the first field being the lowest bit of the *first*
octet. A field that is absent takes its default: an optional one None, a required one the empty value (what Qpid's
implementations do). Where ``pack`` is 0 there are no bits, and every field is there. What is raised while reading is
:class:`~gateway.errors.FrameSyntaxError`, while writing :class:`~gateway.errors.EncodeError`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any, ClassVar, Final, TypeAlias, TypeVar, cast, get_args, get_origin, get_type_hints
from uuid import UUID

from gateway.amqp.values import Table
from gateway.errors import EncodeError, FrameSyntaxError
from gateway.limits import DEFAULT_LIMITS, Limits
from gateway.session import Role
from gateway.v010.codec import READ_ERRORS, Reading, check_array, read_map
from gateway.v010.encoders import write_map

SEQUENCE_SET_MAX: Final = 0xFFFF // 8
"""Most ranges of one sequence-set: its size field has 16 bits."""

_U16 = struct.Struct(">H")
_U32 = struct.Struct(">I")

Ranges: TypeAlias = tuple[tuple[int, int], ...]
"""Ranges of command ids as they are on the wire: first and last, both included, modulo 2**32."""
ByteSpans: TypeAlias = tuple[tuple[int, int], ...]
"""Parts of something of up to 2**64 octets: the offsets of the first and the last, both included."""


def _text(octets: bytes) -> str:
    return str(octets, "utf-8", "surrogateescape")


def _octets(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


# --------------------------------------------------------------------------------------------- field types


@dataclass(frozen=True, slots=True)
class FieldType:
    """How a field of a struct is read and written. ``read`` returns the value and the offset behind it."""

    name: str
    read: Callable[[bytes, int, Limits], tuple[Any, int]]
    write: Callable[[Any], bytes]


def _integer(name: str, form: str) -> FieldType:
    packed = struct.Struct(form)
    return FieldType(
        name,
        lambda data, at, limits: (packed.unpack_from(data, at)[0], at + packed.size),
        lambda value: packed.pack(value),
    )


def _string(name: str, size_octets: int) -> FieldType:
    def read(data: bytes, at: int, limits: Limits) -> tuple[str, int]:
        start = at + size_octets
        end = start + int.from_bytes(data[at:start], "big")
        return _text(data[start:end]), end

    def write(value: str) -> bytes:
        octets = _octets(value)
        return len(octets).to_bytes(size_octets, "big") + octets

    return FieldType(name, read, write)


def _binary(name: str, size_octets: int) -> FieldType:
    def read(data: bytes, at: int, limits: Limits) -> tuple[bytes, int]:
        start = at + size_octets
        end = start + int.from_bytes(data[at:start], "big")
        return data[start:end], end

    return FieldType(name, read, lambda value: len(value).to_bytes(size_octets, "big") + value)


def _read_text_array(data: bytes, at: int, limits: Limits) -> tuple[tuple[str, ...], int]:
    """str16-array. The elements may be of either kind of UTF-8 string, and none of any kind: Qpid has sent several."""
    size = _U32.unpack_from(data, at)[0]
    at += 4
    end = at + size
    if end > len(data):
        raise FrameSyntaxError(f"an array of {size} octets where {len(data) - at} are left")
    if size == 0:
        return (), end
    reading = Reading(limits)
    count = check_array(data, at, size, reading)
    code = data[at]
    if not count:
        return (), end
    if code not in (0x85, 0x95):
        raise FrameSyntaxError(f"an array of type 0x{code:02x} where one of strings belongs")
    size_octets = 1 if code == 0x85 else 2
    at += 5
    result = []
    for _ in range(count):
        start = at + size_octets
        at = start + int.from_bytes(data[at:start], "big")
        result.append(_text(data[start:at]))
    if at != end:
        raise FrameSyntaxError("the elements of an array do not fill it")
    return tuple(result), end


def _write_text_array(value: tuple[str, ...]) -> bytes:
    body = b"".join([_U16.pack(len(octets)) + octets for octets in map(_octets, value)])
    return struct.pack(">IBI", len(body) + 5, 0x95, len(value)) + body


def _read_sequence_set(data: bytes, at: int, limits: Limits) -> tuple[Ranges, int]:
    size = _U16.unpack_from(data, at)[0]
    at += 2
    end = at + size
    if size & 7 or end > len(data):
        raise FrameSyntaxError(f"a sequence-set of {size} octets")
    numbers = struct.unpack_from(f">{size >> 2}I", data, at)
    ranges = tuple(zip(numbers[::2], numbers[1::2], strict=True))
    for first, last in ranges:
        if (last - first) & 0xFFFFFFFF > 0x7FFFFFFF:
            raise FrameSyntaxError(f"a sequence-set with the range {first} to {last}")
    return ranges, end


def write_sequence_set(ranges: Ranges) -> bytes:
    """At most :data:`SEQUENCE_SET_MAX` ranges of numbers modulo 2**32, or of larger ones that are cut."""
    parts = [struct.pack(">II", first & 0xFFFFFFFF, last & 0xFFFFFFFF) for first, last in ranges]
    return _U16.pack(len(parts) * 8) + b"".join(parts)


def _read_byte_ranges(data: bytes, at: int, limits: Limits) -> tuple[ByteSpans, int]:
    size = _U16.unpack_from(data, at)[0]
    at += 2
    end = at + size
    if size & 15 or end > len(data):
        raise FrameSyntaxError(f"byte-ranges of {size} octets")
    numbers = struct.unpack_from(f">{size >> 3}Q", data, at)
    ranges = tuple(zip(numbers[::2], numbers[1::2], strict=True))
    for first, last in ranges:
        if first > last:
            raise FrameSyntaxError(f"byte-ranges with the range {first} to {last}")
    return ranges, end


def _write_byte_ranges(ranges: ByteSpans) -> bytes:
    parts = [struct.pack(">QQ", first, last) for first, last in ranges]
    return _U16.pack(len(parts) * 16) + b"".join(parts)


def _read_uuid_field(data: bytes, at: int, limits: Limits) -> tuple[UUID, int]:
    return UUID(bytes=data[at : at + 16]), at + 16


Bit: TypeAlias = Annotated[bool, "bit"]
"""The presence bit is the value."""
Uint8: TypeAlias = Annotated[int, _integer("uint8", ">B")]
Uint16: TypeAlias = Annotated[int, _integer("uint16", ">H")]
Uint32: TypeAlias = Annotated[int, _integer("uint32", ">I")]
Uint64: TypeAlias = Annotated[int, _integer("uint64", ">Q")]
SequenceNo: TypeAlias = Annotated[int, _integer("sequence-no", ">I")]
Datetime: TypeAlias = Annotated[int, _integer("datetime", ">Q")]
Uuid: TypeAlias = Annotated[UUID, FieldType("uuid", _read_uuid_field, lambda value: value.bytes)]
Str8: TypeAlias = Annotated[str, _string("str8", 1)]
Str16: TypeAlias = Annotated[str, _string("str16", 2)]
Vbin8: TypeAlias = Annotated[bytes, _binary("vbin8", 1)]
Vbin16: TypeAlias = Annotated[bytes, _binary("vbin16", 2)]
Vbin32: TypeAlias = Annotated[bytes, _binary("vbin32", 4)]
Map: TypeAlias = Annotated[Table, FieldType("map", read_map, write_map)]
Array: TypeAlias = Annotated[bytes, _binary("array", 4)]
"""An array that is not taken apart: element code, count and elements."""
Struct32: TypeAlias = Annotated[bytes, _binary("struct32", 4)]
"""A coded struct that is not taken apart: code, presence bits and fields."""
Str16Array: TypeAlias = Annotated[tuple[str, ...], FieldType("str16-array", _read_text_array, _write_text_array)]
ByteRanges: TypeAlias = Annotated[ByteSpans, FieldType("byte-ranges", _read_byte_ranges, _write_byte_ranges)]
SequenceSet: TypeAlias = Annotated[Ranges, FieldType("sequence-set", _read_sequence_set, write_sequence_set)]


# ------------------------------------------------------------------------------------------ declared structs

SERVER: Final = frozenset((Role.SERVER,))
CLIENT: Final = frozenset((Role.CLIENT,))
EITHER: Final = SERVER | CLIENT
"""Which end has to understand a control or command."""

_S = TypeVar("_S", bound="Fields")


class Fields:
    """A declared struct: presence bits, then the fields that are present."""

    __slots__ = ()

    spelled: ClassVar[str] = ""
    """``class.name`` as the specification spells it."""
    code: ClassVar[int] = 0
    """Class in the high octet, control, command or struct in the low one; 0: a struct that has none."""
    size: ClassVar[int] = 0
    """Octets of the length in front of a struct; 0: none."""
    pack: ClassVar[int] = 2
    """Octets of presence bits."""
    layout: ClassVar[tuple[tuple[str, int, FieldType | None, Any], ...]] = ()
    """Field name, presence bit, type (None: bit), value when absent."""
    known: ClassVar[int] = 0
    """All presence bits that are defined."""
    domains: ClassVar[Mapping[str, str]] = {}
    """Field name -> domain, for the fields that have one."""

    def encode_fields(self) -> bytes:
        """Presence bits and fields."""
        flags = 0
        parts = [b""]
        for name, mask, kind, _ in self.layout:
            value = getattr(self, name)
            if kind is None:
                if value:
                    flags |= mask
            elif value is not None:
                flags |= mask
                try:
                    parts.append(kind.write(value))
                except (struct.error, OverflowError, TypeError, ValueError, AttributeError):
                    raise EncodeError(f"{self.spelled}.{name} does not fit a {kind.name}: {value!r:.80}") from None
            elif not self.pack:
                raise EncodeError(f"{self.spelled}.{name} is missing")
        parts[0] = flags.to_bytes(self.pack, "big") if self.pack else b""
        return b"".join(parts)

    @classmethod
    def decode_fields(cls: type[_S], data: bytes, at: int, end: int, limits: Limits = DEFAULT_LIMITS) -> _S:
        """The struct whose presence bits lie at ``at`` and whose fields end at ``end``. ``data`` may be longer."""
        try:
            flags = _PRESENCE[cls.pack](data, at)[0] if cls.pack else cls.known
            at += cls.pack
            if flags & ~cls.known:
                raise FrameSyntaxError(f"{cls.spelled}: unknown fields, presence bits {flags:04x}")
            values = []
            for _, mask, kind, absent in cls.layout:
                if kind is None:
                    values.append(flags & mask != 0)
                elif flags & mask:
                    value, at = kind.read(data, at, limits)
                    values.append(value)
                else:
                    values.append(absent)
        except READ_ERRORS as error:
            raise FrameSyntaxError(f"{cls.spelled}: {error}") from None
        if at != end:
            raise FrameSyntaxError(f"{cls.spelled}: its fields end {at - end:+d} octets from its end")
        return cls(*values)

    def encode_sized(self) -> bytes:
        """The struct as it stands in a field: length, code if it has one, presence bits and fields."""
        octets = self.encode_fields()
        if self.code:
            octets = self.code.to_bytes(2, "big") + octets
        return len(octets).to_bytes(self.size, "big") + octets

    @classmethod
    def decode_sized(cls: type[_S], data: bytes, at: int, limits: Limits = DEFAULT_LIMITS) -> tuple[_S, int]:
        """The struct whose length is at ``at``, and the offset behind it."""
        start = at + cls.size
        end = start + int.from_bytes(data[at:start], "big")
        if end > len(data):
            raise FrameSyntaxError(f"{cls.spelled} of {end - start} octets where {len(data) - start} are left")
        if cls.code:
            if int.from_bytes(data[start : start + 2], "big") != cls.code:
                raise FrameSyntaxError(f"a struct that begins {data[start:end][:2].hex()} where {cls.spelled} belongs")
            start += 2
        return cls.decode_fields(data, start, end, limits), end


_PRESENCE: Final = {1: struct.Struct(">B").unpack_from, 2: _U16.unpack_from}
"""Octets of presence bits -> what reads them."""


def declare(cls: type[_S], name: str, code: int = 0, size: int = 0, pack: int = 2) -> type[_S]:
    """Make a dataclass with slots of ``cls`` and compile its fields into :attr:`Fields.layout`. ``name`` is spelled as
    in the specification; the others are attributes of :class:`Fields`."""
    made = dataclass(slots=True)(cls)
    made.spelled = name
    made.code = code
    made.size = size
    made.pack = pack
    hints = get_type_hints(made, include_extras=True)
    layout = []
    domains = {}
    known = 0
    for index, item in enumerate(fields(cast(Any, made))):
        mask = 1 << (index % 8 + 8 * max(pack - 1 - index // 8, 0))
        known |= mask
        kind, domain = _field_type(hints[item.name])
        layout.append((item.name, mask, kind, item.default))
        if domain:
            domains[item.name] = domain
    made.layout = tuple(layout)
    made.known = known
    made.domains = domains
    return made


def _field_type(hint: Any) -> tuple[FieldType | None, str]:
    """The wire type in ``Annotated[...]``, alone or as one side of a union with None, and the domain behind it."""
    if get_origin(hint) is not Annotated:
        hint = next(side for side in get_args(hint) if get_origin(side) is Annotated)
    kind, *domain = hint.__metadata__
    return kind if isinstance(kind, FieldType) else None, domain[-1] if domain else ""
