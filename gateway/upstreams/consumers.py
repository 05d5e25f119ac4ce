"""Long-lived consumers: each on a channel of its own, started again whenever it has ended.

The prefetch is asked for before the consumer is, on the same channel, because brokers disagree on what it means
otherwise. A consumer ends with its channel, with its link, or when the broker says so (``basic.cancel``: the queue
is gone); then it is tried again, with growing pauses, until it is closed.

Messages over a limit of ours that nobody takes from us fill the prefetch. When they have filled it, the consumer goes
on on another channel, and the one that holds them stays as it is, until the consumer closes or the link ends; at most
:data:`HOLDERS_MAX` such channels.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable
from enum import Enum
from typing import Final

from gateway.errors import BrokerUnavailable, GatewayError
from gateway.link import Link
from gateway.operations import Cancel, Cancelled, Consume, Deliver, Operation, Qos
from gateway.telemetry import log
from gateway.upstreams.deliveries import Delivery, DeliveryChannel, Oversized
from gateway.upstreams.notify import notify
from gateway.values import Table

ANSWER_TIMEOUT: Final = 30.0
"""How long a broker may take to start or cancel a consumer, in seconds."""

HOLDERS_MAX: Final = 16
"""How many channels of a consumer may hold nothing but messages over a limit."""

_tags = itertools.count(1)


class ConsumerState(Enum):
    """What a consumer is doing."""

    STARTING = "starting"
    RUNNING = "running"
    CANCELLED = "cancelled"
    """The broker ended it or its queue is not there; it is tried again."""
    DOWN = "down"
    """The link or the channel is lost; it is tried again."""
    CLOSED = "closed"


class ConsumerChannel(DeliveryChannel):
    """The channel of one consumer."""

    __slots__ = ("cancelled", "full_at", "on_delivery", "over")

    def __init__(self, link: Link, number: int) -> None:
        super().__init__(link, number)
        self.on_delivery: Callable[[Delivery], None]
        self.over: asyncio.Future[None] = link.loop.create_future()
        """Done when nothing more will be delivered."""
        self.cancelled = False
        self.full_at = 0
        """How many messages over a limit fill it; 0: any number is fine."""

    def receive(self, operation: Operation) -> None:
        if type(operation) is Deliver and self.usable:
            delivery = self.take(operation)
            try:
                self.on_delivery(delivery)
            except Exception as error:  # a fault of the callback's must not end the link; it costs this channel
                log("consumer.failed", logging.ERROR, exc_info=error, queue=self.queue)
                self.abandon()
        else:
            super().receive(operation)

    def handle(self, operation: Operation) -> None:
        if isinstance(operation, Cancelled):
            self.cancelled = True
            self.end_wait()
        else:
            super().handle(operation)
            if self.full:
                self.end_wait()

    @property
    def full(self) -> bool:
        """Messages over a limit take all the room there is."""
        return 0 < self.full_at <= self.set_aside

    def lost(self, error: GatewayError) -> None:
        super().lost(error)
        self.end_wait()

    def end_wait(self) -> None:
        """Nothing more will come."""
        if not self.over.done():
            self.over.set_result(None)


class Consumer:
    """A consumer of one queue. Made by :meth:`gateway.upstreams.upstream.Upstream.consume`."""

    def __init__(
        self,
        queue: str,
        prefetch: int,
        on_delivery: Callable[[Delivery], None],
        *,
        exclusive: bool,
        arguments: Table | None,
        link: Callable[[], Awaitable[Link]],
        check_queue: Callable[[str], Awaitable[None]],
        on_oversized: Callable[[Oversized, Callable[[], None]], None],
        pause_min: float,
        pause_max: float,
    ) -> None:
        self.queue = queue
        self.prefetch = prefetch
        self.state = ConsumerState.STARTING
        self.reason = ""
        """Why it is not running."""
        self.on_state: list[Callable[[Consumer], None]] = []
        """Called on the loop after each change of ``state``."""
        self._on_delivery = on_delivery
        self._exclusive = exclusive
        self._arguments = arguments or {}
        self._get_link = link
        self._check_queue = check_queue
        self._on_oversized = on_oversized
        self._pause_min, self._pause_max = pause_min, pause_max
        self._channel: ConsumerChannel | None = None
        self._holders: list[ConsumerChannel] = []
        self._tag = ""
        self._task: asyncio.Task[None] | None = None

    @property
    def out(self) -> int:
        """How many deliveries are not settled."""
        return 0 if self._channel is None else len(self._channel.deliveries)

    async def start(self) -> None:
        """Start it; from then on it keeps itself running.

        Raises:
            RemoteError: the broker refused it; it is not tried again.
            BrokerUnavailable: no link, or no answer.
        """
        try:
            channel = await self._begin()
        except BaseException:
            self._set(ConsumerState.CLOSED)
            raise
        self._task = asyncio.create_task(self._run(channel))

    async def close(self, drain: float = 0.0) -> None:
        """End it. What is out may still be settled for ``drain`` seconds; the rest goes back to the queue."""
        if self.state is ConsumerState.CLOSED:
            return
        self._set(ConsumerState.CLOSED)
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        channel, self._channel = self._channel, None
        for holder in self._holders:
            holder.abandon()
        if channel is None or channel.closed is not None:
            return
        try:
            if not channel.cancelled:
                async with asyncio.timeout(ANSWER_TIMEOUT):
                    await channel.request(Cancel(channel.number, self._tag))
                if drain and channel.deliveries:
                    channel.emptied = channel.link.loop.create_future()
                    await asyncio.wait([channel.emptied], timeout=drain)
            async with asyncio.timeout(ANSWER_TIMEOUT):
                await channel.close()
        except (GatewayError, TimeoutError) as error:
            log("consumer.closed_without_answer", queue=self.queue, reason=str(error))
            channel.abandon()

    async def _begin(self) -> ConsumerChannel:
        link = await self._get_link()
        await self._check_queue(self.queue)  # to consume from one that is not there may cost the connection
        channel = link.channel(ConsumerChannel)
        channel.queue = self.queue
        channel.on_delivery = self._on_delivery
        channel.on_oversized = self._on_oversized
        self._sort_holders()
        channel.full_at = self.prefetch if len(self._holders) < HOLDERS_MAX else 0
        tag = f"gateway-{next(_tags)}"
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT):
                await channel.open()
                await channel.request(Qos(channel.number, prefetch_count=self.prefetch))
                self._channel, self._tag = channel, tag
                await channel.request(
                    Consume(channel.number, self.queue, tag, exclusive=self._exclusive, arguments=self._arguments)
                )
        except TimeoutError:
            channel.abandon()
            raise BrokerUnavailable(f"queue {self.queue!r}: no answer within {ANSWER_TIMEOUT:g} s") from None
        except BaseException:
            channel.abandon()
            raise
        self._set(ConsumerState.RUNNING)
        return channel

    def _sort_holders(self) -> None:
        """Those that are over, or hold nothing any more, are none."""
        for holder in self._holders:
            if not (holder.set_aside or holder.deliveries):
                holder.abandon()
        self._holders = [holder for holder in self._holders if holder.usable]

    async def _run(self, channel: ConsumerChannel) -> None:
        """Wait for the end of a consumer, and start the next."""
        pause = self._pause_min
        while True:
            began = channel.link.loop.time()
            await asyncio.shield(channel.over)
            if channel.usable and not channel.cancelled:  # it was full
                log("consumer.full", logging.WARNING, queue=self.queue, oversized=channel.set_aside)
                self._holders.append(channel)
                channel.send(Cancel(channel.number, self._tag))
                pause = 0.0
            elif channel.cancelled:
                self._set(ConsumerState.CANCELLED, "the broker ended the consumer: its queue is gone")
                channel.abandon()
            else:
                self._set(ConsumerState.DOWN, str(channel.closed))
            if channel.link.loop.time() - began > self._pause_max:
                pause = self._pause_min
            while True:
                await asyncio.sleep(pause)
                pause = min(max(pause, self._pause_min) * 2, self._pause_max) if pause else self._pause_min
                try:
                    channel = await self._begin()
                except BrokerUnavailable as error:
                    self._set(ConsumerState.DOWN, str(error))
                except GatewayError as error:
                    self._set(ConsumerState.CANCELLED, str(error))
                except Exception as error:  # a fault of ours must not end the trying
                    log("consumer.fault", logging.ERROR, exc_info=error, queue=self.queue)
                    self._set(ConsumerState.DOWN, f"internal error: {error!r}")
                else:
                    break

    def _set(self, state: ConsumerState, reason: str = "") -> None:
        changed = state is not self.state
        self.state, self.reason = state, reason
        if changed:
            notify(self.on_state, self)
