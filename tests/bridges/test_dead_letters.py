"""The dead-letter place of a bridge: what waits for it, in which order, and when it is acknowledged."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.amqp.operations import Settlement
from gateway.bridges.flow import BridgeFlow
from gateway.bridges.items import BridgeDelivery
from gateway.errors import AccessRefused, Unroutable
from gateway.runtime.clock import clock
from tests.bridges.conftest import entry, until
from tests.bridges.hands import Hand, arrive, given

DEAD = "gateway.dead.b"


def poison(flow: BridgeFlow, *deliveries: Any) -> list[BridgeDelivery]:
    """Have the flow dead-letter these."""
    arrive(flow, *deliveries)
    items = flow._look(flow._take(0.0))
    for item in items:
        item.reason = "it is poison"
        flow._poison(item)
    return items


def numbered(count: int, first: int = 0) -> list[Any]:
    return [given(body=b"%d" % number) for number in range(first, first + count)]


async def letters(hand: Hand, count: int) -> list[bytes]:
    """Take the bodies of so many dead letters."""
    return [delivery.message.body for delivery in await hand.estate.take(count, DEAD, "old")]


async def test_what_is_dead_is_recorded_then_acknowledged(hand: Hand) -> None:
    flow = await hand.flow()
    deliveries = numbered(3)
    record = flow._journal.record
    told: list[list[Settlement | None]] = []

    async def recorded(*arguments: Any) -> None:
        told.append([delivery.told for delivery in deliveries])
        await record(*arguments)

    flow._journal.record = recorded  # type: ignore[assignment,method-assign]
    items = poison(flow, *deliveries)
    flow.start()
    await until(lambda: not flow.held)
    assert told == [[None] * 3]
    assert [delivery.told for delivery in deliveries] == [Settlement.ACCEPT] * 3
    assert (flow.octets, len(flow.dead_letters), flow._counts.numbers["dead_lettered"]) == (0, 0, 3)
    found = await hand.estate.take(3, DEAD, "old")
    assert [delivery.message.body for delivery in found] == [b"0", b"1", b"2"]
    assert [entry(delivery)["id"] for delivery in found] == [item.text for item in items]


async def test_what_its_source_has_taken_back_is_no_dead_letter(hand: Hand) -> None:
    """It comes again, and dies then."""
    flow = await hand.flow()
    deliveries = numbered(3)
    poison(flow, *deliveries)
    deliveries[1].lost = True
    flow.start()
    await until(lambda: not flow.held)
    assert flow.octets == 0
    assert await letters(hand, 2) == [b"0", b"2"]
    lost = numbered(1, 3)
    poison(flow, *lost)
    lost[0].lost = True
    await until(lambda: not flow.held)
    assert flow._counts.numbers["dead_lettered"] == 2


async def test_its_own_place_is_declared_once_and_again_when_it_is_gone(
    hand: Hand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.bridges.dead_letters.PAUSE_MIN", 0.01)
    declare = hand.estate.old.declare_queue
    declared: list[str] = []

    async def count(name: str, *arguments: Any, **options: Any) -> Any:
        declared.append(name)
        return await declare(name, *arguments, **options)

    monkeypatch.setattr(hand.estate.old, "declare_queue", count)
    flow = await hand.flow()
    flow.start()
    for number in range(2):
        poison(flow, *numbered(1, number))
        await until(lambda: not flow.held)
    assert declared == [DEAD]
    await hand.estate.old.delete_queue(DEAD)
    poison(flow, *numbered(1, 2))
    await until(lambda: not flow.held)
    assert declared == [DEAD, DEAD]
    assert await letters(hand, 1) == [b"2"]
    assert not flow._journal.faults


@pytest.mark.parametrize("place", [{"exchange": "amq.fanout"}, {"routing_key": "hospital"}])
async def test_a_place_that_is_somebody_elses_is_not_declared(
    hand: Hand, monkeypatch: pytest.MonkeyPatch, place: dict[str, str]
) -> None:
    await hand.estate.new.declare_queue("hospital")
    await hand.estate.new.bind_queue("hospital", "amq.fanout")
    flow = await hand.flow(dead_letter={"broker": "new", **place})
    assert not flow.dead_letters.own_queue

    async def refuse(name: str) -> None:
        raise AssertionError(f"{name!r} is declared")

    monkeypatch.setattr(hand.estate.new, "declare_queue", refuse)
    poison(flow, given())
    flow.start()
    await until(lambda: not flow.held)
    await hand.estate.take(1, "hospital")


async def test_those_that_wait_keep_their_order_while_the_place_is_refused(
    hand: Hand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.bridges.dead_letters.PAUSE_MIN", 0.01)
    declare = hand.estate.old.declare_queue
    refusals = 3

    async def refuse(name: str, *arguments: Any, **options: Any) -> Any:
        nonlocal refusals
        if refusals:
            refusals -= 1
            raise AccessRefused(403, "not now")
        return await declare(name, *arguments, **options)

    monkeypatch.setattr(hand.estate.old, "declare_queue", refuse)
    flow = await hand.flow()
    reasons: list[str] = []
    monkeypatch.setattr(flow._journal.faults, "_on_change", lambda: reasons.append(flow._journal.faults.reason))
    poison(flow, *numbered(3))
    flow.start()
    await until(lambda: not flow.held)
    assert await letters(hand, 3) == [b"0", b"1", b"2"]
    assert ["not now" in reason for reason in reasons] == [True, False]


async def test_those_that_the_place_refused_wait_and_the_others_are_done_with(
    hand: Hand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.bridges.dead_letters.PAUSE_MIN", 60.0)
    flow = await hand.flow()
    publisher = flow.dead_letters._publisher
    publish = publisher.publish
    asked: list[list[bytes]] = []

    async def partly(place: Any, name: str, found: Any, **options: Any) -> list[Any]:
        bodies = [letter.message.body for letter in found]
        asked.append(bodies)
        if len(asked) == 1:
            return [Unroutable("no bed") if body in (b"1", b"3") else None for body in bodies]
        return await publish(place, name, found, **options)

    monkeypatch.setattr(publisher, "publish", partly)
    deliveries = numbered(5)
    poison(flow, *deliveries)
    flow.start()
    await until(lambda: flow.held == 2)
    assert flow._journal.faults.reason == "dead-letter place: no bed"
    assert [delivery.told is None for delivery in deliveries] == [False, True, False, True, False]
    flow.hurry()
    await until(lambda: not flow.held)
    assert asked == [[b"0", b"1", b"2", b"3", b"4"], [b"1", b"3"]]
    assert not flow._journal.faults


async def test_pauses_grow_while_the_place_takes_nothing_and_begin_anew_when_it_does(
    hand: Hand, monkeypatch: pytest.MonkeyPatch
) -> None:
    """News that came before a pause does not end it."""
    failures: list[int] = []

    def pause_after(failed: int, *_: Any) -> float:
        failures.append(failed)
        return 0.01

    monkeypatch.setattr("gateway.runtime.backoff.pause_after", pause_after)
    flow = await hand.flow()
    outcomes: list[Any] = [Unroutable("no")] * 3 + [None] + [Unroutable("no")] * 2 + [None]
    tried: list[float] = []

    async def publish(*_: Any, **__: Any) -> list[Any]:
        tried.append(clock.monotonic())
        return [outcomes.pop(0)]

    monkeypatch.setattr(flow.dead_letters._publisher, "publish", publish)
    flow._run(flow.dead_letters.run())
    flow.dead_letters.hurry()
    for _ in range(2):
        poison(flow, given())
        await until(lambda: not flow.held)
    assert failures == [0, 1, 2, 0, 1]
    assert all(tried[index + 1] - tried[index] > 0.005 for index in (0, 1, 2, 4, 5))


async def test_no_more_than_a_group_goes_at_a_time(hand: Hand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.bridges.dead_letters.GROUP", 2)
    flow = await hand.flow()
    groups: list[int] = []

    async def publish(place: Any, name: str, found: Any, **options: Any) -> list[None]:
        groups.append(len(found))
        return [None] * len(found)

    monkeypatch.setattr(flow.dead_letters._publisher, "publish", publish)
    poison(flow, *numbered(5))
    flow.start()
    await until(lambda: not flow.held)
    assert groups == [2, 2, 1]
