"""What stands in a bridge's way, and what the log says of it and of its messages. Time is a list."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from gateway.bridges.faults import Faults
from gateway.bridges.flow_log import FlowLog
from gateway.observing.repeats import FIELDS
from gateway.runtime.clock import clock
from tests.bridges.hands import given


class Told:
    """Counts changes."""

    def __init__(self) -> None:
        self.changes = 0

    def change(self) -> None:
        """Something has changed."""
        self.changes += 1


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, as its only element."""
    time = [1_000.0]
    monkeypatch.setattr(clock, "monotonic", lambda: time[0])
    return time


def lines(caplog: pytest.LogCaptureFixture) -> list[tuple[str, dict[str, Any]]]:
    """Take what was logged."""
    found = [(record.getMessage(), getattr(record, FIELDS)) for record in caplog.records]
    caplog.clear()
    return found


async def test_a_fault_is_told_once_and_when_it_changes() -> None:
    told = Told()
    faults = Faults("b", told.change)
    assert (bool(faults), faults.reason, faults.last) == (False, "", "")
    faults.set("target", "it is gone")
    faults.set("target", "it is gone")
    assert (told.changes, faults.reason, "target" in faults) == (1, "target: it is gone", True)
    faults.set("target", "it is full")
    assert (told.changes, faults.reason) == (2, "target: it is full")
    faults.set("source", "x" * 600)
    assert (told.changes, faults.reason) == (3, f"target: it is full; source: {'x' * 500}")
    faults.clear("ledger")
    assert told.changes == 3
    faults.clear("target")
    assert (told.changes, "target" in faults, bool(faults)) == (4, False, True)
    faults.set("target", "it is full")
    faults.clear_all()
    assert (told.changes, bool(faults), faults.reason) == (7, False, "")
    assert faults.last == "target: it is full", "it says what was wrong, also when it is over"


async def test_the_log_says_when_a_fault_begins_and_changes_but_once_a_second(
    now: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    faults = Faults("b", lambda: None)
    faults.set("target", "one")
    assert lines(caplog) == [("bridge.fault", {"bridge": "b", "where": "target", "reason": "one"})]
    faults.set("source", "one")
    assert len(lines(caplog)) == 1, "the places do not wait for each other"
    now[0] += 0.75
    faults.set("target", "two")
    assert lines(caplog) == []
    now[0] += 0.25
    faults.set("target", "three")
    faults.set("target", "four")
    assert [fields["reason"] for _, fields in lines(caplog)] == ["three"]
    faults.clear("target")
    assert lines(caplog) == [("bridge.fault_over", {"bridge": "b", "where": "target"})]
    faults.set("target", "five")
    assert [fields["reason"] for _, fields in lines(caplog)] == ["five"], "one that begins is always told"


def lossy() -> Any:
    """A message that the target cannot carry all of."""

    class Loss:
        name, field = "expiration", "ttl"

    class Item:
        text, losses, reason = "some-id", [Loss()], "it is poison"
        delivery = given()

    return Item()


def test_the_log_says_once_a_second_what_messages_lose(caplog: pytest.LogCaptureFixture) -> None:
    flow_log = FlowLog("b")
    flow_log.lossy(lossy(), 0.0)
    assert lines(caplog) == [
        ("bridge.loss", {"bridge": "b", "message_id": "some-id", "losses": ["expiration: ttl"]}),
    ]  # fmt: skip
    flow_log.lossy(lossy(), 0.75)
    assert lines(caplog) == []
    flow_log.lossy(lossy(), 1.0)
    flow_log.lossy(lossy(), 1.5)
    assert len(lines(caplog)) == 1


def test_the_log_counts_the_dead_letters_that_it_does_not_name(caplog: pytest.LogCaptureFixture) -> None:
    flow_log = FlowLog("b")
    flow_log.dead_lettered([lossy()], 0.0)
    assert lines(caplog) == [("bridge.dead_lettered", {"bridge": "b", "count": 1, "reason": "it is poison"})]
    flow_log.dead_lettered([lossy()] * 3, 0.5)
    assert lines(caplog) == []
    flow_log.dead_lettered([lossy()] * 2, 1.0)
    assert [fields["count"] for _, fields in lines(caplog)] == [5]
    flow_log.dead_lettered([lossy()], 2.0)
    assert [fields["count"] for _, fields in lines(caplog)] == [1]
