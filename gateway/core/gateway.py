"""The object graph of a running gateway: named brokers, the ledger, and what is done with them.

``start`` brings the brokers' links up in the background and resolves what an earlier process left in doubt;
``drain`` stops taking work; ``close`` lets confirms come in, gives leases back, writes what waits, and closes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, Final

from gateway.budgets import Budgets
from gateway.config import SubscriptionSettings
from gateway.core.leasing.ack_ids import AckIds
from gateway.core.leasing.consuming import Consuming
from gateway.core.leasing.leases import Leases
from gateway.core.leasing.parts import Parts
from gateway.core.publishing.keyed_messages import KeyedMessages
from gateway.core.publishing.keys import KeyedAnswer, KeyedPublisher, KeyedRequest, Render
from gateway.core.publishing.outbox import OUTBOX_WORK, Outbox
from gateway.core.publishing.publisher import Publication, Publisher, PublishOutcome
from gateway.core.publishing.sending import OutboxSender
from gateway.core.retired import Retired
from gateway.core.sources.byte_budget import ByteBudget
from gateway.core.sources.dead_letters import DeadLetterPublisher
from gateway.core.sources.delivery_limits import DeliveryLimitGuard
from gateway.core.sources.intakes import INTAKE_WORK, Intakes
from gateway.core.sources.looking import Looker
from gateway.core.sources.own_queues import OwnQueues
from gateway.core.subscriptions import SubscriptionRegistry
from gateway.core.topology import Topology
from gateway.core.work.auditor import Auditor
from gateway.core.work.ledger_budgets import LedgerBudgets
from gateway.core.work.observer import Observer
from gateway.core.work.ownership import Ownership
from gateway.core.work.peers import Peers
from gateway.core.work.recorder import Recorder
from gateway.errors import GatewayError, NoSuchBroker, NoSuchMessage
from gateway.ledger import EventKind, Ledger, MessageFilter, MessageIds, StoredMessage, Timeline, parse_id
from gateway.management import Inventory
from gateway.observing.telemetry import Metrics, log
from gateway.runtime.tasks import Tasks
from gateway.tracing import Tracer
from gateway.upstreams import Oversized, Upstream, UpstreamState

SUBSCRIPTION: Final = "subscription"
RESTORE_WITHIN: Final = 5.0
"""How long the start waits for a broker of its own, in seconds."""
"""Notice to other processes about a subscription that changed."""
UP: Final = frozenset({UpstreamState.UP, UpstreamState.BLOCKED})
CALM: Final = frozenset({UpstreamState.CONNECTING, UpstreamState.UP, UpstreamState.CLOSED})
"""States in which nothing is wrong with a broker."""


class Gateway:
    """What the HTTP API works with."""

    def __init__(
        self,
        ledger: Ledger,
        brokers: Mapping[str, Upstream],
        metrics: Metrics,
        *,
        subscriptions: Mapping[str, SubscriptionSettings] | None = None,
        ack_key: bytes,
        peers: Peers | None = None,
        confirm_timeout: float = 30.0,
        intent_always: bool = False,
        takes_work: bool = True,
        tracer: Tracer | None = None,
        budgets: Budgets | None = None,
    ) -> None:
        """``takes_work`` False: what one process at a time may do is done by others. ``tracer`` None: nothing is
        traced."""
        self.ledger = ledger
        self.brokers = dict(brokers)
        self.metrics = metrics
        self.budgets = budgets if budgets is not None else Budgets()
        """How much of everything one client may hold."""
        metrics.show_budgets(self.budgets)
        ledger.share_queue(self.budgets["ledger_rows"])
        self.tracer = tracer if tracer is not None else Tracer(exports=False)
        self.confirm_timeout = confirm_timeout
        self.leaving = False
        self.draining = False
        self.ids = ids = MessageIds()
        """Makes the ids of messages."""
        self.peers = peers if peers is not None else Peers(ledger, metrics)
        """The other processes on the ledger."""
        self.ownership = Ownership(ledger, self.peers, metrics, takes_work=takes_work)
        """Which work is this process's."""
        self._recorder = Recorder(ledger, metrics)
        self._publisher = Publisher(ledger, ids, metrics, intent_always)
        self._keyed = KeyedPublisher(ledger, self._publisher)
        self._keyed_messages = KeyedMessages(ledger, self._publisher)
        ack_ids = AckIds(ack_key, self.peers.me.id)
        self._leases = Leases(
            ack_ids,
            self.budgets["leases"],
            lambda leases: self.consuming.expired(leases),
            lambda lease: self.consuming.lost(lease),
            self.budgets["lease_bytes"],
        )
        self.parts = Parts(
            ledger, ids, metrics, self._recorder, self.broker, DeadLetterPublisher(self.broker), OwnQueues(self.broker),
            ByteBudget(self.budgets["held_bytes"]),
        )  # fmt: skip
        """What takes messages for subscriptions works with these."""
        self.subscriptions = SubscriptionRegistry(ledger, self.broker, subscriptions or {}, self.parts.own_queues)
        self.consuming = Consuming(self.parts, self._leases, ack_ids, self.subscriptions, self.peers)
        self._delivery_limits = DeliveryLimitGuard(self.parts, self.subscriptions.all)
        self.intakes = Intakes(self.parts, self.subscriptions, self.consuming.backlogs)
        """What takes messages in order for those who pull."""
        self.ownership.register(INTAKE_WORK, self.intakes)
        self.subscriptions.on_change.append(self._subscription_changed)
        self.peers.listen(SUBSCRIPTION, self._subscription_changed_elsewhere)
        self._declaring = Tasks("declare queues")
        self.inventory = Inventory(self.brokers)
        """The queues of every broker."""
        self.topology = Topology(ledger, self._publisher, self.broker, self.inventory.changed)
        self.inventory.sources += [partial(self.topology.all_queues, self.brokers), self.subscriptions.queues]
        self.looker = Looker(self.inventory, self.brokers)
        """Shows what is in a queue."""
        self.on_owed: list[Callable[[str], None]] = []
        """Called with the name of a subscription of which dead messages were revived, say."""
        self.ledger_budgets = LedgerBudgets(ledger, self.budgets)
        """How much of it the ledger holds for whom."""
        sender = OutboxSender(ledger, self._publisher, self.brokers, metrics, self.ledger_budgets, tracer)
        self.outbox = Outbox(
            ledger,
            self._publisher,
            self.brokers,
            metrics,
            partial(self.ownership.changed, OUTBOX_WORK),
            self.ledger_budgets,
            sender,
        )
        """Publishes that still have to be sent."""
        self.ownership.register(OUTBOX_WORK, sender)
        self.auditor = Auditor(ledger, metrics)
        """Looks for what was lost."""
        self.observer = Observer(ledger, metrics)
        """Shows what the ledger owes."""
        ledger.on_commit = metrics.ledger_commit_seconds.observe
        ledger.on_outdated = metrics.fencing_rejections.labels("shard").inc
        self.retired = Retired()
        """Brokers that others have taken the place of."""
        self._orders: dict[tuple[str, str], tuple[Upstream, int]] = {}
        """Broker and order of publishes under way -> where they go, and how many."""

    # -------------------------------------------------------------------------------------- start, close

    async def start(self, in_memory: Collection[str] = ()) -> None:
        """Connect to the brokers and resolve what is in doubt, both in the background. ``in_memory``: brokers that have
        just started empty. What was declared there through the gateway is declared again before anything uses it."""
        for upstream in self.brokers.values():
            self._attend(upstream)
            await upstream.start()
        await asyncio.gather(*(self._restore(name) for name in in_memory if name in self.brokers))
        self.ledger.on_takeover = self.outbox.sender.recover_soon
        self.outbox.sender.recover_soon()
        await self.ownership.start()
        self.ledger_budgets.start()
        self.auditor.start()
        self.observer.start()

    async def _restore(self, name: str) -> None:
        try:
            await self.topology.restore(name, RESTORE_WITHIN)
        except GatewayError as error:
            log("topology.not_restored", logging.WARNING, broker=name, reason=str(error))

    def leave(self) -> None:
        """Be no longer ready, and go on with everything until ``drain``."""
        self.leaving = True

    def drain(self) -> None:
        """Be no longer ready; waiting pulls end, new ones are refused. Publishes go on until the ports are closed."""
        self.draining = True
        self.consuming.drain()

    async def close(self, within: float) -> None:
        """Finish, within ``within`` seconds: keyed publishes, leases, events, links. The ledger stays open."""
        self.drain()
        await self.inventory.close()
        await asyncio.gather(self.auditor.close(), self.observer.close(), self.ledger_budgets.close())
        await self.ownership.close(within)
        parts = self._publisher, self._keyed, self._keyed_messages, self.outbox.sender
        await asyncio.gather(*(part.close(within) for part in parts))
        self._declaring.cancel()
        await self.parts.own_queues.close()
        await self.consuming.close()
        await self._delivery_limits.close(within)
        await asyncio.gather(
            self.retired.close(within), *(upstream.close(within) for upstream in self.brokers.values())
        )
        await self._recorder.close(within)
        await self.peers.close()

    def deliveries_changed(self, subscription: str) -> None:
        """Pending messages of a subscription were changed: the part that hands them out looks now."""
        self.consuming.backlogs[subscription].news()
        for call in self.on_owed:
            call(subscription)

    def _subscription_changed(self, name: str) -> None:
        self.peers.tell(SUBSCRIPTION, {"name": name})
        self.ownership.reread(INTAKE_WORK, name)
        self.consuming.changed(name)

    def _subscription_changed_elsewhere(self, news: Mapping[str, Any]) -> None:
        name = str(news.get("name", ""))
        self.subscriptions.forget(name)
        self.consuming.changed(name)

    def _attend(self, upstream: Upstream) -> None:
        upstream.on_state.append(self._broker_changed)
        self._delivery_limits.attend(upstream)
        upstream.on_oversized.append(partial(self._oversized, upstream.name))
        self.metrics.publishes.labels(
            upstream.name, EventKind.UNKNOWN.value
        )  # from 0 on, or its first would be no rise
        upstream.on_answered.append(self.metrics.confirm_seconds.labels(upstream.name).observe)

    def change_brokers(self, made: Mapping[str, Upstream], gone: Collection[str]) -> None:
        """Have these brokers under their names from now on, and none under those that are ``gone``. What is under way
        at the ones before comes to its end there."""
        self.parts.own_queues.forget_all()
        for name in gone:
            self._retire(self.brokers.pop(name))
            metrics = self.metrics
            for gauge in (
                metrics.broker_up, metrics.broker_blocked, metrics.unconfirmed, metrics.unconfirmed_oldest
            ):  # fmt: skip
                gauge.remove(name)
        for name, upstream in made.items():
            before = self.brokers.get(name)
            self.brokers[name] = upstream
            self._publisher.forget_queues(name)  # it may be another broker altogether
            if before is not None:
                self._retire(before)
            self._attend(upstream)
            self.outbox.sender.attend(upstream)
            self._broker_changed(upstream)

    def _retire(self, upstream: Upstream) -> None:
        upstream.on_state.remove(self._broker_changed)
        self.retired.add(upstream)

    def _broker_changed(self, upstream: Upstream) -> None:
        if upstream.state is UpstreamState.UP:
            self.consuming.broker_is_up(upstream.name)
            self._declaring.start(self.subscriptions.declare_queues(upstream.name))
        log(
            "broker.state", logging.INFO if upstream.state in CALM else logging.WARNING,
            broker=upstream.name, state=upstream.state.value, reason=upstream.reason,
        )  # fmt: skip
        self.metrics.broker_up.labels(upstream.name).set(upstream.state is UpstreamState.UP)
        self.metrics.broker_blocked.labels(upstream.name).set(upstream.state is UpstreamState.BLOCKED)

    def measure(self) -> None:
        """Bring up to date what of the metrics is only looked at when somebody asks."""
        for name, upstream in self.brokers.items():
            self.metrics.broker_up.labels(name).set(upstream.state is UpstreamState.UP)
            self.metrics.broker_blocked.labels(name).set(upstream.state is UpstreamState.BLOCKED)
            self.metrics.unconfirmed.labels(name).set(upstream.status().pending)
            self.metrics.unconfirmed_oldest.labels(name).set(upstream.unconfirmed_for)
        self.metrics.leases_oldest.set(self._leases.oldest)
        self.metrics.ledger_waiting.set(self.ledger.waiting)
        self.metrics.ledger_disk_free.set(self.ledger.disk.free_bytes)
        self.metrics.ledger_disk_reserve.set(self.ledger.disk.reserve_bytes)
        self.ready()

    def _oversized(self, broker: str, oversized: Oversized) -> None:
        self.metrics.deliveries.labels(broker, "oversized").inc()
        log(
            "broker.message_too_large",
            logging.WARNING,
            broker=broker,
            queue=oversized.queue,
            size=oversized.size,
            limit=oversized.limit,
        )

    def ready(self) -> list[str]:
        """What stands in the way of serving; empty: nothing."""
        reasons = []
        if self.leaving or self.draining:
            reasons.append("shutting down")
        writable, reason = self.ledger.ready()
        self.metrics.ledger_up.set(writable)
        if not writable:
            reasons.append(f"ledger: {reason}")
        elif self.ledger.disk.is_low:
            reasons.append(f"ledger: {self.ledger.disk.reason}")
        reasons.extend(
            f"broker {name}: {upstream.state.value} {upstream.reason}".rstrip()
            for name, upstream in self.brokers.items()
            if upstream.settings.required and upstream.state not in UP
        )
        return reasons

    # ------------------------------------------------------------------------------------------- brokers

    def broker(self, name: str) -> Upstream:
        """A broker by name. Raises NoSuchBroker."""
        upstream = self.brokers.get(name)
        if upstream is None:
            raise NoSuchBroker(f"no broker {name!r} is configured")
        return upstream

    # ------------------------------------------------------------------------------------------- publish

    async def publish(
        self,
        broker: str,
        exchange: str,
        messages: Sequence[Publication],
        client: str = "",
        order: str | None = None,
    ) -> list[PublishOutcome]:
        """Publish messages; one result each, in order. See :meth:`Publisher.publish`, and :class:`KeyedMessages` where
        any has a key of its own."""
        upstream = self.broker(broker)
        publisher = self._keyed_messages if self._keyed_messages.has(messages, order) else self._publisher
        if order is not None:  # what is under way of it goes first: nothing overtakes it over another link
            upstream, count = self._orders.get((broker, order), (upstream, 0))
            self._orders[broker, order] = upstream, count + 1
        upstream.users += 1
        try:
            return await publisher.publish(upstream, exchange, messages, client, self.confirm_timeout, order)
        finally:
            upstream.users -= 1
            if order is not None and (count := self._orders.pop((broker, order))[1]) > 1:
                self._orders[broker, order] = upstream, count - 1

    async def publish_keyed(
        self, request: KeyedRequest, broker: str, exchange: str, messages: Sequence[Publication], render: Render
    ) -> KeyedAnswer:
        """Publish messages under an Idempotency-Key. See :class:`KeyedPublisher`."""
        upstream = self.broker(broker)
        upstream.users += 1
        try:
            return await self._keyed.publish(request, upstream, exchange, messages, self.confirm_timeout, render)
        finally:
            upstream.users -= 1

    # ------------------------------------------------------------------------------------------ timeline

    async def timeline(self, message_id: str) -> Timeline:
        """Everything that is known of a message. Raises NoSuchMessage."""
        try:
            octets = parse_id(message_id)
        except ValueError:
            raise NoSuchMessage(f"{message_id!r} is no id of a message") from None
        timeline = await self.ledger.timeline(octets)
        if timeline is None:
            raise NoSuchMessage(f"the ledger knows no message {message_id}")
        return timeline

    async def messages(
        self, where: MessageFilter, cursor: str | None, limit: int
    ) -> tuple[list[StoredMessage], str | None]:
        """Messages, newest first. Raises ValueError for a malformed cursor."""
        return await self.ledger.messages(where, cursor, limit)
