"""The rules for Prometheus, evaluated by its own ``promtool``: each alert on numbers that are wrong, and on numbers
that are not."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.helm import CHART, TOOLS

RULES = CHART / "files" / "alerts.yaml"
PROMTOOL = TOOLS / "bin" / "promtool"
MINE = 'job="gateway",instance="10.1.2.3:8081"'
"""What every scrape adds."""


@dataclass(frozen=True)
class Case:
    """Series with their values ``step`` minutes apart, in the notation of Prometheus; the alert stands ``at`` this
    time, with these labels, and not a little ``before``. With ``quiet`` values it never does."""

    series: dict[str, str]
    at: str
    quiet: dict[str, str]
    labels: dict[str, str] = field(default_factory=dict)
    before: str = "0m"
    by: tuple[str, ...] = ("job", "instance")
    """What of a scrape's labels the alert keeps."""
    step: int = 1
    """Minutes: windows of days need not be looked at each minute."""


def slow(metric: str, labels: str, bucket: str) -> dict[str, str]:
    """A histogram of which all is in one bucket."""
    edges = ["0.25", "0.5", "1", "2.5", "+Inf"]
    return {
        f'{metric}{{{MINE}{labels},le="{edge}"}}': "0+60x40" if edges.index(edge) >= edges.index(bucket) else "0x40"
        for edge in edges
    }


def requests(failed: int, of: int, count: int) -> dict[str, str]:
    """So many of the requests of each minute fail."""
    return {
        f'amqpgw_http_requests_total{{{MINE},operation="publish",status="503"}}': f"0+{failed}x{count}",
        f'amqpgw_http_requests_total{{{MINE},operation="publish",status="200"}}': f"0+{of - failed}x{count}",
    }


def gauge(metric: str, bad: str, good: str, at: str, before: str = "0m", **labels: str) -> Case:
    """A gauge that is wrong from the first minute on."""
    name = f"{metric}{{{MINE}{''.join(f',{key}={chr(34)}{value}{chr(34)}' for key, value in labels.items())}}}"
    return Case({name: f"{bad}x90"}, at, {name: f"{good}x90"}, labels, before)


def summed(case: Case, *, without: str = "") -> Case:
    """The same for an alert on what is told of all processes together."""
    labels = {name: value for name, value in case.labels.items() if name != without}
    return Case(case.series, case.at, case.quiet, labels, case.before, ("job",))


