"""What a message looks like as the body of a webhook: an envelope of JSON, the raw body, or a CloudEvent.

====================== ================================================================================================
form                   request
====================== ================================================================================================
json                   the message as pull shows it, with the ids of delivery and subscription; with ``batch_max`` over
                       1 always as a list, ``{"messages": [...]}``
raw                    the body as it is; all the rest in ``Amqp-*`` headers
cloudevents-binary     the body as it is; attributes in ``ce-*`` headers, and the ``Amqp-*`` headers of raw beside them
cloudevents-structured attributes and body as one JSON object; the properties as extensions ``amqp...``
cloudevents-batch      a JSON array of those
====================== ================================================================================================

Nothing of a message becomes a header of HTTP by its own name: properties go into headers that begin with ``Amqp-``, all
AMQP headers together into the one header ``Amqp-Headers``. A text that is not plain printable ASCII is written as JSON,
which is ASCII too: no value ends a line, and a receiver that sees ``"`` or ``{`` first knows what it has. The reserved
header is the gateway's and does not go out. All together have :data:`HEAD_MAX` octets; a message that needs more cannot
be delivered in that form, and the reason says so.

A message that came in as a CloudEvent goes out as the same event, in any mode.

A dead letter says so in every form: ``message.dead_letter``, the header :data:`DEAD_LETTER`, or the extension
``amqpdeadletter``.
"""

from __future__ import annotations

import json
import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import partial
from hashlib import sha256
from typing import Any, Final
from urllib.parse import quote
from uuid import UUID

import msgspec
from msgspec import UNSET, UnsetType

from gateway.amqp.message import Message, Properties, delivery_count
from gateway.amqp.values import INT32_MAX, INT32_MIN, Timestamp, Typed, Value
from gateway.config import EndpointSettings
from gateway.errors import EncodeError, FrameSyntaxError
from gateway.fidelity import RESERVED
from gateway.notation.cloudevents import BATCH, PREFIX, REQUIRED, STRUCTURED
from gateway.notation.dead_letters import dead_letter_of
from gateway.notation.fields import INTEGERS, TEXTS
from gateway.notation.messages import ReceivedMessage, property_to_json, received
from gateway.notation.values import table_to_json, text_to_json, value_to_json

HEAD_MAX: Final = 16_384
"""Most octets of the headers that a message is written into, names and values; many servers take no more."""
BATCHED: Final = frozenset({"json", "cloudevents-batch"})
"""Forms that carry several messages in one request."""
OCTETS: Final = b"application/octet-stream"
JSON: Final = b"application/json"
DEAD_LETTER: Final = "Amqp-Dead-Letter"
"""Why the message is a dead letter, as JSON. It is left out where the headers would be too large with it."""
MADE_TYPE: Final = "amqp.message"
"""``type`` of an event whose message says none, unless the endpoint says another."""

Header = tuple[bytes, bytes]


class PushedMessage(msgspec.Struct):
    """A message on its way to an endpoint."""

    id: str
    """``webhook-id``: that of the delivery, the same on every attempt."""
    message_id: str
    """The gateway's id of the message."""
    subscription: str
    broker: str
    queue: str
    exchange: str
    routing_key: str
    message: Message
    attempt: int | None = 1
    """How often it was tried, this time included; None: that is not known."""
    redelivered: bool = False
    """The broker handed it over before."""
    resent: bool = False
    """It was published again after an unknown outcome: it may be there twice."""
    test: bool = False
    """It is no message at all: somebody wants to see what the endpoint says."""


class Pushed(msgspec.Struct, kw_only=True):
    """A message in the form ``json``."""

    id: str
    subscription: str
    broker: str
    queue: Any
    delivery_attempt: int | None
    broker_delivery_count: int | None
    redelivered: bool
    resent: bool
    test: bool | UnsetType = UNSET
    message: ReceivedMessage


class FormedRequest(msgspec.Struct):
    """A request, but for what the endpoint itself adds."""

    id: str
    headers: list[Header]
    body: bytes
    undeliverable: dict[int, str] = {}
    """Items that this form cannot carry, by their index, and why. They are not in the request."""


class TooLarge(Exception):
    """The headers that a message needs are over :data:`HEAD_MAX`."""


