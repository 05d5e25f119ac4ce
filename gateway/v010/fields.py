"""Declared structs of AMQP 0-10: fields with presence bits (specification section 3.2).

A declared struct names its fields in the order of the specification, each annotated with one of the wire types
below (``Str8``, ``Bit``, …). A field is on the wire if its presence bit is set; the bits are packed into two
octets, the first field being the lowest bit of the *first* octet. A field that is absent takes its default: an
optional one None, a required one the empty value (what Qpid's implementations do). What is raised while reading is
:class:`~gateway.errors.FrameSyntaxError`, while writing :class:`~gateway.errors.EncodeError`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Annotated, Any, ClassVar, Final, TypeAlias, TypeVar, cast, get_args, get_origin, get_type_hints
from uuid import UUID

from gateway.errors import EncodeError, FrameSyntaxError
from gateway.limits import DEFAULT_LIMITS, Limits
from gateway.v010.codec import READ_ERRORS, Reading, check_array, read_map
from gateway.v010.encoders import write_map
from gateway.values import Table

SEQUENCE_SET_MAX: Final = 0xFFFF // 8
"""Most ranges of one sequence-set: its size field has 16 bits."""

_U16 = struct.Struct(">H")
_U32 = struct.Struct(">I")

Ranges: TypeAlias = tuple[tuple[int, int], ...]
"""Ranges of command ids as they are on the wire: first and last, both included, modulo 2**32."""


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
    """str16-array. The elements may be of any string type: Qpid has sent several."""
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
Vbin16: TypeAlias = Annotated[bytes, _binary("vbin16", 2)]
Vbin32: TypeAlias = Annotated[bytes, _binary("vbin32", 4)]
Map: TypeAlias = Annotated[Table, FieldType("map", read_map, write_map)]
Array: TypeAlias = Annotated[bytes, _binary("array", 4)]
"""An array that is not taken apart: element code, count and elements."""
Struct32: TypeAlias = Annotated[bytes, _binary("struct32", 4)]
"""A coded struct that is not taken apart: code, presence bits and fields."""
Str16Array: TypeAlias = Annotated[tuple[str, ...], FieldType("str16-array", _read_text_array, _write_text_array)]
SequenceSet: TypeAlias = Annotated[Ranges, FieldType("sequence-set", _read_sequence_set, write_sequence_set)]


# ------------------------------------------------------------------------------------------ declared structs

_S = TypeVar("_S", bound="Fields")


class Fields:
    """A declared struct: presence bits in two octets, then the fields that are present."""

    __slots__ = ()

    spelled: ClassVar[str] = ""
    """``class.name`` as the specification spells it."""
    layout: ClassVar[tuple[tuple[str, int, FieldType | None, Any], ...]] = ()
    """Field name, presence bit, type (None: bit), value when absent."""
    known: ClassVar[int] = 0
    """All presence bits that are defined."""

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
        parts[0] = _U16.pack(flags)
        return b"".join(parts)

    @classmethod
    def decode_fields(cls: type[_S], data: bytes, at: int, end: int, limits: Limits = DEFAULT_LIMITS) -> _S:
        """The struct whose presence bits lie at ``at`` and whose fields end at ``end``. ``data`` may be longer."""
        try:
            flags = _U16.unpack_from(data, at)[0]
            at += 2
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


def declare(cls: type[_S], name: str) -> type[_S]:
    """Make a dataclass with slots of ``cls`` and compile its fields into :attr:`Fields.layout`."""
    made = dataclass(slots=True)(cls)
    made.spelled = name
    hints = get_type_hints(made, include_extras=True)
    layout = []
    known = 0
    for index, item in enumerate(fields(cast(Any, made))):
        mask = 1 << (index % 8 + (0 if index >= 8 else 8))
        known |= mask
        layout.append((item.name, mask, _field_type(hints[item.name]), item.default))
    made.layout = tuple(layout)
    made.known = known
    return made


def _field_type(hint: Any) -> FieldType | None:
    """The wire type in ``Annotated[...]``, alone or as one side of a union with None."""
    if get_origin(hint) is not Annotated:
        hint = next(side for side in get_args(hint) if get_origin(side) is Annotated)
    kind = hint.__metadata__[0]
    return kind if isinstance(kind, FieldType) else None
