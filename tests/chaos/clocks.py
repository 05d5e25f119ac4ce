"""F20: clocks that jump, under a clock that is given.

Messages are pushed in virtual time while the time of day jumps about. Intervals go by the loop's own clock, so that no
attempt comes sooner or more often than the schedule says; what an endpoint asks for by a date goes by the time of day,
and may cost a day at most.
"""

from __future__ import annotations

import asyncio
import email.utils
import random
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Final

from gateway.runtime import replaced
from gateway.runtime.clock import clock
from gateway.webhooks.attempts.forms import PushedMessage
from gateway.webhooks.attempts.schedule import DELAYS, JITTER, RETRY_AFTER_MAX
from gateway.webhooks.attempts.sender import SendOutcome
from tests.chaos.figures import Figures
from tests.chaos.parts import Context
from tests.webhooks.virtual import World, now, run

EPOCH: Final = 1_800_000_000.0
"""What time of day it is when a virtual run begins."""
HOUR: Final = 3_600.0
MESSAGES: Final = {False: 20, True: 80}
"""Of each endpoint and scenario under a clock that is given, in the quick and in the full form."""
ASK: Final = 60.0
"""How long an endpoint asks to be left alone, by a date, in seconds."""


class Wall:
    """The time of day: the loop's clock and an offset."""

    def __init__(self) -> None:
        self.offset = 0.0
        self.furthest = 0.0
        """How far it was off at most, in seconds, of what anybody saw."""

    def time(self) -> float:
        self.furthest = max(self.furthest, abs(self.offset))
        return EPOCH + now() + self.offset

    def time_ns(self) -> int:
        return int(self.time() * 1e9)


# What the time of day does: called once a virtual second.
Jumps = Callable[[Wall, int, random.Random], None]


def _hour(wall: Wall, second: int, rng: random.Random) -> None:
    if second % 97 == 0:
        wall.offset += rng.choice((-HOUR, HOUR))


def _day(wall: Wall, second: int, rng: random.Random) -> None:
    if second % 97 == 0:
        wall.offset += rng.choice((-24 * HOUR, 24 * HOUR))


def _leap(wall: Wall, second: int, rng: random.Random) -> None:
    if second % 10 == 0:
        wall.offset -= 1.0


def _standing(wall: Wall, second: int, rng: random.Random) -> None:
    wall.offset -= 1.0


SCENARIOS: Final[tuple[tuple[str, Jumps], ...]] = (
    ("an hour forth and back", _hour),
    ("a day forth and back", _day),
    ("leap seconds", _leap),
    ("a second back each second", _standing),
)


async def _world(jumps: Jumps, messages: int, seed: int) -> Figures:
    """Three endpoints: one always fails, one asks by a date to be left alone, one takes everything."""
    figures = Figures("", unit="messages")
    rng = random.Random(seed)
    wall = Wall()
    with replaced(clock, now=wall.time, now_ns=wall.time_ns):
        world = World(chance=rng.random)
        world.targets.clock = wall.time
        asked: list[float] = []

        def asks(items: Sequence[PushedMessage]) -> SendOutcome:
            until = asked[0] if asked else now() + ASK
            asked[:] = [until]
            if now() >= until:
                return SendOutcome(status=200)
            return SendOutcome(status=503, retry_after=email.utils.formatdate(EPOCH + until, usegmt=True))

        world.receivers.put("fails", SendOutcome(status=500), breaker_failures=1_000)
        world.receivers.put("asks", asks, breaker_failures=1_000)
        world.receivers.put("well", SendOutcome(status=200))
        for name in ("fails", "asks", "well"):
            await world.push(name)
        for second in range(messages * 10):
            jumps(wall, second, rng)
            if second % 10 == 0:
                for name in ("fails", "asks", "well"):
                    world.broker.put(name, b"%s %d" % (name.encode(), second // 10))
            await asyncio.sleep(1.0)
        for hour in range(110):  # all of the schedule, and a day that a date may cost
            jumps(wall, hour * 97, rng)
            await asyncio.sleep(HOUR)
        _judge(figures, world, messages)
        figures.extra["off_by_h"] = round(wall.furthest / HOUR, 2)
        figures.must(wall.furthest > 0, "nobody asked for the time of day")
        await world.close()
    return figures


def _judge(figures: Figures, world: World, messages: int) -> None:
    """Attempts, their times, and what became of everything."""
    times: dict[bytes, list[float]] = {}
    for name in ("fails", "asks", "well"):
        for at, items in world.receivers.requests.get(name, []):
            for item in items:
                times.setdefault(bytes(item.message.body), []).append(at)
    most: dict[str, int] = {}
    for number in range(messages):
        for name, limit in (("fails", len(DELAYS)), ("asks", 4), ("well", 1)):
            body = b"%s %d" % (name.encode(), number)
            at = times.get(body, [])
            most[name] = max(most.get(name, 0), len(at))
            figures.must(1 <= len(at) <= limit, f"{body.decode()}: {len(at)} attempts")
            if name == "fails" and len(at) > 1:
                for wait, delay in zip([b - a for a, b in pairwise(at)], DELAYS[1:], strict=False):
                    kept = delay * (1 - JITTER) - 1 <= wait <= delay * (1 + JITTER) + 60
                    figures.must(kept, f"{body.decode()}: {wait:.0f} s between attempts, not {delay:g}")
            if name == "asks" and at:
                figures.must(at[-1] - at[0] <= RETRY_AFTER_MAX * 1.2 + ASK, f"{body.decode()}: held back too long")
    got = {name: {bytes(body) for body in world.receivers.bodies(name)} for name in ("asks", "well")}
    wanted = {name: {b"%s %d" % (name.encode(), number) for number in range(messages)} for name in got}
    figures.attempted = 3 * messages
    figures.acknowledged = len(world.broker.accepted)
    dead = sum(row.owed.subscription == "fails" for row in world.ledger.rows.values())
    figures.lost = sum(len(wanted[name] - got[name]) for name in got) + messages - dead
    figures.unexpected = sum(len(got[name] - wanted[name]) for name in got)
    figures.duplicated = sum(len(world.receivers.bodies(name)) - len(got[name]) for name in got)
    figures.recovered = 0
    figures.extra = {f"most_attempts_{name}": number for name, number in most.items()}


def clocks(context: Context) -> list[Figures]:
    """Every scenario in virtual time."""
    found = []
    for name, jumps in SCENARIOS:
        began = time.monotonic()
        figures: Figures = run(_world(jumps, MESSAGES[context.full], context.seed))
        figures.what = f"{name}, virtual time"
        figures.seconds = round(time.monotonic() - began, 1)
        found.append(figures)
    return found
