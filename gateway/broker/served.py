"""A port that AMQP clients come to, and their connections: the embedded broker's, and those of fronts.

What stands behind the port is a :class:`ClientServer`, and what a client has there is a :class:`ClientConnection`.

What clients can do to each other, and what stands against it:

===========================  ===============================================================================
comes in crowds              connections are counted per port and per remote address: :class:`Listener`
guesses passwords            is answered late: :mod:`gateway.broker.logins`
says nothing, or too slowly  one deadline from the first packet to an open connection, TLS included
sends as fast as it can      its octets are worked on in slices, for one ``turn``; then its neighbours have theirs
does not read                gets no deliveries above ``output_high_water``, is not read from above ``input_stop``
stays so, or stops midway    is cut off after ``stuck_timeout``: :meth:`Served.is_stuck`
===========================  ===============================================================================
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Iterable, Mapping, Sized
from dataclasses import replace
from typing import Final, Protocol, cast

from gateway.amqp.operations import Close, Operation
from gateway.broker.logins import Logins, client_of, is_local
from gateway.broker.queues import Memory
from gateway.broker.refusals import reply_text
from gateway.broker.turns import Turn
from gateway.limits import BrokerLimits, Limits
from gateway.runtime.clock import clock
from gateway.session import PendingLogin, ServerConfig, Session, Version
from gateway.transports.stream import Stream
from gateway.transports.tls import common_name
from gateway.versions import FALLBACK_HEADER, HEADER_SIZE, may_be_header, server_session, version_of_header

SEND_BUFFER: Final = 1 << 18
"""Octets that the system may hold for a client. Left alone it would hold megabytes, and tell only when a third of them
is gone that a slow client reads at all."""
SLICE: Final = 16_384
"""Octets of a client that are worked on between two looks at the clock."""
NEVER: Final = float("inf")
"""A time that does not come."""


class ClientConnection(Protocol):
    """What a client has behind the port. Times are of the monotonic clock."""

    open: bool
    """The client has logged in, and its virtual host is open."""
    paused: bool
    """The client does not read what was written to it."""

    @property
    def memory(self) -> Memory:
        """What counts its unfinished messages."""

    @property
    def backlog(self) -> Sized:
        """Requests that wait."""

    @property
    def may_go_on(self) -> bool:
        """There are requests that only wait for the next turn."""

    @property
    def is_connected(self) -> bool:
        """It was not disconnected."""

    @property
    def holds_close(self) -> bool:
        """The client has closed the connection, and its answer waits."""

    @property
    def linger_seconds(self) -> float:
        """For how long the stream stays open behind the answer to a close, for the client to close it."""

    def send(self, operation: Operation, now: float) -> None:
        """Queue an operation for the client."""

    def receive(self, operations: Iterable[Operation], now: float, /) -> None:
        """Carry out what the session received, until the turn is over."""

    def flushed(self) -> None:
        """What the session had to send was taken."""

    def resume(self, now: float) -> None:
        """What was written to the client has gone."""

    def depart(self, now: float) -> None:
        """The client has gone: what it has asked for is done, then it is disconnected."""

    def disconnect(self, now: float) -> None:
        """The client is gone, however it went."""


class ClientServer(Protocol):
    """What stands behind a port."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...

    @property
    def limits(self) -> Limits:
        """Of each session."""

    @property
    def broker_limits(self) -> BrokerLimits:
        """Of all clients together."""

    @property
    def turn(self) -> Turn: ...

    @property
    def memory(self) -> Memory:
        """What counts the unfinished messages of all clients."""

    @property
    def logins(self) -> Logins:
        """The failed ones."""

    @property
    def loopback_users(self) -> tuple[str, ...]:
        """Users that get in from this machine only."""

    @property
    def session_configs(self) -> Mapping[Version, ServerConfig]:
        """How a session is made, of each version that is allowed."""

    def authenticator(self, served: Served) -> Callable[[str, str], bool | PendingLogin]:
        """What checks user and password of a client."""

    def has_user(self, user: str) -> bool:
        """Whether a certificate with that name lets its holder in."""

    def connect(self, session: Session, wake: Callable[[], None], refusal: str, address: str) -> ClientConnection:
        """A client has come from an address, and said its version."""

    def arrived(self, served: Served) -> None:
        """A client has connected."""

    def ended(self, served: Served) -> None:
        """A connection is over."""

    def login_failed(self, address: str, user: str, reason: str) -> None:
        """A client did not get in."""

    def watch_timeouts(self) -> None:
        """Something was done that may have set a time."""


