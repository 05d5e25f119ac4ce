"""What the garbage collector finds in worlds."""

from __future__ import annotations

import gc
from types import TracebackType

import pytest

from gateway.api import app
from gateway.link import Channel
from tests.simulation.judge import Judge
from tests.simulation.simulation import simulate
from tests.simulation.worlds import draw

WORLDS = range(1, 41)


def _is_of_request(error: BaseException) -> bool:
    """Whether it came through the handler of requests."""
    step: TracebackType | None = error.__traceback__
    while step is not None and step.tb_frame.f_code.co_filename != app.__file__:
        step = step.tb_next
    return step is not None


def test_a_request_that_failed_leaves_nothing_to_the_collector(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error holds the frames that it came through. Where one of them holds the error, too, all stay until the
    collector comes by, which is seldom: in an outage that was megabytes."""
    found: list[str] = []
    failed = 0
    drain = Judge.drain

    async def looked_at(judge: Judge) -> None:
        await drain(judge)
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        gc.set_debug(0)
        held = {id(each.closed) for each in gc.garbage if isinstance(each, Channel)}  # as long as their channel
        found.extend(
            f"seed {judge.scene.world.seed}: {each!r}"
            for each in gc.garbage
            if isinstance(each, BaseException) and _is_of_request(each) and id(each) not in held
        )
        gc.garbage.clear()

    monkeypatch.setattr(Judge, "drain", looked_at)
    for seed in WORLDS:
        world = draw(seed)
        if any(fault.kind.startswith("kill") for fault in world.faults):
            continue  # the garbage of a killed process is the world's
        counts = simulate(world).counts
        failed += sum(number for name, number in counts.items() if name.endswith((" 503", " 504")))
    assert failed > 20
    assert found == []
