"""What one process at a time does for a subscription, and loses in the middle of it."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.core.work.subscription_work import SubscriptionWork
from gateway.errors import LedgerUnavailable, NoSuchSubscription
from gateway.runtime.backoff import Backoff


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


# ------------------------------------------------------------------------------------ settings, troubles, the end


class Started:
    """A runner that notes what is asked of it."""

    stale = False

    def __init__(self, subscription: Any, failures: list[Exception]) -> None:
        self.subscription = subscription
        self.failures = failures
        self.said: list[str] = []

    async def start(self) -> None:
        if self.failures:
            raise self.failures.pop(0)
        self.said.append("start")

    async def stop(self, within: float) -> None:
        self.said.append(f"stop within {within:g}")

    def lost(self) -> None:
        self.said.append("lost")

    def wake(self) -> None:
        self.said.append("wake")


class Settings:
    """The subscriptions, of which another process may change any."""

    def __init__(self) -> None:
        self.there: dict[str, Any] = {}
        self.known: dict[str, Any] = {}
        self.failures: list[Exception] = []

    def put(self, name: str, **settings: Any) -> None:
        self.there[name] = SimpleNamespace(name=name, has_work=True, **settings)

    async def all(self) -> list[Any]:
        return list(self.there.values())

    async def get(self, name: str) -> Any:
        if self.failures:
            raise self.failures.pop(0)
        if name not in self.there:
            raise NoSuchSubscription(f"no subscription {name!r}")
        return self.known.setdefault(name, self.there[name])

    def forget(self, name: str) -> None:
        self.known.pop(name, None)


class Noting(SubscriptionWork[Started]):
    kind = "work"

    def __init__(self) -> None:
        settings: Any = Settings()
        self.settings = settings
        super().__init__(settings)
        self.made: list[Started] = []
        self.failures: list[Exception] = []

    def has_work(self, subscription: Any) -> bool:
        return bool(subscription.has_work)

    def build(self, subscription: Any) -> Started:
        self.made.append(Started(subscription, self.failures))
        return self.made[-1]

    @property
    def said(self) -> list[list[str]]:
        return [runner.said for runner in self.made]


@pytest.fixture
def work() -> Noting:
    made = Noting()
    made.settings.put("s")
    return made


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Pauses take no time."""
    found: list[float] = []

    async def wait(self: Backoff) -> None:
        found.append(self.next())
        await asyncio.sleep(0)

    monkeypatch.setattr(Backoff, "wait", wait)
    return found


async def test_work_begins_once_and_ends_once(work: Noting) -> None:
    await work.start("s")
    await work.start("s")
    assert work.said == [["start"]]
    await work.stop("s", 3.0)
    await work.stop("s", 3.0)
    assert work.said == [["start", "stop within 3"]]
    await work.start("s")
    work.lost("s")
    work.lost("s")
    assert work.said[1] == ["start", "lost"]
    await work.stop("s", 3.0)
    assert work.said[1] == ["start", "lost"]


async def test_there_are_names_only_where_there_is_something_to_do(work: Noting) -> None:
    work.settings.put("t")
    work.settings.there["t"].has_work = False
    assert await work.names() == {"s"}
    await work.start("t")
    assert work.made == []


async def test_what_is_done_by_other_settings_than_those_listed_is_outdated(work: Noting) -> None:
    for name in ("same", "changed", "idle", "resumed", "deleted", "elsewhere", "failing"):
        work.settings.put(name)
    work.settings.there["idle"].has_work = work.settings.there["resumed"].has_work = False
    for name in ("same", "changed", "idle", "resumed", "deleted"):
        await work.start(name)
    work.failures.append(LedgerUnavailable("away"))
    with pytest.raises(LedgerUnavailable):
        await work.start("failing")
    await work.names()
    assert work.outdated == []
    del work.settings.there["deleted"]
    work.settings.put("changed", queue="other")
    work.settings.put("resumed")
    work.settings.put("failing", queue="other")
    await work.names()
    assert sorted(work.outdated) == ["changed", "resumed"]
    for name in work.outdated:
        await work.refresh(name)
    await work.names()
    assert work.outdated == []


async def test_settings_are_read_when_it_starts(work: Noting) -> None:
    await work.settings.get("s")
    work.settings.put("s", changed=True)
    await work.start("s")
    assert work.made[0].subscription is work.settings.there["s"]


