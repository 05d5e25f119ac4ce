"""A network in memory: streams of octets between nodes, with latency and faults at any octet.

Octets arrive in order, in pieces that are drawn, after times that are drawn. A connection can be cut after any octet of
either direction (both ends see a reset), and two nodes can be parted: what is written meanwhile arrives when they are
joined again, and a new connection waits. Where a node dies its connections are reset, or, if it lost its power, stay
open at the other end until that writes.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable
from contextvars import Context, copy_context
from typing import Any, Final

from tests.simulation.surroundings.loop import NODE, Node, SimLoop

HIGH: Final = 1 << 16
GRID: Final = 0.0002
"""Latencies are multiples of this, in seconds, so that much happens in the same moment."""


class Network:
    """All listeners and connections of a world."""

    def __init__(self, loop: SimLoop, chance: random.Random, note: Callable[..., None]) -> None:
        self.loop = loop
        self.chance = chance
        self.note = note
        self.listeners: dict[int, Listener] = {}
        self.transports: dict[int, Transport] = {}
        self.leaving: list[Transport] = []
        """Of processes that died: what they had written, and the end, are still under way."""
        self.cuts: list[Cut] = []
        self.parted: set[frozenset[str]] = set()
        self.heard: dict[str, float] = {}
        """Node -> when it wrote what others have of it last."""
        self.cut_at = -1.0
        """When all connections between two nodes were reset last."""
        self.slowness = 2
        """Most steps of latency."""
        self.split = 0.1
        """Share of the writes that arrive in two pieces."""
        self.octets = 0
        self._port = 20_000
        self._number = 0

    # ------------------------------------------------------------------------------------------- what asyncio offers

    def listen(self, host: str, port: int) -> FakeSocket:
        """A bound socket, which nobody can connect to yet."""
        if not port:
            self._port += 1
            port = self._port
        if port in self.listeners:
            raise OSError(98, "Address already in use")
        return FakeSocket(host, port)

    async def create_server(
        self, factory: Callable[[], Any], host: Any = None, port: Any = None, *, sock: Any = None, **_: Any
    ) -> Listener:
        found = sock if sock is not None else self.listen(str(host), int(port))
        listener = Listener(self, found, factory, NODE.get())
        self.listeners[found.port] = listener
        return listener

    async def create_connection(
        self, factory: Callable[[], Any], host: Any = None, port: Any = None, *, sock: Any = None, **_: Any
    ) -> tuple[Transport, Any]:
        target = int(port if sock is None else sock.sim_port)
        client = NODE.get()
        await asyncio.sleep(self.latency())
        listener = self.listeners.get(target)
        while listener is None or not listener.node.alive or self.is_parted(client, listener.node):
            if listener is None or (not listener.node.alive and not listener.is_silent):
                raise ConnectionRefusedError(111, "Connection refused")
            await asyncio.sleep(0.05)
            listener = self.listeners.get(target)
        self._port += 1
        near, far = Transport(self, client, copy_context()), Transport(self, listener.node, listener.context)
        near.other, far.other = far, near
        near.is_client = True
        near.names = {"peername": ("127.0.0.1", target), "sockname": ("127.0.0.1", self._port)}
        far.names = {"peername": ("127.0.0.1", self._port), "sockname": ("127.0.0.1", target)}
        near.port = far.port = target
        if getattr(factory, "__module__", "").startswith("anyio"):
            near.names["socket"] = DialedSocket(target)
        self.note("net", "connect", client, listener.node, near.number)
        protocol = factory()
        near.set_protocol(protocol)
        far.begins(listener.factory)
        protocol.connection_made(near)
        return near, protocol

    async def dial(self, address: Any, port: int) -> DialedSocket:
        """Connect as :func:`gateway.outbound.dialer.dial` does. Whether somebody listens shows when it is joined."""
        await asyncio.sleep(self.latency())
        return DialedSocket(port)

    # ------------------------------------------------------------------------------------------- faults

    def latency(self) -> float:
        """How long an octet is on its way, in seconds."""
        return int(self.chance.random() * (self.slowness + 1)) * GRID

    def is_parted(self, one: Node, two: Node) -> bool:
        """Whether nothing gets from one to the other."""
        return bool(self.parted) and frozenset((one.name, two.name)) in self.parted

    def part(self, one: str, two: str) -> None:
        """Let nothing get from one to the other, until :meth:`join`."""
        self.parted.add(frozenset((one, two)))

    def join(self, one: str, two: str) -> None:
        """End a partition."""
        self.parted.discard(frozenset((one, two)))
        for transport in [*self.transports.values(), *self.leaving]:
            transport.wake()

    def cut_off(self, one: str, two: str) -> None:
        """Reset all connections between two nodes."""
        self.note("net", "reset", one, two)
        self.cut_at = self.loop.now
        for transport in list(self.transports.values()):
            if {transport.node.name, transport.other.node.name} == {one, two}:
                transport.reset()

    def add(self, transport: Transport) -> None:
        self._number += 1
        transport.number = self._number
        self.transports[self._number] = transport

    def gone(self, node: Node, is_silent: bool = False) -> None:
        """A node died. ``is_silent``: its power went, so nobody hears of it."""
        for port, listener in list(self.listeners.items()):
            if listener.node is node:
                if is_silent:
                    listener.is_silent = True
                else:
                    del self.listeners[port]
        for transport in list(self.transports.values()):
            if transport.node is node:
                transport.vanish(is_silent)

    def of(self, node: Node) -> list[Transport]:
        """The ends that a node holds."""
        return [each for each in self.transports.values() if each.node is node]


class Cut:
    """A connection that is to be cut: between two nodes, after so many octets of one direction."""

    def __init__(self, sender: str, receiver: str, octets: int) -> None:
        self.sender, self.receiver, self.octets = sender, receiver, octets


class FakeSocket:
    """What the gateway binds."""

    family = 2
    type = 1
    proto = 0

    def __init__(self, host: str, port: int) -> None:
        self.host, self.port = host, port

    def getsockname(self) -> tuple[str, int]:
        return self.host, self.port

    def close(self) -> None:
        """Nothing is held."""

    def fileno(self) -> int:
        return -1


class DialedSocket:
    """What the gateway's calls to others' URLs go out on, and what asks about a connection to another process."""

    family = 2

    def __init__(self, port: int) -> None:
        self.sim_port = port

    def getpeername(self) -> tuple[str, int]:
        return "127.0.0.1", self.sim_port

    def fileno(self) -> int:
        return -1

    def close(self) -> None:
        """Nothing is held."""


class Listener:
    """As much of ``asyncio.Server`` as is used."""

    def __init__(self, network: Network, sock: FakeSocket, factory: Callable[[], Any], node: Node) -> None:
        self.network, self.sock, self.factory, self.node = network, sock, factory, node
        self.context: Context = copy_context()
        self.is_silent = False

    @property
    def sockets(self) -> tuple[FakeSocket, ...]:
        return (self.sock,)

    def close(self) -> None:
        if self.network.listeners.get(self.sock.port) is self:
            del self.network.listeners[self.sock.port]

    async def wait_closed(self) -> None:
        """Nothing has to end."""

    def is_serving(self) -> bool:
        return self.network.listeners.get(self.sock.port) is self

    async def start_serving(self) -> None:
        """It does."""


class Transport(asyncio.Transport):
    """One end of a connection."""

    def __init__(self, network: Network, node: Node, context: Context) -> None:
        super().__init__()
        self.network = network
        self.node = node
        self.other: Transport = self
        self.names: dict[str, Any] = {}
        self.port = 0
        self.number = 0
        self.is_client = False
        self.protocol: Any = None
        self._context = context
        self._loop = network.loop
        self._sent: list[tuple[float, float, bytes | None]] = []
        """Under way: when it was written, when it arrives, and what; None is the end."""
        self._size = 0
        self._high, self._low = HIGH, HIGH // 4
        self._reading = True
        self._paused = False
        self._closing = False
        self._lost = False
        self._ended = False
        self._is_half = False
        """The node at the other end has died, and this end goes on writing: the answer to what it writes is a reset."""
        self._timer: asyncio.TimerHandle | None = None
        self._last = 0.0
        self._cut: Cut | None = None
        self._factory: Callable[[], Any] | None = None
        network.add(self)

    def begins(self, factory: Callable[[], Any]) -> None:
        """Have the listener's protocol made in its own node."""
        self._factory = factory
        self._loop.call_later(self.network.latency(), self._begin, context=self._context)

    def _begin(self) -> None:
        if self._lost:
            return
        assert self._factory is not None
        self.protocol = self._factory()
        self.protocol.connection_made(self)
        self.other.wake()

    # ------------------------------------------------------------------------------------------- writing

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._closing or self._lost or not data:
            return
        network, now = self.network, self._loop.now
        octets = bytes(data)
        network.octets += len(octets)
        if network.chance.random() < network.split and len(octets) > 1:
            where = 1 + int(network.chance.random() * (len(octets) - 1))
            pieces = [octets[:where], octets[where:]]
        else:
            pieces = [octets]
        for piece in pieces:
            arrives = now + network.latency()
            if arrives > self._last:
                self._last = arrives
            self._sent.append((now, self._last, piece))
        self._size += len(octets)
        if self._size > self._high and not self._paused:
            self._paused = True
            self.protocol.pause_writing()
        self.wake()

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        self.write(b"".join(list_of_data))

    def write_eof(self) -> None:
        self.close()

    def can_write_eof(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return self._size

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = HIGH if high is None else high
        self._low = self._high // 4 if low is None else low

    def close(self) -> None:
        if not self._closing and not self._lost:
            self._closing = True
            self._last = max(self._last, self._loop.now + self.network.latency())
            self._sent.append((self._loop.now, self._last, None))
            self.wake()

    def abort(self) -> None:
        if not self._lost:
            self._closing = True
            self._drop()
            self._lose(None)
            other = self.other
            self._loop.call_later(self.network.latency(), other.reset, context=other._context)

    def is_closing(self) -> bool:
        return self._closing or self._lost

    # ------------------------------------------------------------------------------------------- reading

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = True
        self.other.wake()

    def is_reading(self) -> bool:
        return self._reading

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self.names.get(name, default)

    def set_protocol(self, protocol: Any) -> None:
        self.protocol = protocol

    def get_protocol(self) -> Any:
        return self.protocol

    # ------------------------------------------------------------------------------------------- moving

    def wake(self) -> None:
        """Have what is under way arrive in its time. Runs at the other end, which it arrives at, if there is one."""
        if self._timer is None and self._sent:
            loop, arrives = self._loop, self._sent[0][1]
            context = self._context if self._is_half else self.other._context
            self._timer = loop.call_at(arrives if arrives > loop.now else loop.now, self._arrive, context=context)

    def _arrive(self) -> None:
        self._timer = None
        other = self.other
        if not self._sent or self._ended:
            return
        if other._lost:
            if not self._lost and not self.network.is_parted(self.node, other.node):
                self._drop()
                self._loop.call_soon(self.reset, context=self._context)
            return
        if not other._reading or other.protocol is None or self.network.is_parted(self.node, other.node):
            if self._sent[0][2] is None and not self._lost:  # the system takes the end at once, and it is read later
                self._loop.call_soon(self._lose, None, context=self._context)
            return
        at, _, octets = self._sent.pop(0)
        if octets is None:
            self._ended = True
            other._eof()
            if not self._lost:
                self._loop.call_soon(self._lose, None, context=self._context)
            return
        cut = self._find_cut()
        if cut is not None:
            cut.octets -= len(octets)
            if cut.octets <= 0:
                octets = octets[: len(octets) + cut.octets]
                self.network.cuts.remove(cut)
                self.network.note("net", "cut", self.node, other.node, self.number)
                if octets:
                    self._hand(at, octets)
                self._loop.call_soon(self.reset, context=self._context)
                other.reset()
                return
        self._size -= len(octets)
        if self._paused and self._size <= self._low:
            self._paused = False
            self._loop.call_soon(self._resume, context=self._context)
        self._hand(at, octets)
        self.wake()

    def _hand(self, at: float, octets: bytes) -> None:
        heard, name = self.network.heard, self.node.name
        if at > heard.get(name, -1.0):
            heard[name] = at
        self.other.protocol.data_received(octets)

    def _find_cut(self) -> Cut | None:
        for cut in self.network.cuts:
            if cut.sender == self.node.name and cut.receiver == self.other.node.name:
                return cut
        return None

    def _resume(self) -> None:
        if not self._lost:
            self.protocol.resume_writing()

    def _drop(self) -> None:
        """What is under way never arrives."""
        self._sent.clear()
        self._size = 0
        self._ended = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _eof(self) -> None:
        if not self._lost:
            keep = self.protocol.eof_received()
            if not keep and not self._lost:
                self._closing = True
                self._drop()
                self._lose(None)
            elif not self._lost and not self.other.node.alive:
                self._is_half, self._timer = True, None  # the timer ended with that node
                self.wake()

    def reset(self) -> None:
        """The connection is reset: what was under way from here is lost."""
        if not self._lost:
            self._closing = True
            self._drop()
            self._lose(ConnectionResetError(104, "Connection reset by peer"))

    def _lose(self, error: Exception | None) -> None:
        if not self._lost:
            self._lost = self._closing = True
            self.network.transports.pop(self.number, None)
            if self.protocol is not None:
                self._loop.call_soon(self.protocol.connection_lost, error, context=self._context)

    def vanish(self, is_silent: bool) -> None:
        """The node that holds this end has died."""
        self._lost = self._closing = True
        self.network.transports.pop(self.number, None)
        if not is_silent and not self._ended and self.network.chance.random() < 0.5:
            # The system sends what the process had written, and then the end.
            self._sent.append((self._loop.now, self._loop.now + self.network.latency(), None))
            self.network.leaving.append(self)
            self.wake()
            return
        self._drop()
        if not is_silent:
            other = self.other
            self._loop.call_later(self.network.latency(), other.reset, context=other._context)