CASES: dict[str, list[Case]] = {
    "AmqpGatewayErrorBudgetBurnsFast": [
        Case(requests(20, 1_000, 200), "100m", requests(1, 1_000, 200), before="1m", by=("job",)),
        Case(requests(5, 1_000, 160), "700m", {}, by=("job",), step=5),
    ],
    "AmqpGatewayErrorBudgetBurnsSlow": [
        Case(requests(2, 1_000, 120), "1710m", requests(0, 1_000, 120), before="30m", by=("job",), step=15),
    ],
    "AmqpGatewayMessageLost": [
        summed(gauge("amqpgw_lost_total", "1", "0", "1m", promise="delivery")),
        summed(gauge("amqpgw_lost_total", "7", "0", "60m", promise="publish")),
    ],
    "AmqpGatewayAuditBehind": [
        summed(gauge("amqpgw_audit_behind", "2000000", "900000", "70m", "50m")),
        Case(
            {f"amqpgw_audit_checked_total{{{MINE}}}": "5x60",
             f'amqpgw_publishes_total{{{MINE},broker="b",outcome="confirmed"}}': "0+5x60"},
            "200m",
            {f"amqpgw_audit_checked_total{{{MINE}}}": "5+5x60",
             f'amqpgw_publishes_total{{{MINE},broker="b",outcome="confirmed"}}': "0+5x60"},
            by=("job",),
            step=5,
        ),
    ],
    "AmqpGatewayAuditLogBroken": [summed(gauge("amqpgw_audit_log_broken", "1", "0", "1m"))],
    "AmqpGatewayEventsDropped": [
        Case({f"amqpgw_events_dropped_total{{{MINE}}}": "0x4 5x20"}, "8m",
             {f"amqpgw_events_dropped_total{{{MINE}}}": "5x20"}, before="3m"),
    ],
    "AmqpGatewayOutcomesUnknown": [
        Case({f'amqpgw_publishes_total{{{MINE},broker="orders",outcome="unknown"}}': "0x4 1x20"}, "8m",
             {f'amqpgw_publishes_total{{{MINE},broker="orders",outcome="confirmed"}}': "0+9x20"},
             {"broker": "orders"}, "3m", ("job",)),
    ],
    "AmqpGatewayDeadMessages": [
        summed(gauge("amqpgw_subscription_messages", "3", "0", "20m", "10m", subscription="billing", state="dead"),
               without="state"),
    ],
    "AmqpGatewayOutboxStuck": [
        summed(gauge("amqpgw_outbox_overdue_seconds", "400", "100", "8m", "3m")),
    ],
    "AmqpGatewayPublishesRefused": [
        summed(gauge("amqpgw_outbox_messages", "1", "0", "8m", "3m", state="refused"), without="state"),
    ],
    "AmqpGatewayDown": [
        Case({}, "6m", {f'amqpgw_build_info{{{MINE},version="1"}}': "1x20"}, before="4m", by=()),
    ],
    "AmqpGatewayLedgerDown": [gauge("amqpgw_ledger_up", "0", "1", "2m")],
    "AmqpGatewayLedgerDiskLow": [
        Case({f"amqpgw_ledger_disk_free_bytes{{{MINE}}}": "400x20",
              f"amqpgw_ledger_disk_reserve_bytes{{{MINE}}}": "256x20"}, "3m",
             {f"amqpgw_ledger_disk_free_bytes{{{MINE}}}": "600x20",
              f"amqpgw_ledger_disk_reserve_bytes{{{MINE}}}": "256x20"}),
    ],
    "AmqpGatewayLedgerSlow": [
        Case(slow("amqpgw_ledger_commit_seconds_bucket", "", "1"), "20m",
             slow("amqpgw_ledger_commit_seconds_bucket", "", "0.25"), before="8m"),
        gauge("amqpgw_ledger_waiting", "30000", "100", "12m", "8m"),
    ],
    "AmqpGatewayWorkLost": [
        Case({f"amqpgw_fenced_total{{{MINE}}}": "0 1 2 3 4x40"}, "10m", {f"amqpgw_fenced_total{{{MINE}}}": "0x5 1x40"}),
    ],
    "AmqpGatewayConfigDiffers": [gauge("amqpgw_cluster_config_differs", "1", "0", "32m", "20m")],
    "AmqpGatewayBrokerDown": [
        gauge("amqpgw_broker_up", "0", "1", "3m", "1m", broker="orders"),
        Case({f'amqpgw_broker_up{{{MINE},broker="b"}}': "0x20", f'amqpgw_broker_blocked{{{MINE},broker="b"}}': "0x20"},
             "3m",
             {f'amqpgw_broker_up{{{MINE},broker="b"}}': "0x20", f'amqpgw_broker_blocked{{{MINE},broker="b"}}': "1x20"},
             {"broker": "b"}),
    ],
    "AmqpGatewayBrokerBlocked": [gauge("amqpgw_broker_blocked", "1", "0", "6m", "4m", broker="orders")],
    "AmqpGatewayConfirmsSlow": [
        Case(slow("amqpgw_confirm_seconds_bucket", ',broker="orders"', "2.5"), "20m",
             slow("amqpgw_confirm_seconds_bucket", ',broker="orders"', "0.5"), {"broker": "orders"}, "4m", ("job",)),
        summed(gauge("amqpgw_unconfirmed_oldest_seconds", "20", "2", "6m", "4m", broker="orders")),
    ],
    "AmqpGatewayFrontDown": [gauge("amqpgw_front_up", "0", "1", "3m", "1m", front="legacy")],
    "AmqpGatewayFrontPublishesLost": [
        Case({f'amqpgw_front_publishes_total{{{MINE},front="legacy",outcome="lost"}}': "0x4 5x20"}, "8m",
             {f'amqpgw_front_publishes_total{{{MINE},front="legacy",outcome="confirmed"}}': "0+9x20"},
             {"front": "legacy"}, "3m", ("job",)),
    ],
    "AmqpGatewayBridgeDown": [gauge("amqpgw_bridge_fault", "1", "0", "6m", "4m", bridge="orders")],
    "AmqpGatewayBridgeLags": [
        summed(gauge("amqpgw_bridge_oldest_seconds", "301", "299", "6m", "4m", bridge="orders")),
    ],
    "AmqpGatewayTapDown": [gauge("amqpgw_tap_fault", "1", "0", "12m", "8m", tap="orders")],
    "AmqpGatewaySubscriptionLags": [
        summed(gauge("amqpgw_subscription_oldest_seconds", "4000", "3000", "12m", "8m", subscription="billing")),
    ],
    "AmqpGatewayEndpointFails": [
        gauge("amqpgw_push_endpoint_up", "0", "1", "20m", "12m", endpoint="shop"),
        Case({f'amqpgw_push_requests_total{{{MINE},endpoint="shop",outcome="retry"}}': "0+6x60",
              f'amqpgw_push_requests_total{{{MINE},endpoint="shop",outcome="delivered"}}': "0+4x60"},
             "40m",
             {f'amqpgw_push_requests_total{{{MINE},endpoint="shop",outcome="retry"}}': "0+4x60",
              f'amqpgw_push_requests_total{{{MINE},endpoint="shop",outcome="delivered"}}': "0+6x60"},
             {"endpoint": "shop"}, by=("job",)),
    ],
    "AmqpGatewayConsumersLate": [
        Case({f'amqpgw_fencing_rejections_total{{{MINE},lease="delivery"}}': "0+20x60"}, "20m",
             {f'amqpgw_fencing_rejections_total{{{MINE},lease="delivery"}}': "0+2x60"}, by=("job",)),
    ],
    "AmqpGatewayFilesRunOut": [
        Case({f"process_open_fds{{{MINE}}}": "900x20", f"process_max_fds{{{MINE}}}": "1000x20",
              f'amqpgw_build_info{{{MINE},version="1"}}': "1x20"},
             "6m",
             {f"process_open_fds{{{MINE}}}": "900x20", f"process_max_fds{{{MINE}}}": "1000x20"}),
        Case({f"process_open_fds{{{MINE}}}": "900x20", f"process_max_fds{{{MINE}}}": "1000x20",
              f'amqpgw_build_info{{{MINE},version="1"}}': "1x20"},
             "6m",
             {f"process_open_fds{{{MINE}}}": "700x20", f"process_max_fds{{{MINE}}}": "1000x20",
              f'amqpgw_build_info{{{MINE},version="1"}}': "1x20"}),
    ],
    "AmqpGatewayBudgetRefusals": [
        Case({f'amqpgw_budget_refusals_total{{{MINE},reached="share",resource="streams"}}': "0+6x60"}, "30m",
             {f'amqpgw_budget_refusals_total{{{MINE},reached="dropped",resource="connections"}}': "0+6x60"},
             {"resource": "streams", "reached": "share"}, "5m", ("job",)),
    ],
    "AmqpGatewaySeriesRefused": [gauge("amqpgw_series_refused", "3", "0", "16m", "12m")],
}  # fmt: skip
SCRAPED = {"job": "gateway", "instance": "10.1.2.3:8081"}


