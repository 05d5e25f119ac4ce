"""Places in the writer's queue: shares, and turns between clients."""

from __future__ import annotations

import asyncio
from contextvars import copy_context

import pytest

from gateway.budgets import ALONE, ON_BEHALF, BudgetBounds, Budgets, ShareHolder
from gateway.ledger import EventKind, Ledger
from gateway.ledger.writing.places import Places
from tests.ledger.conftest import Open, entry, new_id

ALICE, BOB, CAROL = ShareHolder("alice"), ShareHolder("bob"), ShareHolder("carol")


def places(most: int = 20, share: float = 0.5) -> Places:
    return Places(most, Budgets(BudgetBounds(share, 0.0, {"ledger_rows": most}))["ledger_rows"])


async def soon(queue: Places, client: ShareHolder, rows: int) -> asyncio.Task[None]:
    task = asyncio.create_task(queue.take(client, rows))
    await asyncio.sleep(0)
    return task


async def test_a_client_at_its_share_waits_and_others_do_not() -> None:
    queue = places()
    assert (await soon(queue, ALICE, 8)).done()
    waiting = [await soon(queue, ALICE, rows) for rows in (8, 1)]
    assert (await soon(queue, BOB, 8)).done()
    assert [task.done() for task in waiting] == [False, False]  # in their order
    queue.leave({ALICE: 8})
    await asyncio.sleep(0)
    assert [task.done() for task in waiting] == [True, True]
    assert queue.rows == 17


async def test_what_is_larger_than_a_share_goes_alone() -> None:
    queue = places()
    assert (await soon(queue, ALICE, 15)).done()
    large = await soon(queue, BOB, 30)
    assert not large.done()
    queue.leave({ALICE: 15})
    await asyncio.sleep(0)
    assert large.done()


async def test_clients_take_turns() -> None:
    queue = places(10, 1.0)
    await queue.take(CAROL, 10)
    order: list[str] = []

    async def take(client: ShareHolder) -> None:
        await queue.take(client, 10)
        order.append(client.name)
        queue.leave({client: 10})

    tasks = [asyncio.create_task(take(client)) for client in (ALICE, ALICE, ALICE, BOB, BOB, ALONE)]
    await asyncio.sleep(0)
    tasks[1].cancel()
    queue.leave({CAROL: 10})
    await asyncio.gather(*tasks, return_exceptions=True)
    assert order == ["alice", "bob", "", "alice", "bob"]
    assert queue.rows == 0


async def test_a_turn_that_comes_to_nobody_is_handed_on() -> None:
    queue = places(10, 1.0)
    await queue.take(ALICE, 10)
    gone, next_one = await soon(queue, BOB, 10), await soon(queue, CAROL, 10)
    queue.leave({ALICE: 10})
    gone.cancel()
    await asyncio.wait([gone, next_one], timeout=5)
    assert next_one.done()
    assert queue.rows == 10
    last = await soon(queue, ALICE, 1)
    queue.close()
    await last


@pytest.fixture
async def ledger(open_ledger: Open) -> Ledger:
    ledger = await open_ledger(queue_max=10_000)
    ledger.share_queue(Budgets(BudgetBounds(0.25, 0.1, {"ledger_rows": 10_000}))["ledger_rows"])
    return ledger


async def test_huge_batches_of_one_client_do_not_hold_up_another(ledger: Ledger) -> None:
    done: list[str] = []

    async def record(client: ShareHolder, rows: int) -> None:
        ON_BEHALF.set(client)
        await ledger.record([entry(new_id(), EventKind.RECEIVED) for _ in range(rows)])
        done.append(client.name)

    loop = asyncio.get_running_loop()
    huge = [loop.create_task(record(ALICE, 2_000), context=copy_context()) for _ in range(12)]
    await asyncio.sleep(0.02)
    assert ledger.waiting <= 10_000
    await loop.create_task(record(BOB, 1), context=copy_context())
    assert done.count("alice") <= 3, "it waits for what is in the queue, not for all that wait"
    await asyncio.gather(*huge)
    assert ledger.waiting == 0
