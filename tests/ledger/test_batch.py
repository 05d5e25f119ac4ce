"""Many rows in two parameters."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from gateway.ledger.batch import RowBatch, select_rows
from gateway.ledger.engine import Database
from gateway.ledger.models import UInt64

COLUMNS: tuple[sa.Column[Any], ...] = (
    sa.Column("name", sa.LargeBinary),
    sa.Column("number", sa.BigInteger),
    sa.Column("text", sa.Text),
    sa.Column("rest", sa.LargeBinary),
    sa.Column("size", UInt64),
)


def fetch(database: Database, batch: RowBatch) -> list[tuple[Any, ...]]:
    rows, index = select_rows(database.dialect, COLUMNS, more=sa.literal(7))
    engine = database.readers()
    with engine.connect() as connection:
        found = connection.execute(rows.add_columns(index.label("index")), batch.parameters()).all()
    engine.dispose()
    return [tuple(row) for row in found]


def test_rows_come_out_as_they_went_in(database: Database) -> None:
    batch = RowBatch()
    rows = [
        (b"one", 1, "a", b"", 0),
        (b"", -(2**63), "b", b"\x00\xff" * 200, 2**63 - 1),
        (bytes(range(256)), 2**63 - 1, "", b"x", 5),
    ]
    for row in rows:
        name, number, text, rest, size = row
        batch.add((number, text, size), name, rest)
    assert len(batch) == 3
    assert fetch(database, batch) == [(*row, 7, index) for index, row in enumerate(rows)]


def test_an_empty_batch_has_no_rows(database: Database) -> None:
    assert fetch(database, RowBatch()) == []
