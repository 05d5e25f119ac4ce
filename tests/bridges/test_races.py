"""Things that happen at the same time, or in the middle of each other: none may leave a bridge half alive."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import msgspec
import pytest

from gateway.amqp.message import Message, Properties
from gateway.bridges import bridge as bridges
from gateway.core.work import ownership
from gateway.core.work.supervised import WantedState
from gateway.errors import AccessRefused, LedgerUnavailable, NoSuchBridge
from tests.bridges.conftest import Estate, bridge_settings, until


def away_for(estate: Estate, monkeypatch: pytest.MonkeyPatch, method: str, kind: str, times: int) -> list[int]:
    """The ledger is away for so many calls about resources of a kind; how many are left."""
    real = getattr(estate.ledger, method)
    left = [times]

    async def call(this: str, *arguments: Any) -> Any:
        if this == kind and left[0]:
            left[0] -= 1
            raise LedgerUnavailable("it is locked")
        return await real(this, *arguments)

    monkeypatch.setattr(estate.ledger, method, call)
    return left


async def test_a_pause_in_the_middle_of_a_restart_leaves_no_consumer(
    estate: Estate, monkeypatch: pytest.MonkeyPatch
) -> None:
    await estate.bridge()
    await estate.wait_for(state="running")
    bridge = estate.bridges._here["b"]
    consumer = bridge._consumer
    assert consumer is not None
    cancel = consumer.cancel

    async def slow(within: float) -> None:
        await asyncio.sleep(0.3)
        await cancel(within)

    monkeypatch.setattr(consumer, "cancel", slow)
    bridge._crashed(RuntimeError("a fault of ours"))
    await asyncio.sleep(0.1)
    assert (await estate.bridges.pause("b")).state == "paused"
    await estate.fill(3)
    assert await estate.depth() == 3
    assert (await estate.old.query_queue("in")).consumer_count == 0


async def test_put_while_the_ledger_goes_away_leaves_a_bridge_that_runs(
    estate: Estate, monkeypatch: pytest.MonkeyPatch
) -> None:
    status = await estate.bridge(paused=True)
    left = away_for(estate, monkeypatch, "put_resource", "bridge-wish", 1)
    await estate.bridges.put("b", bridge_settings(), status.etag)
    assert left == [0]
    await estate.wait_for(state="running")
    await until(lambda: not estate.bridges._tasks)
    found = await estate.ledger.get_resource("bridge-wish", "b")
    assert found is not None
    assert found.spec == {"wish": "run"}


async def test_a_start_that_is_tried_again_finds_it_running(estate: Estate, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else there would be two of one name, and nobody would ever end the first."""
    real, asked = estate.ledger.get_resource, 0

    async def get(kind: str, name: str) -> Any:
        nonlocal asked
        asked += kind == "bridge"
        if kind == "bridge" and asked == 2:  # behind the one of PUT
            raise LedgerUnavailable("it is locked")
        return await real(kind, name)

    monkeypatch.setattr(ownership, "PAUSE_MIN", 0.05)
    monkeypatch.setattr(estate.ledger, "get_resource", get)
    await estate.bridge()
    first = estate.bridges._here["b"]
    await asyncio.sleep(0.3)
    await estate.wait_for(state="running")
    assert estate.bridges._here["b"] is first
    assert (await estate.old.query_queue("in")).consumer_count == 1


