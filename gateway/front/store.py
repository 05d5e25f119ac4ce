"""Publishes that go to the ledger while the broker is away (``store = "when-down"``), or at any time (``"always"``).

They become entries of the ledger's outbox, which sends them when the broker is back. Each user of a front has a lane
for each broker. Publishes of a lane reach the broker in their order: while the ledger holds some of them, newer ones
go there too if the broker is away, and wait if it is not. With ``"always"`` that is the order of what is stored; what
the ledger cannot keep goes straight to the broker, and waits for nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import groupby
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from gateway.amqp.operations import Publish
from gateway.budgets import ShareHolder
from gateway.config import FrontSettings
from gateway.core.gateway import Gateway
from gateway.core.publishing.publisher import Publication, PublishOutcome
from gateway.errors import BudgetExceeded, CommitUnknown, GatewayError, LedgerUnavailable, OutcomeUnknown, Overloaded
from gateway.front.channels import publishing
from gateway.front.counts import FrontCounts
from gateway.front.records import FrontRecords
from gateway.front.shares import label
from gateway.observing.telemetry import log
from gateway.runtime.clock import clock
from gateway.runtime.tasks import Tasks

if TYPE_CHECKING:
    from gateway.front.channels.channel import FrontChannel
    from gateway.front.client import FrontClient, FrontTimelines

BATCH: Final = 500
"""Most publishes in one commit."""
BATCH_BYTES: Final = 8 << 20
"""The same in bytes of their bodies; one goes however large it is."""
LOOK_EVERY: Final = 0.2
"""Interval of checks whether the broker has all that was stored, in seconds."""
RETRY_AFTER: Final = 1.0
"""Pause before the ledger is asked again that took nothing, in seconds."""
CLOSE_SECONDS: Final = 5.0
"""How long what waits for the ledger may take at the end."""


class PublishLedger(Protocol):
    """What holds publishes until a broker has them."""

    async def put(
        self, broker: str, exchange: str, messages: Sequence[Publication], client: str
    ) -> list[PublishOutcome]:
        """Keep messages for a broker, in order. One result each.

        Raises:
            BudgetExceeded, Overloaded: the client may not have more kept.
            LedgerUnavailable: none was kept, or it cannot be told; keep the same again.
        """

    async def oldest(self, broker: str, client: str) -> float | None:
        """When the oldest of a client was kept that is still to be sent, in seconds since 1970; None: there is none.
        What the broker has refused does not count, until it is tried again."""

    def held_bytes(self, client: str) -> int:
        """Bytes of messages that are kept of a client."""

    def records(self, front: str) -> FrontTimelines | None:
        """Where timelines of what clients of a front publish and get go; None: nowhere."""


class GatewayLedger:
    """The outbox of the gateway."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def put(
        self, broker: str, exchange: str, messages: Sequence[Publication], client: str
    ) -> list[PublishOutcome]:
        """See :class:`PublishLedger`."""
        upstream, budgets = self._gateway.broker(broker), self._gateway.ledger_budgets
        holder, size = ShareHolder(client), sum([len(item.message.body) for item in messages])
        budgets.take(holder, 0, len(messages), size)
        try:
            results = await self._gateway.outbox.put(upstream, exchange, messages, client, "front")
        finally:
            budgets.give(holder, 0, len(messages), size)
        for each in results:  # the same is put again, and what the ledger has is left out
            if isinstance(each.error, OutcomeUnknown):
                raise CommitUnknown(str(each.error))
            if isinstance(each.error, LedgerUnavailable):
                raise each.error
        return results

    async def oldest(self, broker: str, client: str) -> float | None:
        """See :class:`PublishLedger`."""
        return await self._gateway.outbox.oldest(broker, client)

    def held_bytes(self, client: str) -> int:
        """See :class:`PublishLedger`."""
        return self._gateway.budgets["scheduled_bytes"].held_by(ShareHolder(client))

    def records(self, front: str) -> FrontTimelines | None:
        """See :class:`PublishLedger`."""
        return FrontRecords(front, self._gateway)


class StoredPublish(NamedTuple):
    """A publish on its way to the ledger."""

    channel: FrontChannel
    request: Publish
    item: Publication

    @property
    def size(self) -> int:
        """Bytes of the body."""
        return len(self.item.message.body)


