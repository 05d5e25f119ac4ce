"""How things stand with a pushed subscription, as its status says. The clock is given."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.errors import AccessRefused, NoSuchBroker
from gateway.ledger.pending.owed import BacklogSettlement, Ending
from gateway.runtime.clock import clock
from gateway.v08.version import V0_8
from gateway.webhooks.attempts.sender import SendOutcome
from gateway.webhooks.endpoint import EndpointState
from gateway.webhooks.states import PushState
from tests.webhooks.aims import answers_after
from tests.webhooks.test_push_in_time import in_a_world, times
from tests.webhooks.virtual import FakeBroker, World

FAILS = SendOutcome(status=500)
OK = SendOutcome(status=200)


@pytest.mark.parametrize("lease", ["broker", "ledger"])
def test_what_is_held_waits_and_failed(lease: str) -> None:
    @in_a_world
    async def main(world: World) -> None:
        world.receivers.put("e", FAILS, schedule=[0, 500, 1_000], breaker_failures=100, concurrency=1)
        pusher = await world.push("s", "e", lease=lease)
        status = await pusher.status()
        assert (status.state, status.reason, status.code) == (PushState.RUNNING, "", "")
        assert (status.endpoint, status.in_flight, status.held, status.waiting) == ("e", 0, 0, 0)
        assert (status.next_attempt_at, status.last_error, status.last_error_at) == (None, "", None)
        world.broker.put("s", b"x")
        await asyncio.sleep(100)
        status = await pusher.status()
        assert (status.state, status.in_flight, status.held) == (PushState.RUNNING, 0, 0)
        assert (status.waiting, status.retrying, status.dead) == (1, 1, 0)
        assert status.last_error == "500: the endpoint failed"
        assert status.last_error_at is not None
        assert status.next_attempt_at is not None
        assert (status.next_attempt_at - clock.now_ns() // 1_000) / 1e6 == pytest.approx(400, abs=5)
        world.receivers.answers["e"] = answers_after(10.0, OK)
        for _ in range(3):
            world.broker.put("s", b"x")
        await asyncio.sleep(1)
        status = await pusher.status()
        assert status.in_flight == 1
        assert status.held <= 2
        await asyncio.sleep(100)
        status = await pusher.status()
        assert (status.in_flight, status.held, status.waiting) == (0, 0, 1)
        await asyncio.sleep(1_000)
        status = await pusher.status()
        assert (status.waiting, status.dead, status.next_attempt_at) == (0, 0, None)

    main()


@in_a_world
async def test_a_full_backlog_that_somebody_made_smaller_is_no_longer_full(world: World) -> None:
    world.receivers.put("e", FAILS, schedule=[0, 1_000], breaker_failures=100)
    pusher = await world.push("s", "e", backlog_max=1)
    world.broker.put("s", b"x")
    await asyncio.sleep(1)
    status = await pusher.status()
    assert (status.state, status.code) == (PushState.FULL, "backlog_full")
    assert "holds 1 messages for it, and backlog_max is 1" in status.reason
    (row,) = world.ledger.rows.values()
    await world.ledger.settle([BacklogSettlement(row.owed.id, Ending.PURGE)])
    status = await pusher.status()
    assert (status.state, status.code) == (PushState.RUNNING, "")


@in_a_world
async def test_an_endpoint_that_is_missing_is_the_trouble_and_one_that_is_paused_is_none(world: World) -> None:
    pusher = await world.push("s", "e")
    assert pusher.trouble == "no endpoint 'e'"
    status = await pusher.status()
    assert (status.state, status.code) == (PushState.WAITING, "endpoint_missing")
    world.receivers.put("e")
    await asyncio.sleep(1)
    assert pusher.trouble == ""
    world.receivers.set_state("e", EndpointState.PAUSED)
    await asyncio.sleep(1)
    assert pusher.trouble == ""
    status = await pusher.status()
    assert (status.state, status.reason, status.code) == (PushState.WAITING, "paused: now paused", "endpoint_paused")


@pytest.mark.parametrize("lease", ["broker", "ledger"])
def test_a_queue_that_cannot_be_read_is_the_trouble(lease: str) -> None:
    @in_a_world
    async def main(world: World) -> None:
        async def no(*_: Any, **__: Any) -> Any:
            raise AccessRefused(403, "no")

        consume = world.broker.consume
        world.broker.consume = no  # type: ignore[method-assign]
        world.receivers.put("e")
        pusher = await world.push("s", "e", lease=lease)
        await asyncio.sleep(5)
        assert pusher.trouble == "403 no"
        status = await pusher.status()
        assert (status.state, status.reason, status.code) == (PushState.ERROR, "403 no", "queue_unreadable")
        world.broker.consume = consume  # type: ignore[method-assign]
        await asyncio.sleep(60)
        assert (pusher.trouble, (await pusher.status()).state) == ("", PushState.RUNNING)

    main()


@pytest.mark.parametrize("lease", ["broker", "ledger"])
def test_an_endpoint_that_is_resumed_gets_what_waits_in_the_queue(lease: str) -> None:
    @in_a_world
    async def main(world: World) -> None:
        world.receivers.put("e", state=EndpointState.PAUSED)
        await world.push("s", "e", lease=lease)
        world.broker.put("s", b"x")
        await asyncio.sleep(1_000)
        assert (len(world.broker.queues["s"]), len(world.ledger.rows)) == (1, 0)
        world.receivers.set_state("e", EndpointState.ACTIVE)
        await asyncio.sleep(0.1)
        assert world.receivers.bodies() == [b"x"]

    main()


@in_a_world
async def test_its_own_queue_is_there_before_it_is_read(world: World) -> None:
    ensured: list[str] = []

    async def ensure(name: str, settings: Any) -> None:
        ensured.append(name)
        if len(ensured) == 1:
            raise AccessRefused(403, "no such exchange")

    world.parts.own_queues.ensure = ensure  # type: ignore[method-assign]
    world.receivers.put("e")
    pusher = await world.push("s", "e")
    await asyncio.sleep(0.1)
    assert (pusher.trouble, world.broker.consumers) == ("403 no such exchange", {})
    await asyncio.sleep(5)
    assert (pusher.trouble, ensured) == ("", ["s", "s"])


@in_a_world
async def test_events_name_the_version_of_the_consumer(world: World) -> None:
    """The broker may speak another one by then."""
    world.receivers.put("e", state=EndpointState.PAUSED)
    await world.push("s", "e")
    world.broker.version = V0_8
    world.receivers.set_state("e", EndpointState.ACTIVE)
    world.broker.put("s", b"x")
    await asyncio.sleep(1)
    assert len(times(world)) == 1
    assert {entry.version for entry in world.ledger.entries} == {"0-8"}


@in_a_world
async def test_one_whose_broker_is_another_one_now_is_stale(world: World) -> None:
    world.receivers.put("e")
    pusher = await world.push("s", "e")
    own, stale = world.broker, [pusher.stale]
    for broker in (FakeBroker(), own):
        world.broker = broker
        stale.append(pusher.stale)
    assert stale == [False, True, False]

    def none(name: str) -> Any:
        raise NoSuchBroker(f"no broker {name!r}")

    object.__setattr__(world.parts, "find", none)
    assert pusher.stale


@in_a_world
async def test_an_answer_is_a_reply_only_where_that_is_wanted(world: World) -> None:
    world.receivers.put("e", SendOutcome(status=200, body=b"answer"))
    await world.push("s", "e")
    world.broker.put("s", b"x", reply_to="answers")
    await asyncio.sleep(1)
    assert world.receivers.bodies() == [b"x"]
    assert (world.broker.published, len(world.broker.accepted)) == ([], 1)
