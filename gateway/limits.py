"""The limits on untrusted input, in one table.

Every length that a peer declares is compared with one of these before that many octets are read or any
memory is reserved. The defaults are what the gateway ships; configuration may lower or raise the ones that
are settings. :class:`BrokerLimits` are the embedded broker's: how much its clients may make of everything that it
keeps. ``docs/reference/limits.md`` and ``docs/reference/embedded-broker.md`` are generated from these classes.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final

MIB = 1 << 20
PULL_MAX: Final = 32 * MIB
"""Bytes of messages with which one pull ends, even if it asked for more. One message goes however large it is."""


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
    """Largest content header (0-10: header segment), in octets. A broker may send one in a frame over ``frame_max``."""
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


@dataclass(frozen=True, slots=True)
class BrokerLimits:
    """What the embedded broker keeps for its clients, beside :class:`Limits` of each session. Lengths in octets,
    times in seconds. One thing more than a limit allows is refused with 506 (0-10: resource-limit-exceeded) where
    nothing else is said; it costs the channel, and the neighbors notice nothing."""

    connections: int = 4_096
    """Most connections at once, per listener. One more gets 530 when it has logged in."""
    connections_per_address: int = 1_024
    """Most connections at once from one remote address, per listener; told likewise."""
    connections_refused: int = 64
    """Most connections at once that are still to be told that there are too many; beyond that they are only closed."""
    channels: int = 65_536
    """Most open channels, over all connections."""
    exchanges: int = 65_536
    """Most exchanges."""
    queues: int = 65_536
    """Most queues."""
    bindings: int = 262_144
    """Most bindings."""
    tried_bindings: int = 4_096
    """Most bindings of one exchange that every message must be compared with: those of a headers exchange, and those
    with a selector."""
    match_steps: int = 32_768
    """Most steps that may be spent on finding the queues of one message: comparisons of headers, nodes of a trie of
    topics, words of selectors. One step takes about a tenth of a microsecond."""
    select_steps: int = 16_384
    """Most such steps for one message and the selector of one consumer. A message that costs more is not selected."""
    dead_letter_copies: int = 1_024
    """Most further copies that dead-lettering may make of one published message, where a dead letter goes to more than
    one queue. A dead letter that would make more is dropped."""
    consumers: int = 65_536
    """Most consumers."""
    queue_consumers: int = 4_096
    """Most consumers of one queue."""
    channel_consumers: int = 4_096
    """Most consumers of one channel."""
    selective_consumers: int = 1_024
    """Most consumers of one queue that browse or select."""
    declared_octets: int = 64 * MIB
    """Most octets of the names, keys and arguments of all queues, exchanges, bindings and consumers. A priority of a
    queue counts as 768, a word of a topic pattern as 320 unless another pattern begins with the same words."""
    branches: int = 4_096
    """Most branches of distributed transactions (0-10) that are not committed or rolled back, per virtual host."""
    branch_timeout: int = 3_600
    """How long a branch may take until it is prepared, where its client does not say. Then it is rolled back."""
    session_timeout: int = 300
    """How long a 0-10 session may outlive its connection, if its client asks for it."""
    unacked: int = 65_536
    """Most deliveries of one channel that are not acknowledged: what no prefetch means, and the largest one."""
    unacked_octets: int = 64 * MIB
    """The same in octets; one message goes however large it is."""
    ack_timeout: float = 1_800.0
    """How long a delivery may be unacknowledged. Then its channel is closed with 406, and what was out goes back.
    0: for ever."""
    output_high_water: int = MIB
    """Octets waiting for a client that does not read, above which it gets no more deliveries."""
    input_stop: int = 2 * MIB
    """Octets waiting for a client that does not read, above which its requests wait and nothing more is read."""
    output_buffers: int = 65_536
    """The same, counted in frames that wait: answers are small."""
    stuck_timeout: float = 60.0
    """How long a client may take not one octet of what waits for it, or leave a frame or a message unfinished without
    sending one. Then its connection is dropped. 0: for ever."""
    turn: float = 0.005
    """How long the requests of one client are worked on before its neighbors have their turn."""


DEFAULT_BROKER_LIMITS = BrokerLimits()
