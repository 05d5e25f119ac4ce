"""Ledgers with millions of rows of the shape that the gateway writes, filled past the gateway in minutes, and kept.

Message number ``n`` is a function of ``n`` and a seed. What happens to it is one of :data:`FLOWS`: a row of
``messages`` and four of ``events``. The counts of each hour are there as the keeper would have made them, and
:data:`DEAD` messages are dead letters.
"""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final, NamedTuple

import psycopg
import sqlalchemy as sa

from gateway.ledger.db import schema
from gateway.ledger.db.engine import Database
from gateway.ledger.events.statistics import HOUR_US
from tests.benchmarks.events_at_scale import FLOWS, QUEUES, STEPS
from tests.benchmarks.rows import say
from tests.servers import PostgreSQL
from tests.servers.process import State

SHARDS: Final = 4
BLOCK: Final = 5_000
"""Messages whose rows are written together, to one shard."""
DAYS: Final = 5
"""How far back the first message is: less than the history that the gateway keeps."""
DEAD: Final = 10_000
DEAD_CODES: Final = ("rejected", "attempts_exhausted", "filtered", "expired")
CLIENTS: Final = 40
"""API keys that published."""
TABLES: Final = {
    "messages": (
        "id", "at", "broker", "version", "exchange", "routing_key", "size", "sha256", "origin", "client", "properties",
    ),
    "events": ("shard", "sequence", "message_id", "kind", "at", "broker", "version", "detail"),
    "statistics": ("hour", "kind", "broker", "subscription", "endpoint", "bridge", "events", "octets"),
    "counted": ("shard", "sequence"),
    "shards": ("shard", "owner", "fence", "expires_at", "next_sequence", "commits"),
    "bodies": ("message_id", "digest", "owed", "kept_until", "payload"),
    "deliveries": (
        "id", "message_id", "digest", "subscription", "order_key", "at", "due_at", "attempt", "lease", "status", "size",
        "reason", "code",
    ),
}  # fmt: skip
"""Table -> the columns that are written."""

Rows = dict[str, list[tuple[Any, ...]]]


class Step(NamedTuple):
    """An event of a flow for one queue."""

    kind: str
    broker: str
    version: str
    detail: bytes
    names: tuple[bytes, bytes, bytes]
    """Subscription, endpoint and bridge, as they are counted."""


class Way(NamedTuple):
    """A flow for one queue."""

    broker: str
    version: str
    exchange: bytes
    routing_key: bytes
    origin: str
    steps: tuple[Step, ...]


