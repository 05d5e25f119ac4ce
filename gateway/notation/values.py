"""AMQP values as JSON, and back.

A value keeps its wire type through JSON. Plain JSON stands for the plain types of :mod:`gateway.amqp.values`; every
other value is an object with exactly the keys ``type`` and ``value``:

=====================================  ====================================================================
JSON                                   AMQP
=====================================  ====================================================================
``null`` ``true`` ``"text"``           void, bool, string
``3``                                  int32 where it fits, else int64, else uint64; wider is refused
``1.5``                                double
``[1, 2]`` ``{"a": 1}``                array, table
``{"type": "int8", "value": 3}``       an integer of that width; also ``timestamp`` (seconds)
``{"type": "float", "value": 1.5}``    single precision; ``"nan"``, ``"inf"`` and ``"-inf"`` stand for themselves
``{"type": "decimal", "value": "1.5"}``  also ``dec64``: decimal digits in a string
``{"type": "bytes", "value": "AP8="}``   octets in base64; all binary types likewise
``{"type": "uuid", "value": "…"}``     also ``char``, ``str8`` and the other string types: a string
``{"type": "table", "value": {…}}``    a table that itself has only the keys ``type`` and ``value``
=====================================  ====================================================================

A text that is not UTF-8 is ``{"type": "binary", "value": base64}`` wherever a string may stand. As a value, ``binary``
is that alone: octets that are UTF-8 are refused, since ``bytes`` is probably meant. A table with a key that is not
UTF-8 is ``{"type": "table", "value": [[key, value], …]}``.
"""

from __future__ import annotations

import math
import struct
from base64 import b64encode
from binascii import a2b_base64
from collections.abc import Callable, Mapping
from decimal import Decimal, InvalidOperation
from typing import Any, Final
from uuid import UUID

from gateway.amqp.values import DRAFT_STRINGS, INT64_MIN, UINT64_MAX, Table, Timestamp, Typed, Value, typed
from gateway.limits import DEFAULT_LIMITS
from gateway.validation import pointer_of, shown, unknown

BASE64_PART: Final = 262_144
"""Characters of base64 that are decoded at a time, a multiple of four: other threads have their turn in between."""
_TYPED_KEYS: Final = frozenset({"type", "value"})


class ValueProblem(ValueError):
    """JSON that stands for no AMQP value."""

    def __init__(self, detail: str, *path: str | int) -> None:
        super().__init__(detail)
        self.detail = detail
        self.path: list[str | int] = list(path)
        """Keys and indexes that lead to the culprit."""

    def under(self, *path: str | int) -> ValueProblem:
        """The same problem, seen from further out."""
        self.path[:0] = path
        return self

    @property
    def pointer(self) -> str:
        """The JSON pointer of the culprit (RFC 6901)."""
        return pointer_of(self.path)


# ------------------------------------------------------------------------------------------- text, octets


