"""What pushing has done, for ``/metrics``.

An endpoint has a label of its own, as long as it exists and is one of the first so many
(:mod:`gateway.observing.series`); all others share one. Anybody who may make endpoints could else make labels without
end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from prometheus_client import Counter, Histogram

from gateway.observing.telemetry import Metrics
from gateway.webhooks.attempts.schedule import NextStep
from gateway.webhooks.attempts.sender import SendOutcome

MESSAGES: Final = (
    "delivered", "retried", "dead", "dead_lettered", "replied", "duplicate_dropped", "filtered",
)  # fmt: skip
"""The label ``event`` of ``amqpgw_push_messages_total``."""
TOLD: Final = frozenset({410, 429, 503})
"""Statuses that mean something of their own; others are counted by their class. An endpoint may answer any."""


class PushCounts:
    """The numbers of all endpoints."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._messages: dict[str, dict[str, Counter]] = {}
        """Endpoint -> event -> series."""
        self._requests: dict[str, dict[str, Counter]] = {}
        """Endpoint -> outcome -> series."""
        self._seconds: dict[str, Histogram] = {}
        self._held: set[str] = set()

    def message(self, endpoint: str, event: str) -> None:
        """What became of a message."""
        counters = self._messages.setdefault(endpoint, {})
        counter = counters.get(event)
        if counter is None:
            counter = counters[event] = self._metrics.push_messages.labels(endpoint, event)
        counter.inc()

    def request(self, endpoint: str, next_steps: Sequence[NextStep], seconds: float) -> None:
        """A request is over."""
        outcome = next_steps[0].outcome.value
        counters = self._requests.setdefault(endpoint, {})
        counter = counters.get(outcome)
        if counter is None:
            counter = counters[outcome] = self._metrics.push_requests.labels(endpoint, outcome)
        counter.inc()
        histogram = self._seconds.get(endpoint)
        if histogram is None:
            histogram = self._seconds[endpoint] = self._metrics.push_seconds.labels(endpoint)
        histogram.observe(seconds)

    def retried(self, outcome: SendOutcome, count: int) -> None:
        """This number of messages of a request is tried again."""
        if count:
            self._metrics.retries.labels("push", reason_of(outcome)).inc(count)

    def up(self, endpoint: str, up: bool) -> None:
        """Whether it gets messages."""
        if up:
            self._held.discard(endpoint)
        else:
            self._held.add(endpoint)
        self._metrics.push_held.set(len(self._held))
        self._metrics.push_endpoint_up.labels(endpoint).set(up)

    def idle(self, endpoint: str) -> None:
        """Nothing goes there any more. What it has counted stays."""
        self._held.discard(endpoint)
        self._metrics.push_held.set(len(self._held))
        self._metrics.push_endpoint_up.remove(endpoint)

    def gone(self, endpoint: str) -> None:
        """There is no such endpoint any more: its series make room for others."""
        for event in self._messages.pop(endpoint, ()):
            self._metrics.push_messages.remove(endpoint, event)
        for outcome in self._requests.pop(endpoint, ()):
            self._metrics.push_requests.remove(endpoint, outcome)
        if self._seconds.pop(endpoint, None) is not None:
            self._metrics.push_seconds.remove(endpoint)


def reason_of(outcome: SendOutcome) -> str:
    """Why a request did not do, in one of few words."""
    if outcome.error is not None:
        return outcome.error.code
    status = outcome.status or 0
    if status in TOLD:
        return f"status_{status}"
    return f"status_{status // 100}xx" if 2 <= status // 100 <= 5 else "status_other"
