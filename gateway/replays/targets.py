"""Where a replay sends messages to: exchanges of brokers, an endpoint, or back to their subscriptions.

A target takes a chunk and says of each message whether it is there, is refused for good (``item.error``), or is to be
tried again. What is there is recorded in one commit: the events of the original and of what was sent, what is
remembered of it so that it is not sent twice, and the end of what the ledger owed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final, Protocol

from gateway.bridges.refusals import Fault, refusal_of
from gateway.config import EndpointSettings
from gateway.core import Gateway
from gateway.core.leasing.consuming import printable
from gateway.core.publishing.publisher import Publication, describe, version_name
from gateway.errors import (
    BrokerUnavailable,
    EncodeError,
    GatewayError,
    NoSuchBroker,
    NoSuchEndpoint,
    NoSuchSubscription,
    NotFound,
    OutboundFailed,
    OutcomeUnknown,
    RemoteError,
    StateError,
    Unroutable,
    Unsupported,
)
from gateway.fidelity.copies import copy_of
from gateway.ledger import BacklogEntry, BacklogSettlement, Ending, EventKind, InboxRow, LogEntry, id_text
from gateway.replays.items import ReplayItem
from gateway.replays.jobs import ANY_REPLAY, Job
from gateway.replays.places import ReplayPlace
from gateway.replays.requests import exchange_name
from gateway.runtime.clock import clock
from gateway.runtime.ids import fraction
from gateway.upstreams import PublishReceipt, Upstream
from gateway.webhooks.attempts.forms import BATCHED, PushedMessage
from gateway.webhooks.attempts.schedule import AttemptOutcome, NextStep, Schedule
from gateway.webhooks.attempts.sender import Sender
from gateway.webhooks.endpoint import Endpoint, EndpointState
from gateway.webhooks.settings.endpoints import EndpointRegistry

CONFIRM_TIMEOUT: Final = 60.0
"""How long a message waits for its confirm, in seconds; then it is sent again, marked."""
TRIES: Final = 5
"""How often a message is sent that is refused for reasons that may pass."""
REMEMBERED: Final = 60 * 86_400 * 1_000_000
"""How long it is remembered that a message was sent, in microseconds."""
SCHEDULE: Final = Schedule((0.0, 1.0, 5.0, 15.0, 30.0), 0.0)
"""Pauses before the attempts of a request, in seconds."""


class Hopeless(GatewayError):
    """No message can be sent there as things are."""


class Later(GatewayError):
    """Nothing is taken there now, and nothing is wrong with the messages."""

    def __init__(self, text: str, wait: float = 0.0) -> None:
        super().__init__(text)
        self.wait = wait
        """Seconds; 0: as long as the caller likes."""


class ResendTarget(Protocol):
    """Where messages go."""

    async def check(self) -> None:
        """Whether it is there at all. Raises GatewayError."""
        ...

    async def signed(self) -> bool | None:
        """Whether requests are signed; None: it sends none."""
        ...

    def refuses(self, place: ReplayPlace | None) -> GatewayError | None:
        """Why it would not take a message that came from there, as far as that can be told before; None: it would."""
        ...

    async def send(self, items: Sequence[ReplayItem]) -> list[ReplayItem]:
        """Send them, in order, and answer with those that are to be tried again; the others are there, or have an
        ``error``.

        Raises:
            Hopeless: none can be sent there.
            Later: none of these was sent; wait, and try again.
        """
        ...

    async def record(self, items: Sequence[ReplayItem]) -> None:
        """Write down that they are there.

        Raises:
            LedgerUnavailable: not written.
        """
        ...


class Recorded:
    """What targets have in common that send something new: an event for the original, what is remembered, and the end
    of what the ledger owed."""

    def __init__(self, gateway: Gateway, job: Job) -> None:
        self._gateway = gateway
        self._job = job

    async def record(self, items: Sequence[ReplayItem]) -> None:
        """Events, the inbox and the end of the delivery, in one commit."""
        at = clock.now_ns() // 1000
        dead = [item for item in items if item.row is not None and item.row.dead]
        if dead:
            await self._gateway.ledger.deliveries.settle(
                [
                    BacklogSettlement(
                        item.row.id, Ending.DONE, entries=tuple(self._entries(item, at)), octets=item.row.size
                    )
                    for item in dead
                    if item.row is not None
                ]
            )
        others = [item for item in items if item.row is None or not item.row.dead]
        if others:
            await self._gateway.ledger.record(
                [entry for item in others for entry in self._entries(item, at)],
                [
                    InboxRow(scope, item.key, item.sha256, item.id, at + REMEMBERED)
                    for item in others
                    for scope in ((self._job.scope, ANY_REPLAY) if item.delivery is not None else (self._job.scope,))
                ],
            )

    def _entries(self, item: ReplayItem, at: int) -> list[LogEntry]:
        """The original's event comes last: what is remembered shares its fate."""
        detail: dict[str, Any] = {"replay": self._job.id, "id": item.text, **self._detail(item)}
        if item.is_marked:
            detail["resent"] = True
        original = LogEntry(item.id, EventKind.REPLAYED, at, *self._where(item), detail, item.original)
        return [*self._sent(item, at), original]

    def _where(self, item: ReplayItem) -> tuple[str, str]:
        """The broker and version it was sent to."""
        return "", ""

    def _detail(self, item: ReplayItem) -> dict[str, str]:
        """The place, for the timeline."""
        return {}

    def _sent(self, item: ReplayItem, at: int) -> list[LogEntry]:
        """The events of what was sent."""
        return []