def write(settings: EndpointSettings, items: Sequence[PushedMessage]) -> FormedRequest:
    """The request that carries these messages: its id, headers and body.

    Raises:
        EncodeError: several messages in a form that carries one.
    """
    if len(items) != 1 and settings.format not in BATCHED:
        raise EncodeError(f"format {settings.format} carries one message, not {len(items)}")
    try:
        headers, body = _FORMS[settings.format](settings, items)
    except TooLarge as error:
        return FormedRequest(items[0].id, [], b"", {0: str(error)})
    return FormedRequest(request_id(items), headers, body)


def request_id(items: Sequence[PushedMessage]) -> str:
    """``webhook-id`` of a request: that of its one message; of several, one that is the same for the same ones."""
    if len(items) == 1:
        return items[0].id
    return "batch-" + sha256(" ".join(item.id for item in items).encode()).hexdigest()[:32]


# --------------------------------------------------------------------------------------------------- JSON

_encode: Final = msgspec.json.Encoder().encode


def _json(settings: EndpointSettings, items: Sequence[PushedMessage]) -> tuple[list[Header], bytes]:
    pushed = [
        Pushed(
            id=item.id,
            subscription=item.subscription,
            broker=item.broker,
            queue=text_to_json(item.queue),
            delivery_attempt=item.attempt,
            broker_delivery_count=delivery_count(item.message),
            redelivered=item.redelivered,
            resent=item.resent,
            test=True if item.test else UNSET,
            message=received(item.message_id, item.exchange, item.routing_key, item.message),
        )
        for item in items
    ]
    body = _encode({"messages": pushed}) if settings.batch_max > 1 else _encode(pushed[0])
    return [(b"content-type", JSON)], body


# ---------------------------------------------------------------------------------------------- raw, headers

_PLAIN: Final = re.compile(r"[!#-z|}~](?:[ -~]*[!-~])?")
"""A value that stands for itself: printable ASCII, no space at either end, and not the beginning of JSON."""
_TOKEN: Final = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"  # noqa: S105  # RFC 9110 section 5.6.2
_MEDIA_TYPE: Final = re.compile(rf"({_TOKEN}/{_TOKEN})[ \t]*(?:;[\t -~]*)?")
_DEATH: Final = DEAD_LETTER.lower().encode()
_EXTENSION: Final = DEAD_LETTER.lower().replace("-", "")
_SAYS_ITSELF: Final = re.compile(rf"{_TOKEN}/{_TOKEN}(?:[ \t]*;(?:[\t -~]*[!-~])?)?")
"""A media type that arrives as it was sent: HTTP takes white space off the end of a value."""


def _raw(settings: EndpointSettings, items: Sequence[PushedMessage]) -> tuple[list[Header], bytes]:
    (item,) = items
    properties = _properties(item.message)
    headers = [_content_type(properties, OCTETS), *_about(item, properties)]
    return _bounded("raw", headers), item.message.body


def _bounded(form: str, headers: list[Header]) -> list[Header]:
    size = sum(len(name) + len(value) + 4 for name, value in headers)
    if size > HEAD_MAX and any(name == _DEATH for name, _ in headers):
        return _bounded(form, [header for header in headers if header[0] != _DEATH])
    if size > HEAD_MAX:
        raise TooLarge(
            f"head too large: the properties and headers of the message take {size} octets as headers of HTTP, "
            f"{form} allows {HEAD_MAX}; another format has them in its body"
        )
    return headers


def _properties(message: Message) -> Properties:
    """Those of the message; none where they cannot be read."""
    try:
        return message.properties
    except FrameSyntaxError:
        return Properties()


def _content_type(properties: Properties, unless: bytes) -> Header:
    kind = properties.content_type
    return b"content-type", kind.encode() if kind is not None and _MEDIA_TYPE.fullmatch(kind) else unless


def _about(item: PushedMessage, properties: Properties, but: Collection[str] = ()) -> list[Header]:
    """All that is known of a message, in ``Amqp-*`` headers; without the AMQP headers of these names."""
    return [
        *_of_this_attempt(item),
        *((name.lower().encode(), value) for name, value in _fields(item, properties, but)),
    ]