def text_to_json(text: str) -> Any:
    """A short string; one whose octets are not UTF-8 becomes a ``binary`` object."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return {"type": "binary", "value": b64encode(text.encode("utf-8", "surrogateescape")).decode()}
    return text


def text_from_json(json: Any) -> str:
    """The reverse of :func:`text_to_json`. Raises :class:`ValueProblem`."""
    if isinstance(json, str):
        return json
    if isinstance(json, dict) and json.keys() == _TYPED_KEYS and json["type"] == "binary":
        return octets_from_json(json["value"]).decode("utf-8", "surrogateescape")
    raise ValueProblem('expected a string or {"type": "binary", "value": base64}')


def octets_from_json(json: Any) -> bytes:
    """Base64 with the standard alphabet and padding (RFC 4648 section 4). Raises :class:`ValueProblem`."""
    if not isinstance(json, str):
        raise ValueProblem("expected a string of base64")
    try:
        if len(json) <= BASE64_PART or 0 <= json.find("=") < len(json) - 2:
            return a2b_base64(json, strict_mode=True)
        starts = range(0, len(json), BASE64_PART)
        return b"".join([a2b_base64(json[start : start + BASE64_PART], strict_mode=True) for start in starts])
    except ValueError as error:
        raise ValueProblem(f"not base64: {error}") from None


# -------------------------------------------------------------------------------------------- JSON -> AMQP


def table_from_json(json: Any, depth: int = 1) -> Table:
    """A table from a JSON object, or from a list of pairs. Raises :class:`ValueProblem`."""
    if type(json) is not dict:
        json = _pairs(json)
    if depth > DEFAULT_LIMITS.table_depth:
        raise ValueProblem(f"tables are nested deeper than {DEFAULT_LIMITS.table_depth}")
    if len(json) > DEFAULT_LIMITS.table_entries:
        raise ValueProblem(f"more than {DEFAULT_LIMITS.table_entries} entries")
    table: Table = {}
    for key, value in json.items():
        if len(key) > 63 and len(key.encode("utf-8", "surrogateescape")) > DEFAULT_LIMITS.short_string:
            raise ValueProblem(f"the key is longer than {DEFAULT_LIMITS.short_string} octets", key)
        try:
            table[key] = value_from_json(value, depth)
        except ValueProblem as problem:
            raise problem.under(key) from None
    return table


def headers_from_json(json: Any) -> Table:
    """All headers of a message, as :func:`table_to_json` writes them: wrapped, perhaps. An object of the keys ``type``
    and ``value`` that is no wrapped table is two headers of these names. Raises :class:`ValueProblem`."""
    if isinstance(json, dict) and json.keys() == _TYPED_KEYS and json["type"] == "table":
        inner = json["value"]
        if isinstance(inner, dict | list):
            try:
                return table_from_json(inner)
            except ValueProblem as problem:
                raise problem.under("value") from None
    return table_from_json(json)


def _pairs(json: Any) -> dict[str, Any]:
    if not isinstance(json, list):
        raise ValueProblem("expected an object")
    result: dict[str, Any] = {}
    for index, pair in enumerate(json):
        if not isinstance(pair, list) or len(pair) != 2:
            raise ValueProblem("expected a pair of key and value", index)
        try:
            key = text_from_json(pair[0])
        except ValueProblem as problem:
            raise problem.under(index, 0) from None
        if key in result:
            raise ValueProblem("the key is there twice", index, 0)
        result[key] = pair[1]
    return result


def value_from_json(json: Any, depth: int = 1) -> Value:
    """An AMQP value from decoded JSON. Raises :class:`ValueProblem`."""
    kind = type(json)
    if kind is str or kind is bool or json is None or kind is float:
        return json
    if kind is int:
        if INT64_MIN <= json <= UINT64_MAX:
            return json
        raise ValueProblem("the integer needs more than 64 bits")
    if kind is dict:
        if json.keys() == _TYPED_KEYS:
            return _typed_from_json(json["type"], json["value"], depth + 1)
        return table_from_json(json, depth + 1)
    return _array_from_json(json, depth + 1)


def _array_from_json(json: Any, depth: int) -> list[Value]:
    if not isinstance(json, list):
        raise ValueProblem("expected an array")
    if depth > DEFAULT_LIMITS.table_depth:
        raise ValueProblem(f"arrays are nested deeper than {DEFAULT_LIMITS.table_depth}")
    if len(json) > DEFAULT_LIMITS.table_entries:
        raise ValueProblem(f"more than {DEFAULT_LIMITS.table_entries} entries")
    result = []
    for index, item in enumerate(json):
        try:
            result.append(value_from_json(item, depth))
        except ValueProblem as problem:
            raise problem.under(index) from None
    return result


def _typed_from_json(kind: Any, json: Any, depth: int) -> Value:
    if not isinstance(kind, str):
        raise ValueProblem(f"expected a string, one of {', '.join(WORDS)}", "type")
    if kind not in WORDS:
        raise ValueProblem(f"{shown(kind)}: {unknown(kind, WORDS, 'type')[0]}", "type")
    if kind == "binary":
        return _binary(json)
    try:
        if kind in _NESTED:
            return _NESTED[kind](json, depth)
        return typed(kind, _RULES[kind](json))
    except ValueProblem as problem:
        raise problem.under("value") from None


def _integer(low: int, high: int) -> Callable[[Any], int]:
    def rule(json: Any) -> int:
        if type(json) is not int:
            raise ValueProblem("expected an integer")
        if not low <= json <= high:
            raise ValueProblem(f"the integer is not between {low} and {high}")
        return json

    return rule


_SINGLE: Final = struct.Struct(">f")
_NOT_FINITE: Final = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def _floating(json: Any) -> float:
    if isinstance(json, str) and json in _NOT_FINITE:
        return _NOT_FINITE[json]
    if type(json) not in (int, float):
        raise ValueProblem('expected a number, "nan", "inf" or "-inf"')
    try:
        number = float(json)
    except OverflowError:
        raise ValueProblem("the number is out of range") from None
    if type(json) is int and number != json:  # digits that somebody wrote out are not rounded
        raise ValueProblem("the integer does not fit double precision")
    return number


def _single(json: Any) -> float:
    number = _floating(json)
    if math.isfinite(number) and abs(number) >= 3.4028235677973366e38:  # would round to infinity (IEEE 754 binary32)
        raise ValueProblem("the number does not fit single precision")
    if type(json) is int and _SINGLE.unpack(_SINGLE.pack(number))[0] != json:
        raise ValueProblem("the integer does not fit single precision")
    return number


def _decimal(json: Any) -> Decimal:
    if isinstance(json, str) and len(json) <= 64:
        try:
            number = Decimal(json)
        except InvalidOperation:
            number = Decimal("nan")
        if number.is_finite():
            return number
    raise ValueProblem("expected a decimal number as a string")


def _bool(json: Any) -> bool:
    if isinstance(json, bool):
        return json
    raise ValueProblem("expected true or false")


def _bit(json: Any) -> bool:
    if json is not True:
        raise ValueProblem("expected true: a bit has no octets and is always set. The type of false is bool")
    return True


def _void(json: Any) -> None:
    if json is not None:
        raise ValueProblem("expected null")


def _string(json: Any) -> Value:
    return json if isinstance(json, str) else text_from_json(json).encode("utf-8", "surrogateescape")


def _binary(json: Any) -> Value:
    """A string that is not UTF-8. Other octets would come back as another type than the one that was sent."""
    try:
        octets = octets_from_json(json)
    except ValueProblem as problem:
        raise problem.under("value") from None
    try:
        octets.decode()
    except UnicodeDecodeError:
        return Typed("string", octets)
    raise ValueProblem(
        "'binary' is a string that is not UTF-8, and these bytes are UTF-8; did you mean bytes? "
        "For a string, write the string itself",
        "type",
    )


def _char(json: Any) -> Value:
    if isinstance(json, str) and len(json) != 1:
        raise ValueProblem("expected a string of one character")
    return _string(json)


def _uuid(json: Any) -> UUID:
    try:
        return UUID(json)
    except (ValueError, AttributeError, TypeError):
        raise ValueProblem("expected a UUID") from None


def _fixed(width: int) -> Callable[[Any], bytes]:
    def rule(json: Any) -> bytes:
        octets = octets_from_json(json)
        if len(octets) != width:
            raise ValueProblem(f"expected {width} octets, found {len(octets)}")
        return octets

    return rule


def _timestamp(json: Any) -> Timestamp:
    return Timestamp(_unsigned_64(json))


_unsigned_64: Final = _integer(0, UINT64_MAX)

_NESTED: Final[Mapping[str, Callable[[Any, int], Value]]] = {"table": table_from_json, "array": _array_from_json}

_RULES: Final[Mapping[str, Callable[[Any], Value]]] = {
    "void": _void,
    "bool": _bool,
    **{f"int{bits}": _integer(-(1 << (bits - 1)), (1 << (bits - 1)) - 1) for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": _integer(0, (1 << bits) - 1) for bits in (8, 16, 32, 64)},
    "sequence-no": _integer(0, (1 << 32) - 1),
    "float": _single,
    "double": _floating,
    "decimal": _decimal,
    "dec64": _decimal,
    "timestamp": _timestamp,
    "char": _char,
    "char-utf32": _char,
    "uuid": _uuid,
    "string": _string,
    "str8": _string,
    "str8-latin": _string,
    "str8-utf16": _string,
    "str16-latin": _string,
    "str16-utf16": _string,
    **dict.fromkeys(DRAFT_STRINGS, _string),
    "bit": _bit,
    **{f"bin{bits}": _fixed(bits // 8) for bits in (8, 16, 32, 40, 48, 64, 72, 128, 256, 512, 1024)},
    **dict.fromkeys(("bytes", "vbin8", "vbin16", "struct32", "typed-array"), octets_from_json),
}
"""Type -> how its JSON becomes a value."""

WORDS: Final = (*_RULES, *_NESTED, "binary")
"""What may stand as ``type``."""


# -------------------------------------------------------------------------------------------- AMQP -> JSON


def table_to_json(table: Table) -> Any:
    """A table as a JSON object: wrapped where it could be taken for a typed value, pairs where a key is no UTF-8."""
    result = {}
    for key, value in table.items():
        if not key.isascii() and text_to_json(key) is not key:
            return {"type": "table", "value": [[text_to_json(k), value_to_json(v)] for k, v in table.items()]}
        result[key] = value_to_json(value)
    if result.keys() == _TYPED_KEYS:
        return {"type": "table", "value": result}
    return result


def value_to_json(value: Value) -> Any:
    """An AMQP value as JSON."""
    kind = type(value)
    if kind is str:
        return text_to_json(value)
    if kind is int or kind is bool or value is None:
        return value
    if kind is float:
        return value if math.isfinite(value) else {"type": "double", "value": _number_to_json(value)}
    if kind is dict:
        return table_to_json(value)
    if kind is list:
        return [value_to_json(item) for item in value]
    if kind is Typed:
        return {"type": value.type, "value": _typed_to_json(value.type, value.value)}
    name, convert = _PLAIN_TO_JSON[kind]
    return {"type": name, "value": convert(value)}


def _number_to_json(number: float) -> Any:
    if math.isfinite(number):
        return number
    return "nan" if math.isnan(number) else "inf" if number > 0 else "-inf"


def _typed_to_json(name: str, value: Any) -> Any:
    kind = type(value)
    if kind is float:
        return _number_to_json(value)
    if kind is bytes:
        octets = b64encode(value).decode()
        return {"type": "binary", "value": octets} if _RULES.get(name) in (_string, _char) else octets
    if kind is str:
        return text_to_json(value)
    if kind is dict:
        return table_to_json(value)
    if kind is list:
        return [value_to_json(item) for item in value]
    if kind in _PLAIN_TO_JSON:
        return _PLAIN_TO_JSON[kind][1](value)
    return value


_PLAIN_TO_JSON: dict[type, tuple[str, Callable[[Any], Any]]] = {
    bytes: ("bytes", lambda value: b64encode(value).decode()),
    Decimal: ("decimal", str),
    Timestamp: ("timestamp", int),
    UUID: ("uuid", str),
}
