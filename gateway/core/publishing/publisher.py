"""Messages to brokers, and what became of them, in the ledger.

Without a key the caller still holds the message while it waits, so the order is: publish with confirm, then one
commit (``accepted`` and the outcome), then the answer. With ``ledger.intent = "always"`` the ``accepted`` events are
durable before the broker is asked. What has an Idempotency-Key goes through :mod:`gateway.core.publishing.keys`.

All messages of a call are written to the broker at once and in order; then their outcomes are awaited one after the
other, which costs nothing for those that are there already. No task is made per message.
"""

from __future__ import annotations

import logging
from asyncio import CancelledError, Future, Task, gather, get_running_loop, wait
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final

from prometheus_client import Counter, Histogram

from gateway.amqp.message import Message
from gateway.core.sources.stored import Stored, envelope
from gateway.errors import (
    BrokerUnavailable,
    CommitUnknown,
    EntriesRefused,
    FrameSyntaxError,
    GatewayError,
    LedgerUnavailable,
    LimitExceeded,
    LocalError,
    NotRecorded,
    OutcomeUnknown,
    PublishRefused,
    RemoteError,
    Unroutable,
)
from gateway.fidelity import annotate
from gateway.ledger import EventKind, KeptBody, Ledger, LogEntry, MessageIds, NewMessage, id_text
from gateway.observing.telemetry import Metrics, log
from gateway.runtime.backoff import Backoff
from gateway.runtime.clock import clock
from gateway.runtime.tasks import Tasks
from gateway.upstreams import PublishReceipt, Upstream

PERSISTENT: Final = 2
KNOWN_QUEUES_MAX: Final = 10_000
"""How many queues' durability is remembered; the longest unused go."""

LATE_MIN, LATE_MAX = 0.1, 5.0
"""Pause before it is tried again to record outcomes, in seconds; doubled each time."""
GROUP_BYTES: Final = 1 << 20
"""Most bytes of a group, unless it is one message."""
HEADER_BYTES: Final = 256
"""What a header counts: it takes as much time as this size of bodies, or more."""
GROUP: Final = 250
"""A call with more messages is published and recorded in parts of so many."""
DONE: Final = "done"
"""The outcome is kept under the message's key."""
REPEATED: Final = "repeated"
"""An earlier message with the same key had this outcome, and nothing was published now."""
RESENT: Final[Mapping[str, str]] = {"resent": "1"}
"""The entry of the reserved header that says that the message may be there twice."""
UNROUTABLE: Final[dict[str, Any]] = {
    "mandatory": False,
    "text": "no queue took the message, which was published with mandatory = false",
}
"""Detail of the event where the caller allows that no queue takes the message."""

OUTCOMES: Mapping[type[GatewayError], EventKind] = {
    Unroutable: EventKind.UNROUTABLE,
    PublishRefused: EventKind.REFUSED,
    RemoteError: EventKind.REFUSED,
    OutcomeUnknown: EventKind.UNKNOWN,
    BrokerUnavailable: EventKind.NOT_SENT,
    LocalError: EventKind.NOT_SENT,
    LimitExceeded: EventKind.NOT_SENT,
}
"""Error -> the event it is recorded as. A subclass counts as its nearest ancestor here."""


@dataclass(slots=True)
class Publication:
    """A message on its way to an exchange."""

    routing_key: str
    message: Message
    mandatory: bool = True
    """Whether it is an error that no queue takes it."""
    id: bytes = b""
    """The gateway's id; empty: not given yet."""
    text: str = ""
    """The id as the API writes it."""
    resent: bool = False
    """An earlier attempt ended without an outcome."""
    not_before: int | None = None
    """When it is to be published, in microseconds since 1970; None: now."""
    key: str = ""
    """Its Idempotency-Key; empty: it has none of its own."""
    delay_seconds: float | None = None
    """The delay that was asked for, where that is how ``not_before`` came to be."""
    given: Message | None = None
    """The message as its caller gave it, where the context of a trace was put into ``message`` since."""
    is_mandatory_given: bool = True
    """False: the caller left it out, and it has the default."""


