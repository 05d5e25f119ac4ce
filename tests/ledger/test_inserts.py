"""Many rows into the history's tables, on each database in its own way."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import exc

from gateway.ledger.db.engine import Database
from gateway.ledger.db.models import events, inbox, messages, metadata, uint64_in_json
from gateway.ledger.writing.inserts import ALIKE, MOST, Insert, JsonInsert, ValuesInsert, insert
from tests.ledger.conftest import NOW, SHA, new_id


@pytest.fixture
def connection(database: Database) -> Iterator[sa.Connection]:
    """In a transaction."""
    engine = database.writer()
    with engine.connect() as connection, connection.begin():
        yield connection
    engine.dispose()


def both(database: Database) -> list[Insert]:
    """The one that the ledger uses, and the other one where there are two."""
    ways = [insert(database, events)]
    return [*ways, JsonInsert(database, events)] if isinstance(ways[0], ValuesInsert) else ways


@pytest.mark.parametrize("number", [1, 2, 7, MOST, 2 * MOST + 3])
def test_events_are_numbered_in_their_order(database: Database, connection: sa.Connection, number: int) -> None:
    for shard, way in enumerate(both(database)):
        ids = [new_id() for _ in range(number)]
        rows = way.rows()
        for index, message_id in enumerate(ids):
            rows.add(("accepted", NOW + index, "rabbit", "0-9-1"), message_id, b"\x00\xff" * (index % 3))
        assert len(rows) == number
        way.run(connection, rows, shard, 41)
        found = connection.execute(sa.select(events).where(events.c.shard == shard).order_by(events.c.sequence)).all()
        assert [row.sequence for row in found] == list(range(41, 41 + number))
        assert [row.message_id for row in found] == ids
        assert [row.at - NOW for row in found] == list(range(number))
        assert found[-1].detail == b"\x00\xff" * ((number - 1) % 3)
        assert {(row.kind, row.broker, row.version) for row in found} == {("accepted", "rabbit", "0-9-1")}


def add_message(rows: Any, message_id: bytes, size: int = 5, sha256: bytes = SHA) -> None:
    plain = (NOW, "rabbit", "0-9-1", uint64_in_json(size), "http")
    rows.add(plain, message_id, b"orders", b"\xff", sha256, b"", b"")


def test_a_message_that_is_there_is_left_as_it_is(database: Database, connection: sa.Connection) -> None:
    way = insert(database, messages, (messages.c.id,))
    one, two = new_id(), new_id()
    for given in ([(one, 1)], [(one, 2), (two, 2**64 - 1), (two, 3)]):
        rows = way.rows()
        for message_id, size in given:
            add_message(rows, message_id, size)
        way.run(connection, rows, 0, 1)
    found = connection.execute(sa.select(messages.c.id, messages.c.size, messages.c.routing_key)).all()
    assert sorted(map(tuple, found)) == [(one, 1, b"\xff"), (two, 2**64 - 1, b"\xff")]


@pytest.mark.parametrize(
    ("same", "number"), [("nothing", 600), ("kind, broker, version", 600), ("everything but the id", 600), ("all", 1)]
)
def test_what_is_alike_is_in_every_row(database: Database, connection: sa.Connection, same: str, number: int) -> None:
    """However many columns have one value in all rows, and wherever the row is that has another."""
    for shard, way in enumerate(both(database)):
        for place in (0, number // 2, number - 1):
            rows = way.rows()
            expected = []
            for index in range(number):
                odd = same == "nothing" and index == place
                at = NOW + index if same == "kind, broker, version" else NOW
                row = ("confirmed" if odd else "accepted", at, "rabbit", "0-9-1"), new_id(), b"{}"
                rows.add(*row)
                expected.append((*row[0], *row[1:]))
            way.run(connection, rows, shard, 1)
            found = connection.execute(
                sa.select(events.c["kind", "at", "broker", "version", "message_id", "detail"])
                .where(events.c.shard == shard)
                .order_by(events.c.sequence)
            ).all()
            assert [tuple(row) for row in found] == expected
            connection.execute(sa.delete(events))


def test_sets_of_columns_are_there_and_the_greatest_first() -> None:
    for table, sets in ALIKE.items():
        assert all(name in metadata.tables[table].c for names in sets for name in names)
        assert [len(names) for names in sets] == sorted((len(names) for names in sets), reverse=True)


def test_a_row_takes_the_place_of_another(database: Database, connection: sa.Connection) -> None:
    way = insert(database, inbox, (inbox.c.run, inbox.c.id), replace=True)
    one, two = new_id(), new_id()
    for given in ([(one, 1)], [(one, 2), (two, 3)]):
        rows = way.rows()
        for row_id, at in given:
            rows.add((0, at, at + 1), row_id, SHA, row_id)
        way.run(connection, rows, 0, 1)
    found = connection.execute(sa.select(inbox.c.id, inbox.c.at, inbox.c.expires_at)).all()
    assert sorted(map(tuple, found)) == [(one, 2, 3), (two, 3, 4)]


def test_a_bad_row_is_an_error_of_sqlalchemy(database: Database, connection: sa.Connection) -> None:
    """By its kind the writer knows that the row is at fault, and not the database."""
    way = insert(database, messages, (messages.c.id,))
    rows = way.rows()
    add_message(rows, new_id(), sha256=b"short")
    with pytest.raises(exc.IntegrityError, match="sha256_32") as caught:
        way.run(connection, rows, 0, 1)
    assert not caught.value.connection_invalidated
    connection.get_transaction().rollback()  # type: ignore[union-attr]  # the fixture began one
