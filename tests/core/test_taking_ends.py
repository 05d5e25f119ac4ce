"""A taker of messages whose ledger is away, and what becomes of its messages at its end."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from gateway.amqp.operations import Settlement
from gateway.core import Gateway
from gateway.core.sources import taking
from gateway.core.sources.arrivals import Arrival
from gateway.errors import LedgerUnavailable
from gateway.ledger import Ledger
from gateway.upstreams import ConsumerState
from tests.core.fakes import FakeConsumer, FakeUpstream
from tests.core.test_intake import ours, put, until
from tests.core.test_taking import Arriving, Batch, Make, consumer, make, quick

__all__ = ["make", "quick"]


def arrivals(*sizes: int) -> list[Arrival]:
    delivery: Any
    made: list[Arrival] = []
    for size in sizes:
        delivery = Arriving(size)
        arrival = Arrival(delivery)
        arrival.id = arrival.sha256 = bytes(16)
        arrival.key = f"k{len(made)}"
        made.append(arrival)
    return made


async def test_a_batch_is_written_again_until_it_is_there(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same one, without what was lost: nobody can tell whether an earlier commit happened."""
    taker = make()
    taker._consumer = consumer(5, state=ConsumerState.DOWN, reason="the channel died")
    taker.failures = [LedgerUnavailable("locked"), LedgerUnavailable("locked")]
    made: list[Batch] = []

    def batch(new: list[Arrival], known: set[Arrival]) -> Batch:
        made.append(Batch(taker))
        return made[-1]

    wanted = arrivals(1, 2)
    kept = await taker._keep(wanted, batch)
    assert kept == (made[0], set())
    assert (len(made), made[0].dropped) == (1, 2)
    assert taker.said[0] == "locked"
    assert taker.reason == "the channel died"
    taker._consumer = None


