"""Clients of a front in a world, in any version: they publish to it, and consume from it.

A client publishes each message once. What had no outcome when its connection was lost is unknown, so that every copy
that comes is the gateway's or the broker's.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from typing import Final
from uuid import UUID

from tests.faults.checker import Outcome, Reception, Settled
from tests.faults.fronts.clients import Arrived, Content, LinkConnection, Lost
from tests.simulation.restless_clients import Client, RestlessClients
from tests.simulation.scene import Scene
from tests.simulation.settings import FRONT_PORT
from tests.simulation.worlds import Front

AGAIN: Final = 0.1
"""Pause before a client connects again, in seconds."""
LOOK: Final = 0.2
"""How often a client that waits looks whether its connection is over, in seconds."""
PATIENCE: Final = 120.0
"""How long a publish may wait for its outcome while its connection lasts, in seconds."""
IN_TRANSACTION: Final = "within a transaction"
"""What a client hears whose broker was lost before its commit."""
ENDS: Final = frozenset({"kill", "kill at commit", "rotate secrets", "rotate ack ids"})
"""Faults that end a process of the gateway, which its clients notice."""


class AmqpClients:
    """All clients of the fronts of a world."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.breaks: list[str] = []
        """Why clients have lost connections."""
        self.is_drained = False
        """Nothing is left to receive."""
        self.restless = RestlessClients(self, scene)
        self._consumers: list[asyncio.Task[None]] = []

    @property
    def front(self) -> Front:
        """The front of the world, which has one."""
        front = self.scene.world.front
        assert front is not None
        return front

    def start(self) -> list[asyncio.Task[None]]:
        """Have all of them begin. Returns the publishers."""
        front, spawn = self.scene.world.front, self.scene.spawn
        if front is None:
            return []
        self._consumers = [
            spawn(self._consume(number, version), f"AMQP consumer {number}")
            for number, version in enumerate(front.consumers)
        ]
        self._consumers += [
            spawn(self._fetch(number, version), f"AMQP fetcher {number}")
            for number, version in enumerate(front.fetchers, len(front.consumers))
        ]
        endless, others = self.restless.start(front)
        self._consumers += endless
        publishers = others + [
            spawn(self._publish(number, version), f"AMQP publisher {number}")
            for number, version in enumerate(front.publishers)
        ]
        return publishers + [
            spawn(self._publish_in_transactions(number, version), f"transacted AMQP publisher {number}")
            for number, version in enumerate(front.transacted, len(front.publishers))
        ]

    async def stop(self) -> None:
        """End the consumers: nothing is left to receive."""
        self.is_drained = True
        if self._consumers:
            await asyncio.wait(self._consumers)

    @property
    def is_ended(self) -> bool:
        """Whether the process of the gateway ends at some time."""
        return any(fault.kind in ENDS for fault in self.scene.world.faults)

    def judge(self) -> None:
        """No connection of a client may end while its gateway lives."""
        is_hurt = self.is_ended or any("world" in (fault.target, fault.other) for fault in self.scene.world.faults)
        if self.breaks and not is_hurt:
            self.scene.problem("clients of the front have lost their connection", *self.breaks)
        if not is_hurt:
            self._judge_order()
        self.restless.judge()

    def _judge_order(self) -> None:
        """What a client has published comes to the broker in its order, unless the broker forgets some of it."""
        scene, front = self.scene, self.scene.world.front
        if front is None or any(fault.kind.startswith("crash") for fault in scene.world.faults):
            return
        newest: dict[int, int] = {}
        seen: set[int] = set()
        for envelope in scene.brokers[front.broker].entered:
            if envelope.routing_key != front.queue:
                continue
            number = UUID(str(envelope.message.properties.message_id)).int
            client, index = number >> 32, number & 0xFFFFFFFF
            if number not in seen and index < newest.get(client, -1):
                scene.problem("published before another, and came to the broker behind it", UUID(int=number))
            seen.add(number)
            newest[client] = max(newest.get(client, -1), index)

    async def connect(self, version: str, number: int) -> Client:
        """A connection, as soon as there is one to be had."""
        gateways = self.scene.gateways
        while True:
            made = Client(gateways[number % len(gateways)].port + FRONT_PORT, version)
            with suppress(Lost):
                await made.open()
                return made
            await asyncio.sleep(AGAIN)

    # ------------------------------------------------------------------------------------------- publishers

    async def _publish(self, number: int, version: str) -> None:
        scene, front = self.scene, self.front
        chance = random.Random(f"{scene.world.seed} AMQP publisher {number}")
        in_flight: dict[int, str] = {}
        connection: LinkConnection | None = None

        def outcome(serials: Iterable[int], is_taken: bool) -> None:
            for serial in serials:
                id = in_flight.pop(serial, None)
                if id is not None:
                    scene.note("amqp", "confirmed" if is_taken else "refused", id)
                    scene.history.answer(id, Outcome.ACKNOWLEDGED if is_taken else Outcome.NOT_TAKEN)

        def lose() -> None:
            assert connection is not None
            scene.note("amqp", "publisher", number, "has lost its connection:", connection.why)
            self.breaks.append(connection.why)
            for id in in_flight.values():
                scene.history.answer(id, Outcome.UNKNOWN)
            in_flight.clear()

        for index in range(front.messages):
            await asyncio.sleep(chance.choice((0.0, 0.0, 0.02, 0.2)) * chance.random())
            while True:
                if connection is None or connection.over.is_set():
                    if connection is not None:
                        lose()
                    connection = await self.connect(version, number)
                    try:
                        await connection.begin_publishing(outcome)
                    except Lost:
                        await asyncio.sleep(0)
                        continue
                if len(in_flight) < front.window:
                    break
                await self._wait(in_flight, connection, front.window)
            content = self._content(number, index, chance)
            try:
                in_flight[connection.publish(front.queue, content)] = content.id
            except Lost:
                scene.history.answer(content.id, Outcome.UNKNOWN)
        if connection is not None:
            await self._wait(in_flight, connection, 1)
            if connection.over.is_set():
                lose()
            else:
                await connection.close()

    def _content(self, number: int, index: int, chance: random.Random) -> Content:
        """A message, which the history knows from now on."""
        id = str(UUID(int=(number << 32) + index))
        content = Content(id, f"{id} ".ljust(chance.choice((40, 200, 5_000)), "x").encode(), index)
        self.scene.note("amqp", "publish", id)
        self.scene.history.attempt(id, content.digest)
        return content

    async def _publish_in_transactions(self, number: int, version: str) -> None:
        """Some messages in each transaction, of which some are rolled back."""
        scene, front = self.scene, self.front
        chance = random.Random(f"{scene.world.seed} transacted AMQP publisher {number}")
        connection: LinkConnection | None = None
        index = 0
        while index < front.messages:
            await asyncio.sleep(chance.choice((0.0, 0.02, 0.2)) * chance.random())
            under_way: list[str] = []
            commits, many = chance.random() < 0.8, chance.randint(1, 4)
            outcome = Outcome.UNKNOWN
            try:
                if connection is None:
                    connection = await self.connect(version, number)
                    await connection.begin_transactions()
                for content in [self._content(number, index + place, chance) for place in range(many)]:
                    under_way.append(content.id)
                    connection.publish(front.queue, content)
                await connection.end_transaction(commits)
                outcome = Outcome.ACKNOWLEDGED if commits else Outcome.NOT_TAKEN
            except Lost as error:
                if IN_TRANSACTION not in str(error):
                    self.breaks.append(str(error))
                if connection is not None:
                    await connection.close()
                connection = None
            scene.note("amqp", "commit" if commits else "roll back", outcome.name, *under_way)
            for id in under_way:
                scene.history.answer(id, outcome)
            index += many
        if connection is not None:
            await connection.close()

    async def _wait(self, in_flight: dict[int, str], connection: LinkConnection, room: int) -> None:
        """Wait until less than ``room`` publishes have no outcome, or the connection is over."""
        until = self.scene.loop.now + PATIENCE
        while len(in_flight) >= room and not connection.over.is_set():
            if self.scene.loop.now > until:
                self.scene.problem("a publish to the front has no outcome", *in_flight.values())
                for id in in_flight.values():
                    self.scene.history.answer(id, Outcome.UNKNOWN)
                in_flight.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(connection.over.wait(), LOOK)

    # ------------------------------------------------------------------------------------------- consumers

    async def _consume(self, number: int, version: str) -> None:
        scene, front = self.scene, self.front
        chance = random.Random(f"{scene.world.seed} AMQP consumer {number}")
        given_back: set[str] = set()
        while not self.is_drained:
            waiting: deque[tuple[Arrived, Reception]] = deque()
            came = asyncio.Event()

            def arrived(
                delivery: Arrived,
                waiting: deque[tuple[Arrived, Reception]] = waiting,
                came: asyncio.Event = came,
            ) -> None:
                waiting.append((delivery, self.received(delivery, number)))
                came.set()

            made = await self.connect(version, number)
            try:
                await made.consume(front.queue, front.prefetch, arrived)
                while not (made.over.is_set() or self.is_drained):
                    came.clear()
                    if not waiting:
                        with suppress(TimeoutError):
                            await asyncio.wait_for(came.wait(), LOOK)
                        continue
                    await asyncio.sleep(chance.choice((0.0, 0.001, 0.05)) * chance.random())
                    if not made.over.is_set():
                        self.settle(made, waiting, chance, given_back)
            except Lost:
                await asyncio.sleep(0)
            if self.is_drained and not made.over.is_set():
                await made.close()
            else:
                scene.note("amqp", "consumer", number, "has lost its connection:", made.why)
                self.breaks.append(made.why or "lost while it began to consume")

    async def _fetch(self, number: int, version: str) -> None:
        scene, front = self.scene, self.front
        chance = random.Random(f"{scene.world.seed} AMQP fetcher {number}")
        given_back: set[str] = set()
        while not self.is_drained:
            made = await self.connect(version, number)
            try:
                while not self.is_drained:
                    delivery = await made.get(front.queue)
                    await asyncio.sleep(chance.choice((0.001, 0.05)) if delivery else LOOK)
                    if delivery is not None:
                        waiting = deque([(delivery, self.received(delivery, number))])
                        self.settle(made, waiting, chance, given_back)
            except Lost as error:
                self.breaks.append(str(error))
            await made.close()

    def received(self, delivery: Arrived, number: int) -> Reception:
        """A message has come, of which the history knows from now on."""
        marks = [name for name in ("redelivered", "resent") if getattr(delivery, name)]
        self.scene.note("amqp", "receive", delivery.id, "by", number, *marks)
        reception = Reception(
            delivery.id, delivery.digest, redelivered=delivery.redelivered, resent=delivery.resent,
            since=self.scene.loop.now,
        )  # fmt: skip
        return self.scene.history.receive(reception)

    def settle(
        self,
        made: LinkConnection,
        waiting: deque[tuple[Arrived, Reception]],
        chance: random.Random,
        given_back: set[str],
    ) -> None:
        """Settle what has come: one, or all at once; or give one back. Raises Lost."""
        delivery, reception = waiting[0]
        if delivery.id not in given_back and chance.random() < 0.1:
            given_back.add(delivery.id)
            made.release(delivery.number)
            reception.settled = Settled.RELEASED
            waiting.popleft()
        elif chance.random() < 0.3:
            made.accept(waiting[-1][0].number, multiple=True)
            while waiting:
                waiting.popleft()[1].settled = Settled.UNCLEAR
        else:
            made.accept(delivery.number)
            reception.settled = Settled.UNCLEAR
            waiting.popleft()