def alerts() -> dict[str, dict[str, Any]]:
    """The alerts of the file, by name."""
    groups = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    return {rule["alert"]: rule for group in groups for rule in group["rules"] if "alert" in rule}


def promtool(*arguments: str) -> str:
    """What it says; it must succeed."""
    assert PROMTOOL.exists(), f"there is no {PROMTOOL}: run tests/deploy/install.sh"
    done = subprocess.run([str(PROMTOOL), *arguments], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def expected(rule: dict[str, Any], labels: dict[str, str]) -> dict[str, Any]:
    """The alert as it goes out."""
    said = {
        name: re.sub(r"\{\{ \$labels\.(\w+) \}\}", lambda match: labels[match[1]], text)
        for name, text in rule["annotations"].items()
    }
    return {"exp_labels": {**labels, **rule["labels"]}, "exp_annotations": said}


def unit_tests(rules: Path, step: int) -> dict[str, Any]:
    """The cases of this step in promtool's words."""
    tests = []
    for name, rule in alerts().items():
        for number, case in enumerate(CASES[name]):
            if case.step != step:
                continue
            labels = {**{label: SCRAPED[label] for label in case.by}, **case.labels}
            asked: list[dict[str, Any]] = [
                {"eval_time": case.at, "alertname": name, "exp_alerts": [expected(rule, labels)]}
            ]
            if "for" in rule and case.before != "0m":
                asked.append({"eval_time": case.before, "alertname": name, "exp_alerts": []})
            series = [{"series": each, "values": values} for each, values in case.series.items()]
            tests.append({"name": f"{name} {number}", "interval": f"{step}m", "input_series": series,
                          "alert_rule_test": asked})  # fmt: skip
            if case.quiet:
                series = [{"series": each, "values": values} for each, values in case.quiet.items()]
                quiet = [{"eval_time": case.at, "alertname": name, "exp_alerts": []}]
                tests.append({"name": f"{name} {number} quiet", "interval": f"{step}m", "input_series": series,
                              "alert_rule_test": quiet})  # fmt: skip
    return {"rule_files": [str(rules)], "evaluation_interval": f"{step}m", "tests": tests}


def test_the_rules_are_rules() -> None:
    assert "SUCCESS" in promtool("check", "rules", str(RULES))


def test_every_alert_has_a_case() -> None:
    assert list(CASES) == list(alerts())


@pytest.mark.parametrize("step", sorted({case.step for cases in CASES.values() for case in cases}))
def test_every_alert_comes_when_it_should_and_else_not(tmp_path: Path, step: int) -> None:
    path = tmp_path / "rules.test.yaml"
    path.write_text(yaml.safe_dump(unit_tests(RULES, step)), encoding="utf-8")
    assert "SUCCESS" in promtool("test", "rules", str(path))


def test_a_rule_that_is_wrong_is_noticed(tmp_path: Path) -> None:
    """The cases can fail."""
    text = RULES.read_text(encoding="utf-8")
    wrong = tmp_path / "alerts.yaml"
    wrong.write_text(text.replace("amqpgw_ledger_up == 0", "amqpgw_ledger_up == 1"), encoding="utf-8")
    path = tmp_path / "rules.test.yaml"
    given = unit_tests(wrong, 1)
    given["tests"] = [each for each in given["tests"] if each["name"].startswith("AmqpGatewayLedgerDown")]
    path.write_text(yaml.safe_dump(given), encoding="utf-8")
    done = subprocess.run(
        [str(PROMTOOL), "test", "rules", str(path)], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode != 0
    assert "AmqpGatewayLedgerDown" in done.stdout + done.stderr
