"""Arrow by other processes: the same rows as SQL's, bounded, and no harm where one dies."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gateway.config import LedgerSettings
from gateway.errors import LedgerUnavailable, NoArrow
from gateway.ledger import EventKind, Ledger, Log
from gateway.ledger.db.engine import Database
from gateway.ledger.logs import arrow_pool
from gateway.logs.columns import fields
from gateway.logs.worker import DATA, ERROR, FRAME, EndOfRange
from tests.ledger.conftest import entry, new_id, published
from tests.ledger.logs import rows, spooled
from tests.ledgers import sqlite_ledger

pa = pytest.importorskip("pyarrow", reason="the extra of the pipeline: make test installs it")


@pytest.fixture(scope="module", params=["sqlite", pytest.param("postgresql", marks=pytest.mark.broker)])
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """One ledger for all of these: a worker takes a second to start."""
    if request.param == "sqlite":
        return sqlite_ledger(tmp_path_factory.mktemp("arrow"))
    server = request.getfixturevalue("postgresql")
    found: str = server.create_database()
    return found


@pytest.fixture
async def ledger(place: str) -> AsyncIterator[Ledger]:
    found = await Ledger.open(place, LedgerSettings(shard_lease=60.0), owner="test", migrate=True)
    yield found
    await found.close()


async def read(ledger: Ledger, log: Log, after: int, upto: int, names: Any = (), **where: list[str]) -> tuple[Any, int]:
    """A range as a table, and how many rows there are said to be."""
    octets, counted = b"", 0
    pieces = ledger.log.record_batches(log, 0, after, upto, fields(log, names), where, True)
    async with aclosing(pieces) as each:
        async for piece in each:
            if isinstance(piece, int):
                counted = piece
            else:
                octets += piece
    return pa.ipc.open_stream(octets + b"\xff\xff\xff\xff\0\0\0\0").read_all(), counted


async def test_the_same_rows_as_by_sql(ledger: Ledger) -> None:
    names = ["plain", "caf\udce9", '{"type":"binary"', "\N{SNOWMAN}", ""]
    messages = [
        spooled(
            body=b"x" * (number % 50),
            queue=names[number % 5] if number % 1_000 > 900 else "q",
            routing_key=f"key.{number}",
            redelivered=number % 3 == 0,
            properties=b"" if number % 7 == 0 else b'{"priority":%d}' % number,
        )
        for number in range(5_000)
    ]
    await ledger.log.spool(messages)
    known = new_id()
    await ledger.record(
        [*published(known, size=2**64 - 1), entry(new_id(), EventKind.DELIVERED, detail={"a": "\udc80"})]
    )
    for log in Log:
        table, counted = await read(ledger, log, 0, 5_000)
        by_sql = await rows(ledger, log)
        assert counted == len(by_sql) == {Log.EVENTS: 3, Log.MESSAGES: 5_000}[log]
        assert table.to_pylist() == by_sql
    table, counted = await read(ledger, Log.MESSAGES, 10, 12, ["sequence", "body"])
    assert (table.column_names, table["sequence"].to_pylist(), counted) == (["sequence", "body"], [11, 12], 2)
    table, counted = await read(ledger, Log.MESSAGES, 0, 5_000, ["queue"], queue=["caf\udce9"])
    assert set(table["queue"].to_pylist()) == {'{"type":"binary","value":"Y2Fm6Q=="}'}
    assert counted == table.num_rows > 0
    table, counted = await read(ledger, Log.EVENTS, 3, 3)
    assert (table.num_rows, table.num_columns, counted) == (0, 16, 0)
    table, counted = await read(ledger, Log.EVENTS, 0, 3, (), kind=["looped"])
    assert (table.num_rows, counted) == (0, 0)
    unknown = (await read(ledger, Log.EVENTS, 2, 3))[0]  # SQLite tells types by values, and here are none
    assert unknown["sha256"].to_pylist() == unknown["accepted_at"].to_pylist() == [None]


async def test_beside_the_writer(ledger: Ledger) -> None:
    """Another process reads the file that this one writes; neither disturbs the other."""
    first = (await ledger.log.spool([spooled(body=b"%d" % number) for number in range(50)]))[0]

    async def write() -> None:
        for _ in range(40):
            await ledger.log.spool([spooled(body=b"y" * 3_000) for _ in range(20)])

    writing = asyncio.create_task(write())
    turns = 0
    while not writing.done() or turns < 5:
        (extent,) = await ledger.log.extents(Log.MESSAGES)
        table, counted = await read(ledger, Log.MESSAGES, first - 1, extent.head, ["sequence", "size"])
        assert table["sequence"].to_pylist() == list(range(first, extent.head + 1))
        assert counted == table.num_rows
        turns += 1
    await writing
    assert len(ledger.log.arrow._idle) == 1


async def test_a_worker_that_dies_and_one_that_is_let_down(ledger: Ledger) -> None:
    await ledger.log.spool([spooled(body=b"x" * 20_000) for _ in range(200)])
    (extent,) = await ledger.log.extents(Log.MESSAGES)
    chosen = fields(Log.MESSAGES)
    batches = ledger.log.record_batches(Log.MESSAGES, 0, extent.head - 200, extent.head, chosen, {}, True)
    async with aclosing(batches) as pieces:
        await anext(pieces)  # and no more of them
    assert ledger.log.arrow._idle == []
    table, _ = await read(ledger, Log.MESSAGES, extent.head - 1, extent.head)
    assert table.num_rows == 1
    (worker,) = ledger.log.arrow._idle
    os.kill(worker._process.pid, signal.SIGKILL)
    await worker._process.wait()
    with pytest.raises(LedgerUnavailable, match="died"):
        await read(ledger, Log.MESSAGES, extent.head - 1, extent.head)
    assert ledger.log.arrow._idle == []
    assert (await read(ledger, Log.MESSAGES, extent.head - 1, extent.head))[1] == 1


class Scripted:
    """A process that answers as it is told."""

    def __init__(self, answers: list[bytes]) -> None:
        self.stdin: Any = self
        self.stdout = asyncio.StreamReader()
        self.answers = answers
        self.asked = 0
        self.pid = 0
        self.killed = False
        self.ended = asyncio.Event()

    def write(self, octets: bytes) -> None:
        if octets.startswith(b'{"dialect"'):
            return
        self.asked += 1
        self.stdout.feed_data(self.answers.pop(0))

    def close(self) -> None:
        self.ended.set()

    def kill(self) -> None:
        self.killed = True
        self.ended.set()

    async def wait(self) -> int:
        await self.ended.wait()
        return 0


def frame(kind: bytes, octets: bytes) -> bytes:
    return FRAME.pack(kind, len(octets)) + octets


@pytest.fixture
async def pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Any, list[Scripted]]]:
    started: list[Scripted] = []
    end = frame(b"E", msgspec.json.encode(EndOfRange(rows=2)))

    async def start(*_: Any, **__: Any) -> Scripted:
        started.append(Scripted([frame(DATA, b"batch") + end] * 20))
        return started[-1]

    monkeypatch.setattr(asyncio, "create_subprocess_exec", start)
    found = arrow_pool.ArrowPool(Database(f"sqlite:///{tmp_path}/ledger.db"))
    yield found, started
    await found.close()


async def pieces(pool: Any) -> list[bytes | int]:
    return [piece async for piece in pool.segment(Log.EVENTS, 0, 0, 2, [], {})]


async def test_there_are_only_so_many_workers(pool: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    arrows, started = pool
    found = await asyncio.gather(*(pieces(arrows) for _ in range(3 * arrow_pool.WORKERS)))
    assert found == [[b"batch", 2]] * (3 * arrow_pool.WORKERS)
    assert 1 <= len(started) <= arrow_pool.WORKERS
    monkeypatch.setattr(arrow_pool, "IDLE", 0.0)
    arrows._sweeper.cancel()
    arrows._sweeper = None
    await pieces(arrows)
    async with asyncio.timeout(5):
        while arrows._idle:
            await asyncio.sleep(0.01)
    assert not any(each.killed for each in started)
    assert await pieces(arrows) == [b"batch", 2]


async def test_what_the_database_says(pool: Any) -> None:
    arrows, started = pool
    await pieces(arrows)
    started[0].answers[:] = [
        frame(ERROR, msgspec.json.encode(EndOfRange(error="no such table"))),
        frame(b"E", b'{"rows":0}'),
    ]
    with pytest.raises(LedgerUnavailable, match="cannot be read: no such table"):
        await pieces(arrows)
    assert await pieces(arrows) == [0]  # it goes on with the same one
    assert len(started) == 1


async def test_one_that_says_nothing_is_ended(pool: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    arrows, started = pool
    monkeypatch.setattr(arrow_pool, "PATIENCE", 0.01)
    await pieces(arrows)
    started[0].answers[:] = [frame(DATA, b"x" * 10)[:-1]]
    with pytest.raises(LedgerUnavailable, match="nothing came for"):
        await pieces(arrows)
    assert started[0].killed


async def test_without_what_it_takes(pool: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    arrows, _ = pool
    arrows.require()
    monkeypatch.setattr(arrow_pool, "find_spec", lambda name: None if name == "pyarrow" else object())
    assert not arrows.available
    with pytest.raises(NoArrow, match=r"amqp-gateway\[arrow\]"):
        arrows.require()


def test_the_password_is_nowhere_to_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    uri = Database("postgresql://me:s3cret@db/gateway?options=-c%20x%3D1").arrow_uri
    assert uri.startswith("postgresql://me:s3cret@db/gateway?")
    assert "default_transaction_read_only%3Don" in uri
    assert Database("sqlite:////var/a b#.db").arrow_uri == "file:/var/a%20b%23.db?mode=ro"


async def test_the_processes_end_with_the_ledger(tmp_path: Path) -> None:
    ledger = await Ledger.open(sqlite_ledger(tmp_path), LedgerSettings(), owner="test", migrate=True)
    await ledger.log.spool([spooled(body=b"x")])
    await read(ledger, Log.MESSAGES, 0, 1)
    (worker,) = ledger.log.arrow._idle
    await ledger.close()
    assert worker._process.returncode is not None
