"""Logs and metrics.

Logs are JSON, one object per line on standard error, one line per change of state: ``log("broker.state",
broker="orders", state="up")``. Values are JSON values; secrets are never passed in. Metrics live in a registry of
their own, one per gateway, so that two gateways in one process (tests, the demo) do not add up.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, TextIO

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)

from gateway.budgets import Budgets, Holdings
from gateway.observing.repeats import FIELDS, RepeatLines
from gateway.observing.series import (
    SERIES_MAX,
    Family,
    LoopCounter,
    LoopHistogram,
    M,
    SeriesBudget,
    Together,
    series_of,
)
from gateway.runtime.tasks import FAILED_TASK

LOGGER: Final = logging.getLogger("gateway")
_LEVELS: Final = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
_SECONDS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
PREFIX: Final = "amqpgw_"
NAMED: Final = ("bridge", "tap", "endpoint", "subscription", "front")
"""Labels whose values are names that callers may choose."""
PROCESS_SERIES: Final = 8
"""Of the process itself (memory, files, CPU), at most."""
BROKERS_MIN: Final = 50
"""Of how many brokers, at least, there are series by name."""
PROMISES: Final = ("publish", "delivery", "later", "branch", "body", "event", "spooled")
"""The label ``promise`` of ``amqpgw_lost_total``."""


class JsonFormatter(logging.Formatter):
    """One JSON object per record: ``at``, ``level``, ``event``, and the fields of the event."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
        }
        if record.name != LOGGER.name:
            line["logger"] = record.name
        line.update(getattr(record, FIELDS, {}))
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        # ASCII alone; DEL is the only control character that JSON leaves as it is.
        return json.dumps(line, default=str).replace("\x7f", "\\u007f")


