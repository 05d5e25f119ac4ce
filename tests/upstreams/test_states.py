"""How a broker's state follows from its links, and what is left when it closes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.amqp.message import Message
from gateway.amqp.operations import (
    Cancel,
    Closed,
    CloseReason,
    DeliveryTooLarge,
    Opened,
    Publish,
    QueryQueue,
    Settlement,
)
from gateway.errors import BrokerUnavailable
from gateway.runtime.clock import clock
from gateway.upstreams import ConsumerState, Delivery, Upstream, UpstreamState, topology
from tests.upstreams.conftest import Start
from tests.upstreams.fake import FakeBroker, Peer, bounce, until


def ignore(delivery: Delivery) -> None:
    pass


async def test_before_it_was_ever_up(broker: FakeBroker, start: Start) -> None:
    held: list[tuple[Peer, Opened]] = []

    def hold(peer: Peer, operation: Opened) -> bool:
        held.append((peer, operation))
        return True

    broker.on[Opened] = hold
    upstream = await start(broker, wait=False)
    assert (upstream.state, upstream.reason) == (UpstreamState.CONNECTING, "connecting")
    assert (upstream.status().publishing, upstream.status().consuming) == (False, False)
    await until(lambda: len(held) == 3)
    first, *others = held
    first[0].send(first[1])
    await asyncio.sleep(0.02)
    assert not await upstream.wait_up(0.0), "one link is not enough"
    for peer, operation in others:
        peer.send(operation)
    assert await upstream.wait_up(30)
    await until(lambda: upstream.state is UpstreamState.UP)


async def test_a_lost_link_is_down_until_it_is_back(
    broker: FakeBroker, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr(clock, "now", lambda: now)
    upstream = await start(broker)
    assert (upstream.status().since, upstream.reason) == (100.0, "")
    states: list[tuple[UpstreamState, float]] = []
    upstream.on_state.append(lambda upstream: states.append((upstream.state, upstream.status().since)))
    now = 200.0
    broker.down = True
    broker.kill()
    await until(lambda: upstream.state is UpstreamState.DOWN and "refused" in upstream.reason)
    assert not await upstream.wait_up(0.0)
    now = 300.0
    broker.down = False
    assert await upstream.wait_up(30)
    assert states == [(UpstreamState.DOWN, 200.0), (UpstreamState.UP, 300.0)], "each change once"
    assert upstream.reason == ""
    assert upstream.status().code == ""


@pytest.mark.parametrize("which", ["publish", "consume", "ask"])
async def test_each_link_comes_back_alone(broker: FakeBroker, start: Start, which: str) -> None:
    upstream = await start(broker)
    keeper: Any = upstream._keepers[which]
    link = keeper.link
    link.stream.abort()
    await until(lambda: keeper.link is not link)
    assert await upstream.wait_up(30)
    broker.put("q", b"1")
    assert len(await upstream.fetch("q", 1)) == 1
    assert (await upstream.publish("", "q", Message(b"2"))).routed
    assert (await upstream.query_queue("q")).queue == "q"
    assert broker.connections == 4


async def test_what_keeps_it_from_being_given_up(start: Start) -> None:
    broker = FakeBroker(native_dead_letter=True)
    upstream = await start(broker)

    def idle() -> bool:
        return upstream.idle

    broker.put("q", b"1")
    assert idle()
    (delivery,) = await upstream.fetch("q", 1)
    assert not idle(), "a lease is out"
    delivery.settle(Settlement.ACCEPT)
    assert idle()
    pull = asyncio.create_task(upstream.fetch("q", 1, 60.0))
    await asyncio.sleep(0.01)
    assert not idle(), "somebody waits"
    pull.cancel()
    await asyncio.wait([pull])
    consumer = await upstream.consume("q", 1, ignore)
    assert not idle(), "it is consumed from"
    await consumer.close()
    await until(lambda: upstream.idle)
    broker.on[Publish] = lambda peer, operation: True
    future = upstream.publish_nowait("", "q", Message(), timeout=9)
    assert not idle(), "a publish has no outcome"
    future.cancel()
    upstream.users += 1
    assert not idle()
    upstream.users -= 1


async def test_a_message_that_is_being_dead_lettered_keeps_it(start: Start) -> None:
    broker = FakeBroker(native_dead_letter=True)
    upstream = await start(broker)
    broker.put("q")
    consumer = await upstream.consume("q", 1, ignore)
    broker.on[QueryQueue] = lambda peer, operation: True
    (peer,) = [peer for peer in broker.peers if peer.consumers]
    ((channel, tag),) = peer.consumers
    peer.send(DeliveryTooLarge(channel, tag, 1, 5000, 1024, False, "", "q"))
    await until(lambda: upstream._rejecting)
    upstream._consumers.discard(consumer)
    assert not upstream.idle
    upstream._consumers.add(consumer)


async def test_who_holds_what_of_a_queue(broker: FakeBroker, start: Start) -> None:
    upstream = await start(broker)
    broker.put("q", b"1", b"2", b"3")
    broker.put("r", b"4")
    first, second = await upstream.fetch("q", 2)
    first.at, second.at = 7.0, 5.0
    await upstream.fetch("r", 1)
    got: list[Delivery] = []
    await upstream.consume("q", 5, got.append, holder=("bridge", "b"))
    await upstream.consume("q", 5, got.append, holder=("tap", "t"))
    await until(lambda: got)
    held = {each.holder: (each.count, each.oldest_at) for each in upstream.held("q")}
    (name,) = set(held) - {("", "")}
    assert name in (("bridge", "b"), ("tap", "t"))
    assert held == {("", ""): (2, 5.0), name: (1, got[0].at)}
    assert upstream.status().leases == 4


async def test_what_is_left_when_it_closes(broker: FakeBroker, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topology, "PATIENCE", 0.01)
    monkeypatch.setattr("gateway.upstreams.upstream.PATIENCE", 0.01)
    upstream = await start(broker)
    broker.put("q", b"1", b"2")
    got: list[Delivery] = []
    consumer = await upstream.consume("q", 1, got.append)
    (lease,) = await upstream.fetch("q", 1)
    await until(lambda: got)
    peers = list(broker.peers)
    await upstream.close(0.0)
    assert (upstream.state, upstream.reason, consumer.state) == (UpstreamState.CLOSED, "closed", ConsumerState.CLOSED)
    assert all(peer.lost for peer in peers), "every link has ended when it returns"
    assert sum(len(peer.of(Cancel)) for peer in peers) == 1
    assert lease.lost
    assert got[0].lost
    assert len(broker.queues["q"]) == 2
    for asked in (
        upstream.fetch("q", 1), upstream.publish("", "q", Message()), upstream.query_queue("q"),
        upstream.consume("q", 1, ignore), upstream.branches.recover(),
    ):  # fmt: skip
        with pytest.raises(BrokerUnavailable, match="closed"):
            await asked
    connections = broker.connections
    await upstream.close(0.0)
    assert broker.connections == connections
    assert upstream.idle


async def test_an_exchange_that_was_declared_is_asked_for_again(broker: FakeBroker, start: Start) -> None:
    """Somebody may have said a moment ago that it is not there."""
    upstream = await start(broker)
    with pytest.raises(Exception, match="no exchange 'e'"):
        await upstream.publish("e", "k", Message())
    await upstream.declare_exchange("e")
    assert not (await upstream.publish("e", "k", Message())).routed


async def test_what_is_known_of_a_broker_is_of_its_last_links(broker: FakeBroker, start: Start) -> None:
    upstream = await start(broker)
    found = [upstream.capabilities]
    broker.capabilities = FakeBroker(consumer_cancel_notify=True).capabilities
    await bounce(broker, upstream)
    found.append(upstream.capabilities)
    assert [each is not None and each.consumer_cancel_notify for each in found] == [False, True]
    assert upstream.target is not None


async def test_listeners_hear_of_every_change(broker: FakeBroker, start: Start) -> None:
    seen: list[UpstreamState] = []

    def fail(upstream: Upstream) -> None:
        raise ValueError("boom")

    upstream = await start(broker, wait=False)
    upstream.on_state += [fail, lambda upstream: seen.append(upstream.state)]
    assert await upstream.wait_up(30)
    await upstream.close(0.0)
    assert seen == [UpstreamState.UP, UpstreamState.CLOSED]


@pytest.mark.parametrize("which", ["publish", "consume", "ask"])
async def test_what_one_lost_link_takes_away(
    broker: FakeBroker, start: Start, monkeypatch: pytest.MonkeyPatch, which: str
) -> None:
    monkeypatch.setattr(topology, "PATIENCE", 30.0)
    monkeypatch.setattr("gateway.upstreams.upstream.PATIENCE", 30.0)
    upstream = await start(broker)
    await upstream.declare_queue("q")
    keeper: Any = upstream._keepers[which]
    broker.down = True
    keeper.link.stream.abort()
    await until(lambda: keeper.code)
    status = upstream.status()
    assert (status.publishing, status.consuming) == (which != "publish", which != "consume")
    assert status.state is (UpstreamState.UP if which == "ask" else UpstreamState.DOWN)
    assert not await upstream.wait_up(0.0)
    if which == "publish":
        with pytest.raises(BrokerUnavailable, match="refused"):
            await upstream.publish("", "q", Message())
        assert upstream.capabilities is not None
    else:
        assert (await upstream.publish("", "q", Message())).routed
    waiting: asyncio.Task[Any]
    if which == "ask":
        waiting = asyncio.create_task(upstream.query_queue("q"))
    else:
        waiting = asyncio.create_task(upstream.consume("q", 1, ignore))
    if which != "publish":
        await asyncio.sleep(0.02)
        assert not waiting.done(), "it waits a moment for its link"
    broker.down = False
    await waiting
    assert await upstream.wait_up(30)


async def test_the_reason_is_that_of_a_link_that_is_down_now(broker: FakeBroker, start: Start) -> None:
    upstream = await start(broker)
    keepers: Any = upstream._keepers
    reasons: list[str] = []
    upstream.on_state.append(lambda upstream: reasons.append(upstream.reason))
    await upstream.publish("", "nowhere", Message())
    (publishing,) = [peer for peer in broker.peers if peer.of(Publish)]
    publishing.send(Closed(0, CloseReason.PEER, 320, "CONNECTION_FORCED - the first reason"))
    await until(lambda: any("the first reason" in reason for reason in reasons))
    assert await upstream.wait_up(30)
    broker.down = True
    keepers["consume"].link.stream.abort()
    await until(lambda: upstream.state is UpstreamState.DOWN)
    assert "the first reason" not in upstream.reason
    assert upstream.reason
