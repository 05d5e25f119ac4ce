"""Counts per hour as rows: what is summed up, what has room, and where a page begins and ends."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy as sa

from gateway.ledger import EventKind, HourFilter
from gateway.ledger.db.encoding import document, octets
from gateway.ledger.db.engine import Database
from gateway.ledger.db.models import MAX_INT64, counted, events, messages, shards, statistics
from gateway.ledger.events import statistics as module
from gateway.ledger.events.statistics import BY, OTHER, Statistics, StatisticsKey, StatisticsPage, forget, page
from tests.ledger.conftest import new_id
from tests.ledger.test_log_reads import shard

HOUR = 3_600_000_000
KIND = EventKind.DELIVERED


class Rows:
    """The statements, on tables in memory."""

    def __init__(self, connection: sa.Connection) -> None:
        self.connection = connection
        self.statements = Statistics(Database("sqlite:////nowhere/ledger.db"))

    def event(self, number: int, sequence: int, size: int | None = None, hour: int = 0, **detail: Any) -> None:
        """An event, with the size of its message's body; None: its message is not known."""
        message_id = new_id()
        if size is not None:
            names = ("exchange", "routing_key", "client", "properties")
            row = {"broker": "", "version": "", "sha256": bytes(32), "origin": "", **dict.fromkeys(names, b"")}
            self.connection.execute(sa.insert(messages).values(id=message_id, at=1, size=size, **row))
        told = {"kind": KIND.value, "broker": "r", "version": "", "detail": document(detail)}
        values = {"shard": number, "sequence": sequence, "at": hour * HOUR + 5, "message_id": message_id} | told
        self.connection.execute(sa.insert(events).values(values))

    def count(self, until: dict[str, int]) -> list[tuple[int, int, int]]:
        """Count all up to a position; the pages."""
        pages = []
        while (found := self.statements.next_page(self.connection, until)) is not None:
            assert self.statements.add(self.connection, found)
            pages.append((found.shard, found.begin, found.end))
        return pages

    def add(self, *keys: tuple[int, str], number: int = 1, size: int = 1) -> bool:
        """Counts of subscriptions in hours, as a page of their own."""
        begin = self.connection.execute(sa.select(sa.func.coalesce(sa.func.max(counted.c.sequence), 0))).scalar_one()
        counts = {StatisticsKey(hour, KIND.value, "r", name, "", ""): (number, size) for hour, name in keys}
        return self.statements.add(self.connection, StatisticsPage(0, begin, begin + 1, counts))

    @property
    def sums(self) -> dict[tuple[int, str], tuple[int, int]]:
        """Hour and subscription -> events and octets."""
        found = self.connection.execute(sa.select(statistics).order_by(*statistics.primary_key))
        return {(row.hour, row.subscription.decode()): (row.events, row.octets) for row in found}


@pytest.fixture
def rows() -> Iterator[Rows]:
    engine = sa.create_engine("sqlite://")
    with engine.connect() as connection:
        for table in (counted, events, messages, shards, statistics):
            table.create(connection)
        yield Rows(connection)
    engine.dispose()


# -------------------------------------------------------------------------------------------------------- counting


def test_events_are_summed_up_by_hour_and_name(rows: Rows) -> None:
    shard(rows.connection, 0, next_sequence=7)
    for sequence, (size, hour, name) in enumerate(
        [(5, 0, "a"), (7, 0, "a"), (None, 0, "a"), (1, 1, "a"), (2, 1, "b\udcff"), (3, 1, "")], 1
    ):
        rows.event(0, sequence, size, hour, subscription=name, attempt=sequence)
    found = rows.statements.next_page(rows.connection, {"0": 6})
    assert found is not None
    assert {(key.hour, key.subscription): value for key, value in found.counts.items()} == {
        (0, "a"): (3, 12), (1, "a"): (1, 1), (1, "b\udcff"): (1, 2), (1, ""): (1, 3),
    }  # fmt: skip
    assert {(key.kind, key.broker, key.endpoint, key.bridge) for key in found.counts} == {(KIND.value, "r", "", "")}


