"""Connections of a port with TLS, counted before their handshake.

A server of the event loop tells a protocol of its connection once the handshake is over, so that any number of
connections could be in their handshakes. Here each gets its place first (:mod:`gateway.api.http.connections`).
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from gateway.api.http.connections import Connections
from gateway.api.http.guard import GuardedProtocol
from gateway.runtime.clock import clock
from gateway.runtime.tasks import Tasks

PAUSE: Final = 0.1
"""How long nothing is accepted where the system gives no more, in seconds."""


@dataclass(slots=True)
class _Handshake:
    """A connection until its handshake is over."""

    task: asyncio.Task[None] | None = None
    is_idle: bool = True

    def drop(self) -> None:
        """End at once."""
        if self.task is not None:
            self.task.cancel()

    def end(self) -> None:
        """End at once: no answer is due."""
        self.drop()


class TlsListener:
    """Takes the connections of one socket."""

    def __init__(
        self,
        listener: socket.socket,
        context: ssl.SSLContext,
        make: Callable[[], GuardedProtocol],
        connections: Connections,
        handshake_timeout: float,
        backlog: int,
    ) -> None:
        """``make``: the protocol of a connection; ``handshake_timeout`` in seconds."""
        self._listener = listener
        self._context = context
        self._make = make
        self._connections = connections
        self._handshake_timeout = handshake_timeout
        self._handshakes = Tasks("handshake")
        listener.setblocking(False)
        listener.listen(backlog)
        self._task = asyncio.get_running_loop().create_task(self._accept(), name="accept")

    def close(self) -> None:
        """Take no more, and end the handshakes that are under way."""
        self._task.cancel()
        self._handshakes.cancel()

    async def wait_closed(self) -> None:
        """Wait until that is done."""
        await asyncio.gather(self._task, return_exceptions=True)
        await self._handshakes.join()

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, address = await loop.sock_accept(self._listener)
            except OSError:  # it was reset, or there are no more files
                await clock.sleep(PAUSE)
                continue
            handshake = _Handshake()
            place = self._connections.admit(handshake, address[0])
            if place is None:
                connection.close()
                continue
            protocol = self._make()
            protocol.place = place
            handshake.task = self._handshakes.start(self._begin(connection, protocol))

    async def _begin(self, connection: socket.socket, protocol: GuardedProtocol) -> None:
        loop, place = asyncio.get_running_loop(), protocol.place
        try:
            with suppress(OSError, TimeoutError):
                await loop.connect_accepted_socket(
                    lambda: protocol,
                    connection,
                    ssl=self._context,
                    ssl_handshake_timeout=self._handshake_timeout,
                )
        finally:
            if place is not None and not protocol.is_open:
                self._connections.leave(place)
                connection.close()
