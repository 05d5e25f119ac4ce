"""Logs and metrics.

Logs are JSON, one object per line on standard error, one line per change of state: ``log("broker.state",
broker="orders", state="up")``. Values are JSON values; secrets are never passed in. Metrics live in a registry of
their own, one per gateway, so that two gateways in one process (tests, the demo) do not add up.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any, Final, TextIO

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

LOGGER: Final = logging.getLogger("gateway")
_FIELDS: Final = "gateway_fields"
_LEVELS: Final = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
_SECONDS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)


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
        line.update(getattr(record, _FIELDS, {}))
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def set_up_logging(level: str, stream: TextIO | None = None) -> None:
    """Send all logs, uvicorn's included, to ``stream`` (standard error) as JSON. Replaces what was set up before."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    LOGGER.setLevel(_LEVELS[level])


def log(event: str, level: int = logging.INFO, exc_info: BaseException | None = None, **fields: Any) -> None:
    """Write one event. ``event`` is a dotted name that never changes; everything that varies is a field."""
    if LOGGER.isEnabledFor(level):
        LOGGER.log(level, event, exc_info=exc_info, extra={_FIELDS: fields})


class Metrics:
    """What ``/metrics`` shows, in Prometheus' text format. Labels have few values: configured names and words of
    ours, never a name that came from a peer."""

    def __init__(self, version: str) -> None:
        self.registry = CollectorRegistry()
        self.build_info = Gauge("amqpgw_build_info", "1, with the release", ["version"], registry=self.registry)
        self.build_info.labels(version).set(1)
        self.publishes = Counter(
            "amqpgw_publishes", "Messages published, by what became of them", ["broker", "outcome"],
            registry=self.registry,
        )  # fmt: skip
        self.resent = Counter(
            "amqpgw_publishes_resent", "Messages sent a second time: possible duplicates, marked", ["broker"],
            registry=self.registry,
        )  # fmt: skip
        self.publish_seconds = Histogram(
            "amqpgw_publish_seconds", "From the request to the outcome in the ledger, per request", ["broker"],
            buckets=_SECONDS, registry=self.registry,
        )  # fmt: skip
        self.unconfirmed = Gauge(
            "amqpgw_unconfirmed", "Publishes without an outcome", ["broker"], registry=self.registry
        )
        self.broker_up = Gauge(
            "amqpgw_broker_up", "1 while the broker takes publishes", ["broker"], registry=self.registry
        )
        self.broker_blocked = Gauge(
            "amqpgw_broker_blocked", "1 while the broker blocks publishers", ["broker"], registry=self.registry
        )
        self.leases = Gauge("amqpgw_leases", "Messages that are out with consumers", registry=self.registry)
        self.deliveries = Counter(
            "amqpgw_deliveries", "Events of leased messages", ["broker", "event"], registry=self.registry
        )
        self.ledger_up = Gauge("amqpgw_ledger_up", "1 while the ledger can be written", registry=self.registry)
        self.events_dropped = Counter(
            "amqpgw_events_dropped", "Events lost because the ledger was away for too long", registry=self.registry
        )
        self.requests = Counter(
            "amqpgw_http_requests", "HTTP requests", ["operation", "status"], registry=self.registry
        )
        self.request_seconds = Histogram(
            "amqpgw_http_request_seconds", "Time to answer", ["operation"], buckets=_SECONDS, registry=self.registry
        )
        self.requests_running = Gauge("amqpgw_http_requests_running", "HTTP requests under way", registry=self.registry)

    def render(self) -> bytes:
        """The text of ``/metrics``."""
        return generate_latest(self.registry)
