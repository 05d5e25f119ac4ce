"""The listener of the embedded broker: one port, all versions, told apart by the protocol header.

A :class:`Served` connection waits for the 8 octets, makes the session that answers them and hands on what it
receives to the :class:`~gateway.broker.broker.Broker`. What is queued for a client is written once per turn of the
loop. A client that does not read gets no more deliveries once the transport and the session hold too much for it,
and is not read from either when even the answers to its own requests pile up; its neighbours notice nothing.

There is no task per connection and none per message.
"""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import replace
from typing import Final

from gateway import __version__
from gateway.broker.broker import Broker, Connection
from gateway.broker.refusals import reply_text
from gateway.broker.vhost import BrokerLimits
from gateway.config import EmbeddedSettings
from gateway.limits import DEFAULT_LIMITS, Limits
from gateway.operations import Operation
from gateway.session import ServerConfig, Session, Version
from gateway.telemetry import log
from gateway.transports.stream import Stream
from gateway.values import Table
from gateway.versions import FALLBACK_HEADER, HEADER_SIZE, may_be_header, server_session, version_of_header

PRODUCT: Final = "AMQP Gateway embedded broker"
CLASSIC_PRODUCT: Final = f"{PRODUCT} (understands clients of RabbitMQ and Qpid)"
"""What 0-8 and 0-9-1 are told: Qpid's JMS client asks for exchanges and bindings only where it reads "qpid"."""
PROPERTIES: Final[Table] = {
    "product": PRODUCT,
    "version": __version__,
    "platform": "Python",
    "information": "In memory, for development and tests: nothing outlives this process.",
    "durable_storage": False,
}
"""What every client is told about the broker when it connects (server-properties)."""

_NEVER: Final = float("inf")


class ServedStream(Stream):
    """A stream whose reading can be paused."""

    __slots__ = ("reading",)

    def __init__(self, user: Served) -> None:
        super().__init__(user)
        self.reading = True

    def pause_reading(self) -> None:
        """Take nothing more from the client."""
        if self.reading and self._transport is not None and not self._transport.is_closing():
            self.reading = False
            self._transport.pause_reading()

    def last_words(self, octets: bytes) -> None:
        """Write something that comes from no session, and end."""
        if self._transport is not None:
            self._transport.write(octets)
        self.close()

    def resume_reading(self) -> None:
        """Go on."""
        if not self.reading and self._transport is not None and not self._transport.is_closing():
            self.reading = True
            self._transport.resume_reading()


