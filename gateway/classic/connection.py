"""A connection of 0-8 or 0-9-1 without I/O: frames in, frames out, heartbeats and deadlines, for both roles.

:class:`ClassicSession` knows frames and time; what methods mean is in :mod:`gateway.classic.client` and
:mod:`gateway.classic.server`. The loop in :meth:`ClassicSession._frames` is what every octet passes: it reads at an
offset and never slices the rest.

The phases of a connection::

    HEADER     the protocol header is awaited (server), or anything (client)
    HANDSHAKE  start, secure, tune, open
    OPEN
    CLOSING    a close was sent; its answer, the end of the stream or a deadline end it
    CLOSED

A peer that breaks the specification gets a connection.close. A client session is over at once then; a
server session waits for the answer, so that the client can read what it did wrong.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, ClassVar, Generic, TypeVar

from gateway.amqp.operations import Closed, CloseReason, Operation
from gateway.classic.assembler import Assembler, AssemblyLimit
from gateway.classic.dialect import Dialect
from gateway.classic.frames import (
    BODY,
    CONTENT_HEADER_SIZE,
    FRAME_END,
    FRAME_HEADER,
    HEADER,
    HEARTBEAT,
    HEARTBEAT_FRAME,
    METHOD,
    METHOD_KEY,
    OVERHEAD,
    method_frame,
    reply_text,
)
from gateway.classic.methods import Method
from gateway.classic.tables import TableCodec
from gateway.classic.translate import Translator
from gateway.errors import FrameSyntaxError
from gateway.limits import Limits
from gateway.session import Capabilities, Heartbeats, Role, Version

_FRAME_TYPES = frozenset({METHOD, HEADER, BODY, HEARTBEAT})

Handler = Callable[[Any, bytes, int, int], int | None]
"""(channel, data, at, end): a method whose arguments are ``data[at:end]`` came on a channel."""


class ConnectionPhase(Enum):
    """Where a connection stands."""

    HEADER = "header"
    HANDSHAKE = "handshake"
    OPEN = "open"
    CLOSING = "closing"
    CLOSED = "closed"


class BaseChannel(Assembler):
    """What the connection asks of a channel, in either role."""

    __slots__ = ("attention", "number")

    number: int
    attention: bool
    """The next method is not simply dispatched: :meth:`attend` is asked first."""
    large_headers: ClassVar[bool] = False
    """A content header may be in a frame over the negotiated ``frame_max``. RabbitMQ sends one where it has added to
    the headers of a message (``x-death``), and hanging up over it would never end: it would be delivered again."""

    @abstractmethod
    def attend(self, key: int) -> bool:
        """A method of that key comes while ``attention`` is set; whether to pass over it. May raise
        :class:`~gateway.errors.FrameSyntaxError`."""


_FRAMED = frozenset({ConnectionPhase.HANDSHAKE, ConnectionPhase.OPEN, ConnectionPhase.CLOSING})
_CONTENT = frozenset({HEADER, BODY})

C = TypeVar("C", bound=BaseChannel)


class ClassicSession(Generic[C]):
    """What client and server sessions share. See the module."""

    version: ClassVar[Version]
    role: ClassVar[Role]
    dialects: ClassVar[Mapping[str, Dialect]]
    """By name; the first is the default."""

    def __init__(self, limits: Limits) -> None:
        self.capabilities = Capabilities()
        self.limits = limits
        self.phase = ConnectionPhase.HEADER
        self.dialect: Dialect = next(iter(self.dialects.values()))
        self.tables = TableCodec(self.dialect.tags, limits)
        self.translator: Translator
        self.handlers: Mapping[int, Handler] = {}
        """What to do with methods on channels, by key."""
        self.channels: dict[int, C] = {}
        self.spool = AssemblyLimit(limits.spool_max)
        self.out: list[bytes] = []
        """Buffers to send. Always this very list: channels hold on to it."""
        self.frame_max = limits.frame_max
        self.channel_max = 0
        self.now: float | None = None
        self._payload_max = limits.frame_max - OVERHEAD
        self._events: list[Operation] = []
        self.emit = self._events.append
        self._partial = bytearray()
        self._need = 0
        self._passing = 0
        """Octets of a frame that are passed over as they come, its end included."""
        self._heartbeats = Heartbeats()
        self._deadline: float | None = None
        """Of the handshake or the close, by the phase."""
        self._ending: Closed | None = None
        """What ends the CLOSING phase."""

    # ----------------------------------------------------------------------------------------- for the link

    @property
    def closed(self) -> bool:
        """See :class:`gateway.session.Session`."""
        return self.phase is ConnectionPhase.CLOSED

    @property
    def pending(self) -> int:
        """See :class:`gateway.session.Session`."""
        return len(self.out)

    @property
    def unfinished(self) -> int:
        """See :class:`gateway.session.Session`."""
        return len(self._partial) + self.spool.held

    def receive_data(self, data: bytes | bytearray | memoryview, now: float) -> list[Operation]:
        """See :class:`gateway.session.Session`."""
        self._tick(now)
        self._heartbeats.received_at = now
        if self.phase is ConnectionPhase.CLOSED or not data:
            return self._take()
        if self._passing:
            data = self._pass_over(data)
            if not data:
                return self._take()
        if self._partial:
            self._partial += data
            if len(self._partial) < self._need:
                return self._take()
            octets = bytes(self._partial)
            self._partial.clear()
        else:
            octets = bytes(data)
        at = 0
        if self.phase is ConnectionPhase.HEADER:
            at = self._header(octets)
        if self.phase in _FRAMED:
            at = self._frames(octets, at)
        if at < len(octets) and not self.closed:
            self._partial += memoryview(octets)[at:]
        return self._take()

    def receive_eof(self, now: float) -> list[Operation]:
        """See :class:`gateway.session.Session`."""
        self._tick(now)
        if self.phase is not ConnectionPhase.CLOSED:
            self.end(self._ending or self._eof_reason())
        return self._take()

    def data_to_send(self) -> list[bytes]:
        """See :class:`gateway.session.Session`."""
        self._flush()
        if not self.out:
            return []
        buffers = self.out[:]
        self.out.clear()
        if self.now is not None:
            self._heartbeats.sent_at = self.now
        return buffers

    def next_timeout(self) -> float | None:
        """See :class:`gateway.session.Session`. Before the first call that brought a ``now`` this is 0.0: the
        session must be told the time before it can set a deadline."""
        if self.phase is ConnectionPhase.CLOSED:
            return None
        if self.now is None:
            return 0.0
        times = [] if self._deadline is None else [self._deadline]
        beats = self._heartbeats
        if beats.interval and self.phase is ConnectionPhase.OPEN:
            times.append(beats.sent_at + beats.interval / 2)
            times.append(beats.received_at + beats.interval * 2)
        times.extend(self._more_timeouts())
        return min(times, default=None)

    def handle_timeout(self, now: float) -> list[Operation]:
        """See :class:`gateway.session.Session`."""
        self._tick(now)
        if self.phase is ConnectionPhase.CLOSED:
            return self._take()
        if self._deadline is not None and now >= self._deadline:
            self.end(
                self._ending or Closed(0, CloseReason.TIMEOUT, 0, f"no open connection in time: {self._awaited()}")
            )
            return self._take()
        self._handle_more_timeouts(now)
        if self._heartbeats.interval and self.phase is ConnectionPhase.OPEN:
            if now >= self._heartbeats.received_at + self._heartbeats.interval * 2:
                text = f"nothing was heard for {now - self._heartbeats.received_at:.1f} seconds"
                self.end(Closed(0, CloseReason.HEARTBEAT, 320, text))
            elif now >= self._heartbeats.sent_at + self._heartbeats.interval / 2:
                self.out.append(HEARTBEAT_FRAME)
        return self._take()

    # ------------------------------------------------------------------------------------- for both roles

    @abstractmethod
    def _header(self, data: bytes) -> int:
        """The first octets: leave the HEADER phase, or not if more are needed. Returns how many were used."""

    @abstractmethod
    def _connection_method(self, key: int, data: bytes, at: int, end: int) -> None:
        """A method came on channel 0."""

    @abstractmethod
    def _unknown_channel(self, number: int, key: int, data: bytes, at: int, end: int) -> None:
        """A method came on a channel that is not open."""

    @abstractmethod
    def _eof_reason(self) -> Closed:
        """Why the stream may have ended."""

    @abstractmethod
    def _awaited(self) -> str:
        """What the handshake waits for."""

    @abstractmethod
    def violation(self, error: FrameSyntaxError, key: int) -> None:
        """The peer broke the specification, in a method of that key."""

    def _flush(self) -> None:
        """Put into ``out`` what must be said at the end of a burst."""

    def _more_timeouts(self) -> list[float]:
        return []

    def _handle_more_timeouts(self, now: float) -> None:
        """Everything else that waits for a time."""

    def send_method(self, channel: int, method: Method) -> None:
        """Queue a method frame."""
        self.out.append(method_frame(channel, method.encode(self.tables)))

    def use_dialect(self, dialect: Dialect) -> None:
        """Speak it from now on."""
        self.dialect = dialect
        self.tables = TableCodec(dialect.tags, self.limits)

    def negotiated(self, channel_max: int, frame_max: int, heartbeat: float) -> None:
        """Keep to these from now on; 0 is no limit."""
        self.channel_max = channel_max or 65_535
        self.frame_max = frame_max or self.limits.frame_max
        self._payload_max = self.frame_max - OVERHEAD
        self._heartbeats.interval = heartbeat
        self.capabilities.channel_max = channel_max
        self.capabilities.frame_max = frame_max
        self.capabilities.heartbeat = heartbeat

    def opened(self) -> None:
        """The handshake is over."""
        self.phase = ConnectionPhase.OPEN
        self._deadline = None

    def close(self, code: int, text: str, key: int, ending: Closed) -> None:
        """Send connection.close and wait for its answer; ``ending`` is reported then."""
        text = reply_text(code, text)
        self.send_method(0, self.dialect.connection_close(code, text, key >> 16, key & 0xFFFF))
        self.phase = ConnectionPhase.CLOSING
        self._ending = ending
        self._deadline = (self.now or 0.0) + self.limits.close_timeout

    def end(self, closed: Closed) -> None:
        """The connection is over."""
        self.phase = ConnectionPhase.CLOSED
        self._deadline = None
        self._ending = None
        self._partial.clear()
        self.channels.clear()
        self.emit(closed)

    def finish_close(self) -> None:
        """The answer to our close came."""
        self.end(self._ending or Closed(0, CloseReason.LOCAL, 200, ""))

    def _tick(self, now: float) -> None:
        if self.now is None:
            beats = self._heartbeats
            beats.sent_at = beats.received_at = now
            self._deadline = now + self.limits.handshake_timeout
        self.now = now

    def _take(self) -> list[Operation]:
        events = self._events
        if not events:
            return []  # the list itself is still in use
        self._events = []
        self.emit = self._events.append
        return events

    # ----------------------------------------------------------------------------------------- the hot loop

    def _frames(self, data: bytes, at: int) -> int:
        """Handle the complete frames of ``data`` from ``at``; returns where the first incomplete one starts,
        with ``_need`` the octets it takes."""
        size = len(data)
        unpack = FRAME_HEADER.unpack_from
        unpack_key = METHOD_KEY.unpack_from
        handlers = self.handlers
        channels = self.channels
        key = 0
        try:
            while size - at >= 7:
                kind, number, length = unpack(data, at)
                start = at + 7
                end = start + length
                if length > self._payload_max:
                    taker = self._large_header(kind, number, length)
                    if length > self.limits.header_max + CONTENT_HEADER_SIZE:
                        if size - start < CONTENT_HEADER_SIZE:
                            self._need = CONTENT_HEADER_SIZE + 7
                            return at
                        taker.header_too_large(data, start, length)
                        self._passing = length + 1
                        at = size - len(self._pass_over(memoryview(data)[start:]))
                        continue
                if end >= size:
                    if kind not in _FRAME_TYPES:
                        raise FrameSyntaxError(f"there is no frame type {kind}")
                    self._need = length + OVERHEAD
                    return at
                if data[end] != FRAME_END:
                    raise FrameSyntaxError(f"a frame ends with {data[end]:#04x}")
                at = end + 1
                if kind == METHOD:
                    if length < 4:
                        raise FrameSyntaxError(f"a method frame of {length} octets", 502)
                    (key,) = unpack_key(data, start)
                    channel = channels.get(number)
                    if channel is None:
                        if number == 0:
                            self._connection_method(key, data, start + 4, end)
                        else:
                            self._unknown_channel(number, key, data, start + 4, end)
                        if self.phase is ConnectionPhase.CLOSED:
                            return at
                        handlers = self.handlers
                        continue
                    if (channel.awaiting or channel.attention) and channel.attend(key):
                        continue
                    handler = handlers.get(key)
                    if handler is None:
                        raise self._without_handler(number, key)
                    after = handler(channel, data, start + 4, end)
                    if after is not None:
                        at = after
                elif kind in _CONTENT:
                    channel = channels.get(number)
                    if channel is None:
                        self._stray_content(number)
                    elif kind == BODY:
                        channel.body_frame(data, start, end)
                    else:
                        channel.header_frame(data, start, end)
                elif kind != HEARTBEAT:
                    raise FrameSyntaxError(f"there is no frame type {kind}")
                elif number:
                    raise FrameSyntaxError(f"a heartbeat on channel {number}")
        except FrameSyntaxError as error:
            self.violation(error, key)
            return size
        self._need = 7
        return at

    def _large_header(self, kind: int, number: int, length: int) -> C:
        """The channel that takes a frame over the negotiated size."""
        channel = self.channels.get(number)
        if kind != HEADER or channel is None or not channel.large_headers or channel.awaiting != "header":
            raise FrameSyntaxError(f"a frame of {length + OVERHEAD} octets is over {self.frame_max}")
        return channel

    def _pass_over(self, data: bytes | bytearray | memoryview) -> memoryview:
        """Pass over what is left of a frame; what follows it."""
        passed = min(self._passing, len(data))
        self._passing -= passed
        if not self._passing and data[passed - 1] != FRAME_END:
            self.violation(FrameSyntaxError(f"a frame ends with {data[passed - 1]:#04x}"), 0)
            return memoryview(b"")
        return memoryview(data)[passed:]

    def _without_handler(self, number: int, key: int) -> FrameSyntaxError:
        """What to say of a method that nothing here takes."""
        known = self.dialect.methods.get(key)
        if known is None:
            return FrameSyntaxError(f"there is no method {key >> 16}.{key & 0xFFFF}", 540)
        if key in self.dialect.unserved:
            return FrameSyntaxError(f"{known.title} is not served", 540)
        return FrameSyntaxError(f"{known.name} has no place on channel {number}", 503)

    def _stray_content(self, number: int) -> None:
        raise FrameSyntaxError(f"content on channel {number}, which is not open", 504)
