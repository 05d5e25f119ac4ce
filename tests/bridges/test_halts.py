"""What a bridge leaves behind when it pauses, is lost, ends or gets other settings."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from gateway.amqp.message import Message, Properties
from gateway.bridges import bridge as bridges
from gateway.bridges.bridge import Bridge
from gateway.bridges.flow import BridgeFlow
from gateway.core.work.supervised import SupervisedResource, WantedState
from gateway.errors import BrokerUnavailable, LedgerUnavailable
from gateway.upstreams import Oversized, UpstreamState
from tests.bridges.conftest import Estate, bridge_settings, until


def listeners(estate: Estate) -> list[int]:
    """How many listen to the brokers."""
    return [
        len(calls)
        for upstream in (estate.old, estate.new)
        for calls in (upstream.on_state, upstream.on_oversized)
    ]  # fmt: skip


def gauge(estate: Estate, name: str) -> float | None:
    return estate.metrics.registry.get_sample_value(f"amqpgw_bridge_{name}", {"bridge": "b"})


class Calls:
    """What the source's broker is asked for."""

    def __init__(self, estate: Estate, monkeypatch: pytest.MonkeyPatch) -> None:
        self.found: list[Any] = []
        for verb in ("declare_queue", "bind_queue", "unbind_queue", "delete_queue"):
            self._note(estate, monkeypatch, verb)

    def _note(self, estate: Estate, monkeypatch: pytest.MonkeyPatch, verb: str) -> None:
        real = getattr(estate.old, verb)

        async def noted(*arguments: Any, **options: Any) -> Any:
            self.found.append((verb.removesuffix("_queue"), *arguments, *options.items()))
            return await real(*arguments, **options)

        monkeypatch.setattr(estate.old, verb, noted)

    def take(self) -> list[Any]:
        """Take what was noted."""
        found, self.found = self.found, []
        return found


# ----------------------------------------------------------------------------------------------- listeners


@pytest.mark.parametrize("is_lost", [False, True])
async def test_one_that_does_not_run_listens_to_no_broker(estate: Estate, is_lost: bool) -> None:
    await estate.bridge(paused=True, dead_letter={"broker": "new", "routing_key": "x"})
    before = listeners(estate)
    bridge = estate.bridges._here["b"]
    for _ in range(2):
        await estate.bridges.resume("b")
        await estate.wait_for(state="running")
        assert listeners(estate) == [before[0] + 1, before[1] + 1, before[2] + 1, before[3]]
        bridge.start()
        assert listeners(estate) == [before[0] + 1, before[1] + 1, before[2] + 1, before[3]], "it runs already"
        if is_lost:
            await bridge.drop()
            assert (listeners(estate), bridge.state, gauge(estate, "up")) == (before, "stopped", 0)
            await bridge.drop()
        await estate.bridges.pause("b")
        assert listeners(estate) == before
    assert not bridge._tasks


async def test_one_that_is_lost_has_nothing_in_its_way(estate: Estate) -> None:
    await estate.bridge()
    await estate.wait_for(state="running")
    bridge = estate.bridges._here["b"]
    bridge._faults.set("ledger", "it is locked")
    assert (bridge.state, gauge(estate, "fault")) == ("error", 1)
    await bridge.drop()
    assert (bridge.state, gauge(estate, "fault"), bridge._faults.reason) == ("stopped", 0, "")


async def test_a_target_that_is_away_from_the_start_is_said(estate: Estate) -> None:
    await estate.bridge(paused=True)
    await estate.away("new")
    await until(lambda: estate.new.state is UpstreamState.DOWN)
    await estate.bridges.resume("b")
    status = await estate.status()
    assert status.state == "error"
    assert status.reason.startswith("target broker: new is down")
    await estate.back("new")
    await estate.wait_for(state="running", reason="")


