"""A raw body: the payload itself, its properties in ``Amqp-*`` headers.

Content-Type and Content-Encoding become the properties of that name. Typed headers come as JSON in ``Amqp-Headers``.
Octets above ASCII in a header are taken as UTF-8. What stands in a header and would not become part of the message is
refused (:func:`check`): a name that is no property's, and a second header of the same name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from gateway.amqp.message import Message, with_headers
from gateway.api.about.schemas import PublishMessage, PublishQuery, PublishRequest
from gateway.api.http.call import invalid_value
from gateway.api.http.members import repeated
from gateway.api.http.problems import ApiProblem, Problem, ProblemError, wrong_header
from gateway.api.messages.later import due_at
from gateway.api.messages.messages_json import outgoing
from gateway.core import Publication
from gateway.notation.fields import INTEGERS, OF_A_DELIVERY, TEXTS
from gateway.notation.messages import MessageProperties
from gateway.notation.values import ValueProblem
from gateway.validation import fields_of, path_of, place_of, shown, unknown

if TYPE_CHECKING:
    from gateway.api.http.call import Call

HEADERS: Final = ("Amqp-Routing-Key", "Amqp-Mandatory", "Amqp-Headers", *TEXTS, *INTEGERS)
"""Request headers that make a body raw, with any Content-Type."""
_NAMES: Final = frozenset(name.lower().encode() for name in HEADERS)
_HEADER_OF: Final[Mapping[str, str]] = {
    **{name: header for header, name in TEXTS.items()},
    **{name: header for header, (name, _, _) in INTEGERS.items()},
    "headers": "Amqp-Headers", "routing_key": "Amqp-Routing-Key",
}  # fmt: skip
"""Property, or field of a message -> the header that gives it."""
_PASSED_OVER: Final = frozenset(name.lower().encode() for name in OF_A_DELIVERY)
_ONCE: Final = frozenset({b"content-type", b"content-encoding"})
_BOOLEANS: Final = {"true": True, "1": True, "false": False, "0": False}


def is_raw(headers: Mapping[bytes, bytes]) -> bool:
    """Whether any ``Amqp-*`` header is there."""
    return not _NAMES.isdisjoint(headers)


class _Envelope(msgspec.Struct):
    """What tells a message in JSON from a payload that is JSON."""

    routing_key: msgspec.Raw | UnsetType = UNSET
    payload: msgspec.Raw | UnsetType = UNSET
    messages: msgspec.Raw | UnsetType = UNSET


_Members = msgspec.defstruct(
    "_Members",
    [(name, msgspec.Raw | UnsetType, UNSET) for name in PublishRequest.__struct_fields__],
    forbid_unknown_fields=True,
)
"""An object with members of a message in JSON and no others."""


def check_no_envelope(call: Call, octets: bytes) -> None:
    """Raise ApiProblem (invalid_parameter) for a message in JSON beside ``Amqp-*`` headers, which would be published
    as the payload."""
    try:
        found = msgspec.json.decode(octets, type=_Envelope)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return  # a payload that is no object
    if found == _Envelope():
        try:
            if msgspec.json.decode(octets, type=_Members) == _Members():
                return
        except msgspec.ValidationError:
            return
    names = [name.decode("latin-1") for name, _ in call.scope["headers"] if name in _NAMES]
    raise wrong_header(
        names[0],
        "this header is for a raw body, and the body is a message in JSON. Say it in the JSON (routing_key, mandatory, "
        "properties, headers) and leave the header out; or, if the body is the payload itself, add the query parameter "
        "raw=true",
    )


def check(call: Call) -> None:
    """Raise ApiProblem (invalid_parameter) for a header that says something of the message and would not be heeded."""
    seen: set[bytes] = set()
    for name, _ in call.scope["headers"]:
        ours = name.startswith(b"amqp-")
        if not ours and not name.startswith(b"ce-") and name not in _ONCE:
            continue
        if name in seen:
            raise wrong_header(name.decode("latin-1"), "the header is given more than once")
        seen.add(name)
        if ours and name not in _NAMES and name not in _PASSED_OVER:
            known = [each.lower() for each in HEADERS]
            raise wrong_header(name.decode("latin-1"), *unknown(name.decode("latin-1"), known, "header of a message"))


P = TypeVar("P", ApiProblem, Problem)


def placed(call: Call, problem: P) -> P:
    """The problem, with culprits in the headers and query parameters that they came in."""
    problem.errors = [_placed(call, each) for each in problem.errors]
    return problem


def _placed(call: Call, error: ProblemError) -> ProblemError:
    path = path_of(error.pointer) if isinstance(error.pointer, str) else ()
    name = str(path[1]) if path[:1] == ("properties",) and len(path) > 1 else str(path[0]) if path else ""
    header = _HEADER_OF.get(name, "")
    if header and header.lower().encode() in call.headers:
        return ProblemError(header=header, detail=error.detail, expected=error.expected)
    if name in fields_of(PublishQuery) and call.scope["query_string"]:
        return ProblemError(parameter=name, detail=error.detail, expected=error.expected)
    return error


def message(call: Call, octets: bytes) -> Publication | ApiProblem:
    """The message that body and headers make."""
    return with_body(call, octets, encoded(call, MessageProperties(content_type=call.header(b"content-type") or None)))


def encoded(call: Call, properties: MessageProperties) -> MessageProperties:
    """``properties`` with the Content-Encoding of the body."""
    properties.content_encoding = call.header(b"content-encoding") or None
    return properties


def with_body(
    call: Call, octets: bytes, properties: MessageProperties, attributes: Mapping[str, str] | None = None
) -> Publication | ApiProblem:
    """The message of this body, with all that ``Amqp-*`` headers and the query say. ``attributes`` are headers that
    come before those."""
    try:
        _fill(call, properties)
        headers = _headers(call)
    except ApiProblem as problem:
        return problem
    query = call.query(PublishQuery)
    routing_key = call.header(b"amqp-routing-key")
    if routing_key is not None and query.routing_key and query.routing_key != routing_key:
        return wrong_header("Amqp-Routing-Key", "it differs from the query's routing_key")
    mandatory = query.mandatory
    text = call.header(b"amqp-mandatory")
    if text is not None:
        if text.lower() not in _BOOLEANS:
            return wrong_header("Amqp-Mandatory", f"{shown(text)} is not one of true, false", ["true", "false"])
        if mandatory is not UNSET and mandatory != _BOOLEANS[text.lower()]:
            return wrong_header("Amqp-Mandatory", "the header and the query parameter mandatory differ")
        mandatory = _BOOLEANS[text.lower()]
    item = PublishMessage(
        routing_key=routing_key if routing_key is not None else query.routing_key,
        properties=properties,
        headers=headers,
        mandatory=mandatory,
    )
    try:
        result = outgoing(item)
        if query.not_before or query.delay_seconds is not None:
            result.not_before = due_at(query.not_before or None, query.delay_seconds)
            result.delay_seconds = query.delay_seconds
    except ValueProblem as problem:
        return placed(call, invalid_value(problem))
    result.message.body = octets
    if attributes:
        given = result.message.properties
        table = given.headers or {}
        if not table.keys().isdisjoint(attributes):
            return wrong_header("Amqp-Headers", "it names what a header ce-* stands for")
        result.message = Message(octets, with_headers(given, {**attributes, **table}))
    return result


def _fill(call: Call, properties: MessageProperties) -> None:
    """Set the properties that ``Amqp-*`` headers give. Raises ApiProblem."""
    for header, name in TEXTS.items():
        value = call.header(header.lower().encode())
        if value is not None:
            setattr(properties, name, value)
    for header, (name, least, most) in INTEGERS.items():
        value = call.header(header.lower().encode())
        if value is not None:
            setattr(properties, name, _integer(header, value, least, most))


def _integer(header: str, text: str, least: int, most: int) -> int:
    if text.isascii() and text.isdigit() and len(text) <= 20 and least <= int(text) <= most:
        return int(text)
    raise wrong_header(header, f"{shown(text)} is not an integer between {least} and {most}")


def _headers(call: Call) -> dict[str, Any]:
    text = call.headers.get(b"amqp-headers")
    if text is None:
        return {}
    try:
        found = msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise wrong_header("Amqp-Headers", f"this is not a JSON object: {error}") from None
    if (path := repeated(text)) is not None:
        raise wrong_header("Amqp-Headers", f"{place_of(path)}: the member is in one object twice; give it once")
    return found
