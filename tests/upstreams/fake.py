"""A broker without a protocol: operations travel as pickles, so that what stands above the sessions is tested
alone, and a test can answer, keep silent, refuse or hang up at any point.

:class:`FakeSession` is a session in the client role whose frames are pickled operations. :class:`FakeBroker`
accepts connections by memory transports and answers as a small, obedient broker; what a test puts into
``on[Publish]`` and so on is asked first, and answers in its place by returning True.
"""

from __future__ import annotations

import asyncio
import pickle
import struct
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from gateway.amqp.message import Message
from gateway.amqp.operations import (
    BindQueue,
    Blocked,
    Cancel,
    Cancelled,
    ChannelClosed,
    Close,
    CloseChannel,
    Closed,
    CloseReason,
    Confirmed,
    Consume,
    Consuming,
    Declared,
    DeclareExchange,
    DeclareQueue,
    DeleteExchange,
    DeleteQueue,
    Deliver,
    Done,
    ExchangeFound,
    Get,
    Got,
    GotNothing,
    OpenChannel,
    Opened,
    Operation,
    Publish,
    PurgeQueue,
    Qos,
    QueryExchange,
    QueryQueue,
    Removed,
    Request,
    Returned,
    SelectConfirm,
    Settle,
    Settlement,
    UnbindQueue,
    Unblocked,
)
from gateway.errors import BrokerUnavailable, StateError, Unsupported
from gateway.session import Capabilities, ClientConfig, Confirms, Role, Session, Version
from gateway.transports.memory import memory_pair
from gateway.transports.stream import Stream, StreamUser
from gateway.upstreams import Upstream
from gateway.v091.version import V0_9_1

_SIZE = struct.Struct(">I")


def _pack(operation: Operation) -> bytes:
    values = {name: getattr(operation, name) for name in _names(type(operation))}
    message = values.get("message")
    if isinstance(message, Message):
        values["message"] = ("message", message.body, message.properties)
    data = pickle.dumps((type(operation), values))
    return _SIZE.pack(len(data)) + data


def _names(kind: type) -> tuple[str, ...]:
    return tuple(kind.__dataclass_fields__)


def _unpack(data: bytes) -> Operation:
    kind, values = pickle.loads(data)
    message = values.get("message")
    if isinstance(message, tuple):
        values["message"] = Message(message[1], message[2])
    operation = kind(**values)
    assert isinstance(operation, Operation)
    return operation


class Frames:
    """Cuts a stream of octets into operations."""

    def __init__(self) -> None:
        self.buffer = bytearray()

    def feed(self, data: bytes) -> list[Operation]:
        self.buffer += data
        operations = []
        while len(self.buffer) >= 4:
            (size,) = _SIZE.unpack_from(self.buffer)
            if len(self.buffer) < 4 + size:
                break
            operations.append(_unpack(bytes(self.buffer[4 : 4 + size])))
            del self.buffer[: 4 + size]
        return operations


class FakeSession:
    """A client's session that knows only that octets which are no pickle are a violation."""

    def __init__(self, config: ClientConfig, version: Version = V0_9_1, broker: FakeBroker | None = None):
        self.config = config
        self.version = version
        self.role = Role.CLIENT
        self.capabilities = Capabilities(confirms=Confirms.NATIVE, channel_max=2047, blocked_notification=True)
        if broker is not None:
            self.capabilities = replace(broker.capabilities)
        self.closed = False
        self.serials: dict[int, int] = {}
        self.frames = Frames()
        self.out: list[bytes] = [_pack(Opened(0, config.user, config.virtual_host))]
        self.timeout_at: float | None = None
        self.timeouts: list[float] = []
        self.commits = self.capabilities.confirms is Confirms.TRANSACTION
        self.confirming: set[int] = set()
        self.committing: set[int] = set()
        self.dirty: set[int] = set()

    def send(self, operation: Operation, now: float) -> int:
        if self.closed:
            raise StateError("the session is closed")
        channel = operation.channel
        if isinstance(operation, Publish) and operation.immediate:
            raise Unsupported("immediate: the broker has no such thing")
        if isinstance(operation, Publish) and self.commits and channel in self.confirming:
            if channel in self.committing:
                raise StateError("a commit has no answer yet")
            self.dirty.add(channel)
        if isinstance(operation, SelectConfirm):
            self.confirming.add(channel)
        if isinstance(operation, OpenChannel):
            self.serials[channel] = 0
        serial = self.serials[channel] = self.serials.get(channel, 0) + 1
        if isinstance(operation, Request):
            operation = replace(operation, serial=serial)
        self.out.append(_pack(operation))
        return serial

    def receive_data(self, data: bytes, now: float) -> list[Operation]:
        try:
            operations = self.frames.feed(data)
        except Exception:
            return self._end(Closed(0, CloseReason.SYNTAX, 501, "octets that are no operation"))
        for index, operation in enumerate(operations):
            if isinstance(operation, Closed):
                self.closed = True
                return operations[: index + 1]
            if isinstance(operation, Confirmed):
                self.committing.discard(operation.channel)
            if isinstance(operation, ChannelClosed):
                for channels in (self.committing, self.dirty, self.confirming):
                    channels.discard(operation.channel)
        return operations

    def receive_eof(self, now: float) -> list[Operation]:
        return [] if self.closed else self._end(Closed(0, CloseReason.EOF, 0, "the stream ended"))

    def _end(self, closed: Closed) -> list[Operation]:
        self.closed = True
        return [closed]

    def data_to_send(self) -> list[bytes]:
        out, self.out = self.out, []
        self.committing |= self.dirty
        self.dirty.clear()
        return out

    def next_timeout(self) -> float | None:
        return self.timeout_at

    def handle_timeout(self, now: float) -> list[Operation]:
        self.timeouts.append(now)
        self.timeout_at = None
        return []


