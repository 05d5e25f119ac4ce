"""A fetch ends at its bytes, and takes nothing that it would give back where sizes are known."""

from __future__ import annotations

import asyncio

import pytest

from gateway.amqp.operations import Cancel, Consume, Get, Qos, Settle, Settlement
from gateway.upstreams.consuming import leases
from tests.upstreams.conftest import Start
from tests.upstreams.fake import FakeBroker, Peer, until

SIZE = 2_000


def left(broker: FakeBroker) -> list[tuple[int, bool]]:
    """Size and redelivered flag of what is in the queue."""
    return [(len(message.body), redelivered) for message, redelivered in broker.queues["q"]]


async def test_a_fetch_ends_at_its_bytes_and_leaves_the_rest_alone(broker: FakeBroker, start: Start) -> None:
    upstream = await start(broker, message_max=2 * SIZE)
    broker.put("q", *(bytes(SIZE) for _ in range(100)))
    first = await upstream.fetch("q", 100, bytes_max=10 * SIZE)
    assert len(first) == 10
    second = await upstream.fetch("q", 100, bytes_max=10 * SIZE)
    assert len(second) == 10
    assert left(broker) == [(SIZE, False)] * 80, "nothing was fetched only to go back"
    assert len(broker.all(Get)) == 20


async def test_one_message_goes_however_large_it_is(broker: FakeBroker, start: Start) -> None:
    upstream = await start(broker)
    broker.put("q", *(bytes(SIZE) for _ in range(3)))
    for remaining in (2, 1, 0):
        assert len(await upstream.fetch("q", 100, bytes_max=10)) == 1
        assert len(broker.queues["q"]) == remaining
    assert await upstream.fetch("q", 100, bytes_max=10) == []


async def test_messages_larger_than_those_before_do_not_pile_up(broker: FakeBroker, start: Start) -> None:
    """What comes beyond the bound goes back, behind nothing that was kept."""
    upstream = await start(broker, message_max=SIZE)
    broker.put("q", *(b"small" for _ in range(20)))
    for delivery in await upstream.fetch("q", 20, bytes_max=5 * SIZE):
        delivery.settle(Settlement.ACCEPT)
    broker.put("q", *(b"%03d" % index + bytes(SIZE) for index in range(60)))
    found = await upstream.fetch("q", 60, bytes_max=5 * SIZE)
    assert [delivery.message.body[:3] for delivery in found] == [b"000", b"001", b"002", b"003", b"004"]
    await until(lambda: len(broker.queues["q"]) == 55)
    asked = len(broker.all(Get))
    await upstream.fetch("q", 60, bytes_max=5 * SIZE)
    assert len(broker.all(Get)) - asked <= 5, "it has learned how large they are"


async def test_one_large_message_does_not_slow_the_small_ones_for_good(broker: FakeBroker, start: Start) -> None:
    upstream = await start(broker)
    broker.put("q", bytes(SIZE), *(b"small" for _ in range(150)))
    assert len(await upstream.fetch("q", 100, bytes_max=2 * SIZE)) > 20
    assert len(await upstream.fetch("q", 50, bytes_max=2 * SIZE)) == 50


async def test_a_consumer_takes_no_more_than_fits(broker: FakeBroker, start: Start) -> None:
    upstream = await start(broker, message_max=SIZE)
    broker.put("q")
    waiting = asyncio.create_task(upstream.fetch("q", 100, 5.0, bytes_max=5 * SIZE))
    await until(lambda: bool(broker.all(Consume)))
    assert broker.all(Qos)[-1].prefetch_count == 5
    broker.put("q", *(bytes(SIZE) for _ in range(50)))
    assert len(await waiting) == 5
    assert left(broker) == [(SIZE, False)] * 45


async def test_what_a_consumer_brings_beyond_the_bound_goes_back_behind_its_end(
    broker: FakeBroker, start: Start
) -> None:
    """Given back before, it would come again to the same consumer."""
    upstream = await start(broker, message_max=SIZE)
    broker.put("q", b"small")
    (delivery,) = await upstream.fetch("q", 100, bytes_max=5 * SIZE)
    delivery.settle(Settlement.ACCEPT)
    waiting = asyncio.create_task(upstream.fetch("q", 100, 5.0, bytes_max=5 * SIZE))
    await until(lambda: bool(broker.all(Consume)))
    seen: list[object] = []

    def watch(peer: Peer, operation: Settle | Cancel) -> bool:
        seen.append(operation)
        return False

    broker.on[Settle] = broker.on[Cancel] = watch
    broker.put("q", *(bytes(SIZE) for _ in range(20)))
    assert len(await waiting) == 5
    await until(lambda: len(broker.queues["q"]) == 15)
    assert isinstance(seen[0], Cancel)


async def test_sizes_are_remembered_of_so_many_queues(
    broker: FakeBroker, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "REMEMBERED", 2)
    upstream = await start(broker)
    known: list[set[str]] = []
    for name in ("a", "b", "c"):
        broker.put(name, b"1")
        assert len(await upstream.fetch(name, 10)) == 1
        known.append(set(upstream._leases._expected))
    assert known == [{"a"}, {"a", "b"}, {"c"}]
