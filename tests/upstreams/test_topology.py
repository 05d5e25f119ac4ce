"""Queues, exchanges and bindings: the broker's no costs nobody else anything, and what was declared comes back."""

from __future__ import annotations

import asyncio

import pytest

from gateway.amqp.operations import (
    BindingFound,
    CloseChannel,
    DeclareQueue,
    OpenChannel,
    Operation,
    QueryBinding,
    QueryQueue,
)
from gateway.errors import BrokerUnavailable, NotFound, Overloaded, PreconditionFailed, RemoteError, Unsupported
from gateway.upstreams import UpstreamState, topology
from gateway.upstreams.topology import QueueInfo
from tests.upstreams.conftest import Start
from tests.upstreams.fake import FakeBroker, FakeSession, Peer, bounce, until


async def test_declare_query_purge_delete(broker: FakeBroker, start: Start) -> None:
    upstream = await start(broker)
    assert await upstream.declare_queue("q", arguments={"x": 1}) == QueueInfo("q", 0, 0, None, None)
    broker.put("q", b"1", b"2")
    assert (await upstream.query_queue("q")).message_count == 2
    assert await upstream.purge_queue("q") == 2
    assert await upstream.delete_queue("q") == 0
    with pytest.raises(NotFound, match="no queue 'q'"):
        await upstream.query_queue("q")


async def test_exchanges_and_bindings(broker: FakeBroker, start: Start) -> None:
    upstream = await start(broker)
    await upstream.declare_queue("q")
    await upstream.declare_exchange("e", "topic")
    assert (await upstream.query_exchange("e")).exchange == "e"
    await upstream.bind_queue("q", "e", "k")
    assert broker.bindings == {("q", "e", "k")}
    await upstream.unbind_queue("q", "e", "k")
    assert broker.bindings == set()
    await upstream.bind_exchange("e", "amq.direct", "k")
    await upstream.unbind_exchange("e", "amq.direct", "k")
    await upstream.delete_exchange("e")
    with pytest.raises(NotFound):
        await upstream.query_exchange("e")

    def found(peer: Peer, operation: QueryBinding) -> bool:
        peer.send(BindingFound(operation.channel, operation.serial, operation.serial))
        return True

    broker.on[QueryBinding] = found
    assert (await upstream.query_binding("amq.direct", "q")).matched


async def test_more_requests_at_once_than_the_broker_allows_channels(start: Start) -> None:
    """Who finds none may come again; that is no limit that the request itself is over."""
    broker = FakeBroker(channel_max=2)
    upstream = await start(broker)
    results = await asyncio.gather(*(upstream.query_queue(f"q{number}") for number in range(5)), return_exceptions=True)
    assert {type(result) for result in results} == {NotFound, Overloaded}
    with pytest.raises(NotFound):
        await upstream.query_queue("q")


async def test_a_refusal_costs_only_its_own_channel(broker: FakeBroker, start: Start) -> None:
    upstream = await start(broker)
    await upstream.declare_queue("q")
    results = await asyncio.gather(
        *(upstream.query_queue(name) for name in ("q", "missing", "q", "lost", "q")), return_exceptions=True
    )
    assert [type(result) for result in results] == [QueueInfo, NotFound, QueueInfo, NotFound, QueueInfo]
    assert broker.connections == 3


async def test_channels_are_used_again(broker: FakeBroker, start: Start) -> None:
    upstream = await start(broker)
    for _ in range(5):
        await upstream.declare_queue("q")
    assert len(broker.all(OpenChannel)) == 1


