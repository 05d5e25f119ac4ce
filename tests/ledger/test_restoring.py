"""A ledger from a backup: no number is given twice, no old owner goes on, possible duplicates are marked."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy as sa

from gateway.errors import BackupRefused, CursorOwned, LedgerUnavailable, RangeAhead
from gateway.ledger import Ledger
from gateway.ledger.access.audit import AuditKeys
from gateway.ledger.access.audit_check import AuditRules, verify
from gateway.ledger.db.encoding import parse
from gateway.ledger.db.engine import Database
from gateway.ledger.db.models import deliveries, events, metadata, outbox, peers, shards, work
from gateway.ledger.db.shards import RETIRED
from gateway.ledger.restoring import MARK, adopt, check_idle, fence, newest
from gateway.logs import Log
from tests.ledger.conftest import NOW, ON_POSTGRESQL, Open, new_id, published
from tests.ledger.test_deliveries import owed, stored
from tests.ledger.test_outbox import promised, scheduled

KEYS = AuditKeys({"k": bytes(32)})


def change(database: Database, work: Callable[[sa.Connection], Any]) -> Any:
    engine = database.writer()
    try:
        with engine.begin() as connection:
            return work(connection)
    finally:
        engine.dispose()


def restored(database: Database) -> int:
    """Adopt it; how many rows were marked."""
    _, marked = change(database, lambda connection: adopt(connection, NOW, {"head": ""}, KEYS))
    return int(marked)


async def test_no_number_is_given_twice(open_ledger: Open, database: Database) -> None:
    ledger = await open_ledger()
    last = (await ledger.record(published(new_id())))[-1]
    await ledger.close()
    assert change(database, newest) == NOW
    restored(database)
    again = await open_ledger()
    assert (await again.record(published(new_id())))[0] == 1
    extents = await again.log.extents(Log.EVENTS)
    assert [(each.head, each.retired) for each in extents] == [(last, True), (2, False)]
    assert again.shard == 1
    restored_twice = await again.log.extents(Log.MESSAGES)
    assert [each.retired for each in restored_twice] == [True, False]


async def test_cursors(open_ledger: Open, database: Database) -> None:
    ledger = await open_ledger()
    await ledger.record(published(new_id()))
    claimed = await ledger.log.claim_cursor("archive", Log.EVENTS, "job")
    await ledger.close()
    restored(database)
    ledger = await open_ledger()
    with pytest.raises(CursorOwned):
        await ledger.log.move_cursor("archive", "job", claimed.epoch, {"0": 1})
    again = await ledger.log.claim_cursor("archive", Log.EVENTS, "another")
    assert again.epoch == claimed.epoch + 2
    moved = await ledger.log.move_cursor("archive", "another", again.epoch, {"0": 700})
    assert moved.position == {"0": 700}, "the job read further than the backup goes"
    with pytest.raises(RangeAhead):
        await ledger.log.move_cursor("archive", "another", again.epoch, {"1": 700})


async def test_what_may_be_sent_twice_is_marked(open_ledger: Open, database: Database) -> None:
    ledger = await open_ledger()
    deliveries = [owed(reason={"why": "x"} if number else None) for number in range(1_003)]
    await ledger.deliveries.store(deliveries, [stored(one) for one in deliveries])
    later = promised()
    await ledger.outbox.put([later], [scheduled(later)])
    await ledger.close()
    assert restored(database) == 1_004
    ledger = await open_ledger()
    found = await ledger.deliveries.claim(deliveries[0].subscription, 2_000, 30)
    assert len(found) == 1_003
    assert all(row.reason["resent"] is True for row in found)
    assert sum(row.reason.get("why") == "x" for row in found) == 1_002
    (row,) = await ledger.outbox.claim(10, ["rabbit"])
    assert row.reason["resent"] is True


async def test_the_audit_log_goes_on(open_ledger: Open, database: Database) -> None:
    await (await open_ledger()).close()
    restored(database)
    restored(database)
    found = change(database, lambda connection: verify(connection, None, AuditRules(KEYS)))
    assert (found.rows, found.broken) == (2, 0)


@ON_POSTGRESQL
async def test_one_in_use_is_refused_and_a_process_that_lives_is_fenced(open_ledger: Open, database: Database) -> None:
    ledger: Ledger = await open_ledger(owner="host:7")
    await ledger.record(published(new_id()))
    shard = ledger.shard
    with pytest.raises(BackupRefused, match="in use by host:7"):
        change(database, lambda connection: check_idle(connection, database))
    restored(database)
    with pytest.raises(LedgerUnavailable, match="took over the shard"):
        await ledger.record(published(new_id()))
    await ledger.record(published(new_id()))
    assert ledger.shard != shard, "nothing goes to the old shard any more"


# --------------------------------------------------------------------------------------------- step by step, in memory


@pytest.fixture
def tables() -> Iterator[sa.Connection]:
    """All tables, in memory."""
    engine = sa.create_engine("sqlite://")
    with engine.connect() as connection:
        metadata.create_all(connection)
        yield connection
    engine.dispose()


def shard(connection: sa.Connection, number: int, **fields: Any) -> None:
    values = {"owner": None, "fence": 1, "expires_at": 0, "next_sequence": 1, "commits": 0} | fields
    connection.execute(sa.insert(shards).values(shard=number, **values))


@pytest.mark.parametrize(("expires_at", "is_idle"), [(99, True), (100, True), (101, False)])
def test_a_ledger_is_idle_once_all_leases_ran_out(tables: sa.Connection, expires_at: int, is_idle: bool) -> None:
    at_100: Any = SimpleNamespace(clock=sa.literal(100))
    shard(tables, 0, owner=None, expires_at=500)
    shard(tables, 1, owner="host:7", expires_at=expires_at)
    if is_idle:
        check_idle(tables, at_100)
    else:
        with pytest.raises(BackupRefused, match=r"the ledger is in use by host:7\. Stop every gateway"):
            check_idle(tables, at_100)


def test_who_has_a_shard_is_fenced(tables: sa.Connection) -> None:
    shard(tables, 0, owner="host:7", fence=3)
    shard(tables, 1, owner=None, fence=5)
    fence(tables)
    assert tables.execute(sa.select(shards.c.owner, shards.c.fence)).all() == [(None, 4), (None, 5)]


def test_the_newest_event_of_all_shards(tables: sa.Connection) -> None:
    assert newest(tables) == 0
    for number, times in ((0, [5, 30]), (1, [99, 20]), (2, [])):
        shard(tables, number, next_sequence=len(times) + 1)
        for index, at in enumerate(times):
            row = {"message_id": new_id(), "kind": "received", "broker": "", "version": "", "detail": b""}
            tables.execute(sa.insert(events).values(shard=number, sequence=index + 1, at=at, **row))
    assert newest(tables) == 30, "of the last of each shard"


def test_nothing_of_the_old_processes_is_left(tables: sa.Connection) -> None:
    shard(tables, 0, owner="host:7", fence=3)
    shard(tables, 1, fence=RETIRED)
    plain = {"id": bytes(8), "name": "", "url": "", "config": "", "kinds": ""}
    tables.execute(sa.insert(peers).values(shard=0, fence=3, **plain))
    tables.execute(sa.insert(work).values(kind="bridge", name=b"b", shard=0, fence=3, at=1))
    entry = {"broker": "", "exchange": b"", "routing_key": b"", "payload": b"", "client": b"", "checksum": 0}
    times = {"at": 1, "due_at": 1, "attempt": 0, "shard": 0, "fence": 3}
    tables.execute(sa.insert(outbox).values(message_id=new_id(), reason=b'{"why":"x"}', **entry, **times))
    head, marked = adopt(tables, NOW, {"head": "h"}, KEYS)
    assert (head.sequence, marked) == (1, 1)
    for table in (peers, work, deliveries):
        assert tables.execute(sa.select(sa.func.count()).select_from(table)).scalar() == 0
    assert tables.execute(sa.select(shards.c.owner, shards.c.fence)).all() == [(None, RETIRED)] * 2
    row = tables.execute(sa.select(outbox.c.shard, outbox.c.fence, outbox.c.reason)).one()
    assert (row.shard, row.fence) == (-1, 0), "nobody holds it"
    assert parse(row.reason) == {"why": "x", **MARK}


@pytest.mark.parametrize("number", [0, 1, 2, 3, 4, 5])
def test_all_rows_are_marked_page_by_page(tables: sa.Connection, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    monkeypatch.setattr("gateway.ledger.restoring.CHUNK", 2)
    entry = {"broker": "", "exchange": b"", "routing_key": b"", "payload": b"", "client": b"", "checksum": 0}
    times = {"at": 1, "due_at": 1, "attempt": 0, "shard": -1, "fence": 0, "reason": b""}
    for _ in range(number):
        tables.execute(sa.insert(outbox).values(message_id=new_id(), **entry, **times))
    assert adopt(tables, NOW, {}, None)[1] == number
    assert [parse(row.reason) for row in tables.execute(sa.select(outbox.c.reason))] == [MARK] * number
