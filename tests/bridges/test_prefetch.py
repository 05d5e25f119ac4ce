"""How a bridge's prefetch follows the size of its messages, and what its numbers say: a fake consumer shows it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.bridges import BridgeState
from gateway.bridges import bridge as bridges
from gateway.bridges.bridge import Bridge
from gateway.core.work.supervised import WantedState
from gateway.errors import BrokerUnavailable
from gateway.runtime.clock import clock
from gateway.upstreams import ConsumerState
from tests.bridges.conftest import Estate, until

OCTETS = 1 << 16
Wait = Callable[[], Awaitable[None]] | None


class Reader:
    """A consumer, as far as its prefetch goes."""

    def __init__(self, prefetch: int) -> None:
        self.prefetch = prefetch
        self.changing = False
        self.state = ConsumerState.RUNNING
        self.reason = ""
        self.on_state: list[Any] = []
        self.changes: list[tuple[int, Wait]] = []

    def change_prefetch(self, prefetch: int, wait: Wait = None) -> None:
        """Note it."""
        self.changes.append((prefetch, wait))


class Flow:
    """A flow, as far as it holds something."""

    def __init__(self, held: int, octets: int) -> None:
        self.held = held
        self.octets = octets
        self.octets_max = OCTETS
        self.unheld = False
        self.taken = 0
        self.left: int | None = None
        self.deduplicator = SimpleNamespace(repeats=False)

    @property
    def idle(self) -> bool:
        """It holds nothing."""
        return not self.held

    async def wait_low(self) -> None:
        """Wait for nothing."""


async def paused(estate: Estate, **settings: Any) -> Bridge:
    """A bridge that does not run."""
    await estate.bridge(paused=True, **settings)
    return estate.bridges._here["b"]


def give(bridge: Bridge, flow: Flow | None, consumer: Reader | None) -> None:
    """Let these be its own."""
    bridge._flow, bridge._consumer = flow, consumer  # type: ignore[assignment]


@pytest.fixture
async def bridge(estate: Estate) -> Any:
    found = await paused(estate, prefetch=100)
    yield found
    found._flow = found._consumer = None


# ------------------------------------------------------------------------------------------------- it shrinks


@pytest.mark.parametrize(
    ("held", "octets", "prefetch", "expected"),
    [
        (10, 2 * OCTETS, 100, 5),  # as many as fit
        (90, 2 * OCTETS, 60, 30),  # at most half of what it was
        (1, 50 * OCTETS, 100, 1),  # at least one
        (3, 0, 100, 50),
    ],
)
async def test_it_shrinks_to_what_fits(bridge: Bridge, held: int, octets: int, prefetch: int, expected: int) -> None:
    consumer = Reader(prefetch)
    give(bridge, Flow(held, octets), consumer)
    bridge._full(False)
    assert consumer.changes == [(expected, None)]


async def test_one_at_a_time_becomes_no_less(bridge: Bridge) -> None:
    flow, consumer = Flow(1, 50 * OCTETS), Reader(1)
    give(bridge, flow, consumer)
    bridge._full(False)
    assert consumer.changes == []
    bridge._full(True)
    assert consumer.changes == [(1, flow.wait_low)], "what goes back must not come again for ever"


async def test_one_that_is_overrun_waits_for_room(bridge: Bridge) -> None:
    flow, consumer = Flow(10, 2 * OCTETS), Reader(100)
    give(bridge, flow, consumer)
    bridge._full(True)
    assert consumer.changes == [(5, flow.wait_low)]


async def test_a_source_that_cannot_be_held_back_keeps_its_prefetch_and_waits(bridge: Bridge) -> None:
    flow, consumer = Flow(300, 2 * OCTETS), Reader(100)
    flow.unheld = True
    give(bridge, flow, consumer)
    bridge._full(False)
    assert consumer.changes == [(100, flow.wait_low)]


async def test_one_that_changes_or_is_not_there_is_left_alone(bridge: Bridge) -> None:
    flow, consumer = Flow(10, 2 * OCTETS), Reader(100)
    consumer.changing = True
    for each, one in ((flow, consumer), (None, consumer), (flow, None)):
        give(bridge, each, one)
        bridge._full(True)
    give(bridge, flow, consumer)
    bridge._grow(flow, consumer, 10, 10)  # type: ignore[arg-type]
    assert consumer.changes == []


# --------------------------------------------------------------------------------------------------- it grows


@pytest.mark.parametrize(
    ("messages", "octets", "prefetch", "expected"),
    [
        (10, OCTETS, 2, 5),  # half of what fits
        (10, OCTETS, 3, None),  # too little to begin again for
        (12, OCTETS, 3, 6),
        (1_000, OCTETS, 60, 100),  # all that is wanted, though it is no doubling
        (1_000, OCTETS, 100, None),
        (5, 0, 10, 100),
        (0, 0, 1, None),
        (1_000, OCTETS, 10, 100),
    ],
)
async def test_it_grows_to_half_of_what_fits(
    bridge: Bridge, messages: int, octets: int, prefetch: int, expected: int | None
) -> None:
    consumer = Reader(prefetch)
    give(bridge, Flow(0, 0), consumer)
    bridge._grow(bridge._flow, consumer, messages, octets)  # type: ignore[arg-type]
    assert consumer.changes == ([] if expected is None else [(expected, None)])


# ------------------------------------------------------------------------------------------------ it is empty


async def test_a_source_is_empty_when_it_says_so_and_nothing_is_held(
    bridge: Bridge, estate: Estate, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow, consumer = Flow(0, 0), Reader(10)
    give(bridge, flow, consumer)
    count: int | None = 0
    takes = held = 0

    async def query(queue: str) -> Any:
        if count is None:
            raise BrokerUnavailable("it is gone")
        flow.taken += takes
        flow.held += held
        return SimpleNamespace(message_count=count)

    monkeypatch.setattr(estate.old, "query_queue", query)

    async def is_empty() -> bool:
        return await bridge._is_empty(flow, consumer)  # type: ignore[arg-type]

    assert await is_empty()
    count = 1
    assert not await is_empty()
    count = None
    assert not await is_empty(), "nobody knows"
    count, takes = 0, 1
    assert not await is_empty(), "something came while it was asked"
    takes, held = 0, 1
    assert not await is_empty(), "something is held by now"
    held = 0
    assert not await is_empty(), "something is held"
    flow.held = 0
    consumer.state = ConsumerState.DOWN
    assert not await is_empty()
    consumer.state, flow.deduplicator.repeats, count = ConsumerState.RUNNING, True, 5
    assert await is_empty(), "what is only shown stays in the queue"
    flow.held = 1
    assert not await is_empty()


# ---------------------------------------------------------------------------------------------- it has ended


@pytest.mark.parametrize(
    ("left", "drained", "wish", "finished"),
    [
        (0, False, WantedState.RUN, True),
        (0, False, WantedState.DRAIN, True),
        (0, False, WantedState.PAUSE, False),
        (1, False, WantedState.RUN, False),
        (None, False, WantedState.RUN, False),
        (None, True, WantedState.DRAIN, True),
        (None, True, WantedState.RUN, False),
        (None, False, WantedState.DRAIN, False),
    ],
)
@pytest.mark.parametrize("flows", [True, False])
async def test_it_has_ended_when_what_was_wanted_is_done(
    bridge: Bridge, left: int | None, drained: bool, wish: WantedState, finished: bool, flows: bool
) -> None:
    if flows:
        flow = Flow(0, 0)
        flow.left = left
        give(bridge, flow, None)
        bridge._left = 5
    else:
        bridge._left = left
    bridge._drained = drained
    bridge.wish = wish
    assert bridge.finished is finished


@pytest.mark.parametrize(
    ("wish", "runs", "fault", "consumer", "state"),
    [
        (WantedState.PAUSE, True, True, ConsumerState.RUNNING, BridgeState.PAUSED),
        (WantedState.STOP, True, True, ConsumerState.RUNNING, BridgeState.STOPPED),
        (WantedState.RUN, False, True, ConsumerState.RUNNING, BridgeState.STOPPED),
        (WantedState.RUN, True, True, ConsumerState.RUNNING, BridgeState.ERROR),
        (WantedState.RUN, True, False, None, BridgeState.STARTING),
        (WantedState.RUN, True, False, ConsumerState.DOWN, BridgeState.STARTING),
        (WantedState.RUN, True, False, ConsumerState.RUNNING, BridgeState.RUNNING),
        (WantedState.DRAIN, True, False, ConsumerState.RUNNING, BridgeState.DRAINING),
    ],
)
async def test_its_state_follows_from_what_is_wanted_and_what_stands_in_the_way(
    bridge: Bridge, wish: WantedState, runs: bool, fault: bool, consumer: ConsumerState | None, state: BridgeState
) -> None:
    bridge._since = 0.0
    bridge.wish = wish
    reader = None if consumer is None else Reader(1)
    if reader is not None and consumer is not None:
        reader.state = consumer
    give(bridge, None, reader)
    if fault:
        bridge._faults.set("target", "it is gone")
    bridge._tasks = [asyncio.create_task(asyncio.sleep(0))] if runs else []
    bridge._judge()
    assert bridge.state is state
    metrics = bridge._gateway.metrics
    up = metrics.registry.get_sample_value("amqpgw_bridge_up", {"bridge": "b"})
    faulty = metrics.registry.get_sample_value("amqpgw_bridge_fault", {"bridge": "b"})
    assert up == (state in (BridgeState.RUNNING, BridgeState.DRAINING))
    assert faulty == (state in (BridgeState.STARTING, BridgeState.ERROR))
    since = bridge._since
    assert (since > 0.0) is (state is not BridgeState.PAUSED), "it was paused before"
    bridge._judge()
    assert bridge._since == since, "it says since when it is so"
    bridge._tasks = []


# ------------------------------------------------------------------------------------------ internal errors


async def test_pauses_after_internal_errors_grow_until_there_was_none_for_a_while(
    bridge: Bridge, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, pauses = 1_000.0, []
    monkeypatch.setattr(clock, "monotonic", lambda: now)
    monkeypatch.setattr("gateway.runtime.backoff.pause_after", lambda failures, *_: float(failures + 1))

    async def restart() -> None:
        """Do nothing."""

    monkeypatch.setattr(bridge, "_restart", restart)
    for seconds in (0.0, 1.0, bridges.CALM - 1.0, bridges.CALM + 3.0, 5.0, bridges.CALM + 2.0):
        now += seconds
        bridge._tasks = [asyncio.create_task(asyncio.sleep(0))]
        bridge._crashed(RuntimeError("a fault of ours"))
        pauses.append(bridge._rest_seconds)
        assert bridge._faults.reason == "bridge: internal error: RuntimeError('a fault of ours')"
        bridge._crashed(RuntimeError("another"))
        assert len(bridge._tasks) == 2, "it starts over once"
        bridge._faults.clear_all()
    assert pauses == [1.0, 2.0, 3.0, 1.0, 2.0, 1.0]
    bridge._tasks = []


async def test_while_it_rests_after_an_internal_error_its_source_has_everything(estate: Estate) -> None:
    """Others may take it."""
    await estate.new.delete_queue("out")
    await estate.bridge()
    await estate.fill(3)
    await estate.wait_for(in_flight=3)
    bridge = estate.bridges._here["b"]

    class Rest:
        def next(self) -> float:
            """Rest for long."""
            return 600.0

        def reset(self) -> None:
            """Rest as long."""

    bridge._backoff = Rest()  # type: ignore[assignment]
    bridge._crashed(RuntimeError("a fault of ours"))
    await until(lambda: bridge._consumer is None)
    found = await estate.old.query_queue("in")
    assert (found.message_count, found.consumer_count) == (3, 0)
    assert (await estate.status()).reason.startswith("bridge: internal error")


async def test_a_drain_ends_when_it_was_empty_twice_in_a_row(estate: Estate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bridges, "LOOK_EVERY", 0.001)
    await estate.bridge()
    await estate.wait_for(state="running")
    bridge = estate.bridges._here["b"]
    looks = [True, False, True, True, True]

    async def is_empty(*_: Any) -> bool:
        return looks.pop(0)

    ended: list[int] = []
    monkeypatch.setattr(bridge, "_is_empty", is_empty)
    monkeypatch.setattr(bridge, "_finish", lambda why: ended.append(len(looks)))
    bridge.wish = WantedState.DRAIN
    bridge.start()
    await until(lambda: ended)
    bridge.wish = WantedState.RUN
    assert (ended[0], bridge._drained) == (1, True)