@pytest.mark.parametrize("seconds", [30.0, 0.01], ids=["it ends", "it is ended"])
async def test_a_batch_that_cannot_be_written_before_the_end_goes_back_with_all_behind_it(
    make: Make, upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    """In order, though the ledger can be written again when the batch has been given up. World 422239."""
    monkeypatch.setattr(taking, "CHUNK", 2)
    taker = make()
    stored: list[bytes] = []

    async def store(chunk: list[Any]) -> None:
        if seconds < 1:
            await asyncio.Event().wait()
        found = [Arrival(delivery) for delivery in chunk]
        await taker._keep(found, lambda new, known: Batch(taker))
        stored.extend(delivery.message.body for delivery in chunk)

    taker._store = store  # type: ignore[method-assign]
    taker.begin()
    await until(lambda: bool(upstream.consumers))
    monkeypatch.setattr(Ledger, "healthy", property(lambda self: False))
    taker.failures = [LedgerUnavailable("locked")] * 2
    put(upstream, *(ours(b"%d" % number) for number in range(5)))
    await until(lambda: len(taker._arrived) == 3)
    async with asyncio.timeout(5):
        await taker.stop(seconds)
    assert stored == []
    assert taker.failures == [] or seconds < 1, "another write would have been fine"
    assert upstream.settled == [(Settlement.RELEASE, b"%d" % number) for number in range(5)]


async def test_a_ledger_that_is_not_healthy_is_not_tried(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    taker = make()
    healthy = False
    monkeypatch.setattr(Ledger, "healthy", property(lambda self: healthy))
    taker.failures = [LedgerUnavailable("locked")] * 2
    keeping = asyncio.create_task(taker._keep(arrivals(1), lambda new, known: Batch(taker)))
    await until(lambda: taker.reason == "locked")
    await asyncio.sleep(0.05)
    assert len(taker.failures) == 1
    healthy = True
    await keeping
    assert taker.failures == []


# -------------------------------------------------------------------------------------------------------- the end


async def test_a_taker_may_begin_again(make: Make, upstream: FakeUpstream) -> None:
    taker = make()
    await taker.stop(1.0)
    for number in range(2):
        taker._part = taker._parts.byte_budget.part("subscription", "t")
        taker.begin()
        put(upstream, ours(b"%d" % number))
        async with asyncio.timeout(10):
            while len(taker.bodies) <= number:
                await asyncio.sleep(0.005)
        await taker.stop(1.0)
        assert not taker.running
        assert not upstream.consumers
    assert taker.said.count("closing") >= 3


async def test_what_there_was_no_room_for_goes_back_at_the_end(
    make: Make, upstream: FakeUpstream, gateway: Gateway
) -> None:
    taker = make()
    taker.begin()
    await until(lambda: bool(upstream.consumers))

    async def never(chunk: Any) -> None:
        await asyncio.Event().wait()

    taker._store = never  # type: ignore[method-assign]
    put(upstream, ours(b"1"))
    await until(lambda: gateway.parts.byte_budget.held == 1)
    await asyncio.sleep(0.02)
    put(upstream, ours(b"2"))
    await until(lambda: gateway.parts.byte_budget.held == 2)
    async with asyncio.timeout(5):
        await taker.stop(0.01)
    assert (Settlement.RELEASE, b"2") in upstream.settled
    assert not upstream.out
    assert len(upstream.queues["orders"].ready) == 2
    assert gateway.parts.byte_budget.held == 0


@pytest.mark.parametrize("is_cancelled", [True, False], ids=["handed over", "changed"])
async def test_what_is_lost_while_it_stops_takes_nothing_although_its_consumer_starts_later(
    make: Make, upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch, is_cancelled: bool
) -> None:
    """Its broker is paused when the work is to go elsewhere, or gets other settings; and the lease runs out
    meanwhile."""
    consume, asked, go_on = upstream.consume, asyncio.Event(), asyncio.Event()

    async def slow(*arguments: Any, **options: Any) -> FakeConsumer:
        asked.set()
        await go_on.wait()
        return await consume(*arguments, **options)

    monkeypatch.setattr(upstream, "consume", slow)
    taker = make()
    taker.begin()
    await asked.wait()
    stopping = asyncio.create_task(taker.stop(60.0))
    await asyncio.sleep(0.02)
    assert not taker.running
    if is_cancelled:
        stopping.cancel()
    taker.lost()
    async with asyncio.timeout(5):
        await asyncio.wait([stopping])
    assert stopping.cancelled() is is_cancelled
    go_on.set()
    await asyncio.sleep(0.05)
    assert not upstream.consumers


@pytest.mark.parametrize("healthy", [True, False])
async def test_what_is_set_aside_has_time_where_the_ledger_can_be_written(
    make: Make, upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch, healthy: bool
) -> None:
    taker = make()
    taker.begin()
    await until(lambda: bool(upstream.consumers))
    done: list[str] = []

    async def work() -> None:
        try:
            await asyncio.sleep(0.05)
            done.append("done")
        except asyncio.CancelledError:
            done.append("cancelled")
            raise

    taker._set_aside(work(), "work")
    await asyncio.sleep(0)
    monkeypatch.setattr(Ledger, "healthy", property(lambda self: healthy))
    async with asyncio.timeout(5):
        await taker.stop(1.0)
    assert done == ["done" if healthy else "cancelled"]
    monkeypatch.undo()


async def test_what_is_lost_is_dropped_at_once(make: Make, upstream: FakeUpstream, gateway: Gateway) -> None:
    taker = make()
    taker.begin()
    await until(lambda: bool(upstream.consumers))
    ended: list[str] = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("ended")

    taker._set_aside(work(), "work")
    taker.room = 0
    put(upstream, ours(b"1"), ours(b"2"))
    await until(lambda: gateway.parts.byte_budget.held == 2)
    taker.lost()
    assert gateway.parts.byte_budget.held == 0
    assert not taker.running
    await taker.gone()
    assert ended == ["ended"]
    assert not upstream.consumers
    assert upstream.settled == []
    assert [item[0].body for item in upstream.queues["orders"].ready] == [b"1", b"2"], "in their order"
    assert taker.bodies == []


async def test_what_is_being_stored_when_it_is_lost_is_not_acknowledged(
    make: Make, upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And nothing more is taken; its consumer is closed once."""
    closes: list[FakeConsumer] = []
    close, may_go, storing = FakeConsumer.close, asyncio.Event(), asyncio.Event()

    async def counted(self: FakeConsumer, drain: float = 0.0) -> None:
        closes.append(self)
        await close(self, drain)

    monkeypatch.setattr(FakeConsumer, "close", counted)
    taker = make()
    store = taker._store

    async def slow(chunk: Any) -> None:
        storing.set()
        await may_go.wait()
        await store(chunk)

    monkeypatch.setattr(taker, "_store", slow)
    taker.begin()
    put(upstream, ours(b"1"))
    async with asyncio.timeout(5):
        await storing.wait()
    put(upstream, ours(b"2"))
    await until(lambda: bool(taker._arrived))
    taker.lost()
    assert not taker._arrived
    may_go.set()
    await taker.gone()
    put(upstream, ours(b"3"))
    await asyncio.sleep(0.03)
    await taker.stop(1.0)
    assert (taker.bodies, upstream.settled, len(closes)) == ([], [], 1)
    assert [item[0].body for item in upstream.queues["orders"].ready] == [b"1", b"2", b"3"]


async def test_a_fault_of_what_was_set_aside_is_logged(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    taker = make()
    taker._wake.clear()

    async def work() -> None:
        raise ValueError("a fault")

    taker._set_aside(work(), "work")
    await until(taker._wake.is_set)
    assert [(each.getMessage(), each.levelno) for each in caplog.records] == [("subscription.failed", logging.ERROR)]
