"""The access log: a line for a share of the requests (``http.access_log``), and for each that failed."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any, Final

from gateway.observing.telemetry import log
from gateway.runtime.clock import clock
from gateway.runtime.ids import ids

if TYPE_CHECKING:
    from starlette.types import Scope

    from gateway.access.scopes import Principal

LINES_MAX: Final = 200
"""Most lines in a second; the next line that is written says how many there were beyond."""
PATH_MAX: Final = 300
"""Longest path in a line, in characters."""
FAILED_FROM: Final = 500


class AccessLog:
    """Writes it."""

    def __init__(self, share: float, random: Random | None = None) -> None:
        """``share`` of the requests, from 0 to 1."""
        self._share = share
        self._random = random if random is not None else ids.generator()
        self._second = 0
        self._lines = 0
        self._left_out = 0

    def tell(self, scope: Scope, operation: str, status: int, seconds: float, principal: Principal | None) -> None:
        """A request is over. Its query is not written: it may hold what is nobody's business."""
        if status < FAILED_FROM and self._share < 1.0 and self._random.random() >= self._share:
            return
        second = int(clock.monotonic())
        if second != self._second:
            self._second, self._lines = second, 0
        if self._lines >= LINES_MAX:
            self._left_out += 1
            return
        self._lines += 1
        left_out, self._left_out = self._left_out, 0
        more: dict[str, Any] = {}
        if principal is not None and principal.name:
            more["client"] = principal.name
        if left_out:
            more["left_out"] = left_out
        client = scope.get("client")
        log(
            "http.request",
            method=scope["method"],
            path=(scope.get("raw_path") or b"").decode("latin-1")[:PATH_MAX],
            operation=operation,
            status=status,
            seconds=round(seconds, 6),
            connection=f"{client[0]}:{client[1]}" if client else "",
            **more,
        )
