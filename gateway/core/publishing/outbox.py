"""Publishes that the ledger holds: taken over HTTP with 202, sent when they are due.

The caller's answer is as good as a confirm: the message is in the ledger, and goes out for certain. From there::

    scheduled ──due──> claimed ──> sent ──> confirmed, unroutable, refused, not_sent      (its event, and the row goes)
                          │          │
                          │          ├─ the broker refuses it for now: again, after a pause that grows
                          │          ├─ no outcome: again, at its old place, under the same id, marked as resent
                          │          └─ the process dies: whoever owns the broker's outbox next does the same
                          └─ the broker is away: nothing was sent; again, at its old place, when it is back

A row goes in the commit that records its outcome. What the broker will never take (there is no such exchange, it is
too large, no queue took it) ends with its event and the reason, and is *kept*: it can be retried when what was wrong is
put right, or cancelled. Only of a message with ``mandatory`` false its caller has said that no queue need take it.

One process sends for a broker (work of the kind ``outbox``), a batch at a time, so that the messages of one request
reach the broker in their order. Nothing waits for a broker that is away: work for it is fetched only while it is up,
and after a refusal not before a pause, 0.5 s at first, 30 s at most.

``not_before`` is a time by the clock of the process that took the message. It is carried over to the database's, which
all processes share, as a distance from now.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import groupby
from typing import Any, Final, Literal

from gateway.core.leasing.consuming import printable
from gateway.core.publishing import envelopes
from gateway.core.publishing.envelopes import EnvelopeError
from gateway.core.publishing.keys import KeyedAnswer, KeyedRequest
from gateway.core.publishing.publisher import Publication, Publisher, PublishOutcome, describe, version_name
from gateway.core.traces import published_later
from gateway.core.work.ledger_budgets import LedgerBudgets
from gateway.errors import (
    BrokerUnavailable,
    EncodeError,
    EntriesRefused,
    KeyReused,
    KeyRunning,
    LedgerUnavailable,
    LimitExceeded,
    NoSuchMessage,
    OutcomeUnknown,
    PublishRefused,
    StateError,
)
from gateway.ledger import (
    EventKind,
    Ledger,
    LogEntry,
    Mismatch,
    New,
    OutboxFilter,
    Promised,
    StoredAnswer,
    Timeline,
    id_text,
)
from gateway.ledger.pending.outbox import OLD_PLACE
from gateway.observing.telemetry import Metrics, log
from gateway.runtime.backoff import Backoff, pause_after
from gateway.runtime.clock import clock
from gateway.runtime.tasks import Tasks
from gateway.tracing import Tracer
from gateway.upstreams import Upstream, UpstreamState

OUTBOX_WORK: Final = "outbox"
"""The kind of work: a name is a broker's."""
BATCH: Final = 500
"""Most messages of one broker that are on their way."""
LOOK_EVERY: Final = 1.0
"""Interval of checks for due messages, in seconds."""
CONFIRM_TIMEOUT: Final = 60.0
"""How long a message waits for its confirm, in seconds; then it is sent again, marked."""
PAUSE_MIN: Final = 0.5
PAUSE_MAX: Final = 30.0
"""Pause before a broker that took nothing is tried again, in seconds; doubled each time."""
REFUSED_MAX: Final = 300.0
"""Longest pause of a message that its broker refuses for now, in seconds."""
YEAR: Final = 366 * 86_400
"""How far ahead a publish may be scheduled, in seconds."""
CLOCK: Final = 1_000
"""How exact a database's clock is, in microseconds: so much later something is due, so as never to be early."""
SKEW: Final = 3_600_000_000
"""How far the clocks of processes and of the database may differ, in microseconds, where only speed depends on it."""
GRACE: Final = 1.0
"""Time to release a broker beyond the messages in flight, in seconds."""
TELL_EVERY: Final = 0.2
"""Shortest interval between notices to another process that something is due, in seconds."""


@dataclass(frozen=True, slots=True)
class ScheduledPublish:
    """A publish that the ledger holds, or held."""

    id: bytes
    row: Promised | None
    """None: it has its outcome."""
    timeline: Timeline | None
    """Where it has its outcome: that."""
    waits_for: str
    """What stands in its way although it is due; empty: nothing, or it is not due."""

    @property
    def is_cancelled(self) -> bool:
        """It was taken back."""
        return self.timeline is not None and any(event.kind is EventKind.CANCELLED for event in self.timeline.events)

    @property
    def client(self) -> str:
        """The name of the API key that published it."""
        if self.row is not None:
            return self.row.client
        return self.timeline.message.client if self.timeline is not None else ""