def set_up_logging(level: str, stream: TextIO | None = None) -> None:
    """Send all logs, uvicorn's included, to ``stream`` (standard error) as JSON. Replaces what was set up before."""
    handler = RepeatLines(stream or sys.stderr)
    handler.setFormatter(JsonFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    LOGGER.setLevel(_LEVELS[level])


def set_level(level: str) -> None:
    """Write lines of this severity, and of those that are worse."""
    LOGGER.setLevel(_LEVELS[level])


def log(event: str, level: int = logging.INFO, exc_info: BaseException | None = None, **fields: Any) -> None:
    """Write one event. ``event`` is a dotted name that never changes; everything that varies is a field."""
    if LOGGER.isEnabledFor(level):
        if found := fields.pop("trace_id", "") or trace_id():
            fields["trace_id"] = found
        LOGGER.log(level, event, exc_info=exc_info, extra={FIELDS: fields})


class Following:
    """The trace of what is being done, for logs and problems. What goes on behind a request that has ended is not
    done for it any more: then the id is taken away."""

    __slots__ = ("trace_id",)

    def __init__(self, trace_id: str) -> None:
        self.trace_id = trace_id


FOLLOWING: Final[ContextVar[Following | None]] = ContextVar("following", default=None)


def trace_id() -> str:
    """Of the trace that this belongs to, in 32 hexadecimal digits; empty: none."""
    following = FOLLOWING.get()
    return following.trace_id if following is not None else ""


def settle_lines() -> None:
    """Write what was withheld of lines that came again and again, and is not withheld any longer."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, RepeatLines):
            handler.settle()


def _of_standing(holdings: Holdings, value: str) -> float:
    return float(getattr(holdings.standing(), value))


class Metrics:
    """What ``/metrics`` shows, in Prometheus' text format. Labels have few values: configured names and fixed words,
    never a name that came from a peer; and there is an end to the number of series
    (:mod:`gateway.observing.series`)."""

    def __init__(self, version: str, names: int = 20, series: int = SERIES_MAX) -> None:
        """``names``: of how many bridges, taps, endpoints, subscriptions and fronts, each, there are series by name."""
        disable_created_metrics()  # type: ignore[no-untyped-call]  # when a series began: a second one for each
        self.registry = CollectorRegistry()
        self.names = names
        self.budget = SeriesBudget(series, {"broker": max(names, BROKERS_MIN), **dict.fromkeys(NAMED, names)})
        self.budget.take(PROCESS_SERIES)
        counter, gauge, histogram = self._counter, self._gauge, self._histogram

        self.build_info = gauge("build_info", "1, with the release", ("version",))
        self.build_info.labels(version).set(1)
        self.publishes = counter("publishes", "Messages published, by what became of them", ("broker", "outcome"))
        self.resent = counter(
            "publishes_resent", "Messages sent a second time: possible duplicates, marked", ("broker",)
        )
        self.publish_seconds = histogram(
            "publish_seconds", "From the request to the outcome in the ledger, per request", ("broker",)
        )
        self.confirm_seconds = histogram(
            "confirm_seconds",
            "From writing a publish to the broker's word on it; of each channel one at a time is measured",
            ("broker",),
        )
        self.unconfirmed = gauge("unconfirmed", "Publishes without an outcome", ("broker",))
        self.unconfirmed_oldest = gauge(
            "unconfirmed_oldest_seconds",
            "For how long, at least, the oldest publish that was written has had no outcome",
            ("broker",),
            max,
        )
        self.broker_up = gauge("broker_up", "1 while the broker takes publishes", ("broker",), min)
        self.broker_blocked = gauge("broker_blocked", "1 while the broker blocks publishers", ("broker",), max)
        self.leases = self._plain(Gauge, "leases", "Messages that are out with consumers, held by brokers")
        self.leases_oldest = self._plain(
            Gauge, "leases_oldest_seconds", "For how long the oldest of them has been out, extensions included"
        )
        self.deliveries = counter("deliveries", "Events of leased messages", ("broker", "event"))
        self.subscription_messages = gauge(
            "subscription_messages",
            "Messages that the ledger owes to a subscription: waiting, out with a consumer, or dead (given up and "
            "kept). One process of the cluster tells; those with the most have series of their own",
            ("subscription", "state"),
        )
        self.subscription_oldest = gauge(
            "subscription_oldest_seconds",
            "How long ago the oldest message came that the ledger owes to a subscription and that is not dead",
            ("subscription",),
            max,
        )
        self.subscription_octets = gauge(
            "subscription_octets", "Octets of the bodies that the ledger owes to a subscription", ("subscription",)
        )
        self.outbox_messages = gauge(
            "outbox_messages",
            "Publishes that the ledger holds: due, later, or refused for good (kept until somebody retries or deletes "
            "them). One process tells",
            ("state",),
        )
        self.outbox_refused = counter(
            "outbox_refused",
            "Publishes answered with 202 that a broker refused for good, by the code of the problem; each is kept",
            ("broker", "reason"),
        )
        self.outbox_overdue = self._plain(
            Gauge, "outbox_overdue_seconds", "Seconds the oldest scheduled publish is overdue; 0 if none is"
        )
        self.in_doubt = gauge(
            "in_doubt",
            "Publishes without an outcome in the ledger: pending (some process works on them) or parked (until their "
            "Idempotency-Key is repeated, or forgotten). One process tells",
            ("state",),
        )
        self.bridge_up = gauge("bridge_up", "1 while the bridge runs and nothing stands in its way", ("bridge",), min)
        self.bridge_fault = gauge(
            "bridge_fault",
            "1 while the bridge is this process's to run, nobody has paused it, and it does not run",
            ("bridge",),
            max,
        )
        self.bridge_messages = counter(
            "bridge_messages", "Messages of a bridge, by what became of them", ("bridge", "event")
        )
        self.bridge_octets = counter("bridge_octets", "Octets of the bodies of forwarded messages", ("bridge",))
        self.bridge_losses = counter(
            "bridge_losses", "Messages forwarded without something, by the name of the loss", ("bridge", "loss")
        )
        self.bridge_in_flight = gauge(
            "bridge_in_flight", "Messages taken from the source and not settled yet", ("bridge",)
        )
        self.bridge_oldest = gauge(
            "bridge_oldest_seconds",
            "How long ago the oldest message came that a bridge has taken from its source and not settled",
            ("bridge",),
            max,
        )
        self.bridge_lag = histogram(
            "bridge_lag_seconds", "From a message's arrival to its acknowledgement, one of each chunk", ("bridge",)
        )
        self.tap_up = gauge("tap_up", "1 while the tap runs and nothing stands in its way", ("tap",), min)
        self.tap_fault = gauge(
            "tap_fault",
            "1 while the tap is this process's to run, nobody has paused it, and it does not run, or may not since the "
            "log of messages is full",
            ("tap",),
            max,
        )
        self.tap_messages = counter("tap_messages", "Messages of a tap, by what became of them", ("tap", "event"))
        self.tap_octets = counter("tap_octets", "Octets of the bodies of spooled messages", ("tap",))
        self.push_messages = counter(
            "push_messages",
            "Messages of pushed subscriptions, by what became of them",
            ("endpoint", "event"),
        )
        self.push_requests = counter("push_requests", "Requests to endpoints, by outcome", ("endpoint", "outcome"))
        self.push_seconds = histogram(
            "push_seconds", "From a request to an endpoint to the end of its answer", ("endpoint",)
        )
        self.push_in_flight = self._plain(Gauge, "push_in_flight", "Requests to endpoints under way")
        self.push_held = self._plain(
            Gauge, "push_endpoints_suspended", "Endpoints that are suspended while messages wait for them"
        )
        self.push_endpoint_up = gauge(
            "push_endpoint_up", "1 while an endpoint gets messages; of several together, the least", ("endpoint",), min
        )
        self.retries = counter(
            "retries",
            "Messages that are tried again, by what they are (`push`, `bridge`, `outbox`) and by why: the code of an "
            "error, or `status_` and a status of HTTP",
            ("what", "reason"),
        )
        self.ledger_up = self._plain(Gauge, "ledger_up", "1 while the ledger can be written")
        self.ledger_commit_seconds = self._plain(
            Histogram, "ledger_commit_seconds", "A transaction of the ledger's writer, its commit included",
            buckets=_SECONDS,
        )  # fmt: skip
        self.ledger_disk_free = self._plain(
            Gauge, "ledger_disk_free_bytes", "Free bytes of the disk of a ledger on SQLite; 0 on PostgreSQL"
        )
        self.ledger_disk_reserve = self._plain(
            Gauge,
            "ledger_disk_reserve_bytes",
            "With fewer free bytes of its disk, the ledger takes nothing new; 0: none are reserved",
        )
        self.ledger_waiting = self._plain(Gauge, "ledger_waiting", "Rows that wait for the ledger's writer")
        self.lost = counter(
            "lost",
            "What the ledger promised and cannot account for, as the audit found it: always 0. `promise`: a publish, a "
            "delivery, a scheduled publish, a branch of a transaction, a body, an event, a row of the log of messages",
            ("promise",),
        )
        for promise in PROMISES:
            self.lost.labels(promise)
        self.audit_checked = self._plain(Counter, "audit_checked", "Events that the audit of the ledger has looked at")
        self.audit_behind = self._plain(
            Gauge,
            "audit_behind",
            "Events that are new and that the audit has not looked at; 0 where another process audits",
        )
        self.audit_rounds = self._plain(
            Counter, "audit_rounds", "How often the audit has been through everything that the ledger remembers"
        )
        self.audit_log_row = self._plain(
            Gauge, "audit_log_row", "Number of the newest row of the audit log of changes that this process knows of"
        )
        self.audit_log_broken = self._plain(
            Gauge,
            "audit_log_broken",
            "1 while rows of the audit log of changes are gone, or others than this process wrote: `audit.broken` in "
            "the log says which",
        )
        self.work = gauge("work", "Work that this process does and no other, by kind", ("kind",))
        self.fenced = self._plain(
            Counter, "fenced", "Times that this process lost all its work because its lease ran out"
        )
        self.task_failures = counter(
            "task_failures", "Background tasks that ended with an error, by the part of the gateway", ("task",)
        )
        self.fencing_rejections = counter(
            "fencing_rejections",
            "What was refused because it came under a lease that had ended: a write to the ledger (`shard`), or a "
            "consumer's answer for a message (`delivery`)",
            ("lease",),
        )
        for lease in ("shard", "delivery"):
            self.fencing_rejections.labels(lease)
        self.peers = self._plain(
            Gauge, "cluster_processes", "Processes on the ledger, this one included; 0 with SQLite"
        )
        self.config_differs = self._plain(
            Gauge, "cluster_config_differs", "Processes whose configuration differs from this one's"
        )
        self.reloads = counter(
            "config_reloads", "Times that the configuration was to be read again, by what became of it", ("outcome",)
        )
        self.peer_requests = counter(
            "cluster_requests", "Requests to other processes, by what became of them", ("verb", "outcome")
        )
        self.events_dropped = self._plain(
            Counter, "events_dropped", "Events lost because the ledger was away for too long"
        )
        self.embedded_skipped = counter(
            "embedded_skipped",
            "Messages in queues of the embedded broker that a connection could not carry. Each is counted once, and "
            "stays in its queue for other consumers",
            ("version",),
        )
        self.embedded_matches_refused = self._plain(
            Counter,
            "embedded_matches_refused",
            "Publishes refused by the embedded broker, and messages that a selector was not tried on, because finding "
            "their queues or consumers costs too much",
        )
        self.embedded_logins_refused = self._plain(
            Counter, "embedded_logins_refused", "Logins that the embedded broker refused"
        )
        self.front_clients = gauge("front_clients", "Clients of a front that have logged in", ("front",))
        self.front_connections = gauge("front_connections", "Connections of a front to brokers that are up", ("front",))
        self.front_up = gauge(
            "front_up", "1 while every broker connection that clients of a front need is up", ("front",), min
        )
        self.front_bytes = gauge(
            "front_bytes",
            "Bytes of messages at a front: unconfirmed (published, without the broker's answer), held (for clients "
            "that may not have them yet), or stored (in the ledger, for a broker that is away)",
            ("front", "state"),
        )
        self.front_publishes = counter(
            "front_publishes",
            "Publishes of clients of a front, by outcome. stored: kept in the ledger for the broker. resent: sent "
            "again after a loss, marked. lost: refused, and the client has not asked to hear of that",
            ("front", "outcome"),
        )
        self.front_deliveries = counter(
            "front_deliveries",
            "Deliveries to clients of a front. undeliverable: the client's connection cannot carry it. void: settled "
            "when the broker had taken it back. marked: marked as redelivered by the front, because the broker may "
            "have forgotten that. consumer_lost: a consumer that could not be restored",
            ("front", "event"),
        )
        self.front_rewrites = counter("front_rewrites", "Requests that a front rewrote, by rule", ("front", "rule"))
        self.front_refusals = counter(
            "front_refusals", "Requests that a front or its broker refused, by reply code", ("front", "code")
        )
        self.front_restores = counter(
            "front_restores", "Broker connections of a front that were lost and opened again", ("front",)
        )
        self.front_logins_refused = counter("front_logins_refused", "Logins that a front refused", ("front",))
        self.requests = counter("http_requests", "HTTP requests", ("operation", "status"))
        self.request_seconds = histogram("http_request_seconds", "Time to answer", ("operation",))
        self.requests_running = self._plain(Gauge, "http_requests_running", "HTTP requests under way")
        self.budget_used = gauge(
            "budget_used", "How much of a resource all clients hold, in this process", ("resource",)
        )
        self.budget_total = gauge("budget_total", "How much of a resource there is, in this process", ("resource",))
        self.budget_largest = gauge(
            "budget_largest", "How much of a resource the client with most of it holds", ("resource",), max
        )
        self.budget_refusals = counter(
            "budget_refusals",
            "Refused by a budget. reached: share (the client's, 429), total (everybody's, 503), dropped (a connection)",
            ("resource", "reached"),
        )
        self.trace_spans = counter("trace_spans", "Spans, by what became of them", ("outcome",))
        self.series = self._plain(Gauge, "series", "Series of this page")
        self.series.set_function(lambda: self.budget.series)
        self.series_refused = self._plain(
            Gauge, "series_refused", f"Series that were not made, since there are {SERIES_MAX:,} at most"
        )
        self.series_refused.set_function(lambda: self.budget.refused)
        ProcessCollector(registry=self.registry)

    def show_budgets(self, budgets: Budgets) -> None:
        """Show what is held of each resource."""
        for holdings in budgets.all():
            name = holdings.resource.name
            self.budget_used.labels(name).set_function(partial(_of_standing, holdings, "held"))
            self.budget_total.labels(name).set_function(partial(_of_standing, holdings, "total"))
            self.budget_largest.labels(name).set_function(partial(_of_standing, holdings, "largest"))
        budgets.watch(lambda resource, reached: self.budget_refusals.labels(resource, reached).inc())

    def report_failures(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Log and count a background task that failed. This is an exception handler of the event loop."""
        owner = context.get(FAILED_TASK)
        if owner is None:
            loop.default_exception_handler(context)
            return
        log("task.failed", logging.ERROR, exc_info=context["exception"], task=owner, name=context["name"])
        self.task_failures.labels(owner).inc()

    def render(self) -> bytes:
        """The text of ``/metrics``."""
        return generate_latest(self.registry)

    def _counter(self, name: str, text: str, labels: Sequence[str]) -> Family[Counter]:
        return Family(LoopCounter, PREFIX + name, text, labels, self.budget, self.registry)

    def _gauge(self, name: str, text: str, labels: Sequence[str], together: Together = sum) -> Family[Gauge]:
        return Family(Gauge, PREFIX + name, text, labels, self.budget, self.registry, together)

    def _histogram(self, name: str, text: str, labels: Sequence[str]) -> Family[Histogram]:
        return Family(LoopHistogram, PREFIX + name, text, labels, self.budget, self.registry, buckets=_SECONDS)

    def _plain(self, make: Callable[..., M], name: str, text: str, **options: Any) -> M:
        """A metric without labels."""
        metric = make(PREFIX + name, text, registry=self.registry, **options)
        self.budget.take(series_of(metric, options.get("buckets", ())))
        return metric
