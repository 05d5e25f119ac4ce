"""Messages on demand: each is leased on a short-lived channel until it is settled.

A fetch takes a channel for itself, asks it for what it wants with pipelined ``basic.get``, and where the queue is
empty and there is time to wait, starts a consumer whose prefetch is the demand. The first message ends it: it is
cancelled, and what the broker sent until then is at most what was asked for. So the gateway never holds more
than somebody waits for, nor more bytes than a fetch may bring (:mod:`gateway.upstreams.consuming.fetched`).

A get from a queue that does not exist costs the channel, and on Broker-J the whole connection with every lease on
it. So the queue is asked for first, elsewhere, and remembered for seconds. A channel holds at most
:data:`CHANNEL_LEASES` leases, all of one queue, takes no new ones when it is old, and is closed when it is old and
empty.

A message over ``message_max`` is reported (:class:`~gateway.upstreams.consuming.deliveries.Oversized`). Where its queue
does not dead-letter it, it stays with the channel on which it came, which from then on takes no more, and is offered
again only when that closes, after ``lease_max`` seconds. It costs a lease channel's place, and never a loop.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Final

from gateway.amqp.operations import Cancel, Cancelled, Consume, Deliver, Get, Got, Operation, Qos, Settlement
from gateway.errors import BrokerUnavailable, GatewayError, LimitExceeded, NotFound, Overloaded, RemoteError
from gateway.limits import PULL_MAX
from gateway.link import Link
from gateway.runtime.clock import clock
from gateway.runtime.tasks import Tasks
from gateway.upstreams.consuming.deliveries import Delivery, DeliveryChannel, Oversized
from gateway.upstreams.consuming.delivery_limits import DeliveryLimits
from gateway.upstreams.consuming.fetched import Fetched, release
from gateway.upstreams.topology import QUEUE_KNOWN, REMEMBERED

CHANNEL_LEASES: Final = 100
"""Most leases on one channel."""
CHANNEL_AGE: Final = 60.0
"""Seconds after which a channel takes no new leases."""
ANSWER_TIMEOUT: Final = 30.0
"""How long a broker may take to answer a get, in seconds."""
LOOK_AGAIN = 0.4
"""While fetches wait at a queue: interval of requests for the queue, in seconds, where the broker would not say that it
is gone."""
_FIRST_BATCH: Final = 10
_SWEEP: Final = 1.0


class LeaseChannel(DeliveryChannel):
    """A channel that serves one fetch at a time."""

    __slots__ = ("arrived", "born", "cancelled", "consumer", "fetched", "plenty", "taken")

    def __init__(self, link: Link, number: int) -> None:
        super().__init__(link, number)
        self.born = clock.monotonic()
        self.taken = True
        """A fetch is using it."""
        self.consumer = ""
        """Tag of the consumer that is running, "" for none."""
        self.fetched: Fetched | None = None
        """Takes what comes for the fetch."""
        self.arrived: asyncio.Future[None] | None = None
        """Wakes the fetch that waits for the consumer's first message."""
        self.cancelled = False
        """The broker ended the consumer."""
        self.plenty = False
        """The last gets all brought a message: ask for all that is wanted at once."""

    @property
    def room(self) -> int:
        """How many more leases it takes."""
        return CHANNEL_LEASES - len(self.deliveries) - self.set_aside

    @property
    def reusable(self) -> bool:
        """It may serve another fetch."""
        return self.usable and not self.set_aside and self.room > 0

    def receive(self, operation: Operation) -> None:
        if isinstance(operation, Got) and self.usable:
            # Leased as it comes: the channel may be gone before the fetch looks.
            delivery = self.take(operation)
            future = self._requests.pop(operation.first, None)
            if future is not None and not future.done() and self.fetched is not None:
                self.fetched.add(delivery)
                future.set_result(delivery)
            else:
                delivery.settle(Settlement.RELEASE)  # nobody waits for it any more
        else:
            super().receive(operation)

    def handle(self, operation: Operation) -> None:
        if isinstance(operation, Deliver) and self.usable:
            delivery = self.take(operation)
            if operation.consumer_tag == self.consumer and self.fetched is not None:
                self.fetched.add(delivery)
                self._wake()
            else:
                delivery.settle(Settlement.RELEASE)  # its consumer has ended: nobody would ever settle it
        elif isinstance(operation, Cancelled):
            self.cancelled = True
            self._wake()
        else:
            super().handle(operation)
            self._wake()  # a message over the limit takes the place of one that was asked for

    def lost(self, error: GatewayError) -> None:
        super().lost(error)
        self._wake()

    def _wake(self) -> None:
        if self.arrived is not None and not self.arrived.done():
            self.arrived.set_result(None)


