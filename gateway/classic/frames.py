"""Frames of 0-8 and 0-9-1 (0-9-1 section 4.2.3) and the reply codes that close channels and connections.

A frame is a header of 7 octets (type, channel, size of the payload), the payload and an octet that ends it.
"""

from __future__ import annotations

import struct
from typing import Final

from gateway.classic.constants import (
    REPLIES,
    REPLIES_OF_0_8,
    REPLIES_OF_0_9_1,
    REPLIES_OF_RABBITMQ,
    SPARED,
    Error,
)
from gateway.errors import FrameSyntaxError

METHOD: Final = 1
HEADER: Final = 2
BODY: Final = 3
HEARTBEAT: Final = 8
FRAME_END: Final = 0xCE
OVERHEAD: Final = 8
"""Octets of a frame that are not payload."""

FRAME_HEADER: Final = struct.Struct(">BHI")
METHOD_KEY: Final = struct.Struct(">I")
CONTENT_HEADER: Final = struct.Struct(">HHQ")
"""Class, weight, size of the body; the properties follow."""
CONTENT_HEADER_SIZE: Final = CONTENT_HEADER.size
BASIC: Final = 60

HEARTBEAT_FRAME: Final = b"\x08\x00\x00\x00\x00\x00\x00\xce"

_frame_header = FRAME_HEADER.pack
_end = b"\xce"


def method_frame(channel: int, payload: bytes) -> bytes:
    """A method frame."""
    return _frame_header(METHOD, channel, len(payload)) + payload + _end


_CONTENT_START = struct.Struct(">BHIHHQ").pack
_BODY_START = struct.Struct(">BBHI").pack


SMALL_BODY: Final = 16_384
"""Up to here a body is joined with the frames around it, which costs less than a buffer of its own; a larger one is
passed on as it is."""


def content_frames(channel: int, method: bytes, properties: bytes, body: bytes, frame_max: int) -> list[bytes]:
    """The buffers of a method frame (already complete), a content header and as many body frames as it takes.
    ``properties`` and the frames around fit ``frame_max``, as the caller has checked."""
    size = len(body)
    room = frame_max - OVERHEAD
    start = _CONTENT_START(HEADER, channel, 12 + len(properties), BASIC, 0, size)
    if size == 0:
        return [b"".join((method, start, properties, _end))]
    if size <= room:
        middle = _BODY_START(FRAME_END, BODY, channel, size)
        if size <= SMALL_BODY:
            return [b"".join((method, start, properties, middle, body, _end))]
        return [b"".join((method, start, properties, middle)), body, _end]
    buffers = [b"".join((method, start, properties, _end))]
    view = memoryview(body)
    for at in range(0, size, room):
        piece = view[at : at + room]
        buffers.append(b"".join((_frame_header(BODY, channel, len(piece)), piece, _end)))
    return buffers


_REPLIES = sorted((*REPLIES, *REPLIES_OF_0_8, *REPLIES_OF_0_9_1, *REPLIES_OF_RABBITMQ), key=lambda reply: reply.value)

REPLY_CODES: Final = {reply.value: reply.name.upper().replace("-", "_") for reply in _REPLIES}
"""Reply codes and the names by which servers begin their texts."""

CONNECTION_CODES: Final = frozenset(reply.value for reply in _REPLIES if reply.error is Error.HARD) - SPARED
"""Those that end the connection; the others end a channel (0-9-1 section 1.2)."""


def reply_text(code: int, text: str) -> str:
    """``text`` as clients expect it: beginning with the code's name, at most 255 octets."""
    name = REPLY_CODES.get(code, "")
    if not text.startswith(name):
        text = f"{name} - {text}" if text else name
    octets = text.encode("utf-8", "surrogateescape")
    return text if len(octets) <= 255 else octets[:255].decode("utf-8", "ignore")


def unexpected(text: str, code: int = 505) -> FrameSyntaxError:
    """The error for a frame that has no place where it came."""
    return FrameSyntaxError(text, code)
