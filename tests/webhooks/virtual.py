"""Pushing under a clock that is given: an event loop whose time jumps to the next timer whenever there is nothing to
do, and the ledger, the broker and the endpoints in memory.

What is measured here is waiting, and no computing: an hour passes as fast as its events can be worked off.
"""

from __future__ import annotations

import asyncio
import itertools
import selectors
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import msgspec

from gateway.amqp.message import Message, Properties
from gateway.amqp.operations import Settlement as Settle
from gateway.budgets import Budgets
from gateway.config import BrokerSettings, SubscriptionSettings, parse_broker_url
from gateway.core.leasing.parts import Parts
from gateway.core.sources.byte_budget import ByteBudget
from gateway.core.sources.dead_letters import DeadLetterPublisher
from gateway.core.subscriptions import SubscriptionResource
from gateway.errors import LeaseLost, LedgerUnavailable, StateError
from gateway.ledger import InboxRow, LogEntry, MessageIds
from gateway.ledger.db.disk import Disk
from gateway.ledger.pending.owed import (
    ENDINGS,
    BacklogCounts,
    BacklogEntry,
    BacklogSettlement,
    BacklogStatus,
    Ending,
    Owed,
)
from gateway.ledger.writing.records import Seen
from gateway.observing.telemetry import Metrics
from gateway.runtime import replaced
from gateway.runtime.clock import clock
from gateway.session import Capabilities, Version
from gateway.upstreams import ConsumerState, PublishReceipt
from gateway.v091.version import V0_9_1
from gateway.webhooks.attempts.journal import PushJournal
from gateway.webhooks.attempts.outcomes import PushRecorders
from gateway.webhooks.attempts.replies import Replies
from gateway.webhooks.counts import PushCounts
from gateway.webhooks.pusher import Pusher
from gateway.webhooks.targets import Targets
from tests.webhooks.pushed import Receivers

TURNS_MAX = 50_000
"""So many turns of the loop within one moment are a circle."""
START = 1_000_000.0
"""When the clock begins, in seconds."""


class Jumping(selectors.SelectSelector):
    """Waits for nothing: the time that it would take passes at once."""

    loop: VirtualLoop
    turns = 0
    """How many there were since time passed."""

    def select(self, timeout: float | None = None) -> list[Any]:
        found = super().select(0)
        self.turns = 0 if timeout else self.turns + 1
        assert self.turns < TURNS_MAX, "somebody runs in a circle"
        if not found and timeout is None:
            raise AssertionError("everybody waits for somebody else")
        if not found and timeout:
            self.loop.now += timeout
        return found


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock jumps."""

    def __init__(self) -> None:
        self.now = START
        selector = Jumping()
        selector.loop = self
        super().__init__(selector)

    def time(self) -> float:
        return self.now


def run(main: Coroutine[Any, Any, Any]) -> Any:
    """Run under a clock of its own."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner, replaced(clock, monotonic=runner.get_loop().time):
        return runner.run(main)


def now() -> float:
    """On that clock."""
    return asyncio.get_running_loop().time()


# ------------------------------------------------------------------------------------------------- the ledger


@dataclass
class Row:
    """A row of ``deliveries``."""

    owed: Owed
    due_at: float
    attempt: int
    lease: int = 0
    status: BacklogStatus = BacklogStatus.WAITING
    reason: dict[str, Any] = field(default_factory=dict)


