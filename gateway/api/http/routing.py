"""Routes as data, and how a path finds its route.

Paths are matched on the raw octets (``scope["raw_path"]``), percent-encoding and all: a verb is what follows the
last literal colon of the last segment, and names are decoded only afterwards. So ``orders%3Apurge`` is a queue of
that name, and ``orders:purge`` empties ``orders``. Names of AMQP hold any octets, up to 255; octets that are not UTF-8
become surrogate escapes, as everywhere in the gateway. All other names are text (:func:`not_text`). ``amq.default``
stands for the exchange whose name is empty.

The same table makes the OpenAPI document (:mod:`gateway.api.about.openapi`), so that what is served is what is
documented.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote_to_bytes

from gateway.access.scopes import DEFAULT_EXCHANGE
from gateway.api.http.problems import ApiProblem, wrong_parameter

if TYPE_CHECKING:
    from starlette.responses import Response

    from gateway.api.http.call import Call

SHORT_STRING_MAX: Final = 255
"""Longest name in a path, in octets: that of a short string."""


AMQP_NAMES: Final = frozenset({"exchange", "queue"})
"""Names in a path that may be any octets."""
REMEMBERED: Final = 1_000
"""How many paths are remembered with what they name; when they are more, all are forgotten."""
REMEMBERED_LENGTH: Final = 512
"""Longest path that is remembered, in octets."""


class Scope(Enum):
    """What a caller must hold for a route. ``admin`` holds every scope. :data:`gateway.api.http.auth.NEEDS` says how
    each is checked."""

    NONE = "none"
    """Open to all: documents, not data."""
    CALLER = "any credential"
    """The answer has only what the caller knows itself."""
    BROKERS = "any scope of a broker"
    """The answer has only the brokers that a scope names."""
    BROKER_SEEN = "any scope of {broker}"
    PUBLISHER = "any publish: or route:"
    """The answer has only what the caller published itself."""
    CONSUMER = "any consume: or subscribe:"
    """The answer has only subscriptions of queues that a scope names."""
    PUBLISH = "publish:{broker}/{exchange} or route:{broker}/{exchange}/PATTERN"
    """With ``route`` the handler asks again for each routing key."""
    EXCHANGE = "publish:{broker}/{exchange}, route:{broker}/{exchange}/PATTERN or broker:{broker}"
    QUEUE = "consume:{broker}/{queue} or broker:{broker}"
    CONSUME = "consume:{broker}/{queue}"
    SUBSCRIPTION = "consume:{broker}/{queue} of the subscription"
    SUBSCRIPTION_SEEN = "consume:{broker}/{queue} or subscribe:{broker}/{queue} of the subscription"
    SUBSCRIBE = "subscribe:{broker}/{queue} of the subscription"
    BROKER = "broker:{broker}"
    ENDPOINTS = "any endpoint:"
    """The answer has only the endpoints that a scope names."""
    ENDPOINT = "endpoint:{endpoint}"
    HISTORY = "history"
    ADMIN = "admin"


@dataclass(frozen=True, slots=True)
class Media:
    """A body that is no plain JSON of the route's struct."""

    type: str
    description: str
    schema: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Route:
    """One operation of the API."""

    method: str
    path: str
    """``{name}`` stands for one segment; a ``:verb`` may end the path."""
    operation: str
    """The operationId, in snake_case."""
    summary: str
    handler: Callable[[Call], Awaitable[Response]]
    scope: Scope
    answers: Mapping[int, tuple[str, type | None]]
    """Status -> sentence and struct of the JSON body (None: none, or another media type)."""
    body: type | None = None
    """Struct of the JSON body."""
    body_required: bool = True
    takes_messages: bool = False
    """Whether the body holds messages, so that it may be as long as ``http.body_max`` says; any other is bounded by
    :data:`gateway.api.http.call.PLAIN_MAX`."""
    media: tuple[Media, ...] = ()
    """Other bodies that are taken."""
    query: type | None = None
    """Struct of the query parameters; None: none are taken. Any other parameter is refused
    (:meth:`gateway.api.http.call.Call.check_query`)."""
    headers: tuple[str, ...] = ()
    """Request headers with a meaning here, by their name in :data:`gateway.api.about.openapi.HEADERS`."""
    codes: tuple[str, ...] = ()
    """Codes of the problems that it may answer, besides those that every route may."""
    description: str = ""
    tag: str = ""


class _Node:
    """One segment of the tree of paths."""

    __slots__ = ("children", "leaves", "parameter", "parameter_name")

    def __init__(self) -> None:
        self.children: dict[bytes, _Node] = {}
        self.parameter: _Node | None = None
        self.parameter_name = ""
        self.leaves: dict[bytes, dict[str, Route]] = {}
        """verb -> method -> route"""


