"""What goes into the ledger and what comes out of it.

Ids of messages are UUIDv7 as 16 octets (:mod:`gateway.ledger.db.ids`); times are microseconds since 1970; AMQP
names are ``str`` with surrogate escapes for octets that are not UTF-8, as everywhere in the gateway.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

from gateway.errors import LedgerUnavailable
from gateway.ledger.writing.states import EventKind, MessageState


class NewMessage(msgspec.Struct, frozen=True, kw_only=True):
    """What is remembered of a message beside its events. The body is not; its size and SHA-256 are."""

    broker: str
    """The broker it is published to, or was first taken from; a name of the configuration."""
    version: str
    """The AMQP version spoken with that broker."""
    exchange: str
    routing_key: str
    size: int
    """Octets of the body, up to 2**64 - 1."""
    sha256: bytes
    """SHA-256 of the body, 32 octets."""
    origin: str
    """Where it came in: ``http``, ``broker``, ``bridge``, ``replay``."""
    client: str = ""
    """Who sent it: the name of the API key; empty: nobody in particular."""
    properties: dict[str, Any] | None = None
    """Summary of the AMQP properties, JSON values only: the publisher's ``message_id``, ``content_type``, ..."""
    headers: Mapping[str, Any] | None = None
    """The AMQP headers, of which the ledger keeps those that ``ledger.headers`` names, as text."""


class LogEntry(msgspec.Struct, frozen=True):
    """One event, and with the first event of a message the message itself."""

    message_id: bytes
    kind: EventKind
    at: int
    """When it happened, microseconds since 1970."""
    broker: str = ""
    version: str = ""
    detail: dict[str, Any] | None = None
    """A few JSON values: reply code and text, subscription, consumer, losses."""
    message: NewMessage | None = None
    """The message, where the ledger may not know it yet. One that it knows is left as it is."""


class RecordedEvent(msgspec.Struct, frozen=True):
    """An event as the ledger holds it. ``sequence`` has no gaps within ``shard`` and starts at 1."""

    shard: int
    sequence: int
    message_id: bytes
    kind: EventKind
    at: int
    broker: str
    version: str
    detail: dict[str, Any]


class StoredMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message as the ledger holds it."""

    id: bytes
    at: int
    """When the ledger first heard of it."""
    broker: str
    version: str
    exchange: str
    routing_key: str
    size: int
    sha256: bytes
    origin: str
    client: str
    properties: dict[str, Any]
    state: MessageState | None
    """None: no event yet, which only a damaged ledger has."""


class Timeline(msgspec.Struct, frozen=True):
    """Everything that is known of a message, oldest event first."""

    message: StoredMessage
    events: list[RecordedEvent]


class MessageFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which messages; None is any."""

    broker: str | None = None
    exchange: str | None = None
    routing_key: str | None = None
    client: str | None = None
    origin: str | None = None
    state: MessageState | None = None
    since: int | None = None
    """Made at or after this time, in microseconds since 1970, by the clock in the id."""
    until: int | None = None
    """Made before this time."""
    subscription: str | None = None
    """Something happened to it at this subscription."""
    endpoint: str | None = None
    """At this endpoint."""
    bridge: str | None = None
    """At this bridge."""
    properties: Mapping[str, str] | None = None
    """Properties as the ledger remembers them: ``message_id``, ``content_type``, ``type``, ``correlation_id``."""
    headers: Mapping[str, str] | None = None
    """Headers as the ledger remembers them (``ledger.headers``), as text."""
    any_of: Sequence[MessageFilter] | None = None
    """At least one of these fits as well: filters of routing key, properties and headers."""


class EventFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which events; None is any."""

    kinds: frozenset[EventKind] | None = None
    broker: str | None = None
    message_id: bytes | None = None
    subscription: str | None = None
    endpoint: str | None = None
    bridge: str | None = None


class HourFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which counts; None is any. Hours are counted since 1970."""

    since: int | None = None
    """From this hour on."""
    until: int | None = None
    """Before this hour."""
    kinds: frozenset[EventKind] | None = None
    broker: str | None = None
    subscription: str | None = None
    endpoint: str | None = None
    bridge: str | None = None


