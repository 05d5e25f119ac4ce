"""A message as the message log keeps it, beside its body: exact, so that what is published from the log is equal.

It is the JSON of a message of the API (:mod:`gateway.notation.messages`), with what that leaves out:

===========================  ==========================================================================================
member                       what it holds
===========================  ==========================================================================================
``properties``               the properties that are set, as the API writes them; what is absent was not set. A text
                             of octets that are not UTF-8 is ``binary``; where 0-10 had octets, not text: ``bytes``
``headers``                  the headers, each value with its type; absent: the message had no table of headers, and
                             ``{}``: it had one, and nothing in it
``reserved``                 the gateway's own header, where the message brought one along
``arrived``                  where the publisher gave no timestamp and the broker did: its time, in seconds since 1970
``deadline``                 where ``expiration`` was an instant on the wire: milliseconds since 1970; the property is
                             what was left until then when the message was taken
``undecodable_properties``   instead of the others: base64 of octets that are no property list, and ``dialect``, the
                             encoding that they are of
===========================  ==========================================================================================
"""

from __future__ import annotations

from base64 import b64encode
from typing import Any, Final

import msgspec
from msgspec import UNSET, UnsetType

from gateway.amqp.message import (
    ArrivalTime,
    Deadline,
    Message,
    Properties,
    RawProperties,
    ReplyTo,
    UuidMessageId,
)
from gateway.amqp.values import UINT64_MAX, Table
from gateway.errors import FrameSyntaxError
from gateway.fidelity import RESERVED, is_uuid
from gateway.notation.messages import SCALARS, TEXTS, property_to_json
from gateway.notation.values import (
    ValueProblem,
    headers_from_json,
    octets_from_json,
    table_to_json,
    text_from_json,
)

OCTETS: Final = frozenset({"correlation_id", "user_id", "app_id"})
"""Properties that 0-10 carries as octets, which need not be text; the others are short strings in every version."""
LIMITS: Final = {"delivery_mode": 255, "priority": 255, "timestamp": UINT64_MAX}
"""Property that is a number -> the greatest that any version carries."""


