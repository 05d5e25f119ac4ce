"""A made-up gateway, and the clock that nobody has to wait for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gateway.runtime.ids import ids
from tests.pipeline.fake import FakeGateway


class Time:
    """A clock that only moves when somebody sleeps."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds >= 0
        self.slept.append(seconds)
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Time:
    monkeypatch.setattr(ids, "fraction", lambda: 1.0)
    return Time()


@pytest.fixture
def gateway() -> Iterator[FakeGateway]:
    """One whose messages are 1,000 in shard 0 and 100 in shard 3."""
    with FakeGateway() as found:
        found.add("messages", 0, 1_000)
        found.add("messages", 3, 100)
        found.add("events", 0, 500)
        yield found
