"""The engine of the outbox: it alone sends what the ledger hands out.

It has two occasions, and one way. What is due at a broker is claimed by the process that sends for it (work of the kind
``outbox``). It is sent a batch at a time, so that the messages of one request keep their order. Nothing waits for a
broker that is away: work for it is fetched only while it is up, and after a refusal not before a pause, 0.5 s at
first, 30 s at most.

What dead processes held for requests is taken over at start, and whenever another process is found dead, by the
first that asks. It is sent again with the same ids, marked ``resent``, all that goes to one broker at once. What cannot
be sent now stays unknown, since an earlier attempt may have arrived. The answers are made by the next repeats, from
the timelines.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Final, NamedTuple

from gateway.core.leasing.consuming import printable
from gateway.core.publishing import endings
from gateway.core.publishing.endings import LATE_CONFIRM, insist, stay_unknown
from gateway.core.publishing.entries import publication_of
from gateway.core.publishing.envelopes import EnvelopeError
from gateway.core.publishing.publisher import Publication, Publisher, PublishOutcome
from gateway.core.traces import published_later
from gateway.core.work.ledger_budgets import LedgerBudgets
from gateway.errors import BrokerUnavailable, EntriesRefused, LedgerUnavailable, OutcomeUnknown, PublishRefused
from gateway.ledger import EndedKey, EventKind, Ledger, LogEntry, OutboxEntry
from gateway.ledger.db.shards import ShardLease
from gateway.ledger.pending.keys import UNKNOWN
from gateway.ledger.pending.outbox import OLD_PLACE
from gateway.observing.telemetry import Metrics, log
from gateway.runtime.backoff import Backoff, pause_after
from gateway.runtime.clock import clock
from gateway.runtime.tasks import Tasks
from gateway.tracing import Tracer
from gateway.upstreams import Upstream, UpstreamState

BATCH: Final = 500
"""Most entries that are fetched at once."""
LOOK_EVERY: Final = 1.0
"""Interval of checks for due messages, in seconds."""
CONFIRM_TIMEOUT: Final = 60.0
"""How long a message that is due waits for its confirm, in seconds; then it is sent again, marked."""
PAUSE_MIN: Final = 0.5
PAUSE_MAX: Final = 30.0
"""Pause before a broker that took nothing is tried again, in seconds; doubled each time."""
REFUSED_MAX: Final = 300.0
"""Longest pause of a message that its broker refuses for now, in seconds."""
GRACE: Final = 1.0
"""Time to release a broker beyond the messages in flight, in seconds."""
GONE: Final = {"code": OutcomeUnknown.code, "text": "its broker is no longer configured, or it is damaged"}
"""Detail of the ``unknown`` of what is taken over and cannot be sent at all."""


class Sent(NamedTuple):
    """An entry that was sent, and what became of it."""

    entry: OutboxEntry
    item: Publication
    result: PublishOutcome


@dataclass(slots=True)
class OutboxResult:
    """What became of a batch: what goes, what is tried again, what is kept; as ``ledger.outbox.settle`` takes it."""

    done: list[tuple[bytes, Sequence[LogEntry]]] = field(default_factory=list)
    retry: list[tuple[bytes, float, dict[str, Any]]] = field(default_factory=list)
    kept: list[tuple[bytes, Sequence[LogEntry], dict[str, Any]]] = field(default_factory=list)


class _Lane:
    """One broker's part of the outbox, while this process owns it."""

    __slots__ = ("backoff", "batch", "lease", "not_before", "task")

    def __init__(self) -> None:
        self.batch: list[OutboxEntry] = []
        self.lease: ShardLease | None = None
        """Under which the batch is held."""
        self.task: asyncio.Task[None] | None = None
        """Sends the batch."""
        self.backoff = Backoff(PAUSE_MIN, PAUSE_MAX)
        self.not_before = 0.0
        """When it is tried again, on the loop's clock."""

    @property
    def busy(self) -> bool:
        """A batch is on its way."""
        return self.task is not None and not self.task.done()


