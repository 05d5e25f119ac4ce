"""However many names come, the number of series has an end, and what is not shown by name is seen together."""

from __future__ import annotations

import pytest

from gateway.bridges.counts import EVENTS, BridgeCounts
from gateway.observing.series import OTHER, SERIES_MAX
from gateway.observing.telemetry import PROMISES, Metrics
from gateway.taps.counts import EVENTS as TAPPED
from gateway.taps.counts import TapCounts
from gateway.upstreams import UpstreamState
from gateway.webhooks.attempts.schedule import AttemptOutcome, NextStep
from gateway.webhooks.counts import MESSAGES, PushCounts

MANY = 10_000


def lines(metrics: Metrics) -> list[str]:
    """The series of the page."""
    return [line for line in metrics.render().decode().splitlines() if not line.startswith("#")]


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(f"amqpgw_{name}", labels)


def everything(metrics: Metrics, many: int) -> None:
    """So many of everything that has a name, each with every event that there is."""
    for number in range(many):
        name = f"orders-{number}"
        bridge = BridgeCounts(name, metrics)
        metrics.bridge_up.labels(name).set(1)
        metrics.bridge_in_flight.labels(name).set_function(lambda: 1)
        for event in EVENTS if number < 100 else EVENTS[:1]:
            bridge.add(event)
        bridge.forwarded(1, 100, 0.01, 0.0)
        bridge.lost("header_type")
        bridge.retried("broker_unavailable")
        tap = TapCounts(name, metrics)
        metrics.tap_up.labels(name).set(1)
        for event in TAPPED if number < 100 else TAPPED[:1]:
            tap.add(event)
        push = PushCounts(metrics)
        push.up(name, True)
        for message in MESSAGES if number < 100 else MESSAGES[:1]:
            push.message(name, message)
        for verdict in AttemptOutcome if number < 100 else [AttemptOutcome.DELIVERED]:
            push.request(name, [NextStep(verdict, "")], 0.01)
        for state in ("waiting", "out", "dead"):
            metrics.subscription_messages.labels(name, state).set(1)


def test_a_page_of_ten_thousand_of_everything() -> None:
    metrics = Metrics("1")
    everything(metrics, MANY)
    for number in range(100):
        broker = f"broker-{number}"
        metrics.broker_up.labels(broker).set(1)
        metrics.publish_seconds.labels(broker).observe(0.1)
        for state in UpstreamState:
            metrics.publishes.labels(broker, state.value).inc()
    for operation in range(90):
        for status in (200, 400, 503):
            metrics.requests.labels(f"operation-{operation}", str(status)).inc()
        metrics.request_seconds.labels(f"operation-{operation}").observe(0.01)
    found = lines(metrics)
    assert len(found) <= SERIES_MAX
    assert len(found) == len({line.rpartition(" ")[0] for line in found})
    assert value(metrics, "bridge_messages_total", bridge="orders-3", event="taken") == 1
    assert value(metrics, "bridge_messages_total", bridge=OTHER, event="taken") == MANY - 20
    assert value(metrics, "bridge_in_flight", bridge=OTHER) == MANY - 20
    assert value(metrics, "series") == metrics.budget.series >= len(found)


def test_the_end_holds_whatever_comes() -> None:
    metrics = Metrics("1", names=200)
    everything(metrics, 300)
    for number in range(3 * SERIES_MAX):
        metrics.requests.labels(f"operation-{number}", "200").inc()
    assert len(lines(metrics)) <= SERIES_MAX
    assert (value(metrics, "series_refused") or 0) > SERIES_MAX
    assert value(metrics, "bridge_up", bridge="orders-0") == 1
    assert value(metrics, "lost_total", promise="delivery") == 0


@pytest.mark.parametrize("names", [0, 2])
def test_one_that_is_down_is_seen_among_those_without_a_name(names: int) -> None:
    metrics = Metrics("1", names=names)
    for number in range(10):
        metrics.bridge_up.labels(str(number)).set(1)
        metrics.bridge_oldest.labels(str(number)).set(number)
    assert value(metrics, "bridge_up", bridge=OTHER) == 1
    assert value(metrics, "bridge_oldest_seconds", bridge=OTHER) == 9
    metrics.bridge_up.labels("7").set(0)
    assert value(metrics, "bridge_up", bridge=OTHER) == 0
    metrics.bridge_up.remove("7")
    assert value(metrics, "bridge_up", bridge=OTHER) == 1
    for number in range(10):
        metrics.bridge_up.remove(str(number))
        metrics.bridge_oldest.remove(str(number))
    assert not [line for line in lines(metrics) if "bridge_up" in line or "bridge_oldest" in line]


def test_a_name_that_is_forgotten_makes_room_for_another() -> None:
    metrics = Metrics("1", names=1)
    first, second = BridgeCounts("first", metrics), BridgeCounts("second", metrics)
    for each in (first, second):
        metrics.bridge_up.labels(each.name).set(1)
        metrics.bridge_in_flight.labels(each.name).set(3)
        metrics.bridge_oldest.labels(each.name).set(3)
        each.add("taken", 5)
    before = metrics.budget.series
    assert value(metrics, "bridge_messages_total", bridge="first", event="taken") == 5
    assert value(metrics, "bridge_messages_total", bridge=OTHER, event="taken") == 5
    first.forget()
    assert b'bridge="first"' not in metrics.render()
    assert metrics.budget.series < before
    BridgeCounts("third", metrics).add("taken", 2)
    assert value(metrics, "bridge_messages_total", bridge="third", event="taken") == 2
    second.forget()  # what it added to others' stays there
    assert value(metrics, "bridge_messages_total", bridge=OTHER, event="taken") == 5


def test_every_promise_is_there_from_the_start() -> None:
    metrics = Metrics("1")
    assert {promise: value(metrics, "lost_total", promise=promise) for promise in PROMISES} == dict.fromkeys(
        PROMISES, 0
    )


def test_when_a_series_began_is_no_series() -> None:
    metrics = Metrics("1")
    metrics.publish_seconds.labels("b").observe(0.1)
    metrics.publishes.labels("b", "confirmed").inc()
    assert b"_created" not in metrics.render()
