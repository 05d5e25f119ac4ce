"""Taps as resources, what each says of itself, and its numbers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.amqp.message import Message, Properties
from gateway.config import RetentionSettings
from gateway.core.work.supervised import Supervisor, WantedState
from gateway.errors import BrokerUnavailable, ConfigurationError, EncodeError, NoSuchBroker, NotFound, ReadOnly
from gateway.observing.telemetry import Metrics
from gateway.taps import TapState, TapSupervisor
from gateway.taps import tap as taps
from gateway.taps.counts import TapCounts
from gateway.taps.flow import PROGRESS
from gateway.taps.tap import Tap
from tests.taps.conftest import House, tap_settings, until

MIB = 1 << 20


def gauge(house: House, name: str) -> float | None:
    return house.metrics.registry.get_sample_value(f"amqpgw_tap_{name}", {"tap": "t"})


async def paused(house: House, **settings: Any) -> Tap:
    """A tap that does not run."""
    await house.tap(paused=True, **settings)
    await until(lambda: "t" in house.taps._here)  # one of its name may just have been deleted
    return house.taps._here["t"]


# ------------------------------------------------------------------------------------------------- settings


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"broker": "elsewhere"}, NoSuchBroker),
        ({"dead_letter_broker": "elsewhere"}, NoSuchBroker),
        ({"log_octets": 10 << 30}, EncodeError),
        ({"exchange": "ex", "broker": "elsewhere"}, NoSuchBroker),
        ({"exchange": "ex", "log_octets": 10 << 30}, EncodeError),
    ],
)
async def test_wrong_settings_are_refused_before_anything_is_done(
    house: House, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], error: type[Exception]
) -> None:
    async def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a queue is declared")

    monkeypatch.setattr(house.upstream, "declare_queue", refuse)
    with pytest.raises(error):
        await house.tap(**settings)
    assert await house.taps.names() == set()
    await house.taps.put("t", tap_settings(dead_letter_broker="house", paused=True), None)


async def test_how_long_messages_are_kept_bounds_what_a_tap_may_keep(house: House) -> None:
    taps_ = house.taps
    small = RetentionSettings(log_octets=4 * MIB)
    taps_.check_all({"t": tap_settings(log_octets=4 * MIB)})
    with pytest.raises(ConfigurationError, match="retention"):
        taps_.check_all({"t": tap_settings(log_octets=4 * MIB)}, None, small)
    taps_.check("t", tap_settings(log_octets=4 * MIB))
    taps_.check_all({"t": tap_settings(log_octets=4 * MIB)})
    most: Any = (await paused(house))._log_octets
    assert most() == RetentionSettings().log_octets // 2
    taps_.reconfigure({}, small)
    assert most() == 2 * MIB
    taps_.reconfigure({})
    assert most() == 2 * MIB, "it is as it was"
    other = TapSupervisor(house.gateway, {}, small)
    with pytest.raises(EncodeError):
        other.check("t", tap_settings(log_octets=4 * MIB))
    await house.taps.delete("t", None)
    most = (await paused(house, log_octets=MIB))._log_octets
    assert most() == MIB


async def test_other_settings_of_the_file_count(house: House) -> None:
    house.taps.reconfigure({"f": tap_settings(prefetch=7)})
    assert await house.taps.names() == {"f"}
    with pytest.raises(ReadOnly):
        await house.taps.put("f", tap_settings(), None)
    with pytest.raises(ReadOnly):
        await house.taps.put("f", tap_settings(exchange="ex"), None)
    with pytest.raises(NotFound):
        await house.depth("gateway.tap.f")


async def test_a_checker_may_know_other_brokers(house: House) -> None:
    asked: list[str] = []
    house.taps.check("t", tap_settings(broker="later", dead_letter_broker="last"), asked.append)
    assert asked == ["later", "last"]


async def test_a_queue_of_its_own_is_there_when_the_tap_is(house: House) -> None:
    await house.upstream.declare_exchange("ex", "fanout")
    await paused(house, exchange="ex")
    assert (await house.upstream.publish("ex", "", Message(b"1", Properties()))).routed
    await house.upstream.delete_queue("gateway.tap.t")
    etag = (await house.taps.get("t")).etag
    await house.taps.put("t", tap_settings(exchange="ex", paused=True, prefetch=7), etag)
    assert await house.depth("gateway.tap.t") == 0, "it is declared again, though that was done just before"


async def test_its_queue_is_declared_again_when_brokers_may_be_others(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    await house.upstream.declare_exchange("ex", "fanout")
    tap = await paused(house, exchange="ex")
    declare, declared = house.upstream.declare_queue, 0

    async def count(*arguments: Any, **options: Any) -> Any:
        nonlocal declared
        declared += 1
        return await declare(*arguments, **options)

    monkeypatch.setattr(house.upstream, "declare_queue", count)
    found = []
    for reconfigures in (False, True):
        if reconfigures:
            house.taps.reconfigure({})
        await house.taps._own_queues.ensure("t", tap.settings)
        found.append(declared)
    assert found == [0, 1]


async def test_a_close_leaves_nothing_that_runs(house: House) -> None:
    await house.tap()
    await house.wait_for(state=TapState.RUNNING)
    deleting = house.taps._own_queues._deleting.start(asyncio.sleep(600.0))
    await house.taps.close(1.0)
    assert deleting.cancelled()
    assert (await house.upstream.query_queue("in")).consumer_count == 0


@pytest.mark.parametrize(
    ("change", "moved"),
    [
        ({"prefetch": 7}, False),
        ({"queue": "other"}, True),
        ({"exchange": "ex"}, True),
        ({"binding_key": "k"}, True),
        ({"arguments": {"a": 1}}, True),
        ({"broker": "other"}, True),
    ],
)
async def test_it_has_moved_when_messages_come_from_elsewhere(
    house: House, change: dict[str, Any], moved: bool
) -> None:
    before = {"queue": "in", "exchange": "", "binding_key": "", "arguments": {}, "broker": "house"}
    assert house.taps.has_moved(tap_settings(**before), tap_settings(**{**before, **change})) is moved


# ------------------------------------------------------------------------------------------------ its progress


async def test_a_deleted_tap_leaves_no_progress(house: House) -> None:
    await house.fill(3)
    await house.tap(until="depth")
    await house.wait_for(state=TapState.STOPPED)
    assert await house.ledger.get_resource(PROGRESS, "t") is not None
    await house.taps.delete("t", None)
    assert await house.ledger.get_resource(PROGRESS, "t") is None


async def test_only_one_that_has_ended_starts_over(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    await paused(house, until="depth")
    await house.ledger.put_resource(PROGRESS, "t", {"etag": "x", "depth": 1, "left": 1}, None)
    left: list[bool] = []
    keep_wish = Supervisor._keep_wish

    async def looked(self: TapSupervisor, thing: Any) -> None:
        if thing.wish is WantedState.RUN:
            left.append(await house.ledger.get_resource(PROGRESS, thing.name) is not None)
        await keep_wish(self, thing)

    monkeypatch.setattr(Supervisor, "_keep_wish", looked)
    await house.taps.resume("t")
    await until(lambda: house.taps._here["t"].wish is WantedState.STOP and house.taps._here["t"]._flow is None)
    await house.taps.resume("t")
    assert left == [True, False]


# -------------------------------------------------------------------------------------------------- one of them


async def test_it_runs_once(house: House) -> None:
    tap = await paused(house)
    tap.start()
    flows = [tap._flow]
    await house.taps.resume("t")
    flows.append(tap._flow)
    tap.start()
    flows.append(tap._flow)
    assert flows[0] is None, "that is not wanted"
    assert flows[1] is flows[2] is not None
    await house.wait_for(state=TapState.RUNNING)
    assert (await house.upstream.query_queue("in")).consumer_count == 1


async def test_one_that_is_dropped_consumes_no_more(house: House) -> None:
    await house.tap()
    await house.wait_for(state=TapState.RUNNING)
    tap = house.taps._here["t"]
    await tap.drop()
    assert (tap._flow, tap._state) == (None, TapState.STOPPED)
    assert (await house.upstream.query_queue("in")).consumer_count == 0
    assert gauge(house, "up") == 0
    await tap.drop()
    await tap.halt()


async def test_one_that_has_ended_says_so_after_a_restart_and_forgets_why_when_it_runs(house: House) -> None:
    await house.fill(5)
    await house.tap(until="depth")
    await until(lambda: house.taps._here["t"]._why_stopped and house.taps._here["t"]._flow is None)
    status = await house.taps.get("t")
    assert (status.depth, status.left, status.reason) == (5, 0, "until: 5 of 5 messages are taken")
    await house.close_gateway()
    await house.open()
    await house.wait_for(state=TapState.STOPPED)
    assert (gauge(house, "up"), gauge(house, "fault")) == (0, 0)
    tap = house.taps._here["t"]
    tap._why_stopped = "it was done"
    await house.fill(1)
    tap.wish = WantedState.RUN
    tap.start()
    await tap.drop()
    assert (await tap.status()).reason == ""


async def test_one_that_was_started_while_it_was_halted_goes_on(house: House) -> None:
    await house.tap()
    await house.wait_for(state=TapState.RUNNING)
    tap = house.taps._here["t"]
    first = tap._flow
    assert first is not None
    halting = asyncio.create_task(tap.halt())
    await asyncio.sleep(0)
    tap._flow = None
    tap.start()
    second = tap._flow
    await halting
    assert tap._flow is second
    await house.wait_for(state=TapState.RUNNING)


class Flow:
    """A flow, as far as it says how things stand."""

    def __init__(self, **found: Any) -> None:
        self.done = self.consuming = False
        self.full = self.reason = ""
        self.dead_letters: Any = self
        self.__dict__.update(found)


class Letters:
    """Dead letters that wait."""

    def __init__(self, reason: str) -> None:
        self.reason = reason


@pytest.mark.parametrize(
    ("wish", "flow", "state"),
    [
        (WantedState.PAUSE, Flow(consuming=True, reason="it is gone"), TapState.PAUSED),
        (WantedState.RUN, None, TapState.STOPPED),
        (WantedState.STOP, Flow(consuming=True), TapState.STOPPED),
        (WantedState.RUN, Flow(consuming=True, done=True, reason="it is gone"), TapState.STOPPED),
        (WantedState.RUN, Flow(consuming=True, reason="it is gone", full="it is full"), TapState.ERROR),
        (WantedState.RUN, Flow(consuming=True, dead_letters=Letters("no bed")), TapState.ERROR),
        (WantedState.RUN, Flow(consuming=True, full="it is full"), TapState.FULL),
        (WantedState.RUN, Flow(consuming=True), TapState.RUNNING),
        (WantedState.RUN, Flow(), TapState.STARTING),
    ],
)
async def test_its_state_follows_from_what_is_wanted_and_what_stands_in_the_way(
    house: House, wish: WantedState, flow: Flow | None, state: TapState
) -> None:
    tap = await paused(house)
    tap.wish = wish
    tap._flow = flow  # type: ignore[assignment]
    tap._since = 0.0
    tap._judge()
    assert tap._state is state
    assert (tap._since > 0.0) is (state is not TapState.PAUSED), "it was paused before"
    assert gauge(house, "up") == (state is TapState.RUNNING)
    assert gauge(house, "fault") == (state in (TapState.STARTING, TapState.ERROR, TapState.FULL))
    since = tap._since
    tap._judge()
    assert tap._since == since, "it says since when it is so"
    assert tap.finished is (flow is not None and flow.done and wish is WantedState.RUN)
    tap._flow = None


async def test_all_that_stands_in_the_way_is_said(house: House) -> None:
    tap = await paused(house)
    assert tap._reason() == ""
    tap._flow = Flow(reason="it is gone", dead_letters=Letters("no bed"))  # type: ignore[assignment]
    assert tap._reason() == "it is gone; no bed"
    tap._flow = None


async def test_one_whose_broker_is_another_one_is_stale(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    tap = await paused(house)
    found = [tap.stale]
    monkeypatch.setitem(house.gateway.brokers, "house", object())
    found.append(tap.stale)
    monkeypatch.undo()
    assert found == [False, True]


# --------------------------------------------------------------------------------------------------- status


async def test_the_depth_of_its_queue_is_asked_for_once_a_second(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    now, depth, asked = 1_000.0, 5, 0
    await paused(house)

    class Found:
        message_count = 0

    async def query(queue: str) -> Any:
        nonlocal asked
        asked += 1
        if depth < 0:
            raise BrokerUnavailable("it is gone")
        Found.message_count = depth
        return Found

    tap = house.taps._here["t"]
    tap._asked_at = -taps.ASK_EVERY
    monkeypatch.setattr(house.upstream, "query_queue", query)
    monkeypatch.setattr("gateway.runtime.clock.clock.monotonic", lambda: now)
    assert ((await tap.status()).source_messages, asked) == (5, 1)
    now, depth = now + 0.5, 6
    assert ((await tap.status()).source_messages, asked) == (5, 1)
    now += 0.5
    assert ((await tap.status()).source_messages, asked) == (6, 2)
    now, depth = now + 1.0, -1
    assert ((await tap.status()).source_messages, asked) == (None, 3)


async def test_a_status_says_what_is_left_also_when_it_is_paused(house: House) -> None:
    await house.fill(5)
    status = await house.tap(until="depth", paused=True)
    assert (status.depth, status.left, status.in_flight, status.state) == (None, None, 0, TapState.PAUSED)
    await house.taps.resume("t")
    status = await house.wait_for(state=TapState.STOPPED, left=0)
    assert (status.depth, status.reason) == (5, "until: 5 of 5 messages are taken")
    await until(lambda: house.taps._here["t"]._flow is None)
    status = await house.taps.get("t")
    assert (status.depth, status.left, status.reason) == (5, 0, "until: 5 of 5 messages are taken")
    await house.fill(2)
    await house.taps.resume("t")
    await house.wait_for(state=TapState.STOPPED, depth=2, left=0, reason="until: 2 of 2 messages are taken")


async def test_the_numbers_of_a_tap_go_with_it(house: House) -> None:
    assert gauge(house, "up") is None
    await paused(house)
    assert (gauge(house, "up"), gauge(house, "fault")) == (0, 0)
    await house.taps.resume("t")
    await house.fill(3, size=10)
    await house.wait_for(spooled=3, state=TapState.RUNNING)
    assert (gauge(house, "up"), gauge(house, "fault")) == (1, 0)
    await house.taps.pause("t")
    await house.taps.resume("t")
    status = await house.wait_for(state=TapState.RUNNING)
    assert (status.spooled, status.octets) == (3, sum(map(len, await house.bodies()))), "they go on"
    text = house.metrics.render().decode()
    assert 'amqpgw_tap_messages_total{event="spooled",tap="t"} 3.0' in text
    assert f'amqpgw_tap_octets_total{{tap="t"}} {float(status.octets)}' in text
    await house.taps.delete("t", None)
    assert 'tap="t"' not in house.metrics.render().decode()
    await house.fill(1)
    await house.tap()
    await house.wait_for(spooled=1)


def test_numbers_that_are_nothing_are_no_metric() -> None:
    metrics = Metrics("test")
    counts = TapCounts("t", metrics)
    assert (counts.octets, set(counts.numbers.values()), counts.rate(10.0)) == (0, {0}, 0.0)
    counts.add("taken", 0)
    assert 'event="taken"' not in metrics.render().decode()
    counts.add("taken", 2)
    counts.add("taken")
    counts.spooled(5, 70, 10.0)
    assert (counts.numbers["taken"], counts.numbers["spooled"], counts.octets) == (3, 5, 70)
    assert 'amqpgw_tap_messages_total{event="taken",tap="t"} 3.0' in metrics.render().decode()
    assert counts.rate(10.0) > 0