@dataclass(slots=True)
class PublishOutcome:
    """What became of one message."""

    id: str
    error: GatewayError | None = None
    """None: confirmed."""
    routed: bool = True
    durable: bool = False
    resent: bool = False
    scheduled: bool = False
    """The ledger holds it, and publishes it later."""
    key: str = ""
    """Of a message with a key: :data:`DONE`, or :data:`REPEATED`; empty: what became of it is not final."""


def in_doubt(results: Sequence[PublishOutcome], error: CommitUnknown) -> None:
    """Of messages that the ledger was to take, and nobody can tell whether it did: if it did, they are sent."""
    for result in results:
        if result.error is None:
            result.error = OutcomeUnknown(f"the ledger may have taken the message, and sends it then: {error}")
            result.routed = result.scheduled = False


def not_sent(error: LedgerUnavailable) -> LedgerUnavailable:
    """The error of messages that no broker was given, whether or not the ledger knows of them."""
    return LedgerUnavailable(f"{error}; the messages were not sent") if isinstance(error, CommitUnknown) else error


class Publisher:
    """Publishes, and records what became of it."""

    def __init__(self, ledger: Ledger, ids: MessageIds, metrics: Metrics, intent_always: bool) -> None:
        self._ledger = ledger
        self._ids = ids
        self._metrics = metrics
        self._intent_always = intent_always
        self._orders = 0
        self._counters: dict[tuple[str, EventKind], Counter] = {}
        self._seconds: dict[str, Histogram] = {}
        self._durable_queues: OrderedDict[tuple[str, str], bool] = OrderedDict()
        self._late = Tasks("publisher")
        """Outcomes that the ledger could not record yet."""

    async def close(self, within: float) -> None:
        """Give outcomes that are not recorded yet ``within`` seconds. The next start records the others as unknown."""
        await self._late.close(within)

    # ------------------------------------------------------------------------------------------- publish

    async def publish(
        self,
        upstream: Upstream,
        exchange: str,
        messages: Sequence[Publication],
        client: str,
        within: float,
        order: str | None = None,
    ) -> list[PublishOutcome]:
        """Publish and wait for every outcome; when it returns, all of it is in the ledger.

        Args:
            within: how long to wait for confirms, in seconds; then the outcome is unknown.
            order: calls of the same order reach the broker one after the other. The messages of one call always do.

        Raises:
            LedgerUnavailable: nothing was sent.
            NotRecorded: all was sent, but the outcomes could not be recorded.
        """
        started = clock.monotonic()
        if not self._ledger.healthy:
            raise LedgerUnavailable("the ledger cannot be written now; nothing was sent")
        self._ledger.disk.check()
        self.give_ids(messages)
        await self.intend(upstream, exchange, messages, client)
        groups = [messages] if order is not None or len(messages) == 1 else list(groups_of(messages))
        if len(groups) == 1:  # of an order: nobody of the same one may come in between
            futures = self.send(upstream, exchange, messages, within, order)
            results = await self.settle(upstream, exchange, messages, client, futures)
        else:
            results = await self._in_groups(upstream, exchange, groups, client, within)
        seconds = self._seconds.get(upstream.name)
        if seconds is None:
            seconds = self._seconds[upstream.name] = self._metrics.publish_seconds.labels(upstream.name)
        seconds.observe(clock.monotonic() - started)
        return results

    async def intend(self, upstream: Upstream, exchange: str, messages: Sequence[Publication], client: str) -> None:
        """Record that the messages were accepted, where that is to be on disk before the broker is asked.

        Raises:
            LedgerUnavailable: do not send them.
        """
        if self._intent_always:
            try:
                await self._ledger.record(self.accepted(upstream, exchange, messages, client))
            except CommitUnknown as error:
                raise not_sent(error) from None

    async def _in_groups(
        self,
        upstream: Upstream,
        exchange: str,
        groups: Sequence[Sequence[Publication]],
        client: str,
        within: float,
    ) -> list[PublishOutcome]:
        """A long call, part by part: while the broker works on one, the next is written, and the one before is
        recorded; and others get their turn of the loop."""
        loop = get_running_loop()
        order = self.new_order()
        tasks: list[Task[list[PublishOutcome]]] = []
        try:
            for group in groups:
                futures = self.send(upstream, exchange, group, within, order)
                tasks.append(loop.create_task(self.settle(upstream, exchange, group, client, futures), name="group"))
                await clock.sleep(0)
            await wait(tasks)
        except BaseException:
            for task in tasks:
                task.cancel()
            raise
        errors = [error for task in tasks if (error := task.exception()) is not None]
        if errors:
            if len(errors) == len(tasks) and not any(isinstance(error, NotRecorded) for error in errors):
                raise errors[0]
            raise NotRecorded(f"some of it was sent, and the ledger could not record all: {errors[0]}") from errors[0]
        return [result for task in tasks for result in task.result()]

    async def settle(
        self,
        upstream: Upstream,
        exchange: str,
        messages: Sequence[Publication],
        client: str,
        futures: Sequence[Future[PublishReceipt]],
    ) -> list[PublishOutcome]:
        """Wait for the outcomes of messages that were sent, and record them.

        Raises:
            LedgerUnavailable: nothing was sent.
            NotRecorded: all was sent, but the outcomes could not be recorded.
        """
        accepted = [] if self._intent_always else self.accepted(upstream, exchange, messages, client)
        results = await self.outcomes(upstream, exchange, messages, futures)
        events = self.events(upstream, messages, results)
        try:
            recording = self._ledger.record(accepted + events) if not self._intent_always else self._record(events)
            if self._ledger.deliveries.keeps_bodies:
                await gather(recording, self.keep(exchange, messages, results))
            else:
                await recording
        except (LedgerUnavailable, EntriesRefused) as error:
            if self._intent_always and isinstance(error, LedgerUnavailable):
                self._late.start(self._record_late(events))
            sent = any(result.error is None or result.error.outcome != "not_sent" for result in results)
            if isinstance(error, LedgerUnavailable) and not sent:
                raise not_sent(error) from None
            raise NotRecorded(f"the broker answered, but the ledger could not record it: {error}") from error
        return results

    async def _record(self, events: Sequence[LogEntry]) -> None:
        """Record outcomes of messages that the ledger has as ``accepted``: those of which no other process has said by
        now that nobody knows them."""
        of: dict[bytes, list[LogEntry]] = {}
        for entry in events:
            of.setdefault(entry.message_id, []).append(entry)
        await self._ledger.outbox.settle_publishes(list(of.items()))

    async def _record_late(self, events: Sequence[LogEntry]) -> None:
        """Record outcomes as soon as the ledger can be written. Without them, messages that the ledger has as accepted
        would have no outcome until the next start."""
        backoff = Backoff(LATE_MIN, LATE_MAX)
        while True:
            await backoff.wait()
            if not self._ledger.healthy:
                continue
            try:
                await self._record(events)
                return
            except LedgerUnavailable as error:
                log("ledger.outcome_waits", logging.DEBUG, count=len(events), detail=str(error))
            except EntriesRefused as error:
                log("ledger.events_refused", logging.ERROR, detail=str(error))
                return

    async def keep(
        self,
        exchange: str,
        messages: Sequence[Publication],
        results: Sequence[PublishOutcome],
        *,
        patiently: bool = False,
    ) -> None:
        """Keep the bodies of what the broker took, where ``[retention]`` says so. One that cannot be kept is missed by
        nobody but a replay, which says so.

        Args:
            patiently: wait while the ledger is away, for callers that wait for it anyway before they answer.
        """
        if not self._ledger.deliveries.keeps_bodies:
            return
        rows = [
            KeptBody(
                item.id,
                envelope(Stored(item.message, exchange, item.routing_key, False, result.resent), resent=result.resent),
                len(item.message.body),
            )
            for item, result in zip(messages, results, strict=True)
            if result.error is None
        ]
        backoff = Backoff(LATE_MIN, LATE_MAX)
        while True:
            try:
                await self._ledger.deliveries.keep_bodies(rows)
                return
            except (LedgerUnavailable, EntriesRefused) as error:
                if not patiently or isinstance(error, EntriesRefused):
                    log("ledger.bodies_not_kept", logging.WARNING, count=len(rows), reason=str(error))
                    return
            await backoff.wait()

    def give_ids(self, messages: Sequence[Publication]) -> None:
        """Give those messages an id that have none, and write it out."""
        for item in messages:
            if not item.id:
                item.id = self._ids()
            item.text = id_text(item.id)

    def send(
        self,
        upstream: Upstream,
        exchange: str,
        messages: Sequence[Publication],
        within: float,
        order: str | None = None,
    ) -> list[Future[PublishReceipt]]:
        """Hand the messages to the broker, in order, at once."""
        if order is None and len(messages) > 1:
            order = self.new_order()
        publish = upstream.publish_nowait
        annotated = upstream.settings.annotate
        futures = []
        for item in messages:
            message = item.message
            if annotated:
                mark = RESENT if item.resent else {}
                message = message.altered(annotate(message.properties, id=item.text, **mark))
            futures.append(publish(exchange, item.routing_key, message, timeout=within, order=order))
        return futures

    def new_order(self) -> str:
        """An order that nobody else has."""
        self._orders += 1
        return f"request-{self._orders}"

    async def outcomes(
        self,
        upstream: Upstream,
        exchange: str,
        messages: Sequence[Publication],
        futures: Sequence[Future[PublishReceipt]],
    ) -> list[PublishOutcome]:
        """Wait for what becomes of each message. Where that is cancelled, those that are not written yet are not sent:
        the first alone would be left out, and come behind the others when it is sent again."""
        try:
            return await self._outcomes(upstream, exchange, messages, futures)
        except CancelledError:
            for future in futures:
                future.cancel()
            raise

    async def _outcomes(
        self,
        upstream: Upstream,
        exchange: str,
        messages: Sequence[Publication],
        futures: Sequence[Future[PublishReceipt]],
    ) -> list[PublishOutcome]:
        results = []
        stored = upstream.capabilities is None or upstream.capabilities.durable_storage
        for item, future in zip(messages, futures, strict=True):
            result = PublishOutcome(item.text, resent=item.resent)
            try:
                receipt = await future
            except GatewayError as error:
                result.error = error.with_traceback(None)  # it holds this frame, which holds the result
                result.routed = False
                result.resent = result.resent or error.resent
            else:
                result.resent = result.resent or receipt.resent
                result.routed = receipt.routed
                if receipt.routed:
                    result.durable = stored and self._is_durable(upstream.name, exchange, item)
                elif item.mandatory:
                    result.error = Unroutable(
                        f"no queue took the message: {receipt.reply_code} {receipt.reply_text}".rstrip()
                    )
            results.append(result)
        return results

    # -------------------------------------------------------------------------------------------- events

    def accepted(
        self, upstream: Upstream, exchange: str, messages: Sequence[Publication], client: str, origin: str = "http"
    ) -> list[LogEntry]:
        """The events that say that we took the messages."""
        at = clock.now_ns() // 1000
        name = upstream.name
        version = version_name(upstream)
        return [
            LogEntry(
                item.id,
                EventKind.ACCEPTED,
                at,
                name,
                version,
                None,
                describe(name, version, exchange, item, client, origin),
            )
            for item in messages
        ]

    def events(
        self, upstream: Upstream, messages: Sequence[Publication], results: Sequence[PublishOutcome]
    ) -> list[LogEntry]:
        """The events that say what became of them; one that was sent again has ``resent`` before its outcome."""
        at = clock.now_ns() // 1000
        name = upstream.name
        version = version_name(upstream)
        counts: dict[EventKind, int] = {}
        resent = 0
        entries = []
        for item, result in zip(messages, results, strict=True):
            kind, detail = outcome_of(result)
            counts[kind] = counts.get(kind, 0) + 1
            if result.resent:
                resent += 1
                entries.append(LogEntry(item.id, EventKind.RESENT, at, name, version))
            entries.append(LogEntry(item.id, kind, at, name, version, detail))
        for kind, count in counts.items():
            self._counter(name, kind).inc(count)
        if resent:
            self._metrics.resent.labels(name).inc(resent)
        return entries

    def _counter(self, broker: str, kind: EventKind) -> Counter:
        counter = self._counters.get((broker, kind))
        if counter is None:
            counter = self._counters[broker, kind] = self._metrics.publishes.labels(broker, kind.value)
        return counter

    # ---------------------------------------------------------------------------------------- durability

    def know_queue(self, broker: str, queue: str, durable: bool | None) -> None:
        """Remember whether a queue is durable (None: forget it)."""
        if durable is None:
            self._durable_queues.pop((broker, queue), None)
            return
        self._durable_queues[broker, queue] = durable
        self._durable_queues.move_to_end((broker, queue))
        if len(self._durable_queues) > KNOWN_QUEUES_MAX:
            self._durable_queues.popitem(last=False)

    def forget_queues(self, broker: str) -> None:
        """Nothing is known of the queues of a broker any more."""
        for known in [known for known in self._durable_queues if known[0] == broker]:
            del self._durable_queues[known]

    def _is_durable(self, broker: str, exchange: str, item: Publication) -> bool:
        """As far as is known: persistent, and not routed to a queue that is known to be transient (only the
        default exchange says which queue that is)."""
        if item.message.properties.delivery_mode != PERSISTENT:
            return False
        return bool(exchange) or self._durable_queues.get((broker, item.routing_key), True)