async def test_it_says_at_once_that_it_starts(estate: Estate, monkeypatch: pytest.MonkeyPatch) -> None:
    await estate.bridge(paused=True)
    consume, may_go = estate.old.consume, asyncio.Event()

    async def slow(*arguments: Any, **options: Any) -> Any:
        await may_go.wait()
        return await consume(*arguments, **options)

    monkeypatch.setattr(estate.old, "consume", slow)
    assert (await estate.bridges.resume("b")).state == "starting"
    may_go.set()
    await estate.wait_for(state="running")
    assert (await estate.bridges.pause("b")).state == "paused"


async def test_what_it_holds_is_a_metric(estate: Estate) -> None:
    await estate.bridge(paused=True)
    assert (gauge(estate, "in_flight"), gauge(estate, "oldest_seconds")) == (0, 0)
    assert (gauge(estate, "up"), gauge(estate, "fault")) == (0, 0)
    await estate.new.delete_queue("out")
    await estate.fill(3)
    await estate.bridges.resume("b")
    await estate.wait_for(state="error", in_flight=3)
    assert gauge(estate, "in_flight") == 3
    assert (gauge(estate, "oldest_seconds") or 0) > 0
    await estate.bridges.pause("b")
    assert (gauge(estate, "in_flight"), gauge(estate, "oldest_seconds")) == (0, 0)


async def test_a_pause_ends_what_declares_its_own_queue(estate: Estate, monkeypatch: pytest.MonkeyPatch) -> None:
    await estate.old.declare_exchange("ex", "fanout")
    await estate.bridge(source={"broker": "old", "exchange": "ex"})
    await estate.wait_for(state="running")
    bridge = estate.bridges._here["b"]

    async def refuse(*_: Any, **__: Any) -> None:
        raise BrokerUnavailable("not now")

    monkeypatch.setattr(estate.old, "declare_queue", refuse)
    bridge._declare_again()
    declaring = bridge._declaring
    bridge._declare_again()
    assert bridge._declaring is declaring, "one at a time"
    await estate.wait_for(state="error", reason="own queue: not now")
    await estate.bridges.pause("b")
    assert declaring is not None
    assert declaring.done()
    status = await estate.status()
    assert (status.state, status.reason, status.last_error) == ("paused", "", "own queue: not now")


async def test_what_is_too_large_for_another_queue_is_nothing_to_it(estate: Estate) -> None:
    await estate.bridge()
    bridge = estate.bridges._here["b"]
    bridge._oversized(Oversized("another", "", "k", 2_000, 1_000))
    assert (bridge.counts.numbers["oversized"], bridge._faults.last) == (0, "")
    bridge._oversized(Oversized("in", "", "k", 2_000, 1_000))
    assert bridge.counts.numbers["oversized"] == 1
    assert "a message of 2000 octets is over message_max = 1000" in bridge._faults.last


# -------------------------------------------------------------------------------------------- a limited number


async def test_a_limited_number_is_counted_over_an_internal_error(estate: Estate) -> None:
    await estate.bridge(delete_after=5)
    await estate.fill(3)
    await estate.wait_for(forwarded=3, in_flight=0)
    estate.bridges._here["b"]._crashed(RuntimeError("a fault of ours"))
    await estate.fill(5)
    status = await estate.wait_for(state="stopped")
    assert (status.forwarded, status.reason) == (5, "delete_after: 5 messages are done")
    await until(lambda: estate.bridges._here["b"]._consumer is None)
    assert await estate.depth() == 3


async def test_a_pause_begins_a_limited_number_anew(estate: Estate) -> None:
    await estate.bridge(delete_after="queue-length", paused=True)
    await estate.new.delete_queue("out")
    await estate.fill(2)
    await estate.bridges.resume("b")
    await estate.wait_for(state="error", in_flight=2)
    await estate.bridges.pause("b")
    await estate.fill(2)
    await estate.new.declare_queue("out")
    await estate.bridges.resume("b")
    status = await estate.wait_for(state="stopped")
    assert (status.forwarded, status.reason) == (4, "delete_after: 4 messages are done")
    await estate.fill(1)
    await estate.bridges.resume("b")
    status = await estate.wait_for(state="stopped", forwarded=5)
    assert status.reason == "delete_after: 1 messages are done"


