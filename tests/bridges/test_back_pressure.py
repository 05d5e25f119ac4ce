"""What stands in a bridge's way: it waits, says why, loses nothing, and goes on by itself."""

from __future__ import annotations

import asyncio
import sqlite3
from typing import Any

import pytest

from gateway.amqp.message import Message, Properties
from gateway.bridges import bridge as bridge_module
from gateway.bridges.bridge import Bridge
from gateway.ledger.db import engine
from gateway.upstreams import QueueInfo, Upstream
from tests.bridges.conftest import Estate, entry, until


def numbers(came: list[object]) -> list[int]:
    return [int(delivery.message.body) for delivery in came]  # type: ignore[attr-defined]


async def test_the_target_is_gone_and_comes_back(estate: Estate) -> None:
    await estate.bridge(prefetch=10)
    await estate.fill(20)
    await estate.wait_for(forwarded=20)
    await estate.away("new")
    await estate.wait_for(state="error", reason=lambda text: "target broker: new is down" in text)
    await estate.fill(20)
    status = await estate.wait_for(in_flight=10)
    assert status.state == "error"
    await estate.back("new")
    assert numbers(await estate.take(40)) == list(range(1, 41))
    status = await estate.wait_for(state="running", in_flight=0, forwarded=40)
    assert (status.resent, status.dead_lettered) == (0, 0)


async def test_a_fault_is_told_apart_from_a_pause(estate: Estate) -> None:
    def told(name: str) -> float | None:
        return estate.metrics.registry.get_sample_value(f"amqpgw_bridge_{name}", {"bridge": "b"})

    await estate.bridge()
    await estate.wait_for(state="running")
    assert (told("up"), told("fault"), told("oldest_seconds")) == (1, 0, 0)
    await estate.away("new")
    await estate.fill(3)
    await estate.wait_for(state="error", in_flight=3)
    await asyncio.sleep(0.05)
    assert (told("up"), told("fault")) == (0, 1)
    assert (told("oldest_seconds") or 0) >= 0.04, "messages wait, and are safe at the source"
    await estate.bridges.pause("b")
    await estate.wait_for(state="paused")
    assert (told("up"), told("fault")) == (0, 0), "somebody wanted that"
    await estate.back("new")
    await estate.bridges.resume("b")
    await estate.wait_for(state="running", in_flight=0, forwarded=3)
    assert (told("up"), told("fault"), told("oldest_seconds")) == (1, 0, 0)


