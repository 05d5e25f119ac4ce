"""Delivery limits: what must not go back any more is kept, and not released."""

from __future__ import annotations

import asyncio

import pytest

from gateway.amqp.message import Message, Properties
from gateway.amqp.operations import Cancel, Settle, Settlement
from gateway.upstreams import Delivery, Upstream
from gateway.upstreams.consuming import leases
from gateway.upstreams.consuming.delivery_limits import is_last, is_used_up
from tests.upstreams.conftest import Start
from tests.upstreams.fake import FakeBroker, until


@pytest.mark.parametrize(
    ("limit", "used_up", "last"),
    [(0, None, None), (1, 1, 1), (2, 1, 1), (3, 2, 2), (5, 4, 4), (20, 15, 19), (100, 75, 99)],
)
def test_thresholds(limit: int, used_up: int | None, last: int | None) -> None:
    counts = range(limit + 2)
    assert next((count for count in counts if is_used_up(count, limit)), None) == used_up
    assert next((count for count in counts if is_last(count, limit)), None) == last


def counted(broker: FakeBroker, queue: str, *counts: int) -> None:
    """Messages that their broker counts as given back so many times."""
    broker.put(queue)
    broker.queues[queue].extend(
        (Message(b"%d" % count, Properties(headers={"x-delivery-count": count} if count else None)), count > 0)
        for count in counts
    )
    broker.pump()


def keeping(upstream: Upstream) -> list[Delivery]:
    kept: list[Delivery] = []
    upstream.delivery_limits.on_used_up = kept.append
    return kept


async def test_what_is_used_up_is_kept_and_not_released(broker: FakeBroker, start: Start) -> None:
    upstream = await start(broker)
    kept = keeping(upstream)
    counted(broker, "q", 0, 14, 15, 20)
    found = await upstream.fetch("q", 4)
    assert [delivery.is_used_up for delivery in found] == [False, False, True, True]
    for delivery in found:
        delivery.settle(Settlement.RELEASE)
        assert delivery.settled
    assert [delivery.message.body for delivery in kept] == [b"15", b"20"]
    assert not any(delivery.lost or delivery.settled for delivery in kept)
    await until(lambda: broker.all(Settle))
    assert [(one.settlement, one.first, one.last) for one in broker.all(Settle)] == [(Settlement.RELEASE, 1, 2)]
    assert upstream.status().leases == 2
    kept[0].settle(Settlement.ACCEPT)
    kept[1].settle(Settlement.RELEASE)  # whoever keeps it decides
    await until(lambda: len(broker.all(Settle)) == 3)
    assert [one.settlement for one in broker.all(Settle)[1:]] == [Settlement.ACCEPT, Settlement.RELEASE]


async def test_what_is_kept_is_lost_with_its_channel(broker: FakeBroker, start: Start) -> None:
    upstream = await start(broker)
    kept = keeping(upstream)
    counted(broker, "q", 19)
    (delivery,) = await upstream.fetch("q", 1)
    lost: list[Delivery] = []
    delivery.on_lost = lost.append
    delivery.settle(Settlement.RELEASE)
    broker.kill()
    await until(lambda: kept[0].lost)
    assert lost == []  # whoever gave it back is done with it


async def test_a_lease_that_lasted_too_long_is_kept(
    broker: FakeBroker, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "_SWEEP", 0.01)
    upstream = await start(broker)
    kept = keeping(upstream)
    upstream._leases._lease_max = 0.2
    counted(broker, "q", 15)
    (delivery,) = await upstream.fetch("q", 1)
    await until(lambda: kept)
    assert delivery.lost
    await asyncio.sleep(0.05)
    assert broker.all(Settle) == []
    await until(lambda: broker.all(Settle))  # it could not be made safe in all that time


async def test_a_consumer_gets_no_message_that_may_be_dropped_next(broker: FakeBroker, start: Start) -> None:
    upstream = await start(broker)
    kept = keeping(upstream)
    counted(broker, "q", 18, 19, 20)
    found: list[Delivery] = []
    consumer = await upstream.consume("q", 3, found.append)
    await until(lambda: len(kept) == 2)
    assert [delivery.message.body for delivery in found] == [b"18"]
    closing = asyncio.create_task(consumer.close(drain=5.0))
    await until(lambda: broker.all(Cancel))
    for delivery in [*kept, *found]:
        delivery.settle(Settlement.ACCEPT)
    await closing
    assert {one.settlement for one in broker.all(Settle)} == {Settlement.ACCEPT}


async def test_the_limit_is_the_smallest_that_is_known(broker: FakeBroker, start: Start) -> None:
    upstream = await start(broker, delivery_limit=8)
    limits = upstream.delivery_limits
    await upstream.declare_queue("three", arguments={"x-delivery-limit": 3})
    await upstream.declare_queue("many", arguments={"x-delivery-limit": 30})
    await upstream.declare_queue("any", arguments={"x-delivery-limit": -1})
    assert [limits.of(queue) for queue in ("three", "many", "any", "unknown")] == [3, 8, 8, 8]
    limits.state_native("three", native=True)
    assert limits.of("three") == 0
    limits.state_native("three", native=False)
    assert limits.of("three") == 3


async def test_no_limit_and_nobody_who_keeps(broker: FakeBroker, start: Start) -> None:
    """Then a message goes back, however often it did."""
    for limit, keeps in ((0, True), (20, False)):
        upstream = await start(broker, delivery_limit=limit)
        if keeps:
            keeping(upstream)
        counted(broker, "q", 19)
        (delivery,) = await upstream.fetch("q", 1)
        before = len(broker.all(Settle))
        delivery.settle(Settlement.RELEASE)
        await until(lambda before=before: len(broker.all(Settle)) > before)  # type: ignore[misc]
        broker.queues["q"].clear()
