"""Where an answer leads: the links of the OpenAPI document (OpenAPI 3.1 section 4.8.20).

Two rules and a table. What a PUT made can be asked, changed and ended under the same names: its answer leads to every
other operation at or below its path. A resource that the gateway has named is found by the id in the answer, and so is
what a list has first: :data:`IDS`. What a pull leased is settled by the ack ids of its answer: :data:`BODIES`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from gateway.api.http.routing import Route


class Id(NamedTuple):
    """Where an answer names something."""

    status: int
    pointer: str
    """JSON pointer into the body."""
    name: str
    """The parameter of paths that it fills."""


IDS: Final[Mapping[str, tuple[Id, ...]]] = {
    "publish": (Id(200, "/id", "message"), Id(202, "/id", "scheduled")),
    "list_messages": (Id(200, "/messages/0/id", "message"),),
    "list_scheduled": (Id(200, "/scheduled/0/id", "scheduled"),),
    "list_deliveries": (Id(200, "/deliveries/0/id", "delivery"),),
    "create_key": (Id(201, "/id", "key"),),
    "list_keys": (Id(200, "/keys/0/id", "key"),),
    "rotate_key": (Id(201, "/id", "key"),),
    "ask_replay": (Id(200, "/id", "replay"), Id(201, "/id", "replay")),
    "replay_delivery": (Id(200, "/id", "replay"), Id(201, "/id", "replay")),
    "list_replays": (Id(200, "/replays/0/id", "replay"),),
}
"""Operation -> the ids in its answers."""
_LEASED: Final = ["$response.body#/messages/0/ack_id"]
BODIES: Final[Mapping[str, Mapping[str, Mapping[str, Any]]]] = {
    "pull": {
        "acknowledge": {"ack_ids": _LEASED},
        "modify_ack_deadline": {"ack_ids": _LEASED, "ack_deadline_seconds": 30},
        "release": {"ack_ids": _LEASED},
        "reject": {"ack_ids": _LEASED, "reason": "cannot be read"},
    },
}
"""Operation -> operations of the same path that it leads to, each with the body that is sent there."""
BODY: Final = "x-request-body"
"""Member of a link that has the body. OpenAPI calls it ``requestBody`` and allows any value. openapi-generator 7 takes
only a string there and refuses the whole document."""


def links(route: Route, routes: Iterable[Route]) -> dict[int, dict[str, Any]]:
    """The links of an operation's answers: status -> operation -> link."""
    found: dict[int, dict[str, Any]] = {}
    routes = [other for other in routes if other.operation != route.operation]
    own = names_of(route.path)
    if route.method == "PUT":
        below = tuple(route.path + sign for sign in "/:")
        for other in routes:
            if (other.path == route.path or other.path.startswith(below)) and names_of(other.path) == own:
                for status in (200, 201):
                    if status in route.answers:
                        found.setdefault(status, {})[other.operation] = _link(other, _same(own))
    for each in IDS.get(route.operation, ()):
        for other in routes:
            if each.name in (names := names_of(other.path)) and {*names} <= {*own, each.name}:
                named = {**_same(own), f"path.{each.name}": f"$response.body#{each.pointer}"}
                link = _link(other, {key: value for key, value in named.items() if key[5:] in names})
                found.setdefault(each.status, {})[other.operation] = link
    for other in routes:
        if (body := BODIES.get(route.operation, {}).get(other.operation)) is not None:
            found.setdefault(200, {})[other.operation] = {**_link(other, _same(own)), BODY: dict(body)}
    return found


def names_of(path: str) -> list[str]:
    """The parameters of a path."""
    return re.findall(r"\{(\w+)\}", path)


def _same(names: Iterable[str]) -> dict[str, str]:
    return {f"path.{name}": f"$request.path.{name}" for name in names}


def _link(other: Route, parameters: Mapping[str, str]) -> dict[str, Any]:
    return {"operationId": other.operation, "description": other.summary, "parameters": dict(parameters)}
