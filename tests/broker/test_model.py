"""Random requests of connections with different ``frame_max``, against a model of what must be where."""

from __future__ import annotations

from itertools import count
from random import Random
from time import perf_counter
from typing import Any

import pytest

from gateway.amqp.operations import (
    BindQueue,
    Cancel,
    Consume,
    DeclareExchange,
    DeclareQueue,
    Deliver,
    Get,
    Got,
    Operation,
    PurgeQueue,
    Qos,
    Recover,
    Removed,
    Settlement,
    TxCommit,
    TxRollback,
    TxSelect,
)
from tests.broker.clients import IMPOSSIBLE, Client, ack, make_broker, publishing

FRAMES = (100, 200, 300)
SIZES = (0, 0, 0, 0, 150, 250, IMPOSSIBLE)
QUEUES = ("a", "b")
SECONDS = 2.0
"""For all cases together."""

ARGUMENTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "priority": {"x-max-priority": 3},
    "single": {"x-single-active-consumer": True},
    "both": {"x-max-priority": 2, "x-single-active-consumer": True},
}

Place = tuple[str, int]
"""Queue and number of a message."""


class Model:
    """Where every message is."""

    def __init__(self, seed: int, kind: str, *, timed: bool = False, selectors: bool = False) -> None:
        self.random = Random(seed)
        self.broker = make_broker()
        self.selectors, self.timed = selectors, timed
        self.is_ordered = not timed
        """Requests are done when they are made, so that what is ready at a delivery is known."""
        if timed:
            self.broker.turn.clock = count().__next__
            self.broker.turn.is_timed = True
        self.now = 0.0
        self.numbers = count()
        self.messages: dict[int, tuple[int, int, bool]] = {}
        """Number -> frame, level in its queues, and whether selectors want it."""
        self.ready: dict[str, set[int]] = {queue: set() for queue in QUEUES}
        self.out: dict[tuple[Client, int], Place] = {}
        self.consumers: dict[Client, dict[str, tuple[str, bool, bool]]] = {}
        """Per tag: the queue, whether it acknowledges, and whether it selects."""
        self.released: set[Place] = set()
        self.getting = ("", False)
        """The queue of the last Get, and whether it needs no acknowledgement."""
        self.log: list[tuple[Client, Operation]] = []
        self.levels = ARGUMENTS[kind].get("x-max-priority", 0)
        self.single = "x-single-active-consumer" in ARGUMENTS[kind]
        self.root = self.connect(1 << 29)
        self.root(
            DeclareExchange(1, "f", "fanout"),
            *(DeclareQueue(1, queue, arguments=ARGUMENTS[kind]) for queue in QUEUES),
            *(BindQueue(1, queue, "f") for queue in QUEUES),
        )
        self.log.clear()
        self.clients = [self.connect(frame) for frame in FRAMES]

    def connect(self, frame_max: int) -> Client:
        client = Client(self.broker, frame_max=frame_max)
        log = self.log
        send = client.session.send

        def noting(operation: Operation, now: float) -> int:
            number = send(operation, now)
            log.append((client, operation))
            return number

        client.session.send = noting  # type: ignore[method-assign]
        self.consumers[client] = {}
        return client

    # ------------------------------------------------------------------------------------------- requests

    def call(self, client: Client, *operations: Operation) -> None:
        if self.timed:
            self.broker.turn.until = next(self.broker.turn.clock.__self__) + self.random.randrange(3, 80)  # type: ignore[attr-defined]
        client(*operations)

    def publish(self) -> None:
        random = self.random
        number = next(self.numbers)
        size, priority = random.choice(SIZES), random.randrange(4)
        self.messages[number] = (size, min(priority, self.levels), priority > 1)
        exchange, key = ("f", "") if random.random() < 0.3 else ("", random.choice(QUEUES))
        for queue in QUEUES if exchange else (key,):
            self.ready[queue].add(number)
        self.call(
            random.choice([self.root, *self.clients]),
            publishing(key, b"%d" % number, exchange, headers={"frame_size": size}, priority=priority),
        )

    def consume(self, client: Client) -> None:
        consumers = self.consumers[client]
        if len(consumers) > 2:
            return
        tag, queue = f"c{next(self.numbers)}", self.random.choice(QUEUES)
        acknowledges, selects = self.random.random() < 0.7, self.selectors and self.random.random() < 0.4
        consumers[tag] = (queue, acknowledges, selects)
        arguments = {"x-filter-jms-selector": "JMSPriority > 1"} if selects else {}
        self.call(
            client,
            Qos(1, self.random.choice((0, 1, 2, 5))),
            Consume(1, queue, tag, no_ack=not acknowledges, arguments=arguments),
        )

    def cancel(self, client: Client) -> None:
        if self.consumers[client]:
            tag = self.random.choice(list(self.consumers[client]))
            del self.consumers[client][tag]
            self.call(client, Cancel(1, tag))

    def get(self, client: Client) -> None:
        self.getting = (queue := self.random.choice(QUEUES), no_ack := self.random.random() < 0.5)
        self.call(client, Get(1, queue, no_ack))
        self.settle_down()

    def settle(self, client: Client) -> None:
        out = sorted(number for each, number in self.out if each is client)
        if not out:
            return
        first, last = sorted(self.random.choices(out, k=2))
        if self.random.random() < 0.6:
            first = last
        settlement = self.random.choice([Settlement.ACCEPT, Settlement.RELEASE, Settlement.REJECT])
        numbers = [number for number in out if first <= number <= last]
        for number in numbers:
            queue, message = self.out.pop((client, number))
            if settlement is Settlement.RELEASE:
                self.ready[queue].add(message)
                self.released.add((queue, message))
            self.call(client, ack(number, settlement=settlement))
            self.read()

    def recover(self, client: Client) -> None:
        self.back(client)
        self.call(client, Recover(1, True))

    def back(self, client: Client) -> None:
        for key in [key for key in self.out if key[0] is client]:
            place = self.out.pop(key)
            self.ready[place[0]].add(place[1])
            self.released.add(place)

    def purge(self) -> None:
        if self.random.random() < 0.1:
            queue = self.random.choice(QUEUES)
            expected = len(self.ready[queue])
            self.ready[queue].clear()
            self.call(self.root, PurgeQueue(1, queue))
            (removed,) = (each for _, each in self.log if isinstance(each, Removed))
            assert removed.message_count == expected

    def reconnect(self, client: Client) -> None:
        if self.random.random() < 0.1:
            self.back(client)
            self.clients.remove(client)
            del self.consumers[client]
            self.broker.disconnect(client.connection, self.now)
            self.settle_down()
            self.clients.append(self.connect(client.session.capabilities.frame_max))

    def transact(self) -> None:
        """A transaction of a connection of its own, which commits, rolls back or goes away."""
        random = self.random
        client = self.connect(random.choice(FRAMES))
        numbers = [next(self.numbers) for _ in range(random.randrange(1, 6))]
        queue, ending = random.choice(QUEUES), random.choice(("commit", "rollback", "leave"))
        for number in numbers:
            self.messages[number] = (0, 0, False)
        self.call(client, TxSelect(1), *(publishing(queue, b"%d" % number) for number in numbers))
        self.settle_down()
        if ending == "commit":
            self.ready[queue].update(numbers)
            self.call(client, TxCommit(1))
        elif ending == "rollback":
            self.call(client, TxRollback(1))
        self.broker.disconnect(client.connection, self.now)
        self.settle_down()
        del self.consumers[client]

    # ---------------------------------------------------------------------------------------------- checks

    def rank(self, message: int) -> tuple[int, int]:
        return -self.messages[message][1], message

    def read(self) -> None:
        """Note what was delivered."""
        for client, told in self.log:
            selects = False
            if isinstance(told, Deliver):
                queue, acknowledges, selects = self.consumers[client][told.consumer_tag]
            elif isinstance(told, Got):
                queue, no_ack = self.getting
                acknowledges = not no_ack
            else:
                continue
            message = int(told.message.body)
            assert message in self.ready[queue], "lost before, or delivered twice"
            frame_max = client.session.capabilities.frame_max
            assert self.messages[message][0] <= frame_max
            assert told.redelivered == ((queue, message) in self.released)
            if self.is_ordered:
                for other in self.ready[queue]:
                    if self.rank(other) < self.rank(message):
                        frame, _, is_wanted = self.messages[other]
                        assert frame > frame_max or (selects and not is_wanted), "out of order"
            self.ready[queue].discard(message)
            if acknowledges:
                self.out[client, told.delivery] = (queue, message)
        self.log.clear()

    def settle_down(self) -> None:
        """Let go on whatever waits."""
        broker = self.broker
        self.read()
        for _ in range(10_000):
            if self.timed:
                broker.turn.until = next(broker.turn.clock.__self__) + self.random.randrange(3, 80)  # type: ignore[attr-defined]
            broker.handle_timeout(self.now)
            for client in [self.root, *self.clients]:
                broker.flushed(client.connection)
                broker.resume(client.connection, self.now)
                client.take()
            self.read()
            if broker.next_timeout() is None and not any(
                client.connection.paused or client.connection.backlog for client in self.clients
            ):
                return
        raise AssertionError("it goes on for ever")

    def check(self) -> None:
        for name in QUEUES:
            queue = self.broker.virtual_host("/").queues[name]
            waiting = self.ready[name]
            entries = [entry for line in queue._lines for entry in line if entry.ready]
            assert {int(entry.envelope.message.body) for entry in entries} == waiting
            assert queue.ready == len(waiting) == len(entries)
            assert queue.skipped == sum(entry.skipped for entry in entries)
            assert queue.ready_octets == sum(entry.size for entry in entries)
            assert queue._holes == sum(not entry.ready for line in queue._lines for entry in line)
            takers = list(queue.consumers)[:1] if self.single else list(queue.consumers)
            for consumer in takers:
                frame_max = consumer.channel.connection.carriage[1]
                can = [
                    message
                    for message in waiting
                    if self.messages[message][0] <= frame_max
                    and (consumer.selector is None or self.prioritised(queue, message))
                ]
                assert not can or not consumer.admits(1), f"{can} wait for nothing"

    def prioritised(self, queue: Any, message: int) -> bool:
        (entry,) = (
            entry
            for line in queue._lines
            for entry in line
            if entry.ready and int(entry.envelope.message.body) == message
        )
        return (entry.envelope.message.properties.priority or 0) > 1

    def step(self) -> None:
        random = self.random
        client = random.choice(self.clients)
        action = random.choices(
            (
                self.publish, self.transact, self.purge,
                lambda: self.consume(client), lambda: self.cancel(client), lambda: self.get(client),
                lambda: self.settle(client), lambda: self.recover(client), lambda: self.reconnect(client),
            ),
            (12, 1, 1, 2, 1, 3, 8, 0.5, 1),
        )[0]  # fmt: skip
        action()
        if not self.timed or random.random() < 0.3:
            self.settle_down()
            self.check()
        else:
            self.read()

    def end(self) -> None:
        """All is given back and drained: nothing is left, nor counted."""
        for client in list(self.clients):
            self.back(client)
            self.clients.remove(client)
            self.broker.disconnect(client.connection, self.now)
            self.settle_down()
        self.check()
        for queue in QUEUES:
            drained = []
            while (message := self.root.get(queue)) is not None:
                drained.append(int(message.message.body))
                self.log.clear()
            assert sorted(drained, key=self.rank) == drained, "out of order"
            rest = self.ready[queue].difference(drained)
            assert all(self.messages[each][0] == IMPOSSIBLE for each in rest)
            assert len(drained) + len(rest) == len(self.ready[queue])
            assert self.root.one(PurgeQueue(1, queue), Removed).message_count == len(rest)
            self.log.clear()
            state = self.broker.virtual_host("/").queues[queue]
            assert not state._carriers
            assert not state._returned
        self.settle_down()
        assert self.broker.memory.used == 0


@pytest.mark.parametrize("kind", ARGUMENTS)
@pytest.mark.parametrize(("timed", "selectors"), [(False, False), (False, True), (True, True), (True, False)])
def test_every_message_is_where_it_belongs(kind: str, timed: bool, selectors: bool) -> None:
    until = perf_counter() + SECONDS / 16
    seed = 0
    while perf_counter() < until:
        seed += 1
        model = Model(seed, kind, timed=timed, selectors=selectors)
        try:
            for _ in range(150):
                model.step()
            if timed:
                model.broker.turn.until = float("inf")
                model.broker.turn.is_timed = False
                model.broker.turn.clock = lambda: 0.0
                model.timed = False
            model.end()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
