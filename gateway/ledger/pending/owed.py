"""Types of the pending entries: deliveries, their bodies, scheduled publishes.

Ids are 16 octets; times are microseconds since 1970, and those that something waits for are on the database's clock.
"""

from __future__ import annotations

from enum import IntEnum, StrEnum
from typing import Any

import msgspec

from gateway.ledger.writing.records import LogEntry


class Owed(msgspec.Struct, frozen=True, kw_only=True):
    """A message that is to be owed to a subscription from now on."""

    id: bytes
    """Of the delivery: a UUIDv7, whose order is the order of arrival. The caller makes it (``MessageIds``), so that
    storing the same twice stores it once."""
    message_id: bytes
    subscription: str
    order_key: bytes = b""
    """Deliveries with the same key are handed out one at a time and in order, where that is asked for; empty: none."""
    at: int
    """When it arrived, by this process's clock."""
    due_at: int = 0
    """When it may be handed out, by this process's clock, which is carried over to the database's; not after now, or
    0: at once, in the order of ``at``."""
    attempt: int = 0
    """How often it was handed out or tried before."""
    payload: bytes
    """The message, encoded by the caller; opaque here. Deliveries of one message with equal payloads share it."""
    size: int
    """Octets of the body."""
    lease_seconds: float = 0.0
    """Above 0: it is handed out already, for so long; ``attempt`` and ``lease`` are at least 1."""
    dead: bool = False
    reason: dict[str, Any] = {}


class BacklogEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A message that is pending for a subscription."""

    id: bytes
    message_id: bytes
    subscription: str
    order_key: bytes
    at: int
    due_at: int
    """When it may be handed out next, on the database's clock; of one that is out: when its lease ends."""
    attempt: int
    """How often it was handed out or tried."""
    lease: int
    """The number of its lease: grows each time it is handed out; 0: never."""
    dead: bool
    reason: dict[str, Any]
    """Why it was released, tried again or given up the last time."""
    size: int
    payload: bytes | None = None
    """None: not asked for."""
    out: bool = False
    """It was handed out and nothing was heard of it since, though its lease may have ended (``due_at``)."""
    expired: bool = False
    """It was handed out just now, by ``claim``, because the lease before this one ended without a word."""
    due_in: float = 0.0
    """Seconds from the moment of reading until ``due_at``; below 0: that long ago."""


class Claimed(list[BacklogEntry]):
    """Deliveries that were handed out at once."""

    is_cut = False
    """More is due, and did not fit into the bytes that were asked for."""


class Ending(StrEnum):
    """What becomes of a delivery."""

    DONE = "done"
    """The consumer is done with it, or the dead-letter place has it: it goes."""
    RETRY = "retry"
    """It is not out any more, and due ``due_in`` seconds from now."""
    EXTEND = "extend"
    """Its lease ends ``due_in`` seconds from now."""
    DEAD = "dead"
    """Given up: kept with its reason, and not handed out."""
    REVIVE = "revive"
    """A dead one is pending again, and due ``due_in`` seconds from now."""
    PURGE = "purge"
    """It goes, in any state."""
    DISCARD = "discard"
    """A dead one goes."""


class BacklogStatus(IntEnum):
    """What a delivery is."""

    WAITING = 0
    """To be handed out when it is due."""
    OUT = 1
    """Handed out, under a lease that ends when it is due."""
    DEAD = 2
    """Given up."""
    GONE = 3
    """There is no such row."""


ENDINGS: dict[BacklogStatus, dict[Ending, BacklogStatus]] = {
    BacklogStatus.WAITING: {
        Ending.DONE: BacklogStatus.GONE,
        Ending.RETRY: BacklogStatus.WAITING,
        Ending.DEAD: BacklogStatus.DEAD,
        Ending.PURGE: BacklogStatus.GONE,
    },
    BacklogStatus.OUT: {
        Ending.DONE: BacklogStatus.GONE,
        Ending.RETRY: BacklogStatus.WAITING,
        Ending.EXTEND: BacklogStatus.OUT,
        Ending.DEAD: BacklogStatus.DEAD,
        Ending.PURGE: BacklogStatus.GONE,
    },
    BacklogStatus.DEAD: {
        Ending.DONE: BacklogStatus.GONE,
        Ending.REVIVE: BacklogStatus.WAITING,
        Ending.PURGE: BacklogStatus.GONE,
        Ending.DISCARD: BacklogStatus.GONE,
    },
    BacklogStatus.GONE: {},
}
"""Status -> ending -> the status after it. An ending that is not there does not take effect."""


class BacklogSettlement(msgspec.Struct, frozen=True):
    """An ending for one delivery."""

    id: bytes
    ending: Ending
    lease: int | None = None
    """Only under this lease: while the delivery is out under this number (also after the lease has ended, as long as
    nobody else got it) or, where it is 0, has never been handed out. A lease ends with RETRY: who tries again without
    ``claim`` gives None. None: any."""
    due_in: float = 0.0
    """RETRY, EXTEND, REVIVE: seconds from now."""
    front: bool = False
    """RETRY, REVIVE with ``due_in`` 0: due at its old place in line, not behind all that is due."""
    attempt: int | None = None
    """RETRY, REVIVE: its attempts so far; None: as they are."""
    reason: dict[str, Any] = {}
    """Kept with the delivery; empty: the one that it has."""
    entries: tuple[LogEntry, ...] = ()
    """Events that are written in the same commit if it takes effect, and not otherwise."""
    octets: int = 0
    """DONE, PURGE, DISCARD: octets of payload that go with it, as far as that is known. Large ones are not in one
    commit."""


class BacklogCounts(msgspec.Struct, frozen=True):
    """Pending messages of a subscription."""

    waiting: int = 0
    """Not out, or out under a lease that has ended."""
    out: int = 0
    dead: int = 0
    octets: int = 0
    """Of the bodies of all of them."""
    oldest_at: int | None = None
    """When the oldest that is not dead arrived."""
    next_due_at: int | None = None
    """When the next one of those that are not dead is due, on the database's clock; may have passed."""
    tried: int = 0
    """How many of those that wait were handed out or tried before."""


class DeliveryFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which deliveries; None is any."""

    subscription: str | None = None
    message_id: bytes | None = None
    order_key: bytes | None = None
    dead: bool | None = None
    code: str | None = None
    """Dead with this code."""
    subscriptions: tuple[str, ...] | None = None
    """Of one of these."""
    since: int | None = None
    """Arrived at or after this time, by the clock in the id, to the millisecond."""
    until: int | None = None
    """Arrived before this time."""
    until_id: bytes | None = None
    """Not behind this delivery: only what was there when it was the newest."""


class DeadGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Dead deliveries of one subscription with one code."""

    code: str
    subscription: str
    count: int
    more: bool
    """There are more than were counted."""
    first_at: int
    """When the first of them arrived, in microseconds since 1970."""
    last_at: int


class KeptBody(msgspec.Struct, frozen=True):
    """A body that is to be kept although the ledger does not owe it."""

    message_id: bytes
    payload: bytes
    size: int
    """Octets of the body; one that is larger than ``retention.body_max`` is not kept."""


class OutboxFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which publishes of the outbox; None is any."""

    message_id: bytes | None = None
    broker: str | None = None
    client: str | None = None
    dead: bool | None = None
