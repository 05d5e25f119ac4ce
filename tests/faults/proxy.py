"""A TCP proxy on loopback with toxics: everything that a network does to a connection, on demand.

The toxics have the names and the meaning that Toxiproxy gave them, and two of our own, ``corrupt`` and ``half_open``::

    with Proxy(rabbitmq.port) as proxy:
        connect_to(proxy.port)
        name = proxy.add(Latency(0.3, 0.2), Direction.UPSTREAM)     # towards the server
        proxy.remove(name)
        with proxy.toxic(HalfOpen()):                               # both ways
            ...
        proxy.reset()                                               # RST on every connection, now
        proxy.down(); proxy.up()                                    # nobody listens; the same port again

Toxics are put in and taken out while connections live, and hold for those of later too. The proxy runs in a thread of
its own; its methods may be called from any thread, and have taken effect when they return.

A connection is two pipes, one in each direction. A pipe reads a chunk, lets the toxics change it, and queues it with
the time at which it may go on, so that latency delays but does not throttle. The queue is bounded: a peer that does
not read holds the other one up, as without a proxy.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
import threading
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import count
from typing import Any, Final, TypeVar

from tests.servers.process import HOST, free_port

CHUNK: Final = 64 << 10
"""Most octets that are read at once."""
QUEUED_MAX: Final = 4 << 20
"""Most octets that are on their way in one direction of one connection."""
_RESET: Final = struct.pack("ii", 1, 0)
_T = TypeVar("_T")


class Direction(StrEnum):
    """Which way octets go."""

    UPSTREAM = "upstream"
    """From the client to the server."""
    DOWNSTREAM = "downstream"
    """From the server to the client."""


# ------------------------------------------------------------------------------------------------- toxics


@dataclass(frozen=True)
class Toxic:
    """Something that is done to the octets of one direction. Times in seconds, sizes in octets."""


@dataclass(frozen=True)
class Latency(Toxic):
    """Everything arrives later, in order."""

    seconds: float
    jitter: float = 0.0
    """Up to so much more or less."""


@dataclass(frozen=True)
class Bandwidth(Toxic):
    """No more than so many octets per second."""

    rate: float


@dataclass(frozen=True)
class SlowClose(Toxic):
    """The end of the stream is passed on later."""

    seconds: float


@dataclass(frozen=True)
class Timeout(Toxic):
    """Octets are swallowed, and the connection is closed after so long; 0: not as long as the toxic is in."""

    seconds: float = 0.0


@dataclass(frozen=True)
class ResetPeer(Toxic):
    """The connection is reset (RST), at once or after so long."""

    seconds: float = 0.0


@dataclass(frozen=True)
class Slicer(Toxic):
    """Octets come in small pieces."""

    size: int = 1
    variation: int = 0
    """Pieces are up to so many octets larger or smaller, but never empty."""
    pause: float = 0.0
    """Between two pieces."""


@dataclass(frozen=True)
class LimitData(Toxic):
    """So many octets of each connection pass, then it is closed."""

    octets: int
    reset: bool = False
    """By RST and not by FIN."""
    once: bool = False
    """Only the first connection that gets there is closed: then the toxic is gone."""


class Changing(Toxic):
    """Octets are changed as they pass. The base of toxics that know where."""

    def change(self, memory: dict[str, Any], data: bytes) -> bytes:
        """What becomes of a chunk. ``memory`` is this toxic's own for each direction of each connection."""
        raise NotImplementedError


@dataclass(frozen=True)
class Corrupt(Changing):
    """One octet of each connection is changed: the one after so many that passed; and then each so many later."""

    after: int
    every: int = 0
    """0: only that one."""
    mask: int = 0xFF
    """What it is combined with by exclusive or."""

    def change(self, memory: dict[str, Any], data: bytes) -> bytes:
        seen = memory.get("seen", 0)
        memory["seen"] = seen + len(data)
        place = self.after - seen
        if place < 0 and self.every:
            place %= self.every
        changed = bytearray(data)
        while 0 <= place < len(data):
            changed[place] ^= self.mask
            if not self.every:
                break
            place += self.every
        return bytes(changed)


@dataclass(frozen=True)
class HalfOpen(Toxic):
    """A black hole both ways: nothing arrives, not even the end of a stream, and nobody is told. What was underway
    arrives when the toxic is taken out, as it does when packets are sent again."""


# -------------------------------------------------------------------------------------------------- pipes


class _End(StrEnum):
    """What is behind a chunk in a pipe."""

    NOT_YET = "more"
    EOF = "the peer has closed its stream"
    FIN = "the connection is to be closed"
    RST = "the connection is to be reset"


