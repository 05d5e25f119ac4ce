"""How Python values lie in the columns: names as octets, small documents as JSON octets."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec

_encode = msgspec.json.Encoder().encode


def octets(text: str) -> bytes:
    """An AMQP name as octets; surrogate escapes become the octets they stand for."""
    return text.encode("utf-8", "surrogateescape")


def text(octets: bytes) -> str:
    """The reverse of :func:`octets`."""
    return str(octets, "utf-8", "surrogateescape")


def document(value: Mapping[str, Any] | None) -> bytes:
    """A small JSON object as octets; nothing for an empty one.

    Raises:
        TypeError: a value is none that JSON has.
    """
    if not value:
        return b""
    try:
        return _encode(value)
    except UnicodeEncodeError:
        # Surrogate escapes, which only the standard library writes (escaped) and reads back.
        return json.dumps(value).encode("ascii")


def parse(octets: bytes) -> dict[str, Any]:
    """The reverse of :func:`document`."""
    found: dict[str, Any] = json.loads(octets) if octets else {}
    return found
