"""What the ledger owes, as metrics show it: read now and then, by one process, and within a bounded number of names."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.core.work import observer as module
from gateway.core.work.observer import Observer
from gateway.errors import LedgerUnavailable
from gateway.ledger.pending.owed import BacklogCounts
from gateway.ledger.pending.promises import PendingCounts
from gateway.observing.series import OTHER
from gateway.observing.telemetry import Metrics
from gateway.runtime.clock import clock


class Ledger:
    """What a ledger owes."""

    def __init__(self) -> None:
        self.shard = self.owner = 3
        self.counts: dict[str, BacklogCounts] = {}
        self.pending = PendingCounts(1, 2, 3, 4.5, 5, 6)
        self.reads = 0
        self.errors: list[Exception] = []
        self.deliveries = self.promises = self

    async def survey(self) -> Any:
        if self.errors:
            raise self.errors.pop(0)
        return self.owner, []

    async def backlogs(self) -> dict[str, BacklogCounts]:
        self.reads += 1
        return self.counts

    async def standing(self) -> PendingCounts:
        return self.pending


class Watch:
    """An observer, and what it shows."""

    def __init__(self, names: int = 10) -> None:
        self.ledger: Any = Ledger()
        self.metrics = Metrics("test", names=names)
        ledger: Any = self.ledger
        self.observer = Observer(ledger, self.metrics)

    def value(self, name: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(f"amqpgw_{name}", labels)

    def of(self, name: str) -> list[float | None]:
        states = ("waiting", "out", "dead")
        return [
            *(self.value("subscription_messages", subscription=name, state=state) for state in states),
            self.value("subscription_octets", subscription=name),
        ]


async def test_each_number_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = Watch()
    monkeypatch.setattr(clock, "now", lambda: 1_000.0)
    watch.ledger.counts = {
        "a": BacklogCounts(1, 2, 3, 4, 940_000_000),
        "b": BacklogCounts(5, 6, 7, 8, None),
        "early": BacklogCounts(1, 0, 0, 0, 1_060_000_000),
    }
    await watch.observer.look()
    assert (watch.of("a"), watch.of("b")) == ([1, 2, 3, 4], [5, 6, 7, 8])
    oldest = [watch.value("subscription_oldest_seconds", subscription=name) for name in ("a", "b", "early")]
    assert oldest == [60.0, 0.0, 0.0]
    assert [watch.value("outbox_messages", state=state) for state in ("due", "later", "refused")] == [1, 2, 3]
    assert watch.value("outbox_overdue_seconds") == 4.5
    assert [watch.value("in_doubt", state=state) for state in ("pending", "parked")] == [5, 6]
    watch.ledger.counts = {"b": BacklogCounts(1)}
    await watch.observer.look()
    assert (watch.of("a"), watch.of("b")) == ([None] * 4, [1, 0, 0, 0])
    assert watch.value("subscription_oldest_seconds", subscription="a") is None


async def test_those_with_dead_messages_have_names_first(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = Watch(names=2)
    monkeypatch.setattr(clock, "now", lambda: 1_000.0)
    watch.ledger.counts = {
        "idle": BacklogCounts(0, 1, 0, 10),
        "dead": BacklogCounts(0, 0, 1, 20),
        "long": BacklogCounts(9, 0, 0, 30, 1),
        "short": BacklogCounts(2, 3, 0, 40, 990_000_000),
        "older": BacklogCounts(1, 1, 0, 50, 980_000_000),
    }
    await watch.observer.look()
    assert [watch.of(name)[0] is not None for name in ("dead", "long", "short", "older", "idle")] == [
        True, True, False, False, False,
    ]  # fmt: skip
    assert watch.of(OTHER) == [3, 5, 0, 100]
    assert watch.value("subscription_oldest_seconds", subscription=OTHER) == 20.0
    watch.ledger.counts = {name: BacklogCounts(1) for name in ("a", "b", "c")}
    await watch.observer.look()
    assert watch.value("subscription_oldest_seconds", subscription=OTHER) == 0.0
    watch.ledger.counts = {name: BacklogCounts(1) for name in ("a", "b")}
    await watch.observer.look()
    assert watch.of(OTHER) == [None] * 4


async def test_only_one_process_shows_them() -> None:
    watch = Watch()
    watch.ledger.counts = {"a": BacklogCounts(1)}
    await watch.observer.look()
    watch.ledger.owner = 4
    await watch.observer.look()
    text = watch.metrics.render()
    assert not any(
        f"amqpgw_{name}{{".encode() in text for name in ("subscription_messages", "outbox_messages", "in_doubt")
    )
    assert watch.value("outbox_overdue_seconds") == 0
    assert watch.ledger.reads == 1


async def test_backlogs_are_read_again_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """The longer, the longer it takes."""
    watch = Watch()
    now, took = 100.0, 0.0
    monkeypatch.setattr(clock, "monotonic", lambda: now)
    read = watch.ledger.backlogs

    async def slow() -> Any:
        nonlocal now
        now += took
        return await read()

    watch.ledger.backlogs = slow
    found = await asyncio.gather(*(watch.observer.backlogs() for _ in range(5)))
    assert (len(found), watch.ledger.reads) == (5, 1)
    now += module.EVERY - 0.1
    await watch.observer.backlogs()
    assert watch.ledger.reads == 1
    now += 0.1
    took = 1.0
    await watch.observer.backlogs()
    assert watch.ledger.reads == 2
    now += module.SHARE - 0.1
    await watch.observer.backlogs()
    assert watch.ledger.reads == 2
    now += 0.1
    await watch.observer.backlogs()
    assert watch.ledger.reads == 3


async def test_a_ledger_that_is_away_and_a_fault_end_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    watch = Watch()
    watch.ledger.errors = [LedgerUnavailable("away"), ValueError("a fault")]
    monkeypatch.setattr(module, "FIRST", 0.0)
    monkeypatch.setattr(module, "EVERY", 0.01)
    monkeypatch.setattr(module, "SHARE", 0)
    watch.observer.start()
    async with asyncio.timeout(5):
        while watch.ledger.reads < 2:
            await asyncio.sleep(0.005)
    assert [record.getMessage() for record in caplog.records] == ["observer.failed"]
    await watch.observer.close()
    await watch.observer.close()
    reads = watch.ledger.reads
    await asyncio.sleep(0.03)
    assert watch.ledger.reads == reads
    assert not [task for task in asyncio.all_tasks() if task.get_name() == "observer"]


async def test_the_first_look_and_the_next_have_their_time(monkeypatch: pytest.MonkeyPatch) -> None:
    watch, slept, now = Watch(), [], 0.0

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 4:
            await asyncio.Event().wait()

    async def look() -> None:
        nonlocal now
        now += len(slept) - 1

    monkeypatch.setattr(module, "clock", SimpleNamespace(sleep=sleep, monotonic=lambda: now))
    monkeypatch.setattr(watch.observer, "look", look)
    watch.observer.start()
    async with asyncio.timeout(5):
        while len(slept) < 4:
            await asyncio.sleep(0)
    assert slept == [module.FIRST, module.EVERY, module.SHARE, 2 * module.SHARE]
    await watch.observer.close()


async def test_nothing_of_it_goes_on_when_it_is_closed() -> None:
    watch = Watch()
    watch.observer.start()
    await asyncio.sleep(0)
    await watch.observer.close()
    assert "observer" not in {task.get_name() for task in asyncio.all_tasks()}
