"""A message as octets, for the ledger's intents: what was promised must be sent again exactly as it was.

MessagePack of ``[body, properties, mandatory]``. Values that MessagePack has no type for are lists that begin with a
mark, so every list and table is marked too; a text that is not UTF-8 is kept as its octets.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec

from gateway.errors import GatewayError
from gateway.message import PROPERTY_NAMES, Message, Properties, ReplyTo
from gateway.values import Timestamp, Typed, Value


class EnvelopeError(GatewayError):
    """Octets that are no envelope of ours."""


def encode(message: Message, mandatory: bool) -> bytes:
    """The envelope of a message."""
    properties = message.properties
    packed = {name: _pack(value) for name in PROPERTY_NAMES if (value := getattr(properties, name)) is not None}
    return msgspec.msgpack.encode([message.body, packed, mandatory])


def decode(octets: bytes) -> tuple[Message, bool]:
    """The message of an envelope, and whether it was mandatory. Raises :class:`EnvelopeError`."""
    try:
        body, packed, mandatory = msgspec.msgpack.decode(octets)
        properties = Properties(**{name: _unpack(value) for name, value in packed.items()})
        return Message(body, properties), bool(mandatory)
    except (msgspec.DecodeError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise EnvelopeError(f"not an envelope: {error}") from error


def _pack(value: Value) -> Any:
    kind = type(value)
    if kind is str:
        try:
            value.encode()
        except UnicodeEncodeError:
            return ["text", value.encode("utf-8", "surrogateescape")]
        return value
    if kind is dict:
        return ["table", [[_pack(key), _pack(item)] for key, item in value.items()]]
    if kind is list:
        return ["array", [_pack(item) for item in value]]
    if kind is Typed:
        return ["typed", value.type, _pack(value.value)]
    if kind is ReplyTo:
        return ["reply_to", _pack(value.exchange), _pack(value.routing_key)]
    if kind is Timestamp:
        return ["timestamp", int(value)]
    if kind is Decimal:
        return ["decimal", str(value)]
    if kind is UUID:
        return ["uuid", value.bytes]
    return value


def _unpack(value: Any) -> Value:
    if type(value) is not list:
        return value
    mark, *rest = value
    return _MARKS[mark](*rest)


_MARKS: dict[str, Callable[..., Value]] = {
    "text": lambda octets: octets.decode("utf-8", "surrogateescape"),
    "table": lambda pairs: {_unpack(key): _unpack(item) for key, item in pairs},
    "array": lambda items: [_unpack(item) for item in items],
    "typed": lambda kind, item: Typed(kind, _unpack(item)),
    "reply_to": lambda exchange, routing_key: ReplyTo(_unpack(exchange), _unpack(routing_key)),
    "timestamp": Timestamp,
    "decimal": Decimal,
    "uuid": lambda octets: UUID(bytes=octets),
}