class Peer:
    """One connection as the broker sees it."""

    def __init__(self, broker: FakeBroker) -> None:
        self.broker = broker
        self.stream = Stream(self)
        self.frames = Frames()
        self.out: list[bytes] = []
        self.received: list[Operation] = []
        self.lost = False
        self.delivered: dict[int, int] = {}  # channel -> last delivery number
        self.outstanding: dict[int, dict[int, tuple[str, Message]]] = {}
        self.consumers: dict[tuple[int, str], list[Any]] = {}  # (channel, tag) -> [queue, room]
        self.prefetch: dict[int, int] = {}

    # stream user
    def data_received(self, data: bytes) -> None:
        for operation in self.frames.feed(data):
            self.received.append(operation)
            self.broker.receive(self, operation)

    def stream_lost(self, error: Exception | None) -> None:
        self.lost = True
        for channel in list(self.outstanding):
            self.requeue(channel)
        self.consumers.clear()
        if self in self.broker.peers:
            self.broker.peers.remove(self)

    def data_to_send(self) -> list[bytes]:
        out, self.out = self.out, []
        return out

    def writable_again(self) -> None:
        return None

    # what tests do
    def send(self, *operations: Operation) -> None:
        self.out += [_pack(operation) for operation in operations]
        self.stream.wake()

    def send_octets(self, octets: bytes) -> None:
        self.out.append(octets)
        self.stream.wake()

    def hang_up(self) -> None:
        self.stream.close()

    def close_channel(self, channel: int, code: int, text: str) -> None:
        self.requeue(channel)
        for key in [key for key in self.consumers if key[0] == channel]:
            del self.consumers[key]
        self.send(ChannelClosed(channel, code, text))

    def requeue(self, channel: int) -> None:
        for name, message in reversed(list(self.outstanding.pop(channel, {}).values())):
            if name in self.broker.queues:
                self.broker.queues[name].appendleft((message, True))

    def of(self, kind: type) -> list[Any]:
        return [operation for operation in self.received if type(operation) is kind]

    def out_on(self, channel: int, queue: str, message: Message) -> int:
        number = self.delivered[channel] = self.delivered.get(channel, 0) + 1
        self.outstanding.setdefault(channel, {})[number] = (queue, message)
        return number


Handler = Callable[[Peer, Any], bool | None]


