"""Why messages are tried again, in few words, whatever endpoints answer."""

from __future__ import annotations

import pytest

from gateway.errors import ConnectFailed, OutboundTimeout
from gateway.observing.telemetry import Metrics
from gateway.webhooks.attempts.schedule import AttemptOutcome, NextStep
from gateway.webhooks.attempts.sender import SendOutcome
from gateway.webhooks.counts import PushCounts, reason_of


@pytest.mark.parametrize(
    ("outcome", "reason"),
    [
        (SendOutcome(error=ConnectFailed("refused")), ConnectFailed.code),
        (SendOutcome(error=OutboundTimeout("late"), status=500), OutboundTimeout.code),
        (SendOutcome(status=429), "status_429"),
        (SendOutcome(status=503), "status_503"),
        (SendOutcome(status=410), "status_410"),
        (SendOutcome(status=302), "status_3xx"),
        (SendOutcome(status=418), "status_4xx"),
        (SendOutcome(status=599), "status_5xx"),
        (SendOutcome(status=777), "status_other"),
        (SendOutcome(), "status_other"),
    ],
)
def test_the_reason_in_few_words(outcome: SendOutcome, reason: str) -> None:
    metrics = Metrics("test")
    counts = PushCounts(metrics)
    counts.retried(outcome, 0)
    assert b"amqpgw_retries_total{" not in metrics.render()
    counts.retried(outcome, 2)
    counts.retried(outcome, 1)
    labels = {"what": "push", "reason": reason}
    assert metrics.registry.get_sample_value("amqpgw_retries_total", labels) == 3
    assert reason_of(outcome) == reason


def test_there_are_few_of_them() -> None:
    assert len({reason_of(SendOutcome(status=status)) for status in range(1_000)}) == 8


def test_requests_are_counted_by_their_outcome() -> None:
    metrics = Metrics("test")
    counts = PushCounts(metrics)
    delivered, retried = NextStep(AttemptOutcome.DELIVERED, "200"), NextStep(AttemptOutcome.RETRY, "500")
    for next_steps in ([delivered], [retried, delivered], [delivered, retried]):
        counts.request("e", next_steps, 0.5)
    value = metrics.registry.get_sample_value
    assert value("amqpgw_push_requests_total", {"endpoint": "e", "outcome": "delivered"}) == 2
    assert value("amqpgw_push_requests_total", {"endpoint": "e", "outcome": "retry"}) == 1
    assert value("amqpgw_push_seconds_sum", {"endpoint": "e"}) == 1.5


def test_the_endpoints_that_get_nothing_are_counted() -> None:
    metrics = Metrics("test")
    counts = PushCounts(metrics)
    seen = []
    for name, up in (("a", False), ("b", False), ("b", False), ("c", True), ("a", True)):
        counts.up(name, up=up)
        seen.append(metrics.registry.get_sample_value("amqpgw_push_endpoints_suspended"))
    counts.idle("b")
    assert [*seen, metrics.registry.get_sample_value("amqpgw_push_endpoints_suspended")] == [1, 2, 2, 2, 1, 0]


def shown(metrics: Metrics) -> set[str]:
    """The endpoints that have series of their own, and ``other``."""
    return {
        str(sample.labels["endpoint"])
        for metric in metrics.registry.collect()
        for sample in metric.samples
        if "endpoint" in sample.labels
    }


def test_an_endpoint_has_its_name_as_a_label_as_long_as_it_exists() -> None:
    metrics = Metrics("test", names=2)
    counts = PushCounts(metrics)

    def use(name: str) -> None:
        counts.up(name, up=True)
        counts.message(name, "delivered")
        counts.request(name, [NextStep(AttemptOutcome.DELIVERED, "200: success")], 0.1)

    for number in range(4):
        use(f"e{number}")
    assert shown(metrics) == {"e0", "e1", "other"}
    use("e3")
    labels = {"endpoint": "other", "event": "delivered"}
    assert metrics.registry.get_sample_value("amqpgw_push_messages_total", labels) == 3
    counts.idle("e0")  # its last subscription is gone: what it has counted stays
    assert shown(metrics) == {"e0", "e1", "other"}
    counts.gone("e0")
    assert shown(metrics) == {"e1", "other"}
    use("e4")
    assert shown(metrics) == {"e1", "e4", "other"}
    for name in ("e1", "e2", "e3", "e4"):
        counts.idle(name)
        counts.gone(name)
    use("e5")
    assert "e5" in shown(metrics)
