"""One pushed subscription at work: its messages from their queue to their endpoint.

::

    queue ──> fresh ──┐                        ┌─ 2xx ─────> recorded ────────> acknowledged, or the row is gone
                      ├─> request (targets.py) ┼─ failed ──> stored, with the time of the next attempt ──> acknowledged
    ledger ─> rows ───┘                        └─ given up ─> dead-letter place, or dead in the ledger ──> acknowledged

With ``lease = "broker"`` the broker holds a message until its first attempt is over; with ``lease = "ledger"`` it is
stored first (:mod:`gateway.core.sources.intake`), and then tried. What the ledger holds is claimed when it is due
(:mod:`gateway.webhooks.backlog`), and no sooner than there is room for it.

**Nothing is acknowledged before it is safe**: an acknowledgement follows the commit that records the delivery, or that
stores the message. A gateway that dies between the endpoint's 2xx and that commit makes the same request again, with
the same ``webhook-id`` (:mod:`gateway.webhooks.attempts.items`): at most those that were under way. One that dies
between the commit and the acknowledgement finds the message in the inbox when the broker delivers it again.

**Nothing is held that is not wanted.** The pusher takes nothing from the queue while the endpoint is suspended
(:class:`gateway.webhooks.lines.Suspension`) or the ledger holds ``backlog_max`` messages. What was not begun goes
back.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Coroutine, Sequence
from typing import Any, Final

from gateway.amqp.operations import Settlement
from gateway.core.leasing.parts import Parts
from gateway.core.publishing.envelopes import EnvelopeError
from gateway.core.publishing.publisher import version_name
from gateway.core.sources.arrivals import Arrival, Arrivals, now_us
from gateway.core.sources.dead_letters import place_of
from gateway.core.sources.deduplicator import Deduplicator
from gateway.core.sources.intake import Intake, turn_away
from gateway.core.sources.own_queues import queue_of
from gateway.core.subscriptions import SubscriptionResource, discards_unmatched
from gateway.errors import LeaseLost, LedgerUnavailable, NoSuchBroker, StateError
from gateway.fidelity.deaths import code_of
from gateway.ledger import EventKind, id_text
from gateway.ledger.pending.owed import BacklogEntry, Ending
from gateway.observing.telemetry import log
from gateway.runtime.clock import clock
from gateway.runtime.tasks import Tasks
from gateway.upstreams import Delivery
from gateway.webhooks.attempts.forms import PushedMessage
from gateway.webhooks.attempts.items import PushDelivery, arrived, stored
from gateway.webhooks.attempts.notes import ended
from gateway.webhooks.attempts.outcomes import GIVEN_UP, PushOutcomes, PushRecorders
from gateway.webhooks.attempts.schedule import AttemptOutcome, NextStep
from gateway.webhooks.attempts.sender import SendOutcome
from gateway.webhooks.backlog import EndpointBacklog, UntriedRows
from gateway.webhooks.lines import Demand
from gateway.webhooks.source import EndpointSource
from gateway.webhooks.states import PushState, PushStatus
from gateway.webhooks.targets import PushTarget, Targets

ALONE_FROM: Final = 3
"""From this attempt on a message is sent in a request of its own: one bad message must not take a batch with it."""
AHEAD: Final = 2
"""So many windows of requests are claimed from the ledger at a time."""
CLAIM_MAX: Final = 500
"""Most rows that are claimed at a time."""
CLAIM_OCTETS: Final = 16 << 20
"""Most octets of their bodies."""
ROW_BYTES: Final = 32 << 20
"""Most bytes of what is claimed, in requests under way too; one message goes however large it is."""
CLAIM_MARGIN: Final = 30.0
"""A claim lasts as long as the endpoint's deadline, and this many seconds for the steps before and after."""
DEAD_LETTERING_MAX: Final = 100
"""While this number of messages is on its way to a dead-letter destination that did not take them before, no more are
claimed."""
LITTLE: Final = 1
"""How many messages are taken at a time for an endpoint that fails."""
KNOWN_PAUSE: Final = 0.5
"""After this many seconds a request to the inbox is repeated where the ledger is away."""


