"""Publishing the rows of a frame through the gateway, and what became of them: what replay and transfer share.

Every message has a key, ``JOB:ID:SHARD:SEQUENCE``, so that a task that runs again, or a job that does, publishes
nothing twice. Tasks pace themselves, each at its share of the rate, and there are as few as the rate needs. What the
gateway or a broker will never take is counted by reason and named.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import msgspec

from gateway.errors import ConfigurationError
from gateway.pipeline.jobs.base import Context, Option
from gateway.pipeline.reports import Number, Numbers, Section, Table
from gateway.pipeline.source.messages import Counts

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

ID_MAX: Final = 160
"""Longest id of a run whose messages have keys, in characters."""
DEFAULT_EXCHANGE: Final = "amq.default"
"""How the default exchange, whose name is empty, is written."""
RATE_OF_TASK: Final = 2_000
"""Messages a second that one task publishes with ease."""
RATE_ERROR: Final = 0.05
"""By how much the rate may be missed before the report says so."""
CLEAR: Final = ("began", "ended", "named")
"""Of the counts, what is no count."""

OPTIONS: Final = (
    Option("rate", "Most messages a second; 0: as many as go.", "number", default=0.0, least=0, identity=False),
    Option(
        "ordered", "Publish in the order of the log: one task, one message behind the other.", "flag", default=False
    ),
    Option("writers", "How many tasks publish at a time.", "whole", default=2, least=1, identity=False),
)
"""What both jobs can be told about publishing."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where messages go."""

    broker: str
    exchange: str | None = None
    """None: each to the exchange that it had been published to."""
    routing_key: str | None = None
    """None: each with its own."""
    queues: bool = False
    """Each to the queue of the name that it was taken from, past all exchanges."""

    @classmethod
    def parse(cls, text: str, routing_key: str | None = None, queues: bool = False) -> Target:
        """``EXCHANGE@BROKER`` or ``BROKER``.

        Raises:
            ConfigurationError: it is neither, or the others do not go with it.
        """
        exchange, at, broker = text.rpartition("@")
        if not broker or (at and not exchange):
            raise ConfigurationError(f"{text!r} is neither EXCHANGE@BROKER nor BROKER")
        if queues and (at or routing_key is not None):
            raise ConfigurationError("messages go to queues of their names, or to an exchange or routing key: not both")
        return cls(broker, _exchange(exchange) if at else None, routing_key, queues)

    def check(self, context: Context) -> None:
        """Ask the gateway whether it is there.

        Raises:
            NoSuchBroker, NotFound: it is not.
        """
        path = f"/v1/brokers/{quote(self.broker, safe='')}"
        context.service.ask("GET", path)
        if self.exchange:
            context.service.ask("GET", f"{path}/exchanges/{quote(self.exchange, safe='')}")

    def columns(self) -> dict[str, Column]:
        """Exchange and routing key of each row."""
        from pyspark.sql import functions as F  # noqa: N812

        if self.queues:
            return {"exchange": F.lit(""), "routing_key": F.col("queue")}
        return {
            "exchange": F.col("exchange") if self.exchange is None else F.lit(self.exchange),
            "routing_key": F.col("routing_key") if self.routing_key is None else F.lit(self.routing_key),
        }

    def __str__(self) -> str:
        if self.queues:
            return f"{self.broker}, each to its queue"
        exchange = "each to its exchange" if self.exchange is None else self.exchange or DEFAULT_EXCHANGE
        key = "" if self.routing_key is None else f", routing key {self.routing_key}"
        return f"{self.broker}, {exchange}{key}"


def _exchange(name: str) -> str:
    return "" if name == DEFAULT_EXCHANGE else name


def check_id(run_id: str) -> None:
    """Raise ConfigurationError for an id that cannot be part of a key."""
    if not 0 < len(run_id) <= ID_MAX or not run_id.isascii() or not run_id.isprintable():
        raise ConfigurationError(f"the id {run_id[:ID_MAX]!r} is not 1 to {ID_MAX} printable ASCII characters")


