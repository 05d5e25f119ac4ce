"""What goes into the log of messages and what comes out of both logs.

Both logs, that of events and that of messages, are numbered per shard without gaps, and a position says of each shard
how far one has read: ``{"0": 812, "3": 77}``.
"""

from __future__ import annotations

from typing import Any

import msgspec

from gateway.logs import Log


class Spooled(msgspec.Struct, frozen=True, kw_only=True):
    """A message on its way into the log."""

    message_id: bytes
    """The gateway's id of it, 16 octets. Copies of one message may have the same."""
    tap: str
    """The tap that took it."""
    at: int
    """When, in microseconds since 1970."""
    broker: str
    version: str
    queue: str
    exchange: str
    routing_key: str
    redelivered: bool
    """The broker, or the gateway, knows that it may have come before."""
    origin_id: str = ""
    """By which copies of one message are known for that; empty: none."""
    properties: bytes
    """All properties and headers with their types, as a JSON object in UTF-8."""
    body: bytes
    sha256: bytes
    """SHA-256 of the body, 32 octets."""


class Extent(msgspec.Struct, frozen=True):
    """What of a shard's log can be read."""

    shard: int
    floor: int
    """The lowest sequence number."""
    head: int
    """The last one that is committed; ``floor - 1`` and below: there is none."""
    retired: bool = False
    """The ledger was restored from a backup: nothing follows, and a reader may have read further than ``head``."""


class Floor(msgspec.Struct, frozen=True):
    """From where on a shard's log can be read, and why not before."""

    floor: int
    reason: str
    """``cursor``, ``age``, ``size`` or ``history``; empty: nothing went yet."""
    at: int
    """When it was raised, in microseconds since 1970."""


class StoredCursor(msgspec.Struct, frozen=True, kw_only=True):
    """How far somebody has read a log."""

    name: str
    log: Log
    position: dict[str, int]
    owner: str
    """Who reads under it; empty: nobody."""
    epoch: int
    """Grows with each claim; only the owner of the present one moves the cursor."""
    since: int
    """When the owner claimed it first, in microseconds since 1970, on the database's clock."""
    heard_at: int
    """When its owner was heard of last, the same way."""
    created_at: int


class UnreadLog(msgspec.Struct, frozen=True):
    """What a cursor has still to read."""

    rows: int
    octets: int
    """About what they take; 0 in the log of events, where nobody counts them."""


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """What a job of the pipeline tells of itself."""

    id: str
    job: str
    state: str
    """``running``, ``done`` or ``failed``."""
    started_at: int
    """Microseconds since 1970."""
    ended_at: int
    """0: it has not."""
    fingerprint: str
    """Of the job's settings: the same id with other settings is another job."""
    detail: dict[str, Any]
    updated_at: int = 0
