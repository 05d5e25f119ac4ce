"""A client's connection over 0-10: the handshake, and the sessions that are attached."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import ceil
from typing import Any, ClassVar, Final
from uuid import UUID

from gateway.amqp import sasl
from gateway.amqp.operations import Close, Closed, CloseReason, OpenChannel, Opened, Operation
from gateway.amqp.values import Table
from gateway.errors import EncodeError, FrameSyntaxError, StateError, Unsupported
from gateway.session import PROTOCOL_HEADERS, Capabilities, ClientConfig, Confirms, Role, not_amqp
from gateway.v010 import controls
from gateway.v010.client_channel import ClientChannel
from gateway.v010.connection import Connection, Phase
from gateway.v010.frames import FRAME_MAX, FRAME_MIN, PROTOCOL_HEADER
from gateway.v010.hosts import read_hosts

LOCALE: Final = "en_US"
_AUTHENTICATING: Final = frozenset({"secure", "tune"})
_LOGIN: Final = frozenset({"tune", "open-ok"})
"""What is awaited while the server owes an answer to our credentials or virtual host."""


class ClientSession(Connection[ClientChannel]):
    """AMQP 0-10 in the client role. See :class:`gateway.session.Session`."""

    role: ClassVar[Role] = Role.CLIENT

    def __init__(self, config: ClientConfig) -> None:
        super().__init__(config.limits)
        self.config = config
        self.user = config.user
        self.qpid = False
        """The broker is Broker-J: it stamps messages with milliseconds, and dead-letters by alternate exchange."""
        self.awaited = "the protocol header"
        self._mechanism: sasl.Mechanism | None = None
        self._attached = 0
        """How many sessions were attached; their names differ, even with equal random bytes."""
        self.out.append(PROTOCOL_HEADER)

    # ---------------------------------------------------------------------------------------------- sending

    def send(self, operation: Operation, now: float) -> int:
        """See :class:`gateway.session.Session`."""
        self._tick(now)
        channel = self.channels.get(operation.channel - 1)
        if channel is not None and type(operation) is not OpenChannel:
            return channel.send(operation)
        if isinstance(operation, Close):
            return self._send_close(operation)
        if self.phase is not Phase.OPEN:
            raise StateError(f"the connection is in phase {self.phase.value}: no {type(operation).__name__}")
        if type(operation) is not OpenChannel:
            raise StateError(f"channel {operation.channel} is not open: no {type(operation).__name__}")
        return self._open_channel(operation)

    def _send_close(self, operation: Close) -> int:
        if self.phase not in (Phase.HANDSHAKE, Phase.OPEN):
            raise StateError(f"the connection is in phase {self.phase.value}: no Close")
        for channel in self.channels.values():
            channel.flush()
            channel.forgo()
        self.close(operation.code, operation.text, Closed(0, CloseReason.LOCAL, operation.code, operation.text))
        return 1

    def _open_channel(self, operation: OpenChannel) -> int:
        number = operation.channel
        highest = min(self.capabilities.channel_max, 0x10000)
        if not 1 <= number <= highest:
            raise StateError(f"channel {number} is not within 1..{highest}")
        if number - 1 in self.channels:
            raise StateError(f"channel {number} is open")
        state = operation.state
        if state is not None:
            if not isinstance(state, ClientChannel) or not state.held or state.attached:
                raise StateError(f"channel {number}: that is no state of a session that is detached")
            self.channels[number - 1] = state
            return state.reattach(self, number - 1)
        if self.config.random_octets is None:
            raise Unsupported("0-10 needs ClientConfig.random_octets, for the name of the session")
        self._attached += 1
        name = f"{UUID(bytes=self.config.random_octets(16), version=4)}.{self._attached}".encode()
        self.channels[number - 1] = ClientChannel(self, number - 1, name, operation.timeout)
        return 1

    # -------------------------------------------------------------------------------------------- handshake

    def _greeted(self, header: bytes) -> None:
        self.awaited = "start"

    def _refused(self, header: bytes) -> None:
        supported = PROTOCOL_HEADERS.get(header)
        amqp = header[:4] == PROTOCOL_HEADER[:4]
        text = f"the server answered {header!r} to {PROTOCOL_HEADER!r}" if amqp else not_amqp(header)
        self.end(Closed(0, CloseReason.PROTOCOL_HEADER, 0, text, None if supported is None else supported.value))

    def _eof_reason(self) -> Closed:
        waited = f", waiting for {self.awaited}" if self.awaited else ""
        reason = CloseReason.LOGIN_CUT if self.awaited in _LOGIN else CloseReason.EOF
        return Closed(0, reason, 0, f"the stream ended{waited}")

    def _start(self, start: controls.ConnectionStart) -> None:
        self._expect("start")
        properties = start.server_properties or {}
        self.capabilities = learn(properties, start.mechanisms)
        self.qpid = is_broker_j(self.capabilities.product)
        config = self.config
        try:
            mechanism = self._mechanism = sasl.choose_mechanism(
                start.mechanisms, config.mechanisms, config.secure, config.user, config.password, config.random_octets
            )
            if mechanism is None:
                self._give_up(f"no mechanism in common: the server has {', '.join(start.mechanisms) or 'none'}")
                return
            self.user = mechanism.login
            response = mechanism.start()
            # Broker-J drops a connection whose properties hold an empty table.
            client_properties = {name: value for name, value in config.client_properties.items() if value != {}}
            if config.connection_name:
                client_properties.setdefault("clientName", config.connection_name)
            self.send_control(
                0, controls.ConnectionStartOk(client_properties or None, mechanism.name, response, LOCALE)
            )
        except (sasl.SaslError, EncodeError) as error:
            self._give_up(str(error))
            return
        self.awaited = "tune"

    def _secure(self, secure: controls.ConnectionSecure) -> None:
        self._expect("tune")
        assert self._mechanism is not None
        try:
            response = self._mechanism.challenge(secure.challenge)
        except sasl.SaslError as error:
            self._give_up(str(error))
            return
        self.send_control(0, controls.ConnectionSecureOk(response))

    def _tune(self, tune: controls.ConnectionTune) -> None:
        self._expect("tune")
        assert self._mechanism is not None
        try:
            self._mechanism.finish()
        except sasl.SaslError as error:
            self._give_up(str(error))
            return
        frame_max = FRAME_MAX if tune.max_frame_size is None else tune.max_frame_size
        if frame_max < FRAME_MIN:
            raise FrameSyntaxError(f"connection.tune with max-frame-size {frame_max}, below {FRAME_MIN}")
        frame_max = max(min(frame_max, self.limits.frame_max), FRAME_MIN)
        channel_max = min(0xFFFF if tune.channel_max is None else tune.channel_max, self.limits.channel_max)
        heartbeat = ceil(self.limits.heartbeat if self.config.heartbeat is None else self.config.heartbeat)
        heartbeat = min(heartbeat, 0xFFFF if tune.heartbeat_max is None else tune.heartbeat_max)
        heartbeat = max(heartbeat, tune.heartbeat_min or 0)
        self.send_control(0, controls.ConnectionTuneOk(channel_max, frame_max, heartbeat))
        self.negotiated(channel_max, frame_max, heartbeat)
        # The default virtual host has no name in 0-10; "/" is what the classic versions call it.
        config = self.config
        name = config.virtual_host
        try:
            self.send_control(0, controls.ConnectionOpen("" if name == "/" else name, None, config.insist))
        except EncodeError as error:
            self._give_up(str(error))
            return
        self.awaited = "open-ok"

    def _open_ok(self, open_ok: controls.ConnectionOpenOk) -> None:
        self._expect("open-ok")
        self.awaited = ""
        self.opened()
        self.events.append(Opened(0, self.user, self.config.virtual_host))

    def _redirect(self, redirect: controls.ConnectionRedirect) -> None:
        self._expect("open-ok")
        text = f"redirected to {redirect.host}"
        hosts = (redirect.host, *read_hosts(redirect.known_hosts, self.limits))
        closed = Closed(0, CloseReason.PEER, controls.CONNECTION_FORCED, text, redirect=hosts)
        self.close(controls.CONNECTION_FORCED, "redirected", closed)
        self.end(closed)

    def _give_up(self, text: str) -> None:
        closed = Closed(0, CloseReason.AUTHENTICATION, 403, text)
        self.close(controls.CONNECTION_FORCED, text, closed)
        self.end(closed)

    def _closed_by_peer(self, close: controls.ConnectionClose) -> None:
        refused = self.awaited in _AUTHENTICATING or (
            self.awaited == "open-ok" and close.reply_code == controls.INVALID_PATH
        )
        if refused and self.phase is Phase.HANDSHAKE:
            self.end(Closed(0, CloseReason.AUTHENTICATION, close.reply_code, close.reply_text))
        else:
            super()._closed_by_peer(close)

    def _attach(self, wire: int, control: controls.Control) -> None:
        """The session is gone here already; only a detach is worth an answer."""
        if type(control) is controls.SessionDetach:
            self.send_control(wire, controls.SessionDetached(control.name, 0))

    control_handlers: ClassVar[Mapping[type[controls.Control], Callable[[Any, Any], None]]] = {
        controls.ConnectionStart: _start,
        controls.ConnectionSecure: _secure,
        controls.ConnectionTune: _tune,
        controls.ConnectionOpenOk: _open_ok,
        controls.ConnectionRedirect: _redirect,
    }


def is_broker_j(product: str) -> bool:
    """Whether a product is Qpid's broker in Java, under any of its names; the one in C++ has other habits."""
    lowered = product.lower()
    return "qpid" in lowered and "cpp" not in lowered


def learn(properties: Table, mechanisms: tuple[str, ...]) -> Capabilities:
    """What a server can do, by its properties. Everything that speaks 0-10 confirms by completion; Broker-J's
    ways are known by its name."""

    def text(name: str) -> str:
        value = properties.get(name)
        return value if isinstance(value, str) else ""

    product = text("product")
    qpid = is_broker_j(product)
    return Capabilities(
        product=product,
        product_version=text("version"),
        platform=text("platform"),
        mechanisms=mechanisms,
        confirms=Confirms.COMPLETION,
        native_dead_letter=True,
        query_binding=True,
        browse=True,
        distributed=True,
        unknown_exchange_reported=not qpid,
        counts_unacked=qpid,
        transient_overtakes=qpid,
        redeclare_checked=not qpid,
        durable_storage=str(properties.get("durable_storage")).lower() != "false",
    )
