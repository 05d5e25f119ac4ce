"""Connections that are kept open for the next request, and how many there are in all.

A connection counts from before its host is resolved until it is closed. A request that finds no place fails at once
(:class:`~gateway.errors.Overloaded`) instead of waiting in a line without end; only idle connections make room.
"""

from __future__ import annotations

import asyncio
from collections import deque

from gateway.errors import Overloaded
from gateway.outbound.connection import HttpConnection
from gateway.outbound.limits import OutboundLimits
from gateway.runtime.clock import clock


class Pool:
    """The connections of one transport, by what they may be used for."""

    def __init__(self, limits: OutboundLimits) -> None:
        self._limits = limits
        self._idle: dict[HttpConnection, None] = {}
        """The one that has been idle longest comes first."""
        self._by_key: dict[object, deque[HttpConnection]] = {}
        """The same; the one that was used last comes last."""
        self._open: dict[object, int] = {}
        self._sweeper: asyncio.TimerHandle | None = None
        self.open = 0
        """Connections that are open or being opened."""
        self.closed = False
        self._since = 0.0
        """Connections that were opened before get no further request."""

    @property
    def idle(self) -> int:
        """Connections kept open."""
        return len(self._idle)

    def take(self, key: object, now: float) -> HttpConnection | None:
        """A connection that is open and fit for another request."""
        waiting = self._by_key.get(key)
        while waiting:
            connection = waiting.pop()
            del self._idle[connection]
            if not waiting:
                del self._by_key[key]
            if now - connection.opened < self._limits.lifetime and not connection.is_stale():
                return connection
            connection.abort()
        return None

    def reserve(self, key: object, name: str) -> None:
        """A place for a connection that is going to be opened.

        Raises:
            Overloaded: there is none.
        """
        here = self._open.get(key, 0)
        if here >= self._limits.connections_per_site:
            raise Overloaded(f"{name}: {here} requests are under way there, the limit is connections_per_site")
        if self.open >= self._limits.connections:
            if not self._idle:
                raise Overloaded(f"{name}: {self.open} requests are under way, the limit is connections")
            self._evict()
        self.open += 1
        self._open[key] = here + 1

    def release(self, key: object) -> None:
        """The connection is closed, or was never opened."""
        self.open -= 1
        here = self._open[key] - 1
        if here:
            self._open[key] = here
        else:
            del self._open[key]

    def keep(self, connection: HttpConnection) -> None:
        """A connection whose request is answered."""
        limits = self._limits
        loop = asyncio.get_running_loop()
        now = clock.monotonic()
        here = self._by_key.get(connection.key)
        if (
            self.closed
            or connection.opened < self._since
            or (here is not None and len(here) >= limits.idle_per_site)
            or not limits.idle_per_site
            or now - connection.opened >= limits.lifetime
        ):
            connection.abort()
            return
        if here is None:
            here = self._by_key[connection.key] = deque()
        here.append(connection)
        connection.idle_since = now
        self._idle[connection] = None
        if len(self._idle) > limits.idle:
            self._evict()
        if self._sweeper is None:
            self._sweeper = loop.call_at(now + limits.idle_timeout, self._sweep)

    def gone(self, connection: HttpConnection) -> None:
        """A connection was closed, by whomever."""
        self._forget(connection)
        if connection.counted:
            self.release(connection.key)

    def renew(self, now: float) -> None:
        """Have no connection go on that was opened before; what is in use ends with its request."""
        self._since = now
        while self._idle:
            self._evict()

    def close(self) -> None:
        """End what is idle; what is in use ends with its request."""
        self.closed = True
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        while self._idle:
            self._evict()

    def _evict(self) -> None:
        """Close the connection that has been idle longest. Its place is free at once, though it is closed a moment
        later."""
        oldest = next(iter(self._idle))
        self._forget(oldest)
        oldest.counted = False
        self.release(oldest.key)
        oldest.abort()

    def _forget(self, connection: HttpConnection) -> None:
        if connection in self._idle:
            del self._idle[connection]
            here = self._by_key[connection.key]
            here.remove(connection)
            if not here:
                del self._by_key[connection.key]

    def _sweep(self) -> None:
        """End what has been idle too long, and come back when the next one will have been."""
        self._sweeper = None
        loop = asyncio.get_running_loop()
        limit = clock.monotonic() - self._limits.idle_timeout
        while self._idle:
            oldest = next(iter(self._idle))
            if oldest.idle_since > limit:
                self._sweeper = loop.call_at(oldest.idle_since + self._limits.idle_timeout, self._sweep)
                return
            self._evict()
