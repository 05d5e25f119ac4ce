"""Further links for consumers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.amqp.operations import Close, Consume, Settlement
from gateway.errors import LimitExceeded
from gateway.link import Link
from gateway.upstreams import ConsumerState, Delivery, keeper, spare_links
from tests.upstreams.conftest import Start
from tests.upstreams.fake import FakeBroker, until


def ignore(delivery: Delivery) -> None:
    pass


async def test_consumers_go_on_further_links_and_leave_room_for_leases(start: Start) -> None:
    broker = FakeBroker(channel_max=10)
    upstream = await start(broker, lease_channels=4)
    before = len(broker.peers)
    for index in range(40):
        broker.put(f"q{index}", b"%d" % index)
    got: list[Delivery] = []
    found = await asyncio.gather(*(upstream.consume(f"q{index}", 1, got.append) for index in range(26)))
    assert len(broker.peers) == before + 2, "6 beside the leases, 10, 10"
    await until(lambda: len(got) == 26)
    assert {each.message.body for each in got} == {b"%d" % index for index in range(26)}
    for each in got:
        each.settle(Settlement.ACCEPT)
    for index in range(30, 34):
        assert [each.message.body for each in await upstream.fetch(f"q{index}", 1)] == [b"%d" % index]
    for consumer in found:
        await consumer.close()


async def test_further_links_are_numbered(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = FakeBroker(channel_max=2)
    asked: list[str] = []
    open_link = keeper.Dialer.open

    async def opened(dialer: keeper.Dialer, purpose: str) -> Link:
        asked.append(purpose)
        return await open_link(dialer, purpose)

    upstream = await start(broker, consume_connections=3)
    monkeypatch.setattr(keeper.Dialer, "open", opened)
    broker.put("q")
    for _ in range(5):
        await upstream.consume("q", 1, ignore)
    assert asked == ["consume 2", "consume 3"]


async def test_as_many_links_as_are_allowed(start: Start) -> None:
    broker = FakeBroker(channel_max=2)
    upstream = await start(broker, consume_connections=2)
    broker.put("q")
    for _ in range(3):  # one beside the leases, two on the other link
        await upstream.consume("q", 1, ignore)
    with pytest.raises(LimitExceeded, match="all channels of 2 connections are in use"):
        await upstream.consume("q", 1, ignore)


async def test_consumers_of_a_lost_link_come_back(start: Start) -> None:
    broker = FakeBroker(channel_max=2)
    upstream = await start(broker)
    broker.put("q")
    consumers = [await upstream.consume("q", 1, ignore) for _ in range(4)]
    last = broker.peers[-1]
    assert last.of(Consume)
    last.stream.abort()
    await until(lambda: ConsumerState.DOWN in {each.state for each in consumers})
    await until(lambda: all(each.state is ConsumerState.RUNNING for each in consumers))


async def test_an_exclusive_queue_is_read_where_it_was_declared(start: Start) -> None:
    broker = FakeBroker(channel_max=3)
    upstream = await start(broker, lease_channels=1)
    before = len(broker.peers)
    broker.put("q")
    for _ in range(2):
        await upstream.consume("q", 1, ignore)
    await upstream.declare_queue("mine", exclusive=True)
    with pytest.raises(LimitExceeded, match="all 3 channels"):  # one of them is the declaring one
        await upstream.consume("mine", 1, ignore)
    assert len(broker.peers) == before


async def test_a_link_without_consumers_is_closed(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spare_links, "IDLE", 0.1)
    monkeypatch.setattr(spare_links, "LOOK_EVERY", 0.02)
    broker = FakeBroker(channel_max=2)
    upstream = await start(broker)
    broker.put("q")
    consumers = [await upstream.consume("q", 1, ignore) for _ in range(2)]
    last = broker.peers[-1]
    await asyncio.sleep(0.3)
    assert not last.lost
    await consumers[1].close()
    await until(lambda: last.lost)
    again = await upstream.consume("q", 1, ignore)
    assert again.state is ConsumerState.RUNNING


async def test_further_links_are_closed_with_the_broker(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = FakeBroker(channel_max=2)
    upstream = await start(broker)
    broker.put("q")
    for _ in range(4):
        await upstream.consume("q", 1, ignore)
    further = broker.peers[3:]
    assert len(further) == 2
    further[0].stream.abort()  # one has ended before
    (tidies,) = [task for task in asyncio.all_tasks() if task.get_name().startswith("spare links")]
    closing: list[bool] = []
    close = Link.close

    async def closed(link: Link, *arguments: Any) -> None:
        closing.append(tidies.done())
        await close(link, *arguments)

    monkeypatch.setattr(Link, "close", closed)
    await upstream.close(0.0)
    assert closing[0], "nobody looks for idle ones any more"
    assert [len(peer.of(Close)) for peer in further] == [0, 1]
    assert all(peer.lost for peer in further)


async def test_each_link_is_closed_once_and_another_one_is_opened(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spare_links, "IDLE", 0.0)
    monkeypatch.setattr(spare_links, "LOOK_EVERY", 0.01)
    broker = FakeBroker(channel_max=2)
    upstream = await start(broker, consume_connections=2)
    broker.put("q")
    await upstream.consume("q", 1, ignore)
    for _ in range(3):
        before = broker.connections
        consumer = await upstream.consume("q", 1, ignore)
        assert broker.connections > before
        last = broker.peers[-1]
        await consumer.close()
        await until(lambda last=last: last.lost)  # type: ignore[misc]
        assert upstream._spare._links == []
    task = upstream._spare._task
    assert task is not None
    assert not task.done()