class FakeLedger:
    """The face of ``Ledger``, as far as pushing sees it. What it writes takes a millisecond."""

    def __init__(self) -> None:
        self.rows: dict[bytes, Row] = {}
        self.of: dict[str, dict[bytes, Row]] = {}
        """The same by subscription."""
        self.entries: list[LogEntry] = []
        self.inbox: dict[tuple[str, str], InboxRow] = {}
        self.away = False
        self.disk = Disk(None, 0)
        self.deliveries = self
        self.work = SimpleNamespace(shared=False)

    def ready(self) -> tuple[bool, str]:
        return not self.away, "away" if self.away else ""

    @property
    def healthy(self) -> bool:
        return not self.away

    async def _commit(self) -> None:
        await asyncio.sleep(0.001)
        if self.away:
            raise LedgerUnavailable("away")

    async def record(self, entries: Sequence[LogEntry], inbox: Sequence[InboxRow] = ()) -> None:
        await self._commit()
        self.entries += entries

    async def unrecorded(self, entries: Sequence[LogEntry]) -> list[LogEntry]:
        await self._commit()
        return [entry for entry in entries if entry not in self.entries]

    async def seen(self, scope: str, keys: Sequence[str]) -> dict[str, Seen]:
        await self._commit()
        rows = {key: self.inbox[scope, key] for key in keys if (scope, key) in self.inbox}
        return {key: Seen(row.body_sha256, row.message_id, 0) for key, row in rows.items()}

    async def store(
        self, owed: Sequence[Owed], entries: Sequence[LogEntry] = (), inbox: Sequence[InboxRow] = ()
    ) -> None:
        await self._commit()
        for each in owed:
            wait = max(0.0, (each.due_at - each.at) / 1e6) if each.due_at else 0.0
            status = BacklogStatus.DEAD if each.dead else BacklogStatus.WAITING
            row = self.rows.setdefault(each.id, Row(each, now() + wait, each.attempt, 0, status, each.reason))
            self.of.setdefault(each.subscription, {})[each.id] = row
        self.entries += entries
        self.inbox |= {(each.scope, each.key): each for each in inbox}

    def _open(self, subscription: str) -> list[Row]:
        found = [row for row in self.of.get(subscription, {}).values() if row.status < 2]
        return sorted(found, key=lambda row: (row.due_at, row.owed.id))

    async def claim(
        self, subscription: str, limit: int, seconds: float, *, ordered: bool = False, octets_max: int = 0
    ) -> list[BacklogEntry]:
        await self._commit()
        heads: dict[bytes, Row] = {}
        for row in sorted(self._open(subscription), key=lambda row: row.owed.id):
            heads.setdefault(row.owed.order_key, row)
        found = [
            row
            for row in self._open(subscription)
            if row.due_at <= now() and (not ordered or not row.owed.order_key or heads[row.owed.order_key] is row)
        ][:limit]
        for row in found:
            row.status, row.due_at = BacklogStatus.OUT, now() + seconds
            row.attempt, row.lease = row.attempt + 1, row.lease + 1
        return [self._delivery(row) for row in found]

    async def settle(self, settlements: Sequence[BacklogSettlement]) -> list[bool]:
        await self._commit()
        return [self._settle(each) for each in settlements]

    def _settle(self, each: BacklogSettlement) -> bool:
        row = self.rows.get(each.id)
        if row is None or (each.lease is not None and (row.status is not BacklogStatus.OUT or row.lease != each.lease)):
            return False
        after = ENDINGS[row.status].get(each.ending)
        if after is None:
            return False
        row.status = after
        if after is BacklogStatus.GONE:
            del self.rows[each.id]
            del self.of[row.owed.subscription][each.id]
        if each.ending in (Ending.RETRY, Ending.REVIVE):
            row.due_at = now() + each.due_in
            row.attempt = row.attempt if each.attempt is None else each.attempt
        row.reason = each.reason or row.reason
        self.entries += each.entries
        return True

    async def due(
        self,
        subscription: str,
        limit: int,
        *,
        after: BacklogEntry | tuple[int, bytes] | None = None,
        payload: bool = False,
    ) -> list[BacklogEntry]:
        await self._commit()
        after = (after.due_at, after.id) if isinstance(after, BacklogEntry) else after
        found = [self._delivery(row) for row in self._open(subscription)]
        return [each for each in found if after is None or (each.due_at, each.id) > after][:limit]

    async def get(self, delivery_id: bytes) -> BacklogEntry | None:
        await self._commit()
        row = self.rows.get(delivery_id)
        return None if row is None else self._delivery(row)

    async def backlog(self, subscription: str) -> BacklogCounts:
        rows = self.of.get(subscription, {}).values()
        waiting = [row for row in rows if row.status is BacklogStatus.WAITING]
        return BacklogCounts(
            waiting=len(waiting),
            out=sum(row.status is BacklogStatus.OUT for row in rows),
            dead=sum(row.status is BacklogStatus.DEAD for row in rows),
            tried=sum(row.attempt > 0 for row in waiting),
        )

    def _delivery(self, row: Row) -> BacklogEntry:
        return BacklogEntry(
            id=row.owed.id,
            message_id=row.owed.message_id,
            subscription=row.owed.subscription,
            order_key=row.owed.order_key,
            at=row.owed.at,
            due_at=int(row.due_at * 1e6),
            attempt=row.attempt,
            lease=row.lease,
            dead=row.status is BacklogStatus.DEAD,
            out=row.status is BacklogStatus.OUT,
            reason=row.reason,
            size=row.owed.size,
            payload=row.owed.payload,
            due_in=row.due_at - now(),
        )


