"""What pushing writes into the ledger.

One journal serves all subscriptions: all that ended while the last commit ran goes with the next, in one
call. When the ledger is away nothing more is begun (:attr:`PushJournal.writable`), and what has an outcome waits, and
is written when the ledger is back: nothing is acknowledged to its broker before that.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Generic, TypeVar

from msgspec import structs

from gateway.errors import EntriesRefused, LedgerUnavailable
from gateway.ledger import InboxRow, Ledger, LogEntry
from gateway.ledger.pending.owed import BacklogSettlement, Ending, Owed
from gateway.observing.telemetry import log
from gateway.runtime.backoff import Backoff
from gateway.runtime.clock import clock

GATHER: Final = 0.05
"""The outcome of a failed attempt is written this many seconds later at most, together with other failures. It is in no
hurry, and each commit of its own takes the interpreter's lock from those who are well."""
GROUP: Final = 500
"""Most of a kind that are written at once."""
PAUSE_MIN: Final = 0.5
PAUSE_MAX: Final = 30.0
"""Pause before it is tried again, in seconds; doubled each time."""

T = TypeVar("T")
R = TypeVar("R")


class Line(Generic[T, R]):
    """What waits to be written, in order: all that is there goes at once."""

    def __init__(self, write: Callable[[list[T]], Awaitable[Sequence[R]]]) -> None:
        """``write`` has an answer for each, and does not fail."""
        self._write = write
        self._waiting: deque[tuple[T, asyncio.Future[R]]] = deque()
        self._task: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()

    def put(self, item: T) -> asyncio.Future[R]:
        """Write it; the future has the answer."""
        future: asyncio.Future[R] = self._loop.create_future()
        self._waiting.append((item, future))
        if self._task is None:
            self._task = self._loop.create_task(self._run())
        return future

    async def _run(self) -> None:
        try:
            while self._waiting:
                group = [self._waiting.popleft() for _ in range(min(GROUP, len(self._waiting)))]
                group = [(item, future) for item, future in group if not future.done()]
                if not group:
                    continue
                try:
                    answers = await self._write([item for item, _ in group])
                except BaseException as error:  # for whoever waits
                    cancelled = isinstance(error, asyncio.CancelledError)
                    for _, future in group:
                        if cancelled:
                            future.cancel()
                        elif not future.done():
                            future.set_exception(error)
                    if cancelled:
                        raise
                    continue
                for (_, future), answer in zip(group, answers, strict=True):
                    if not future.done():
                        future.set_result(answer)
        finally:
            self._task = None

    async def close(self) -> None:
        """Write nothing more: who waits is cancelled."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        for _, future in self._waiting:
            future.cancel()
        self._waiting.clear()


class PushJournal:
    """The ledger, as pushing sees it."""

    def __init__(self, ledger: Ledger, on_trouble: Callable[[], None] = lambda: None) -> None:
        """``on_trouble`` is called when the ledger is found away, and when it is back."""
        self._ledger = ledger
        self._on_trouble = on_trouble
        self._stuck = 0
        self._records: Line[Sequence[LogEntry], None] = Line(self._record)
        self._settlements: Line[BacklogSettlement, bool] = Line(self._settle)
        self._gathering: asyncio.Future[None] | None = None
        """Done when those that failed are written."""

    @property
    def writable(self) -> bool:
        """The ledger can be written now, as far as is known, and nothing waits for it to come back."""
        return not self._stuck and self._ledger.healthy

    async def record(self, entries: Sequence[LogEntry]) -> None:
        """Append events; durable when it returns. Tries for as long as it takes. Events that the ledger cannot hold are
        logged, and no error: what they tell of has happened."""
        await self._records.put(entries)

    async def settle(self, settlement: BacklogSettlement) -> bool:
        """Settle a delivery of the ledger; durable when it returns; False: somebody else did. Tries for as long as it
        takes."""
        if settlement.ending is Ending.RETRY:
            await self._gather()
        return await self._settlements.put(settlement)

    async def store(self, owed: Owed, entries: Sequence[LogEntry], inbox: Sequence[InboxRow]) -> bool:
        """Have the ledger hold a message; durable when it returns. False: the ledger cannot hold it. Tries for as long
        as it takes."""

        async def write() -> bool:
            await self._ledger.deliveries.store([owed], entries, inbox)
            return True

        await self._gather()
        try:
            return await self._until_written(write)
        except EntriesRefused as error:
            log("push.not_stored", logging.ERROR, subscription=owed.subscription, reason=str(error)[:500])
            return False

    async def _gather(self) -> None:
        """Wait for others that failed: they all go on in the same turn of the loop."""
        if self._gathering is None:
            loop = asyncio.get_running_loop()
            self._gathering = loop.create_future()
            loop.call_later(GATHER, self._gathered)
        await asyncio.shield(self._gathering)

    def _gathered(self) -> None:
        gathering, self._gathering = self._gathering, None
        if gathering is not None and not gathering.done():
            gathering.set_result(None)

    async def close(self) -> None:
        """Write nothing more."""
        if self._gathering is not None:
            self._gathering.cancel()
        await self._records.close()
        await self._settlements.close()

    async def _record(self, groups: list[Sequence[LogEntry]]) -> list[None]:
        entries = [entry for group in groups for entry in group]
        is_tried = False

        async def write() -> None:
            nonlocal is_tried
            before, is_tried = is_tried, True  # a commit that failed may have happened all the same
            await self._ledger.record(await self._ledger.unrecorded(entries) if before else entries)

        try:
            await self._until_written(write)
        except EntriesRefused as error:
            log("push.events_refused", logging.ERROR, reason=str(error)[:500])
        return [None] * len(groups)

    async def _settle(self, settlements: list[BacklogSettlement]) -> Sequence[bool]:
        try:
            return await self._until_written(lambda: self._ledger.deliveries.settle(settlements))
        except EntriesRefused as error:
            log("push.events_refused", logging.ERROR, reason=str(error)[:500])
            answers = list(error.results)
            for index in error.refused:  # what the events tell of has happened: without them
                answers[index] = (await self._settle([structs.replace(settlements[index], entries=())]))[0]
            return answers

    async def _until_written(self, write: Callable[[], Awaitable[T]]) -> T:
        """Raises EntriesRefused."""
        try:
            return await write()
        except LedgerUnavailable as error:
            log("push.ledger_away", logging.WARNING, reason=str(error)[:500])
        self._stuck += 1
        self._on_trouble()
        backoff = Backoff(PAUSE_MIN, PAUSE_MAX)
        try:
            while True:
                await self._wait(backoff.next())
                try:
                    return await write()
                except LedgerUnavailable:
                    continue
        finally:
            self._stuck -= 1
            self._on_trouble()

    async def _wait(self, pause: float) -> None:
        """Wait this many seconds, or until the ledger has found out that it can be written again."""
        while pause > 0:
            await clock.sleep(min(pause, PAUSE_MIN))
            pause -= PAUSE_MIN
            if self._ledger.healthy:
                break
