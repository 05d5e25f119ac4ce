"""What stands in a bridge's way, by where it is: source, target, dead-letter place, ledger.

Each part of a bridge sets and clears its own; the bridge is in state ``error`` as long as one is set. A line is
logged for each that begins or ends, at most one a second for each place.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from gateway.observing.telemetry import log
from gateway.runtime.clock import clock

LOG_EVERY: Final = 1.0
"""Seconds between two lines of one place."""


class Faults:
    """What is wrong at present."""

    def __init__(self, bridge: str, on_change: Callable[[], None]) -> None:
        self.bridge = bridge
        self.last = ""
        """What was wrong last."""
        self._now: dict[str, str] = {}
        self._on_change = on_change
        self._logged: dict[str, float] = {}
        self._loop = asyncio.get_running_loop()

    def __bool__(self) -> bool:
        return bool(self._now)

    def __contains__(self, where: str) -> bool:
        return where in self._now

    @property
    def reason(self) -> str:
        """All of it, as one sentence."""
        return "; ".join(f"{where}: {text}" for where, text in self._now.items())

    def set(self, where: str, text: str) -> None:
        """Something stands in the way."""
        text = text[:500]
        if self._now.get(where) == text:
            return
        new = where not in self._now
        self._now[where] = text
        self.last = f"{where}: {text}"
        if self._may_log(where) or new:
            log("bridge.fault", logging.WARNING, bridge=self.bridge, where=where, reason=text)
        self._on_change()

    def clear(self, where: str) -> None:
        """It does no more."""
        if self._now.pop(where, None) is not None:
            log("bridge.fault_over", bridge=self.bridge, where=where)
            self._on_change()

    def clear_all(self) -> None:
        """The bridge does not run any more."""
        for where in list(self._now):
            self.clear(where)

    def _may_log(self, where: str) -> bool:
        now = clock.monotonic()
        if now - self._logged.get(where, -LOG_EVERY) < LOG_EVERY:
            return False
        self._logged[where] = now
        return True
