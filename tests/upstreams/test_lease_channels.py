"""Channels of pulls: who uses which, what each holds, and when it ends."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.amqp.message import Message
from gateway.amqp.operations import (
    Cancel,
    Cancelled,
    CloseChannel,
    Closed,
    CloseReason,
    Consume,
    Deliver,
    Get,
    GotNothing,
    OpenChannel,
    Settle,
    Settlement,
)
from gateway.errors import AccessRefused, BrokerUnavailable, NotFound, Overloaded
from gateway.runtime.clock import clock
from gateway.upstreams import Delivery, Upstream
from gateway.upstreams.consuming import leases
from tests.upstreams.conftest import Start
from tests.upstreams.fake import FakeBroker, Peer, bounce, until


def bodies(deliveries: list[Delivery]) -> list[bytes]:
    return [delivery.message.body for delivery in deliveries]


def settle(deliveries: list[Delivery]) -> None:
    for delivery in deliveries:
        delivery.settle(Settlement.ACCEPT)


class Withheld:
    """Requests that the broker keeps to itself."""

    def __init__(self, broker: FakeBroker, kind: type) -> None:
        self.got: list[tuple[Peer, Any]] = []
        broker.on[kind] = self.take

    def take(self, peer: Peer, operation: Any) -> bool:
        self.got.append((peer, operation))
        return True


async def waiting(upstream: Upstream, broker: FakeBroker, queue: str = "q") -> asyncio.Task[list[Delivery]]:
    """A fetch whose consumer runs."""
    before = len(broker.all(Consume))
    task = asyncio.create_task(upstream.fetch(queue, 1, 60.0))
    await until(lambda: len(broker.all(Consume)) > before)
    return task


async def test_a_channel_is_used_again_also_for_another_queue(broker: FakeBroker, start: Start) -> None:
    upstream = await start(broker, lease_channels=1)
    for name, other in (("q", "r"), ("r", "q"), ("q", "r")):
        broker.put(other)
        broker.put(name, b"1")
        found = await upstream.fetch(name, 1)
        assert [(delivery.queue, delivery.message.body) for delivery in found] == [(name, b"1")]
        with pytest.raises(Overloaded, match="lease_channels"):  # it holds a message of that queue
            await upstream.fetch(other, 1)
        settle(found)
    (peer,) = [peer for peer in broker.peers if peer.of(Get)]
    assert len(peer.of(OpenChannel)) == 1


async def test_a_channel_that_the_broker_closed_is_not_used_again(broker: FakeBroker, start: Start) -> None:
    upstream = await start(broker)
    broker.put("q", b"1", b"2")
    (delivery,) = await upstream.fetch("q", 1)
    settle([delivery])
    await until(lambda: broker.all(Settle))
    (peer,) = [peer for peer in broker.peers if peer.of(Get)]
    peer.close_channel(delivery._channel.number, 541, "INTERNAL_ERROR")
    await until(lambda: delivery._channel.closed is not None)
    assert bodies(await upstream.fetch("q", 1)) == [b"2"]


async def test_messages_of_one_queue_share_a_channel_as_far_as_it_has_room(
    broker: FakeBroker, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "CHANNEL_LEASES", 3)
    upstream = await start(broker)
    broker.put("q", *(b"%d" % number for number in range(5)))
    broker.put("r", b"other")
    found = [await upstream.fetch("q", 2), await upstream.fetch("r", 1), await upstream.fetch("q", 2)]
    assert [len(each) for each in found] == [2, 1, 2]
    channels = [delivery._channel.number for each in found for delivery in each]
    assert channels[0] == channels[1] == channels[3]
    assert len({channels[0], channels[2], channels[4]}) == 3


async def test_a_queue_of_which_nothing_is_known_is_asked_for_a_few(broker: FakeBroker, start: Start) -> None:
    upstream = await start(broker, message_max=1024)
    broker.put("q", b"1", b"2")
    assert len(await upstream.fetch("q", 50)) == 2
    assert len(broker.all(Get)) == 10


async def test_a_channel_that_is_being_opened_is_nobody_elses(broker: FakeBroker, start: Start) -> None:
    upstream = await start(broker)
    broker.put("q", b"1", b"2")
    await upstream.query_queue("q")
    opened = len(broker.all(OpenChannel))
    held = Withheld(broker, OpenChannel)
    tasks = []
    for count in (1, 2):
        tasks.append(asyncio.create_task(upstream.fetch("q", 1)))
        await until(lambda count=count: len(held.got) == count)  # type: ignore[misc]
        upstream._leases._sweep()
    assert len(broker.all(OpenChannel)) == opened + 2
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


async def test_one_who_waits_gets_messages_of_its_queue(broker: FakeBroker, start: Start) -> None:
    upstream = await start(broker)
    broker.put("q")
    task = await waiting(upstream, broker)
    broker.put("q", b"1")
    (delivery,) = await task
    assert (delivery.queue, delivery.message.body) == ("q", b"1")
    assert upstream.held("q")[0].count == 1


async def test_one_whose_consumer_was_ended_comes_back_with_nothing_at_once(broker: FakeBroker, start: Start) -> None:
    """The same channel serves the next as any other does."""
    upstream = await start(broker, lease_channels=1)
    broker.put("q")
    task = await waiting(upstream, broker)
    (peer,) = [peer for peer in broker.peers if peer.consumers]
    ((channel, tag),) = list(peer.consumers)
    del peer.consumers[channel, tag]
    peer.send(Cancelled(channel, tag))
    assert await task == []
    assert (len(broker.all(Consume)), len(broker.all(Cancel))) == (1, 0)
    task = await waiting(upstream, broker)
    broker.put("q", b"1")
    assert bodies(await task) == [b"1"]
    assert len(broker.all(Cancel)) == 1
    assert len(peer.of(OpenChannel)) == 1


async def test_one_who_leaves_ends_its_consumer_at_once(broker: FakeBroker, start: Start) -> None:
    upstream = await start(broker)
    broker.put("q")
    task = await waiting(upstream, broker)
    task.cancel()
    await asyncio.wait([task])
    await until(lambda: broker.all(Cancel))
    await until(lambda: not any(channel.taken for channel in upstream._leases._channels))


async def test_what_comes_for_one_who_has_left_goes_back(broker: FakeBroker, start: Start) -> None:
    """It was asked for before."""
    upstream = await start(broker)
    broker.put("q", b"1")
    held = Withheld(broker, Get)
    task = asyncio.create_task(upstream.fetch("q", 1))
    await until(lambda: held.got)
    task.cancel()
    await asyncio.wait([task])
    del broker.on[Get]
    broker.receive(*held.got[0])
    await until(lambda: broker.all(Settle))
    assert [each.settlement for each in broker.all(Settle)] == [Settlement.RELEASE]
    assert upstream.status().leases == 0


async def test_what_was_found_goes_back_where_the_rest_fails(
    broker: FakeBroker, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "CHANNEL_LEASES", 2)
    upstream = await start(broker)
    broker.put("q", b"1", b"2", b"3")
    opened: list[OpenChannel] = []

    def second(peer: Peer, operation: OpenChannel) -> bool:
        opened.append(operation)
        return len(opened) == 2

    await upstream.query_queue("q")
    broker.on[OpenChannel] = second
    with monkeypatch.context() as patched:
        patched.setattr(leases, "ANSWER_TIMEOUT", 0.05)
        with pytest.raises(BrokerUnavailable, match="no answer"):
            await upstream.fetch("q", 3)
    await until(lambda: len(broker.queues["q"]) == 3)
    assert upstream.status().leases == 0


async def test_a_channel_that_did_not_open_leaves_its_place(
    broker: FakeBroker, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    upstream = await start(broker, lease_channels=1)
    broker.put("q", b"1")
    await upstream.query_queue("q")
    broker.on = {kind: lambda peer, operation: True for kind in (OpenChannel, CloseChannel)}
    with monkeypatch.context() as patched:
        patched.setattr(leases, "ANSWER_TIMEOUT", 0.02)
        with pytest.raises(BrokerUnavailable, match="no answer"):
            await upstream.fetch("q", 1)
    await until(lambda: broker.all(CloseChannel))
    broker.on = {}
    assert bodies(await upstream.fetch("q", 1)) == [b"1"]


async def test_what_comes_late_for_a_consumer_that_ended_is_not_for_the_next(broker: FakeBroker, start: Start) -> None:
    upstream = await start(broker, lease_channels=1)
    broker.put("q")
    task = await waiting(upstream, broker)
    broker.put("q", b"1")
    settle(await task)
    (consume,) = broker.all(Consume)

    def first_something_late(peer: Peer, operation: Get) -> bool:
        number = peer.out_on(operation.channel, "q", Message(b"late"))
        peer.send(Deliver(consume.channel, consume.consumer_tag, number, False, "", "q", Message(b"late")))
        peer.send(GotNothing(operation.channel, operation.serial, operation.serial))
        return True

    broker.on[Get] = first_something_late
    assert await upstream.fetch("q", 1) == []
    await until(lambda: Settlement.RELEASE in {each.settlement for each in broker.all(Settle)})


async def test_one_who_waits_for_a_channel_hears_of_a_lost_link(
    broker: FakeBroker, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "CHANNEL_LEASES", 1)
    monkeypatch.setattr(leases, "_SWEEP", 60.0)
    upstream = await start(broker, lease_channels=1)
    broker.put("q", b"1")
    assert len(await upstream.fetch("q", 1)) == 1
    task = asyncio.create_task(upstream.fetch("q", 1, 60.0))
    await until(lambda: upstream._leases._freed is not None)
    broker.down = True
    broker.kill()
    async with asyncio.timeout(20):
        with pytest.raises(BrokerUnavailable):
            await task
    await until(lambda: "refused" in upstream._leases._reason)
    with pytest.raises(BrokerUnavailable, match="connection refused"):
        await upstream.fetch("q", 1)
    assert upstream.status().leases == 0


async def test_one_who_waits_for_a_channel_gets_it_when_what_it_holds_is_settled(
    broker: FakeBroker, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "CHANNEL_LEASES", 1)
    monkeypatch.setattr(leases, "_SWEEP", 0.02)
    upstream = await start(broker, lease_channels=1)
    broker.put("q", b"1", b"2")
    found = await upstream.fetch("q", 1)
    task = asyncio.create_task(upstream.fetch("q", 1, 60.0))
    await until(lambda: upstream._leases._freed is not None)
    settle(found)
    async with asyncio.timeout(20):
        assert bodies(await task) == [b"2"]


async def test_one_who_waits_for_a_moment_does_not_give_up_at_once(
    broker: FakeBroker, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "CHANNEL_LEASES", 1)
    upstream = await start(broker, lease_channels=1)
    broker.put("q", b"1", b"2")
    found = await upstream.fetch("q", 1)
    now = clock.monotonic()
    with monkeypatch.context() as patched:
        patched.setattr(clock, "monotonic", lambda: now)  # however slow this machine is
        task = asyncio.create_task(upstream.fetch("q", 1, 0.5))
        await until(lambda: task.done() or upstream._leases._freed is not None)
        assert not task.done()
        settle(found)
        upstream._leases._sweep()
        assert bodies(await task) == [b"2"]


async def test_a_fetch_that_fails_is_heard_of_by_its_caller_alone(broker: FakeBroker, start: Start) -> None:
    upstream = await start(broker)
    broker.put("q")
    heard: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: heard.append(context))

    def refuse(peer: Peer, operation: Get) -> bool:
        peer.close_channel(operation.channel, 403, "ACCESS_REFUSED")
        return True

    broker.on[Get] = refuse
    with pytest.raises(AccessRefused):
        await upstream.fetch("q", 1)
    await asyncio.sleep(0)
    assert heard == []


async def test_channels_of_a_lost_link_do_not_count(broker: FakeBroker, start: Start) -> None:
    upstream = await start(broker, lease_channels=1)
    for name in ("q", "r"):
        broker.put(name, b"1")
        found = await upstream.fetch(name, 1)
        assert bodies(found) == [b"1"]
        await bounce(broker, upstream)
        assert found[0].lost


async def test_every_lease_that_is_too_old_ends_and_the_others_stay(
    broker: FakeBroker, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "CHANNEL_AGE", 1_000.0)
    upstream = await start(broker, lease_max=100.0)
    broker.put("q", b"1", b"2", b"3")
    broker.put("r", b"4")
    found = [*await upstream.fetch("q", 3), *await upstream.fetch("r", 1)]
    now = clock.monotonic()
    for delivery, age in zip(found, (100.0, 101.0, 99.0, 200.0), strict=True):
        delivery.at = now - age
    with monkeypatch.context() as patched:
        patched.setattr(clock, "monotonic", lambda: now)
        upstream._leases._sweep()
    assert [delivery.lost for delivery in found] == [True, True, False, True]
    assert upstream.status().leases == 1


async def test_a_channel_is_closed_when_it_is_old_and_empty(
    broker: FakeBroker, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    upstream = await start(broker, lease_max=500.0)
    own = upstream._leases
    found: dict[str, Any] = {}
    for name in ("empty", "young", "held", "taken", "aside", "old aside"):
        broker.put(name, b"1")
        (delivery,) = await upstream.fetch(name, 1)
        found[name] = delivery
    channels = {name: delivery._channel for name, delivery in found.items()}
    now = clock.monotonic()
    for name, channel in channels.items():
        channel.born = now - (leases.CHANNEL_AGE - 1 if name == "young" else leases.CHANNEL_AGE)
        if name != "held":
            found[name].settle(Settlement.ACCEPT)
    channels["taken"].taken = True
    channels["aside"].oversized = channels["old aside"].oversized = 1
    channels["old aside"].born = now - 500.0
    with monkeypatch.context() as patched:
        patched.setattr(clock, "monotonic", lambda: now)
        own._sweep()
    closed = {name for name, channel in channels.items() if not channel.usable}
    assert closed == {"empty", "old aside"}
    assert set(own._channels) == {channel for name, channel in channels.items() if name not in closed}
    assert own._spare == {"": [channels["young"]]}
    channels["taken"].taken = False


async def test_a_sweep_looks_at_every_channel(broker: FakeBroker, start: Start) -> None:
    """Those that are over, or in use, keep it from none of the others."""
    upstream = await start(broker)
    own = upstream._leases
    for name in ("a", "b", "c", "d"):
        broker.put(name, b"1")
    found = [delivery for name in ("a", "b", "c", "d") for delivery in await upstream.fetch(name, 1)]
    channels: list[Any] = [delivery._channel for delivery in found]
    peer = next(peer for peer in broker.peers if peer.outstanding)
    for channel in channels[:2]:
        peer.close_channel(channel.number, 406, "PRECONDITION_FAILED - delivery acknowledgement timed out")
    await until(lambda: found[1].lost)
    own._sweep()
    assert own._channels == set(channels[2:])
    assert own._spare == {"c": [channels[2]], "d": [channels[3]]}
    channels[2].taken = True
    own._sweep()
    assert own._spare == {"d": [channels[3]]}
    channels[2].taken = False


async def test_channels_are_looked_at_again_and_again(
    broker: FakeBroker, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As long as there are any, and again when there are."""
    monkeypatch.setattr(leases, "_SWEEP", 0.01)
    monkeypatch.setattr(leases, "CHANNEL_AGE", 0.05)
    upstream = await start(broker)
    for _ in range(2):
        broker.put("q", b"1")
        settle(await upstream.fetch("q", 1))
        await until(lambda: not upstream._leases._channels)
        await until(lambda: upstream._leases._timer is None)


