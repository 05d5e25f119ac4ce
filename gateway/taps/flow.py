"""The way of messages through a tap: taken, spooled, acknowledged.

::

    arrived ──read──> new ───────────> spooled (log, event and inbox in the same commit) ──> acknowledged
                 │     └─ refused ──> at the dead-letter place, recorded (dead_letters.py) ─────> acknowledged
                 └─ the log has it ──> recorded ──────────────────────────────────────────> acknowledged

What is acknowledged is in the log. How messages are taken, and when not, is in :mod:`gateway.core.sources.taking`;
there is no room while the message log holds ``log_octets`` that no reader has passed yet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final

from gateway.amqp.operations import Settlement
from gateway.config import TapSettings
from gateway.core.leasing.parts import Parts
from gateway.core.sources.arrivals import Arrival
from gateway.core.sources.fetching import settle
from gateway.core.sources.taking import STOP_WITHIN, Taker
from gateway.core.work.supervised import SupervisedResource
from gateway.errors import GatewayError, LedgerUnavailable
from gateway.observing.telemetry import log
from gateway.runtime.clock import clock
from gateway.taps.counts import TapCounts
from gateway.taps.dead_letters import TapDeadLetterPublisher
from gateway.taps.depth import Depth
from gateway.taps.rows import TAP_KIND, TapBatch, TapOrigins
from gateway.upstreams import Consumer, ConsumerState, Delivery, Oversized, Upstream

HELD_EVERY: Final = 2.0
"""How often it is asked at most how much the message log holds, in seconds."""
PROGRESS_EVERY: Final = 1.0
"""How often it is written down at most how much is left of the queue's depth, in seconds."""
EMPTY_EVERY: Final = 1.0
"""How often a queue that gave less than it held is asked whether it is empty, in seconds."""
EMPTY_TIMES: Final = 2
"""How often in a row it must say so."""
ROW: Final = 128
"""Octets that a row of the log counts for, beside its body and its properties."""
PROGRESS: Final = "tap-progress"
"""The resource that says how much is left of the queue's depth."""


