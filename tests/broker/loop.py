"""The embedded broker on an event loop whose callbacks are watched: how much CPU the longest of them took.

A :class:`Driver` is a client without a socket. Its requests are carried out as those of a real one are, in callbacks of
the loop, until nothing is left to do; what is built before that, with :meth:`Watched.build`, is not watched.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import math
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

from gateway.amqp.operations import Operation
from gateway.broker.served import Served, ServedStream
from gateway.broker.server import EmbeddedBroker
from gateway.limits import BrokerLimits
from gateway.session import Version
from gateway.v091.version import V0_9_1
from tests.broker.clients import Client
from tests.broker.raw import served


class Watched:
    """A broker, and the longest callback."""

    def __init__(self, server: EmbeddedBroker) -> None:
        self.server = server
        self.core = server.broker
        self.longest = 0.0
        """Seconds of CPU of the longest callback since :meth:`begin`."""
        self.total = 0.0
        """Seconds of CPU of all of them."""
        self.what = ""
        """Which it was."""

    def begin(self) -> None:
        """Watch from now on."""
        self.longest = self.total = 0.0
        self.what = ""

    def owns(self, callback: Callable[..., Any]) -> bool:
        """Whether a callback of the loop is the broker's work."""
        owner = getattr(callback, "__self__", None)
        if isinstance(owner, (EmbeddedBroker, Served, ServedStream, Driver)):
            return True
        return isinstance(getattr(owner, "_protocol", None), ServedStream)

    def ran(self, callback: Callable[..., Any], seconds: float) -> None:
        """A callback of the broker took so long."""
        self.total += seconds
        if seconds > self.longest:
            self.longest, self.what = seconds, getattr(callback, "__qualname__", repr(callback))

    def client(self, version: Version = V0_9_1) -> Driver:
        """A client."""
        return Driver(self, version)

    def build(self, client: Driver, *operations: Operation) -> list[Operation]:
        """Make requests that are not watched, all at once."""
        turn = getattr(self.core, "turn", None)
        if turn is not None:
            turn.until = math.inf
        told = client(*operations, now=self.server.loop.time())
        while self.core.next_timeout() == 0.0:
            self.core.handle_timeout(self.server.loop.time())
        return told

    async def idle(self) -> None:
        """Wait until nothing is left over."""
        self.server.watch_timeouts()
        async with asyncio.timeout(120):
            while self.core.next_timeout() == 0.0:
                await asyncio.sleep(0.001)


class Driver(Client):
    """A client whose requests are carried out on the loop."""

    def __init__(self, watched: Watched, version: Version) -> None:
        self._watched = watched
        super().__init__(watched.core, version)

    def _begin(self) -> None:
        turn = getattr(self.broker, "turn", None)
        if turn is not None:
            turn.begin()

    def _step(self, operations: tuple[Operation, ...], done: asyncio.Future[None]) -> None:
        self._begin()
        self.now = self._watched.server.loop.time()
        if operations:
            self(*operations)
        elif self.connection.paused or self.connection.parked:
            self.broker.resume(self.connection, self.now)
            self.broker.flushed(self.connection)
        elif self.connection.backlog:
            self(*())
        self._watched.server.watch_timeouts()
        if not done.done():
            done.set_result(None)

    def _leave(self, done: asyncio.Future[None]) -> None:
        self._begin()
        self.broker.disconnect(self.connection, self._watched.server.loop.time())
        self._watched.server.watch_timeouts()
        done.set_result(None)

    def __call__(self, *operations: Operation, now: float | None = None) -> list[Operation]:
        told = super().__call__(*operations, now=now)
        self.heard = [*getattr(self, "heard", []), *told][-100:]
        return told

    async def ask(self, *operations: Operation) -> list[Operation]:
        """Make requests; wait until they are carried out. What the client was told last."""
        loop, connection = self._watched.server.loop, self.connection
        self.heard: list[Operation] = []
        step: tuple[Operation, ...] = operations
        async with asyncio.timeout(120):
            while True:
                done = loop.create_future()
                loop.call_soon(self._step, step, done)
                await done
                step = ()
                if connection.number not in self.broker.connections:
                    break
                await self._watched.idle()
                if not (connection.backlog or connection.paused or connection.parked or getattr(connection, "busy", 0)):
                    break
        return [*self.heard, *self.take()]

    async def leave(self) -> None:
        """The connection ends."""
        done = self._watched.server.loop.create_future()
        self._watched.server.loop.call_soon(self._leave, done)
        await done
        await self._watched.idle()


@contextlib.asynccontextmanager
async def watched(limits: BrokerLimits | None = None, **settings: Any) -> AsyncIterator[Watched]:
    """A broker whose callbacks are watched. Collections of garbage wait: the service has few, and they are not the work
    of any callback."""
    run = asyncio.events.Handle._run
    async with served(broker_limits=limits, **settings) as server:
        found = Watched(server)

        def watching(handle: Any) -> None:
            callback = handle._callback
            if not found.owns(callback):
                run(handle)
                return
            began = time.thread_time()
            run(handle)
            found.ran(callback, time.thread_time() - began)

        asyncio.events.Handle._run = watching  # type: ignore[method-assign]
        gc.collect()
        gc.disable()
        try:
            yield found
        finally:
            asyncio.events.Handle._run = run  # type: ignore[method-assign]
            gc.enable()
