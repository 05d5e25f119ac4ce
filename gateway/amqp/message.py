"""The message, as every version and the HTTP API see it.

:class:`Message` is the superset of what the versions can carry. Its properties stay undecoded octets
(:class:`RawProperties`) until someone asks for them, and pass through untouched between equal dialects.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Final, Protocol, TypeAlias

from gateway.amqp.values import Table
from gateway.errors import FrameSyntaxError

DELIVERY_COUNT: Final = "x-delivery-count"
"""Header in which RabbitMQ's quorum queues count how often a message was delivered and given back."""

Text: TypeAlias = str
"""A short string. Octets that are not UTF-8 are kept as surrogate escapes, so that nothing is changed."""


@dataclass(frozen=True, slots=True)
class ReplyTo:
    """0-10's reply-to struct, when it names an exchange. A plain reply-to is a ``str``: the routing key of
    the default exchange."""

    exchange: Text
    routing_key: Text


class ArrivalTime(int):
    """A ``timestamp`` that is the broker's word and not the publisher's: 0-10's delivery-properties hold when the
    message arrived. Shown to who reads the message, and no part of it."""

    milliseconds: int | None = None
    """The same in milliseconds, for a JMS message, whose receivers expect them in every version."""

    @classmethod
    def of(cls, seconds: int, milliseconds: int | None) -> ArrivalTime:
        """The time of a JMS message."""
        made = cls(seconds)
        made.milliseconds = milliseconds
        return made


class UuidMessageId(str):
    """A ``message_id`` that was a UUID on the wire, as every one of 0-10 is. JMS writes it ``ID:`` and the UUID in the
    other versions; as text it is the UUID alone, in canonical form."""

    __slots__ = ()


class Deadline(str):
    """An ``expiration`` that was an instant on the wire (Broker-J's classic versions): the milliseconds that were left
    when it was read, and the instant itself."""

    instant: int
    """Milliseconds since 1970."""

    @classmethod
    def at(cls, instant: int, now: float) -> Deadline:
        """The deadline ``instant``, seen at ``now`` (seconds since 1970)."""
        return cls.of(instant, str(max(0, instant - int(now * 1000))))

    @classmethod
    def of(cls, instant: int, left: str) -> Deadline:
        """The deadline ``instant`` of which ``left`` milliseconds were left."""
        made = cls(left)
        made.instant = instant
        return made


@dataclass(slots=True)
class Properties:
    """The properties of a message; None means absent. Built once, then not changed."""

    content_type: Text | None = None
    content_encoding: Text | None = None
    headers: Table | None = None
    delivery_mode: int | None = None
    """1 transient, 2 persistent."""
    priority: int | None = None
    """0-255; 0-10 carries 0-9."""
    correlation_id: Text | bytes | None = None
    """``bytes`` where 0-10's vbin16 is not UTF-8."""
    reply_to: Text | ReplyTo | None = None
    expiration: Text | None = None
    """Time to live: milliseconds, relative, as a decimal string, in every dialect. A
    :class:`Deadline` where the wire named an instant."""
    message_id: Text | None = None
    """A :class:`UuidMessageId` where it was a UUID on the wire, as in 0-10."""
    timestamp: int | None = None
    """Seconds since 1970. An :class:`ArrivalTime` where the publisher said nothing, but a broker did."""
    type: Text | None = None
    user_id: Text | bytes | None = None
    app_id: Text | bytes | None = None
    cluster_id: Text | None = None


PROPERTY_NAMES = tuple(field.name for field in fields(Properties))


def with_headers(properties: Properties, headers: Table | None) -> Properties:
    """``properties`` with other headers. What ``dataclasses.replace`` does, at an eighth of its price: every message
    that is published passes here."""
    return Properties(
        properties.content_type,
        properties.content_encoding,
        headers,
        properties.delivery_mode,
        properties.priority,
        properties.correlation_id,
        properties.reply_to,
        properties.expiration,
        properties.message_id,
        properties.timestamp,
        properties.type,
        properties.user_id,
        properties.app_id,
        properties.cluster_id,
    )


