"""The way of messages through a bridge: taken, published, recorded, acknowledged.

One task publishes. Whatever has come from the source in a turn of the loop is a chunk: each message of it is routed and
handed to the target in order, and a task for the chunk waits for the outcomes, writes them into the ledger in one go,
and acknowledges them to the source, where they leave as ranges. Chunks overlap, and one whose outcomes hang holds up
no other. Nothing here waits for one message, and no task is made for one.

::

    arrived ──look──> published ──confirmed──> recorded ──> acknowledged
       │                  │
       │                  └─ refused ──> again, after a pause (or a dead letter, see refusals.py)
       ├─ duplicate, filtered, looped ──────────> recorded ──> acknowledged
       └─ poison ──> dead letter (dead_letters.py) ─────────> recorded ──> acknowledged

How much is under way is bounded by the source's prefetch, and after a refusal by a :mod:`~gateway.bridges.gate`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from hashlib import sha256
from itertools import groupby
from typing import Any, Final

from gateway.amqp.message import Message
from gateway.amqp.operations import Settlement
from gateway.bridges.counts import BridgeCounts
from gateway.bridges.dead_letters import BridgeDeadLetterPublisher
from gateway.bridges.flow_log import FlowLog
from gateway.bridges.gate import Gate
from gateway.bridges.items import BridgeDelivery
from gateway.bridges.journal import PAUSE_MAX, PAUSE_MIN, BridgeJournal
from gateway.bridges.refusals import Fault, refusal_of
from gateway.bridges.routes import BridgeRoute, RouteOutcome
from gateway.bridges.throttle import Throttle
from gateway.bridges.traces import BridgeTraces
from gateway.bridges.two_phase import TwoPhase
from gateway.core.leasing.parts import Parts
from gateway.core.sources.deduplicator import Deduplicator
from gateway.errors import GatewayError, LeaseLost, StateError, Unroutable
from gateway.ledger import EventKind, id_text
from gateway.observing.telemetry import log
from gateway.runtime.backoff import pause_after
from gateway.runtime.clock import clock
from gateway.runtime.tasks import Tasks
from gateway.runtime.timers import WakeTimer
from gateway.upstreams import Delivery, PublishReceipt

CHUNK: Final = 500
"""Most messages of a chunk."""
BRANCH_OCTETS: Final = 16 << 20
"""Most octets of the bodies of a branch (mode ``dtx``); one message may have more."""
CONFIRM_TIMEOUT: Final = 120.0
"""How long a publish waits for its outcome, in seconds; then it is sent again, marked."""
WAIT_MIN: Final = 0.1
WAIT_MAX: Final = 2.0
"""How long the outcomes of a chunk are waited for before those that are there are recorded without the others, in
seconds; doubled each time."""
LOW_EVERY: Final = 0.02
"""How often it is looked whether a source that cannot be held back may go on, in seconds."""


class BridgeFlow:
    """The messages of one bridge, from start to stop."""

    def __init__(
        self,
        route: BridgeRoute,
        parts: Parts,
        journal: BridgeJournal,
        counts: BridgeCounts,
        *,
        on_full: Callable[[bool], None],
        on_enough: Callable[[], None],
        on_crash: Callable[[BaseException], None],
    ) -> None:
        """
        Args:
            on_full: more octets are held than :attr:`octets_max`; True: this channel's are given back from now on, so
                it must end.
            on_enough: the limit of messages is done.
            on_crash: an internal error.
        """
        settings = route.settings
        self.dead_letters: BridgeDeadLetterPublisher
        self.two_phase: TwoPhase | None = None
        """Mode ``dtx``."""
        self.traces: BridgeTraces | None = None
        """None: nothing is traced."""
        self.held = 0
        self.octets = 0
        """Messages that came and are not settled, and the octets of their bodies."""
        self.taken = 0
        """How many were taken on in all."""
        self.done = 0
        self.done_octets = 0
        """How many were acknowledged, and the octets of their bodies."""
        self.unheld = False
        """The source forgets what it sends, and no prefetch bounds it."""
        self._route = route
        self._target = journal.target
        self._journal = journal
        self._counts = counts
        self._ids = parts.ids
        self._on_full = on_full
        self._on_enough = on_enough
        self._on_crash = on_crash
        self._exchange = settings.target.exchange
        self._strict = settings.on_loss == "strict"
        self._warns = settings.on_loss == "warn"
        self._dedupes = settings.dedupe_seconds > 0
        self._early = settings.acknowledge == "unsafe-on-publish"
        self._most = settings.prefetch
        self._octets_max = settings.prefetch_octets
        self._part = parts.byte_budget.part("bridge", route.name)
        """Of the bytes that all bridges and others hold."""
        self.deduplicator: Deduplicator[BridgeDelivery] = Deduplicator(journal.seen, settings.prefetch)
        self._gate = Gate(settings.prefetch, journal.faults)
        self._throttle = Throttle(settings.messages_per_second, settings.octets_per_second, clock.monotonic())
        self._arrived: deque[Delivery] = deque()
        self._again: list[BridgeDelivery] = []
        """Refused, and to be tried again when they are due."""
        self._number = 0
        self.left: int | None = None
        """How many are still to be settled; None: any number."""
        self._serial = 0
        """How many publishes there were."""
        self._newest = 0
        """The latest publish that the target has taken."""
        self._overflowed: object = False
        """The consumer's channel of which no more is held."""
        self._persistent: asyncio.Future[PublishReceipt] | None = None
        """The last publish of a persistent message, where that matters."""
        self._wake = asyncio.Event()
        self._timer = WakeTimer(self._wake.set)
        self._log = FlowLog(route.name)
        self._tasks = Tasks("bridge", on_failure=self._crashed)
        self._chunks: dict[object, list[BridgeDelivery]] = {}
        """What was published and has no outcome yet, by what waits for it."""
        self._idle = asyncio.Event()
        self._stopping = False

    # ---------------------------------------------------------------------------------------- start, stop

    def start(self, limit: int | None = None) -> None:
        """Begin. ``limit``: so many messages and no more."""
        self.left = limit
        self._run(self._publish_all())
        self._run(self.dead_letters.run())
        if self.two_phase is not None:
            self._run(self.two_phase.tidy())

    async def stop(self, within: float) -> None:
        """Publish nothing more; give what is under way ``within`` seconds; give the rest back. What cannot be given
        back, since the source has forgotten it, is published within that time as well."""
        if self.unheld or self._early:
            await self._until_idle(within)
        self._stopping = True
        arrived, self._arrived = self._arrived, deque()
        for delivery in arrived:
            self._gone(len(delivery.message.body))
            self._release(delivery)
        again, self._again = self._again, []
        for item in again:
            self._drop(item)
            self._release(item.delivery)
        await self._until_idle(within)
        self._timer.cancel()
        self._cancel()
        await self._tasks.close()
        self._part.close()

    def abandon(self) -> None:
        """Another process has the bridge: drop everything, settle nothing. What the source delivered is its again when
        the channel closes."""
        self._stopping = True
        self._arrived.clear()
        self._again.clear()
        self._timer.cancel()
        self._cancel()
        if self.two_phase is not None:
            self.two_phase.abandon()
        self._part.close()

    def _cancel(self) -> None:
        """Wait for nothing more. What waits for room at the target is not sent any more: the source has it again,
        unless it has forgotten it."""
        self._tasks.cancel()
        for items in self._chunks.values():
            for item in items:
                if item.future is not None and not item.delivery.settled:
                    item.future.cancel()

    async def _until_idle(self, within: float) -> None:
        if self.held and within > 0:
            self._idle.clear()
            try:
                async with asyncio.timeout(within):
                    await self._idle.wait()
            except TimeoutError:
                log("bridge.not_drained", logging.WARNING, bridge=self._route.name, messages=self.held)

    def hurry(self) -> None:
        """A broker may be back: do not wait for the end of a pause."""
        self._gate.hurry()
        self.dead_letters.hurry()
        if self.two_phase is not None:
            self.two_phase.hurry()
        self._wake.set()

    @property
    def idle(self) -> bool:
        """Nothing is under way."""
        return not self.held

    @property
    def waiting(self) -> int:
        """What came and was not published yet."""
        return len(self._arrived) + len(self._again)

    @property
    def oldest(self) -> float:
        """How long ago the oldest message came that is not settled, in seconds; 0: there is none. May be asked by
        another thread: what may change meanwhile is copied first."""
        came = [chunk[0].delivery.at for chunk in list(self._chunks.values()) if chunk]
        came += [item.delivery.at for item in list(self._again)]
        came += [delivery.at for delivery in list(self._arrived)[:1]]
        return max(0.0, clock.monotonic() - min(came)) if came else 0.0

    # --------------------------------------------------------------------------------------------- arrival

    def arrive(self, delivery: Delivery) -> None:
        """A delivery; called on the loop."""
        most = self._part.bound(self._octets_max)
        if self.octets > 2 * most and not delivery.settled:
            self._overflowed = delivery.channel
        if self._overflowed is delivery.channel:  # and all that comes behind it, for the sake of order
            self._release(delivery)
            self._on_full(True)
            return
        self.held += 1
        size = len(delivery.message.body)
        self.octets += size
        self._part.add(size)
        self._arrived.append(delivery)
        self._wake.set()
        if self.octets > most or (self.unheld and self.held > 2 * self._most):
            self._on_full(False)

    @property
    def octets_max(self) -> int:
        """How many octets may be held now."""
        return self._part.bound(self._octets_max)

    async def wait_low(self) -> None:
        """Until half a prefetch, and half of its octets, are left."""
        while self.held > self._most // 2 or self.octets > self.octets_max // 2:
            self._idle.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(LOW_EVERY):
                    await self._idle.wait()

    def forget_lost(self) -> None:
        """The source has taken back what it delivered: what is not published yet is not ours any more."""
        arrived, self._arrived = self._arrived, deque()
        for delivery in arrived:
            if delivery.lost:
                self._gone(len(delivery.message.body))
            else:
                self._arrived.append(delivery)
        again, self._again = self._again, []
        for item in again:
            if item.delivery.lost:
                self._drop(item)
            else:
                self._again.append(item)

    # ------------------------------------------------------------------------------------------- publishing

    async def _publish_all(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while chunk := self._take(clock.monotonic()):
                again = [item for item in chunk if item.first]
                items = self._look([item for item in chunk if not item.first] if again else chunk)
                if self._dedupes and (doubtful := [item for item in items if item.doubtful]):
                    items = await self._without_duplicates(items, doubtful)
                await self._send_all([*again, *items])
                await clock.sleep(0)

    def _take(self, now: float) -> list[BridgeDelivery]:
        """What goes now, in order; nothing: it waits for a timer, or for news."""
        if self._stopping or not (self._arrived or self._again):
            return []
        if self._gate.not_before > now:
            self._timer.wake_at(self._gate.not_before)
            return []
        if not self._journal.writable:
            self._timer.wake_at(now + PAUSE_MIN)
            return []
        room = min(self._gate.room, CHUNK)
        if room <= 0:
            return []
        chunk: list[BridgeDelivery] = []
        if self._again:
            chunk = self._take_again(room, now)
        arrived, throttle = self._arrived, self._throttle
        while arrived and len(chunk) < room and (self.left is None or self.held - len(arrived) < self.left):
            if throttle.limited:
                at = throttle.ready(now)
                if at > now:
                    self._timer.wake_at(at)
                    break
            delivery = arrived.popleft()
            if delivery.lost:
                self._gone(len(delivery.message.body))
                continue
            self._number += 1
            item = BridgeDelivery(delivery, self._number)
            throttle.take(item.size)
            chunk.append(item)
        return chunk

    def _take_again(self, room: int, now: float) -> list[BridgeDelivery]:
        """Those that are due, the oldest first."""
        due: list[BridgeDelivery] = []
        rest: list[BridgeDelivery] = []
        soonest = float("inf")
        for item in sorted(self._again, key=lambda item: item.number):
            if item.delivery.lost:
                self._drop(item)
            elif item.due <= now and len(due) < room:
                due.append(item)
            else:
                rest.append(item)
                soonest = min(soonest, item.due)
        self._again = rest
        if soonest < float("inf"):
            self._timer.wake_at(max(soonest, now + 0.001))
        return due

    def _look(self, items: list[BridgeDelivery]) -> list[BridgeDelivery]:
        """Route what came; those that are to be forwarded."""
        if not items:
            return items
        look, is_doubtful = self._route.look, self.deduplicator.is_doubtful
        forward: list[BridgeDelivery] = []
        dropped: dict[RouteOutcome, list[BridgeDelivery]] = {}
        self.taken += len(items)
        self._counts.add("taken", len(items))
        for item in items:
            delivery = item.delivery
            item.sha256 = sha256(delivery.message.body).digest()
            try:
                outcome = look(item)
            except Exception as error:  # a fault of ours over one message must not hold up the others
                log("bridge.route_failed", logging.ERROR, exc_info=error, bridge=self._route.name)
                item.reason = f"internal error: {error!r:.200}"
                outcome = RouteOutcome.POISON
            if item.id is None:
                item.id = self._ids()
                item.text = id_text(item.id)
            if outcome is RouteOutcome.FORWARD:
                item.doubtful = is_doubtful(item)
                forward.append(item)
            else:
                dropped.setdefault(outcome, []).append(item)
        if dropped:
            self._drop_some(dropped)
        return forward

    def _drop_some(self, dropped: dict[RouteOutcome, list[BridgeDelivery]]) -> None:
        """What becomes of those that are not forwarded."""
        filtered = dropped.get(RouteOutcome.FILTERED, [])
        looped = dropped.get(RouteOutcome.LOOPED, [])
        if filtered:
            self._counts.add("filtered", len(filtered))
        if looped:
            self._counts.add("looped", len(looped))
        for items, kind, discards in (
            (filtered, EventKind.FILTERED, self._route.discards_unmatched),
            (looped, EventKind.LOOPED, self._route.own_queue),
            (dropped.get(RouteOutcome.POISON, []), EventKind.DEAD_LETTERED, False),
        ):
            if items and discards:
                self._run(self._discard(items, kind))
            else:
                for item in items:
                    self._poison(item)

    async def _without_duplicates(
        self, items: list[BridgeDelivery], doubtful: list[BridgeDelivery]
    ) -> list[BridgeDelivery]:
        """Without those that the target has already, or will have."""
        found = await self.deduplicator.find(doubtful)
        for item in found.joined:
            self._gone(item.size)
        if found.known:
            for item in found.known:
                item.reason = "it was forwarded before"
            self._counts.add("duplicates_dropped", len(found.known))
            self._run(self._discard(found.known, EventKind.DUPLICATE_DROPPED))
        dropped = {*found.joined, *found.known}
        return [item for item in items if item not in dropped] if dropped else items

    async def _send_all(self, items: list[BridgeDelivery]) -> None:
        """Hand them to the target, in order. Where transient messages overtake persistent ones, each transient one
        waits until the persistent ones before it are taken."""
        if self.two_phase is not None:
            await self._send_branches(items, self.two_phase)
            return
        capabilities = self._target.capabilities
        if capabilities is None or not capabilities.transient_overtakes:
            self._send(items)
            return
        for persistent, group in groupby(items, _is_persistent):
            run = list(group)
            if not persistent and self._persistent is not None and not self._persistent.done():
                await asyncio.wait((self._persistent,))
                for item in run:
                    if item.delivery.lost:
                        self._drop(item)
                run = [item for item in run if not item.delivery.lost]
            self._send(run)
            if persistent:
                futures = [item.future for item in run if item.future is not None]
                self._persistent = futures[-1] if futures else self._persistent

    async def _send_branches(self, items: list[BridgeDelivery], two_phase: TwoPhase) -> None:
        """Bring them to the target in branches, in order, and acknowledge what is recorded."""
        undone = False
        for branch in _branches(items):
            present = [item for item in branch if not item.delivery.lost]
            for item in branch:
                if item.delivery.lost:
                    self._drop(item)
            if undone:  # they must not overtake those before them
                for item in present:
                    item.first = item.first or max(self._serial, 1)
                self._go_again(present, "")
                continue
            pairs = self._messages(present, two_phase)
            for item, _ in pairs:
                self.deduplicator.launched(item)
            if pairs:
                self._gate.outstanding += len(pairs)
                self._chunks[two_phase] = present
                try:
                    ended = await two_phase.forward(pairs)
                finally:
                    del self._chunks[two_phase]
                if ended.good:
                    self._newest = max(self._newest, *(item.sent for item in ended.good))
                if ended.refused:
                    self._refused(ended.refused, len(ended.good))
                elif ended.good:
                    self._gate.taken(len(ended.good))
                if ended.undone:
                    undone = True
                    self._go_again(ended.undone, ended.reason)
                if ended.good:
                    self._acknowledge(ended.good)
                self._gate.outstanding -= len(pairs)
            if self._arrived or self._again:
                self._wake.set()

    def _go_again(self, items: list[BridgeDelivery], reason: str) -> None:
        """Nothing of these has happened; ``reason``: it is the target's fault."""
        for item in items:
            item.future, item.due = None, 0.0
            if self._stopping:
                self._drop(item)
                self._release(item.delivery)
            else:
                self._again.append(item)
        if reason:
            self._gate.close(reason, clock.monotonic())

    def _send(self, items: list[BridgeDelivery]) -> None:
        """Hand them to the target, in order."""
        publish, exchange, order = self._target.publish_nowait, self._exchange, self._route.name
        launched = self.deduplicator.launched
        sent: list[BridgeDelivery] = []
        for item, message in self._messages(items):
            item.future = publish(exchange, item.routing_key, message, timeout=CONFIRM_TIMEOUT, order=order)
            launched(item)
            sent.append(item)
        if not sent:
            return
        if self._early:
            for item in sent:
                if self.held > 2 * self._most or self.octets > self._octets_max:
                    break  # only what is not settled yet keeps the source from sending more
                if item.future is not None and not item.future.done():
                    self._settle(item.delivery, Settlement.ACCEPT)
        self._gate.outstanding += len(sent)
        mark = object()
        self._chunks[mark] = sent
        self._run(self._finish(mark, sent))

    def _messages(
        self, items: list[BridgeDelivery], two_phase: TwoPhase | None = None
    ) -> list[tuple[BridgeDelivery, Message]]:
        """What is to be published, in order; what cannot be made is poison."""
        route, target = self._route, self._target.target
        annotated = self._target.settings.annotate
        made: list[tuple[BridgeDelivery, Message]] = []
        resent = 0
        now = clock.monotonic() if self.traces is not None else 0.0
        for item in items:
            self._serial += 1
            item.sent = self._serial
            item.published = now
            if item.delivery.redelivered or item.first or item.doubtful:
                # What has an id, and no branch of it is in the ledger, is not at the target, unless in another mode.
                again = item.delivery.redelivered and (two_phase is None or two_phase.unsure or not item.key)
                item.resent = item.resent or again
                resent += item.resent
            item.first = item.first or self._serial
            try:
                message = route.message(item, annotated)
                if two_phase is not None:
                    two_phase.check(message)
                if target is not None and (losses := target.losses(message)):
                    item.losses = losses
                    if self._strict:
                        item.reason = "it would lose " + ", ".join(f"{loss.field} ({loss.name})" for loss in losses)
                        item.code = "lossy"
                        self._poison(item)
                        continue
            except GatewayError as error:
                item.reason = str(error)
                self._poison(item)
                continue
            except Exception as error:  # a fault of ours over one message must not hold up the others
                log("bridge.translation_failed", logging.ERROR, exc_info=error, bridge=route.name)
                item.reason = f"internal error: {error!r:.200}"
                self._poison(item)
                continue
            made.append((item, message))
        if resent:
            self._counts.add("resent", resent)
        return made

    # --------------------------------------------------------------------------------------------- outcomes

    async def _finish(self, mark: object, items: list[BridgeDelivery]) -> None:
        """Wait for the outcomes of a chunk. Outcomes that came are recorded after ``wait`` seconds at the latest."""
        wait = WAIT_MIN
        try:
            while items:
                self._chunks[mark] = items
                last = items[-1].future
                assert last is not None
                if not last.done():
                    await asyncio.wait((last,), timeout=wait)
                    wait = min(wait * 2, WAIT_MAX)
                done, items = _split(items)
                if done:
                    await self._outcomes(done)
        finally:
            self._chunks.pop(mark, None)

    async def _outcomes(self, items: list[BridgeDelivery]) -> None:
        """Record and acknowledge what was taken; judge what was not."""
        good: list[BridgeDelivery] = []
        refused: list[tuple[BridgeDelivery, GatewayError]] = []
        for item in items:
            assert item.future is not None
            try:
                receipt = item.future.result()
            except GatewayError as error:
                item.resent = item.resent or error.resent
                refused.append((item, error))
                continue
            item.resent = item.resent or receipt.resent
            if receipt.routed:
                good.append(item)
            else:
                text = f"no queue takes {item.routing_key!r} at {self._exchange!r}: {receipt.reply_text}"
                refused.append((item, Unroutable(text)))
        if good and good[-1].sent > self._newest:
            self._newest = good[-1].sent
        if refused:
            self._refused(refused, len(good))
        else:
            self._gate.taken(len(good))
        if good:
            entries, inbox = self._journal.forwarded(good)
            await self._journal.record(entries, inbox)
            self._acknowledge(good)
        self._gate.outstanding -= len(items)
        if self._arrived or self._again:
            self._wake.set()

    def _acknowledge(self, items: list[BridgeDelivery]) -> None:
        now = clock.monotonic()
        octets = 0
        for item in items:
            octets += item.size
            if item.key:
                self.deduplicator.landed(item)
            settled = self._settle(item.delivery, Settlement.ACCEPT)
            if self.left is not None:
                self._gone(item.size, settled)
            if item.losses:
                self._lossy(item, now)
        if self.left is None:
            self._gone(octets, messages=len(items))
        self.done += len(items)
        self.done_octets += octets
        self._counts.forwarded(len(items), octets, now - items[0].delivery.at, now)
        if self.traces is not None:
            self.traces.ended(items)

    def _lossy(self, item: BridgeDelivery, now: float) -> None:
        for loss in item.losses:
            self._counts.lost(loss.name)
        if self._warns:
            self._log.lossy(item, now)

    def _refused(self, refused: list[tuple[BridgeDelivery, GatewayError]], taken: int) -> None:
        """The target did not take these; ``taken`` others of the same chunk it did."""
        now = clock.monotonic()
        self._counts.add("refused", len(refused))
        if taken:
            self._gate.taken(taken)
        worst: str | None = None
        for item, error in refused:
            found = refusal_of(error)
            if found.fault is Fault.MESSAGE:
                item.reason = str(error)
                self._poison(item)
                continue
            item.resent = item.resent or error.outcome == "unknown"
            item.due = 0.0
            if found.fault is Fault.TARGET:
                worst = worst or str(error)
            else:
                item.refusals += 1
                if item.refusals >= found.tries and self._newest > item.first:
                    item.reason = str(error)
                    self._poison(item)
                    continue
                item.due = now + pause_after(item.refusals - 1, found.pause, PAUSE_MAX)
                others = self._arrived or self._gate.outstanding > len(refused) + taken
                if self._gate.refused() or not found.alone or not others:
                    worst = worst or str(error)
            if self._stopping:
                self._drop(item)
                self._release(item.delivery)
            else:
                self._counts.retried(error.code)
                self._again.append(item)
        if worst is not None:
            self._gate.close(worst, now)

    # ------------------------------------------------------------------------------------ the end of an item

    async def _discard(self, items: list[BridgeDelivery], kind: EventKind) -> None:
        """Record that they are not forwarded, and take them off the source."""
        if not self.deduplicator.repeats:  # what is only shown is shown again at each start
            await self._journal.record(self._journal.dropped(items, kind))
        for item in items:
            self._gone(item.size, self._settle(item.delivery, Settlement.ACCEPT))

    def _poison(self, item: BridgeDelivery) -> None:
        item.future = None
        self.deduplicator.landed(item)
        self.dead_letters.add(item)

    def dead_lettered(self, items: Sequence[BridgeDelivery]) -> None:
        """The dead-letter place has them, and the ledger knows."""
        self._counts.add("dead_lettered", len(items))
        if self.traces is not None:
            self.traces.ended(items, "dead_lettered")
        for item in items:
            self._gone(item.size, self._settle(item.delivery, Settlement.ACCEPT))
        self._log.dead_lettered(items, clock.monotonic())

    def retaken(self, item: BridgeDelivery) -> None:
        """The source has taken it back before it could be dead-lettered."""
        self._gone(item.size)

    def _drop(self, item: BridgeDelivery) -> None:
        """It is not ours any more."""
        self.deduplicator.landed(item)
        self._gone(item.size)

    def _gone(self, octets: int, settled: bool = False, messages: int = 1) -> None:
        """One that was held is not, or several of them, which nobody counts (:attr:`left`). ``settled``: its source was
        told that it is done; else it comes again."""
        self.held -= messages
        self.octets -= octets
        self._part.add(-octets)
        if not self.held:
            self._idle.set()
            self._gate.taken(0)  # nothing waits for it any more: what was refused has turned out to be at fault itself
        if self.left is not None:
            self.left -= settled
            if self._arrived:
                self._wake.set()
            if self.left == 0 and self.held == len(self._arrived) and not self._stopping:
                self._on_enough()

    def _settle(self, delivery: Delivery, settlement: Settlement) -> bool:
        """Whether the source was told."""
        if delivery.settled:
            return True
        try:
            delivery.settle(settlement)
        except (LeaseLost, StateError):
            self._counts.add("lease_lost")  # it comes again
            return False
        return True

    def _release(self, delivery: Delivery) -> None:
        self._settle(delivery, Settlement.RELEASE)

    # ------------------------------------------------------------------------------------------------ tasks

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.start(work, f"bridge {self._route.name}")

    def _crashed(self, error: BaseException) -> None:
        if not self._stopping:
            self._on_crash(error)


def _split(items: list[BridgeDelivery]) -> tuple[list[BridgeDelivery], list[BridgeDelivery]]:
    """Those with an outcome, and those without."""
    done = [item for item in items if item.future is not None and item.future.done()]
    if len(done) == len(items):
        return done, []
    return done, [item for item in items if item.future is not None and not item.future.done()]


def _branches(items: list[BridgeDelivery]) -> list[list[BridgeDelivery]]:
    """As many as may be in a branch each, in order."""
    found: list[list[BridgeDelivery]] = []
    octets = 0
    for item in items:
        octets += item.size
        if not found or octets > BRANCH_OCTETS:
            found.append([])
            octets = item.size
        found[-1].append(item)
    return found


def _is_persistent(item: BridgeDelivery) -> bool:
    """What cannot be read is poison, and of no mode."""
    try:
        return item.delivery.message.properties.delivery_mode == 2
    except GatewayError:
        return False
