"""What a pushed subscription holds: how much, in which order it goes, and where it goes back to. The clock is given."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from gateway.amqp.message import Message, Properties
from gateway.errors import Overloaded
from gateway.fidelity import annotate
from gateway.ledger import EventKind, id_text
from gateway.ledger.pending.owed import BacklogEntry, BacklogStatus
from gateway.webhooks import pusher as pusher_module
from gateway.webhooks.attempts.sender import SendOutcome
from gateway.webhooks.endpoint import EndpointState
from tests.webhooks.aims import answers_after
from tests.webhooks.test_push_in_time import in_a_world, kinds, times
from tests.webhooks.virtual import World, now

FAILS = SendOutcome(status=500)
OK = SendOutcome(status=200)
KIB = 1 << 10
LIMIT = 64 * KIB
"""The least ``prefetch_octets``."""


def prefetch(world: World, name: str = "s") -> int:
    """That of the present consumer."""
    return world.broker.consumers[name][-1].prefetch


def bodies(world: World, name: str = "e") -> list[bytes]:
    """What was tried, in order."""
    return [body for body, _ in world.receivers.attempts(name)]


def events(world: World, event: str) -> float | None:
    """How many messages of the endpoint ``e`` came to this."""
    return world.metrics.registry.get_sample_value("amqpgw_push_messages_total", {"endpoint": "e", "event": event})


def bring(world: World, body: bytes, message_id: str, *, redelivered: bool = False) -> None:
    """A message of a gateway's is in the queue."""
    message = Message(body, annotate(Properties(), id=message_id))
    world.broker.queues["s"].append((message, redelivered))


async def open_window(world: World, count: int = 40) -> None:
    """Have the endpoint take so many, so that it gets several requests at once."""
    world.receivers.answers["e"] = answers_after(0.01, OK)
    for _ in range(count):
        world.broker.put("s", b"well")
    await asyncio.sleep(5)
    assert len(world.receivers.bodies()) == count
    world.receivers.requests.clear()
    world.receivers.got.clear()
    del world.broker.accepted[:]


# -------------------------------------------------------------------------------------------------- bytes


@pytest.mark.parametrize(
    ("sizes", "fits"), [((100 * KIB,), True), ((32 * KIB, 32 * KIB), True), ((33 * KIB, 32 * KIB), False)]
)
def test_less_is_wanted_when_several_are_too_large_together(sizes: tuple[int, ...], *, fits: bool) -> None:
    @in_a_world
    async def main(world: World) -> None:
        world.receivers.put("e", answers_after(60.0, OK))
        await world.push("s", "e", prefetch=50, prefetch_octets=LIMIT)
        for size in sizes:
            world.broker.put("s", bytes(size))
        await asyncio.sleep(1)
        assert world.pushers["s"]._source.wanted == (50 if fits else 1)

    main()


@in_a_world
async def test_more_is_wanted_again_when_all_that_was_large_is_gone(world: World) -> None:
    world.receivers.put("e", answers_after(0.5, OK))
    await world.push("s", "e", prefetch=50, prefetch_octets=LIMIT)
    for _ in range(20):
        world.broker.put("s", bytes(16 * KIB))
    await asyncio.sleep(1)
    assert prefetch(world) < 10
    await asyncio.sleep(60)
    assert len(world.receivers.bodies()) == 20
    for _ in range(10):
        world.broker.put("s", b"small")
        await asyncio.sleep(2)
    assert prefetch(world) == 50
    assert len(world.broker.consumers["s"]) == 1


@pytest.mark.parametrize("lease", ["broker", "ledger"])
def test_bytes_count_from_the_delivery_to_the_end(lease: str) -> None:
    @in_a_world
    async def main(world: World) -> None:
        world.receivers.put("e", answers_after(1.0, OK))
        await world.push("s", "e", lease=lease)
        assert world.parts.byte_budget.held == 0
        for _ in range(2):
            world.broker.put("s", bytes(1_000))
        await asyncio.sleep(0.5)
        assert world.parts.byte_budget.held == 2_000
        await asyncio.sleep(1)
        assert world.parts.byte_budget.held == 1_000
        await asyncio.sleep(5)
        assert (len(world.receivers.bodies()), world.parts.byte_budget.held) == (2, 0)

    main()


@in_a_world
async def test_no_more_is_stored_before_it_is_tried_than_is_wanted(world: World) -> None:
    world.receivers.put("e", answers_after(1_000.0, OK), concurrency=1)
    await world.push("s", "e", lease="ledger", prefetch=5)
    for number in range(100):
        world.broker.put("s", b"%d" % number)
    await asyncio.sleep(60)
    assert 5 <= len(world.ledger.rows) <= 15


# -------------------------------------------------------------------------------------------------- the order