def _of_this_attempt(item: PushedMessage) -> list[Header]:
    """What is no part of the message: where it comes from, and how often it was on its way."""
    headers = [
        (b"amqp-gateway-id", item.message_id.encode()),
        (b"amqp-subscription", _text(item.subscription)),
        (b"amqp-broker", _text(item.broker)),
        (b"amqp-queue", _text(item.queue)),
    ]
    for name, count in (
        (b"amqp-delivery-attempt", item.attempt), (b"amqp-broker-delivery-count", delivery_count(item.message)),
    ):  # fmt: skip
        if count is not None:
            headers.append((name, b"%d" % count))
    for name, said in (
        (b"amqp-redelivered", item.redelivered), (b"amqp-resent", item.resent), (b"amqp-test", item.test),
    ):  # fmt: skip
        if said:
            headers.append((name, b"true"))
    return headers


def _fields(item: PushedMessage, properties: Properties, but: Collection[str] = ()) -> list[tuple[str, bytes]]:
    """What is the message's own, and the same on every attempt."""
    fields = [("Amqp-Exchange", _text(item.exchange)), ("Amqp-Routing-Key", _text(item.routing_key))]
    kind = properties.content_type
    if kind is not None and not _SAYS_ITSELF.fullmatch(kind):
        fields.append(("Amqp-Content-Type", _text(kind)))
    if properties.content_encoding is not None:
        fields.append(("Amqp-Content-Encoding", _text(properties.content_encoding)))
    for name, field in TEXTS.items():
        if (value := getattr(properties, field)) is not None:
            fields.append((name, _text(value)))
    for name, (field, _, _) in INTEGERS.items():
        if (value := getattr(properties, field)) is not None:
            fields.append((name, b"%d" % value))
    headers = properties.headers or {}
    if table := {key: value for key, value in headers.items() if key != RESERVED and key not in but}:
        fields.append(("Amqp-Headers", _ascii(table_to_json(table))))
    if (death := _death(item)) is not None:
        fields.append((DEAD_LETTER, death))
    if (raw := _undecodable(item.message)) is not None:
        fields.append(("Amqp-Undecodable-Properties", b64encode(raw)))
    return fields


def _death(item: PushedMessage) -> bytes | None:
    """Why it is a dead letter, as JSON; None: it is no dead letter."""
    found = dead_letter_of(item.message)
    return _ascii(msgspec.to_builtins(found)) if found is not None else None


def _undecodable(message: Message) -> bytes | None:
    """The octets that are no property list, where the message has such."""
    try:
        message.properties  # noqa: B018  # decodes on first use
    except FrameSyntaxError:
        return message.raw.octets if message.raw is not None else b""
    return None


def _text(value: Any) -> bytes:
    """One property as the value of a header: as it is where that is plain, else as JSON in ASCII."""
    if isinstance(value, str) and _PLAIN.fullmatch(value):
        return value.encode()
    return _ascii(msgspec.to_builtins(property_to_json(value)))


def _ascii(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=True, separators=(",", ":")).encode()


# --------------------------------------------------------------------------------------------- CloudEvents