class FakeBroker:
    """The broker."""

    def __init__(self, **capabilities: Any) -> None:
        self.capabilities = Capabilities(
            product="Fake",
            product_version="1",
            **{"confirms": Confirms.NATIVE, "channel_max": 2047, "blocked_notification": True, **capabilities},
        )
        self.peers: list[Peer] = []
        self.on: dict[type, Handler] = {}
        self.queues: dict[str, deque[tuple[Message, bool]]] = {}
        self.exchanges: set[str] = {"", "amq.direct"}
        self.bindings: set[tuple[str, str, str]] = set()
        self.down = False
        self.connections = 0
        self.sessions: list[FakeSession] = []

    async def dial(self, user: StreamUser, timeout: float) -> Stream:
        """A connector for :class:`gateway.upstreams.Upstream` and :meth:`gateway.link.Link.open`."""
        if self.down:
            raise BrokerUnavailable("fake:0: connection refused")
        self.connections += 1
        stream = Stream(user)
        peer = Peer(self)
        self.peers.append(peer)
        memory_pair(stream, peer.stream)
        return stream

    def session(self, version: Version, config: ClientConfig) -> Session:
        """In place of :func:`gateway.versions.client_session`."""
        session = FakeSession(config, version, self)
        self.sessions.append(session)
        return session

    def all(self, kind: type) -> list[Any]:
        """All operations of a kind that any open connection received."""
        return [operation for peer in self.peers for operation in peer.of(kind)]

    def kill(self) -> None:
        """Every connection goes, without a word."""
        for peer in list(self.peers):
            peer.stream.abort()

    def put(self, queue: str, *bodies: bytes) -> None:
        self.queues.setdefault(queue, deque()).extend((Message(body), False) for body in bodies)
        self.pump()

    def receive(self, peer: Peer, operation: Operation) -> None:
        handler = self.on.get(type(operation))
        if handler is not None and handler(peer, operation):
            return
        answer = getattr(self, f"_{type(operation).__name__.lower()}", None)
        if answer is not None:
            answer(peer, operation)
        elif isinstance(operation, Request):
            peer.send(Done(operation.channel, operation.serial, operation.serial))

    # ------------------------------------------------------------------------------------------ answers

    def _opened(self, peer: Peer, operation: Opened) -> None:
        peer.send(operation)

    def _close(self, peer: Peer, operation: Close) -> None:
        peer.send(Closed(0, CloseReason.LOCAL, 200, "bye"))

    def _closechannel(self, peer: Peer, operation: CloseChannel) -> None:
        peer.requeue(operation.channel)
        for key in [key for key in peer.consumers if key[0] == operation.channel]:
            del peer.consumers[key]
        peer.send(ChannelClosed(operation.channel, 200, "", by_peer=False))
        self.pump()

    def _publish(self, peer: Peer, operation: Publish) -> None:
        n = operation.serial
        if operation.exchange not in self.exchanges:
            peer.close_channel(operation.channel, 404, f"NOT_FOUND - no exchange '{operation.exchange}'")
        elif not self.route(operation):
            peer.send(Returned(operation.channel, n, n, 312, "NO_ROUTE"))
        else:
            peer.send(Confirmed(operation.channel, n, n))

    def route(self, operation: Publish) -> bool:
        names = {
            queue
            for queue, exchange, key in self.bindings
            if (exchange, key) == (operation.exchange, operation.routing_key)
        }
        if operation.exchange == "" and operation.routing_key in self.queues:
            names.add(operation.routing_key)
        for name in names:
            self.queues[name].append((operation.message, False))
        self.pump()
        return bool(names)

    def _queryexchange(self, peer: Peer, operation: QueryExchange) -> None:
        if operation.exchange in self.exchanges:
            peer.send(ExchangeFound(operation.channel, operation.serial, operation.serial, operation.exchange))
        else:
            peer.close_channel(operation.channel, 404, f"NOT_FOUND - no exchange '{operation.exchange}'")

    def _declareexchange(self, peer: Peer, operation: DeclareExchange) -> None:
        if operation.type == "nonsense":
            peer.send(Closed(0, CloseReason.PEER, 503, "COMMAND_INVALID - unknown exchange type"))
            peer.stream.close()
            return
        self.exchanges.add(operation.exchange)
        peer.send(Done(operation.channel, operation.serial, operation.serial))

    def _deleteexchange(self, peer: Peer, operation: DeleteExchange) -> None:
        self.exchanges.discard(operation.exchange)
        peer.send(Done(operation.channel, operation.serial, operation.serial))

    def _declarequeue(self, peer: Peer, operation: DeclareQueue) -> None:
        self.queues.setdefault(operation.queue, deque())
        self._queryqueue(peer, operation)

    def _queryqueue(self, peer: Peer, operation: QueryQueue | DeclareQueue) -> None:
        queue = self.queues.get(operation.queue)
        if queue is None:
            peer.close_channel(operation.channel, 404, f"NOT_FOUND - no queue '{operation.queue}'")
            return
        n = operation.serial
        consumers = sum(c[0] == operation.queue for p in self.peers for c in p.consumers.values())
        peer.send(Declared(operation.channel, n, n, operation.queue, len(queue), consumers))

    def _deletequeue(self, peer: Peer, operation: DeleteQueue) -> None:
        removed = len(self.queues.pop(operation.queue, ()))
        peer.send(Removed(operation.channel, operation.serial, operation.serial, removed))
        for other in self.peers:
            for (channel, tag), (queue, _) in list(other.consumers.items()):
                if queue == operation.queue:
                    del other.consumers[channel, tag]
                    other.send(Cancelled(channel, tag))

    def _purgequeue(self, peer: Peer, operation: PurgeQueue) -> None:
        queue = self.queues[operation.queue]
        peer.send(Removed(operation.channel, operation.serial, operation.serial, len(queue)))
        queue.clear()

    def _bindqueue(self, peer: Peer, operation: BindQueue) -> None:
        self.bindings.add((operation.queue, operation.exchange, operation.routing_key))
        peer.send(Done(operation.channel, operation.serial, operation.serial))

    def _unbindqueue(self, peer: Peer, operation: UnbindQueue) -> None:
        self.bindings.discard((operation.queue, operation.exchange, operation.routing_key))
        peer.send(Done(operation.channel, operation.serial, operation.serial))

    def _get(self, peer: Peer, operation: Get) -> None:
        queue, n = self.queues.get(operation.queue), operation.serial
        if queue is None:
            peer.close_channel(operation.channel, 404, f"NOT_FOUND - no queue '{operation.queue}'")
        elif not queue:
            peer.send(GotNothing(operation.channel, n, n))
        else:
            message, redelivered = queue.popleft()
            number = peer.out_on(operation.channel, operation.queue, message)
            peer.send(Got(operation.channel, n, n, number, redelivered, "", operation.queue, message))

    def _qos(self, peer: Peer, operation: Qos) -> None:
        peer.prefetch[operation.channel] = operation.prefetch_count
        peer.send(Done(operation.channel, operation.serial, operation.serial))

    def _consume(self, peer: Peer, operation: Consume) -> None:
        if operation.queue not in self.queues:
            peer.close_channel(operation.channel, 404, f"NOT_FOUND - no queue '{operation.queue}'")
            return
        room = peer.prefetch.get(operation.channel) or 1_000_000
        peer.consumers[operation.channel, operation.consumer_tag] = [operation.queue, room]
        peer.send(Consuming(operation.channel, operation.serial, operation.serial, operation.consumer_tag))
        self.pump()

    def _cancel(self, peer: Peer, operation: Cancel) -> None:
        peer.consumers.pop((operation.channel, operation.consumer_tag), None)
        peer.send(Done(operation.channel, operation.serial, operation.serial))

    def _settle(self, peer: Peer, operation: Settle) -> None:
        out = peer.outstanding.get(operation.channel, {})
        for number in range(operation.first, operation.last + 1):
            if number not in out:
                peer.close_channel(operation.channel, 406, f"PRECONDITION_FAILED - unknown delivery {number}")
                return
            name, message = out.pop(number)
            if operation.settlement is Settlement.RELEASE:
                self.queues[name].appendleft((message, True))
            for (channel, _), consumer in peer.consumers.items():
                if channel == operation.channel:
                    consumer[1] += 1
        self.pump()

    def pump(self) -> None:
        """Deliver to consumers with room."""
        for peer in self.peers:
            for (channel, tag), consumer in peer.consumers.items():
                queue = self.queues.get(consumer[0])
                while queue and consumer[1] > 0:
                    message, redelivered = queue.popleft()
                    consumer[1] -= 1
                    number = peer.out_on(channel, consumer[0], message)
                    peer.send(Deliver(channel, tag, number, redelivered, "", consumer[0], message))

    def block(self, reason: str = "low on memory") -> None:
        for peer in self.peers:
            peer.send(Blocked(0, reason))

    def unblock(self) -> None:
        for peer in self.peers:
            peer.send(Unblocked(0))


async def bounce(broker: FakeBroker, upstream: Upstream) -> None:
    """Lose every connection, and wait until all are back."""
    before = broker.connections
    broker.kill()
    await until(lambda: broker.connections >= before + 3)
    assert await upstream.wait_up(30)


async def until(condition: Callable[[], Any], seconds: float = 30.0) -> None:
    """Wait until something holds."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.005)
