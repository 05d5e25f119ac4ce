"""A real gateway for the source and the sink: a process of its own, over a ledger whose logs were filled before."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import time
from typing import Any

from gateway.config import LedgerSettings
from gateway.ledger import EventKind, Ledger, LogEntry, MessageIds, NewMessage
from gateway.ledger.logs.logged import Spooled
from tests.faults.harness import GatewayProcess

NOW = int(time()) * 1_000_000 + 123
"""When the rows say that they were made, in microseconds since 1970: retention would take older ones."""
CHUNK = 5_000


def spooled(number: int, message_id: bytes, body: bytes) -> Spooled:
    """The message of this number."""
    return Spooled(
        message_id=message_id,
        tap=f"tap-{number % 2}",
        at=NOW + number,
        broker="orders",
        version="0-9-1",
        queue="in",
        exchange="bad-\udcff" if number == 33 else "",  # a rare thing, which costs its batch time
        routing_key=f"key.{number % 7}",
        redelivered=number % 11 == 0,
        origin_id=f"origin-{number}",
        properties=b'{"properties":{"priority":3},"headers":{"n":{"type":"int64","value":%d}}}' % number,
        body=body,
        sha256=hashlib.sha256(body).digest(),
    )


def event(number: int, message_id: bytes, body: bytes) -> LogEntry:
    """An event of the message of this number; every fifth is of one that the ledger does not know."""
    message = NewMessage(
        broker="orders",
        version="0-9-1",
        exchange="x",
        routing_key=f"key.{number % 7}",
        size=len(body),
        sha256=bytes(32),
        origin="http",
        client="shop",
        properties={},
    )
    known = None if number % 5 == 0 else message
    return LogEntry(message_id, EventKind.CONFIRMED, NOW + number, "orders", "0-9-1", {"n": number}, known)


async def fill(url: str, messages: int = 0, events: int = 0, octets: int = 20) -> None:
    """Append rows to both logs, in a shard of the ledger's."""
    ledger = await Ledger.open(url, LedgerSettings(shard_lease=60.0), owner="filler", migrate=True)
    ids = MessageIds()
    try:
        for begin in range(0, messages, CHUNK):
            numbers = range(begin + 1, min(begin + CHUNK, messages) + 1)
            await ledger.log.spool([spooled(each, ids(), b"%0*d" % (octets, each)) for each in numbers])
        for begin in range(0, events, CHUNK):
            numbers = range(begin + 1, min(begin + CHUNK, events) + 1)
            await ledger.record([event(each, ids(), b"%0*d" % (octets, each)) for each in numbers])
    finally:
        await ledger.close()


def tables(ledger: str, folder: Path, **more: Any) -> dict[str, Any]:
    """A configuration: the embedded broker, and this ledger."""
    return {
        "data_dir": str(folder),
        "ledger": {"url": ledger, "shard_lease": 2.0},
        "embedded": {"enabled": True, "port": 0},
        **more,
    }


@contextmanager
def serving(
    ledger: str, folder: Path, messages: int = 0, events: int = 0, key: str = "", **more: Any
) -> Iterator[GatewayProcess]:
    """A gateway over a ledger with so many rows. ``key``: the API key that it asks for."""
    asyncio.run(fill(ledger, messages, events))
    found = GatewayProcess(folder, tables(ledger, folder, **more))
    if key:
        with found.config.open("a", encoding="utf-8") as config:
            config.write(f'\n[[api_keys]]\nname = "spark"\nkey = "{key}"\nscopes = ["admin"]\n')
    if not ledger.startswith("sqlite"):
        found.run("migrate")
    found.start()
    try:
        yield found
    finally:
        found.close()


def url_of(process: GatewayProcess) -> str:
    """Where it is."""
    return f"http://127.0.0.1:{process.port}"
