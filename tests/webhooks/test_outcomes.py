"""What becomes of a message after an attempt: in the ledger, with its broker, in the metrics."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from gateway.errors import EntriesRefused
from gateway.ledger import EventKind, id_text
from gateway.ledger.pending.owed import BacklogEntry, BacklogStatus, Owed
from gateway.webhooks.attempts.forms import PushedMessage
from gateway.webhooks.attempts.outcomes import DEAD_LETTER_PAUSE, REFUSED_PAUSE
from gateway.webhooks.attempts.sender import SendOutcome
from tests.webhooks.pushed import Estate, until
from tests.webhooks.test_holdings import bodies, bring, events
from tests.webhooks.test_push_in_time import in_a_world, kinds, times
from tests.webhooks.virtual import World, now

FAILS = SendOutcome(status=500)
OK = SendOutcome(status=200)


@pytest.fixture
async def estate(tmp_path: Path) -> AsyncIterator[Estate]:
    found = Estate(tmp_path)
    await found.open()
    yield found
    await found.close()


@pytest.mark.parametrize("lease", ["broker", "ledger"])
async def test_a_message_is_received_before_it_is_replied_to(estate: Estate, lease: str) -> None:
    estate.receivers.put("e", SendOutcome(status=200, body=b"answer"), reply=True)
    await estate.upstream.declare_queue("answers")
    await estate.subscribe(lease=lease)
    await estate.publish(b"x", ours=False, reply_to="answers")
    await estate.wait_depth(1, "answers")
    await estate.wait_for(in_flight=0, waiting=0)
    await until(lambda: replied(estate) == 1)
    (message_id,) = await estate.ids()
    first = EventKind.STORED if lease == "ledger" else EventKind.RECEIVED
    assert await estate.kinds(id_text(message_id)) == [first, EventKind.REPLIED, EventKind.ACKNOWLEDGED]


def replied(estate: Estate) -> float | None:
    """How many messages were replied to."""
    return estate.metrics.registry.get_sample_value("amqpgw_push_messages_total", {"endpoint": "e", "event": "replied"})


# ---------------------------------------------------------------------------------------------- it is tried again


@in_a_world
async def test_a_row_that_is_gone_makes_room_at_once(world: World) -> None:
    world.receivers.put("e", FAILS, schedule=[0, 12], breaker_failures=100)
    await world.push("s", "e", backlog_max=1)
    world.broker.put("s", b"x")
    await asyncio.sleep(1)
    world.broker.put("s", b"y")
    world.receivers.answers["e"] = OK
    await asyncio.sleep(11.5)
    assert bodies(world) == [b"x", b"x", b"y"]
    assert (events(world, "retried"), events(world, "delivered")) == (1, 2)


@in_a_world
async def test_each_attempt_is_made_when_it_is_due(world: World) -> None:
    """And no later: neither when the claim of the one before ends, nor with another message."""
    world.receivers.put("e", FAILS, schedule=[0, 5, 7, 11], breaker_failures=100)
    await world.push("s", "e")
    world.broker.put("s", b"x")
    await asyncio.sleep(100)
    assert [round(at - times(world)[0]) for at in times(world)] == [0, 5, 12, 23]


@in_a_world
async def test_a_message_that_comes_anew_when_its_row_is_gone_has_the_same_id(world: World) -> None:
    """It was replayed, for example."""
    world.receivers.put("e", FAILS, schedule=[0, 10], breaker_failures=100)
    await world.push("s", "e")
    await asyncio.sleep(1)
    name = id_text(world.parts.ids())
    for _ in range(2):
        world.receivers.answers["e"] = FAILS
        bring(world, b"x", name)
        world.broker.feed("s")
        await asyncio.sleep(5)
        assert len(world.ledger.rows) == 1
        world.receivers.answers["e"] = OK
        await asyncio.sleep(15)
        assert not world.ledger.rows
    assert len({item.id for _, items in world.receivers.requests["e"] for item in items}) == 1
    world.receivers.answers["e"] = FAILS
    for _ in range(2):
        bring(world, b"x", name)
    world.broker.feed("s")
    await asyncio.sleep(5)
    assert len(world.ledger.rows) == 2, "two copies are two deliveries"


@in_a_world
async def test_a_message_that_the_ledger_cannot_hold_goes_back_after_a_while(world: World) -> None:
    store = world.ledger.store

    async def refuses(owed: Sequence[Owed], entries: Any = (), inbox: Any = ()) -> None:
        if any(each.size == 3 for each in owed):
            raise EntriesRefused({0: "too large"})
        await store(owed, entries, inbox)

    world.ledger.store = refuses  # type: ignore[method-assign]
    world.receivers.put("e", FAILS, schedule=[0, 10_000], breaker_failures=100)
    await world.push("s", "e")
    begun = now()
    world.broker.put("s", b"odd")
    await asyncio.sleep(REFUSED_PAUSE - 1)
    assert (world.broker.out("s"), len(times(world))) == (1, 1)
    await asyncio.sleep(4)
    assert [round(at - begun) for at in times(world)] == [0, REFUSED_PAUSE]
    assert (world.broker.accepted, len(world.ledger.rows)) == ([], 0)
    assert kinds(world) == []


@in_a_world
async def test_a_ledger_that_is_away_is_asked_for_a_row_now_and_then(world: World) -> None:
    get, asked = world.ledger.get, 0

    async def counted(delivery_id: bytes) -> BacklogEntry | None:
        nonlocal asked
        asked += 1
        return await get(delivery_id)

    async def answer(_: Sequence[PushedMessage]) -> SendOutcome:
        world.ledger.away = True
        return FAILS

    world.ledger.get = counted  # type: ignore[method-assign]
    world.receivers.put("e", answer, schedule=[0, 10_000])
    await world.push("s", "e")
    await asyncio.sleep(1)
    bring(world, b"x", id_text(world.parts.ids()))
    world.broker.feed("s")
    await asyncio.sleep(10)
    assert 10 <= asked <= 21
    assert world.broker.accepted == []
    world.ledger.away = False
    await asyncio.sleep(10)
    assert (len(world.ledger.rows), world.broker.accepted) == (1, [b"x"])


# ------------------------------------------------------------------------------------------------- it is given up


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("schedule", [(0,), (0, 10)])
def test_the_last_failure_comes_before_the_dead_letter(*, first: bool, schedule: tuple[int, ...]) -> None:
    @in_a_world
    async def main(world: World) -> None:
        world.receivers.put("e", FAILS, schedule=schedule, breaker_failures=100)
        await world.push("s", "e", dead_letter_routing_key="dead")
        await asyncio.sleep(1)
        if first:
            world.broker.put("s", b"x")
        else:
            bring(world, b"x", id_text(world.parts.ids()))
            world.broker.feed("s")
        await asyncio.sleep(60)
        received = [EventKind.RECEIVED] if first else []
        stored = [EventKind.STORED, EventKind.ATTEMPT_FAILED] if len(schedule) == 2 else []
        assert kinds(world) == [*received, *stored, EventKind.ATTEMPT_FAILED, EventKind.DEAD_LETTERED]
        assert (events(world, "dead_lettered"), events(world, "dead")) == (1, None)
        assert (world.broker.accepted, world.ledger.rows) == ([b"x"], {})

    main()


@in_a_world
async def test_the_status_says_that_the_dead_letter_place_does_not_take_it(world: World) -> None:
    tried: list[float] = []

    def routes(routing_key: str) -> bool:
        tried.append(now())
        return False

    world.broker.routes = routes
    world.receivers.put("e", FAILS, schedule=[0], breaker_failures=100)
    pusher = await world.push("s", "e", dead_letter_routing_key="dead")
    world.broker.put("s", b"x")
    await asyncio.sleep(1)
    for count in range(1, 5):
        await asyncio.sleep(DEAD_LETTER_PAUSE)
        assert len(tried) == count + 1
        status = await pusher.status()
        assert status.last_error.startswith("the dead-letter place ")
        assert "does not take it" in status.last_error
        (row,) = world.ledger.rows.values()
        assert (row.status, row.attempt) == (BacklogStatus.WAITING, 1)
        assert row.reason["reason"] == "500: the endpoint failed"
        assert world.broker.accepted == [b"x"]
    assert kinds(world).count(EventKind.ATTEMPT_FAILED) == 1


@pytest.mark.parametrize("schedule", [(0,), (0, 10)])
def test_without_a_dead_letter_place_it_is_dead_in_the_ledger(schedule: tuple[int, ...]) -> None:
    @in_a_world
    async def main(world: World) -> None:
        world.receivers.put("e", FAILS, schedule=schedule, breaker_failures=100)
        pusher = await world.push("s", "e")
        world.broker.put("s", b"x")
        await asyncio.sleep(60)
        (row,) = world.ledger.rows.values()
        assert (row.status, row.attempt) == (BacklogStatus.DEAD, len(schedule))
        assert (events(world, "dead"), events(world, "dead_lettered")) == (1, None)
        assert world.broker.accepted == [b"x"]
        status = await pusher.status()
        assert (status.dead, status.waiting, status.next_attempt_at) == (1, 0, None)
        assert status.last_error == "500: the endpoint failed"

    main()
