"""What a version cannot carry, and how it travels all the same.

Each version states a :class:`Home`: for every property the value it becomes there, and which header values it
has a type for. :func:`fit` turns properties into ones that fit; whatever was changed or has no home is kept in
one reserved header, :data:`RESERVED` (a table), and :func:`restore` puts it back, so that there and back is the
identity. An entry is restored only where the value found now is the very one it was mapped to: what an
application changed in between wins over what was stored.

The reserved header holds, all as strings so that every dialect can carry it::

    id          the gateway's id of the message
    resent      "1" where it was sent again after an unknown outcome, so that it may be there twice
    properties  table: name -> {"value": original, "as": mapped value; absent where it had no home}
    types       JSON: [[path, original type], ...] of header values that were reshaped
    empty       "1" where the message had headers, but none in them
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal, InvalidOperation
from typing import Any, Final
from uuid import UUID

from gateway.message import PROPERTY_NAMES, Properties, ReplyTo, with_headers
from gateway.values import INT64_MAX, Table, Timestamp, Typed, Value, type_of, typed

RESERVED: Final = "x-gateway"
"""The one header that belongs to the gateway."""

NO_HOME: Final = object()
"""What a :class:`Home` answers for a property that it cannot carry in any form."""

_OURS = frozenset({"properties", "types", "empty"})
"""The entries that are consumed by a restore."""
_INTEGERS = frozenset({"delivery_mode", "priority", "timestamp"})
_NEVER_RESTORED = frozenset({"user_id"})
"""A broker vouches for user-id; what travels in a header is nobody's word."""


@dataclass(frozen=True, slots=True)
class Home:
    """What one version can carry."""

    properties: Mapping[str, Callable[[Any], Any]]
    """name -> function from the neutral value to the value that fits, equal where nothing is lost, or NO_HOME.
    A name that is missing fits as it is."""
    carries: Callable[[str, Value], bool]
    """(type, value) -> the version has that type and the value fits it."""


def fit(properties: Properties, home: Home) -> Properties:
    """``properties`` as ``home`` can carry them; the same object where nothing has to change."""
    carried: Table = {}
    changes: dict[str, Any] = {}
    for name, convert in home.properties.items():
        value = getattr(properties, name)
        if value is None:
            continue
        mapped = convert(value)
        if mapped is NO_HOME:
            carried[name] = {"value": _pack(value)}
            changes[name] = None
        elif mapped != value:
            carried[name] = {"value": _pack(value), "as": _pack(mapped)}
            changes[name] = mapped
    headers = properties.headers
    reshaped: list[list[Any]] = []
    if headers:
        fitted = _fit_table(headers, home.carries, (), reshaped)
        if reshaped:
            headers = fitted
    if not carried and not reshaped:
        return properties
    previous = properties.headers.get(RESERVED) if properties.headers else None
    entry: Table = dict(previous) if isinstance(previous, dict) else {}
    if carried:
        entry["properties"] = carried
    if reshaped:
        entry["types"] = json.dumps(reshaped, separators=(",", ":"))
    if properties.headers is not None and not properties.headers:
        entry["empty"] = "1"
    changes["headers"] = {**(headers or {}), RESERVED: entry}
    return replace(properties, **changes)


def restore(properties: Properties) -> Properties:
    """Undo :func:`fit`: put back what the reserved header carries, where it is still true. What the header
    holds besides (the id) stays in it; the header goes where nothing is left. A header of another shape
    than ours is left alone."""
    headers = properties.headers
    if not headers or not isinstance(entry := headers.get(RESERVED), dict):
        return properties
    carried, types = entry.get("properties"), entry.get("types")
    if carried is None and types is None:
        return properties
    changes: dict[str, Any] = {}
    if isinstance(carried, dict):
        for name, item in carried.items():
            if name not in PROPERTY_NAMES or name == "headers" or name in _NEVER_RESTORED or not isinstance(item, dict):
                continue
            original = _unpack(name, item.get("value"))
            mapped = _unpack(name, item["as"]) if "as" in item else None
            if original is not None and getattr(properties, name) == mapped:
                changes[name] = original
    rest = {key: value for key, value in entry.items() if key not in _OURS}
    kept = {key: value for key, value in headers.items() if key != RESERVED}
    if isinstance(types, str):
        kept = _restore_types(kept, types)
    if rest:
        kept[RESERVED] = rest
    changes["headers"] = kept if kept or "empty" in entry else None
    return replace(properties, **changes)


