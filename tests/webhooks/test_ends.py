"""What a pushed subscription leaves behind when it stops, or another process has it. The clock is given."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from gateway.ledger import EventKind, id_text
from gateway.ledger.pending.owed import BacklogCounts, BacklogStatus
from gateway.webhooks.attempts.forms import PushedMessage
from gateway.webhooks.attempts.sender import SendOutcome
from gateway.webhooks.backlog import COUNT_EVERY
from gateway.webhooks.pusher import Pusher
from tests.webhooks.test_holdings import bodies, bring, open_window
from tests.webhooks.test_push_in_time import in_a_world, kinds, times
from tests.webhooks.virtual import World

FAILS = SendOutcome(status=500)
OK = SendOutcome(status=200)
LEASES = pytest.mark.parametrize("lease", ["broker", "ledger"])


async def busy(world: World, lease: str) -> Pusher:
    """A pusher with two requests under way, of two and of four seconds, and more of everything."""

    async def answer(items: Sequence[PushedMessage]) -> SendOutcome:
        await asyncio.sleep(2.0 if items[0].message.body == b"0" else 4.0)
        return OK

    world.receivers.put("e", FAILS, concurrency=2, schedule=[0, 30, 30], breaker_failures=100)
    pusher = await world.push("s", "e", lease=lease)
    world.broker.put("s", b"fails")
    await asyncio.sleep(1)
    await open_window(world, 6)
    world.receivers.answers["e"] = answer
    for number in range(8):
        world.broker.put("s", b"%d" % number)
    await asyncio.sleep(1)
    assert bodies(world) == [b"0", b"1"]
    assert pusher.ripe_at(1, 0.0) is not None
    return pusher


@LEASES
def test_a_stop_lets_end_what_is_under_way_and_begins_nothing(lease: str) -> None:
    @in_a_world
    async def main(world: World) -> None:
        pusher = await busy(world, lease)
        stopping = asyncio.create_task(pusher.stop(10))
        await asyncio.sleep(0.5)
        assert pusher.ripe_at(1, 0.0) is None, "what was not begun has gone back"
        world.broker.put("s", b"later")
        await stopping
        assert world.receivers.bodies() == [b"0", b"1"]
        assert (world.parts.byte_budget.held, world.broker.consumers["s"]) == (0, [])
        assert [again for message, again in world.broker.queues["s"] if message.body == b"later"] == [False]
        await asyncio.sleep(10_000)
        assert len(times(world)) == 2
        assert {row.status for row in world.ledger.rows.values()} == {BacklogStatus.WAITING}
        assert len(world.ledger.rows) + len(world.broker.queues["s"]) == 8
        attempts = {row.owed.size: row.attempt for row in world.ledger.rows.values()}
        assert attempts.pop(len(b"fails")) == 1
        assert set(attempts.values()) <= {0}

    main()


@LEASES
def test_who_lost_a_subscription_drops_all_at_once(lease: str) -> None:
    @in_a_world
    async def main(world: World) -> None:
        pusher = await busy(world, lease)
        before = len(world.ledger.entries), {row.owed.id: row.status for row in world.ledger.rows.values()}
        accepted = list(world.broker.accepted)
        pusher.lost()
        assert pusher.ripe_at(1, 0.0) is None
        await asyncio.sleep(1)
        assert (world.parts.byte_budget.held, world.broker.consumers["s"]) == (0, [])
        world.broker.put("s", b"later")
        await asyncio.sleep(10_000)
        assert (len(world.ledger.entries), {row.owed.id: row.status for row in world.ledger.rows.values()}) == before
        assert (len(times(world)), world.broker.accepted) == (2, accepted)

    main()


@pytest.mark.parametrize("how", ["stop", "lost"])
def test_nobody_counts_the_rows_of_one_that_is_over(how: str) -> None:
    @in_a_world
    async def main(world: World) -> None:
        world.receivers.put("e", FAILS, schedule=[0, 10_000], breaker_failures=100)
        pusher = await world.push("s", "e", backlog_max=1)
        world.broker.put("s", b"x")
        count, counts = world.ledger.backlog, 0

        async def counted(subscription: str) -> BacklogCounts:
            nonlocal counts
            counts += 1
            return await count(subscription)

        world.ledger.backlog = counted  # type: ignore[method-assign]
        await asyncio.sleep(3 * COUNT_EVERY + 1)
        assert counts == 3
        if how == "stop":
            await pusher.stop(1.0)
        else:
            pusher.lost()
        await asyncio.sleep(10 * COUNT_EVERY)
        assert counts == 3

    main()


# ------------------------------------------------------------------------------------- while the ledger is away


async def stuck(world: World) -> Pusher:
    """A pusher that looks for a message in a ledger that is away."""
    world.receivers.put("e")
    pusher = await world.push("s", "e")
    await asyncio.sleep(1)
    world.ledger.away = True
    bring(world, b"doubtful", id_text(world.parts.ids()), redelivered=True)
    bring(world, b"new", id_text(world.parts.ids()))
    world.broker.feed("s")
    await asyncio.sleep(1)
    assert world.parts.byte_budget.held == 11
    return pusher


@pytest.mark.parametrize("back_after", [0.5, 100.0])
def test_what_waits_for_the_ledger_goes_back_at_the_end(back_after: float) -> None:
    """Whether the ledger is back by then or not."""

    @in_a_world
    async def main(world: World) -> None:
        pusher = await stuck(world)
        asyncio.get_running_loop().call_later(back_after, setattr, world.ledger, "away", False)
        await pusher.stop(10.0)
        await asyncio.sleep(200)
        assert (world.parts.byte_budget.held, len(world.broker.queues["s"])) == (0, 2)
        assert (world.receivers.requests, world.broker.accepted) == ({}, [])

    main()


@in_a_world
async def test_what_its_broker_took_back_before_the_ledger_was_back_is_not_begun(world: World) -> None:
    await stuck(world)
    (consumer,) = world.broker.consumers["s"]
    await consumer.close()
    world.ledger.away = False
    await asyncio.sleep(10)
    assert (world.receivers.requests, len(world.broker.queues["s"])) == ({}, 2)
    assert world.parts.byte_budget.held == 0


@in_a_world
async def test_what_waits_for_the_ledger_goes_on_when_it_is_back(world: World) -> None:
    pusher = await stuck(world)
    world.ledger.away = False
    await asyncio.sleep(2)
    assert bodies(world) == [b"doubtful", b"new"]
    assert [item.redelivered for _, items in world.receivers.requests["e"] for item in items] == [True, False]
    assert world.parts.byte_budget.held == 0
    assert not pusher._doubtful, "nothing is kept of them"


@in_a_world
async def test_what_comes_again_is_looked_for_at_once_and_together(world: World) -> None:
    seen, asked = world.ledger.seen, 0

    async def counted(scope: str, keys: Sequence[str]) -> object:
        nonlocal asked
        asked += 1
        return await seen(scope, keys)

    world.ledger.seen = counted  # type: ignore[method-assign, assignment]
    world.receivers.put("e")
    await world.push("s", "e")
    await asyncio.sleep(1)
    for number in range(5):
        bring(world, b"%d" % number, id_text(world.parts.ids()), redelivered=True)
    world.broker.feed("s")
    await asyncio.sleep(0.1)
    assert (sorted(bodies(world)), asked) == ([b"0", b"1", b"2", b"3", b"4"], 1)
    assert kinds(world) == [EventKind.ACKNOWLEDGED] * 5
