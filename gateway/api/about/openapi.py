"""The OpenAPI 3.1 document, made from the table of routes and the structs of the JSON.

Nothing is written twice: paths, parameters, bodies, answers and problem codes come from
:class:`~gateway.api.http.routing.Route`, schemas from the structs, and their descriptions from the strings under the
fields.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, Final

import msgspec

from gateway import __version__
from gateway.access.scopes import DEFAULT_EXCHANGE
from gateway.api.about import examples
from gateway.api.about.links import links, names_of
from gateway.api.http.call import JSON
from gateway.api.http.problems import PROBLEM_JSON, PROBLEMS, Problem
from gateway.api.http.routing import Route, Scope

REF: Final = "#/components/schemas/{name}"
NULL: Final = {"type": "null"}
FORMATS: Final = {"integer": "int64", "number": "double"}
"""Type -> how many bits its numbers have."""
SAME: Final[Mapping[str, str]] = {"integer": "number"}
"""Type -> the type of which its values are, too."""
TIME_OR_AGE: Final = "time-or-age"
"""Format of a :data:`~gateway.validation.Moment`, instead of ``date-time``: clients take that as a class of theirs,
which has no room for an age."""
EVERYWHERE: Final = (
    "malformed_request", "unauthorized", "forbidden", "misdirected_request", "origin_refused", "rate_limited",
    "budget_exceeded", "headers_too_large", "target_too_long", "overloaded", "internal",
)  # fmt: skip
"""Codes that any route but the documents may answer. ``invalid_parameter`` is the answer of all routes to a query
parameter that they do not declare."""
WITH_BODY: Final = ("body_too_large", "request_timeout", "malformed_request")

NAMES: Final[Mapping[str, str]] = {
    "broker": "Name of a broker, from the configuration.",
    "exchange": f"Name of an exchange; `{DEFAULT_EXCHANGE}` is the default exchange.",
    "queue": "Name of a queue.",
    "subscription": "Name of a subscription.",
    "bridge": "Name of a bridge.",
    "tap": "Name of a tap.",
    "front": "Name of a front, from the configuration.",
    "client": "Number of a client of a front.",
    "endpoint": "Name of an endpoint.",
    "message": "The gateway's id of a message, a UUID.",
    "scheduled": "The gateway's id of a scheduled message, a UUID.",
    "delivery": "Id of a delivery, a UUID.",
    "replay": "Id of a replay.",
    "key": "Id of an API key.",
    "cursor": "Name of a cursor of a log.",
    "run": "Id of a run of a job.",
    "asset": "Name of a file.",
    "position": "Place of a message in its queue, 1 to 100; 1 is the head.",
}
"""Parameters of paths."""

HEADERS: Final[Mapping[str, tuple[str, dict[str, Any]]]] = {
    "Idempotency-Key": (
        "A key of your choice. However often you repeat the request with it, its messages are published once, and "
        "each repeat gets the first final answer. Kept for a day.",
        {"type": "string", "minLength": 1, "maxLength": 255},
    ),
    "Prefer": (
        "`respond-async`: answer 202 as soon as the ledger holds the message, and publish it later.",
        {"type": "string"},
    ),
    "Last-Event-ID": (
        "Id of the last event that you received: the stream continues after it. It takes precedence over `position`.",
        {"type": "string", "maxLength": 8000},
    ),
    "If-Match": (
        "The ETag that you read, or `*` for any.",
        {"type": "string", "pattern": r'^(\*|"[!#-+\--~]*")$'},
    ),
    "Amqp-Routing-Key": ("Routing key of a raw body.", {"type": "string"}),
    "Amqp-Mandatory": ("`mandatory` of a raw body.", {"type": "string", "enum": ["true", "false", "1", "0"]}),
    "Amqp-Headers": ("AMQP headers of a raw body, as a JSON object.", {"type": "string"}),
    "Amqp-Correlation-Id": ("Property `correlation_id` of a raw body.", {"type": "string"}),
    "Amqp-Reply-To": ("Property `reply_to` of a raw body.", {"type": "string"}),
    "Amqp-Expiration": ("Property `expiration` of a raw body.", {"type": "string", "pattern": "^[0-9]+$"}),
    "Amqp-Message-Id": ("Property `message_id` of a raw body.", {"type": "string"}),
    "Amqp-Type": ("Property `type` of a raw body.", {"type": "string"}),
    "Amqp-User-Id": ("Property `user_id` of a raw body.", {"type": "string"}),
    "Amqp-App-Id": ("Property `app_id` of a raw body.", {"type": "string"}),
    "Amqp-Cluster-Id": ("Property `cluster_id` of a raw body.", {"type": "string"}),
    "Amqp-Delivery-Mode": (
        "Property `delivery_mode` of a raw body.",
        {"type": "integer", "minimum": 1, "maximum": 2},
    ),
    "Amqp-Priority": ("Property `priority` of a raw body.", {"type": "integer", "minimum": 0, "maximum": 255}),
    "Amqp-Timestamp": ("Property `timestamp` of a raw body.", {"type": "integer", "minimum": 0, "format": "uint64"}),
}
"""Request headers."""

TAGS: Final[Mapping[str, str]] = {
    "topology": "Queues, exchanges and bindings.",
    "publish": "Messages to brokers.",
    "subscriptions": "Messages from queues, under leases.",
    "bridges": "From a broker's queue to a broker's exchange.",
    "taps": "From a broker's queue into the message log.",
    "fronts": "Ports for AMQP clients, and who is connected to them.",
    "endpoints": "Where messages are pushed to.",
    "messages": "What happened to every message.",
    "deliveries": "Messages that the ledger holds for subscriptions, the dead ones included.",
    "replays": "Messages once more: from the ledger or a queue, to anywhere.",
    "keys": "API keys that the ledger has.",
    "log": "The logs of events and of messages, by sequence number.",
    "pipeline": "Runs of the jobs that read them.",
    "brokers": "Named brokers and their state.",
    "translation": "Messages between versions.",
    "administration": "The process that was asked.",
    "documents": "This description.",
}
"""In the order in which a page shows them."""

DESCRIPTION: Final = """\
AMQP 0-8 to 0-10 brokers over HTTP. A 2xx means that the message is safe: the broker confirmed it, and the ledger knows.

