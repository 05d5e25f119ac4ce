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


async def test_the_queue_is_filled_to_its_bound() -> None:
    queue = places(10, 1.0)
    assert queue.rows == 0
    assert queue.take_now(ALICE, 6)
    assert not queue.take_now(BOB, 5)
    assert queue.take_now(BOB, 4), "exactly as much as there is"
    assert not queue.take_now(CAROL, 1)
    assert queue.rows == 10
    queue.leave({ALICE: 6, BOB: 4})
    assert queue.take_now(ALICE, 11), "what is larger goes alone"
    assert not queue.take_now(BOB, 1)
    queue.leave({ALICE: 11})
    assert queue.rows == 0


async def test_a_client_is_let_in_up_to_its_share() -> None:
    queue = places(20, 0.5)
    assert queue.take_now(ALICE, 6)
    assert not queue.take_now(ALICE, 5)
    assert queue.take_now(ALICE, 4), "exactly its share"
    waiting = await soon(queue, ALICE, 4)
    queue.leave({ALICE: 3})
    await asyncio.sleep(0)
    assert not waiting.done()
    queue.leave({ALICE: 1})
    await asyncio.sleep(0)
    assert (waiting.done(), queue.rows) == (True, 10)


async def test_those_who_wait_fill_the_queue_to_its_bound() -> None:
    queue = places(10, 1.0)
    assert queue.take_now(ALICE, 10)
    waiting = [await soon(queue, BOB, 6), await soon(queue, CAROL, 4)]
    queue.leave({ALICE: 10})
    await asyncio.sleep(0)
    assert [task.done() for task in waiting] == [True, True]
    assert queue.rows == 10


async def test_nobody_overtakes_those_who_wait() -> None:
    """Also where there is room for one with fewer rows."""
    queue = places(10, 1.0)
    assert queue.take_now(ALICE, 8)
    large = await soon(queue, BOB, 5)
    assert not queue.take_now(CAROL, 1)
    assert not (small := await soon(queue, CAROL, 1)).done()
    queue.leave({ALICE: 8})
    await asyncio.sleep(0)
    assert (large.done(), small.done(), queue.rows) == (True, True, 6)
    assert queue.take_now(CAROL, 1), "nobody waits any more"


async def test_one_over_its_share_holds_up_nobody_behind_it() -> None:
    queue = places(20, 0.5)
    assert queue.take_now(ALICE, 10)
    assert queue.take_now(BOB, 10)
    alice, bob, carol = [await soon(queue, client, 2) for client in (ALICE, BOB, CAROL)]
    queue.leave({BOB: 10})
    await asyncio.sleep(0)
    assert [task.done() for task in (alice, bob, carol)] == [False, True, True]
    assert queue.rows == 14


async def test_who_waits_no_longer_takes_nothing() -> None:
    queue = places(10, 1.0)
    assert queue.take_now(ALICE, 10)
    gone = [await soon(queue, BOB, 5) for _ in range(3)]
    for task in gone:
        task.cancel()
    await asyncio.wait(gone)
    assert queue.rows == 10
    queue.leave({ALICE: 10})
    assert queue.rows == 0
    assert queue.take_now(BOB, 10), "nobody is in its line"
    queue.leave({BOB: 10})
    assert queue.rows == 0


async def test_a_cancelled_caller_whose_turn_has_come_gives_its_places_back() -> None:
    queue = places(10, 1.0)
    assert queue.take_now(ALICE, 10)
    gone = await soon(queue, BOB, 10)
    queue.leave({ALICE: 10})
    assert queue.rows == 10
    gone.cancel()
    await asyncio.wait([gone])
    assert (gone.cancelled(), queue.rows) == (True, 0)
    assert queue.take_now(BOB, 10)


async def test_where_it_is_closed_nobody_waits_and_nobody_takes() -> None:
    queue = places(10, 1.0)
    assert queue.take_now(ALICE, 10)
    waiting, gone, late = [await soon(queue, BOB, 5) for _ in range(3)]
    gone.cancel()
    queue.close()
    late.cancel()
    await asyncio.wait([waiting, gone, late])
    assert [task.cancelled() for task in (waiting, gone, late)] == [False, True, True]
    assert queue.rows == 10, "none of them had any"
    queue.leave({ALICE: 10})
    assert queue.rows == 0
    waiting = await soon(queue, CAROL, 5)
    queue.close()
    waiting.cancel()
    await asyncio.wait([waiting])
    assert queue.rows == 5, "its places were its own already"


async def test_what_is_in_the_queue_counts_in_other_holdings() -> None:
    """The share of the queue is that of all clients of the process, once there are some."""
    budgets = Budgets(BudgetBounds(0.5, 0.0, {"ledger_rows": 20}))["ledger_rows"]
    queue = places(20, 1.0)
    before = queue._holdings
    assert queue.take_now(ALICE, 12)
    assert queue.take_now(BOB, 1)
    queue.count_in(budgets)
    assert [budgets.held_by(client) for client in (ALICE, BOB)] == [12, 1], "though it is more than a share"
    assert [before.held_by(client) for client in (ALICE, BOB)] == [0, 0]
    assert not queue.take_now(ALICE, 1)
    assert queue.take_now(BOB, 1)
    queue.add(ALICE, 5)
    assert (budgets.held_by(ALICE), queue.rows) == (17, 19)
    queue.leave({ALICE: 17, BOB: 2})
    assert (budgets.held_by(ALICE), budgets.held_by(BOB), queue.rows) == (0, 0, 0)


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