class Listener:
    """One port, and who may come."""

    __slots__ = ("_addresses", "_is_closed", "_refused", "_server", "_sockets", "context", "served")

    def __init__(self, server: ClientServer, context: ssl.SSLContext | None) -> None:
        self._server = server
        self.context = context
        """None: without TLS."""
        self.served: dict[Served, str] = {}
        """Every connection, with its remote address."""
        self._addresses: dict[str, int] = {}
        self._refused: set[Served] = set()
        self._sockets: asyncio.Server | None = None
        self._is_closed = False

    async def start(self, host: str, port: int) -> None:
        """Listen. Raises ``OSError`` if the address is taken or not ours."""
        self._sockets = await self._server.loop.create_server(
            lambda: Served(self._server, self).stream, host, port, backlog=1_024
        )

    def close(self) -> None:
        """Nobody comes any more."""
        self._is_closed = True
        if self._sockets is not None:
            self._sockets.close()

    async def wait_closed(self) -> None:
        """Until the port is free, with all connections gone."""
        if self._sockets is not None:
            await self._sockets.wait_closed()

    @property
    def port(self) -> int:
        """The port that it listens on."""
        assert self._sockets is not None, "start() it first"
        return int(self._sockets.sockets[0].getsockname()[1])

    def admit(self, served: Served, address: str) -> str | None:
        """A client has connected. Returns why it is to be sent away, empty: it is not; None: without a word."""
        limits = self._server.broker_limits
        of_address = self._addresses.get(address, 0)
        refusal = ""
        if self._is_closed:
            refusal = "the port is closed"
        elif len(self.served) - len(self._refused) >= limits.connections:
            refusal = f"the limit of {limits.connections} connections is reached"
        elif of_address >= limits.connections_per_address:
            refusal = f"the limit of {limits.connections_per_address} connections from {address} is reached"
        self.served[served] = address
        if not refusal:
            self._addresses[address] = of_address + 1
            return ""
        self._refused.add(served)
        # Who had connected just before the port was closed would be ended by nobody.
        return refusal if not self._is_closed and len(self._refused) <= limits.connections_refused else None

    def ended(self, served: Served) -> None:
        """A connection is over."""
        address = self.served.pop(served, None)
        if served in self._refused:
            self._refused.remove(served)
        elif address is not None:
            self._addresses[address] -= 1
            if not self._addresses[address]:
                del self._addresses[address]


class ServedStream(Stream):
    """The stream of a client, which is looked at before anything is read."""

    user: Served

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if self.user.arrived(cast(asyncio.Transport, transport)):
            self.begin(transport)

    def begin(self, transport: asyncio.BaseTransport) -> None:
        """Serve it on this transport."""
        super().connection_made(transport)


class UnfinishedBytes:
    """Bytes of one client's messages that are not all there: they count for its user, and for all clients together."""

    __slots__ = ("_memory", "size")

    def __init__(self, memory: Memory) -> None:
        self.size = 0
        self._memory = memory
        """Of whom they count."""

    def put(self, size: int, memory: Memory) -> None:
        """Count this many bytes in a memory, in place of those before."""
        for each, more in ((self._memory, -self.size), (memory, size)):
            each.unfinished += more
            if each.whole is not None:
                each.whole.unfinished += more
        self.size, self._memory = size, memory

    def clear(self) -> None:
        """Count none."""
        self.put(0, self._memory)


class WriteProgress:
    """Whether a client takes what is written to it."""

    __slots__ = ("_moved_at", "_sent")

    def __init__(self, now: float) -> None:
        self._sent = 0
        self._moved_at = now

    def is_stuck(self, stream: Stream, now: float, timeout: float) -> bool:
        """Whether it took nothing of what waits for it for so long, in seconds."""
        sent = stream.sent
        if sent != self._sent or not stream.unsent:
            self._sent, self._moved_at = sent, now
            return False
        return now - self._moved_at >= timeout


