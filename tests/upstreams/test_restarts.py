"""A consumer that ends and begins again: what it takes along, what it leaves, and how long it waits."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.amqp.message import Message
from gateway.amqp.operations import (
    Cancel,
    CloseChannel,
    Consume,
    Deliver,
    DeliveryTooLarge,
    OpenChannel,
    Qos,
    QueryQueue,
    Settle,
    Settlement,
)
from gateway.errors import BrokerUnavailable, NotFound
from gateway.runtime.backoff import Backoff
from gateway.runtime.clock import clock
from gateway.upstreams import Consumer, ConsumerState, Delivery
from gateway.upstreams.consuming import consumers
from gateway.upstreams.topology import QueueInfo, Topology
from tests.upstreams.conftest import Start
from tests.upstreams.fake import FakeBroker, Peer, bounce, until


def ignore(delivery: Delivery) -> None:
    pass


def consuming(broker: FakeBroker) -> Peer:
    (peer,) = [peer for peer in broker.peers if peer.of(Consume)]
    return peer


def send_too_large(broker: FakeBroker, number: int = 1) -> None:
    """The consumer that began last gets a message over the limit."""
    consume = broker.all(Consume)[-1]
    consuming(broker).send(DeliveryTooLarge(consume.channel, consume.consumer_tag, number, 5000, 1024, False, "", "q"))


async def test_a_missing_queue_is_not_consumed_from(broker: FakeBroker, start: Start) -> None:
    """That may cost the connection."""
    upstream = await start(broker)
    with pytest.raises(NotFound):
        await upstream.consume("missing", 1, ignore)
    assert broker.all(Consume) == []


async def test_a_channel_whose_consumer_did_not_start_is_closed(
    broker: FakeBroker, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumers, "ANSWER_TIMEOUT", 0.05)
    upstream = await start(broker)
    broker.put("q")
    for kind in (Consume, Qos):
        broker.on = {kind: lambda peer, operation: True}
        closed = len(broker.all(CloseChannel))
        with pytest.raises(BrokerUnavailable, match="no answer"):
            await upstream.consume("q", 1, ignore)
        await until(lambda closed=closed: len(broker.all(CloseChannel)) > closed)  # type: ignore[misc]
    broker.on = {Consume: lambda peer, operation: True}
    monkeypatch.setattr(consumers, "ANSWER_TIMEOUT", 30.0)
    closed, asked = len(broker.all(CloseChannel)), len(broker.all(Consume))
    task = asyncio.create_task(upstream.consume("q", 1, ignore))
    await until(lambda: len(broker.all(Consume)) > asked)
    task.cancel()
    await asyncio.wait([task])
    await until(lambda: len(broker.all(CloseChannel)) > closed)
    assert upstream.idle


async def test_after_a_fault_of_the_callback_nothing_more_is_handed_to_it(broker: FakeBroker, start: Start) -> None:
    upstream = await start(broker, reconnect_min=60.0, reconnect_max=60.0)
    broker.put("q", b"1", b"2", b"3")
    got: list[bytes] = []

    def fragile(delivery: Delivery) -> None:
        got.append(delivery.message.body)
        raise ValueError("boom")

    consumer = await upstream.consume("q", 5, fragile)
    await until(lambda: consumer.state is ConsumerState.DOWN)
    assert got == [b"1"]
    await until(lambda: len(broker.queues["q"]) == 3)


async def test_what_comes_on_a_channel_that_is_closing_is_not_taken(broker: FakeBroker, start: Start) -> None:
    upstream = await start(broker)
    broker.put("q")
    got: list[Delivery] = []
    consumer = await upstream.consume("q", 5, got.append)
    (consume,) = broker.all(Consume)
    peer = consuming(broker)
    broker.on[CloseChannel] = lambda peer, operation: True
    closing = asyncio.create_task(consumer.close())
    await until(lambda: peer.of(CloseChannel))
    broker.queues["q"].clear()
    peer.send(Deliver(consume.channel, consume.consumer_tag, 1, False, "", "q", Message(b"late")))
    await asyncio.sleep(0.02)
    assert got == []
    del broker.on[CloseChannel]
    broker.receive(peer, peer.of(CloseChannel)[0])
    await closing


async def test_of_one_that_only_looks_nothing_is_held_or_rejected(start: Start) -> None:
    broker = FakeBroker(native_dead_letter=True)
    upstream = await start(broker)
    await upstream.declare_queue("q", arguments={"x-dead-letter-exchange": "amq.direct"})
    broker.put("q", b"1")
    got: list[Delivery] = []
    consumer = await upstream.consume("q", 5, got.append, acquired=False)
    await until(lambda: got)
    assert (consumer.deliveries, upstream.held("q")) == ([], [])
    send_too_large(broker, 2)
    await until(lambda: consumer._channel is not None and consumer._channel.oversized)
    await asyncio.sleep(0.02)
    assert broker.all(Settle) == []
    other = await upstream.consume("q", 5, got.append, holder=("bridge", "b"))
    broker.put("q", b"2")
    await until(lambda: len(got) == 2)
    await other.close()
    assert (other.out, other.deliveries) == (0, [])


async def test_delivery_limits_matter_only_to_those_who_hold_messages(broker: FakeBroker, start: Start) -> None:
    upstream = await start(broker, delivery_limit=20)
    upstream.delivery_limits.on_used_up = ignore
    broker.put("q")
    found = [
        await upstream.consume("q", 1, ignore, acquired=acquired, no_ack=no_ack)
        for acquired, no_ack in ((True, False), (False, False), (True, True))
    ]
    channels: list[Any] = [consumer._channel for consumer in found]
    assert [channel.limits is not None for channel in channels] == [True, False, False]
    assert [channel.full_at for channel in channels] == [1, 1, 0]


async def test_channels_that_hold_what_nobody_takes_are_bounded_and_go_with_the_consumer(
    broker: FakeBroker, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumers, "HOLDERS_MAX", 2)
    upstream = await start(broker, reconnect_min=60.0, reconnect_max=60.0)
    broker.put("q")
    consumer = await upstream.consume("q", 1, ignore)
    for count in (2, 3):
        send_too_large(broker)
        await until(lambda count=count: len(broker.all(Consume)) == count)  # type: ignore[misc]
        await until(lambda: consumer.state is ConsumerState.RUNNING and not _is_over(consumer))
        assert len(consumer._holders) == count - 1
    assert len(broker.all(Cancel)) == 2
    send_too_large(broker)  # no more channels for these: it goes on, as far as its prefetch allows it
    await asyncio.sleep(0.03)
    assert len(broker.all(Consume)) == 3
    await consumer.close()
    channels = {consume.channel for consume in broker.all(Consume)}
    await until(lambda: {each.channel for each in broker.all(CloseChannel)} == channels)


def _is_over(consumer: Consumer) -> bool:
    return consumer._channel is None or consumer._channel.over.done()


async def test_a_channel_that_holds_nothing_any_more_is_closed(start: Start) -> None:
    """What it held was rejected meanwhile; of those that are over nothing is remembered."""
    broker = FakeBroker(native_dead_letter=True)
    upstream = await start(broker)
    await upstream.declare_queue("q", arguments={"x-dead-letter-exchange": "amq.direct"})
    broker.on[Settle] = lambda peer, operation: True
    consumer = await upstream.consume("q", 1, ignore)
    for count in (2, 3, 4):
        send_too_large(broker)
        await until(lambda count=count: len(broker.all(Consume)) == count)  # type: ignore[misc]
        await until(lambda count=count: len(broker.all(Settle)) == count - 1)  # type: ignore[misc]
        await until(lambda: consumer.state is ConsumerState.RUNNING and not _is_over(consumer))
    assert len(consumer._holders) <= 1
    await until(lambda: len(broker.all(CloseChannel)) >= 2)


async def test_another_prefetch_does_not_wait_for_a_pause(broker: FakeBroker, start: Start) -> None:
    upstream = await start(broker, reconnect_min=60.0, reconnect_max=60.0)
    broker.put("q")
    consumer = await upstream.consume("q", 1, ignore)
    consumer.change_prefetch(7)
    assert (consumer.prefetch, consumer.changing) == (7, True)
    consumer.change_prefetch(8)  # while it is being changed
    await until(lambda: len(broker.all(Consume)) == 2)
    assert [qos.prefetch_count for qos in broker.all(Qos)] == [1, 8]
    await until(lambda: not consumer.changing)
    assert len(broker.all(Cancel)) == 1
    await until(lambda: len(broker.all(CloseChannel)) == 1)
    await consumer.close()
    assert len(broker.all(Cancel)) == 2
    assert not consumer.changing


async def test_another_prefetch_of_one_that_does_not_run_is_for_the_next_start(
    broker: FakeBroker, start: Start
) -> None:
    upstream = await start(broker)
    await upstream.declare_queue("q")
    consumer = await upstream.consume("q", 1, ignore)
    await upstream.delete_queue("q")
    await until(lambda: "NOT_FOUND" in consumer.reason)
    consumer.change_prefetch(7)
    assert not consumer.changing
    await upstream.declare_queue("q")
    await until(lambda: consumer.state is ConsumerState.RUNNING)
    assert [qos.prefetch_count for qos in broker.all(Qos)] == [1, 7]
    await consumer.close()
    consumer.change_prefetch(8)
    assert not consumer.changing


async def test_one_that_was_closed_while_its_prefetch_changes_is_ended_once(broker: FakeBroker, start: Start) -> None:
    upstream = await start(broker)
    broker.put("q", b"1")
    got: list[Delivery] = []
    consumer = await upstream.consume("q", 1, got.append)
    await until(lambda: got)
    consumer.change_prefetch(2)
    await until(lambda: broker.all(Cancel))
    await asyncio.sleep(0.02)
    await consumer.close()
    assert (len(broker.all(Cancel)), len(broker.all(Consume))) == (1, 1)
    assert got[0].lost
    await until(lambda: broker.queues["q"])


async def test_after_a_restart_it_is_ended_as_before(broker: FakeBroker, start: Start) -> None:
    upstream = await start(broker)
    broker.put("q", b"1")
    got: list[Delivery] = []
    consumer = await upstream.consume("q", 1, got.append)
    await bounce(broker, upstream)
    await until(lambda: len(got) == 2 and consumer.state is ConsumerState.RUNNING)
    await consumer.cancel()
    assert not got[1].lost
    assert len(broker.all(Cancel)) == 1
    got[1].settle(Settlement.ACCEPT)
    await consumer.close()
    assert (len(broker.all(Cancel)), len(broker.all(CloseChannel))) == (1, 1)


async def test_a_close_with_nothing_out_waits_for_nothing(broker: FakeBroker, start: Start) -> None:
    upstream = await start(broker)
    broker.put("q")
    consumer = await upstream.consume("q", 1, ignore)
    async with asyncio.timeout(20):
        await consumer.close(drain=60.0)
    assert upstream._consumers == set()


async def test_one_that_cannot_be_cancelled_is_given_up(
    broker: FakeBroker, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumers, "ANSWER_TIMEOUT", 0.02)
    upstream = await start(broker)
    broker.put("q", b"1", b"2")
    broker.on[Cancel] = lambda peer, operation: True
    got: list[Delivery] = []
    for number in (1, 2):
        consumer = await upstream.consume("q", 1, got.append)
        await until(lambda number=number: len(got) == number)  # type: ignore[misc]
        await consumer.close()
        assert got[-1].lost
        await until(lambda number=number: len(broker.all(CloseChannel)) == number)  # type: ignore[misc]


async def test_pauses_grow_while_it_cannot_begin_and_start_small_again(
    broker: FakeBroker, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    upstream = await start(broker, reconnect_min=1.0, reconnect_max=4.0)
    await upstream.declare_queue("q")
    consumer = await upstream.consume("q", 1, ignore)
    pauses: list[float] = []

    def counted(backoff: Backoff) -> float:
        pauses.append(backoff.longest)
        backoff.failures += 1
        return 0.01

    monkeypatch.setattr(Backoff, "next", counted)
    states: list[ConsumerState] = []
    consumer.on_state.append(lambda consumer: states.append(consumer.state))
    await upstream.delete_queue("q")
    await until(lambda: len(pauses) >= 4)
    assert pauses[:4] == [1.0, 2.0, 4.0, 4.0], "the first one, too"
    assert set(states) == {ConsumerState.CANCELLED}
    broker.put("q")
    await until(lambda: consumer.state is ConsumerState.RUNNING)
    pauses.clear()
    await upstream.delete_queue("q")
    await until(lambda: len(pauses) >= 2)
    assert pauses[0] == 4.0, "it has not run for long"


async def test_pauses_begin_small_again_after_it_has_run(
    broker: FakeBroker, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    upstream = await start(broker, reconnect_min=0.01, reconnect_max=0.04)
    await upstream.declare_queue("q")
    consumer = await upstream.consume("q", 1, ignore)
    pauses: list[float] = []

    def counted(backoff: Backoff) -> float:
        pauses.append(backoff.longest)
        backoff.failures += 1
        return 0.0

    monkeypatch.setattr(Backoff, "next", counted)
    for _ in range(2):
        await asyncio.sleep(0.06)
        await upstream.delete_queue("q")
        await until(lambda: len(pauses) >= 4)
        assert pauses[:4] == [0.01, 0.02, 0.04, 0.04]
        broker.put("q")
        await until(lambda: consumer.state is ConsumerState.RUNNING)
        pauses.clear()


async def test_pauses_go_on_growing_after_one_that_ran_no_longer_than_a_pause(
    broker: FakeBroker, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    upstream = await start(broker, reconnect_min=0.0, reconnect_max=0.0)
    await upstream.declare_queue("q")
    consumer = await upstream.consume("q", 1, ignore)
    failures: list[int] = []

    def counted(backoff: Backoff) -> float:
        failures.append(backoff.failures)
        backoff.failures += 1
        return 0.001

    now = clock.monotonic()
    with monkeypatch.context() as patched:
        patched.setattr(Backoff, "next", counted)
        patched.setattr(clock, "monotonic", lambda: now)  # it runs for as long as the longest pause
        for _ in range(2):
            await upstream.delete_queue("q")
            await until(lambda: consumer.state is ConsumerState.CANCELLED)
            await upstream.declare_queue("q")
            await until(lambda: consumer.state is ConsumerState.RUNNING)
        await upstream.delete_queue("q")
        await until(lambda: consumer.state is ConsumerState.CANCELLED)
    assert failures == list(range(len(failures)))
    assert len(failures) >= 2


async def test_a_fault_while_the_queue_is_asked_for_costs_the_channel(
    broker: FakeBroker, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumers, "LOOK_AGAIN", 0.01)
    query_queue = Topology.query_queue
    faults: list[Exception] = []

    async def sometimes(self: Topology, queue: str) -> QueueInfo:
        if faults:
            raise faults.pop()
        return await query_queue(self, queue)

    monkeypatch.setattr(Topology, "query_queue", sometimes)
    upstream = await start(broker)
    broker.put("q", b"1")
    got: list[Delivery] = []
    consumer = await upstream.consume("q", 1, got.append)
    await until(lambda: got)
    states: list[ConsumerState] = []
    consumer.on_state.append(lambda consumer: states.append(consumer.state))
    faults.append(RuntimeError("a fault of ours"))
    await until(lambda: len(got) == 2)
    assert got[0].lost
    await until(lambda: states == [ConsumerState.DOWN, ConsumerState.RUNNING])
    await until(lambda: len(consuming(broker).of(CloseChannel)) == 1)


async def test_a_channel_that_the_broker_ended_is_closed(broker: FakeBroker, start: Start) -> None:
    upstream = await start(broker, reconnect_min=60.0, reconnect_max=60.0)
    await upstream.declare_queue("q")
    broker.put("q", b"1")
    got: list[Delivery] = []
    consumer = await upstream.consume("q", 5, got.append)
    await until(lambda: got)
    await upstream.delete_queue("q")
    await until(lambda: consumer.state is ConsumerState.CANCELLED)
    assert "its queue 'q' is gone" in consumer.reason
    await until(lambda: broker.all(CloseChannel))
    assert got[0].lost


async def test_a_question_whose_answer_nobody_needs_any_more_is_given_up(
    broker: FakeBroker, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumers, "LOOK_AGAIN", 0.01)
    upstream = await start(broker)
    await upstream.declare_queue("q")
    consumer = await upstream.consume("q", 5, ignore)
    broker.on[QueryQueue] = lambda peer, operation: True
    asked = len(broker.all(QueryQueue))
    await until(lambda: len(broker.all(QueryQueue)) > asked)
    (asking,) = [peer for peer in broker.peers if len(peer.of(QueryQueue)) > asked]
    closed = len(asking.of(CloseChannel))
    consumer.change_prefetch(7)
    await until(lambda: len(asking.of(CloseChannel)) > closed)
    del broker.on[QueryQueue]
    await until(lambda: [qos.prefetch_count for qos in broker.all(Qos)] == [5, 7])
    assert len(asking.of(OpenChannel)) >= 1
