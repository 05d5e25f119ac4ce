"""Message <-> basic content: what :mod:`gateway.fidelity` calls a home, for one connection.

Properties that came off a connection of the same dialect pass as the octets they are, unless they hold a
user-id, which a broker takes only from its owner. Everything else is fitted: what has no home travels in the
reserved header. ``expiration`` is relative in a :class:`~gateway.message.Message` whatever the wire says.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from decimal import Decimal
from types import NoneType
from typing import Any

from gateway.classic import properties as content
from gateway.classic.dialect import Dialect
from gateway.classic.tables import TableCodec, decimal_parts
from gateway.errors import EncodeError
from gateway.fidelity import NO_HOME, Home, fit, restore
from gateway.message import Message, Properties, RawProperties, ReplyTo
from gateway.values import INT32_MAX, INT32_MIN, Value


class Translator:
    """The translation of one connection. ``user`` is its login in a client, None in a server, which passes on
    any user-id."""

    __slots__ = ("_clock", "_dialect", "_foreign", "_home", "_plain_types", "_tables", "decode", "name")

    def __init__(
        self, dialect: Dialect, tables: TableCodec, user: str | None, wall_clock: Callable[[], float] | None
    ) -> None:
        self._dialect = dialect
        self._tables = tables
        self._clock = wall_clock
        self._plain_types = frozenset(kind for name, kind in _PLAIN_TYPES.items() if tables.has(name))
        self._foreign = 0 if user is None else content.USER_ID
        self._home = Home(_properties_home(dialect, user), self._carries)
        self.name = dialect.properties
        self.decode = self._decode
        """Bound once: every received message refers to it."""

    def encode(self, message: Message) -> bytes:
        """The content properties of a message to send.

        Raises:
            EncodeError: a property does not fit, or ``expiration`` is no number.
        """
        raw = message.raw
        if raw is not None and raw.dialect == self.name and not raw.octets[1] & self._foreign:
            return raw.octets
        properties = message.properties
        if properties.expiration is not None:
            properties = self._wire_expiration(properties)
        if not _plain(properties, self._plain_types):
            try:
                properties = fit(properties, self._home)
            except (TypeError, OverflowError) as error:
                raise EncodeError(str(error)) from None
        return content.encode(properties, self._tables)

    def received(self, octets: bytes, body: bytes) -> Message:
        """A message off the wire; its properties are decoded when someone asks."""
        return Message(body, None, RawProperties(octets, self.name, self.decode))

    def _decode(self, octets: bytes) -> Properties:
        properties = content.decode(octets, self._tables)
        if properties.expiration is not None and self._dialect.absolute_expiration:
            properties.expiration = self._relative(properties.expiration)
        return restore(properties)

    def _wire_expiration(self, properties: Properties) -> Properties:
        text = properties.expiration
        assert text is not None
        if not (text.isascii() and text.isdigit() and len(text) <= 20):
            raise EncodeError(f"expiration: {text!r:.80} is no decimal number of milliseconds")
        if not self._dialect.absolute_expiration:
            return properties
        if self._clock is None:
            raise EncodeError(f"expiration: {text} needs a wall clock, as this broker counts from 1970")
        changed = _copy(properties)
        changed.expiration = str(int(self._clock() * 1000) + int(text))
        return changed

    def _relative(self, text: str) -> str | None:
        """Milliseconds from now of an absolute expiration; 0 there means never."""
        if self._clock is None or not (text.isascii() and text.isdigit() and len(text) <= 20):
            return text
        instant = int(text)
        return str(max(0, instant - int(self._clock() * 1000))) if instant else None

    def _carries(self, kind: str, value: Value) -> bool:
        if not self._tables.has(kind):
            return False
        if self._dialect.validates_headers and (value == {} or (kind == "string" and not isinstance(value, str))):
            return False
        if kind == "decimal" and isinstance(value, Decimal):
            try:
                decimal_parts(value)
            except ValueError:
                return False
        return True


_PLAIN_TYPES: Mapping[str, type] = {"string": str, "bool": bool, "bytes": bytes, "void": NoneType}
_SHORT = 63
"""A text of so many characters has at most 255 octets."""


def _plain(properties: Properties, types: frozenset[type]) -> bool:
    """Whether every classic home that has these ``types`` has room for the properties, seen at a glance; False may
    also mean: look closer."""
    if properties.user_id is not None or properties.cluster_id is not None:
        return False
    value = properties.correlation_id
    if value is not None and (type(value) is not str or len(value) > _SHORT):
        return False
    value = properties.app_id
    if value is not None and (type(value) is not str or len(value) > _SHORT):
        return False
    if properties.reply_to is not None and type(properties.reply_to) is not str:
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


def _copy(properties: Properties) -> Properties:
    return Properties(**{name: getattr(properties, name) for name in content.ORDER})


def _properties_home(dialect: Dialect, user: str | None) -> Mapping[str, Callable[[Any], Any]]:
    home: dict[str, Callable[[Any], Any]] = {
        "correlation_id": _short_text,
        "reply_to": lambda value: NO_HOME if isinstance(value, ReplyTo) else value,
        "app_id": _short_text,
    }
    home["user_id"] = _short_text if user is None else lambda value: value if value == user else NO_HOME
    if not dialect.cluster_id:
        home["cluster_id"] = lambda value: NO_HOME
    return home


def _short_text(value: str | bytes) -> Any:
    """0-10's vbin16 has room for what a short string has not."""
    if isinstance(value, bytes):
        return NO_HOME
    return NO_HOME if len(value) > 63 and len(value.encode("utf-8", "surrogateescape")) > 255 else value