@pytest.mark.parametrize("lease", ["broker", "ledger"])
def test_a_batch_waits_since_its_first_message(lease: str) -> None:
    @in_a_world
    async def main(world: World) -> None:
        world.receivers.put("e", batch_max=10, batch_wait=2.5)
        await world.push("s", "e", lease=lease)
        await asyncio.sleep(10)
        begun = now()
        for _ in range(4):
            world.broker.put("s", b"x")
            await asyncio.sleep(1)
        await asyncio.sleep(10)
        found = [(round(at - begun, 1), len(items)) for at, items in world.receivers.requests["e"]]
        assert found == [(2.5, 3), (5.5, 1)]
        assert len(world.receivers.bodies()) == 4

    main()


@in_a_world
async def test_from_the_third_attempt_on_each_message_goes_alone(world: World) -> None:
    world.receivers.put("e", FAILS, batch_max=10, batch_wait=1, schedule=[0, 10, 10, 10], breaker_failures=100)
    await world.push("s", "e")
    for number in range(3):
        world.broker.put("s", b"%d" % number)
    await asyncio.sleep(100)
    found = [(len(items), {item.attempt or 0 for item in items}) for _, items in world.receivers.requests["e"]]
    first, *others = [(size, attempts) for size, attempts in found if max(attempts) < 3]
    assert first == (3, {1})
    assert sum(size for size, _ in others) == 3
    assert [size for size, attempts in found if max(attempts) >= 3] == [1] * 6


@in_a_world
async def test_new_messages_and_those_that_failed_before_take_turns(world: World) -> None:
    world.receivers.put("e", schedule=[0, 100], concurrency=1, breaker_failures=1_000)
    await world.push("s", "e")
    await open_window(world)
    world.receivers.answers["e"] = FAILS
    for _ in range(5):
        world.broker.put("s", b"old")
    await asyncio.sleep(50)
    assert bodies(world) == [b"old"] * 5
    world.receivers.requests.clear()
    world.receivers.answers["e"] = answers_after(1.0, OK)
    await asyncio.sleep(48)
    for _ in range(6):
        world.broker.put("s", b"new")
    await asyncio.sleep(30)
    assert sorted(bodies(world)) == [b"new"] * 6 + [b"old"] * 5
    both = bodies(world)[2:9]
    assert both[:6] == [b"new", b"old"] * 3 or both[:6] == [b"old", b"new"] * 3


@in_a_world
async def test_a_message_that_its_broker_took_back_is_not_begun(world: World) -> None:
    world.receivers.put("e", answers_after(5.0, OK), concurrency=1)
    await world.push("s", "e")
    for number in range(3):
        world.broker.put("s", b"%d" % number)
    await asyncio.sleep(1)
    (consumer,) = world.broker.consumers["s"]
    await consumer.close()
    await asyncio.sleep(60)
    assert bodies(world) == [b"0"]
    assert (len(world.broker.queues["s"]), world.broker.accepted) == (3, [])
    assert world.parts.byte_budget.held == 0


# ----------------------------------------------------------------------------------------- what came before


@in_a_world
async def test_a_message_that_the_ledger_has_is_dropped_and_those_behind_it_keep_their_order(world: World) -> None:
    """Also while the ledger is away, and nobody knows."""
    world.receivers.put("e", FAILS, schedule=[0, 10_000], concurrency=1, breaker_failures=100)
    await world.push("s", "e")
    await open_window(world)
    world.receivers.answers["e"] = FAILS
    names = [id_text(world.parts.ids()) for _ in range(4)]
    bring(world, b"old", names[0])
    world.broker.feed("s")
    await asyncio.sleep(10)
    world.receivers.answers["e"] = OK
    world.broker.put("s", b"well again")
    await asyncio.sleep(10)
    world.receivers.requests.clear()
    find, away = world.ledger.seen, 3

    async def seen(scope: str, keys: Sequence[str]) -> Any:
        nonlocal away
        if away:
            away -= 1
            world.ledger.away = True
            asyncio.get_running_loop().call_later(0.01, setattr, world.ledger, "away", False)
        return await find(scope, keys)

    world.ledger.seen = seen  # type: ignore[method-assign]
    bring(world, b"old", names[0], redelivered=True)
    bring(world, b"doubtful", names[1], redelivered=True)
    bring(world, b"new", names[2])
    world.broker.feed("s")
    await asyncio.sleep(0.2)
    bring(world, b"newer", names[3])
    world.broker.feed("s")
    assert bodies(world) == []
    await asyncio.sleep(10)
    assert bodies(world) == [b"doubtful", b"new", b"newer"]
    assert kinds(world).count(EventKind.DUPLICATE_DROPPED) == 1
    assert events(world, "duplicate_dropped") == 1
    assert world.broker.accepted.count(b"old") == 2
    assert world.parts.byte_budget.held == 0


@in_a_world
async def test_what_the_filter_does_not_want_is_counted_and_gone(world: World) -> None:
    world.receivers.put("e")
    await world.push("s", "e", filter={"selector": "colour = 'red'"}, unmatched="discard")
    for colour in ("red", "blue", "blue"):
        world.broker.put("s", colour.encode(), headers={"colour": colour})
    await asyncio.sleep(1)
    assert bodies(world) == [b"red"]
    assert (events(world, "filtered"), events(world, "delivered")) == (2, 1)
    assert sorted(world.broker.accepted) == [b"blue", b"blue", b"red"]
    assert world.parts.byte_budget.held == 0


