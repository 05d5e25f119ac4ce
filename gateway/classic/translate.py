"""Message <-> basic content: what :mod:`gateway.fidelity` calls a home, for one connection.

Properties that came off a connection of the same dialect pass as the octets they are, unless they hold a
user-id, which a broker takes only from its owner. Everything else is fitted: what has no home travels in the
reserved header. ``expiration`` is always relative in a :class:`~gateway.amqp.message.Message`; where that is
an instant, the number of milliseconds that it was goes along.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from decimal import Decimal
from functools import partial
from math import isfinite
from types import NoneType
from typing import Any, Final

from gateway.amqp.message import (
    ArrivalTime,
    Deadline,
    Message,
    Properties,
    RawProperties,
    ReplyTo,
    UuidMessageId,
)
from gateway.amqp.values import INT32_MAX, INT32_MIN, Typed, Value, type_of
from gateway.classic.dialect import Dialect
from gateway.classic.properties import CLUSTER_ID, USER_ID, decode, encode
from gateway.classic.splice import SEAM
from gateway.classic.tables import TableCodec, decimal_parts
from gateway.errors import EncodeError
from gateway.fidelity import (
    GZIP,
    ID,
    ITEM,
    KEY,
    NO_HOME,
    Home,
    Native,
    arrival_in_classic,
    binding_url,
    fit,
    passes_as_it_is,
    restore,
    x_gzip,
)


class Translator:
    """The translation of one connection. ``user`` is its login in a client, None in a server, which passes on
    any user-id."""

    __slots__ = (
        "_alike", "_clock", "_dialect", "_expires_at", "_foreign", "_gzip", "_plain_types", "_reading", "_tables",
        "decode", "home", "name",
    )  # fmt: skip

    def __init__(
        self, dialect: Dialect, tables: TableCodec, user: str | None, wall_clock: Callable[[], float] | None
    ) -> None:
        self._dialect = dialect
        self._tables = tables.of_messages()
        self._clock = wall_clock
        self._expires_at: int | None = None
        """When the message that is being encoded expires, where the broker that holds it knows."""
        self._plain_types = frozenset(kind for name, kind in _PLAIN_TYPES.items() if tables.has(name))
        self._foreign = 0 if user is None else USER_ID
        self._alike = dialect.alike
        client = user is not None
        self._gzip = dialect.expands_gzip and client
        self._reading = self._home(user, True)
        self.home = self._home(user, client)
        """What can be sent here."""
        self.name = dialect.properties
        self.decode = self._decode
        """Bound once: every received message refers to it."""

    def encode(self, message: Message) -> bytes:
        """The content properties of a message to send.

        Raises:
            EncodeError: something does not fit; the text names it.
        """
        raw = message.raw
        if raw is not None and self.passes(raw):
            return raw.octets
        properties = message.properties
        if not self.is_plain(properties):
            self._expires_at = message.expires_at
            properties = self.fitted(properties, message.left_out is None)
            self._expires_at = None
        return encode(properties, self._tables)

    def passes(self, raw: RawProperties) -> bool:
        """Whether undecoded properties may be sent as the octets they are."""
        if raw.dialect == self.name:
            return not raw.octets[1] & self._foreign
        return (
            raw.dialect in self._alike
            and not raw.octets[1] & (self._foreign | CLUSTER_ID)
            and passes_as_it_is(raw.octets)
        )

    def is_plain(self, properties: Properties) -> bool:
        """Whether the properties fit as they are, seen at a glance; False may also mean: look closer."""
        expiration = properties.expiration
        if expiration is not None and (self._dialect.absolute_expiration or _relative(expiration) != expiration):
            return False
        if self._gzip and properties.content_encoding == GZIP:
            return False
        if self._dialect.validates_headers and properties.headers and not all(map(_may_name, properties.headers)):
            return False
        return type(expiration) is not Deadline and _plain(properties, self._plain_types)

    def fitted(self, properties: Properties, carry: bool = True) -> Properties:
        """The properties as they go on the wire. Raises :class:`~gateway.errors.EncodeError`."""
        if properties.expiration is not None and self._dialect.absolute_expiration and self._clock is None:
            raise EncodeError(
                f"expiration: {properties.expiration} needs a wall clock, as this broker counts from 1970"
            )
        try:
            return fit(properties, self.home, carry)
        except (TypeError, OverflowError) as error:
            raise EncodeError(str(error)) from None

    def received(self, octets: bytes, body: bytes) -> Message:
        """A message off the wire; its properties are decoded when someone asks."""
        return Message(body, None, RawProperties(octets, self.name, self.decode, SEAM))

    def _decode(self, octets: bytes) -> Properties:
        properties = decode(octets, self._tables)
        if properties.expiration is not None and self._dialect.absolute_expiration:
            properties.expiration = self._deadline(properties.expiration)
        return restore(properties, self._reading)

    def _deadline(self, text: str) -> str | None:
        """What an absolute expiration says; 0 there means never."""
        if self._clock is None or not _is_number(text):
            return text
        instant = int(text)
        return Deadline.at(instant, self._clock()) if instant else None

    def _absolute(self, text: str) -> Any:
        if isinstance(text, Deadline):
            return Native(text.instant)
        if self._clock is None or not _is_number(text) or int(text) > _MILLISECONDS_MAX:
            return NO_HOME
        if self._expires_at is not None:
            return str(self._expires_at)
        return str(int(self._clock() * 1000) + int(text))

    def _home(self, user: str | None, broker: bool) -> Home:
        """``broker``: with regard to what the product takes amiss. So it is always read this way: the gateway's own
        client also writes for such a broker."""
        dialect = self._dialect
        home: dict[str, Callable[[Any], Any]] = {
            "correlation_id": _short_text,
            "reply_to": _reply_to,
            "expiration": self._absolute if dialect.absolute_expiration else _relative,
            "message_id": _message_id,
            "timestamp": arrival_in_classic,
            "app_id": _short_text,
        }
        home["user_id"] = _short_text if user is None else lambda value: value if value == user else NO_HOME
        if broker and dialect.expands_gzip:
            home["content_encoding"] = x_gzip
        if broker and dialect.routes_copies:  # RabbitMQ closes the channel over any other
            home["delivery_mode"] = lambda mode: mode if mode in (1, 2) else NO_HOME
        if not dialect.cluster_id:
            home["cluster_id"] = lambda value: NO_HOME
        carries = partial(self._carries, broker and dialect.finite_floats)
        return Home(home, carries, timed=_TIMED, plain=self._plain_types)

    def _carries(self, finite: bool, kind: str, value: Value) -> bool:
        validates = self._dialect.validates_headers
        if kind == KEY:
            return not validates or (value != "" and max(value) <= _NAME_MAX and _is_utf8(value))
        if kind == ITEM:
            return not validates or (value != b"" and type_of(value) not in _NO_ITEMS)
        if not self._tables.has(kind):
            return False
        if validates and not _valid(kind, value):
            return False
        if finite and kind in _FLOATS and not isfinite(_number(value)):
            return False
        if kind == "decimal" and isinstance(value, Decimal):
            try:
                decimal_parts(value)
            except ValueError:
                return False
        return True


_PLAIN_TYPES: Mapping[str, type] = {"string": str, "bool": bool, "bytes": bytes, "void": NoneType}
_FLOATS = frozenset({"float", "double"})
_NO_ITEMS = frozenset({"uint8", "uint16", "uint32"})
"""Types that Broker-J cannot read in an array."""
_NAME_MAX = "\uffff"
"""The last character that Broker-J can read in a name."""
_SCALE_MAX = 127
"""Broker-J's scales are signed."""


