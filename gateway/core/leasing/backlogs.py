"""What this process knows of the ledger's deliveries for one subscription without asking: whether anything may be due.

To claim is a transaction, and most pulls would find nothing: a message that is pulled and acknowledged in time is never
due in the ledger. So a claim is made only if something may have become due since the last one found no more:

* something was stored, released or extended here, or a lease ran out that was granted here: that is known to the
second;
* another process, or an earlier one, did so: it is looked again once in a while, less often the longer nothing comes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Set
from heapq import heappop, heappush
from math import ceil
from typing import Any, Final

from gateway.runtime.clock import monotonic_time

LOOK_MIN: Final = 1.0
LOOK_MAX: Final = 8.0
"""After how many seconds the ledger is asked again in any case; doubled each time that there was nothing."""
SHELVES_MAX: Final = 10_000
"""How many subscriptions are remembered; when they are more, those for which nobody waits are forgotten."""


class SubscriptionBacklog:
    """One subscription."""

    __slots__ = (
        "_clock", "_dues", "_look", "_look_at", "_now", "_seconds", "_waiters", "backlog_asked_at", "held", "pulls",
        "storing",
    )  # fmt: skip

    def __init__(self, clock: Callable[[], float]) -> None:
        """``clock``: the loop's."""
        self._clock = clock
        self._dues: list[int] = []
        self._seconds: set[int] = set()
        self._look = LOOK_MIN
        self._look_at = clock()
        self._now = True
        """Something is due, or may be."""
        self._waiters: set[asyncio.Future[None]] = set()
        self.pulls = 0
        """How many pulls are under way."""
        self.held = 0
        """How many messages the ledger held when it was asked last, and were stored here since."""
        self.backlog_asked_at: float | None = None
        self.storing: dict[asyncio.Task[Any], frozenset[str] | None] = {}
        """What pulls are storing, those that began first at the front -> the keys of its messages; None: they are not
        known yet."""

    def store(self, work: asyncio.Task[Any]) -> None:
        """Note that a pull stores what came for it."""
        self.storing[work] = None
        work.add_done_callback(self.storing.pop)

    async def stored_before(self, keys: Set[str], work: asyncio.Task[Any]) -> None:
        """Wait until messages of these keys are stored, or are not, for which a pull began before ``work`` did: their
        channel may have been lost meanwhile, so that they come again before the ledger has them."""
        earlier = []
        for other, its in self.storing.items():
            if other is work:
                break
            if its is None or not keys.isdisjoint(its):
                earlier.append(other)
        if earlier:
            await asyncio.wait(earlier)

    def may_be_due(self) -> bool:
        """Whether it is worth a claim."""
        now = self._clock()
        while self._dues and self._dues[0] <= now:
            self._seconds.discard(heappop(self._dues))
            self._now = True
        return self._now or now >= self._look_at

    def asked(self) -> None:
        """A claim begins; what is new from now on it may not find."""
        self._now = False

    def emptied(self) -> None:
        """It found all that there was."""
        self._look_at = self._clock() + self._look
        self._look = min(self._look * 2, LOOK_MAX)

    def found(self) -> None:
        """It found all that it wanted: there may be more."""
        self.news()

    def next_look(self) -> float:
        """When it is to be asked next if nobody says anything, on the clock."""
        if self._now:
            return self._clock()
        return min(self._look_at, float(self._dues[0])) if self._dues else self._look_at

    def due_in(self, seconds: float) -> None:
        """Something will be due this many seconds from now."""
        if seconds <= 0:
            self.news()
            return
        second = ceil(self._clock() + seconds)
        if second not in self._seconds:
            self._seconds.add(second)
            heappush(self._dues, second)
            if self._dues[0] == second:
                self._wake()  # who waits for a later one waits anew

    def news(self) -> None:
        """Something is due now."""
        self._now = True
        self._look = LOOK_MIN
        self._wake()

    def wait(self) -> asyncio.Future[None]:
        """Done when there is something new; :meth:`leave` it."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        return waiter

    def leave(self, waiter: asyncio.Future[None]) -> None:
        """Wait no longer."""
        self._waiters.discard(waiter)

    @property
    def idle(self) -> bool:
        """Nobody uses it."""
        return not self._waiters and not self.pulls and not self.storing

    def _wake(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)


class Backlogs:
    """The backlogs of a process, by subscription."""

    def __init__(self) -> None:
        self._backlogs: dict[str, SubscriptionBacklog] = {}
        self._clock = monotonic_time

    def __getitem__(self, subscription: str) -> SubscriptionBacklog:
        backlog = self._backlogs.get(subscription)
        if backlog is None:
            if len(self._backlogs) >= SHELVES_MAX:
                self._backlogs = {name: kept for name, kept in self._backlogs.items() if not kept.idle}
            backlog = self._backlogs[subscription] = SubscriptionBacklog(self._clock)
        return backlog
