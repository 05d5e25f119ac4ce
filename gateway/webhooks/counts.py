"""What pushing has done, for ``/metrics``.

Endpoints that the configuration names have a label of their own, all that are made over HTTP share one: anybody who may
make endpoints could else make labels without end.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import Final

from prometheus_client import Counter, Histogram

from gateway.telemetry import Metrics
from gateway.webhooks.schedule import Ruling
from gateway.webhooks.sender import Outcome

OTHER: Final = "other"
"""The label of endpoints that the configuration does not name."""
MESSAGES: Final = (
    "delivered", "retried", "dead", "dead_lettered", "replied", "duplicate_dropped", "filtered",
)  # fmt: skip
"""The label ``event`` of ``amqpgw_push_messages_total``."""
TOLD: Final = frozenset({410, 429, 503})
"""Statuses that mean something of their own; others are told by their class. An endpoint may answer any."""


class Counts:
    """The numbers of all endpoints."""

    def __init__(self, metrics: Metrics, configured: Collection[str]) -> None:
        self._metrics = metrics
        self._configured = frozenset(configured)
        self._messages: dict[tuple[str, str], Counter] = {}
        self._requests: dict[tuple[str, str], Counter] = {}
        self._seconds: dict[str, Histogram] = {}
        self._held: set[str] = set()

    def configured(self, endpoints: Collection[str]) -> None:
        """The configuration names these from now on. Those that it named before keep what they have counted."""
        for endpoint in self._configured - frozenset(endpoints):
            with suppress(KeyError):
                self._metrics.push_endpoint_up.remove(endpoint)
        self._configured = frozenset(endpoints)

    def message(self, endpoint: str, event: str) -> None:
        """What became of a message."""
        key = self._label(endpoint), event
        counter = self._messages.get(key)
        if counter is None:
            counter = self._messages[key] = self._metrics.push_messages.labels(*key)
        counter.inc()

    def request(self, endpoint: str, rulings: Sequence[Ruling], seconds: float) -> None:
        """A request is over."""
        label = self._label(endpoint)
        key = label, rulings[0].verdict.value
        counter = self._requests.get(key)
        if counter is None:
            counter = self._requests[key] = self._metrics.push_requests.labels(*key)
        counter.inc()
        histogram = self._seconds.get(label)
        if histogram is None:
            histogram = self._seconds[label] = self._metrics.push_seconds.labels(label)
        histogram.observe(seconds)

    def retried(self, outcome: Outcome, count: int) -> None:
        """So many messages of a request are tried again."""
        if count:
            self._metrics.retries.labels("push", reason_of(outcome)).inc(count)

    def up(self, endpoint: str, up: bool) -> None:
        """Whether it gets messages."""
        if up:
            self._held.discard(endpoint)
        else:
            self._held.add(endpoint)
        self._metrics.push_held.set(len(self._held))
        if endpoint in self._configured:
            self._metrics.push_endpoint_up.labels(endpoint).set(up)

    def forget(self, endpoint: str) -> None:
        """Nothing goes there any more."""
        self._held.discard(endpoint)
        self._metrics.push_held.set(len(self._held))

    def _label(self, endpoint: str) -> str:
        return endpoint if endpoint in self._configured else OTHER


def reason_of(outcome: Outcome) -> str:
    """Why a request did not do, in one of few words."""
    if outcome.error is not None:
        return outcome.error.code
    status = outcome.status or 0
    if status in TOLD:
        return f"status_{status}"
    return f"status_{status // 100}xx" if 2 <= status // 100 <= 5 else "status_other"
