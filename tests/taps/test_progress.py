"""How much is left of a queue's depth, and when a tap has reached its end."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.amqp.message import Message, Properties
from gateway.amqp.operations import Settlement
from gateway.core import Gateway
from gateway.errors import BrokerUnavailable, LedgerUnavailable
from gateway.taps import TapState, flow
from gateway.taps.depth import Depth
from gateway.taps.flow import PROGRESS
from gateway.upstreams import ConsumerState, Oversized
from tests.core.conftest import gateway, ledger, upstream
from tests.core.fakes import FakeConsumer, FakeDelivery, FakeUpstream
from tests.taps.conftest import House
from tests.taps.tapped import Tapped, idle, now, numbered

__all__ = ["gateway", "idle", "ledger", "now", "upstream"]


async def written(tapped: Tapped) -> Any:
    """What the ledger says of the progress."""
    found = await tapped.gateway.ledger.get_resource(PROGRESS, "t")
    return None if found is None else found.spec


# ------------------------------------------------------------------------------------------------- progress


async def test_what_is_left_is_written_when_it_changes_and_not_too_often(idle: Tapped, now: list[float]) -> None:
    keep = idle.flow._keep_progress
    await keep(5)
    assert await written(idle) is None, "nothing limits it"
    idle.flow.depth = Depth(10, 10)
    await keep(10, 0.0)
    assert await written(idle) == {"etag": "1", "depth": 10, "left": 10}
    await keep(9, 1.0)
    assert (await written(idle))["left"] == 10
    now[0] += 1.0
    await keep(10, 1.0)
    await keep(8, 1.0)
    assert (await written(idle))["left"] == 8
    await idle.gateway.ledger.delete_resource(PROGRESS, "t", None)
    await keep(8, 0.0)
    assert await written(idle) is None, "it has not changed"


async def test_a_ledger_that_is_away_holds_up_no_progress(idle: Tapped, monkeypatch: pytest.MonkeyPatch) -> None:
    async def away(*_: Any) -> None:
        raise LedgerUnavailable("it is locked")

    idle.flow.depth = Depth(10, 10)
    with monkeypatch.context() as patched:
        patched.setattr(idle.gateway.ledger, "put_resource", away)
        await idle.flow._keep_progress(10, 0.0)
    assert await written(idle) is None


@pytest.mark.parametrize(("etag", "left"), [("1", 3), ("0", 7)])
async def test_the_depth_of_other_settings_is_another_one(idle: Tapped, etag: str, left: int) -> None:
    idle.put(*numbered(7))
    await idle.gateway.ledger.put_resource(PROGRESS, "t", {"etag": etag, "depth": 7, "left": 3}, None)
    await idle.flow._prepare()
    depth = idle.flow.depth
    assert depth is not None
    assert (depth.depth, depth.left) == (7, left)
    assert await written(idle) == {"etag": "1", "depth": 7, "left": left}
    idle.put(*numbered(2))
    await idle.flow._prepare()
    assert idle.flow.depth is depth, "it is looked at once"


async def test_a_tap_without_an_end_has_no_depth(gateway: Gateway, upstream: FakeUpstream) -> None:
    tapped = Tapped(gateway, upstream, begins=False)
    await tapped.flow._prepare()
    assert (tapped.flow.depth, await written(tapped)) == (None, None)


async def test_a_stop_writes_what_is_left(
    gateway: Gateway, upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flow, "PROGRESS_EVERY", 1e9)
    monkeypatch.setattr(flow, "EMPTY_EVERY", 1e9)
    tapped = Tapped(gateway, upstream, begins=False, until="depth", prefetch=2)
    query = upstream.query_queue

    async def deeper(queue: str) -> Any:
        return replace(await query(queue), message_count=9)

    monkeypatch.setattr(upstream, "query_queue", deeper)
    tapped.put(*numbered(6))
    tapped.flow.begin()
    await tapped.until(lambda: len(upstream.settled) == 6)
    assert (await written(tapped))["left"] == 9
    await tapped.flow.stop(1.0)
    assert (await written(tapped))["left"] == 3


async def test_what_was_withheld_is_acknowledged_before_the_rest_is_given_back(idle: Tapped) -> None:
    found: list[Any] = [FakeDelivery(idle.upstream, "orders", (message, "", "k", False)) for message in numbered(3)]
    depth = idle.flow.depth = Depth(3, 3)
    depth.begin(3)
    for delivery in found:
        assert depth.arrive(delivery, 3)
    idle.flow._acknowledge(found)
    assert idle.upstream.settled == [], "a broker may send a prefetch more"
    idle.flow._before_close()
    assert idle.upstream.settled == [(Settlement.ACCEPT, b"%d" % number) for number in range(3)]
    assert depth.left == 0


@pytest.mark.parametrize("is_lost", [False, True])
async def test_one_that_has_ended_hears_of_no_messages(gateway: Gateway, upstream: FakeUpstream, is_lost: bool) -> None:
    before = list(upstream.on_oversized)
    tapped = Tapped(gateway, upstream)
    assert upstream.on_oversized == [*before, tapped.flow._oversized]
    await tapped.until(lambda: bool(upstream.consumers))
    if is_lost:
        tapped.flow.lost()
        await tapped.flow.gone()
    else:
        await tapped.flow.stop(1.0)
    assert upstream.on_oversized == before
    tapped.flow.lost()
    assert upstream.on_oversized == before


# ------------------------------------------------------------------------------------------------- the end


async def test_what_comes_beyond_the_end_goes_back(idle: Tapped) -> None:
    idle.flow.depth = Depth(1, 1)
    wanted, more = (FakeDelivery(idle.upstream, "orders", (message, "", "k", False)) for message in numbered(2))
    wanted.channel = more.channel = "one"
    idle.flow.depth.begin(1)
    idle.flow._arrive(wanted)  # type: ignore[arg-type]  # of its shape
    idle.flow._arrive(more)  # type: ignore[arg-type]
    assert (wanted.settled, more.settled) == (False, True)
    assert [settlement for settlement, _ in idle.upstream.settled] == [Settlement.RELEASE]


async def test_an_end_behind_a_message_that_is_too_large(tmp_path: Any) -> None:
    """Nobody can take it: it stays in the queue, and the tap does not wait for it."""
    house = House(tmp_path, "0-9-1")
    await house.open(message_max=1024)
    try:
        await house.upstream.declare_queue("in")
        await house.fill(2)
        await house.publish_outside(Message(b"y" * 2_000, Properties()))
        await house.fill(2)
        await house.tap(until="depth")
        status = await house.wait_for(state=TapState.STOPPED)
        assert status.reason == "until: 4 of 5 messages are taken; 1 over message_max are left in the queue"
        assert (status.spooled, status.oversized, status.left) == (4, 1, 1)
    finally:
        await house.close()


async def test_a_message_that_is_too_large_for_another_queue_is_nothing_to_it(idle: Tapped) -> None:
    idle.flow.depth = Depth(2, 2)
    idle.flow.depth.begin(2)
    idle.flow._oversized(Oversized("another", "", "k", 2_000, 1_000))
    assert (idle.flow.depth.passed, idle.counts.numbers["oversized"], idle.counts.last_error) == (0, 0, "")
    idle.flow._wake.clear()
    idle.flow._oversized(Oversized("orders", "", "k", 2_000, 1_000))
    assert (idle.flow.depth.passed, idle.counts.numbers["oversized"]) == (1, 1)
    assert idle.flow._wake.is_set(), "it may be at its end"
    assert idle.counts.last_error == "a message of 2000 octets is over message_max = 1000: it is not taken"


async def asked(idle: Tapped, monkeypatch: pytest.MonkeyPatch, answers: Sequence[int | None]) -> list[int | None]:
    """Have the queue's depth be one of these each time; None: nobody knows."""
    left = list(answers)

    async def query(queue: str) -> Any:
        if (count := left.pop(0)) is None:
            raise BrokerUnavailable("it is gone")
        return SimpleNamespace(message_count=count)

    monkeypatch.setattr(idle.upstream, "query_queue", query)
    idle.flow._consumer = FakeConsumer(idle.upstream, "orders", 10, lambda delivery: None)  # type: ignore[assignment]
    idle.flow._consumer.out = 0  # type: ignore[union-attr,misc]
    return left


