"""A raw body: the payload itself, its properties in ``Amqp-*`` headers.

Content-Type and Content-Encoding become the properties of that name. Typed headers come as JSON in ``Amqp-Headers``.
Octets above ASCII in a header are taken as UTF-8.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from gateway.api.later import not_before
from gateway.api.messages_json import outgoing
from gateway.api.problems import ApiProblem
from gateway.api.schemas import PublishMessage, PublishQuery
from gateway.core import Outgoing
from gateway.notation.fields import INTEGERS, TEXTS
from gateway.notation.messages import MessageProperties
from gateway.notation.values import ValueProblem

if TYPE_CHECKING:
    from gateway.api.call import Call

HEADERS: Final = ("Amqp-Routing-Key", "Amqp-Mandatory", "Amqp-Headers", *TEXTS, *INTEGERS)
"""Request headers that make a body raw, whatever its Content-Type."""
_NAMES: Final = frozenset(name.lower().encode() for name in HEADERS)
_BOOLEANS: Final = {"true": True, "1": True, "false": False, "0": False}


def is_raw(headers: Mapping[bytes, bytes]) -> bool:
    """Whether any ``Amqp-*`` header is there."""
    return not _NAMES.isdisjoint(headers)


def message(call: Call, octets: bytes) -> Outgoing | ApiProblem:
    """The message that body and headers make."""
    properties = MessageProperties()
    content_type = call.header(b"content-type")
    if content_type:
        properties.content_type = content_type
    content_encoding = call.header(b"content-encoding")
    if content_encoding:
        properties.content_encoding = content_encoding
    try:
        for header, name in TEXTS.items():
            value = call.header(header.lower().encode())
            if value is not None:
                setattr(properties, name, value)
        for header, (name, least, most) in INTEGERS.items():
            value = call.header(header.lower().encode())
            if value is not None:
                setattr(properties, name, _integer(header, value, least, most))
        return with_body(call, octets, properties, _headers(call))
    except ApiProblem as problem:
        return problem


def with_body(
    call: Call, octets: bytes, properties: MessageProperties, headers: dict[str, Any]
) -> Outgoing | ApiProblem:
    """The message of this body, with routing key and ``mandatory`` from headers or query."""
    query = call.query(PublishQuery)
    routing_key = call.header(b"amqp-routing-key")
    if routing_key is not None and query.routing_key and query.routing_key != routing_key:
        return ApiProblem("invalid_parameter", "Amqp-Routing-Key and the query's routing_key differ")
    mandatory = query.mandatory
    text = call.header(b"amqp-mandatory")
    if text is not None:
        if text.lower() not in _BOOLEANS:
            return ApiProblem("invalid_parameter", "Amqp-Mandatory is not true or false")
        mandatory = _BOOLEANS[text.lower()]
    item = PublishMessage(
        routing_key=routing_key if routing_key is not None else query.routing_key,
        properties=properties,
        headers=headers,
        mandatory=mandatory,
    )
    try:
        result = outgoing(item)
        if query.not_before:
            result.not_before = not_before(query.not_before)
    except ValueProblem as problem:
        return ApiProblem("invalid_value", f"{problem.pointer}: {problem.detail}", [(problem.pointer, problem.detail)])
    result.message.body = octets
    return result


def _integer(header: str, text: str, least: int, most: int) -> int:
    if text.isascii() and text.isdigit() and len(text) <= 20 and least <= int(text) <= most:
        return int(text)
    raise ApiProblem("invalid_parameter", f"{header} is not an integer between {least} and {most}")


def _headers(call: Call) -> dict[str, Any]:
    text = call.headers.get(b"amqp-headers")
    if text is None:
        return {}
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ApiProblem("invalid_parameter", f"Amqp-Headers is not a JSON object: {error}") from None
