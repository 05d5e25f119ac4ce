"""Leases that the ledger holds: what is pulled is stored first, acknowledged to its broker, and handed out from SQL.

::

    pull ──claim──> due in the ledger ──────────────────────────────────────────────┐
      └─ missing ──fetch──> read ──> stored as handed out (one commit) ──> acknowledged to the broker ──> handed over

A pull takes what is due in the ledger first (released, expired, revived, or stored by an intake), and what is missing
from the broker, on demand. Stored messages are remembered in the inbox, so that a redelivery after a crash between the
commit and the broker's acknowledgement is recognized (:mod:`gateway.core.sources.arrivals`).

A lease is a number and a time in the ledger's row. It survives the process, and any process with the same key ends it:
``acknowledge`` removes the row, ``release`` makes it due again, with or without a delay, and a lease that runs out does
the same. Each time that it is handed out counts as an attempt; when ``max_deliveries`` are used up, or it is rejected,
it goes to the dead-letter place, confirmed, and where there is none, or it takes nothing, it stays dead in the ledger.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from functools import partial
from typing import Final

from gateway.amqp.operations import Settlement
from gateway.budgets import ShareHolder
from gateway.core.leasing.ack_ids import AckIds
from gateway.core.leasing.backlogs import Backlogs, SubscriptionBacklog
from gateway.core.leasing.lease_kind import LeaseKind
from gateway.core.leasing.ledger_settling import LedgerSettling, entry_of, used_up
from gateway.core.leasing.parts import Parts
from gateway.core.leasing.pulled import LedgerLease, Pulled
from gateway.core.publishing.envelopes import EnvelopeError
from gateway.core.sources.arrivals import READERS_MAX, Arrival, Arrivals, Readers, now_us
from gateway.core.sources.dead_letters import place_of
from gateway.core.sources.deduplicator import Deduplicator, PullMemory
from gateway.core.sources.fetching import Fetch, settle
from gateway.core.sources.intake import IntakeBatch, turn_away
from gateway.core.sources.own_queues import queue_of
from gateway.core.sources.stored import open_envelope
from gateway.core.sources.turns import Turns
from gateway.core.subscriptions import SubscriptionResource, discards_unmatched
from gateway.errors import GatewayError, Overloaded
from gateway.ledger import EventKind, LogEntry, id_text
from gateway.ledger.pending.owed import BacklogEntry
from gateway.limits import PULL_MAX
from gateway.observing.telemetry import log
from gateway.runtime.clock import clock
from gateway.upstreams import Delivery, Upstream

BACKLOG_EVERY: Final = 5.0
"""How often the ledger is asked how much it holds for a subscription that is pulled from, in seconds."""
DOUBTED: Final = 1_000
"""After a broker has come back, so many of its messages may be redeliveries of which it does not know any more."""


class LedgerLeases(LedgerSettling, LeaseKind):
    """The leases of subscriptions with ``lease = "ledger"``."""

    def __init__(self, parts: Parts, ack_ids: AckIds, backlogs: Backlogs, draining: asyncio.Future[None]) -> None:
        super().__init__(parts, ack_ids, backlogs)
        self._draining = draining
        self._readers = Readers(parts.ids)
        self._doubted: dict[str, int] = {}
        self._deduplicators: dict[str, Deduplicator[Arrival]] = {}

    def broker_is_up(self, broker: str) -> None:
        """A broker has come back; it may have forgotten what it delivered."""
        self._doubted[broker] = DOUBTED

    # --------------------------------------------------------------------------------------------- pull

    async def pull(
        self,
        subscription: SubscriptionResource,
        max_messages: int,
        wait: float,
        seconds: float | None,
        gone: asyncio.Future[None] | None,
        client: ShareHolder,
        bytes_max: int = PULL_MAX,
    ) -> list[Pulled]:
        """See :meth:`gateway.core.leasing.consuming.Consuming.pull`."""
        length = float(seconds if seconds is not None else subscription.settings.ack_deadline_seconds)
        backlog = self._backlogs[subscription.name]
        backlog.pulls += 1
        try:
            pulled = await self._claim(subscription, backlog, max_messages, length, bytes_max)
            bytes_left = bytes_max - _size_of(pulled)
            if subscription.ordered:
                if not pulled and wait:
                    pulled = await self._wait_for_row(
                        subscription, backlog, max_messages, length, wait, gone, bytes_max
                    )
            elif len(pulled) < max_messages and bytes_left > 0 and not (pulled and backlog.may_be_due()):
                wanted = max_messages - len(pulled)
                patience = 0.0 if pulled else wait
                try:
                    pulled += await self._take(subscription, backlog, wanted, length, patience, gone, bytes_left)
                except BaseException as error:
                    # What is claimed is handed over all the same: the trouble shows with the next pull.
                    if not pulled or not isinstance(error, GatewayError):
                        self.hand_back(pulled, "the caller is gone")
                        raise
        finally:
            backlog.pulls -= 1
        self._count(subscription.settings.broker, "delivered", len(pulled))
        return pulled

    async def left_over(
        self, subscription: SubscriptionResource, max_messages: int, seconds: float | None, bytes_max: int
    ) -> list[Pulled]:
        """What the ledger still owes to a subscription whose messages their broker holds now: what it was handed, or
        pushed, with other settings. It is looked once in a while, as for any other."""
        backlog = self._backlogs[subscription.name]
        if not backlog.may_be_due():
            return []
        backlog.asked()  # before it is: what is new from now on is looked for again
        if not await self._parts.ledger.deliveries.due(subscription.name, 1):
            backlog.emptied()
            return []
        backlog.found()
        length = float(seconds if seconds is not None else subscription.settings.ack_deadline_seconds)
        pulled = await self._claim(subscription, backlog, max_messages, length, bytes_max)
        self._count(subscription.settings.broker, "delivered", len(pulled))
        return pulled

    async def _claim(
        self,
        subscription: SubscriptionResource,
        backlog: SubscriptionBacklog,
        limit: int,
        seconds: float,
        bytes_max: int,
    ) -> list[Pulled]:
        """What is due in the ledger. Where more is due than ``bytes_max`` allows, the backlog says so."""
        pulled: list[Pulled] = []
        while len(pulled) < limit and backlog.may_be_due():
            wanted = limit - len(pulled)
            most = subscription.settings.max_deliveries
            backlog.asked()
            asked_at = clock.monotonic()
            rows = await self._parts.ledger.deliveries.claim(
                subscription.name,
                wanted,
                seconds,
                ordered=subscription.ordered,
                octets_max=bytes_max,
                entries=partial(_delivered, subscription.settings.broker, subscription.name, most),
            )
            if len(rows) < wanted and not rows.is_cut:
                backlog.emptied()
            else:
                backlog.found()
            if rows:
                backlog.due_in(seconds)
            tired = [row for row in rows if 0 < most < row.attempt]
            if tired:
                await self.give_up(subscription, tired, used_up(most), "delivery_limit", most)
                if clock.monotonic() - asked_at >= seconds:
                    break  # their leases have ended meanwhile, and another pull may have the others
            await self._open([row for row in rows if row not in tired], subscription, pulled)
            if subscription.ordered and tired:
                backlog.found()  # what was behind them is due now
            bytes_max -= sum(row.size for row in rows if row not in tired)
            if bytes_max <= 0 or (pulled and rows.is_cut) or (len(rows) < wanted and not tired and not rows.is_cut):
                break
        return pulled

    async def _open(
        self, rows: Sequence[BacklogEntry], subscription: SubscriptionResource, pulled: list[Pulled]
    ) -> None:
        """Add rows that were claimed to what is handed over, in turns: all of them may be large. If the caller goes
        away meanwhile, they go back with the others."""
        turns = Turns()
        left = iter(rows)
        try:
            for row in left:
                if (item := self._opened(subscription, row)) is not None:
                    pulled.append(item)
                await turns.over()
        except asyncio.CancelledError:
            pulled += [item for row in left if (item := self._opened(subscription, row)) is not None]
            self.hand_back(pulled, "the caller is gone")
            raise

    def _opened(self, subscription: SubscriptionResource, row: BacklogEntry) -> Pulled | None:
        """A row that was claimed. One that is damaged stays out until its lease ends, and is reported."""
        try:
            stored = open_envelope(row.payload or b"")
        except EnvelopeError as error:
            log(
                "subscription.damaged", logging.WARNING, subscription=row.subscription,
                message_id=id_text(row.message_id), delivery=id_text(row.id), reason=str(error),
            )  # fmt: skip
            return None
        lease = self._lease(subscription, row.id, row.message_id, row.lease, row.attempt)
        again = row.attempt > 1 or (row.lease > 1 and subscription.settings.max_deliveries == 1)
        redelivered = stored.redelivered or again
        # A retry of a dead one may have set it back, and nobody counted while the broker held its leases.
        by_ledger = subscription.settings.lease == "ledger" or not stored.redelivered
        known = by_ledger and row.attempt == row.lease
        attempt = row.attempt if known else None
        resent = stored.resent or row.reason.get("resent") is True
        return Pulled(lease, row.message_id, attempt, stored, False, resent, redelivered)

    def _lease(
        self, subscription: SubscriptionResource, delivery: bytes, message_id: bytes, number: int, attempt: int
    ) -> LedgerLease:
        ack_ids, name = self._ack_ids, subscription.name
        ack_id = ack_ids.make_ledger(delivery, message_id, number, attempt, ack_ids.mark(name))
        return LedgerLease(ack_id, delivery, message_id, number, name, subscription.settings.broker)

    async def _wait_for_row(
        self,
        subscription: SubscriptionResource,
        backlog: SubscriptionBacklog,
        limit: int,
        seconds: float,
        wait: float,
        gone: asyncio.Future[None] | None,
        bytes_max: int,
    ) -> list[Pulled]:
        """What comes to be due in the ledger; with an order key that is all there is."""
        deadline = clock.monotonic() + wait
        others = [self._draining] if gone is None else [self._draining, gone]
        while not any(other.done() for other in others) and (left := deadline - clock.monotonic()) > 0:
            news = backlog.wait()
            try:
                until = min(left, max(backlog.next_look() - clock.monotonic(), 0.0))
                await asyncio.wait([news, *others], timeout=until, return_when=asyncio.FIRST_COMPLETED)
            finally:
                backlog.leave(news)
            if pulled := await self._claim(subscription, backlog, limit, seconds, bytes_max):
                return pulled
        return []

    async def _take(
        self,
        subscription: SubscriptionResource,
        backlog: SubscriptionBacklog,
        wanted: int,
        seconds: float,
        wait: float,
        gone: asyncio.Future[None] | None,
        bytes_max: int,
    ) -> list[Pulled]:
        """From the broker; where there is time to wait, what comes to be due in the ledger meanwhile."""
        settings = subscription.settings
        upstream = self._parts.find(settings.broker)
        await self._parts.own_queues.ensure(subscription.name, settings)
        wanted = min(wanted, await self._room(subscription, backlog))
        queue = queue_of(subscription.name, settings)
        if wanted <= 0:
            if not wait:
                return []
            return await self._wait_for_row(subscription, backlog, wanted or 1, seconds, wait, gone, bytes_max)
        if not wait:
            deliveries = await upstream.fetch(queue, wanted, 0.0, bytes_max)
            return await self._store(subscription, backlog, upstream, deliveries, seconds)
        deadline = clock.monotonic() + wait
        others = [self._draining] if gone is None else [self._draining, gone]
        fetch: Fetch | None = None
        try:
            while True:
                if fetch is None:
                    fetch = Fetch(upstream, queue, wanted, max(0.0, deadline - clock.monotonic()), bytes_max)
                news = backlog.wait()
                try:
                    await fetch.wait([news, *others], max(backlog.next_look() - clock.monotonic(), 0.0))
                finally:
                    backlog.leave(news)
                over = any(other.done() for other in others)
                if fetch.done or over:
                    ending, fetch = fetch, None
                    pulled = await self._store(subscription, backlog, upstream, await ending.end(), seconds)
                    if pulled or over or clock.monotonic() >= deadline:
                        return pulled
                elif pulled := await self._claim(subscription, backlog, wanted, seconds, bytes_max):
                    return pulled
        finally:
            if fetch is not None:
                fetch.close()

    async def _room(self, subscription: SubscriptionResource, backlog: SubscriptionBacklog) -> int:
        """How many more messages the ledger may hold for it."""
        now = clock.monotonic()
        most = subscription.settings.backlog_max
        asked_at = backlog.backlog_asked_at
        if asked_at is None or now - asked_at >= BACKLOG_EVERY or backlog.held >= most:
            found = await self._parts.ledger.deliveries.backlog(subscription.name)
            backlog.held = found.waiting + found.out + found.dead
            backlog.backlog_asked_at = now
            if backlog.held >= most and found.dead == backlog.held:
                raise Overloaded(
                    f"the ledger holds {found.dead} dead messages of the subscription, and backlog_max is {most}: "
                    "retry or purge them"
                )
        return most - backlog.held

    # -------------------------------------------------------------------------------------------- store

    async def _store(
        self,
        subscription: SubscriptionResource,
        backlog: SubscriptionBacklog,
        upstream: Upstream,
        deliveries: Sequence[Delivery],
        seconds: float,
    ) -> list[Pulled]:
        """Store what came as handed out, and acknowledge it to the broker. A caller who goes away meanwhile does not
        stop that; what was stored for it goes back."""
        # What was lost while the pull asked the ledger comes again, and another pull may have it.
        deliveries = [delivery for delivery in deliveries if not delivery.lost]
        if not deliveries:
            return []
        work = asyncio.get_running_loop().create_task(
            self._store_now(subscription, backlog, upstream, deliveries, seconds), name="store"
        )
        backlog.store(work)
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            work.add_done_callback(self._orphaned)
            raise

    def _orphaned(self, work: asyncio.Task[list[Pulled]]) -> None:
        if not work.cancelled() and work.exception() is None:
            self.hand_back(work.result(), "the caller is gone")

    async def _store_now(
        self,
        subscription: SubscriptionResource,
        backlog: SubscriptionBacklog,
        upstream: Upstream,
        deliveries: Sequence[Delivery],
        seconds: float,
    ) -> list[Pulled]:
        arrivals = self._readers.of(subscription, upstream)
        deduplicator = self._deduplicator(subscription, arrivals)
        work = asyncio.current_task()
        assert work is not None
        brought: list[Arrival] = []
        try:
            wanted, unwanted = await arrivals.sort_many(deliveries)
            if unwanted:
                discards = discards_unmatched(subscription.settings)
                await turn_away(self._parts, arrivals, place_of(subscription.settings), discards, unwanted)
                for arrival, _ in unwanted:
                    settle(arrival.delivery, Settlement.ACCEPT)
                self._count(upstream.name, "filtered", len(unwanted))
            fresh = self._is_fresh(upstream.name, len(wanted))
            doubtful = [arrival for arrival in wanted if deduplicator.is_doubtful(arrival) or fresh]
            backlog.storing[work] = frozenset(arrival.key for arrival in wanted if arrival.key)
            await backlog.stored_before({arrival.key for arrival in doubtful if arrival.key}, work)
            known = (await deduplicator.find(doubtful, batch=wanted)).known
            new = [arrival for arrival in wanted if arrival not in known]
            deduplicator.brought(new)  # before the inbox knows of them, for another pull may ask it then
            brought = wanted
            batch = await IntakeBatch.of_many(arrivals, new, seconds)
            await batch.write(self._parts)
        except BaseException:
            # Where the commit happened and nobody can tell, the redelivery is recognised, or is a second copy.
            deduplicator.given_back(brought)
            for delivery in deliveries:
                settle(delivery, Settlement.RELEASE)
            raise
        for arrival in wanted:
            if not settle(arrival.delivery, Settlement.ACCEPT if arrival.id else Settlement.RELEASE) or not arrival.id:
                deduplicator.given_back((arrival,))
        self._count(upstream.name, "duplicate_dropped", len(known))
        if batch.owed:
            backlog.held += len(batch.owed)
            backlog.due_in(seconds)
        return [
            Pulled(
                self._lease(subscription, row.id, row.message_id, 1, 1),
                row.message_id,
                1,
                arrival.delivery,
                arrival.first,
                arrival.resent,
                arrival.redelivered,
            )
            for arrival, row in zip(batch.new, batch.owed, strict=True)
        ]

    def _deduplicator(self, subscription: SubscriptionResource, arrivals: Arrivals) -> Deduplicator[Arrival]:
        found = self._deduplicators.get(subscription.name)
        if found is None:
            if len(self._deduplicators) >= READERS_MAX:
                self._deduplicators.clear()
            ledger, scope = self._parts.ledger, arrivals.scope
            found = Deduplicator(lambda keys: ledger.seen(scope, keys), first=0, memory=PullMemory())
            self._deduplicators[subscription.name] = found
        return found

    def _is_fresh(self, broker: str, count: int) -> bool:
        left = self._doubted.get(broker, 0)
        if left:
            self._doubted[broker] = max(0, left - count)
        return left > 0


def _size_of(pulled: Sequence[Pulled]) -> int:
    return sum(len(item.delivery.message.body) for item in pulled)


def _delivered(broker: str, subscription: str, most: int, rows: list[BacklogEntry]) -> list[LogEntry]:
    """The events of rows that are being handed out; ``most``: beyond so many attempts they are not. Runs on the
    writer's thread."""
    at = now_us()
    entries = []
    for row in rows:
        if row.expired:
            entries.append(
                entry_of(row.message_id, EventKind.LEASE_EXPIRED, at, broker, subscription, lease=row.lease - 1)
            )
        if not 0 < most < row.attempt:
            entries.append(
                entry_of(
                    row.message_id, EventKind.DELIVERED, at, broker, subscription, lease=row.lease, attempt=row.attempt
                )
            )
    return entries
