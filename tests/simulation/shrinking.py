"""Make a world that fails smaller while it still fails."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from tests.simulation.scene import Result
from tests.simulation.worlds import World


def shrink(result: Result, run: Callable[[World], Result], seconds: float = 60.0) -> Result:
    """Return the result of the smallest world found that still fails."""
    until = time.monotonic() + seconds
    found = True
    while found and time.monotonic() < until:
        found = False
        for world in smaller(result.world):
            tried = run(world)
            if tried.problems:
                result, found = tried, True
                break
            if time.monotonic() > until:
                break
    return result


def smaller(world: World) -> Iterator[World]:
    """Yield worlds with a little less, the boldest first."""
    publishes, faults = world.publishes, world.faults
    half = len(publishes) // 2
    if half > 1:
        yield world.without(publishes=publishes[half:])
        yield world.without(publishes=publishes[:half])
    for index in range(len(faults)):
        yield world.without(faults=faults[:index] + faults[index + 1 :])
    if len(publishes) > 1:
        for index in range(len(publishes)):
            yield world.without(publishes=publishes[:index] + publishes[index + 1 :])
    if world.gateways > 1:
        yield world.without(
            gateways=1, faults=tuple(each for each in faults if "gateway2" not in (each.target, each.other))
        )
    if world.clumsy:
        yield world.without(clumsy=0.0)
    if world.consumers > 1:
        yield world.without(consumers=1)
    if world.split:
        yield world.without(split=0.0)
    for index, publish in enumerate(publishes):
        if publish.hang_up is not None:
            simple = replace(publish, hang_up=None)
            yield world.without(publishes=(*publishes[:index], simple, *publishes[index + 1 :]))
