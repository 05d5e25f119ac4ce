"""Write the three dashboards of the chart anew, from the tables below: ``python deploy/helm/dashboards.py``.

A row is a panel: its title, its unit, and the queries with what their lines are called. Where one process of the
cluster tells what is everybody's, ``max`` over the processes is the truth; what each counts for itself is summed up.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent / "amqp-gateway" / "files" / "dashboards"
WIDTH, HEIGHT = 12, 8
"""Of a panel; a row has 24."""

Panel = tuple[str, str, tuple[tuple[str, str], ...]]


def high(metric: str, by: str) -> str:
    """The 99th percentile of a histogram."""
    return f"histogram_quantile(0.99, sum by (le, {by}) (rate(amqpgw_{metric}_bucket[5m])))"


SERVICE: tuple[Panel, ...] = (
    ("Lost (always 0)", "short", (("max by (promise) (amqpgw_lost_total)", "{{promise}}"),)),
    (
        "Error budget: how fast it burns (1: gone in 30 days)",
        "short",
        (
            ("max(amqpgw:http_errors:ratio_rate1h) / 0.0005", "1 h"),
            ("max(amqpgw:http_errors:ratio_rate6h) / 0.0005", "6 h"),
        ),
    ),
    ("Brokers that take publishes", "short", (("min by (broker) (amqpgw_broker_up)", "{{broker}}"),)),
    ("Brokers that block", "short", (("max by (broker) (amqpgw_broker_blocked)", "{{broker}}"),)),
    (
        "HTTP requests",
        "reqps",
        (("sum by (operation, status) (rate(amqpgw_http_requests_total[5m]))", "{{operation}} {{status}}"),),
    ),
    ("HTTP time, 99th percentile", "s", ((high("http_request_seconds", "operation"), "{{operation}}"),)),
    ("Requests under way", "short", (("sum by (instance) (amqpgw_http_requests_running)", "{{instance}}"),)),
    (
        "Budgets: part of the total in use",
        "percentunit",
        (
            ("max by (resource) (amqpgw_budget_used / amqpgw_budget_total)", "{{resource}}, all clients"),
            ("max by (resource) (amqpgw_budget_largest / amqpgw_budget_total)", "{{resource}}, the largest client"),
        ),
    ),
    (
        "Refused by budgets",
        "reqps",
        (("sum by (resource, reached) (rate(amqpgw_budget_refusals_total[5m]))", "{{resource}}, {{reached}}"),),
    ),
    (
        "Ledger",
        "short",
        (("min(amqpgw_ledger_up)", "writable"), ("sum by (instance) (amqpgw_ledger_waiting)", "waiting {{instance}}")),
    ),
    ("Commits of the ledger, 99th percentile", "s", ((high("ledger_commit_seconds", "instance"), "{{instance}}"),)),
    ("Commits of the ledger", "ops", (("sum(rate(amqpgw_ledger_commit_seconds_count[5m]))", "commits"),)),
    (
        "Audit of the ledger",
        "short",
        (
            ("sum(rate(amqpgw_audit_checked_total[5m]))", "events a second"),
            ("max(amqpgw_audit_behind)", "behind"),
            ("sum(increase(amqpgw_audit_rounds_total[1d]))", "rounds a day"),
        ),
    ),
    (
        "Audit log of changes",
        "short",
        (("max(amqpgw_audit_log_row)", "newest row"), ("max(amqpgw_audit_log_broken)", "broken")),
    ),
    (
        "Refused under leases that had ended",
        "short",
        (
            ("sum by (lease) (increase(amqpgw_fencing_rejections_total[30m]))", "{{lease}}"),
            ("sum(increase(amqpgw_fenced_total[30m]))", "all work of a process"),
        ),
    ),
    (
        "Processes and their work",
        "short",
        (
            ("max(amqpgw_cluster_processes)", "processes"),
            ("max(amqpgw_cluster_config_differs)", "of another configuration"),
            ("sum by (kind) (amqpgw_work)", "{{kind}}"),
        ),
    ),
    (
        "Background tasks that failed",
        "short",
        (("sum by (task) (increase(amqpgw_task_failures_total[1h]))", "{{task}}"),),
    ),
    (
        "Configuration read again",
        "short",
        (("sum by (outcome) (increase(amqpgw_config_reloads_total[1h]))", "{{outcome}}"),),
    ),
    (
        "Requests between processes",
        "reqps",
        (("sum by (verb, outcome) (rate(amqpgw_cluster_requests_total[5m]))", "{{verb}} {{outcome}}"),),
    ),
    (
        "Memory",
        "bytes",
        (("process_resident_memory_bytes and on (job, instance) amqpgw_build_info", "{{instance}}"),),
    ),
    (
        "Files and sockets, of those allowed",
        "percentunit",
        (("process_open_fds / process_max_fds and on (job, instance) amqpgw_build_info", "{{instance}}"),),
    ),
    (
        "Processor",
        "short",
        (("rate(process_cpu_seconds_total[5m]) and on (job, instance) amqpgw_build_info", "{{instance}}"),),
    ),
    (
        "Series of a page",
        "short",
        (("amqpgw_series", "{{instance}}"), ("amqpgw_series_refused", "refused {{instance}}")),
    ),
    ("Spans of traces", "ops", (("sum by (outcome) (rate(amqpgw_trace_spans_total[5m]))", "{{outcome}}"),)),
    ("Releases", "short", (("count by (version) (amqpgw_build_info)", "{{version}}"),)),
)

MESSAGES: tuple[Panel, ...] = (
    (
        "Published",
        "short",
        (("sum by (broker, outcome) (rate(amqpgw_publishes_total[5m]))", "{{broker}} {{outcome}}"),),
    ),
    ("Publish time, 99th percentile", "s", ((high("publish_seconds", "broker"), "{{broker}}"),)),
    ("Confirm time, 99th percentile", "s", ((high("confirm_seconds", "broker"), "{{broker}}"),)),
    ("Unconfirmed", "short", (("sum by (broker) (amqpgw_unconfirmed)", "{{broker}}"),)),
    ("Oldest unconfirmed", "s", (("max by (broker) (amqpgw_unconfirmed_oldest_seconds)", "{{broker}}"),)),
    (
        "Sent a second time",
        "short",
        (("sum by (broker) (rate(amqpgw_publishes_resent_total[5m]))", "{{broker}}"),),
    ),
    (
        "Owed to subscriptions",
        "short",
        (
            (
                'sum by (subscription) (max by (subscription, state) (amqpgw_subscription_messages{state!="dead"}))',
                "{{subscription}}",
            ),
        ),
    ),
    (
        "Oldest that is owed",
        "s",
        (("max by (subscription) (amqpgw_subscription_oldest_seconds)", "{{subscription}}"),),
    ),
    (
        "Dead: given up and kept",
        "short",
        (('max by (subscription) (amqpgw_subscription_messages{state="dead"})', "{{subscription}}"),),
    ),
    (
        "Octets that are owed",
        "bytes",
        (("max by (subscription) (amqpgw_subscription_octets)", "{{subscription}}"),),
    ),
    (
        "Leased and settled",
        "short",
        (("sum by (broker, event) (rate(amqpgw_deliveries_total[5m]))", "{{broker}} {{event}}"),),
    ),
    (
        "Out with consumers, held by brokers",
        "short",
        (("sum(amqpgw_leases)", "messages"), ("max(amqpgw_leases_oldest_seconds)", "oldest, in seconds")),
    ),
    (
        "Publishes that the ledger holds",
        "short",
        (
            ("max by (state) (amqpgw_outbox_messages)", "{{state}}"),
            ("max by (state) (amqpgw_in_doubt)", "in doubt, {{state}}"),
            ("max(amqpgw_outbox_overdue_seconds)", "overdue, in seconds"),
        ),
    ),
    (
        "Answered with 202 and refused, by reason",
        "short",
        (("sum by (broker, reason) (rate(amqpgw_outbox_refused_total[5m]))", "{{broker}} {{reason}}"),),
    ),
    (
        "Tried again, by reason",
        "short",
        (("sum by (what, reason) (rate(amqpgw_retries_total[5m]))", "{{what}} {{reason}}"),),
    ),
    (
        "Requests to endpoints",
        "reqps",
        (("sum by (endpoint, outcome) (rate(amqpgw_push_requests_total[5m]))", "{{endpoint}} {{outcome}}"),),
    ),
    ("Time of endpoints, 99th percentile", "s", ((high("push_seconds", "endpoint"), "{{endpoint}}"),)),
    (
        "Pushed messages",
        "short",
        (("sum by (endpoint, event) (rate(amqpgw_push_messages_total[5m]))", "{{endpoint}} {{event}}"),),
    ),
    (
        "Endpoints",
        "short",
        (
            ("min by (endpoint) (amqpgw_push_endpoint_up)", "{{endpoint}} gets messages"),
            ("sum(amqpgw_push_endpoints_suspended)", "held"),
            ("sum(amqpgw_push_in_flight)", "requests under way"),
        ),
    ),
    (
        "Embedded broker: messages that a connection could not carry",
        "short",
        (("sum by (version) (increase(amqpgw_embedded_skipped_total[30m]))", "{{version}}"),),
    ),
    (
        "Embedded broker: messages that cost too much to match",
        "short",
        (("sum(increase(amqpgw_embedded_matches_refused_total[30m]))", "messages"),),
    ),
    (
        "Embedded broker: logins that were refused",
        "short",
        (("sum(increase(amqpgw_embedded_logins_refused_total[30m]))", "logins"),),
    ),
    ("Events that were dropped", "short", (("sum(increase(amqpgw_events_dropped_total[30m]))", "events"),)),
)

BRIDGES: tuple[Panel, ...] = (
    ("Bridges that run", "short", (("sum by (bridge) (amqpgw_bridge_up)", "{{bridge}}"),)),
    ("Bridges that are to run and do not", "short", (("max by (bridge) (amqpgw_bridge_fault)", "{{bridge}}"),)),
    (
        "Messages of bridges",
        "short",
        (("sum by (bridge, event) (rate(amqpgw_bridge_messages_total[5m]))", "{{bridge}} {{event}}"),),
    ),
    ("Octets of bridges", "Bps", (("sum by (bridge) (rate(amqpgw_bridge_octets_total[5m]))", "{{bridge}}"),)),
    ("Lag, 99th percentile", "s", ((high("bridge_lag_seconds", "bridge"), "{{bridge}}"),)),
    ("Oldest in flight", "s", (("max by (bridge) (amqpgw_bridge_oldest_seconds)", "{{bridge}}"),)),
    ("In flight", "short", (("sum by (bridge) (amqpgw_bridge_in_flight)", "{{bridge}}"),)),
    (
        "Lost in translation: fields, no messages",
        "short",
        (("sum by (bridge, loss) (rate(amqpgw_bridge_losses_total[5m]))", "{{bridge}} {{loss}}"),),
    ),
    (
        "Taps",
        "short",
        (
            ("sum by (tap) (amqpgw_tap_up)", "{{tap}} runs"),
            ("max by (tap) (amqpgw_tap_fault)", "{{tap}} is to run and does not"),
        ),
    ),
    (
        "Messages of taps",
        "short",
        (("sum by (tap, event) (rate(amqpgw_tap_messages_total[5m]))", "{{tap}} {{event}}"),),
    ),
    ("Octets of taps", "Bps", (("sum by (tap) (rate(amqpgw_tap_octets_total[5m]))", "{{tap}}"),)),
)

FRONTS: tuple[Panel, ...] = (
    ("Clients of fronts", "short", (("sum by (front) (amqpgw_front_clients)", "{{front}}"),)),
    (
        "Broker connections of fronts",
        "short",
        (
            ("sum by (front) (amqpgw_front_connections)", "{{front}} up"),
            ("min by (front) (amqpgw_front_up)", "{{front}}: all that are needed are up"),
        ),
    ),
    (
        "Publishes of clients",
        "short",
        (("sum by (front, outcome) (rate(amqpgw_front_publishes_total[5m]))", "{{front}} {{outcome}}"),),
    ),
    (
        "Deliveries to clients",
        "short",
        (("sum by (front, event) (rate(amqpgw_front_deliveries_total[5m]))", "{{front}} {{event}}"),),
    ),
    ("Bytes at fronts", "bytes", (("sum by (front, state) (amqpgw_front_bytes)", "{{front}} {{state}}"),)),
    (
        "Requests that were rewritten",
        "short",
        (("sum by (front, rule) (increase(amqpgw_front_rewrites_total[30m]))", "{{front}} {{rule}}"),),
    ),
    (
        "Requests that were refused, by code",
        "short",
        (("sum by (front, code) (increase(amqpgw_front_refusals_total[30m]))", "{{front}} {{code}}"),),
    ),
    (
        "Broker connections that were restored, logins that were refused",
        "short",
        (
            ("sum by (front) (increase(amqpgw_front_restores_total[30m]))", "{{front}} restored"),
            ("sum by (front) (increase(amqpgw_front_logins_refused_total[30m]))", "{{front}} logins refused"),
        ),
    ),
)

DASHBOARDS: dict[str, tuple[str, tuple[Panel, ...]]] = {
    "service": ("AMQP gateway: the service", SERVICE),
    "messages": ("AMQP gateway: messages", MESSAGES),
    "bridges": ("AMQP gateway: bridges and taps", BRIDGES),
    "fronts": ("AMQP gateway: fronts", FRONTS),
}
"""File -> title and panels."""


def dashboard(name: str, title: str, panels: Sequence[Panel]) -> dict[str, Any]:
    """One, as Grafana reads it."""
    return {
        "uid": f"amqp-gateway-{name}",
        "title": title,
        "tags": ["amqp-gateway"],
        "schemaVersion": 39,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {"list": [{"name": "datasource", "type": "datasource", "query": "prometheus"}]},
        "panels": [panel(number, *each) for number, each in enumerate(panels)],
    }


def panel(number: int, title: str, unit: str, queries: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """One panel, in its place."""
    return {
        "id": number + 1,
        "title": title,
        "type": "timeseries",
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "gridPos": {"x": number % 2 * WIDTH, "y": number // 2 * HEIGHT, "w": WIDTH, "h": HEIGHT},
        "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + index), "expr": query, "legendFormat": legend}
            for index, (query, legend) in enumerate(queries)
        ],
    }


def texts() -> dict[str, str]:
    """File -> what is in it."""
    return {
        f"{name}.json": json.dumps(dashboard(name, title, panels), indent=1) + "\n"
        for name, (title, panels) in DASHBOARDS.items()
    }


if __name__ == "__main__":
    for name, text in texts().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
