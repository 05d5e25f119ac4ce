"""The operations port: ``/startupz``, ``/livez``, ``/readyz``, ``/metrics``. Never on the public port.

It is open before anything else, so that whoever watches the process can tell one that starts from one that hangs.
"""

from __future__ import annotations

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.types import Receive, Scope, Send

from gateway.core import Gateway


class Ops:
    """The application on the operations port."""

    def __init__(self, gateway: Gateway | None = None) -> None:
        """``gateway`` None: it is about to start."""
        self._gateway = gateway
        self.waits_for = "its turn"
        """What the start is at."""

    def begin(self, gateway: Gateway) -> None:
        """All has started."""
        self._gateway = gateway

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request (ASGI)."""
        response = (
            self._answer(scope["method"], scope["path"]) if scope["type"] == "http" else Response(status_code=404)
        )
        await response(scope, receive, send)

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
        if path == "/readyz":
            return JSONResponse({"ready": not reasons, "reasons": reasons}, 503 if reasons else 200)
        for name, upstream in gateway.brokers.items():
            gateway.metrics.unconfirmed.labels(name).set(upstream.status().pending)
        return Response(gateway.metrics.render(), media_type=CONTENT_TYPE_LATEST)
