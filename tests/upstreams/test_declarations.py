"""What was declared is declared again with all of its arguments, and forgotten where it was deleted."""

from __future__ import annotations

import asyncio

import pytest

from gateway.amqp.operations import (
    BindExchange,
    BindQueue,
    CloseChannel,
    DeclareExchange,
    DeclareQueue,
    Get,
    OpenChannel,
    QueryQueue,
    UnbindExchange,
    UnbindQueue,
)
from gateway.errors import BrokerUnavailable, NotFound
from gateway.upstreams import topology
from tests.upstreams.conftest import Start
from tests.upstreams.fake import FakeBroker, Peer, bounce, until


async def test_arguments_reach_the_broker_each_time(broker: FakeBroker, start: Start) -> None:
    upstream = await start(broker)
    await upstream.declare_queue("q", arguments={"x-max-length": 5})
    await upstream.declare_exchange("e", "headers", arguments={"alternate-exchange": "f"})
    for value in ("a", "b"):
        await upstream.bind_queue("q", "e", "", {"k": value})
        await upstream.bind_exchange("e", "amq.direct", "", {"k": value})
    for _ in range(2):
        assert [each.arguments for each in broker.all(DeclareQueue)] == [{"x-max-length": 5}]
        assert [each.arguments for each in broker.all(DeclareExchange)] == [{"alternate-exchange": "f"}]
        assert [each.arguments for each in broker.all(BindQueue)] == [{"k": "a"}, {"k": "b"}]
        assert [each.arguments for each in broker.all(BindExchange)] == [{"k": "a"}, {"k": "b"}]
        await bounce(broker, upstream)


async def test_of_bindings_that_differ_by_their_arguments_each_is_undone_alone(
    broker: FakeBroker, start: Start
) -> None:
    upstream = await start(broker)
    await upstream.declare_queue("q")
    for value in ("a", "b"):
        await upstream.bind_queue("q", "amq.direct", "", {"k": value})
        await upstream.bind_exchange("e", "amq.direct", "", {"k": value})
    await upstream.bind_queue("q", "amq.direct", "")
    await upstream.unbind_queue("q", "amq.direct", "", {"k": "a"})
    await upstream.unbind_exchange("e", "amq.direct", "", {"k": "a"})
    assert [each.arguments for each in broker.all(UnbindQueue)] == [{"k": "a"}]
    assert [each.arguments for each in broker.all(UnbindExchange)] == [{"k": "a"}]
    await bounce(broker, upstream)
    assert [each.arguments for each in broker.all(BindQueue)] == [{"k": "b"}, {}]
    assert [each.arguments for each in broker.all(BindExchange)] == [{"k": "b"}]


async def test_a_deleted_exchange_takes_along_only_the_bindings_that_name_it(broker: FakeBroker, start: Start) -> None:
    upstream = await start(broker)
    for destination, source in (("e", "f"), ("g", "e"), ("g", "f")):
        await upstream.bind_exchange(destination, source, "k")
    await upstream.delete_exchange("e")
    await bounce(broker, upstream)
    assert [(each.destination, each.source) for each in broker.all(BindExchange)] == [("g", "f")]


async def test_a_deleted_queue_is_not_exclusive_any_more(broker: FakeBroker, start: Start) -> None:
    upstream = await start(broker)
    await upstream.declare_queue("q")
    await upstream.declare_queue("mine", exclusive=True)
    common, exclusive = (
        next(peer for peer in broker.peers if any(each.queue == name for each in peer.of(DeclareQueue)))
        for name in ("q", "mine")
    )
    assert common is not exclusive
    await upstream.delete_queue("mine")
    await upstream.declare_queue("mine")
    assert common.of(DeclareQueue)[-1].queue == "mine"


async def test_an_exclusive_queue_that_the_broker_named_is_asked_for_where_it_was_declared(
    broker: FakeBroker, start: Start
) -> None:
    upstream = await start(broker)
    name = (await upstream.declare_queue("", exclusive=True)).queue
    await upstream.query_queue(name)
    (peer,) = [peer for peer in broker.peers if peer.of(DeclareQueue)]
    assert [each.queue for each in peer.of(QueryQueue)] == [name]


async def test_what_was_declared_last_is_forgotten_last(
    broker: FakeBroker, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topology, "REMEMBERED", 2)
    upstream = await start(broker)
    for name in ("a", "b", "a", "c"):
        await upstream.declare_queue(name, exclusive=True)
    assert upstream._topology._ours == {"a", "c"}
    await bounce(broker, upstream)
    assert {each.queue for each in broker.all(DeclareQueue)} == {"a", "c"}