class Leases:
    """The lease channels of one broker. :meth:`attach` gives them a link, :meth:`detach` takes it away."""

    def __init__(
        self,
        name: str,
        *,
        channels: int,
        lease_max: float,
        message_max: int,
        check_queue: Callable[[str, float], Coroutine[None, None, None]],
        on_oversized: Callable[[Oversized, Callable[[], None]], None],
        limits: DeliveryLimits,
    ) -> None:
        self.name = name
        self._check_queue = check_queue
        self._most = channels
        self._lease_max = lease_max
        self._message_max = message_max
        self._expected: dict[str, int] = {}
        """By queue: no message of it is expected to have more bytes."""
        self._on_oversized = on_oversized
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._link: Link | None = None
        self._reason = "not connected yet"
        self._channels: set[LeaseChannel] = set()
        self._spare: dict[str, list[LeaseChannel]] = {}  # by queue, "" for channels without leases; not taken
        self._tags = itertools.count(1)
        self._timer: asyncio.TimerHandle | None = None
        self._fetches = Tasks("fetch", expected=(Exception,))  # their callers hear of them
        self._checks: dict[str, asyncio.Task[None]] = {}
        """Questions under way whether a queue is still there."""
        self._freed: asyncio.Future[None] | None = None
        """Wakes the fetches that found no channel."""

    def attach(self, link: Link) -> None:
        """Lease on this link."""
        self._link = link

    def detach(self, reason: str) -> None:
        """The link is lost, and every lease with it."""
        self._link = None
        self._reason = reason
        self._channels.clear()
        self._spare.clear()
        self._wake_those_without_channel()

    @property
    def out(self) -> int:
        """How many deliveries are leased."""
        return sum(len(channel.deliveries) for channel in self._channels)

    def deliveries(self, queue: str) -> list[Delivery]:
        """Those of a queue that are leased."""
        return [each for channel in self._channels if channel.queue == queue for each in channel.deliveries.values()]

    # ----------------------------------------------------------------------------------------------- fetch

    async def fetch(self, queue: str, max_messages: int, wait: float, bytes_max: int = PULL_MAX) -> list[Delivery]:
        """See :meth:`gateway.upstreams.upstream.Upstream.fetch`. A fetch that is cancelled gives back what
        comes for it."""
        if self._link is None:
            raise BrokerUnavailable(f"broker {self.name}: {self._reason}")
        await self._check_queue(queue, QUEUE_KNOWN)
        hurry: asyncio.Future[None] = self._loop.create_future()
        fetched = Fetched(bytes_max, self._expected.get(queue), self._message_max)
        work = self._fetches.start(self._fetch(queue, max_messages, clock.monotonic() + wait, hurry, fetched))
        try:
            while not (await asyncio.wait([work], timeout=LOOK_AGAIN))[0]:
                if not self._is_told():
                    await self._look_again(queue, LOOK_AGAIN)
            return work.result()
        except BaseException as error:
            if not hurry.done():
                hurry.set_result(None)
            work.add_done_callback(_give_back)
            if isinstance(error, GatewayError):
                error.__traceback__ = None  # its frames hold the channel, which holds why it ended
            raise
        finally:
            del work  # its error holds this frame, until the collector comes by

    def _is_told(self) -> bool:
        """Whether the broker says so when a queue goes at which somebody waits."""
        return self._link is not None and self._link.capabilities.consumer_cancel_notify

    async def _look_again(self, queue: str, age: float) -> None:
        """NotFound where the queue has gone; one question for all who wait. Where nobody can be asked now, the link
        itself will tell how things stand."""
        check = self._checks.get(queue)
        if check is None:
            check = self._checks[queue] = self._loop.create_task(self._check_queue(queue, age))
            check.add_done_callback(lambda _: self._checks.pop(queue).exception())
        await asyncio.wait([check])
        error = check.exception()
        if isinstance(error, NotFound):
            raise error

    async def _fetch(
        self, queue: str, wanted: int, deadline: float, hurry: asyncio.Future[None], fetched: Fetched
    ) -> list[Delivery]:
        found = fetched.deliveries
        try:
            while len(found) < wanted and fetched.fits:
                try:
                    channel = await self._take(queue, 0.0 if found else deadline, hurry)
                except Overloaded:
                    if found:
                        break
                    raise
                try:
                    if await self._get(channel, queue, min(wanted - len(found), channel.room), fetched):
                        break
                finally:
                    self._put(channel)
            while not found and not hurry.done() and (left := deadline - clock.monotonic()) > 0:
                channel = await self._take("", deadline, hurry)
                channel.queue = queue
                try:
                    await self._wait(channel, queue, min(wanted, channel.room, fetched.fits), left, hurry, fetched)
                    if not found and not channel.oversized:
                        if channel.cancelled:
                            await self._look_again(queue, 0.0)
                        break
                finally:
                    self._put(channel)
        except BaseException:
            release(found)
            raise
        finally:
            self._remember(queue, fetched)
        return [delivery for delivery in found if not delivery.lost]

    def _remember(self, queue: str, fetched: Fetched) -> None:
        """Expect of the queue's messages what a fetch has learned."""
        if fetched.deliveries:
            if len(self._expected) >= REMEMBERED:
                self._expected.clear()
            self._expected[queue] = fetched.expected

    async def _get(self, channel: LeaseChannel, queue: str, wanted: int, fetched: Fetched) -> bool:
        """Ask for up to ``wanted`` messages: a few, and when they were there, all the rest at once; all at once
        where the last time brought everything; but never for more than are expected to fit. Whether the queue turned
        out to be empty."""
        batch = CHANNEL_LEASES if channel.plenty else _FIRST_BATCH
        channel.fetched = fetched
        while (ask := min(batch, wanted, channel.room, fetched.fits)) > 0:
            held = channel.oversized
            nothing = 0
            futures = deque([channel.request(Get(channel.number, queue)) for _ in range(ask)])
            try:
                async with asyncio.timeout(ANSWER_TIMEOUT):
                    while futures:
                        outcome = await futures.popleft()  # kept nowhere: its error would hold this frame
                        if isinstance(outcome, Delivery):
                            wanted -= 1
                        else:
                            nothing += 1
            except TimeoutError:
                channel.abandon()  # what it may still bring is given back by its end
                raise BrokerUnavailable(f"broker {self.name}: no answer within {ANSWER_TIMEOUT:g} s") from None
            finally:
                futures.clear()
            fetched.learn()
            channel.plenty = not nothing
            if nothing > channel.oversized - held:  # one over the limit counts as nothing, but there may be more
                return True
            batch = CHANNEL_LEASES
        return False

    async def _wait(
        self,
        channel: LeaseChannel,
        queue: str,
        wanted: int,
        seconds: float,
        hurry: asyncio.Future[None],
        fetched: Fetched,
    ) -> None:
        """Consume until something comes or the time is up; what comes while that is undone is taken too."""
        number = channel.number
        channel.fetched = fetched
        fetched.holds_surplus = True
        channel.cancelled = False
        channel.arrived = self._loop.create_future()
        channel.consumer = f"gateway-pull-{next(self._tags)}"
        is_consuming = False
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT):
                await channel.request(Qos(number, prefetch_count=wanted))
                await channel.request(Consume(number, queue, channel.consumer))
            is_consuming = True
            await asyncio.wait([channel.arrived, hurry], timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if channel.closed is not None:
                raise channel.closed
            if not channel.cancelled:
                cancelled = channel.request(Cancel(number, channel.consumer))
                fetched.release_surplus()  # behind the cancel, so that the consumer does not get it again
                async with asyncio.timeout(ANSWER_TIMEOUT):
                    await cancelled
        except RemoteError as error:
            if is_consuming and channel.link.ended is not None:  # over what somebody else has asked
                raise BrokerUnavailable(f"broker {self.name}: {error}") from None
            raise
        except TimeoutError:
            channel.abandon()
            raise BrokerUnavailable(f"broker {self.name}: no answer within {ANSWER_TIMEOUT:g} s") from None
        finally:
            channel.consumer = ""
            channel.arrived = None
            fetched.release_surplus()
            fetched.learn()

    # --------------------------------------------------------------------------------------------- channels

    async def _take(self, queue: str, deadline: float, hurry: asyncio.Future[None]) -> LeaseChannel:
        """:meth:`_take_now`, or as soon as there is one. Overloaded where there is none in time."""
        while True:
            try:
                return await self._take_now(queue)
            except LimitExceeded as error:
                left = deadline - clock.monotonic()
                if left <= 0 or hurry.done():
                    raise Overloaded(str(error)) from None
            if self._freed is None:
                self._freed = self._loop.create_future()
            await asyncio.wait([self._freed, hurry], timeout=left, return_when=asyncio.FIRST_COMPLETED)

    def _wake_those_without_channel(self) -> None:
        if self._freed is not None:
            self._freed.set_result(None)
            self._freed = None

    async def _take_now(self, queue: str) -> LeaseChannel:
        """A channel for one fetch: one that holds leases of the same queue and has room (with "" for the queue:
        none), an empty one, or a new one."""
        link = self._link
        if link is None:
            raise BrokerUnavailable(f"broker {self.name}: {self._reason}")
        channel = self._reuse(queue)
        if channel is None and len(self._channels) >= self._most:
            self._sweep()
            channel = self._reuse(queue)
        if channel is not None:
            return channel
        if len(self._channels) >= self._most:
            raise LimitExceeded(f"broker {self.name}: all {self._most} lease_channels are in use", "lease_channels")
        channel = link.channel(LeaseChannel)
        channel.on_oversized = self._on_oversized
        channel.limits = self._limits
        channel.queue = queue
        self._channels.add(channel)
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT):
                await channel.open()
        except TimeoutError:
            self._channels.discard(channel)
            channel.abandon()
            raise BrokerUnavailable(f"broker {self.name}: no answer within {ANSWER_TIMEOUT:g} s") from None
        except GatewayError:
            self._channels.discard(channel)
            raise
        if self._timer is None:
            self._timer = self._loop.call_later(_SWEEP, self._tick)
        return channel

    def _reuse(self, queue: str) -> LeaseChannel | None:
        for key in (queue, "") if queue else ("",):
            spare = self._spare.get(key)
            while spare:
                channel = spare.pop()
                if channel.reusable and (not channel.deliveries or channel.queue == key):
                    channel.taken = True
                    channel.queue = queue
                    return channel
        return None

    def _put(self, channel: LeaseChannel) -> None:
        """A fetch has done with a channel."""
        channel.taken = False
        channel.fetched = None
        if channel.closed is not None or channel.link is not self._link:
            self._channels.discard(channel)
        elif channel.reusable:
            self._spare.setdefault(channel.queue if channel.deliveries else "", []).append(channel)
        self._wake_those_without_channel()

    def _tick(self) -> None:
        self._timer = None
        self._sweep()
        if self._channels:
            self._timer = self._loop.call_later(_SWEEP, self._tick)

    def _sweep(self) -> None:
        """End leases that lasted too long, close channels that are old and hold nothing, and sort the rest: a
        channel whose leases are all settled serves any queue."""
        now = clock.monotonic()
        spare: dict[str, list[LeaseChannel]] = {}
        for channel in list(self._channels):
            if channel.closed is not None:
                self._channels.discard(channel)
                continue
            while channel.deliveries:
                oldest = next(iter(channel.deliveries.values()))
                if now - oldest.at < self._lease_max:
                    break
                channel.expire(oldest)
            if channel.taken:
                continue
            age = now - channel.born
            if not channel.deliveries and age >= (self._lease_max if channel.set_aside else CHANNEL_AGE):
                self._channels.discard(channel)
                channel.abandon()
            elif age < CHANNEL_AGE and channel.reusable:
                spare.setdefault(channel.queue if channel.deliveries else "", []).append(channel)
        self._spare = spare
        self._wake_those_without_channel()


def _give_back(work: asyncio.Task[list[Delivery]]) -> None:
    """Nobody waits for a fetch any more."""
    if not work.cancelled() and work.exception() is None:
        release(work.result())