async def test_the_depth_of_its_source_is_asked_for_once_a_second(
    estate: Estate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However often somebody looks."""
    real, asked = Upstream.query_queue, 0

    async def query(self: Upstream, *arguments: Any, **options: Any) -> QueueInfo:
        nonlocal asked
        asked += 1
        return await real(self, *arguments, **options)

    monkeypatch.setattr(Upstream, "query_queue", query)
    monkeypatch.setattr(bridge_module, "ASK_EVERY", 60.0)
    await estate.bridge()
    await estate.wait_for(state="running")
    assert (before := asked) > 0
    for _ in range(3):
        await estate.status()
    assert asked == before


async def test_the_source_is_gone_and_comes_back(estate: Estate) -> None:
    await estate.bridge()
    await estate.fill(20)
    await estate.wait_for(forwarded=20, in_flight=0)
    await estate.away("old")
    await estate.wait_for(state="error", reason=lambda text: text.startswith("source"))
    await estate.back("old")
    await estate.wait_for(state="running")
    assert await estate.old.wait_up(30)
    await estate.fill(20)
    assert numbers(await estate.take(40)) == list(range(1, 41))


async def test_redeliveries_share_the_outcome_of_what_is_under_way(estate: Estate) -> None:
    """The source is cut while publishes are without an outcome: they are not published a second time."""
    await estate.bridge()
    await estate.wait_for(state="running")
    flow = estate.bridges._here["b"]._flow
    assert flow is not None
    held: asyncio.Event = asyncio.Event()
    record = flow._journal.record

    async def slow(*arguments: object) -> None:
        await held.wait()
        await record(*arguments)  # type: ignore[arg-type]

    flow._journal.record = slow  # type: ignore[method-assign]
    await estate.fill(10)
    await until(lambda: len(flow.deduplicator) == 10)
    await estate.away("old")
    await estate.wait_for(state="error")
    await estate.back("old")
    await estate.wait_for(state="running")
    await until(lambda: all(not item.delivery.lost for item in flow.deduplicator._under_way.values()))
    held.set()
    status = await estate.wait_for(forwarded=10, in_flight=0, source_messages=0)
    assert (status.taken, status.resent, status.duplicates_dropped) == (20, 0, 0)
    await estate.take(10)


async def test_the_queue_is_deleted_under_the_bridge(estate: Estate) -> None:
    await estate.bridge()
    await estate.wait_for(state="running")
    await estate.old.delete_queue("in")
    await estate.wait_for(state="error", reason=lambda text: "source" in text)
    await estate.old.declare_queue("in")
    await estate.fill(3)
    await estate.take(3)
    await estate.wait_for(state="running")


async def test_a_source_queue_that_comes_later(estate: Estate) -> None:
    await estate.bridge(source={"broker": "old", "queue": "later"})
    await estate.wait_for(state="error", reason=lambda text: "later" in text)
    await estate.old.declare_queue("later")
    await estate.fill(3, "later")
    await estate.take(3)
    await estate.wait_for(state="running")


async def test_the_target_blocks_publishers(estate: Estate) -> None:
    await estate.bridge(prefetch=5)
    memory = estate.brokers["new"].broker.memory
    await estate.new.declare_queue("junk")
    await estate.new.publish("", "junk", Message(b"x" * 1_000_000, Properties()))
    memory.limit, memory.alarm = 1 << 20, memory.used
    await estate.fill(30)
    await estate.wait_for(state="error", reason=lambda text: "new is blocked" in text)
    await asyncio.sleep(0.2)
    assert await estate.gateway_refused() < 30
    await estate.new.purge_queue("junk")
    assert sorted(numbers(await estate.take(30))) == list(range(1, 31))
    status = await estate.wait_for(state="running", forwarded=30)
    assert status.dead_lettered == 0


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Locks are waited for a moment only."""
    monkeypatch.setattr(engine, "BUSY_TIMEOUT", 0.1)


@pytest.mark.usefixtures("impatient")
async def test_the_ledger_is_locked(estate: Estate) -> None:
    await estate.bridge(prefetch=5)
    await estate.wait_for(state="running")
    lock = sqlite3.connect(estate.path / "ledger.db", isolation_level=None)
    lock.execute("BEGIN EXCLUSIVE")
    await estate.fill(20)
    await estate.wait_for(state="error", reason=lambda text: "ledger" in text)
    assert (await estate.status()).in_flight == 5, "nothing is acknowledged that is not recorded"
    assert await estate.depth() == 15
    lock.execute("ROLLBACK")
    lock.close()
    assert numbers(await estate.take(20)) == list(range(1, 21))
    await estate.wait_for(state="running", forwarded=20, resent=0)


async def test_an_outcome_that_hangs_holds_up_no_other(estate: Estate) -> None:
    """One publish never gets an outcome: it is sent again, marked, and the others are done long before."""
    await estate.bridge()
    await estate.wait_for(state="running")
    publish = estate.new.publish_nowait
    hung: list[asyncio.Future[object]] = []

    def once(exchange: str, key: str, message: Message, **options: object) -> object:
        if message.body == b"5" and not hung:
            hung.append(asyncio.get_running_loop().create_future())
            return hung[0]
        return publish(exchange, key, message, **options)  # type: ignore[arg-type]

    estate.new.publish_nowait = once  # type: ignore[assignment,method-assign]
    await estate.fill(20)
    await estate.wait_for(forwarded=19, in_flight=1)
    from gateway.errors import OutcomeUnknown

    hung[0].set_exception(OutcomeUnknown("no confirm came in time"))
    await estate.wait_for(forwarded=20, in_flight=0)
    came = await estate.take(20)
    assert [entry(delivery).get("resent") for delivery in came if delivery.message.body == b"5"] == ["1"]
    assert sum("resent" in entry(delivery) for delivery in came) == 1


async def test_octets_are_bounded(estate: Estate) -> None:
    await estate.fill(60, size=20_000)
    await estate.new.delete_queue("out")
    await estate.bridge(prefetch_octets=1 << 16)
    await estate.wait_for(state="error")
    await asyncio.sleep(0.3)
    assert (await estate.status()).octets <= 2 * (1 << 16) + 20_010
    await estate.new.declare_queue("out")
    assert [int(delivery.message.body.rstrip(b"x")) for delivery in await estate.take(60)] == list(range(1, 61))
    await estate.wait_for(forwarded=60, in_flight=0, state="running")
    consumer = estate.bridges._here["b"]._consumer
    assert consumer is not None
    assert 1 <= consumer.prefetch <= 5


async def test_the_prefetch_grows_again(estate: Estate, monkeypatch: pytest.MonkeyPatch) -> None:
    from gateway.bridges import bridge as bridges

    monkeypatch.setattr(bridges, "GROW_EVERY", 0.2)
    await estate.bridge(prefetch_octets=1 << 16, prefetch=200)
    await estate.fill(60, size=20_000)
    await estate.take(60)
    consumer = estate.bridges._here["b"]._consumer
    assert consumer is not None
    assert consumer.prefetch < 200
    for _ in range(20):
        await estate.fill(20)
        await estate.take(20)
        await asyncio.sleep(0.05)
    await until(lambda: consumer.prefetch == 200)
    await estate.fill(20)
    await estate.take(20)


async def test_a_message_over_the_sources_limit_is_told_of(estate: Estate) -> None:
    await estate.close_gateway()
    await estate.open_gateway({"old": "0-9-1", "new": "0-9-1"}, message_max=1_000)
    await estate.bridge()
    estate.old._publisher._body_max = estate.old._publisher._message_max = 1 << 20
    await estate.fill(1)
    await estate.fill(1, size=5_000)
    await estate.fill(1)
    assert numbers(await estate.take(2)) == [1, 3]
    status = await estate.wait_for(oversized=1, forwarded=2)
    assert "message_max = 1000" in status.last_error
    assert status.state == "running"


async def test_a_fault_of_ours_gives_everything_back_and_begins_anew(estate: Estate) -> None:
    await estate.bridge()
    await estate.wait_for(state="running")
    flow = estate.bridges._here["b"]._flow
    assert flow is not None

    def broken(items: object) -> None:
        raise RuntimeError("a fault of ours")

    flow._send = broken  # type: ignore[method-assign]
    await estate.fill(5)
    await estate.wait_for(last_error=lambda text: "a fault of ours" in text)
    came = await estate.take(5)
    assert numbers(came) == [1, 2, 3, 4, 5]
    await estate.wait_for(state="running", in_flight=0)


async def test_a_fault_of_ours_at_the_beginning_is_said_while_it_lasts(
    estate: Estate, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(bridge: Bridge) -> None:
        raise RuntimeError("a fault of ours")

    with monkeypatch.context() as patch:
        patch.setattr(Bridge, "_make_flow", broken)
        await estate.bridge()
        status = await estate.wait_for(reason=lambda text: "internal error: RuntimeError('a fault of ours')" in text)
        assert status.state == "error"
    await estate.fill(3)
    assert numbers(await estate.take(3)) == [1, 2, 3]
    status = await estate.wait_for(state="running", reason="", in_flight=0)
    assert "a fault of ours" in status.last_error


async def test_a_fault_over_one_message_costs_that_message(estate: Estate) -> None:
    await estate.bridge()
    await estate.wait_for(state="running")
    flow = estate.bridges._here["b"]._flow
    assert flow is not None
    look = flow._route.look

    def broken(item: object) -> object:
        if item.delivery.message.body == b"2":  # type: ignore[attr-defined]
            raise RuntimeError("a fault of ours")
        return look(item)  # type: ignore[arg-type]

    flow._route.look = broken  # type: ignore[method-assign,assignment]
    await estate.fill(3)
    assert numbers(await estate.take(2)) == [1, 3]
    status = await estate.wait_for(dead_lettered=1, in_flight=0)
    (letter,) = await estate.take(1, "gateway.dead.b", "old")
    assert "a fault of ours" in entry(letter)["reason"]
    assert status.state == "running"
