"""Values of AMQP tables, independent of the version that carries them.

A value keeps its wire type through the gateway: the integer 3 leaves with the width with which it came.
Plain Python values stand for the plain wire types; everything else is a :class:`Typed` that names its type.

====================  ==================================================
plain Python value    wire type it stands for
====================  ==================================================
``None``              void
``bool``              bool
``int``               int32 where it fits, else int64, else uint64
``float``             double
``str``               string (classic ``S``, 0-10 ``str16``)
``bytes``             bytes (classic ``x``, 0-10 ``vbin32``)
``Decimal``           decimal (classic ``D``, 0-10 ``dec32``)
:class:`Timestamp`    timestamp, seconds since 1970
``UUID``              uuid (0-10 only)
``dict``              table (0-10 ``map``)
``list``              array (0-10 ``list``)
====================  ==================================================

A decoder returns the plain value exactly when the wire type is the one in this table, and ``Typed`` otherwise,
so that encoding what was decoded gives the same octets. Order of keys is kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, TypeAlias, TypeVar, dataclass_transform
from uuid import UUID

Value: TypeAlias = Any
"""A plain value of the table above or a :class:`Typed`."""
Table: TypeAlias = dict[str, Value]
"""Keys are short strings; a key that is not UTF-8 holds its octets as surrogate escapes."""

INT32_MIN, INT32_MAX = -(1 << 31), (1 << 31) - 1
INT64_MIN, INT64_MAX = -(1 << 63), (1 << 63) - 1
UINT64_MAX = (1 << 64) - 1

DRAFT_STRINGS = ("str8-utf32", "str16-utf32", "str32", "str32-latin", "str32-utf16", "str32-utf32")
"""Types of strings that the transitional draft of 0-10 has and no final version."""
TYPES = frozenset(
    {
        "void", "bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64",
        "float", "double", "decimal", "dec64", "timestamp", "char", "uuid",
        "string", "str8", "str8-latin", "str8-utf16", "str16-latin", "str16-utf16", "char-utf32",
        *DRAFT_STRINGS,
        "bytes", "vbin8", "vbin16",
        "bin8", "bin16", "bin32", "bin40", "bin48", "bin64", "bin72", "bin128", "bin256", "bin512", "bin1024",
        "bit", "sequence-no", "struct32", "table", "array", "typed-array",
    }
)  # fmt: skip
"""Names of all wire types, over all versions."""


class Timestamp(int):
    """Seconds since 1970-01-01T00:00:00Z, as an unsigned 64-bit integer. Never milliseconds."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"Timestamp({int(self)})"


_T = TypeVar("_T")


@dataclass_transform(frozen_default=True)
def _value(cls: type[_T]) -> type[_T]:
    """Frozen for the type checker, plain slots at run time: a table may hold thousands."""
    return dataclass(slots=True, unsafe_hash=True)(cls)


@_value
class Typed:
    """A value whose wire type is not the one its plain Python value stands for.

    ``type`` is one of :data:`TYPES`. ``Typed("string", b"\\xff")`` is a string whose octets are not UTF-8.
    """

    type: str
    value: Value


def type_of(value: Value) -> str:
    """The wire type a value stands for. Raises ``TypeError`` for what is no AMQP value, ``OverflowError``
    for an integer wider than 64 bits."""
    if isinstance(value, Typed):
        return value.type
    if value is None:
        return "void"
    kind = _PLAIN.get(type(value))
    if kind is not None:
        return kind
    if isinstance(value, int) and not isinstance(value, bool):
        if INT32_MIN <= value <= INT32_MAX:
            return "int32"
        if INT64_MIN <= value <= INT64_MAX:
            return "int64"
        if 0 <= value <= UINT64_MAX:
            return "uint64"
        raise OverflowError(f"the integer {value} needs more than 64 bits")
    if isinstance(value, str):
        return "string"
    if isinstance(value, Mapping):
        return "table"
    if isinstance(value, Sequence) and not isinstance(value, (bytes, bytearray)):
        return "array"
    raise TypeError(f"a {type(value).__name__} is no AMQP value: {value!r:.80}")


def typed(kind: str, value: Value) -> Value:
    """``value`` as wire type ``kind``: plain where the plain value already stands for it."""
    return value if type_of(value) == kind else Typed(kind, value)


_PLAIN: dict[type, str] = {
    bool: "bool",
    float: "double",
    str: "string",
    bytes: "bytes",
    Decimal: "decimal",
    Timestamp: "timestamp",
    UUID: "uuid",
    dict: "table",
    list: "array",
}
