"""The body of a message from its ``payload``, which may be any JSON value.

A string is the body itself, or base64 of it. Any other value becomes compact JSON in UTF-8: without white space between
its tokens and without needless escapes, its members in their order and its numbers as the caller wrote them.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

import msgspec
from msgspec import UnsetType

from gateway.api.problems import ApiProblem
from gateway.notation.values import ValueProblem, octets_from_json

_decode_text = msgspec.json.Decoder(str).decode
_encode = msgspec.json.Encoder().encode
_QUOTE: Final = ord('"')
_STRING: Final = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_TOKEN: Final = re.compile(rb"(" + _STRING + rb")|[ \t\r\n]+")
_ESCAPED: Final = re.compile(_STRING)


def body_of(payload: msgspec.Raw | UnsetType, encoding: str) -> tuple[bytes, bool]:
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
        json.loads(octets.decode(), object_pairs_hook=_check_members, parse_float=str, parse_int=str)
        found = _TOKEN.sub(rb"\1", octets)
        return _ESCAPED.sub(_plain, found) if b"\\" in found else found
    except (ValueError, msgspec.DecodeError) as error:  # also of octets that are not UTF-8, or half a surrogate pair
        raise ValueProblem(f"not JSON in UTF-8: {error}", "payload") from None
    except RecursionError:
        raise ValueProblem("nested too deep", "payload") from None


def _check_members(pairs: list[tuple[str, Any]]) -> None:
    """Raise ValueProblem for a name that is in one object twice: readers differ in which value counts."""
    seen: set[str] = set()
    for name, _ in pairs:
        if name in seen:
            raise ValueProblem(f"the member {name!r:.80} is in one object twice", "payload")
        seen.add(name)


def _plain(match: re.Match[bytes]) -> bytes:
    """A string with no escapes but those that JSON needs."""
    text = match[0]
    return _encode(_decode_text(text)) if b"\\" in text else text