async def test_one_that_has_not_begun_to_drain_is_not_drained(estate: Estate) -> None:
    bridge = heir_of(estate)
    bridge.wish = WantedState.DRAIN
    assert not bridge.finished


async def test_an_internal_error_ends_what_runs_before_its_deliveries_go_back(
    estate: Estate, monkeypatch: pytest.MonkeyPatch
) -> None:
    await estate.bridge()
    await estate.wait_for(state="running")
    bridge = estate.bridges._here["b"]
    running, end_flow = bridge._tasks[0], bridge._end_flow
    was_over: list[bool] = []

    async def ended(within: float) -> None:
        was_over.append(running.done())
        await end_flow(within)

    monkeypatch.setattr(bridge, "_end_flow", ended)
    bridge._crashed(RuntimeError("a defect"))
    await until(lambda: bool(was_over))
    assert was_over[0]
    await estate.wait_for(state="running")


# ----------------------------------------------------------------------------------------------- its own queue


def heir_of(estate: Estate, **settings: Any) -> Bridge:
    """One of the same name with other settings, which does not run."""
    return estate.bridges.build(SupervisedResource("b", bridge_settings(paused=True, **settings), "2"))


EX = {"broker": "old", "exchange": "ex"}
OWN = "gateway.bridge.b"


@pytest.mark.parametrize(
    ("arguments", "passed"), [({}, None), ({"x-match": "all", "kind": 1}, {"x-match": "all", "kind": 1})]
)
async def test_a_deleted_bridge_asks_for_its_queue_to_go_if_nobody_needs_it(
    estate: Estate, monkeypatch: pytest.MonkeyPatch, arguments: dict[str, Any], passed: dict[str, Any] | None
) -> None:
    await estate.old.declare_exchange("ex", "headers")
    calls = Calls(estate, monkeypatch)
    await estate.bridge(source={**EX, "binding_key": "k", "arguments": arguments})
    await estate.wait_for(state="running")
    assert calls.take() == [("declare", OWN), ("bind", OWN, "ex", "k", passed)]
    await estate.bridges.delete("b", None)
    assert calls.take() == [
        ("unbind", OWN, "ex", "k", passed),
        ("delete", OWN, ("if_unused", True), ("if_empty", True)),
    ]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"source": EX, "target": {"broker": "new", "routing_key": "x"}}, [("declare", OWN), ("bind", OWN, "ex")]),
        (
            {"source": {**EX, "binding_key": "a.#"}},
            [("declare", OWN), ("bind", OWN, "ex"), ("unbind", OWN, "ex")],
        ),
        ({"source": {"broker": "old", "queue": OWN}}, [("unbind", OWN, "ex")]),
        ({"source": {**EX, "queue": "another"}}, [("unbind", OWN, "ex"), ("delete", OWN)]),
        ({"source": {**EX, "broker": "new"}}, [("unbind", OWN, "ex"), ("delete", OWN)]),
        (None, [("unbind", OWN, "ex"), ("delete", OWN)]),
    ],
)
async def test_what_its_heir_needs_stays(
    estate: Estate,
    monkeypatch: pytest.MonkeyPatch,
    settings: dict[str, Any] | None,
    expected: Sequence[tuple[str, ...]],
) -> None:
    await estate.old.declare_exchange("ex", "topic")
    await estate.bridge(source=EX)
    await estate.wait_for(state="running")
    await estate.bridges.pause("b")
    calls = Calls(estate, monkeypatch)
    await estate.bridges._here["b"].abandon_source(None if settings is None else heir_of(estate, **settings))
    assert [call[: 2 + (call[0] in ("bind", "unbind"))] for call in calls.take()] == expected