async def test_a_queue_that_is_gone_is_no_reason_to_give_up_a_channel(broker: FakeBroker, start: Start) -> None:
    upstream = await start(broker, lease_channels=1)
    broker.put("q")
    task = await waiting(upstream, broker)
    await upstream.delete_queue("q")
    with pytest.raises(NotFound):
        await task
    broker.put("r", b"1")
    assert bodies(await upstream.fetch("r", 1)) == [b"1"]
    (peer,) = [peer for peer in broker.peers if peer.of(Get)]
    assert len(peer.of(OpenChannel)) == 1


async def test_what_comes_beyond_the_bound_goes_back_where_the_broker_ends_the_consumer(
    broker: FakeBroker, start: Start
) -> None:
    upstream = await start(broker, message_max=2_000)
    broker.put("q", b"x")
    settle(await upstream.fetch("q", 1))
    task = asyncio.create_task(upstream.fetch("q", 100, 60.0, bytes_max=3_000))
    await until(lambda: broker.all(Consume))
    (consume,) = broker.all(Consume)
    broker.put("q", *(bytes(2_000) for _ in range(4)))
    (peer,) = [peer for peer in broker.peers if peer.consumers]
    peer.consumers.clear()
    peer.send(Cancelled(consume.channel, consume.consumer_tag))
    assert len(await task) == 2
    await until(lambda: len(broker.queues["q"]) == 2)
    assert upstream.status().leases == 2


