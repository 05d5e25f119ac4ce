"""A connection of 0-10 without I/O: frames in, frames out, heartbeats and deadlines, for both roles.

:class:`Connection` knows frames, controls of the connection class and time; which sessions are attached and what
their commands mean is in ``client.py`` and ``server.py``, which subclass it.

The phases of a connection::

    HEADER     the protocol header is awaited
    HANDSHAKE  start, secure, tune, open
    OPEN
    CLOSING    a close was sent; its answer, the end of the stream or a deadline end it
    CLOSED

An AMQP 0-10 session is attached to a *wire channel*, 0 and up. In :mod:`gateway.amqp.operations` channel 0 is the
connection, so a channel there is the wire channel plus one, in both roles.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, ClassVar, Generic, TypeVar

from gateway.amqp.operations import Closed, CloseReason, Operation
from gateway.errors import FrameSyntaxError
from gateway.limits import Limits
from gateway.session import PROTOCOL_HEADERS, Capabilities, Heartbeats, Role, Version
from gateway.v010.assembler import Assembler, Content
from gateway.v010.commands import TRANSFER
from gateway.v010.controls import (
    FRAMING_ERROR,
    ConnectionClose,
    ConnectionCloseOk,
    ConnectionHeartbeat,
    Control,
    decode_control,
)
from gateway.v010.frames import (
    COMMAND,
    CONTROL,
    FIRST_FRAME,
    FIRST_SEGMENT,
    FRAME_MAX,
    FRAME_MIN,
    HEADER_SIZE,
    LAST_FRAME,
    PROTOCOL_HEADER,
    WHOLE,
    read_frame,
    read_simple,
    write_segment,
)
from gateway.v010.version import V0_10


class Phase(Enum):
    """Where a connection stands."""

    HEADER = "header"
    HANDSHAKE = "handshake"
    OPEN = "open"
    CLOSING = "closing"
    CLOSED = "closed"


_TRANSFER = TRANSFER.to_bytes(2, "big")
_COMMAND_START = bytes((FIRST_SEGMENT | FIRST_FRAME | LAST_FRAME, COMMAND))
"""How the frames of an ordinary message begin."""
_TALKING = frozenset({Phase.HANDSHAKE, Phase.OPEN, Phase.CLOSING})


class Attachment:
    """What the connection asks of a session that is attached to a channel, in either role."""

    __slots__ = ()

    wire: int
    """The channel on the wire."""

    @abstractmethod
    def control(self, control: Control) -> None:
        """A control of the session class came. May raise :class:`~gateway.errors.FrameSyntaxError`."""

    @abstractmethod
    def command(self, segment: bytes) -> None:
        """A command without content came. May raise :class:`~gateway.errors.FrameSyntaxError`."""

    @abstractmethod
    def content(self, command: bytes, header: bytes, body: bytes | None, size: int, limit: int) -> None:
        """A command with content came, as in :class:`~gateway.v010.assembler.Content`. May raise
        :class:`~gateway.errors.FrameSyntaxError`."""

    @abstractmethod
    def received_all(self) -> None:
        """All octets that came together are handled."""

    @abstractmethod
    def flush(self) -> None:
        """Queue what must be said at the end of a burst."""

    @abstractmethod
    def part(self) -> None:
        """The connection is over, or about to be: a session that outlives it says so."""


A = TypeVar("A", bound=Attachment)


class Connection(Generic[A]):
    """What client and server sessions share. See the module."""

    version: ClassVar[Version] = V0_10
    role: ClassVar[Role]
    control_handlers: ClassVar[Mapping[type[Control], Callable[[Any, Any], None]]]
    """What to do with controls of the connection class."""

    def __init__(self, limits: Limits) -> None:
        self.capabilities = Capabilities()
        self.limits = limits
        self.phase = Phase.HEADER
        self.channels: dict[int, A] = {}
        """Attached sessions by wire channel."""
        self.touched: dict[int, A] = {}
        """Those that have something to do when all octets are handled."""
        self.dirty: dict[int, A] = {}
        """Those that have something to say at the end of a burst."""
        self.out: list[bytes] = []
        """Buffers to send. Always this very list: channels hold on to it."""
        self.frame_max = FRAME_MIN
        """Largest frame that is sent."""
        self.now: float | None = None
        self.events: list[Operation] = []
        """Always this very list, too."""
        self.assembler = Assembler(limits)
        self.transfers: dict[bytes, Any] = {}
        """The octets of message.transfer commands seen lately -> what they say, for all sessions together."""
        self._accepted = min(FRAME_MAX, limits.frame_max)
        """Largest frame that is received."""
        self._simple_max = min(self._accepted, limits.header_max, limits.message_max)
        """Largest frame of those that are read together: no limit can be broken by them."""
        self._partial = bytearray()
        self._need = 0
        self._heartbeats = Heartbeats()
        self._deadline: float | None = None
        self._ending: Closed | None = None
        """What ends the CLOSING phase."""

    # ----------------------------------------------------------------------------------------- for the link

    @property
    def closed(self) -> bool:
        """See :class:`gateway.session.Session`."""
        return self.phase is Phase.CLOSED

    @property
    def pending(self) -> int:
        """See :class:`gateway.session.Session`."""
        return len(self.out)

    @property
    def unfinished(self) -> int:
        """See :class:`gateway.session.Session`."""
        return len(self._partial) + self.assembler.spooled

    def receive_data(self, data: bytes | bytearray | memoryview, now: float) -> list[Operation]:
        """See :class:`gateway.session.Session`."""
        self._tick(now)
        self._heartbeats.received_at = now
        if self.phase is Phase.CLOSED:
            return self._take()
        if self._partial:
            self._partial += data
            if len(self._partial) < self._need:
                return self._take()
            octets = bytes(self._partial)
            self._partial.clear()
        else:
            octets = bytes(data)
        if self.phase is Phase.HEADER:
            octets = self._header(octets)
        if octets and self.phase in _TALKING:
            used = self._receive(octets)
            if used < len(octets):
                self._partial += memoryview(octets)[used:]
        return self._take()

    def receive_eof(self, now: float) -> list[Operation]:
        """See :class:`gateway.session.Session`."""
        self._tick(now)
        if self.phase is not Phase.CLOSED:
            self.end(self._ending or self._eof_reason())
        return self._take()

    def data_to_send(self) -> list[bytes]:
        """See :class:`gateway.session.Session`."""
        if self.dirty:
            channels = list(self.dirty.values())
            self.dirty.clear()
            for channel in channels:
                channel.flush()
        if not self.out:
            return []
        buffers = self.out[:]
        self.out.clear()
        if self.now is not None:
            self._heartbeats.sent_at = self.now
        return buffers

    def next_timeout(self) -> float | None:
        """See :class:`gateway.session.Session`. Before the first call that brought a ``now`` this is 0.0: the
        session must be told the time before it can set a deadline. So it is now where something is to be told."""
        if self.phase is Phase.CLOSED:
            return None
        if self.now is None:
            return 0.0
        if self.events:
            return self.now
        times = [] if self._deadline is None else [self._deadline]
        beats = self._heartbeats
        if beats.interval and self.phase is Phase.OPEN:
            times.append(beats.sent_at + beats.interval / 2)
            times.append(beats.received_at + beats.interval * 2)
        return min(times, default=None)

    def handle_timeout(self, now: float) -> list[Operation]:
        """See :class:`gateway.session.Session`."""
        self._tick(now)
        if self.phase is Phase.CLOSED:
            return self._take()
        if self._deadline is not None and now >= self._deadline:
            self.end(self._ending or Closed(0, CloseReason.TIMEOUT, 0, f"no open connection in time: {self.awaited}"))
        elif self._heartbeats.interval and self.phase is Phase.OPEN:
            if now >= self._heartbeats.received_at + self._heartbeats.interval * 2:
                text = f"nothing was heard for {now - self._heartbeats.received_at:.1f} seconds"
                self.end(Closed(0, CloseReason.HEARTBEAT, 320, text))
            elif now >= self._heartbeats.sent_at + self._heartbeats.interval / 2:
                self.send_control(0, ConnectionHeartbeat())
        return self._take()

    # --------------------------------------------------------------------------------------- for both roles

    awaited: str = ""
    """What the handshake waits for."""

    @abstractmethod
    def _greeted(self, header: bytes) -> None:
        """The peer's protocol header came, and it is the same."""

    @abstractmethod
    def _refused(self, header: bytes) -> None:
        """The peer began with something else."""

    @abstractmethod
    def _eof_reason(self) -> Closed:
        """Why the stream may have ended."""

    @abstractmethod
    def _attach(self, wire: int, control: Control) -> None:
        """A control of the session class came on a channel without a session."""

    def _stray(self, wire: int) -> None:
        """A command came on a channel without a session: the session it was for has just ended here."""

    def send_control(self, wire: int, control: Control) -> None:
        """Queue a control."""
        self.out += write_segment(control.encode(), CONTROL, CONTROL, wire, self.frame_max)

    def negotiated(self, channel_max: int, frame_max: int, heartbeat: float) -> None:
        """Keep to these from now on."""
        self.frame_max = self._accepted = frame_max
        self._simple_max = min(frame_max, self.limits.header_max, self.limits.message_max)
        self._heartbeats.interval = heartbeat
        self.capabilities.channel_max = channel_max
        self.capabilities.frame_max = frame_max
        self.capabilities.heartbeat = heartbeat

    def opened(self) -> None:
        """The handshake is over."""
        self.phase = Phase.OPEN
        self._deadline = None

    def close(self, code: int, text: str, ending: Closed) -> None:
        """Send connection.close and wait for its answer; ``ending`` is reported then."""
        short = text.encode("utf-8", "replace")[:255].decode("utf-8", "ignore")
        self.send_control(0, ConnectionClose(code, short))
        self.phase = Phase.CLOSING
        for wire in self.channels:
            self.assembler.drop(wire)
        self.channels.clear()
        self.touched.clear()
        self.dirty.clear()
        self._ending = ending
        self._deadline = (self.now or 0.0) + self.limits.close_timeout

    def violation(self, text: str) -> None:
        """The peer broke the specification: say so, and end. A server waits, so that the client can read it."""
        closed = Closed(0, CloseReason.SYNTAX, FRAMING_ERROR, text)
        if self.phase is Phase.CLOSING:
            self.end(self._ending or closed)
            return
        self.close(FRAMING_ERROR, text, closed)
        if self.role is Role.CLIENT:
            self.end(closed)

    def end(self, closed: Closed) -> None:
        """The connection is over."""
        for channel in list(self.channels.values()):
            channel.part()
        self.phase = Phase.CLOSED
        self._deadline = None
        self._ending = None
        self._partial.clear()
        self.channels.clear()
        self.touched.clear()
        self.dirty.clear()
        self.events.append(closed)

    def forget(self, channel: A) -> None:
        """A session goes to another connection."""
        if self.channels.get(channel.wire) is channel:
            self.detach(channel.wire)

    def detach(self, wire: int) -> None:
        """Forget the session of a channel."""
        self.channels.pop(wire, None)
        self.touched.pop(wire, None)
        self.dirty.pop(wire, None)
        self.assembler.drop(wire)

    # --------------------------------------------------------------------------------------------- receiving

    def _header(self, octets: bytes) -> bytes:
        """The first octets. Returns what follows the header."""
        start = octets[:8]
        if start == PROTOCOL_HEADER:
            self.phase = Phase.HANDSHAKE
            self._greeted(start)
            return octets[8:]
        if len(start) < 8 and any(header.startswith(start) for header in PROTOCOL_HEADERS):
            self._partial += octets
            self._need = 8
        else:
            self._refused(start)
        return b""

    def _receive(self, octets: bytes) -> int:
        """Handle the complete frames at the start of ``octets``; returns how many octets they took, with
        ``_need`` what the next frame takes."""
        at = 0
        size_max = self._simple_max
        channels = self.channels
        assembler = self.assembler
        command_start = _COMMAND_START
        try:
            while True:
                if octets.startswith(command_start, at) and (simple := read_simple(octets, at, size_max)) is not None:
                    (wire, command, header, body), stop = simple
                    channel = channels.get(wire)
                    if channel is not None and command.startswith(_TRANSFER) and not assembler.busy(wire):
                        at = stop
                        channel.content(command, header, body, len(body), 0)
                        continue
                found = read_frame(octets, at, self._accepted)
                if found is None:
                    break
                (flags, kind, track, wire, payload), at = found
                if (wire or track) and self.phase is Phase.HANDSHAKE:
                    raise FrameSyntaxError(f"track {track} of channel {wire} before the connection is open")
                if flags == WHOLE and kind == track == CONTROL:
                    self._control(wire, payload)
                else:
                    assembly = assembler.feed(flags, kind, track, wire, payload)
                    if assembly is not None:
                        self._assembled(track, wire, assembly)
                if self.phase is Phase.CLOSED:
                    return at
            if self.touched:
                for channel in self.touched.values():
                    channel.received_all()
                self.touched.clear()
        except FrameSyntaxError as error:
            self.violation(str(error))
            return len(octets)
        left = len(octets) - at
        self._need = int.from_bytes(octets[at + 2 : at + 4], "big") if left >= 4 else HEADER_SIZE
        return at

    def _assembled(self, track: int, wire: int, assembly: Content | bytes) -> None:
        channel = self.channels.get(wire)
        if isinstance(assembly, bytes):
            if track == CONTROL:
                self._control(wire, assembly)
            elif channel is None:
                self._stray(wire)
            else:
                channel.command(assembly)
        elif channel is None:
            self._stray(wire)
        else:
            channel.content(*assembly)

    def _control(self, wire: int, segment: bytes) -> None:
        control = decode_control(segment, self.limits)
        if control.code >> 8 == 2:
            if self.phase is not Phase.OPEN and self.phase is not Phase.CLOSING:
                raise FrameSyntaxError(f"{control.spelled} before the connection is open")
            channel = self.channels.get(wire)
            if channel is None:
                self._attach(wire, control)
            else:
                channel.control(control)
            return
        if wire:
            raise FrameSyntaxError(f"{control.spelled} on channel {wire}")
        if type(control) is ConnectionClose:
            self.send_control(0, ConnectionCloseOk())
            self._closed_by_peer(control)
        elif type(control) is ConnectionCloseOk:
            if self.phase is not Phase.CLOSING:
                raise FrameSyntaxError("connection.close-ok without a connection.close")
            self.end(self._ending or Closed(0, CloseReason.LOCAL, 200, ""))
        elif type(control) is not ConnectionHeartbeat and self.phase is not Phase.CLOSING:
            handler = self.control_handlers.get(type(control))
            if handler is None:
                raise FrameSyntaxError(f"{control.spelled} is not for a {self.role.value}")
            handler(self, control)

    def _closed_by_peer(self, close: ConnectionClose) -> None:
        ending = Closed(0, CloseReason.PEER, close.reply_code, close.reply_text)
        self.end(self._ending or ending)

    def _expect(self, what: str) -> None:
        """The handshake's order. Raises :class:`~gateway.errors.FrameSyntaxError`."""
        if self.phase is not Phase.HANDSHAKE or self.awaited != what:
            raise FrameSyntaxError(f"connection.{what} where {self.awaited or 'nothing of the handshake'} is due")

    def _tick(self, now: float) -> None:
        if self.now is None:
            beats = self._heartbeats
            beats.sent_at = beats.received_at = now
            self._deadline = now + self.limits.handshake_timeout
        self.now = now

    def _take(self) -> list[Operation]:
        if not self.events:
            return []
        events = self.events[:]
        self.events.clear()
        return events
