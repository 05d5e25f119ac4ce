"""What one process at a time does for a subscription, and loses in the middle of it."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.core.work.subscription_work import SubscriptionWork


class Runner:
    """Begins once it is let."""

    stale = True

    def __init__(self, subscription: Any) -> None:
        self.subscription = subscription
        self.let = asyncio.Event()
        self.runs = False

    async def start(self) -> None:
        await self.let.wait()
        self.runs = True

    async def stop(self, within: float) -> None:
        self.runs = False

    def lost(self) -> None:
        self.runs = False

    def wake(self) -> None:
        raise AssertionError


class Subscriptions:
    """All there are."""

    async def get(self, name: str) -> Any:
        return SimpleNamespace(name=name)

    def forget(self, name: str) -> None:
        """Nothing is remembered."""


class Work(SubscriptionWork[Runner]):
    kind = "work"

    def __init__(self) -> None:
        super().__init__(Subscriptions())  # type: ignore[arg-type]
        self.made: list[Runner] = []

    def has_work(self, subscription: Any) -> bool:
        return True

    def build(self, subscription: Any) -> Runner:
        self.made.append(Runner(subscription))
        return self.made[-1]


@pytest.mark.parametrize("is_granted_again", [False, True])
async def test_what_is_lost_while_it_starts_over_does_not_run(is_granted_again: bool) -> None:
    """Nobody ends it where it starts over because its settings have changed."""
    work = Work()
    starting = asyncio.create_task(work.start("s"))
    await asyncio.sleep(0)
    work.made[0].let.set()
    await starting
    assert work.made[0].runs
    changing = asyncio.create_task(work.refresh("s"))
    while len(work.made) < 2:
        await asyncio.sleep(0)
    work.lost("s")
    if is_granted_again:
        starting = asyncio.create_task(work.start("s"))
        await asyncio.sleep(0)
    work.made[1].let.set()
    await changing
    if is_granted_again:
        work.made[2].let.set()
        await starting
    assert [runner.runs for runner in work.made] == [False, False, True][: len(work.made)]
