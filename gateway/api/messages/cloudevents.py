"""CloudEvents 1.0 over HTTP, as AMQP messages.

The CloudEvents AMQP binding is for AMQP 1.0. For 0-8 to 0-10 this is the gateway's own mapping, in the spirit of that
binding: the mode that the event came in is the mode that it goes out in.

* **binary**: ``ce-NAME`` becomes the AMQP header ``cloudEvents_NAME`` (a string), the Content-Type becomes
  ``content_type``, a Content-Encoding ``content_encoding``, the body stays as it is.
* **structured**: the body stays as it is, ``content_type`` is ``application/cloudevents+json``.
* **batch**: each event of the array is a separate structured event, byte for byte.

Properties and headers in ``Amqp-*`` headers are those of the message, as beside a raw body; of each message of a batch.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote_to_bytes

import msgspec

from gateway.api.http.call import invalid_request
from gateway.api.http.json_bounds import check_size
from gateway.api.http.members import repeated, repeated_member
from gateway.api.http.problems import ApiProblem, ProblemError, wrong_header
from gateway.api.http.raw_body import encoded, with_body
from gateway.core import Publication
from gateway.notation.cloudevents import PREFIX, REQUIRED, STRUCTURED
from gateway.notation.messages import MessageProperties
from gateway.validation import SHOWN_MAX, explain

if TYPE_CHECKING:
    from gateway.api.http.call import Call

_NAME: Final = re.compile(r"[a-z0-9]{1,64}\Z")


class _Event(msgspec.Struct):
    """What every event must have (CloudEvents 1.0 section 3); the rest is passed on unseen."""

    id: str
    source: str
    specversion: str
    type: str


def from_binary(call: Call, octets: bytes) -> Publication | ApiProblem:
    """An event in binary mode (HTTP binding section 3.1)."""
    attributes: dict[str, str] = {}
    for raw_name, raw_value in call.headers.items():
        if not raw_name.startswith(b"ce-"):
            continue
        name = raw_name[3:].decode("latin-1")
        if not _NAME.match(name):
            return wrong_header(f"ce-{name}"[:SHOWN_MAX], "this is not a name of a CloudEvents attribute")
        try:
            attributes[PREFIX + name] = unquote_to_bytes(raw_value).decode()  # section 3.1.3.2
        except UnicodeDecodeError:
            return wrong_header(f"ce-{name}", "the value is not percent-encoded UTF-8")
    missing = [name for name in REQUIRED if not attributes.get(PREFIX + name)]
    if missing:
        errors = [ProblemError(header=f"ce-{name}", detail="it is required, and missing") for name in missing]
        return ApiProblem("invalid_parameter", f"the CloudEvent lacks ce-{', ce-'.join(missing)}", errors)
    properties = encoded(call, MessageProperties(content_type=call.header(b"content-type")))
    return with_body(call, octets, properties, attributes)


def from_structured(call: Call, octets: bytes) -> Publication | ApiProblem:
    """An event in structured mode (HTTP binding section 3.2)."""
    problem = _check(octets)
    if problem is not None:
        return problem
    return with_body(call, octets, MessageProperties(content_type=STRUCTURED))


def from_batch(call: Call, octets: bytes) -> list[Publication | ApiProblem]:
    """A batch of events (HTTP binding section 3.3). Raises ApiProblem where it is no array, or empty, or too large."""
    check_size(octets, call.http.batch_max)
    try:
        events = msgspec.json.decode(octets, type=list[msgspec.Raw])
    except msgspec.ValidationError as error:
        raise invalid_request(error, octets, list) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ApiProblem("malformed_json", str(error)) from None
    if not events:
        raise ApiProblem("invalid_request", "0 events in the batch")
    if len(events) > call.http.batch_max:  # before any of them is looked at
        most = call.http.batch_max
        raise ApiProblem("body_too_large", f"{len(events)} events; a batch holds at most {most} (http.batch_max)")
    return [from_structured(call, bytes(event)) for event in events]


def _check(octets: bytes) -> ApiProblem | None:
    try:
        try:
            event = msgspec.json.decode(octets, type=_Event)
        except msgspec.ValidationError as error:  # what is malformed behind the misfit is found below
            misfit = explain(error, msgspec.json.decode(octets), _Event)
            return ApiProblem("invalid_request", f"not a CloudEvent: {misfit}", [(misfit.pointer, misfit.detail)])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return ApiProblem("malformed_json", str(error))
    if (path := repeated(octets, depth=1)) is not None:
        return repeated_member(path)
    empty = [name for name in REQUIRED if not getattr(event, name)]
    if empty:
        errors = [(f"/{name}", "this is empty") for name in empty]
        return ApiProblem("invalid_request", f"the CloudEvent has an empty {', '.join(empty)}", errors)
    return None
