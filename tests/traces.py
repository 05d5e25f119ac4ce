"""The events of a ledger, judged by the gateway's own table of transitions."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from operator import itemgetter
from typing import Any, Final

from gateway.ledger.db.encoding import parse
from gateway.ledger.writing.transitions import TraceEvent, impossible

QUERY: Final = "SELECT message_id, kind, detail, at, shard, sequence FROM events ORDER BY message_id"


def impossible_traces(rows: Iterable[Any]) -> list[str]:
    """The impossible transitions, as sentences. ``rows``: those of :data:`QUERY`."""
    found = []
    for message_id, each in groupby(rows, itemgetter(0)):
        events = [
            TraceEvent.of(kind, parse(bytes(detail)), at, shard, sequence)
            for _, kind, detail, at, shard, sequence in each
        ]
        found += [f"impossible events of {bytes(message_id).hex()}: {what}" for what in impossible(events)]
    return found