def groups_of(messages: Sequence[Publication]) -> Iterator[Sequence[Publication]]:
    """The messages in groups, each of which takes a turn of the loop; one at least, which may be empty."""
    begin = size = 0
    for index, item in enumerate(messages):
        weight = len(item.message.body) + HEADER_BYTES * len(item.message.properties.headers or ())
        if index - begin >= GROUP or (size > 0 and size + weight > GROUP_BYTES):
            yield messages[begin:index]
            begin, size = index, 0
        size += weight
    yield messages[begin:] if begin else messages


def version_name(upstream: Upstream) -> str:
    """The version spoken with the broker, empty before the first connection."""
    return upstream.version.value if upstream.version is not None else ""


def describe(broker: str, version: str, exchange: str, item: Publication, client: str, origin: str) -> NewMessage:
    """What the ledger remembers of a message."""
    body = item.message.body
    return NewMessage(
        broker=broker,
        version=version,
        exchange=exchange,
        routing_key=item.routing_key,
        size=len(body),
        sha256=sha256(body).digest(),
        origin=origin,
        client=client,
        properties=summary(item.message),
        headers=headers_of(item.message),
    )


def summary(message: Message) -> dict[str, Any] | None:
    """The few properties that are worth a search, as JSON. None: there are none, or they cannot be read."""
    try:
        properties = message.properties
    except FrameSyntaxError:
        return None
    if properties.message_id is properties.content_type is properties.type is properties.correlation_id is None:
        return None
    found = {}
    for name, value in (
        ("message_id", properties.message_id),
        ("content_type", properties.content_type),
        ("type", properties.type),
        ("correlation_id", properties.correlation_id),
    ):
        if isinstance(value, str):
            found[name] = value if value.isascii() else value.encode("utf-8", "backslashreplace").decode()
    return found or None


def headers_of(message: Message) -> Mapping[str, Any] | None:
    """The headers. None: there are none, or they cannot be read."""
    try:
        return message.properties.headers or None
    except FrameSyntaxError:
        return None


def outcome_of(result: PublishOutcome) -> tuple[EventKind, dict[str, Any] | None]:
    """The event that a result is recorded as."""
    error = result.error
    if error is None:
        return (EventKind.CONFIRMED, None) if result.routed else (EventKind.UNROUTABLE, UNROUTABLE)
    for kind in type(error).__mro__:
        if kind in OUTCOMES:
            text = str(error).encode("utf-8", "backslashreplace").decode()
            return OUTCOMES[kind], {"code": error.code, "text": text[:500]}
    raise AssertionError(f"no event for {error!r}") from error
