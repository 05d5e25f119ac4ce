"""What orders the messages of a subscription: the value of ``order_key`` in each. Rules without I/O.

A value becomes octets, which the ledger compares: texts as they are, everything else as its text. What is longer than
:data:`KEY_MAX` octets is replaced by its SHA-256, so that any value fits into an index. No octets mean that the message
has no such value, and stands for itself.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Final

from gateway.amqp.message import PROPERTY_NAMES, Message, ReplyTo
from gateway.amqp.values import Typed
from gateway.errors import EncodeError, FrameSyntaxError

KEY_MAX: Final = 64
"""Longest value that is kept as it is, in octets."""
PROPERTIES: Final = tuple(name for name in PROPERTY_NAMES if name != "headers")


class OrderKey:
    """The setting, ready for use."""

    __slots__ = ("_kind", "_name")

    def __init__(self, setting: str) -> None:
        """``routing_key``, ``property:NAME`` or ``header:NAME``; empty: there is no order.

        Raises:
            EncodeError: there is no such property.
        """
        self._kind, _, self._name = setting.partition(":")
        if self._kind == "property" and self._name not in PROPERTIES:
            known = ", ".join(PROPERTIES)
            raise EncodeError(f"order_key: it names the property {self._name!r:.80}, not one of {known}")

    def __bool__(self) -> bool:
        return bool(self._kind)

    def of(self, routing_key: str, message: Message) -> bytes:
        """The octets for one message; none where the value is absent, or its properties cannot be read."""
        if not self._kind:
            return b""
        if self._kind == "routing_key":
            return _octets(routing_key)
        try:
            properties = message.properties
        except FrameSyntaxError:
            return b""
        if self._kind == "property":
            return _octets(getattr(properties, self._name))
        return _octets(properties.headers.get(self._name)) if properties.headers else b""


def _octets(value: object) -> bytes:
    """A value, with a mark in front: the empty text is a value, too."""
    if value is None:
        return b""
    if isinstance(value, Typed):
        value = value.value
    if isinstance(value, ReplyTo):
        value = f"{value.exchange}/{value.routing_key}"
    octets = value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogateescape")
    return b"=" + octets if len(octets) <= KEY_MAX else b"#" + sha256(octets).digest()
