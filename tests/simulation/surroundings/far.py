"""A far broker: the project's own, with a model of durability.

It is crashed in three steps: all connections are reset, what was not durable goes, and after a while it listens again.
Durable are persistent messages in durable queues that were confirmed. A message whose confirm was still inside the
broker or on its way, so that no client can have it, may be gone or not.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec

from gateway.amqp.message import Message, Properties
from gateway.amqp.operations import DeclareQueue
from gateway.broker.queues import Envelope
from gateway.broker.server import EmbeddedBroker
from gateway.config import EmbeddedSettings
from gateway.limits import DEFAULT_BROKER_LIMITS
from tests.simulation.surroundings.loop import Node, SimLoop
from tests.simulation.surroundings.network import Network
from tests.simulation.surroundings.seams import ENTERED


class FarBroker:
    """One broker, which may be crashed and comes back."""

    def __init__(
        self, name: str, port: int, loop: SimLoop, network: Network, chance: random.Random, note: Callable[..., None]
    ) -> None:
        self.name, self.port, self.loop, self.network, self.chance, self.note = name, port, loop, network, chance, note
        self.node = Node(name)
        self.is_up = False
        self.lost = 0
        """Messages that went in crashes."""
        self.forgetful = ""
        """A queue of which it forgets in a crash what it has delivered before, as Broker-J does."""
        self.server: EmbeddedBroker
        self.entered: dict[Any, tuple[float, int]] = {}
        ENTERED[name] = self.entered

    async def start(self) -> None:
        """Listen, empty."""
        settings = msgspec.convert({"enabled": True, "host": "127.0.0.1", "port": self.port}, EmbeddedSettings)
        limits = replace(DEFAULT_BROKER_LIMITS, session_timeout=0.0)

        async def begin() -> None:
            self.server = EmbeddedBroker(settings, broker_limits=limits)
            await self.server.start()

        await self.loop.start(self.node, begin(), f"start {self.name}")
        self.is_up = True

    def declare(self, name: str, **arguments: Any) -> None:
        """Declare a durable queue."""
        self.vhost.declare_queue(DeclareQueue(1, name, True, arguments=arguments), name, _Nobody(), self.loop.now)

    def put(self, name: str, body: bytes, id: str, *, was_out: bool) -> asyncio.Task[None]:
        """Have a stranger publish a persistent message, which has its confirm. ``was_out``: somebody takes what waits
        in the queue, and gives it back."""

        async def put() -> None:
            while not self.is_up:
                await asyncio.sleep(0.01)
            message = Message(body, Properties(message_id=id, delivery_mode=2))
            envelope = Envelope(self.vhost.memory, message, "", name)
            queue = self.vhost.queues[name]
            queue.publish(envelope, self.loop.now, True)
            if was_out:
                self.look(name)

        return self.loop.start(self.node, put(), f"put {name}")

    @property
    def vhost(self) -> Any:
        """The only virtual host."""
        return self.server.broker.virtual_host("/")

    def ready(self) -> dict[str, int]:
        """Queue -> how many messages wait."""
        return {name: queue.ready for name, queue in self.vhost.queues.items() if queue.ready}

    def be_busy(self) -> None:
        """Do little in each turn: time passes whenever the clock is looked at, though only for the turns."""
        turn, time = self.server.broker.turn, self.loop.now

        def clock() -> float:
            nonlocal time
            time += 1.5 * turn._length * self.chance.random()
            return time

        turn.clock = clock

    def look(self, name: str) -> None:
        """Have somebody take all that waits in a queue, and give it back."""
        for entry in self._waiting(self.vhost.queues[name]):
            entry.redelivered = True

    def waiting(self, name: str) -> set[Any]:
        """The messages that wait in a queue."""
        return {entry.envelope for entry in self._waiting(self.vhost.queues[name])}

    def crash(self, seconds: float, *, forgets: bool = False) -> asyncio.Task[None]:
        """Crash, and be back after ``seconds``. ``forgets``: that it has delivered what comes back to its queues."""
        return self.loop.start(self.node, self._crash(seconds, forgets), f"crash {self.name}")

    async def _crash(self, seconds: float, forgets: bool) -> None:
        if not self.is_up:
            return
        self.is_up = False
        self.note("fault", "crash", self.name, f"{seconds:.1f} s")
        listener = self.network.listeners.pop(self.port)
        for transport in self.network.of(self.node):
            other = transport.other
            transport.reset()
            self.loop.call_later(self.network.latency(), other.reset, context=other._context)
        while self.server.broker.connections:
            await asyncio.sleep(0.0001)
        # A confirm that was on its way died with its connection: what came later than the last octet that any client
        # has was never confirmed.
        for queue in self.vhost.queues.values():
            self._forget(queue, self.network.heard.get(self.name, -1.0))
            if forgets:
                for entry in self._waiting(queue):
                    entry.redelivered = False
        await asyncio.sleep(seconds)
        self.network.listeners[self.port] = listener
        self.is_up = True
        self.note("fault", "back", self.name)

    def _forget(self, queue: Any, heard: float) -> None:
        for entry in self._waiting(queue):
            if queue.name == self.forgetful:
                entry.redelivered = False
            came, _ = self.entered.get(entry.envelope, (0.0, 0))
            if came > heard and self.chance.random() < 0.5:
                self.lost += 1
                self.note("fault", "unconfirmed message lost", self.name, queue.name)
                queue.take(entry)
                entry.drop()

    @staticmethod
    def _waiting(queue: Any) -> list[Any]:
        return [entry for line in queue._lines for entry in line if entry.ready]


class _Nobody:
    """Who declares queues for the world."""

    durable_exclusive_stays = True
    declared = None

    def __init__(self) -> None:
        self.owned: dict[Any, None] = {}