@pytest.mark.parametrize(("own", "every", "again"), [(True, 0.0, True), (True, 600.0, False), (False, 0.0, False)])
async def test_its_own_queue_is_declared_again_once_in_a_while(
    estate: Estate, monkeypatch: pytest.MonkeyPatch, own: bool, every: float, again: bool
) -> None:
    """No broker says when a binding is gone."""
    monkeypatch.setattr(bridges, "BIND_EVERY", every)
    monkeypatch.setattr(bridges, "GROW_EVERY", 0.005)
    await estate.old.declare_exchange("ex", "fanout")
    await estate.bridge(source=EX if own else {"broker": "old", "queue": "in"})
    await estate.wait_for(state="running")
    bridge = estate.bridges._here["b"]
    looked = 0
    grow = bridge._grow

    def count(*arguments: Any) -> None:
        nonlocal looked
        looked += 1
        grow(*arguments)

    monkeypatch.setattr(bridge, "_grow", count)
    calls = Calls(estate, monkeypatch)
    await until(lambda: looked > 3)
    assert bool(calls.take()) is again


async def test_a_queue_that_is_not_its_own_is_left_alone(estate: Estate, monkeypatch: pytest.MonkeyPatch) -> None:
    await estate.bridge(paused=True)
    calls = Calls(estate, monkeypatch)
    await estate.bridges._here["b"].abandon_source(heir_of(estate, source=EX))
    await estate.bridges.delete("b", None)
    assert calls.take() == []


