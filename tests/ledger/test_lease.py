"""The lease of a shard: who renews it, how long it is relied on, and who is told when it is lost."""

from __future__ import annotations

import asyncio
import time

import pytest
import sqlalchemy as sa

from gateway.errors import LedgerUnavailable
from gateway.ledger.db.engine import Database
from gateway.ledger.writing import writer
from tests.ledger.conftest import ON_POSTGRESQL, Open, new_id, published


def seconds_left(database: Database, shard: int) -> float:
    """How long the lease lasts, as the database says."""
    engine = sa.create_engine(database.url)
    query = sa.text("SELECT expires_at / 1e6 - extract(epoch FROM clock_timestamp()) FROM shards WHERE shard = :shard")
    with engine.connect() as connection:
        found = float(connection.execute(query, {"shard": shard}).scalar_one())
    engine.dispose()
    return found


@ON_POSTGRESQL
async def test_an_event_loop_that_stalls_does_not_lose_the_lease(open_ledger: Open, database: Database) -> None:
    ledger = await open_ledger(shard_lease=3.0)
    fence = ledger.fence
    time.sleep(4.5)  # nothing else of this process runs but the writer's own thread
    assert seconds_left(database, ledger.shard) > 0
    assert ledger.holds
    await ledger.record(published(new_id()))
    assert ledger.fence == fence


@ON_POSTGRESQL
async def test_an_event_loop_that_is_silent_for_too_long_loses_it(
    open_ledger: Open, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = await open_ledger(shard_lease=1.0)
    monkeypatch.setattr(writer, "SILENCE", 0)
    time.sleep(2.5)
    assert seconds_left(database, ledger.shard) < 0
    assert not ledger.holds
    assert not ledger.healthy
    assert "lease" in ledger.ready()[1]
    fence = ledger.fence
    await ledger.record(published(new_id()))  # nobody has fenced it
    assert ledger.holds
    assert ledger.fence == fence


@ON_POSTGRESQL
async def test_what_is_relied_on_never_lasts_longer_than_the_lease(open_ledger: Open, database: Database) -> None:
    ledger = await open_ledger(shard_lease=5.0)
    for _ in range(5):
        await ledger.record(published(new_id()))
        before = time.monotonic()
        left = seconds_left(database, ledger.shard)
        assert ledger._writer._until <= time.monotonic() + left
        assert ledger._writer._until <= before + 5.0


@ON_POSTGRESQL
async def test_every_write_is_under_the_fence(open_ledger: Open, database: Database) -> None:
    """A resource, a claim of work, whatever: the row of the shard is entered first."""
    ledger = await open_ledger()
    said: list[str] = []
    ledger.on_fenced = lambda: said.append("fenced")
    engine = sa.create_engine(database.url)
    with engine.begin() as connection:
        connection.execute(sa.text("UPDATE shards SET owner = NULL, fence = fence + 1"))
    engine.dispose()
    with pytest.raises(LedgerUnavailable, match="took over"):
        await ledger.put_resource("kind", "name", {})
    assert said == ["fenced"]
    assert await ledger.get_resource("kind", "name") is None


async def test_a_shard_that_was_taken_over_is_said_until_something_is_written(open_ledger: Open) -> None:
    ledger = await open_ledger()
    fence = sa.text("UPDATE shards SET owner = NULL, fence = fence + 1")
    await ledger.task(lambda connection, lease: connection.execute(fence))
    assert ledger.ready()[0]
    with pytest.raises(LedgerUnavailable, match="took over"):
        await ledger.record(published(new_id()))
    assert ledger.ready() == (False, writer.FENCED)
    await ledger.record(published(new_id()))
    assert ledger.ready() == (True, f"writes to shard {ledger.shard}")


@ON_POSTGRESQL
async def test_a_lease_that_is_given_up_is_free_at_once(open_ledger: Open) -> None:
    """Nobody can tell whether a commit happened: what stands under the lease is in doubt, and another's to take."""
    ledger = await open_ledger(shard_lease=60.0)
    other = await open_ledger("other")
    assert await ledger.work.claim("job", {"a"}) == {"a"}
    said: list[str] = []
    ledger.on_fenced = lambda: said.append("fenced")
    ledger._writer._abandoned = ledger._writer._lease
    ledger._writer._lose()
    await asyncio.sleep(0.05)
    assert said == ["fenced"]
    assert not ledger.holds
    await ledger.put_resource("kind", "name", {})  # under a new lease
    assert await other.work.claim("job", {"a"}) == {"a"}, "without waiting for a lease to run out"


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
async def test_on_sqlite_nothing_runs_out(open_ledger: Open) -> None:
    ledger = await open_ledger(shard_lease=1.0)
    time.sleep(1.2)
    assert ledger.holds
    assert ledger.healthy
