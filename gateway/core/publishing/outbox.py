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

What sends them is in :mod:`gateway.core.publishing.sending`.

``not_before`` is a time by the clock of the process that took the message. It is carried over to the database's, which
all processes share, as a distance from now.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from gateway.core.leasing.consuming import printable
from gateway.core.publishing import envelopes
from gateway.core.publishing.keys import KeyedAnswer, KeyedRequest
from gateway.core.publishing.publisher import (
    Publication,
    Publisher,
    PublishOutcome,
    describe,
    in_doubt,
    version_name,
)
from gateway.core.publishing.sending import OutboxSender
from gateway.core.work.ledger_budgets import LedgerBudgets
from gateway.errors import (
    CommitUnknown,
    EncodeError,
    EntriesRefused,
    KeyReused,
    KeyRunning,
    LedgerUnavailable,
    LimitExceeded,
    NoSuchMessage,
    OutcomeUnknown,
    StateError,
)
from gateway.ledger import (
    EventKind,
    Ledger,
    LogEntry,
    Mismatch,
    New,
    OutboxEntry,
    OutboxFilter,
    StoredAnswer,
    Timeline,
    id_text,
)
from gateway.observing.telemetry import Metrics
from gateway.runtime.clock import clock
from gateway.upstreams import Upstream, UpstreamState

OUTBOX_WORK: Final = "outbox"
"""The kind of work: a name is a broker's."""
YEAR: Final = 366 * 86_400
"""How far ahead a publish may be scheduled, in seconds."""
CLOCK: Final = 1_000
"""How exact a database's clock is, in microseconds: so much later something is due, so as never to be early."""
SKEW: Final = 3_600_000_000
"""How far the clocks of processes and of the database may differ, in microseconds, where only speed depends on it."""
TELL_EVERY: Final = 0.2
"""Shortest interval between notices to another process that something is due, in seconds."""
IN_DOUBT: Final = {
    "code": OutcomeUnknown.code,
    "text": "an earlier attempt has no outcome: the message may have arrived",
}
"""Detail of the event of what is taken back after such an attempt."""


@dataclass(frozen=True, slots=True)
class ScheduledPublish:
    """A publish that the ledger holds, or held."""

    id: bytes
    row: OutboxEntry | None
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
    def is_in_doubt(self) -> bool:
        """It was taken back, and may have arrived before."""
        return self.timeline is not None and any(
            event.kind is EventKind.CANCELLED and event.detail.get("code") == OutcomeUnknown.code
            for event in self.timeline.events
        )

    @property
    def client(self) -> str:
        """The name of the API key that published it."""
        if self.row is not None:
            return self.row.client
        return self.timeline.message.client if self.timeline is not None else ""


