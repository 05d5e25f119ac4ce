"""The embedded broker on a thread of its own, so that clients that block can use it."""

from __future__ import annotations

import asyncio
import threading

from gateway.broker.server import EmbeddedBroker
from gateway.config import EmbeddedSettings
from gateway.versions import VERSION_NAMES


class Embedded:
    """guest/guest, virtual host ``/``; 0-8, 0-9, 0-9-1 and 0-10 on ``port``."""

    virtual_host = "/"
    versions = VERSION_NAMES

    def __init__(self) -> None:
        self.port = 0
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, name="embedded broker")
        self._thread.start()
        self._started.wait()
        if not self.port:
            self._thread.join()
            raise RuntimeError("the embedded broker did not start; its error is printed above")

    def url(self, version: str) -> str:
        """The broker's URL."""
        return f"amqp://guest:guest@127.0.0.1:{self.port}/%2F?version={version}"

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
        broker = EmbeddedBroker(EmbeddedSettings(enabled=True, port=0))
        await broker.start()
        self.port = broker.port
        self._started.set()
        await self._stop.wait()
        await broker.stop()
