"""The body of a message from its ``payload``, which may be any JSON value.

A string is the body itself, or base64 of it. Any other value becomes compact JSON in UTF-8: without white space between
its tokens and without needless escapes, its members in their order and its numbers as the caller wrote them.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any, Final

import msgspec
from msgspec import Raw, UnsetType

from gateway.api.http.problems import ApiProblem
from gateway.notation.values import ValueProblem, octets_from_json

_decode_text = msgspec.json.Decoder(str).decode
_encode = msgspec.json.Encoder().encode
_QUOTE: Final = ord('"')


def body_of(payload: Raw | UnsetType, encoding: str) -> tuple[bytes, bool]:
    """Return the body, and whether it is JSON that was made of a value other than a string.

    Raises:
        ValueProblem: at ``/payload``.
        ApiProblem: malformed_json: a string that is not UTF-8.
    """
    if isinstance(payload, UnsetType):
        return b"", False
    if memoryview(payload)[0] != _QUOTE:
        if encoding == "base64":
            raise ValueProblem("with payload_encoding base64 it must be a string", "payload")
        return _compact(bytes(payload)), True
    try:
        text = _decode_text(payload)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ApiProblem("malformed_json", f"payload: {error}", errors=[("/payload", str(error))]) from None
    if encoding != "base64":
        return text.encode(), False
    try:
        return octets_from_json(text), False
    except ValueProblem as problem:
        raise problem.under("payload") from None


def _compact(octets: bytes) -> bytes:
    try:
        return _encode(json.loads(octets.decode(), object_pairs_hook=_object, parse_float=_number, parse_int=_number))
    except ValueProblem:
        raise
    except ValueError as error:  # also of octets that are not UTF-8, or half a surrogate pair
        raise ValueProblem(f"not JSON in UTF-8: {error}", "payload") from None
    except RecursionError:
        raise ValueProblem("nested too deep", "payload") from None


def _number(text: str) -> Raw:
    """Keep a number as it is written. A function, and no class of another language, so that other threads have their
    turn between two of them."""
    return Raw(text)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the object. Raises ValueProblem for a name that is in it twice: readers differ in which value counts."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = Counter(name for name, _ in pairs)
        twice = next(name for name, count in names.items() if count > 1)
        raise ValueProblem(f"the member {twice!r:.80} is in one object twice", "payload")
    return found
