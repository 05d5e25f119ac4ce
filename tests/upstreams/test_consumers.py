"""Long-lived consumers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.amqp.operations import (
    Cancel,
    CloseChannel,
    Closed,
    CloseReason,
    Consume,
    DeliveryTooLarge,
    Qos,
    QueryQueue,
    Settle,
    Settlement,
)
from gateway.errors import AccessRefused, BrokerUnavailable, NotFound, StateError
from gateway.upstreams import Consumer, ConsumerState, Delivery, Oversized, QueueInfo, Upstream
from gateway.upstreams.consuming import consumers
from gateway.upstreams.topology import Topology
from tests.upstreams.conftest import Start
from tests.upstreams.fake import FakeBroker, Peer, until


async def test_deliveries_within_the_prefetch(broker: FakeBroker, start: Start) -> None:
    upstream = await start(broker)
    broker.put("q", *(b"%d" % index for index in range(10)))
    got: list[Delivery] = []
    consumer = await upstream.consume("q", 3, got.append, exclusive=True, arguments={"x-priority": 1})
    assert consumer.state is ConsumerState.RUNNING
    (qos,), (consume,) = broker.all(Qos), broker.all(Consume)
    assert qos.prefetch_count == 3
    assert (consume.exclusive, consume.arguments) == (True, {"x-priority": 1})
    await until(lambda: len(got) == 3)
    assert consumer.out == upstream.status().leases == 3
    for index in range(10):
        await until(lambda at=index: len(got) > at)  # type: ignore[misc]
        got[index].settle(Settlement.ACCEPT)
    assert [delivery.message.body for delivery in got] == [b"%d" % index for index in range(10)]
    await consumer.close()
    assert consumer.state is ConsumerState.CLOSED
    await consumer.close()
    assert broker.all(Cancel)


async def test_each_consumer_has_its_own_channel(broker: FakeBroker, start: Start) -> None:
    upstream = await start(broker)
    broker.put("q")
    for _ in range(3):
        await upstream.consume("q", 1, lambda delivery: None)
    assert len({operation.channel for operation in broker.all(Consume)}) == 3


async def test_a_missing_queue_at_the_start(broker: FakeBroker, start: Start) -> None:
    upstream = await start(broker)
    with pytest.raises(NotFound):
        await upstream.consume("missing", 1, lambda delivery: None)
    assert upstream._consumers == set()


async def test_it_comes_back_with_its_link(broker: FakeBroker, start: Start) -> None:
    upstream = await start(broker)
    broker.put("q", b"1")
    got: list[Delivery] = []
    consumer = await upstream.consume("q", 5, got.append)
    states: list[ConsumerState] = []
    consumer.on_state.append(lambda consumer: states.append(consumer.state))
    await until(lambda: got)
    lost: list[Delivery] = []
    got[0].on_lost = lost.append
    broker.kill()
    await until(lambda: len(got) == 2)
    assert lost == [got[0]]
    assert got[1].redelivered
    await until(lambda: states == [ConsumerState.DOWN, ConsumerState.RUNNING])


async def test_the_broker_ends_it_and_it_comes_back_with_the_queue(broker: FakeBroker, start: Start) -> None:
    upstream = await start(broker)
    await upstream.declare_queue("q")
    got: list[Delivery] = []
    consumer = await upstream.consume("q", 5, got.append)
    await upstream.delete_queue("q")
    await until(lambda: consumer.state is ConsumerState.CANCELLED)
    await until(lambda: "NOT_FOUND" in consumer.reason)
    broker.put("q", b"1")
    await until(lambda: got)
    await until(lambda: consumer.state is ConsumerState.RUNNING)


@pytest.mark.parametrize("back", [False, True])
async def test_a_queue_goes_and_the_broker_does_not_say_so(
    broker: FakeBroker, start: Start, monkeypatch: pytest.MonkeyPatch, back: bool
) -> None:
    """The queue is asked for. ``back``: it is there again before that, without its consumer."""
    monkeypatch.setattr(consumers, "LOOK_AGAIN", 0.05)
    upstream = await start(broker)
    await upstream.declare_queue("q")
    got: list[Delivery] = []
    consumer = await upstream.consume("q", 5, got.append)
    states: list[ConsumerState] = []
    consumer.on_state.append(lambda consumer: states.append(consumer.state))
    await asyncio.sleep(0.2)
    assert states == [], "it is asked again and again, and all is well"
    del broker.queues["q"]
    for peer in broker.peers:
        peer.consumers.clear()
    if not back:
        await until(lambda: "NOT_FOUND" in consumer.reason)
        assert consumer.state is ConsumerState.CANCELLED
    broker.put("q", b"1")
    await until(lambda: got)
    await until(
        lambda: states == [ConsumerState.CANCELLED, ConsumerState.RUNNING]
    )  # the delivery may overtake the answer


async def test_a_broker_that_tells_is_not_asked(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumers, "LOOK_AGAIN", 0.01)
    broker = FakeBroker(consumer_cancel_notify=True)
    upstream = await start(broker)
    await upstream.declare_queue("q")
    await upstream.consume("q", 5, lambda delivery: None)
    asked = len(broker.all(QueryQueue))
    await asyncio.sleep(0.1)
    assert len(broker.all(QueryQueue)) == asked


async def test_a_broker_that_cannot_be_asked_now(
    broker: FakeBroker, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumers, "LOOK_AGAIN", 0.01)
    upstream = await start(broker)
    await upstream.declare_queue("q")

    def refuse(peer: Peer, operation: QueryQueue) -> bool:
        peer.close_channel(operation.channel, 403, "ACCESS_REFUSED")
        return True

    consumer = await upstream.consume("q", 5, lambda delivery: None)
    broker.on[QueryQueue] = refuse
    await until(lambda: len(broker.all(QueryQueue)) > 5)
    assert consumer.state is ConsumerState.RUNNING


async def test_a_link_that_is_lost_while_the_broker_is_asked(
    broker: FakeBroker, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody waits for the answer."""
    monkeypatch.setattr(consumers, "LOOK_AGAIN", 0.01)
    upstream = await start(broker)
    await upstream.declare_queue("q")
    consumer = await upstream.consume("q", 5, lambda delivery: None)
    broker.on[QueryQueue] = lambda peer, operation: True
    asked = len(broker.all(QueryQueue))
    await until(lambda: len(broker.all(QueryQueue)) > asked)
    next(peer for peer in broker.peers if peer.consumers).stream.abort()
    await until(lambda: consumer.state is ConsumerState.DOWN)


