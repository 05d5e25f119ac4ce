"""Streams of pulled messages."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from gateway.config import SubscriptionSettings
from gateway.core import Gateway, Pulled, SubscriptionResource
from gateway.core.leasing import streams
from gateway.core.leasing.streams import DeliveryStream, StreamReader
from gateway.ledger import Ledger
from gateway.ledger.pending.deliveries import DeliveryStore
from gateway.upstreams import UpstreamState
from tests.core.fakes import FakeUpstream
from tests.core.test_intake import until
from tests.core.test_ledger_leases import bodies, ids, subscribe
from tests.core.test_publishing import message

Open = Callable[..., Any]


class Reader:
    """Reads a stream, as long as it may."""

    def __init__(self, stream: DeliveryStream, gone: asyncio.Future[None]) -> None:
        self.stream = stream
        self.gone = gone
        self.got: list[Pulled] = []
        self.heartbeats = 0
        self.may_read = asyncio.Event()
        self.may_read.set()
        self.task = asyncio.create_task(self._read())

    async def _read(self) -> None:
        try:
            async for batch in self.stream.batches():
                self.got += batch
                self.heartbeats += not batch
                await self.may_read.wait()
        finally:
            self.stream.close()

    async def end(self) -> None:
        if not self.gone.done():
            self.gone.set_result(None)
        async with asyncio.timeout(10):
            await self.task


@pytest.fixture(params=["broker", "ledger"])
async def billing(gateway: Gateway, request: pytest.FixtureRequest) -> SubscriptionResource:
    return await subscribe(gateway, lease=request.param)


@pytest.fixture
async def read(gateway: Gateway) -> AsyncIterator[Open]:
    readers: list[Reader] = []

    def begin(
        subscription: SubscriptionResource, window: int = 100, seconds: float | None = None, shared: bool = False
    ) -> Reader:
        gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        stream = DeliveryStream(
            gateway.consuming,
            gateway.subscriptions,
            gateway.ledger,
            subscription,
            StreamReader(gone, window, seconds),
            shared=shared,
        )
        readers.append(Reader(stream, gone))
        return readers[-1]

    yield begin
    for reader in readers:
        await reader.end()


async def publish(gateway: Gateway, count: int, start: int = 0) -> None:
    await gateway.publish("fake", "", [message(b"%d" % number) for number in range(start, start + count)])


async def test_messages_as_they_come(gateway: Gateway, billing: SubscriptionResource, read: Open) -> None:
    reader = read(billing)
    await publish(gateway, 3)
    await until(lambda: len(reader.got) == 3)
    await publish(gateway, 3, 3)
    await until(lambda: len(reader.got) == 6)
    assert bodies(reader.got) == [b"%d" % number for number in range(6)]
    assert all(item.status == "SUCCESS" for item in await gateway.consuming.acknowledge(billing, ids(*reader.got)))
    assert reader.stream.outstanding == 0


async def test_the_window(gateway: Gateway, upstream: FakeUpstream, billing: SubscriptionResource, read: Open) -> None:
    await publish(gateway, 10)
    reader = read(billing, window=4)
    await until(lambda: len(reader.got) == 4)
    await asyncio.sleep(0.05)
    assert (len(reader.got), len(upstream.queues["orders"].ready)) == (4, 6)
    await gateway.consuming.acknowledge(billing, ids(*reader.got[:2]))
    await until(lambda: len(reader.got) == 6)
    await gateway.consuming.reject(billing, ids(reader.got[2]), "bad")
    await gateway.consuming.release(billing, ids(reader.got[3]))
    await until(lambda: len(reader.got) >= 7)
    await asyncio.sleep(0.05)
    assert reader.stream.outstanding <= 4


async def test_a_slow_reader_is_not_pulled_for(
    gateway: Gateway, upstream: FakeUpstream, billing: SubscriptionResource, read: Open
) -> None:
    reader = read(billing, window=1_000)
    reader.may_read.clear()
    await publish(gateway, 3 * streams.BATCH)
    await until(lambda: bool(reader.got))
    await asyncio.sleep(0.1)
    assert len(reader.got) <= streams.BATCH
    assert len(upstream.queues["orders"].ready) >= 2 * streams.BATCH
    reader.may_read.set()
    await until(lambda: len(reader.got) == 3 * streams.BATCH)


async def test_all_that_is_not_settled_goes_back(
    gateway: Gateway, upstream: FakeUpstream, billing: SubscriptionResource, read: Open
) -> None:
    await publish(gateway, 3)
    reader = read(billing)
    await until(lambda: len(reader.got) == 3)
    await gateway.consuming.acknowledge(billing, ids(reader.got[0]))
    await reader.end()
    assert reader.stream.reason == "the reader is gone"
    again: list[Pulled] = []
    async with asyncio.timeout(10):
        while len(again) < 2:
            again += await gateway.consuming.pull(billing, 10, 1.0, None)
    assert sorted(bodies(again)) == [b"1", b"2"]
    assert all(item.redelivered for item in again)
    (late,) = await gateway.consuming.acknowledge(billing, ids(reader.got[1]))
    assert late.status == "LEASE_LOST"


async def test_heartbeats(
    gateway: Gateway, billing: SubscriptionResource, read: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "HEARTBEAT", 0.05)
    reader = read(billing, window=1)
    await until(lambda: reader.heartbeats >= 2)
    await publish(gateway, 2)
    await until(lambda: len(reader.got) == 1)
    before = reader.heartbeats
    await until(lambda: reader.heartbeats >= before + 2)
    assert len(reader.got) == 1, "also while the window is full"


async def test_draining_ends_it(gateway: Gateway, billing: SubscriptionResource, read: Open) -> None:
    reader = read(billing)
    await asyncio.sleep(0.02)
    gateway.drain()
    async with asyncio.timeout(10):
        await reader.task
    assert reader.stream.reason == "the gateway is shutting down"


async def test_a_pause_ends_it(
    gateway: Gateway, billing: SubscriptionResource, read: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "HEARTBEAT", 0.05)
    reader = read(billing)
    await asyncio.sleep(0.02)
    await gateway.subscriptions.pause("billing")
    async with asyncio.timeout(10):
        await reader.task
    assert "is paused" in reader.stream.reason


async def test_a_lease_that_runs_out_makes_room_and_comes_again(
    gateway: Gateway, billing: SubscriptionResource, read: Open
) -> None:
    await publish(gateway, 1)
    reader = read(billing, window=1, seconds=0.05)
    await until(lambda: len(reader.got) >= 2)
    assert reader.got[1].redelivered
    assert reader.got[1].id == reader.got[0].id


async def test_a_lost_channel_makes_room(gateway: Gateway, upstream: FakeUpstream, read: Open) -> None:
    billing = await subscribe(gateway, lease="broker")
    await publish(gateway, 1)
    reader = read(billing, window=1)
    await until(lambda: len(reader.got) == 1)
    upstream.out[0].lose()
    await until(lambda: len(reader.got) == 2)


async def test_a_channel_that_is_lost_while_its_message_is_recorded_makes_room(
    gateway: Gateway, upstream: FakeUpstream, read: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    billing = await subscribe(gateway, lease="broker")
    await publish(gateway, 2)
    record, lost = Ledger.record, False

    async def slow(self: Ledger, *arguments: Any) -> Any:
        nonlocal lost
        if not lost:
            lost = True
            upstream.out[0].lose()
        return await record(self, *arguments)

    monkeypatch.setattr(Ledger, "record", slow)
    reader = read(billing, window=1)
    await until(lambda: len(reader.got) == 1)
    assert (bodies(reader.got), reader.got[0].redelivered) == ([b"0"], True)
    await gateway.consuming.acknowledge(billing, ids(*reader.got))
    await until(lambda: len(reader.got) == 2)


async def test_an_extension_keeps_its_place(gateway: Gateway, read: Open) -> None:
    billing = await subscribe(gateway)
    await publish(gateway, 2)
    reader = read(billing, window=1, seconds=0.2)
    await until(lambda: len(reader.got) == 1)
    await gateway.consuming.modify_deadline(billing, ids(reader.got[0]), 60)
    await asyncio.sleep(0.3)
    assert len(reader.got) == 1


async def test_a_subscription_that_was_changed_counts_from_the_next_pull(
    gateway: Gateway, read: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    pull, deadlines = gateway.consuming.pull, []

    async def counted(subscription: SubscriptionResource, *arguments: Any) -> list[Pulled]:
        deadlines.append(subscription.settings.ack_deadline_seconds)
        return await pull(subscription, *arguments)

    monkeypatch.setattr(gateway.consuming, "pull", counted)
    reader = read(await subscribe(gateway, ack_deadline_seconds=30), window=1)
    await publish(gateway, 1)
    await until(lambda: len(reader.got) == 1)
    assert set(deadlines) == {30}
    settings = SubscriptionSettings(broker="fake", queue="orders", lease="ledger", ack_deadline_seconds=600)
    changed, _ = await gateway.subscriptions.put("billing", settings, "*")
    await gateway.consuming.acknowledge(changed, ids(*reader.got))
    await until(lambda: 600 in deadlines)


async def test_what_another_process_settles_makes_room(
    gateway: Gateway, read: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "LOOK_EVERY", 0.02)
    billing = await subscribe(gateway)
    await publish(gateway, 2)
    reader = read(billing, window=1, shared=True)
    await until(lambda: len(reader.got) == 1)
    silent = gateway.consuming.ledger_leases.on_settled
    monkeypatch.setattr(gateway.consuming.ledger_leases, "on_settled", [])  # as if it were done elsewhere
    await gateway.consuming.acknowledge(billing, ids(reader.got[0]))
    monkeypatch.setattr(gateway.consuming.ledger_leases, "on_settled", silent)
    await until(lambda: len(reader.got) == 2)


def count_looks(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """What the ledger is asked for, one at a time."""
    get = DeliveryStore.get
    asked: list[bytes] = []

    async def counted(self: DeliveryStore, delivery: bytes, **options: Any) -> Any:
        asked.append(delivery)
        return await get(self, delivery, **options)

    monkeypatch.setattr(DeliveryStore, "get", counted)
    return asked


async def test_where_no_other_process_settles_the_ledger_is_not_asked(
    gateway: Gateway, read: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "HEARTBEAT", 0.02)
    billing = await subscribe(gateway)
    await publish(gateway, 2)
    asked = count_looks(monkeypatch)
    reader = read(billing, window=1)
    await until(lambda: reader.heartbeats >= 3)
    assert len(reader.got) == 1
    assert asked == []


async def test_what_this_process_settles_makes_room_without_a_look(
    gateway: Gateway, read: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    billing = await subscribe(gateway)
    await publish(gateway, 3)
    asked = count_looks(monkeypatch)
    monkeypatch.setattr(streams, "LOOK_EVERY", 60.0)
    monkeypatch.setattr(streams, "ASK_EVERY", 60.0)
    reader = read(billing, window=2, shared=True)
    await until(lambda: len(reader.got) == 2)
    await asyncio.sleep(0.01)
    await gateway.consuming.acknowledge(billing, ids(reader.got[0]))
    await until(lambda: len(reader.got) == 3)
    assert asked == []


async def test_a_broker_that_is_away_is_waited_for(
    gateway: Gateway, upstream: FakeUpstream, billing: SubscriptionResource, read: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "PAUSE", 0.02)
    upstream.state = UpstreamState.DOWN
    reader = read(billing)
    await asyncio.sleep(0.05)
    upstream.state = UpstreamState.UP
    await publish(gateway, 1)
    await until(lambda: len(reader.got) == 1)
