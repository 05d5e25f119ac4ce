"""The operations port: ``/livez``, ``/readyz``, ``/metrics``. Never on the public port."""

from __future__ import annotations

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.types import Receive, Scope, Send

from gateway.core import Gateway


class Ops:
    """The application on the operations port."""

    def __init__(self, gateway: Gateway) -> None:
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
            case "/readyz":
                reasons = self._gateway.ready()
                return JSONResponse({"ready": not reasons, "reasons": reasons}, 503 if reasons else 200)
            case "/metrics":
                self._gateway.ready()
                for name, upstream in self._gateway.brokers.items():
                    self._gateway.metrics.unconfirmed.labels(name).set(upstream.status().pending)
                return Response(self._gateway.metrics.render(), media_type=CONTENT_TYPE_LATEST)
            case _:
                return PlainTextResponse("not found\n", 404)
