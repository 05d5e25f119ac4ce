"""What a tap of a queue's depth withholds is acknowledged when nothing more comes: it is paused, or has no room."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gateway.core.sources import taking
from gateway.taps import TapState, flow
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
