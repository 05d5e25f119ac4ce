"""Room in the backlog of a pushed subscription: whom it calls, and when it counts its rows. The clock is given."""

from __future__ import annotations

import asyncio

import pytest

from gateway.ledger.pending.owed import BacklogSettlement, Ending
from gateway.webhooks.backlog import COUNT_EVERY
from tests.webhooks.test_backlog import backlog_with, owed
from tests.webhooks.virtual import run


def test_it_says_once_that_it_is_full_and_once_that_there_is_room_again() -> None:
    async def main() -> None:
        calls: list[int] = []
        _ledger, backlog = await backlog_with(most=2, on_due=lambda: calls.append(backlog.count))
        await asyncio.sleep(0.1)
        calls.clear()
        full = []
        for step in (backlog.removed, *[backlog.added] * 3, *[backlog.removed] * 3):
            step()
            full.append((backlog.count, backlog.full))
        counted = [(0, False), (1, False), (2, True), (3, True), (2, True), (1, False), (0, False)]
        assert full == counted
        assert calls == [2, 1]
        backlog.close()

    run(main())


def test_while_it_is_full_the_ledger_is_asked_now_and_then_whether_it_still_is() -> None:
    """Somebody else may delete rows."""

    async def main() -> None:
        calls: list[int] = []
        ledger, backlog = await backlog_with(owed(1, 0), most=2, on_due=lambda: calls.append(backlog.count))
        await ledger.store([owed(2, 0)])
        await asyncio.sleep(0.1)
        backlog.added()
        calls.clear()
        await asyncio.sleep(2 * COUNT_EVERY + 1)
        assert (backlog.full, ledger.counts, calls) == (True, 2, [])
        ledger.away = True
        await asyncio.sleep(COUNT_EVERY)
        assert (backlog.full, ledger.counts, calls) == (True, 3, [])
        ledger.away = False
        await ledger.settle([BacklogSettlement((1).to_bytes(16, "big"), Ending.PURGE)])
        await asyncio.sleep(COUNT_EVERY)
        assert (backlog.full, backlog.count, ledger.counts, calls) == (False, 1, 4, [1])
        await asyncio.sleep(10 * COUNT_EVERY)
        assert ledger.counts == 4, "nobody asks while there is room"
        backlog.added()
        await asyncio.sleep(COUNT_EVERY + 1)
        assert (backlog.count, ledger.counts) == (1, 5)
        backlog.close()

    run(main())


def test_room_that_was_told_of_is_not_told_of_again_by_the_count() -> None:
    async def main() -> None:
        calls: list[int] = []
        ledger, backlog = await backlog_with(owed(1, 0), most=2, on_due=lambda: calls.append(backlog.count))
        await asyncio.sleep(0.1)
        backlog.added()
        backlog.removed()
        calls.clear()
        await asyncio.sleep(COUNT_EVERY + 1)
        assert (ledger.counts, calls) == (1, [])
        backlog.close()

    run(main())


@pytest.mark.parametrize("wait", [0.0, COUNT_EVERY + 0.0005])
def test_once_it_is_closed_it_asks_and_tells_nobody(wait: float) -> None:
    """Neither by a timer, nor by a count that has begun, nor because of a row that is stored then."""

    async def main() -> None:
        calls: list[None] = []
        ledger, backlog = await backlog_with(most=1, on_due=lambda: calls.append(None))
        await asyncio.sleep(0.1)
        await backlog.claim(1, 60.0, 1 << 20)
        backlog.expect(30.0)
        backlog.added()
        await asyncio.sleep(wait)
        backlog.close()
        calls.clear()
        counts = ledger.counts
        backlog.added()
        await asyncio.sleep(50.0)
        backlog.expect(1.0)
        await asyncio.sleep(50.0)
        assert (calls, ledger.counts) == ([], counts)

    run(main())
