"""The other end of a classic session, method by method.

A :class:`ScriptedServer` talks to a client session, a :class:`ScriptedClient` to a server session. ``say`` sends
methods (and content), ``heard`` is what the session has sent since it was last asked.
"""

from __future__ import annotations

from typing import Any

from gateway.amqp.operations import Done, OpenChannel, Operation
from gateway.amqp.values import Table
from gateway.classic import methods as m
from gateway.classic.connection import ClassicSession
from gateway.classic.dialect import Dialect, choose
from gateway.classic.frames import FRAME_HEADER, content_frames, method_frame
from gateway.classic.tables import QPID_TAGS, TableCodec
from gateway.session import ClientConfig, ServerConfig, Version
from tests.pair import CLIENT, SERVER, client_session, server_session

RABBITMQ: Table = {
    "product": "RabbitMQ",
    "version": "3.10.8",
    "platform": "Erlang/OTP",
    "capabilities": {
        "publisher_confirms": True,
        "basic.nack": True,
        "consumer_cancel_notify": True,
        "connection.blocked": True,
        "exchange_exchange_bindings": True,
    },
}
OLD_RABBITMQ: Table = {"product": "RabbitMQ", "version": "3.10.8", "capabilities": {}}
QPID: Table = {"product": "qpid", "version": "9.2.1", "qpid.confirmed_publish_supported": "true"}

Heard = tuple[int, Any]
"""Channel and method; for content, channel and ``(properties, body)``."""


class Script:
    """What both ends have in common."""

    session: ClassicSession[Any]

    def __init__(self) -> None:
        self.now = 1_000.0
        self.tables = TableCodec(QPID_TAGS)

    @property
    def dialect(self) -> Dialect:
        return self.session.dialect

    def receive(self, data: bytes) -> list[Operation]:
        """Octets for the session."""
        return self.session.receive_data(data, self.now)

    def say(self, *methods: m.Method, channel: int = 1) -> list[Operation]:
        """Methods for the session."""
        return self.receive(b"".join(method_frame(channel, method.encode(self.tables)) for method in methods))

    def say_content(
        self, method: m.Method, body: bytes = b"body", octets: bytes = b"\x00\x00", channel: int = 1
    ) -> list[Operation]:
        """A method with content for the session."""
        frame = method_frame(channel, method.encode(self.tables))
        return self.receive(b"".join(content_frames(channel, frame, octets, body, 4_096)))

    def heard(self) -> list[Heard]:
        """What the session has sent."""
        return self.parse(b"".join(self.session.data_to_send()))

    def parse(self, data: bytes) -> list[Heard]:
        """Methods and contents of these octets."""
        result: list[Heard] = []
        at, octets, body, left = 0, b"", b"", 0
        while at < len(data):
            kind, channel, size = FRAME_HEADER.unpack_from(data, at)
            start, at = at + 7, at + size + 8
            payload = data[start : start + size]
            if kind == 1:
                method = self.dialect.methods[int.from_bytes(payload[:4], "big")]
                if method is m.BasicConsume and not self.dialect.consume_arguments:
                    method = m.BasicConsume08
                result.append((channel, method.decode(payload, 4, size, self.tables)))
            elif kind == 2:
                octets, body, left = payload[12:], b"", int.from_bytes(payload[4:12], "big")
            elif kind == 3:
                body += payload
                left -= size
            else:
                result.append((channel, "heartbeat"))
            if kind in (2, 3) and left == 0:
                result.append((channel, (octets, body)))
        return result


class ScriptedServer(Script):
    """A server at the other end of a client session."""

    def __init__(self, version: Version, properties: Table = RABBITMQ, config: ClientConfig = CLIENT) -> None:
        super().__init__()
        self.session = client_session(version, config)  # type: ignore[assignment]
        self.properties = properties

    def shake_hands(self) -> list[Operation]:
        """The whole handshake; what the client says of it."""
        header = b"".join(self.session.data_to_send())
        assert header == self.dialect.version.header
        major, minor = self.dialect.start_version
        assert self.say(m.ConnectionStart(major, minor, self.properties, b"PLAIN AMQPLAIN"), channel=0) == []
        ((_, start_ok),) = self.heard()
        assert isinstance(start_ok, m.ConnectionStartOk)
        assert self.say(m.ConnectionTune(0, 0, 0), channel=0) == []
        assert [type(method) for _, method in self.heard()] == [m.ConnectionTuneOk, m.ConnectionOpen]
        return self.say(m.ConnectionOpenOk(), channel=0)

    def open(self, *channels: int) -> ScriptedServer:
        """Handshake and open channels (1 if none is named)."""
        self.shake_hands()
        for channel in channels or (1,):
            self.session.send(OpenChannel(channel), self.now)
            self.heard()
            self.say(self.dialect.channel_open_ok(), channel=channel)
        return self

    def send(self, *operations: Operation) -> list[int]:
        """The client's user asks; the serials."""
        return [self.session.send(operation, self.now) for operation in operations]


class ScriptedClient(Script):
    """A client at the other end of a server session."""

    def __init__(self, version: Version, properties: Table | None = None, config: ServerConfig = SERVER) -> None:
        super().__init__()
        self.session = server_session(version, config)  # type: ignore[assignment]
        self.properties: Table = properties if properties is not None else {"product": "test", "capabilities": HEARS}
        self.wanted = choose(self.session.dialects, str(self.properties.get("product", "")))

    def greet(self) -> list[Operation]:
        """The protocol header and start-ok."""
        assert self.receive(self.dialect.version.header) == []
        ((_, start),) = self.heard()
        assert isinstance(start, m.ConnectionStart)
        return self.say(m.ConnectionStartOk(self.properties, "PLAIN", b"\x00guest\x00guest"), channel=0)

    def shake_hands(self) -> list[Operation]:
        """The whole handshake; what the server says of it."""
        self.greet()
        ((_, tune),) = self.heard()
        assert isinstance(tune, m.ConnectionTune)
        tune_ok = m.ConnectionTuneOk(tune.channel_max, tune.frame_max, tune.heartbeat)
        events = self.say(tune_ok, m.ConnectionOpen("/"), channel=0)
        assert [type(method) for _, method in self.heard()] == [m.ConnectionOpenOk]
        return events

    def open(self, *channels: int) -> ScriptedClient:
        """Handshake and open channels (1 if none is named)."""
        self.shake_hands()
        for channel in channels or (1,):
            self.say(m.ChannelOpen(), channel=channel)
            self.session.send(Done(channel, 1, 1), self.now)
            self.heard()
        return self

    def send(self, *operations: Operation) -> list[int]:
        """The broker answers; delivery numbers."""
        return [self.session.send(operation, self.now) for operation in operations]


HEARS: Table = {
    "consumer_cancel_notify": True,
    "connection.blocked": True,
    "authentication_failure_close": True,
}
