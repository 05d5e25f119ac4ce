"""A stream of pulled messages: as many as its reader has not settled yet fit into a window.

The reader settles on the side, with the ordinary verbs, and each settlement makes room for another message. A lease
that runs out, or is lost, makes room, too. When the stream ends, for any reason, all unsettled messages go back.

Nothing is read ahead: a batch is pulled when the one before was written, so that a reader who does not read is not
pulled for, and what it has not read is at most one batch and what fits into the buffers of its connection. Of
messages that the ledger holds only the leases are kept here.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final

from gateway.amqp.message import Message
from gateway.budgets import ALONE, ShareHolder
from gateway.core.leasing.ack_ids import LedgerAckId
from gateway.core.leasing.consuming import Consuming
from gateway.core.leasing.leases import Lease
from gateway.core.leasing.pulled import LedgerLease, Pulled
from gateway.core.sources.own_queues import queue_of
from gateway.core.sources.stored import Stored
from gateway.core.subscriptions import SubscriptionRegistry, SubscriptionResource
from gateway.errors import (
    BrokerUnavailable,
    BudgetExceeded,
    LedgerUnavailable,
    NoSuchSubscription,
    Overloaded,
    StateError,
)
from gateway.ledger import Ledger
from gateway.limits import PULL_MAX
from gateway.runtime.clock import clock

BATCH: Final = 50
"""Most messages of one pull."""
HEARTBEAT: Final = 15.0
"""After how many seconds without a message a comment is sent, so that nobody in between takes the stream for dead."""
LOOK_EVERY: Final = 1.0
"""How often it is looked, while the window is full, whether another process settled something, in seconds."""
ASK_EVERY: Final = 4.0
"""How often it is asked at least whether the reader may have more, in seconds."""
LOOKED_AT: Final = 100
"""How many leases are looked at each time."""
WINDOW_BYTES: Final = PULL_MAX
"""Most bytes of messages that are out with one reader and not settled; one message goes however large it is."""
BATCH_BYTES: Final = 4 << 20
"""Most bytes of one pull: all of it is held until its reader has read it."""
PAUSE: Final = 1.0
"""How long a stream waits before it pulls again from a broker or a ledger that is away, in seconds."""
_ELSEWHERE: Final = Stored(Message(), "", "", False, False)
"""In place of a message that the ledger holds: its lease is enough to settle it."""


@dataclass(frozen=True, slots=True)
class StreamReader:
    """Who reads a stream, and how much of it may be out."""

    gone: asyncio.Future[None]
    """Done when the reader is gone."""
    window: int
    """Most messages that are out and not settled."""
    lease_seconds: float | None
    """How long each message is leased; None: as the subscription says."""
    client: ShareHolder = ALONE
    """Whose share of leases it takes."""
    bytes_left: Callable[[], int] = lambda: WINDOW_BYTES
    """Returns how many bytes of messages that client may hold besides; raises BudgetExceeded, Overloaded: none."""
    refused: Callable[[], Awaitable[str]] | None = None
    """Says why the reader may have no more; empty: it may."""


class DeliveryStream:
    """One reader's stream. :meth:`batches` to the end, then :meth:`close`."""

    def __init__(
        self,
        consuming: Consuming,
        subscriptions: SubscriptionRegistry,
        ledger: Ledger,
        subscription: SubscriptionResource,
        reader: StreamReader,
        *,
        shared: bool,
    ) -> None:
        """``shared``: other processes may settle what the ledger holds."""
        self.reason = ""
        """Why it has ended."""
        self._consuming = consuming
        self._subscriptions = subscriptions
        self._ledger = ledger
        self._subscription = subscription
        self._reader = reader
        self._gone = reader.gone
        self._shared = shared
        self._loop = asyncio.get_running_loop()
        self._out: dict[int | bytes, Pulled] = {}
        """What is not settled: by the number of the lease, or by the delivery of the ledger."""
        self._sizes: dict[int | bytes, int] = {}
        """How many bytes each of them has."""
        self._ends_at: dict[bytes, float] = {}
        """When leases of the ledger end, on the loop's clock."""
        self._room = asyncio.Event()
        consuming.ledger_leases.on_settled.append(self._settled)

    async def batches(self) -> AsyncGenerator[list[Pulled], None]:
        """Messages as they come; an empty list after HEARTBEAT seconds without one."""
        said = clock.monotonic()
        while not self._over():
            if await self._is_refused():
                return
            pulled: list[Pulled] = []
            left = min(said + HEARTBEAT - clock.monotonic(), ASK_EVERY)
            room = self._reader.window - len(self._out)
            try:
                if room <= 0 or self._window_left <= 0:
                    await self._wait_for_room(max(left, 0.0))
                else:
                    pulled = await self._pull(min(room, BATCH), max(left, 0.0))
            except (BrokerUnavailable, LedgerUnavailable):
                await self._pause()
            except (BudgetExceeded, Overloaded):
                if not self._consuming.draining.done():
                    await self._pause()
            except (StateError, NoSuchSubscription) as error:
                self.reason = str(error)
                return
            if pulled and await self._is_refused():
                return  # what was pulled goes back with the rest
            if pulled or clock.monotonic() >= said + HEARTBEAT:
                said = clock.monotonic()
                yield pulled
        self.reason = "the gateway is shutting down" if self._consuming.draining.done() else "the reader is gone"

    def close(self) -> None:
        """Give back all that is not settled."""
        self._consuming.ledger_leases.on_settled.remove(self._settled)
        left = list(self._out.values())
        self._out.clear()
        self._sizes.clear()
        for item in left:
            if isinstance(item.lease, Lease):
                item.lease.on_end = None
        if left:
            self._consuming.hand_back(left, "the stream ended")

    @property
    def outstanding(self) -> int:
        """How many messages are not settled."""
        return len(self._out)

    @property
    def _window_left(self) -> int:
        return WINDOW_BYTES - sum(self._sizes.values())

    async def _is_refused(self) -> bool:
        """Whether the reader may have no more; then that is the reason."""
        if self._reader.refused is not None:
            self.reason = await self._reader.refused()
        return bool(self.reason)

    def _over(self) -> bool:
        return self._gone.done() or self._consuming.draining.done()

    async def _pull(self, wanted: int, wait: float) -> list[Pulled]:
        found = await self._subscriptions.get(self._subscription.name)
        if _place(found) != _place(self._subscription):  # its reader was let in for another queue
            raise StateError(f"the subscription {found.name!r} takes from another queue now: start again")
        self._subscription = found
        reader, seconds = self._reader, self._reader.lease_seconds
        bytes_max = min(BATCH_BYTES, self._window_left, reader.bytes_left())
        pulled = await self._consuming.pull(
            self._subscription, wanted, wait, seconds, self._gone, reader.client, bytes_max
        )
        if seconds is None:
            seconds = self._subscription.settings.ack_deadline_seconds
        for item in pulled:
            lease = item.lease
            if isinstance(lease, LedgerLease):
                self._out[lease.delivery] = replace(item, delivery=_ELSEWHERE)
                self._sizes[lease.delivery] = len(item.delivery.message.body)
                self._ends_at[lease.delivery] = clock.monotonic() + seconds
            else:
                self._out[lease.number] = item
                self._sizes[lease.number] = len(item.delivery.message.body)
                lease.on_end = self._ended
        return pulled

    # --------------------------------------------------------------------------------------------- the window

    def _ended(self, lease: Lease) -> None:
        """A broker's lease ended."""
        self._out.pop(lease.number, None)
        self._sizes.pop(lease.number, None)
        self._room.set()

    def _settled(self, leases: Sequence[LedgerAckId], due_in: float) -> None:
        """Leases of the ledger ended, or were extended."""
        for lease in leases:
            item = self._out.get(lease.delivery)
            if item is None or not isinstance(item.lease, LedgerLease) or item.lease.number != lease.lease:
                continue
            if due_in:
                self._ends_at[lease.delivery] = clock.monotonic() + due_in
            else:
                self._drop(lease.delivery)

    def _drop(self, delivery: bytes) -> None:
        self._out.pop(delivery, None)
        self._sizes.pop(delivery, None)
        self._ends_at.pop(delivery, None)
        self._room.set()

    async def _wait_for_room(self, seconds: float) -> None:
        """Until a lease ends, but not longer."""
        self._room.clear()
        now = clock.monotonic()
        for delivery in [delivery for delivery, at in self._ends_at.items() if at <= now]:
            self._drop(delivery)
        if self._room.is_set():
            return
        until = min([now + seconds, *self._ends_at.values()])
        if self._shared and self._ends_at:
            until = min(until, now + LOOK_EVERY)
        room = self._loop.create_task(self._room.wait())
        others: list[asyncio.Future[Any]] = [room, self._gone, self._consuming.draining]
        try:
            await asyncio.wait(others, timeout=max(0.0, until - now), return_when=asyncio.FIRST_COMPLETED)
        finally:
            room.cancel()
        if self._shared and not self._room.is_set() and not self._over():
            with suppress(LedgerUnavailable):
                await self._look()

    async def _look(self) -> None:
        """Whether another process settled something."""
        for delivery in list(self._ends_at)[:LOOKED_AT]:
            item = self._out.get(delivery)
            row = await self._ledger.deliveries.get(delivery)
            if item is None or not isinstance(item.lease, LedgerLease):
                continue
            if row is None or not row.out or row.lease != item.lease.number:
                self._drop(delivery)

    async def _pause(self) -> None:
        others: list[asyncio.Future[None]] = [self._gone, self._consuming.draining]
        await asyncio.wait(others, timeout=PAUSE, return_when=asyncio.FIRST_COMPLETED)


def _place(subscription: SubscriptionResource) -> tuple[str, str]:
    """The broker and queue that it takes from."""
    return subscription.settings.broker, queue_of(subscription.name, subscription.settings)
