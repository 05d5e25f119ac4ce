"""Who holds which delivery, and until when.

A lease is a delivery that is out with a consumer: the broker holds the message unacknowledged, we hold its place on
a channel. It ends when the consumer settles it, when its deadline passes (it goes back to the queue), or when the
channel dies (the broker delivers it again). Deadlines are one heap with one timer; an extension pushes a
second entry and the first is skipped when it comes up. All extensions together end at the broker's ``lease_max``.

What ended recently is remembered for a while, so that an acknowledgement that is repeated gets the same answer.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from heapq import heapify, heappop, heappush
from typing import Final

from gateway.amqp.operations import Settlement
from gateway.budgets import RESOURCES, Holder, Holdings, ShareHolder
from gateway.core.leasing.ack_ids import AckIds, ForeignAckId, InvalidAckId
from gateway.errors import LeaseLost, StateError
from gateway.runtime.clock import clock
from gateway.upstreams import Delivery

ENDED_MAX: Final = 10_000
"""How many leases that ended are remembered."""

HANDED_MAX: Final = 10_000
"""Of how many messages it is remembered that they were handed over before; the oldest go."""
HEAP_MIN: Final = 1_000
"""How many deadlines are kept at least before those that mean nothing any more are dropped."""
LEASE_MARGIN: Final = 2.0
"""How long before the broker's ``lease_max`` a lease ends here, in seconds, so that it ends by us."""


class End(Enum):
    """How a lease ended."""

    ACKNOWLEDGED = "acknowledged"
    RELEASED = "released"
    REJECTED = "rejected"
    DISCARDED = "discarded"
    EXPIRED = "expired"
    LOST = "lost"


class Unusable(Enum):
    """Why an ack id names no lease."""

    INVALID = "INVALID_ACK_ID"
    LOST = "LEASE_LOST"


@dataclass(slots=True, eq=False)
class Lease:
    """One delivery that is out."""

    number: int
    ack_id: str
    message_id: bytes
    broker: str
    version: str
    subscription: str
    delivery: Delivery
    deadline: float
    """On the loop's clock."""
    latest: float
    """No extension goes beyond this."""
    client: ShareHolder
    """Whose share it counts in."""
    size: int = 0
    """Bytes of the body."""
    on_end: Callable[[Lease], None] | None = None
    """Called once, on the loop, when it has ended in any way."""