class Served:
    """One client's connection, from its first octet to the end of its stream."""

    __slots__ = (
        "_going_on", "_header", "_held", "_lingering", "_listener", "_opened", "_progress", "_received_at", "_refusal",
        "_securing", "_server", "_timer", "_timer_at", "_unfinished", "_unread", "connection", "session", "stream",
    )  # fmt: skip

    def __init__(self, server: ClientServer, listener: Listener) -> None:
        self._server = server
        self._listener = listener
        self._header = bytearray()
        self._refusal = ""
        self._held: asyncio.TimerHandle | None = None
        """Until then nothing is said: logins failed where it comes from."""
        self._lingering: asyncio.TimerHandle | None = None
        """The stream is closed then."""
        self._securing: asyncio.Task[None] | None = None
        self.session: Session | None = None
        self.connection: ClientConnection | None = None
        self.stream = ServedStream(self)
        self._unread: bytes | memoryview = b""
        """What came and was not worked on yet."""
        self._going_on = False
        """The next turn is scheduled."""
        self._unfinished = UnfinishedBytes(server.memory)
        self._opened = False
        """The connection was open in time."""
        now = clock.monotonic()
        self._received_at = now
        self._progress = WriteProgress(now)
        self._timer_at = now + server.limits.handshake_timeout
        self._timer: asyncio.TimerHandle | None = server.loop.call_at(self._timer_at, self._timeout)

    # -------------------------------------------------------------------------------------------- arriving

    def arrived(self, transport: asyncio.Transport) -> bool:
        """It has connected: whether it is served as it is. Else it has been hung up on, or speaks TLS first."""
        name = transport.get_extra_info("peername")
        refusal = self._listener.admit(self, str(name[0]) if isinstance(name, tuple) else "")
        self._server.arrived(self)
        if refusal is None:
            self.stream.abort()
            return True
        self._refusal = refusal
        if (sock := transport.get_extra_info("socket")) is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
        if self._listener.context is None:
            return True
        transport.pause_reading()
        self._securing = self._server.loop.create_task(self._secure(transport, self._listener.context))
        return False

    async def _secure(self, transport: asyncio.Transport, context: ssl.SSLContext) -> None:
        """The TLS handshake."""
        limits, error, secured = self._server.limits, None, None
        try:
            secured = await self._server.loop.start_tls(
                transport,
                self.stream,
                context,
                server_side=True,
                ssl_handshake_timeout=limits.handshake_timeout,
                ssl_shutdown_timeout=limits.close_timeout,
            )
        except OSError as failed:
            error = failed
        finally:
            self._securing = None
            if secured is None or transport.is_closing():
                self.stream.connection_lost(error)
            else:
                self.stream.begin(secured)
                if self._header:
                    self.data_received(b"")

    # ------------------------------------------------------------------------------ called by the stream

    def data_received(self, data: bytes) -> None:
        """Octets of the client."""
        self._server.turn.begin()
        now = self._received_at = clock.monotonic()
        session = self.session
        if session is None:
            self._header += data
            if self._securing is not None:
                return  # a quick client speaks before start_tls has returned, and with it the client's certificate
            session = self._choose()
            if session is None:
                return
            data = bytes(self._header)
            self._header.clear()
        if len(data) > SLICE or self._unread or self._held is not None:
            self._unread = memoryview(bytes(self._unread) + data if self._unread else data)
            if not self._going_on:
                self._work(now)
            return
        self._handle(session.receive_data(data, now), now)
        self._after(now)

    def stream_lost(self, error: Exception | None) -> None:
        """The client is gone."""
        self._server.turn.begin()
        now = clock.monotonic()
        for timer in (self._timer, self._held, self._lingering):
            if timer is not None:
                timer.cancel()
        self._timer = self._held = self._lingering = None
        self._unfinished.clear()
        self._unread = b""
        try:
            if self.session is not None and self.connection is not None:
                self.connection.receive(self.session.receive_eof(now), now)
                self.connection.depart(now)
        finally:
            self._listener.ended(self)
            self._server.ended(self)

    def data_to_send(self) -> list[bytes]:
        """Everything queued for the client."""
        connection, session = self.connection, self.session
        if connection is None or session is None or self._held is not None or connection.holds_close:
            return []
        connection.flushed()
        buffers = session.data_to_send()
        if session.closed and connection.linger_seconds and self._lingering is None:  # the answer was held
            self._server.loop.call_soon(self._close, connection, clock.monotonic())
        if connection.paused or not self.stream.reading:
            # Whether the client takes what it is given shows when it was given to the transport.
            self._server.loop.call_soon(self._written)
        return buffers

    def writable_again(self) -> None:
        """The client has read what it was given."""
        self._written()

    # --------------------------------------------------------------------------------------------- working

    def _choose(self) -> Session | None:
        """The session for the protocol header; None: not yet, or never."""
        if not may_be_header(self._header):
            # No header of ours: answer with the best one and hang up (0-9-1 section 4.2.2).
            self.stream.close(FALLBACK_HEADER)
            return None
        if len(self._header) < HEADER_SIZE:
            return None
        version = version_of_header(self._header)
        assert version is not None  # may_be_header
        config = self._server.session_configs.get(version)
        if config is None:
            # The version is known and not allowed here: answer with one that is.
            self.stream.close(next(iter(self._server.session_configs)).header)
            return None
        user = common_name(self.stream.certificate)
        certificate = user if self._server.has_user(user) else ""
        config = replace(
            config, authenticate=self._server.authenticator(self), certificate=certificate, admits=self._admits
        )
        self.session = server_session(version, config)
        self.connection = self._server.connect(self.session, self.stream.wake, self._refusal, self.stream.address)
        return self.session

    def _admits(self, user: str, proved: bool) -> bool:
        """A login is over: whether the client may come in. Either way the answer may have to wait."""
        server, name = self._server, self.stream.address
        address = client_of(name)
        now = clock.monotonic()
        delay = min(server.logins.delay(address, user, now), server.limits.handshake_timeout / 2)
        if delay:
            self._held = server.loop.call_later(delay, self._release)
        if proved and (user not in server.loopback_users or is_local(name, self.stream.own_address)):
            return True
        server.login_failed(address, user, "only from this machine" if proved else "wrong credentials")
        return False

    def login_decided(self, pending: PendingLogin, accepted: bool, unavailable: str = "") -> None:
        """A login that was checked elsewhere is over."""
        if self.session is None or self.connection is None or not self.connection.is_connected:
            return
        self._server.turn.begin()
        now = clock.monotonic()
        pending.decide(accepted, now, unavailable)
        self._handle(self.session.receive_data(b"", now), now)
        self._after(now)

    def _release(self) -> None:
        """Say what was held back, and go on."""
        self._held = None
        if self.session is not None and self.connection is not None:
            self.stream.wake()
            self._after(clock.monotonic())

    def _work(self, now: float) -> None:
        """Work on what is unread, for one turn."""
        session, over = self.session, self._server.turn.over
        assert session is not None
        while self._unread and not self._is_stopped() and not session.closed:
            piece, self._unread = self._unread[:SLICE], self._unread[SLICE:]
            self._handle(session.receive_data(piece, now), now)
            if over():
                break
        if session.closed:
            self._unread = b""
        self._after(now)

    def _go_on(self) -> None:
        self._going_on = False
        connection = self.connection
        if self.session is None or connection is None or not connection.is_connected:
            return
        self._server.turn.begin()
        now = clock.monotonic()
        if connection.may_go_on:
            connection.receive((), now)
        if self._unread and not self._is_stopped() and not self._server.turn.over():
            self._work(now)
        else:
            self._after(now)

    def _is_stopped(self) -> bool:
        """Nothing more is done for this client, since it does not read what it was told, or must wait."""
        connection, session = self.connection, self.session
        assert connection is not None
        assert session is not None
        if self._held is not None:
            return True
        return bool(connection.backlog) or session.pending > self._server.broker_limits.output_buffers

    def _handle(self, operations: list[Operation], now: float) -> None:
        if operations:
            assert self.connection is not None
            self.connection.receive(operations, now)

    def _after(self, now: float) -> None:
        """Some of the client's octets were worked on, or its time had come: what follows from that."""
        session, connection, server = self.session, self.connection, self._server
        assert session is not None
        assert connection is not None
        self.stream.wake()
        self._count_unfinished(session, connection, now)
        if self._held is not None:
            self.stream.pause_reading()
            return
        if session.closed:
            if connection.holds_close:
                self._set_timer(now + server.limits.close_timeout)
            else:
                self._close(connection, now)
            return
        self._steer()
        if connection.open:
            self._opened = True
        at = session.next_timeout()
        if at is not None and at < self._timer_at:
            self._set_timer(at)
        server.watch_timeouts()

    def _close(self, connection: ClientConnection, now: float) -> None:
        """Say the last words, and end the stream: at once, or when the client had its time to do so."""
        server = self._server
        if not connection.linger_seconds:
            self.stream.close()
        elif self._lingering is None:
            self.stream.wake()
            self.stream.resume_reading()
            self._lingering = server.loop.call_later(connection.linger_seconds, self.stream.close)
        self._set_timer(now + server.limits.close_timeout + connection.linger_seconds)

    def _count_unfinished(self, session: Session, connection: ClientConnection, now: float) -> None:
        """Messages that are not all there count for the user, and for all clients together; who goes over that must
        go."""
        unfinished, memory, whole = self._unfinished, connection.memory, self._server.memory
        before = unfinished.size
        unfinished.put(session.unfinished, memory)
        if unfinished.size <= before or (memory.unfinished <= memory.limit and whole.unfinished <= whole.limit):
            return
        text = reply_text(320, f"over {memory.limit} octets of unfinished messages")
        connection.send(Close(0, 320, text), now)
        connection.disconnect(now)
        unfinished.put(session.unfinished, memory)

    def _steer(self) -> None:
        """Read on, or not; and have another turn where something is left to do."""
        is_stopped = self._is_stopped()
        if not is_stopped and not self._unread:
            self.stream.resume_reading()
            return
        self.stream.pause_reading()
        assert self.connection is not None
        if (self.connection.may_go_on if is_stopped else self._unread) and not self._going_on:
            self._going_on = True
            self._server.loop.call_soon(self._go_on)

    def _written(self) -> None:
        connection = self.connection
        if connection is None or not self.stream.writable:
            return
        if connection.paused or connection.backlog:
            self._server.turn.begin()
            connection.resume(clock.monotonic())
            self._server.watch_timeouts()
        self._steer()

    # ---------------------------------------------------------------------------------------------- timing

    def is_stuck(self, now: float, timeout: float) -> bool:
        """Whether the client, for so long, took nothing of what waits for it, or left something unfinished and sent
        nothing although we would read."""
        stream, session = self.stream, self.session
        if self._progress.is_stuck(stream, now, timeout):
            return True
        if session is None or not session.unfinished or not stream.reading:
            return False
        return now - self._received_at >= timeout

    def _set_timer(self, at: float | None) -> None:
        """One that fires too early does no harm: what only moves back, as heartbeats do, is left until then."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if at is None else self._server.loop.call_at(at, self._timeout)
        self._timer_at = NEVER if at is None else at

    def _timeout(self) -> None:
        self._timer = None
        self._timer_at = NEVER
        session = self.session
        if session is None or session.closed or not self._opened:
            # No open connection in time; or it does not read our last words, and cannot hold the stream open by that.
            self.stream.abort()
            return
        self._server.turn.begin()
        now = clock.monotonic()
        if not self.stream.reading:
            # It is not its fault that we hear nothing of it.
            session.receive_data(b"", now)
        self._handle(session.handle_timeout(now), now)
        self._after(now)
        if not session.closed:
            self._set_timer(session.next_timeout())

    def hang_up(self) -> None:
        """End it now, whatever stage it is in."""
        if self._securing is not None:
            self._securing.cancel()
        self.stream.abort()