class Logged(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """The JSON."""

    properties: dict[str, Any] = {}
    """The AMQP properties that were set. A text that is not UTF-8 is a ``binary`` object."""
    headers: Any = UNSET
    """The AMQP headers, each with its type; absent: the message had no table of headers."""
    reserved: Any = UNSET
    """The gateway's own header, where the message had one."""
    message_id_is_uuid: bool | UnsetType = UNSET
    """Whether ``message_id`` was a UUID of 0-10, and not a text."""
    arrived: int | UnsetType = UNSET
    """The broker's time of arrival in seconds since 1970, where the publisher gave no timestamp."""
    arrived_milliseconds: int | UnsetType = UNSET
    """The same in milliseconds, where the broker said so exactly."""
    deadline: int | UnsetType = UNSET
    """When the message expires, in milliseconds since 1970, where the wire had an instant."""
    undecodable_properties: str | UnsetType = UNSET
    """Base64 of properties that could not be decoded; nothing else is set then."""
    dialect: str | UnsetType = UNSET
    """The encoding of ``undecodable_properties``."""


_encode = msgspec.json.Encoder().encode
_decoder: Final = msgspec.json.Decoder(Logged)


def to_json(message: Message) -> bytes:
    """All of a message but its body."""
    try:
        properties = message.properties
    except FrameSyntaxError:
        raw = message.raw
        octets, dialect = (raw.octets, raw.dialect) if raw is not None else (b"", "")
        return _encode(Logged(undecodable_properties=b64encode(octets).decode(), dialect=dialect))
    return _encode(logged(properties))


def logged(properties: Properties) -> Logged:
    """Properties and headers."""
    result = Logged()
    found: dict[str, Any] = {}
    for name in SCALARS:
        if (number := getattr(properties, name)) is not None:
            if isinstance(number, ArrivalTime):
                result.arrived = int(number)
                if number.milliseconds is not None:
                    result.arrived_milliseconds = number.milliseconds
            else:
                found[name] = int(number)
    for name in TEXTS:
        if (text := getattr(properties, name)) is not None:
            found[name] = text if type(text) is str and text.isascii() else _text_out(text, result)
    result.properties = found
    headers = properties.headers
    if headers is not None:
        if RESERVED in headers:
            result.reserved = table_to_json({RESERVED: headers[RESERVED]})[RESERVED]
            headers = {key: value for key, value in headers.items() if key != RESERVED}
        result.headers = table_to_json(headers) if headers else {}
    return result


def _text_out(text: str | bytes | ReplyTo, result: Logged) -> Any:
    """A property that is no plain text."""
    if isinstance(text, bytes):
        return {"type": "bytes", "value": b64encode(text).decode()}
    if isinstance(text, Deadline):
        result.deadline = text.instant
    if isinstance(text, UuidMessageId):
        result.message_id_is_uuid = True
    return property_to_json(text)


def from_json(octets: bytes | str, body: bytes) -> Message:
    """The message, as one that a broker has accepted before.

    Raises:
        ValueProblem: that is no JSON of a logged message; it says where.
    """
    try:
        found = _decoder.decode(octets)
    except msgspec.MsgspecError as error:
        raise ValueProblem(f"not the JSON of a logged message: {error}") from None
    return message_of(found, body)


def message_of(found: Logged, body: bytes) -> Message:
    """The same of what was decoded. Raises :class:`~gateway.notation.values.ValueProblem`."""
    if not isinstance(found.undecodable_properties, UnsetType):
        try:
            raw = octets_from_json(found.undecodable_properties)
        except ValueProblem as problem:
            raise problem.under("undecodable_properties") from None
        dialect = "" if isinstance(found.dialect, UnsetType) else found.dialect
        return Message(body, None, RawProperties(raw, dialect, _undecodable))
    values = {name: _property(name, value) for name, value in found.properties.items()}
    if not isinstance(found.arrived, UnsetType):
        if not 0 <= found.arrived <= UINT64_MAX:
            raise ValueProblem(f"the number is not between 0 and {UINT64_MAX}", "arrived")
        values["timestamp"] = ArrivalTime(found.arrived)
        if not isinstance(found.arrived_milliseconds, UnsetType):
            if found.arrived_milliseconds // 1000 != found.arrived:
                raise ValueProblem(f"the number is not within the second {found.arrived}", "arrived_milliseconds")
            values["timestamp"] = ArrivalTime.of(found.arrived, found.arrived_milliseconds)
    if found.message_id_is_uuid is True:
        if not is_uuid(values.get("message_id", "")):
            raise ValueProblem("the message id is not a UUID in canonical form", "message_id_is_uuid")
        values["message_id"] = UuidMessageId(values["message_id"])
    if not isinstance(found.deadline, UnsetType):
        values["expiration"] = Deadline.of(found.deadline, values.get("expiration", "0"))
    headers: Table | None = None
    if found.headers is not UNSET:
        headers = _headers(found.headers)
    if found.reserved is not UNSET:
        # as it is where a table was put under that name; where it was none, it is a value
        headers = {**(headers or {}), RESERVED: _headers({RESERVED: found.reserved}, "reserved")[RESERVED]}
    return Message(body, Properties(headers=headers, **values), relayed=True)


def _headers(json: Any, *path: str) -> Table:
    try:
        return headers_from_json(json)
    except ValueProblem as problem:
        raise problem.under(*(path or ("headers",))) from None


def _property(name: str, json: Any) -> Any:
    if name in LIMITS:
        if type(json) is not int or not 0 <= json <= LIMITS[name]:
            raise ValueProblem(f"expected a number between 0 and {LIMITS[name]}", "properties", name)
        return json
    if name not in TEXTS:
        raise ValueProblem("there is no such property", "properties", name)
    if type(json) is str:
        return json
    try:
        if name == "reply_to" and isinstance(json, dict) and json.get("type") == "address":
            return ReplyTo(text_from_json(json.get("exchange", "")), text_from_json(json.get("routing_key", "")))
        if name in OCTETS and isinstance(json, dict) and json.keys() == {"type", "value"} and json["type"] == "bytes":
            return octets_from_json(json["value"])
        return text_from_json(json)
    except ValueProblem as problem:
        raise problem.under("properties", name) from None


def _undecodable(octets: bytes) -> Properties:
    raise FrameSyntaxError(f"the {len(octets)} octets are no property list; they are kept as they came")
