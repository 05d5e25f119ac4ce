"""A thousand endpoints of which half fail, under a clock that is given: who waits for whom."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from gateway.errors import ConnectFailed, OutboundTimeout
from gateway.webhooks.attempts.forms import PushedMessage
from gateway.webhooks.attempts.sender import SendOutcome
from gateway.webhooks.attempts.slots import SHARES, Health
from gateway.webhooks.lines import Demand
from tests.webhooks.virtual import World, now, run

ENDPOINTS = 500
"""Of each kind."""
PLACES = 256
SECONDS = 6
ANSWER = 0.02
"""How long a good endpoint takes, in seconds."""
DEADLINE = 3.0
"""That of the endpoints, in seconds."""


async def well(_: Sequence[PushedMessage]) -> SendOutcome:
    await asyncio.sleep(ANSWER)
    return SendOutcome(status=200)


async def refuses(_: Sequence[PushedMessage]) -> SendOutcome:
    return SendOutcome(error=ConnectFailed("nobody listens"))


async def breaks(_: Sequence[PushedMessage]) -> SendOutcome:
    await asyncio.sleep(ANSWER)
    return SendOutcome(status=500)


async def hangs(_: Sequence[PushedMessage]) -> SendOutcome:
    await asyncio.sleep(DEADLINE)
    return SendOutcome(error=OutboundTimeout("no answer"))


async def asks_to_wait(_: Sequence[PushedMessage]) -> SendOutcome:
    return SendOutcome(status=429, retry_after="5")


BAD = (refuses, breaks, hangs, asks_to_wait)


class Run:
    """What one run saw."""

    def __init__(self) -> None:
        self.latencies: list[float] = []
        self.failing_most = 0
        """Most requests at once of endpoints that fail."""
        self.good_least = PLACES
        """Fewest places that were left to a good endpoint, others that are good not counted."""
        self.held_most: dict[str, int] = {}
        """Most messages out of the queue of an endpoint that fails, a moment after that was known."""


async def play(bad: Sequence[Callable[[Sequence[PushedMessage]], Any]]) -> Run:
    """Every endpoint gets a message a second; the latencies are those of the good ones."""
    world = World(places=PLACES)
    seen = Run()
    good = [f"good{number}" for number in range(ENDPOINTS)]
    ill = [f"bad{number}" for number in range(ENDPOINTS if bad else 0)]
    for number, (one, other) in enumerate(zip(good, ill or good, strict=True)):
        if ill:
            world.receivers.put(other, bad[number % len(bad)])
            await world.push(other)
        world.receivers.put(one, well)
        await world.push(one)
    begun = now()
    sent: dict[bytes, float] = {}
    ailing: dict[str, float] = {}

    def watch() -> None:
        held = world.targets.slots.held
        seen.failing_most = max(seen.failing_most, held[Health.FAILING])
        seen.good_least = min(seen.good_least, PLACES - held[Health.FAILING] - held[Health.NEW])
        for name in ill:
            target = world.targets.get(name)
            assert target is not None
            if target.demand is Demand.MUCH:
                ailing.pop(name, None)
            elif now() - ailing.setdefault(name, now()) > 0.05:
                seen.held_most[name] = max(seen.held_most.get(name, 0), world.broker.out(name))
        asyncio.get_running_loop().call_later(0.1, watch)

    watch()
    for second in range(SECONDS):
        for number, name in enumerate([*good, *ill]):
            at = begun + second + number / (2 * ENDPOINTS)
            body = f"{name} {second}".encode()
            sent[body] = at
            asyncio.get_running_loop().call_at(at, world.broker.put, name, body)
    await asyncio.sleep(SECONDS + 5)
    for name in good:
        came = {item.message.body: began for began, items in world.receivers.requests[name] for item in items}
        assert sorted(came) == sorted(f"{name} {second}".encode() for second in range(SECONDS))
        seen.latencies += [began + ANSWER - sent[body] for body, began in came.items()]
    # Nothing of the others is lost: it is in the queue, with the gateway, or in the ledger.
    rows = {row.owed.subscription: 0 for row in world.ledger.rows.values()}
    for row in world.ledger.rows.values():
        rows[row.owed.subscription] += 1
    for name in ill:
        there = len(world.broker.queues[name]) + world.broker.out(name) + rows.get(name, 0)
        assert there == SECONDS, (name, there)
    await world.close()
    return seen


def percentile(values: list[float], part: float) -> float:
    return sorted(values)[min(len(values) - 1, int(part * len(values)))]


@pytest.fixture(scope="module")
def alone() -> Run:
    """Without those that fail."""
    found: Run = run(play(()))
    return found


@pytest.mark.parametrize("bad", [BAD, (hangs,)], ids=["each in its way", "all hang"])
def test_endpoints_that_fail_take_nothing_that_good_ones_need(
    alone: Run, bad: Sequence[Callable[[Sequence[PushedMessage]], Any]]
) -> None:
    seen: Run = run(play(bad))
    assert len(seen.latencies) == len(alone.latencies) == ENDPOINTS * SECONDS
    # No place among all requests:
    assert 0 < seen.failing_most <= PLACES * SHARES[Health.FAILING]
    assert seen.good_least >= PLACES * (1 - SHARES[Health.NEW])
    # no place in a prefetch, and no place in a queue:
    assert len(seen.held_most) > ENDPOINTS / 2
    assert max(seen.held_most.values()) <= 1
    # and no time.
    assert percentile(seen.latencies, 0.99) < 1.5 * percentile(alone.latencies, 0.99)
