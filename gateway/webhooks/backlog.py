"""What the ledger holds for a pushed subscription: how much, and when the next of it is due.

A message that waits for its next attempt holds nothing here, not even an entry of a list: one time is remembered, that
of the earliest one, and one timer. When it has come, as many rows as there is room for are claimed
(``ledger.deliveries.claim``), which also decides, where there is an order, whose turn it is. When few or none could be
claimed, the ledger is asked when the next row will be due.

Only the process that owns the subscription claims, and it has just begun. So what is out when it begins was claimed by
one that died, or that may not write any more, and is put back at once: nobody waits for those claims to end.

Other processes may revive a message or have it tried again. They send a notice, which may be lost. So where several
processes share the ledger, the owner looks for such rows every :data:`LOOK_EVERY` seconds: a read, and no commit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from gateway.errors import LedgerUnavailable
from gateway.ledger import Ledger
from gateway.ledger.pending.owed import BacklogCounts, BacklogEntry, BacklogSettlement, Ending
from gateway.runtime.clock import clock

AWAY = 1.0
"""After this many seconds the request is repeated where the ledger is away."""
SOON = 0.05
"""It is asked again no sooner than this, in seconds."""
JUST_NOW_US = 500_000
"""What has been due for longer, in microseconds, and cannot be claimed, waits for another one."""
FEW = 8
"""Where fewer rows were claimed, the ledger is asked when the next will be due: to read that is cheaper than to try to
claim again, which is a commit. Where there were more, there are probably more yet. Not where there is an order: what
is due there, and was not claimed, may have to wait for another row, or was over the limit."""
PAGE = 1_000
"""Rows that are read at a time."""
COUNT_EVERY = 5.0
"""Interval of new counts of the ledger's backlog while it is too large, in seconds."""
LOOK_EVERY = 15.0
"""Interval of looks for rows that another process made due, in seconds, where nothing else is due sooner."""


class UntriedRows:
    """How many rows were stored, and not claimed since."""

    def __init__(self) -> None:
        self._count = 0
        self._blocked = 0
        """So many of them wait for others of their order key."""

    def add(self, count: int) -> None:
        """Count rows that were stored."""
        self._count += count

    def claim(self) -> None:
        """One was claimed for the first time."""
        if self._count:
            self._count -= 1
            self._blocked = min(self._blocked, self._count)

    def block(self) -> None:
        """None could be claimed: all of them wait for others."""
        self._blocked = self._count

    @property
    def claimable(self) -> int:
        """How many wait for nothing else."""
        return self._count - self._blocked


