"""Tasks that nobody awaits: kept from the garbage collector, ended together, and heard of if they fail."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from gateway.errors import GatewayError


class Tasks:
    """The tasks of one owner. A :class:`~gateway.errors.GatewayError` is its callers' business, who were told; anything
    else is a fault of ours and goes to the loop's exception handler."""

    def __init__(self, owner: str) -> None:
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self._running: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run it."""
        task = self._loop.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._ended)
        return task

    def cancel(self) -> None:
        """End all that run. One that has not begun yet never does."""
        for task in self._running:
            task.cancel()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, GatewayError):
            self._loop.call_exception_handler({"message": self._owner, "exception": error})
