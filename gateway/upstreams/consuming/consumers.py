"""Long-lived consumers: each on a channel of its own, started again whenever it has ended.

The prefetch is asked for before the consumer is, on the same channel, because brokers disagree on what it means
otherwise. A consumer ends with its channel, with its link, or when the broker says so (``basic.cancel``: the queue
is gone); then it is tried again, with growing pauses, until it is closed.

Messages over a limit that nobody takes fill the prefetch. When they have filled it, the consumer goes
on on another channel, and the one that holds them stays as it is, until the consumer closes or the link ends; at most
:data:`HOLDERS_MAX` such channels.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from enum import Enum
from typing import Any, Final, NamedTuple

from gateway.amqp.operations import Cancel, Cancelled, Consume, Deliver, Operation, Qos
from gateway.errors import BrokerUnavailable, GatewayError, NotFound
from gateway.link import Link
from gateway.observing.telemetry import log
from gateway.runtime.backoff import Backoff
from gateway.runtime.clock import clock
from gateway.upstreams.consuming.deliveries import Delivery, DeliveryChannel, Oversized
from gateway.upstreams.consuming.delivery_limits import DeliveryLimits
from gateway.upstreams.notify import notify
from gateway.upstreams.topology import QueueInfo

ANSWER_TIMEOUT: Final = 30.0
"""How long a broker may take to start or cancel a consumer, in seconds."""

LOOK_AGAIN = 2.0
"""How often a queue is asked for where the broker does not say that it goes, in seconds."""

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

    __slots__ = ("acquires", "cancelled", "full_at", "no_ack", "on_delivery", "over", "retiring")

    def __init__(self, link: Link, number: int) -> None:
        super().__init__(link, number)
        self.on_delivery: Callable[[Delivery], None]
        self.over: asyncio.Future[None] = link.loop.create_future()
        """Done when nothing more will be delivered."""
        self.cancelled = False
        self.full_at = 0
        """How many messages over a limit fill it; 0: any number is fine."""
        self.no_ack = False
        """The broker forgets what it sends: there is nothing to settle."""
        self.acquires = True
        """False: it looks at messages, which stay in their queue: there is nothing to reject."""
        self.retiring = False
        """It was ended by us, and another one follows when nothing is out any more."""

    def receive(self, operation: Operation) -> None:
        if type(operation) is Deliver and self.usable:
            delivery = self.take(operation) if not self.no_ack else Delivery(self, self.queue, operation, settled=True)
            if delivery.is_last and self.keep(delivery):
                return
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

    def _reject(self, number: int) -> None:
        if self.acquires and not self.no_ack:
            super()._reject(number)

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


class ConsumedBroker(NamedTuple):
    """What consumers ask of the broker that they consume from."""

    link: Callable[[str], Awaitable[Link]]
    """A link with room for a consumer of a queue."""
    check_queue: Callable[[str], Awaitable[None]]
    query_queue: Callable[[str], Awaitable[QueueInfo]]
    on_oversized: Callable[[Oversized, Callable[[], None]], None]
    limits: DeliveryLimits
    pause_min: float
    pause_max: float
    """Pauses before a consumer that ended is started again, in seconds."""


class Consumer:
    """A consumer of one queue. Made by :meth:`gateway.upstreams.upstream.Upstream.consume`."""

    def __init__(
        self,
        request: Consume,
        prefetch: int,
        on_delivery: Callable[[Delivery], None],
        broker: ConsumedBroker,
    ) -> None:
        """``request`` is sent again for each start, with the channel and the tag of that start."""
        self.queue = request.queue
        self.prefetch = prefetch
        self.state = ConsumerState.STARTING
        self.reason = ""
        """Why it is not running."""
        self.holder = ("", "")
        """For whom it takes messages: kind and name; empty: that was not said."""
        self.on_state: list[Callable[[Consumer], None]] = []
        """Called on the loop after each change of ``state``."""
        self._on_delivery = on_delivery
        self._request = request
        self._broker = broker
        self._channel: ConsumerChannel | None = None
        self._holders: list[ConsumerChannel] = []
        self._tag = ""
        self._ended = False
        """The broker was asked to end it."""
        self._wait: Callable[[], Awaitable[None]] | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def out(self) -> int:
        """How many deliveries are not settled."""
        return 0 if self._channel is None else len(self._channel.deliveries)

    @property
    def deliveries(self) -> list[Delivery]:
        """Those that are not settled, oldest first; of one that only looks, none are out."""
        return [] if self._channel is None or not self._request.acquired else list(self._channel.deliveries.values())

    @property
    def changing(self) -> bool:
        """It has ended for another prefetch, and the next has not begun."""
        return self._channel is not None and self._channel.retiring

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

    def change_prefetch(self, prefetch: int, wait: Callable[[], Awaitable[None]] | None = None) -> None:
        """Go on with another prefetch, for brokers take a new one for new consumers only: this one ends, and the next
        begins when everything that is out is settled, and ``wait`` is over."""
        self.prefetch = prefetch
        self._wait = wait
        channel = self._channel
        if channel is not None and channel.usable and not channel.cancelled and not channel.retiring:
            channel.retiring = True
            channel.end_wait()

    async def cancel(self, within: float = ANSWER_TIMEOUT) -> None:
        """Take nothing more. What is out stays out, to be settled until :meth:`close`. When it returns, nothing comes
        any more; unless the broker does not answer ``within`` this many seconds: then the channel is given up."""
        await self._end()
        channel = self._channel
        if channel is None or not channel.usable or channel.cancelled or self._ended:
            return
        self._ended = True
        try:
            async with asyncio.timeout(within):
                await channel.request(Cancel(channel.number, self._tag))
        except (GatewayError, TimeoutError) as error:
            log("consumer.closed_without_answer", queue=self.queue, reason=str(error))
            channel.abandon()

    async def _end(self) -> None:
        """It is not started again."""
        self._set(ConsumerState.CLOSED)
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    async def close(self, drain: float = 0.0) -> bool:
        """End it. What is out may still be settled for ``drain`` seconds; the rest goes back to the queue.

        True: the broker has all settlements. False: nobody knows whether it has the last ones."""
        if self.state is ConsumerState.CLOSED and self._channel is None:
            return True
        try:
            await self._end()
        except BaseException:  # the caller waits no longer; what is out goes back all the same
            self._abandon()
            raise
        channel, self._channel = self._channel, None
        for holder in self._holders:
            holder.abandon()
        if channel is None:
            return True
        if not channel.usable:
            return False
        try:
            if not channel.cancelled:
                if not self._ended:
                    async with asyncio.timeout(ANSWER_TIMEOUT):
                        await channel.request(Cancel(channel.number, self._tag))
                if drain and channel.deliveries:
                    channel.emptied = channel.link.loop.create_future()
                    await asyncio.wait([channel.emptied], timeout=drain)
            async with asyncio.timeout(ANSWER_TIMEOUT):
                return await channel.close()
        except (GatewayError, TimeoutError) as error:
            log("consumer.closed_without_answer", queue=self.queue, reason=str(error))
            channel.abandon()
            return False
        except BaseException:  # the caller waits no longer; what is out goes back all the same
            channel.abandon()
            raise

    def _abandon(self) -> None:
        """Give up its channels."""
        channel, self._channel = self._channel, None
        for each in (*self._holders, *([channel] if channel is not None and channel.usable else [])):
            each.abandon()

    async def _begin(self) -> ConsumerChannel:
        broker, request = self._broker, self._request
        await broker.link(self.queue)  # the broker is there, so that it can be asked
        await broker.check_queue(self.queue)  # to consume from one that is not there may cost the connection
        link = await broker.link(self.queue)
        channel = link.channel(ConsumerChannel)  # at once: there was room for it when the link was given
        channel.queue = self.queue
        channel.on_delivery = self._on_delivery
        channel.on_oversized = broker.on_oversized
        channel.limits = broker.limits if request.acquired and not request.no_ack else None
        channel.no_ack = request.no_ack
        channel.acquires = request.acquired
        self._sort_holders()
        channel.full_at = self.prefetch if len(self._holders) < HOLDERS_MAX and not request.no_ack else 0
        tag = f"gateway-{next(_tags)}"
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT):
                await channel.open()
                await channel.request(Qos(channel.number, prefetch_count=self.prefetch))
                self._channel, self._tag, self._ended = channel, tag, False
                await channel.request(replace(request, channel=channel.number, consumer_tag=tag))
        except TimeoutError:
            channel.abandon()
            raise BrokerUnavailable(f"queue {self.queue!r}: no answer within {ANSWER_TIMEOUT:g} s") from None
        except BaseException:
            channel.abandon()
            raise
        self._set(ConsumerState.RUNNING)
        return channel

    def _sort_holders(self) -> None:
        """Those that are over, or hold nothing any more, do not count."""
        for holder in self._holders:
            if not (holder.set_aside or holder.deliveries):
                holder.abandon()
        self._holders = [holder for holder in self._holders if holder.usable]

    async def _run(self, channel: ConsumerChannel) -> None:
        """Wait for the end of a consumer, and start the next."""
        backoff = Backoff(self._broker.pause_min, self._broker.pause_max)
        while True:
            at_once = False
            began = clock.monotonic()
            try:
                await self._until_over(channel)
                retires = channel.retiring and channel.usable and not channel.cancelled
                if retires:
                    await self._retire(channel)
            except Exception as error:  # a fault of ours must not end the trying
                log("consumer.fault", logging.ERROR, exc_info=error, queue=self.queue)
                retires = False
                channel.abandon()
            if retires:
                at_once = True
            elif channel.usable and not channel.cancelled:  # it was full
                log("consumer.full", logging.WARNING, queue=self.queue, oversized=channel.set_aside)
                self._holders.append(channel)
                channel.send(Cancel(channel.number, self._tag))
                at_once = True
            elif channel.cancelled:
                self._set(ConsumerState.CANCELLED, f"the broker ended the consumer: its queue {self.queue!r} is gone")
                channel.abandon()
            else:
                self._set(ConsumerState.DOWN, str(channel.closed))
            if at_once or clock.monotonic() - began > self._broker.pause_max:
                backoff.reset()
            while True:
                await clock.sleep(0.0 if at_once else backoff.next())
                at_once = False
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

    async def _until_over(self, channel: ConsumerChannel) -> None:
        """Wait until nothing more will be delivered. Not every broker says so when a queue goes under its consumers:
        elsewhere the gateway asks for the queue, and whether anybody consumes from it (it may be there again by
        now)."""
        told = channel.link.capabilities.consumer_cancel_notify
        while not (await asyncio.wait([channel.over], timeout=None if told else LOOK_AGAIN))[0]:
            asking = asyncio.create_task(self._is_gone())
            either: tuple[asyncio.Future[Any], ...] = (channel.over, asking)
            try:
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
                gone = asking.done() and asking.result()
            finally:
                asking.cancel()
            if gone and not channel.over.done():
                channel.cancelled = True
                channel.end_wait()

    async def _is_gone(self) -> bool:
        """Whether the queue is known to be gone, or the consumer from it."""
        try:
            return not (await self._broker.query_queue(self.queue)).consumer_count
        except NotFound:
            return True
        except GatewayError:
            return False  # the login may not ask; or nobody can now, and the link tells how things stand

    async def _retire(self, channel: ConsumerChannel) -> None:
        """End a consumer, and wait until everything that is out is settled, or lost."""
        self._ended = True
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT):
                await channel.request(Cancel(channel.number, self._tag))
        except (GatewayError, TimeoutError) as error:
            log("consumer.closed_without_answer", queue=self.queue, reason=str(error))
        else:
            if channel.deliveries:
                channel.emptied = channel.link.loop.create_future()
                await channel.emptied
            if self._wait is not None:
                await self._wait()
        channel.abandon()

    def _set(self, state: ConsumerState, reason: str = "") -> None:
        changed = state is not self.state
        self.state, self.reason = state, reason
        if changed:
            notify(self.on_state, self)