class Seam(Protocol):
    """How strings in one header, a table, are read and written in octets that stay undecoded otherwise."""

    def read(self, octets: bytes) -> Mapping[str, str] | None:
        """The strings in the header, none where there is no such header. None: only a decoder can tell."""
        ...

    def splice(self, octets: bytes, entries: Mapping[str, str]) -> bytes | None:
        """``octets`` with ``entries`` in the header, in place of those of the same names; it becomes the last header.
        None: only a decoder can do that, or say what is wrong with the octets."""
        ...


class RawProperties:
    """Properties as they came off the wire, and how to decode them.

    ``dialect`` names the exact encoding: octets may be passed on only to a peer whose dialect is equal. ``seam`` writes
    into them where that can be done without decoding.
    """

    __slots__ = ("decode", "dialect", "octets", "seam")

    def __init__(
        self, octets: bytes, dialect: str, decode: Callable[[bytes], Properties], seam: Seam | None = None
    ) -> None:
        self.octets = octets
        self.dialect = dialect
        self.decode = decode
        self.seam = seam


SMALL = 256
"""Properties of so few octets may well stay decoded: a message that is looked at again and again is decoded once."""


class Message:
    """A body and its properties. ``properties`` decodes on first use and may then raise
    :class:`~gateway.errors.FrameSyntaxError` if the octets are no property list."""

    __slots__ = ("_properties", "body", "expires_at", "left_out", "origin", "raw", "relayed")

    def __init__(
        self,
        body: bytes = b"",
        properties: Properties | None = None,
        raw: RawProperties | None = None,
        left_out: tuple[str, ...] | None = None,
        *,
        relayed: bool = False,
        origin: RawProperties | None = None,
    ) -> None:
        self.body = body
        self.raw = raw
        self.origin = raw if origin is None else origin
        """What the properties were decoded from, perhaps before some of them were changed: octets may say more than
        properties do, as the header segment of 0-10, which has structs besides."""
        self.left_out = left_out
        """None, or the message is to be sent without the reserved header: what a version cannot carry is left out, and
        nothing is added to carry it. These headers were left out already."""
        self.relayed = relayed or raw is not None
        """It came from a broker, so one has accepted it: what another must not see is carried, not refused."""
        self._properties = properties if properties is not None or raw is not None else Properties()
        self.expires_at: int | None = None
        """When its time to live is over, in milliseconds since 1970: the broker that holds the message sets it."""

    @property
    def properties(self) -> Properties:
        """The decoded properties."""
        if self._properties is None:
            assert self.raw is not None
            self._properties = self.raw.decode(self.raw.octets)
        return self._properties

    def altered(self, properties: Properties, left_out: tuple[str, ...] | None = None) -> Message:
        """The same message with other properties."""
        return Message(self.body, properties, None, left_out, relayed=self.relayed, origin=self.origin)

    def forget(self, over: int = 0) -> None:
        """Keep the octets of the properties alone, where they are more than ``over``: what was decoded from them can
        take thirty times as much."""
        raw = self.raw
        if raw is not None and len(raw.octets) > over:
            self._properties = None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Message):
            return NotImplemented
        return self.body == other.body and self.properties == other.properties

    __hash__ = None  # type: ignore[assignment]  # mutable cache inside

    def __repr__(self) -> str:
        return f"Message({len(self.body)} octets, {self._properties!r:.200})"


def delivery_count(message: Message) -> int | None:
    """Return how often the broker counts that a message was delivered before and given back; None: it does not say."""
    try:
        headers = message.properties.headers
    except FrameSyntaxError:
        return None
    count = headers.get(DELIVERY_COUNT) if headers else None
    count = getattr(count, "value", count)
    return count if type(count) is int and 0 <= count < 1 << 31 else None