class HourlyEvents(msgspec.Struct, frozen=True):
    """How many events there were in an hour; empty names: of no subscription, endpoint or bridge."""

    hour: int
    """Since 1970."""
    kind: EventKind | None
    """None: of any kind, where kinds are summed up."""
    broker: str
    subscription: str
    endpoint: str
    bridge: str
    events: int
    octets: int
    """Of the bodies of their messages."""


class OutboxEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A publish that still has to be sent: written before the broker is asked, gone once its outcome is written. It is
    due at a time, or is a message of a request that holds an Idempotency-Key."""

    message_id: bytes
    broker: str
    exchange: str
    routing_key: str
    payload: bytes
    """The message, encoded by the caller; opaque here."""
    at: int = 0
    """When it was taken, by this process's clock, in microseconds since 1970."""
    client: str = ""
    """The name of the API key that published it."""
    key: str = ""
    """The Idempotency-Key it belongs to, in what comes back; empty: it is due at a time."""
    message: NewMessage | None = None
    """Required by ``claim_key``; None in what comes back."""
    due_at: int = 0
    """When it is to be sent, in microseconds since 1970; not after now: at once."""
    attempt: int = 0
    """How often it was handed out; the claim of a key counts."""
    reason: dict[str, Any] = {}
    """Why the last attempt failed."""
    claimed: bool = False
    """A process that lives is about to send it."""
    dead: bool = False
    """It was refused for good, and is kept with its reason."""
    doubtful: bool = False
    """Handed out just now, after it was held before: it may have been sent."""


class New(msgspec.Struct, frozen=True):
    """The key was free. The intents are durable: publish them, then call ``finish_key``, ``free_key`` or
    ``unknown_key``."""


class StoredAnswer(msgspec.Struct, frozen=True):
    """Answered before; answer the same again."""

    status: int
    headers: dict[str, str]
    body: bytes


class KeyLost(LedgerUnavailable):
    """The key is not this process's, or not claimed: another one took it over. The events that came with its ending
    are written all the same; trying again is of no use."""


class Mismatch(msgspec.Struct, frozen=True):
    """The key was used for another request (422)."""


class RunningRequest(msgspec.Struct, frozen=True):
    """The first request with this key is still under way (409, or join it)."""

    here: bool
    """In this process."""
    ids: tuple[bytes, ...]


class Unknown(msgspec.Struct, frozen=True):
    """An earlier request with this key ended without an outcome, or its process died. The key is now this
    caller's, as if New: send ``intents`` again with the same ids, record ``resent``, then finish. ``ids`` are
    all messages of the key; those without an intent have their outcome in their timeline."""

    ids: tuple[bytes, ...]
    intents: tuple[OutboxEntry, ...]


KeyClaim: TypeAlias = New | StoredAnswer | Mismatch | RunningRequest | Unknown


class ResourceRecord(msgspec.Struct, frozen=True):
    """A thing that the API keeps here, such as a subscription."""

    kind: str
    name: str
    spec: dict[str, Any]
    etag: str
    created_at: int
    updated_at: int


class InboxRow(msgspec.Struct, frozen=True):
    """That a message was forwarded, for the next one that gets it. Written in the commit of an event; where one
    call has several, it shares the fate of the last entry of ``message_id``."""

    scope: str
    """Who forwarded it: the name of the bridge."""
    key: str
    """What it is known by: its origin id."""
    body_sha256: bytes
    """SHA-256 of the body, 32 octets."""
    message_id: bytes
    """Its id here, 16 octets."""
    expires_at: int
    """When it is forgotten, microseconds since 1970."""


class Seen(msgspec.Struct, frozen=True):
    """What the inbox remembers of a key."""

    body_sha256: bytes
    message_id: bytes
    at: int
    """When it was written, microseconds since 1970."""
