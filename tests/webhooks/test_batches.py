"""Which messages go together in one request, and when. The clock is given."""

from __future__ import annotations

import asyncio

import pytest

from gateway.ledger.pending.owed import BacklogSettlement, Ending
from gateway.webhooks.attempts.sender import SendOutcome
from tests.webhooks.test_holdings import bodies
from tests.webhooks.test_push_in_time import in_a_world, times
from tests.webhooks.virtual import World, now

FAILS = SendOutcome(status=500)
OK = SendOutcome(status=200)


@pytest.mark.parametrize("lease", ["broker", "ledger"])
def test_a_full_batch_goes_at_once_and_the_rest_waits_for_itself(lease: str) -> None:
    @in_a_world
    async def main(world: World) -> None:
        world.receivers.put("e", batch_max=2, batch_wait=2)
        await world.push("s", "e", lease=lease)
        await asyncio.sleep(1)
        begun = now()
        world.broker.put("s", b"a")
        await asyncio.sleep(1.5)
        world.broker.put("s", b"b")
        world.broker.put("s", b"c")
        await asyncio.sleep(10)
        world.broker.put("s", b"d")
        world.broker.put("s", b"e")
        await asyncio.sleep(10)
        found = [(round(at - begun, 1), len(items)) for at, items in world.receivers.requests["e"]]
        assert found == [(1.5, 2), (3.5, 1), (11.5, 2)]

    main()


@pytest.mark.parametrize(("failures", "alone"), [(1, False), (2, True), (3, True)])
def test_messages_that_failed_twice_go_alone(failures: int, *, alone: bool) -> None:
    """Also beside new ones: one of them may be the reason for which the others failed."""

    @in_a_world
    async def main(world: World) -> None:
        schedule = [0, *[10] * (failures - 1), 2_000]
        world.receivers.put("e", FAILS, batch_max=10, batch_wait=1, schedule=schedule, breaker_failures=100)
        await world.push("s", "e")
        for number in range(3):
            world.broker.put("s", b"%d" % number)
        await asyncio.sleep(100)
        assert len(bodies(world)) == 3 * failures
        world.receivers.answers["e"] = OK
        for _ in range(3):
            world.broker.put("s", b"good")
            await asyncio.sleep(2)
        world.receivers.requests.clear()
        rows = list(world.ledger.rows)
        await world.ledger.settle([BacklogSettlement(row, Ending.RETRY) for row in rows])
        world.pushers["s"].wake()
        for _ in range(4):
            world.broker.put("s", b"new")
        await asyncio.sleep(20)
        requests = [[item.message.body for item in items] for _, items in world.receivers.requests["e"]]
        with_old = [len(each) for each in requests if {*each} != {b"new"}]
        assert sum(map(len, requests)) == 7
        assert (with_old == [1, 1, 1]) == alone
        assert not world.ledger.rows

    main()


@in_a_world
async def test_rows_that_failed_keep_no_new_ones_out_of_the_ledger(world: World) -> None:
    world.receivers.put("e", FAILS, schedule=[0, 10_000], breaker_failures=1_000)
    await world.push("s", "e", lease="ledger", prefetch=5)
    for number in range(20):
        world.broker.put("s", b"%d" % number)
    await asyncio.sleep(300)
    assert len(times(world)) == 20
    assert len(world.ledger.rows) == 20


@in_a_world
async def test_rows_that_are_due_while_the_ledger_is_away_go_when_it_is_back(world: World) -> None:
    world.receivers.put("e", FAILS, schedule=[0, 10], breaker_failures=100)
    await world.push("s", "e")
    world.broker.put("s", b"x")
    await asyncio.sleep(5)
    world.ledger.away = True
    world.receivers.answers["e"] = OK
    await asyncio.sleep(100)
    assert len(times(world)) == 1
    world.ledger.away = False
    await asyncio.sleep(5)
    assert (world.receivers.bodies(), world.ledger.rows) == ([b"x"], {})
