"""Two sessions and the wire between them, for every version.

::

    pair = SessionPair(V0_9_1).open()
    serial = pair.ask(DeclareQueue(1, "q"))              # client -> server; the server's events in pair.requests
    assert pair.answer(Declared(1, serial, serial, "q")) == [Declared(1, 1, 1, "q")]

Time stands still unless a test moves ``pair.now``. ``chunk`` cuts the stream into pieces of that many octets.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gateway import versions
from gateway.amqp.operations import Done, OpenChannel, Opened, Operation
from gateway.session import ClientConfig, ServerConfig, Session, Version

RANDOM: Callable[[int], bytes] = lambda count: bytes(range(count))  # noqa: E731
CLIENT = ClientConfig(secure=True, random_octets=RANDOM, wall_clock=lambda: 1_700_000_000.0)
SERVER = ServerConfig(
    authenticate=lambda user, password: (user, password) == ("guest", "guest"),
    open_virtual_host=lambda user, virtual_host: virtual_host in ("/", ""),
    properties={"product": "test-broker", "version": "1.0", "platform": "none"},
    random_octets=RANDOM,
    wall_clock=lambda: 1_700_000_000.0,
)


def client_session(version: Version, config: ClientConfig = CLIENT) -> Session:
    """A client session of any version."""
    return versions.client_session(version, config)


def server_session(version: Version, config: ServerConfig = SERVER) -> Session:
    """A server session of any version."""
    return versions.server_session(version, config)


class SessionPair:
    """A client and a server session of one version, connected."""

    def __init__(
        self,
        version: Version,
        client: ClientConfig = CLIENT,
        server: ServerConfig = SERVER,
        chunk: int | None = None,
    ) -> None:
        self.version = version
        self.client = client_session(version, client)
        self.server = server_session(version, server)
        self.chunk = chunk
        self.now = 1_000.0
        self.requests: list[Operation] = []
        """What the server returned since the last :meth:`ask`, :meth:`pump` or :meth:`tell`."""
        self.events: list[Operation] = []
        """What the client returned since then."""
        self.to_server = b""
        self.to_client = b""
        """What went over the wire since then."""

    def open(self, *channels: int) -> SessionPair:
        """Shake hands, open the channels (1 if none is named) and answer the server's part of that."""
        self.pump()
        assert [type(event) for event in self.events] == [Opened], self.events
        assert [type(event) for event in self.requests] == [Opened], self.requests
        for channel in channels or (1,):
            serial = self.ask(OpenChannel(channel))
            (request,) = self.requests
            assert isinstance(request, OpenChannel)
            assert self.answer(Done(channel, request.serial, request.serial)) == [Done(channel, serial, serial)]
        return self

    def ask(self, operation: Operation) -> int:
        """The client sends; its serial. ``requests`` is what the server makes of it."""
        serial = self.client.send(operation, self.now)
        self.pump()
        return serial

    def answer(self, *operations: Operation) -> list[Operation]:
        """The server sends; what the client makes of it."""
        self.tell(*operations)
        return self.events

    def tell(self, *operations: Operation) -> list[int]:
        """The server sends; the numbers it got (of deliveries). ``events`` is what the client makes of it."""
        numbers = [self.server.send(operation, self.now) for operation in operations]
        self.pump()
        return numbers

    def pump(self) -> None:
        """Carry octets both ways until nothing moves."""
        self.requests, self.events = [], []
        self.to_server = self.to_client = b""
        moved = True
        while moved:
            out = b"".join(self.client.data_to_send())
            self.to_server += out
            self.requests += self._deliver(self.server, out)
            back = b"".join(self.server.data_to_send())
            self.to_client += back
            self.events += self._deliver(self.client, back)
            moved = bool(out or back)

    def _deliver(self, session: Session, data: bytes) -> list[Operation]:
        events: list[Operation] = []
        step = self.chunk or len(data) or 1
        for at in range(0, len(data), step):
            events += session.receive_data(data[at : at + step], self.now)
        return events


def only(events: list[Operation]) -> Any:
    """The one event there is."""
    assert len(events) == 1, events
    return events[0]
