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
        self.bridge_up = Gauge(
            "amqpgw_bridge_up", "1 while the bridge runs and nothing stands in its way", ["bridge"],
            registry=self.registry,
        )  # fmt: skip
        self.bridge_messages = Counter(
            "amqpgw_bridge_messages", "Messages of a bridge, by what became of them", ["bridge", "event"],
            registry=self.registry,
        )  # fmt: skip
        self.bridge_octets = Counter(
            "amqpgw_bridge_octets", "Octets of the bodies of forwarded messages", ["bridge"], registry=self.registry
        )
        self.bridge_losses = Counter(
            "amqpgw_bridge_losses", "Messages forwarded without something, by the name of the loss",
            ["bridge", "loss"], registry=self.registry,
        )  # fmt: skip
        self.bridge_in_flight = Gauge(
            "amqpgw_bridge_in_flight", "Messages taken from the source and not settled yet", ["bridge"],
            registry=self.registry,
        )  # fmt: skip
        self.bridge_lag = Histogram(
            "amqpgw_bridge_lag_seconds", "From a message's arrival to its acknowledgement, one of each chunk",
            ["bridge"], buckets=_SECONDS, registry=self.registry,
        )  # fmt: skip
        self.tap_up = Gauge(
            "amqpgw_tap_up", "1 while the tap runs and nothing stands in its way", ["tap"], registry=self.registry
        )
        self.tap_messages = Counter(
            "amqpgw_tap_messages", "Messages of a tap, by what became of them", ["tap", "event"],
            registry=self.registry,
        )  # fmt: skip
        self.tap_octets = Counter(
            "amqpgw_tap_octets", "Octets of the bodies of spooled messages", ["tap"], registry=self.registry
        )
        self.push_messages = Counter(
            "amqpgw_push_messages", "Messages of pushed subscriptions, by what became of them; endpoints that the "
            "configuration does not name are together `other`", ["endpoint", "event"], registry=self.registry,
        )  # fmt: skip
        self.push_requests = Counter(
            "amqpgw_push_requests", "Requests to endpoints, by what followed from the outcome",
            ["endpoint", "verdict"], registry=self.registry,
        )  # fmt: skip
        self.push_seconds = Histogram(
            "amqpgw_push_seconds", "From a request to an endpoint to the end of its answer", ["endpoint"],
            buckets=_SECONDS, registry=self.registry,
        )  # fmt: skip
        self.push_in_flight = Gauge("amqpgw_push_in_flight", "Requests to endpoints under way", registry=self.registry)
        self.push_held = Gauge(
            "amqpgw_push_endpoints_held", "Endpoints with messages that get none now", registry=self.registry
        )
        self.push_endpoint_up = Gauge(
            "amqpgw_push_endpoint_up", "1 while an endpoint of the configuration gets messages", ["endpoint"],
            registry=self.registry,
        )  # fmt: skip
        self.ledger_up = Gauge("amqpgw_ledger_up", "1 while the ledger can be written", registry=self.registry)
        self.work = Gauge(
            "amqpgw_work", "Work that this process does and no other, by kind", ["kind"], registry=self.registry
        )
        self.fenced = Counter(
            "amqpgw_fenced", "Times that this process lost all its work because its lease ran out",
            registry=self.registry,
        )  # fmt: skip
        self.peers = Gauge(
            "amqpgw_cluster_processes", "Processes on the ledger, this one included; 0 with SQLite",
            registry=self.registry,
        )  # fmt: skip
        self.config_differs = Gauge(
            "amqpgw_cluster_config_differs", "Processes whose configuration differs from this one's",
            registry=self.registry,
        )  # fmt: skip
        self.peer_requests = Counter(
            "amqpgw_cluster_requests", "Requests to other processes, by what became of them", ["verb", "outcome"],
            registry=self.registry,
        )  # fmt: skip
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
