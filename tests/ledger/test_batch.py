"""Many rows in two parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa

from gateway.ledger import Ledger
from gateway.ledger.db import prepared
from gateway.ledger.db.batch import PART, RowBatch, select_rows
from gateway.ledger.db.engine import Database, run
from gateway.ledger.db.models import UInt64
from tests.ledger.conftest import intent, new_id
from tests.ledger.test_deliveries import owed
from tests.ledger.test_outbox import promised

Sql = Callable[[str], list[Any]]

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


async def put(ledger: Ledger, payloads: list[bytes]) -> None:
    await ledger.outbox.put([promised(payload=payload) for payload in payloads])


async def store(ledger: Ledger, payloads: list[bytes]) -> None:
    await ledger.deliveries.store([owed(payload=payload, size=len(payload)) for payload in payloads])


async def claim(ledger: Ledger, payloads: list[bytes]) -> None:
    await ledger.claim_key("shop", "k", bytes(32), [intent(new_id(), payload) for payload in payloads])


@pytest.mark.parametrize(("write", "table"), [(put, "outbox"), (store, "bodies"), (claim, "obligations")])
async def test_large_payloads_are_given_to_several_statements(
    ledger: Ledger, sql: Sql, write: Any, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the driver copies what one is given, the event loop waits."""
    sizes: list[int] = []

    def noted(connection: Any, text: str, parameters: Any) -> Any:
        values = parameters.values() if isinstance(parameters, dict) else parameters
        sizes.append(sum(len(value) for value in values if isinstance(value, bytes | str)))
        return run(connection, text, parameters)

    monkeypatch.setattr(prepared, "run", noted)
    payloads = [bytes([number]) * 300_000 for number in range(12)]
    await write(ledger, payloads)
    assert sum(sizes) > sum(map(len, payloads))
    assert max(sizes) < PART + 310_000
    found = sorted(bytes(row[0])[-50:] for row in sql(f"SELECT payload FROM {table}"))
    assert found == [payload[-50:] for payload in payloads]


def test_a_batch_is_full_at_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.ledger.db.batch.PART", 10)
    rows = RowBatch()
    assert (len(rows), rows.is_full) == (0, False)
    rows.add((1,), b"12345", b"6789")
    assert (len(rows), rows.is_full) == (1, False)
    rows.add((2,), b"")
    assert not rows.is_full
    rows.add((3,), b"0")
    assert (len(rows), rows.is_full) == (3, True)