class Router:
    """Finds the route of a raw path."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self.routes = tuple(routes)
        self._found: dict[tuple[str, bytes], tuple[Route, dict[str, str]]] = {}
        self._root = _Node()
        for route in self.routes:
            self._add(route)

    def _add(self, route: Route) -> None:
        path, _, verb = route.path.partition(":")
        node = self._root
        for segment in path[1:].split("/"):
            if segment.startswith("{"):
                if node.parameter is None:
                    node.parameter, node.parameter_name = _Node(), segment[1:-1]
                assert node.parameter_name == segment[1:-1], f"{route.path}: a segment has one name in all routes"
                node = node.parameter
            else:
                node = node.children.setdefault(segment.encode(), _Node())
        methods = node.leaves.setdefault(verb.encode(), {})
        assert route.method not in methods, f"{route.method} {route.path} is there twice"
        methods[route.method] = route

    def find(self, method: str, raw_path: bytes) -> tuple[Route, Mapping[str, str]]:
        """The route and the decoded names of the path.

        Raises:
            ApiProblem: route_not_found, method_not_allowed, invalid_parameter (a malformed name).
        """
        found = self._found.get((method, raw_path))
        if found is None:
            found = self._find(method, raw_path)
            if len(raw_path) <= REMEMBERED_LENGTH:
                if len(self._found) >= REMEMBERED:
                    self._found.clear()
                self._found[method, raw_path] = found
        return found

    def _find(self, method: str, raw_path: bytes) -> tuple[Route, dict[str, str]]:
        segments = raw_path[1:].split(b"/")
        last, colon, verb = segments[-1].rpartition(b":")
        if colon:
            segments[-1] = last
        else:
            verb = b""
        node = self._root
        raw_names: list[tuple[str, bytes]] = []
        for depth, segment in enumerate(segments):
            child = node.children.get(segment)
            if child is None:
                if node.parameter is None or not segment:
                    raise _not_found(raw_path, b"/".join([b"", *segments[:depth]]), node, in_name=bool(raw_names))
                raw_names.append((node.parameter_name, segment))
                child = node.parameter
            node = child
        methods = node.leaves.get(verb) if verb or not colon else None
        if methods is None:
            if colon and node.leaves:
                raise ApiProblem(
                    "route_not_found",
                    f"no verb {_text(verb)!r} at this resource, which has {_words(node.leaves)}; "
                    "a colon that belongs to a name is written %3A",
                )
            raise _not_found(raw_path, raw_path, node, in_name=bool(raw_names))
        route = methods.get(method)
        if route is None and method == "HEAD":
            route = methods.get("GET")
        if route is None:
            allowed = ", ".join(sorted(methods))
            raise ApiProblem("method_not_allowed", f"allowed here: {allowed}", headers={"allow": allowed})
        return route, {name: decode_name(name, raw) for name, raw in raw_names}


def not_text(value: str) -> str:
    """Why a value is no text that a database can hold; empty: it is one."""
    if "\0" in value:
        return "contains the character U+0000"
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            return "is not percent-encoded UTF-8"
    return ""


def decode_name(kind: str, raw: bytes) -> str:
    """The name in a raw path segment. Raises ApiProblem (invalid_parameter) where it is too long."""
    octets = unquote_to_bytes(raw) if b"%" in raw else raw
    if len(octets) > SHORT_STRING_MAX:
        raise wrong_parameter(kind, f"the name has {len(octets)} bytes; a name of AMQP has at most {SHORT_STRING_MAX}")
    name = octets.decode("utf-8", "surrogateescape")
    if kind not in AMQP_NAMES and (wrong := not_text(name)):
        raise wrong_parameter(kind, f"the name {wrong}")
    return "" if kind == "exchange" and name == DEFAULT_EXCHANGE else name


def _not_found(raw_path: bytes, above: bytes, node: _Node, *, in_name: bool) -> ApiProblem:
    """The problem of a path that leads nowhere: it names what there is below the part that leads somewhere."""
    detail = f"no resource at {_text(raw_path)}"
    if node.children:
        detail += f"; below {_text(above) or '/'} there is {_words(node.children)}"
    if in_name:
        detail += "; a slash that belongs to a name is written %2F"
    return ApiProblem("route_not_found", detail)


def _words(found: Iterable[bytes]) -> str:
    """Names of routes, of which there are few."""
    return ", ".join(sorted(word.decode() for word in found if word)) or "none"


def _text(octets: bytes) -> str:
    return octets[:200].decode("utf-8", "backslashreplace")
