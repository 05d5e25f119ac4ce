"""Statements compiled once."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from gateway.ledger.db.engine import Database
from gateway.ledger.db.models import messages
from gateway.ledger.db.prepared import PreparedStatement, StaticStatement, once


def test_parameters_literals_and_results(database: Database) -> None:
    octets = sa.bindparam("octets", type_=sa.LargeBinary)
    number = sa.bindparam("number", type_=sa.BigInteger)
    statement = sa.select(
        octets.label("a"), (number + sa.literal(5, sa.BigInteger)).label("b"), sa.literal("100%").label("c")
    )
    prepared = PreparedStatement(database, statement)
    engine = database.readers()
    with engine.connect() as connection:
        for value in (1, 2**40):
            found = prepared.run(connection, {"octets": b"\x00\xff", "number": value})
            assert found == [(b"\x00\xff", value + 5, "100%")]
    engine.dispose()


def test_a_statement_of_a_module(database: Database) -> None:
    """Its rows have names, where their columns have one."""
    number = sa.bindparam("number", type_=sa.BigInteger)
    none = sa.select(number.label("a")).where(number > 5)
    found, sums = StaticStatement(none), StaticStatement(sa.select(number.label("a"), sa.func.max(number)))
    engine = database.readers()
    with engine.connect() as connection:
        for _ in range(2):
            (row,) = found.rows(connection, {"number": 7})
            assert row.a == 7
            assert found.row(connection, {"number": 5}) is None
            assert found.scalar(connection, {"number": 5}) is None
            assert sums.rows(connection, {"number": 7}) == [(7, 7)]
            assert sums.scalar(connection, {"number": 7}) == 7
    engine.dispose()


def test_a_column_that_the_driver_does_not_return(database: Database) -> None:
    statement = StaticStatement(sa.select(messages.c.size))
    engine = database.readers()
    with engine.connect() as connection, pytest.raises(TypeError, match="not what the driver returns"):
        statement.rows(connection)
    engine.dispose()


class Things:
    """Statements, and what is each one's own."""

    def __init__(self, database: Database, name: str) -> None:
        self.name = name
        self._prepare(database)

    @once
    def _prepare(self, database: Database) -> None:
        self.statement = PreparedStatement(database, sa.select(sa.bindparam("number", type_=sa.BigInteger)))


def test_statements_are_made_once_for_each_kind_of_database() -> None:
    sqlite, postgresql = Database("sqlite:///x.db"), Database("postgresql://host/x")
    one, two, other = Things(sqlite, "one"), Things(sqlite, "two"), Things(postgresql, "other")
    assert (one.name, two.name, other.name) == ("one", "two", "other")
    assert one.statement is two.statement
    assert other.statement is not one.statement
    two.name = "three"
    assert Things(sqlite, "four").name == "four"
