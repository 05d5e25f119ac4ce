"""Pull and settle: messages from queues, one by one, under leases.

Who holds a message that is out is the subscription's choice: its broker (:mod:`gateway.core.leasing.broker_leases`) or
the ledger (:mod:`gateway.core.leasing.ledger_leases`). An ack id says which
it was, so that leases outlive a change of settings. A broker's lease ends in the process that holds the channel: others
ask that one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from gateway.budgets import ALONE, ShareHolder
from gateway.core.leasing.ack_ids import AckIds, of_ledger
from gateway.core.leasing.backlogs import Backlogs
from gateway.core.leasing.broker_leases import BrokerLeases
from gateway.core.leasing.lease_kind import LeaseKind
from gateway.core.leasing.leases import Lease, Leases
from gateway.core.leasing.ledger_leases import LedgerLeases
from gateway.core.leasing.parts import Parts
from gateway.core.leasing.pulled import FAILED, LOST, AckOutcome, Pulled
from gateway.core.sources.arrivals import own_id, printable
from gateway.core.subscriptions import SubscriptionRegistry, SubscriptionResource
from gateway.core.work.peers import Peers
from gateway.errors import (
    GatewayError,
    LedgerUnavailable,
    LocalError,
    NoSuchSubscription,
    Overloaded,
    StateError,
    error_of,
)
from gateway.limits import PULL_MAX

__all__ = ["Consuming", "own_id", "printable"]

VERBS: Final = ("acknowledge", "release", "extend", "reject")
Verb = Callable[..., Awaitable[list[AckOutcome]]]


class Consuming:
    """What consumers do with a gateway's subscriptions."""

    def __init__(
        self, parts: Parts, leases: Leases, ack_ids: AckIds, subscriptions: SubscriptionRegistry, peers: Peers
    ) -> None:
        self._parts = parts
        self._leases = leases
        self._subscriptions = subscriptions
        self._peers = peers
        self._draining: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.backlogs = Backlogs()
        """What may be due in the ledger, by subscription."""
        self.broker_leases = BrokerLeases(parts, leases, self._draining)
        self.ledger_leases = LedgerLeases(parts, ack_ids, self.backlogs, self._draining)
        self._kinds: tuple[LeaseKind, ...] = self.broker_leases, self.ledger_leases
        self._waits: dict[str, set[asyncio.Future[None]]] = {}
        """Pulls that wait, by subscription: done when it was changed, or the caller is gone."""
        self._rejecting: dict[str, asyncio.Future[None]] = {}
        """Ack ids that are being rejected -> done when they have been."""
        peers.settle_here = self.settle_here

    def lease_count(self, subscription: str) -> int:
        """How many messages brokers hold for the subscription, that are out from this process."""
        return self._leases.count(subscription)

    def leased(self, broker: str, queue: str) -> list[Lease]:
        """Return the leases of messages of a queue that its broker holds, and that are out from this process."""
        return [each for each in self._leases.all() if (each.broker, each.delivery.queue) == (broker, queue)]

    def broker_is_up(self, broker: str) -> None:
        """A broker has come back."""
        self.ledger_leases.broker_is_up(broker)

    @property
    def draining(self) -> asyncio.Future[None]:
        """Done when nothing more is handed out."""
        return self._draining

    # --------------------------------------------------------------------------------------------- pull

    async def pull(
        self,
        subscription: SubscriptionResource,
        max_messages: int,
        wait: float,
        seconds: float | None,
        gone: asyncio.Future[None] | None = None,
        client: ShareHolder = ALONE,
        bytes_max: int = PULL_MAX,
    ) -> list[Pulled]:
        """Take up to ``max_messages``, waiting up to ``wait`` seconds for the first, and lease them. Once their bodies
        have ``bytes_max`` bytes it ends; what is more stays where it is.

        Args:
            seconds: how long each is leased; None: as the subscription says.
            gone: done when the caller is gone; what was fetched goes back then.
            client: whose share of leases it takes.

        Raises:
            StateError: the subscription is paused, or pushed.
            NoSuchBroker, BrokerUnavailable, NotFound: from the broker.
            LedgerUnavailable: nothing is out.
            BudgetExceeded: the client holds its share of leases.
            Overloaded: the bound on leases is reached, or the gateway is shutting down.
        """
        self.check(subscription)
        if subscription.settings.lease == "ledger":
            kind: LeaseKind = self.ledger_leases
        else:
            kind = self.broker_leases
            if left := await self.ledger_leases.left_over(subscription, max_messages, seconds, bytes_max):
                return left
        if not wait:
            return await kind.pull(subscription, max_messages, wait, seconds, gone, client, bytes_max)
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def end(_: object) -> None:
            if not ended.done():
                ended.set_result(None)

        if gone is not None:
            gone.add_done_callback(end)
        waits = self._waits.setdefault(subscription.name, set())
        waits.add(ended)
        try:
            pulled = await kind.pull(subscription, max_messages, wait, seconds, ended, client, bytes_max)
        finally:
            waits.discard(ended)
            if not waits and self._waits.get(subscription.name) is waits:
                del self._waits[subscription.name]
            if gone is not None:
                gone.remove_done_callback(end)
        if not pulled and ended.done() and (gone is None or not gone.done()):
            self.check(await self._subscriptions.get(subscription.name))  # paused, pushed or deleted meanwhile
        return pulled

    def changed(self, subscription: str) -> None:
        """The subscription was changed, paused or deleted: what waits for its messages stops waiting."""
        for ended in self._waits.get(subscription, ()):
            if not ended.done():
                ended.set_result(None)

    def check(self, subscription: SubscriptionResource) -> None:
        """Whether it may be pulled now. Raises StateError, LedgerUnavailable, Overloaded, as :meth:`pull`."""
        if self._draining.done():
            raise Overloaded("the gateway is shutting down")
        if subscription.paused:
            raise StateError(
                f"the subscription {subscription.name!r} is paused: it hands out nothing until it is resumed (:resume)"
            )
        if subscription.settings.push:
            raise StateError(
                f"the subscription {subscription.name!r} is pushed to the endpoint {subscription.settings.push!r}: "
                "it is not pulled"
            )
        if not self._parts.ledger.healthy:
            raise LedgerUnavailable("the ledger cannot be written now; nothing was taken")
        self._parts.ledger.disk.check()

    def hand_back(self, pulled: Sequence[Pulled], reason: str) -> None:
        """Give messages back that were not handed over."""
        for kind in self._kinds:
            kind.hand_back(pulled, reason)

    # ------------------------------------------------------------------------------------------- settle

    async def acknowledge(self, subscription: SubscriptionResource, ack_ids: Sequence[str]) -> list[AckOutcome]:
        """The consumer is done with the messages: they are gone. A repeated acknowledgement succeeds."""
        return await self._settle("acknowledge", subscription, ack_ids)

    async def release(
        self, subscription: SubscriptionResource, ack_ids: Sequence[str], delay: float = 0.0
    ) -> list[AckOutcome]:
        """Give messages back, to be handed out again ``delay`` seconds from now. A lease that a broker holds knows no
        delay: its result is FAILED."""
        return await self._settle("release", subscription, ack_ids, delay=delay)

    async def modify_deadline(
        self, subscription: SubscriptionResource, ack_ids: Sequence[str], seconds: int
    ) -> list[AckOutcome]:
        """Let leases last ``seconds`` from now. 0 gives the messages back. With more seconds than a lease can be
        extended by its result is FAILED."""
        if seconds == 0:
            return await self.release(subscription, ack_ids)
        return await self._settle("extend", subscription, ack_ids, seconds=seconds)

    async def reject(
        self, subscription: SubscriptionResource, ack_ids: Sequence[str], reason: str, *, discard: bool = False
    ) -> list[AckOutcome]:
        """Give messages up: they are dead letters, with the reason. Where that cannot be, the result is FAILED and the
        lease goes on. ``discard``: drop them instead."""
        arguments = {"discard": True} if discard else {}
        return await self._settle("reject", subscription, ack_ids, reason=reason, **arguments)

    async def _settle(
        self, verb: str, subscription: SubscriptionResource, ack_ids: Sequence[str], **arguments: Any
    ) -> list[AckOutcome]:
        """Each ack id where its lease is."""
        groups: dict[LeaseKind | bytes, list[str]] = {}
        shared = self._peers.shared
        for ack_id in dict.fromkeys(ack_ids):
            where: LeaseKind | bytes = self.ledger_leases
            if not of_ledger(ack_id):
                owner = self._leases.owner_of(subscription.name, ack_id) if shared else None
                where = owner or self.broker_leases
            groups.setdefault(where, []).append(ack_id)
        results: dict[str, AckOutcome] = {}
        for where, group in groups.items():
            if isinstance(where, bytes):
                settled = await self._elsewhere(where, verb, subscription, group, arguments)
            else:
                settled = await self._settle_by(where, verb, subscription, group, arguments)
            results |= {item.ack_id: item for item in settled}
        late = sum(item.status == LOST for item in results.values())
        if late:
            self._parts.metrics.fencing_rejections.labels("delivery").inc(late)
        return [results[ack_id] for ack_id in ack_ids]

    async def _settle_by(
        self,
        kind: LeaseKind,
        verb: str,
        subscription: SubscriptionResource,
        ack_ids: Sequence[str],
        arguments: dict[str, Any],
    ) -> list[AckOutcome]:
        """Have them settled by those who hold the leases. A rejection takes as long as its copies need for their
        confirms: a second one of the same lease makes no other copy, but hears how the first has ended."""
        settle: Verb = getattr(kind, verb)
        if verb != "reject":
            return await settle(subscription, ack_ids, **arguments)
        while busy := {done for ack_id in ack_ids if (done := self._rejecting.get(ack_id)) is not None}:
            await asyncio.wait(busy)
        over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._rejecting |= dict.fromkeys(ack_ids, over)
        try:
            return await settle(subscription, ack_ids, **arguments)
        finally:
            for ack_id in ack_ids:
                del self._rejecting[ack_id]
            over.set_result(None)

    async def _elsewhere(
        self,
        owner: bytes,
        verb: str,
        subscription: SubscriptionResource,
        ack_ids: Sequence[str],
        arguments: dict[str, Any],
    ) -> list[AckOutcome]:
        """Ask the process that holds the leases."""
        try:
            told = await self._peers.settle(owner, verb, subscription.name, ack_ids, **arguments)
        except GatewayError as error:
            return [AckOutcome(ack_id, FAILED, error) for ack_id in ack_ids]
        settled = []
        for ack_id, status in told:
            word, _, why = status.partition(" ")
            code, _, text = why.partition(" ")
            settled.append(AckOutcome(ack_id, word, error_of(code, text) if word == FAILED else None))
        return settled

    async def settle_here(
        self, verb: str, subscription: str, ack_ids: Sequence[str], **arguments: Any
    ) -> list[tuple[str, str]]:
        """Another process was given ack ids of this one. What became of each; behind ``FAILED`` are code and text of
        why."""
        if verb not in VERBS:
            return [(ack_id, f"{FAILED} {LocalError.code} there is no {verb!r:.20}") for ack_id in ack_ids]
        try:
            found = await self._subscriptions.get(subscription)
            settled = await self._settle_by(self.broker_leases, verb, found, list(dict.fromkeys(ack_ids)), arguments)
        except NoSuchSubscription:
            return [(ack_id, LOST) for ack_id in ack_ids]
        except GatewayError as error:
            return [(ack_id, f"{FAILED} {error.code} {error}") for ack_id in ack_ids]
        return [
            (item.ack_id, item.status if item.error is None else f"{item.status} {item.error.code} {item.error}")
            for item in settled
        ]

    # --------------------------------------------------------------------------------------- by themselves

    def expired(self, leases: list[Lease]) -> None:
        """Deadlines passed, and the messages went back."""
        self.broker_leases.expired(leases)

    def lost(self, lease: Lease) -> None:
        """A channel died with a lease on it."""
        self.broker_leases.lost(lease)

    def drain(self) -> None:
        """End waiting pulls, and take no new ones."""
        if not self._draining.done():
            self._draining.set_result(None)

    async def close(self) -> None:
        """Give back what brokers hold and is out, and what is being given back to the ledger."""
        for kind in self._kinds:
            await kind.close()
