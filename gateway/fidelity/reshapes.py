"""Header values of types that a version lacks: what they travel as, and how they come back.

:func:`fit_headers` walks a table and replaces each value that does not fit by one that does, as :data:`RESHAPES` says,
perhaps in several steps; it notes path and type of each. :func:`restore_headers` undoes that, from the last step to
the first. A value is given its type back only if it is the very value that the original would have become: what an
application put in its place stays, and a list that somebody made up changes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any, Final, TypeAlias
from uuid import UUID

from gateway.amqp.values import (
    DRAFT_STRINGS,
    INT32_MAX,
    INT32_MIN,
    INT64_MAX,
    Table,
    Timestamp,
    Typed,
    Value,
    type_of,
    typed,
)
from gateway.fidelity.reserved import RESERVED

Carries: TypeAlias = Callable[[str, Value], bool]
"""(type, value) -> the version has that type and the value fits it."""
Path: TypeAlias = tuple[str | int, ...]
"""Keys and indexes that lead to a value."""
Notes: TypeAlias = list[list[Any]]
"""``[[path, type], ...]``: what was reshaped, in the order in which it was."""

KEY: Final = "key"
"""What :data:`Carries` is asked with for the name of a header that is empty or not ASCII."""
ITEM: Final = "item"
"""What it is asked with, besides, for a value in an array."""
_STAND_IN: Final = f"{RESERVED}-key-"
"""How the name begins that stands for one that is not carried; a number follows."""

STEPS_MAX: Final = 4
"""Most reshapes of one value. The longest way is uint8, int16, int32."""


@dataclass(frozen=True, slots=True)
class Reshape:
    """How a value of a type that the other side lacks travels: ``to`` makes it a value of a type in ``becomes``,
    ``back`` undoes that and raises ``ValueError`` where the value is not of that form."""

    becomes: tuple[str, ...]
    to: Callable[[Any], Value]
    back: Callable[[Any], Any]


def _octets_of_string(value: Value) -> bytes:
    return value.encode("utf-8", "surrogateescape") if isinstance(value, str) else bytes(value)


def _string_of_octets(value: bytes) -> Value:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return Typed("string", value)


def _decimal(text: str) -> Decimal:
    try:
        return Decimal(text)
    except InvalidOperation as error:
        raise ValueError(text) from error


def _same(value: Any) -> Any:
    return value


def _int16(value: Any) -> Value:
    return Typed("int16", value)


def _int32(value: Any) -> Value:
    return int(value)


def _int64(value: Any) -> Value:
    """The next wider signed integer; beyond all of them the digits."""
    return typed("int64", int(value)) if value <= INT64_MAX else str(int(value))


def _digits(value: Any) -> Value:
    return str(int(value))


def _bool(text: str) -> bool:
    return {"true": True, "false": False}[text]


def _numbered(items: list[Value]) -> Table:
    return {str(index): item for index, item in enumerate(items)}


def _listed(table: Table) -> list[Value]:
    return [table[str(index)] for index in range(len(table))]


def _nothing(value: Any) -> None:
    return None


RESHAPES: Final[Mapping[str, Reshape]] = {
    "uuid": Reshape(("string",), str, UUID),
    "uint64": Reshape(("int64", "string"), _int64, int),
    "uint8": Reshape(("int16",), _int16, int),
    "uint16": Reshape(("int32",), int, int),
    "uint32": Reshape(("int64",), _int64, int),
    "int8": Reshape(("int32",), _int32, int),
    "int16": Reshape(("int32",), _int32, int),
    "int64": Reshape(("string",), _digits, int),
    "float": Reshape(("string",), float.hex, float.fromhex),
    "double": Reshape(("string",), float.hex, float.fromhex),
    "bool": Reshape(("string",), lambda value: "true" if value else "false", _bool),
    "void": Reshape(("string",), lambda value: "", _nothing),
    "bytes": Reshape(("string",), bytes.hex, bytes.fromhex),
    "array": Reshape(("table",), _numbered, _listed),
    "timestamp": Reshape(("int64", "string"), _int64, Timestamp),
    "decimal": Reshape(("string",), str, _decimal),
    "dec64": Reshape(("string",), str, _decimal),
    "char": Reshape(("string", "bytes"), _same, _same),
    "str8": Reshape(("string", "bytes"), _same, _same),
    "str16-utf16": Reshape(("string", "bytes"), _same, _same),
    "str16-latin": Reshape(("string", "bytes"), _same, _same),
    "str8-utf16": Reshape(("string", "bytes"), _same, _same),
    "char-utf32": Reshape(("string", "bytes"), _same, _same),
    "str8-latin": Reshape(("string", "bytes"), _same, _same),
    **dict.fromkeys(DRAFT_STRINGS, Reshape(("string", "bytes"), _same, _same)),
    "sequence-no": Reshape(("string",), str, int),
    "bit": Reshape(("string",), str, bool),
    "string": Reshape(("bytes",), _octets_of_string, _string_of_octets),
    "table": Reshape(("void",), _nothing, lambda value: {}),
} | dict.fromkeys(
    (
        "vbin8", "vbin16", "bin8", "bin16", "bin32", "bin40", "bin48", "bin64", "bin72",
        "bin128", "bin256", "bin512", "bin1024", "struct32", "typed-array",
    ),
    Reshape(("bytes",), bytes, bytes),
)  # fmt: skip
"""Type -> how it travels where it has no type of its own. ``typed-array`` and ``struct32`` are opaque octets
already: count and element code included. ``table`` is asked for empty ones only, which Broker-J cannot keep."""


def fit_headers(
    headers: Mapping[str, Value], carries: Carries, notes: Notes, path: Path = (), plain: frozenset[type] = frozenset()
) -> Table:
    """``headers`` as values that are carried. What was reshaped is added to ``notes``; ``plain`` types need no look at
    their values.

    Raises:
        TypeError: there is no way to carry a value; the text names its path and type.
    """
    fitted: Table = {}
    for key, value in headers.items():
        if not (key and key.isascii()) and not carries(KEY, key):
            name = f"{_STAND_IN}{len(fitted)}"
            notes.append([[*path, name], KEY, key.encode("utf-8", "surrogateescape").hex()])
            key = name
        kind = type(value)
        if kind is str:
            easy = len(value) <= _EASY and kind in plain and value.isascii()
        else:
            easy = kind in plain or (kind is int and INT32_MIN <= value <= INT32_MAX)
        if easy:
            fitted[key] = value
        elif kind is dict and value:
            fitted[key] = fit_headers(value, carries, notes, (*path, key), plain)
        else:
            fitted[key] = _fit_value(value, carries, (*path, key), notes, plain)
    return fitted


_EASY: Final = 8_192
"""How long a text may be to be carried for sure."""


_AN_ARRAY: Final[list[Value]] = [0]
"""Stands for one that is not empty, since each of its items is looked at anyway. Broker-J cannot store empty ones."""


def _fit_value(value: Value, carries: Carries, path: Path, notes: Notes, plain: frozenset[type]) -> Value:
    for _ in range(STEPS_MAX):
        kind = type_of(value)
        if kind == "table" and value:
            return fit_headers(value, carries, notes, path, plain)
        if kind == "array" and carries(kind, value and _AN_ARRAY):
            return [_fit_value(item, carries, (*path, index), notes, plain) for index, item in enumerate(value)]
        if kind != "array" and _carried(kind, value, path, carries):
            return value
        shape = RESHAPES.get(kind)
        if shape is None:
            break
        notes.append([list(path), kind])
        value = shape.to(value.value if isinstance(value, Typed) else value)
    raise TypeError(f"header {'/'.join(map(str, path))}: no way to carry a value of type {type_of(value)}")


def _carried(kind: str, value: Value, path: Path | list[Any], carries: Carries) -> bool:
    """Whether a value is carried in its place."""
    return carries(kind, value) and (type(path[-1]) is not int or carries(ITEM, value))


def restore_headers(headers: Table, text: str | bytes, carries: Carries) -> Table:
    """``headers`` with what ``text`` notes put back. Only what changes is copied, and that once: a forged list may
    name the same value ten thousand times."""
    try:
        notes = json.loads(text)
    except (ValueError, RecursionError):
        return headers
    if not isinstance(notes, list):
        return headers
    result = dict(headers)
    copied = {id(result)}
    names: _Names = {}
    for item in reversed(notes):
        match item:
            case [[str(_), *_] as path, str(kind)] if kind in RESHAPES:
                _restore_value(result, path, kind, copied, carries)
            case [[*outer, str(name)], "key", str(octets)] if name.startswith(_STAND_IN):
                table = _holder(result, outer, copied)
                if isinstance(table, dict) and (original := _name(octets, carries)) is not None:
                    names.setdefault(id(table), (table, {}))[1][name] = original
            case _:
                continue
    for table, originals in names.values():
        _rename(table, originals)
    return result


_Names: TypeAlias = dict[int, tuple[Table, dict[str, str]]]
"""Identity of a table -> the table, and stand-ins of names with their originals."""


def _name(octets: str, carries: Carries) -> str | None:
    """The name of a header from its octets in hex, None where the gateway would not have made a stand-in."""
    try:
        original = bytes.fromhex(octets).decode("utf-8", "surrogateescape")
    except ValueError:
        return None
    return None if len(octets) > 2 * 255 or (original and original.isascii()) or carries(KEY, original) else original


def _rename(table: Table, originals: Mapping[str, str]) -> None:
    """Give headers their names back, each at its place; one whose name is taken keeps its stand-in."""
    items = list(table.items())
    table.clear()
    taken = {key for key, _ in items}
    for key, value in items:
        original = originals.get(key, key)
        if original != key and original in taken:
            original = key
        taken.add(original)
        table[original] = value


def _restore_value(headers: Table, path: list[Any], kind: str, copied: set[int], carries: Carries) -> None:
    """Put one value back. ``copied`` are the tables and lists that may be written to."""
    holder = _holder(headers, path[:-1], copied)
    step = path[-1]
    if not _there(holder, step):
        return
    value = holder[step]
    holder[step] = original = _back(value, kind, path, carries)
    if original is not value and isinstance(original, list):
        copied.add(id(original))


def _there(holder: Any, step: Any) -> bool:
    """Whether ``step`` is a key or an index of ``holder``."""
    if isinstance(holder, dict):
        return isinstance(step, str) and step in holder
    return isinstance(holder, list) and type(step) is int and 0 <= step < len(holder)


def _holder(headers: Table, path: list[Any], copied: set[int]) -> Any:
    """The table or list at the end of ``path``, copied as all on the way to it; None where there is none."""
    holder: Any = headers
    for step in path:
        if not _there(holder, step):
            return None
        value = holder[step]
        if not isinstance(value, dict | list):
            return None
        if id(value) not in copied:
            value = holder[step] = value.copy()
            copied.add(id(value))
        holder = value
    return holder


def _back(value: Value, kind: str, path: list[Any], carries: Carries) -> Value:
    """The original of a reshaped value, or the value itself where it is not what that would have become."""
    shape = RESHAPES[kind]
    if type_of(value) not in shape.becomes:
        return value
    try:
        plain = shape.back(value.value if isinstance(value, Typed) else value)
        original = plain if isinstance(plain, Typed) else typed(kind, plain)
        if shape.to(original.value if isinstance(original, Typed) else original) != value:
            return value
        if _carried(kind, original, path, carries):
            return value
    except (ValueError, TypeError, OverflowError, LookupError, AttributeError):
        return value
    return original
