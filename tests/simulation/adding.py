"""Faults that few worlds draw, added to any other world: ``python -m tests.simulation --also reset``."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from tests.simulation.worlds import Fault, World


def _reset(world: World, chance: random.Random, at: float, process: str) -> Fault:
    return Fault(at, "reset", chance.choice(sorted(world.brokers)), process)


def _unreadable(world: World, chance: random.Random, at: float, process: str) -> Fault:
    return Fault(at, "unreadable", process, "", round(chance.choice((0.1, 1.0, 4.0)) * chance.random(), 4))


ADDED: Final[Mapping[str, Callable[[World, random.Random, float, str], Fault]]] = {
    "reset": _reset,
    "unreadable": _unreadable,
}
"""Kind of the fault -> what makes one, of a process at a time, in seconds after the work has begun."""


def added(kind: str, world: World) -> World:
    """Return a world with a fault of this kind besides its own. One with a rare moment stays as it is."""
    if world.moment:
        return world
    chance = random.Random(f"{kind} in world {world.seed}")
    process = chance.choice(("gateway", "gateway2")[: world.gateways])
    at = round(0.8 * chance.random(), 4)
    return replace(world, faults=(*world.faults, ADDED[kind](world, chance, at, process)))
