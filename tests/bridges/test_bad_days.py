"""What was found by breaking things around a bridge (``tests/faults/bridges``), each as small as it can be had."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import uvloop

from gateway.errors import LedgerUnavailable
from tests.bridges.conftest import Estate


def test_timers_on_uvloop(tmp_path: Path) -> None:
    """There, a timer that is due at once cannot say when it is due."""

    async def run() -> None:
        estate = Estate(tmp_path)
        try:
            await estate.open("0-9-1", "0-9-1", {})
            await estate.old.declare_queue("in")
            await estate.new.declare_queue("out")
            await estate.bridge()
            await estate.wait_for(state="running")
            flow = estate.bridges._here["b"]._flow
            assert flow is not None
            now = asyncio.get_running_loop().time()
            flow._timer.wake_at(now - 1)
            flow._timer.wake_at(now + 1)
            flow._timer.wake_at(now - 1)
        finally:
            await estate.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())


def test_a_throttled_bridge_on_uvloop_goes_on(tmp_path: Path) -> None:
    """There, timers come up to a millisecond early: then another one is needed, even if nothing else happens."""

    async def run() -> None:
        estate = Estate(tmp_path)
        try:
            await estate.open("0-9-1", "0-9-1", {})
            await estate.old.declare_queue("in")
            await estate.new.declare_queue("out")
            await estate.fill(40)
            await estate.bridge(messages_per_second=130)
            await estate.wait_for(forwarded=40, within=30.0)
        finally:
            await estate.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())


async def test_it_goes_on_as_soon_as_the_ledger_does(estate: Estate, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long it was away, and however long the next pause is therefore."""
    await estate.bridge()
    await estate.wait_for(state="running")
    ledger = estate.ledger
    flow = estate.bridges._here["b"]._flow
    assert flow is not None
    wait = flow._journal._wait
    flow._journal._wait = lambda pause: wait(pause * 1_000)  # type: ignore[method-assign]

    async def refuse(*_: object) -> list[int]:
        raise LedgerUnavailable("it is locked")

    monkeypatch.setattr(ledger, "record", refuse)
    await estate.fill(5)
    await estate.wait_for(state="error", reason="ledger: it is locked")
    monkeypatch.setattr(ledger, "ready", lambda: (False, "it is locked"))
    await asyncio.sleep(0.6)
    monkeypatch.undo()
    await estate.wait_for(forwarded=5, within=60.0)
    await estate.take(5)