async def test_a_queue_is_empty_when_it_says_so_twice(
    idle: Tapped, now: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    left = await asked(idle, monkeypatch, [0, 1, 0, None, 0, 0])
    found = []
    for _ in range(6):
        now[0] += flow.EMPTY_EVERY
        found.append(await idle.flow._is_empty())
    assert found == [False, False, False, False, False, True]
    assert left == []


async def test_a_queue_is_not_asked_too_often_nor_while_anything_waits(
    idle: Tapped, now: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    left = await asked(idle, monkeypatch, [0, 0])
    assert not await idle.flow._is_empty()
    now[0] += flow.EMPTY_EVERY / 2
    assert not await idle.flow._is_empty()
    now[0] += flow.EMPTY_EVERY / 2
    delivery = FakeDelivery(idle.upstream, "orders", (Message(b"x", Properties()), "", "k", False))
    idle.flow._arrived.append(delivery)  # type: ignore[arg-type]
    assert not await idle.flow._is_empty()
    idle.flow._arrived.clear()
    consumer, idle.flow._consumer = idle.flow._consumer, None
    assert not await idle.flow._is_empty()
    idle.flow._consumer = consumer
    assert len(left) == 1
    assert await idle.flow._is_empty()


async def test_a_queue_that_brought_something_meanwhile_is_asked_again(
    idle: Tapped, now: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    await asked(idle, monkeypatch, [0, 0, 0])
    found = []
    for comes in (True, True, False):
        now[0] += flow.EMPTY_EVERY
        if comes:
            delivery: Any = FakeDelivery(idle.upstream, "orders", (numbered(1)[0], "", "k", False))
            idle.flow._arrive(delivery)
            idle.flow._arrived.clear()
        found.append(await idle.flow._is_empty())
    assert found == [False, False, True]


@pytest.mark.parametrize(("counts", "out", "empty"), [(False, 2, False), (True, 2, True), (True, 1, False)])
async def test_what_waits_for_its_acknowledgement_is_not_in_the_queue(
    idle: Tapped, now: list[float], monkeypatch: pytest.MonkeyPatch, counts: bool, out: int, empty: bool
) -> None:
    """Some brokers count it with what is ready."""
    await asked(idle, monkeypatch, [2, 2])
    assert idle.upstream.capabilities is not None
    idle.upstream.capabilities = replace(idle.upstream.capabilities, counts_unacked=counts)
    idle.flow._consumer.out = out  # type: ignore[union-attr,misc]
    found = []
    for _ in range(2):
        now[0] += flow.EMPTY_EVERY
        found.append(await idle.flow._is_empty())
    assert found == [False, empty]


async def test_one_that_is_done_says_so_again_without_asking(idle: Tapped, monkeypatch: pytest.MonkeyPatch) -> None:
    left = await asked(idle, monkeypatch, [1])
    idle.flow.done = True
    assert await idle.flow._is_empty()
    assert left == [1]


async def test_behind_the_end_nothing_more_is_consumed(
    gateway: Gateway, upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flow, "PROGRESS_EVERY", 1e9)
    consume, consumed = upstream.consume, 0

    async def count(*arguments: Any, **options: Any) -> Any:
        nonlocal consumed
        consumed += 1
        return await consume(*arguments, **options)

    monkeypatch.setattr(upstream, "consume", count)
    tapped = Tapped(gateway, upstream, begins=False, until="depth", prefetch=2)
    tapped.put(*numbered(5))
    tapped.flow.begin()
    await tapped.until(lambda: bool(tapped.done))
    assert tapped.flow.depth is not None
    assert (await written(tapped))["left"] == tapped.flow.depth.left_at_most == 0, "its channel is closed"
    tapped.put(*numbered(3))
    tapped.flow.wake()
    await asyncio.sleep(0.02)
    assert (consumed, len(upstream.queues["orders"].ready)) == (1, 3)
    assert {settlement for settlement, _ in upstream.settled} == {Settlement.ACCEPT}
    await tapped.flow.stop(1.0)
    assert (await written(tapped))["left"] == 0


async def test_what_is_left_is_written_while_it_goes_on(
    gateway: Gateway, upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For another process, that may have to go on at any moment: what may not have reached the broker is left."""
    monkeypatch.setattr(flow, "EMPTY_EVERY", 1e9)
    keep = flow.TapFlow._keep_progress
    monkeypatch.setattr(flow.TapFlow, "_keep_progress", lambda self, left, every=0.0: keep(self, left, every))
    tapped = Tapped(gateway, upstream, begins=False, until="depth", prefetch=2)
    query = upstream.query_queue

    async def deeper(queue: str) -> Any:
        return replace(await query(queue), message_count=9)

    monkeypatch.setattr(upstream, "query_queue", deeper)
    tapped.put(*numbered(6))
    tapped.flow.begin()
    await tapped.until(lambda: len(upstream.settled) == 6)
    tapped.flow.wake()
    async with asyncio.timeout(5.0):
        while (await written(tapped))["left"] != 5:
            await asyncio.sleep(0.005)
    await tapped.flow.stop(1.0)


@pytest.mark.parametrize(("knows", "withheld"), [(True, 2), (False, 3)])
async def test_a_channel_that_follows_another_has_the_prefetch_of_its_consumer(
    gateway: Gateway, upstream: FakeUpstream, knows: bool, withheld: int
) -> None:
    """Its first message may be here before the consumer is."""
    tapped = Tapped(gateway, upstream, begins=False, until="depth", prefetch=3)
    depth = tapped.flow.depth = Depth(9, 9)
    depth.begin(3)
    if knows:
        tapped.flow._consumer = FakeConsumer(upstream, "orders", 2, lambda delivery: None)  # type: ignore[assignment]
    found: list[Any] = [FakeDelivery(upstream, "orders", (message, "", "k", False)) for message in numbered(10)]
    for number, delivery in enumerate(found):
        delivery.channel = "one" if not number else "two"
        tapped.flow._arrive(delivery)
    tapped.flow._acknowledge(found[1:])
    assert len(depth.release()) == withheld
    await tapped.flow.stop(0.0)


async def test_a_consumer_whose_channel_died_begins_again_with_no_more_than_is_left(idle: Tapped) -> None:
    consumer: Any = FakeConsumer(idle.upstream, "orders", 10, lambda delivery: None)
    idle.flow._consumer = consumer
    depth = idle.flow.depth = Depth(5, 5)
    depth.begin(2)
    for message in numbered(3):
        delivery: Any = FakeDelivery(idle.upstream, "orders", (message, "", "k", False))
        assert depth.arrive(delivery, 2)
        depth.settled()
    consumer.state = ConsumerState.DOWN
    idle.flow._consumer_changed(consumer)
    assert (depth.left, consumer.prefetch) == (4, 4), "two acknowledgements may not have arrived"
    consuming = [idle.flow.consuming]
    depth.pass_over()
    consumer.state = ConsumerState.RUNNING
    idle.flow._consumer_changed(consumer)
    consuming.append(idle.flow.consuming)
    assert (depth.passed, consuming) == (1, [False, True])


async def test_what_is_out_is_what_its_consumer_holds(idle: Tapped) -> None:
    assert (idle.flow.in_flight, idle.flow.consuming) == (0, False)
    consumer: Any = FakeConsumer(idle.upstream, "orders", 10, lambda delivery: None)
    consumer.out = 3
    idle.flow._consumer = consumer
    assert idle.flow.in_flight == 3