def outgoing(frame: DataFrame, target: Target, prefix: str) -> DataFrame:
    """Rows of the message log as messages to publish; none of them twice under ``prefix``. Messages that may be in the
    log twice are marked, unless a transform has left the mark out."""
    from pyspark.sql import functions as F  # noqa: N812

    found = target.columns()
    told = [name for name in ("redelivered",) if name in frame.columns]
    return frame.select(
        *told,
        "shard",
        "sequence",
        found["exchange"].alias("exchange"),
        found["routing_key"].alias("routing_key"),
        "properties",
        "body",
        F.lit(True).alias("mandatory"),
        F.concat_ws(":", F.lit(prefix), F.col("shard"), F.col("sequence")).alias("key"),
    )


def publish(context: Context, frame: DataFrame, broker: str, name: str, *, again: bool = False) -> Counts:
    """Publish what :func:`outgoing` made, and wait for it.

    Args:
        name: of the file that the counts are left in.
        again: try those once more that were refused for good under their keys.

    Raises:
        ServiceUnreachable: the gateway, or the broker behind it, went away and stayed away. What was published stays.
        ServiceRefused: the gateway said no to all of it.
    """
    from gateway.pipeline.session import scratch
    from gateway.pipeline.source import write

    ordered, rate = context.options["ordered"], float(context.options["rate"])
    writers = tasks_of(context, rate)
    if ordered:
        ready = frame.repartition(1).sortWithinPartitions("shard", "sequence")
    else:  # a request goes to one exchange
        ready = frame.repartition(writers, "shard", "sequence").sortWithinPartitions("exchange", "shard", "sequence")
    report = Path(scratch()) / f"{name}.json"
    options = {"retry_refused": str(again).lower()}
    if rate:
        options |= {"rate": str(rate), "writers": str(writers)}
    write(ready, context.pipeline, broker, on_refused="count", report_file=str(report), **options).save()
    found: Mapping[str, Any] = json.loads(report.read_text(encoding="utf-8"))
    report.unlink()
    return msgspec.convert(found["counts"], Counts)


def tasks_of(context: Context, rate: float) -> int:
    """How many tasks publish: no more than can run at a time, for each waits for its own turns."""
    if context.options["ordered"]:
        return 1
    most: int = min(context.options["writers"], max(1, context.spark.sparkContext.defaultParallelism))
    return min(most, ceil(rate / RATE_OF_TASK)) if rate else most


def rate_of(parts: Sequence[Counts]) -> float | None:
    """Messages a second: of each part from its first request to the moment at which the one behind its last was due,
    without the time between them. None: no time passed."""
    seconds = sum(part.ended - part.began for part in parts)
    return sum(part.rows for part in parts) / seconds if seconds > 0 else None


def clear(counts: Counts) -> dict[str, Any]:
    """The counts, as a run's record keeps them."""
    return {name: value for name, value in msgspec.to_builtins(counts).items() if name not in CLEAR}


def sections(counts: Counts, rate: float, measured: float | None, title: str) -> list[Section]:
    """What people see of it."""
    numbers = [
        Number("messages", counts.rows),
        Number("published", counts.published),
        Number("known before", counts.repeated, "their keys had been used; nothing was published"),
        Number("refused", counts.refused, bad=counts.refused > 0),
        Number("sent again", counts.resent, "after an unknown outcome; marked as possible duplicates"),
    ]
    if measured is not None:
        note = ""
        if rate:
            off = measured / rate - 1
            note = f"{off:+.1%} of the {rate:g} that were set" + (
                ": the gateway or the broker took no more" if off < -RATE_ERROR else ""
            )
        numbers.append(Number("messages a second", round(measured, 1), note))
    found: list[Section] = [Numbers(title, numbers)]
    if counts.refused:
        reasons = sorted(counts.reasons.items(), key=lambda each: -each[1])
        found.append(Table("Refused, by reason", ("reason", "messages"), reasons, bad=True))
        found.append(Table("The first that were refused", ("key", "why"), counts.named, bad=True))
    return found
