"""A broker in memory with the face of an ``Upstream``: one default exchange, direct exchanges, queues. A test can
make it hold confirms, fail, or lose its channels."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from gateway.amqp.message import Message
from gateway.amqp.operations import ExchangeFound, Settlement
from gateway.config import BrokerSettings, parse_broker_url
from gateway.errors import (
    BrokerUnavailable,
    GatewayError,
    LeaseLost,
    NoDeadLetterDestination,
    NotFound,
    PreconditionFailed,
    StateError,
    Unsupported,
)
from gateway.limits import PULL_MAX
from gateway.session import Capabilities, Version
from gateway.upstreams import ConsumerState, PublishReceipt, QueueInfo, Status, UpstreamState
from gateway.upstreams.consuming.delivery_limits import DeliveryLimits
from gateway.upstreams.topology import Topology
from gateway.v091.version import V0_9_1


@dataclass
class FakeQueue:
    """A queue, and how it was declared."""

    durable: bool = True
    arguments: dict[str, Any] = field(default_factory=dict)
    ready: deque[tuple[Message, str, str, bool]] = field(default_factory=deque)


class FakeDelivery:
    """A delivery that is out."""

    def __init__(self, upstream: FakeUpstream, queue: str, item: tuple[Message, str, str, bool]) -> None:
        self.upstream = upstream
        self.queue = queue
        self.message, self.exchange, self.routing_key, self.redelivered = item
        self.lost = False
        self.settled = False
        self.is_used_up = False
        self.channel: object = None
        self.on_lost: Callable[[FakeDelivery], None] | None = None
        upstream.out.append(self)

    def settle(self, settlement: Settlement) -> None:
        if self.lost:
            raise LeaseLost("the channel is gone")
        if self.settled:
            raise StateError("settled before")
        self.settled = True
        self.upstream.out.remove(self)
        self.upstream.settled.append((settlement, self.message.body))
        if settlement is Settlement.RELEASE:
            self.put_back()
        self.upstream.pump()

    def put_back(self) -> None:
        queue = self.upstream.queues[self.queue]
        queue.ready.appendleft((self.message, self.exchange, self.routing_key, True))
        self.upstream.arrived.set()

    def lose(self) -> None:
        self.lost = True
        self.upstream.out.remove(self)
        self.put_back()
        if self.on_lost is not None:
            self.on_lost(self)


class FakeConsumer:
    """A consumer that gets what there is, as far as its prefetch goes, in the next turn of the loop."""

    def __init__(self, upstream: FakeUpstream, queue: str, prefetch: int, on_delivery: Callable[[Any], None]) -> None:
        self.upstream = upstream
        self.queue = queue
        self.prefetch = prefetch
        self.state = ConsumerState.RUNNING
        self.reason = ""
        self.changing = False
        self.on_state: list[Callable[[Any], None]] = []
        self._on_delivery = on_delivery
        self._out: list[FakeDelivery] = []
        self._channel = object()
        upstream.consumers.append(self)
        self.pump()

    def pump(self) -> None:
        asyncio.get_running_loop().call_soon(self._deliver)

    def _deliver(self) -> None:
        ready = self.upstream.queues[self.queue].ready
        self._out = [item for item in self._out if not (item.settled or item.lost)]
        while self.state is ConsumerState.RUNNING and ready and len(self._out) < self.prefetch:
            delivery = FakeDelivery(self.upstream, self.queue, ready.popleft())
            delivery.channel = self._channel
            self._out.append(delivery)
            self._on_delivery(delivery)

    def lose(self) -> None:
        """The channel dies, and another one takes its place."""
        out, self._out = self._out, []
        for delivery in reversed(out):
            if not delivery.settled:
                delivery.lose()
        self._channel = object()
        self.pump()

    def end(self) -> None:
        """The broker ends it, for its queue is gone."""
        self.state, self.reason = ConsumerState.CANCELLED, f"its queue '{self.queue}' is gone"
        for call in self.on_state:
            call(self)

    def change_prefetch(self, prefetch: int, wait: Any = None) -> None:
        self.prefetch = prefetch

    async def cancel(self, within: float = 0.0) -> None:
        self.state = ConsumerState.CLOSED

    async def close(self, drain: float = 0.0) -> bool:
        self.state = ConsumerState.CLOSED
        for delivery in reversed(self._out):
            if not (delivery.settled or delivery.lost):
                delivery.lose()
        if self in self.upstream.consumers:
            self.upstream.consumers.remove(self)
        return True


class FakeUpstream:
    """See the module."""

    def __init__(self, name: str = "fake", **settings: Any) -> None:
        self.name = name
        self.settings = BrokerSettings(url="amqp://fake.invalid/", **settings)
        self.url = parse_broker_url(self.settings.url)
        self.resolve = None
        self.version: Version | None = V0_9_1
        self.capabilities: Capabilities | None = Capabilities(product="Fake")
        self.state = UpstreamState.UP
        self.reason = ""
        self.on_state: list[Callable[[Any], None]] = []
        self.on_oversized: list[Callable[[Any], None]] = []
        self.on_answered: list[Callable[[float], None]] = []
        self.unconfirmed_for = 0.0
        self.queues: dict[str, FakeQueue] = {}
        self.exchanges: dict[str, str] = {"": "direct"}
        self.bindings: set[tuple[str, str, str]] = set()
        self.published: list[tuple[str, str, Message]] = []
        self.out: list[FakeDelivery] = []
        self.consumers: list[FakeConsumer] = []
        self.settled: list[tuple[Settlement, bytes]] = []
        self.arrived = asyncio.Event()
        self.failure: GatewayError | None = None
        """What every publish ends with."""
        self.held: list[asyncio.Future[PublishReceipt]] | None = None
        """A list: confirms wait in it until the test gives them."""
        self.users = 0
        self.dead_letter = False
        self.delivery_limits = DeliveryLimits(0, Topology(name))
        self.fetches = 0

    def pump(self) -> None:
        for consumer in self.consumers:
            consumer.pump()

    async def start(self) -> None:
        for call in self.on_state:
            call(self)

    async def wait_up(self, timeout: float | None = None) -> bool:
        return self.state is UpstreamState.UP

    async def close(self, timeout: float = 5.0) -> None:
        self.state = UpstreamState.CLOSED

    def status(self) -> Status:
        return Status(
            self.name, self.state, self.reason, self.version, self.capabilities, "Fake", "1", 0.0, True, True,
            0, len(self.out), "",
        )  # fmt: skip

    # publish

    def publish_nowait(
        self,
        exchange: str,
        routing_key: str,
        message: Message,
        *,
        immediate: bool = False,
        timeout: float | None = None,
        order: str | None = None,
    ) -> asyncio.Future[PublishReceipt]:
        future: asyncio.Future[PublishReceipt] = asyncio.get_running_loop().create_future()
        if self.state is not UpstreamState.UP:
            future.set_exception(BrokerUnavailable(f"broker {self.name} is {self.state.value}", 3.0))
        elif exchange not in self.exchanges:
            future.set_exception(NotFound(404, f"no exchange '{exchange}'"))
        elif self.failure is not None:
            future.set_exception(self.failure)
        else:
            self.published.append((exchange, routing_key, message))
            routed = self.route(exchange, routing_key, message)
            receipt = PublishReceipt(True) if routed else PublishReceipt(False, 312, "NO_ROUTE")
            if self.held is None:
                future.set_result(receipt)
            else:
                self.held.append(future)
        return future

    def route(self, exchange: str, routing_key: str, message: Message) -> bool:
        if not exchange:
            names = [routing_key] if routing_key in self.queues else []
        else:
            names = [queue for source, queue, key in self.bindings if source == exchange and key == routing_key]
        for name in names:
            self.queues[name].ready.append((message, exchange, routing_key, False))
            self.arrived.set()
            self.pump()
        return bool(names)

    def confirm_held(self) -> None:
        assert self.held is not None
        held, self.held = self.held, None
        for future in held:
            if not future.done():
                future.set_result(PublishReceipt(True))

    # topology

    def _check(self) -> None:
        if self.state is not UpstreamState.UP:
            raise BrokerUnavailable(f"broker {self.name} is {self.state.value}")

    async def declare_queue(
        self, queue: str, *, durable: bool = True, exclusive: bool = False, auto_delete: bool = False,
        arguments: dict[str, Any] | None = None, passive: bool = False,
    ) -> QueueInfo:  # fmt: skip
        self._check()
        present = self.queues.setdefault(queue, FakeQueue(durable, arguments or {}))
        if (present.durable, present.arguments) != (durable, arguments or {}):
            raise PreconditionFailed(406, f"queue '{queue}' was declared otherwise")
        return await self.query_queue(queue)

    async def query_queue(self, queue: str) -> QueueInfo:
        self._check()
        if queue not in self.queues:
            raise NotFound(404, f"no queue '{queue}'")
        return QueueInfo(queue, len(self.queues[queue].ready), 0, None, None)

    async def delete_queue(self, queue: str, *, if_unused: bool = False, if_empty: bool = False) -> int | None:
        if if_empty and self.queues[queue].ready:
            raise PreconditionFailed(406, f"queue '{queue}' is not empty")
        return len(self.queues.pop(queue).ready)

    async def purge_queue(self, queue: str) -> int | None:
        count = (await self.query_queue(queue)).message_count
        self.queues[queue].ready.clear()
        return count

    async def bind_queue(self, queue: str, exchange: str, routing_key: str = "", arguments: Any = None) -> None:
        await self.query_queue(queue)
        await self.query_exchange(exchange)
        self.bindings.add((exchange, queue, routing_key))

    async def unbind_queue(self, queue: str, exchange: str, routing_key: str = "", arguments: Any = None) -> None:
        self.bindings.discard((exchange, queue, routing_key))

    async def bind_exchange(self, destination: str, source: str, routing_key: str = "", arguments: Any = None) -> None:
        raise Unsupported("no exchange-to-exchange bindings")

    async def unbind_exchange(
        self, destination: str, source: str, routing_key: str = "", arguments: Any = None
    ) -> None:
        raise Unsupported("no exchange-to-exchange bindings")

    async def declare_exchange(
        self, exchange: str, type: str = "direct", *, durable: bool = True, auto_delete: bool = False,
        internal: bool = False, arguments: Any = None, passive: bool = False,
    ) -> None:  # fmt: skip
        if self.exchanges.setdefault(exchange, type) != type:
            raise PreconditionFailed(406, f"exchange '{exchange}' was declared otherwise")

    async def query_exchange(self, exchange: str) -> ExchangeFound:
        self._check()
        if exchange not in self.exchanges:
            raise NotFound(404, f"no exchange '{exchange}'")
        return ExchangeFound(1, 1, 1, exchange)

    async def delete_exchange(self, exchange: str, *, if_unused: bool = False) -> None:
        del self.exchanges[exchange]

    # consume

    async def consume(
        self, queue: str, prefetch: int, on_delivery: Callable[[Any], None], **options: Any
    ) -> FakeConsumer:
        self._check()
        if queue not in self.queues:
            raise NotFound(404, f"no queue '{queue}'")
        return FakeConsumer(self, queue, prefetch, on_delivery)

    async def fetch(self, queue: str, max_messages: int, wait: float = 0.0, bytes_max: int = PULL_MAX) -> list[Any]:
        self._check()
        self.fetches += 1
        if queue not in self.queues:
            raise NotFound(404, f"no queue '{queue}'")
        ready = self.queues[queue].ready
        if not ready and wait:
            self.arrived.clear()
            try:
                async with asyncio.timeout(wait):
                    await self.arrived.wait()
            except TimeoutError:
                return []
        found: list[Any] = []
        while ready and len(found) < max_messages and bytes_max > 0:
            found.append(FakeDelivery(self, queue, ready.popleft()))
            bytes_max -= len(found[-1].message.body)
        return found

    async def check_give_back(self, queue: str) -> None:
        pass

    async def reject(self, delivery: Any, dead_letter: tuple[str, str] | None = None, *, native: bool = False) -> None:
        if delivery.lost:
            raise LeaseLost("the channel is gone")
        native = native or self.dead_letter
        if not native and dead_letter is None:
            raise NoDeadLetterDestination("no dead-letter destination is known")
        if dead_letter is not None and not native:
            await self.publish_nowait(*dead_letter, delivery.message)
        delivery.settle(Settlement.ACCEPT)
