"""Limits of the gateway's own requests: how much each may take, and how much of an answer is read.

``docs/reference/outbound.md`` is generated from this table."""

from __future__ import annotations

from dataclasses import dataclass

KIB = 1 << 10


@dataclass(frozen=True, slots=True)
class OutboundLimits:
    """Lengths in octets, times in seconds."""

    deadline: float = 15.0
    """From the call to the last octet of the answer: resolving, connecting, TLS, head and body together."""
    connect_timeout: float = 5.0
    """The part of it in which there must be a connection, TLS handshake included."""
    request_head_max: int = 64 * KIB
    """Largest head of a request."""
    head_max: int = 32 * KIB
    """Largest head of an answer; interim answers (1xx) count with it."""
    headers_max: int = 200
    """Most headers of an answer."""
    body_kept: int = 16 * KIB
    """How much of an answer's body is read. Where there is more, the connection is closed."""
    framing_max: int = 64 * KIB
    """What chunk sizes, chunk extensions and trailers may take beside the body."""
    connections: int = 1_024
    """Most connections at once, those being opened and those kept open included."""
    connections_per_site: int = 128
    """Most connections at once to one scheme, host and port."""
    idle: int = 512
    """Most connections kept open for the next request."""
    idle_per_site: int = 100
    """Most of them to one scheme, host and port: as many as an endpoint may have requests under way."""
    idle_timeout: float = 30.0
    """How long a connection is kept open without a request."""
    lifetime: float = 300.0
    """How long a connection is used at all: then the host is resolved and checked again."""
    addresses: int = 8
    """Most addresses of a host that are tried, one after the other. All are judged."""
    lookups: int = 16
    """Most names that are being resolved at once. For endpoints, the budget `lookups` says so."""
    lookups_waiting: int = 1_024
    """Most names that are being resolved or wait for it."""


DEFAULT_OUTBOUND_LIMITS = OutboundLimits()