@dataclass(slots=True)
class OutboxResult:
    """What became of a batch: what goes, what is tried again, what is kept; as ``ledger.outbox.settle`` takes it."""

    done: list[tuple[bytes, Sequence[LogEntry]]] = field(default_factory=list)
    retry: list[tuple[bytes, float, dict[str, Any]]] = field(default_factory=list)
    kept: list[tuple[bytes, Sequence[LogEntry], dict[str, Any]]] = field(default_factory=list)


class _Lane:
    """One broker's part of the outbox, while this process owns it."""

    __slots__ = ("backoff", "batch", "not_before", "task")

    def __init__(self) -> None:
        self.batch: list[Promised] = []
        self.task: asyncio.Task[None] | None = None
        """Sends the batch."""
        self.backoff = Backoff(PAUSE_MIN, PAUSE_MAX)
        self.not_before = 0.0
        """When it is tried again, on the loop's clock."""

    @property
    def busy(self) -> bool:
        """A batch is on its way."""
        return self.task is not None and not self.task.done()


class Outbox:
    """What is published later, and the worker that does it."""

    def __init__(
        self,
        ledger: Ledger,
        publisher: Publisher,
        brokers: Mapping[str, Upstream],
        metrics: Metrics,
        elsewhere: Callable[[str], None],
        budgets: LedgerBudgets,
        tracer: Tracer | None = None,
    ) -> None:
        """``elsewhere`` is called for a broker for which another process sends, and something is due; ``budgets`` of
        what the ledger holds of each client."""
        self._budgets = budgets
        self._tracer = tracer
        self._ledger = ledger
        self._publisher = publisher
        self._brokers = brokers
        self._metrics = metrics
        self._elsewhere = elsewhere
        self._told_at: dict[str, float] = {}
        self._tasks = Tasks("outbox")
        self._lanes: dict[str, _Lane] = {}
        self._wake = asyncio.Event()
        self._runner: asyncio.Task[None] | None = None

    # --------------------------------------------------------------------------------------------- taking

    async def put(
        self, upstream: Upstream, exchange: str, messages: Sequence[Publication], client: str, origin: str = "http"
    ) -> list[PublishOutcome]:
        """Take messages to be published later; when it returns, they are durable. One result each, in order.
        ``origin``: by which way they came.

        Raises:
            LedgerUnavailable, EntriesRefused: none was taken.
        """
        self._ledger.disk.check(sum([len(item.message.body) for item in messages]))
        results = self._checked(upstream, messages)
        taken = [(item, result) for item, result in zip(messages, results, strict=True) if result.error is None]
        if not taken:
            return results
        try:
            rows, entries = self._rows(upstream, exchange, [item for item, _ in taken], client, origin)
            await self._ledger.outbox.put(rows, entries)
        except EntriesRefused as error:
            for index, why in error.refused.items():
                taken[index][1].error = EncodeError(f"the ledger cannot hold the message: {why}")
            rows = [row for index, row in enumerate(rows) if index not in error.refused]
        self._count(rows, 1)
        self._told(upstream.name, [item for item, result in taken if result.error is None])
        return results

    async def put_keyed(
        self,
        request: KeyedRequest,
        upstream: Upstream,
        exchange: str,
        messages: Sequence[Publication],
        render: Callable[[list[PublishOutcome]], KeyedAnswer],
    ) -> KeyedAnswer:
        """The same under an Idempotency-Key: the messages and the answer are kept in one commit.

        Raises:
            KeyReused, KeyRunning: as for any publish.
            LedgerUnavailable, EntriesRefused: none was taken.
        """
        self._ledger.disk.check(sum([len(item.message.body) for item in messages]))
        results = self._checked(upstream, messages)
        taken = [item for item, result in zip(messages, results, strict=True) if result.error is None]
        answer = render(results)
        if not taken:
            return answer
        rows, entries = self._rows(upstream, exchange, taken, request.client)
        claim = await self._ledger.keyed_outbox.put(
            request.client,
            request.key,
            request.fingerprint,
            rows,
            entries,
            status=answer.status,
            headers=answer.headers,
            body=answer.body,
            older=request.older,
        )
        match claim:
            case StoredAnswer(status, headers, body):
                return KeyedAnswer(status, body, headers, replayed=True)
            case Mismatch():
                raise KeyReused("the Idempotency-Key was used for another request")
            case New():
                self._count(rows, 1)
                self._budgets.keys_changed(request.client, 1)
                self._told(upstream.name, taken)
                return answer
            case _:
                raise KeyRunning("the first request with this Idempotency-Key has no answer yet")

    def _count(self, rows: Sequence[Promised], sign: Literal[1, -1]) -> None:
        """The ledger holds these from now on, or no more."""
        for client in {row.client for row in rows}:
            mine = [len(row.payload) for row in rows if row.client == client]
            self._budgets.scheduled_changed(client, sign * len(mine), sign * sum(mine))

    def _checked(self, upstream: Upstream, messages: Sequence[Publication]) -> list[PublishOutcome]:
        """Refuse now what would be refused in any case."""
        self._publisher.give_ids(messages)
        most = upstream.settings.message_max
        results = []
        for item in messages:
            result = PublishOutcome(item.text, scheduled=True)
            if len(item.message.body) > most:
                text = f"a body of {len(item.message.body)} octets is over message_max = {most}"
                result.error = LimitExceeded(text, "message_max")
            results.append(result)
        return results

    def _rows(
        self, upstream: Upstream, exchange: str, messages: Sequence[Publication], client: str, origin: str = "http"
    ) -> tuple[list[Promised], list[LogEntry]]:
        at = clock.now_ns() // 1000
        name, version = upstream.name, version_name(upstream)
        rows, entries = [], []
        for item in messages:
            detail: dict[str, Any] = {"not_before": moment(item.not_before)} if item.not_before else {}
            if not item.mandatory:
                detail["mandatory"] = False
            if item.resent:
                detail["resent"] = True
            rows.append(
                Promised(
                    message_id=item.id,
                    broker=name,
                    exchange=exchange,
                    routing_key=item.routing_key,
                    payload=envelopes.encode(item.message, item.mandatory),
                    at=at,
                    due_at=item.not_before + CLOCK if item.not_before else 0,
                    reason=detail,
                    client=client,
                )
            )
            message = describe(name, version, exchange, item, client, origin)
            entries.append(LogEntry(item.id, EventKind.SCHEDULED, at, name, version, detail or None, message))
        return rows, entries

    # ------------------------------------------------------------------------------------- looking, steering

    async def get(self, message_id: bytes) -> ScheduledPublish:
        """How things stand with one.

        Raises:
            NoSuchMessage: it was never put here, or all memory of it is gone.
        """
        row = await self._ledger.outbox.get(message_id)
        timeline = await self._ledger.timeline(message_id) if row is None else None
        if row is None and not (timeline and any(event.kind is EventKind.SCHEDULED for event in timeline.events)):
            raise NoSuchMessage(f"nothing was scheduled under the id {id_text(message_id)}")
        return ScheduledPublish(message_id, row, timeline, "" if row is None else self.waits_for(row))

    async def page(self, where: OutboxFilter, cursor: str | None, limit: int) -> tuple[list[Promised], str | None]:
        """Those that the ledger holds, in the order in which they were taken. Raises ValueError for a cursor that is
        none."""
        return await self._ledger.outbox.page(where, cursor, limit)

    async def oldest(self, broker: str, client: str) -> float | None:
        """When the first of a client's publishes was put that is to be sent before newer ones, in seconds since 1970;
        None: there is none."""
        found = await self._ledger.outbox.oldest(broker, client, clock.now_ns() // 1000 + SKEW)
        return None if found is None else found / 1e6

    def waits_for(self, row: Promised) -> str:
        """What stands in the way of one that is due; empty: nothing, or it is not due."""
        if row.dead or row.due_at > clock.now_ns() // 1000:
            return ""
        upstream = self._brokers.get(row.broker)
        if upstream is None:
            return f"no broker {row.broker!r} is configured"
        if upstream.state is UpstreamState.UP:
            return ""
        return f"broker {row.broker}: {upstream.state.value} {upstream.reason}".rstrip()

    async def cancel(self, message_id: bytes, client: str) -> None:
        """Take one back. One that was taken back before stays so.

        Raises:
            NoSuchMessage: it was never put here.
            StateError: it is on its way, or has its outcome.
        """
        found = await self.get(message_id)
        row = found.row
        if found.is_cancelled:
            return
        if row is not None:
            entry = LogEntry(
                message_id, EventKind.CANCELLED, clock.now_ns() // 1000, row.broker, "", {"client": printable(client)}
            )
            if await self._ledger.outbox.cancel(message_id, entry):
                self._metrics.publishes.labels(row.broker, EventKind.CANCELLED.value).inc()
                self._count([row], -1)
                return
            if (await self.get(message_id)).is_cancelled:  # by somebody else meanwhile
                return
        raise StateError("it is on its way to the broker, or has its outcome")

    async def retry(self, message_id: bytes) -> None:
        """Send one again that the broker would not take.

        Raises:
            NoSuchMessage: it was never put here.
            StateError: it is not kept for that.
        """
        row = (await self.get(message_id)).row
        if row is not None:
            entry = LogEntry(message_id, EventKind.SCHEDULED, clock.now_ns() // 1000, row.broker, "", {"retry": True})
            if await self._ledger.outbox.revive(message_id, entry):
                self._look_for(row.broker)
                return
        raise StateError("only what the broker would not take is sent again, and this is not kept for that")

    async def reschedule(self, message_id: bytes, not_before: int, client: str) -> None:
        """Give one another time, in microseconds since 1970.

        Raises:
            NoSuchMessage: it was never put here.
            StateError: it is on its way, has its outcome, or was refused.
        """
        row = (await self.get(message_id)).row
        if row is not None and not row.dead:
            now, time = clock.now_ns() // 1000, moment(not_before)
            detail = {"rescheduled": True, "not_before": time, "client": printable(client)}  # read in this order
            entry = LogEntry(message_id, EventKind.SCHEDULED, now, row.broker, "", detail)
            reason = {**{name: value for name, value in row.reason.items() if name != "text"}, "not_before": time}
            if await self._ledger.outbox.reschedule(message_id, not_before + CLOCK, now, reason, entry):
                if not_before <= now:
                    self._look_for(row.broker)
                return
        raise StateError("it is on its way to the broker, has its outcome, or was refused: retry what was refused")

    def _told(self, broker: str, messages: Sequence[Publication]) -> None:
        if not messages:
            return
        self._metrics.publishes.labels(broker, EventKind.SCHEDULED.value).inc(len(messages))
        now = clock.now_ns() // 1000
        if any((item.not_before or 0) <= now for item in messages):
            self._look_for(broker)

    def _look_for(self, broker: str) -> None:
        """Something is due there."""
        self._wake.set()
        now = clock.monotonic()
        if broker not in self._lanes and now >= self._told_at.get(broker, 0.0) + TELL_EVERY:
            self._told_at[broker] = now
            self._elsewhere(broker)

    # ---------------------------------------------------------------------------------------------- worker

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
        if lane is not None and lane.task is not None:
            await asyncio.wait([lane.task], timeout=within)
            await _ended(lane.task)
            if lane.batch:
                try:
                    async with asyncio.timeout(within + GRACE):
                        await self._let_go(lane.batch, resent=True)
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
            self._spawn(self._let_go(lane.batch, resent=True))  # where the lease was lost nothing of this is ours

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
                while ready := self._ready(clock.monotonic()):
                    rows = await self._claim(ready)
                    by_broker: dict[str, list[Promised]] = {}
                    for row in rows:
                        by_broker.setdefault(row.broker, []).append(row)
                    for broker, batch in by_broker.items():
                        self._send_soon(broker, batch)
                    if len(rows) < BATCH:
                        break
                said = ""
            except LedgerUnavailable as error:
                if str(error) != said:
                    said = str(error)
                    log("outbox.waits", logging.WARNING, reason=said)
                await clock.sleep(LOOK_EVERY)
            except Exception as error:  # a fault of ours must not end the sending
                log("outbox.failed", logging.ERROR, exc_info=error)
                await clock.sleep(LOOK_EVERY)

    async def _claim(self, ready: Sequence[str]) -> list[Promised]:
        """What is due. A worker that is stopped meanwhile releases it; otherwise nobody would have it and nobody could
        claim it."""
        claim = asyncio.get_running_loop().create_task(self._ledger.outbox.claim(BATCH, ready))
        try:
            return await asyncio.shield(claim)
        except asyncio.CancelledError:
            self._spawn(self._let_go_of(claim))
            raise

    async def _let_go_of(self, claim: asyncio.Task[list[Promised]]) -> None:
        with suppress(LedgerUnavailable):  # then nothing was claimed
            await self._let_go(await claim, resent=False)

    def _ready(self, now: float) -> list[str]:
        """The brokers that may be sent to: owned, up, and without a batch under way."""
        return [
            name for name, lane in self._lanes.items() if not lane.busy and lane.not_before <= now and self._is_up(name)
        ]

    def _is_up(self, broker: str) -> bool:
        upstream = self._brokers.get(broker)  # None: it was taken out of the configuration a moment ago
        return upstream is not None and upstream.state is UpstreamState.UP

    def _send_soon(self, broker: str, batch: list[Promised]) -> None:
        lane = self._lanes.get(broker)
        if lane is None:  # stopped in between
            self._spawn(self._let_go(batch, resent=False))
            return
        lane.batch = batch
        lane.task = asyncio.get_running_loop().create_task(self._send_all(lane, broker), name=f"outbox {broker}")

    async def _send_all(self, lane: _Lane, broker: str) -> None:
        try:
            await self._send(lane, broker, lane.batch)
        except Exception as error:  # a fault of ours must not keep the batch
            log("outbox.failed", logging.ERROR, exc_info=error, broker=broker)
            lane.not_before = clock.monotonic() + PAUSE_MAX
            await self._let_go(lane.batch, resent=True)
        lane.batch = []
        self._wake.set()

    async def _let_go(self, batch: Sequence[Promised], *, resent: bool) -> None:
        """Hold these no longer. ``resent``: they may have been sent. Of those that somebody held who died that is so in
        any case, and nothing but the reason says it when they are nobody's again."""
        mark = {"resent": True}
        work = OutboxResult(
            retry=[
                (row.message_id, OLD_PLACE, row.reason | mark if resent or row.doubtful else row.reason)
                for row in batch
            ]
        )
        await self._settle(work)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.start(work)

    async def _send(self, lane: _Lane, broker: str, batch: Sequence[Promised]) -> None:
        """Send a batch, in order, and write down what became of it."""
        upstream = self._brokers.get(broker)
        if upstream is None:  # taken out of the configuration a moment ago
            await self._let_go(batch, resent=False)
            return
        work = OutboxResult()
        ready: list[tuple[Promised, Publication]] = []
        for row in batch:
            try:
                message, mandatory = envelopes.decode(row.payload)
            except EnvelopeError as error:  # never to be sent, and not to be thrown away either
                told = {"code": error.code, "text": str(error)}
                entry = LogEntry(row.message_id, EventKind.NOT_SENT, clock.now_ns() // 1000, broker, "", told)
                work.kept.append((row.message_id, [entry], row.reason | told))
                self._metrics.outbox_refused.labels(broker, error.code).inc()
            else:
                text = id_text(row.message_id)
                resent = row.doubtful or row.reason.get("resent") is True
                # Of an earlier release: then false was the default, and nobody chose it.
                mandatory = mandatory or row.reason.get("mandatory") is not False
                ready.append((row, Publication(row.routing_key, message, mandatory, row.message_id, text, resent)))
        sent = []
        began = clock.now_ns()
        for exchange, group in groupby(ready, lambda pair: pair[0].exchange):
            pairs = list(group)
            items = [item for _, item in pairs]
            order = f"outbox {broker}"
            sent.append((exchange, pairs, self._publisher.send(upstream, exchange, items, CONFIRM_TIMEOUT, order)))
        away = False
        for exchange, pairs, futures in sent:
            items = [item for _, item in pairs]
            results = await self._publisher.outcomes(upstream, exchange, items, futures)
            await self._publisher.keep(exchange, items, results)
            if self._tracer is not None and self._tracer.exports:
                published_later(self._tracer, upstream, exchange, began, items, results)
            for (row, item), result in zip(pairs, results, strict=True):
                away = self._sort(work, upstream, row, item, result) or away
        now = clock.monotonic()
        if away:
            lane.not_before = now + lane.backoff.next()
        else:
            lane.backoff.reset()
            lane.not_before = now
        gone = await self._settle(work)
        self._count([row for row in batch if row.message_id in gone], -1)

    def _sort(
        self, work: OutboxResult, upstream: Upstream, row: Promised, item: Publication, result: PublishOutcome
    ) -> bool:
        """What follows from the outcome of one; whether its broker is away."""
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

    async def _settle(self, work: OutboxResult) -> set[bytes]:
        """Write down what became of a batch; tries for as long as it takes. Returns what the ledger holds no more."""
        backoff = Backoff(PAUSE_MIN, PAUSE_MAX)
        while True:
            try:
                was_ours = await self._ledger.outbox.settle(work.done, work.retry, work.kept)
                return {message_id for (message_id, _), ours in zip(work.done, was_ours, strict=False) if ours}
            except LedgerUnavailable as error:
                log("outbox.waits", logging.WARNING, reason=str(error))
            except EntriesRefused as error:  # the rows that it is about are ended without their events
                log("outbox.events_refused", logging.ERROR, reason=str(error))
                work.done = [(message_id, ()) for message_id, _ in work.done]
                work.kept = [(message_id, (), reason) for message_id, _, reason in work.kept]
            await backoff.wait()


async def _ended(task: asyncio.Task[None]) -> None:
    """End it."""
    task.cancel()
    await asyncio.wait([task])


def moment(microseconds: int) -> str:
    """RFC 3339 in UTC."""
    text = datetime.fromtimestamp(microseconds / 1e6, UTC).isoformat(timespec="microseconds")
    return text.replace("+00:00", "Z")
