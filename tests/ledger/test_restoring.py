"""A ledger from a backup: no number is given twice, no old owner goes on, possible duplicates are marked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa

from gateway.errors import BackupRefused, CursorOwned, LedgerUnavailable, RangeAhead
from gateway.ledger import Ledger
from gateway.ledger.access.audit import AuditKeys
from gateway.ledger.access.audit_check import AuditRules, verify
from gateway.ledger.db.engine import Database
from gateway.ledger.restoring import adopt, check_idle, newest
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
