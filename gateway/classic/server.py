"""The server role: the handshake as a server leads it, the connection class, and what clients expect.

Answers are those of RabbitMQ, since that is what clients were written against. A refused login gets a connection.close
with 403: Qpid's JMS client waits for ever on a socket that only closes. Clients of 0-9-1 without the capability
``authentication_failure_close`` are not waited for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Final

from gateway.amqp import operations
from gateway.amqp.operations import Closed, CloseReason, Operation
from gateway.amqp.sasl import SaslError, ServerMechanism, logged_in, offered_mechanisms, server_mechanism
from gateway.amqp.values import Table
from gateway.classic import methods
from gateway.classic.client import CONFIRMS_PROPERTY
from gateway.classic.connection import ClassicSession, ConnectionPhase
from gateway.classic.dialect import choose
from gateway.classic.server_channel import ServerChannel, handlers
from gateway.classic.translate import Translator
from gateway.errors import FrameSyntaxError, StateError, Unsupported
from gateway.session import PROTOCOL_HEADERS, Confirms, Role, ServerConfig

SERVER_CAPABILITIES: Final[Table] = {
    "publisher_confirms": True,
    "exchange_exchange_bindings": True,
    "basic.nack": True,
    "consumer_cancel_notify": True,
    "accept_consumer_cancel_ok": True,
    "connection.blocked": True,
    "consumer_priorities": True,
    "authentication_failure_close": True,
    "per_consumer_qos": True,
}
"""Capabilities for clients of 0-9-1."""


class ClassicServer(ClassicSession[ServerChannel]):
    """A server session of 0-8 or 0-9-1. The protocol header is the first thing it receives."""

    role: ClassVar[Role] = Role.SERVER

    def __init__(self, config: ServerConfig) -> None:
        super().__init__(config.limits)
        self.config = config
        self.user = ""
        self.waits = False
        """The client reads a connection.close that refuses its login."""
        self._mechanism: ServerMechanism | None = None
        self.places: dict[bytes, tuple[str, str, bool, bool]] = {}
        """The octets of basic.publish methods seen lately -> what they say. A client may have 2,047 channels, and
        publish to as many places on each, so they share it."""
        self.targets: dict[tuple[str, str, str], tuple[bytes, bytes]] = {}
        """Consumer tag, exchange and routing key of deliveries lately -> the octets of their methods around what
        differs."""
        self._expected: type[methods.Method] | None = methods.ConnectionStartOk
        """None: the client waits for us."""

    # --------------------------------------------------------------------------------------------- sending

    def send(self, operation: Operation, now: float) -> int:
        """See :class:`gateway.session.Session`."""
        if self.now is None:
            self._tick(now)
        self.now = now
        channel = self.channels.get(operation.channel)
        if channel is not None:
            return channel.send(operation)
        if self.phase is not ConnectionPhase.OPEN:
            raise StateError(f"the connection is {self.phase.value}: no {type(operation).__name__}")
        if operation.channel:
            raise StateError(f"channel {operation.channel} is not open: no {type(operation).__name__}")
        sender = SENDERS.get(type(operation))
        if sender is None:
            raise Unsupported(f"a server does not send {type(operation).__name__} on channel 0")
        sender(self, operation)
        return 0

    def _send_close(self, operation: operations.Close) -> None:
        self.close(operation.code, operation.text, 0, Closed(0, CloseReason.LOCAL, operation.code, operation.text))

    def _send_blocked(self, operation: operations.Blocked) -> None:
        if self.capabilities.blocked_notification:
            self.send_method(0, methods.ConnectionBlocked(operation.reason))

    def _send_unblocked(self, operation: operations.Unblocked) -> None:
        if self.capabilities.blocked_notification:
            self.send_method(0, methods.ConnectionUnblocked())

    def close_failed(self, code: int, text: str, key: int) -> None:
        """A request failed with a code that ends the connection."""
        self.close(code, text, key, Closed(0, CloseReason.LOCAL, code, text))

    def close(self, code: int, text: str, key: int, ending: Closed) -> None:
        """Send connection.close; what still comes on channels is passed over."""
        super().close(code, text, key, ending)
        for channel in self.channels.values():
            channel.forget()
        self.channels.clear()

    def forget(self, channel: ServerChannel) -> None:
        """The channel is over; its number is free."""
        channel.forget()
        self.channels.pop(channel.number, None)

    # ------------------------------------------------------------------------------------------- receiving

    def _header(self, data: bytes) -> int:
        header = self.dialect.version.header
        if not header.startswith(data[: len(header)]):
            self.out.append(header)
            wanted = PROTOCOL_HEADERS.get(data[: len(header)])
            text = f"the client began with {data[: len(header)]!r}"
            self.end(Closed(0, CloseReason.PROTOCOL_HEADER, 0, text, supported=wanted.value if wanted else None))
            return len(data)
        if len(data) < len(header):
            self._need = len(header)
            return 0
        self.phase = ConnectionPhase.HANDSHAKE
        properties: Table = dict(self.config.properties)
        if self.dialect.capabilities_table:
            offered = properties.get("capabilities")
            properties["capabilities"] = {**SERVER_CAPABILITIES, **(offered if isinstance(offered, dict) else {})}
        else:
            properties[CONFIRMS_PROPERTY] = "true"
        mechanisms = " ".join(offered_mechanisms(self.config, tables=True)).encode()
        self.send_method(0, methods.ConnectionStart(*self.dialect.start_version, properties, mechanisms))
        return len(header)

    def _connection_method(self, key: int, data: bytes, at: int, end: int) -> None:
        method = self.dialect.methods.get(key)
        handler = CONNECTION.get(method.meaning) if method is not None else None
        if self.phase is ConnectionPhase.CLOSING:
            if method is self.dialect.connection_close_ok:
                self.finish_close()
            elif method is self.dialect.connection_close:
                self.send_method(0, self.dialect.connection_close_ok())
            return
        if method is None or handler is None:
            raise FrameSyntaxError(f"there is no method {key >> 16}.{key & 0xFFFF} on channel 0", 503)
        handler(self, method.decode(data, at, end, self.tables))

    def _unknown_channel(self, number: int, key: int, data: bytes, at: int, end: int) -> None:
        if self.phase is ConnectionPhase.CLOSING or key == methods.ChannelCloseOk.key:
            return
        if self.phase is not ConnectionPhase.OPEN:
            raise FrameSyntaxError(f"a method on channel {number} before the connection is open", 503)
        if key == methods.ChannelClose.key:
            # Closed by both sides at once, and our close-ok is what the client waits for.
            self.send_method(number, methods.ChannelCloseOk())
            return
        if key != methods.ChannelOpen.key:
            raise FrameSyntaxError(f"channel {number} is not open", 504)
        if len(self.channels) >= self.channel_max:
            raise FrameSyntaxError(f"more than {self.channel_max} channels are open", 530)
        method = methods.ChannelOpen.decode(data, at, end, self.tables)
        channel = self.channels[number] = ServerChannel(self, number)
        channel.request(method)

    def _stray_content(self, number: int) -> None:
        if self.phase is not ConnectionPhase.CLOSING:
            super()._stray_content(number)

    def _expect(self, method: methods.Method) -> None:
        if self.phase is not ConnectionPhase.HANDSHAKE or self._expected is not type(method):
            raise FrameSyntaxError(f"{method.name} where {self._awaited()} was due", 503)

    def started(self, method: methods.ConnectionStartOk) -> None:
        """connection.start-ok: who is it, and what can it hear?"""
        self._expect(method)
        properties = method.client_properties
        product = properties.get("product")
        self.use_dialect(choose(self.dialects, product if isinstance(product, str) else ""))
        table = properties.get("capabilities")
        hears: Table = table if isinstance(table, dict) else {}
        version, platform = properties.get("version"), properties.get("platform")
        known = self.capabilities
        known.product = product if isinstance(product, str) else ""
        known.product_version = version if isinstance(version, str) else ""
        known.platform = platform if isinstance(platform, str) else ""
        known.mechanisms = (method.mechanism,)
        known.confirms = Confirms.NATIVE
        known.blocked_notification = (
            hears.get("connection.blocked") is True and methods.ConnectionBlocked.key in self.dialect.methods
            and self.dialect.methods[methods.ConnectionBlocked.key] is methods.ConnectionBlocked
        )  # fmt: skip
        known.consumer_cancel_notify = hears.get("consumer_cancel_notify") is True
        known.absolute_expiration = self.dialect.absolute_expiration
        known.form = self.dialect.name
        waits = hears.get("authentication_failure_close") is True
        self.waits = waits or not self.dialect.capabilities_table or self.dialect.browse
        self._mechanism = server_mechanism(method.mechanism, self.config, self.tables.read_entries)
        if self._mechanism is None:
            raise FrameSyntaxError(f"there is no mechanism {method.mechanism!r:.80} here", 503)
        self._log_in(self._mechanism, method.response)

    def secured(self, method: methods.ConnectionSecureOk) -> None:
        """connection.secure-ok: the response to a challenge."""
        self._expect(method)
        assert self._mechanism is not None
        self._log_in(self._mechanism, method.response)

    def _log_in(self, mechanism: ServerMechanism, response: bytes) -> None:
        try:
            challenge = mechanism.respond(response)
        except SaslError:
            challenge = None
        if challenge is not None:
            self._expected = methods.ConnectionSecureOk
            self.send_method(0, methods.ConnectionSecure(challenge))
            return
        if mechanism.pending is not None:
            self._expected = None
            mechanism.pending.on_decision(self._decided)
            return
        self._answer_login(mechanism)

    def _decided(self, accepted: bool, unavailable: str, now: float) -> None:
        """Somebody else has checked the login."""
        mechanism = self._mechanism
        if self.phase is not ConnectionPhase.HANDSHAKE or mechanism is None or mechanism.pending is None:
            return  # the client has gone in the meantime
        self.now = now
        mechanism.decide(accepted)
        if unavailable:
            self._deny(320, f"CONNECTION_FORCED - {unavailable}"[:255])
        else:
            self._answer_login(mechanism)

    def _deny(self, code: int, text: str) -> None:
        ending = Closed(0, CloseReason.AUTHENTICATION, code, text)
        self.close(code, text, 0, ending)
        if not self.waits:
            self.end(ending)

    def _answer_login(self, mechanism: ServerMechanism) -> None:
        user = logged_in(mechanism, self.config)
        if user is None:
            (name,) = self.capabilities.mechanisms
            self._deny(403, f"Login was refused using authentication mechanism {name}.")
            return
        self.user = user
        self._mechanism = None
        limits = self.limits
        self._expected = methods.ConnectionTuneOk
        self.send_method(0, methods.ConnectionTune(limits.channel_max, limits.frame_max, int(limits.heartbeat)))

    def tuned(self, method: methods.ConnectionTuneOk) -> None:
        """connection.tune-ok: the client may lower what it was offered; 0 leaves it."""
        self._expect(method)
        limits = self.limits
        if method.frame_max and not limits.frame_max_floor <= method.frame_max <= limits.frame_max:
            text = f"frame_max {method.frame_max} is not within {limits.frame_max_floor}..{limits.frame_max}"
            raise FrameSyntaxError(text, 530)
        if method.channel_max > limits.channel_max:
            raise FrameSyntaxError(f"channel_max {method.channel_max} is over {limits.channel_max}", 530)
        channel_max, frame_max = method.channel_max or limits.channel_max, method.frame_max or limits.frame_max
        self.negotiated(channel_max, frame_max, method.heartbeat)
        self.translator = Translator(self.dialect, self.tables, None, self.config.wall_clock)
        self.handlers = handlers(self.dialect)
        self._expected = methods.ConnectionOpen

    def open_requested(self, method: methods.ConnectionOpen) -> None:
        """connection.open: the virtual host."""
        self._expect(method)
        name = method.virtual_host
        if not self.config.open_virtual_host(self.user, name):
            text = f"vhost {name} not found"
            self.close(530, text, method.key, Closed(0, CloseReason.AUTHENTICATION, 530, text))
            return
        if (hosts := self._elsewhere(method)) and (redirect := self.dialect.redirect):
            self.send_method(0, redirect(hosts[0], " ".join(hosts[1:])))
            self.end(Closed(0, CloseReason.LOCAL, 0, f"redirected to {hosts[0]}", redirect=hosts))
            return
        self.opened()
        self.send_method(0, methods.ConnectionOpenOk())
        self.emit(operations.Opened(0, self.user, name))

    def _elsewhere(self, method: methods.ConnectionOpen) -> tuple[str, ...]:
        """Where the client is to go instead; none: it stays. Not every version has a word for it."""
        redirect = self.config.redirect
        if redirect is None or method.insist or self.dialect.redirect is None:
            return ()
        return redirect(self.user, method.virtual_host)

    def closed_by_peer(self, method: methods.ConnectionClose) -> None:
        """connection.close of the client."""
        self.send_method(0, self.dialect.connection_close_ok())
        self.end(Closed(0, CloseReason.PEER, method.reply_code, method.reply_text))

    def secret_updated(self, method: methods.ConnectionUpdateSecret) -> None:
        """connection.update-secret: the new password must be good, too."""
        if self.phase is not ConnectionPhase.OPEN:
            raise FrameSyntaxError(f"{method.name} where {self._awaited()} was due", 503)
        secret = method.new_secret.decode("utf-8", "surrogateescape")
        if self.config.authenticate(self.user, secret) is not True:
            raise FrameSyntaxError("the new secret was refused", 530)
        self.send_method(0, methods.ConnectionUpdateSecretOk())

    def violation(self, error: FrameSyntaxError, key: int) -> None:
        """See :class:`~gateway.classic.connection.ClassicSession`."""
        if self.phase is ConnectionPhase.CLOSING:
            return  # what follows broken framing cannot be read; the stream's end or the deadline will come
        self.close(error.reply_code, str(error), key, Closed(0, CloseReason.SYNTAX, error.reply_code, str(error)))

    def _eof_reason(self) -> Closed:
        return Closed(0, CloseReason.EOF, 0, "the client hung up")

    def _awaited(self) -> str:
        if self.phase is ConnectionPhase.OPEN:
            return "a method on a channel"
        return "no method yet" if self._expected is None else self._expected.name


SENDERS: Final[Mapping[type[Operation], Callable[[ClassicServer, Any], None]]] = {
    operations.Close: ClassicServer._send_close,
    operations.Blocked: ClassicServer._send_blocked,
    operations.Unblocked: ClassicServer._send_unblocked,
}

CONNECTION: Final[Mapping[type[methods.Method], Callable[[ClassicServer, Any], None]]] = {
    methods.ConnectionStartOk: ClassicServer.started,
    methods.ConnectionSecureOk: ClassicServer.secured,
    methods.ConnectionTuneOk: ClassicServer.tuned,
    methods.ConnectionOpen: ClassicServer.open_requested,
    methods.ConnectionClose: ClassicServer.closed_by_peer,
    methods.ConnectionUpdateSecret: ClassicServer.secret_updated,
}
"""What may come on channel 0."""
