"""Clients of a front that do more than to publish and to accept: they settle in transactions, end consumers and
channels while they hold messages, or have a queue of their own."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final
from uuid import UUID

from gateway.amqp import operations
from gateway.errors import GatewayError
from tests.faults.checker import Reception, Settled
from tests.faults.fronts.clients import Arrived, Content, LinkConnection, Lost
from tests.simulation.scene import Scene
from tests.simulation.worlds import Front

if TYPE_CHECKING:
    from tests.simulation.amqp_clients import AmqpClients

TAGS: Final = ("one", "two")
"""Of the consumers of a restless client."""
LOOK: Final = 0.2
"""How often a client that waits looks whether it is to end, in seconds."""
AGAIN: Final = 0.1
"""Pause before a client that has lost something tries it again, in seconds."""
ROUND: Final = 5.0
"""How long an owner waits for a message in its queue before it publishes the next one, in seconds."""
LOST_ROUNDS: Final = 6
"""The number of messages that an owner may publish in vain once nothing goes wrong any more."""
IN_TRANSACTION: Final = "within a transaction"
"""What a client hears whose broker was lost before its commit."""
HARMLESS: Final = frozenset({"ledger", "reload", "rotate signing keys"})
"""Faults that take nothing away from a broker or a client."""
UNKNOWN_TYPE: Final = "nobody-knows"
"""Of an exchange. To declare it costs a classic client its connection."""


class Client(LinkConnection):
    """A client whose channel may be closed and opened again."""

    is_closed = False
    """It has left, and nobody sent it away."""

    @property
    def number(self) -> int:
        """Of its channel."""
        return self._channel.number

    def listen(self, arrived: Callable[[Arrived], None]) -> None:
        """Who hears of what its consumers are sent."""
        self._arrived = arrived

    def tell(self, operation: operations.Operation) -> None:
        """Send something, and wait for no answer. Raises Lost."""
        self._say(operation)

    async def close(self) -> None:
        """Leave."""
        self.is_closed = self.is_closed or not self.over.is_set()
        await super().close()

    async def open_again(self) -> None:
        """Close the channel, with all that is out on it, and open another one. Raises Lost."""
        closed = self._channel
        closed.connection = Client(0, "0-9-1")  # who hears nothing of what is on its way
        closed.connection.listen(lambda delivery: None)
        await closed.close()
        try:
            self._channel = self._link.channel(type(closed))
            self._channel.connection = self
            await self._channel.open()
        except GatewayError as error:
            raise Lost(str(error)) from None


class Inbox:
    """What a client was sent and has not settled, in order."""

    def __init__(self, receive: Callable[[Arrived], Reception]) -> None:
        self.waiting: deque[tuple[Arrived, Reception]] = deque()
        self._receive = receive
        self._came = asyncio.Event()

    def arrived(self, delivery: Arrived) -> None:
        """A message has come."""
        self.waiting.append((delivery, self._receive(delivery)))
        self._came.set()

    async def wait(self, over: asyncio.Event) -> bool:
        """Wait a while until there is something. Whether there is, and the connection is not over."""
        self._came.clear()
        if not self.waiting:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._came.wait(), LOOK)
        return bool(self.waiting) and not over.is_set()


class RestlessClients:
    """All of these clients of a world."""

    def __init__(self, clients: AmqpClients, scene: Scene) -> None:
        self.clients, self.scene = clients, scene
        self.committed: dict[int, str] = {}
        """Receptions, by their number, whose settlement was committed -> id."""
        self.is_quiet = all(fault.kind in HARMLESS for fault in scene.world.faults)
        """Nothing takes anything away from a client."""

    def start(self, front: Front) -> tuple[list[asyncio.Task[None]], list[asyncio.Task[None]]]:
        """Have all of them begin. Returns those who consume, and those who come to an end by themselves."""
        spawn = self.scene.spawn
        endless = [
            spawn(self._commit(number, version), f"AMQP committer {number}")
            for number, version in enumerate(front.committers, 20)
        ]
        endless += [
            spawn(self._change(number, version), f"restless AMQP consumer {number}")
            for number, version in enumerate(front.restless, 30)
        ]
        return endless, [
            spawn(self._own(number, version), f"AMQP owner {number}") for number, version in enumerate(front.owners, 40)
        ]

    def judge(self) -> None:
        """Nothing comes again that was committed, where nothing could take it away."""
        if not self.is_quiet:
            return
        receptions = self.scene.history.receptions
        resent = {each.id for each in receptions if each.resent}
        for place, id in self.committed.items():
            if id not in resent and any(each.id == id for each in receptions[place + 1 :]):
                self.scene.problem("settled in a transaction that was committed, and came again", id)

    def _inbox(self, number: int) -> Inbox:
        return Inbox(lambda delivery: self.clients.received(delivery, number))

    # ------------------------------------------------------------------------------------------- transactions

    async def _commit(self, number: int, version: str) -> None:
        """Settle some in each transaction, of which some are rolled back."""
        scene, front, clients = self.scene, self.clients.front, self.clients
        chance = random.Random(f"{scene.world.seed} AMQP committer {number}")
        given_back: set[str] = set()
        while not clients.is_drained:
            inbox = self._inbox(number)
            made = await clients.connect(version, number)
            try:
                await made.begin_transactions()
                made.listen(inbox.arrived)
                await made.ask(operations.Qos(made.number, front.prefetch))
                begun = asyncio.ensure_future(made.ask(operations.Consume(made.number, front.queue, TAGS[0])))
                if version == "0-10" and chance.random() < 0.5:  # the consumer begins while a transaction ends
                    await asyncio.sleep(chance.choice((0.0, 0.005, 0.02)) * chance.random())
                    await made.end_transaction(chance.random() < 0.5)
                await begun
                while not (made.over.is_set() or made.is_closed or clients.is_drained):
                    if not await inbox.wait(made.over):
                        continue
                    await asyncio.sleep(chance.choice((0.0, 0.001, 0.05)) * chance.random())
                    if not made.over.is_set():
                        await self._settle_together(made, inbox, version, chance, given_back)
            except Lost as error:
                made.ended(str(error))
            await self._end(made, number)

    async def _settle_together(
        self, made: Client, inbox: Inbox, version: str, chance: random.Random, given_back: set[str]
    ) -> None:
        """Settle the first of what has come, and end the transaction. Raises Lost."""
        scene, waiting = self.scene, inbox.waiting
        commits, many = chance.random() < 0.7, chance.randint(1, len(waiting))
        part = [waiting.popleft() for _ in range(many)]
        accepted, released = part, part[:0]
        if chance.random() < 0.2:
            released = [each for each in part if each[0].id not in given_back]
            accepted = [each for each in part if each[0].id in given_back]
            given_back.update(delivery.id for delivery, _ in released)
        for _, reception in accepted:
            reception.settled = Settled.UNCLEAR if commits else Settled.NO
        for _, reception in released:
            reception.settled = Settled.RELEASED
        if not released and chance.random() < 0.5:
            made.accept(part[-1][0].number, multiple=True)
        else:
            for delivery, _ in accepted:
                made.accept(delivery.number)
            for delivery, _ in released:
                made.release(delivery.number)
        if chance.random() < 0.1:
            scene.note("amqp", "leaves while its transaction ends")
            for _, reception in part:
                reception.settled = Settled.UNCLEAR
            made.tell(operations.TxCommit(made.number) if commits else operations.TxRollback(made.number))
            await made.close()
            return
        await made.end_transaction(commits)
        ids = [delivery.id for delivery, _ in part]
        scene.note("amqp", "settled," if commits else "settled and rolled back,", len(released), "given back:", *ids)
        if commits:
            places = {id(each): place for place, each in enumerate(scene.history.receptions)}
            self.committed |= {places[id(reception)]: delivery.id for delivery, reception in accepted}
        else:  # what was accepted is still with the client; 0-10 gives back at once, with each end of the transaction
            held = part if version != "0-10" else accepted
            waiting.extendleft(reversed(held))

    async def _end(self, made: Client, number: int, *, is_own_fault: bool = False) -> None:
        """Close a connection, which may be over."""
        if made.over.is_set() and not made.is_closed:
            self.scene.note("amqp", "client", number, "has lost its channel:", made.why)
            if not is_own_fault and IN_TRANSACTION not in made.why:
                self.clients.breaks.append(made.why)
        await made.close()

    # ------------------------------------------------------------------------------------------- consumers that change

    async def _change(self, number: int, version: str) -> None:
        """Two consumers on one channel, which are ended and begun again, as the channel is, while messages are out."""
        scene, front, clients = self.scene, self.clients.front, self.clients
        chance = random.Random(f"{scene.world.seed} restless AMQP consumer {number}")
        given_back: set[str] = set()
        left = chance.randint(3, 12)
        while not clients.is_drained:
            made = await clients.connect(version, number)
            try:
                while not (made.over.is_set() or clients.is_drained):
                    inbox = self._inbox(number)
                    made.listen(inbox.arrived)
                    whole = version != "0-10" and chance.random() < 0.5
                    await made.ask(operations.Qos(made.number, front.prefetch, whole_channel=whole))
                    for tag in TAGS:
                        await made.ask(operations.Consume(made.number, front.queue, tag))
                    left = await self._change_consumers(made, inbox, chance, given_back, left)
                    if not made.over.is_set() and not clients.is_drained:
                        scene.note("amqp", "client", number, "opens another channel,", len(inbox.waiting), "out")
                        await made.open_again()
            except Lost as error:
                made.ended(str(error))
            await self._end(made, number)

    async def _change_consumers(
        self, made: Client, inbox: Inbox, chance: random.Random, given_back: set[str], left: int
    ) -> int:
        """Until the channel is to be closed. Returns how many changes more there will be. Raises Lost."""
        front, slowness = self.clients.front, chance.choice((1, 1, 10))
        while not (made.over.is_set() or self.clients.is_drained):
            if await inbox.wait(made.over):
                await asyncio.sleep(slowness * chance.choice((0.0, 0.001, 0.05)) * chance.random())
                if not made.over.is_set() and inbox.waiting:
                    self.clients.settle(made, inbox.waiting, chance, given_back)
            if not left or made.over.is_set() or chance.random() < 0.5:
                continue
            left -= 1
            if chance.random() < 0.4:
                return left
            tag = chance.choice(TAGS)
            await made.ask(operations.Cancel(made.number, tag))
            await asyncio.sleep(chance.choice((0.0, 0.01)) * chance.random())
            await made.ask(operations.Consume(made.number, front.queue, tag))
        return left

    # ------------------------------------------------------------------------------------------- own queues

    async def _own(self, number: int, version: str) -> None:
        """Publish to an exclusive queue, and wait for each message; leave in between, and come back at once."""
        front, clients = self.clients.front, self.clients
        chance = random.Random(f"{self.scene.world.seed} AMQP owner {number}")
        owner = Owner(f"own {number}", front.messages)
        while owner.left:
            made = await clients.connect(version, number)
            is_own_fault = False
            try:
                if is_own_fault := not await self._have_queue(made, owner.queue):
                    raise Lost("the old connection is still there")
                await made.begin_publishing(lambda serials, is_taken: None)
                await made.consume(owner.queue, front.prefetch, owner.arrived(made))
                while owner.left and not made.over.is_set():
                    await self._round(made, owner, number)
                    if chance.random() < 0.2:
                        break
                if version != "0-10" and chance.random() < 0.3 and not made.over.is_set():
                    self.scene.note("amqp", "client", number, "makes a mistake")
                    is_own_fault = True
                    await made.ask(operations.DeclareExchange(made.number, "any", UNKNOWN_TYPE))
            except Lost as error:
                made.ended(str(error))
            await self._end(made, number, is_own_fault=is_own_fault)

    async def _have_queue(self, made: Client, queue: str) -> bool:
        """Declare it. False: the broker or the front has not seen yet that an old connection is gone. Raises Lost."""
        try:
            await made.ask(operations.DeclareQueue(made.number, queue, exclusive=True))
        except Lost as error:
            if self.is_quiet or "exclusive" not in str(error):
                raise
            await asyncio.sleep(AGAIN)
            return False
        return True

    async def _round(self, made: Client, owner: Owner, number: int) -> None:
        """Publish one message, and wait until it has come, or is lost with the queue. Raises Lost."""
        scene = self.scene
        owner.sent += 1
        id = str(UUID(int=(number << 32) + owner.sent))
        scene.note("amqp", "publish", id, "to", owner.queue)
        made.publish(owner.queue, Content(id, id.encode(), owner.sent))
        until = scene.loop.now + ROUND
        while id not in owner.came and scene.loop.now < until and not made.over.is_set():
            owner.news.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(owner.news.wait(), LOOK)
        if id in owner.came:
            owner.left -= 1
            owner.in_vain = 0
        elif scene.is_calm and not made.over.is_set():
            owner.in_vain += 1
            if owner.in_vain > LOST_ROUNDS:
                scene.problem("a queue of its own brings a client nothing any more", number)
                owner.left = 0


class Owner:
    """A client that has an exclusive queue, over all of its connections."""

    def __init__(self, queue: str, left: int) -> None:
        self.queue = queue
        self.left = left
        """How many messages it still is to get."""
        self.sent = self.in_vain = 0
        self.came: set[str] = set()
        self.news = asyncio.Event()

    def arrived(self, made: Client) -> Callable[[Arrived], None]:
        """Return what accepts the messages of a connection."""

        def accept(delivery: Arrived) -> None:
            self.came.add(delivery.id)
            self.news.set()
            with suppress(Lost):
                made.accept(delivery.number)

        return accept
