"""The ASGI application: from a request to its handler, and from errors to problems.

Every request passes here: bounds on what is under way, who calls, which route, what it may, the handler, and whatever
went wrong as a problem. It is Starlette's request and response machinery under a router of our own, since names are
routed before they are decoded.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from time import monotonic, perf_counter
from typing import Final

from prometheus_client import Counter, Histogram
from starlette.responses import Response
from starlette.types import Receive, Send
from starlette.types import Scope as AsgiScope

from gateway.access.access import Access
from gateway.access.scopes import Principal
from gateway.access.trail import Trail
from gateway.api import (
    auth,
    bridges,
    brokers,
    deliveries,
    documents,
    endpoints,
    events,
    keys,
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
from gateway.api.auth import Doorkeeper, Keys
from gateway.api.call import Call, problem_response
from gateway.api.guard import CERTIFICATE
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

RATED: Final = "gateway.rated"
"""Key of the ASGI scope: what the answer says of the caller's rate."""
SIGNED: Final = "gateway.caller_of_token"
"""Key of the ASGI scope: the caller, where that was told by a token."""
CALLER: Final = "gateway.caller"
OPERATION: Final = "gateway.operation"
"""Keys of the ASGI scope: who calls which operation, once that is known."""
RECORDED: Final = frozenset({Scope.ADMIN, Scope.BROKER, Scope.ENDPOINT})
"""What a route needs whose requests go into the audit log, if they change anything."""
NOT_RECORDED: Final = frozenset(
    {"claim_log_cursor", "move_log_cursor", "release_log_cursor", "put_pipeline_run", "probe_broker", "compare_bridge"}
)
"""Operations that change nothing, or nothing but how far a reader has come."""
REFUSALS: Final = frozenset({"unauthorized", "forbidden", "rate_limited"})
"""Problems that go into the audit log."""
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
    *keys.ROUTES,
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
        access: Access | None = None,
    ) -> None:
        """``bridges``, ``taps`` None: there are none to begin with; ``endpoints`` None: there can be none;
        ``pushes`` None: nothing is pushed; ``replays`` None: nothing is sent once more over HTTP; ``access`` None: only
        the keys of the configuration open anything."""
        self._gateway = gateway
        self._bridges = bridges if bridges is not None else Bridges(gateway, {})
        self._taps = taps if taps is not None else Taps(gateway, {})
        self._endpoints = endpoints
        self._pushes = pushes
        self._replays = replays if replays is not None else Replays(gateway)
        self._http = http
        self._access = access
        self._trail = access.trail if access is not None else None
        self._takes_tokens = access is not None and access.tokens is not None
        self._doorkeeper = Doorkeeper(http, Keys(api_keys), access)
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
        call: Call | None = None
        try:
            try:
                if self._takes_tokens and FORWARDED not in scope:
                    scope[SIGNED] = await self._doorkeeper.check_token(dict(scope["headers"]))
                call = self._call(scope, receive)
                operation = call.route.operation
                response = await call.route.handler(call)
            except GatewayError as error:
                response = _problem(error, scope)
                self._refused(error, scope)
            except Exception as error:  # the last line of defence: logged, and answered without its text
                tell("http.failed", logging.ERROR, error, operation=operation)
                response = problem_response(internal_problem(_path(scope)), {})
            if self._gateway.leaving:  # whoever keeps the connection would come again
                response.headers["connection"] = "close"
            if call is not None and self._trail is not None:
                await self._record(self._trail, call, response)
            if (said := scope.get(RATED)) is not None:
                response.raw_headers += [pair for pair in said if pair not in response.raw_headers]
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

    async def _record(self, trail: Trail, call: Call, response: Response) -> None:
        """Put a change on record, before its answer goes out."""
        if FORWARDED in call.scope or not is_recorded(call.route) or 400 <= response.status_code < 500:
            return
        await trail.changed(
            call.route.operation, actor=call.principal.name, credential=call.principal.credential, object=call.path,
            address=_address(call.scope), request=call.header(b"x-request-id") or "", result=response.status_code,
            before=(call.header(b"if-match") or "").strip('"'), after=response.headers.get("etag", "").strip('"'),
        )  # fmt: skip

    def _refused(self, error: GatewayError, scope: AsgiScope) -> None:
        """Put a refusal on record, soon."""
        trail = self._trail
        if (
            trail is None
            or not isinstance(error, ApiProblem)
            or error.problem_code not in REFUSALS
            or FORWARDED in scope
        ):
            return
        principal: Principal | None = scope.get(CALLER)
        trail.refused(
            scope.get(OPERATION, "request"), error.problem_code, _address(scope), object=_path(scope),
            actor=principal.name if principal is not None else "",
            credential=principal.credential if principal is not None else "",
        )  # fmt: skip

    def _rate(self, scope: AsgiScope, principal: Principal) -> None:
        """Count the request of a caller whom we know. Raises ApiProblem (rate_limited)."""
        rates = self._access.rates if self._access is not None else None
        if rates is None or not principal.name or FORWARDED in scope:
            return
        standing = rates.take(principal.name, monotonic())
        headers = rates.headers(standing)
        scope[RATED] = [(name.encode(), value.encode()) for name, value in headers.items()]
        if not standing.allowed:
            raise ApiProblem(
                "rate_limited", f"{principal.name!r} asks more often than access.rate allows", headers=headers
            )

    def _call(self, scope: AsgiScope, receive: Receive) -> Call:
        """Who calls what. Raises ApiProblem."""
        pairs: list[tuple[bytes, bytes]] = scope["headers"]
        headers = dict(pairs)
        if sum([len(name) + len(value) for name, value in pairs]) > HEADERS_MAX:
            raise ApiProblem("headers_too_large", f"more than {HEADERS_MAX} octets of headers")
        principal = (
            scope.get(FORWARDED) or scope.get(SIGNED) or self._doorkeeper.identify(headers, scope.get(CERTIFICATE, ()))
        )
        route, names = self._router.find(scope["method"], scope.get("raw_path") or scope["path"].encode())
        scope[CALLER], scope[OPERATION] = principal, route.operation
        self._rate(scope, principal)
        auth.require(principal, route.scope, names)
        return Call(
            scope, receive, headers, route, names, principal, self._gateway, self._http, self._bridges,
            self._taps,
            endpoints=self._endpoints,
            pushes=self._pushes,
            replays=self._replays,
            access=self._access,
        )  # fmt: skip


def _problem(error: GatewayError, scope: AsgiScope) -> Response:
    return problem_response(problem_of(error, _path(scope)), problem_headers(error))


def is_recorded(route: Route) -> bool:
    """Whether a request of this route goes into the audit log: it changes what others rely on."""
    return route.method != "GET" and route.scope in RECORDED and route.operation not in NOT_RECORDED


def _address(scope: AsgiScope) -> str:
    client = scope.get("client")
    return str(client[0]) if client else ""


def _path(scope: AsgiScope) -> str:
    raw: bytes = scope.get("raw_path") or b""
    return raw.decode("latin-1")
