"""Statements compiled once."""

from __future__ import annotations

import sqlalchemy as sa

from gateway.ledger.engine import Database
from gateway.ledger.prepared import Prepared


def test_parameters_literals_and_results(database: Database) -> None:
    octets = sa.bindparam("octets", type_=sa.LargeBinary)
    number = sa.bindparam("number", type_=sa.BigInteger)
    statement = sa.select(
        octets.label("a"), (number + sa.literal(5, sa.BigInteger)).label("b"), sa.literal("100%").label("c")
    )
    prepared = Prepared(database, statement)
    engine = database.readers()
    with engine.connect() as connection:
        for value in (1, 2**40):
            found = prepared.run(connection, {"octets": b"\x00\xff", "number": value})
            assert found == [(b"\x00\xff", value + 5, "100%")]
    engine.dispose()
