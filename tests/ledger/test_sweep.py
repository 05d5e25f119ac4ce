"""Which messages a sweep takes and which it leaves, at each bound; and what of a day stays when it is dropped."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy as sa

from gateway.ledger.db.engine import Database
from gateway.ledger.db.ids import DAY_MS, first_id
from gateway.ledger.db.models import counted, events, messages, metadata, obligations
from gateway.ledger.events import retention, windows
from gateway.ledger.events.retention import HOLDERS, DropOutcome, Sweep
from gateway.ledger.writing.states import EventKind
from tests.ledger.test_log_reads import shard

DAY = 5
READ = {"0": 10}
RECENT = 1_000


def identity(number: int, day: int = DAY) -> bytes:
    """Ids of a day, in their order."""
    return (int.from_bytes(first_id(day * DAY_MS)) + number).to_bytes(16)


def insert(connection: sa.Connection, table: sa.Table, **fields: Any) -> None:
    """A row of which only some columns matter."""
    row: dict[str, Any] = {}
    for column in table.c:
        binary = isinstance(column.type, sa.LargeBinary)
        row[column.name] = bytes(16) if binary else "" if isinstance(column.type, sa.Text) else 0
    if "detail" in row:
        row["detail"] = b""
    if "sha256" in row:
        row["sha256"] = bytes(32)
    connection.execute(sa.insert(table).values(row | fields))


class Rows:
    """All tables, in memory."""

    def __init__(self, connection: sa.Connection) -> None:
        self.connection = connection
        self.sequence = 0
        self.sweep = Sweep(Database("sqlite:////nowhere/ledger.db"))

    def message(self, number: int) -> bytes:
        insert(self.connection, messages, id=identity(number))
        return identity(number)

    def event(self, message_id: bytes, at: int = 1, sequence: int = 0, **fields: Any) -> None:
        self.sequence -= 1
        insert(self.connection, events, message_id=message_id, at=at, sequence=sequence or self.sequence, **fields)

    def step(self, after: int = 0, before: int = 99, read: Mapping[str, int] = READ) -> tuple[int, bytes | None]:
        return self.sweep.step(self.connection, identity(after), identity(before), RECENT, read)

    def left(self, column: sa.Column[bytes]) -> list[int]:
        first = int.from_bytes(identity(0))
        return [
            int.from_bytes(each) - first
            for each in self.connection.execute(sa.select(column).order_by(column)).scalars()
        ]


@pytest.fixture
def rows() -> Iterator[Rows]:
    engine = sa.create_engine("sqlite://")
    with engine.connect() as connection:
        metadata.create_all(connection)
        insert(connection, counted, shard=0, sequence=100)
        yield Rows(connection)
    engine.dispose()


# ------------------------------------------------------------------------------------------------------------ chunks


def test_messages_between_two_ids_go_with_their_events(rows: Rows) -> None:
    for number in range(1, 8):
        rows.event(rows.message(number))
    assert rows.step(after=2, before=6) == (3, None)
    assert rows.left(messages.c.id) == rows.left(events.c.message_id) == [1, 2, 6, 7]


@pytest.mark.parametrize(
    ("at", "sequence", "stays"),
    [
        (RECENT - 1, 10, False),
        (RECENT, 10, True),
        (RECENT - 1, 11, True),
        (RECENT + 1, 5, True),
        (RECENT - 1, 1, False),
    ],
)
def test_of_what_something_happened_lately_all_stays(rows: Rows, at: int, sequence: int, stays: bool) -> None:
    rows.event(rows.message(1))
    rows.event(identity(1), at, sequence)
    rows.event(rows.message(2))
    assert rows.step() == (1 if stays else 2, None)
    assert rows.left(messages.c.id) == [1] * stays
    assert rows.left(events.c.message_id) == [1, 1] * stays


@pytest.mark.parametrize(("sequence", "stays"), [(100, False), (101, True)])
def test_what_is_not_counted_yet_stays(rows: Rows, sequence: int, stays: bool) -> None:
    rows.event(rows.message(1), 1, sequence)
    assert rows.step(read={"0": 500}) == (1 - stays, None)
    assert rows.left(events.c.message_id) == [1] * stays


@pytest.mark.parametrize("read", [{}, {"7": 500}, {"0": 0}])
def test_of_a_shard_that_is_not_in_the_position_all_stays(rows: Rows, read: Mapping[str, int]) -> None:
    rows.event(rows.message(1), 1, 1)
    assert rows.step(read=read) == (0, None)
    rows.event(rows.message(2), 1, 1, shard=3)
    assert rows.step(read={"0": 10, "3": 10}) == (1, None), "the other shard is not counted at all"
    assert rows.left(messages.c.id) == [2]


@pytest.mark.parametrize("holder", HOLDERS, ids=str)
def test_what_is_pending_or_has_a_body_stays(rows: Rows, holder: sa.Column[bytes]) -> None:
    for number in (1, 2):
        rows.event(rows.message(number))
    insert(rows.connection, holder.table, message_id=identity(1))
    assert rows.step() == (1, None)
    assert rows.left(messages.c.id) == rows.left(events.c.message_id) == [1]


def test_events_without_their_message_go_as_well(rows: Rows) -> None:
    rows.event(identity(1))
    rows.event(identity(2), RECENT)
    assert rows.step() == (0, None)
    assert rows.left(events.c.message_id) == [2]


def test_a_step_takes_so_many_messages_or_events(rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "CHUNK", 3)
    monkeypatch.setattr(retention, "CHUNK_EVENTS", 100)
    for number in range(1, 8):
        rows.event(rows.message(number))
    assert rows.step() == (3, identity(3))
    assert rows.left(messages.c.id) == rows.left(events.c.message_id) == [4, 5, 6, 7]
    assert rows.step(after=3, before=6) == (2, None)
    monkeypatch.setattr(retention, "CHUNK_EVENTS", 2)
    for _ in range(3):
        rows.event(identity(6))
    assert rows.step(after=5) == (1, identity(6)), "those of one message go together"
    assert rows.left(messages.c.id) == rows.left(events.c.message_id) == [7]
    assert rows.step(after=7, before=7) == (0, None)
    assert rows.left(messages.c.id) == [7]


def test_the_default_partition_is_locked_against_writers() -> None:
    sweep = Sweep(Database("postgresql://127.0.0.1:1/ledger"))
    ran: list[str] = []

    class Ended(Exception):
        pass

    def execute(statement: Any) -> Any:
        assert "messages_default" in str(statement)
        raise Ended

    connection: Any = SimpleNamespace(exec_driver_sql=ran.append, execute=execute)
    with pytest.raises(Ended):
        sweep.step(connection, b"", b"", 0, {})
    assert ran == ["SET LOCAL lock_timeout = '200ms'", "LOCK TABLE messages_default IN SHARE ROW EXCLUSIVE MODE"]


# -------------------------------------------------------------------------------------------------------------- days


@pytest.fixture
def day(rows: Rows) -> Rows:
    """With a day that is a table of its own."""
    rows.connection.exec_driver_sql(f"CREATE TABLE events_d{DAY} AS SELECT * FROM events")
    return rows


def of_day(rows: Rows, number: int, at_shard: int, sequence: int) -> None:
    values = (at_shard, sequence, identity(number))
    rows.connection.exec_driver_sql(f"INSERT INTO events_d{DAY} (shard, sequence, message_id) VALUES (?, ?, ?)", values)


def test_what_of_a_day_is_kept(day: Rows) -> None:
    """What is pending of that day, and what was written behind the position, in any shard."""
    first, last = int.from_bytes(identity(0)), int.from_bytes(first_id((DAY + 1) * DAY_MS))
    for number in (-1, 0, 7, last - first - 1, last - first):
        insert(day.connection, obligations, message_id=identity(number))
    for number, at_shard, sequence in ((20, 0, 10), (21, 0, 11), (22, 1, 4), (23, 1, 5), (24, 2, 1), (21, 0, 12)):
        of_day(day, number, at_shard, sequence)
    found = retention._kept(day.connection, DAY, {"0": 10, "1": 4})
    assert found == [identity(number) for number in (0, 7, 21, 23, 24, last - first - 1)]
    assert retention._kept(day.connection, DAY, {"2": 1}) == [identity(0), identity(7), identity(last - first - 1)]
    everything = retention._kept(day.connection, DAY, {})
    assert everything is not None
    assert len(everything) == 3 + 5


@pytest.mark.parametrize(
    ("messages_kept", "each", "fits"), [(3, 1, True), (4, 1, False), (3, 4, True), (1, 12, True), (1, 13, False)]
)
def test_a_day_of_which_too_much_is_kept(
    day: Rows, monkeypatch: pytest.MonkeyPatch, messages_kept: int, each: int, fits: bool
) -> None:
    monkeypatch.setattr(retention, "KEPT_MAX", 3)
    for number in range(messages_kept):
        for sequence in range(each):
            of_day(day, number, 0, 11 + sequence)
    found = retention._kept(day.connection, DAY, READ)
    assert (found is not None) is fits
    if found is not None:
        assert found == [identity(number) for number in range(messages_kept)]


@pytest.mark.parametrize(
    ("code", "is_busy"), [("55P03", True), ("40P01", True), ("57014", True), ("53100", False), (None, False)]
)
def test_somebody_who_uses_what_is_to_go(code: str | None, is_busy: bool) -> None:
    error: Any = SimpleNamespace(orig=SimpleNamespace(sqlstate=code))
    assert retention.is_busy(error) is is_busy


class Noted:
    """A connection to PostgreSQL that notes what it would run."""

    def __init__(self) -> None:
        self.ran: list[str] = []

    def begin(self) -> Noted:
        self.ran.append("begin")
        return self

    def __enter__(self) -> Noted:
        return self

    def __exit__(self, error: Any, *_: Any) -> None:
        self.ran.append("end" if error is None else "failed")

    def rollback(self) -> None:
        self.ran.append("rollback")

    def exec_driver_sql(self, text: str) -> None:
        self.ran.append(text.partition(" ")[0] if text.startswith("SET") else text)


SET = ["SET", "SET"]
DETACH = [f"ALTER TABLE {name} DETACH PARTITION {name}_d{DAY}" for name in ("messages", "events")]
DROP = [f"DROP TABLE IF EXISTS {name}_d{DAY}" for name in ("messages", "events")]


@pytest.mark.parametrize(
    ("there", "kept", "moves", "found", "ran"),
    [
        (
            True,
            [],
            True,
            DropOutcome.GONE,
            ["begin", *SET, "end", "begin", *SET, *DETACH, "end", "begin", *DROP, "end"],
        ),
        (True, None, True, DropOutcome.WHOLE, ["begin", *SET, "end"]),
        (True, [], False, DropOutcome.WHOLE, ["begin", *SET, "end", "begin", *SET, *DETACH, "rollback", "end"]),
        (False, None, False, DropOutcome.GONE, ["begin", *SET, "end", "begin", *DROP, "end"]),
    ],
    ids=["it goes", "too much is kept", "more since", "it was taken out before"],
)
def test_how_a_day_goes(
    monkeypatch: pytest.MonkeyPatch, there: bool, kept: Any, moves: bool, found: DropOutcome, ran: list[str]
) -> None:
    noted: Any = Noted()
    monkeypatch.setattr(retention, "attached", lambda connection, names: list(names) if there else [])
    monkeypatch.setattr(retention, "_kept", lambda *_: kept)
    monkeypatch.setattr(retention, "_move", lambda *_: moves)
    assert retention.drop_day(noted, DAY, READ) is found
    assert noted.ran == ran


@pytest.mark.parametrize(("code", "is_busy"), [("55P03", True), ("53100", False)])
def test_a_day_that_somebody_uses(monkeypatch: pytest.MonkeyPatch, code: str, is_busy: bool) -> None:
    noted: Any = Noted()
    driver: Any = SimpleNamespace(sqlstate=code)

    def fails(*_: Any) -> Any:
        raise sa.exc.DBAPIError("statement", {}, driver)

    monkeypatch.setattr(retention, "attached", fails)
    if is_busy:
        assert retention.drop_day(noted, DAY, READ) is DropOutcome.BUSY
    else:
        with pytest.raises(sa.exc.DBAPIError):
            retention.drop_day(noted, DAY, READ)


# ----------------------------------------------------------------------------------------------------------- windows


def test_events_of_a_time_are_found_whatever_was_written_late(rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compared with all events, one by one; pages are as small as they can be."""
    monkeypatch.setattr(windows, "LATE", 20)
    kind = EventKind.DELIVERED.value
    times = {0: [10, 30, 20, 40, 40, 60, 50, 70], 1: [], 2: [5, 5, 100]}
    for number, each in times.items():
        shard(rows.connection, number, next_sequence=len(each) + 1)
        for index, at in enumerate(each):
            if index != 4:  # one is gone
                rows.event(identity(index), at, index + 1, shard=number, kind=kind)
    rows.event(identity(50), 45, 9, shard=0, kind=EventKind.RELEASED.value)
    for span in (1, 2, 3, 100):
        monkeypatch.setattr(windows, "SPAN", span)
        for since in range(0, 110, 5):
            for until in (since, since + 5, since + 10, since + 200):
                position = windows.begin(rows.connection, since, until)
                found: list[tuple[int, bytes]] = []
                while position.left:
                    page, position = windows.page(rows.connection, position, {EventKind.DELIVERED}, since, until)
                    assert len(page) <= span
                    found += [(each.at, each.message_id) for each in page]
                assert found == [
                    (at, identity(index))
                    for each in times.values()
                    for index, at in enumerate(each)
                    if index != 4 and since <= at < until
                ]