SPEC: Final = "1.0"
_ATTRIBUTE: Final = re.compile(r"[a-z0-9]{1,64}")
_SAFE: Final = "!#$&'()*+,-./:;<=>?@[\\]^_`{|}~"
"""What is not percent-encoded in a header, beside letters and digits (HTTP binding section 3.1.3.2)."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LATEST: Final = 253_402_300_799
"""9999-12-31T23:59:59Z: RFC 3339 has four digits for the year."""
_CHARSET: Final = re.compile(r';[ \t]*charset="?([^";]*)"?', re.IGNORECASE)
_AS_TEXT: Final = frozenset({"utf-8", "utf8", "us-ascii"})


class CloudEvent(msgspec.Struct):
    """An event: its attributes, without ``datacontenttype``, and its data as octets."""

    attributes: dict[str, str | int | bool]
    data: bytes
    content_type: str | None
    made: bool
    """The message was no event: this one is made of it."""
    whole: bytes = b""
    """The structured event that it came as."""


def event_of(settings: EndpointSettings, item: PushedMessage, properties: Properties) -> CloudEvent:
    """The event that the message is, or that is made of it."""
    return _from_headers(item.message.body, properties) or _from_body(item.message.body, properties) or CloudEvent(
        _made(settings, item, properties), item.message.body, properties.content_type, made=True
    )  # fmt: skip


def _made(settings: EndpointSettings, item: PushedMessage, properties: Properties) -> dict[str, str | int | bool]:
    where = "/test" if item.test else f"/brokers/{_part(item.broker)}/queues/{_part(item.queue)}"
    kind = properties.type if properties.type and _sound(properties.type) else ""
    attributes: dict[str, str | int | bool] = {
        "specversion": SPEC,
        "id": item.id,
        "source": settings.source or where,
        "type": kind or settings.event_type or MADE_TYPE,
    }
    if properties.timestamp is not None and properties.timestamp <= _LATEST:
        attributes["time"] = _moment(properties.timestamp)
    if item.routing_key and _sound(item.routing_key):
        attributes["subject"] = item.routing_key
    return attributes


def _part(name: str) -> str:
    return quote(name.encode("utf-8", "surrogateescape"), safe="")


def _sound(text: str) -> bool:
    """Whether it may be an attribute: no control characters, and UTF-8 (CloudEvents section 3.1)."""
    return text.isprintable() or (
        _encodable(text) and not any(c < " " or "\x7f" <= c <= "\x9f" or ord(c) & 0xFFFE == 0xFFFE for c in text)
    )


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _moment(seconds: int) -> str:
    return (_EPOCH + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")


def _from_headers(body: bytes, properties: Properties) -> CloudEvent | None:
    """An event in binary mode: its attributes are AMQP headers."""
    table = properties.headers
    if not table or f"{PREFIX}specversion" not in table:
        return None
    attributes = {}
    for key, value in table.items():
        name = key.removeprefix(PREFIX)
        if name != key and _ATTRIBUTE.fullmatch(name) and name != "datacontenttype" and value is not None:
            attributes[name] = _attribute(value)
    if not _complete(attributes):
        return None
    return CloudEvent(attributes, body, properties.content_type, made=False)


def _from_body(body: bytes, properties: Properties) -> CloudEvent | None:
    """An event in structured mode: it is the body."""
    kind = properties.content_type
    match = _MEDIA_TYPE.fullmatch(kind) if kind is not None else None
    if match is None or match[1].lower() != STRUCTURED:
        return None
    try:
        found = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
        plain = {name: msgspec.json.decode(raw) for name, raw in found.items() if name not in ("data", "data_base64")}
        inner = plain.pop("datacontenttype", None)
        attributes = {name: _attribute(value) for name, value in plain.items() if value is not None}
        if not _complete(attributes) or not isinstance(inner, str | None) or not all(map(_ATTRIBUTE.fullmatch, plain)):
            return None
        if "data_base64" in found:
            data = b64decode(msgspec.json.decode(found["data_base64"], type=str), validate=True)
            return None if "data" in found else CloudEvent(attributes, data, inner, made=False, whole=body)
        raw = bytes(found.get("data", b""))
        if raw and (inner is None or _is_json(inner)):
            return CloudEvent(attributes, raw, inner or "application/json", made=False, whole=body)
        text = msgspec.json.decode(raw) if raw else ""
        return CloudEvent(attributes, text.encode() if isinstance(text, str) else raw, inner, made=False, whole=body)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None  # it says that it is one, and is none


def _complete(attributes: Mapping[str, str | int | bool]) -> bool:
    return all(attributes.get(name) for name in REQUIRED) and all(
        _sound(value) for value in attributes.values() if isinstance(value, str)
    )


def _attribute(value: Value) -> str | int | bool:
    """A value as CloudEvents' types have it (section 3.1)."""
    if isinstance(value, Typed):
        value = value.value
    if isinstance(value, Timestamp):
        return _moment(value) if value <= _LATEST else str(int(value))
    if isinstance(value, str | bool):
        return value
    if isinstance(value, int):
        return value if INT32_MIN <= value <= INT32_MAX else str(value)
    if isinstance(value, bytes):
        return b64encode(value).decode()
    return str(value) if isinstance(value, UUID | Decimal | float) else _ascii(value_to_json(value)).decode()


