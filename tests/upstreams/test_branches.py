"""Branches of distributed transactions: two phases at Broker-J and at the embedded broker, and what they answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any
from uuid import uuid4

import pytest

from gateway.amqp.message import Message, Properties
from gateway.amqp.operations import Confirmed, Flow, Operation, Refused, Settlement, XaStatus, Xid
from gateway.broker.server import EmbeddedBroker
from gateway.config import BrokerSettings, EmbeddedSettings
from gateway.errors import BrokerUnavailable, LimitExceeded, NotFound, PublishRefused, RemoteError, Unsupported
from gateway.link import Channel
from gateway.upstreams import BranchOutcome, Upstream, UpstreamBranch
from gateway.upstreams import branches as module
from gateway.upstreams.branches import COMMITTED, HEURISTIC, UNDONE, BranchLane
from gateway.upstreams.publishing.receipts import ROUTED
from tests.servers import BrokerJ


def xid() -> Xid:
    """One that nobody has."""
    return Xid(7, uuid4().bytes, b"test")


def message(text: bytes = b"x") -> Message:
    """One that is to survive a restart."""
    return Message(text, Properties(delivery_mode=2))


async def opened(url: str, **settings: Any) -> Upstream:
    """An upstream that is up."""
    upstream = Upstream("b", BrokerSettings(url=url, reconnect_min=0.02, reconnect_max=0.2, **settings))
    await upstream.start()
    assert await upstream.wait_up(60), upstream.reason
    return upstream


async def work(upstream: Upstream, name: Xid, *queues: str, prepare: bool = True) -> UpstreamBranch:
    """A branch with a message to each queue."""
    branch = await upstream.branches.worker().begin(name, "")
    await branch.started()
    await branch.room()
    futures = [branch.publish("", queue, message(queue.encode())) for queue in queues]
    await branch.end()
    assert all(future.result().routed for future in futures)
    if prepare:
        await branch.prepare()
    return branch


async def depth(upstream: Upstream, queue: str) -> int:
    """How many messages are ready."""
    return (await upstream.query_queue(queue)).message_count


async def bodies(upstream: Upstream, queue: str) -> list[bytes]:
    """Everything in a queue, taken out of it."""
    found = await upstream.fetch(queue, 100, 1.0)
    for delivery in found:
        delivery.settle(Settlement.ACCEPT)
    return [delivery.message.body for delivery in found]


@pytest.fixture(params=["embedded", pytest.param("brokerj", marks=pytest.mark.broker)])
async def upstream(request: pytest.FixtureRequest) -> AsyncIterator[Upstream]:
    """A broker of version 0-10."""
    embedded: EmbeddedBroker | None = None
    if request.param == "embedded":
        embedded = EmbeddedBroker(EmbeddedSettings(enabled=True, port=0))
        await embedded.start()
        url = f"amqp://guest:guest@127.0.0.1:{embedded.port}/?version=0-10"
    else:
        server: BrokerJ = request.getfixturevalue("brokerj")
        url = server.url("0-10")
    upstream = await opened(url)
    yield upstream
    await upstream.close(0.0)
    if embedded is not None:
        await embedded.stop()


@pytest.fixture
async def queues(upstream: Upstream) -> AsyncIterator[tuple[str, str]]:
    """Two queues."""
    names = f"q-{uuid4().hex}", f"q-{uuid4().hex}"
    for name in names:
        await upstream.declare_queue(name)
    yield names
    for name in names:
        await upstream.delete_queue(name)


async def test_two_phases_over_two_queues(upstream: Upstream, queues: tuple[str, str]) -> None:
    name = xid()
    branch = await work(upstream, name, *queues)
    assert name in await upstream.branches.recover()
    assert [await depth(upstream, queue) for queue in queues] == [0, 0]
    assert upstream.branches.pending == 2
    assert await branch.commit() is BranchOutcome.DONE
    assert upstream.branches.pending == 0
    assert [await bodies(upstream, queue) for queue in queues] == [[queue.encode()] for queue in queues]
    assert name not in await upstream.branches.recover()


@pytest.mark.parametrize("prepared", [False, True])
async def test_a_rollback(upstream: Upstream, queues: tuple[str, str], prepared: bool) -> None:
    branch = await work(upstream, name := xid(), *queues, prepare=prepared)
    assert await branch.rollback() is BranchOutcome.DONE
    assert [await depth(upstream, queue) for queue in queues] == [0, 0]
    assert name not in await upstream.branches.recover()
    again = await work(upstream, name, queues[0])  # the broker has forgotten it
    assert await again.rollback() is BranchOutcome.DONE


@pytest.mark.parametrize("verb", ["commit", "rollback"])
async def test_the_channel_that_prepared_it_is_gone(upstream: Upstream, queues: tuple[str, str], verb: str) -> None:
    branch = await work(upstream, name := xid(), *queues)
    branch.abandon()
    assert not branch.usable
    assert await getattr(upstream.branches, verb)(name) is BranchOutcome.DONE
    assert await getattr(upstream.branches, verb)(name) is BranchOutcome.GONE
    assert await getattr(upstream.branches, verb)(name) is BranchOutcome.GONE
    there = 1 if verb == "commit" else 0
    assert [len(await bodies(upstream, queue)) for queue in queues] == [there, there]


async def test_the_connection_that_prepared_it_is_gone(upstream: Upstream, queues: tuple[str, str]) -> None:
    await work(upstream, name := xid(), *queues)
    link = upstream._keepers["publish"].link
    assert link is not None
    assert link.stream is not None
    link.stream.abort()
    await asyncio.wait([link._over])
    with pytest.raises(BrokerUnavailable):
        await upstream.branches.recover()
    while upstream._keepers["publish"].link in (None, link):
        await asyncio.sleep(0.01)
    assert await upstream.wait_up(30)
    assert name in await upstream.branches.recover()
    assert await upstream.branches.commit(name) is BranchOutcome.DONE
    assert [await bodies(upstream, queue) for queue in queues] == [[queue.encode()] for queue in queues]


async def test_a_branch_that_has_not_ended_is_undone_when_its_channel_is_gone(
    upstream: Upstream, queues: tuple[str, str]
) -> None:
    branch = await upstream.branches.worker().begin(name := xid(), "")
    await branch.started()
    await branch.publish("", queues[0], message())
    with pytest.raises(RemoteError):
        await upstream.branches.rollback(name)
    branch.abandon()
    await asyncio.sleep(0.3)
    assert await upstream.branches.rollback(name) in (BranchOutcome.DONE, BranchOutcome.GONE)
    assert await depth(upstream, queues[0]) == 0


async def test_what_nobody_takes_is_no_part_of_it(upstream: Upstream, queues: tuple[str, str]) -> None:
    branch = await upstream.branches.worker().begin(xid(), "")
    await branch.started()
    futures = [branch.publish("", name, message()) for name in (queues[0], f"none-{uuid4().hex}", queues[0])]
    await branch.end()
    assert [future.result().routed for future in futures] == [True, False, True]
    await branch.prepare()
    assert await branch.commit() is BranchOutcome.DONE
    assert len(await bodies(upstream, queues[0])) == 2


async def test_what_cannot_be_written_is_no_part_of_it(upstream: Upstream, queues: tuple[str, str]) -> None:
    branch = await upstream.branches.worker().begin(xid(), "")
    await branch.started()
    bad = branch.publish("", "r" * 300, message())
    good = branch.publish("", queues[0], message())
    await branch.end()
    assert bad.exception() is not None
    assert good.result().routed
    await branch.prepare()
    assert await branch.commit() is BranchOutcome.DONE
    assert len(await bodies(upstream, queues[0])) == 1


async def test_one_after_the_other_by_one_worker(upstream: Upstream, queues: tuple[str, str]) -> None:
    worker = upstream.branches.worker()
    for number in range(5):
        branch = await worker.begin(xid(), "")
        await branch.started()
        branch.publish("", queues[0], message(b"%d" % number))
        await branch.end()
        await branch.prepare()
        assert await (branch.rollback() if number == 2 else branch.commit()) is BranchOutcome.DONE
    worker.rest()
    assert await bodies(upstream, queues[0]) == [b"0", b"1", b"3", b"4"]


async def test_the_exchange_is_asked_for(upstream: Upstream) -> None:
    worker = upstream.branches.worker()
    with pytest.raises(NotFound):
        await worker.begin(xid(), f"none-{uuid4().hex}")
    exchange = f"x-{uuid4().hex}"
    await upstream.declare_exchange(exchange, "fanout")
    branch = await worker.begin(name := xid(), exchange)
    await branch.started()
    await upstream.delete_exchange(exchange)
    await branch.end()
    assert await branch.rollback() is BranchOutcome.DONE
    branch = await worker.begin(name, exchange)  # known for some seconds
    await branch.started()
    await branch.end()
    assert await branch.rollback() is BranchOutcome.DONE


async def test_an_exchange_is_asked_for_again_on_another_channel(upstream: Upstream) -> None:
    """It may be why the last one ended."""
    worker = upstream.branches.worker()
    exchange = f"x-{uuid4().hex}"
    await upstream.declare_exchange(exchange, "fanout")
    branch = await worker.begin(xid(), exchange)
    await branch.started()
    worker.rest()
    await upstream.delete_exchange(exchange)
    with pytest.raises(NotFound):
        await worker.begin(xid(), exchange)


async def test_one_exchange_is_remembered(upstream: Upstream) -> None:
    """So that a bridge to many exchanges keeps nothing of each."""
    worker = upstream.branches.worker()
    exchanges = [f"x-{uuid4().hex}" for _ in range(2)]
    for exchange in exchanges:
        await upstream.declare_exchange(exchange, "fanout")
        branch = await worker.begin(xid(), exchange)
        await branch.started()
        await branch.end()
        assert await branch.rollback() is BranchOutcome.DONE
    for exchange in exchanges:
        await upstream.delete_exchange(exchange)
    with pytest.raises(NotFound):
        await worker.begin(xid(), exchanges[0])


async def test_a_body_over_the_limit(upstream: Upstream) -> None:
    upstream.branches.message_max = 10
    worker = upstream.branches.worker()
    worker.check(message(b"x" * 10))
    with pytest.raises(LimitExceeded):
        worker.check(message(b"x" * 11))


async def test_another_version_has_none(upstream: Upstream) -> None:
    other = await opened(upstream.settings.url.replace("0-10", "0-9-1"))
    with pytest.raises(Unsupported, match="0-9-1"):
        await other.branches.recover()
    await other.close(0.0)
    with pytest.raises(BrokerUnavailable, match="closed"):
        await other.branches.recover()


async def test_no_answer(upstream: Upstream, monkeypatch: pytest.MonkeyPatch) -> None:
    await upstream.branches.recover()
    monkeypatch.setattr(module, "ANSWER_TIMEOUT", 0.05)
    monkeypatch.setattr(Channel, "receive", lambda channel, operation: None)
    with pytest.raises(BrokerUnavailable, match="no answer within"):
        await upstream.branches.recover()
    with pytest.raises(BrokerUnavailable, match="no answer within"):
        await upstream.branches.worker().begin(xid(), "")


async def test_a_broker_that_wants_nothing_at_present(upstream: Upstream, queues: tuple[str, str]) -> None:
    branch = await upstream.branches.worker().begin(xid(), "")
    await branch.started()
    branch._lane.receive(Flow(branch._lane.number, False))
    room = asyncio.create_task(branch.room())
    await asyncio.sleep(0.1)
    assert not room.done()
    branch._lane.receive(Flow(branch._lane.number, True))
    await room
    future = branch.publish("", queues[0], message())
    branch._lane.receive(Refused(branch._lane.number, *([next(iter(branch._lane._pending))] * 2), 506, "full"))
    with pytest.raises(PublishRefused, match="506 full"):
        await future
    await branch.end()
    assert await branch.rollback() is BranchOutcome.DONE


async def test_publishes_without_an_outcome_when_the_channel_dies(upstream: Upstream, queues: tuple[str, str]) -> None:
    branch = await upstream.branches.worker().begin(xid(), "")
    await branch.started()
    future = branch.publish("", queues[0], message())
    branch._lane.end(RemoteError(541, "no"))
    assert future.cancelled()
    with pytest.raises(RemoteError, match="no"):
        branch.publish("", queues[0], message())


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> list[Confirmed]:
    """Confirms of publishes in branches, which do not arrive."""
    held: list[Confirmed] = []
    receive = BranchLane.receive

    def instead(lane: BranchLane, operation: Operation) -> None:
        if isinstance(operation, Confirmed) and operation.first in lane._pending:
            held.append(operation)
        else:
            receive(lane, operation)

    monkeypatch.setattr(BranchLane, "receive", instead)
    return held


async def ending(branch: UpstreamBranch) -> asyncio.Task[None]:
    """Begin to end a branch; return when the broker has answered that."""
    end = asyncio.create_task(branch.end())
    await asyncio.sleep(0)
    while branch._lane._requests:
        await asyncio.sleep(0.01)
    await asyncio.sleep(0)
    return end


async def test_confirms_that_come_after_the_answer_to_the_end(
    upstream: Upstream, queues: tuple[str, str], held: list[Confirmed]
) -> None:
    branch = await upstream.branches.worker().begin(xid(), "")
    await branch.started()
    future = branch.publish("", queues[0], message())
    end = await ending(branch)
    assert not end.done()
    while not held:
        await asyncio.sleep(0.01)
    branch._lane._resolve(held[0], ROUTED)
    await end
    assert future.result().routed
    assert await branch.rollback() is BranchOutcome.DONE


@pytest.mark.usefixtures("held")
async def test_a_publish_that_is_never_confirmed(
    upstream: Upstream, queues: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    branch = await upstream.branches.worker().begin(xid(), "")
    await branch.started()
    branch.publish("", queues[0], message())
    end = asyncio.create_task(branch.end())
    await asyncio.sleep(0)
    monkeypatch.setattr(module, "ANSWER_TIMEOUT", 0.05)
    with pytest.raises(BrokerUnavailable, match="1 publishes were not confirmed"):
        await end
    branch.abandon()


@pytest.mark.usefixtures("held")
async def test_the_channel_dies_before_a_publish_is_confirmed(upstream: Upstream, queues: tuple[str, str]) -> None:
    branch = await upstream.branches.worker().begin(xid(), "")
    await branch.started()
    future = branch.publish("", queues[0], message())
    end = await ending(branch)
    branch._lane.end(RemoteError(541, "no"))
    with pytest.raises(RemoteError, match="no"):
        await end
    assert future.cancelled()


def test_every_status_says_what_became_of_it() -> None:
    assert set(COMMITTED) == set(UNDONE) == set(XaStatus)
    assert set(HEURISTIC) <= set(XaStatus)


@pytest.mark.broker
async def test_what_was_prepared_survives_the_broker(private_server: Callable[[str], Any]) -> None:
    """SIGKILL between prepare and commit: one branch is committed afterwards, one rolled back."""
    server = private_server("brokerj")
    upstream = await opened(server.url("0-10"))
    kept, undone, unprepared = f"q-{uuid4().hex}", f"q-{uuid4().hex}", f"q-{uuid4().hex}"
    for queue in (kept, undone, unprepared):
        await upstream.declare_queue(queue)
    names = xid(), xid(), xid()
    await work(upstream, names[0], kept, kept)
    await work(upstream, names[1], undone)
    await work(upstream, names[2], unprepared, prepare=False)
    await asyncio.to_thread(server.kill)
    await asyncio.to_thread(server.restart)
    assert await upstream.wait_up(60)
    assert set(names[:2]) == set(await upstream.branches.recover())
    assert await upstream.branches.commit(names[0]) is BranchOutcome.DONE
    assert await upstream.branches.rollback(names[1]) is BranchOutcome.DONE
    assert await upstream.branches.rollback(names[2]) is BranchOutcome.GONE
    assert await bodies(upstream, kept) == [kept.encode()] * 2
    assert await bodies(upstream, undone) == await bodies(upstream, unprepared) == []
    await upstream.close(0.0)