class Served:
    """One client's connection, from its first octet to the end of its stream."""

    __slots__ = (
        "_header", "_server", "_timer", "_timer_at", "connection", "session", "stream",
    )  # fmt: skip

    def __init__(self, server: EmbeddedBroker) -> None:
        self._server = server
        self._header = bytearray()
        self.session: Session | None = None
        self.connection: Connection | None = None
        self.stream = ServedStream(self)
        loop = server.loop
        self._timer_at = loop.time() + server.limits.handshake_timeout
        self._timer: asyncio.TimerHandle | None = loop.call_at(self._timer_at, self._timeout)

    # ------------------------------------------------------------------------------ called by the stream

    def data_received(self, data: bytes) -> None:
        """Octets of the client."""
        session = self.session
        if session is None:
            self._header += data
            session = self._choose()
            if session is None:
                return
            data = bytes(self._header)
            self._header.clear()
        now = self._server.loop.time()
        self._handle(session.receive_data(data, now), now)

    def stream_lost(self, error: Exception | None) -> None:
        """The client is gone."""
        now = self._server.loop.time()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.session is not None and self.connection is not None:
            self._server.broker.receive(self.connection, self.session.receive_eof(now), now)
            self._server.broker.disconnect(self.connection, now)
        self._server.ended(self)

    def data_to_send(self) -> list[bytes]:
        """Everything queued for the client."""
        connection, session = self.connection, self.session
        if connection is None or session is None:
            return []
        self._server.broker.flushed(connection)
        buffers = session.data_to_send()
        if connection.paused or connection.backlog:
            # Whether the client takes what it is given shows when it was given to the transport.
            self._server.loop.call_soon(self._written)
        return buffers

    def writable_again(self) -> None:
        """The client has read what it was given."""
        self._written()

    # ----------------------------------------------------------------------------------------- the rest

    def _choose(self) -> Session | None:
        """The session for the protocol header; None: not yet, or never."""
        if not may_be_header(self._header):
            self._refuse()
            return None
        if len(self._header) < HEADER_SIZE:
            return None
        version = version_of_header(self._header)
        assert version is not None  # may_be_header
        self.session = server_session(version, self._server.session_configs[version])
        self.connection = self._server.broker.connect(self.session, self.stream.wake)
        return self.session

    def _refuse(self) -> None:
        """What came first is no header of ours: answer with the best one and hang up (0-9-1 section 4.2.2)."""
        self.stream.last_words(FALLBACK_HEADER)

    def _handle(self, operations: list[Operation], now: float) -> None:
        session, connection = self.session, self.connection
        assert session is not None
        assert connection is not None
        if operations:
            self._server.broker.receive(connection, operations, now)
        self.stream.wake()
        if connection.backlog:
            self.stream.pause_reading()
        if session.closed:
            self.stream.close()
            self._set_timer(now + self._server.limits.close_timeout)
            return
        at = session.next_timeout()
        if at is not None and at < self._timer_at:
            self._set_timer(at)
        self._server.watch_timeouts()

    def _written(self) -> None:
        connection = self.connection
        if connection is None or not self.stream.writable:
            return
        if connection.paused or connection.backlog:
            self._server.broker.resume(connection, self._server.loop.time())
            self._server.watch_timeouts()
        if not connection.backlog:
            self.stream.resume_reading()

    def _set_timer(self, at: float | None) -> None:
        """One that fires too early does no harm: what only moves back, as heartbeats do, is left until then."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if at is None else self._server.loop.call_at(at, self._timeout)
        self._timer_at = _NEVER if at is None else at

    def _timeout(self) -> None:
        self._timer = None
        self._timer_at = _NEVER
        session = self.session
        if session is None or session.closed:
            # No header in time; or it does not read our last words, and cannot hold the stream open by that.
            self.stream.abort()
            return
        now = self._server.loop.time()
        self._handle(session.handle_timeout(now), now)
        if not session.closed:
            self._set_timer(session.next_timeout())


class EmbeddedBroker:
    """The embedded broker on a socket.

    Args:
        settings: where to listen, who may log in, how much memory messages may take.
        limits: of each session; ``handshake_timeout`` holds from the first packet on.
        broker_limits: of the broker as a whole.
    """

    def __init__(
        self,
        settings: EmbeddedSettings,
        limits: Limits = DEFAULT_LIMITS,
        broker_limits: BrokerLimits | None = None,
    ) -> None:
        self.settings = settings
        self.limits = limits
        self.loop: asyncio.AbstractEventLoop
        self.broker = Broker(settings, random_octets=os.urandom, wall_clock=time.time, limits=broker_limits)
        config = ServerConfig(
            authenticate=self.broker.authenticate,
            open_virtual_host=self.broker.open_virtual_host,
            properties=PROPERTIES,
            limits=limits,
            random_octets=os.urandom,
            wall_clock=time.time,
        )
        classic = replace(config, properties={**PROPERTIES, "product": CLASSIC_PRODUCT})
        self.session_configs = {Version.V0_8: classic, Version.V0_9_1: classic, Version.V0_10: config}
        self._listener: asyncio.Server | None = None
        self._served: set[Served] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = _NEVER
        self._empty = asyncio.Event()
        self._empty.set()

    @property
    def port(self) -> int:
        """The port that it listens on."""
        assert self._listener is not None, "start() it first"
        return int(self._listener.sockets[0].getsockname()[1])

    async def start(self) -> None:
        """Listen. Raises ``OSError`` if the address is taken or not ours."""
        self.loop = asyncio.get_running_loop()
        self._listener = await self.loop.create_server(
            self._accept, self.settings.host, self.settings.port, backlog=1_024
        )
        log("embedded.listening", host=self.settings.host, port=self.port)

    async def stop(self) -> None:
        """Tell every client (connection.close 320), wait for their answers as long as a close may take, and end."""
        if self._listener is None:
            return
        self._listener.close()
        self.broker.close_all(320, reply_text(320, "the embedded broker stops"), self.loop.time())
        for served in list(self._served):
            served.stream.flush()
            if served.session is None:
                served.stream.abort()
        try:
            await asyncio.wait_for(self._empty.wait(), self.limits.close_timeout)
        except TimeoutError:
            for served in list(self._served):
                served.stream.abort()
            await self._empty.wait()
        if self._timer is not None:
            self._timer.cancel()
        await self._listener.wait_closed()
        self._listener = None

    def ended(self, served: Served) -> None:
        """A connection is over."""
        self._served.discard(served)
        if not self._served:
            self._empty.set()
        self.watch_timeouts()

    def watch_timeouts(self) -> None:
        """Set the timer for what expires next in the broker, if that is sooner than it was."""
        at = self.broker.next_timeout()
        if at is not None and at < self._timer_at:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self.loop.call_at(at, self._timeout)
            self._timer_at = at

    def _timeout(self) -> None:
        self._timer = None
        self._timer_at = _NEVER
        self.broker.handle_timeout(self.loop.time())
        self.watch_timeouts()

    def _accept(self) -> Stream:
        served = Served(self)
        if len(self._served) >= self.broker.limits.connections:
            served.stream.abort()
        self._served.add(served)
        self._empty.clear()
        return served.stream