class TapFlow(Taker):
    """The messages of one tap, from start to stop."""

    kind = TAP_KIND

    def __init__(
        self,
        parts: Parts,
        resource: SupervisedResource[TapSettings],
        upstream: Upstream,
        counts: TapCounts,
        *,
        log_octets: Callable[[], int],
        on_change: Callable[[], None],
        on_done: Callable[[str], None],
    ) -> None:
        """
        Args:
            parts: with what declares the own queues of taps.
            resource: with another etag the queue's depth is another one.
            log_octets: so many octets of the message log may wait for readers.
            on_change: something stands in the way, or does no more.
            on_done: all that was wanted is taken; why.
        """
        name, settings = resource.name, resource.settings
        self._reader = TapOrigins(name, settings, upstream.name, parts.ids)
        super().__init__(parts, name, settings, upstream, self._reader)
        self.full = ""
        """Why nothing is taken although nothing is wrong; empty: something is."""
        self.depth: Depth | None = None
        self.done = False
        """All that was wanted is taken."""
        self.dead_letters = TapDeadLetterPublisher(parts, self._reader, settings, self._dead_lettered, on_change)
        self._settings = settings
        self._counts = counts
        self._etag = resource.etag
        self._log_octets = log_octets
        self._on_change = on_change
        self._on_done = on_done
        self._log_left = 0
        """So many octets more may be spooled before it is asked again how much the log holds."""
        self._asked = -HELD_EVERY
        self._progress = -1, -PROGRESS_EVERY
        """What was written down of the progress, and when."""
        self._came = 0
        """How many came in all."""
        self._empty = 0, -1, 0.0
        """How often in a row the queue was empty, how many had come then, and when."""

    # ---------------------------------------------------------------------------------------- start, stop

    def begin(self) -> None:
        self._upstream.on_oversized.append(self._oversized)
        super().begin()

    async def stop(self, within: float = STOP_WITHIN) -> None:
        self._deaf()
        await super().stop(within)
        if self.depth is not None:
            await self._keep_progress(self.depth.left, 0.0)  # its channel is over: what is in doubt is left

    def lost(self) -> None:
        self._deaf()
        super().lost()

    def _deaf(self) -> None:
        if self._oversized in self._upstream.on_oversized:
            self._upstream.on_oversized.remove(self._oversized)

    def _before_close(self) -> None:
        if self.depth is not None:
            self._acknowledge(self.depth.release())

    async def _close_consumer(self) -> bool:
        sure = False
        try:
            sure = await super()._close_consumer()
        finally:  # also where nobody waits for it any more
            if self.depth is not None:
                (self.depth.confirm if sure else self.depth.lose)()
        return sure

    async def _prepare(self) -> None:
        if self._settings.until != "depth" or self.depth is not None:
            return
        found = await self._parts.ledger.get_resource(PROGRESS, self.name)
        if found is not None and found.spec["etag"] == self._etag:
            self.depth = Depth(found.spec["depth"], found.spec["left"])
        else:
            depth = (await self._upstream.query_queue(self.queue)).message_count
            self.depth = Depth(depth, depth)
            await self._keep_progress(depth, 0.0)

    async def _keep_progress(self, left: int, every: float = PROGRESS_EVERY) -> None:
        """Write down what is left, so that another process goes on from there. After a crash it may take some more than
        it should, never less."""
        depth, (before, at) = self.depth, self._progress
        now = clock.monotonic()
        if depth is None or left == before or now - at < every:
            return
        self._progress = left, now
        spec = {"etag": self._etag, "depth": depth.depth, "left": left}
        with suppress(LedgerUnavailable):  # it is written the next time
            await self._parts.ledger.put_resource(PROGRESS, self.name, spec, None)

    # --------------------------------------------------------------------------------------------- arrival

    def _arrive(self, delivery: Delivery) -> None:
        if self.depth is not None:
            prefetch = self._consumer.prefetch if self._consumer is not None else self._prefetch
            if not self.depth.arrive(delivery, prefetch):
                settle(delivery, Settlement.RELEASE)
                return
        self._came += 1
        super()._arrive(delivery)

    def _oversized(self, oversized: Oversized) -> None:
        if oversized.queue == self.queue:
            self._counts.add("oversized")
            self._counts.last_error = (
                f"a message of {oversized.size} octets is over message_max = {oversized.limit}: it is not taken"
            )
            if self.depth is not None:
                self.depth.pass_over()
                self._wake.set()

    async def _consume(self, prefetch: int) -> None:
        if self.depth is not None:
            prefetch = self.depth.begin(prefetch)
        await super()._consume(prefetch)

    def _consumer_changed(self, consumer: Consumer) -> None:
        if self.depth is not None and consumer.state in (ConsumerState.DOWN, ConsumerState.CANCELLED):
            self.depth.lose()
            consumer.prefetch = self.depth.begin(consumer.prefetch)  # what was out comes again on the next channel
        super()._consumer_changed(consumer)

    @property
    def consuming(self) -> bool:
        """Its queue is being consumed."""
        return self._consumer is not None and self._consumer.state is ConsumerState.RUNNING

    @property
    def in_flight(self) -> int:
        """How many messages are taken and not settled."""
        return 0 if self._consumer is None else self._consumer.out

    # ------------------------------------------------------------------------------------------------ room

    async def _room_now(self) -> int:
        """How many more messages may be taken."""
        if self.depth is not None:
            await self._keep_progress(self.depth.left_at_most)
        if self.depth is not None and not self._stopping and await self._is_over(self.depth):
            return len(self._arrived)
        if clock.monotonic() - self._asked >= HELD_EVERY:
            self._asked = clock.monotonic()
            held = await self._parts.ledger.log.held()
            most = self._log_octets()
            self._log_left = most - held.octets
            if self._log_left > 0:
                self._say_full("")
            else:
                unread = f"the message log holds {held.octets} octets that no reader has passed yet"
                self._say_full(f"{unread}, and log_octets is {most}")
        return self._settings.prefetch if self._log_left > 0 else 0

    def _say_full(self, why: str) -> None:
        if bool(why) is not bool(self.full):
            log("tap.full" if why else "tap.full_over", tap=self.name, reason=why)
        self.full = why
        self._on_change()

    async def _is_over(self, depth: Depth) -> bool:
        """Whether all has come that was wanted. Then what is not acknowledged yet is, and it is done when the broker
        has it; unless something was lost meanwhile, which comes again."""
        consumer = self._consumer
        # A consumer that is to begin again with another prefetch waits for what is withheld of it.
        is_awaited = consumer is not None and consumer.changing and depth.withholds_any
        gave_no_more = bool(depth.to_come) and not is_awaited and await self._is_empty()
        if depth.to_come and not gave_no_more and not is_awaited:
            return False
        if consumer is not None and consumer.state is not ConsumerState.CLOSED:
            await consumer.cancel()  # nothing comes behind them
        self._acknowledge(depth.release())
        if self._arrived or self._aside:
            return True
        if not self.done:
            sure = await self._close_consumer()
            if depth.left > depth.passed and not (gave_no_more and sure):
                depth.begin(self._prefetch)
                return False
            await self._keep_progress(depth.left, 0.0)
            self.done = True
            self._on_done(_why_done(depth))
        return True

    async def _is_empty(self) -> bool:
        """Whether the queue gives no more, although more was expected: somebody else took it, or it has expired."""
        if self.done:
            return True
        times, came, at = self._empty
        now = clock.monotonic()
        if self._arrived or self._aside or not self.consuming or now - at < EMPTY_EVERY:
            return False
        try:
            found = (await self._upstream.query_queue(self.queue)).message_count
        except GatewayError:
            found = 1  # nobody knows
        else:
            known = self._upstream.capabilities
            if known is not None and known.counts_unacked:  # those that wait for their acknowledgement among them
                found = max(0, found - self.in_flight)
        times = times + 1 if not found and came == self._came else int(not found)
        self._empty = times, self._came, now
        return times >= EMPTY_TIMES

    # ------------------------------------------------------------------------------------------------ store

    async def _store(self, chunk: list[Delivery]) -> None:
        """Spool a batch, and acknowledge it."""
        self._counts.add("taken", len(chunk))
        wanted: list[Arrival] = []
        refused: list[tuple[Arrival, str]] = []
        for delivery in chunk:
            try:
                wanted.append(self._reader.read(delivery))
            except Exception as error:  # a fault of ours over one message must not hold up the others
                self._failed(error)
                refused.append((self._reader.unread(delivery), f"internal error: {error!r:.200}"))
        if wanted:
            batch, known = await self._keep(wanted, lambda new, known: TapBatch(self._reader, new, known))
            self._kept(wanted, batch, known)
            refused += batch.refused
        if refused:
            self._counts.last_error = f"the ledger cannot hold a message: {refused[-1][1]}"[:500]
            self._set_aside(self.dead_letters.publish(refused), "dead letters")

    def _kept(self, wanted: list[Arrival], batch: TapBatch, known: set[Arrival]) -> None:
        """They are in the log: acknowledge them, in their order."""
        there = {*batch.kept, *known}
        octets = sum(arrival.size for arrival in batch.kept)
        self.stored += len(batch.kept)
        self._log_left -= octets + sum(len(arrival.properties) + ROW for arrival in batch.kept)
        self._counts.spooled(len(batch.kept), octets, clock.monotonic())
        self._counts.add("redelivered", sum(arrival.redelivered for arrival in batch.kept))
        self._counts.add("duplicates_dropped", len(known))
        self._acknowledge(arrival.delivery for arrival in wanted if arrival in there)

    def _acknowledge(self, deliveries: Iterable[Delivery]) -> None:
        """Tell the broker that it is done with them; now, or when all have come that were wanted."""
        depth = self.depth
        lost = 0
        for delivery in deliveries:
            if depth is not None and not self._stopping and depth.withholds(delivery):
                continue
            if not settle(delivery, Settlement.ACCEPT):
                lost += 1  # it comes again
            elif depth is not None:
                depth.settled()
        self._counts.add("lease_lost", lost)

    def _dead_lettered(self, arrivals: Iterable[Arrival]) -> None:
        """The dead-letter place has them, and the ledger knows."""
        dead_lettered = list(arrivals)
        self._counts.add("dead_lettered", len(dead_lettered))
        self._acknowledge(arrival.delivery for arrival in dead_lettered)

    def _changed(self) -> None:
        if self.reason:
            self._counts.last_error = self.reason
        self._on_change()


def _why_done(depth: Depth) -> str:
    taken = f"until: {depth.depth - depth.left} of {depth.depth} messages are taken"
    if depth.left <= 0:
        return taken
    if depth.passed:
        return f"{taken}; {depth.passed} over message_max are left in the queue"
    return f"{taken}; the queue gave no more"
