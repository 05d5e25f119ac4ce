"""The ASGI application: from a request to its handler, and from errors to problems.

Every request passes here: bounds on what is under way, who calls, which route, what it may, the handler, and each error
as a problem. It is Starlette's request and response machinery under a router of our own, since names are routed before
they are decoded.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from typing import Final

from prometheus_client import Counter, Histogram
from starlette.responses import Response
from starlette.types import Receive, Send
from starlette.types import Scope as AsgiScope

from gateway.access.access import Access
from gateway.access.rates import address_of
from gateway.access.scopes import DEVELOPER, VISITOR, Principal
from gateway.access.trail import Trail
from gateway.api.about import budgets, console, documents, login, openapi, well_known
from gateway.api.history import audit, events, log, runs, statistics, timeline
from gateway.api.history.traced import Trace, begin, follow
from gateway.api.http import auth, callers, eager
from gateway.api.http.access_log import AccessLog
from gateway.api.http.auth import ConfiguredKeys, Doorkeeper, unauthorized
from gateway.api.http.call import Call, JsonAnswer, problem_response
from gateway.api.http.connections import CONNECTION
from gateway.api.http.cycle import CUT, WHOLE
from gateway.api.http.guard import CERTIFICATE, HEAD_MAX
from gateway.api.http.heads import TARGET_MAX, target_length
from gateway.api.http.problems import ApiProblem, internal_problem, problem_headers, problem_of
from gateway.api.http.proxies import Proxies
from gateway.api.http.routing import Route, Router, Scope
from gateway.api.messages import dead_letters, deliveries, publish, scheduled, translations
from gateway.api.resources import (
    attempts,
    bridges,
    brokers,
    endpoints,
    fronts,
    holders,
    inventory,
    keys,
    looks,
    overview,
    reloads,
    replays,
    search,
    subscriptions,
    taps,
    topology,
)
from gateway.api.resources.peers import FORWARDED
from gateway.bridges import BridgeSupervisor
from gateway.broker_store import BrokerStore
from gateway.budgets import ALONE, ON_BEHALF, ShareHolder
from gateway.config import ApiKeySettings, HttpSettings
from gateway.core import Gateway
from gateway.errors import GatewayError, OutcomeUnknown
from gateway.front.server import Front
from gateway.observing import telemetry
from gateway.observing.telemetry import Following
from gateway.replays import Replays
from gateway.runtime.clock import clock
from gateway.runtime.threads import threads
from gateway.taps import TapSupervisor
from gateway.tracing import of_request
from gateway.webhooks.settings.endpoints import EndpointRegistry
from gateway.webhooks.supervisor import Pushes

RATED: Final = "gateway.rated"
"""Key of the ASGI scope: what the answer says of the caller's rate."""
SIGNED: Final = "gateway.caller_of_token"
"""Key of the ASGI scope: the caller, where a token names it."""
STRANGER: Final = "gateway.stranger"
"""Key of the ASGI scope: the request is counted as that of somebody whom we do not know."""
COUNTED: Final = "gateway.counted"
"""Key of the ASGI scope: the client whose share of requests this one is counted in."""
CALLER: Final = "gateway.caller"
OPERATION: Final = "gateway.operation"
"""Keys of the ASGI scope: who calls which operation, once that is known."""
TRACED: Final = "gateway.traced"
"""Key of the ASGI scope: the trace, or the id of the caller's where nothing is traced."""
RECORDED: Final = frozenset({Scope.ADMIN, Scope.BROKER, Scope.CONSUME, Scope.ENDPOINT, Scope.SUBSCRIBE})
"""What a route needs whose requests go into the audit log, if they change anything."""
NOT_RECORDED: Final = frozenset(
    {"claim_log_cursor", "move_log_cursor", "release_log_cursor", "put_pipeline_run", "probe_broker", "compare_bridge"}
)
"""Operations that change nothing, or nothing but how far a reader has come."""
REFUSALS: Final = frozenset({"unauthorized", "forbidden", "rate_limited"})
"""Problems that go into the audit log."""
BASIC_ADVICE: Final = "Give an API key as the password, with any user; or send it as `Authorization: Bearer KEY`."
PLAIN: Final = frozenset({Response, JsonAnswer})
"""Answers that are a status, headers and a body, and nothing else."""
HEADERS_MAX: Final = HEAD_MAX
"""Most octets of request headers, names and values."""
HEADERS_MOST: Final = 100
"""Most request headers."""


