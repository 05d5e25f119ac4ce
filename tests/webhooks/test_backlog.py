"""What the ledger holds for a pushed subscription: how often it is asked. The clock is given."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from gateway.errors import LedgerUnavailable
from gateway.ledger import Ledger
from gateway.ledger.pending.owed import BacklogEntry, BacklogSettlement, Ending, Owed
from gateway.webhooks.backlog import FEW, SOON, EndpointBacklog
from tests.webhooks.virtual import FakeLedger, now, run


class Counting(FakeLedger):
    """Counts what it is asked."""

    def __init__(self) -> None:
        super().__init__()
        self.claims = self.reads = 0

    async def claim(self, *args: Any, **options: Any) -> list[BacklogEntry]:
        self.claims += 1
        return await super().claim(*args, **options)

    async def due(self, *args: Any, **options: Any) -> list[BacklogEntry]:
        self.reads += 1
        return await super().due(*args, **options)


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


async def backlog_with(*rows: Owed, ordered: bool = False) -> tuple[Counting, EndpointBacklog]:
    ledger = Counting()
    await ledger.store(rows)
    backlog = EndpointBacklog(cast(Ledger, ledger), "s", ordered=ordered, most=1_000, on_due=lambda: None)
    await backlog.open()
    ledger.claims = ledger.reads = 0
    return ledger, backlog


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
