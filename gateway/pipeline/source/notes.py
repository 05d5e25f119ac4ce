"""What a reader or a writer has to say, from whichever process it is in.

Workers of Spark have no logging set up: there, and in a driver that has none, a line of JSON goes to standard error, as
the service writes it, and Spark keeps it with the worker's log.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from gateway.observing.telemetry import LOGGER, JsonFormatter, log
from gateway.pipeline.source.offsets import Range


def note(event: str, **fields: Any) -> None:
    """A warning: a dotted name that never changes, and its fields."""
    if not LOGGER.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(JsonFormatter())
        LOGGER.addHandler(handler)
    log(event, logging.WARNING, **fields)


def rows_gone(of: str, missing: Iterable[Range]) -> None:
    """Rows were passed over that nobody can read any more."""
    for each in missing:
        note("pipeline.rows_gone", log=of, shard=each.shard, first=each.after + 1, last=each.upto, rows=each.length)
