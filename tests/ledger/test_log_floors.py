"""Floors of the logs, and days of the log of messages: what may go, at each bound."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy as sa

from gateway.config import RetentionSettings
from gateway.ledger import Log
from gateway.ledger.db.engine import Database
from gateway.ledger.db.models import events, log_cursors, log_floors, message_log, shards
from gateway.ledger.events.retention import DropOutcome
from gateway.ledger.logs import log_reads, log_retention
from gateway.ledger.logs.log_cursors import Cursors
from gateway.ledger.logs.log_retention import AGE, CURSOR, DAY_US, EXACT, HISTORY, SIZE, LogRetention, Raise
from gateway.ledger.logs.logged import Extent, Floor
from tests.ledger.conftest import NOW
from tests.ledger.test_log_reads import shard
from tests.ledger.test_sweep import DAY, SET, Noted, insert

OLD = NOW - 10 * DAY_US


class Rows:
    """The statements, on tables in memory."""

    def __init__(self, connection: sa.Connection) -> None:
        self.connection = connection
        database = Database("sqlite:////nowhere/ledger.db")
        settings = RetentionSettings(log_days=10, log_octets=1 << 40)
        self.retention = LogRetention(database, Cursors(database), settings)

    def limit(self, octets: int) -> None:
        self.retention.settings = SimpleNamespace(log_days=10, log_octets=octets)  # type: ignore[assignment]

    def spool(self, number: int, *rows: tuple[int, int]) -> None:
        """A shard's log of messages: when each was spooled, and its size."""
        written = 0
        for sequence, (at, size) in enumerate(rows, 1):
            insert(self.connection, message_log, shard=number, sequence=sequence, at=at, octets=written)
            written += size
        shard(self.connection, number, next_log=len(rows) + 1, log_octets=written)

    def cursor(self, name: str, position: str, log: Log = Log.MESSAGES) -> None:
        insert(self.connection, log_cursors, name=name, log=log.value, position=position.encode())

    def floor(self, number: int, at: int, log: Log = Log.MESSAGES) -> None:
        insert(self.connection, log_floors, log=log.value, shard=number, floor=at)

    def raised(self) -> list[Raise]:
        return self.retention.raise_messages(self.connection, NOW)

    def floors(self, log: Log = Log.MESSAGES) -> dict[int, Floor]:
        return log_reads.floors(self.connection, log)

    @property
    def left(self) -> list[tuple[int, int]]:
        query = sa.select(message_log.c.shard, message_log.c.sequence).order_by(sa.text("1, 2"))
        return [tuple(row) for row in self.connection.execute(query)]


@pytest.fixture
def rows() -> Iterator[Rows]:
    engine = sa.create_engine("sqlite://")
    with engine.connect() as connection:
        for table in (events, log_cursors, log_floors, message_log, shards):
            table.create(connection)
        yield Rows(connection)
    engine.dispose()


# ---------------------------------------------------------------------------------------------------------- floors


def test_nothing_goes_that_is_young_and_small_and_nobody_has_read(rows: Rows) -> None:
    rows.spool(0, (OLD, 5), (NOW, 5))
    assert (rows.raised(), rows.floors()) == ([], {})
    rows.cursor("a", "{}")
    assert (rows.raised(), rows.floors()) == ([], {})


@pytest.mark.parametrize(("late", "floor"), [(0, 1), (-1, 2)])
def test_what_is_older_than_its_days_goes(rows: Rows, late: int, floor: int) -> None:
    rows.spool(0, (OLD + late, 5), (NOW, 5))
    expected = [] if floor == 1 else [Raise(Log.MESSAGES, 0, 2, AGE)]
    assert rows.raised() == expected
    assert rows.floors() == ({} if floor == 1 else {0: Floor(2, AGE, NOW)})
    assert rows.raised() == [], "once"


def test_all_may_be_too_old(rows: Rows) -> None:
    rows.spool(0, (1, 5), (2, 5), (3, 5))
    rows.spool(1)
    assert rows.raised() == [Raise(Log.MESSAGES, 0, 4, AGE)]


