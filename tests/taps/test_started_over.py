"""A tap of a queue's depth that has ended is resumed: it starts over."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

import pytest

from gateway.core.work.supervised import WantedState
from gateway.errors import LedgerUnavailable
from gateway.ledger import Ledger
from gateway.taps import TapState
from tests.taps.conftest import House


async def just_ended(house: House, monkeypatch: pytest.MonkeyPatch) -> list[Coroutine[Any, Any, None]]:
    """Let a tap of three messages come to its end. Return the work that writes this down, which is not begun."""
    to_come: list[Coroutine[Any, Any, None]] = []
    await house.fill(3)
    with monkeypatch.context() as patch:
        patch.setattr(house.taps, "_spawn", to_come.append)
        await house.tap(until="depth")
        await house.wait_for(state=TapState.STOPPED)
    return to_come


async def test_a_tap_that_has_only_just_ended_starts_over(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """It shows that it has ended a moment before that is written down."""
    to_come = await just_ended(house, monkeypatch)
    await house.fill(2)
    await house.taps.resume("t")
    for work in to_come:
        await work
    status = await house.wait_for(state=TapState.STOPPED, spooled=5)
    assert status.reason == "until: 2 of 2 messages are taken"


async def test_a_pause_of_a_tap_that_has_only_just_ended_lasts(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    to_come = await just_ended(house, monkeypatch)
    await house.taps.pause("t")
    for work in to_come:
        await work
    assert (await house.taps.get("t")).state is TapState.PAUSED


async def test_a_resume_that_fails_leaves_a_tap_that_has_ended(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has ended for the next start of the gateway, too."""
    to_come = await just_ended(house, monkeypatch)

    async def away(self: Ledger, kind: str, name: str, if_match: str | None = None) -> bool:
        raise LedgerUnavailable("away")

    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "delete_resource", away)
        with pytest.raises(LedgerUnavailable):
            await house.taps.resume("t")
    for work in to_come:
        await work
    kept = await house.ledger.get_resource("tap-wish", "t")
    assert kept is not None
    assert kept.spec["wish"] == WantedState.STOP.value
    assert (await house.taps.get("t")).state is TapState.STOPPED
