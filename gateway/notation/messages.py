"""A message as JSON, as pull answers it and webhooks carry it.

Texts that are not UTF-8 are ``binary`` objects; a payload that is not is base64. The reserved header is the gateway's
and stays here: the writer of a message gives its id separately.
"""

from __future__ import annotations

from base64 import b64encode
from operator import attrgetter
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from gateway.amqp.message import Message, Properties, ReplyTo
from gateway.errors import FrameSyntaxError
from gateway.fidelity import RESERVED
from gateway.fidelity.deaths import death_of
from gateway.notation.dead_letters import DeadLetter, dead_letter_json
from gateway.notation.values import table_to_json, text_to_json

SCALARS: Final = ("delivery_mode", "priority", "timestamp")
"""Properties that are numbers."""
TEXTS: Final = (
    "content_type", "content_encoding", "correlation_id", "reply_to", "expiration", "message_id", "type", "user_id",
    "app_id", "cluster_id",
)  # fmt: skip
"""Properties that are texts."""
_SHOWN: Final = (*SCALARS, *TEXTS)
_values_of: Final = attrgetter(*_SHOWN)


class Binary(msgspec.Struct, tag_field="type", tag="binary", forbid_unknown_fields=True):
    """A text whose octets are not UTF-8."""

    value: str
    """The octets in base64."""


class Address(msgspec.Struct, tag_field="type", tag="address", forbid_unknown_fields=True):
    """A reply-to that names an exchange (0-10). A plain reply-to is the routing key of the default exchange."""

    exchange: str | Binary = ""
    """The exchange that replies go to; empty: the default exchange."""
    routing_key: str | Binary = ""
    """The routing key of replies."""


class MessageProperties(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """The AMQP properties of a message; what is absent is not set."""

    content_type: str | Binary | None = None
    """MIME type of the payload, such as ``application/json``."""
    content_encoding: str | Binary | None = None
    """Encoding of the payload, such as ``gzip``. The gateway does not apply it."""
    delivery_mode: Annotated[int, Meta(ge=1, le=2)] | None = None
    """1: transient; 2: persistent. Unless given: 2."""
    priority: Annotated[int, Meta(ge=0, le=255)] | None = None
    """Priority in a queue that has priorities; the highest goes first."""
    correlation_id: str | Binary | None = None
    """Id of the message that this one answers."""
    reply_to: str | Binary | Address | None = None
    """Where replies go: the name of a queue, or an ``address`` object with an exchange."""
    expiration: str | Binary | None = None
    """Time to live in milliseconds, as decimal digits."""
    message_id: str | Binary | None = None
    """The publisher's id of the message."""
    timestamp: Annotated[int, Meta(ge=0)] | None = None
    """When the message was made, in seconds since 1970."""
    type: str | Binary | None = None
    """Name of the kind of message. Applications choose it."""
    user_id: str | Binary | None = None
    """Name of the user who published the message. RabbitMQ refuses any but that of the connection."""
    app_id: str | Binary | None = None
    """Name of the application that published the message."""
    cluster_id: str | Binary | None = None
    """Property of 0-8 and 0-9. RabbitMQ ignores it."""


class ReceivedMessage(msgspec.Struct, kw_only=True):
    """A message as it came from a queue."""

    id: str
    """The gateway's id of the message."""
    exchange: Any
    """The exchange. A string; a ``binary`` object where it is not UTF-8."""
    routing_key: Any
    """The routing key. A string; a ``binary`` object where it is not UTF-8."""
    payload: str
    """The body, as text or as base64: see ``payload_encoding``."""
    payload_encoding: Literal["string", "base64"]
    """``string``: the payload is text. ``base64``: it is not UTF-8."""
    properties: MessageProperties
    """The AMQP properties that are set."""
    headers: Any
    """The AMQP headers. Values of plain types are plain JSON; the others are objects with ``type`` and ``value``."""
    undecodable_properties: str | UnsetType = UNSET
    """Base64 of properties that the broker sent and that could not be decoded."""
    dead_letter: DeadLetter | UnsetType = UNSET
    """Why it is a dead letter, as its headers say; absent: it is not one. Anybody who may publish can write those
    headers."""


def received(
    id: str,
    exchange: str,
    routing_key: str,
    message: Message,
    given: tuple[str, Literal["string", "base64"]] | None = None,
) -> ReceivedMessage:
    """A message as it came from a queue. The reserved header stays here: the answer gives the id separately.

    Octets that are no property list are shown as they are, in ``undecodable_properties``. ``given``: a payload in place
    of the body, and its encoding.
    """
    payload, encoding = given if given is not None else _payload(message.body)
    undecodable: Any = UNSET
    try:
        properties = message.properties
    except FrameSyntaxError:
        properties = Properties()
        undecodable = b64encode(message.raw.octets if message.raw is not None else b"").decode()
    headers = properties.headers or {}
    death = death_of(headers) if headers else None
    dead_letter = dead_letter_json(death) if death is not None else UNSET
    if RESERVED in headers:
        headers = {key: value for key, value in headers.items() if key != RESERVED}
    return ReceivedMessage(
        id=id,
        exchange=text_to_json(exchange),
        routing_key=text_to_json(routing_key),
        payload=payload,
        payload_encoding=encoding,
        properties=properties_to_json(properties),
        headers=table_to_json(headers) if headers else {},
        undecodable_properties=undecodable,
        dead_letter=dead_letter,
    )


def _payload(body: bytes) -> tuple[str, Literal["string", "base64"]]:
    try:
        return body.decode(), "string"
    except UnicodeDecodeError:
        return b64encode(body).decode(), "base64"


def properties_to_json(properties: Properties) -> MessageProperties:
    """The properties of the AMQP message, as JSON."""
    result = MessageProperties()
    for name, value in zip(_SHOWN, _values_of(properties), strict=True):
        if value is not None:
            setattr(result, name, property_to_json(value))
    return result


def property_to_json(value: str | bytes | int | ReplyTo) -> Any:
    """One property."""
    if isinstance(value, int):
        return int(value)  # a broker's own timestamp is a number of another class
    return _address(value) if isinstance(value, ReplyTo) else _text_out(value)


def _address(value: ReplyTo) -> Address:
    return Address(_text_out(value.exchange), _text_out(value.routing_key))


def _text_out(value: str | bytes) -> str | Binary:
    if isinstance(value, bytes):
        return Binary(b64encode(value).decode())
    if value.isascii():
        return str(value)  # an expiration may be a text of another class
    json = text_to_json(value)
    return json if isinstance(json, str) else msgspec.convert(json, Binary)