async def _openapi(call: Call) -> Response:
    """The document."""
    octets = _document[0] if _document else await threads.run(openapi_octets)  # it takes long enough to be noticed
    return Response(octets, media_type="application/json")


ROUTES: Final[tuple[Route, ...]] = (
    *publish.ROUTES,
    *scheduled.ROUTES,
    *dead_letters.ROUTES,
    *deliveries.ROUTES,
    *replays.ROUTES,
    *subscriptions.ROUTES,
    *bridges.ROUTES,
    *taps.ROUTES,
    *keys.ROUTES,
    *callers.ROUTES,
    *login.ROUTES,
    *audit.ROUTES,
    *endpoints.ROUTES,
    *attempts.ROUTES,
    *timeline.ROUTES,
    *events.ROUTES,
    *statistics.ROUTES,
    *log.ROUTES,
    *runs.ROUTES,
    *brokers.ROUTES,
    *overview.ROUTES,
    *search.ROUTES,
    *topology.ROUTES,
    *looks.ROUTES,
    *holders.ROUTES,
    *inventory.ROUTES,
    *translations.ROUTES,
    *reloads.ROUTES,
    *budgets.ROUTES,
    *fronts.ROUTES,
    *well_known.ROUTES,
    *documents.ROUTES,
    *console.ROUTES,
    Route(
        "GET", "/openapi.json", "openapi", "This document", _openapi, Scope.NONE, {200: ("OpenAPI 3.1.", None)},
        tag="documents",
    ),
)  # fmt: skip
"""Every operation of the API."""