class _Pipe:
    """One direction of one connection."""

    def __init__(
        self, connection: _Connection, direction: Direction, source: socket.socket, sink: socket.socket
    ) -> None:
        self._connection = connection
        self._direction = direction
        self._source = source
        self._sink = sink
        self._memories: dict[str, dict[str, Any]] = {}
        """What each toxic remembers of this pipe, by its name."""
        self._queue: asyncio.Queue[tuple[float, bytes, _End]] = asyncio.Queue()
        self._queued = 0
        self._room = asyncio.Event()

    def toxics(self, kind: type[_T]) -> Iterator[tuple[str, _T]]:
        """Those of a kind that hold for this direction now."""
        for name, (toxic, directions) in list(self._connection.proxy.toxics.items()):
            if isinstance(toxic, kind) and self._direction in directions:
                yield name, toxic

    async def run(self) -> None:
        """From the first octet to the end of the stream."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._read())
            group.create_task(self._write())

    async def _read(self) -> None:
        proxy, loop = self._connection.proxy, asyncio.get_running_loop()
        due = 0.0
        end = _End.NOT_YET
        while end is _End.NOT_YET:
            await proxy.flowing.wait()
            data = await loop.sock_recv(self._source, CHUNK)
            await proxy.flowing.wait()
            proxy.octets[self._direction] += len(data)
            data, end = self._change(data) if data else (data, _End.EOF)
            delay = sum(
                max(0.0, toxic.seconds + proxy.random.uniform(-toxic.jitter, toxic.jitter))
                for _, toxic in self.toxics(Latency)
            )
            due = max(due, loop.time() + delay)
            self._queue.put_nowait((due, data, end))
            self._queued += len(data)
            while self._queued > QUEUED_MAX:
                self._room.clear()
                await self._room.wait()

    def _change(self, data: bytes) -> tuple[bytes, _End]:
        """What becomes of a chunk, and whether anything may follow it."""
        for _ in self.toxics(Timeout):
            return b"", _End.NOT_YET
        for name, changing in self.toxics(Changing):
            data = changing.change(self._memories.setdefault(name, {}), data)
        for name, limit in self.toxics(LimitData):
            memory = self._memories.setdefault(name, {})
            seen = memory.get("seen", 0)
            memory["seen"] = seen + len(data)
            if seen + len(data) >= limit.octets:
                if limit.once:
                    self._connection.proxy.toxics.pop(name, None)
                return data[: max(0, limit.octets - seen)], _End.RST if limit.reset else _End.FIN
        return data, _End.NOT_YET

    async def _write(self) -> None:
        proxy, loop = self._connection.proxy, asyncio.get_running_loop()
        end = _End.NOT_YET
        while end is _End.NOT_YET:
            due, data, end = await self._queue.get()
            if due > (now := loop.time()):
                await asyncio.sleep(due - now)
            await proxy.flowing.wait()
            await self._send(data)
            self._queued -= len(data)
            self._room.set()
        if end is _End.EOF:
            for _, slow in self.toxics(SlowClose):
                await asyncio.sleep(slow.seconds)
            self._sink.shutdown(socket.SHUT_WR)
        else:
            self._connection.end(reset=end is _End.RST)

    async def _send(self, data: bytes) -> None:
        proxy, loop = self._connection.proxy, asyncio.get_running_loop()
        slicer = next((toxic for _, toxic in self.toxics(Slicer)), None)
        bandwidth = next((toxic for _, toxic in self.toxics(Bandwidth)), None)
        view = memoryview(data)
        while view:
            size = len(view)
            if slicer is not None:
                size = min(size, max(1, slicer.size + proxy.random.randint(-slicer.variation, slicer.variation)))
            if bandwidth is not None:
                size = min(size, max(1, int(bandwidth.rate / 20)))
                await asyncio.sleep(size / bandwidth.rate)
            await loop.sock_sendall(self._sink, view[:size])
            view = view[size:]
            if slicer is not None and view:
                await asyncio.sleep(slicer.pause)


class _Connection:
    """A client, the server, and a pipe each way."""

    def __init__(self, proxy: Proxy, client: socket.socket) -> None:
        self.proxy = proxy
        self._client = client
        self._over: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        """Done when it is to end; whether by RST."""

    async def run(self) -> None:
        """Until both streams are over, or one breaks, or a toxic says so."""
        loop = asyncio.get_running_loop()
        client, server = self._client, socket.socket()
        server.setblocking(False)
        tasks: list[asyncio.Task[None]] = []
        reset = True
        try:
            await loop.sock_connect(server, (HOST, self.proxy.target))
            for each in (client, server):
                each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            pipes = (
                _Pipe(self, Direction.UPSTREAM, client, server),
                _Pipe(self, Direction.DOWNSTREAM, server, client),
            )
            tasks = [loop.create_task(pipe.run()) for pipe in pipes]
            tasks.append(loop.create_task(self._watch_pipes(list(tasks))))
            for toxic, _ in list(self.proxy.toxics.values()):
                self.watch(toxic)
            reset = await self._over
        except OSError:
            pass  # nobody listens there: the client sees its connection reset
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for each in (client, server):
                if reset:
                    each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                each.close()

    async def _watch_pipes(self, tasks: list[asyncio.Task[None]]) -> None:
        """What breaks on one side breaks on the other."""
        try:
            await asyncio.gather(*tasks)
        except BaseExceptionGroup:
            self.end(reset=True)
        else:
            self.end(reset=False)

    def watch(self, toxic: Toxic) -> None:
        """Begin with a toxic that ends connections."""
        loop = asyncio.get_running_loop()
        if isinstance(toxic, ResetPeer):
            loop.call_later(toxic.seconds, self.end, True)
        elif isinstance(toxic, Timeout) and toxic.seconds:
            loop.call_later(toxic.seconds, self.end, False)

    def end(self, reset: bool) -> None:
        """End both streams; ``reset``: by RST."""
        if not self._over.done():
            self._over.set_result(reset)


# -------------------------------------------------------------------------------------------------- proxy


class Proxy:
    """Listens on a port of its own and passes everything on to ``target``, a port of this machine."""

    def __init__(self, target: int, seed: int = 0) -> None:
        self.target = target
        self.port = free_port()
        self.random = random.Random(seed)
        self.octets = dict.fromkeys(Direction, 0)
        """How many were read in each direction, over all connections."""
        self.accepted = 0
        """How many connections there were."""
        self.toxics: dict[str, tuple[Toxic, frozenset[Direction]]] = {}
        self.flowing: asyncio.Event
        self._names = count(1)
        self._connections: dict[_Connection, asyncio.Task[None]] = {}
        self._listening: asyncio.Task[None] | None = None
        self._kept: socket.socket | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=f"proxy {self.port}", daemon=True)
        self._thread.start()
        self._call(self._start)

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """End it, and all connections with it."""
        if self._thread.is_alive():
            self._call(self._stop)
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    @property
    def connections(self) -> int:
        """How many there are now."""
        return len(self._connections)

    # Toxics ------------------------------------------------------------------------------------------

    def add(self, toxic: Toxic, *directions: Direction, name: str | None = None) -> str:
        """Put a toxic in, for ``directions`` (unless given: both ways). Returns its name."""
        name = name or f"{type(toxic).__name__.lower()}-{next(self._names)}"

        async def add() -> None:
            self.toxics[name] = toxic, frozenset(directions or Direction)
            self._judge()
            for connection in list(self._connections):
                connection.watch(toxic)

        self._call(add)
        return name

    def remove(self, name: str) -> None:
        """Take a toxic out. Raises KeyError where there is none of that name."""

        async def remove() -> None:
            del self.toxics[name]
            self._judge()

        self._call(remove)

    def clear(self) -> None:
        """Take all toxics out."""

        async def clear() -> None:
            self.toxics.clear()
            self._judge()

        self._call(clear)

    @contextlib.contextmanager
    def toxic(self, toxic: Toxic, *directions: Direction) -> Iterator[str]:
        """A toxic that is in as long as the block."""
        name = self.add(toxic, *directions)
        try:
            yield name
        finally:
            self.remove(name)

    def reset(self) -> None:
        """Reset every connection, now."""

        async def reset() -> None:
            await self._end_connections()

        self._call(reset)

    def down(self) -> None:
        """Listen no longer, and reset every connection. The port stays taken, so that no other program gets it."""

        async def down() -> None:
            if self._listening is not None:
                self._listening.cancel()
                await asyncio.wait([self._listening])
                self._listening = None
                self._keep_port()
            await self._end_connections()

        self._call(down)

    def up(self) -> None:
        """Listen again."""
        if self._listening is None:
            self._call(self._start)

    # In its thread -----------------------------------------------------------------------------------

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def _call(self, work: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
        return asyncio.run_coroutine_threadsafe(work(), self._loop).result(10)

    async def _start(self) -> None:
        if not hasattr(self, "flowing"):
            self.flowing = asyncio.Event()
            self.flowing.set()
        self._let_port_go()
        listener = socket.create_server((HOST, self.port), backlog=1024)
        listener.setblocking(False)
        self._listening = self._loop.create_task(self._accept(listener))

    def _keep_port(self) -> None:
        self._kept = keeper = socket.socket()
        keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # closed connections are no obstacle
        keeper.bind((HOST, self.port))
        keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)  # others that set it do not get the port either

    def _let_port_go(self) -> None:
        if self._kept is not None:
            self._kept.close()
            self._kept = None

    async def _stop(self) -> None:
        self._let_port_go()
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.wait([self._listening])
        await self._end_connections()

    async def _accept(self, listener: socket.socket) -> None:
        with listener:
            while True:
                client, _ = await self._loop.sock_accept(listener)
                self.accepted += 1
                connection = _Connection(self, client)
                task = self._loop.create_task(connection.run())
                self._connections[connection] = task
                task.add_done_callback(lambda _, which=connection: self._connections.pop(which, None))  # type: ignore[misc]

    async def _end_connections(self) -> None:
        tasks = list(self._connections.values())
        for connection in list(self._connections):
            connection.end(reset=True)
        if tasks:
            await asyncio.wait(tasks)

    def _judge(self) -> None:
        if any(isinstance(toxic, HalfOpen) for toxic, _ in self.toxics.values()):
            self.flowing.clear()
        else:
            self.flowing.set()
