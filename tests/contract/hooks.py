"""What schemathesis cannot know of a request that is right, and of links.

A long poll that asks for sixty seconds is answered after sixty seconds: here a fraction of one is enough. An exchange
of a type that the broker lacks ends the broker's connection, as RabbitMQ does it (503 COMMAND_INVALID), and whoever
comes next waits until there is another: types are those that the embedded broker has. What is wrong stays wrong.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import schemathesis

from gateway.api.about.links import BODY
from gateway.api.about.openapi import TIME_OR_AGE
from gateway.api.about.schemas import EXCHANGE_TYPE
from gateway.validation import AGO
from tests import canary

WAIT_MAX = 0.2
"""Longest long poll, in seconds."""
LINES = "application/x-ndjson"
UNKNOWN_HEADER = "x-schemathesis-unknown-property"
AGE_TOO = {"type": "string", "format": TIME_OR_AGE}
TIMES = ({"type": "string", "format": "date-time"}, {"type": "string", "pattern": f"^{AGO}$"})
"""What the format of a time or an age means."""
TYPES = ("direct", "fanout", "topic", "headers")


@schemathesis.hook
def before_load_schema(context: Any, raw_schema: dict[str, Any]) -> None:
    """Put the bodies of links where OpenAPI has them: generators of clients do not take them there. Say what is a time
    or an age. Take the example of lines away, which schemathesis cannot send: tests/test_app_examples.py sends it."""
    for item in raw_schema.get("paths", {}).values():
        for operation in item.values():
            for response in operation["responses"].values():
                for link in response.get("links", {}).values():
                    if BODY in link:
                        link["requestBody"] = link.pop(BODY)
            operation.get("requestBody", {}).get("content", {}).get(LINES, {}).pop("example", None)
    for schema in list(objects(raw_schema)):
        choices = schema.get("oneOf")
        if isinstance(choices, list) and AGE_TOO in choices:
            del schema["oneOf"]
            schema["anyOf"] = [*TIMES, *(each for each in choices if each != AGE_TOO)]
        elif schema.get("format") == TIME_OR_AGE:
            null = "null" in schema.pop("type")
            del schema["format"]
            schema["anyOf"] = [{**TIMES[0], "type": ["string", "null"]} if null else TIMES[0], *TIMES[1:]]


def objects(found: Any) -> Iterator[dict[str, Any]]:
    """Every object of a document."""
    if isinstance(found, dict):
        yield found
    for each in found.values() if isinstance(found, dict) else found if isinstance(found, list) else ():
        yield from objects(each)


@schemathesis.hook
def before_call(context: Any, case: Any, kwargs: dict[str, Any]) -> None:
    """Shorten what a pull waits, where it is a time that may be waited; give an exchange a type that there is."""
    body = case.body
    if not isinstance(body, dict):
        return
    for name in ("wait", "wait_seconds"):
        wait = body.get(name)
        if isinstance(wait, int | float) and not isinstance(wait, bool) and WAIT_MAX < wait <= 60:
            case.body = {**body, name: WAIT_MAX}
    kind = body.get("type")
    if isinstance(kind, str) and kind not in TYPES and re.search(EXCHANGE_TYPE, kind):
        case.body = {**body, "type": TYPES[len(kind) % len(TYPES)]}


@schemathesis.hook
def after_call(context: Any, case: Any, response: Any) -> None:
    """No answer tells a secret."""
    canary.look(response.content, f"answer to {case.method} {case.path}")
    canary.look(repr(dict(response.headers)), f"head of the answer to {case.method} {case.path}")


@schemathesis.hook
def filter_case(context: Any, case: Any) -> bool:
    """A header that nobody knows is none of ours, and no fault of a request (RFC 9110 section 5.1)."""
    return UNKNOWN_HEADER not in (case.headers or {})
