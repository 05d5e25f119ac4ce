"""Frames of AMQP 0-10 (specification section 4): 12 octets of header, then a piece of a segment.

::

    octet 0   version (2 bits, 0) | 2 bits | first segment | last segment | first frame | last frame
    octet 1   segment type: 0 control, 1 command, 2 header, 3 body
    octets 2-3  size of the frame, these 12 octets included
    octet 4   reserved      octet 5   track (low 4 bits)
    octets 6-7  channel     octets 8-11  reserved

:func:`read_frame` cuts one frame out of octets and knows nothing of what it means; :func:`read_simple` takes the
three frames of an ordinary message in one go. The writer gives back complete frames: one where the segment fits,
several where it does not.
"""

from __future__ import annotations

import struct
from typing import Final

from gateway.errors import FrameSyntaxError

HEADER_SIZE: Final = 12
FIRST_SEGMENT: Final = 0x08
LAST_SEGMENT: Final = 0x04
FIRST_FRAME: Final = 0x02
LAST_FRAME: Final = 0x01
WHOLE: Final = FIRST_SEGMENT | LAST_SEGMENT | FIRST_FRAME | LAST_FRAME
"""One segment in one frame, and no other segment belongs to it."""

CONTROL: Final = 0
COMMAND: Final = 1
HEADER: Final = 2
BODY: Final = 3
"""Segment types; the first two are the tracks as well."""

FRAME_MIN: Final = 4_096
"""Smallest max-frame-size that may be negotiated (section 4.4.3 of connection.tune)."""
FRAME_MAX: Final = 0xFFFF
"""The size field has 16 bits."""

PROTOCOL_HEADER: Final = b"AMQP\x01\x01\x00\x0a"

_HEAD = struct.Struct(">BBHBBHI")
pack_head = _HEAD.pack
"""flags, segment type, size, 0, track, channel, 0."""

_FAST = struct.Struct(">HHHHI").unpack_from
"""The same five fields, flags and segment type read as one number, reserved octet and track as another."""
_COMMAND_BEFORE_CONTENT: Final = (FIRST_SEGMENT | FIRST_FRAME | LAST_FRAME) << 8 | COMMAND
_HEADER_BEFORE_BODY: Final = (FIRST_FRAME | LAST_FRAME) << 8 | HEADER
_HEADER_LAST: Final = (LAST_SEGMENT | FIRST_FRAME | LAST_FRAME) << 8 | HEADER
_BODY_LAST: Final = (LAST_SEGMENT | FIRST_FRAME | LAST_FRAME) << 8 | BODY

Frame = tuple[int, int, int, int, bytes]
"""Flags, segment type, track, channel, payload."""
Simple = tuple[int, bytes, bytes, bytes]
"""Channel, command segment, header segment, body."""


def read_frame(data: bytes, at: int, frame_max: int) -> tuple[Frame, int] | None:
    """The frame at ``at`` and the offset behind it; None where it is not all there.

    Raises:
        FrameSyntaxError: it is smaller than its header, larger than ``frame_max``, of another version or of an
            unknown segment type.
    """
    if len(data) - at < HEADER_SIZE:
        return None
    flags, kind, size, _, track, channel, _ = _HEAD.unpack_from(data, at)
    if size < HEADER_SIZE or size > frame_max:
        raise FrameSyntaxError(f"a frame of {size} octets; from {HEADER_SIZE} to {frame_max} are allowed")
    if flags > 0x3F or kind > BODY:
        raise FrameSyntaxError(f"a frame with flags {flags:02x} and segment type {kind}")
    stop = at + size
    if stop > len(data):
        return None
    return (flags, kind, track & 0x0F, channel, data[at + HEADER_SIZE : stop]), stop


def read_simple(data: bytes, at: int, size_max: int) -> tuple[Simple, int] | None:
    """A command with content whose segments are one frame each, one behind the other: most messages are. None
    where it is anything else, or not all there, or a frame is over ``size_max``."""
    end = len(data)
    if end - at < 2 * HEADER_SIZE:
        return None
    first, size, track, channel, _ = _FAST(data, at)
    header_at = at + size
    if (
        first != _COMMAND_BEFORE_CONTENT
        or track != COMMAND
        or not HEADER_SIZE < size <= size_max
        or end - header_at < HEADER_SIZE
    ):
        return None
    second, size, same_track, same_channel, _ = _FAST(data, header_at)
    body_at = header_at + size
    if not HEADER_SIZE <= size <= size_max or same_track != COMMAND or same_channel != channel or body_at > end:
        return None
    command = data[at + HEADER_SIZE : header_at]
    header = data[header_at + HEADER_SIZE : body_at]
    if second == _HEADER_LAST:
        return (channel, command, header, b""), body_at
    if second != _HEADER_BEFORE_BODY or end - body_at < HEADER_SIZE:
        return None
    third, size, same_track, same_channel, _ = _FAST(data, body_at)
    stop = body_at + size
    if (
        third != _BODY_LAST
        or not HEADER_SIZE <= size <= size_max
        or same_track != COMMAND
        or same_channel != channel
        or stop > end
    ):
        return None
    return (channel, command, header, data[body_at + HEADER_SIZE : stop]), stop


def write_segment(
    octets: bytes, kind: int, track: int, channel: int, frame_max: int, flags: int = FIRST_SEGMENT | LAST_SEGMENT
) -> list[bytes]:
    """The frames of one segment. ``flags`` says whether it is the first and the last of its assembly."""
    room = frame_max - HEADER_SIZE
    if len(octets) <= room:
        head = _HEAD.pack(flags | FIRST_FRAME | LAST_FRAME, kind, len(octets) + HEADER_SIZE, 0, track, channel, 0)
        return [head + octets]
    frames = []
    for start in range(0, len(octets), room):
        piece = octets[start : start + room]
        position = (FIRST_FRAME if start == 0 else 0) | (LAST_FRAME if start + room >= len(octets) else 0)
        frames.append(_HEAD.pack(flags | position, kind, len(piece) + HEADER_SIZE, 0, track, channel, 0) + piece)
    return frames