def rows(count: int, end: float, seed: int = 1) -> Iterator[Rows]:
    """At least ``count`` rows of messages and events, by blocks, in the order of time; then what is counted of them.

    Args:
        end: when the last message came, in seconds since 1970.
    """
    ways = _ways()
    chance = random.Random(seed)  # the same rows each time
    blocks = -(-count // (BLOCK * (STEPS + 1)))
    gap = DAYS * 86_400_000_000 // (blocks * BLOCK)
    begin = int(end * 1e6) - blocks * BLOCK * gap
    sequences = [1] * SHARDS
    counts: dict[tuple[Any, ...], list[int]] = {}
    for block in range(blocks):
        shard = block % SHARDS
        messages: list[tuple[Any, ...]] = []
        events: list[tuple[Any, ...]] = []
        for number in range(block * BLOCK, (block + 1) * BLOCK):
            at = begin + number * gap
            way = ways[chance.randrange(len(ways))]
            tail = chance.randbytes(10)
            message = _id(at, tail)
            size = 40 + tail[0] * 8
            properties = b'{"message_id":"order-%d","content_type":"application/json","headers":{"order":"%d"}}'
            messages.append((
                message, at, way.broker, way.version, way.exchange, way.routing_key, size, tail[:8] * 4, way.origin,
                b"client-%d" % (tail[1] % CLIENTS) if way.origin == "http" else b"", properties % (number, number),
            ))  # fmt: skip
            sequence = sequences[shard]
            for place, step in enumerate(way.steps):
                moment = at + place * (2_000 + tail[2 + place] * 400)
                events.append((shard, sequence + place, message, step.kind, moment, step.broker, step.version,
                               step.detail))  # fmt: skip
                counted = counts.setdefault((moment // HOUR_US, step.kind, step.broker, *step.names), [0, 0])
                counted[0] += 1
                counted[1] += size
            sequences[shard] = sequence + len(way.steps)
        yield {"messages": messages, "events": events, **(_dead(messages) if block < DEAD // BLOCK else {})}
    yield {
        "statistics": [(*key, *value) for key, value in counts.items()],
        "counted": [(shard, sequence - 1) for shard, sequence in enumerate(sequences)],
        "shards": [(shard, None, 1, 0, sequence, 0) for shard, sequence in enumerate(sequences)],
    }


def _id(at: int, tail: bytes) -> bytes:
    """A UUIDv7."""
    return (at // 1_000).to_bytes(6, "big") + bytes((0x70 | tail[0] & 15, tail[1], 0x80 | tail[2] & 63)) + tail[3:]


def _dead(messages: Sequence[tuple[Any, ...]]) -> Rows:
    """These messages as dead letters of a subscription each."""
    deliveries, bodies = [], []
    for number, message in enumerate(messages):
        payload = b'{"order": %d, "total": 12.5}' % number
        digest = hashlib.sha256(payload).digest()[:16]
        code = DEAD_CODES[number % len(DEAD_CODES)]
        reason = b'{"code":"%b","reason":"The endpoint answered 500."}' % code.encode()
        deliveries.append((message[0], message[0], digest, b"orders-%d" % (number % QUEUES), b"", message[1],
                           message[1], 16, 0, 2, len(payload), reason, code))  # fmt: skip
        bodies.append((message[0], digest, 1, 0, payload))
    return {"deliveries": deliveries, "bodies": bodies}


def _ways() -> list[Way]:
    """A hundred for each queue, as the shares of the flows are."""
    found = []
    for queue in range(QUEUES):
        for flow in FLOWS.values():
            steps = []
            for step in flow.steps:
                detail = step.detail.replace("{q}", str(queue))
                members = dict(
                    pair.split(":") for pair in detail.replace('"', "").strip("{}").split(",") if pair.count(":") == 1
                )
                named = (members.get(name, "").encode() for name in ("subscription", "endpoint", "bridge"))
                subscription, endpoint, bridge = named
                steps.append(Step(step.kind, step.broker, step.version, detail.encode(),
                                  (subscription, endpoint, bridge)))  # fmt: skip
            key = flow.routing_key.replace("{q}", str(queue)).encode()
            way = Way(flow.broker, flow.version, flow.exchange.encode(), key, flow.origin, tuple(steps))
            found += [way] * flow.share
    return found


# ------------------------------------------------------------------------------------------------------ databases


def sqlite(folder: Path, count: int) -> str:
    """The URL of a ledger in this folder, which is filled unless it is there."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"ledger-{count}.db"
    if not path.exists():
        part = path.with_suffix(".part")
        part.unlink(missing_ok=True)
        schema.migrate(Database(f"sqlite:///{part}"))
        with closing(sqlite3.connect(part, isolation_level=None)) as connection:
            connection.execute("PRAGMA journal_mode = OFF")
            connection.execute("PRAGMA synchronous = OFF")
            connection.execute("PRAGMA cache_size = -500000")
            connection.execute("BEGIN")
            for table, some in _told(count):
                names = TABLES[table]
                marks = ", ".join("?" * len(names))
                connection.executemany(f"INSERT INTO {table} ({', '.join(names)}) VALUES ({marks})", some)
            connection.execute("COMMIT")
        part.chmod(0o600)
        part.rename(path)
    return f"sqlite:///{path}"


def sqlite_copy(url: str) -> str:
    """The URL of a copy of this ledger, for a run that writes to it."""
    path = Path(url.removeprefix("sqlite:///"))
    copy = path.with_name("written.db")
    for each in path.parent.glob(f"{copy.name}*"):
        each.unlink()
    shutil.copyfile(path, copy)
    copy.chmod(0o600)
    descriptor = os.open(copy, os.O_RDONLY)
    os.fsync(descriptor)  # the system forgets only what is on the disk
    os.close(descriptor)
    return f"sqlite:///{copy}"


class KeptPostgreSQL(PostgreSQL):
    """A server whose folder stays."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder.rmdir()
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o755)
        self.state = State(self.kind, str(folder), self.state.ports)


def postgresql(server: PostgreSQL, count: int) -> str:
    """The URL of a ledger on this server, which is filled unless it is there."""
    name = f"ledger{count}"
    with psycopg.connect(server.url().replace("+psycopg", ""), autocommit=True) as connection:
        there = connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", (name,)).fetchone()
    if there is None:
        server.execute(f'DROP DATABASE IF EXISTS "{name}_part"')
        server.execute(f'CREATE DATABASE "{name}_part"')
        url = server.url(virtual_host=f"{name}_part")
        schema.migrate(Database(url))
        engine = sa.create_engine(url)
        with engine.begin() as connected:  # the days of the past, as the gateway had made them in time
            schema.ensure_partitions(connected, time.time() - 86_400 * (DAYS + 1))
        engine.dispose()
        with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as connection:
            for table, some in _told(count):
                into = f"COPY {table} ({', '.join(TABLES[table])}) FROM STDIN"
                with connection.cursor().copy(into.encode()) as copy:
                    copy.write("".join(map(_line, some)))
            connection.execute("VACUUM ANALYZE")
        server.execute(f'ALTER DATABASE "{name}_part" RENAME TO "{name}"')
    return server.url(virtual_host=name)


def postgresql_copy(server: PostgreSQL, url: str) -> str:
    """The same on this server."""
    name = sa.make_url(url).database
    server.execute('DROP DATABASE IF EXISTS "written"')
    server.execute(f'CREATE DATABASE "written" TEMPLATE "{name}"')
    server.execute("CHECKPOINT")
    return server.url(virtual_host="written")


def _line(row: tuple[Any, ...]) -> str:
    """A row for COPY; no text of these has a character that means something there."""
    values = ("\\N" if each is None else f"\\\\x{each.hex()}" if isinstance(each, bytes) else str(each) for each in row)
    return "\t".join(values) + "\n"


def _told(count: int) -> Iterator[tuple[str, list[tuple[Any, ...]]]]:
    """The rows by table, with progress on the error output."""
    began = told = time.monotonic()
    done = 0
    for block in rows(count, time.time()):
        yield from block.items()
        done += len(block.get("messages", ())) + len(block.get("events", ()))
        if time.monotonic() > told + 15:
            told = time.monotonic()
            say(f"  {done:,} of {count:,} rows in {told - began:.0f} s")
