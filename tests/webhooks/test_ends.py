"""What a pushed subscription leaves behind when it stops, or another process has it. The clock is given."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from gateway.ledger import EventKind, id_text
from gateway.ledger.pending.owed import BacklogCounts, BacklogEntry, BacklogStatus
from gateway.webhooks.attempts.forms import PushedMessage
from gateway.webhooks.attempts.sender import SendOutcome
from gateway.webhooks.backlog import COUNT_EVERY
from gateway.webhooks.pusher import Pusher
from tests.webhooks.test_holdings import bodies, bring, open_window
from tests.webhooks.test_push_in_time import in_a_world, kinds, times
from tests.webhooks.virtual import World, now

FAILS = SendOutcome(status=500)
OK = SendOutcome(status=200)
LEASES = pytest.mark.parametrize("lease", ["broker", "ledger"])


async def until_soon(condition: Callable[[], bool]) -> None:
    """Wait until something holds, within a second."""
    deadline = now() + 1.0
    while not condition():
        assert now() < deadline, "it did not happen in time"
        await asyncio.sleep(0.0001)


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


def noted_writes(world: World) -> list[str]:
    """What the ledger is asked to write from now on."""
    writes: list[str] = []

    def noted(name: str) -> Callable[..., Any]:
        write = getattr(world.ledger, name)

        def note(*arguments: Any, **options: Any) -> Any:
            writes.append(name)
            return write(*arguments, **options)

        return note

    for name in ("claim", "record", "settle", "store"):
        setattr(world.ledger, name, noted(name))
    return writes


def check_nothing_is_left(world: World, pusher: Pusher) -> None:
    """Neither bytes, nor places for requests, nor tasks."""
    assert (world.parts.byte_budget.held, pusher._row_bytes, pusher._under_way) == (0, 0, 0)
    assert (world.targets.slots.in_flight, len(pusher._tasks), len(world.targets._tasks)) == (0, 0, 0)
    assert world.broker.consumers["s"] == []


@LEASES
def test_nothing_is_left_of_one_that_was_lost_at_work(lease: str) -> None:
    @in_a_world
    async def main(world: World) -> None:
        pusher = await busy(world, lease)
        assert world.targets.slots.in_flight == 2
        pusher.lost()
        await asyncio.sleep(0.1)
        check_nothing_is_left(world, pusher)
        assert len(world.targets) == 0

    main()


@LEASES
def test_what_was_lost_claims_nothing_in_that_moment(lease: str) -> None:
    """Its rows would be out under the next lease."""

    @in_a_world
    async def main(world: World) -> None:
        world.receivers.put("e", FAILS, schedule=[0, 30, 30])
        pusher = await world.push("s", "e", lease=lease)
        world.broker.put("s", b"x")
        await asyncio.sleep(1)
        (row,) = world.ledger.rows.values()
        assert row.status is BacklogStatus.WAITING
        writes = noted_writes(world)
        pusher._backlog.expect(0.0)
        pusher._go()
        assert pusher._refilling, "its task is made, and has not had its turn"
        pusher.lost()
        await asyncio.sleep(100)
        assert (writes, row.status) == ([], BacklogStatus.WAITING)
        check_nothing_is_left(world, pusher)

    main()


@LEASES
def test_what_was_lost_as_its_requests_are_answered_brings_nothing_elsewhere(lease: str) -> None:
    @in_a_world
    async def main(world: World) -> None:
        answer: asyncio.Future[SendOutcome] = asyncio.get_running_loop().create_future()

        async def wait(_: Sequence[PushedMessage]) -> SendOutcome:
            return await answer

        world.receivers.put("e", wait, schedule=[0])
        pusher = await world.push("s", "e", lease=lease, dead_letter_routing_key="dead")
        world.broker.put("s", b"x")
        await asyncio.sleep(1)
        before = list(world.ledger.entries)
        answer.set_result(FAILS)
        pusher.lost()
        await asyncio.sleep(1)
        assert (world.broker.published, world.ledger.entries) == ([], before)
        check_nothing_is_left(world, pusher)

    main()


@in_a_world
async def test_what_was_lost_as_a_failure_is_to_be_written_stores_nothing(world: World) -> None:
    world.receivers.put("e", FAILS, schedule=[0, 30])
    pusher = await world.push("s", "e")
    world.broker.put("s", b"x")
    await until_soon(lambda: world.journal._gathering is not None)
    writes = noted_writes(world)
    world.journal._gathered()
    await asyncio.sleep(0)  # its task goes on in the next turn
    pusher.lost()
    await asyncio.sleep(100)
    assert (writes, world.broker.accepted, len(world.broker.queues["s"])) == ([], [], 1)
    check_nothing_is_left(world, pusher)


@in_a_world
async def test_what_was_lost_as_it_claims_what_was_given_up_brings_nothing_elsewhere(world: World) -> None:
    world.broker.routes = lambda _: False
    world.receivers.put("e", FAILS, schedule=[0])
    pusher = await world.push("s", "e", dead_letter_routing_key="dead")
    world.broker.put("s", b"x")
    await asyncio.sleep(1)
    world.broker.routes = lambda _: True
    claim, claimed = pusher._backlog.claim, asyncio.Event()

    async def lost_then(*arguments: Any) -> list[BacklogEntry]:
        rows = await claim(*arguments)
        if rows:
            claimed.set()
            asyncio.get_running_loop().call_soon(pusher.lost)
        return rows

    pusher._backlog.claim = lost_then  # type: ignore[method-assign, assignment]
    await claimed.wait()
    await asyncio.sleep(1)
    assert world.broker.published == []
    check_nothing_is_left(world, pusher)


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