def test_what_all_cursors_have_passed_goes(rows: Rows) -> None:
    rows.spool(0, *[(NOW, 5)] * 5)
    rows.spool(1, *[(NOW, 5)] * 5)
    rows.cursor("a", '{"0":3,"1":5}')
    rows.cursor("b", '{"0":2,"1":9}')
    rows.cursor("c", '{"0":0}', Log.EVENTS)
    assert rows.raised() == [Raise(Log.MESSAGES, 0, 3, CURSOR), Raise(Log.MESSAGES, 1, 6, CURSOR)]
    rows.cursor("d", '{"1":7}')
    assert rows.raised() == [], "a floor is never lowered"
    assert rows.floors() == {0: Floor(3, CURSOR, NOW), 1: Floor(6, CURSOR, NOW)}


def test_cursors_that_had_not_read_what_goes_are_named(rows: Rows) -> None:
    rows.spool(0, (1, 5), (2, 5), (3, 5), (NOW, 5))
    for name, read in (("behind", 2), ("there", 3), ("ahead", 4)):
        rows.cursor(name, f'{{"0":{read}}}')
    rows.cursor("nowhere", '{"7":9}')
    rows.cursor("other", "{}", Log.EVENTS)
    assert rows.raised() == [Raise(Log.MESSAGES, 0, 4, AGE, ("behind", "nowhere"))]


SMALL, FIRST, BOTH, ALL = dict[int, int](), {0: 2}, {0: 2, 1: 2}, {0: 3, 1: 3}
BOUNDS = {100: SMALL, 40: SMALL, 39: FIRST, 30: FIRST, 29: BOTH, 20: BOTH, 9: ALL, 0: ALL}
"""Octets that there may be -> where the shards begin then."""


@pytest.mark.parametrize(("octets", "floors"), BOUNDS.items())
def test_what_is_too_much_goes_at_the_same_time_of_all_shards(rows: Rows, octets: int, floors: dict[int, int]) -> None:
    second = 10 * EXACT
    rows.spool(0, (NOW - 4 * second, 10), (NOW - 2 * second, 10))
    rows.spool(1, (NOW - 3 * second, 10), (NOW - 2 * second, 10))
    rows.spool(2)
    rows.limit(octets)
    assert rows.raised() == [Raise(Log.MESSAGES, number, at, SIZE) for number, at in floors.items()]
    assert {number: floor.floor for number, floor in rows.floors().items()} == floors


def test_what_went_for_its_age_is_not_too_much(rows: Rows) -> None:
    rows.spool(0, (1, 100), (NOW, 10), (NOW, 10))
    rows.limit(20)
    assert rows.raised() == [Raise(Log.MESSAGES, 0, 2, AGE)]
    rows.limit(19)
    assert rows.raised() == [Raise(Log.MESSAGES, 0, 4, SIZE)], "those of one moment go together"


def test_the_floor_of_events_is_behind_the_history(rows: Rows) -> None:
    for number in (0, 1, 2, 3):
        shard(rows.connection, number, next_sequence=10)
    rows.floor(1, 5, Log.EVENTS)
    rows.floor(2, 5, Log.EVENTS)
    found = rows.retention.raise_history(rows.connection, {"0": 1, "1": 4, "2": 5, "9": 9}, NOW)
    assert found == [Raise(Log.EVENTS, 0, 2, HISTORY), Raise(Log.EVENTS, 2, 6, HISTORY)]
    assert {number: floor.floor for number, floor in rows.floors(Log.EVENTS).items()} == {0: 2, 1: 5, 2: 6}


