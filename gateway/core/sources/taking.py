"""Taking messages off a broker's queue to keep them: a consumer, batches, room, and what stands in the way.

A :class:`Taker` does not know where messages go. It consumes, and hands what has come to :meth:`Taker._store` in
batches: one task takes what has come as a batch, so that a batch grows while the one before is written. The part that
stores them acknowledges them then; :meth:`Taker._keep` tries to write for as long as it takes.

Nothing is taken without room: when :meth:`Taker._room_now` says that there is none, what has come waits unacknowledged,
for at most :data:`HOLD` seconds; then the consumer is cancelled, so that the queue keeps the rest for others, what has
come is stored, and the consumer starts again when there is room. So there may be at most one prefetch more than there
is room for.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, Final, Protocol, TypeVar

from gateway.amqp.operations import Settlement
from gateway.core.leasing.parts import Parts
from gateway.core.publishing.publisher import version_name
from gateway.core.sources.arrivals import Arrival, Origins
from gateway.core.sources.deduplicator import Deduplicator
from gateway.core.sources.fetching import settle
from gateway.core.sources.own_queues import BIND_EVERY, QueueSourceSettings, queue_of
from gateway.errors import GatewayError, LedgerUnavailable
from gateway.observing.telemetry import log
from gateway.runtime.backoff import Backoff
from gateway.runtime.clock import clock
from gateway.runtime.tasks import Tasks
from gateway.upstreams import Consumer, ConsumerState, Delivery, Upstream

CHUNK: Final = 500
"""Most messages of a batch."""
CHUNK_OCTETS: Final = 16 << 20
"""A batch with more octets of bodies takes no further message."""
HOLD: Final = 1.0
"""How long messages are held unacknowledged while there is no room for them, in seconds."""
LOOK_EVERY: Final = 1.0
"""How often it is looked whether there is room again where nobody says so, in seconds."""
PAUSE_MIN: Final = 0.2
PAUSE_MAX: Final = 30.0
"""Pause before anything is tried again, in seconds; doubled each time."""
STOP_WITHIN: Final = 5.0
DEAD_LETTER_SECONDS: Final = 10.0
"""How long the dead-letter place may take for messages that are not kept, in seconds."""


class TakerSettings(QueueSourceSettings, Protocol):
    """The settings of a taker of messages."""

    @property
    def prefetch(self) -> int: ...
    @property
    def prefetch_octets(self) -> int: ...


class PendingWrite(Protocol):
    """Messages on their way into the ledger, in one commit."""

    async def write(self, parts: Parts) -> None:
        """Write them. One that the ledger cannot hold costs only itself.

        Raises:
            LedgerUnavailable: nothing was stored, or it cannot be told: write the same again.
        """

    def drop_lost(self) -> None:
        """Without what its broker has taken back, which it delivers again."""


W = TypeVar("W", bound=PendingWrite)


class BatchGivenUp(Exception):
    """A batch could not be written before the end."""


class Taker:
    """Takes messages from one queue, from start to stop. All methods belong to the event loop."""

    kind = "subscription"
    """What it takes for: the first word of what is logged, and of the name of its own queue."""

    def __init__(
        self,
        parts: Parts,
        name: str,
        settings: TakerSettings,
        upstream: Upstream,
        arrivals: Origins,
    ) -> None:
        self.name = name
        self.queue = queue_of(name, settings, self.kind)
        self.reason = ""
        """What stands in the way; empty: nothing."""
        self.stored = 0
        """How many messages were stored since the start."""
        self._parts = parts
        self._upstream = upstream
        self._source = settings
        self._origins = arrivals
        self._own_queues = parts.own_queues
        self._loop = asyncio.get_running_loop()
        self._arrived: deque[Delivery] = deque()
        self._octets = 0
        self._batch: list[Delivery] = []
        """What is being stored."""
        self._storing = 0
        """The octets of the batch that is being stored."""
        self._part = parts.byte_budget.part("tap" if self.kind == "tap" else "subscription", name)
        """What of it, and of what is being stored, counts with that of all others."""
        self._wake = asyncio.Event()
        self._consumer: Consumer | None = None
        self._prefetch = settings.prefetch
        """So many fit into ``prefetch_octets``."""
        self._overflowed: object = None
        """The channel of which no more is held, for what has come is too much already."""
        self._deduplicator: Deduplicator[Arrival] = Deduplicator(
            lambda keys: parts.ledger.seen(arrivals.scope, keys), settings.prefetch
        )
        self._full_since: float | None = None
        self._task: asyncio.Task[None] | None = None
        # After a failure its deliveries stay unacknowledged until the consumer ends.
        self._aside = Tasks("consumer", on_failure=self._failed, on_end=self._wake.set)
        """What is on its way elsewhere, unacknowledged: dead letters."""
        self._stopping = False
        self._is_disk_full = False
        """The ledger's disk has no room for what is new."""

    # ------------------------------------------------------------------------------- what it is all about

    async def _store(self, chunk: list[Delivery]) -> None:
        """Store a batch, and acknowledge it; :meth:`_keep` helps. Raises BatchGivenUp."""
        raise NotImplementedError

    async def _room_now(self) -> int:
        """How many more messages may be taken."""
        raise NotImplementedError

    async def _prepare(self) -> None:
        """Called before anything is taken, and again after each error."""

    def _before_close(self) -> None:
        """Called when nothing more comes from the consumer, before its channel is closed and the rest given back."""

    def _changed(self) -> None:
        """Called when something came to stand in the way, or does no more."""

    # ---------------------------------------------------------------------------------------- start, stop

    async def start(self) -> None:
        """:meth:`begin`."""
        self.begin()

    def begin(self) -> None:
        """Begin. What stands in the way is a reason, and no error here."""
        if self._task is None:
            self._stopping = False
            self._task = self._loop.create_task(self._run(), name=f"{self.kind} {self.name}")

    async def stop(self, within: float = STOP_WITHIN) -> None:
        """Take nothing more, store what has come within this many seconds, and give the rest back."""
        self._stopping = True
        task, consumer = self._task, self._consumer
        if task is not None:
            self._wake.set()
            try:
                with suppress(TimeoutError):
                    async with asyncio.timeout(within):
                        if consumer is not None:
                            await consumer.cancel(max(within / 2, 0.1))
                        await asyncio.wait([task])
            finally:  # also where it is lost meanwhile: nobody has the consumer that it may be starting
                task.cancel()
            await asyncio.wait([task])
            self._task = None
            await self._aside.close(DEAD_LETTER_SECONDS if self._parts.ledger.healthy else 0.0)
        self._before_close()
        self._give_back()
        self._part.close()  # what comes until the consumer is closed goes back with its channel
        await self._close_consumer()

    def lost(self) -> None:
        """Somebody else takes its messages now: drop everything at once, and settle nothing. The end of the channel
        gives all of it back in order; what is given back one by one overtakes what is being stored."""
        self._stopping = True
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
        self._aside.cancel()
        self._part.close()
        self._drop()
        if (consumer := self._consumer) is not None:
            self._consumer = None
            self._aside.start(consumer.close(), f"{self.kind} lost")

    async def gone(self) -> None:
        """After :meth:`lost`: until the broker has been told that nothing more is taken."""
        await self._aside.join()

    def wake(self) -> None:
        """There may be room again."""
        self._wake.set()

    @property
    def running(self) -> bool:
        """It consumes, or would if there were room."""
        return self._task is not None and not self._stopping and not self.reason

    # --------------------------------------------------------------------------------------------- arrival

    def _arrive(self, delivery: Delivery) -> None:
        """A delivery; called on the loop."""
        most = self._bytes_max
        if self._overflowed is delivery.channel or self._octets > 2 * most:
            self._overflowed = delivery.channel  # and all that comes behind it, for the sake of order
            settle(delivery, Settlement.RELEASE)
            self._shrink(overrun=True)
            return
        size = len(delivery.message.body)
        self._octets += size
        self._part.add(size)
        self._arrived.append(delivery)
        self._wake.set()
        if self._octets > most:
            self._shrink(overrun=False)

    @property
    def _bytes_max(self) -> int:
        """How many bytes of messages may have come and wait: so many now, for others hold some, too."""
        return self._part.bound(self._source.prefetch_octets)

    def _shrink(self, *, overrun: bool) -> None:
        """More octets are out than may be: the next consumer gets fewer messages at a time."""
        consumer = self._consumer
        if consumer is None or consumer.changing:
            return
        fits = self._bytes_max * len(self._arrived) // max(self._octets, 1)
        smaller = max(1, min(fits, consumer.prefetch // 2))
        if overrun or smaller < consumer.prefetch:
            self._prefetch = smaller
            consumer.change_prefetch(smaller)

    def _grow(self, chunk: Sequence[Delivery], octets: int) -> None:
        """Messages have become smaller: the next consumer may have more of them."""
        if self._prefetch < self._source.prefetch:
            fits = self._bytes_max * len(chunk) // max(octets, 1) // 2
            self._prefetch = max(self._prefetch, min(fits, self._source.prefetch))

    # ------------------------------------------------------------------------------------------- at work

    async def _run(self) -> None:
        """Consume and store, through all faults."""
        backoff = Backoff(PAUSE_MIN, PAUSE_MAX)
        while not self._stopping:
            try:
                await self._work()
                break
            except GatewayError as error:
                self._trouble(str(error))
            except Exception as error:  # a fault of ours must not end the trying
                self._failed(error)
                self._trouble(f"internal error: {error!r:.200}")
            self._give_back()
            await self._close_consumer()
            await backoff.wait()

    async def _work(self) -> None:
        declared = clock.monotonic()
        await self._own_queues.ensure(self.name, self._source)
        await self._prepare()
        while True:
            room = await self._room_now()
            if full := self._parts.ledger.disk.reason:
                self._trouble(full)
                room = 0
            elif self._is_disk_full:
                self._clear_trouble()
            self._is_disk_full = bool(full)
            if room > 0:
                self._full_since = None
                if self._is_cancelled and not self._arrived and not self._aside:
                    await self._close_consumer()  # its last messages are stored, and there is room again
                if self._consumer is None and not self._arrived and not self._stopping:
                    await self._consume(min(self._prefetch, room))
            elif await self._is_full_for_long():
                room = len(self._arrived)
            chunk = self._take(room)
            if chunk:
                self._batch = chunk
                try:
                    await self._store(chunk)
                except BatchGivenUp:
                    return  # and nothing behind it is stored
                finally:
                    self._part.add(-self._storing)
                    self._storing = 0
                self._batch = []
                continue
            if self._stopping and not self._arrived:
                return
            self._wake.clear()
            if self._arrived and room > 0:
                continue  # they were lost, and others may have come
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_EVERY):
                    await self._wake.wait()
            if self._source.exchange and clock.monotonic() - declared > BIND_EVERY:
                declared = clock.monotonic()
                await self._own_queues.ensure(self.name, self._source)

    async def _consume(self, prefetch: int) -> None:
        self._origins.version = version_name(self._upstream)
        consumer = await self._upstream.consume(self.queue, prefetch, self._arrive, holder=(self.kind, self.name))
        self._consumer = consumer
        consumer.on_state.append(self._consumer_changed)
        self._consumer_changed(consumer)

    @property
    def _is_cancelled(self) -> bool:
        """The consumer ended for want of room: nothing comes from it any more."""
        return self._consumer is not None and self._consumer.state is ConsumerState.CLOSED

    async def _close_consumer(self) -> bool:
        """False: of the last settlements nobody knows whether the broker has them."""
        consumer, self._consumer = self._consumer, None
        if consumer is None:
            return True
        if consumer.state is ConsumerState.CLOSED:
            self._before_close()
        return await consumer.close()

    async def _is_full_for_long(self) -> bool:
        """There is no room. After a while what is out is no longer held: the consumer ends, and what has come is
        stored all the same."""
        now = clock.monotonic()
        if self._full_since is None:
            self._full_since = now
        consumer = self._consumer
        if not self._stopping and now - self._full_since < HOLD:
            return False
        if consumer is not None:
            if consumer.state is not ConsumerState.CLOSED:
                await consumer.cancel()
            if not self._arrived and not self._aside:
                await self._close_consumer()
        return True

    def _take(self, room: int) -> list[Delivery]:
        """A batch of what has come, without what was lost again."""
        chunk: list[Delivery] = []
        octets = 0
        arrived = self._arrived
        while arrived and len(chunk) < min(room, CHUNK) and octets < CHUNK_OCTETS:
            delivery = arrived.popleft()
            size = len(delivery.message.body)
            self._octets -= size
            if delivery.lost:
                self._part.add(-size)
            else:
                octets += size
                chunk.append(delivery)
        self._storing = octets
        if chunk:
            self._grow(chunk, octets)
        return chunk

    # ------------------------------------------------------------------------------------------------ store

    async def _keep(
        self, wanted: list[Arrival], make: Callable[[list[Arrival], set[Arrival]], W]
    ) -> tuple[W, set[Arrival]]:
        """Write what is wanted, without what the ledger has already: what was written, and what was there.

        ``make`` makes a batch of what is new, beside what is known. Tried for as long as it takes. What was begun is
        stored as it was, so that nothing is there twice where nobody can tell whether a commit happened; what is lost
        meanwhile comes again.

        Raises:
            BatchGivenUp: it is to stop before that was possible.
        """
        batch: W | None = None
        known: set[Arrival] = set()
        doubtful = [arrival for arrival in wanted if self._deduplicator.is_doubtful(arrival)]
        away = False
        while True:
            try:
                if batch is None:
                    known = {*(await self._deduplicator.find(doubtful, batch=wanted)).known}
                    for arrival in wanted:
                        self._deduplicator.landed(arrival)  # before its row is made, if its channel has gone
                    batch = make([arrival for arrival in wanted if arrival not in known], known)
                await batch.write(self._parts)
                break
            except LedgerUnavailable as error:
                away = True
                self._trouble(str(error))
            if self._stopping:
                raise BatchGivenUp
            await self._until_writable()
            if batch is not None:
                batch.drop_lost()
        if away:
            self._clear_trouble()
            self._look_at_consumer()
        self._deduplicator.brought(wanted)
        return batch, known

    # -------------------------------------------------------------------------------------------- by the way

    def _set_aside(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Do something with deliveries that need not hold up the others."""
        self._aside.start(work, name)

    async def _until_writable(self) -> None:
        backoff = Backoff(PAUSE_MIN, LOOK_EVERY)
        while not self._stopping:
            await backoff.wait()
            if self._parts.ledger.healthy:
                return

    def _give_back(self) -> None:
        """What has come and was not stored, the oldest first."""
        for delivery in self._drop():
            settle(delivery, Settlement.RELEASE)

    def _drop(self) -> list[Delivery]:
        """Hold nothing any more of what has come and was not stored. Returns that, the oldest first."""
        held = [*self._batch, *self._arrived]
        self._batch = []
        self._arrived.clear()
        self._part.add(-self._octets)
        self._octets = 0
        return held

    def _consumer_changed(self, consumer: Consumer) -> None:
        if consumer.state is ConsumerState.RUNNING:
            self._clear_trouble()
        elif consumer.state is ConsumerState.CANCELLED:
            self._own_queues.forget(self.name)
        self._look_at_consumer()
        self._changed()
        self._wake.set()

    def _look_at_consumer(self) -> None:
        """Whether it is the consumer that stands in the way."""
        consumer = self._consumer
        if consumer is not None and consumer.state in (ConsumerState.DOWN, ConsumerState.CANCELLED):
            self._trouble(consumer.reason or consumer.state.value)

    def _failed(self, error: BaseException) -> None:
        log(f"{self.kind}.failed", logging.ERROR, error, **{self.kind: self.name})

    def _trouble(self, reason: str) -> None:
        if reason != self.reason:
            self.reason = reason[:500]
            log(f"{self.kind}.fault", logging.WARNING, None, **{self.kind: self.name}, reason=self.reason)
            self._changed()

    def _clear_trouble(self) -> None:
        if self.reason:
            self.reason = ""
            log(f"{self.kind}.fault_over", logging.INFO, None, **{self.kind: self.name})
            self._changed()
