"""A log that a release before MACs has begun: it goes on, also while that release still runs, and back again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import sqlalchemy as sa

from gateway.config import LedgerSettings
from gateway.ledger import Ledger
from gateway.ledger.access.audit import ADVISORY_LOCK, BEGIN, AuditKeys, hash_of
from gateway.ledger.access.audit_check import AuditRules, verify
from gateway.ledger.db import schema
from gateway.ledger.db.encoding import document
from gateway.ledger.db.engine import Database
from tests.ledger.audit_attacks import DAY, keys
from tests.ledger.conftest import NOW

KEYS = keys(1)


def write_as_before(connection: sa.Connection, at: int, entry: dict[str, Any]) -> None:
    """What the release of before ran, statement by statement."""
    if connection.dialect.name == "postgresql":
        connection.execute(sa.text("SELECT pg_advisory_xact_lock(:key)"), {"key": ADVISORY_LOCK})
    columns = "sequence, at, entry, previous, hash"
    last = connection.execute(
        sa.text(f"SELECT {columns} FROM audit_log ORDER BY audit_log.sequence DESC LIMIT 1")
    ).one_or_none()
    sequence, previous = (last.sequence + 1, bytes(last.hash)) if last is not None else (1, BEGIN)
    octets = document(entry)
    row = {
        "sequence": sequence, "at": at, "entry": octets, "previous": previous,
        "hash": hash_of(sequence, at, octets, previous),
    }  # fmt: skip
    insert = f"INSERT INTO audit_log ({columns}) VALUES (:sequence, :at, :entry, :previous, :hash)"
    connection.execute(sa.text(insert), row)


@pytest.fixture
async def engine(database: Database) -> AsyncIterator[sa.Engine]:
    """Of the release of before."""
    engine = database.writer()
    yield engine
    engine.dispose()


async def opened(url: str, **options: Any) -> Ledger:
    return await Ledger.open(url, LedgerSettings(), owner="test", audit_keys=KEYS, **options)


async def check(ledger: Ledger, shared: bool, now: int = NOW + DAY) -> Any:
    rules = AuditRules(AuditKeys(KEYS), now, 400, shared)
    return await ledger.read(lambda connection: verify(connection, ledger.audit.head, rules))


async def test_it_goes_on(url: str, database: Database, engine: sa.Engine, sql: Any) -> None:
    schema.migrate(database, "0007")
    with engine.begin() as connection:
        for number in range(5):
            write_as_before(connection, NOW - number, {"action": "a", "number": number})  # clocks went back, too
    ledger = await opened(url, migrate=True)
    await ledger.audit.look(NOW)
    await ledger.audit.append([(NOW, {"action": "b"})])
    found = await check(ledger, database.shared)
    assert (found.broken, found.rows, found.keyed) == (0, 7, 6)
    await ledger.close()
    schema.migrate(database, "0007")
    with engine.begin() as connection:
        assert verify_as_before(connection) == 7
        write_as_before(connection, NOW, {"action": "c"})
    ledger = await opened(url, migrate=True)
    await ledger.audit.look(NOW)
    found = await check(ledger, database.shared)
    assert (found.broken, found.rows, found.keyed) == (0, 9, 9), "MACs went with their columns; rows did not"
    await ledger.close()


def verify_as_before(connection: sa.Connection) -> int:
    """The walk of the release of before; how many rows are sound."""
    previous, count = BEGIN, 0
    columns = "sequence, at, entry, previous, hash"
    for row in connection.execute(sa.text(f"SELECT {columns} FROM audit_log ORDER BY sequence")):
        assert bytes(row.previous) == previous
        previous, count = bytes(row.hash), count + 1
        assert previous == hash_of(row.sequence, row.at, bytes(row.entry), bytes(row.previous))
    return count


@pytest.mark.broker
async def test_both_releases_at_once(postgresql_ledger: str) -> None:
    """An old process and two new ones write to one PostgreSQL, one of them under load."""
    database = Database(postgresql_ledger)
    engine = database.writer()
    with engine.begin() as connection:
        write_as_before(connection, NOW, {"action": "a"})
    ledgers = [await opened(postgresql_ledger) for _ in range(2)]

    def old(number: int) -> None:
        with engine.begin() as connection:
            write_as_before(connection, NOW - 1_000_000 * number, {"action": "old", "number": number})

    async def new(number: int) -> None:
        await ledgers[number % 2].audit.append([(NOW + number, {"action": "new", "number": number})])

    for begin in range(0, 60, 10):
        numbers = range(begin, begin + 10)
        old_ones = (asyncio.to_thread(old, number) for number in numbers)
        await asyncio.gather(
            *old_ones, *(new(number) for number in numbers), *(each.audit.look(NOW) for each in ledgers)
        )
    for each in ledgers:
        await each.audit.look(NOW)
    found = await check(ledgers[0], shared=True, now=NOW + 30 * DAY)
    assert (found.broken, found.why) == (0, "")
    assert found.without > 0
    assert not any(each.audit.broken for each in ledgers)
    with engine.begin() as connection:
        assert verify_as_before(connection) == found.rows
    for each in ledgers:
        await each.close()
    engine.dispose()
