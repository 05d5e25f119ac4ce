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

    async def record(self, entries: list[LogEntry]) -> list[int]:
        await asyncio.sleep(0)
        if self.failures:
            raise self.failures.pop(0)
        self.written.append([entry.at for entry in entries])
        return []


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
