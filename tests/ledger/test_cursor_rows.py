"""Cursors as rows: whose each is, until when, how far it has come, and what of the log it has not read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import sqlalchemy as sa

from gateway.errors import CursorOwned, LimitExceeded, NoSuchCursor, RangeAhead, StateError
from gateway.ledger import Log
from gateway.ledger.db.engine import Database
from gateway.ledger.db.models import events, log_cursors, log_floors, message_log, shards
from gateway.ledger.db.shards import RETIRED
from gateway.ledger.logs import log_cursors as module
from gateway.ledger.logs.log_cursors import ADVISORY_LOCK, EARLIEST, LATEST, QUIET, Cursors
from gateway.ledger.logs.logged import StoredCursor, UnreadLog
from tests.ledger.conftest import NOW
from tests.ledger.test_log_reads import shard, spool


class Rows:
    """The statements, on tables in memory, at a time that a test says."""

    def __init__(self, connection: sa.Connection) -> None:
        self.connection = connection
        self.now = NOW
        self.cursors = Cursors(Database("sqlite:////nowhere/ledger.db"), lambda: self.now)

    def claim(
        self,
        name: str,
        owner: str = "one",
        start: str | Mapping[str, int] = EARLIEST,
        log: Log = Log.EVENTS,
        *,
        take_over: bool = False,
    ) -> StoredCursor:
        found = self.cursors.claim(self.connection, name, log, owner, start, take_over)
        assert found == self.get(name)
        return found

    def get(self, name: str) -> StoredCursor | None:
        return module.get(self.connection, name)

    def move(self, name: str, position: Mapping[str, int], owner: str = "one", epoch: int = 1) -> StoredCursor:
        found = self.cursors.move(self.connection, name, owner, epoch, position)
        assert found == self.get(name)
        return found


@pytest.fixture
def rows() -> Iterator[Rows]:
    """The log of events has 9 rows in shard 0, of which the first 3 went, and shard 10 is retired."""
    engine = sa.create_engine("sqlite://")
    with engine.connect() as connection:
        for table in (events, log_cursors, log_floors, message_log, shards):
            table.create(connection)
        shard(connection, 0, next_sequence=10)
        shard(connection, 10, next_sequence=6, fence=RETIRED)
        floor = {"log": "events", "shard": 0, "floor": 4, "reason": "age", "at": 1}
        connection.execute(sa.insert(log_floors).values(**floor))
        yield Rows(connection)
    engine.dispose()


# ------------------------------------------------------------------------------------------------------ whose it is


@pytest.mark.parametrize(
    ("start", "position"),
    [
        (EARLIEST, {"0": 3, "10": 0}),
        (LATEST, {"0": 9, "10": 5}),
        ({"0": 9}, {"0": 9}),
        ({"10": 700}, {"10": 700}),  # before it was restored the log went further
        ({"7": 0}, {"7": 0}),
        ({}, {}),
    ],
)
def test_where_a_new_cursor_begins(rows: Rows, start: Any, position: dict[str, int]) -> None:
    found = rows.claim("a", start=start)
    assert (found.position, found.owner, found.epoch) == (position, "one", 1)
    assert (found.created_at, found.since, found.heard_at) == (NOW, NOW, NOW)
    rows.now += 5
    again = rows.claim("a", start=LATEST)
    assert (again.position, again.epoch) == (position, 2), "it begins once"
    assert (again.created_at, again.since, again.heard_at) == (NOW, NOW, NOW + 5)


@pytest.mark.parametrize("start", [{"0": 10}, {"7": 1}, {"0": 1, "1": 1}])
def test_none_begins_behind_the_end(rows: Rows, start: Mapping[str, int]) -> None:
    with pytest.raises(RangeAhead):
        rows.claim("a", start=start)
    assert rows.get("a") is None


@pytest.mark.parametrize(("quiet", "is_free"), [(QUIET - 1, False), (QUIET, True), (QUIET + 1, True)])
def test_an_owner_that_says_nothing_loses_it(rows: Rows, quiet: int, is_free: bool) -> None:
    rows.claim("a")
    rows.claim("b")
    rows.now += 7
    for name in ("a", "b"):
        rows.move(name, {})
    other = rows.get("b")
    rows.now += quiet
    if is_free:
        found = rows.claim("a", "two")
        assert (found.owner, found.epoch, found.since, found.heard_at) == ("two", 2, rows.now, rows.now)
        rows.cursors.delete(rows.connection, "b")
        assert rows.get("b") is None
        assert rows.get("a") == found
    else:
        with pytest.raises(CursorOwned, match=r"owned by 'one', in epoch 1, for 60 s; it was heard of 60 s ago"):
            rows.claim("a", "two")
        with pytest.raises(CursorOwned):
            rows.cursors.delete(rows.connection, "a")
        assert rows.claim("a", "two", take_over=True).epoch == 2
        assert rows.get("b") == other


def test_another_name_is_another_cursor(rows: Rows) -> None:
    rows.claim("a")
    rows.claim("b", "two")
    before = rows.get("b")
    rows.now += 1
    rows.move("a", {"0": 5})
    rows.cursors.release(rows.connection, "a", "one", 1)
    rows.claim("a", "three")
    assert rows.get("b") == before
    rows.cursors.release(rows.connection, "a", "three", 2)
    rows.cursors.delete(rows.connection, "a")
    assert (rows.get("a"), rows.get("b")) == (None, before)


@pytest.mark.parametrize(("owner", "epoch"), [("two", 1), ("one", 2), ("one", 0), ("", 1), ("two", 2)])
def test_only_the_owner_of_the_present_epoch_moves_and_releases_it(rows: Rows, owner: str, epoch: int) -> None:
    before = rows.claim("a")
    with pytest.raises(CursorOwned, match="owned by 'one', in epoch 1"):
        rows.move("a", {"0": 5}, owner, epoch)
    with pytest.raises(CursorOwned, match="owned by 'one', in epoch 1"):
        rows.cursors.release(rows.connection, "a", owner, epoch)
    assert rows.get("a") == before


def test_a_cursor_that_was_released(rows: Rows) -> None:
    rows.claim("a")
    rows.now += 9
    for _ in range(2):
        found = rows.cursors.release(rows.connection, "a", "one", 1)
        assert found == rows.get("a")
        assert (found.owner, found.epoch, found.heard_at) == ("", 1, NOW + 9)
    with pytest.raises(CursorOwned, match="nobody's since its epoch 1 was released; claim it again"):
        rows.move("a", {})
    with pytest.raises(CursorOwned):
        rows.cursors.release(rows.connection, "a", "one", 2)
    assert rows.claim("a", "two").since == NOW + 9


def test_one_that_is_not_there(rows: Rows) -> None:
    assert rows.get("a") is None
    for call in (
        lambda: rows.move("a", {}),
        lambda: rows.cursors.release(rows.connection, "a", "one", 1),
        lambda: rows.cursors.delete(rows.connection, "a"),
    ):
        with pytest.raises(NoSuchCursor, match="there is no cursor 'a'"):
            call()


def test_a_cursor_belongs_to_a_log(rows: Rows) -> None:
    rows.claim("a")
    with pytest.raises(StateError, match="is one of the log 'events', not 'messages'"):
        rows.claim("a", log=Log.MESSAGES)
    rows.claim("b", log=Log.MESSAGES)
    assert [each.name for each in module.of_log(rows.connection, Log.EVENTS)] == ["a"]
    assert [each.name for each in module.of_log(rows.connection, Log.MESSAGES)] == ["b"]


def test_there_are_only_so_many(rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CURSORS_MAX", 2)
    for name in ("a", "b", "a"):
        rows.claim(name)
    with pytest.raises(LimitExceeded, match="there are 2 cursors, which is the most; delete one"):
        rows.claim("c")


# ------------------------------------------------------------------------------------------------------- how far


def test_it_only_goes_forward(rows: Rows) -> None:
    rows.claim("a", start={"0": 4})
    assert rows.move("a", {"0": 9, "10": 2}).position == {"0": 9, "10": 2}
    rows.now += 1
    assert rows.move("a", {"0": 8, "10": 3, "2": 0}).position == {"0": 9, "10": 3, "2": 0}
    with pytest.raises(RangeAhead, match="the position is 10 in shard 0 of the log 'events', which ends at 9"):
        rows.move("a", {"0": 10})
    stored = rows.connection.execute(sa.select(log_cursors.c.position)).scalar()
    assert stored == b'{"0":9,"2":0,"10":3}', "shards are in the order of their numbers"


def test_pages_of_cursors(rows: Rows) -> None:
    names = ["a", "b", "c", "d", "e"]
    for name in reversed(names):
        rows.claim(name)
    for limit in range(1, 7):
        page, cursor = module.page(rows.connection, None, limit)
        assert [each.name for each in page] == names[:limit]
        assert cursor == (names[limit - 1] if limit < 5 else None)
    assert [each.name for each in module.page(rows.connection, "b", 2)[0]] == ["c", "d"]
    assert module.page(rows.connection, "e", 2) == ([], None)


def test_what_is_behind_a_position(rows: Rows) -> None:
    """Rows that went are behind none."""
    for position, number in (({}, 11), ({"0": 3}, 11), ({"0": 1}, 11), ({"0": 4}, 10), ({"0": 9}, 5), ({"10": 5}, 6)):
        assert module.backlog(rows.connection, Log.EVENTS, position) == UnreadLog(number, 0)
    assert module.backlog(rows.connection, Log.EVENTS, {"0": 9, "10": 700}) == UnreadLog(0, 0)
    spool(rows.connection, 3, [5, 7, 1])
    for position, found in (
        ({}, (3, 13)),
        ({"3": 1}, (2, 8)),
        ({"3": 2}, (1, 1)),
        ({"3": 3}, (0, 0)),
        ({"0": 9}, (3, 13)),
    ):
        assert module.backlog(rows.connection, Log.MESSAGES, position) == UnreadLog(*found)


def test_what_not_every_cursor_has_passed(rows: Rows) -> None:
    assert module.unread(rows.connection, Log.EVENTS) == UnreadLog(11, 0), "there is no cursor"
    rows.claim("a", start={"0": 9, "10": 5})
    assert module.unread(rows.connection, Log.EVENTS).rows == 0
    rows.claim("b", start={"0": 7})
    assert module.unread(rows.connection, Log.EVENTS).rows == 2 + 5
    rows.claim("c", start={"0": 8, "10": 4})
    assert module.unread(rows.connection, Log.EVENTS).rows == 2 + 5
    rows.claim("d", log=Log.MESSAGES)
    assert module.unread(rows.connection, Log.EVENTS).rows == 2 + 5, "those of the other log do not count"


# ---------------------------------------------------------------------------------------------------------- alone


class Noted:
    """A connection that runs nothing."""

    def __init__(self) -> None:
        self.ran: list[str] = []

    def execute(self, statement: sa.ClauseElement) -> None:
        self.ran.append(str(statement.compile(compile_kwargs={"literal_binds": True})))


def test_no_cursor_is_made_while_floors_are_raised(rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a new one was promised would go in the same moment."""
    noted: Any = Noted()
    Cursors(Database("postgresql://127.0.0.1:1/ledger")).seclude(noted)
    assert len(noted.ran) == 1
    assert f"pg_advisory_xact_lock({ADVISORY_LOCK})" in noted.ran[0]
    rows.cursors.seclude(noted)
    assert len(noted.ran) == 1, "on SQLite there is one writer"
    alone: list[sa.Connection] = []
    monkeypatch.setattr(rows.cursors, "seclude", alone.append)
    rows.claim("a")
    assert alone == [rows.connection]
    rows.claim("a")
    assert alone == [rows.connection], "it is there"


def test_times_are_those_of_the_database(rows: Rows) -> None:
    cursors = Cursors(Database("sqlite:////nowhere/ledger.db"))
    found = cursors.claim(rows.connection, "a", Log.EVENTS, "one", LATEST, False)
    assert 1.6e15 < found.since < 4e15