CUT_OFF: Final = "the gateway ended while the request was under way, and nobody knows what it has done"
"""The detail of the problem. The request took longer than ``http.drain_timeout``."""

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
        bridges: BridgeSupervisor | None = None,
        routes: Iterable[Route] = ROUTES,
        *,
        endpoints: EndpointRegistry | None = None,
        pushes: Pushes | None = None,
        replays: Replays | None = None,
        taps: TapSupervisor | None = None,
        access: Access | None = None,
    ) -> None:
        """``bridges``, ``taps`` None: there are none to begin with; ``endpoints`` None: there can be none;
        ``pushes`` None: nothing is pushed; ``replays`` None: nothing is sent once more over HTTP; ``access`` None: only
        the keys of the configuration open anything."""
        self._gateway = gateway
        self._bridges = bridges if bridges is not None else BridgeSupervisor(gateway, {})
        self._taps = taps if taps is not None else TapSupervisor(gateway, {})
        self._endpoints = endpoints
        self._pushes = pushes
        self._replays = replays if replays is not None else Replays(gateway)
        self._http = http
        self._access = access
        self.fronts: Mapping[str, Front] = {}
        """The ports for AMQP clients, by name."""
        self.brokers: BrokerStore | None = None
        """The brokers as they are defined; None: nobody can change them."""
        self.reloader: reloads.Reloader | None = None
        """Reads the configuration again; None: nobody can."""
        self._trail = access.trail if access is not None else None
        self._takes_tokens = access is not None and access.tokens is not None
        self._doorkeeper = Doorkeeper(http, ConfiguredKeys(api_keys), access)
        self._router = Router(routes)
        self._access_log = AccessLog(http.access_log) if http.access_log else None
        self._proxies = Proxies(http.trusted_proxies) if http.trusted_proxies else None
        self._requests = gateway.budgets["requests"]
        self._running = 0
        self._counts: dict[tuple[str, int], Counter] = {}
        self._seconds: dict[str, Histogram] = {}
        gateway.metrics.requests_running.set_function(lambda: self._running)

    def reconfigure(self, http: HttpSettings, keys: ConfiguredKeys) -> None:
        """Other bounds and keys, for the requests that come from now on; what ``access`` says counts as well."""
        self._http = http
        self._access_log = AccessLog(http.access_log) if http.access_log else None
        self._proxies = Proxies(http.trusted_proxies) if http.trusted_proxies else None
        self._takes_tokens = self._access is not None and self._access.tokens is not None
        self._doorkeeper = Doorkeeper(http, keys, self._access)

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        """One request (ASGI)."""
        if scope["type"] != "http":
            raise RuntimeError(f"no handler for {scope['type']}")
        started = clock.monotonic()
        operation = "none"
        if self._proxies is not None and (client := scope.get("client")) is not None:
            scope["client"] = (self._proxies.caller(client[0], scope["headers"]), client[1])
        self._running += 1
        call: Call | None = None
        status = 0
        try:
            if (trace := begin(self._gateway.tracer, scope, clock.now_ns())) is not None:
                scope[TRACED] = trace
            try:
                if self._takes_tokens and FORWARDED not in scope:
                    self._take_share(scope, VISITOR)  # it may wait for the issuer's keys
                    scope[SIGNED] = await self._doorkeeper.check_token(dict(scope["headers"]))
                call = self._call(scope, receive)
                operation = call.route.operation
                call.check_query()
                response = await call.route.handler(call)
                call.hold_answer(response)
            except GatewayError as error:
                _follow(scope)
                response = self._failed(error, scope)  # no name for it here: its traceback holds this frame
            except asyncio.CancelledError:
                if not self._gateway.draining or FORWARDED in scope:
                    raise
                # The gateway ends, and the request had ``http.drain_timeout``. The server would answer in plain text.
                _follow(scope)
                response = self._failed(OutcomeUnknown(CUT_OFF), scope)
            except Exception as error:  # the last line of defence: logged, and answered without its text
                _follow(scope)
                telemetry.log("http.failed", logging.ERROR, error, operation=operation)
                response = problem_response(internal_problem(_path(scope)), {})
            if self._gateway.leaving:  # whoever keeps the connection would come again
                response.headers["connection"] = "close"
            if call is not None and self._trail is not None:
                await self._record(self._trail, call, response)
            if (said := scope.get(RATED)) is not None:
                response.raw_headers += [pair for pair in said if pair not in response.raw_headers]
            status = response.status_code
            if COUNTED in scope or FORWARDED in scope:
                if WHOLE in scope and type(response) in PLAIN and response.background is None:
                    await send(
                        {"type": WHOLE, "status": status, "headers": response.raw_headers, "body": response.body}
                    )
                else:
                    await response(scope, receive, send)
            else:
                await _answer_at_once(response, scope, receive, send)
            self._count(operation, status, started)
        finally:
            self._running -= 1
            if (client := scope.get(COUNTED)) is not None:
                self._requests.give(client)
            if call is not None:
                call.leave()
            if self._access_log is not None:
                self._access_log.tell(scope, operation, status, clock.monotonic() - started, scope.get(CALLER))
            if (traced := scope.get(TRACED)) is not None:
                _traced(traced, scope["method"], call, status)
            ON_BEHALF.set(ALONE)

    def _failed(self, error: GatewayError, scope: AsgiScope) -> Response:
        problem = self._unknown(error, scope)
        self._refused(problem, scope)
        return _problem(problem, scope)

    def _count(self, operation: str, status: int, started: float) -> None:
        count = self._counts.get((operation, status))
        if count is None:
            count = self._counts[operation, status] = self._gateway.metrics.requests.labels(operation, str(status))
        count.inc()
        seconds = self._seconds.get(operation)
        if seconds is None:
            seconds = self._seconds[operation] = self._gateway.metrics.request_seconds.labels(operation)
        seconds.observe(clock.monotonic() - started)

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
        standing = rates.take(principal.name, clock.monotonic())
        headers = rates.headers(standing)
        scope[RATED] = [(name.encode(), value.encode()) for name, value in headers.items()]
        if not standing.allowed:
            raise ApiProblem(
                "rate_limited", f"{principal.name!r} asks more often than access.rate allows", headers=headers
            )

    def _stranger(self, scope: AsgiScope) -> None:
        """Count the request of somebody whom we do not know. Raises ApiProblem (rate_limited)."""
        rates = self._access.strangers if self._access is not None else None
        if rates is None or STRANGER in scope or not (address := address_of(_address(scope))):
            return
        scope[STRANGER] = True
        standing = rates.take(address, clock.monotonic())
        headers = rates.headers(standing)
        scope[RATED] = [(name.encode(), value.encode()) for name, value in headers.items()]
        if not standing.allowed:
            raise ApiProblem(
                "rate_limited", "more requests without a credential than access.stranger_rate allows", headers=headers
            )

    def _unknown(self, error: GatewayError, scope: AsgiScope) -> GatewayError:
        """What is answered in place of 401 to somebody who comes too often."""
        if isinstance(error, ApiProblem) and error.problem_code == "unauthorized":
            try:
                self._stranger(scope)
            except ApiProblem as limited:
                return limited
        return error

    def _call(self, scope: AsgiScope, receive: Receive) -> Call:
        """Who calls what. Raises ApiProblem."""
        pairs: list[tuple[bytes, bytes]] = scope["headers"]
        headers = dict(pairs)
        trace: Trace | None = scope.get(TRACED)
        if trace is None and b"traceparent" in headers:
            _follow(scope)
        if (length := target_length(scope)) > TARGET_MAX:
            raise ApiProblem("target_too_long", f"path and query have {length:,} bytes, the limit is {TARGET_MAX:,}")
        if len(pairs) > HEADERS_MOST:
            raise ApiProblem("headers_too_large", f"{len(pairs)} headers, the limit is {HEADERS_MOST}")
        if sum([len(name) + len(value) for name, value in pairs]) > HEADERS_MAX:
            raise ApiProblem("headers_too_large", f"more than {HEADERS_MAX} octets of headers")
        principal = (
            scope.get(FORWARDED) or scope.get(SIGNED) or self._doorkeeper.identify(headers, scope.get(CERTIFICATE, ()))
        )
        try:
            route, names = self._router.find(scope["method"], scope.get("raw_path") or scope["path"].encode())
        except ApiProblem:
            scope[CALLER] = principal
            if not principal.name:
                self._stranger(scope)
            self._rate(scope, principal)
            raise
        if route.tag != "documents" and FORWARDED not in scope:  # a link on a page may open a document
            self._doorkeeper.check_site(headers, scope.get(CERTIFICATE, ()))
        client = self._take_share(scope, principal)
        closed = route.tag == "documents" and self._access is not None and self._access.closed
        if closed and not principal.name:
            principal = self._doorkeeper.reader(headers)
        scope[CALLER], scope[OPERATION] = principal, route.operation
        if not principal.name:
            self._stranger(scope)
            if closed:
                raise unauthorized("this needs a credential", scheme="Basic", advice=BASIC_ADVICE)
        self._rate(scope, principal)
        auth.require(principal, route.scope, names)
        return Call(
            scope, receive, headers, route, names, principal, self._gateway, self._http, client,
            self._bridges, self._taps,
            brokers=self.brokers,
            endpoints=self._endpoints,
            pushes=self._pushes,
            replays=self._replays,
            access=self._access,
            trace=trace,
            reloader=self.reloader,
            fronts=self.fronts,
            again=self._caller_of,
        )  # fmt: skip

    def _take_share(self, scope: AsgiScope, principal: Principal) -> ShareHolder:
        """Count the request in its client's share, unless another process has. Raises BudgetExceeded, Overloaded."""
        client = client_of(principal, scope)
        if FORWARDED not in scope:
            requests = self._requests
            if (before := scope.pop(COUNTED, None)) is not None:
                requests.give(before)
            if principal.name and (place := scope.get(CONNECTION)) is not None:
                place.known(client)
            requests.take(client)
            scope[COUNTED] = client
        ON_BEHALF.set(client)
        return client

    async def _caller_of(self, call: Call) -> Principal:
        """Who calls, by the credentials that count now. Raises ApiProblem (unauthorized)."""
        if FORWARDED in call.scope:
            return call.principal
        return await self._doorkeeper.caller(call.headers, call.scope.get(CERTIFICATE, ()))


async def _answer_at_once(response: Response, scope: AsgiScope, receive: Receive, send: Send) -> None:
    """Answer a request that is counted in no share. A caller that does not read the answer is not waited for."""
    _, waiting = eager.begin(response(scope, receive, send))
    if waiting is not None:
        await send({"type": CUT})
        await waiting


def client_of(principal: Principal, scope: AsgiScope) -> ShareHolder:
    """Return whose share of everything a caller uses: the client's; without a credential, the address's."""
    if principal.name:
        return ShareHolder(principal.name, principal.admin, principal is DEVELOPER)
    address = _address(scope)
    return ShareHolder(address_of(address) or address, kind="address")


def _follow(scope: AsgiScope) -> None:
    """Have logs and problems name the caller's trace, where nothing is traced."""
    if TRACED not in scope:
        scope[TRACED] = follow(of_request(scope["headers"]))


def _traced(traced: Trace | Following, method: str, call: Call | None, status: int) -> None:
    """The request is over."""
    if isinstance(traced, Trace):
        traced.end(method, call.route.path if call is not None else "", status)
    else:
        traced.trace_id = ""


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