async def test_a_queue_that_cannot_be_deleted_is_told_of(
    estate: Estate, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await estate.old.declare_exchange("ex", "fanout")
    await estate.bridge(source=EX)
    await estate.wait_for(state="running")
    await estate.bridges.pause("b")
    await estate.old.publish("ex", "", Message(b"x", Properties()))
    await estate.bridges.delete("b", None)
    assert "bridge.queue_left" in [record.getMessage() for record in caplog.records]
    assert await estate.depth(OWN) == 1


# --------------------------------------------------------------------------------------------------- status


async def test_why_it_has_stopped_is_said_until_it_runs_again(estate: Estate) -> None:
    await estate.bridge()
    await estate.wait_for(state="running", reason="")
    await estate.bridges.drain("b")
    await estate.wait_for(state="stopped", reason="drained")
    await estate.bridges.resume("b")
    await estate.wait_for(state="running", reason="")
    bridge = estate.bridges._here["b"]
    await bridge.drop()
    status = await bridge.status()
    assert (status.state, status.reason) == ("stopped", "")


async def test_one_that_has_ended_is_neither_up_nor_at_fault_after_a_restart(estate: Estate) -> None:
    await estate.bridge()
    await estate.bridges.drain("b")
    await estate.wait_for(state="stopped")
    await estate.close_gateway()
    await estate.open_gateway({"old": "0-9-1", "new": "0-9-1"})
    await estate.wait_for(state="stopped")
    assert (gauge(estate, "up"), gauge(estate, "fault")) == (0, 0)


async def test_a_source_that_does_not_answer_has_no_depth(estate: Estate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bridges, "ASK_EVERY", 0.0)
    await estate.fill(2)
    await estate.bridge(paused=True)
    assert (await estate.status()).source_messages == 2

    async def away(queue: str) -> Any:
        raise BrokerUnavailable("it is gone")

    monkeypatch.setattr(estate.old, "query_queue", away)
    assert (await estate.status()).source_messages is None


async def test_one_whose_broker_is_another_one_is_stale(estate: Estate, monkeypatch: pytest.MonkeyPatch) -> None:
    await estate.bridge(paused=True, dead_letter={"broker": "new", "routing_key": "x"})
    bridge = estate.bridges._here["b"]
    found = [bridge.stale]
    with monkeypatch.context() as patched:
        patched.setitem(estate.gateway.brokers, "new", estate.old)
        found.append(bridge.stale)
    found.append(bridge.stale)
    assert found == [False, True, False]


# ------------------------------------------------------------------------------------------------ in the middle


@pytest.mark.parametrize(("count", "text"), [(0, ""), (1, ". 1 transaction is in"), (2, ". 2 transactions are in")])
async def test_it_says_how_many_transactions_wait(
    estate: Estate, monkeypatch: pytest.MonkeyPatch, count: int, text: str
) -> None:
    await estate.bridge(paused=True)
    bridge = estate.bridges._here["b"]

    async def of(name: str) -> list[str]:
        return ["branch"] * count

    async def away(name: str) -> list[str]:
        raise LedgerUnavailable("it is locked")

    monkeypatch.setattr(estate.ledger.branches, "of", of)
    assert (await bridge._in_doubt())[: len(text) or None] == text
    monkeypatch.setattr(estate.ledger.branches, "of", away)
    assert await bridge._in_doubt() == ""
    assert await bridge._settle_last(1.0) == "it is locked"

    async def silent() -> None:
        raise TimeoutError

    monkeypatch.setattr(bridge, "_settle_branches", silent)
    assert await bridge._settle_last(1.5) == "no answer within 1.5 s"


@pytest.mark.parametrize("verb", ["pause", "refresh"])
@pytest.mark.parametrize("is_lost", [False, True])
@pytest.mark.parametrize("estate", [("0-9-1", "0-10")], indirect=True)
async def test_one_that_is_lost_while_it_halts_leaves_its_branches_to_its_heir(
    estate: Estate, monkeypatch: pytest.MonkeyPatch, verb: str, is_lost: bool
) -> None:
    await estate.fill(1)
    await estate.bridge(acknowledge="dtx")
    await estate.wait_for(state="running", forwarded=1)
    stop, settle_last = BridgeFlow.stop, Bridge._settle_last
    done: list[str] = []

    async def slow(flow: BridgeFlow, within: float) -> None:
        done.append("stop")
        if is_lost:
            estate.bridges.lose("b")
        await stop(flow, within)

    async def noted(bridge: Bridge, within: float) -> str:
        done.append("settle")
        return await settle_last(bridge, within)

    monkeypatch.setattr(BridgeFlow, "stop", slow)
    monkeypatch.setattr(Bridge, "_settle_last", noted)
    if verb == "pause":
        await estate.bridges.pause("b")
    else:
        found = await estate.ledger.get_resource("bridge", "b")
        assert found is not None
        await estate.ledger.put_resource("bridge", "b", {**found.spec, "prefetch": 7}, None)
        await estate.bridges.refresh("b")
    assert done == (["stop"] if is_lost else ["stop", "settle"])


@pytest.mark.parametrize("estate", [("0-9-1", "0-10")], indirect=True)
async def test_one_that_runs_again_after_it_was_lost_settles_its_branches_as_it_halts(
    estate: Estate, monkeypatch: pytest.MonkeyPatch
) -> None:
    await estate.bridge(acknowledge="dtx")
    await estate.wait_for(state="running")
    bridge = estate.bridges._here["b"]
    await bridge.drop()
    bridge.start()
    await estate.wait_for(state="running")
    settled: list[float] = []

    async def noted(within: float) -> str:
        settled.append(within)
        return ""

    monkeypatch.setattr(bridge, "_settle_last", noted)
    await bridge.halt(2.0)
    assert settled == [2.0]


async def test_one_that_has_run_in_another_mode_is_known_for_good(estate: Estate) -> None:
    await estate.bridge("dtx", acknowledge="dtx", paused=True)
    await estate.bridge(paused=True)
    distributed, plain = estate.bridges._here["dtx"], estate.bridges._here["b"]
    assert not await distributed._was_plain()
    assert await estate.ledger.get_resource(bridges.PLAIN, "dtx") is None
    assert not await plain._was_plain()
    found = await estate.ledger.get_resource(bridges.PLAIN, "b")
    assert found is not None
    assert msgspec.to_builtins(found.spec) == {}
    assert await plain._was_plain()
    await estate.ledger.put_resource(bridges.PLAIN, "dtx", {}, None)
    assert await distributed._was_plain()