class EndpointBacklog:
    """The ledger's rows of one subscription."""

    def __init__(
        self, ledger: Ledger, subscription: str, *, ordered: bool, most: int, on_due: Callable[[], None]
    ) -> None:
        """
        Args:
            ordered: of each order key, only the first is handed out.
            most: how many rows there may be.
            on_due: called when there may be something to claim, or room again.
        """
        self.most = most
        self.count = 0
        """Rows, dead ones included, as far as is known."""
        self.tried = False
        """There were rows at the start that had failed before."""
        self._ledger = ledger
        self._subscription = subscription
        self._ordered = ordered
        self._on_due = on_due
        self._loop = asyncio.get_running_loop()
        self._due_at: float | None = None
        self._doubtful = False
        """That is when a claim ends; but what was claimed is settled before, as a rule, and there is nothing due."""
        self._timer: asyncio.TimerHandle | None = None
        self._counter: asyncio.TimerHandle | None = None
        self._counting: asyncio.Task[None] | None = None
        self._look_timer: asyncio.TimerHandle | None = None
        self._looking: asyncio.Task[None] | None = None
        self._looked_at = clock.monotonic()
        """What was due by then has been claimed, or was found to wait for others."""
        self._closed = False

    async def open(self) -> None:
        """Look what is there. Raises LedgerUnavailable, also where it was closed meanwhile."""
        backlog = await self._count()
        if backlog.out:
            await self._put_back()
        if self.count:
            first = await self._ledger.deliveries.due(self._subscription, 1)
            self.tried = bool(first and first[0].attempt)
        self._check_open()
        self.expect(0.0)
        if self._ledger.work.shared:
            self._look_later()

    @property
    def full(self) -> bool:
        """There is no room for more rows."""
        return self.count >= self.most

    @property
    def is_due(self) -> bool:
        """There may be something to claim."""
        return self._due_at is not None and self._due_at <= clock.monotonic()

    @property
    def due_in(self) -> float | None:
        """Seconds until something is due, as far as is known; None: nothing waits."""
        return None if self._due_at is None else max(0.0, self._due_at - clock.monotonic())

    def expect(self, wait: float, *, doubtful: bool = False) -> None:
        """A row will be due in this many seconds; ``doubtful``: unless it is settled before."""
        at = clock.monotonic() + wait
        if self._due_at is None or at < self._due_at:
            self._due_at = at
            self._doubtful = doubtful
            self._arm()

    def added(self) -> None:
        """There is another row."""
        self.count += 1
        if self.full and self._counter is None and not self._closed:
            self._counter = self._loop.call_later(COUNT_EVERY, self._count_soon)
            self._on_due()

    def removed(self) -> None:
        """A row is gone."""
        was = self.full
        self.count = max(0, self.count - 1)
        if was and not self.full:
            self._on_due()

    async def claim(self, limit: int, seconds: float, octets: int) -> list[BacklogEntry]:
        """Take what is due, at most ``limit`` rows with ``octets`` of bodies, for this many seconds; while the ledger
        is away, try again later.

        Empty where nothing is due now; ``is_due`` says whether it is worth asking again."""
        looked = self._doubtful and not self._ordered
        self._due_at = None
        self._looked_at = clock.monotonic()
        rows: list[BacklogEntry] = []
        try:
            found = await self._next() if looked else None
            if not looked or (found is not None and found.due_in <= 0):
                rows = await self._ledger.deliveries.claim(
                    self._subscription, limit, seconds, ordered=self._ordered, octets_max=octets
                )
                if len(rows) >= FEW or (rows and self._ordered):
                    self.expect(0.0)
                    return rows
                found = await self._next()
        except LedgerUnavailable:
            self.expect(AWAY)
            return rows
        if found is not None:
            self.expect(max(found.due_in, 0.0 if rows else SOON), doubtful=found.out)
        return rows

    async def _next(self, since: float = 0.0) -> BacklogEntry | None:
        """The row that is due next, where no more could be claimed this many seconds ago; None: that depends on others.

        What is due then, and could not be claimed, has become due just now; or it waits for another one of its order
        key, and is claimed when that is settled. So in order it is looked behind all that has been due for a while."""
        deliveries = self._ledger.deliveries
        found = await deliveries.due(self._subscription, 1)
        if found and found[0].due_in <= 0 and self._ordered:
            there = found[0].due_at - int(found[0].due_in * 1_000_000)
            behind = there - JUST_NOW_US - int(since * 1_000_000)
            found = await deliveries.due(self._subscription, 1, after=(behind, b""))
        return found[0] if found else None

    def close(self) -> None:
        """Call nobody any more."""
        self._closed = True
        for timer in (self._timer, self._counter, self._look_timer):
            if timer is not None:
                timer.cancel()
        for task in (self._counting, self._looking):
            if task is not None:
                task.cancel()

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._due_at is not None and not self._closed:
            self._timer = self._loop.call_at(self._due_at, self._due)

    def _due(self) -> None:
        self._timer = None
        if self._due_at is None:
            return
        if self._due_at > clock.monotonic():  # some loops are early by a part of a millisecond
            self._due_at = clock.monotonic()
        self._on_due()

    def _look_later(self) -> None:
        if not self._closed:
            self._look_timer = self._loop.call_later(LOOK_EVERY, self._look_soon)

    def _look_soon(self) -> None:
        due_in = self.due_in
        if due_in is None or due_in > LOOK_EVERY:
            self._looking = self._loop.create_task(self._look())
        else:  # to claim it is to look
            self._look_later()

    async def _look(self) -> None:
        """Find what another process made due. A read that fails is made up for by the next one."""
        now = clock.monotonic()
        try:
            # In order, once more behind what became due before the last look: a commit may be seen late.
            found = await self._next(now - self._looked_at + LOOK_EVERY)
        except LedgerUnavailable:
            pass
        else:
            self._looked_at = now
            if found is not None:
                self.expect(max(found.due_in, 0.0), doubtful=found.out)
        self._look_later()

    def _count_soon(self) -> None:
        self._counter = None
        if not self._closed:
            self._counting = self._loop.create_task(self._recount())

    async def _recount(self) -> None:
        was = self.full
        try:
            await self._count()
        except LedgerUnavailable:
            pass  # it is asked again
        if self.full and not self._closed:
            self._counter = self._loop.call_later(COUNT_EVERY, self._count_soon)
        elif was:
            self._on_due()

    async def _count(self) -> BacklogCounts:
        backlog = await self._ledger.deliveries.backlog(self._subscription)
        self.count = backlog.waiting + backlog.out + backlog.dead
        return backlog

    async def _put_back(self) -> None:
        """End all claims that there are, for nobody here has made one yet."""
        deliveries = self._ledger.deliveries
        place = None
        while rows := await deliveries.due(self._subscription, PAGE, after=place):
            place = rows[-1]
            out = [BacklogSettlement(row.id, Ending.RETRY, lease=row.lease, front=True) for row in rows if row.out]
            if out:
                self._check_open()  # else these may be the claims of the next owner
                await deliveries.settle(out)

    def _check_open(self) -> None:
        """Raises LedgerUnavailable: it was closed, and what is written now may be written under another lease."""
        if self._closed:
            raise LedgerUnavailable(f"subscription {self._subscription!r} was lost while it began")
