"""The client role: the handshake, the connection class, and what the server's properties teach.

The handshake is a table of what is expected next (0-9-1 section 4.2): start, then perhaps secure, then tune, then
open-ok. A server that ends the stream after the credentials and before tune has refused them: 0-8 and old clients of
0-9-1 have no other sign.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import ceil
from typing import Any, ClassVar, Final

from gateway.amqp import operations
from gateway.amqp.operations import Closed, CloseReason, Operation
from gateway.amqp.sasl import Mechanism, SaslError, choose_mechanism
from gateway.amqp.values import Table
from gateway.classic import methods
from gateway.classic.client_channel import ClientChannel, handlers
from gateway.classic.confirms import NACK_PATIENCE
from gateway.classic.connection import ClassicSession, ConnectionPhase
from gateway.classic.dialect import choose, refused_method
from gateway.classic.translate import Translator
from gateway.errors import EncodeError, FrameSyntaxError, StateError, Unsupported
from gateway.session import PROTOCOL_HEADERS, ClientConfig, Confirms, Role, not_amqp

CLIENT_CAPABILITIES: Final[Table] = {
    "publisher_confirms": True,
    "exchange_exchange_bindings": True,
    "basic.nack": True,
    "consumer_cancel_notify": True,
    "connection.blocked": True,
    "consumer_priorities": True,
    "authentication_failure_close": True,
    "per_consumer_qos": True,
    "direct_reply_to": True,
}
"""What we tell 0-9-1 brokers that we understand."""

CLIENT_PROPERTIES: Final[Table] = {
    "product": "amqp-gateway",
    "platform": "Python",
    "qpid.close_when_no_route": "false",
}
"""Client properties for every broker. The last one keeps Broker-J from ending the connection over a message that cannot
be routed in a transaction."""

REFUSALS: Final = frozenset({402, 403, 404, 530})
"""Codes of a close before open that mean: not with these credentials, not to this virtual host."""


class ClassicClient(ClassicSession[ClientChannel]):
    """A client session of 0-8 or 0-9-1. It has its protocol header to send when it is made."""

    role: ClassVar[Role] = Role.CLIENT

    def __init__(self, config: ClientConfig) -> None:
        super().__init__(config.limits)
        self.config = config
        self.serial = 0
        self.login = config.user
        """Who we are; empty: only the server knows."""
        self.secrets: list[int] = []
        """Serials of connection.update-secret without an answer."""
        self.may_nack = False
        """The broker knows basic.nack."""
        self.may_nack_many = False
        self.answers_cancels = False
        """The broker keeps the tag of a consumer that it has canceled until that is answered (RabbitMQ 4.3)."""
        self.dirty_channels: list[ClientChannel] = []
        self.nacked_channels: dict[int, ClientChannel] = {}
        self._expected: type[methods.Method] = methods.ConnectionStart
        self._mechanism: Mechanism | None = None
        self.out.append(self.dialect.version.header)

    # --------------------------------------------------------------------------------------------- sending

    def send(self, operation: Operation, now: float) -> int:
        """See :class:`gateway.session.Session`."""
        if self.now is None:
            self._tick(now)
        self.now = now
        if self.phase is not ConnectionPhase.OPEN:
            raise StateError(f"the connection is {self.phase.value}: no {type(operation).__name__}")
        channel = self.channels.get(operation.channel)
        if channel is not None:
            return channel.send(operation)
        if type(operation) is operations.OpenChannel:
            return self._open_channel(operation.channel)
        if not isinstance(operation, operations.Close | operations.UpdateSecret):
            raise StateError(f"channel {operation.channel} is not open: no {type(operation).__name__}")
        if operation.channel:
            raise StateError(f"{type(operation).__name__} concerns channel 0")
        if isinstance(operation, operations.UpdateSecret):
            return self._update_secret(operation)
        self._close(operation)
        self.serial += 1
        return self.serial

    def _update_secret(self, operation: operations.UpdateSecret) -> int:
        if not self.dialect.update_secret:
            raise Unsupported("connection.update-secret: this broker has no such thing")
        secret = operation.secret.encode("utf-8", "surrogateescape")
        self.send_method(0, methods.ConnectionUpdateSecret(secret, operation.reason))
        self.serial += 1
        self.secrets.append(self.serial)
        return self.serial

    def _open_channel(self, number: int) -> int:
        if not 1 <= number <= self.channel_max:
            raise StateError(f"channel {number} is not within 1..{self.channel_max}")
        channel = ClientChannel(self, number)
        serial = channel.ask(operations.OpenChannel(number))
        self.channels[number] = channel
        return serial

    def _close(self, operation: operations.Close) -> None:
        for channel in list(self.dirty_channels):
            channel.flush()
        self.close(operation.code, operation.text, 0, Closed(0, CloseReason.LOCAL, operation.code, operation.text))

    def _flush(self) -> None:
        if self.dirty_channels:
            channels, self.dirty_channels = self.dirty_channels, []
            for channel in channels:
                channel.flush()

    def forget(self, channel: ClientChannel) -> None:
        """The channel is over."""
        channel.forget()
        self.channels.pop(channel.number, None)
        self.nacked_channels.pop(channel.number, None)
        if channel in self.dirty_channels:
            self.dirty_channels.remove(channel)

    # ------------------------------------------------------------------------------------------- receiving

    def _header(self, data: bytes) -> int:
        """The first octets: a frame, or the header of a server that wants another version."""
        header = self.dialect.version.header
        if data[:1] == b"A":
            if b"AMQP".startswith(data[:4]) and len(data) < len(header):
                self._need = len(data) + 1
                return 0
            wanted = PROTOCOL_HEADERS.get(data[: len(header)])
            if data[:4] == b"AMQP":
                text = f"the server answered {header[4:].hex(' ')} with {data[4:8].hex(' ')}"
                self.end(Closed(0, CloseReason.PROTOCOL_HEADER, 0, text, supported=wanted.value if wanted else None))
                return len(data)
        if data[:1] != b"\x01":
            self.end(Closed(0, CloseReason.PROTOCOL_HEADER, 0, not_amqp(data)))
            return len(data)
        self.phase = ConnectionPhase.HANDSHAKE
        return 0

    def _connection_method(self, key: int, data: bytes, at: int, end: int) -> None:
        method = self.dialect.methods.get(key)
        handler = CONNECTION.get(method.meaning) if method is not None else None
        if method is None or handler is None:
            raise FrameSyntaxError(f"there is no method {key >> 16}.{key & 0xFFFF} on channel 0", 503)
        handler(self, method.decode(data, at, end, self.tables))

    def _unknown_channel(self, number: int, key: int, data: bytes, at: int, end: int) -> None:
        if key == methods.ChannelCloseOk.key:
            return  # both sides closed it at once
        raise FrameSyntaxError(f"a method on channel {number}, which is not open", 504)

    def _expect(self, method: methods.Method) -> None:
        if self.phase is not ConnectionPhase.HANDSHAKE or (
            self._expected is not type(method)
            and not (type(method) is methods.ConnectionSecure and self._expected is methods.ConnectionTune)
        ):
            raise FrameSyntaxError(f"{method.name} where {self._awaited()} was due", 503)

    def started(self, method: methods.ConnectionStart) -> None:
        """connection.start: choose dialect and mechanism."""
        self._expect(method)
        version = (method.version_major, method.version_minor)
        if version != self.dialect.start_version:
            text = f"the server answered with version {version[0]}-{version[1]}"
            self.end(Closed(0, CloseReason.PROTOCOL_HEADER, 0, text))
            return
        self._learn(method)
        config = self.config
        try:
            mechanism = choose_mechanism(
                self.capabilities.mechanisms, config.mechanisms, config.secure, config.user, config.password,
                config.random_octets,
            )  # fmt: skip
            if mechanism is None:
                offered = " ".join(self.capabilities.mechanisms)
                raise SaslError(f"none of the mechanisms offered ({offered}) may be used on this connection")
            self._mechanism = mechanism
            self.login = mechanism.login
            response = mechanism.start()
        except SaslError as error:
            self.end(Closed(0, CloseReason.AUTHENTICATION, 403, str(error)))
            return
        self._expected = methods.ConnectionTune
        self.translator = Translator(self.dialect, self.tables, self.login, self.config.wall_clock)
        self.send_method(0, methods.ConnectionStartOk(self._client_properties(), mechanism.name, response))

    def _client_properties(self) -> Table:
        properties: Table = {**CLIENT_PROPERTIES, **self.config.client_properties}
        if self.config.connection_name:
            properties["connection_name"] = self.config.connection_name
        if self.dialect.capabilities_table:
            properties["capabilities"] = CLIENT_CAPABILITIES
        return properties

    def _learn(self, method: methods.ConnectionStart) -> None:
        properties = method.server_properties
        product = _text(properties, "product")
        self.use_dialect(choose(self.dialects, product, self.config.dialect))
        dialect = self.dialect
        table = properties.get("capabilities")
        offers: Table = table if isinstance(table, dict) else {}
        known = self.capabilities
        known.product, known.product_version = product, _text(properties, "version")
        known.platform = _text(properties, "platform")
        known.mechanisms = tuple(method.mechanisms.decode("utf-8", "replace").split())
        confirms = offers.get("publisher_confirms") is True or _text(properties, CONFIRMS_PROPERTY) == "true"
        known.confirms = Confirms.NATIVE if confirms else Confirms.TRANSACTION
        # Broker-J knows basic.nack wherever it confirms, and has no table to say so.
        self.may_nack = offers.get("basic.nack") is True or (confirms and not offers)
        self.may_nack_many = known.release_many = self.may_nack and dialect.release_many
        self.answers_cancels = offers.get("accept_consumer_cancel_ok") is True
        known.native_dead_letter = dialect.native_dead_letter
        known.browse = dialect.browse
        known.blocked_notification = offers.get("connection.blocked") is True
        known.consumer_cancel_notify = offers.get("consumer_cancel_notify") is True
        known.exchange_bindings = offers.get("exchange_exchange_bindings") is True
        known.unbind_queue = dialect.unbind_queue
        known.query_binding = dialect.query_binding
        known.counts_unacked = dialect.counts_unacked
        known.routes_copies = dialect.routes_copies
        known.redeclare_checked = dialect.redeclare_checked
        known.absolute_expiration = dialect.absolute_expiration
        known.transient_overtakes = dialect.transient_overtakes
        known.durable_storage = _text(properties, DURABLE_PROPERTY) != "false"
        known.update_secret = dialect.update_secret
        self.handlers = handlers(dialect)

    def secured(self, method: methods.ConnectionSecure) -> None:
        """connection.secure: answer the challenge."""
        self._expect(method)
        assert self._mechanism is not None
        try:
            response = self._mechanism.challenge(method.challenge)
        except SaslError as error:
            self.end(Closed(0, CloseReason.AUTHENTICATION, 403, str(error)))
            return
        self.send_method(0, methods.ConnectionSecureOk(response))

    def tuned(self, method: methods.ConnectionTune) -> None:
        """connection.tune: agree, then open."""
        self._expect(method)
        assert self._mechanism is not None
        try:
            self._mechanism.finish()
        except SaslError as error:
            self.end(Closed(0, CloseReason.AUTHENTICATION, 403, str(error)))
            return
        limits = self.limits
        if 0 < method.frame_max < limits.frame_max_floor:
            raise FrameSyntaxError(f"frame_max {method.frame_max} is below {limits.frame_max_floor}", 502)
        wanted = limits.heartbeat if self.config.heartbeat is None else self.config.heartbeat
        offered = method.heartbeat
        # 0 is no limit, and no heartbeat of the server's own wish; one that we wish for it sends all the same.
        heartbeat = ceil(min(wanted, offered) if offered and wanted else wanted)
        channel_max = min(limits.channel_max, method.channel_max or limits.channel_max)
        frame_max = min(limits.frame_max, method.frame_max or limits.frame_max)
        self.send_method(0, methods.ConnectionTuneOk(channel_max, frame_max, heartbeat))
        self.negotiated(channel_max, frame_max, heartbeat)
        try:
            self.send_method(0, methods.ConnectionOpen(self.config.virtual_host, "", self.config.insist))
        except EncodeError as error:
            self.end(Closed(0, CloseReason.AUTHENTICATION, 530, str(error)))
            return
        self._expected = methods.ConnectionOpenOk

    def connected(self, method: methods.ConnectionOpenOk) -> None:
        """connection.open-ok."""
        self._expect(method)
        self.opened()
        self.emit(operations.Opened(0, self.login, self.config.virtual_host))

    def redirected(self, method: methods.ConnectionRedirect) -> None:
        """connection.redirect of 0-8: whether to go there is not for a session to decide. Its list of known hosts has
        no syntax in the definition; spaces and commas are in use."""
        if self.phase is not ConnectionPhase.HANDSHAKE or self._expected is not methods.ConnectionOpenOk:
            raise FrameSyntaxError(f"{method.name} where {self._awaited()} was due", 503)
        hosts = (method.host, *method.known_hosts.replace(",", " ").split())
        self.end(Closed(0, CloseReason.PEER, 0, f"redirected to {method.host}", redirect=hosts))

    def secret_updated(self, method: methods.ConnectionUpdateSecretOk) -> None:
        """connection.update-secret-ok."""
        if not self.secrets:
            raise FrameSyntaxError("update-secret-ok where no update-secret was sent", 503)
        serial = self.secrets.pop(0)
        self.emit(operations.Done(0, serial, serial))

    def closed_by_peer(self, method: methods.ConnectionClose) -> None:
        """connection.close of the broker."""
        self.send_method(0, self.dialect.connection_close_ok())
        if self.phase is ConnectionPhase.CLOSING:
            return  # the answer to ours is still due
        reason = CloseReason.PEER
        if self.phase is ConnectionPhase.HANDSHAKE and method.reply_code in REFUSALS:
            reason = CloseReason.AUTHENTICATION
        key = method.class_id_ << 16 | method.method_id_
        text = refused_method(self.dialect, method.reply_code, method.reply_text, key)
        failed = [channel for channel in self.channels.values() if channel.asked_with(key) is not None]
        if len(failed) == 1:
            failed[0].fail_request(key, method.reply_code, text)
        self.end(Closed(0, reason, method.reply_code, text))

    def closed_by_us(self, method: methods.ConnectionCloseOk) -> None:
        """connection.close-ok."""
        if self.phase is not ConnectionPhase.CLOSING:
            raise FrameSyntaxError("close-ok where no close was sent", 503)
        self.finish_close()

    def blocked(self, method: methods.ConnectionBlocked) -> None:
        """connection.blocked."""
        self.emit(operations.Blocked(0, method.reason))

    def unblocked(self, method: methods.ConnectionUnblocked) -> None:
        """connection.unblocked."""
        self.emit(operations.Unblocked(0))

    def violation(self, error: FrameSyntaxError, key: int) -> None:
        """See :class:`~gateway.classic.connection.ClassicSession`."""
        closing = Closed(0, CloseReason.SYNTAX, error.reply_code, str(error))
        if self.phase is not ConnectionPhase.CLOSING:
            self.close(error.reply_code, str(error), key, closing)
        self.end(self._ending or closing)

    def end(self, closed: Closed) -> None:
        """The connection is over; refused publishes that never returned are reported first."""
        for channel in list(self.nacked_channels.values()):
            channel.refuse_nacked()
        super().end(closed)

    def _eof_reason(self) -> Closed:
        if self.phase is ConnectionPhase.HANDSHAKE and self._expected is methods.ConnectionTune:
            return Closed(0, CloseReason.LOGIN_CUT, 0, "the server hung up on our credentials")
        if self.phase is ConnectionPhase.HANDSHAKE and self._expected is methods.ConnectionOpenOk:
            text = f"the server hung up on the virtual host {self.config.virtual_host!r}"
            return Closed(0, CloseReason.LOGIN_CUT, 0, text)
        return Closed(0, CloseReason.EOF, 0, f"the stream ended where {self._awaited()} was due")

    def _awaited(self) -> str:
        return "anything" if self.phase is ConnectionPhase.OPEN else self._expected.name

    def _more_timeouts(self) -> list[float]:
        # A return whose content is still coming is waited for: its last frame decides, not the clock.
        return [channel.nacked_at + NACK_PATIENCE for channel in self.nacked_channels.values() if not channel.awaiting]

    def _handle_more_timeouts(self, now: float) -> None:
        for channel in list(self.nacked_channels.values()):
            if now >= channel.nacked_at + NACK_PATIENCE and not channel.awaiting:
                channel.refuse_nacked()


CONFIRMS_PROPERTY: Final = "qpid.confirmed_publish_supported"
"""Server property by which Broker-J, and our own servers in 0-8, say that they confirm."""
DURABLE_PROPERTY: Final = "durable_storage"
"""Server property by which our own broker says that it keeps nothing: the string ``false``."""

CONNECTION: Final[Mapping[type[methods.Method], Callable[[ClassicClient, Any], None]]] = {
    methods.ConnectionStart: ClassicClient.started,
    methods.ConnectionSecure: ClassicClient.secured,
    methods.ConnectionTune: ClassicClient.tuned,
    methods.ConnectionOpenOk: ClassicClient.connected,
    methods.ConnectionRedirect: ClassicClient.redirected,
    methods.ConnectionClose: ClassicClient.closed_by_peer,
    methods.ConnectionCloseOk: ClassicClient.closed_by_us,
    methods.ConnectionUpdateSecretOk: ClassicClient.secret_updated,
    methods.ConnectionBlocked: ClassicClient.blocked,
    methods.ConnectionUnblocked: ClassicClient.unblocked,
}
"""What may come on channel 0."""


def _text(properties: Table, name: str) -> str:
    value = properties.get(name, "")
    if isinstance(value, bool):
        return str(value).lower()
    return value if isinstance(value, str) else ""
