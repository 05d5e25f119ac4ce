"""What a bridge has done: numbers for its status and for ``/metrics``."""

from __future__ import annotations

from collections import deque
from typing import Final

from prometheus_client import Counter, Histogram

from gateway.core.rates import Rate
from gateway.observing.telemetry import Metrics

LAGS: Final = 101
"""How many lags the median is taken of."""


class BridgeCounts:
    """The numbers of one bridge. They live as long as its name is known, even if its settings go."""

    def __init__(self, name: str, metrics: Metrics) -> None:
        self.name = name
        self.numbers: dict[str, int] = dict.fromkeys(EVENTS, 0)
        self.losses: dict[str, int] = {}
        self._metrics = metrics
        self._counters: dict[str, Counter] = {}
        self._octets: Counter = metrics.bridge_octets.labels(name)
        self._lag: Histogram = metrics.bridge_lag.labels(name)
        self._rate = Rate()
        self._lags: deque[float] = deque(maxlen=LAGS)

    def add(self, event: str, count: int = 1) -> None:
        """``count`` more of an event."""
        self.numbers[event] += count
        counter = self._counters.get(event)
        if counter is None:
            counter = self._counters[event] = self._metrics.bridge_messages.labels(self.name, event)
        counter.inc(count)

    def forwarded(self, count: int, octets: int, lag: float, now: float) -> None:
        """This number of messages was recorded and acknowledged; ``lag`` of one of them."""
        self.add("forwarded", count)
        self._octets.inc(octets)
        self._lag.observe(lag)
        self._lags.append(lag)
        self._rate.add(count, now)

    def lost(self, name: str) -> None:
        """A message was forwarded without something."""
        self.losses[name] = self.losses.get(name, 0) + 1
        self._metrics.bridge_losses.labels(self.name, name).inc()

    def retried(self, reason: str) -> None:
        """The target did not take a message, for a reason that has this code."""
        self._metrics.retries.labels("bridge", reason).inc()

    def rate(self, now: float) -> float:
        """Messages forwarded a second, lately."""
        return self._rate.of(now)

    def lag(self) -> float | None:
        """The median of the last lags, in seconds."""
        return sorted(self._lags)[len(self._lags) // 2] if self._lags else None

    def forget(self) -> None:
        """The bridge is deleted: its numbers go from ``/metrics``."""
        for event in self._counters:
            self._metrics.bridge_messages.remove(self.name, event)
        for name in self.losses:
            self._metrics.bridge_losses.remove(self.name, name)
        self._metrics.bridge_up.remove(self.name)
        self._metrics.bridge_fault.remove(self.name)
        self._metrics.bridge_in_flight.remove(self.name)
        self._metrics.bridge_oldest.remove(self.name)
        self._metrics.bridge_octets.remove(self.name)
        self._metrics.bridge_lag.remove(self.name)


EVENTS: Final = (
    "taken", "forwarded", "dead_lettered", "duplicates_dropped", "filtered", "looped", "resent", "oversized", "refused",
    "lease_lost",
)  # fmt: skip
"""The label ``event`` of ``amqpgw_bridge_messages_total``."""