class Pusher:
    """One subscription. All methods belong to the event loop."""

    def __init__(
        self,
        subscription: SubscriptionResource,
        parts: Parts,
        targets: Targets,
        recorders: PushRecorders,
    ) -> None:
        """
        Raises:
            EncodeError: a setting is wrong; it names the setting.
            NoSuchBroker: its broker is not configured.
        """
        settings = subscription.settings
        self.name = subscription.name
        self.subscription = subscription
        self.settings = settings
        self._parts = parts
        self._targets = targets
        self._journal = recorders.journal
        self._counts = recorders.counts
        self._upstream = parts.find(settings.broker)
        self._queue = queue_of(subscription.name, settings)
        self._arrivals = Arrivals(subscription, settings.broker, version_name(self._upstream), parts.ids)
        self._place = place_of(settings)
        self._ledger_first = settings.lease == "ledger"
        self._loop = asyncio.get_running_loop()
        self._backlog = EndpointBacklog(
            parts.ledger,
            subscription.name,
            ordered=bool(settings.order_key),
            most=settings.backlog_max,
            on_due=self._due,
        )
        self._deduplicator: Deduplicator[Arrival] = Deduplicator(
            lambda keys: parts.ledger.seen(self._arrivals.scope, keys), settings.prefetch
        )
        self._outcomes = PushOutcomes(
            subscription, parts, recorders, self._arrivals, self._deduplicator, self._backlog, self
        )
        self._source = EndpointSource(
            subscription.name, self._upstream, self._queue, self._arrive, self._give_back_fresh, self._prepare
        )
        self._intake: Intake | None = None
        self._target: PushTarget | None = None
        self._fresh: deque[PushDelivery] = deque()
        """Held by the broker, and not begun."""
        self._rows: deque[PushDelivery] = deque()
        """Claimed from the ledger, and not begun."""
        self._row_bytes = 0
        """Bytes of what was claimed: of those, and of those in requests under way."""
        self._since: float = 0.0
        """Since when the oldest of them has waited."""
        self._turn = False
        """Whose turn it is: that of the rows."""
        self._unsorted: deque[Arrival] = deque()
        """Came behind a delivery that is looked for in the ledger's inbox, with that one at the head."""
        self._doubtful: set[Arrival] = set()
        """Those of them that are looked for."""
        self._held = 0
        self._octets = 0
        """Messages that the broker holds for us, and the octets of their bodies."""
        self._part = parts.byte_budget.part("subscription", subscription.name)
        """What of them, and of ``_row_bytes``, counts with that of all others."""
        self._fits = settings.prefetch
        """So many fit into ``prefetch_octets``."""
        self._untried = UntriedRows()
        """Stored by the intake, and not claimed since."""
        self._under_way = 0
        self._dead_lettering = 0
        """On their way to a dead-letter place that did not take them before."""
        self._poked = False
        self._refilling = False
        self._tasks = Tasks("push", on_end=self._look_idle)
        self._running = False
        self._idle = asyncio.Event()

    # ---------------------------------------------------------------------------------------- start, stop

    async def start(self) -> None:
        """Begin. Raises LedgerUnavailable: nothing has begun; also where it was lost meanwhile."""
        await self._backlog.open()
        self._running = True
        if self._ledger_first:
            self._intake = Intake(
                self._parts, self.subscription, self._upstream, on_stored=self._stored, room=self._room
            )
        self._target = await self._targets.join(self.settings.push, self)
        if self._backlog.tried:
            self._target.suspect()
        if self._intake is not None:
            await self._intake.start()
        self._target.look()
        self.changed()

    async def stop(self, within: float) -> None:
        """Take nothing more, give requests under way this many seconds, and give the rest back."""
        self._running = False
        self._backlog.close()
        if self._intake is not None:
            await self._intake.stop(within)
        await self._source.stop()
        self._let_go()
        if self._under_way or self._tasks:
            self._idle.clear()
            try:
                async with asyncio.timeout(within):
                    await self._idle.wait()
            except TimeoutError:
                log("push.not_finished", logging.WARNING, subscription=self.name, messages=self._under_way)
        await self._end()

    async def _end(self) -> None:
        if self._target is not None:
            await self._targets.cut(self._target, self)
        await self._tasks.close()
        self._part.close()
        await self._source.close()

    def lost(self) -> None:
        """It is another process's now: drop everything at once, acknowledge and record nothing. What goes on after this
        turn of the loop would claim and write under the next lease."""
        self._running = False
        self._backlog.close()
        self._tasks.cancel()
        if self._target is not None:
            self._target.abandon(self)
        self._count_rows(-sum(item.size for item in self._rows))
        self._rows.clear()
        if self._intake is not None:
            self._intake.lost()
        self._give_back_fresh()
        self._targets.run(self._end())

    # --------------------------------------------------------------------------------------------- arrival

    async def _prepare(self) -> None:
        """Before a consumer starts."""
        await self._parts.own_queues.ensure(self.name, self.settings)
        self._arrivals.version = version_name(self._upstream)

    def _arrive(self, delivery: Delivery) -> None:
        """A delivery; called on the loop."""
        most = self._part.bound(self.settings.prefetch_octets)
        if not self._running or self._octets > 2 * most:
            _settle(delivery, Settlement.RELEASE)
            return
        self._held += 1
        size = len(delivery.message.body)
        self._octets += size
        self._part.add(size)
        wanted, unwanted = self._arrivals.sort((delivery,))
        for arrival, reason in unwanted:
            self._run(self._turn_away(arrival, reason))
        for arrival in wanted:
            if doubtful := self._deduplicator.is_doubtful(arrival):
                self._doubtful.add(arrival)
            if not doubtful and not self._unsorted:
                self._deduplicator.brought((arrival,))
                self._push(arrival)
                continue
            self._unsorted.append(arrival)
            if len(self._unsorted) == 1:
                self._run(self._sort())
        if self._octets > most and self._held > 1:
            self._fits = max(1, min(self._held, self._fits) // 2)
            self.changed()

    def _push(self, arrival: Arrival) -> None:
        if not self._fresh and not self._rows:
            self._since = clock.monotonic()
        self._fresh.append(arrived(arrival, self.name))
        self._poke()

    async def _sort(self) -> None:
        """Look for the doubtful ones in the inbox, a batch at a time; those behind them wait, to keep their order."""
        while self._unsorted:
            await clock.sleep(0)  # what comes in this turn of the loop is one batch
            batch = list(self._unsorted)
            known = await self._known([arrival for arrival in batch if arrival in self._doubtful])
            self._deduplicator.brought(batch)
            for arrival in batch:
                if arrival.delivery.lost or not self._running:
                    self.gone(arrival, Settlement.RELEASE)
                elif arrival in known:
                    self._run(self._drop(arrival))
                else:
                    self._push(arrival)
                self._unsorted.popleft()
            self._doubtful.difference_update(batch)

    async def _known(self, doubtful: Sequence[Arrival]) -> set[Arrival]:
        """Those that the ledger has stored before, and whose broker has not heard of it."""
        while True:
            try:
                return {*(await self._deduplicator.find(doubtful)).known}
            except LedgerUnavailable:
                await clock.sleep(KNOWN_PAUSE)

    async def _drop(self, arrival: Arrival) -> None:
        detail = {"subscription": self.name, "reason": "the ledger has it already"}
        await self._journal.record([self._arrivals.entry(arrival, EventKind.DUPLICATE_DROPPED, now_us(), **detail)])
        self._counts.message(self.settings.push, "duplicate_dropped")
        self.gone(arrival, Settlement.ACCEPT)

    async def _turn_away(self, arrival: Arrival, reason: str) -> None:
        """The filter does not want it."""
        discards = discards_unmatched(self.settings)
        await turn_away(self._parts, self._arrivals, self._place, discards, [(arrival, reason)], patient=True)
        self._counts.message(self.settings.push, "filtered")
        self.gone(arrival, Settlement.ACCEPT)

    def _stored(self, rows: Sequence[BacklogEntry]) -> None:
        """The intake has stored some."""
        self._untried.add(len(rows))
        for _ in rows:
            self._backlog.added()
        self._backlog.expect(0.0)

    def _room(self) -> int:
        """How many more the intake may take. What waits behind others of its order key does not count: it keeps
        nobody from being tried."""
        if self._target is None or not self._running:
            return 0
        # Rows may be claimed before it is told here that they are stored: more than there are cannot wait.
        waiting = min(self._untried.claimable, self._backlog.count) + len(self._rows)
        return max(0, self._wanted() - waiting)

    # ------------------------------------------------------------------------------------ what is wanted

    def changed(self) -> None:
        """Note that the target's demand, or the room in the ledger, has changed."""
        if not self._running:
            return
        wanted = self._wanted()
        if self._intake is not None:
            self._intake.wake()
        else:
            self._source.want(wanted)
        if not wanted:
            self._give_back_fresh()
        if self._demand is Demand.NOTHING:
            self._unclaim()
        else:
            self._poke()

    @property
    def _demand(self) -> Demand:
        return self._target.demand if self._target is not None else Demand.NOTHING

    def _wanted(self) -> int:
        """How many messages may be out of the queue."""
        if self._backlog.full or self._demand is Demand.NOTHING:
            return 0
        if self._demand is Demand.LITTLE:
            # What was tried before may just as well show how it is. But no consumer ends for that: there would be one
            # more to begin when the row is gone, again and again.
            return 0 if (self._backlog.is_due or self._rows) and not self._source.wanted else LITTLE
        return min(self.settings.prefetch, self._fits)

    def _let_go(self) -> None:
        """What was not begun goes back to where it came from."""
        self._give_back_fresh()
        self._unclaim()

    def _give_back_fresh(self) -> None:
        fresh, self._fresh = self._fresh, deque()
        for item in fresh:
            assert item.arrival is not None
            self.gone(item.arrival, Settlement.RELEASE)

    def _unclaim(self) -> None:
        """Claimed, but not begun: as if they had not been claimed."""
        rows, self._rows = self._rows, deque()
        self._count_rows(-sum(item.size for item in rows))
        for item in rows:
            self._run(self._put_back(item, 0.0))

    async def _put_back(self, item: PushDelivery, wait: float) -> None:
        """A row that was claimed, and not tried."""
        await self._journal.settle(ended(item, Ending.RETRY, attempt=item.attempt - 1, due_in=wait, front=not wait))
        self._backlog.expect(wait)

    def gone(self, arrival: Arrival, settlement: Settlement) -> None:
        """Tell the broker; where it has taken the delivery back, it comes again, and is known then."""
        self._held -= 1
        self._octets -= arrival.size
        self._part.add(-arrival.size)
        _settle(arrival.delivery, settlement)
        self._source.settled()
        if not self._held and self._fits < self.settings.prefetch:
            self._fits = min(self._fits * 2, self.settings.prefetch)
            self.changed()

    # ------------------------------------------------------------------------------------------ from the ledger

    def _due(self) -> None:
        """Something is due, or there is room again."""
        if self._running:
            self.changed()

    def _poke(self) -> None:
        """See what can begin, when this turn of the loop is over."""
        if not self._poked and self._running:
            self._poked = True
            self._loop.call_soon(self._go)

    def _go(self) -> None:
        self._poked = False
        if not self._running or self._target is None:
            return
        self._target.pump()
        self._refill()

    def _refill(self) -> None:
        """Claim what is due, if there is room for it."""
        if self._refilling or not self._backlog.is_due or not self._running:
            return
        limit = self._claim_limit()
        if limit > 0:
            self._refilling = True
            self._run(self._claim(limit))

    def _claim_limit(self) -> int:
        target = self._target
        if target is None or target.endpoint is None:
            return 0
        if not self._journal.writable:
            target.look()  # and again when it is
            return 0
        if (
            self._demand is Demand.NOTHING
            or self._dead_lettering >= DEAD_LETTERING_MAX
            or self._row_bytes >= self._rows_max
        ):
            return 0
        if self._demand is Demand.LITTLE:
            return LITTLE - len(self._rows) - self._under_way
        most = AHEAD * target.lane.window * target.batch
        return 0 if len(self._rows) > most // 2 else min(most, CLAIM_MAX) - len(self._rows)

    @property
    def _rows_max(self) -> int:
        """How many bytes of what is claimed may be held now."""
        return self._part.bound(ROW_BYTES)

    async def _claim(self, limit: int) -> None:
        target = self._target
        assert target is not None
        assert target.endpoint is not None
        seconds = target.endpoint.settings.deadline + target.endpoint.settings.batch_wait + CLAIM_MARGIN
        try:
            rows = await self._backlog.claim(
                limit, seconds, min(CLAIM_OCTETS, max(1, self._rows_max - self._row_bytes))
            )
        finally:
            self._refilling = False
        if not rows:
            self._untried.block()
            self.changed()
        for row in rows:
            self._claimed(row)
        if not self._running or self._demand is Demand.NOTHING:
            self._unclaim()
        else:
            self._poke()

    def _claimed(self, row: BacklogEntry) -> None:
        if row.attempt == 1:
            self._untried.claim()
        try:
            item = stored(row)
        except EnvelopeError as error:
            log(
                "push.damaged", logging.ERROR, subscription=self.name, message_id=id_text(row.message_id),
                delivery=id_text(row.id), reason=str(error)[:500],
            )  # fmt: skip
            self._run(self._outcomes.damaged(row, str(error)))
            return
        if GIVEN_UP in item.reason:
            item.attempt -= 1
            self._dead_lettering += 1
            self._run(self._dead_letter(item))
            return
        if not self._fresh and not self._rows:
            self._since = clock.monotonic()
        self._rows.append(item)
        self._count_rows(item.size)

    def _count_rows(self, size: int) -> None:
        """Count bytes that were claimed from the ledger; below 0: that are held no more."""
        self._row_bytes += size
        self._part.add(size)

    async def _dead_letter(self, item: PushDelivery) -> None:
        """Bring it to the dead-letter place that did not take it before."""
        try:
            reason, code = (str(item.reason.get(name, "")) for name in ("reason", "code"))
            await self._outcomes.give_up(item, None, reason, code_of(code), given_up=True)
        finally:
            self._dead_lettering -= 1
        self._refill()

    # ---------------------------------------------------------------------------------------- as a target's line

    def ripe_at(self, most: int, wait: float) -> float | None:
        """When it has a request's worth of messages."""
        count = len(self._rows) + (len(self._fresh) if self._may_begin else 0)
        if not count:
            return None
        return self._since if count >= most else self._since + wait

    @property
    def _may_begin(self) -> bool:
        """The ledger has room for one more that fails."""
        return self._backlog.count + self._under_way < self.settings.backlog_max

    def take(self, most: int) -> list[PushDelivery]:
        """The messages of the next request."""
        items: list[PushDelivery] = []
        while len(items) < most:
            item = self._next(alone=bool(items))
            if item is None:
                break
            items.append(item)
            if item.attempt >= ALONE_FROM:
                break
        if items:
            self._since = clock.monotonic()
            self._under_way += len(items)
        if len(self._rows) < most:
            self._poke()
        return items

    def _next(self, *, alone: bool) -> PushDelivery | None:
        """Of what came from the broker and what came from the ledger, in turn. ``alone``: none that goes alone."""
        while self._rows or (self._fresh and self._may_begin):
            self._turn = not self._turn
            rows = self._rows and (self._turn or not self._fresh or not self._may_begin)
            line = self._rows if rows else self._fresh
            item = line[0]
            if alone and item.attempt >= ALONE_FROM:
                return None
            line.popleft()
            if item.arrival is not None and item.arrival.delivery.lost:
                self.gone(item.arrival, Settlement.RELEASE)
                continue
            return item
        return None

    def outgoing(self, item: PushDelivery) -> PushedMessage:
        """A message as the sender wants it."""
        return PushedMessage(
            id=id_text(item.id),
            message_id=id_text(item.message_id),
            subscription=self.name,
            broker=self.settings.broker,
            queue=self._queue,
            exchange=item.exchange,
            routing_key=item.routing_key,
            message=item.message,
            attempt=item.attempt if self._ledger_first or not item.redelivered else None,  # else one may be missing
            redelivered=item.redelivered,
            resent=item.resent,
        )

    def dropped(self, items: Sequence[PushDelivery]) -> None:
        """A request was cut off: nothing is known of it. What the broker holds goes back; a claim ends with its
        time."""
        self._under_way -= len(items)
        self._count_rows(-_of_rows(items))
        for item in items:
            if item.arrival is not None:
                self.gone(item.arrival, Settlement.RELEASE)
        self._look_idle()

    async def finished(
        self, items: Sequence[PushDelivery], outcome: SendOutcome, next_steps: Sequence[NextStep]
    ) -> None:
        """A request is over; returns when what follows is safe."""
        try:
            if len(items) == 1:
                await self._finish(items[0], outcome, next_steps[0], single=True)
            else:
                await asyncio.gather(
                    *(
                        self._finish(item, outcome, next_step, single=False)
                        for item, next_step in zip(items, next_steps, strict=True)
                    )
                )
        finally:
            self._under_way -= len(items)
            self._count_rows(-_of_rows(items))
            self._look_idle()
        if self._demand is Demand.LITTLE:
            self.changed()  # a message from the queue may be wanted now that no row is at hand
        else:
            self._refill()

    async def _finish(self, item: PushDelivery, outcome: SendOutcome, next_step: NextStep, *, single: bool) -> None:
        if next_step.outcome is AttemptOutcome.DELIVERED:
            endpoint = self._target.endpoint if self._target is not None else None
            reply = single and endpoint is not None and endpoint.settings.reply
            await self._outcomes.delivered(item, outcome, reply=reply)
        elif next_step.outcome is AttemptOutcome.NOT_TRIED:
            await self._not_tried(item, next_step.wait or 1.0)
        elif next_step.dead:
            self._outcomes.failed(next_step.why)
            await self._outcomes.give_up(item, outcome, next_step.why, next_step.code)
        else:
            self._outcomes.failed(next_step.why)
            await self._outcomes.again(item, outcome, next_step.why, next_step.wait or 0.0)

    async def _not_tried(self, item: PushDelivery, wait: float) -> None:
        """We were too busy: it is no attempt."""
        if item.arrival is None:
            await self._put_back(item, wait)
        elif self._running and self._wanted():
            self._fresh.appendleft(item)
        else:
            self.gone(item.arrival, Settlement.RELEASE)

    def settled(self) -> None:
        """Where there is an order, the next of its key can be claimed now."""
        if self.settings.order_key:
            self._backlog.expect(0.0)
            self._poke()

    # ------------------------------------------------------------------------------------------------ status

    def look(self) -> None:
        """The ledger is away, or back."""
        if self._target is not None:
            self._target.look()

    @property
    def trouble(self) -> str:
        """Why its queue is not read, or there is no endpoint; empty: nothing is wrong with either."""
        if self._target is not None and self._target.endpoint is None:
            return self._target.trouble
        return self._intake.reason if self._intake is not None else self._source.reason

    @property
    def stale(self) -> bool:
        """Its broker is another one now."""
        try:
            return self._parts.find(self.settings.broker) is not self._upstream
        except NoSuchBroker:
            return True

    def wake(self) -> None:
        """Somebody changed a row: look now."""
        self._backlog.expect(0.0)

    async def status(self) -> PushStatus:
        """How things stand. Raises LedgerUnavailable."""
        backlog = await self._parts.ledger.deliveries.backlog(self.name)
        self._backlog.count = backlog.waiting + backlog.out + backlog.dead
        now = clock.monotonic()
        suspension = self._target.suspension(now) if self._target is not None else None
        state, reason, code = PushState.RUNNING, "", ""
        if self._backlog.full:
            state, code = PushState.FULL, "backlog_full"
            reason = (
                f"the ledger holds {self._backlog.count} messages for it, and backlog_max is "
                f"{self.settings.backlog_max}: nothing is taken from its queue"
            )
        elif suspension is not None:
            state, reason, code = PushState.WAITING, f"{suspension.state}: {suspension.reason}", suspension.code
        elif trouble := (self._intake.reason if self._intake is not None else self._source.reason):
            state, reason, code = PushState.ERROR, trouble, "queue_unreadable"
        due_in = self._backlog.due_in
        return PushStatus(
            endpoint=self.settings.push,
            state=state,
            reason=reason,
            code=code,
            in_flight=self._under_way,
            held=len(self._fresh) + len(self._rows),
            waiting=backlog.waiting,
            retrying=backlog.tried,
            dead=backlog.dead,
            next_attempt_at=None if due_in is None or not backlog.waiting else now_us() + int(due_in * 1_000_000),
            last_error=self._outcomes.last_error,
            last_error_at=self._outcomes.last_error_at,
        )

    # ------------------------------------------------------------------------------------------------- tasks

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.start(work, f"push {self.name}")

    def _look_idle(self) -> None:
        if not self._under_way and not self._tasks:
            self._idle.set()


def _of_rows(items: Sequence[PushDelivery]) -> int:
    """The bytes of those that were claimed from the ledger."""
    return sum(item.size for item in items if item.arrival is None)


def _settle(delivery: Delivery, settlement: Settlement) -> None:
    try:
        delivery.settle(settlement)
    except (LeaseLost, StateError):
        pass  # its broker delivers it again, and it is recognised then
