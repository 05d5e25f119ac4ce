"""A message from JSON. The other way is :mod:`gateway.notation.messages`.

``delivery_mode`` is 2 unless given; texts that are not UTF-8 come as ``binary`` objects; the header
``x-gateway`` is the gateway's and refused. What is wrong is reported with the JSON pointer of the culprit.
"""

from __future__ import annotations

from typing import Any, Final

from msgspec import UNSET, UnsetType
from msgspec.structs import astuple

from gateway.amqp.message import Message, Properties, ReplyTo
from gateway.amqp.values import UINT64_MAX, Table
from gateway.api.about.schemas import PublishMessage
from gateway.api.http.problems import ApiProblem
from gateway.api.messages.later import due_at
from gateway.api.messages.payloads import body_of
from gateway.core import Publication
from gateway.core.publishing.publisher import RESENT
from gateway.errors import FrameSyntaxError
from gateway.fidelity import RESERVED, annotation, copy_of
from gateway.notation.logged import Logged, message_of
from gateway.notation.messages import TEXTS, Address, Binary, MessageProperties
from gateway.notation.values import ValueProblem, headers_from_json, octets_from_json
from gateway.validation import Path

PERSISTENT: Final = 2
JSON: Final = "application/json"
PARTS: Final = ("routing_key", "payload", "properties", "headers")
"""Members of which a message has at least one."""
_PLAIN: Final = frozenset({str, type(None)})
_BINARY_KEPT: Final = frozenset({"correlation_id", "user_id", "app_id"})
"""0-10 carries these as octets; the others are short strings in every version."""


def to_publish(item: PublishMessage, annotated: bool = True) -> Publication:
    """Return the message to publish, of JSON that must say at least something of it. Raises as :func:`outgoing`."""
    if item.routing_key is item.payload is item.properties is item.logged is UNSET and not item.headers:
        raise ApiProblem(
            "invalid_request",
            "the message is empty: give a routing_key, a payload, properties or headers",
            errors=[(f"/{name}", "missing, as all of these are") for name in PARTS],
        )
    return outgoing(item, annotated)


def members_of(item: PublishMessage) -> int:
    """Return how many members the JSON of a message has for certain: those that say more than their absence would."""
    members = (item.routing_key is not UNSET) + (item.payload is not UNSET) + (item.mandatory is not UNSET)
    if item.payload_encoding == "base64":
        members += 1
    if item.properties is not UNSET:
        properties = astuple(item.properties)
        members += 1 + len(properties) - properties.count(None)
    if item.headers:
        members += 1 + len(item.headers)
    return members


def is_payload(path: Path) -> bool:
    """Whether the path is that of a message's payload, in a message or a batch: what it holds is the payload's affair
    (:mod:`gateway.api.messages.payloads`)."""
    return path == ("payload",) or (len(path) == 3 and path[0] == "messages" and path[2] == "payload")


def outgoing(item: PublishMessage, annotated: bool = True) -> Publication:
    """Return the message to publish.

    Args:
        annotated: whether what is published there gets the gateway's own header.

    Raises:
        ApiProblem: invalid_header for the reserved header.
        ValueProblem: a malformed value, with its place in ``item``.
    """
    body, is_json = body_of(item.payload, item.payload_encoding)
    if isinstance(item.logged, UnsetType):
        message = _message(item, body, is_json)
    elif is_json:
        raise ValueProblem("beside logged it must be a string", "payload")
    else:
        message = _logged(item, item.logged, body, annotated)
    routing_key = item.routing_key
    if type(routing_key) is not str:
        routing_key = "" if isinstance(routing_key, UnsetType) else _text(routing_key, "routing_key")
    result = Publication(routing_key, message)
    if isinstance(item.mandatory, UnsetType):
        result.is_mandatory_given = False
    else:
        result.mandatory = item.mandatory
    if not isinstance(item.key, UnsetType):
        result.key = item.key
    if item.not_before is not None or item.delay_seconds is not None:
        if result.key:
            name = "delay_seconds" if item.not_before is None else "not_before"
            raise ValueProblem("a message with a key is published at once", name)
        result.not_before = due_at(item.not_before, item.delay_seconds)
        result.delay_seconds = item.delay_seconds
    return result


def _logged(item: PublishMessage, logged: Logged, body: bytes, annotated: bool) -> Message:
    """A message of the message log, as it is sent once more."""
    if item.headers or not isinstance(item.properties, UnsetType):
        raise ValueProblem("it stands in place of properties and headers", "logged")
    try:
        message = message_of(logged, body)
        message.properties  # noqa: B018  # decoded here, so that what is none is told
    except ValueProblem as problem:
        raise problem.under("logged") from None
    except FrameSyntaxError as error:
        raise ValueProblem(str(error), "logged", "undecodable_properties") from None
    # What may be there twice is so wherever it is published; a copy tells nothing else of its earlier way.
    twice = annotation(message.properties, "resent") is not None
    return copy_of(message, RESENT if twice else {}, annotated=annotated)


def _message(item: PublishMessage, body: bytes, is_json: bool) -> Message:
    headers = None
    if item.headers:
        try:
            headers = headers_from_json(item.headers)
        except ValueProblem as problem:
            raise problem.under("headers") from None
        if RESERVED in headers:
            raise ApiProblem(
                "invalid_header",
                f"the header {RESERVED} belongs to the gateway",
                errors=[(f"/headers/{RESERVED}", "reserved")],
            )
    properties = _properties(item.properties, headers)
    if is_json and properties.content_type is None:
        properties.content_type = JSON
    return Message(body, properties)


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
        texts = [_from_json(value, name) for name, value in zip(TEXTS, texts, strict=True)]
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
