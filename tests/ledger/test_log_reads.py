"""Where in a log something lies, compared with plain sums over its rows."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy as sa

from gateway.ledger import Log
from gateway.ledger.db.models import events, log_floors, message_log, shards
from gateway.ledger.db.shards import RETIRED
from gateway.ledger.logs import log_reads
from gateway.ledger.logs.logged import Extent, Floor

ID = bytes(16)


@pytest.fixture
def connection() -> Iterator[sa.Connection]:
    """The tables of the logs alone, in memory."""
    engine = sa.create_engine("sqlite://")
    with engine.connect() as connection:
        for table in (events, log_floors, message_log, shards):
            table.create(connection)
        yield connection
    engine.dispose()


def shard(connection: sa.Connection, number: int, **fields: Any) -> None:
    values = {"owner": None, "fence": 1, "expires_at": 0, "next_sequence": 1, "commits": 0} | fields
    connection.execute(sa.insert(shards).values(shard=number, **values))


def event(connection: sa.Connection, number: int, sequence: int, at: int) -> None:
    values = {"message_id": ID, "kind": "received", "broker": "", "version": "", "detail": b""}
    connection.execute(sa.insert(events).values(shard=number, sequence=sequence, at=at, **values))


def spool(connection: sa.Connection, number: int, sizes: list[int], gone: int = 0) -> None:
    """A shard's log of messages with rows of these sizes, of which the first are gone."""
    empty = dict.fromkeys(("queue", "exchange", "routing_key", "origin_id", "properties", "body"), b"")
    values = {"tap": "t", "at": 1, "broker": "", "version": "", "redelivered": 0, "sha256": bytes(32), **empty}
    for index, _ in enumerate(sizes):
        if index >= gone:
            row = {"shard": number, "sequence": index + 1, "message_id": ID, "octets": sum(sizes[:index])}
            connection.execute(sa.insert(message_log).values(**values, **row))
    shard(connection, number, next_log=len(sizes) + 1, log_octets=sum(sizes))


# --------------------------------------------------------------------------------------------------- what is there


def test_what_can_be_read_of_each_shard(connection: sa.Connection) -> None:
    shard(connection, 1, next_sequence=8, next_log=3, fence=RETIRED)
    shard(connection, 0, next_sequence=5)
    floor = {"log": "events", "shard": 1, "floor": 4, "reason": "history", "at": 9}
    connection.execute(sa.insert(log_floors).values(**floor))
    assert log_reads.extents(connection, Log.EVENTS) == [Extent(0, 1, 4, False), Extent(1, 4, 7, True)]
    assert log_reads.extents(connection, Log.MESSAGES) == [Extent(0, 1, 0, False), Extent(1, 1, 2, True)]
    assert log_reads.extent(connection, Log.EVENTS, 1) == (Extent(1, 4, 7), Floor(4, "history", 9))
    assert log_reads.extent(connection, Log.EVENTS, 0) == (Extent(0, 1, 4), Floor(1, "", 0))
    assert log_reads.extent(connection, Log.EVENTS, 9) == (Extent(9, 1, 0), Floor(1, "", 0))
    assert log_reads.floors(connection, Log.EVENTS) == {1: Floor(4, "history", 9)}
    assert log_reads.floors(connection, Log.MESSAGES) == {}


@pytest.mark.parametrize("step", [1, 2, 3, 4, 100])
@pytest.mark.parametrize("since", [9, 10, 20, 30, 31, 50])
@pytest.mark.parametrize("until", [29, 30, 60])
def test_up_to_where_events_are_old(
    connection: sa.Connection, monkeypatch: pytest.MonkeyPatch, since: int, until: int, step: int
) -> None:
    """Those of other shards do not count, nor those from the future; one that is missing is as good as old."""
    monkeypatch.setattr(log_reads, "STEP", step)
    times = {1: 10, 2: 20, 3: 5, 5: 30}
    for sequence, at in times.items():
        event(connection, 0, sequence, at)
        event(connection, 1, sequence, 25)
    shard(connection, 0, next_sequence=6)
    shard(connection, 1, next_sequence=9)
    for after in range(6):
        young = [each for each, at in times.items() if each > after and since <= at <= until]
        reached, ends = after, False
        while not ends:
            before = reached
            reached, ends = log_reads.old_events(connection, 0, reached, since, until)
            assert before <= reached <= before + step
        assert reached == (min(young) - 1 if young else 5)


# ------------------------------------------------------------------------------------------------------ how large


@pytest.mark.parametrize("gone", [0, 2, 5])
def test_how_much_was_written(connection: sa.Connection, gone: int) -> None:
    sizes = [3, 5, 1, 7, 2]
    spool(connection, 0, sizes, gone)
    spool(connection, 1, [100] * 9)
    first = sum(sizes[:gone])
    for number in range(1, 8):
        expected = max(first, sum(sizes[: number - 1]))
        assert log_reads.before(connection, 0, number) == expected
    for after, upto in product(range(7), repeat=2):
        written = sum(sizes[max(after, gone) : max(upto, gone)]) if after < upto else 0
        assert log_reads.between(connection, 0, after, upto) == written
    assert log_reads.before(connection, 9, 1) == log_reads.between(connection, 9, 0, 5) == 0, "there is none"


@pytest.mark.parametrize("octets", [0, 1, 2, 3, 4, 7, 8, 9, 12, 15, 16, 17, 18, 100])
def test_a_segment_holds_as_much_as_it_may(connection: sa.Connection, octets: int) -> None:
    sizes = [3, 5, 1, 7, 2]
    spool(connection, 0, sizes)
    for after in range(5):
        for upto in range(after + 1, 6):
            fits = [end for end in range(after + 1, upto + 1) if sum(sizes[after:end]) <= octets]
            assert log_reads.segment(connection, 0, after, upto, octets) == max(fits, default=after + 1)


class Noted:
    """A connection to PostgreSQL that runs nothing."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.dialect = SimpleNamespace(name="postgresql", loaded_dbapi=SimpleNamespace(Error=ValueError))
        self.connection = SimpleNamespace(dbapi_connection=self)

    def exec_driver_sql(self, text: str) -> None:
        self.ran.append(text)

    def execute(self, text: str, _: Any) -> Any:
        self.ran.append(text)
        return SimpleNamespace(description=None)


def test_postgresql_looks_up_messages_one_by_one(connection: sa.Connection) -> None:
    noted: Any = Noted()
    assert log_reads.rows(noted, "SELECT '%'") == []
    assert noted.ran == ["SET LOCAL enable_hashjoin = off", "SET LOCAL enable_mergejoin = off", "SELECT '%%'"]
    assert log_reads.rows(connection, "SELECT '%'") == [("%",)]
