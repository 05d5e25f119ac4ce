"""Checksums of stored messages, so that what a disk has changed is not sent.

SQLite has no checksums of its pages, and a disk may return other bytes than were written. So a row of a message has a
CRC-32 over what is sent of it, and is compared with it when it is read. A payload that does not fit counts as
:data:`DAMAGED`: an empty one, which no reader takes for a message.
"""

from __future__ import annotations

from zlib import crc32

NONE = 0
"""In place of a checksum: the row is of a release that wrote none."""
DAMAGED = b""
"""In place of a payload that is not what was written."""


def checksum(*parts: bytes) -> int:
    """The checksum of some columns, in order; never :data:`NONE`."""
    found = 0
    for part in parts:
        found = crc32(part, crc32(b"%d:" % len(part), found))
    return found or 1


def is_sound(stored: int, *parts: bytes) -> bool:
    """Whether these columns have the checksum that was stored with them."""
    return stored in (NONE, checksum(*parts))
