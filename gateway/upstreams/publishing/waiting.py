"""Publishes that wait for room: a line before each outlet, bounded over all of them.

What fails here was not sent, and may be asked for again. Those of the same order that stand behind it fail with it, so
that they do not come before it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Final

from gateway.errors import BrokerUnavailable, GatewayError
from gateway.upstreams.publishing.isolation import Again
from gateway.upstreams.publishing.lanes import NEVER, Outlet, settle
from gateway.upstreams.publishing.receipts import Waiting

WAITING_MAX: Final = 20_000
"""Most publishes that wait for room, over all exchanges of a broker."""
WAITING_WINDOWS: Final = 4
"""Most octets that wait for room, in windows (``publish_window_octets``)."""


class WaitingRoom:
    """The lines of a broker's outlets, and what is in them altogether."""

    def __init__(self, broker: str, window_octets: int) -> None:
        self.outlets: dict[Outlet, None] = {}
        """Those with a line, in the order in which they began to wait."""
        self.count = 0
        self._broker = broker
        self._octets = 0
        self._octets_max = WAITING_WINDOWS * window_octets
        self.turned_away: set[str] = set()
        """Orders of which one found no room in this turn of the event loop."""

    def __bool__(self) -> bool:
        return bool(self.outlets)

    def add(self, outlet: Outlet, item: Waiting) -> bool:
        """At the end of the line, if there is room for one more; else it fails."""
        size = len(item[3].body)
        order = item[5]
        is_full = self.count >= WAITING_MAX or (self._octets and self._octets + size > self._octets_max)
        if is_full or order in self.turned_away:
            item[0].set_exception(BrokerUnavailable(f"broker {self._broker}: too many publishes wait for room"))
            if order is not None:
                if not self.turned_away:
                    asyncio.get_running_loop().call_soon(self.turned_away.clear)
                self.turned_away.add(order)
            return False
        outlet.line.append(item)
        self.outlets[outlet] = None
        self.count += 1
        self._octets += size
        return True

    def put_first(self, outlet: Outlet, items: Sequence[Waiting]) -> None:
        """At the head of the line, in this order, beyond all bounds: these were in a window, which is one."""
        if items:
            outlet.line.extendleft(reversed(items))
            self.outlets[outlet] = None
            self.count += len(items)
            self._octets += sum(len(item[3].body) for item in items)

    def served(self, outlet: Outlet) -> None:
        """The first in line was sent, or nobody waits for it any more."""
        item = outlet.line.popleft()
        self.count -= 1
        self._octets -= len(item[3].body)
        if not outlet.line:
            del self.outlets[outlet]

    def fail(self, outlet: Outlet, error: GatewayError) -> None:
        """Everyone in the line fails as not sent."""
        line, outlet.line = outlet.line, deque()
        outlet.suspects = 0
        self.outlets.pop(outlet, None)
        for item in line:
            self.count -= 1
            self._octets -= len(item[3].body)
            # Of what is sent again it says nothing: there was an attempt before.
            settle(item[0], BrokerUnavailable(str(error)) if isinstance(item[0], Again) else error)

    def late(self, outlet: Outlet, now: float) -> float:
        """Fail those whose time is up, and those of their orders behind them; the earliest deadline of the rest."""
        earliest = NEVER
        orders: set[str] = set()
        for future, deadline, *_, order in outlet.line:
            if future.done():
                continue
            if deadline <= now or order in orders:
                future.set_exception(BrokerUnavailable(f"broker {self._broker}: no room to publish in time"))
                if order is not None:
                    orders.add(order)
            elif deadline < earliest:
                earliest = deadline
        if outlet.line and earliest == NEVER:  # nobody waits for any of them
            self.fail(outlet, BrokerUnavailable(f"broker {self._broker}: no room to publish in time"))
        return earliest
