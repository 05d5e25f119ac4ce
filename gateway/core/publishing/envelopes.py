"""A message as octets, for the ledger's intents: what was promised must be sent again exactly as it was.

MessagePack of ``[body, properties, mandatory]``, and, where a broker had it before, ``[left_out]`` behind that. Values
that MessagePack has no type for are lists that begin with a mark, so every list and table is marked too; a text that is
not UTF-8 is kept as its octets.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from operator import attrgetter
from typing import Any, Final
from uuid import UUID

import msgspec

from gateway.amqp.message import (
    PROPERTY_NAMES,
    ArrivalTime,
    Deadline,
    Message,
    Properties,
    ReplyTo,
    UuidMessageId,
)
from gateway.amqp.values import Timestamp, Typed, Value
from gateway.errors import GatewayError

_values_of: Final = attrgetter(*PROPERTY_NAMES)


class EnvelopeError(GatewayError):
    """Bytes that are no envelope of the gateway."""


DAMAGED = (msgspec.DecodeError, ValueError, TypeError, KeyError, AttributeError)
"""What comes of octets that are damaged."""


NOT_AS_WRITTEN = "the message in the ledger is damaged: it is not what was written"
"""Why an empty envelope is refused: the ledger gives one in place of a payload that does not have its checksum."""


def encode(message: Message, mandatory: bool) -> bytes:
    """The envelope of a message."""
    parts = [message.body, pack(message.properties), mandatory]
    if message.relayed:
        parts.append([None if message.left_out is None else [_pack(name) for name in message.left_out]])
    return msgspec.msgpack.encode(parts)


def meaning(message: Message, mandatory: bool) -> bytes:
    """Everything of an envelope but the body, with the members of tables in the order of their names: two messages that
    differ in nothing but that order have the same meaning."""
    properties = message.properties
    if properties.headers:
        properties = replace(properties, headers=_in_order(properties.headers))
    left_out = None if message.left_out is None else [_pack(name) for name in message.left_out]
    return msgspec.msgpack.encode([pack(properties), mandatory, message.relayed, left_out])


def _in_order(value: Any) -> Any:
    """The value, with the members of each table in it in the order of their names."""
    kind = type(value)
    if kind is dict:
        return {key: _in_order(value[key]) for key in sorted(value)}
    if kind is list:
        return [_in_order(item) for item in value]
    if kind is Typed:
        return Typed(value.type, _in_order(value.value))
    return value


def decode(octets: bytes) -> tuple[Message, bool]:
    """The message of an envelope, and whether it was mandatory. Raises :class:`EnvelopeError`."""
    if not octets:
        raise EnvelopeError(NOT_AS_WRITTEN)
    try:
        body, packed, mandatory, *relayed = msgspec.msgpack.decode(octets)
        if not relayed:
            return Message(body, unpack(packed)), bool(mandatory)
        ((left_out,),) = relayed
        names = None if left_out is None else tuple(map(_unpack, left_out))
        return Message(body, unpack(packed), None, names, relayed=True), bool(mandatory)
    except DAMAGED as error:
        raise EnvelopeError(f"not an envelope: {error}") from error


def pack(properties: Properties) -> dict[str, Any]:
    """The properties that are there, as values that MessagePack has types for."""
    values = zip(PROPERTY_NAMES, _values_of(properties), strict=True)
    return {name: _pack(value) for name, value in values if value is not None}


def unpack(packed: dict[str, Any]) -> Properties:
    """What :func:`pack` packed. Raises one of :data:`DAMAGED` for anything else."""
    return Properties(**{name: _unpack(value) for name, value in packed.items()})


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
    if kind is ArrivalTime:
        return ["arrival", int(value)] if value.milliseconds is None else ["jms_time", int(value), value.milliseconds]
    if kind is UuidMessageId:
        return ["uuid_message_id", str(value)]
    if kind is Deadline:
        return ["deadline", value.instant, str(value)]
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
    "arrival": ArrivalTime,
    "jms_time": ArrivalTime.of,
    "uuid_message_id": UuidMessageId,
    "deadline": Deadline.of,
    "decimal": Decimal,
    "uuid": lambda octets: UUID(bytes=octets),
}
