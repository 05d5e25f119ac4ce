"""A tap of a queue's depth that has ended is resumed: it starts over."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

import pytest

from gateway.taps import TapState
from tests.taps.conftest import House


async def test_a_tap_that_has_only_just_ended_starts_over(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """It shows that it has ended a moment before that is written down."""
    to_come: list[Coroutine[Any, Any, None]] = []
    await house.fill(3)
    with monkeypatch.context() as patch:
        patch.setattr(house.taps, "_spawn", to_come.append)
        await house.tap(until="depth")
        await house.wait_for(state=TapState.STOPPED)
    await house.fill(2)
    await house.taps.resume("t")
    for work in to_come:
        await work
    status = await house.wait_for(state=TapState.STOPPED, spooled=5)
    assert status.reason == "until: 2 of 2 messages are taken"


async def test_a_pause_of_a_tap_that_has_only_just_ended_lasts(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    to_come: list[Coroutine[Any, Any, None]] = []
    await house.fill(3)
    with monkeypatch.context() as patch:
        patch.setattr(house.taps, "_spawn", to_come.append)
        await house.tap(until="depth")
        await house.wait_for(state=TapState.STOPPED)
    await house.taps.pause("t")
    for work in to_come:
        await work
    assert (await house.taps.get("t")).state is TapState.PAUSED