def _valid(kind: str, value: Value) -> bool:
    """Whether Broker-J keeps a message with this value; see ``Dialect.validates_headers``."""
    plain = value.value if isinstance(value, Typed) else value
    if kind == "string":
        return isinstance(plain, str)
    if kind == "str8-latin":
        return isinstance(plain, str) and plain.isascii()
    if kind == "decimal":
        exponent = plain.as_tuple().exponent
        return isinstance(exponent, int) and -exponent <= _SCALE_MAX
    return bool(plain != {})


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


DIRECT_REPLY: Final = "amq.rabbitmq.reply-to"
"""RabbitMQ's pseudo-queue: as ``reply_to`` it closes the channel of a publisher that does not consume from it there."""
_MODES = (2, 1, None)
_SHORT = 63
"""A text of so many characters has at most 255 octets."""


def _may_name(key: str) -> bool:
    return key != "" and key.isascii()


def _plain(properties: Properties, types: frozenset[type]) -> bool:
    """Whether every classic home that has these ``types`` has room for the properties, seen at a glance; False may
    also mean: look closer."""
    if properties.user_id is not None or properties.cluster_id is not None:
        return False
    if type(properties.timestamp) is ArrivalTime or properties.delivery_mode not in _MODES:
        return False
    if type(properties.message_id) is UuidMessageId:
        return False
    value = properties.correlation_id
    if value is not None and (type(value) is not str or len(value) > _SHORT):
        return False
    value = properties.app_id
    if value is not None and (type(value) is not str or len(value) > _SHORT):
        return False
    to = properties.reply_to
    if to is not None and (type(to) is not str or to == DIRECT_REPLY):
        return False
    headers = properties.headers
    if headers:
        for value in headers.values():
            kind = type(value)
            if kind is int:
                if not INT32_MIN <= value <= INT32_MAX:
                    return False
            elif kind not in types:
                return False
    return True


def _number(value: Value) -> float:
    number: float = value.value if isinstance(value, Typed) else value
    return number


_TIMED: Final = frozenset({"expiration"})
_MILLISECONDS_MAX: Final = 1 << 62
"""Longest relative expiration that is added to the time: what comes of it fits Java's long."""
EXPIRATION_MAX: Final = (1 << 32) - 1
"""Longest relative expiration, in milliseconds: RabbitMQ closes the channel over more."""


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 20


def _relative(text: str) -> Any:
    """An expiration as brokers take it: anything else makes RabbitMQ close the channel (406)."""
    return str(text) if _is_number(text) and int(text) <= EXPIRATION_MAX else NO_HOME


def _message_id(value: str) -> str:
    """What was a UUID in 0-10, as JMS writes it here."""
    return ID + value if type(value) is UuidMessageId else value


def _reply_to(value: str | ReplyTo) -> Any:
    """An address of 0-10 with an exchange is a binding URL here, as JMS writes it."""
    if isinstance(value, ReplyTo):
        return binding_url(value) or NO_HOME
    return NO_HOME if value == DIRECT_REPLY else value


def _short_text(value: str | bytes) -> Any:
    """0-10's vbin16 has room for what a short string has not."""
    if isinstance(value, bytes):
        return NO_HOME
    return NO_HOME if len(value) > 63 and len(value.encode("utf-8", "surrogateescape")) > 255 else value
