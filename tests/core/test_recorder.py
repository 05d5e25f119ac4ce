"""Events that nobody waits for."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.core.work import recorder
from gateway.core.work.recorder import Recorder
from gateway.errors import EntriesRefused, LedgerUnavailable
from gateway.ledger import EventKind, LogEntry
from gateway.observing.telemetry import Metrics
from gateway.runtime.backoff import Backoff


class FakeLedger:
    def __init__(self) -> None:
        self.written: list[list[int]] = []
        self.failures: list[Exception] = []
        self.cut_off = False
        """A call that fails is written all the same."""

    async def record(self, entries: list[LogEntry]) -> list[int]:
        await asyncio.sleep(0)
        if self.failures:
            if self.cut_off:
                self.written.append([entry.at for entry in entries])
            raise self.failures.pop(0)
        self.written.append([entry.at for entry in entries])
        return []

    async def unrecorded(self, entries: list[LogEntry]) -> list[LogEntry]:
        return [entry for entry in entries if not any(entry.at in group for group in self.written)]


def entries(*numbers: int) -> list[LogEntry]:
    return [LogEntry(bytes(16), EventKind.RELEASED, number) for number in numbers]


def dropped(metrics: Metrics) -> float:
    return metrics.registry.get_sample_value("amqpgw_events_dropped_total") or 0.0


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long each pause may be; none takes any time."""
    made: list[float] = []

    async def wait(self: Backoff) -> None:
        made.append(self.longest)
        self.next()
        await asyncio.sleep(0)

    monkeypatch.setattr(Backoff, "wait", wait)
    return made


async def test_what_gathers_is_written_together_and_in_order() -> None:
    ledger: Any = FakeLedger()
    written = Recorder(ledger, Metrics("test"))
    written.add(entries(1))
    await asyncio.sleep(0)
    written.add(entries(2, 3))
    written.add(entries(4))
    await written.close(1.0)
    assert ledger.written == [[1], [2, 3, 4]]


async def test_a_ledger_that_is_away_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "PAUSE_MIN", 0.001)
    ledger: Any = FakeLedger()
    ledger.failures = [LedgerUnavailable("locked"), LedgerUnavailable("locked"), EntriesRefused({0: "bad"})]
    written = Recorder(ledger, Metrics("test"))
    written.add(entries(1))
    while ledger.failures:
        written.add(entries(2))
        await asyncio.sleep(0.005)
    written.add(entries(3))
    await written.close(1.0)
    assert ledger.written[-1][-1] == 3


async def test_what_was_written_although_the_call_failed_is_not_written_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "PAUSE_MIN", 0.001)
    ledger: Any = FakeLedger()
    ledger.failures, ledger.cut_off = [LedgerUnavailable("cut off")], True
    written = Recorder(ledger, Metrics("test"))
    written.add(entries(1, 2))
    while ledger.failures:
        await asyncio.sleep(0.001)
    written.add(entries(3))
    written.add_again(entries(2, 4))  # of somebody else's call, which failed too
    await written.close(1.0)
    assert [at for group in ledger.written for at in group] == [1, 2, 4, 3]


async def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "KEPT_MAX", 3)
    ledger: Any = FakeLedger()
    metrics = Metrics("test")
    written = Recorder(ledger, metrics)
    written.add(entries(1, 2, 3, 4, 5))
    await written.close(1.0)
    assert ledger.written == [[3, 4, 5]]
    assert b"amqpgw_events_dropped_total 2.0" in metrics.render()


async def test_closing_does_not_wait_for_ever() -> None:
    ledger: Any = FakeLedger()
    ledger.failures = [LedgerUnavailable("gone")] * 100
    metrics = Metrics("test")
    written = Recorder(ledger, metrics)
    written.add(entries(1))
    await written.close(0.01)
    assert dropped(metrics) == 1
    assert len(written) == 0
    assert not [task for task in asyncio.all_tasks() if task.get_name() == "recorder"]
    await Recorder(ledger, metrics).close(0.01)


async def test_nothing_is_lost_while_the_ledger_is_away(pauses: list[float]) -> None:
    """And the pauses are short again after a success."""
    ledger: Any = FakeLedger()
    written = Recorder(ledger, Metrics("test"))
    for first in (1, 3):
        ledger.failures = [LedgerUnavailable("locked")] * 3
        written.add(entries(first, first + 1))
        await written.close(5.0)
    assert [at for group in ledger.written for at in group] == [1, 2, 3, 4]
    assert pauses == [0.2, 0.4, 0.8] * 2
    ledger.failures = [LedgerUnavailable("locked"), *[EntriesRefused({0: "bad"})] * 2]
    written.add(entries(5))
    await written.close(5.0)
    assert pauses[6:] == [0.2]


async def test_a_pause_is_short_again_within_one_run(pauses: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "GROUP_MAX", 1)
    ledger: Any = FakeLedger()
    real, calls = ledger.record, 0

    async def record(group: list[LogEntry]) -> list[int]:
        nonlocal calls
        calls += 1
        if calls in (1, 2, 4):
            raise LedgerUnavailable("locked")
        found: list[int] = await real(group)
        return found

    ledger.record = record
    written = Recorder(ledger, Metrics("test"))
    written.add(entries(1, 2))
    await written.close(5.0)
    assert ledger.written == [[1], [2]]
    assert pauses == [0.2, 0.4, 0.2]


async def test_only_one_writes_at_a_time() -> None:
    ledger: Any = FakeLedger()
    real, writing, most = ledger.record, 0, 0

    async def record(group: list[LogEntry]) -> list[int]:
        nonlocal writing, most
        writing += 1
        most = max(most, writing)
        found: list[int] = await real(group)
        writing -= 1
        return found

    ledger.record = record
    written = Recorder(ledger, Metrics("test"))
    written.add([])
    assert written._task is None, "nothing is to be written"
    for number in range(5):
        written.add(entries(number))
        await asyncio.sleep(0)
    await written.close(5.0)
    assert most == 1
    assert [at for group in ledger.written for at in group] == [0, 1, 2, 3, 4]


async def test_what_another_call_tried_is_written_without_anything_new() -> None:
    ledger: Any = FakeLedger()
    written = Recorder(ledger, Metrics("test"))
    written.add_again(entries(1))
    await written.close(5.0)
    assert ledger.written == [[1]]


async def test_what_is_dropped_is_logged_once_until_the_ledger_is_back(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(recorder, "KEPT_MAX", 2)
    ledger: Any = FakeLedger()
    metrics = Metrics("test")
    written = Recorder(ledger, metrics)

    def lines() -> int:
        return [record.getMessage() for record in caplog.records].count("ledger.events_dropped")

    written.add(entries(1, 2))
    assert (lines(), dropped(metrics)) == (0, 0)
    written.add(entries(3))
    written.add(entries(4))
    assert (lines(), dropped(metrics)) == (1, 2)
    await written.close(5.0)
    assert ledger.written == [[3, 4]]
    assert (lines(), dropped(metrics)) == (1, 2)
    written.add(entries(5, 6, 7))
    assert (lines(), dropped(metrics)) == (2, 3)
    await written.close(5.0)