# ------------------------------------------------------------------------------------------------- the broker


class FakeDelivery:
    """A delivery that is out."""

    def __init__(self, consumer: FakeConsumer, message: Message, redelivered: bool) -> None:
        self.consumer = consumer
        self.message = message
        self.redelivered = redelivered
        self.exchange, self.routing_key, self.queue = "", consumer.queue, consumer.queue
        self.settled = self.lost = False
        self.channel: object = consumer

    def settle(self, settlement: Settle) -> None:
        if self.lost:
            raise LeaseLost("the channel is gone")
        if self.settled:
            raise StateError("settled before")
        self.settled = True
        self.consumer.settled(self, settlement)


class FakeConsumer:
    """A consumer of one queue."""

    def __init__(self, broker: FakeBroker, queue: str, prefetch: int, on_delivery: Callable[[Any], None]) -> None:
        self.broker, self.queue, self.prefetch, self.on_delivery = broker, queue, prefetch, on_delivery
        self.held: dict[FakeDelivery, None] = {}
        self.state = ConsumerState.RUNNING
        self.reason = ""
        self.on_state: list[Any] = []
        self.changing = False

    @property
    def out(self) -> int:
        return len(self.held)

    def feed(self) -> None:
        """Deliver what there is room for."""
        ready = self.broker.queues[self.queue]
        while ready and self.state is ConsumerState.RUNNING and self.out < self.prefetch:
            message, redelivered = ready.popleft()
            delivery = FakeDelivery(self, message, redelivered)
            self.held[delivery] = None
            self.on_delivery(delivery)

    def settled(self, delivery: FakeDelivery, settlement: Settle) -> None:
        del self.held[delivery]
        if settlement is not Settle.RELEASE:
            self.broker.accepted.append(delivery.message.body)
        released = delivery.message if settlement is Settle.RELEASE else None
        asyncio.get_running_loop().call_later(0.001, self.broker.back, self.queue, released)

    async def cancel(self, within: float = 0.0) -> None:
        await asyncio.sleep(0.001)
        self.state = ConsumerState.CLOSED

    async def close(self, drain: float = 0.0) -> bool:
        await asyncio.sleep(0.001)
        self.state = ConsumerState.CLOSED
        for delivery in list(self.held):
            delivery.lost = True
            del self.held[delivery]
            self.broker.queues[self.queue].appendleft((delivery.message, True))
        self.broker.consumers[self.queue].remove(self)
        self.broker.feed(self.queue)
        return True