@pytest.mark.parametrize("error", [LedgerUnavailable("away"), KeyError()])
async def test_what_cannot_start_says_why_until_it_can(work: Noting, error: Exception) -> None:
    """It is its owner who tries it again."""
    work.failures = [error]
    with pytest.raises(type(error)):
        await work.start("s")
    assert work._troubles == {"s": str(error) or repr(error)}
    assert work.said == [["lost"]], "what has begun of it is dropped"
    await work.start("s")
    assert work._troubles == {}
    assert work.said[1] == ["start"]


@pytest.mark.parametrize("end", ["stop", "lost"])
async def test_a_trouble_ends_with_the_work(work: Noting, end: str) -> None:
    work.failures = [LedgerUnavailable("away")]
    with pytest.raises(LedgerUnavailable):
        await work.start("s")
    if end == "stop":
        await work.stop("s", 1.0)
    else:
        work.lost("s")
    assert work._troubles == {}


async def test_what_was_taken_away_while_it_was_read_does_not_begin(work: Noting) -> None:
    read = work.settings.get

    async def slow(name: str) -> Any:
        work.lost("s")
        return await read(name)

    work.settings.get = slow
    await work.start("s")
    assert work.made == []


async def test_a_failure_of_what_is_another_process_s_is_no_trouble(work: Noting) -> None:
    async def failing(name: str) -> Any:
        work.lost("s")
        raise LedgerUnavailable("away")

    work.settings.get = failing
    with pytest.raises(LedgerUnavailable):
        await work.start("s")
    assert work._troubles == {}


async def test_only_other_settings_or_another_broker_start_it_over(work: Noting) -> None:
    await work.start("s")
    await work.refresh("s")
    assert work.said == [["start", "wake"]]
    work.settings.put("s", changed=True)
    await work.refresh("s")
    assert work.said == [["start", "wake", "stop within 5"], ["start"]]
    assert work.made[1].subscription is work.settings.there["s"]
    work.made[1].stale = True
    await work.refresh("s")
    assert work.said[1:] == [["start", "stop within 5"], ["start"]]


async def test_what_is_deleted_ends(work: Noting) -> None:
    work.failures = [LedgerUnavailable("away")]
    with pytest.raises(LedgerUnavailable):
        await work.start("s")
    await work.start("s")
    work._troubles["s"] = "of before"
    del work.settings.there["s"]
    await work.refresh("s")
    assert work.said[1] == ["start", "stop within 5"]
    assert (work._running, work._troubles) == ({}, {})
    await work.refresh("s")


async def test_what_has_nothing_to_do_any_more_ends(work: Noting) -> None:
    await work.start("s")
    work.settings.put("s")
    work.settings.there["s"].has_work = False
    await work.refresh("s")
    assert work.said == [["start", "stop within 5"]]
    work.settings.put("s")
    await work.refresh("s")
    assert work.said[1] == ["start"]


async def test_what_cannot_start_over_is_tried_again_after_a_pause(
    work: Noting, pauses: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    await work.start("s")
    work.settings.failures = [LedgerUnavailable("away"), ValueError("a fault")]
    await work.refresh("s")
    assert work.said == [["start", "wake"]]
    assert len(pauses) == 2
    lines = [(record.getMessage(), record.levelno) for record in caplog.records]
    assert lines == [("work.not_started", logging.WARNING), ("work.not_started", logging.ERROR)]


@pytest.mark.parametrize("end", ["lost", "closed"])
async def test_what_is_over_is_tried_no_more(work: Noting, pauses: list[float], end: str) -> None:
    await work.start("s")
    work.settings.failures = [LedgerUnavailable("away")] * 3
    if end == "lost":
        work.lost("s")
    else:
        await work._stop_all(2.0)
        work._granted.add("s")
    async with asyncio.timeout(5):
        await work.refresh("s")
    assert len(pauses) == 1


async def test_all_end_when_the_gateway_leaves(work: Noting) -> None:
    work.settings.put("t")
    await work.start("s")
    await work.start("t")
    await work._stop_all(2.0)
    assert work.said == [["start", "stop within 2"]] * 2
    await work.start("s")
    assert len(work.made) == 2, "nothing begins any more"