@pytest.mark.parametrize("change", ["put", "refresh", "pause"])
async def test_one_that_is_lost_and_taken_again_while_it_is_changed_runs_once(
    estate: Estate, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    status = await estate.bridge()
    await estate.wait_for(state="running")
    first = estate.bridges._here["b"]
    halt = first.halt

    async def slow(within: float = 5.0) -> None:
        await halt(within)
        if estate.bridges._here.get("b") is first:
            estate.gateway.ownership._fenced()
            await until(lambda: "b" in estate.bridges._here)

    monkeypatch.setattr(first, "halt", slow)
    if change == "put":
        await estate.bridges.put("b", bridge_settings(prefetch=7), status.etag)
    elif change == "refresh":
        spec = msgspec.to_builtins(bridge_settings(prefetch=7))
        await estate.ledger.put_resource("bridge", "b", spec, None)
        await estate.bridges.refresh("b")
    else:
        await estate.bridges.pause("b")
    await until(lambda: not estate.gateway.ownership._tasks)
    await asyncio.sleep(0.2)
    state = "paused" if change == "pause" else "running"
    await estate.wait_for(state=state)
    assert (await estate.old.query_queue("in")).consumer_count == (0 if change == "pause" else 1)
    assert estate.bridges._here["b"].settings.prefetch == (bridge_settings().prefetch if change == "pause" else 7)


async def test_delete_while_the_ledger_goes_away(estate: Estate, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was wished for of the old one is nothing to a new one of its name."""
    await estate.bridge()
    await estate.bridges.pause("b")
    left = away_for(estate, monkeypatch, "delete_resource", "bridge-wish", 1)
    await estate.bridges.delete("b", None)
    assert left == [0]
    with pytest.raises(NoSuchBridge):
        await estate.status()
    await estate.bridge()
    await estate.close_gateway()
    await estate.open_gateway({"old": "0-9-1", "new": "0-9-1"})
    await estate.wait_for(state="running")


async def test_a_bridge_with_wrong_settings_in_the_ledger_can_be_deleted(estate: Estate) -> None:
    await estate.ledger.put_resource("bridge", "bad", {"source": {"broker": "gone", "queue": "x"}, "target": {}}, None)
    await estate.bridges.delete("bad", None)
    assert await estate.ledger.get_resource("bridge", "bad") is None
    with pytest.raises(NoSuchBridge):
        await estate.bridges.delete("bad", "some etag")


async def test_a_resume_that_comes_as_it_is_drained(estate: Estate) -> None:
    await estate.bridge()
    await estate.wait_for(state="running")
    lock = estate.bridges._locks.of("b")
    bridge = estate.bridges._here["b"]
    bridge.wish = WantedState.DRAIN
    bridge.start()
    async with lock:
        await until(lambda: bridge._why_stopped == "drained")
        bridge.wish = WantedState.RUN  # as a resume does, which was first
        bridge.start()
    await asyncio.sleep(0.2)
    await estate.wait_for(state="running")
    await estate.bridges.drain("b")
    await estate.wait_for(state="stopped", reason="drained")


@pytest.mark.parametrize("dedupe_seconds", [0, 3600])
async def test_delete_after_counts_what_the_source_was_told_of(estate: Estate, dedupe_seconds: int) -> None:
    """What was taken and went back in between comes again, and is not done twice."""
    await estate.fill(20)
    await estate.bridge(delete_after=10, dedupe_seconds=dedupe_seconds, paused=True)
    bridge = estate.bridges._here["b"]
    held = asyncio.Event()
    make = bridge._make_flow

    def make_flow() -> Any:
        flow = make()
        record = flow._journal.record

        async def slow(*arguments: Any) -> None:
            await held.wait()
            await record(*arguments)

        flow._journal.record = slow  # type: ignore[method-assign]
        return flow

    bridge._make_flow = make_flow  # type: ignore[method-assign]
    await estate.bridges.resume("b")
    await until(lambda: bridge._flow is not None and bridge._flow._gate.outstanding == 10)
    await estate.away("old")
    await estate.wait_for(state="error")
    await estate.back("old")
    held.set()
    await estate.wait_for(state="stopped")
    await until(lambda: bridge._consumer is None)
    assert await estate.depth() == 10


async def test_its_own_queue_is_declared_until_it_is_there(estate: Estate, monkeypatch: pytest.MonkeyPatch) -> None:
    """The queue came back at once, its binding could not be made: the bridge must not run without it."""
    await estate.old.declare_exchange("ex", "fanout")
    await estate.bridge(source={"broker": "old", "exchange": "ex"})
    await estate.wait_for(state="running")
    bind = estate.old.bind_queue
    refused = []

    async def refuse(*arguments: Any) -> None:
        if len(refused) < 2:
            refused.append(1)
            raise AccessRefused(403, "not now")
        await bind(*arguments)

    monkeypatch.setattr(estate.old, "bind_queue", refuse)
    await estate.old.delete_queue("gateway.bridge.b")
    await estate.wait_for(state="error", reason=lambda text: "not now" in text)
    await until(lambda: len(refused) == 2)
    await estate.wait_for(state="running")
    await estate.old.publish("ex", "", Message(b"x", Properties()))
    await estate.take(1)


async def test_an_exchange_that_was_deleted_is_bound_again(estate: Estate, monkeypatch: pytest.MonkeyPatch) -> None:
    """No broker says when a binding is gone."""
    monkeypatch.setattr(bridges, "BIND_EVERY", 0.1)
    monkeypatch.setattr(bridges, "GROW_EVERY", 0.1)
    await estate.old.declare_exchange("ex", "fanout")
    await estate.bridge(source={"broker": "old", "exchange": "ex"})
    await estate.wait_for(state="running")
    await estate.old.delete_exchange("ex")
    await estate.wait_for(state="error", reason=lambda text: text.startswith("own queue"))
    await estate.old.declare_exchange("ex", "fanout")
    await estate.wait_for(state="running")
    await estate.old.publish("ex", "", Message(b"x", Properties()))
    await estate.take(1)


async def test_another_binding_misses_nothing(estate: Estate, monkeypatch: pytest.MonkeyPatch) -> None:
    """The new one is there before the old one goes."""
    await estate.old.declare_exchange("ex", "topic")
    before = await estate.bridge(source={"broker": "old", "exchange": "ex", "binding_key": "a.*"})
    await estate.wait_for(state="running")
    unbind = estate.old.unbind_queue

    async def slow(*arguments: Any) -> None:
        await unbind(*arguments)
        assert (await estate.old.publish("ex", "a.b", Message(b"x", Properties()))).routed
        await estate.old.publish("ex", "a", Message(b"y", Properties()))

    monkeypatch.setattr(estate.old, "unbind_queue", slow)
    source = {"broker": "old", "exchange": "ex", "binding_key": "a.#"}
    await estate.bridges.put("b", bridge_settings(source=source), before.etag)
    assert [delivery.message.body for delivery in await estate.take(2)] == [b"x", b"y"]


async def test_one_mirror_after_another_under_the_same_name(estate: Estate) -> None:
    """What was copied from one queue was not copied from another, nor to another place."""
    await estate.close_gateway()
    await estate.open_gateway({"old": "0-10", "new": "0-9-1"})
    await estate.new.declare_queue("out2")
    await estate.old.declare_queue("in2")
    for queue in ("in", "in2"):  # as a fanout does
        for number in range(3):
            message = Message(b"x", Properties(message_id=f"m-{number}", delivery_mode=2))
            assert (await estate.old.publish("", queue, message)).routed
    status = await estate.bridge(mode="mirror")
    await estate.wait_for(forwarded=3)
    source = {"broker": "old", "queue": "in2"}
    changed = bridge_settings(mode="mirror", source=source)
    status, _ = await estate.bridges.put("b", changed, status.etag)
    await estate.take(6)
    changed = bridge_settings(mode="mirror", source=source, target={"broker": "new", "routing_key": "out2"})
    await estate.bridges.put("b", changed, status.etag)
    await estate.take(3, "out2")


async def test_what_a_mirror_does_not_want_is_nobodys_dead_letter(estate: Estate) -> None:
    await estate.close_gateway()
    await estate.open_gateway({"old": "0-10", "new": "0-9-1"})
    await estate.fill(2, headers={"n": 1})
    await estate.fill(1, headers={"n": 2})
    await estate.bridge(mode="mirror", selector="n = 2")
    await estate.take(1)
    status = await estate.wait_for(filtered=2, in_flight=0)
    assert (status.dead_lettered, await estate.depth()) == (0, 3)


async def test_unsafe_on_publish_is_bounded_all_the_same(estate: Estate) -> None:
    """What the target does not route waits for a dead-letter place that takes nothing: the source is not told."""
    await estate.bridge(
        acknowledge="unsafe-on-publish",
        prefetch=5,
        target={"broker": "new", "routing_key": "{header:to}"},
        dead_letter={"broker": "new", "exchange": "nowhere", "routing_key": "x"},
    )
    for _ in range(60):
        await estate.fill(1, headers={"to": "nobody"})
        await estate.fill(1, headers={"to": "out"})
    await asyncio.sleep(1.0)
    assert (await estate.status()).in_flight <= 20


@pytest.mark.parametrize("event", ["_look", "_hurry"])
async def test_a_halt_at_the_moment_of_news(estate: Estate, event: str) -> None:
    """What ends a wait at the very moment of the cancelling does not swallow it."""
    await estate.bridge(source={"broker": "old", "queue": "later" if event == "_hurry" else "in"})
    await estate.wait_for(state="error" if event == "_hurry" else "running")
    await asyncio.sleep(0.1)
    bridge = estate.bridges._here["b"]
    getattr(bridge, event).set()
    async with asyncio.timeout(8.0):
        await bridge.halt()
    assert not bridge._tasks


@pytest.mark.parametrize("is_lost", [False, True])
async def test_what_waits_for_room_at_the_target_is_not_published_once_the_bridge_has_ended(
    estate: Estate, monkeypatch: pytest.MonkeyPatch, is_lost: bool
) -> None:
    """The source has it again: somebody else may take it."""
    await estate.bridge()
    await estate.wait_for(state="running")
    publisher, bridge = estate.new._publisher, estate.bridges._here["b"]
    with monkeypatch.context() as patched:
        patched.setattr(publisher, "_has_room", lambda *_: False)
        await estate.fill(3)
        await until(lambda: publisher._waiting.count == 3)
        await (bridge.drop() if is_lost else bridge.halt(0.1))
    publisher._schedule_pump()
    await until(lambda: not publisher._waiting.count and not publisher.pending)
    assert await estate.depth("out", "new") == 0
    assert await estate.depth() == 3


@pytest.mark.parametrize("is_lost", [False, True])
async def test_one_that_has_ended_hears_nothing_of_its_consumer(estate: Estate, is_lost: bool) -> None:
    """Its metrics are those of the one that has taken its place."""
    await estate.bridge()
    await estate.wait_for(state="running")
    bridge = estate.bridges._here["b"]
    consumer = bridge._consumer
    assert consumer is not None
    assert bridge._consumer_changed in consumer.on_state
    if not is_lost:
        await estate.bridges.pause("b")
        assert bridge._consumer_changed not in consumer.on_state
        return
    dropping = bridge.drop()
    assert bridge._consumer_changed not in consumer.on_state
    await dropping


async def test_pauses_before_it_is_tried_again_end_with_news_and_not_before(
    estate: Estate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That its target is up is no news any more when the source has no queue."""
    pauses = [0.02, 0.02, 600.0]
    monkeypatch.setattr("gateway.runtime.backoff.pause_after", lambda *_: pauses.pop(0) if pauses else 0.02)
    consume, tried = estate.old.consume, []

    async def noted(*arguments: Any, **options: Any) -> Any:
        tried.append(asyncio.get_running_loop().time())
        return await consume(*arguments, **options)

    monkeypatch.setattr(estate.old, "consume", noted)
    await estate.bridge(source={"broker": "old", "queue": "later"})
    await until(lambda: len(tried) == 3 and not pauses)
    assert all(after - before > 0.01 for before, after in pairwise(tried))
    status = await estate.status()
    assert status.state == "error"
    assert status.reason.startswith("source: ")
    await estate.old.declare_queue("later")
    estate.bridges._here["b"]._broker_changed(estate.old)
    await estate.wait_for(state="running", reason="")
    assert len(tried) == 4