async def test_it_keeps_trying_while_the_link_is_away(
    broker: FakeBroker, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.upstreams.upstream.PATIENCE", 0.01)
    upstream = await start(broker)
    broker.put("q", b"1")
    consumer = await upstream.consume("q", 5, lambda delivery: delivery.settle(Settlement.ACCEPT))
    broker.down = True
    broker.kill()
    await until(lambda: "refused" in consumer.reason)
    assert consumer.state is ConsumerState.DOWN
    broker.down = False
    await until(lambda: consumer.state is ConsumerState.RUNNING)


async def test_a_callback_that_fails_costs_the_channel_not_the_process(
    broker: FakeBroker, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    upstream = await start(broker)
    broker.put("q", b"1")
    broker.put("r", b"2")
    calm: list[Delivery] = []
    await upstream.consume("r", 1, calm.append)
    got: list[Delivery] = []

    def fragile(delivery: Delivery) -> None:
        got.append(delivery)
        if len(got) == 1:
            raise ValueError("boom")

    consumer = await upstream.consume("q", 1, fragile)
    await until(lambda: len(got) == 2)
    assert "boom" in caplog.text
    assert got[0].lost
    assert got[1].redelivered
    assert not calm[0].lost
    await until(lambda: consumer.state is ConsumerState.RUNNING)


async def test_close_lets_what_is_out_be_settled(broker: FakeBroker, start: Start) -> None:
    upstream = await start(broker)
    broker.put("q", b"1", b"2")
    got: list[Delivery] = []
    consumer = await upstream.consume("q", 5, got.append)
    await until(lambda: len(got) == 2)
    closing = asyncio.create_task(consumer.close(drain=5.0))
    await asyncio.sleep(0.01)
    assert not closing.done()
    for delivery in got:
        delivery.settle(Settlement.ACCEPT)
    await closing
    assert broker.all(Settle)
    assert not broker.queues["q"]
    other = await upstream.consume("q", 5, got.append)
    broker.put("q", b"3")
    await until(lambda: len(got) == 3)
    await other.close(drain=0.01)
    assert got[2].lost
    assert broker.queues["q"]


@pytest.mark.parametrize("how", ["answered", "refused", "cut", "silent", "lost before", "lost meanwhile"])
async def test_close_says_whether_the_broker_has_all_settlements(
    broker: FakeBroker, start: Start, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    upstream = await start(broker)
    broker.put("q", b"1")
    got: list[Delivery] = []
    consumer = await upstream.consume("q", 5, got.append)
    await until(lambda: got)
    got[0].settle(Settlement.ACCEPT)

    def refuse(peer: Peer, operation: Any) -> bool:
        peer.close_channel(operation.channel, 406, "PRECONDITION_FAILED")
        return True

    def cut(peer: Peer, operation: Any) -> bool:
        peer.send(Closed(0, CloseReason.EOF, 0, ""))
        return True

    def ignore(peer: Peer, operation: Any) -> bool:
        return True

    if how in ("refused", "cut", "silent"):
        broker.on[CloseChannel] = {"refused": refuse, "cut": cut, "silent": ignore}[how]
    if how == "silent":
        monkeypatch.setattr(consumers, "ANSWER_TIMEOUT", 0.05)
    if how == "lost before":
        (peer,) = [peer for peer in broker.peers if peer.of(Consume)]
        await consumer.cancel()
        losses: list[Upstream] = []
        upstream.on_state.append(losses.append)
        peer.send(Closed(0, CloseReason.EOF, 0, ""))
        await until(lambda: losses)
    if how == "lost meanwhile":
        broker.on[Cancel] = cut
    assert await consumer.close() is (how == "answered")
    assert await consumer.close(), "nothing more was said"


async def test_a_close_that_is_given_up_at_once_gives_everything_back(broker: FakeBroker, start: Start) -> None:
    """In the turn in which it ends what starts the consumer over."""
    upstream = await start(broker)
    broker.put("q", b"1")
    got: list[Delivery] = []
    consumer = await upstream.consume("q", 5, got.append)
    await until(lambda: got)
    closing = asyncio.create_task(consumer.close())
    await asyncio.sleep(0)
    assert not broker.all(Cancel)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    await until(lambda: broker.queues["q"])
    assert got[0].lost


async def test_a_close_that_is_given_up_gives_everything_back(broker: FakeBroker, start: Start) -> None:
    upstream = await start(broker)
    broker.put("q", b"1")
    got: list[Delivery] = []
    consumer = await upstream.consume("q", 5, got.append)
    await until(lambda: got)
    broker.on[Cancel] = lambda peer, operation: True  # the broker does not answer
    closing = asyncio.create_task(consumer.close())
    await until(lambda: broker.all(Cancel))
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    await until(lambda: broker.queues["q"])
    assert got[0].lost


async def test_a_message_over_the_limit_is_reported(broker: FakeBroker, start: Start) -> None:
    upstream = await start(broker)
    seen: list[Oversized] = []
    upstream.on_oversized.append(seen.append)
    broker.put("q")
    await upstream.consume("q", 2, lambda delivery: None)
    (consume,) = broker.all(Consume)
    peer = next(peer for peer in broker.peers if peer.of(Consume))
    peer.send(DeliveryTooLarge(consume.channel, consume.consumer_tag, 1, 5000, 1024, False, "e", "k"))
    await until(lambda: seen == [Oversized("q", "e", "k", 5000, 1024)])


@pytest.mark.parametrize("arguments", [{}, {"x-dead-letter-exchange": "amq.direct"}], ids=["kept", "dead-lettered"])
async def test_a_message_over_the_limit_is_rejected_where_the_queue_keeps_it(
    start: Start, arguments: dict[str, str]
) -> None:
    """Elsewhere a reject would delete it, and it stays with the channel; both ways the consumer goes on."""
    broker = FakeBroker(native_dead_letter=True)
    rejected: list[Settle] = []
    broker.on[Settle] = lambda peer, operation: rejected.append(operation) or True  # type: ignore[func-returns-value]
    upstream = await start(broker)
    await upstream.declare_queue("q", arguments=arguments)
    consumer = await upstream.consume("q", 1, lambda delivery: None)
    (consume,) = broker.all(Consume)
    peer = next(peer for peer in broker.peers if peer.of(Consume))
    peer.send(DeliveryTooLarge(consume.channel, consume.consumer_tag, 1, 5000, 1024, False, "", "q"))
    await until(lambda: len(broker.all(Consume)) == 2)
    assert broker.all(Cancel) == [Cancel(consume.channel, consume.consumer_tag, serial=broker.all(Cancel)[0].serial)]
    assert broker.all(Consume)[1].channel != consume.channel
    await until(lambda: consumer.state is ConsumerState.RUNNING)
    wanted = [(Settlement.REJECT, 1, 1)] if arguments else []
    await until(lambda: [(one.settlement, one.first, one.last) for one in rejected] == wanted)


async def test_a_silent_broker(broker: FakeBroker, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    upstream = await start(broker)
    monkeypatch.setattr(consumers, "ANSWER_TIMEOUT", 0.02)
    broker.put("q")
    broker.on = {Cancel: lambda peer, operation: True}
    consumer = await upstream.consume("q", 1, lambda delivery: None)
    await consumer.close()
    broker.on = {Consume: lambda peer, operation: True}
    with pytest.raises(BrokerUnavailable, match="no answer"):
        await upstream.consume("q", 1, lambda delivery: None)


async def test_closing_one_that_is_not_running(broker: FakeBroker, start: Start) -> None:
    upstream = await start(broker)
    broker.put("q")
    consumer: Consumer = await upstream.consume("q", 1, lambda delivery: None)
    broker.down = True
    broker.kill()
    await until(lambda: consumer.state is ConsumerState.DOWN)
    await consumer.close()
    assert consumer.state is ConsumerState.CLOSED


async def test_refused_at_the_start(broker: FakeBroker, start: Start) -> None:
    def refuse(peer: Peer, operation: Consume) -> bool:
        peer.close_channel(operation.channel, 403, "ACCESS_REFUSED - in exclusive use")
        return True

    broker.on[Consume] = refuse
    upstream = await start(broker)
    broker.put("q")
    with pytest.raises(AccessRefused):
        await upstream.consume("q", 1, lambda delivery: None)
    assert upstream.status().leases == 0


async def test_closing_one_that_the_broker_has_ended(broker: FakeBroker, start: Start) -> None:
    upstream = await start(broker, reconnect_min=60.0, reconnect_max=60.0)
    await upstream.declare_queue("q")
    consumer = await upstream.consume("q", 1, lambda delivery: None)
    await upstream.delete_queue("q")
    await until(lambda: consumer.state is ConsumerState.CANCELLED)
    await consumer.close()
    assert not broker.all(Cancel)


async def test_a_fault_while_it_is_started_again_does_not_end_the_trying(
    broker: FakeBroker, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    upstream = await start(broker)
    broker.put("q", b"1")
    got: list[Delivery] = []
    consumer = await upstream.consume("q", 5, got.append)
    await until(lambda: got)
    query_queue = Topology.query_queue
    faults = [RuntimeError("a fault of ours")]

    async def sometimes(self: Topology, queue: str) -> QueueInfo:
        if faults:
            raise faults.pop()
        return await query_queue(self, queue)

    monkeypatch.setattr(Topology, "query_queue", sometimes)
    broker.kill()
    await until(lambda: len(got) == 2)
    assert not faults
    await until(lambda: consumer.state is ConsumerState.RUNNING)  # the delivery may overtake the answer


async def test_another_prefetch_when_nothing_is_out(broker: FakeBroker, start: Start) -> None:
    upstream = await start(broker)
    broker.put("q", *(b"%d" % index for index in range(20)))
    got: list[Delivery] = []
    consumer = await upstream.consume("q", 3, got.append)
    await until(lambda: len(got) == 3)
    states: list[ConsumerState] = []
    consumer.on_state.append(lambda consumer: states.append(consumer.state))
    consumer.change_prefetch(5)
    assert consumer.changing
    await until(lambda: broker.all(Cancel))
    got[0].settle(Settlement.ACCEPT)
    got[1].settle(Settlement.ACCEPT)
    await asyncio.sleep(0.02)
    assert len(got) == 3, "one is out, and its channel goes on holding it"
    assert not got[2].lost
    got[2].settle(Settlement.ACCEPT)
    await until(lambda: len(got) == 8)
    assert [qos.prefetch_count for qos in broker.all(Qos)] == [3, 5]
    assert got[2].channel is not got[3].channel
    assert not consumer.changing
    assert states == []
    assert [delivery.message.body for delivery in got] == [b"%d" % index for index in range(8)]


async def test_another_prefetch_when_its_channel_is_lost(broker: FakeBroker, start: Start) -> None:
    upstream = await start(broker)
    broker.put("q", b"1", b"2")
    got: list[Delivery] = []
    consumer = await upstream.consume("q", 1, got.append)
    await until(lambda: got)
    consumer.change_prefetch(2)
    await until(lambda: broker.all(Cancel))
    broker.kill()
    await until(lambda: len(got) == 3)
    await until(lambda: consumer.state is ConsumerState.RUNNING)
    assert got[1].redelivered


async def test_another_prefetch_waits_for_more_than_settlements(broker: FakeBroker, start: Start) -> None:
    upstream = await start(broker)
    broker.put("q", b"1", b"2")
    got: list[Delivery] = []
    consumer = await upstream.consume("q", 1, got.append, no_ack=True)
    await until(lambda: got)
    low = asyncio.Event()

    async def wait() -> None:
        await low.wait()

    consumer.change_prefetch(1, wait)
    await until(lambda: broker.all(Cancel))
    await asyncio.sleep(0.02)
    assert len(got) == 1
    low.set()
    await until(lambda: len(got) == 2)


async def test_what_the_broker_forgets_is_settled(broker: FakeBroker, start: Start) -> None:
    upstream = await start(broker)
    broker.put("q", b"1")
    got: list[Delivery] = []
    consumer = await upstream.consume("q", 1, got.append, no_ack=True)
    assert [consume.no_ack for consume in broker.all(Consume)] == [True]
    await until(lambda: got)
    assert (got[0].settled, got[0].lost, consumer.out) == (True, False, 0)
    with pytest.raises(StateError):
        got[0].settle(Settlement.ACCEPT)
    await upstream.declare_queue("q", arguments={"x-dead-letter-exchange": "amq.direct"})
    (consume,) = broker.all(Consume)
    for peer in broker.peers:
        if peer.consumers:
            peer.send(DeliveryTooLarge(consume.channel, consume.consumer_tag, 2, 5000, 1024, False, "", "q"))
    await asyncio.sleep(0.05)
    assert not broker.all(Settle)
    assert consumer.state is ConsumerState.RUNNING


async def test_one_that_only_looks(broker: FakeBroker, start: Start) -> None:
    upstream = await start(broker)
    broker.put("q")
    await upstream.consume("q", 1, lambda delivery: None, acquired=False)
    assert [consume.acquired for consume in broker.all(Consume)] == [False]


async def test_cancelled_by_us_it_takes_nothing_more_and_holds_what_is_out(broker: FakeBroker, start: Start) -> None:
    upstream = await start(broker)
    broker.put("q", b"1", b"2")
    got: list[Delivery] = []
    consumer = await upstream.consume("q", 1, got.append)
    await until(lambda: got)
    await consumer.cancel()
    assert consumer.state is ConsumerState.CLOSED
    assert not got[0].lost
    got[0].settle(Settlement.ACCEPT)
    await asyncio.sleep(0.02)
    assert len(got) == 1
    await consumer.cancel()
    await consumer.close()
    assert len(broker.all(Cancel)) == 1
    assert broker.queues["q"]


async def test_cancelled_where_the_broker_does_not_answer(broker: FakeBroker, start: Start) -> None:
    upstream = await start(broker)
    broker.put("q", b"1")
    got: list[Delivery] = []
    consumer = await upstream.consume("q", 1, got.append)
    await until(lambda: got)
    broker.on[Cancel] = lambda peer, operation: True
    await consumer.cancel(0.05)
    assert got[0].lost
    await consumer.close()