async def test_a_queue_that_was_deleted_is_not_known_any_more(broker: FakeBroker, start: Start) -> None:
    """A get from it would cost the channel, and on some brokers the connection with all leases."""
    upstream = await start(broker)
    await upstream.declare_queue("q")
    assert await upstream.fetch("q", 1) == []
    await upstream.delete_queue("q")
    asked = len(broker.all(Get))
    with pytest.raises(NotFound):
        await upstream.fetch("q", 1)
    assert len(broker.all(Get)) == asked


async def test_a_queue_is_asked_for_again_on_another_link(broker: FakeBroker, start: Start) -> None:
    """The broker may have come back without it."""
    upstream = await start(broker)
    broker.put("q")
    assert await upstream.fetch("q", 1) == []
    del broker.queues["q"]
    await bounce(broker, upstream)
    with pytest.raises(NotFound):
        await upstream.fetch("q", 1)
    assert broker.all(Get) == []


async def test_a_deleted_queue_takes_along_only_its_own_bindings(broker: FakeBroker, start: Start) -> None:
    upstream = await start(broker)
    for name in ("q", "r"):
        await upstream.declare_queue(name)
        await upstream.bind_queue(name, "amq.direct", "k")
    await upstream.delete_queue("q")
    await bounce(broker, upstream)
    assert [each.queue for each in broker.all(DeclareQueue)] == ["r"]
    assert [each.queue for each in broker.all(BindQueue)] == ["r"]


async def test_a_queue_that_was_found_to_be_gone_is_not_known(broker: FakeBroker, start: Start) -> None:
    """The next caller may be content with an older answer."""
    upstream = await start(broker)
    broker.put("q")
    await upstream._topology.check_queue("q")
    del broker.queues["q"]
    await upstream._topology.check_queue("q")
    for age in (0.0, topology.QUEUE_KNOWN):
        with pytest.raises(NotFound):
            await upstream._topology.check_queue("q", age)


async def test_requests_that_wait_for_the_link_leave_room_for_what_is_declared_again(
    broker: FakeBroker, start: Start
) -> None:
    upstream = await start(broker)
    await upstream.declare_queue("q")
    broker.down = True
    broker.kill()
    await until(lambda: upstream.reason)
    waiting = [asyncio.create_task(upstream.query_queue("q")) for _ in range(2 * topology.CHANNELS)]
    await asyncio.sleep(0)
    broker.down = False
    assert {info.queue for info in await asyncio.gather(*waiting)} == {"q"}


async def test_a_request_that_found_no_link_in_time_is_not_repeated(
    broker: FakeBroker, start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr(topology, "PATIENCE", 0.01)
    broker.down = True
    upstream = await start(broker, wait=False)
    await until(lambda: "broker.link_down" in {record.message for record in caplog.records})
    with pytest.raises(BrokerUnavailable):
        await upstream.query_queue("q")
    assert "broker.request_repeated" not in {record.message for record in caplog.records}


@pytest.mark.parametrize("kind", [OpenChannel, QueryQueue])
async def test_a_channel_without_an_answer_makes_room_for_another(
    start: Start, monkeypatch: pytest.MonkeyPatch, kind: type
) -> None:
    broker = FakeBroker(channel_max=1)
    upstream = await start(broker)
    broker.put("q")
    broker.on[kind] = lambda peer, operation: True
    with monkeypatch.context() as patched:
        patched.setattr(topology, "ANSWER_TIMEOUT", 0.02)
        with pytest.raises(BrokerUnavailable, match="no answer"):
            await upstream.query_queue("q")
    link = upstream._keepers["ask"].link
    assert link is not None
    await until(lambda: not link.channels)
    assert len(broker.all(CloseChannel)) == 1
    del broker.on[kind]
    assert (await upstream.query_queue("q")).queue == "q"


async def test_a_question_is_asked_once_where_the_link_lives(broker: FakeBroker, start: Start) -> None:
    asked: list[QueryQueue] = []

    def refuse(peer: Peer, operation: QueryQueue) -> bool:
        asked.append(operation)
        peer.close_channel(operation.channel, 404, "NOT_FOUND")
        return True

    upstream = await start(broker)
    broker.on[QueryQueue] = refuse
    with pytest.raises(NotFound):
        await upstream.query_queue("q")
    assert len(asked) == 1
