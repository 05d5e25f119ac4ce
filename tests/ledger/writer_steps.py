"""The writer without its thread: a test runs the steps, on a file of SQLite that counts as shared, where leases run
out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from gateway.budgets import ShareHolder
from gateway.config import LedgerSettings
from gateway.ledger.db.engine import Database
from gateway.ledger.db.shards import ShardLease, Shards
from gateway.ledger.writing.calls import WriterCall
from gateway.ledger.writing.group import GroupResult
from gateway.ledger.writing.writer import Writer, WriterEvents
from tests.ledgers import sqlite_ledger

ALICE, BOB = ShareHolder("alice"), ShareHolder("bob")
LEASE = 60.0


class SharedFile(Database):
    """A file that other processes might write to."""

    @property
    def shared(self) -> bool:
        return True


class Call(WriterCall):
    """A call with so many rows and octets."""

    __slots__ = ("_octets", "_rows", "name")

    def __init__(self, name: str, rows: int = 1, octets: int = 0) -> None:
        super().__init__(asyncio.get_running_loop().create_future())
        self.name, self._rows, self._octets = name, rows, octets
        self.places = rows

    @property
    def rows(self) -> int:
        return self._rows

    @property
    def octets(self) -> int:
        return self._octets


class Group:
    """Notes what is written together."""

    def __init__(self, shards: Shards) -> None:
        self.shards = shards
        self.groups: list[str] = []
        self.fails: Callable[[Sequence[Call]], None] = lambda calls: None
        self.defers: set[str] = set()
        """Names of calls that are deferred, once."""

    def write(self, connection: sa.Connection, lease: ShardLease, calls: Sequence[Call], now: int) -> GroupResult:
        self.groups.append("".join(call.name for call in calls))
        _, commits = self.shards.enter(connection, lease, 0)
        self.fails(calls)
        deferred: list[WriterCall] = [call for call in calls if call.name in self.defers]
        for call in calls:
            call.result = f"{call.name} is written"
        self.defers -= {call.name for call in calls}
        return GroupResult(commits, deferred)


class Stepped(Writer):
    """A writer whose thread does nothing."""

    group: Group
    said: list[str]
    ends = False

    def _run(self) -> None:
        pass

    def run(self, *calls: WriterCall, ends: bool = False) -> None:
        """What the thread does with these, and with what waits already."""
        for call in calls:
            call.places = call.rows
            self.places.add(call.holder, call.places)
            self._put((call,))
        self._queue.put(None)
        self.ends = ends
        super()._run()

    def _finish(self) -> None:
        if self.ends:
            super()._finish()


class Time:
    """Monotonic time that stands still."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


Make = Callable[..., Stepped]


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    time = Time()
    monkeypatch.setattr("gateway.runtime.clock.clock.monotonic", time)
    return time


@pytest.fixture
async def make(tmp_path: Path) -> AsyncIterator[Make]:
    made: list[Stepped] = []

    def make(*, shared: bool = True, owner: str = "test", **settings: Any) -> Stepped:
        url = sqlite_ledger(tmp_path)
        database = SharedFile(url) if shared else Database(url)
        shards = Shards(database, owner, LEASE)
        group: Any = Group(shards)
        said: list[str] = []
        events = WriterEvents(
            lambda lease: said.append(f"lease {lease.shard}:{lease.fence}"),
            lambda: said.append("fenced"),
            lambda seconds, lease, commits: said.append(f"commit {commits}"),
            lambda: said.append("outdated"),
        )
        options = LedgerSettings(shard_lease=LEASE, **settings)
        writer = Stepped(database, shards, group, options, events, lambda: 1.8e9)
        writer.group, writer.said = group, said
        made.append(writer)
        return writer

    yield make
    for writer in made:
        writer._drop_connection()
        await writer.close()
        writer._engine.dispose()


def shards_of(writer: Stepped) -> list[tuple[Any, ...]]:
    with writer._engine.connect() as connection:
        found = connection.exec_driver_sql("SELECT shard, owner IS NOT NULL, fence, commits FROM shards ORDER BY shard")
        return [tuple(row) for row in found]


def enter(writer: Stepped) -> Any:
    """Work that writes."""
    return lambda connection, lease: (writer._shards.enter(connection, lease, 0)[1], "done")
