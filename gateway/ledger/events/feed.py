"""The feed: every event, in the order of its shard, from a position on and as it comes.

A position says of each shard how far one has read, ``{"0": 812, "3": 77}``. Sequence numbers have no gaps and are
committed in their order, so a reader that goes on behind a position misses nothing and sees nothing twice.

Those who follow read what there was from SQL. Behind that, one task reads what is new for all of them: it looks at the
shards a few times a second while anybody follows, and keeps the last :data:`KEPT` events. A follower that is too slow
for that is back at reading from SQL; nobody waits for it, and nothing is kept for it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from itertools import islice
from typing import Any, Final

from gateway.errors import LedgerUnavailable
from gateway.ledger.events import reads
from gateway.ledger.writing.records import EventFilter, RecordedEvent
from gateway.runtime.clock import clock

POLL: Final = 0.2
"""How often the shards are looked at while somebody follows, in seconds."""
AWAY: Final = 1.0
"""The same while the ledger is away."""
PAGE: Final = 1_000
"""Events that are read at a time."""
KEPT: Final = 10_000
"""Events that are kept for followers."""

Read = Callable[..., Awaitable[Any]]
"""Runs a function of :mod:`gateway.ledger.events.reads` in a reader's thread, with these arguments."""


class Feed:
    """What is new, for all who follow."""

    def __init__(self, read: Read) -> None:
        self._read = read
        self._followers = 0
        self._task: asyncio.Task[None] | None = None
        self._kept: deque[RecordedEvent] = deque()
        self._first = 0
        """Number of the first event that is kept; they are counted from the first that was read."""
        self._start: dict[str, int] = {}
        """The position before the first that is kept."""
        self._end: dict[str, int] | None = None
        """The position behind the last one; None: nobody reads."""
        self._news = asyncio.Event()

    @property
    def followers(self) -> int:
        """How many there are."""
        return self._followers

    async def follow(
        self, position: Mapping[str, int], where: EventFilter, idle: float
    ) -> AsyncGenerator[tuple[list[RecordedEvent], dict[str, int]], None]:
        """Events behind ``position``, by pages, each with the position behind it. A page is empty where none is
        wanted, and where nothing came for ``idle`` seconds.

        Raises:
            LedgerUnavailable: what there was cannot be read. What is new is waited for.
        """
        reached = dict(position)
        self._followers += 1
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._watch(), name="ledger-feed")
        try:
            while True:
                if not self._covers(reached):
                    before = reached
                    found, reached = await self._read(reads.events_after, before, PAGE, where)
                    if reached != before:
                        yield found, dict(reached)
                    else:  # nothing is left, and what comes is not read for us yet
                        await clock.sleep(POLL)
                    continue
                number = self._first
                while number >= self._first:
                    news = self._news
                    page: list[RecordedEvent] = []
                    for event in islice(self._kept, number - self._first, None):
                        shard = str(event.shard)
                        if event.sequence > reached.get(shard, 0):
                            reached[shard] = event.sequence
                            if reads.wanted(event, where):
                                page.append(event)
                    number = self._first + len(self._kept)
                    if page:
                        yield page, dict(reached)
                        continue
                    try:
                        async with asyncio.timeout(idle):
                            await news.wait()
                    except TimeoutError:
                        yield [], dict(reached)
        finally:
            self._followers -= 1
            if not self._followers and self._task is not None:
                self._task.cancel()
                self._task = None
                self._forget()

    def _covers(self, position: Mapping[str, int]) -> bool:
        """Everything behind the position is kept here."""
        return self._end is not None and all(position.get(shard, 0) >= last for shard, last in self._start.items())

    def _forget(self) -> None:
        self._kept.clear()
        self._end = None

    async def _watch(self) -> None:
        """Read what is new, for as long as somebody follows."""
        while True:
            try:
                if self._end is None:
                    self._end = await self._read(reads.end)
                    self._start = dict(self._end)
                found, reached = await self._read(reads.events_after, self._end, PAGE)
            except LedgerUnavailable:
                await clock.sleep(AWAY)
                continue
            if reached == self._end:
                await clock.sleep(POLL)
                continue
            self._end = reached
            self._kept += found
            while len(self._kept) > KEPT:
                gone = self._kept.popleft()
                self._first += 1
                self._start[str(gone.shard)] = gone.sequence
            self._news.set()
            self._news = asyncio.Event()