class BrokerTarget(Recorded):
    """Exchanges of brokers; each message's own place, or the one that was asked for."""

    def __init__(self, gateway: Gateway, job: Job) -> None:
        super().__init__(gateway, job)
        self._target = job.request.target

    async def check(self) -> None:
        """Whether there is such a broker, and the exchange, or the queue behind the default exchange."""
        target, source = self._target, self._job.request.source
        if target.broker:
            self._gateway.broker(target.broker)
        given = source.messages or source.queue
        broker = target.broker or (given.broker if given is not None else "")
        if target.exchange is None or broker not in self._gateway.brokers:
            return
        upstream, exchange = self._gateway.broker(broker), exchange_name(target.exchange)
        try:
            if exchange:
                await upstream.query_exchange(exchange)
            elif target.routing_key:
                await upstream.query_queue(target.routing_key)
        except NotFound as error:
            setting, name = ("exchange", exchange) if exchange else ("routing_key: the queue", target.routing_key)
            text = f"target.{setting} {name!r} is not there on broker {broker!r}. Declare it first, or name another."
            raise NotFound(error.reply_code, text) from None
        except (RemoteError, Unsupported):  # it cannot be asked; each message will tell
            pass

    async def signed(self) -> bool | None:
        return None

    def refuses(self, place: ReplayPlace | None) -> GatewayError | None:
        place = self._place(place)
        if place is None:
            return Unsupported("it does not say where it came from; name a target")
        if place.unsure:
            text = f"it says that it came from broker {place.broker!r}, of which the ledger knows nothing"
            return Unsupported(f"{text}; name the target's broker")
        try:
            self._gateway.broker(place.broker)
        except NoSuchBroker as error:
            return error
        return None

    async def send(self, items: Sequence[ReplayItem]) -> list[ReplayItem]:
        sent: list[tuple[ReplayItem, asyncio.Future[PublishReceipt]]] = []
        for item in items:
            item.error = self.refuses(item.place)
            place = self._place(item.place, item.routing_key)
            if item.error is None and place is not None:
                item.to = place
                sent.append((item, self._publish(self._gateway.broker(place.broker), place, item)))
        again: list[ReplayItem] = []
        away: BrokerUnavailable | None = None
        try:
            for item, future in sent:
                try:
                    receipt = await future
                    if not receipt.routed:
                        raise Unroutable(f"no queue takes {_place_text(item)}: {receipt.reply_text}")
                except BrokerUnavailable as error:
                    away = error.with_traceback(None)  # it holds this frame
                    again.append(item)
                except GatewayError as error:
                    self._judge(item, error, again)
                else:
                    item.resent = item.resent or receipt.resent
        finally:
            for _, future in sent:  # of one that is dropped, nothing waits there for room any more
                future.cancel()
        if away is not None and len(again) == len(sent):
            raise Later(str(away))
        return again

    def _place(self, place: ReplayPlace | None, routing_key: str = "") -> ReplayPlace | None:
        """Where a message goes that came from ``place``; ``routing_key``: as it came last."""
        target = self._target
        if place is not None:
            return place.to(target)
        if target.broker and target.exchange is not None and (target.exchange or target.routing_key):
            return ReplayPlace(target.broker, "", routing_key).to(target)
        return None

    def _publish(self, upstream: Upstream, place: ReplayPlace, item: ReplayItem) -> asyncio.Future[PublishReceipt]:
        entries = {"id": item.text, "replay": self._job.id, "replay_of": id_text(item.id)}
        if item.is_marked:
            entries["resent"] = "1"
        message = copy_of(item.message, entries, annotated=upstream.settings.annotate)
        return upstream.publish_nowait(
            place.exchange, place.routing_key, message, timeout=CONFIRM_TIMEOUT, order=f"replay {self._job.id}"
        )

    def _judge(self, item: ReplayItem, error: GatewayError, again: list[ReplayItem]) -> None:
        """What follows from a refusal."""
        item.resent = item.resent or error.resent or isinstance(error, OutcomeUnknown)
        item.tries += 1
        found = refusal_of(error)
        if found.fault is Fault.SUSPECT and item.tries < min(found.tries, TRIES):
            again.append(item)
        else:
            item.error = error

    def _where(self, item: ReplayItem) -> tuple[str, str]:
        assert item.to is not None
        return item.to.broker, version_name(self._gateway.broker(item.to.broker))

    def _detail(self, item: ReplayItem) -> dict[str, str]:
        assert item.to is not None
        return {"exchange": printable(item.to.exchange), "routing_key": printable(item.to.routing_key)}

    def _sent(self, item: ReplayItem, at: int) -> list[LogEntry]:
        place = item.to
        assert place is not None
        broker, version = self._where(item)
        outgoing = Publication(place.routing_key, item.message)
        message = describe(broker, version, place.exchange, outgoing, self._job.client, "replay")
        detail = {"replay": self._job.id, "of": id_text(item.id)}
        entries = [LogEntry(item.new, EventKind.CONFIRMED, at, broker, version, detail, message)]
        if item.is_marked:
            entries.insert(0, LogEntry(item.new, EventKind.RESENT, at, broker, version, None, message))
        return entries


