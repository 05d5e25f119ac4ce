"""Brokers that are about to take the place of others: connected first, and dropped where that fails."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.core import Gateway, retired
from gateway.core.broker_change import BrokerChange, is_up
from gateway.errors import Overloaded
from gateway.upstreams import UpstreamState
from tests.core.fakes import FakeUpstream


class Starting(FakeUpstream):
    """One that comes up, or fails, when the test says so."""

    def __init__(self, name: str = "fake", state: UpstreamState = UpstreamState.CONNECTING) -> None:
        super().__init__(name)
        self.state = state
        self.up = asyncio.Event()
        self.said: list[str] = []
        self.waited: list[float | None] = []
        self.error: Exception | None = None

    async def start(self) -> None:
        self.said.append("start")
        if self.error is not None:
            raise self.error

    async def wait_up(self, timeout: float | None = None) -> bool:
        self.waited.append(timeout)
        await self.up.wait()
        return True

    async def close(self, timeout: float = 5.0) -> None:
        self.said.append(f"close {timeout:g}")

    def become(self, state: UpstreamState) -> None:
        self.state = state
        for call in list(self.on_state):
            call(self)
        if state is UpstreamState.UP:
            self.up.set()


def changing(gateway: Gateway, *made: Any, gone: tuple[str, ...] = ()) -> BrokerChange:
    return BrokerChange(gateway, {each.name: each for each in made}, gone)


@pytest.mark.parametrize(
    ("state", "expected"), [(UpstreamState.UP, True), (UpstreamState.BLOCKED, True), (UpstreamState.DOWN, False)]
)
def test_a_blocked_broker_is_up(state: UpstreamState, expected: bool) -> None:
    broker: Any = Starting(state=state)
    assert is_up(broker) is expected
    assert not is_up(None)


@pytest.mark.parametrize(
    ("state", "is_lost"), [(UpstreamState.UP, False), (UpstreamState.DOWN, True), (UpstreamState.FAILED, True)]
)
async def test_one_whose_predecessor_is_up_is_waited_for(gateway: Gateway, state: UpstreamState, is_lost: bool) -> None:
    another: Any = Starting()
    new = Starting("new")
    change = changing(gateway, another, new)
    connecting = asyncio.create_task(change.connect())
    await asyncio.sleep(0.01)
    assert not connecting.done()
    another.become(UpstreamState.CONNECTING)
    await asyncio.sleep(0.01)
    assert not connecting.done()
    another.become(state)
    async with asyncio.timeout(5):
        await connecting
    assert (another.said, new.said) == (["start"], ["start"])
    assert another.waited[0] is not None
    assert another.waited[0] > another.settings.connect_timeout
    assert new.waited == [], "nobody uses it yet"
    assert another.on_state == []
    assert change.losses() == ([another] if is_lost else [])
    assert not [task for task in asyncio.all_tasks() if "wait_up" in repr(task.get_coro())]


async def test_one_that_has_failed_already_is_not_waited_for(gateway: Gateway) -> None:
    another = Starting(state=UpstreamState.FAILED)
    async with asyncio.timeout(5):
        await changing(gateway, another).connect()


async def test_one_whose_predecessor_is_away_is_neither_waited_for_nor_a_loss(
    gateway: Gateway, upstream: FakeUpstream
) -> None:
    upstream.state = UpstreamState.DOWN
    another = Starting()
    change = changing(gateway, another)
    async with asyncio.timeout(5):
        await change.connect()
    assert change.losses() == []


async def test_what_cannot_be_started_is_closed(gateway: Gateway) -> None:
    first, second = Starting("a"), Starting("b")
    second.error = ValueError("a fault")
    with pytest.raises(ValueError, match="a fault"):
        await changing(gateway, first, second).connect()
    assert first.said == ["start", "close 0"]
    assert second.said == ["start", "close 0"]


async def test_too_many_that_were_replaced_change_nothing(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retired, "RETIRED_MAX", 0)
    another, new = Starting(), Starting("new")
    with pytest.raises(Overloaded):
        await changing(gateway, another).connect()
    with pytest.raises(Overloaded):
        await changing(gateway, gone=("fake",)).connect()
    assert another.said == []
    await changing(gateway, new, gone=("unknown",)).connect()
    assert new.said == ["start"]


async def test_they_count_once_they_are_committed(gateway: Gateway) -> None:
    another: Any = FakeUpstream("new")
    change = changing(gateway, another, gone=("unknown", "fake"))
    assert change.gone == ["fake", "unknown"]
    change.commit()
    assert gateway.brokers == {"new": another}
