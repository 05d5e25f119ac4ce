"""Messages as the octets that a publisher of a version writes and a consumer of it reads, with nothing of the
gateway's translation: a property without a field is an error, and what a broker made of it is seen as it came.
"""

from __future__ import annotations

import struct
import time
from typing import Any, Final
from uuid import UUID

from gateway.amqp.message import Message, Properties, RawProperties, ReplyTo
from gateway.classic import properties as classic
from gateway.classic.tables import QPID_TAGS, TableCodec
from gateway.v010.structs import DELIVERY_PROPERTIES, DeliveryProperties, MessageProperties, ReplyToStruct
from gateway.v010.translate import DIALECT_OF_BROKER_J
from gateway.versions import protocol_of, version_named

_TABLES: Final = TableCodec(QPID_TAGS)
_SIZE = struct.Struct(">I")


def message(version: str, properties: Properties, body: bytes) -> Message:
    """A message whose properties go to Broker-J as they are."""
    if version == "0-10":
        octets = _native_octets(properties, body)
        return Message(body, None, RawProperties(octets, DIALECT_OF_BROKER_J, _native_read))
    octets = _classic_octets(properties)
    return Message(body, None, RawProperties(octets, _encoding(version), classic_read))


def _encoding(version: str) -> str:
    return protocol_of(version_named(version)).dialects["qpid"].properties


def received(version: str, message: Message) -> Properties:
    """The properties of a message off the wire, in the fields of its version."""
    assert message.raw is not None
    return _native_read(message.raw.octets) if version == "0-10" else classic_read(message.raw.octets)


def _classic_octets(properties: Properties) -> bytes:
    """An expiration is an instant in the classic versions of Broker-J."""
    if properties.expiration is None:
        return classic.encode(properties, _TABLES)
    instant = str(int(time.time() * 1000) + int(properties.expiration))
    fields = {name: getattr(properties, name) for name in classic.ORDER}
    return classic.encode(Properties(**{**fields, "expiration": instant}), _TABLES)


def classic_read(octets: bytes) -> Properties:
    """What the property list says."""
    properties = classic.decode(octets, _TABLES)
    if properties.expiration is not None:
        properties.expiration = str(int(properties.expiration) - int(time.time() * 1000))
    return properties


def _native_octets(properties: Properties, body: bytes) -> bytes:
    if properties.type is not None or properties.timestamp is not None or properties.cluster_id is not None:
        raise ValueError("0-10 has no field for that")
    delivery = DeliveryProperties(
        priority=properties.priority,
        delivery_mode=properties.delivery_mode,
        ttl=None if properties.expiration is None else int(properties.expiration),
    )
    content = MessageProperties(
        content_length=len(body),
        message_id=None if properties.message_id is None else UUID(properties.message_id),
        correlation_id=_octets(properties.correlation_id),
        reply_to=_reply_to(properties.reply_to),
        content_type=properties.content_type,
        content_encoding=properties.content_encoding,
        user_id=_octets(properties.user_id),
        app_id=_octets(properties.app_id),
        application_headers=properties.headers,
    )
    return b"".join(_SIZE.pack(len(octets)) + octets for octets in (delivery.encode(), content.encode()))


def _octets(value: str | bytes | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value


def _reply_to(value: str | ReplyTo | None) -> ReplyToStruct | None:
    if value is None:
        return None
    return (
        ReplyToStruct(value.exchange, value.routing_key) if isinstance(value, ReplyTo) else ReplyToStruct(None, value)
    )


def _native_read(octets: bytes) -> Properties:
    delivery, content = DeliveryProperties(), MessageProperties()
    at = 0
    while at < len(octets):
        stop = at + 4 + int(_SIZE.unpack_from(octets, at)[0])
        if octets[at + 4] << 8 | octets[at + 5] == DELIVERY_PROPERTIES:
            delivery = DeliveryProperties.decode(octets[at + 4 : stop])
        else:
            content = MessageProperties.decode(octets[at + 4 : stop])
        at = stop
    to: Any = content.reply_to
    return Properties(
        content_type=content.content_type,
        content_encoding=content.content_encoding,
        headers=content.application_headers,
        delivery_mode=delivery.delivery_mode,
        priority=delivery.priority,
        correlation_id=_text(content.correlation_id),
        reply_to=(ReplyTo(to.exchange, to.routing_key or "") if to.exchange else to.routing_key) if to else None,
        expiration=None if delivery.ttl is None else str(delivery.ttl),
        message_id=None if content.message_id is None else str(content.message_id),
        timestamp=delivery.timestamp,
        user_id=_text(content.user_id),
        app_id=_text(content.app_id),
    )


def _text(octets: bytes | None) -> str | bytes | None:
    try:
        return None if octets is None else octets.decode()
    except UnicodeDecodeError:
        return octets
