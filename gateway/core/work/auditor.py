"""The online audit: what the ledger promised is looked for, all the time and at little cost.

New events are looked at once they are :data:`GRACE` old; and everything that the ledger remembers, once after the start
and then every :data:`ROUND_EVERY`, for a pending entry may go missing later. What is found twice, :data:`TWICE` apart,
is
lost: it is logged, and counted in ``amqpgw_lost_total``, each once in the life of the process.

A page costs some milliseconds of a reader's thread, and is followed by a pause of :data:`SHARE` times as long. So the
audit may fall behind where more comes than that (``amqpgw_audit_behind`` says how far), and it catches up later.

Of the processes on one ledger the owner of the lowest shard audits. When it goes, another one starts over.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final

from gateway.errors import LedgerUnavailable
from gateway.ledger import Ledger, id_text
from gateway.ledger.pending.promises import Missing, ObligationPage
from gateway.observing.telemetry import Metrics, log
from gateway.runtime.clock import clock

GRACE: Final = 30.0
"""How old events are before they are looked at, in seconds."""
TWICE: Final = 2.0
"""Pause before what is missing is looked for again, in seconds."""
SHARE: Final = 50
"""Pause after a page, in times that it took."""
PAUSE_MIN, PAUSE_MAX = 0.02, 5.0
"""Shortest and longest of these pauses, in seconds; the longest also where there is nothing to do."""
ROUND_EVERY: Final = 86_400.0
"""From the end of a round to the next one, in seconds."""
AGAIN: Final = 60.0
"""Pause after an internal error, in seconds."""
FOUND_MAX: Final = 10_000
"""Most findings that are remembered; what is found beyond them is counted no more."""
LOGGED_MAX: Final = 20
"""Most findings of a page that are logged one by one."""


class Auditor:
    """Looks, and tells."""

    def __init__(self, ledger: Ledger, metrics: Metrics) -> None:
        self.found: set[Missing] = set()
        """What was lost."""
        self._ledger = ledger
        self._metrics = metrics
        self._task: asyncio.Task[None] | None = None
        self._heads: deque[tuple[float, dict[int, int]]] = deque()
        """How far each shard was, and when."""
        self._recent: dict[int, int] | None = None
        """How far new events were looked at; None: this process does not audit."""
        self._round_due = 0.0

    def start(self) -> None:
        """Look, in the background."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name="ledger audit")

    async def close(self) -> None:
        """Stop."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def _run(self) -> None:
        while True:
            try:
                await self._look()
                await clock.sleep(PAUSE_MAX)
            except LedgerUnavailable as error:
                log("ledger.audit_waits", logging.DEBUG, reason=str(error))
                await clock.sleep(PAUSE_MAX)
            except Exception as error:  # a defect of ours; nothing depends on the audit
                log("ledger.audit_failed", logging.ERROR, error)
                await clock.sleep(AGAIN)

    async def _look(self) -> None:
        """What is new; and a round, when it is due."""
        limit = await self._limit()
        if limit is None:
            return
        await self._news(limit)
        if clock.monotonic() >= self._round_due and await self.through(limit, self._news_since):
            self._metrics.audit_rounds.inc()
            self._round_due = clock.monotonic() + ROUND_EVERY

    async def _limit(self) -> dict[int, int] | None:
        """How far the shards were :data:`GRACE` ago, as far as that is known; None: there is nothing to do."""
        now = clock.monotonic()
        owner, extents = await self._ledger.promises.survey()
        if owner != self._ledger.shard:
            self._recent = None
            self._heads.clear()
            self._metrics.audit_behind.set(0)
            return None
        heads = {each.shard: each.head for each in extents}
        self._heads.append((now, heads))
        while len(self._heads) > 1 and self._heads[1][0] <= now - GRACE:
            self._heads.popleft()
        if self._recent is not None:
            behind = sum(max(0, head - self._recent.get(shard, 0)) for shard, head in heads.items())
            self._metrics.audit_behind.set(behind)
        seen_at, limit = self._heads[0]
        if seen_at > now - GRACE:
            return None
        if self._recent is None:
            self._recent, self._round_due = dict(limit), 0.0
        return limit

    async def _news(self, limit: dict[int, int]) -> None:
        assert self._recent is not None
        for shard, head in limit.items():
            while self._recent.get(shard, 0) < head:
                after = self._recent.get(shard, 0)
                page = await self._page(partial(self._ledger.promises.page, shard, after, head))
                self._recent[shard] = page.end

    async def _news_since(self) -> bool:
        """What came while a round is under way; whether this process still audits."""
        limit = await self._limit()
        if limit is not None:
            await self._news(limit)
        return self._recent is not None

    async def through(
        self, limit: dict[int, int] | None = None, between: Callable[[], Awaitable[bool]] | None = None
    ) -> bool:
        """Look at everything that the ledger remembers, up to ``limit`` (None: all that there is). ``between`` is
        called once in a while; it says whether to go on. False: it did not.

        Raises:
            LedgerUnavailable: it cannot be read.
        """
        promises = self._ledger.promises
        _, extents = await promises.survey()
        for each in extents:
            after = each.floor - 1
            head = each.head if limit is None else limit.get(each.shard, 0)
            while after < head:
                page = await self._page(partial(promises.page, each.shard, after, head))
                after = page.end
                if between is not None and not await between():
                    return False
        place: bytes | None = b""
        while place is not None:
            page = await self._page(partial(promises.bodies, place))
            place = page.end
        for each in extents:
            number: int | None = 0
            while number is not None:
                page = await self._page(partial(promises.spooled, each.shard, number))
                number = page.end
        return True

    async def _page(self, look: Callable[[], Awaitable[ObligationPage]]) -> ObligationPage:
        """A page, and the pause after it."""
        began = clock.monotonic()
        page = await look()
        took = clock.monotonic() - began
        if new := [each for each in page.missing if each not in self.found]:
            await clock.sleep(TWICE)
            again = set((await look()).missing)
            self._tell([each for each in new if each in again])
        self._metrics.audit_checked.inc(page.events)
        await clock.sleep(min(max(took * SHARE, PAUSE_MIN), PAUSE_MAX))
        return page

    def _tell(self, missing: Sequence[Missing]) -> None:
        for number, each in enumerate(missing):
            if len(self.found) >= FOUND_MAX:
                log("ledger.lost_more", logging.ERROR, count=len(missing) - number)
                return
            self.found.add(each)
            self._metrics.lost.labels(each.promise).inc(each.number)
            if number < LOGGED_MAX:
                log(
                    "ledger.lost", logging.ERROR, promise=each.promise, what=each.what, count=each.number,
                    message_id=id_text(each.message_id) if each.message_id else "",
                )  # fmt: skip
        if len(missing) > LOGGED_MAX:
            log("ledger.lost_more", logging.ERROR, count=len(missing) - LOGGED_MAX)