def _binary(settings: EndpointSettings, items: Sequence[PushedMessage]) -> tuple[list[Header], bytes]:
    """HTTP binding section 3.1."""
    (item,) = items
    properties = _properties(item.message)
    event = event_of(settings, item, properties)
    headers = [
        (b"ce-" + name.encode(), quote(_written(value), safe=_SAFE).encode())
        for name, value in event.attributes.items()
    ]
    if event.content_type is not None:
        kind = event.content_type
        headers.append((b"content-type", kind.encode() if _MEDIA_TYPE.fullmatch(kind) else OCTETS))
    told = () if event.made or event.whole else {PREFIX + name for name in event.attributes}
    headers += _about(item, properties, told)
    return _bounded("cloudevents-binary", headers), event.data


def _written(value: str | int | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _structured(settings: EndpointSettings, items: Sequence[PushedMessage]) -> tuple[list[Header], bytes]:
    """HTTP binding section 3.2."""
    (item,) = items
    headers = [(b"content-type", f"{STRUCTURED}; charset=utf-8".encode()), *_of_this_attempt(item)]
    event = event_of(settings, item, _properties(item.message))
    if event.whole:
        death = _death(item)
        return headers if death is None else [*headers, (_DEATH, death)], event.whole
    return headers, _event_json(settings, item, event)


def _batch(settings: EndpointSettings, items: Sequence[PushedMessage]) -> tuple[list[Header], bytes]:
    """HTTP binding section 3.3."""
    body = b"[" + b",".join(map(partial(_in_batch, settings), items)) + b"]"
    return [(b"content-type", f"{BATCH}; charset=utf-8".encode())], body


def _in_batch(settings: EndpointSettings, item: PushedMessage) -> bytes:
    event = event_of(settings, item, _properties(item.message))
    if not event.whole:
        return _event_json(settings, item, event)
    death = _death(item)
    if death is None or _EXTENSION in event.attributes:
        return event.whole
    return event.whole.rstrip()[:-1] + b',"' + _EXTENSION.encode() + b'":' + _encode(death.decode()) + b"}"


def _event_json(settings: EndpointSettings, item: PushedMessage, event: CloudEvent) -> bytes:
    """The JSON event format, of an event that did not come in it."""
    properties = _properties(item.message)
    members: dict[str, Any] = dict(event.attributes)
    kind, data = event.content_type, event.data
    if kind is not None and _sound(kind):
        members["datacontenttype"] = kind
    if event.made:
        for name, value in _fields(item, properties):
            if name != "Amqp-Routing-Key" or "subject" not in members:
                members[name.lower().replace("-", "")] = value.decode()
        members["amqpgatewayid"] = item.message_id
        for name, said in (("amqpredelivered", item.redelivered), ("amqpresent", item.resent)):
            if said:
                members[name] = True
    elif (death := _death(item)) is not None:
        members.setdefault(_EXTENSION, death.decode())
    if item.test:
        members["amqptest"] = True
    if not data:
        return _encode(members)
    if _is_utf_8(data, kind):
        if kind is None or _is_json(kind):
            if _valid(data):
                members["data"] = msgspec.Raw(data)
                return _encode(members)
            if kind is None and event.made:
                members["datacontenttype"] = "text/plain; charset=utf-8"
                members["data"] = data.decode()
                return _encode(members)
        else:
            members["data"] = data.decode()
            return _encode(members)
    members["data_base64"] = b64encode(data).decode()
    return _encode(members)


def _is_json(kind: str) -> bool:
    media = kind.partition(";")[0].strip().lower()
    return media.endswith(("/json", "+json"))


def _is_utf_8(data: bytes, kind: str | None) -> bool:
    charset = _CHARSET.search(kind) if kind is not None else None
    if charset is not None and charset[1].strip().lower() not in _AS_TEXT:
        return False
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _valid(data: bytes) -> bool:
    try:
        msgspec.json.decode(data, type=msgspec.Raw)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True


_FORMS: Final[Mapping[str, Callable[[EndpointSettings, Sequence[PushedMessage]], tuple[list[Header], bytes]]]] = {
    "json": _json,
    "raw": _raw,
    "cloudevents-binary": _binary,
    "cloudevents-structured": _structured,
    "cloudevents-batch": _batch,
}
