"""A server's end of a connection over 0-10: the handshake, and the sessions that clients attach."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import ceil
from typing import Any, ClassVar, Final

from gateway.amqp import sasl
from gateway.amqp.operations import Blocked, Close, Closed, CloseReason, Flow, Opened, Operation, Unblocked
from gateway.errors import FrameSyntaxError, StateError
from gateway.session import Capabilities, Confirms, Role, ServerConfig
from gateway.v010 import controls
from gateway.v010.connection import Connection, Phase
from gateway.v010.frames import FRAME_MAX, FRAME_MIN, PROTOCOL_HEADER
from gateway.v010.hosts import write_hosts
from gateway.v010.server_channel import ServerChannel

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
        self.capabilities = Capabilities(
            confirms=Confirms.COMPLETION,
            query_binding=True,
            mechanisms=sasl.offered_mechanisms(config, tables=False),
        )
        self.user = ""
        self.virtual_host = ""
        self._mechanism: sasl.ServerMechanism | None = None
        self.awaited = "the protocol header"
        self.parted: dict[int, ServerChannel] = {}
        """Sessions that have left this connection and are not back on another one, by channel: outcomes of what they
        have asked still reach them."""
        self._names: set[bytes] = set()
        """Of the sessions that are attached."""

    # --------------------------------------------------------------------------------------------- sending

    def send(self, operation: Operation, now: float) -> int:
        """See :class:`gateway.session.Session`."""
        self._tick(now)
        channel = self.channels.get(operation.channel - 1) or self.parted.get(operation.channel)
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
        code = operation.code if operation.code == controls.NORMAL else controls.CONNECTION_FORCED
        self.close(code, operation.text, Closed(0, CloseReason.LOCAL, operation.code, operation.text))

    def _block(self, blocked: bool) -> None:
        """0-10 has no method for the whole connection: each session gets one."""
        for channel in self.channels.values():
            if not channel.failed:
                channel.peer_flow(Flow(channel.number, not blocked))

    # ------------------------------------------------------------------------------------------- handshake

    def _greeted(self, header: bytes) -> None:
        self.out.append(PROTOCOL_HEADER)
        self.send_control(
            0, controls.ConnectionStart(self.config.properties or None, self.capabilities.mechanisms, LOCALES)
        )
        self.awaited = "start-ok"

    def _refused(self, header: bytes) -> None:
        self.out.append(PROTOCOL_HEADER)
        text = f"the client began with {header!r}"
        self.end(Closed(0, CloseReason.PROTOCOL_HEADER, 0, text))

    def _eof_reason(self) -> Closed:
        waited = f", waiting for {self.awaited}" if self.awaited else ""
        return Closed(0, CloseReason.EOF, 0, f"the stream ended{waited}")

    def _start_ok(self, start_ok: controls.ConnectionStartOk) -> None:
        self._expect("start-ok")
        mechanism = self._mechanism = sasl.server_mechanism(start_ok.mechanism, self.config)
        if mechanism is None:
            self._deny(controls.CONNECTION_FORCED, "Authentication failed")
        else:
            self._log_in(mechanism, start_ok.response)

    def _secure_ok(self, secure_ok: controls.ConnectionSecureOk) -> None:
        self._expect("secure-ok")
        assert self._mechanism is not None
        self._log_in(self._mechanism, secure_ok.response)

    def _log_in(self, mechanism: sasl.ServerMechanism, response: bytes) -> None:
        try:
            challenge = mechanism.respond(response)
        except sasl.SaslError:
            challenge = None
        if challenge is not None:
            self.send_control(0, controls.ConnectionSecure(challenge))
            self.awaited = "secure-ok"
            return
        if mechanism.pending is not None:
            self.awaited = "nothing yet"
            mechanism.pending.on_decision(self._decided)
            return
        self._answer_login(mechanism)

    def _decided(self, accepted: bool, unavailable: str, now: float) -> None:
        """Somebody else has checked the login."""
        mechanism = self._mechanism
        if self.phase is not Phase.HANDSHAKE or mechanism is None or mechanism.pending is None:
            return  # the client has gone in the meantime
        self.now = now
        mechanism.decide(accepted)
        if unavailable:
            self._deny(controls.CONNECTION_FORCED, unavailable)
        else:
            self._answer_login(mechanism)

    def _answer_login(self, mechanism: sasl.ServerMechanism) -> None:
        user = sasl.logged_in(mechanism, self.config)
        if user is None:
            self._deny(controls.CONNECTION_FORCED, "Authentication failed")
            return
        self.user = user
        self._mechanism = None
        heartbeat = min(ceil(self.limits.heartbeat), 0xFFFF)
        self.send_control(0, controls.ConnectionTune(self._channels(), self._accepted, 0, heartbeat))
        self.awaited = "tune-ok"

    def _channels(self) -> int:
        return min(self.limits.channel_max, 0xFFFF)

    def _tune_ok(self, tune_ok: controls.ConnectionTuneOk) -> None:
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

    def _open(self, open_: controls.ConnectionOpen) -> None:
        self._expect("open")
        name = open_.virtual_host
        if not self.config.open_virtual_host(self.user, name):
            self._deny(controls.INVALID_PATH, f"Unknown virtual host '{name}'")
            return
        redirect = self.config.redirect
        if redirect is not None and not open_.insist and (hosts := redirect(self.user, name)):
            self.send_control(0, controls.ConnectionRedirect(hosts[0], write_hosts(hosts[1:])))
            self.end(Closed(0, CloseReason.LOCAL, 0, f"redirected to {hosts[0]}", redirect=hosts))
            return
        self.send_control(0, controls.ConnectionOpenOk())
        self.virtual_host = name
        self.awaited = ""
        self.opened()
        self.events.append(Opened(0, self.user, name))

    def _deny(self, code: int, text: str) -> None:
        self.close(code, text, Closed(0, CloseReason.AUTHENTICATION, code, text))

    # -------------------------------------------------------------------------------------------- sessions

    def _attach(self, wire: int, control: controls.Control) -> None:
        if self.phase is not Phase.OPEN:
            return
        if isinstance(control, controls.SessionAttach):
            if len(control.name) > self.limits.short_string:
                limit = self.limits.short_string
                raise FrameSyntaxError(f"a session's name of {len(control.name)} octets is over {limit}")
            self._attach_session(wire, control.name, control.force)
        elif not isinstance(control, controls.SessionDetached):
            name = control.name if isinstance(control, controls.SessionDetach) else b""
            self.send_control(wire, controls.SessionDetached(name, NOT_ATTACHED))

    def _attach_session(self, wire: int, name: bytes, force: bool) -> None:
        """A new session, or one that is kept."""
        resume = self.config.resume_session
        try:
            if name in self._names and not force:
                raise StateError("it is attached to another channel")
            if len(self.channels) >= self.capabilities.channel_max:
                self.send_control(wire, controls.SessionDetached(name, TRANSPORT_BUSY))
                return
            known = None if resume is None else resume(self.user, self.virtual_host, name, force)
            if known is None and name in self._names:
                raise StateError("it is attached to another channel, and ends with that")
        except StateError:
            self.send_control(wire, controls.SessionDetached(name, SESSION_BUSY))
            return
        self._names.add(name)
        if known is None:
            self.channels[wire] = ServerChannel(self, wire, name)
        else:
            self.channels[wire] = known
            known.reattach(self, wire)

    def kept(self) -> int:
        """How many of its sessions outlive it."""
        return sum(channel.keep is not None for channel in self.channels.values())

    def detach(self, wire: int) -> None:
        """See :class:`~gateway.v010.connection.Connection`."""
        channel = self.channels.get(wire)
        if channel is not None:  # the connection may have ended while the session was being left
            self._names.discard(channel.name)
        super().detach(wire)

    def _stray(self, wire: int) -> None:
        if self.phase is Phase.OPEN:
            self.send_control(wire, controls.SessionDetached(b"", NOT_ATTACHED))

    control_handlers: ClassVar[Mapping[type[controls.Control], Callable[[Any, Any], None]]] = {
        controls.ConnectionStartOk: _start_ok,
        controls.ConnectionSecureOk: _secure_ok,
        controls.ConnectionTuneOk: _tune_ok,
        controls.ConnectionOpen: _open,
    }
