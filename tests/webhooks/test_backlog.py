"""What the ledger holds for a pushed subscription: how often it is asked. The clock is given."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from gateway.config import LedgerSettings
from gateway.core.sources.arrivals import now_us
from gateway.errors import LedgerUnavailable
from gateway.ledger import Ledger
from gateway.ledger.pending.owed import BacklogCounts, BacklogEntry, BacklogSettlement, BacklogStatus, Ending, Owed
from gateway.runtime import replaced
from gateway.runtime.clock import clock
from gateway.webhooks import backlog as backlogs
from gateway.webhooks.backlog import FEW, LOOK_EVERY, SOON, EndpointBacklog, UntriedRows
from tests.ledgers import sqlite_ledger
from tests.webhooks.virtual import FakeLedger, now, run


class Counting(FakeLedger):
    """Counts what it is asked."""

    def __init__(self) -> None:
        super().__init__()
        self.claims = self.reads = self.counts = 0

    async def claim(self, *args: Any, **options: Any) -> list[BacklogEntry]:
        self.claims += 1
        return await super().claim(*args, **options)

    async def due(self, *args: Any, **options: Any) -> list[BacklogEntry]:
        self.reads += 1
        return await super().due(*args, **options)

    async def backlog(self, subscription: str) -> BacklogCounts:
        self.counts += 1
        await self._commit()
        return await super().backlog(subscription)


def owed(number: int, due_in: float, key: bytes = b"") -> Owed:
    at = int(now() * 1e6)
    due = at + int(due_in * 1e6) if due_in else None
    number_as_id = number.to_bytes(16, "big")
    return Owed(
        id=number_as_id,
        message_id=number_as_id,
        subscription="s",
        order_key=key,
        at=at,
        due_at=due or 0,
        payload=b"",
        size=0,
    )


async def backlog_with(
    *rows: Owed,
    ordered: bool = False,
    most: int = 1_000,
    on_due: Callable[[], None] = lambda: None,
    shared: bool = False,
) -> tuple[Counting, EndpointBacklog]:
    ledger = Counting()
    ledger.work.shared = shared
    await ledger.store(rows)
    backlog = EndpointBacklog(cast(Ledger, ledger), "s", ordered=ordered, most=most, on_due=on_due)
    await backlog.open()
    ledger.claims = ledger.reads = ledger.counts = 0
    return ledger, backlog


def test_of_the_rows_that_nobody_has_claimed_those_that_wait_for_others_do_not_count() -> None:
    rows = UntriedRows()
    seen = [rows.claimable]
    steps: list[Callable[[], None]] = [
        lambda: rows.add(3),
        rows.claim,
        rows.block,  # two wait for others of their keys
        lambda: rows.add(2),
        *[rows.claim] * 5,  # one of which was stored before it began
        lambda: rows.add(1),
    ]
    for step in steps:
        step()
        seen.append(rows.claimable)
    assert seen == [0, 3, 2, 0, 2, 1, 0, 0, 0, 0, 1]


def test_one_that_is_claimed_alone_costs_one_claim_and_tells_when_the_next_is_due() -> None:
    async def main() -> None:
        ledger, backlog = await backlog_with(owed(1, 0), owed(2, 20.0))
        assert [row.id for row in await backlog.claim(1, 60.0, 1 << 20)] == [(1).to_bytes(16, "big")]
        assert (ledger.claims, ledger.reads) == (1, 1)
        assert not backlog.is_due
        assert backlog.due_in == pytest.approx(20.0, abs=0.1)
        backlog.close()

    run(main())


def test_what_is_due_besides_is_claimed_at_once() -> None:
    async def main() -> None:
        ledger, backlog = await backlog_with(owed(1, 0), owed(2, 0))
        await asyncio.sleep(0.1)
        assert len(await backlog.claim(1, 60.0, 1 << 20)) == 1
        assert backlog.is_due
        assert len(await backlog.claim(1, 60.0, 1 << 20)) == 1
        assert not backlog.is_due
        assert ledger.claims == 2
        backlog.close()

    run(main())


def test_many_are_followed_by_another_claim_without_a_read() -> None:
    async def main() -> None:
        ledger, backlog = await backlog_with(*(owed(number, 0) for number in range(1, FEW + 2)))
        assert len(await backlog.claim(FEW, 60.0, 1 << 20)) == FEW
        assert backlog.is_due
        assert ledger.reads == 0
        backlog.close()

    run(main())


def test_in_order_it_is_claimed_until_nothing_can_be() -> None:
    """A row behind another of its key is due, and cannot be claimed: only a claim tells."""

    async def main() -> None:
        rows = owed(1, 0, b"a"), owed(2, 0, b"a"), owed(3, 0, b"b")
        _ledger, backlog = await backlog_with(*rows, ordered=True)
        await asyncio.sleep(1.0)
        assert [row.id[-1] for row in await backlog.claim(1, 60.0, 1 << 20)] == [1]
        assert backlog.is_due
        assert [row.id[-1] for row in await backlog.claim(1, 60.0, 1 << 20)] == [3]
        assert backlog.is_due
        assert await backlog.claim(1, 60.0, 1 << 20) == []
        assert not backlog.is_due
        backlog.close()

    run(main())


def test_the_ledger_away_after_a_claim_loses_no_row() -> None:
    async def main() -> None:
        ledger, backlog = await backlog_with(owed(1, 0), owed(2, SOON))

        async def away(*_: Any, **__: Any) -> list[BacklogEntry]:
            raise LedgerUnavailable("away")

        ledger.due = away  # type: ignore[method-assign]
        assert len(await backlog.claim(1, 60.0, 1 << 20)) == 1
        assert not backlog.is_due
        await asyncio.sleep(1.1)
        assert backlog.is_due
        backlog.close()

    run(main())


def test_the_end_of_a_claim_whose_row_was_settled_costs_a_read_and_no_claim() -> None:
    """That is all that is known to come when the only row is claimed; by then it waits for its next attempt."""

    async def main() -> None:
        ledger, backlog = await backlog_with(owed(1, 0))
        (row,) = await backlog.claim(1, 60.0, 1 << 20)
        await ledger.settle([BacklogSettlement(row.id, Ending.RETRY, lease=row.lease, due_in=300.0)])
        backlog.expect(300.0)
        ledger.claims = ledger.reads = 0
        await asyncio.sleep(61.0)
        assert backlog.is_due
        assert await backlog.claim(1, 60.0, 1 << 20) == []
        assert (ledger.claims, ledger.reads) == (0, 1)
        assert backlog.due_in == pytest.approx(239.0, abs=0.1)
        await asyncio.sleep(239.1)
        assert len(await backlog.claim(1, 60.0, 1 << 20)) == 1
        assert ledger.claims == 1
        backlog.close()

    run(main())


def test_what_may_have_been_settled_and_is_due_in_a_moment_is_not_claimed_before() -> None:
    async def main() -> None:
        ledger, backlog = await backlog_with(owed(1, 0))
        (row,) = await backlog.claim(1, 60.0, 1 << 20)
        await ledger.settle([BacklogSettlement(row.id, Ending.RETRY, lease=row.lease, due_in=61.5)])
        ledger.claims = ledger.reads = 0
        await asyncio.sleep(61.0)
        assert await backlog.claim(1, 60.0, 1 << 20) == []
        assert (ledger.claims, ledger.reads) == (0, 1)
        assert backlog.due_in == pytest.approx(0.5, abs=0.1)
        backlog.close()

    run(main())


def test_what_is_due_in_this_very_moment_is_claimed() -> None:
    async def main() -> None:
        ledger, backlog = await backlog_with(owed(1, 0))
        await backlog.claim(1, 60.0, 1 << 20)
        due = ledger.due

        async def due_now(*args: Any, **options: Any) -> list[BacklogEntry]:
            return [msgspec.structs.replace(row, due_in=0.0) for row in await due(*args, **options)]

        ledger.due = due_now  # type: ignore[method-assign]
        await asyncio.sleep(61.0)
        assert len(await backlog.claim(1, 60.0, 1 << 20)) == 1
        backlog.close()

    run(main())


def test_a_row_whose_claim_ends_is_claimed_again() -> None:
    """Nobody settled it: a request that was cut off, for example."""

    async def main() -> None:
        ledger, backlog = await backlog_with(owed(1, 0))
        assert len(await backlog.claim(1, 60.0, 1 << 20)) == 1
        await asyncio.sleep(60.1)
        assert backlog.is_due
        assert [row.attempt for row in await backlog.claim(1, 60.0, 1 << 20)] == [2]
        assert ledger.claims == 2
        backlog.close()

    run(main())


def test_what_is_due_before_the_end_of_a_claim_is_claimed_without_a_look() -> None:
    async def main() -> None:
        ledger, backlog = await backlog_with(owed(1, 0))
        (row,) = await backlog.claim(1, 60.0, 1 << 20)
        await ledger.settle([BacklogSettlement(row.id, Ending.RETRY, lease=row.lease, due_in=5.0)])
        backlog.expect(5.0)
        ledger.claims = ledger.reads = 0
        await asyncio.sleep(5.1)
        assert len(await backlog.claim(1, 60.0, 1 << 20)) == 1
        assert (ledger.claims, ledger.reads) == (1, 1)
        backlog.close()

    run(main())


def test_the_earliest_time_that_was_named_counts() -> None:
    async def main() -> None:
        calls: list[float] = []
        _ledger, backlog = await backlog_with(on_due=lambda: calls.append(now()))
        await asyncio.sleep(0.1)
        assert await backlog.claim(1, 60.0, 1 << 20) == []
        assert (backlog.is_due, backlog.due_in) == (False, None)
        calls.clear()
        begun = now()
        for wait in (20.0, 10.0, 30.0):
            backlog.expect(wait)
        assert backlog.due_in == pytest.approx(10.0)
        await asyncio.sleep(9.9)
        assert not backlog.is_due
        await asyncio.sleep(50.0)
        assert [round(at - begun, 3) for at in calls] == [10.0]
        assert (backlog.is_due, backlog.due_in) == (True, 0.0)
        backlog.close()

    run(main())


def test_what_is_due_for_certain_is_claimed_without_a_look() -> None:
    """Although a claim that perhaps has no row any more ends in the same moment."""

    async def main() -> None:
        ledger, backlog = await backlog_with(owed(1, 0))
        backlog.expect(0.0)
        backlog.expect(0.0, doubtful=True)
        assert len(await backlog.claim(1, 60.0, 1 << 20)) == 1
        assert (ledger.claims, ledger.reads) == (1, 1)
        backlog.close()

    run(main())


def test_a_timer_that_is_early_by_a_moment_counts_as_due() -> None:
    async def main() -> None:
        calls: list[bool] = []
        _ledger, backlog = await backlog_with(on_due=lambda: calls.append(backlog.is_due))
        await asyncio.sleep(0.1)
        await backlog.claim(1, 60.0, 1 << 20)
        calls.clear()
        with replaced(clock, monotonic=lambda: now() - 0.001):
            backlog.expect(5.0)
            await asyncio.sleep(5.0)
            assert calls == [True]
        backlog.close()

    run(main())


def test_rows_that_the_ledger_says_are_due_are_asked_for_again_after_a_moment() -> None:
    """They could not be claimed, and nobody here knows why."""

    async def main() -> None:
        ledger, backlog = await backlog_with(owed(1, 0))

        async def none(*_: Any, **__: Any) -> list[BacklogEntry]:
            return []

        ledger.claim = none  # type: ignore[method-assign]
        assert await backlog.claim(1, 60.0, 1 << 20) == []
        assert not backlog.is_due
        assert backlog.due_in == pytest.approx(SOON)
        backlog.close()

    run(main())


def test_in_order_what_became_due_just_now_is_waited_for_and_what_is_blocked_is_not() -> None:
    async def main() -> None:
        rows = owed(1, 0, b"a"), owed(2, 0, b"a"), owed(3, 5.0, b"b")
        _ledger, backlog = await backlog_with(*rows, ordered=True)
        await asyncio.sleep(1.0)
        assert len(await backlog.claim(1, 60.0, 1 << 20)) == 1
        assert await backlog.claim(1, 60.0, 1 << 20) == []
        assert backlog.due_in == pytest.approx(4.0, abs=0.1)
        await asyncio.sleep(4.0)
        assert len(await backlog.claim(1, 60.0, 1 << 20)) == 1
        assert await backlog.claim(1, 60.0, 1 << 20) == []
        assert backlog.due_in == pytest.approx(56.0, abs=0.1), "the end of the first claim"
        backlog.close()

    run(main())


@pytest.mark.parametrize(
    ("attempts", "dead", "tried"),
    [((), False, False), ((0,), False, False), ((2, 0), False, True), ((0, 2), False, False), ((2,), True, False)],
)
def test_it_is_known_from_the_start_whether_the_next_row_has_failed_before(
    attempts: tuple[int, ...], *, dead: bool, tried: bool
) -> None:
    async def main() -> None:
        rows = [
            msgspec.structs.replace(owed(number, 0), attempt=attempt, dead=dead)
            for number, attempt in enumerate(attempts, 1)
        ]
        _ledger, backlog = await backlog_with(*rows)
        assert (backlog.tried, backlog.count) == (tried, len(rows))
        assert backlog.is_due, "it is claimed at once"
        backlog.close()

    run(main())


@pytest.mark.parametrize("count", [1, 2, 5])
def test_all_that_was_claimed_before_is_put_back_in_its_order(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """A page at a time, where some of the rows wait as they are."""

    async def main() -> None:
        monkeypatch.setattr(backlogs, "PAGE", 2)
        ledger = Counting()
        await ledger.store([*(owed(number, 0) for number in range(1, count + 1)), owed(6, 500.0), owed(7, 600.0)])
        claimed = await ledger.claim("s", 5, 1_000.0)
        assert len(claimed) == count
        backlog = EndpointBacklog(cast(Ledger, ledger), "s", ordered=False, most=10, on_due=lambda: None)
        await backlog.open()
        assert backlog.count == count + 2
        await asyncio.sleep(0.01)
        again = await backlog.claim(10, 60.0, 1 << 20)
        assert [row.id for row in again] == [row.id for row in claimed]
        assert {row.lease for row in again} == {2}
        backlog.close()

    run(main())


@pytest.mark.parametrize("page", [1, 2])
def test_one_that_is_closed_while_it_begins_puts_nothing_more_back(monkeypatch: pytest.MonkeyPatch, page: int) -> None:
    """By then those may be the claims of the next owner."""

    async def main() -> None:
        monkeypatch.setattr(backlogs, "PAGE", 2)
        ledger = Counting()
        await ledger.store([owed(number, 0) for number in range(1, 5)])
        await ledger.claim("s", 4, 1_000.0)
        due = ledger.due
        backlog = EndpointBacklog(cast(Ledger, ledger), "s", ordered=False, most=10, on_due=lambda: None)

        async def then_close(*args: Any, **options: Any) -> list[BacklogEntry]:
            rows = await due(*args, **options)
            if ledger.reads == page:
                backlog.close()
            return rows

        ledger.due = then_close  # type: ignore[method-assign]
        with pytest.raises(LedgerUnavailable, match="was lost while it began"):
            await backlog.open()
        assert [row.status for row in ledger.rows.values()].count(BacklogStatus.WAITING) == 2 * (page - 1)

    run(main())


@pytest.mark.parametrize("count", [0, 1])
def test_one_that_is_closed_while_it_counts_does_not_begin(count: int) -> None:
    async def main() -> None:
        ledger = Counting()
        await ledger.store([owed(number, 0) for number in range(count)])
        backlog = EndpointBacklog(cast(Ledger, ledger), "s", ordered=False, most=10, on_due=lambda: None)
        opening = asyncio.create_task(backlog.open())
        await asyncio.sleep(0)
        backlog.close()
        with pytest.raises(LedgerUnavailable, match="was lost while it began"):
            await opening

    run(main())


async def test_what_is_put_back_is_not_behind_what_came_after_it(tmp_path: Path) -> None:
    ledger = await Ledger.open(sqlite_ledger(tmp_path), LedgerSettings(), owner="test")
    at = now_us() - 5_000_000
    rows = [msgspec.structs.replace(owed(number, 0), at=at + number) for number in (1, 2)]
    await ledger.deliveries.store(rows)
    assert [row.id for row in await ledger.deliveries.claim("s", 1, 60.0)] == [rows[0].id]
    backlog = EndpointBacklog(ledger, "s", ordered=False, most=10, on_due=lambda: None)
    await backlog.open()
    assert [row.id for row in await backlog.claim(2, 60.0, 1 << 20)] == [row.id for row in rows]
    backlog.close()
    await ledger.close()


# ------------------------------------------------------------------------- what became due without a word of it


def revived(number: int) -> BacklogSettlement:
    """What another process writes, whose notice is lost."""
    return BacklogSettlement(number.to_bytes(16, "big"), Ending.REVIVE)


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("next_in", [None, LOOK_EVERY + 1.0, 3_600.0])
def test_what_was_revived_elsewhere_is_found_where_nothing_else_is_due(*, ordered: bool, next_in: float | None) -> None:
    async def main() -> None:
        calls: list[float] = []
        rows = [msgspec.structs.replace(owed(1, 0, b"a"), dead=True)]
        if next_in is not None:
            rows.append(owed(2, next_in, b"b"))
        ledger, backlog = await backlog_with(*rows, ordered=ordered, on_due=lambda: calls.append(now()), shared=True)
        await asyncio.sleep(0.1)
        assert await backlog.claim(1, 60.0, 1 << 20) == []
        calls.clear()
        await asyncio.sleep(1.0)
        begun = now()
        await ledger.settle([revived(1)])
        await asyncio.sleep(LOOK_EVERY)
        assert [at - begun < LOOK_EVERY for at in calls] == [True]
        assert [row.id[-1] for row in await backlog.claim(1, 60.0, 1 << 20)] == [1]
        backlog.close()

    run(main())


@pytest.mark.parametrize("ordered", [False, True])
def test_what_was_put_off_elsewhere_is_found_before_it_is_due(*, ordered: bool) -> None:
    async def main() -> None:
        rows = [msgspec.structs.replace(owed(1, 0), dead=True), owed(2, 3_600.0)]
        ledger, backlog = await backlog_with(*rows, ordered=ordered, shared=True)
        await asyncio.sleep(0.1)
        assert await backlog.claim(1, 60.0, 1 << 20) == []
        ledger.claims = 0
        await ledger.settle([msgspec.structs.replace(revived(1), due_in=600.0)])
        await asyncio.sleep(LOOK_EVERY)
        assert backlog.due_in == pytest.approx(600.0 - LOOK_EVERY, abs=0.1)
        assert ledger.claims == 0
        backlog.close()

    run(main())


@pytest.mark.parametrize(("shared", "looks"), [(False, 0), (True, 10)])
def test_a_look_is_a_read_and_only_where_there_are_other_processes(*, shared: bool, looks: int) -> None:
    async def main() -> None:
        ledger, backlog = await backlog_with(shared=shared)
        await asyncio.sleep(0.1)
        await backlog.claim(1, 60.0, 1 << 20)
        ledger.claims = ledger.reads = ledger.counts = 0
        await asyncio.sleep(10.5 * LOOK_EVERY)
        assert (ledger.reads, ledger.claims, ledger.counts) == (looks, 0, 0)
        backlog.close()

    run(main())


@pytest.mark.parametrize("next_in", [0.0, LOOK_EVERY - 1.0])
def test_nobody_looks_where_something_is_due_soon(next_in: float) -> None:
    """Also where the endpoint is suspended, and what is due is not claimed."""

    async def main() -> None:
        ledger, backlog = await backlog_with(shared=True)
        await asyncio.sleep(0.1)
        await backlog.claim(1, 60.0, 1 << 20)
        await asyncio.sleep(LOOK_EVERY - 1.0)
        backlog.expect(next_in)
        ledger.reads = 0
        await asyncio.sleep(10 * LOOK_EVERY)
        assert (backlog.is_due, ledger.reads) == (True, 0)
        backlog.close()

    run(main())


def test_in_order_what_waits_for_others_is_not_claimed_at_each_look() -> None:
    async def main() -> None:
        calls: list[float] = []
        rows = owed(1, 3_600.0, b"a"), owed(2, 0, b"a"), owed(3, 0, b"a")
        ledger, backlog = await backlog_with(*rows, ordered=True, on_due=lambda: calls.append(now()), shared=True)
        await asyncio.sleep(0.1)
        assert await backlog.claim(1, 60.0, 1 << 20) == []
        await asyncio.sleep(2.5 * LOOK_EVERY)
        if backlog.is_due:
            assert await backlog.claim(1, 60.0, 1 << 20) == []
        ledger.reads = 0
        calls.clear()
        await asyncio.sleep(10 * LOOK_EVERY)
        assert (calls, ledger.reads) == ([], 20)
        backlog.close()

    run(main())


def test_in_order_what_is_seen_late_is_found_by_a_later_look() -> None:
    """The commit that revived it took as long as a look takes to come round."""

    async def main() -> None:
        ledger, backlog = await backlog_with(
            msgspec.structs.replace(owed(1, 0, b"a"), dead=True), ordered=True, shared=True
        )
        await asyncio.sleep(0.1)
        assert await backlog.claim(1, 60.0, 1 << 20) == []
        await asyncio.sleep(LOOK_EVERY - 1.0)
        revived_at = now()
        await asyncio.sleep(5.0)
        await ledger.settle([revived(1)])
        ledger.rows[(1).to_bytes(16, "big")].due_at = revived_at
        await asyncio.sleep(LOOK_EVERY)
        assert backlog.is_due
        assert len(await backlog.claim(1, 60.0, 1 << 20)) == 1
        backlog.close()

    run(main())


@pytest.mark.parametrize("ordered", [False, True])
def test_what_is_revived_while_the_ledger_is_away_is_found_when_it_is_back(*, ordered: bool) -> None:
    async def main() -> None:
        ledger, backlog = await backlog_with(
            msgspec.structs.replace(owed(1, 0, b"a"), dead=True), ordered=ordered, shared=True
        )
        await asyncio.sleep(0.1)
        assert await backlog.claim(1, 60.0, 1 << 20) == []
        await asyncio.sleep(1.0)
        await ledger.settle([revived(1)])
        ledger.away = True
        await asyncio.sleep(5 * LOOK_EVERY)
        assert backlog.due_in is None
        ledger.away = False
        await asyncio.sleep(LOOK_EVERY)
        assert backlog.is_due
        assert len(await backlog.claim(1, 60.0, 1 << 20)) == 1
        backlog.close()

    run(main())


@pytest.mark.parametrize("wait", [1.0, LOOK_EVERY - 0.0995, LOOK_EVERY + 1.0])
def test_once_it_is_closed_nobody_looks(wait: float) -> None:
    """Neither by a timer, nor after a look that has begun."""

    async def main() -> None:
        calls: list[float] = []
        ledger, backlog = await backlog_with(on_due=lambda: calls.append(now()), shared=True)
        await asyncio.sleep(0.1)
        await backlog.claim(1, 60.0, 1 << 20)
        await asyncio.sleep(wait)
        await ledger.store([owed(1, 0)])
        backlog.close()
        calls.clear()
        ledger.reads = 0
        await asyncio.sleep(10 * LOOK_EVERY)
        assert (calls, ledger.reads) == ([], 0)
        assert len(asyncio.all_tasks()) == 1

    run(main())