class StoreLane:
    """The publishes of one user for one broker."""

    def __init__(self, store: FrontStore, broker: str, user: str) -> None:
        self.clients: dict[FrontClient, None] = {}
        self.is_drained = False
        """The broker has all that this process has stored, and what others had stored when it looked last. False at
        first: an earlier process may have stored something."""
        self.pending: deque[StoredPublish] = deque()
        """What the ledger does not have yet."""
        self._store = store
        self._broker = broker
        self._label = label(store.front, user)
        self._oldest: float | None = None
        self._pending_bytes = 0
        self._is_over_budget = False
        self._newcomers: set[FrontClient] = set()
        """Clients for whom the ledger was not asked yet: another process may have stored what they published there."""
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    # ------------------------------------------------------------------------------------ asked by clients

    def attend(self, client: FrontClient) -> None:
        """One client more."""
        self.clients[client] = None
        self._newcomers.add(client)
        self._begin()

    def leave(self, client: FrontClient) -> None:
        """The client is gone. What it has published stays."""
        self.clients.pop(client, None)
        self._newcomers.discard(client)

    @property
    def is_always(self) -> bool:
        """Publishes are stored while the broker is there, too."""
        return self._store.settings.store == "always"

    def may_pass(self, client: FrontClient) -> bool:
        """Whether the client's next publish may go to the broker itself: the broker has all that was stored before, or
        all that can be stored is."""
        return self.is_always or (self.is_drained and client not in self._newcomers)

    def takes(self, channel: FrontChannel, request: Publish) -> bool:
        """Whether a publish is stored although the broker is there."""
        return self.is_always and not channel.is_transacted and self.may_keep(channel, request)

    def may_store(self, channel: FrontChannel, request: Publish) -> bool:
        """Whether a publish may be stored now."""
        settings = self._store.settings
        if channel.is_transacted or channel.sent or not self.may_keep(channel, request):
            return False
        if channel.up is not None and not self.is_always:
            return False
        if self._store.pending_bytes >= settings.memory:
            return False
        return settings.store_full == "refuse" or not (self._is_over_budget or self.full())

    def may_keep(self, channel: FrontChannel, request: Publish) -> bool:
        """Whether a publish is one that the ledger can keep. One to a queue that is declared again when the broker is
        back is not: it might come before the queue."""
        if self._store.settings.store == "never" or request.immediate:
            return False
        client, key = channel.client, request.routing_key
        return bool(request.exchange) or not (key in client.topology.queues or key in client.link.owners)

    def full(self) -> str:
        """Why nothing more is stored; empty: there is room."""
        settings = self._store.settings
        if self._store.held_bytes >= settings.store_bytes:
            return f"{self._store.held_bytes} bytes wait for the broker, and store_bytes is {settings.store_bytes}"
        age = clock.now() - self._oldest if self._oldest is not None else 0.0
        if settings.store_seconds and age > settings.store_seconds:
            return f"publishes have waited {age:.0f} s for the broker, and store_seconds is {settings.store_seconds:g}"
        return ""

    def add(self, channel: FrontChannel, request: Publish, resent: bool) -> None:
        """Store a publish. ``resent``: the broker may have it."""
        item = Publication(request.routing_key, request.message, request.mandatory, resent=resent)
        self.pending.append(StoredPublish(channel, request, item))
        self._pending_bytes += len(request.message.body)
        self._store.count(len(request.message.body))
        if self._oldest is None:
            self._oldest = clock.now()
        self.is_drained = False
        self._wake.set()
        self._begin()

    # --------------------------------------------------------------------------------------------- worker

    def _begin(self) -> None:
        if (self._newcomers or not self.is_drained) and (self._task is None or self._task.done()):
            self._task = self._store.tasks.start(self._run(), f"store {self._label}")

    @property
    def is_up(self) -> bool:
        """Whether a client of the lane has a connection to the broker."""
        return any(client.link.is_up for client in self.clients)

    async def _run(self) -> None:
        """Have the ledger take what is pending, and find out when the broker has all of it."""
        while self._newcomers or not self.is_drained:
            self._wake.clear()
            newcomers = set(self._newcomers)
            try:
                if self.pending:
                    await self._put()
                    continue
                oldest = await self._store.ledger.oldest(self._broker, self._label)
            except GatewayError as error:
                self._store.waits(self._broker, error)
                await clock.sleep(RETRY_AFTER)
                continue
            except Exception as error:  # a defect must not keep what is pending for ever
                log("front.store_failed", logging.ERROR, exc_info=error, front=self._store.front)
                await clock.sleep(RETRY_AFTER)
                continue
            if self.pending:
                continue
            self._oldest = oldest
            self._is_over_budget = False
            self._store.measure()
            self.is_drained = oldest is None
            if self.is_drained:
                self._newcomers -= newcomers
            self._rouse()  # there may be room again; and somebody may store something meanwhile
            if self.is_drained or self.pending:
                continue
            try:
                async with asyncio.timeout(LOOK_EVERY if self.is_up else RETRY_AFTER):
                    await self._wake.wait()
            except TimeoutError:
                pass

    async def _put(self) -> None:
        """Store the first of what is pending."""
        batch: list[StoredPublish] = []
        size = 0
        for each in self.pending:
            size += each.size
            if batch and (len(batch) >= BATCH or size > BATCH_BYTES):
                break
            batch.append(each)
        for _, group in groupby(batch, lambda each: each.request.exchange):
            stored = list(group)
            try:
                await self._put_together(stored)
            except (BudgetExceeded, Overloaded) as error:
                if len(stored) == 1 or not await self._put_some(stored):
                    await self._over_budget(error)
                return

    async def _put_together(self, stored: Sequence[StoredPublish]) -> None:
        """Store the first of what is pending, which all go to one exchange. Raises as :meth:`PublishLedger.put`."""
        items = [each.item for each in stored]
        try:
            results = await self._store.ledger.put(self._broker, stored[0].request.exchange, items, self._label)
        except LedgerUnavailable:
            for item in items:
                item.resent = True  # the ledger may have it, and the broker before it is stored again
            raise
        self._is_over_budget = False
        self._store.goes_on()
        self._taken(stored)
        publishing.stored(
            [
                (each.channel, each.request, "" if result.error is None else str(result.error))
                for each, result in zip(stored, results, strict=True)
            ]
        )

    async def _put_some(self, stored: Sequence[StoredPublish]) -> bool:
        """There is no room for all of them: store as many as there is room for. Whether there was any."""
        count = len(stored)
        while count > 1:
            count //= 2
            with suppress(BudgetExceeded, Overloaded):
                await self._put_together(stored[:count])
                return True
        return False

    def _taken(self, stored: Sequence[StoredPublish]) -> None:
        """They are pending no more."""
        for each in stored:
            self.pending.popleft()
            self._pending_bytes -= each.size
        self._store.measure()

    async def _over_budget(self, error: GatewayError) -> None:
        """The user's share of the ledger, or all of it, is used up: not one more can be stored."""
        self._is_over_budget = True
        self._store.waits(self._broker, error)
        if self._store.settings.store_full == "refuse":
            refused = list(self.pending)
            self._taken(refused)
            publishing.stored([(each.channel, each.request, str(error)) for each in refused])
        elif self.is_up and await self._store.ledger.oldest(self._broker, self._label) is None:
            self._send_pending()
        else:
            self._rouse()
            await clock.sleep(RETRY_AFTER)

    def _send_pending(self) -> None:
        """The broker is there and has all that was stored, but the ledger takes nothing: what is pending goes to the
        broker by the channels on which it came. What has no channel any more goes on waiting for the ledger."""
        pending = list(self.pending)
        self.pending.clear()
        for at, each in enumerate(pending):
            if each.channel.over:
                self.pending.append(each)
            elif each.channel.client.link.is_up:
                self._pending_bytes -= each.size
                publishing.send_stored(each.channel, each.request, each.item.resent)
            else:
                self.pending.extend(pending[at:])
                break
        self._store.measure()

    def _rouse(self) -> None:
        for client in list(self.clients):
            client.rouse()

    @property
    def pending_bytes(self) -> int:
        """Bytes of what the ledger does not have yet."""
        return self._pending_bytes

    @property
    def label(self) -> str:
        """Under which name the ledger keeps the publishes."""
        return self._label


