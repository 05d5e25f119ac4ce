"""The message, as every version and the HTTP API see it.

:class:`Message` is the superset of what the versions can carry. Its properties stay undecoded octets
(:class:`RawProperties`) until someone asks for them, and pass through untouched between equal dialects.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import TypeAlias

from gateway.values import Table

Text: TypeAlias = str
"""A short string. Octets that are not UTF-8 are kept as surrogate escapes, so that nothing is changed."""


@dataclass(frozen=True, slots=True)
class ReplyTo:
    """0-10's reply-to struct, when it names an exchange. A plain reply-to is a ``str``: the routing key of
    the default exchange."""

    exchange: Text
    routing_key: Text


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
    """Time to live: milliseconds, relative, as a decimal string, whatever the dialect on the wire."""
    message_id: Text | None = None
    timestamp: int | None = None
    """Seconds since 1970."""
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


class RawProperties:
    """Properties as they came off the wire, and how to decode them.

    ``dialect`` names the exact encoding: octets may be passed on only to a peer whose dialect is equal.
    """

    __slots__ = ("decode", "dialect", "octets")

    def __init__(self, octets: bytes, dialect: str, decode: Callable[[bytes], Properties]) -> None:
        self.octets = octets
        self.dialect = dialect
        self.decode = decode


SMALL = 256
"""Properties of so few octets may well stay decoded: a message that is looked at again and again is decoded once."""


class Message:
    """A body and its properties. ``properties`` decodes on first use and may then raise
    :class:`~gateway.errors.FrameSyntaxError` if the octets are no property list."""

    __slots__ = ("_properties", "body", "raw")

    def __init__(
        self, body: bytes = b"", properties: Properties | None = None, raw: RawProperties | None = None
    ) -> None:
        self.body = body
        self.raw = raw
        self._properties = properties if properties is not None or raw is not None else Properties()

    @property
    def properties(self) -> Properties:
        """The decoded properties."""
        if self._properties is None:
            assert self.raw is not None
            self._properties = self.raw.decode(self.raw.octets)
        return self._properties

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
