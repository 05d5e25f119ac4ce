"""The operations port: ``/startupz``, ``/livez``, ``/readyz``, ``/metrics``. Never on the public port.

It is open before anything else, so that the supervisor of the process can tell one that starts from one that hangs.
"""

from __future__ import annotations

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.types import Receive, Scope, Send

from gateway.api.http.browsers import Sites
from gateway.api.http.heads import TARGET_MAX, TOO_LONG, target_length
from gateway.api.http.problems import PROBLEMS, ApiProblem
from gateway.core import Gateway
from gateway.runtime.threads import threads


class Ops:
    """The application on the operations port."""

    def __init__(self, gateway: Gateway | None = None, sites: Sites | None = None, *, is_local: bool = False) -> None:
        """Args:
        gateway: None while it is about to start.
        sites: which hosts and sites requests may name; None: any.
        is_local: the port listens on loopback only, so its callers name an allowed host.
        """
        self._gateway = gateway
        self._sites = sites
        self._is_local = is_local
        self.waits_for = "its turn"
        """What the start is at."""

    def begin(self, gateway: Gateway) -> None:
        """All has started."""
        self._gateway = gateway

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request (ASGI)."""
        response: Response
        if scope["type"] != "http":
            response = Response(status_code=404)
        elif target_length(scope) > TARGET_MAX:
            response = PlainTextResponse(f"{TOO_LONG.text}\n", TOO_LONG.status)
        elif (refused := self._refused(dict(scope["headers"]))) is not None:
            response = refused
        elif scope["path"] == "/metrics" and scope["method"] in ("GET", "HEAD") and self._gateway is not None:
            self._gateway.measure()
            # In a thread: a page of thousands of series takes some tens of milliseconds, in which requests go on.
            page = await threads.run(self._gateway.metrics.render)
            response = Response(page, media_type=CONTENT_TYPE_LATEST)
        else:
            response = self._answer(scope["method"], scope["path"])
        await response(scope, receive, send)

    def _refused(self, headers: dict[bytes, bytes]) -> Response | None:
        """The answer to a request that a web page has a browser send; None: no page has."""
        if self._sites is None:
            return None
        try:
            if self._is_local:
                self._sites.check_host(headers.get(b"host", b""))
            self._sites.check_site(headers)
        except ApiProblem as problem:
            return PlainTextResponse(f"{problem}\n", PROBLEMS[problem.problem_code].status)
        return None

    def _answer(self, method: str, path: str) -> Response:
        if method not in ("GET", "HEAD"):
            return PlainTextResponse("method not allowed\n", 405, {"allow": "GET"})
        match path:
            case "/livez":  # the event loop turns, or this would not be answered
                return PlainTextResponse("ok\n")
            case "/startupz" | "/readyz" | "/metrics":
                return self._starting(path) if self._gateway is None else self._started(path, self._gateway)
            case _:
                return PlainTextResponse("not found\n", 404)

    def _starting(self, path: str) -> Response:
        reason = f"starting: waits for {self.waits_for}"
        if path == "/metrics":
            return PlainTextResponse(f"{reason}\n", 503)
        return JSONResponse({path[1:-1].replace("startup", "started"): False, "reasons": [reason]}, 503)

    def _started(self, path: str, gateway: Gateway) -> Response:
        if path == "/startupz":  # the ledger's tables were looked at, and fit
            return JSONResponse({"started": True, "reasons": []})
        reasons = gateway.ready()
        return JSONResponse({"ready": not reasons, "reasons": reasons}, 503 if reasons else 200)
