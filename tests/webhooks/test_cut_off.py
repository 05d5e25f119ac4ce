"""Requests that are cut off as their subscription ends: what they held is given to those who wait."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from gateway.webhooks.attempts.forms import PushedMessage
from gateway.webhooks.attempts.sender import SendOutcome
from tests.webhooks.test_push_in_time import OK, in_a_world
from tests.webhooks.virtual import World


async def hang(items: Sequence[PushedMessage]) -> SendOutcome:
    """Answer only to those who wait."""
    if items[0].message.body == b"hangs":
        await asyncio.sleep(100_000)
    return OK


@in_a_world
async def test_the_end_of_one_subscription_lets_another_one_of_its_endpoint_go_on(world: World) -> None:
    world.receivers.put("e", hang, concurrency=1)
    first = await world.push("s", "e")
    await world.push("t", "e")
    world.broker.put("s", b"hangs")
    await asyncio.sleep(1)
    world.broker.put("t", b"waits")
    await asyncio.sleep(1)
    assert world.broker.out("t") == 1
    await first.stop(0.0)
    await asyncio.sleep(600)
    assert world.receivers.bodies() == [b"waits"]


@in_a_world
async def test_a_place_that_is_cut_off_goes_to_the_next_in_line(world: World) -> None:
    world.targets.slots.__init__(2)  # type: ignore[misc]  # endpoints that nobody knows may hold one
    world.receivers.put("e", hang)
    world.receivers.put("f")
    first = await world.push("s", "e")
    await world.push("t", "f")
    world.broker.put("s", b"hangs")
    await asyncio.sleep(1)
    world.broker.put("t", b"waits")
    await asyncio.sleep(1)
    await first.stop(0.0)
    await asyncio.sleep(600)
    assert world.receivers.bodies("f") == [b"waits"]


@in_a_world
async def test_a_request_that_is_cut_off_before_it_begins_leaves_its_place(world: World) -> None:
    world.receivers.put("e")
    first = await world.push("s", "e")
    target = world.targets.get("e")
    assert target is not None
    target.lane.window = 0
    world.broker.put("s", b"waits")
    await asyncio.sleep(1)
    target.lane.window = 1
    target.pump()
    assert world.targets.slots.in_flight == 1  # its task is made, and has not had its turn
    await world.targets.cut(target, first)
    assert (world.targets.slots.in_flight, world.receivers.bodies()) == (0, [])
    assert world.broker.out("s") == 0, "it went back"