def test_no_cursor_is_made_while_floors_are_raised(rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    alone: list[sa.Connection] = []
    monkeypatch.setattr(rows.retention._cursors, "seclude", alone.append)
    rows.raised()
    rows.retention.raise_history(rows.connection, {}, NOW)
    assert alone == [rows.connection] * 2


def test_rows_below_the_floor_are_deleted_in_chunks(rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_retention, "CHUNK", 2)
    for number in (0, 1):
        rows.spool(number, *[(NOW, 5)] * 5)
    assert [rows.retention.delete(rows.connection, 0, 4) for _ in range(3)] == [2, 1, 0]
    assert rows.left == [(0, 4), (0, 5), *((1, each) for each in range(1, 6))]
    assert rows.retention.delete(rows.connection, 0, 1) == rows.retention.delete(rows.connection, 9, 5) == 0


def test_the_first_row_since_a_time(rows: Rows) -> None:
    times = [10, 20, 20, 30]
    rows.spool(0, *((at, 1) for at in times))
    rows.spool(1, (15, 1))
    for floor in range(1, 6):
        extent = Extent(0, floor, 4)
        assert log_retention._at(rows.connection, extent) == (times[floor - 1] if floor < 5 else 0)
        for at in range(5, 36):
            there = [index for index, each in enumerate(times, 1) if index >= floor and each >= at]
            assert log_retention._first_since(rows.connection, extent, at) == min(there, default=5)


# ------------------------------------------------------------------------------------------------------------ days


def test_a_day_is_needed_while_a_row_of_it_can_be_read(rows: Rows) -> None:
    name = f"message_log_d{DAY}"
    rows.connection.exec_driver_sql(f"CREATE TABLE {name} (shard INTEGER, sequence INTEGER)")
    assert not log_retention._is_needed(rows.connection, name)
    for number in (0, 1):
        shard(rows.connection, number, next_log=20)
        rows.floor(number, 5)
    for row, needed in (((0, 4), False), ((1, 4), False), ((2, 9), False), ((1, 5), True)):
        rows.connection.exec_driver_sql(f"INSERT INTO {name} VALUES (?, ?)", row)
        assert log_retention._is_needed(rows.connection, name) is needed
    assert log_retention.days(rows.connection) == [DAY]
    for other in (DAY + 1, DAY - 1):
        rows.connection.exec_driver_sql(f"CREATE TABLE message_log_d{other} (shard INTEGER)")
    rows.connection.exec_driver_sql("CREATE TABLE message_log_default (shard INTEGER)")
    assert log_retention.days(rows.connection) == [DAY - 1, DAY, DAY + 1]


NAME = f"message_log_d{DAY}"
TAKE = ["begin", *SET, f"ALTER TABLE message_log DETACH PARTITION {NAME}"]
DROP = ["begin", f"DROP TABLE IF EXISTS {NAME}", "end"]


@pytest.mark.parametrize(
    ("there", "needed", "found", "ran"),
    [
        (True, [False, False], DropOutcome.GONE, ["begin", *SET, "end", "between", *TAKE, "end", *DROP]),
        (True, [True], DropOutcome.WHOLE, ["begin", *SET, "end"]),
        (True, [False, True], DropOutcome.WHOLE, ["begin", *SET, "end", "between", *TAKE, "rollback", "end"]),
        (False, [], DropOutcome.GONE, ["begin", *SET, "end", "between", *DROP]),
    ],
    ids=["it goes", "it is needed", "it is needed since", "it was taken out before"],
)
def test_how_a_day_of_the_log_goes(
    monkeypatch: pytest.MonkeyPatch, there: bool, needed: list[bool], found: DropOutcome, ran: list[str]
) -> None:
    noted: Any = Noted()
    monkeypatch.setattr(log_retention, "attached", lambda connection, names: list(names) if there else [])
    monkeypatch.setattr(log_retention, "_is_needed", lambda *_: needed.pop(0))
    assert log_retention.drop_day(noted, DAY, lambda: noted.ran.append("between")) is found
    assert noted.ran == ran


@pytest.mark.parametrize(("code", "is_busy"), [("55P03", True), ("53100", False)])
def test_a_day_of_the_log_that_somebody_uses(monkeypatch: pytest.MonkeyPatch, code: str, is_busy: bool) -> None:
    noted: Any = Noted()
    driver: Any = SimpleNamespace(sqlstate=code)

    def fails(*_: Any) -> Any:
        raise sa.exc.DBAPIError("statement", {}, driver)

    monkeypatch.setattr(log_retention, "attached", fails)
    if is_busy:
        assert log_retention.drop_day(noted, DAY) is DropOutcome.BUSY
    else:
        with pytest.raises(sa.exc.DBAPIError):
            log_retention.drop_day(noted, DAY)
