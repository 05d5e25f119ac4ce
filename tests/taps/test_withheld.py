"""What a tap of a queue's depth withholds is acknowledged when nothing more comes: it is paused, or has no room. That
is its end when the broker has it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from gateway.amqp.operations import Settlement
from gateway.core.sources import taking
from gateway.core.sources.fetching import settle
from gateway.taps import TapState, flow
from gateway.taps.flow import PROGRESS
from gateway.upstreams import Delivery
from tests.taps.conftest import House

VERSIONS = ["0-9-1", "0-8", "0-10"]


async def tap_of_more(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tap a queue that held three more, which somebody else took: acknowledgements stay withheld for them."""
    monkeypatch.setattr(flow, "EMPTY_EVERY", 1e9)
    query = house.upstream.query_queue

    async def three_more(queue: str) -> Any:
        found = await query(queue)
        return replace(found, message_count=found.message_count + 3)

    with monkeypatch.context() as patch:
        patch.setattr(house.upstream, "query_queue", three_more)
        await house.tap(until="depth", prefetch=10, log_octets=1 << 20)
        await house.wait_for(spooled=6)


@pytest.mark.parametrize("house", VERSIONS, indirect=True)
async def test_a_pause_acknowledges_what_is_in_the_log(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    await house.fill(6)
    await tap_of_more(house, monkeypatch)
    assert (await house.taps.get("t")).in_flight == 6
    await house.taps.pause("t")
    assert await house.depth() == 0


@pytest.mark.parametrize("house", VERSIONS, indirect=True)
async def test_a_tap_without_room_acknowledges_what_is_in_the_log(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HOLD", "LOOK_EVERY"):
        monkeypatch.setattr(taking, name, 0.02)
    await house.fill(6, size=300_000)
    await tap_of_more(house, monkeypatch)
    await house.wait_for(state=TapState.FULL, in_flight=0)
    assert await house.depth() == 0


def dies_with(house: House, monkeypatch: pytest.MonkeyPatch, first: int, last: int) -> None:
    """The connection dies right behind these acknowledgements, before any of them has reached the broker."""
    told = 0

    def lost(delivery: Delivery, settlement: Settlement) -> bool:
        nonlocal told
        told += 1
        if told == last:
            asyncio.get_running_loop().call_soon(house.cut)
        return True if first <= told <= last else settle(delivery, settlement)

    monkeypatch.setattr(flow, "settle", lost)


@pytest.mark.parametrize("house", VERSIONS, indirect=True)
async def test_the_last_acknowledgements_are_not_the_end_before_the_broker_has_them(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    dies_with(house, monkeypatch, 26, 30)
    sent = await house.fill(30)
    await house.tap(until="depth", prefetch=5)
    await house.wait_for(depth=30)
    late = await house.fill(20)
    await house.wait_for(state=TapState.STOPPED)
    bodies = await house.bodies()
    more = set(bodies) - set(sent)
    assert set(bodies) >= set(sent)
    assert more < set(late)
    assert await house.depth() == 20 - len(more), "what is in the log is not in the queue"


@pytest.mark.parametrize("house", VERSIONS, indirect=True)
async def test_an_empty_queue_is_not_the_end_before_the_broker_has_the_acknowledgements(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    dies_with(house, monkeypatch, 1, 6)
    await house.fill(6)
    await tap_of_more(house, monkeypatch)
    monkeypatch.setattr(flow, "EMPTY_EVERY", 0.01)
    status = await house.wait_for(state=TapState.STOPPED)
    assert status.reason.endswith("the queue gave no more")
    assert await house.depth() == 0


@pytest.mark.parametrize("house", VERSIONS, indirect=True)
async def test_a_pause_writes_down_what_the_broker_may_not_have(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    dies_with(house, monkeypatch, 1, 6)
    await house.fill(6)
    await tap_of_more(house, monkeypatch)
    await house.taps.pause("t")
    found = await house.ledger.get_resource(PROGRESS, "t")
    assert found is not None
    assert found.spec["left"] == 9, "all six may come again"
