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
    assert b"amqpgw_events_dropped_total" in metrics.render()
    await Recorder(ledger, metrics).close(0.01)
