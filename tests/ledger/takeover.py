"""What a process that died still had to send, taken over and sent by the next.

``python -m tests.ledger.takeover --rows 100000`` fills a ledger with so many entries of each kind, lets the process
die, and prints how long the next one takes. The command fails if a message is missing or sent twice.
``--url`` takes a PostgreSQL ledger that is up to date and empty; without it there is a file of SQLite in a temporary
folder.
``--only fill`` and ``--only send`` are the two halves, so that one of them can be another release's.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Final

from gateway.config import LedgerSettings
from gateway.core import Gateway
from gateway.core.publishing import envelopes
from gateway.core.publishing.entries import keyed_entry
from gateway.core.publishing.publisher import Publication, describe, version_name
from gateway.ledger import EventKind, Ledger, LogEntry, MessageIds, OutboxEntry, Wanted
from gateway.ledger.pending.promises import PendingCounts
from gateway.observing.telemetry import Metrics
from gateway.upstreams import Upstream
from tests.core.fakes import FakeUpstream
from tests.core.test_keyed_messages import message
from tests.ledgers import sqlite_ledger

PART: Final = 500
HELD: Final = 100
"""So many entries that were due are held by the process when it dies."""
KINDS: Final = ("keyed", "due", "unsettled")
"""An entry of a request with a key; one that is due; a publish without a key, that nobody sends again."""


async def fill(url: str, rows: int) -> None:
    """Fill a ledger, and leave it as a process that dies."""
    upstream: Upstream = FakeUpstream()  # type: ignore[assignment]
    new_id = MessageIds()
    ledger = await Ledger.open(url, LedgerSettings(), owner="dead")
    for begin in range(0, rows, PART):
        numbers = range(begin, min(rows, begin + PART))
        made: dict[str, list[Publication]] = {kind: [] for kind in KINDS}
        for kind in KINDS:
            for number in numbers:
                made[kind].append(message(body=_body(kind, number), key=""))
                made[kind][-1].id = new_id()
        at = time.time_ns() // 1000
        claims = [
            Wanted(f"key {number}", b"f" * 32, (keyed_entry(upstream, "", item, "alice", at),))
            for number, item in zip(numbers, made["keyed"], strict=True)
        ]
        await ledger.keyring.claim("alice", claims)
        await ledger.outbox.put(
            [
                OutboxEntry(
                    message_id=item.id, broker=upstream.name, exchange="", routing_key=item.routing_key,
                    payload=envelopes.encode(item.message, item.mandatory), at=at, client="alice",
                )
                for item in made["due"]
            ],
            [_opened(EventKind.SCHEDULED, at, upstream, item) for item in made["due"]],
        )  # fmt: skip
        await ledger.record([_opened(EventKind.ACCEPTED, at, upstream, item) for item in made["unsettled"]])
    await asyncio.sleep(0.01)  # what was put a moment ago is due
    assert len(await ledger.outbox.claim(HELD, [upstream.name])) == min(rows, HELD)
    await ledger.close()


def _body(kind: str, number: int) -> bytes:
    return f"{kind} {number}".encode()


def _opened(kind: EventKind, at: int, upstream: Upstream, item: Publication) -> LogEntry:
    version = version_name(upstream)
    return LogEntry(
        item.id, kind, at, upstream.name, version, None, describe(upstream.name, version, "", item, "alice", "http")
    )


async def send(url: str, rows: int) -> dict[str, float]:
    """Return the seconds until nothing is left of what was due and of what requests held, from the start of the process
    that takes over.

    Raises:
        AssertionError: a message is missing, was sent twice, or lacks its mark or its outcome.
    """
    upstream = FakeUpstream()
    await upstream.declare_queue("orders")
    expected = {_body(kind, number): kind for kind in KINDS for number in range(rows)}
    began = time.monotonic()
    ledger = await Ledger.open(url, LedgerSettings(), owner="next")
    gateway = Gateway(ledger, {"fake": upstream}, Metrics("test"), ack_key=b"k" * 32)  # type: ignore[dict-item]
    await gateway.start()
    seconds: dict[str, float] = {}

    async def is_over(kind: str, left: Callable[[PendingCounts], int]) -> None:
        while left(await ledger.promises.standing()):
            await asyncio.sleep(0.05)
        seconds[kind] = time.monotonic() - began

    await asyncio.gather(
        is_over("due", lambda standing: standing.due), is_over("in requests", lambda standing: standing.pending)
    )
    await gateway.outbox.sender.recovered()
    sent = Counter(bytes(each.body) for _, _, each in upstream.published)
    wanted = {body for body, kind in expected.items() if kind != "unsettled"}
    assert sent.keys() == wanted, f"{len(wanted - sent.keys())} missing, {len(sent.keys() - wanted)} not asked for"
    assert max(sent.values()) == 1, f"{sum(number > 1 for number in sent.values())} sent twice"
    marked = Counter(
        expected[bytes(each.body)]
        for _, _, each in upstream.published
        if each.properties.headers["x-gateway"].get("resent")
    )
    assert marked == {"keyed": rows, "due": min(rows, HELD)}, marked
    unknown = await _count(ledger, EventKind.UNKNOWN), await _count(ledger, EventKind.CONFIRMED)
    assert unknown == (rows, 2 * rows), unknown
    await gateway.close(5.0)
    await ledger.close()
    return seconds


async def _count(ledger: Ledger, kind: EventKind) -> int:
    """The events of a kind."""
    position: dict[str, int] = {}
    found = 0
    while True:
        events, position = await ledger.events_after(position, 5_000)
        if not events:
            return found
        found += sum(event.kind is kind for event in events)


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m tests.ledger.takeover")
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--url", default="")
    parser.add_argument("--only", choices=("fill", "send"))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        url = options.url or sqlite_ledger(Path(folder))
        if options.only != "send":
            asyncio.run(fill(url, options.rows))
        if options.only != "fill":
            for kind, seconds in asyncio.run(send(url, options.rows)).items():
                print(f"{kind}, {options.rows} of each kind: {seconds:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