# -------------------------------------------------------------------------------------------------- what goes back


@in_a_world
async def test_rows_for_which_the_gateway_was_too_busy_wait_and_keep_their_attempt(world: World) -> None:
    answers = [SendOutcome(error=Overloaded("too many")), SendOutcome(error=Overloaded("too many")), OK]
    world.receivers.put("e", lambda items: answers.pop(0))
    await world.push("s", "e", lease="ledger")
    world.broker.put("s", b"x")
    await asyncio.sleep(10)
    assert [attempt for _, attempt in world.receivers.attempts()] == [1, 1, 1]
    assert [round(at - times(world)[0], 1) for at in times(world)] in ([0, 1.6, 3.1], [0, 1.5, 3.1], [0, 1.6, 3.2])
    assert not world.ledger.rows


@in_a_world
async def test_rows_that_wait_for_a_request_go_back_when_the_endpoint_is_paused(world: World) -> None:
    world.receivers.put("e", answers_after(5.0, OK), concurrency=1)
    await world.push("s", "e", lease="ledger")
    for number in range(5):
        world.broker.put("s", b"%d" % number)
    await asyncio.sleep(1)
    assert (await world.pushers["s"].status()).held > 0
    world.receivers.set_state("e", EndpointState.PAUSED)
    await asyncio.sleep(1)
    assert [row.status for row in world.ledger.rows.values()].count(BacklogStatus.OUT) == 1
    assert (await world.pushers["s"].status()).held == 0


@in_a_world
async def test_rows_that_were_claimed_and_not_begun_go_back_when_the_endpoint_is_paused(world: World) -> None:
    """Those too whose claim comes to its end only then."""
    claim, claiming = world.ledger.claim, asyncio.Event()
    world.receivers.put("e", answers_after(5.0, OK), concurrency=1)
    await world.push("s", "e", lease="ledger")

    async def slow(*arguments: Any, **named: Any) -> list[BacklogEntry]:
        found = await claim(*arguments, **named)
        claiming.set()
        await asyncio.sleep(1)
        return found

    for number in range(5):
        world.broker.put("s", b"%d" % number)
    await asyncio.sleep(1)
    world.ledger.claim = slow  # type: ignore[method-assign]
    await claiming.wait()
    world.receivers.set_state("e", EndpointState.PAUSED)
    await asyncio.sleep(20)
    rows = sorted((row.owed.id, row.status, row.attempt) for row in world.ledger.rows.values())
    assert rows
    assert {(status, attempt) for _, status, attempt in rows} == {(BacklogStatus.WAITING, 0)}
    assert world.parts.byte_budget.held == 0
    status = await world.pushers["s"].status()
    assert (status.held, status.in_flight, status.waiting) == (0, 0, len(rows))
    world.receivers.set_state("e", EndpointState.ACTIVE)
    await asyncio.sleep(60)
    assert sorted(world.receivers.bodies()) == [b"0", b"1", b"2", b"3", b"4"]
    assert {attempt for _, attempt in world.receivers.attempts()} == {1}


def test_few_at_a_time_are_on_their_way_to_a_dead_letter_place_that_did_not_take_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pusher_module, "DEAD_LETTERING_MAX", 1)

    @in_a_world
    async def main(world: World) -> None:
        world.broker.routes = lambda routing_key: False
        world.receivers.put("e", FAILS, schedule=[0], breaker_failures=1_000, concurrency=1)
        await world.push("s", "e", dead_letter_routing_key="dead")
        for number in range(6):
            world.broker.put("s", b"%d" % number)
        await asyncio.sleep(20)
        assert len(world.ledger.rows) == 6
        publish, waiting, most = world.broker.publish_nowait, 0, 0

        def slow(*arguments: Any, **named: Any) -> asyncio.Future[Any]:
            nonlocal waiting, most
            waiting += 1
            most = max(most, waiting)
            found: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

            def confirm() -> None:
                nonlocal waiting
                waiting -= 1
                found.set_result(publish(*arguments, **named).result())

            asyncio.get_running_loop().call_later(1.0, confirm)
            return found

        world.broker.publish_nowait = slow  # type: ignore[method-assign]
        world.broker.routes = lambda routing_key: len(world.broker.published) != 3
        await asyncio.sleep(25)
        assert most <= 2, "a claim may bring more than one"
        await asyncio.sleep(10)
        assert {row.attempt for row in world.ledger.rows.values()} <= {1}
        world.broker.routes = lambda routing_key: True
        await asyncio.sleep(100)
        assert sorted(message.body for _, message in world.broker.published) == [b"%d" % number for number in range(6)]
        assert not world.ledger.rows
        assert len(times(world)) == 6

    main()