class Outbox:
    """Publishes that the ledger takes for its callers: how they are put, looked at, taken back and retried."""

    def __init__(
        self,
        ledger: Ledger,
        publisher: Publisher,
        brokers: Mapping[str, Upstream],
        metrics: Metrics,
        elsewhere: Callable[[str], None],
        budgets: LedgerBudgets,
        sender: OutboxSender,
    ) -> None:
        """``elsewhere`` is called for a broker for which another process sends, and something is due; ``budgets`` of
        what the ledger holds of each client."""
        self.sender = sender
        """Sends what is due, and what dead processes held for requests."""
        self._budgets = budgets
        self._ledger = ledger
        self._publisher = publisher
        self._brokers = brokers
        self._metrics = metrics
        self._elsewhere = elsewhere
        self._told_at: dict[str, float] = {}

    # --------------------------------------------------------------------------------------------- taking

    async def put(
        self, upstream: Upstream, exchange: str, messages: Sequence[Publication], client: str, origin: str = "http"
    ) -> list[PublishOutcome]:
        """Take messages to be published later; when it returns, those without an error are durable. One result each,
        in order: unknown where nobody can tell whether the ledger has taken them. Many are taken in parts, and some of
        them may be where the ledger fails. ``origin``: by which way they came.

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
        except (LedgerUnavailable, EntriesRefused) as error:
            if isinstance(error, LedgerUnavailable):
                if not error.written and not isinstance(error, CommitUnknown):
                    raise
                _not_taken([result for _, result in taken[error.written :]], error)
            for index, why in error.refused.items():
                taken[index][1].error = EncodeError(f"the ledger cannot hold the message: {why}")
            rows = [row for row, (_, result) in zip(rows, taken, strict=True) if result.error is None]
        self._budgets.entries_changed(rows, 1)
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
        try:
            claim = await self._ledger.outbox.put_keyed(
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
        except CommitUnknown as error:
            in_doubt(results, error)
            return render(results)
        match claim:
            case StoredAnswer(status, headers, body):
                return KeyedAnswer(status, body, headers, replayed=True)
            case Mismatch():
                raise KeyReused("the Idempotency-Key was used for another request")
            case New():
                self._budgets.entries_changed(rows, 1)
                self._budgets.keys_changed(request.client, 1)
                self._told(upstream.name, taken)
                return answer
            case _:
                raise KeyRunning("the first request with this Idempotency-Key has no answer yet")

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
    ) -> tuple[list[OutboxEntry], list[LogEntry]]:
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
                OutboxEntry(
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

    async def page(self, where: OutboxFilter, cursor: str | None, limit: int) -> tuple[list[OutboxEntry], str | None]:
        """Those that the ledger holds, in the order in which they were taken. Raises ValueError for a cursor that is
        none."""
        return await self._ledger.outbox.page(where, cursor, limit)

    async def find(
        self, sought: str, client: str | None, cursor: str | None, limit: int
    ) -> tuple[list[OutboxEntry], str | None]:
        """Those with a text in their exchange or routing key, without payloads, and where to go on. ``client`` None: of
        all clients. Raises ValueError for a malformed cursor."""
        return await self._ledger.outbox.find(sought, client, cursor, limit)

    async def oldest(self, broker: str, client: str) -> float | None:
        """When the first of a client's publishes was put that is to be sent before newer ones, in seconds since 1970;
        None: there is none."""
        found = await self._ledger.outbox.oldest(broker, client, clock.now_ns() // 1000 + SKEW)
        return None if found is None else found / 1e6

    def waits_for(self, row: OutboxEntry) -> str:
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
        """Take one back. One that was taken back before stays so. Where an earlier attempt has no outcome it may have
        arrived, and its timeline says so.

        Raises:
            NoSuchMessage: it was never put here.
            StateError: it is on its way, or has its outcome.
        """
        found = await self.get(message_id)
        row = found.row
        if found.is_cancelled:
            return
        if row is not None:
            now, detail = clock.now_ns() // 1000, {"client": printable(client)}
            entry = LogEntry(message_id, EventKind.CANCELLED, now, row.broker, "", detail)
            doubtful = LogEntry(message_id, EventKind.CANCELLED, now, row.broker, "", detail | IN_DOUBT)
            if await self._ledger.outbox.cancel(message_id, entry, doubtful):
                self._metrics.publishes.labels(row.broker, EventKind.CANCELLED.value).inc()
                self._budgets.entries_changed([row], -1)
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
            if await self._ledger.outbox.reschedule(message_id, not_before + CLOCK, now, {"not_before": time}, entry):
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
        self.sender.wake()
        now = clock.monotonic()
        if not self.sender.owns(broker) and now >= self._told_at.get(broker, 0.0) + TELL_EVERY:
            self._told_at[broker] = now
            self._elsewhere(broker)


def _not_taken(results: Sequence[PublishOutcome], error: LedgerUnavailable) -> None:
    """Say so of the last messages of a call, where the ledger failed behind the first."""
    if isinstance(error, CommitUnknown):
        in_doubt(results, error)
        return
    for result in results:
        result.error, result.routed, result.scheduled = error, False, False


def moment(microseconds: int) -> str:
    """RFC 3339 in UTC."""
    text = datetime.fromtimestamp(microseconds / 1e6, UTC).isoformat(timespec="microseconds")
    return text.replace("+00:00", "Z")
