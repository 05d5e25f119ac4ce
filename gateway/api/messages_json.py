"""A message as JSON, and back.

Towards AMQP: ``delivery_mode`` is 2 unless given; texts that are not UTF-8 come as ``binary`` objects; the header
``x-gateway`` is the gateway's and refused. What is wrong is reported with the JSON pointer of the culprit.
"""

from __future__ import annotations

from base64 import b64encode
from typing import Any, Final

import msgspec
from msgspec import UNSET, UnsetType

from gateway.api.problems import ApiProblem
from gateway.api.schemas import (
    Address,
    Binary,
    MessageProperties,
    PublishMessage,
    ReceivedMessage,
)
from gateway.api.values import ValueProblem, octets_from_json, table_from_json, table_to_json, text_to_json
from gateway.core import Outgoing
from gateway.errors import FrameSyntaxError
from gateway.fidelity import RESERVED
from gateway.message import Message, Properties, ReplyTo
from gateway.values import UINT64_MAX, Table

PERSISTENT: Final = 2
_SCALARS: Final = ("delivery_mode", "priority", "timestamp")
_TEXTS: Final = (
    "content_type", "content_encoding", "correlation_id", "reply_to", "expiration", "message_id", "type", "user_id",
    "app_id", "cluster_id",
)  # fmt: skip
_PLAIN: Final = frozenset({str, type(None)})
_BINARY_KEPT: Final = frozenset({"correlation_id", "user_id", "app_id"})
"""0-10 carries these as octets; the others are short strings in every version."""


def outgoing(item: PublishMessage) -> Outgoing:
    """The message to publish.

    Raises:
        ApiProblem: invalid_header for the reserved header.
        ValueProblem: a value that is none, with its place in ``item``.
    """
    payload = item.payload
    if item.payload_encoding == "base64":
        try:
            body = octets_from_json(payload)
        except ValueProblem as problem:
            raise problem.under("payload") from None
    else:
        body = payload.encode()
    headers = None
    if item.headers:
        if RESERVED in item.headers:
            raise ApiProblem(
                "invalid_header",
                f"the header {RESERVED} belongs to the gateway",
                errors=[(f"/headers/{RESERVED}", "reserved")],
            )
        try:
            headers = table_from_json(item.headers)
        except ValueProblem as problem:
            raise problem.under("headers") from None
    properties = _properties(item.properties, headers)
    routing_key = item.routing_key
    if type(routing_key) is not str:
        routing_key = _text(routing_key, "routing_key")
    return Outgoing(routing_key, Message(body, properties), item.mandatory)


def _properties(given: MessageProperties | UnsetType, headers: Table | None) -> Properties:
    if isinstance(given, UnsetType):
        return Properties(delivery_mode=PERSISTENT, headers=headers)
    texts: list[Any] = [
        given.content_type,
        given.content_encoding,
        given.correlation_id,
        given.reply_to,
        given.expiration,
        given.message_id,
        given.type,
        given.user_id,
        given.app_id,
        given.cluster_id,
    ]
    if not _PLAIN.issuperset(map(type, texts)):
        texts = [_from_json(value, name) for name, value in zip(_TEXTS, texts, strict=True)]
    (
        content_type,
        content_encoding,
        correlation_id,
        reply_to,
        expiration,
        message_id,
        kind,
        user_id,
        app_id,
        cluster_id,
    ) = texts
    if expiration is not None and not (expiration.isascii() and expiration.isdigit() and len(expiration) <= 20):
        raise ValueProblem("expiration is not a number of milliseconds in decimal digits", "properties", "expiration")
    timestamp = given.timestamp
    if timestamp is not None and timestamp > UINT64_MAX:
        raise ValueProblem("the integer needs more than 64 bits", "properties", "timestamp")
    mode = given.delivery_mode
    return Properties(
        content_type,
        content_encoding,
        headers,
        PERSISTENT if mode is None else mode,
        given.priority,
        correlation_id,
        reply_to,
        expiration,
        message_id,
        timestamp,
        kind,
        user_id,
        app_id,
        cluster_id,
    )


def _from_json(value: str | Binary | Address | None, name: str) -> Any:
    """A property that may be more than a plain string."""
    if isinstance(value, Address):
        return ReplyTo(
            _text(value.exchange, "properties", name, "exchange"),
            _text(value.routing_key, "properties", name, "routing_key"),
        )
    if not isinstance(value, Binary):
        return value
    return _octets(value, "properties", name) if name in _BINARY_KEPT else _text(value, "properties", name)


def _octets(value: Binary, *path: str) -> bytes | str:
    """Octets, or the text that they are."""
    try:
        octets = octets_from_json(value.value)
    except ValueProblem as problem:
        raise problem.under(*path, "value") from None
    try:
        return octets.decode()
    except UnicodeDecodeError:
        return octets


def _text(value: str | Binary, *path: str) -> str:
    if isinstance(value, str):
        return value
    octets = _octets(value, *path)
    return octets.decode("utf-8", "surrogateescape") if isinstance(octets, bytes) else octets


# -------------------------------------------------------------------------------------------------- towards JSON


def received(id: str, exchange: str, routing_key: str, message: Message) -> ReceivedMessage:
    """A message as it came from a queue. The reserved header stays here: the answer says the id by itself.

    Octets that are no property list are shown as they are, in ``undecodable_properties``.
    """
    body = message.body
    try:
        payload, encoding = body.decode(), "string"
    except UnicodeDecodeError:
        payload, encoding = b64encode(body).decode(), "base64"
    undecodable: Any = UNSET
    try:
        properties = message.properties
    except FrameSyntaxError:
        properties = Properties()
        undecodable = b64encode(message.raw.octets if message.raw is not None else b"").decode()
    headers = properties.headers or {}
    if RESERVED in headers:
        headers = {key: value for key, value in headers.items() if key != RESERVED}
    return ReceivedMessage(
        id=id,
        exchange=text_to_json(exchange),
        routing_key=text_to_json(routing_key),
        payload=payload,
        payload_encoding=encoding,  # type: ignore[arg-type]  # one of the two literals above
        properties=properties_to_json(properties),
        headers=table_to_json(headers) if headers else {},
        undecodable_properties=undecodable,
    )


def properties_to_json(properties: Properties) -> MessageProperties:
    """The properties of the AMQP message, as JSON."""
    result = MessageProperties()
    for name in _SCALARS:
        if (number := getattr(properties, name)) is not None:
            setattr(result, name, number)
    for name in _TEXTS:
        if (value := getattr(properties, name)) is not None:
            setattr(result, name, _address(value) if isinstance(value, ReplyTo) else _text_out(value))
    return result


def _address(value: ReplyTo) -> Address:
    return Address(_text_out(value.exchange), _text_out(value.routing_key))


def _text_out(value: str | bytes) -> str | Binary:
    if isinstance(value, bytes):
        return Binary(b64encode(value).decode())
    if value.isascii():
        return value
    json = text_to_json(value)
    return json if isinstance(json, str) else msgspec.convert(json, Binary)
