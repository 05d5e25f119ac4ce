"""Statements compiled once."""

from __future__ import annotations

import sqlalchemy as sa

from gateway.ledger.db.engine import Database
from gateway.ledger.db.prepared import PreparedStatement, once


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