class OutboxSender:
    """Sends outbox entries, and records what became of each."""

    outdated = ()
    """It looks every :data:`LOOK_EVERY` seconds in any case."""

    def __init__(
        self,
        ledger: Ledger,
        publisher: Publisher,
        brokers: Mapping[str, Upstream],
        metrics: Metrics,
        budgets: LedgerBudgets,
        tracer: Tracer | None = None,
    ) -> None:
        """``budgets`` of what the ledger holds of each client."""
        self._ledger = ledger
        self._publisher = publisher
        self._brokers = brokers
        self._metrics = metrics
        self._budgets = budgets
        self._tracer = tracer
        self._tasks = Tasks("outbox")
        self._lanes: dict[str, _Lane] = {}
        self._wake = asyncio.Event()
        self._runner: asyncio.Task[None] | None = None
        self._fetching: asyncio.Task[int] | None = None
        """Claims what is due, and hands it on."""
        self._recovery: asyncio.Task[None] | None = None
        self._is_asked_again = False
        """More may have come to be in doubt than the look under way finds."""
        self._is_closed = False

    def owns(self, broker: str) -> bool:
        """Whether this process sends what is due at the broker."""
        return broker in self._lanes

    def wake(self) -> None:
        """Look now for what is due."""
        self._wake.set()

    # ----------------------------------------------------------------------------------------- what is due

    async def names(self) -> list[str]:
        """The brokers."""
        return list(self._brokers)

    async def start(self, name: str) -> None:
        """Send for this broker."""
        self._lanes[name] = _Lane()
        if self._runner is None:
            for upstream in self._brokers.values():
                if self._broker_changed not in upstream.on_state:
                    upstream.on_state.append(self._broker_changed)
            self._runner = asyncio.get_running_loop().create_task(self._run(), name="outbox")
        self._wake.set()

    async def stop(self, name: str, within: float) -> None:
        """Send no more for this broker; what is on its way has ``within`` seconds, and is in doubt after that."""
        lane = self._lanes.pop(name, None)
        if lane is not None:
            # What is claimed now goes back before somebody else sends for the broker: newer ones must not pass it.
            under_way = [task for task in (self._fetching, lane.task) if task is not None]
            try:
                if under_way:
                    await asyncio.wait(under_way, timeout=within)
            finally:  # also where it is lost meanwhile, and nobody waits for its end
                if lane.task is not None:
                    lane.task.cancel()
            if lane.task is not None:
                await asyncio.wait([lane.task])
            if lane.batch:
                try:
                    async with asyncio.timeout(within + GRACE):
                        await self._let_go(lane.batch, lane.lease, resent=True)
                except TimeoutError:  # it is free, and in doubt, when the shard is given back
                    log("outbox.not_released", logging.WARNING, broker=name, count=len(lane.batch))
        if not self._lanes and self._runner is not None:
            runner, self._runner = self._runner, None
            await _ended(runner)

    def lost(self, name: str) -> None:
        """Another process sends for this broker; what was on its way is in doubt, and free for it."""
        lane = self._lanes.pop(name, None)
        if lane is not None and lane.task is not None:
            lane.task.cancel()
            self._spawn(self._let_go(lane.batch, lane.lease, resent=True))

    async def refresh(self, name: str) -> None:
        """Another process has put something."""
        self._wake.set()

    def attend(self, upstream: Upstream) -> None:
        """A broker that is new under its name."""
        if self._runner is not None:
            upstream.on_state.append(self._broker_changed)
        self._broker_changed(upstream)

    def _broker_changed(self, upstream: Upstream) -> None:
        lane = self._lanes.get(upstream.name)
        if lane is not None and upstream.state is UpstreamState.UP:
            lane.not_before = 0.0
            self._wake.set()

    async def _run(self) -> None:
        said = ""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_EVERY):
                    await self._wake.wait()
            self._wake.clear()
            try:
                while self._ready():
                    # Not ended with this task: nobody would have what is claimed meanwhile, and nobody could claim it.
                    self._fetching = asyncio.get_running_loop().create_task(self._fetch(), name="outbox fetch")
                    self._fetching.add_done_callback(_heard)
                    if await asyncio.shield(self._fetching) < BATCH:
                        break
                said = ""
            except LedgerUnavailable as error:
                if str(error) != said:
                    said = str(error)
                    log("outbox.waits", logging.WARNING, reason=said)
                await clock.sleep(LOOK_EVERY)
            except Exception as error:  # a fault of the gateway must not end the sending
                log("outbox.failed", logging.ERROR, exc_info=error)
                await clock.sleep(LOOK_EVERY)

    async def _fetch(self) -> int:
        """Claim what is due, and have it sent; how much that is. What this process does not send any more goes back.

        Who sends is found out here, in the turn of the loop in which the claim is made under the lease of now: under a
        later one, it would take what is another process's to send."""
        lanes = {name: self._lanes[name] for name in self._ready()}
        if not lanes:
            return 0
        rows = await self._ledger.outbox.claim(BATCH, list(lanes))
        lease = self._ledger.lease
        by_broker: dict[str, list[OutboxEntry]] = {}
        for row in rows:
            by_broker.setdefault(row.broker, []).append(row)
        left: list[OutboxEntry] = []
        for broker, batch in by_broker.items():
            if self._lanes.get(broker) is lanes[broker]:
                self._send_soon(lanes[broker], broker, batch, lease)
            else:
                left += batch
        if left:
            await self._let_go(left, lease, resent=False)
        return len(rows)

    def _ready(self) -> list[str]:
        """The brokers that may be sent to: owned, up, and without a batch under way."""
        now = clock.monotonic()
        return [
            name for name, lane in self._lanes.items() if not lane.busy and lane.not_before <= now and self._is_up(name)
        ]

    def _is_up(self, broker: str) -> bool:
        upstream = self._brokers.get(broker)  # None: it was taken out of the configuration a moment ago
        return upstream is not None and upstream.state is UpstreamState.UP

    def _send_soon(self, lane: _Lane, broker: str, batch: list[OutboxEntry], lease: ShardLease) -> None:
        lane.batch, lane.lease = batch, lease
        lane.task = asyncio.get_running_loop().create_task(self._send_all(lane, broker), name=f"outbox {broker}")

    async def _send_all(self, lane: _Lane, broker: str) -> None:
        try:
            await self._send(lane, broker, lane.batch)
        except Exception as error:  # a fault of the gateway must not keep the batch
            log("outbox.failed", logging.ERROR, exc_info=error, broker=broker)
            lane.not_before = clock.monotonic() + PAUSE_MAX
            await self._let_go(lane.batch, lane.lease, resent=True)
        lane.batch = []
        self._wake.set()

    async def _let_go(self, batch: Sequence[OutboxEntry], lease: ShardLease | None, *, resent: bool) -> None:
        """Hold these no longer. ``resent``: they may have been sent. Of those that somebody held who died that is so in
        any case, and nothing but the reason says it when they are nobody's again. ``lease``: under which they are held.
        Once it is lost they are free, and may be on their way again under the next one."""
        mark = {"resent": True}
        work = OutboxResult(
            retry=[
                (row.message_id, OLD_PLACE, row.reason | mark if resent or row.doubtful else row.reason)
                for row in batch
            ]
        )
        await self._settle(work, lease)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.start(work)

    async def _send(self, lane: _Lane, broker: str, batch: Sequence[OutboxEntry]) -> None:
        """Send a batch that is due, in order, and write down what became of it."""
        upstream = self._brokers.get(broker)
        if upstream is None:  # taken out of the configuration a moment ago
            await self._let_go(batch, lane.lease, resent=False)
            return
        work = OutboxResult()
        began = clock.now_ns()
        sent, damaged = await self._attempt(upstream, batch, CONFIRM_TIMEOUT, f"outbox {broker}")
        for entry, error in damaged:  # never to be sent, and not to be thrown away either
            told = {"code": error.code, "text": str(error)}
            event = LogEntry(entry.message_id, EventKind.NOT_SENT, clock.now_ns() // 1000, broker, "", told)
            work.kept.append((entry.message_id, [event], entry.reason | told))
            self._metrics.outbox_refused.labels(broker, error.code).inc()
        away = False
        for each in sent:
            if self._tracer is not None and self._tracer.exports:
                published_later(self._tracer, upstream, each.entry.exchange, began, [each.item], [each.result])
            away = self._sort(work, upstream, each) or away
        now = clock.monotonic()
        if away:
            lane.not_before = now + lane.backoff.next()
        else:
            lane.backoff.reset()
            lane.not_before = now
        gone = await self._settle(work, lane.lease)
        self._budgets.entries_changed([row for row in batch if row.message_id in gone], -1)

    async def _attempt(
        self, upstream: Upstream, entries: Sequence[OutboxEntry], within: float, order: str | None = None
    ) -> tuple[list[Sent], list[tuple[OutboxEntry, EnvelopeError]]]:
        """Send entries of one broker, in order. What became of each; and those that cannot be read.

        Args:
            within: how long each waits for its confirm, in seconds.
            order: as in :meth:`Publisher.send`.
        """
        damaged: list[tuple[OutboxEntry, EnvelopeError]] = []
        ready: list[tuple[OutboxEntry, Publication]] = []
        for entry in entries:
            try:
                ready.append((entry, publication_of(entry)))
            except EnvelopeError as error:
                damaged.append((entry, error))
        under_way = []
        for exchange, group in groupby(ready, lambda pair: pair[0].exchange):
            pairs = list(group)
            items = [item for _, item in pairs]
            under_way.append((exchange, pairs, items, self._publisher.send(upstream, exchange, items, within, order)))
        sent: list[Sent] = []
        for exchange, pairs, items, futures in under_way:
            results = await self._publisher.outcomes(upstream, exchange, items, futures)
            await self._publisher.keep(exchange, items, results, patiently=True)
            sent += [Sent(entry, item, result) for (entry, item), result in zip(pairs, results, strict=True)]
        return sent, damaged

    def _sort(self, work: OutboxResult, upstream: Upstream, sent: Sent) -> bool:
        """What follows from the outcome of one that was due; whether its broker is away."""
        row, item, result = sent
        error = result.error
        reason: dict[str, Any] = {name: row.reason[name] for name in ("not_before", "mandatory") if name in row.reason}
        if result.resent:
            reason["resent"] = True
        if error is not None:
            reason |= {"code": error.code, "text": printable(str(error))[:500]}
            if isinstance(error, BrokerUnavailable | OutcomeUnknown | PublishRefused):
                self._metrics.retries.labels("outbox", error.code).inc()
        match error:
            case None:
                work.done.append((row.message_id, self._publisher.events(upstream, [item], [result])))
            case BrokerUnavailable():
                work.retry.append((row.message_id, OLD_PLACE, reason))
                return True
            case OutcomeUnknown():
                work.retry.append((row.message_id, OLD_PLACE, reason | {"resent": True}))
            case PublishRefused():
                work.retry.append((row.message_id, pause_after(row.attempt, PAUSE_MIN, REFUSED_MAX), reason))
            case _:
                work.kept.append((row.message_id, self._publisher.events(upstream, [item], [result]), reason))
                self._metrics.outbox_refused.labels(upstream.name, error.code).inc()
        return False

    async def _settle(self, work: OutboxResult, lease: ShardLease | None) -> set[bytes]:
        """Write down what became of a batch that is held under this lease; tries for as long as that is not lost.
        Returns what the ledger holds no more."""
        backoff = Backoff(PAUSE_MIN, PAUSE_MAX)
        while self._ledger.lease == lease:
            try:
                was_held = await self._ledger.outbox.settle(work.done, work.retry, work.kept)
                return {message_id for (message_id, _), held in zip(work.done, was_held, strict=False) if held}
            except LedgerUnavailable as error:
                log("outbox.waits", logging.WARNING, reason=str(error))
            except EntriesRefused as error:  # the rows that it is about are ended without their events
                log("outbox.events_refused", logging.ERROR, reason=str(error))
                work.done = [(message_id, ()) for message_id, _ in work.done]
                work.kept = [(message_id, (), reason) for message_id, _, reason in work.kept]
            await backoff.wait()
        return set()

    # ------------------------------------------------------------------------------------------ taking over

    def recover_soon(self) -> None:
        """Take over what dead processes held for requests, in the background."""
        if self._is_closed:  # a lease that is lost while the gateway ends, and taken again
            return
        self._is_asked_again = True
        if self._recovery is None or self._recovery.done():
            self._recovery = asyncio.get_running_loop().create_task(self._recover(), name="resolve in doubt")

    async def recovered(self) -> None:
        """Wait until what was begun by ``recover_soon`` is done."""
        if self._recovery is not None:
            await self._recovery

    async def close(self, within: float) -> None:
        """Let the taking over come to its end, for at most ``within`` seconds. What does not is resolved at the next
        start. Nothing is sent any more."""
        self._is_closed = True
        runner, self._runner = self._runner, None
        if runner is not None:  # another process had taken the work over
            await _ended(runner)
        if self._recovery is not None:
            _, late = await asyncio.wait([self._recovery], timeout=within)
            for task in late:
                task.cancel()
            await asyncio.gather(self._recovery, return_exceptions=True)

    async def _recover(self) -> None:
        count = 0
        waited: set[str] = set()
        while True:
            self._is_asked_again = False
            try:
                entries = await self._ledger.outbox.take_over(BATCH)
            except LedgerUnavailable as error:
                log("ledger.in_doubt_waits", logging.WARNING, detail=str(error))
                await clock.sleep(endings.PAUSE_MAX)
                continue
            if not entries and not self._is_asked_again:
                break
            claimed = self._ledger.lease
            count += len(entries)
            by_broker: dict[str, list[OutboxEntry]] = {}
            for entry in entries:
                by_broker.setdefault(entry.broker, []).append(entry)
            for broker, group in by_broker.items():
                await self._end(group, await self._send_again(broker, group, waited), claimed)
        if count:
            log("ledger.in_doubt_resolved", count=count)

    async def _send_again(self, broker: str, entries: Sequence[OutboxEntry], waited: set[str]) -> list[LogEntry]:
        """Send what a dead process held for requests: the events of what became of it."""
        upstream = self._brokers.get(broker)
        if upstream is None:
            return [_gone(entry) for entry in entries]
        patience = upstream.settings.connect_timeout
        if broker not in waited:
            waited.add(broker)
            await upstream.wait_up(patience)
        events: list[LogEntry] = []
        try:
            sent, damaged = await self._attempt(upstream, entries, patience * LATE_CONFIRM)
            for entry, unreadable in damaged:
                log("ledger.intent_unreadable", logging.ERROR, broker=broker, detail=str(unreadable))
                events.append(_gone(entry))
            stay_unknown([each.result for each in sent])
            events += self._publisher.events(upstream, [each.item for each in sent], [each.result for each in sent])
        except Exception as error:  # a fault of the gateway must not keep these keys, nor those behind them
            log("ledger.resolving_failed", logging.ERROR, error, broker=broker)
        return events

    async def _end(self, entries: Sequence[OutboxEntry], events: Sequence[LogEntry], claimed: ShardLease) -> None:
        """Release the keys of these messages, unless the lease under which they were taken over is lost: then they are
        in doubt again, and may be a request's by now."""
        of: dict[bytes, list[LogEntry]] = {entry.message_id: [] for entry in entries}
        for event in events:
            of[event.message_id].append(event)
        clients: dict[str, dict[str, list[LogEntry]]] = {}
        for entry in entries:
            clients.setdefault(entry.client, {}).setdefault(entry.key, []).extend(of[entry.message_id])
        for client, keys in clients.items():
            ended = [EndedKey(key, UNKNOWN, found, claimed=claimed) for key, found in keys.items()]
            await insist(self._ledger, client, ended)


def _gone(entry: OutboxEntry) -> LogEntry:
    return LogEntry(entry.message_id, EventKind.UNKNOWN, clock.now_ns() // 1000, entry.broker, "", GONE)


def _heard(fetching: asyncio.Task[int]) -> None:
    """Take the error of a fetch for which nobody waits any more; else it would be reported as a defect."""
    if not fetching.cancelled():
        fetching.exception()


async def _ended(task: asyncio.Task[None]) -> None:
    """End it."""
    task.cancel()
    await asyncio.wait([task])
