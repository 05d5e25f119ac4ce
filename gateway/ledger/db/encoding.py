"""How Python values lie in the columns: names as octets, small documents as JSON octets."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from gateway.errors import LedgerDamaged

TEXT_MAX = 200
"""Longest text of a header that is kept, in characters."""
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
        TypeError: a value has no form in JSON.
    """
    if not value:
        return b""
    try:
        return _encode(value)
    except UnicodeEncodeError:
        # Surrogate escapes, which only the standard library writes (escaped) and reads back.
        return json.dumps(value).encode("ascii")


def header_texts(headers: Mapping[str, Any], names: Sequence[str]) -> dict[str, str]:
    """Headers of these names whose values are texts, numbers or truths, as text of at most :data:`TEXT_MAX`
    characters."""
    found = {}
    for name in names:
        value = headers.get(name)
        value = getattr(value, "value", value)  # an explicit type is no part of what is searched for
        if isinstance(value, bool):
            found[name] = str(value).lower()
        elif isinstance(value, str | int | float):
            found[name] = str(value)[:TEXT_MAX].encode("utf-8", "backslashreplace").decode()
    return found


def parse(octets: bytes) -> dict[str, Any]:
    """The reverse of :func:`document`. Raises LedgerDamaged: that did not write it."""
    if not octets:
        return {}
    try:
        found = json.loads(octets)
    except ValueError as error:
        raise LedgerDamaged(f"a document in the ledger is damaged: {error}") from None
    if not isinstance(found, dict):
        raise LedgerDamaged("a document in the ledger is damaged: it is no object")
    return found