class FakeBroker:
    """The face of ``Upstream``: queues in memory."""

    def __init__(self) -> None:
        self.name = "b"
        self.settings = BrokerSettings(url="amqp://fake.invalid/")
        self.url = parse_broker_url(self.settings.url)
        self.version: Version | None = V0_9_1
        self.capabilities: Capabilities | None = Capabilities(product="Fake")
        self.queues: dict[str, deque[tuple[Message, bool]]] = {}
        self.consumers: dict[str, list[FakeConsumer]] = {}
        self.accepted: list[bytes] = []
        self.published: list[tuple[str, Message]] = []
        self.routes: Callable[[str], bool] = lambda routing_key: True

    def put(self, queue: str, body: bytes, **properties: Any) -> None:
        """A message comes."""
        self.queues.setdefault(queue, deque()).append((Message(body, Properties(**properties)), False))
        self.feed(queue)

    def back(self, queue: str, released: Message | None) -> None:
        """Something was settled, or given back, a moment ago."""
        if released is not None:
            self.queues[queue].appendleft((released, True))
        self.feed(queue)

    def feed(self, queue: str) -> None:
        """Deliver what can be delivered."""
        for consumer in self.consumers.get(queue, ()):
            consumer.feed()

    def out(self, queue: str) -> int:
        """How many of its messages are with consumers."""
        return sum(consumer.out for consumer in self.consumers.get(queue, ()))

    async def consume(
        self, queue: str, prefetch: int, on_delivery: Callable[[Any], None], *, holder: tuple[str, str]
    ) -> FakeConsumer:
        await asyncio.sleep(0.001)
        self.queues.setdefault(queue, deque())
        consumer = FakeConsumer(self, queue, prefetch, on_delivery)
        self.consumers.setdefault(queue, []).append(consumer)
        asyncio.get_running_loop().call_soon(self.feed, queue)
        return consumer

    def publish_nowait(
        self, exchange: str, routing_key: str, message: Message, **_: Any
    ) -> asyncio.Future[PublishReceipt]:
        future: asyncio.Future[PublishReceipt] = asyncio.get_running_loop().create_future()
        if self.routes(routing_key):
            self.published.append((routing_key, message))
            future.set_result(PublishReceipt(True))
        else:
            future.set_result(PublishReceipt(False, 312, "NO_ROUTE"))
        return future


# -------------------------------------------------------------------------------------------------- the whole


class World:
    """Subscriptions, each with a queue and an endpoint of its own name unless told otherwise."""

    def __init__(self, *, places: int = 256, chance: Callable[[], float] = lambda: 0.5) -> None:
        self.ledger = FakeLedger()
        self.broker = FakeBroker()
        self.receivers = Receivers()
        self.metrics = Metrics("test")
        ids = itertools.count(1)
        clock = MessageIds(lambda: now(), lambda size: next(ids).to_bytes(8, "big") * (size // 8))
        self.parts = Parts(
            self.ledger,  # type: ignore[arg-type]
            clock,
            self.metrics,
            SimpleNamespace(),  # type: ignore[arg-type]
            lambda name: self.broker,  # type: ignore[arg-type,return-value]
            DeadLetterPublisher(lambda name: self.broker),  # type: ignore[arg-type,return-value]
            SimpleNamespace(ensure=self._ensure, forget=lambda name: None),  # type: ignore[arg-type]
            ByteBudget(Budgets()["held_bytes"]),
        )
        counts = PushCounts(self.metrics)
        self.journal = PushJournal(self.ledger, self._look)  # type: ignore[arg-type]
        self.targets = Targets(
            self.receivers,
            self.receivers,
            counts,
            places=places,
            chance=chance,
            clock=now,
            writable=lambda: self.journal.writable,
        )
        self.receivers.on_change.append(self.targets.changed)
        self._recorders = PushRecorders(self.journal, Replies(self.parts.ids), counts)
        self.pushers: dict[str, Pusher] = {}

    async def _ensure(self, name: str, settings: SubscriptionSettings) -> None:
        """There is no queue to declare."""

    def _look(self) -> None:
        for pusher in self.pushers.values():
            pusher.look()

    async def push(self, name: str, endpoint: str = "", **settings: Any) -> Pusher:
        """A subscription to the queue of its name."""
        values = {"broker": "b", "queue": name, "push": endpoint or name, **settings}
        subscription = SubscriptionResource(name, msgspec.convert(values, SubscriptionSettings), "e", read_only=False)
        pusher = self.pushers[name] = Pusher(subscription, self.parts, self.targets, self._recorders)
        await pusher.start()
        return pusher

    async def close(self) -> None:
        """End everything."""
        for pusher in self.pushers.values():
            await pusher.stop(0.0)
        await self.targets.close()
        await self.journal.close()
