"""The ASGI application: from a request to its handler, and from errors to problems.

Every request passes here: bounds on what is under way, who calls, which route, what it may, the handler, and whatever
went wrong as a problem. It is Starlette's request and response machinery under a router of our own, since names are
routed before they are decoded.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from time import perf_counter
from typing import Final

from prometheus_client import Counter, Histogram
from starlette.responses import Response
from starlette.types import Receive, Send
from starlette.types import Scope as AsgiScope

from gateway.api import (
    auth,
    bridges,
    brokers,
    deliveries,
    documents,
    endpoints,
    events,
    log,
    openapi,
    publish,
    replays,
    runs,
    scheduled,
    statistics,
    subscriptions,
    taps,
    timeline,
    topology,
    translations,
    well_known,
)
from gateway.api.auth import SCOPES, Doorkeeper, Keys
from gateway.api.call import Call, problem_response
from gateway.api.peers import FORWARDED
from gateway.api.problems import ApiProblem, internal_problem, problem_headers, problem_of
from gateway.api.routing import Route, Router, Scope
from gateway.bridges import Bridges
from gateway.config import ApiKeySettings, HttpSettings
from gateway.core import Gateway
from gateway.errors import GatewayError, Overloaded
from gateway.replays import Replays
from gateway.taps import Taps
from gateway.telemetry import log as tell
from gateway.webhooks.endpoints import Endpoints
from gateway.webhooks.supervisor import Pushes

HEADERS_MAX: Final = 32_768
"""Most octets of request headers, names and values."""


async def _openapi(call: Call) -> Response:
    """The document."""
    return Response(openapi_octets(), media_type="application/json")


ROUTES: Final[tuple[Route, ...]] = (
    *publish.ROUTES,
    *scheduled.ROUTES,
    *deliveries.ROUTES,
    *replays.ROUTES,
    *subscriptions.ROUTES,
    *bridges.ROUTES,
    *taps.ROUTES,
    *endpoints.ROUTES,
    *timeline.ROUTES,
    *events.ROUTES,
    *statistics.ROUTES,
    *log.ROUTES,
    *runs.ROUTES,
    *brokers.ROUTES,
    *topology.ROUTES,
    *translations.ROUTES,
    *well_known.ROUTES,
    *documents.ROUTES,
    Route(
        "GET", "/openapi.json", "openapi", "This document", _openapi, Scope.NONE, {200: ("OpenAPI 3.1.", None)},
        tag="documents",
    ),
)  # fmt: skip
"""Every operation of the API."""

_document: list[bytes] = []


def openapi_octets() -> bytes:
    """The OpenAPI document as JSON, made on first use."""
    if not _document:
        _document.append(openapi.encode(openapi.document(ROUTES)))
    return _document[0]


class Api:
    """The application on the public port."""

    def __init__(
        self,
        gateway: Gateway,
        http: HttpSettings,
        api_keys: Iterable[ApiKeySettings] = (),
        bridges: Bridges | None = None,
        routes: Iterable[Route] = ROUTES,
        *,
        endpoints: Endpoints | None = None,
        pushes: Pushes | None = None,
        replays: Replays | None = None,
        taps: Taps | None = None,
    ) -> None:
        """``bridges``, ``taps`` None: there are none to begin with; ``endpoints`` None: there can be none;
        ``pushes`` None: nothing is pushed; ``replays`` None: nothing is sent once more over HTTP."""
        self._gateway = gateway
        self._bridges = bridges if bridges is not None else Bridges(gateway, {})
        self._taps = taps if taps is not None else Taps(gateway, {})
        self._endpoints = endpoints
        self._pushes = pushes
        self._replays = replays if replays is not None else Replays(gateway)
        self._http = http
        self._doorkeeper = Doorkeeper(http, Keys(api_keys))
        self._router = Router(routes)
        self._running = 0
        self._counts: dict[tuple[str, int], Counter] = {}
        self._seconds: dict[str, Histogram] = {}
        gateway.metrics.requests_running.set_function(lambda: self._running)

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        """One request (ASGI)."""
        if scope["type"] != "http":
            raise RuntimeError(f"no handler for {scope['type']}")
        started = perf_counter()
        operation = "none"
        if self._running >= self._http.concurrency:
            full = Overloaded(f"{self._http.concurrency} requests are under way (http.concurrency)")
            response = _problem(full, scope)
            self._count(operation, 503, started)
            await response(scope, receive, send)
            return
        self._running += 1
        try:
            try:
                call = self._call(scope, receive)
                operation = call.route.operation
                response = await call.route.handler(call)
            except GatewayError as error:
                response = _problem(error, scope)
            except Exception as error:  # the last line of defence: logged, and answered without its text
                tell("http.failed", logging.ERROR, error, operation=operation)
                response = problem_response(internal_problem(_path(scope)), {})
            await response(scope, receive, send)
            self._count(operation, response.status_code, started)
        finally:
            self._running -= 1

    def _count(self, operation: str, status: int, started: float) -> None:
        count = self._counts.get((operation, status))
        if count is None:
            count = self._counts[operation, status] = self._gateway.metrics.requests.labels(operation, str(status))
        count.inc()
        seconds = self._seconds.get(operation)
        if seconds is None:
            seconds = self._seconds[operation] = self._gateway.metrics.request_seconds.labels(operation)
        seconds.observe(perf_counter() - started)

    def _call(self, scope: AsgiScope, receive: Receive) -> Call:
        """Who calls what. Raises ApiProblem."""
        pairs: list[tuple[bytes, bytes]] = scope["headers"]
        headers = dict(pairs)
        if sum([len(name) + len(value) for name, value in pairs]) > HEADERS_MAX:
            raise ApiProblem("headers_too_large", f"more than {HEADERS_MAX} octets of headers")
        principal = scope.get(FORWARDED) or self._doorkeeper.identify(headers)
        route, names = self._router.find(scope["method"], scope.get("raw_path") or scope["path"].encode())
        needs = SCOPES.get(route.scope)
        if needs is not None:
            kind, name = needs
            auth.require(principal, kind, names.get("broker", ""), names.get(name, ""))
        return Call(
            scope, receive, headers, route, names, principal, self._gateway, self._http, self._bridges,
            self._taps,
            endpoints=self._endpoints,
            pushes=self._pushes,
            replays=self._replays,
        )  # fmt: skip


def _problem(error: GatewayError, scope: AsgiScope) -> Response:
    return problem_response(problem_of(error, _path(scope)), problem_headers(error))


def _path(scope: AsgiScope) -> str:
    raw: bytes = scope.get("raw_path") or b""
    return raw.decode("latin-1")