async def test_a_channel_is_used_again_after_a_request_that_was_never_sent(
    broker: FakeBroker, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What this version cannot say costs no channel: else they would all be open before long, and used by nobody."""
    upstream = await start(broker)
    send = FakeSession.send

    def unknown(self: FakeSession, operation: Operation, now: float) -> int:
        if isinstance(operation, QueryBinding):
            raise Unsupported("this version has no such question")
        return send(self, operation, now)

    monkeypatch.setattr(FakeSession, "send", unknown)
    for _ in range(5):
        with pytest.raises(Unsupported):
            await upstream.query_binding("amq.direct", "q")
    await upstream.declare_queue("q")
    assert len(broker.all(OpenChannel)) == 1


async def test_a_question_that_costs_the_connection_costs_only_who_asked(broker: FakeBroker, start: Start) -> None:
    upstream = await start(broker)
    await upstream.declare_queue("q")
    broker.put("q", b"1")
    (delivery,) = await upstream.fetch("q", 1)
    gate = asyncio.Event()

    def slow(peer: Peer, operation: QueryQueue) -> bool:
        return not gate.is_set()  # never answered before the gate opens

    broker.on[QueryQueue] = slow
    patient = [asyncio.create_task(upstream.query_queue("q")) for _ in range(3)]
    await asyncio.sleep(0.02)
    gate.set()
    with pytest.raises(RemoteError, match="503"):
        await upstream.declare_exchange("e", "nonsense")
    assert [info.queue for info in await asyncio.gather(*patient)] == ["q"] * 3
    assert not delivery.lost
    assert upstream.state is UpstreamState.UP


async def test_what_was_declared_is_restored(broker: FakeBroker, start: Start) -> None:
    upstream = await start(broker)
    await upstream.declare_queue("q")
    await upstream.declare_queue("gone")
    await upstream.declare_exchange("e")
    await upstream.bind_queue("q", "e", "k")
    await upstream.bind_queue("gone", "e", "k")
    await upstream.delete_queue("gone")
    broker.queues.clear()
    broker.exchanges = {""}
    broker.bindings.clear()
    await bounce(broker, upstream)
    assert set(broker.queues) == {"q"}
    assert broker.exchanges == {"", "e"}
    assert broker.bindings == {("q", "e", "k")}


async def test_a_conflict_at_the_restore_is_logged_and_left(
    broker: FakeBroker, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    upstream = await start(broker)
    await upstream.declare_queue("q")

    def refuse(peer: Peer, operation: DeclareQueue) -> bool:
        peer.close_channel(operation.channel, 406, "PRECONDITION_FAILED - inequivalent arg 'durable'")
        return True

    broker.on[DeclareQueue] = refuse
    with pytest.raises(PreconditionFailed):
        await upstream.declare_queue("q", durable=False)
    await bounce(broker, upstream)
    (record,) = [record for record in caplog.records if record.message == "broker.not_restored"]
    assert "inequivalent" in record.gateway_fields["reason"]  # type: ignore[attr-defined]


async def test_exclusive_queues_live_on_the_link_that_consumes(broker: FakeBroker, start: Start) -> None:
    upstream = await start(broker)
    await upstream.declare_queue("mine", exclusive=True)
    await upstream.declare_exchange("e")
    await upstream.bind_queue("mine", "e", "k")
    await upstream.query_queue("mine")
    (peer,) = [peer for peer in broker.peers if peer.of(DeclareQueue)]
    assert peer.of(QueryQueue)
    broker.put("mine", b"1")
    await upstream.fetch("mine", 1)
    assert peer.outstanding
    broker.queues.clear()
    broker.bindings.clear()
    await bounce(broker, upstream)
    assert "mine" in broker.queues
    assert broker.bindings == {("mine", "e", "k")}
    await upstream.delete_queue("mine")


async def test_what_is_remembered_is_bounded(broker: FakeBroker, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topology, "REMEMBERED", 3)
    upstream = await start(broker)
    for index in range(5):
        await upstream.declare_queue(f"q{index}", exclusive=True)
    broker.queues.clear()
    await bounce(broker, upstream)
    assert set(broker.queues) == {"q2", "q3", "q4"}


async def test_without_a_link(broker: FakeBroker, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topology, "PATIENCE", 0.01)
    monkeypatch.setattr("gateway.upstreams.upstream.PATIENCE", 0.01)
    broker.down = True
    upstream = await start(broker, wait=False)
    with pytest.raises(BrokerUnavailable):
        await upstream.query_queue("q")
    with pytest.raises(BrokerUnavailable):
        await upstream.fetch("q", 1)
    with pytest.raises(BrokerUnavailable):
        await upstream.consume("q", 1, lambda delivery: None)


async def test_no_answer(broker: FakeBroker, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    upstream = await start(broker)
    monkeypatch.setattr(topology, "ANSWER_TIMEOUT", 0.02)
    broker.on[QueryQueue] = lambda peer, operation: True
    with pytest.raises(BrokerUnavailable, match="no answer"):
        await upstream.query_queue("q")
    broker.on[OpenChannel] = lambda peer, operation: True
    with pytest.raises(BrokerUnavailable, match="no answer"):
        await upstream.query_queue("q")


async def test_who_stops_waiting_leaves_no_channel_behind(broker: FakeBroker, start: Start) -> None:
    upstream = await start(broker)
    broker.on[QueryQueue] = lambda peer, operation: True
    task = asyncio.create_task(upstream.query_queue("q"))
    await until(lambda: broker.all(QueryQueue))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(lambda: broker.all(CloseChannel))
    del broker.on[QueryQueue]
    await upstream.declare_queue("q")
    assert len(broker.all(OpenChannel)) == 2


async def test_an_idle_channel_that_died_is_not_used(broker: FakeBroker, start: Start) -> None:
    upstream = await start(broker)
    await upstream.declare_queue("q")
    peer = next(peer for peer in broker.peers if peer.of(DeclareQueue))
    peer.close_channel(peer.of(OpenChannel)[0].channel, 541, "INTERNAL_ERROR")
    await asyncio.sleep(0.01)
    assert (await upstream.query_queue("q")).queue == "q"


async def test_a_deleted_exchange_takes_its_bindings_along(broker: FakeBroker, start: Start) -> None:
    upstream = await start(broker)
    await upstream.declare_queue("q")
    await upstream.declare_exchange("e")
    await upstream.bind_queue("q", "e", "k")
    await upstream.bind_queue("q", "amq.direct", "k")
    await upstream.bind_exchange("e", "amq.direct", "k")
    await upstream.delete_exchange("e")
    broker.bindings.clear()
    await bounce(broker, upstream)
    assert broker.bindings == {("q", "amq.direct", "k")}
    assert "e" not in broker.exchanges


async def test_what_is_passive_or_named_by_the_broker_is_not_remembered(broker: FakeBroker, start: Start) -> None:
    upstream = await start(broker)
    await upstream.declare_queue("", exclusive=True)
    await upstream.declare_queue("seen", passive=True)
    await upstream.declare_exchange("seen", passive=True)
    broker.queues.clear()
    broker.exchanges = {""}
    await bounce(broker, upstream)
    assert not broker.queues
    assert broker.exchanges == {""}


async def test_memory_of_what_exists_is_bounded(
    broker: FakeBroker, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topology, "REMEMBERED", 2)
    upstream = await start(broker)
    known: list[set[str]] = []
    for name in ("a", "b", "c"):
        broker.put(name)
        await upstream.fetch(name, 1)
        known.append(set(upstream._topology._known))
    assert known == [{"a"}, {"a", "b"}, {"c"}]