**Try it.** The examples work on a gateway that was started with `gateway serve`. Execute them in this order:
[declare the queue](#/topology/put_queue), [publish](#/publish/publish),
[make a subscription](#/subscriptions/put_subscription), [pull](#/subscriptions/pull) and
[acknowledge](#/subscriptions/acknowledge), with the `ack_id` from the answer of the pull.

Generated clients and this page encode names in paths for you. In a URL that you write yourself, a `/` in a name is
`%2F` and a `:` is `%3A`: a verb follows the last literal colon. Errors are `application/problem+json` (RFC 9457); their
codes are listed under [/docs/errors](/docs/errors). Lists are paged by `cursor`, see the `Link` header.
"""


@cache
def _parse(module: str) -> ast.Module:
    return ast.parse(inspect.getsource(sys.modules[module]))


def field_descriptions(kind: type) -> dict[str, str]:
    """The strings under the fields of a struct, its bases included."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if not issubclass(base, msgspec.Struct) or base is msgspec.Struct:
            continue
        for node in _parse(base.__module__).body:
            if isinstance(node, ast.ClassDef) and node.name == base.__name__:
                for field, text in zip(node.body, node.body[1:], strict=False):
                    if (
                        isinstance(field, ast.AnnAssign)
                        and isinstance(field.target, ast.Name)
                        and isinstance(text, ast.Expr)
                        and isinstance(text.value, ast.Constant)
                        and isinstance(text.value.value, str)
                    ):
                        found[field.target.id] = inspect.cleandoc(text.value.value)
    return found


def _structs(kinds: Iterable[type]) -> dict[str, type]:
    """The structs by name, those within them included."""
    found: dict[str, type] = {}

    def visit(kind: Any) -> None:
        if isinstance(kind, msgspec.inspect.StructType):
            if kind.cls.__name__ not in found:
                found[kind.cls.__name__] = kind.cls
                for field in kind.fields:
                    visit(field.type)
            return
        for name in ("type", "item_type", "value_type", "key_type"):
            if isinstance(inner := getattr(kind, name, None), msgspec.inspect.Type):
                visit(inner)
        for inner in (*getattr(kind, "types", ()), *getattr(kind, "item_types", ())):
            visit(inner)

    for kind in kinds:
        visit(msgspec.inspect.type_info(kind))
    return found


def document(routes: Iterable[Route]) -> dict[str, Any]:
    """The OpenAPI document of these routes."""
    routes = list(routes)
    kinds = {
        kind: None for route in routes for kind in (route.body, *(kind for _, kind in route.answers.values())) if kind
    }
    kinds[Problem] = None
    _, components = msgspec.json.schema_components(list(kinds), ref_template=REF)
    components = {name: _plain(schema) for name, schema in components.items()}
    for name, kind in _structs(kinds).items():
        components[name]["description"] = _prose(components[name]["description"])
        properties = components[name].get("properties", {})
        for field, text in _texts(kind).items():
            if field in properties:
                properties[field] = _described(properties[field], text)
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        operation = paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
        for status, found in links(route, routes).items():
            operation["responses"][str(status)]["links"] = found
    used = {route.tag for route in routes}
    found = {
        "openapi": "3.1.0",
        "info": {
            "title": "AMQP gateway",
            "version": __version__,
            "description": DESCRIPTION,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "tags": [{"name": name, "description": text} for name, text in TAGS.items() if name in used],
        "paths": paths,
        "components": {
            "schemas": dict(sorted(components.items())),
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer", "description": "An API key."},
                "key": {"type": "apiKey", "in": "header", "name": "X-Api-Key", "description": "An API key."},
            },
        },
    }
    _choose_one(found, components)
    return found


def _choose_one(found: Any, components: Mapping[str, Any]) -> None:
    """Write ``oneOf`` for a choice whose kinds exclude each other: of ``anyOf``, generators of TypeScript make one
    object with the members of all, so that a plain string does not fit."""
    if isinstance(found, dict):
        choices = found.get("anyOf")
        if isinstance(choices, list) and any(choice.get("type") == "array" for choice in choices):
            # Any value: of a choice with an array, openapi-generator makes Java that does not compile.
            del found["anyOf"]
        elif isinstance(choices, list) and NULL not in choices and _exclude_each_other(choices, components):
            found["oneOf"] = found.pop("anyOf")
    for each in found.values() if isinstance(found, dict) else found if isinstance(found, list) else ():
        _choose_one(each, components)


def _exclude_each_other(choices: Iterable[dict[str, Any]], components: Mapping[str, Any]) -> bool:
    """Whether no value fits two of the choices: their types differ, or they are objects that name their type."""
    kinds: list[str] = []
    for choice in choices:
        schema = components[choice["$ref"].rpartition("/")[2]] if "$ref" in choice else choice
        named = schema.get("properties", {}).get("type", {}).get("enum", [""])
        types: list[str] = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        kinds += [f"{kind} {named[0]}" if kind == "object" else SAME.get(kind, kind) for kind in types]
    is_open = "object " in kinds and any(kind.startswith("object ") and kind != "object " for kind in kinds)
    return len(kinds) == len(set(kinds)) and not is_open


def _texts(kind: Any) -> dict[str, str]:
    """The descriptions of a struct's members, by their names in JSON."""
    texts = field_descriptions(kind)
    names = {field.name: field.encode_name for field in msgspec.structs.fields(kind)}
    found = {names[name]: text for name, text in texts.items() if name in names}
    config = kind.__struct_config__
    if config.tag_field is not None:
        found[config.tag_field] = f"Always `{config.tag}`."
    return found


def _plain(schema: Any) -> Any:
    """Return a schema without what generators of clients do not understand.

    A choice has no choice within it, no discriminator and no default. Words are strings, an array has items, and
    numbers have a format: without one, Go's have 32 bits.
    """
    if isinstance(schema, list):
        return [_plain(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {name: _plain(each) for name, each in schema.items()}
    if found.pop("x-ago", False):
        found["format"] = TIME_OR_AGE
    if found.get("type") == "array":
        found.setdefault("items", {})
    if isinstance(words := found.get("enum"), list) and all(isinstance(word, str) for word in words):
        found.setdefault("type", "string")
    if found.get("type") == "object" and found.get("default") == {}:
        del found["default"]  # of which openapi-generator makes Java that sends what it cannot write
    if isinstance(kinds := found.get("type"), str | list):
        for kind, form in FORMATS.items():
            if kind in kinds:
                found.setdefault("format", form)
    if isinstance(choices := found.get("anyOf"), list):
        _flatten(found, choices)
    return found


def _flatten(schema: dict[str, Any], choices: list[dict[str, Any]]) -> None:
    """Write a choice as one list; what its parts say of themselves becomes the description of the whole."""
    texts = [text for choice in choices if (text := choice.pop("description", ""))]
    schema.pop("discriminator", None)
    if texts:
        schema.setdefault("description", " ".join(texts))
    flat = [_map(each) for choice in choices for each in choice.get("anyOf", [choice])]
    several = [each for each in flat if each != NULL]
    if len(several) > 1:
        schema.pop("default", None)
        if len(several) < len(flat):  # of several choices, one that is null alone is taken for a class
            several[0] = {**several[0], "type": [several[0]["type"], "null"]}
            flat = several
    elif len(several) < len(flat) and "type" in several[0] and "enum" not in several[0]:
        del schema["anyOf"]
        schema |= {**several[0], "type": [several[0]["type"], "null"]}
        return
    schema["anyOf"] = flat


def _map(choice: dict[str, Any]) -> dict[str, Any]:
    """Return a choice with the values of a map as a pattern: of `additionalProperties` in a choice,
    openapi-generator makes Java that does not compile."""
    if not isinstance(values := choice.get("additionalProperties"), dict):
        return choice
    others = {name: each for name, each in choice.items() if name != "additionalProperties"}
    return {**others, "patternProperties": {"^": values}}


def _described(schema: dict[str, Any], text: str) -> dict[str, Any]:
    """A schema with a description, before the one that it has. One that only refers to another is wrapped, as 3.1
    allows siblings of $ref."""
    own = schema.get("description", "")
    return {**schema, "description": f"{_prose(text)} {own}".strip()}


def _prose(text: str) -> str:
    """A docstring as Markdown, in one line."""
    return " ".join(text.replace("``", "`").split())


def _operation(route: Route) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": route.operation,
        "summary": route.summary,
        "tags": [route.tag],
        "responses": _responses(route),
    }
    description = route.description
    if route.scope is Scope.NONE:
        operation["security"] = []
    else:
        operation["security"] = [{"bearer": []}, {"key": []}]
        operation["x-scope"] = route.scope.value
        description = f"{description}\n\nScope: {route.scope.value}".strip()
    if description:
        operation["description"] = description
    parameters = [*_path_parameters(route), *_query_parameters(route), *_header_parameters(route)]
    if parameters:
        operation["parameters"] = parameters
    if route.body is not None:
        schemas: dict[str, dict[str, Any]] = {JSON: _ref(route.body)}
        schemas |= {media.type: _plain({**media.schema, "description": media.description}) for media in route.media}
        content = {
            media: {"schema": schema, **examples.content_of(route.operation, media)}
            for media, schema in schemas.items()
        }
        operation["requestBody"] = {"required": route.body_required, "content": content}
    return operation


def _ref(kind: type) -> dict[str, Any]:
    return {"$ref": REF.format(name=kind.__name__)}


def _path_parameters(route: Route) -> list[dict[str, Any]]:
    values = {**examples.NAMES, **examples.NAMES_OF.get(route.operation, {})}
    return [
        {
            "name": name, "in": "path", "required": True, "description": NAMES[name],
            "schema": {"type": "string", "minLength": 1},
            **({"example": values[name]} if name in values else {}),
        }
        for name in names_of(route.path)
    ]  # fmt: skip


def _query_parameters(route: Route) -> list[dict[str, Any]]:
    if route.query is None:
        return []
    _, components = msgspec.json.schema_components([route.query], ref_template=REF)
    schema = components[route.query.__name__]
    required = set(schema.get("required", ()))
    texts = field_descriptions(route.query)
    parameters = []
    for name, given in schema["properties"].items():
        field = _plain(given)
        description = field.pop("description", "") or _prose(texts.get(name, ""))
        if any(kind.get("x-ago") for kind in given.get("anyOf", [given])):
            field = {"anyOf": [{"type": "string", "format": TIME_OR_AGE}, {"type": "number", "format": "double"}]}
            description = f"{description} RFC 3339 with an offset, seconds since 1970, or how long ago (`10m`).".strip()
        parameters.append(
            {
                "name": name, "in": "query", "required": name in required, "description": description,
                "schema": _given(field),
            }
        )  # fmt: skip
    return parameters


def _given(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema of a query parameter, which is there or not, and never ``null``."""
    if schema.get("type") == "array":  # of whose default openapi-generator makes Go that does not compile
        return {name: each for name, each in schema.items() if name != "default"}
    if isinstance(kinds := schema.get("type"), list):
        return {**{name: each for name, each in schema.items() if (name, each) != ("default", None)}, "type": kinds[0]}
    choices = [
        {**choice, "type": choice["type"][0]} if isinstance(choice.get("type"), list) else choice
        for choice in schema.get("anyOf", ())
        if choice != NULL
    ]
    if not choices:
        return schema
    found = {name: value for name, value in schema.items() if name != "anyOf" and (name, value) != ("default", None)}
    return {**found, **choices[0]} if len(choices) == 1 else {**found, "anyOf": choices}


def _header_parameters(route: Route) -> list[dict[str, Any]]:
    values = examples.HEADERS_OF.get(route.operation, {})
    return [
        {
            "name": name, "in": "header", "required": False, "description": HEADERS[name][0],
            "schema": _plain(HEADERS[name][1]), **({"example": values[name]} if name in values else {}),
        }
        for name in route.headers
    ]  # fmt: skip


def _responses(route: Route) -> dict[str, Any]:
    responses: dict[str, Any] = {}
    for status, (text, kind) in route.answers.items():
        responses[str(status)] = {"description": text}
        if kind is not None:
            content: dict[str, Any] = {"application/json": {"schema": _ref(kind)}}
            if status == 200 and any(media.type == "application/x-ndjson" for media in route.media):
                content["application/x-ndjson"] = {"schema": {"type": "string"}}
            responses[str(status)]["content"] = content
    codes = [*route.codes, "invalid_parameter"]
    if route.scope is not Scope.NONE:
        codes.extend(EVERYWHERE)
    if route.body is not None:
        codes.extend(WITH_BODY)
    if "ledger_unavailable" in codes:
        codes += ["commit_unknown", "ledger_full", "ledger_damaged"]
    by_status: dict[int, list[str]] = {}
    for code in codes:
        by_status.setdefault(PROBLEMS[code].status, []).append(code)
    for status, names in sorted(by_status.items()):
        text = "; ".join(f"`{code}`: {PROBLEMS[code].title}" for code in dict.fromkeys(names))
        responses[str(status)] = {"description": text, "content": {PROBLEM_JSON: {"schema": _ref(Problem)}}}
    return responses


def encode(value: dict[str, Any]) -> bytes:
    """The document as JSON, indented."""
    return msgspec.json.format(msgspec.json.encode(value), indent=1)
