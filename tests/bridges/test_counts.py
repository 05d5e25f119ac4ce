"""The numbers of bridges, of those that run here and of those that do not, and what the log says at the start."""

from __future__ import annotations

import pytest

from gateway.bridges import BridgeState
from gateway.bridges.counts import LAGS, BridgeCounts
from gateway.bridges.states import resting
from gateway.core.work.supervised import SupervisedResource, WantedState
from gateway.errors import EtagMismatch
from gateway.observing.repeats import FIELDS
from gateway.observing.telemetry import Metrics
from tests.bridges.conftest import Estate, bridge_settings


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(f"amqpgw_{name}", labels)


def test_events_are_counted_for_the_status_and_for_metrics() -> None:
    metrics = Metrics("test")
    counts = BridgeCounts("b", metrics)
    assert set(counts.numbers.values()) == {0}
    assert (counts.lag(), counts.rate(10.0), counts.losses) == (None, 0.0, {})
    counts.add("taken")
    counts.add("taken", 2)
    assert counts.numbers["taken"] == 3
    assert value(metrics, "bridge_messages_total", bridge="b", event="taken") == 3
    counts.forwarded(5, 70, 0.25, 10.0)
    assert (counts.numbers["forwarded"], counts.lag()) == (5, 0.25)
    assert counts.rate(10.0) > 0
    assert value(metrics, "bridge_octets_total", bridge="b") == 70
    assert value(metrics, "bridge_lag_seconds_count", bridge="b") == 1
    for name in ("ttl", "ttl", "user"):
        counts.lost(name)
    assert counts.losses == {"ttl": 2, "user": 1}
    assert value(metrics, "bridge_losses_total", bridge="b", loss="ttl") == 2
    counts.retried("not_found")
    counts.retried("not_found")
    assert 'reason="not_found"' in metrics.render().decode()
    assert any(line.startswith("amqpgw_retries_total{") and line.endswith(" 2.0") for line in lines(metrics))


def lines(metrics: Metrics) -> list[str]:
    return metrics.render().decode().splitlines()


def test_the_lag_is_the_median_of_the_last_ones() -> None:
    counts = BridgeCounts("b", Metrics("test"))
    for lag in (9.0, 1.0, 2.0):
        counts.forwarded(1, 1, lag, 0.0)
    assert counts.lag() == 2.0
    for _ in range(LAGS):
        counts.forwarded(1, 1, 5.0, 0.0)
    assert counts.lag() == 5.0


async def test_a_deleted_bridge_leaves_no_metric(estate: Estate) -> None:
    await estate.bridge(paused=True)
    counts = estate.bridges._counts["b"]
    counts.lost("ttl")
    counts.lost("user")
    counts.forwarded(5, 70, 0.25, 10.0)
    await estate.bridges.delete("b", None)
    assert [line for line in lines(estate.metrics) if 'bridge="b"' in line] == []
    assert estate.bridges._counts == {}
    estate.bridges.forget_counts("b")


async def test_numbers_go_on_when_the_settings_change(estate: Estate) -> None:
    status = await estate.bridge()
    await estate.fill(3)
    await estate.wait_for(forwarded=3)
    await estate.bridges.put("b", bridge_settings(prefetch=7), status.etag)
    await estate.fill(1)
    await estate.wait_for(forwarded=4)


@pytest.mark.parametrize(
    ("wish", "state", "waits"),
    [
        (WantedState.RUN, BridgeState.STARTING, True),
        (WantedState.DRAIN, BridgeState.STARTING, True),
        (WantedState.PAUSE, BridgeState.PAUSED, False),
        (WantedState.STOP, BridgeState.STOPPED, False),
    ],
)
def test_one_that_nobody_runs_has_done_nothing(wish: WantedState, state: BridgeState, waits: bool) -> None:
    status = resting(SupervisedResource("b", bridge_settings(), "1", asked=wish))
    assert (status.name, status.etag, status.read_only, status.state) == ("b", "1", False, state)
    assert bool(status.reason) is waits
    numbers = (
        status.taken, status.forwarded, status.dead_lettered, status.duplicates_dropped, status.filtered,
        status.looped, status.resent, status.oversized, status.in_flight, status.octets, status.rate,
    )  # fmt: skip
    assert set(numbers) == {0}
    assert (status.lag, status.source_messages, status.losses, status.last_error) == (None, None, {}, "")


async def test_branches_of_bridges_that_are_there_no_more_are_told_of(
    estate: Estate, caplog: pytest.LogCaptureFixture
) -> None:
    """Those of the file and of the ledger settle theirs."""
    register = estate.ledger.branches
    await estate.bridge("kept", paused=True)
    for number, name in enumerate(("kept", "configured", "gone")):
        await register.begin(bytes([number]) * 16, name, "elsewhere")
    await estate.close_gateway()
    await estate.open_gateway({"old": "0-9-1", "new": "0-9-1"}, {"configured": bridge_settings(paused=True)})
    left = [record for record in caplog.records if record.getMessage() == "bridge.branches_left"]
    assert [getattr(record, FIELDS)["bridge"] for record in left] == ["gone"]
    for number in range(3):
        await estate.ledger.branches.abort(bytes([number]) * 16)
        await estate.ledger.branches.finish(bytes([number]) * 16)


async def test_a_ledger_has_one_identity_whoever_makes_it(estate: Estate, monkeypatch: pytest.MonkeyPatch) -> None:
    first = estate.bridges._identity
    assert (len(first), int(first, 16) >= 0) == (8, True)
    assert await estate.bridges._find_identity() == first
    get, put = estate.ledger.get_resource, estate.ledger.put_resource
    await estate.ledger.delete_resource("gateway", "id", None)

    async def slower(kind: str, name: str, spec: object, etag: str) -> None:
        await put(kind, name, {"id": "00c0ffee"}, None)
        raise EtagMismatch("another process was quicker")

    monkeypatch.setattr(estate.ledger, "put_resource", slower)
    assert await estate.bridges._find_identity() == "00c0ffee"
    found = await get("gateway", "id")
    assert found is not None
    assert found.spec == {"id": "00c0ffee"}
