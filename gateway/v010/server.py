"""A server's end of a connection over 0-10: the handshake, and the sessions that clients attach."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import ceil
from typing import Any, ClassVar, Final

from gateway import sasl
from gateway.errors import FrameSyntaxError, StateError
from gateway.operations import Blocked, Close, Closed, CloseReason, Flow, Opened, Operation, Unblocked
from gateway.session import Capabilities, Confirms, Role, ServerConfig
from gateway.v010 import controls as k
from gateway.v010.connection import Connection, Phase
from gateway.v010.frames import FRAME_MAX, FRAME_MIN, PROTOCOL_HEADER
from gateway.v010.server_channel import ServerChannel

MECHANISMS: Final = ("PLAIN",)
LOCALES: Final = ("en_US",)
SESSION_BUSY: Final = 1
TRANSPORT_BUSY: Final = 2
NOT_ATTACHED: Final = 3


class ServerSession(Connection[ServerChannel]):
    """AMQP 0-10 in the server role. See :class:`gateway.session.Session`."""

    role: ClassVar[Role] = Role.SERVER

    def __init__(self, config: ServerConfig) -> None:
        super().__init__(config.limits)
        self.config = config
        self.capabilities = Capabilities(confirms=Confirms.COMPLETION, query_binding=True, mechanisms=MECHANISMS)
        self.user = ""
        self.awaited = "the protocol header"
        self._names: set[bytes] = set()
        """Of the sessions that are attached."""

    # --------------------------------------------------------------------------------------------- sending

    def send(self, operation: Operation, now: float) -> int:
        """See :class:`gateway.session.Session`."""
        self._tick(now)
        channel = self.channels.get(operation.channel - 1)
        if channel is not None:
            return channel.send(operation)
        if operation.channel != 0:
            raise StateError(f"channel {operation.channel} is not open: no {type(operation).__name__}")
        if self.phase not in (Phase.HANDSHAKE, Phase.OPEN):
            raise StateError(f"the connection is in phase {self.phase.value}: no {type(operation).__name__}")
        if isinstance(operation, Close):
            self._send_close(operation)
        elif isinstance(operation, Blocked | Unblocked):
            self._block(isinstance(operation, Blocked))
        else:
            raise StateError(f"{type(operation).__name__} is not for channel 0")
        return 0

    def _send_close(self, operation: Close) -> None:
        for channel in self.channels.values():
            channel.flush()
        code = operation.code if operation.code == k.NORMAL else k.CONNECTION_FORCED
        self.close(code, operation.text, Closed(0, CloseReason.LOCAL, operation.code, operation.text))

    def _block(self, blocked: bool) -> None:
        """0-10 has no word for the whole connection: each session is told."""
        for channel in self.channels.values():
            if not channel.failed:
                channel.peer_flow(Flow(channel.number, not blocked))

    # ------------------------------------------------------------------------------------------- handshake

    def _greeted(self, header: bytes) -> None:
        self.out.append(PROTOCOL_HEADER)
        self.send_control(0, k.ConnectionStart(self.config.properties or None, MECHANISMS, LOCALES))
        self.awaited = "start-ok"

    def _refused(self, header: bytes) -> None:
        self.out.append(PROTOCOL_HEADER)
        text = f"the client began with {header!r}"
        self.end(Closed(0, CloseReason.PROTOCOL_HEADER, 0, text))

    def _eof_reason(self) -> Closed:
        waited = f", waiting for {self.awaited}" if self.awaited else ""
        return Closed(0, CloseReason.EOF, 0, f"the stream ended{waited}")

    def _start_ok(self, start_ok: k.ConnectionStartOk) -> None:
        self._expect("start-ok")
        login = sasl.read_plain(start_ok.response) if start_ok.mechanism in MECHANISMS else None
        if login is None or not self.config.authenticate(*login):
            self._deny(k.CONNECTION_FORCED, "Authentication failed")
            return
        self.user = login[0]
        heartbeat = min(ceil(self.limits.heartbeat), 0xFFFF)
        self.send_control(0, k.ConnectionTune(self._channels(), self._accepted, 0, heartbeat))
        self.awaited = "tune-ok"

    def _channels(self) -> int:
        return min(self.limits.channel_max, 0xFFFF)

    def _tune_ok(self, tune_ok: k.ConnectionTuneOk) -> None:
        self._expect("tune-ok")
        frame_max = min(FRAME_MAX, self.limits.frame_max) if not tune_ok.max_frame_size else tune_ok.max_frame_size
        if not FRAME_MIN <= frame_max <= max(self._accepted, FRAME_MIN):
            most = max(self._accepted, FRAME_MIN)
            raise FrameSyntaxError(
                f"connection.tune-ok with max-frame-size {frame_max}, not within {FRAME_MIN}..{most}"
            )
        if tune_ok.channel_max > self._channels():
            raise FrameSyntaxError(f"connection.tune-ok with channel-max {tune_ok.channel_max}")
        self.negotiated(tune_ok.channel_max or self._channels(), frame_max, tune_ok.heartbeat or 0)
        self.awaited = "open"

    def _open(self, open_: k.ConnectionOpen) -> None:
        self._expect("open")
        name = open_.virtual_host
        if not self.config.open_virtual_host(self.user, name):
            self._deny(k.INVALID_PATH, f"Unknown virtual host '{name}'")
            return
        self.send_control(0, k.ConnectionOpenOk())
        self.awaited = ""
        self.opened()
        self.events.append(Opened(0, self.user, name))

    def _deny(self, code: int, text: str) -> None:
        self.close(code, text, Closed(0, CloseReason.AUTHENTICATION, code, text))

    # -------------------------------------------------------------------------------------------- sessions

    def _attach(self, wire: int, control: k.Control) -> None:
        if self.phase is not Phase.OPEN:
            return
        if isinstance(control, k.SessionAttach):
            if len(control.name) > self.limits.short_string:
                limit = self.limits.short_string
                raise FrameSyntaxError(f"a session's name of {len(control.name)} octets is over {limit}")
            if control.name in self._names:
                self.send_control(wire, k.SessionDetached(control.name, SESSION_BUSY))
            elif len(self.channels) >= self.capabilities.channel_max:
                self.send_control(wire, k.SessionDetached(control.name, TRANSPORT_BUSY))
            else:
                self._names.add(control.name)
                self.channels[wire] = ServerChannel(self, wire, control.name)
        elif not isinstance(control, k.SessionDetached):
            name = control.name if isinstance(control, k.SessionDetach) else b""
            self.send_control(wire, k.SessionDetached(name, NOT_ATTACHED))

    def detach(self, wire: int) -> None:
        """See :class:`~gateway.v010.connection.Connection`."""
        self._names.discard(self.channels[wire].name)
        super().detach(wire)

    def _stray(self, wire: int) -> None:
        if self.phase is Phase.OPEN:
            self.send_control(wire, k.SessionDetached(b"", NOT_ATTACHED))

    controls: ClassVar[Mapping[type[k.Control], Callable[[Any, Any], None]]] = {
        k.ConnectionStartOk: _start_ok,
        k.ConnectionTuneOk: _tune_ok,
        k.ConnectionOpen: _open,
    }
