"""The load of a run: publishers and consumers that speak AMQP to a front, which write down a
:class:`~tests.faults.checker.History`.

A publisher has several publishes under way at once. It publishes each message once: what had no outcome when its
connection was lost is *unknown*, so that every copy that comes is the gateway's or the broker's. A consumer holds a
delivery for a moment and accepts it; a few messages it gives back the first time.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from tests.faults.checker import History, Outcome, Reception, Settled
from tests.faults.fronts.clients import Arrived, Connection, Content, Lost, connection

RETRY: Final = 0.1
"""Pause before a client connects again, in seconds."""
GIVE_UP: Final = 90.0
"""For how long it tries."""
QUIET: Final = 1.5
"""Nothing has come for this many seconds: nothing more comes."""


@dataclass(frozen=True, slots=True)
class Shape:
    """How much of what. Sizes in octets, times in seconds."""

    messages: int = 1_000
    publishers: tuple[str, ...] = ("0-9-1", "0-9-1", "0-9-1", "0-10", "0-9-1", "0-9-1")
    """Their versions. Every other one publishes to the second queue."""
    consumers: tuple[str, ...] = ("0-9-1", "0-9-1", "0-10", "0-9-1")
    """Likewise."""
    window: int = 20
    """Publishes of one publisher without an outcome."""
    prefetch: int = 50
    body: int = 200
    large: int = 20_000
    large_share: float = 0.01
    hold: float = 0.002
    release_share: float = 0.02
    slow: tuple[int, int] = (0, 0)
    """How many publishers and consumers use the second port: the last ones."""


@dataclass
class _Publisher:
    version: str
    port: int
    queue: str
    in_flight: dict[int, str] = field(default_factory=dict)
    connection: Connection | None = None
    room: asyncio.Event = field(default_factory=asyncio.Event)


class Load:
    """Publishers and consumers of two queues.

    Args:
        history: what is written down.
        shape: how much of what.
        ports: of the front: for most of the clients, and for slow ones.
        queues: two names.
        seed: of messages and moments.
    """

    def __init__(
        self, history: History, shape: Shape, ports: tuple[int, int], queues: tuple[str, str], seed: int
    ) -> None:
        self.history = history
        self.shape = shape
        self.breaks: list[str] = []
        """Why clients have lost connections."""
        self.open_deliveries = 0
        """Deliveries that consumers hold."""
        self.made = 0
        """Publishes that were begun."""
        self.received: set[str] = set()
        self.fast_receptions = 0
        """Of consumers that are not slow."""
        self._random = random.Random(seed)
        self._allowed = 0
        self._more = asyncio.Event()
        self._stopped = asyncio.Event()
        self._last_reception = time.monotonic()
        self._released: set[str] = set()
        slow = shape.slow
        self._publishers = [
            _Publisher(version, ports[number >= len(shape.publishers) - slow[0]], queues[number % 2])
            for number, version in enumerate(shape.publishers)
        ]
        self._publishing: list[asyncio.Task[None]] = []
        self._consumers = [
            (version, ports[number >= len(shape.consumers) - slow[1]], queues[number % 2])
            for number, version in enumerate(shape.consumers)
        ]
        self._fast_port = ports[0]
        self._consuming: list[asyncio.Task[None]] = []

    # ---------------------------------------------------------------------------------------------- control

    def begin(self) -> None:
        """Start everybody. Publishers wait until :meth:`allow` lets them go on."""
        self._publishing = [asyncio.create_task(self._publish_all(each)) for each in self._publishers]
        self._consuming = [
            asyncio.create_task(self._consume_all(number, *each)) for number, each in enumerate(self._consumers)
        ]

    def allow(self, share: float) -> None:
        """Let publishers go on until this share of the messages was attempted."""
        self._allowed = max(self._allowed, round(share * self.shape.messages))
        self._more.set()

    @property
    def in_flight(self) -> int:
        """Publishes without an outcome."""
        return sum(len(each.in_flight) for each in self._publishers)

    @property
    def is_done(self) -> bool:
        """All that was allowed has its outcome."""
        return self.made >= self._allowed and not self.in_flight

    @property
    def failure(self) -> str:
        """What went wrong in a client; empty: nothing."""
        for task in (*self._publishing, *self._consuming):
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                return repr(error)
        return ""

    @property
    def is_quiet(self) -> bool:
        """All that was acknowledged has come, all that has come was settled, and nothing more comes."""
        return (
            not self.open_deliveries
            and time.monotonic() - self._last_reception > QUIET
            and all(
                publish.id in self.received
                for publish in self.history.publishes.values()
                if publish.outcome is Outcome.ACKNOWLEDGED
            )
        )

    async def produced(self) -> None:
        """Let publishers do the rest, and end."""
        self.allow(1.0)
        await asyncio.gather(*self._publishing)

    async def stop(self) -> None:
        """Have consumers hang up in good order."""
        self._stopped.set()
        await asyncio.gather(*self._consuming)

    async def abandon(self) -> None:
        """End everybody at once."""
        tasks = (*self._publishing, *self._consuming)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # ------------------------------------------------------------------------------------------- connections

    async def connect(self, version: str, port: int) -> Connection:
        """A connection, as soon as there is one to be had. Raises Lost: there was none for long."""
        deadline = time.monotonic() + GIVE_UP
        while True:
            made = connection(port, version)
            try:
                await made.open()
            except Lost:
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(RETRY)
            else:
                return made

    async def declare(self, port: int, queues: Mapping[str, bool]) -> None:
        """Declare queues: name -> whether it is durable."""
        made = await self.connect("0-9-1", port)
        for name, durable in queues.items():
            await made.declare(name, durable)
        await made.close()

    # -------------------------------------------------------------------------------------------- publishers

    def _next(self) -> Content | None:
        if self.made >= min(self._allowed, self.shape.messages):
            return None
        self.made += 1
        size = self.shape.large if self._random.random() < self.shape.large_share else self.shape.body
        id = str(UUID(int=self._random.getrandbits(128), version=4))
        return Content(id, self._random.randbytes(max(1, round(size * self._random.uniform(0.2, 1.8)))), self.made)

    async def _publish_all(self, publisher: _Publisher) -> None:
        while self.made < self.shape.messages:
            if publisher.connection is not None and publisher.connection.over.is_set():
                self._lose(publisher)
            if self.made >= self._allowed:
                self._more.clear()
                await self._either(self._more, publisher.room)  # woken at least when something has its outcome
                publisher.room.clear()
                continue
            if publisher.connection is None:
                await self._reconnect(publisher)
                continue
            if len(publisher.in_flight) >= self.shape.window:
                await self._either(publisher.room, publisher.connection.over)
                publisher.room.clear()
                continue
            content = self._next()
            if content is None:
                continue
            self.history.attempt(content.id, content.digest)
            try:
                number = publisher.connection.publish(publisher.queue, content)
            except Lost:
                self.history.answer(content.id, Outcome.UNKNOWN)
                await asyncio.sleep(0)  # the connection says that it is over
                continue
            publisher.in_flight[number] = content.id
            await asyncio.sleep(0)
        while publisher.in_flight and publisher.connection is not None and not publisher.connection.over.is_set():
            await self._either(publisher.room, publisher.connection.over)
            publisher.room.clear()
        if publisher.connection is not None and publisher.connection.over.is_set():
            self._lose(publisher)
        if publisher.connection is not None:
            await publisher.connection.close()

    @staticmethod
    async def _either(*events: asyncio.Event) -> None:
        """Wait for one of them, for half a second at most."""
        tasks = [asyncio.ensure_future(event.wait()) for event in events]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED, timeout=0.5)
        for task in tasks:
            task.cancel()

    async def _reconnect(self, publisher: _Publisher) -> None:
        made = await self.connect(publisher.version, publisher.port)

        def outcome(numbers: Iterable[int], taken: bool) -> None:
            for number in numbers:
                id = publisher.in_flight.pop(number, None)
                if id is not None:
                    self.history.answer(id, Outcome.ACKNOWLEDGED if taken else Outcome.NOT_TAKEN)
            publisher.room.set()

        try:
            await made.begin_publishing(outcome)
        except Lost:
            self.breaks.append(made.why)
            return
        publisher.connection = made

    def _lose(self, publisher: _Publisher) -> None:
        """Its connection is lost, and nobody knows of what was under way."""
        assert publisher.connection is not None
        self.breaks.append(publisher.connection.why)
        publisher.connection = None
        for id in publisher.in_flight.values():
            self.history.answer(id, Outcome.UNKNOWN)
        publisher.in_flight.clear()

    # --------------------------------------------------------------------------------------------- consumers

    async def _consume_all(self, index: int, version: str, port: int, queue: str) -> None:
        while not self._stopped.is_set():
            waiting: deque[tuple[Arrived, Reception]] = deque()
            came = asyncio.Event()

            def arrived(
                delivery: Arrived,
                waiting: deque[tuple[Arrived, Reception]] = waiting,
                came: asyncio.Event = came,
            ) -> None:
                reception = Reception(
                    delivery.id, delivery.digest, redelivered=delivery.redelivered, resent=delivery.resent,
                    since=time.monotonic(),
                )  # fmt: skip
                self.history.receive(reception)
                self.received.add(delivery.id)
                self.fast_receptions += port == self._fast_port
                self.open_deliveries += 1
                self._last_reception = reception.since
                waiting.append((delivery, reception))
                came.set()

            made = await self.connect(version, port)
            try:
                await made.consume(queue, self.shape.prefetch, arrived)
                while not made.over.is_set() and not (self._stopped.is_set() and not waiting):
                    came.clear()
                    if not waiting:
                        await self._either(came, made.over, self._stopped)
                        continue
                    await asyncio.sleep(self.shape.hold)
                    self._settle(made, waiting, multiple=index % 2 == 1)
            except Lost:
                await asyncio.sleep(0)
            self.open_deliveries -= len(waiting)
            waiting.clear()
            if self._stopped.is_set() and not made.over.is_set():
                with suppress(Lost):
                    await made.close()
            else:
                self.breaks.append(made.why or "lost while it began to consume")

    def _settle(self, made: Connection, waiting: deque[tuple[Arrived, Reception]], multiple: bool) -> None:
        """Settle what has come: one by one, or all at once. Raises Lost."""
        while waiting:
            delivery, reception = waiting[0]
            gives_back = delivery.id not in self._released and self._random.random() < self.shape.release_share
            if gives_back:
                made.release(delivery.number)
                self._released.add(delivery.id)
                reception.settled = Settled.RELEASED
                waiting.popleft()
                self.open_deliveries -= 1
            elif multiple:
                made.accept(waiting[-1][0].number, multiple=True)
                while waiting:
                    waiting.popleft()[1].settled = Settled.ACKED
                    self.open_deliveries -= 1
            else:
                made.accept(delivery.number)
                reception.settled = Settled.ACKED
                waiting.popleft()
                self.open_deliveries -= 1