def test_no_event_is_counted_twice_and_none_is_left_out(rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the shard that is furthest behind come first, a few at a time, up to where the round ends."""
    monkeypatch.setattr(module, "SPAN", 3)
    for number, last in ((0, 2), (1, 7), (2, 4)):
        shard(rows.connection, number, next_sequence=last + 1)
        for sequence in range(1, last + 1):
            rows.event(number, sequence, 10)
    assert rows.count({}) == rows.count({"0": 0}) == []
    assert rows.count({"0": 2, "1": 5}) == [(1, 0, 3), (1, 3, 5), (0, 0, 2)]
    assert rows.sums == {(0, ""): (7, 70)}
    assert rows.count({"0": 2, "1": 5}) == []
    assert rows.count({"0": 2, "1": 7, "2": 4}) == [(2, 0, 3), (1, 5, 7), (2, 3, 4)]
    assert rows.sums == {(0, ""): (13, 130)}
    assert rows.statements.next_page(rows.connection, {"0": 2, "1": 7, "2": 4}) is None


def test_what_another_process_has_counted_is_not_counted_again(rows: Rows) -> None:
    shard(rows.connection, 0, next_sequence=4)
    for sequence in (1, 2, 3):
        rows.event(0, sequence, 10)
    first = rows.statements.next_page(rows.connection, {"0": 2})
    assert first is not None
    assert rows.statements.add(rows.connection, first)
    assert not rows.statements.add(rows.connection, first)
    second = rows.statements.next_page(rows.connection, {"0": 3})
    assert second is not None
    assert (second.begin, second.end) == (2, 3)
    assert rows.statements.add(rows.connection, second)
    assert not rows.statements.add(rows.connection, second)
    assert rows.sums == {(0, ""): (3, 30)}
    assert rows.connection.execute(sa.select(counted)).all() == [(0, 3)]


def test_a_page_of_one_event_goes_on_from_the_first(rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SPAN", 1)
    shard(rows.connection, 0, next_sequence=4)
    for sequence in (1, 2, 3):
        rows.event(0, sequence, 10)
    assert rows.count({"0": 3}) == [(0, 0, 1), (0, 1, 2), (0, 2, 3)]
    assert rows.sums == {(0, ""): (3, 30)}


def test_bodies_that_are_larger_than_a_number_count_as_the_largest(rows: Rows) -> None:
    assert rows.add((0, "a"), size=MAX_INT64 + 5)
    assert rows.sums == {(0, "a"): (1, MAX_INT64)}


def test_names_come_from_details_of_any_release(rows: Rows) -> None:
    assert module._names(b"") == module.Names()
    assert module._names(b'{"endpoint":"e","other":1}') == module.Names(endpoint="e")
    assert module._names(b'{"endpoint":null,"bridge":"b"}') == module.Names(bridge="b")
    assert module._names(b'{"subscription":"\\udcff"}') == module.Names(subscription="\udcff")


def test_postgresql_looks_up_messages_one_by_one(rows: Rows) -> None:
    shard(rows.connection, 0, next_sequence=2)
    rows.event(0, 1, 10)
    ran: list[str] = []
    noted: Any = SimpleNamespace(execute=rows.connection.execute, exec_driver_sql=ran.append)
    rows.statements._postgresql = True
    found = rows.statements.next_page(noted, {"0": 1})
    assert found is not None
    assert list(found.counts.values()) == [(1, 10)]
    assert ran == ["SET LOCAL enable_hashjoin = off", "SET LOCAL enable_mergejoin = off"]


# ------------------------------------------------------------------------------------------------------------ room


def test_an_hour_has_room_for_so_many_names(rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it has no room for is counted without its name; other hours have their own room."""
    monkeypatch.setattr(module, "ROWS_MAX", 3)
    assert rows.add((0, "a"), (0, "b"), (0, "c"), (1, "a"))
    assert rows.sums.keys() == {(0, "a"), (0, "b"), (0, "c"), (1, "a")}, "exactly as many fit"
    assert rows.add((0, "z"))
    assert rows.sums[0, OTHER] == (1, 1)
    assert rows.add((0, "a"), (0, "d"), (0, "e"), (0, ""), (1, "d"), (1, "e"), number=2, size=5)
    assert rows.sums == {
        (0, "a"): (3, 6), (0, "b"): (1, 1), (0, "c"): (1, 1), (0, OTHER): (5, 11), (0, ""): (2, 5),
        (1, "a"): (1, 1), (1, "d"): (2, 5), (1, "e"): (2, 5),
    }  # fmt: skip
    assert rows.add((1, "f"), (2, "x"))
    assert rows.sums[1, OTHER] == rows.sums[2, "x"] == (1, 1)


def test_an_hour_is_filled_before_names_are_dropped(rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ROWS_MAX", 3)
    assert rows.add((0, "a"))
    assert rows.add((0, "a"), (0, "b"), (0, "c"), (0, "d"), (0, "e"))
    assert rows.sums == {(0, "a"): (2, 2), (0, "b"): (1, 1), (0, "c"): (1, 1), (0, OTHER): (2, 2)}


def test_old_hours_are_forgotten_in_chunks(rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNK", 3)
    rows.add(*((hour, name) for hour in (1, 2, 3) for name in "ab"))
    assert [forget(rows.connection, 3) for _ in range(3)] == [3, 1, 0]
    assert rows.sums.keys() == {(3, "a"), (3, "b")}


# ----------------------------------------------------------------------------------------------------------- pages


@pytest.fixture
def filled(rows: Rows) -> Rows:
    kinds = (EventKind.DELIVERED, EventKind.ACKNOWLEDGED)
    for hour in (1, 2, 3):
        for index, kind in enumerate(kinds):
            for broker, names in (("r", ("a", "", "")), ("s", ("", "e\udcff", "")), ("s", ("", "", "b"))):
                row = dict(zip(("subscription", "endpoint", "bridge"), map(octets, names), strict=True))
                told = {"hour": hour, "kind": kind.value, "broker": broker, "events": hour, "octets": index}
                rows.connection.execute(sa.insert(statistics).values(**told, **row))
    return rows


def read(rows: Rows, limit: int = 100, by: Any = BY, **where: Any) -> list[Any]:
    """All pages."""
    found: list[Any] = []
    cursor: str | None = None
    pages = 0
    while cursor is not None or not pages:
        part, cursor = page(rows.connection, HourFilter(**where), cursor, limit, by)
        assert len(part) <= limit
        found += part
        pages += 1
    assert pages == max(1, -(-len(found) // limit))
    return found


@pytest.mark.parametrize("by", [BY, (), ("kind",), ("broker", "endpoint"), ("bridge", "subscription", "kind")])
def test_pages_of_any_size_are_the_same_counts(filled: Rows, by: tuple[str, ...]) -> None:
    whole = read(filled, by=by)
    assert [each.hour for each in whole] == sorted((each.hour for each in whole), reverse=True)
    assert sum(each.events for each in whole) == 6 * (1 + 2 + 3)
    assert sum(each.octets for each in whole) == 3 * 3
    for each in whole:
        for name in set(BY) - set(by):
            assert not getattr(each, name), "what they are not told apart by is empty"
    for limit in range(1, len(whole) + 2):
        assert read(filled, limit, by) == whole


@pytest.mark.parametrize(
    ("where", "number"),
    [
        ({}, 18),
        ({"since": 2}, 12),
        ({"until": 2}, 6),
        ({"since": 2, "until": 3}, 6),
        ({"since": 3, "until": 3}, 0),
        ({"kinds": frozenset({KIND})}, 9),
        ({"kinds": frozenset()}, 0),
        ({"broker": "r"}, 6),
        ({"subscription": "a"}, 6),
        ({"subscription": ""}, 12),
        ({"endpoint": "e\udcff"}, 6),
        ({"bridge": "b", "since": 3}, 2),
    ],
)
def test_counts_are_found_by_hour_and_name(filled: Rows, where: dict[str, Any], number: int) -> None:
    found = read(filled, 4, **where)
    assert len(found) == number
    assert all(found.count(each) == 1 for each in found)


@pytest.mark.parametrize("cursor", ["", "zz", "W10=", "WzEsMl0="])
def test_a_cursor_that_is_none(filled: Rows, cursor: str) -> None:
    with pytest.raises(ValueError, match="is no cursor of this list"):
        page(filled.connection, HourFilter(), cursor, 10)
