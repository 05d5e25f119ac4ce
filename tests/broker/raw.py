"""A client on a real socket that does only what it is told to: above all, it reads only when it is asked to.

Its octets are made by the client session of its version, so a test says what such a client *means*, in the words of
:mod:`gateway.amqp.operations`; or it sends any octets::

    async with served() as broker:
        client = await Raw.open(broker.port, V0_9_1)
        await client.tell(DeclareQueue(1, "q"))
        assert (await client.hear(Declared)).queue == "q"
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from typing import Any, ClassVar, TypeVar

from gateway.amqp.message import Message, Properties
from gateway.amqp.operations import (
    Closed,
    Consume,
    Consuming,
    Declared,
    DeclareQueue,
    Done,
    OpenChannel,
    Opened,
    Operation,
    Publish,
)
from gateway.broker.served import Served
from gateway.broker.server import EmbeddedBroker
from gateway.config import EmbeddedSettings
from gateway.limits import BrokerLimits, Limits
from gateway.session import ClientConfig, Session, Version
from gateway.v010.version import V0_10
from gateway.v091.version import V0_9_1
from gateway.versions import VERSIONS
from tests.pair import client_session

VERSIONS = list(VERSIONS)
TIMEOUT = 10
"""How long anything that must happen may take, in seconds."""

_T = TypeVar("_T", bound=Operation)


@contextlib.asynccontextmanager
async def served(
    limits: Limits | None = None, broker_limits: BrokerLimits | None = None, **settings: Any
) -> AsyncIterator[EmbeddedBroker]:
    """An embedded broker on a free port. Clients that are still there in the end hang up first."""
    broker = EmbeddedBroker(EmbeddedSettings(port=0, **settings), limits, broker_limits)
    await broker.start()
    try:
        yield broker
    finally:
        while Raw.made:
            Raw.made.pop().close()
        await broker.stop()


async def until(condition: Callable[[], object]) -> None:
    """Wait for something that must come true."""
    async with asyncio.timeout(TIMEOUT):
        while not condition():
            await asyncio.sleep(0.005)


class Raw:
    """See the module."""

    made: ClassVar[list[Raw]] = []

    def __init__(self, sock: socket.socket, version: Version) -> None:
        self.socket = sock
        self.version = version
        self.session: Session = client_session(
            version,
            ClientConfig(secure=True, random_octets=os.urandom, wall_clock=lambda: 1_700_000_000.0, heartbeat=0),
        )
        self.made.append(self)
        self.heard: list[Operation] = []
        """What it was told and nobody has asked for."""

    @classmethod
    async def connect(
        cls,
        port: int,
        version: Version = V0_9_1,
        *,
        source: str = "127.0.0.1",
        receive_buffer: int | None = None,
    ) -> Raw:
        """A connection without a word said."""
        sock = socket.socket()
        if receive_buffer is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        sock.bind((source, 0))
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
        return cls(sock, version)

    @classmethod
    async def open(cls, port: int, version: Version = V0_9_1, channels: int = 1, **options: Any) -> Raw:
        """An open connection with its first channels open."""
        client = await cls.connect(port, version, **options)
        await client.hear(Opened)
        for number in range(1, channels + 1):
            await client.tell(OpenChannel(number))
            await client.hear(Done)
        return client

    @property
    def now(self) -> float:
        return asyncio.get_running_loop().time()

    async def write(self, octets: bytes) -> None:
        """Send octets, as fast as the server takes them."""
        async with asyncio.timeout(TIMEOUT):
            await asyncio.get_running_loop().sock_sendall(self.socket, octets)

    async def stuff(self, octets: bytes, patience: float = 0.3) -> int:
        """Send octets until the server takes no more of them for a while, or hangs up; how many it took."""
        sent, view = 0, memoryview(octets)
        waited = 0.0  # turns of the event loop, for a server in this process is as slow as its machine
        while sent < len(octets) and waited < patience:
            try:
                sent += self.socket.send(view[sent : sent + 65_536])
                waited = 0.0
                await asyncio.sleep(0)
            except BlockingIOError:
                await asyncio.sleep(0.01)
                waited += 0.01
            except ConnectionError:
                break
        return sent

    def octets(self, *operations: Operation) -> bytes:
        """What operations are on the wire, as this client would send them next."""
        for operation in operations:
            self.session.send(operation, self.now)
        return b"".join(self.session.data_to_send())

    async def tell(self, *operations: Operation) -> None:
        """Send operations."""
        await self.write(self.octets(*operations))

    async def read(self) -> bytes:
        """Some octets; none: the server has hung up."""
        async with asyncio.timeout(TIMEOUT):
            try:
                return await asyncio.get_running_loop().sock_recv(self.socket, 1 << 18)
            except ConnectionResetError:
                return b""

    async def read_all(self) -> bytes:
        """All octets until the server hangs up."""
        found = b""
        while octets := await self.read():
            found += octets
        return found

    async def hear(self, kind: type[_T]) -> _T:
        """Read until there is something of that kind; a connection that is over ends in an error."""
        while True:
            for index, operation in enumerate(self.heard):
                if isinstance(operation, kind):
                    del self.heard[index]
                    return operation
            octets = b"".join(self.session.data_to_send())
            if octets:
                await self.write(octets)
            octets = await self.read()
            told = self.session.receive_data(octets, self.now) if octets else self.session.receive_eof(self.now)
            self.heard += told
            if not any(isinstance(operation, kind) for operation in self.heard):
                assert octets, f"it is over: {self.heard}"
                assert not self.session.closed, self.heard

    async def closed(self) -> Closed:
        """How the connection ended."""
        return await self.hear(Closed)

    async def declare(self, queue: str, **options: Any) -> int:
        """Declare a queue; how many messages are in it."""
        await self.tell(DeclareQueue(1, queue, **options))
        count = (await self.hear(Declared)).message_count
        assert count is not None
        return count

    async def consume(self, queue: str, *, no_ack: bool = False, channel: int = 1) -> None:
        """Consume without a limit; read until that is settled."""
        await self.tell(Consume(channel, queue, "t", no_ack=no_ack))
        await self.hear(Consuming)

    def close(self) -> None:
        """Hang up."""
        self.socket.close()


def publishing(queue: str, body: bytes = b"", channel: int = 1, **properties: Any) -> Publish:
    """A publish to a queue."""
    return Publish(channel, "", queue, Message(body, Properties(**properties)))


def frames(version: Version, octets: bytes) -> list[bytes]:
    """Octets cut into frames."""
    found, at = [], 0
    while at < len(octets):
        if version is V0_10:
            size = int.from_bytes(octets[at + 2 : at + 4], "big")
        else:
            size = int.from_bytes(octets[at + 3 : at + 7], "big") + 8
        found.append(octets[at : at + size])
        at += size
    return found


def the_served(broker: EmbeddedBroker, client: Raw) -> Served:
    """The server's side of a client."""
    (found,) = [
        each for each in broker._served if each.stream.peer.rpartition(":")[2] == str(client.socket.getsockname()[1])
    ]
    return found


async def over_tls(port: int, context: ssl.SSLContext) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection to a port with TLS."""
    return await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname="localhost")