def annotate(properties: Properties, **entries: str) -> Properties:
    """``properties`` with entries added to the reserved header, last of all headers."""
    headers = properties.headers
    if not headers:  # as most messages are
        return with_headers(properties, {RESERVED: {**entries}})
    previous = headers.get(RESERVED)
    entry: Table = {**(previous if isinstance(previous, dict) else {}), **entries}
    rest = {key: value for key, value in headers.items() if key != RESERVED}
    return with_headers(properties, {**rest, RESERVED: entry})


def annotation(properties: Properties, name: str) -> str | None:
    """An entry of the reserved header, None where it is absent or no string."""
    entry = properties.headers.get(RESERVED) if properties.headers else None
    value = entry.get(name) if isinstance(entry, dict) else None
    return value if isinstance(value, str) else None


# ------------------------------------------------------------------------------------ property values


def _pack(value: Any) -> Value:
    if isinstance(value, ReplyTo):
        return {"exchange": _pack(value.exchange), "routing_key": _pack(value.routing_key)}
    if isinstance(value, bytes):
        return {"octets": value.hex()}
    text = str(value)
    try:
        text.encode()
    except UnicodeEncodeError:
        return {"text": text.encode("utf-8", "surrogateescape").hex()}
    return text


def _unpack(name: str, value: Value) -> Any:
    """The packed value, or None where it is not what :func:`_pack` makes."""
    if isinstance(value, str):
        if name not in _INTEGERS:
            return value
        return int(value) if value.isascii() and value.isdigit() and len(value) <= 20 else None
    if not isinstance(value, dict):
        return None
    if value.keys() == {"exchange", "routing_key"}:
        exchange, routing_key = (_unpack("reply_to", value[key]) for key in ("exchange", "routing_key"))
        return ReplyTo(exchange, routing_key) if isinstance(exchange, str) and isinstance(routing_key, str) else None
    try:
        if value.keys() == {"octets"}:
            return bytes.fromhex(value["octets"])
        if value.keys() == {"text"}:
            return bytes.fromhex(value["text"]).decode("utf-8", "surrogateescape")
    except (TypeError, ValueError):
        return None
    return None


# -------------------------------------------------------------------------------------- header values


def _octets_of_string(value: Value) -> bytes:
    return value.encode("utf-8", "surrogateescape") if isinstance(value, str) else bytes(value)


def _string_of_octets(value: bytes) -> Value:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return Typed("string", value)


@dataclass(frozen=True, slots=True)
class Reshape:
    """How a value of a type that the other side lacks travels: ``to`` makes it a value of a type in ``becomes``,
    ``back`` undoes that and raises ``ValueError`` where the value is not of that form."""

    becomes: tuple[str, ...]
    to: Callable[[Any], Value]
    back: Callable[[Any], Any]


def _decimal(text: str) -> Decimal:
    try:
        return Decimal(text)
    except InvalidOperation as error:
        raise ValueError(text) from error


def _same(value: Any) -> Any:
    return value


def _int16(value: Any) -> Value:
    return Typed("int16", value)


def _int64(value: Any) -> Value:
    """The next wider signed integer; beyond all of them the digits."""
    return typed("int64", int(value)) if value <= INT64_MAX else str(int(value))


