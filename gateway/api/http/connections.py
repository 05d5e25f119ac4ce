"""Which connections of a port stay open: a total, shares, and room for callers who turn out to be admin.

Who opens a connection is known only when a credential has come over it. Until then it is a stranger's. Strangers leave
the reserve alone as long as they can: when all but the reserve is in use, the stranger who has been connected longest
makes room for the next one, and those who wait for no answer go first. So somebody with ``admin`` gets in however many
others there are: half of the reserve is always left to newcomers, of which each lasts until that many others have come.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, Protocol

from gateway.access.rates import address_of
from gateway.budgets import RESOURCES, Holdings, ShareHolder
from gateway.errors import BudgetExceeded, Overloaded

CONNECTION: Final = "gateway.connection"
"""Key of the ASGI scope: the :class:`ConnectionSlot` of the connection that the request came by."""
LOOKED_AT: Final = 64
"""Among how many strangers, at most, one is looked for who waits for no answer."""


class SlotOwner(Protocol):
    """A connection."""

    @property
    def is_idle(self) -> bool:
        """Whether no answer is due."""

    def drop(self) -> None:
        """End at once."""

    def end(self) -> None:
        """End behind the answer that is due."""


@dataclass(slots=True, eq=False)
class ConnectionSlot:
    """The place that a connection holds."""

    owner: SlotOwner
    connections: Connections
    client: ShareHolder
    """In whose share it counts."""
    address: str = ""
    """Of which it counts as one; empty: of none."""
    is_fixed: bool = False
    """It stays that client's for all callers, because it belongs to a proxy."""
    is_gone: bool = False

    def known(self, client: ShareHolder) -> None:
        """A caller has sent its credential over it: count it as the caller's.

        Raises:
            BudgetExceeded, Overloaded: the caller may not have one more. The connection ends behind the answer.
        """
        if self.client != client and not self.is_fixed:
            self.connections.hand_over(self, client)


@dataclass(slots=True)
class Connections:
    """The connections of one port."""

    holdings: Holdings = field(default_factory=lambda: Holdings(RESOURCES["connections"]))
    per_address: int = 0
    """Most connections of one remote address (IPv6: of one /64 network); 0: no limit."""
    is_proxy: Callable[[str], bool] = lambda host: False
    """Whether an address is that of a proxy that is trusted: its callers are many."""
    open: Counter[str] = field(default_factory=Counter)
    """Connections of each address that is counted."""
    _strangers: dict[ConnectionSlot, None] = field(default_factory=dict)
    """In the order in which they came."""

    def admit(self, owner: SlotOwner, host: str) -> ConnectionSlot | None:
        """Give a new connection a place; None: it gets none, and must end."""
        is_proxy = self.is_proxy(host)
        address = "" if is_proxy or not self.per_address else address_of(host)
        if address and self.open[address] >= self.per_address:
            self.holdings.count_refusal("share")
            return None
        # Strangers may take of the reserve, and there is no other share of an address: what they leave is said here.
        client = ShareHolder(host, is_admin=not is_proxy, is_alone=True, kind="proxy" if is_proxy else "address")
        held = self.holdings.held
        if held >= self.holdings.total - self.holdings.reserve and len(self._strangers) > self.holdings.reserve // 2:
            self._drop_one()
        elif held >= self.holdings.total and not self._drop_one():
            self.holdings.count_refusal("total")
            return None
        try:
            self.holdings.take(client)
        except Overloaded:
            return None
        place = ConnectionSlot(owner, self, client, address, is_fixed=is_proxy)
        if address:
            self.open[address] += 1
        if not is_proxy:
            self._strangers[place] = None
        return place

    def leave(self, place: ConnectionSlot) -> None:
        """It is gone. A connection that was dropped has left already."""
        if place.is_gone:
            return
        place.is_gone = True
        self._strangers.pop(place, None)
        self.holdings.give(place.client)
        if place.address:
            self.open[place.address] -= 1
            if self.open[place.address] <= 0:
                del self.open[place.address]

    def hand_over(self, place: ConnectionSlot, client: ShareHolder) -> None:
        """Count a connection in the share of another client. Raises as :meth:`ConnectionSlot.known`."""
        if place.is_gone:
            return
        self.holdings.give(place.client)
        try:
            while not self.holdings.has_room(client) and self._drop_one(but=place):
                pass
            self.holdings.take(client)
        except (BudgetExceeded, Overloaded):
            self.holdings.take(place.client, forced=True)
            place.owner.end()
            raise
        place.client = client
        self._strangers.pop(place, None)

    def _drop_one(self, but: ConnectionSlot | None = None) -> bool:
        """Have a stranger make room; False: there is none."""
        count = min(LOOKED_AT, len(self._strangers) // 2 + 1)  # the newest ones have had no time for their credential
        oldest = [place for place in islice(self._strangers, count) if place is not but]
        if not oldest:
            return False
        place = next((each for each in oldest if each.owner.is_idle), oldest[0])
        self.leave(place)
        self.holdings.count_refusal("dropped")
        place.owner.drop()
        return True
