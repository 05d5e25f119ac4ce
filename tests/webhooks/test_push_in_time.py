"""Pushing under a clock that is given: when attempts are made, what holds them back, and what they hold back."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from itertools import pairwise
from typing import Any

import pytest

from gateway.amqp.message import Message, Properties
from gateway.errors import ConnectFailed, OutboundTimeout, Overloaded
from gateway.ledger import EventKind
from gateway.ledger.pending.owed import BacklogSettlement, BacklogStatus, Ending
from gateway.webhooks.attempts.forms import PushedMessage
from gateway.webhooks.attempts.schedule import DELAYS, JITTER
from gateway.webhooks.attempts.sender import SendOutcome
from gateway.webhooks.backlog import LOOK_EVERY
from gateway.webhooks.endpoint import EndpointState
from gateway.webhooks.states import PushState
from tests.webhooks.virtual import FakeConsumer, World, now, run

HOUR = 3_600.0
FAILS = SendOutcome(status=500)
OK = SendOutcome(status=200)


def times(world: World, name: str = "e") -> list[float]:
    """When requests were made."""
    return [at for at, _ in world.receivers.requests.get(name, [])]


def kinds(world: World) -> list[EventKind]:
    return [entry.kind for entry in world.ledger.entries]


def in_a_world(test: Callable[[World], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """Give the test a world of its own."""

    async def main() -> None:
        world = World()
        try:
            await test(world)
        finally:
            await world.close()

    def wrapped() -> None:
        run(main())

    wrapped.__name__, wrapped.__doc__ = test.__name__, test.__doc__
    return wrapped


# ------------------------------------------------------------------------------------------------ the schedule


@pytest.mark.parametrize("seed", range(10))
def test_attempts_follow_the_schedule_within_its_jitter(seed: int) -> None:
    async def main() -> None:
        chance = random.Random(seed).random
        world = World(chance=chance)
        world.receivers.put("e", FAILS, breaker_failures=1_000)
        await world.push("s", "e")
        world.broker.put("s", b"x")
        await asyncio.sleep(100 * HOUR)
        at = times(world)
        assert len(at) == len(DELAYS) == 10
        waits = [after - before for before, after in pairwise(at)]
        for wait, delay in zip(waits, DELAYS[1:], strict=True):
            assert delay * (1 - JITTER) <= wait <= delay * (1 + JITTER) + 0.1
        assert len({round(wait / delay, 3) for wait, delay in zip(waits, DELAYS[1:], strict=True)}) > 5
        items = [item for _, sent in world.receivers.requests["e"] for item in sent]
        assert [item.attempt for item in items] == list(range(1, 11))
        assert len({item.id for item in items}) == 1
        (row,) = world.ledger.rows.values()
        assert (row.status, row.attempt) == (BacklogStatus.DEAD, 10)
        assert row.reason["reason"].startswith("500")
        assert world.broker.accepted == [b"x"]
        assert kinds(world)[-1] is EventKind.DEAD
        assert kinds(world).count(EventKind.ATTEMPT_FAILED) == 9
        await world.close()

    run(main())


@in_a_world
async def test_retry_after_moves_the_next_attempt_back_and_pauses_the_endpoint(world: World) -> None:
    answers = [SendOutcome(status=429, retry_after="120"), OK, OK]
    world.receivers.put("e", lambda items: answers.pop(0))
    await world.push("s", "e")
    world.broker.put("s", b"x")
    await asyncio.sleep(1)
    world.broker.put("s", b"y")
    status = await world.pushers["s"].status()
    assert status.state is PushState.WAITING
    assert status.reason == "asked_to_wait: 429: too many requests"
    assert status.next_attempt_at is not None
    assert world.broker.out("s") == 0
    await asyncio.sleep(200)
    first, *others = times(world)
    assert len(others) == 2
    assert all(120 <= at - first < 121 for at in others)
    assert sorted(world.receivers.bodies()) == [b"x", b"y"]


@in_a_world
async def test_what_we_were_too_busy_for_is_no_attempt(world: World) -> None:
    answers = [SendOutcome(error=Overloaded("too many")), SendOutcome(error=Overloaded("too many")), OK]
    world.receivers.put("e", lambda items: answers.pop(0))
    await world.push("s", "e")
    world.broker.put("s", b"x")
    await asyncio.sleep(10)
    assert [attempt for _, attempt in world.receivers.attempts()] == [1, None, None]
    assert kinds(world) == [EventKind.RECEIVED, EventKind.ACKNOWLEDGED]
    first, *others = times(world)
    assert [round(at - first) for at in others] in ([1, 3], [2, 3], [2, 4])


@in_a_world
async def test_a_manual_retry_does_not_restart_the_schedule(world: World) -> None:
    world.receivers.put("e", FAILS, schedule=[0, 100, 1_000], breaker_failures=100)
    await world.push("s", "e")
    world.broker.put("s", b"x")
    await asyncio.sleep(1)
    (row,) = world.ledger.rows.values()
    assert await world.ledger.settle([BacklogSettlement(row.owed.id, Ending.RETRY)]) == [True]
    world.pushers["s"].wake()
    await asyncio.sleep(1)
    assert [attempt for _, attempt in world.receivers.attempts()] == [1, 2]
    await asyncio.sleep(1_100)
    assert [attempt for _, attempt in world.receivers.attempts()] == [1, 2, 3]
    assert row.status is BacklogStatus.DEAD
    await world.ledger.settle([BacklogSettlement(row.owed.id, Ending.REVIVE)])
    world.pushers["s"].wake()
    await asyncio.sleep(10_000)
    assert [attempt for _, attempt in world.receivers.attempts()] == [1, 2, 3, 4]
    assert row.status is BacklogStatus.DEAD
    world.receivers.answers["e"] = OK
    await world.ledger.settle([BacklogSettlement(row.owed.id, Ending.REVIVE)])
    world.pushers["s"].wake()
    await asyncio.sleep(10)
    assert world.receivers.bodies() == [b"x"]
    assert not world.ledger.rows


# ---------------------------------------------------------------------------------------------- the breaker


@in_a_world
async def test_a_breaker_that_is_open_leaves_the_queue_alone_and_costs_no_attempt(world: World) -> None:
    world.receivers.put("e", SendOutcome(error=ConnectFailed("nobody")), schedule=[0, 10_000], concurrency=1)
    await world.push("s", "e")
    for number in range(100):
        world.broker.put("s", b"%d" % number)
    await asyncio.sleep(5)
    assert len(times(world)) == 5
    assert (len(world.broker.queues["s"]), world.broker.out("s"), len(world.ledger.rows)) == (95, 0, 5)
    assert (await world.pushers["s"].status()).reason == "breaker_open: 5 requests in a row failed"
    await asyncio.sleep(1_000)
    # One at a time, each time after twice as long as before: 10, 20, 40 … seconds.
    probes = times(world)[5:]
    assert [round(at - times(world)[4]) for at in probes[:6]] == [10, 30, 70, 150, 310, 630]
    assert world.broker.out("s") == 0
    world.receivers.answers["e"] = OK
    await asyncio.sleep(700)
    assert len(world.receivers.bodies()) == 100 - len(world.ledger.rows)
    await asyncio.sleep(20_000)
    assert sorted(world.receivers.bodies()) == sorted(b"%d" % number for number in range(100))
    assert max(attempt or 1 for _, attempt in world.receivers.attempts()) == 2
    assert not world.ledger.rows


@in_a_world
async def test_after_a_probe_that_says_nothing_of_the_endpoint_the_next_one_is_made_at_once(world: World) -> None:
    def answer(items: Sequence[PushedMessage]) -> SendOutcome:
        (body,) = (item.message.body for item in items)
        return {b"fails": FAILS, b"no form": SendOutcome(undeliverable={0: "it has no form"})}.get(body, OK)

    world.receivers.put("e", answer, schedule=[0, 10_000], breaker_failures=1, concurrency=1)
    await world.push("s", "e")
    for body in (b"fails", b"no form", b"good"):
        world.broker.put("s", body)
    await asyncio.sleep(100)
    assert [round(at - times(world)[0]) for at in times(world)] == [0, 10, 10]
    assert world.receivers.bodies() == [b"good"]


@pytest.mark.parametrize("state", [EndpointState.PAUSED, EndpointState.DISABLED, EndpointState.UNVERIFIED])
def test_an_endpoint_that_is_held_by_somebody_gets_nothing_until_it_is_let_go(state: EndpointState) -> None:
    async def main() -> None:
        world = World()
        world.receivers.put("e", FAILS, schedule=[0, 60, 60], breaker_failures=100)
        await world.push("s", "e")
        world.broker.put("s", b"x")
        await asyncio.sleep(1)
        world.receivers.set_state("e", state)
        world.broker.put("s", b"y")
        await asyncio.sleep(10 * 24 * HOUR)
        assert len(times(world)) == 1
        assert (len(world.broker.queues["s"]), world.broker.out("s")) == (1, 0)
        status = await world.pushers["s"].status()
        assert (status.state, status.waiting, status.retrying) == (PushState.WAITING, 1, 1)
        assert status.reason == f"{state.value}: now {state.value}"
        world.receivers.answers["e"] = OK
        world.receivers.set_state("e", EndpointState.ACTIVE)
        await asyncio.sleep(1)
        assert sorted(world.receivers.bodies()) == [b"x", b"y"]
        await world.close()

    run(main())


@pytest.mark.parametrize("lease", ["broker", "ledger"])
def test_an_endpoint_that_is_gone_is_disabled_and_its_messages_wait(lease: str) -> None:
    async def main() -> None:
        world = World()
        world.receivers.put("e", SendOutcome(status=410), concurrency=1)
        await world.push("s", "e", lease=lease)
        for number in range(10):
            world.broker.put("s", b"%d" % number)
        await asyncio.sleep(600)
        assert world.receivers.disabled == {"e": "410: the endpoint is gone and says so"}
        assert len(times(world)) == 1
        assert world.broker.out("s") == 0
        world.receivers.answers["e"] = OK
        world.receivers.set_state("e", EndpointState.ACTIVE)
        await asyncio.sleep(60)
        assert sorted(world.receivers.bodies()) == sorted(b"%d" % number for number in range(10))
        assert not world.ledger.rows
        assert max(attempt or 1 for _, attempt in world.receivers.attempts()) == 2
        await world.close()

    run(main())


@in_a_world
async def test_an_endpoint_that_does_not_exist_holds_its_messages_in_their_queue(world: World) -> None:
    await world.push("s", "e")
    world.broker.put("s", b"x")
    await asyncio.sleep(60)
    assert (await world.pushers["s"].status()).reason == "missing: no endpoint 'e'"
    assert (len(world.broker.queues["s"]), world.broker.out("s")) == (1, 0)
    world.receivers.put("e")
    await asyncio.sleep(1)
    assert world.receivers.bodies() == [b"x"]


# ------------------------------------------------------------------------------------------------- the limits


@in_a_world
async def test_no_more_requests_at_once_than_the_endpoint_takes(world: World) -> None:
    async def answer(_: Sequence[PushedMessage]) -> SendOutcome:
        await asyncio.sleep(0.1)
        return OK

    world.receivers.put("e", answer, concurrency=7)
    await world.push("s", "e")
    await world.push("t", "e")
    for number in range(200):
        world.broker.put("s", b"s%d" % number)
        world.broker.put("t", b"t%d" % number)
    await asyncio.sleep(30)
    assert len(world.receivers.bodies()) == 400
    assert world.receivers.most == {"e": 7}
    # Both had their turn:
    assert 45 <= sum(body.startswith(b"s") for body in world.receivers.bodies()[:100]) <= 55


@in_a_world
async def test_no_more_requests_a_second_than_the_endpoint_takes(world: World) -> None:
    world.receivers.put("e", rate=20)
    await world.push("s", "e")
    begun = now()
    for number in range(200):
        world.broker.put("s", b"%d" % number)
    await asyncio.sleep(30)
    at = times(world)
    assert len(at) == 200
    for second in range(10):
        assert sum(begun + second <= each < begun + second + 1 for each in at) <= 23
    assert 9.5 <= at[-1] - at[0] <= 10.5


@in_a_world
async def test_a_higher_rate_counts_at_once(world: World) -> None:
    """What the lower one had put off comes by the new one."""
    world.receivers.put("e", rate=0.01)
    await world.push("s", "e")
    for number in range(3):
        world.broker.put("s", b"%d" % number)
    await asyncio.sleep(1)
    begun = now()
    before = len(times(world))
    world.receivers.put("e", rate=10)
    await asyncio.sleep(5)
    at = times(world)
    assert (before, len(at)) == (1, 3)
    assert at[-1] - begun < 0.5


@in_a_world
async def test_a_batch_waits_to_be_full_but_not_for_long(world: World) -> None:
    world.receivers.put("e", batch_max=10, batch_wait=2)
    await world.push("s", "e")
    begun = now()
    for number in range(25):
        world.broker.put("s", b"%d" % number)
    await asyncio.sleep(10)
    sizes = [(round(at - begun), len(items)) for at, items in world.receivers.requests["e"]]
    assert sizes == [(0, 10), (0, 10), (2, 5)]


@in_a_world
async def test_a_message_that_spoils_its_batch_goes_alone_in_the_end(world: World) -> None:
    def answer(items: Sequence[PushedMessage]) -> SendOutcome:
        return FAILS if any(item.message.body == b"bad" for item in items) else OK

    world.receivers.put("e", answer, batch_max=10, schedule=[0, 10, 10, 10], breaker_failures=100, batch_wait=0.5)
    await world.push("s", "e")
    for body in [b"bad", *(b"%d" % number for number in range(9))]:
        world.broker.put("s", body)
    await asyncio.sleep(100)
    assert sorted(world.receivers.bodies()) == [b"%d" % number for number in range(9)]
    (row,) = world.ledger.rows.values()
    assert (row.status, row.attempt) == (BacklogStatus.DEAD, 4)


@in_a_world
async def test_a_message_that_cannot_be_written_is_dead_at_once_and_takes_no_other_with_it(world: World) -> None:
    world.receivers.put("e", SendOutcome(status=200, undeliverable={1: "it has no form"}), batch_max=3, batch_wait=1)
    await world.push("s", "e")
    for body in (b"a", b"b", b"c"):
        world.broker.put("s", body)
    await asyncio.sleep(10)
    (row,) = world.ledger.rows.values()
    assert (row.status, row.reason["reason"]) == (BacklogStatus.DEAD, "it has no form")
    assert kinds(world).count(EventKind.ACKNOWLEDGED) == 2
    assert world.broker.accepted.count(b"b") == 1


@in_a_world
async def test_a_full_backlog_stops_the_intake_and_says_so(world: World) -> None:
    world.receivers.put("e", FAILS, schedule=[0, 1_000, 1_000], breaker_failures=1_000, concurrency=1)
    await world.push("s", "e", backlog_max=10)
    for number in range(50):
        world.broker.put("s", b"%d" % number)
    await asyncio.sleep(100)
    assert 10 <= len(world.ledger.rows) <= 11
    status = await world.pushers["s"].status()
    assert status.state is PushState.FULL
    assert "backlog_max is 10" in status.reason
    assert world.broker.out("s") == 0
    world.receivers.answers["e"] = OK
    await asyncio.sleep(5_000)
    assert sorted(world.receivers.bodies()) == sorted(b"%d" % number for number in range(50))


@in_a_world
async def test_a_backlog_counts_what_is_with_the_endpoint(world: World) -> None:
    """All that is with it may fail at once."""

    fails = False

    async def answer(_: Sequence[PushedMessage]) -> SendOutcome:
        await asyncio.sleep(1)
        return FAILS if fails else OK

    world.receivers.put("e", answer, schedule=[0, 10_000], breaker_failures=1_000, concurrency=8)
    await world.push("s", "e", backlog_max=4)
    for number in range(100):
        world.broker.put("s", b"%d" % number)
    await asyncio.sleep(100)
    assert len(world.receivers.bodies()) == 100
    fails = True
    for number in range(100):
        world.broker.put("s", b"%d" % number)
    await asyncio.sleep(100)
    assert len(world.ledger.rows) == 4


@in_a_world
async def test_more_than_twice_the_octets_is_given_back_at_once(world: World) -> None:
    async def answer(_: Sequence[PushedMessage]) -> SendOutcome:
        await asyncio.sleep(1)
        return OK

    world.receivers.put("e", answer, concurrency=1)
    await world.push("s", "e", prefetch=50, prefetch_octets=1 << 16)
    world.broker.queues.setdefault("s", deque()).extend(
        (Message(bytes(8 << 10), Properties()), False) for _ in range(40)
    )
    most = 0
    feed = FakeConsumer.feed

    def watched(consumer: FakeConsumer) -> None:
        nonlocal most
        feed(consumer)
        most = max(most, world.broker.out("s"))

    FakeConsumer.feed = watched  # type: ignore[method-assign]
    try:
        world.broker.feed("s")
        await asyncio.sleep(200)
    finally:
        FakeConsumer.feed = feed  # type: ignore[method-assign]
    assert len(world.receivers.bodies()) == 40
    assert most <= 2 * 8 + 1


@in_a_world
async def test_what_is_out_is_bounded_in_octets(world: World) -> None:
    async def answer(_: Sequence[PushedMessage]) -> SendOutcome:
        await asyncio.sleep(1)
        return OK

    world.receivers.put("e", answer, concurrency=2)
    await world.push("s", "e", prefetch_octets=1 << 16)
    most = 0
    for _ in range(100):
        world.broker.put("s", bytes(8 << 10))
    for _ in range(120):
        await asyncio.sleep(1)
        most = max(most, world.broker.out("s"))
    assert len(world.receivers.bodies()) == 100
    assert most <= 16


@in_a_world
async def test_what_is_out_of_all_queues_is_bounded_in_bytes(world: World) -> None:
    """Four large ones make room for a small one, and all of them go on."""

    async def answer(_: Sequence[PushedMessage]) -> SendOutcome:
        await asyncio.sleep(1)
        return OK

    total, size, names = 1 << 19, 8 << 10, "abcd"
    world.parts.byte_budget.holdings.configure(total, 1.0, 0.0, {})
    for name in names:
        world.receivers.put(name, answer, concurrency=2)
        await world.push(name, name)
        for _ in range(100):
            world.broker.put(name, bytes(size))
    world.receivers.put("e", answer, concurrency=2)
    await world.push("e", "e")
    world.broker.put("e", b"small")
    most = 0
    for second in range(400):
        await asyncio.sleep(1)
        most = max(most, sum(world.broker.out(name) * size for name in names))
        if second == 10:
            assert world.receivers.bodies() == [b"small"]
        if not any(world.broker.out(name) or world.broker.queues[name] for name in names):
            break
    assert [len(world.receivers.bodies(name)) for name in names] == [100] * len(names)
    assert total // 2 < most <= total + len(names) * size
    assert world.parts.byte_budget.held == 0


# ---------------------------------------------------------------------------------------------------- the order


@in_a_world
async def test_one_order_key_that_is_stuck_delays_no_other(world: World) -> None:
    stuck = True

    async def answer(items: Sequence[PushedMessage]) -> SendOutcome:
        await asyncio.sleep(0.01)
        return FAILS if stuck and items[0].message.body.startswith(b"bad") else OK

    world.receivers.put("e", answer, schedule=[0, 30, 30, 30, 30, 30, 30], breaker_failures=100)
    await world.push("s", "e", lease="ledger", order_key="property:type", prefetch=20)
    for number in range(100):
        for key in ("bad", "good", "fine"):
            world.broker.put("s", f"{key} {number:03}".encode(), type=key)
    begun = now()
    while len(world.receivers.bodies()) < 200:
        await asyncio.sleep(0.1)
        assert now() - begun < 25, len(world.receivers.bodies())  # before the first retry of the one that is stuck
    for free in (b"good", b"fine"):
        assert [body for body in world.receivers.bodies() if body.startswith(free)] == [
            b"%b %03d" % (free, number) for number in range(100)
        ]
    assert {body for body, _ in world.receivers.attempts() if body.startswith(b"bad")} == {b"bad 000"}
    stuck = False
    await asyncio.sleep(200)
    assert [body for body in world.receivers.bodies() if body.startswith(b"bad")] == [
        b"bad %03d" % number for number in range(100)
    ]
    assert not world.ledger.rows


@in_a_world
async def test_messages_of_a_key_keep_their_order_when_the_gateway_starts_again(world: World) -> None:
    world.receivers.put("e", FAILS, schedule=[0, 30, 30], breaker_failures=100)
    settings = {"lease": "ledger", "order_key": "property:type"}
    pusher = await world.push("s", "e", **settings)
    for number in range(10):
        world.broker.put("s", b"%d" % number, type="k")
    await asyncio.sleep(5)
    assert [body for body, _ in world.receivers.attempts()] == [b"0"]
    await pusher.stop(1.0)
    world.receivers.answers["e"] = OK
    await world.push("s", "e", **settings)
    await asyncio.sleep(20)
    assert world.receivers.bodies() == []
    await asyncio.sleep(200)
    assert world.receivers.bodies() == [b"%d" % number for number in range(10)]


@in_a_world
async def test_a_dead_message_does_not_block_its_key(world: World) -> None:
    def answer(items: Sequence[PushedMessage]) -> SendOutcome:
        return FAILS if items[0].message.body == b"bad" else OK

    world.receivers.put("e", answer, schedule=[0, 10], breaker_failures=100)
    await world.push("s", "e", lease="ledger", order_key="property:type")
    for body in (b"bad", b"next"):
        world.broker.put("s", body, type="k")
    await asyncio.sleep(5)
    assert world.receivers.bodies() == []
    await asyncio.sleep(10)
    assert world.receivers.bodies() == [b"next"]


@in_a_world
async def test_for_an_endpoint_that_fails_consumers_do_not_end_and_begin_with_each_row(world: World) -> None:
    """Messages from the queue and those that wait for another attempt are tried beside each other."""
    begun = 0
    consume = world.broker.consume

    async def counted(*args: Any, **options: Any) -> Any:
        nonlocal begun
        begun += 1
        return await consume(*args, **options)

    world.broker.consume = counted  # type: ignore[method-assign]
    world.receivers.put("e", FAILS, schedule=[0, 5, 5, 5, 5, 5, 5], breaker_failures=8)
    await world.push("s", "e")
    for number in range(4):
        world.broker.put("s", b"%d" % number)
        await asyncio.sleep(4)
    assert len(times(world)) == 8
    assert set(world.receivers.bodies()) <= {b"%d" % number for number in range(4)}
    assert begun == 2, "one with the prefetch of a new endpoint, one with that of one that fails"


@in_a_world
async def test_one_that_failed_before_the_start_gets_new_messages_too(world: World) -> None:
    """What it was tried with before shows how it is; when that failed again, a new one is not kept waiting."""
    world.receivers.put("e", FAILS, schedule=[0, 1_000, 1_000], breaker_failures=100)
    pusher = await world.push("s", "e")
    world.broker.put("s", b"old")
    await asyncio.sleep(1)
    await pusher.stop(1.0)
    await asyncio.sleep(1_300)
    world.broker.put("s", b"new")
    await world.push("s", "e")
    await asyncio.sleep(10)
    assert [body for body, _ in world.receivers.attempts()] == [b"old", b"old", b"new"]


# --------------------------------------------------------------------------------------------------- bad days


@in_a_world
async def test_while_the_ledger_is_away_nothing_is_begun_and_nothing_acknowledged(world: World) -> None:
    async def answer(_: Sequence[PushedMessage]) -> SendOutcome:
        world.ledger.away = True
        return OK

    world.receivers.put("e", answer, concurrency=1)
    await world.push("s", "e")
    for number in range(5):
        world.broker.put("s", b"%d" % number)
    await asyncio.sleep(600)
    assert world.receivers.bodies() == [b"0"]
    assert world.broker.accepted == []
    world.ledger.away = False
    world.receivers.answers["e"] = OK
    await asyncio.sleep(60)
    assert sorted(world.receivers.bodies()) == [b"%d" % number for number in range(5)]
    assert sorted(world.broker.accepted) == [b"%d" % number for number in range(5)]


@in_a_world
async def test_a_stop_lets_requests_finish_and_gives_the_rest_back(world: World) -> None:
    async def answer(_: Sequence[PushedMessage]) -> SendOutcome:
        await asyncio.sleep(2)
        return OK

    world.receivers.put("e", answer, concurrency=1)
    pusher = await world.push("s", "e")
    for number in range(5):
        world.broker.put("s", b"%d" % number)
    await asyncio.sleep(1)
    await pusher.stop(10)
    assert world.broker.accepted == [b"0"]
    assert len(world.broker.queues["s"]) == 4
    assert kinds(world).count(EventKind.ACKNOWLEDGED) == 1


@in_a_world
async def test_a_stop_that_may_not_wait_leaves_requests_to_be_made_again_under_the_same_id(world: World) -> None:
    async def answer(_: Sequence[PushedMessage]) -> SendOutcome:
        await asyncio.sleep(30)
        return SendOutcome(error=OutboundTimeout("late"))

    world.receivers.put("e", answer)
    pusher = await world.push("s", "e", lease="ledger")
    world.broker.put("s", b"x")
    await asyncio.sleep(1)
    await pusher.stop(1)
    world.receivers.answers["e"] = OK
    await world.push("s", "e", lease="ledger")
    await asyncio.sleep(60)
    assert world.receivers.bodies() == [b"x"]
    assert len({item.id for _, items in world.receivers.requests["e"] for item in items}) == 1


@in_a_world
async def test_who_lost_a_subscription_records_and_acknowledges_nothing_more(world: World) -> None:
    async def answer(_: Sequence[PushedMessage]) -> SendOutcome:
        await asyncio.sleep(2)
        return OK

    world.receivers.put("e", answer)
    pusher = await world.push("s", "e")
    world.broker.put("s", b"x")
    await asyncio.sleep(1)
    pusher.lost()
    await asyncio.sleep(60)
    assert world.broker.accepted == []
    assert kinds(world) == []
    assert len(world.broker.queues["s"]) == 1


@in_a_world
async def test_what_the_dead_letter_place_does_not_take_waits_for_it(world: World) -> None:
    world.broker.routes = lambda routing_key: False
    world.receivers.put("e", FAILS, schedule=[0])
    await world.push("s", "e", dead_letter_routing_key="dead")
    world.broker.put("s", b"x")
    await asyncio.sleep(200)
    (row,) = world.ledger.rows.values()
    assert (row.status, row.attempt) == (BacklogStatus.WAITING, 1)
    assert len(times(world)) == 1
    assert world.broker.accepted == [b"x"]
    assert kinds(world).count(EventKind.ATTEMPT_FAILED) == 1
    world.broker.routes = lambda routing_key: True
    await asyncio.sleep(60)
    ((routing_key, message),) = world.broker.published
    assert (routing_key, message.body) == ("dead", b"x")
    assert not world.ledger.rows
    assert kinds(world)[-1] is EventKind.DEAD_LETTERED


@pytest.mark.parametrize("order_key", ["", "routing_key"])
def test_what_another_process_revived_without_notice_is_pushed(order_key: str) -> None:
    @in_a_world
    async def main(world: World) -> None:
        world.ledger.work.shared = True
        world.receivers.put("e", SendOutcome(status=400), schedule=[0])
        await world.push("s", "e", order_key=order_key)
        world.broker.put("s", b"x")
        await asyncio.sleep(100)
        (row,) = world.ledger.rows.values()
        assert row.status is BacklogStatus.DEAD
        world.receivers.answers["e"] = OK
        await world.ledger.settle([BacklogSettlement(row.owed.id, Ending.REVIVE)])
        await asyncio.sleep(LOOK_EVERY + 1)
        assert (world.receivers.bodies(), world.ledger.rows) == ([b"x"], {})

    main()
