"""Persistent messages, published straight to a broker, past the gateway.

Each has a ``message_id`` of its own, which is its id in the run's :class:`~tests.faults.checker.History`. What the
messages are like, and by what they are known again, is said by a :class:`Kind`. Whatever was not taken for certain is
published again; what has no outcome is not, for then the broker itself might hold it twice.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

import pika

from gateway.amqp.message import Message
from gateway.errors import BrokerUnavailable, GatewayError, OutcomeUnknown
from gateway.upstreams import Upstream
from tests.faults.checker import History, Outcome
from tests.servers import BrokerJ
from tests.servers.process import Server

_PAUSE: Final = 0.2
"""Seconds before something is tried again."""
_LATE: Final = 0.1
"""So many seconds of delay are made up for; after a longer one the load does not come all at once."""


@dataclass(frozen=True, slots=True)
class Shape:
    """How much of what. Sizes in octets."""

    messages: int = 100
    """At least so many: the load goes on as long as the fault does."""
    rate: float = 50.0
    """Messages a second."""
    body: int = 512
    """Median size of a body."""
    large: int = 48 << 10
    """Size of the few that are large."""
    large_share: float = 0.01
    window: int = 64
    """Most publishes of the load's own that wait for their outcome."""


class Kind(NamedTuple):
    """What the messages of a load are like."""

    make: Callable[[int, int, random.Random, Shape], Message]
    """Seed, number, chance and shape -> a message."""
    digest: Callable[[Message], str]
    """What must be the same at both ends."""


def left(server: Server, queue: str) -> int:
    """How many messages are in a queue, by a client that is not ours: pika, or Broker-J's own management."""
    if isinstance(server, BrokerJ):
        return server.queue_depth(queue, server.virtual_host)
    connection = pika.BlockingConnection(pika.URLParameters(server.url("").partition("?")[0]))
    try:
        return int(connection.channel().queue_declare(queue, passive=True).method.message_count)
    finally:
        connection.close()


class Load:
    """One producer with a window. It goes on until it is told to stop."""

    def __init__(self, history: History, shape: Shape, kind: Kind, upstream: Upstream, queue: str, seed: int) -> None:
        self.history = history
        self.shape = shape
        self.errors: dict[str, int] = {}
        """How often each error came back."""
        self.change: Callable[[int, Message], Message] | None = None
        """What a row makes of the message of this number, before it is published; None: nothing."""
        self._kind = kind
        self._upstream = upstream
        self._queue = queue
        self._seed = seed
        self._rng = random.Random(seed)
        self._room = asyncio.Semaphore(shape.window)
        self._going = asyncio.Event()
        self._stopped = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._producer: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Start, or go on after :meth:`pause`."""
        self._going.set()
        if self._producer is None:
            self._producer = asyncio.create_task(self._produce())

    async def pause(self) -> None:
        """Publish nothing more until :meth:`begin`; every publish has its outcome then."""
        self._going.clear()
        await self._settled()

    async def stop(self) -> None:
        """End, once at least ``shape.messages`` were attempted, and every publish has its outcome."""
        self._stopped = True
        if self._producer is not None:
            self._going.set()
            await self._producer
        await self._settled()

    async def abandon(self) -> None:
        """End at once, after a failure."""
        tasks = [*self._tasks, *([self._producer] if self._producer is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def attempted(self) -> int:
        """How many publishes were begun."""
        return len(self.history.publishes)

    async def _settled(self) -> None:
        while self._tasks:
            await asyncio.wait(set(self._tasks))

    async def _produce(self) -> None:
        number, due = 0, time.monotonic()
        while not self._stopped or self.attempted < self.shape.messages:
            await self._going.wait()
            due = max(due + 1 / self.shape.rate, time.monotonic() - _LATE)
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            await self._room.acquire()
            if not self._going.is_set():
                self._room.release()
                continue
            message = self._kind.make(self._seed, number, self._rng, self.shape)
            if self.change is not None:
                message = self.change(number, message)
            number += 1
            task = asyncio.create_task(self._publish(message))
            self._tasks.add(task)
            task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._room.release()
        if not task.cancelled():
            task.result()

    async def _publish(self, message: Message) -> None:
        id = message.properties.message_id
        assert id is not None
        self.history.attempt(id, self._kind.digest(message))
        while True:
            try:
                receipt = await self._upstream.publish("", self._queue, message, timeout=60.0)
            except BrokerUnavailable as error:
                self._count(error)
                await asyncio.sleep(_PAUSE)
            except OutcomeUnknown as error:
                self._count(error)
                self.history.answer(id, Outcome.UNKNOWN)
                return
            except GatewayError as error:
                self._count(error)
                self.history.answer(id, Outcome.NOT_TAKEN)
                return
            else:
                self.history.answer(id, Outcome.ACKNOWLEDGED if receipt.routed else Outcome.NOT_TAKEN)
                return

    def _count(self, error: GatewayError) -> None:
        self.errors[error.code] = self.errors.get(error.code, 0) + 1
