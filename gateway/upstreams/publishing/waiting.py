"""Publishes that wait for room: a line before each outlet, bounded over all of them."""

from __future__ import annotations

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

    def __bool__(self) -> bool:
        return bool(self.outlets)

    def add(self, outlet: Outlet, item: Waiting) -> bool:
        """At the end of the line, if there is room for one more; else it fails."""
        size = len(item[3].body)
        if self.count >= WAITING_MAX or (self._octets and self._octets + size > self._octets_max):
            item[0].set_exception(BrokerUnavailable(f"broker {self._broker}: too many publishes wait for room"))
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
        """Fail those whose time is up; the earliest deadline of the rest."""
        earliest = NEVER
        for item in outlet.line:
            if item[0].done():
                continue
            if item[1] <= now:
                item[0].set_exception(BrokerUnavailable(f"broker {self._broker}: no room to publish in time"))
            elif item[1] < earliest:
                earliest = item[1]
        if outlet.line and earliest == NEVER:  # nobody waits for any of them
            self.fail(outlet, BrokerUnavailable(f"broker {self._broker}: no room to publish in time"))
        return earliest
