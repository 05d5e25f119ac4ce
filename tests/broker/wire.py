"""Clients of 0-10 and the broker's core, without sockets: two sessions and a wire that can be cut."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gateway.amqp import operations as o
from gateway.amqp.operations import Operation
from gateway.broker.broker import Broker
from gateway.config import EmbeddedSettings
from gateway.limits import DEFAULT_BROKER_LIMITS
from gateway.session import ServerConfig
from gateway.v010.session import ClientSession, ServerSession
from tests.pair import CLIENT


class Host:
    """The broker, and the connections to it."""

    def __init__(self, session_timeout: int = 300, **limits: Any) -> None:
        self.now = 1_000.0
        self.count = 0
        self.broker = Broker(
            EmbeddedSettings(),
            random_octets=self.random,
            wall_clock=lambda: 1_700_000_000.0,
            limits=replace(DEFAULT_BROKER_LIMITS, session_timeout=session_timeout, **limits),
        )
        self.config = ServerConfig(
            authenticate=lambda user, password: True,
            open_virtual_host=self.broker.open_virtual_host,
            random_octets=self.random,
            session_timeout=session_timeout,
            resume_session=self.broker.resume_session,
        )

    def random(self, count: int) -> bytes:
        self.count += 1
        return self.count.to_bytes(count, "big")

    def connect(self, user: str = "guest") -> Wire:
        wire = Wire(self, user)
        wire.pump()
        assert [type(event) for event in wire.take()] == [o.Opened]
        return wire

    def depth(self, queue: str) -> int:
        return self.broker.virtual_host("/").queues[queue].ready

    def later(self, seconds: float) -> None:
        self.now += seconds
        self.broker.handle_timeout(self.now)


class Wire:
    """One connection."""

    def __init__(self, host: Host, user: str = "guest") -> None:
        self.host = host
        self.client = ClientSession(replace(CLIENT, random_octets=host.random, user=user))
        self.server = ServerSession(host.config)
        self.connection = host.broker.connect(self.server, lambda: None)
        self.events: list[Operation] = []
        self.to_server: int | None = None
        self.to_client: int | None = None
        """How many octets still pass; None: all."""

    def pump(self) -> None:
        """Carry octets until nothing moves."""
        broker, now = self.host.broker, self.host.now
        moved = True
        while moved:
            out = b"".join(self.client.data_to_send())
            if self.to_server is not None:
                out, self.to_server = out[: self.to_server], max(self.to_server - len(out), 0)
            if out:
                broker.receive(self.connection, self.server.receive_data(out, now), now)
            broker.flushed(self.connection)
            back = b"".join(self.server.data_to_send())
            if self.to_client is not None:
                back, self.to_client = back[: self.to_client], max(self.to_client - len(back), 0)
            if back:
                self.events += self.client.receive_data(back, now)
            moved = bool(out or back)

    def send(self, *operations: Operation) -> list[int]:
        serials = [self.client.send(operation, self.host.now) for operation in operations]
        self.pump()
        return serials

    def take(self) -> list[Operation]:
        events, self.events = self.events, []
        return events

    def ask(self, operation: Operation) -> Any:
        """Its one outcome."""
        self.send(operation)
        (event,) = self.take()
        return event

    def cut(self, server_too: bool = True) -> list[Operation]:
        """The stream ends, for the client and, if it notices, for the server. What the client makes of it."""
        if server_too:
            self.cut_server()
        self.events += self.client.receive_eof(self.host.now)
        return self.take()

    def cut_server(self) -> None:
        broker, now = self.host.broker, self.host.now
        broker.receive(self.connection, self.server.receive_eof(now), now)
        broker.disconnect(self.connection, now)