class HttpTarget(Recorded):
    """An endpoint, or a URL that is called as an endpoint without settings."""

    def __init__(self, gateway: Gateway, job: Job, endpoints: EndpointRegistry, sender: Sender) -> None:
        super().__init__(gateway, job)
        self._endpoints = endpoints
        self._sender = sender

    async def check(self) -> None:
        target = self._job.request.target
        if target.url:
            self._endpoints.check_url(target.url)
        else:
            await self._endpoints.get(target.endpoint)

    async def signed(self) -> bool | None:
        """A URL has no signing keys."""
        target = self._job.request.target
        return not target.url and bool((await self._endpoints.get(target.endpoint)).keys)

    def refuses(self, place: ReplayPlace | None) -> GatewayError | None:
        return None

    async def _endpoint(self) -> Endpoint:
        """Where it goes now. Raises Hopeless, Later."""
        target = self._job.request.target
        if target.url:
            return Endpoint("", EndpointSettings(url=target.url, signing=()), "", read_only=True)
        try:
            endpoint = await self._endpoints.get(target.endpoint)
        except NoSuchEndpoint as error:
            raise Hopeless(str(error)) from None
        if endpoint.state is EndpointState.ACTIVE:
            return endpoint
        raise Later(f"the endpoint {endpoint.name!r} is {endpoint.state}: {endpoint.reason}")

    async def send(self, items: Sequence[ReplayItem]) -> list[ReplayItem]:
        endpoint = await self._endpoint()
        settings = endpoint.settings
        size = settings.batch_max if settings.format in BATCHED else 1
        groups = [items[begin : begin + size] for begin in range(0, len(items), size)]
        slots = asyncio.Semaphore(settings.concurrency)
        again: set[ReplayItem] = set()
        stops: list[NextStep] = []

        async def call(group: Sequence[ReplayItem]) -> None:
            async with slots:
                if stops:  # it wants to be left alone
                    again.update(group)
                else:
                    await self._request(endpoint, group, again, stops)

        await asyncio.gather(*(call(group) for group in groups))
        if stops and len(again) == len(items):
            if stops[0].outcome is AttemptOutcome.DISABLE:
                raise Hopeless(stops[0].why)
            raise Later(stops[0].why, stops[0].pause)
        return [item for item in items if item in again]

    async def _request(
        self, endpoint: Endpoint, group: Sequence[ReplayItem], again: set[ReplayItem], stops: list[NextStep]
    ) -> None:
        """One request, and what follows from its answer."""
        now = clock.now()
        outcome = await self._sender.send(endpoint, [self._outgoing(item) for item in group], int(now))
        attempt = max(item.tries for item in group) + 1
        if outcome.error is not None:
            next_step = SCHEDULE.after_error(attempt, outcome.error, fraction)
        else:
            next_step = SCHEDULE.after_status(
                attempt, outcome.status or 0, outcome.retry_after, now, fraction, drop=outcome.drop
            )
        error = outcome.error or OutboundFailed(next_step.why)
        if next_step.outcome in (AttemptOutcome.DISABLE, AttemptOutcome.PAUSE):
            stops.append(next_step)
        for index, item in enumerate(group):
            if index in outcome.undeliverable:
                item.error = EncodeError(outcome.undeliverable[index])
                continue
            if next_step.outcome is AttemptOutcome.DELIVERED:
                item.status = outcome.status
                item.resent = item.resent or outcome.resent
                continue
            item.resent = item.resent or outcome.status is not None or error.outcome == "unknown"
            if next_step.outcome is AttemptOutcome.RETRY:
                item.tries += 1
            if next_step.outcome in (AttemptOutcome.UNDELIVERABLE, AttemptOutcome.DROP) or item.tries >= TRIES:
                item.error = error
            else:
                again.add(item)

    def _outgoing(self, item: ReplayItem) -> PushedMessage:
        place = item.place
        return PushedMessage(
            id=item.text,
            message_id=id_text(item.id),
            subscription=item.row.subscription if item.row is not None else "",
            broker=place.broker if place is not None else "",
            queue=place.queue if place is not None else "",
            exchange=item.exchange,
            routing_key=item.routing_key,
            message=item.message,
            attempt=item.tries + 1,
            redelivered=True,
            resent=item.is_marked,
        )

    def _detail(self, item: ReplayItem) -> dict[str, str]:
        target = self._job.request.target
        where = {"endpoint": target.endpoint} if target.endpoint else {"url": target.url}
        return where | {"status": str(item.status)}


