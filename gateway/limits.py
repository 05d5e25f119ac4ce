"""The limits on untrusted input, in one table.

Every length that a peer declares is compared with one of these before that many octets are read or any
memory is reserved. The defaults are what the gateway ships; configuration may lower or raise the ones that
are settings. ``docs/limits.md`` is checked against :data:`LIMITS`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Limits:
    """What one session accepts from its peer. All lengths in octets, all times in seconds."""

    frame_max: int = 131_072
    """Largest frame, in octets, that is offered and accepted (classic: with its 8 octets of envelope)."""
    frame_max_floor: int = 4_096
    """Smallest frame_max that a peer may ask for; the specifications' frame-min-size."""
    channel_max: int = 2_047
    """How many channels (0-10: sessions) may be open at once on one connection."""
    heartbeat: float = 60.0
    """Heartbeat offered, in seconds; 0 switches heartbeats off."""
    handshake_timeout: float = 10.0
    """From the first octet to an open connection, in seconds."""
    close_timeout: float = 5.0
    """How long a close waits for its close-ok, in seconds."""
    message_max: int = 16 * MIB
    """Largest message body, in octets. A larger delivery is discarded as it comes (``DeliveryTooLarge``)."""
    header_max: int = MIB
    """Largest content header (0-10: header segment), in octets."""
    table_depth: int = 32
    """Deepest nesting of tables, arrays, maps and lists."""
    table_entries: int = 4_096
    """Most entries of one table, array, map or list."""
    frame_elements: int = 65_536
    """Most values decoded from one frame, over all its tables."""
    short_string: int = 255
    """Longest short string, in octets."""
    spool_max: int = 32 * MIB
    """Most octets of unfinished messages held for one connection."""


DEFAULT_LIMITS = Limits()
LIMIT_NAMES = tuple(field.name for field in fields(Limits))