class FrontStore:
    """The stored publishes of one front.

    Args:
        front: its name.
        settings: those of the front.
        ledger: where publishes are kept.
        counts: of the front.
    """

    def __init__(self, front: str, settings: FrontSettings, ledger: PublishLedger, counts: FrontCounts) -> None:
        self.front = front
        self.settings = settings
        self.ledger = ledger
        self.tasks = Tasks("front store")
        self.held_bytes = 0
        """Bytes that wait for brokers, in the ledger and on their way there."""
        self._counts = counts
        self._lanes: dict[tuple[str, str], StoreLane] = {}
        self._said = ""

    @property
    def lanes(self) -> Mapping[tuple[str, str], StoreLane]:
        """Broker and user -> lane."""
        return self._lanes

    def lane_for(self, client: FrontClient) -> StoreLane | None:
        """The lane of a client that has logged in; None: nothing is stored, and nothing was."""
        key = (client.access.broker, client.user)
        lane = self._lanes.get(key)
        if lane is None:
            if self.settings.store == "never":
                return None
            lane = self._lanes[key] = StoreLane(self, *key)
        lane.attend(client)
        return lane

    def use(self, settings: FrontSettings) -> None:
        """Go on with other settings."""
        self.settings = settings

    def count(self, size: int) -> None:
        """Count bytes that wait."""
        self.held_bytes += size
        self._counts.stored_bytes = self.held_bytes

    def measure(self) -> None:
        """Find out how many bytes wait."""
        labels = {lane.label for lane in self._lanes.values()}
        self.held_bytes = sum(self.ledger.held_bytes(label) for label in labels) + self.pending_bytes
        self._counts.stored_bytes = self.held_bytes

    @property
    def pending_bytes(self) -> int:
        """Bytes that are on their way to the ledger."""
        return sum(lane.pending_bytes for lane in self._lanes.values())

    def goes_on(self) -> None:
        """The ledger takes something again."""
        self._said = ""

    def waits(self, broker: str, error: GatewayError) -> None:
        """The ledger takes nothing for now: logged when the reason changes."""
        if str(error) != self._said:
            self._said = str(error)
            log("front.store_waits", logging.WARNING, front=self.front, broker=broker, reason=self._said)

    async def close(self) -> None:
        """Wait for what is on its way to the ledger, and end."""
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                while any(lane.pending for lane in self._lanes.values()):
                    await clock.sleep(0.01)
        except TimeoutError:
            pending = sum(len(lane.pending) for lane in self._lanes.values())
            log("front.store_given_up", logging.WARNING, front=self.front, publishes=pending)
        await self.tasks.close()
