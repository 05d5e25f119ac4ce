"""The processes of the gateway in a world: started, stopped, killed, and started again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from gateway.app import App, running
from gateway.errors import GatewayError
from tests.simulation.surroundings.loop import Node
from tests.simulation.surroundings.seams import Seams

PORT: Final = 8_000
"""Of the HTTP API of the first process."""
PORTS: Final = 10
"""So many ports has each process."""
AGAIN: Final = 0.3
"""Pause before a process that could not start is started again, in seconds."""
STOP_WITHIN: Final = 60.0
"""How long a process may take to stop, in seconds."""


class GatewayProcess:
    """One process, which has the same name and ports each time it is started."""

    def __init__(
        self, number: int, seams: Seams, configure: Callable[[GatewayProcess], Any], note: Callable[..., None]
    ) -> None:
        """``configure`` reads the configuration."""
        self.name = f"gateway{number + 1}" if number else "gateway"
        self.port = PORT + PORTS * number
        self.commits = 0
        """How often it was about to commit since the work has begun."""
        self.app: App | None = None
        """None: it does not run."""
        self.is_dying = False
        """It is killed in this turn of the loop: it cannot end in good order any more."""
        self.node = Node(self.name)
        self._seams = seams
        self._configure = configure
        self._note = note
        self._stop = asyncio.Event()
        self._serving: asyncio.Task[None]

    async def start(self) -> None:
        """Start it, again and again until it runs."""
        while True:
            try:
                await self._try_to_start()
                return
            except GatewayError as error:  # the ledger fails, for example: start again
                self._note(self.name, "not started:", error)
                self._vanish()
            await asyncio.sleep(AGAIN)

    async def _try_to_start(self) -> None:
        loop = self._seams.loop
        self.node = node = Node(self.name)
        self._stop = stop = asyncio.Event()
        up: asyncio.Future[App] = loop.create_future()

        def read() -> Any:
            return self._configure(self)

        async def serve() -> None:
            try:
                async with running(read(), migrate=False, read=read) as app:
                    up.set_result(app)
                    await stop.wait()
            except Exception as error:
                if up.done():
                    raise
                up.set_exception(error)

        self._serving = loop.start(node, serve(), "serve")
        self.app = await up
        self._note(self.name, "up")

    async def stop(self) -> str:
        """Stop it in good order. Returns what went wrong, if anything did."""
        self.app = None
        self._stop.set()
        await asyncio.wait([self._serving], timeout=STOP_WITHIN)
        if not self._serving.done():
            return f"the gateway does not stop: {', '.join(task.get_name() for task in self.node.tasks)}"
        error = self._serving.exception()
        return "" if error is None else f"the gateway ended with {error!r}"

    def kill(self) -> None:
        """End it between two callbacks."""
        self.app, self.is_dying = None, False
        self._vanish()

    def _vanish(self) -> None:
        self._seams.loop.kill(self.node)
        self._seams.network.gone(self.node)
        self._seams.ledgers.let_go(self.node)