class Leases:
    """All leases of this process."""

    def __init__(
        self,
        ack_ids: AckIds,
        holdings: Holdings,
        on_expired: Callable[[list[Lease]], None],
        on_lost: Callable[[Lease], None],
        byte_holdings: Holdings | None = None,
    ) -> None:
        self._ack_ids = ack_ids
        self._holdings = holdings
        self.byte_holdings = byte_holdings if byte_holdings is not None else Holdings(RESOURCES["lease_bytes"])
        """Who holds how many bytes of messages; the last message may go beyond."""
        self._on_expired = on_expired
        self._on_lost = on_lost
        self._leases: dict[int, Lease] = {}
        self._by_delivery: dict[int, Lease] = {}
        self._counts: dict[str, int] = {}
        self._reserved: dict[Holder, int] = {}
        """Client -> how much of its share waits for messages."""
        self._ended: OrderedDict[int, End] = OrderedDict()
        self._handed: OrderedDict[tuple[str, bytes], None] = OrderedDict()
        self._heap: list[tuple[float, int]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._number = 0

    def __len__(self) -> int:
        return len(self._leases)

    @property
    def oldest(self) -> float:
        """For how long the oldest has been out, in seconds; 0: there is none."""
        first = next(iter(self._leases.values()), None)
        return 0.0 if first is None else max(0.0, clock.monotonic() - first.delivery.at)

    def reserve(self, client: ShareHolder, wanted: int, *, waits: bool = False) -> int:
        """Take up to ``wanted`` leases of the client's share, for :meth:`grant`.

        Args:
            waits: whether the pull may wait for messages. Those that wait reserve half of the share together, and then
                one each; each takes half of what the ones before it left. So many may wait, and what they do not hold
                keeps no other pull of the client from its messages.

        Returns:
            How many, at least 1. :meth:`give_back` those that are not granted.

        Raises:
            BudgetExceeded, Overloaded: there is none for this client.
        """
        room = self._holdings.room_of(client)
        reserved = self._reserved.get(client.holder, 0)
        if waits:
            left = min(room, self._holdings.share_of(client) // 2 - reserved)
            room = (left + 1) // 2 if reserved else left
        count = max(1, min(wanted, room))
        self._holdings.take(client, count)
        self._reserved[client.holder] = reserved + count
        return count

    def give_back(self, client: ShareHolder, count: int) -> None:
        """Give back what was reserved and not granted."""
        if count:
            self._unreserve(client, count)
            self._holdings.give(client, count)

    def _unreserve(self, client: ShareHolder, count: int) -> None:
        left = self._reserved[client.holder] - count
        if left:
            self._reserved[client.holder] = left
        else:
            del self._reserved[client.holder]

    def count(self, subscription: str) -> int:
        """How many leases the subscription has out."""
        return self._counts.get(subscription, 0)

    def grant(
        self,
        delivery: Delivery,
        message_id: bytes,
        broker: str,
        version: str,
        subscription: str,
        seconds: float,
        lease_max: float,
        client: ShareHolder,
    ) -> Lease:
        """Lease a delivery for ``seconds``, to a client that has reserved it."""
        self._unreserve(client, 1)
        now = clock.monotonic()
        self._number += 1
        lease = Lease(
            self._number,
            self._ack_ids.make(self._number, self._ack_ids.mark(subscription)),
            message_id,
            broker,
            version,
            subscription,
            delivery,
            now + min(seconds, lease_max - LEASE_MARGIN),
            now + lease_max - LEASE_MARGIN,
            client,
            len(delivery.message.body),
        )
        if lease.size:
            self.byte_holdings.take(client, lease.size, forced=True)
        self._leases[lease.number] = lease
        self._by_delivery[id(delivery)] = lease
        self._counts[subscription] = self._counts.get(subscription, 0) + 1
        delivery.on_lost = self._lost
        self._watch(lease)
        return lease

    def find(self, subscription: str, ack_id: str) -> Lease | End | Unusable:
        """The lease of an ack id; how it ended, where that is still known; or why there is none."""
        try:
            number = self._ack_ids.read(ack_id, self._ack_ids.mark(subscription))
        except InvalidAckId:
            return Unusable.INVALID
        except ForeignAckId:
            return Unusable.LOST
        lease = self._leases.get(number)
        if lease is not None:
            return lease
        return self._ended.get(number, Unusable.LOST)

    def owner_of(self, subscription: str, ack_id: str) -> bytes | None:
        """The process that holds the lease of an ack id, where it is another one."""
        try:
            self._ack_ids.read(ack_id, self._ack_ids.mark(subscription))
        except ForeignAckId as foreign:
            return foreign.owner
        except InvalidAckId:
            pass  # nobody's
        return None

    def holds(self, lease: Lease) -> bool:
        """Whether a lease has not ended."""
        return lease.number in self._leases

    def was_handed(self, subscription: str, message_id: bytes) -> bool:
        """Whether the subscription had the message before, as far as is remembered. The broker says so itself
        (``redelivered``), unless it forgot when it crashed."""
        return (subscription, message_id) in self._handed

    def settle(self, lease: Lease, settlement: Settlement, end: End) -> bool:
        """Settle the delivery and end the lease; False: the channel was gone, so the lease is lost."""
        try:
            lease.delivery.settle(settlement)
        except (LeaseLost, StateError):
            self.end(lease, End.LOST)
            return False
        self.end(lease, end)
        return True

    def extend(self, lease: Lease, seconds: float) -> float:
        """Move the deadline to ``seconds`` from now, but not beyond the lease's latest end. Returns how many
        seconds are left."""
        now = clock.monotonic()
        lease.deadline = min(now + seconds, lease.latest)
        self._watch(lease)
        return lease.deadline - now

    def end(self, lease: Lease, end: End) -> None:
        """Forget a lease."""
        if self._leases.pop(lease.number, None) is None:
            return
        self._holdings.give(lease.client)
        self._by_delivery.pop(id(lease.delivery), None)
        lease.delivery.on_lost = None
        if lease.size:
            self.byte_holdings.give(lease.client, lease.size)
        count = self._counts[lease.subscription] - 1
        if count:
            self._counts[lease.subscription] = count
        else:
            del self._counts[lease.subscription]
        self._tidy()
        self._ended[lease.number] = end
        if len(self._ended) > ENDED_MAX:
            self._ended.popitem(last=False)
        self._handed[lease.subscription, lease.message_id] = None
        if len(self._handed) > HANDED_MAX:
            self._handed.popitem(last=False)
        if lease.on_end is not None:
            lease.on_end(lease)

    def all(self) -> list[Lease]:
        """Every lease that is out, oldest first."""
        return list(self._leases.values())

    def close(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # ---------------------------------------------------------------------------------------- deadlines

    def _lost(self, delivery: Delivery) -> None:
        lease = self._by_delivery.get(id(delivery))
        if lease is not None:
            self.end(lease, End.LOST)
            self._on_lost(lease)

    def _tidy(self) -> None:
        """When they are many, drop the deadlines of leases that have ended, and those that an extension replaced."""
        if len(self._heap) > HEAP_MIN + 2 * len(self._leases):
            self._heap = [(lease.deadline, lease.number) for lease in self._leases.values()]
            heapify(self._heap)

    def _watch(self, lease: Lease) -> None:
        heappush(self._heap, (lease.deadline, lease.number))
        self._tidy()
        if self._timer is None or self._heap[0][1] == lease.number:
            self._arm()

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._heap:
            self._timer = asyncio.get_running_loop().call_at(self._heap[0][0], self._expire)

    def _expire(self) -> None:
        now = clock.monotonic()
        expired = []
        while self._heap and (self._heap[0][0] <= now or self._heap[0][1] not in self._leases):
            _, number = heappop(self._heap)
            lease = self._leases.get(number)
            if lease is None or lease.deadline > now:
                continue  # settled, or extended: another entry of the heap stands for it
            if self.settle(lease, Settlement.RELEASE, End.EXPIRED):
                expired.append(lease)
            else:
                self._on_lost(lease)
        self._timer = None
        self._arm()
        if expired:
            self._on_expired(expired)
