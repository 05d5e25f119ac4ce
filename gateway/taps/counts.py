"""What a tap has done: numbers for its status and for ``/metrics``."""

from __future__ import annotations

from typing import Final

from prometheus_client import Counter

from gateway.core.rates import Rate
from gateway.observing.telemetry import Metrics

EVENTS: Final = ("taken", "spooled", "redelivered", "duplicates_dropped", "dead_lettered", "oversized", "lease_lost")
"""The label ``event`` of ``amqpgw_tap_messages_total``."""


class TapCounts:
    """The numbers of one tap. They live as long as its name is known, even if its settings go."""

    def __init__(self, name: str, metrics: Metrics) -> None:
        self.name = name
        self.numbers: dict[str, int] = dict.fromkeys(EVENTS, 0)
        self.octets = 0
        self.last_error = ""
        """What was wrong last, also when it is over."""
        self._metrics = metrics
        self._counters: dict[str, Counter] = {}
        self._octets: Counter = metrics.tap_octets.labels(name)
        self._rate = Rate()

    def add(self, event: str, count: int = 1) -> None:
        """``count`` more of an event."""
        if not count:
            return
        self.numbers[event] += count
        counter = self._counters.get(event)
        if counter is None:
            counter = self._counters[event] = self._metrics.tap_messages.labels(self.name, event)
        counter.inc(count)

    def spooled(self, count: int, octets: int, now: float) -> None:
        """This number of messages is in the log."""
        self.add("spooled", count)
        self.octets += octets
        self._octets.inc(octets)
        self._rate.add(count, now)

    def rate(self, now: float) -> float:
        """Messages spooled a second, lately."""
        return self._rate.of(now)

    def forget(self) -> None:
        """The tap is deleted: its numbers go from ``/metrics``."""
        for event in self._counters:
            self._metrics.tap_messages.remove(self.name, event)
        self._metrics.tap_up.remove(self.name)
        self._metrics.tap_fault.remove(self.name)
        self._metrics.tap_octets.remove(self.name)