class SubscriptionTarget:
    """Back to the subscriptions that owe them: dead messages are to be handed out, or pushed, once more."""

    def __init__(self, gateway: Gateway, job: Job) -> None:
        self._gateway = gateway
        self._job = job

    async def check(self) -> None:
        """They are there."""

    async def signed(self) -> bool | None:
        return None

    def refuses(self, place: ReplayPlace | None) -> GatewayError | None:
        return None

    async def send(self, items: Sequence[ReplayItem]) -> list[ReplayItem]:
        """There is nothing to send."""
        return []

    async def record(self, items: Sequence[ReplayItem]) -> None:
        """Revive them; one that is not dead any more is left as it is."""
        at = clock.now_ns() // 1000
        detail = {"replay": self._job.id}
        rows = [item.row for item in items if item.row is not None]
        settlements = await revivals(self._gateway, rows, at, detail)
        results = await self._gateway.ledger.deliveries.settle(settlements)
        for item, done in zip(items, results, strict=True):
            if not done:
                item.error = StateError("it is not dead any more")
        for name in {row.subscription for row in rows}:
            self._gateway.deliveries_changed(name)


class PurgeTarget(SubscriptionTarget):
    """Nowhere: dead messages are deleted."""

    async def record(self, items: Sequence[ReplayItem]) -> None:
        """Delete them; one that is not dead any more is left as it is."""
        at = clock.now_ns() // 1000
        rows = [item.row for item in items if item.row is not None]
        by = {"replay": self._job.id, "client": self._job.client}
        results = await self._gateway.ledger.deliveries.settle([discard(row, at, by) for row in rows])
        for item, done in zip(items, results, strict=True):
            if not done:
                item.error = StateError("it is not dead any more")
        for name in {row.subscription for row in rows}:
            self._gateway.deliveries_changed(name)


def discard(row: BacklogEntry, at: int, by: dict[str, str]) -> BacklogSettlement:
    """Return the settlement that deletes a dead delivery, and no other; ``by``: who has it deleted."""
    entry = LogEntry(row.message_id, EventKind.PURGED, at, "", "", {"subscription": row.subscription, **by})
    return BacklogSettlement(row.id, Ending.DISCARD, entries=(entry,), octets=row.size)


async def revivals(
    gateway: Gateway, rows: Sequence[BacklogEntry], at: int, detail: dict[str, str]
) -> list[BacklogSettlement]:
    """Target that makes dead deliveries pending again. Their attempts count on: one that is pushed is tried once
    more, and a pulled one may be handed out once more though ``max_deliveries`` are used up."""
    most: dict[str, int] = {}
    for name in {row.subscription for row in rows}:
        try:
            settings = (await gateway.subscriptions.get(name)).settings
        except NoSuchSubscription:
            continue
        if not settings.push:
            most[name] = settings.max_deliveries
    settlements = []
    for row in rows:
        attempt = min(row.attempt, limit - 1) if (limit := most.get(row.subscription, 0)) else None
        entry = LogEntry(row.message_id, EventKind.REVIVED, at, "", "", {"subscription": row.subscription, **detail})
        settlements.append(BacklogSettlement(row.id, Ending.REVIVE, attempt=attempt, entries=(entry,)))
    return settlements


def _place_text(item: ReplayItem) -> str:
    place = item.to
    return f"{place.routing_key!r} at {place.exchange!r}" if place is not None else ""
