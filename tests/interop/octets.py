"""Property lists and header tables written by hand, as 0-8 and 0-9-1 put them on the wire.

This is the ruler of the interop tests: it knows nothing of the gateway's encoder, and a test that compares with it
compares octets. Type letters are those of RabbitMQ's errata.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any

_FORMS = {
    "t": "?", "b": "b", "B": "B", "s": "h", "u": "H", "I": "i", "i": "I", "l": "q", "f": "f", "d": "d", "T": "Q",
}  # fmt: skip

Entry = tuple[str, str, Any]
"""Key, type letter, value."""

PROPERTIES = (
    "content_type", "content_encoding", "headers", "delivery_mode", "priority", "correlation_id", "reply_to",
    "expiration", "message_id", "timestamp", "type", "user_id", "app_id", "cluster_id",
)  # fmt: skip
"""In the order of their flags, the first in the highest bit."""


def short(text: str) -> bytes:
    """A short string."""
    data = text.encode()
    return bytes([len(data)]) + data


def value(letter: str, content: Any) -> bytes:
    """A header value with its letter. ``D`` takes ``(scale, unscaled)``, ``A`` pairs, ``F`` entries."""
    return letter.encode() + _content(letter, content)


def _content(letter: str, content: Any) -> bytes:
    if letter in _FORMS:
        return struct.pack(f">{_FORMS[letter]}", content)
    match letter:
        case "V":
            return b""
        case "D":
            return struct.pack(">Bi", *content)
        case "F":
            return table(content)
        case "A":
            data = b"".join(value(*pair) for pair in content)
        case _:
            data = content.encode() if isinstance(content, str) else content
    return struct.pack(">I", len(data)) + data


def table(entries: Sequence[Entry]) -> bytes:
    """A field table with its length."""
    data = b"".join(short(key) + value(letter, content) for key, letter, content in entries)
    return struct.pack(">I", len(data)) + data


def properties(**given: Any) -> bytes:
    """Flags and property list; ``headers`` are entries."""
    flags, data = 0, b""
    for bit, name in enumerate(PROPERTIES):
        if name not in given:
            continue
        flags |= 0x8000 >> bit
        content = given[name]
        match name:
            case "headers":
                data += table(content)
            case "delivery_mode" | "priority":
                data += bytes([content])
            case "timestamp":
                data += struct.pack(">Q", content)
            case _:
                data += short(content)
    return struct.pack(">H", flags) + data


def content_headers(stream: bytes) -> Iterator[bytes]:
    """Flags and property list of each content header in a stream of 0-8 or 0-9-1 frames."""
    at = 8 if stream.startswith(b"AMQP") else 0
    while at < len(stream):
        kind, _, size = struct.unpack_from(">BHI", stream, at)
        if kind == 2:
            yield stream[at + 7 + 12 : at + 7 + size]
        at += 7 + size + 1