async def test_what_one_who_waited_got_tells_how_large_messages_are(broker: FakeBroker, start: Start) -> None:
    upstream = await start(broker)
    broker.put("q")
    task = await waiting(upstream, broker)
    broker.put("q", b"small")
    settle(await task)
    asked = len(broker.all(Get))
    assert await upstream.fetch("q", 50) == []
    assert len(broker.all(Get)) - asked == 10


async def test_what_the_broker_says_to_one_who_waits(broker: FakeBroker, start: Start) -> None:
    """Of its own channel it says that to it alone; before the consumer runs, of the whole connection as well."""
    upstream = await start(broker)
    broker.put("q")
    task = await waiting(upstream, broker)
    (peer,) = [peer for peer in broker.peers if peer.consumers]
    peer.close_channel(broker.all(Consume)[0].channel, 403, "ACCESS_REFUSED - not any more")
    with pytest.raises(AccessRefused, match="not any more"):
        await task

    def refuse(peer: Peer, operation: Consume) -> bool:
        peer.send(Closed(0, CloseReason.PEER, 403, "ACCESS_REFUSED - to the queue"))
        return True

    broker.on[Consume] = refuse
    with pytest.raises(AccessRefused, match="to the queue"):
        await upstream.fetch("q", 1, 60.0)
