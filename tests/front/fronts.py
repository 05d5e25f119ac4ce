"""A front on a thread of its own, so that clients that block can use it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from gateway.config import BrokerSettings, FrontSettings, FrontUser
from gateway.front.server import Front

T = TypeVar("T")
ADMIN = FrontUser(name="guest", password="guest")
LIMITED = FrontUser(name="limited", password="secret", scopes=("publish:upstream/amq.default", "consume:upstream/mine"))


class RunningFront:
    """A front to one broker; ``port`` is where clients come."""

    def __init__(self, url: str, **settings: Any) -> None:
        self.port = 0
        self.front: Front
        self._settings = FrontSettings(
            **{"port": 0, "broker": "upstream", "users": (ADMIN,), "host": "127.0.0.1", **settings}
        )
        self._broker = BrokerSettings(url=url, reconnect_min=0.1, reconnect_max=0.5)
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, name="front")
        self._thread.start()
        self._started.wait()
        if not self.port:
            self._thread.join()
            raise RuntimeError("the front did not start; its error is printed above")

    def call(self, ask: Callable[[Front], T]) -> T:
        """Ask the front something, on its loop."""

        async def asked() -> T:
            return ask(self.front)

        return asyncio.run_coroutine_threadsafe(asked(), self._loop).result(10)

    def close(self) -> None:
        """Stop it."""
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                runner.run(self._serve())
        finally:
            self._started.set()

    async def _serve(self) -> None:
        self.front = Front("test", self._settings, {"upstream": self._broker})
        await self.front.start()
        self.port = self.front.port
        self._started.set()
        await self._stop.wait()
        await self.front.stop()