RESHAPES: Mapping[str, Reshape] = {
    "uuid": Reshape(("string",), str, UUID),
    "uint64": Reshape(("int64", "string"), _int64, int),
    "uint8": Reshape(("int16",), _int16, int),
    "uint16": Reshape(("int32",), int, int),
    "uint32": Reshape(("int64",), _int64, int),
    "timestamp": Reshape(("int64", "string"), _int64, Timestamp),
    "decimal": Reshape(("string",), str, _decimal),
    "dec64": Reshape(("string",), str, _decimal),
    "char": Reshape(("string",), _same, _same),
    "str8": Reshape(("string",), _same, _same),
    "str16-utf16": Reshape(("string",), _same, _same),
    "str16-latin": Reshape(("string",), _same, _same),
    "str8-utf16": Reshape(("string",), _same, _same),
    "char-utf32": Reshape(("string",), _same, _same),
    "str8-latin": Reshape(("string",), _same, _same),
    "sequence-no": Reshape(("string",), str, int),
    "bit": Reshape(("string",), str, bool),
    "string": Reshape(("bytes",), _octets_of_string, _string_of_octets),
    "table": Reshape(("void",), lambda value: None, lambda value: {}),
} | dict.fromkeys(
    (
        "vbin8", "vbin16", "bin8", "bin16", "bin32", "bin40", "bin48", "bin64", "bin72",
        "bin128", "bin256", "bin512", "bin1024", "struct32", "typed-array",
    ),
    Reshape(("bytes",), bytes, bytes),
)  # fmt: skip
"""Type -> how it travels where it has no type of its own. ``typed-array`` and ``struct32`` are opaque octets
already: count and element code included. ``table`` is asked for empty ones only, which Broker-J cannot keep."""


def _fit_table(
    table: Mapping[str, Value], carries: Callable[[str, Value], bool], path: tuple[str | int, ...], out: list[list[Any]]
) -> Table:
    return {key: _fit_value(value, carries, (*path, key), out) for key, value in table.items()}


def _fit_value(
    value: Value, carries: Callable[[str, Value], bool], path: tuple[str | int, ...], out: list[list[Any]]
) -> Value:
    kind = type_of(value)
    if kind == "table" and (value or carries(kind, value)):
        return _fit_table(value, carries, path, out)
    if kind == "array":
        return [_fit_value(item, carries, (*path, index), out) for index, item in enumerate(value)]
    if carries(kind, value):
        return value
    shape = RESHAPES.get(kind)
    if shape is None:
        raise TypeError(f"header {'/'.join(map(str, path))}: no way to carry a value of type {kind}")
    out.append([list(path), kind])
    return shape.to(value.value if isinstance(value, Typed) else value)


def _restore_types(headers: Table, text: str) -> Table:
    """``headers`` with what ``text`` names put back. Only what changes is copied, and that once: a forged list may
    name the same value ten thousand times."""
    try:
        entries = json.loads(text)
    except (ValueError, RecursionError):
        return headers
    if not isinstance(entries, list):
        return headers
    result = dict(headers)
    copied = {id(result)}
    for item in entries:
        match item:
            case [[str(_), *_] as path, str(kind)] if kind in RESHAPES:
                _restore_value(result, path, kind, copied)
            case _:
                continue
    return result


def _restore_value(headers: Table, path: list[Any], kind: str, copied: set[int]) -> None:
    """Put one value back. ``copied`` are the tables and lists that may be written to."""
    holder: Any = headers
    for depth, step in enumerate(path):
        if isinstance(holder, dict):
            there = isinstance(step, str) and step in holder
        else:
            there = isinstance(holder, list) and type(step) is int and 0 <= step < len(holder)
        if not there:
            return
        value = holder[step]
        if depth + 1 == len(path):
            holder[step] = _back(value, kind)
        elif isinstance(value, dict | list):
            if id(value) not in copied:
                value = holder[step] = value.copy()
                copied.add(id(value))
            holder = value
        else:
            return


def _back(value: Value, kind: str) -> Value:
    """The original of a reshaped value, or the value itself where it is not of that form."""
    shape = RESHAPES[kind]
    if type_of(value) not in shape.becomes:
        return value
    try:
        original = shape.back(value.value if isinstance(value, Typed) else value)
        return original if isinstance(original, Typed) else typed(kind, original)
    except (ValueError, TypeError, OverflowError):
        return value
