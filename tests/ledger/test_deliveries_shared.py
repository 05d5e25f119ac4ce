"""Deliveries where several processes share them, where connections are cut, and where callers go away."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import psycopg
import pytest
import sqlalchemy as sa

from gateway.errors import LedgerUnavailable
from gateway.ledger import BacklogEntry, BacklogSettlement, Ending, EventKind, Ledger, LogEntry, Owed
from gateway.ledger.db.engine import Database
from tests.ledger.conftest import NOW, ON_POSTGRESQL, Clock, Open, message, new_id
from tests.ledger.test_deliveries import BILLING, acknowledged, delivered, done, kinds, owed, put, stored

Sql = Callable[[str], list[Any]]
T = TypeVar("T")


async def until_written(action: Callable[[], Awaitable[T]]) -> T:
    """Try for as long as it takes."""
    async with asyncio.timeout(60):
        while True:
            try:
                return await action()
            except LedgerUnavailable:
                await asyncio.sleep(0.01)


# ------------------------------------------------------------------------------------------- several processes


@ON_POSTGRESQL
@pytest.mark.parametrize("ordered", [False, True])
async def test_processes_that_claim_at_once_never_get_the_same(open_ledger: Open, ordered: bool) -> None:
    ledgers = [await open_ledger(f"process-{number}") for number in range(3)]
    rows = await put(ledgers[0], 300)
    keyed = await put(ledgers[0], 60, order_key=b"k")
    found: list[BacklogEntry] = []

    async def consume(ledger: Ledger, most: int) -> None:
        idle = 0
        while idle < 20:
            claimed = await ledger.deliveries.claim(BILLING, most, 60, ordered=ordered, entries=delivered)
            idle = 0 if claimed else idle + 1
            found.extend(claimed)
            assert sum(each.order_key == b"k" for each in claimed) <= 1 or not ordered
            await ledger.deliveries.settle([done(each, entries=(acknowledged(each),)) for each in claimed])

    await asyncio.gather(*(consume(ledger, 1 + number % 7) for number, ledger in enumerate(ledgers * 4)))
    assert Counter(each.id for each in found) == dict.fromkeys((one.id for one in rows + keyed), 1)
    assert {each.attempt for each in found} == {1}
    if ordered:
        assert [each.id for each in found if each.order_key] == [one.id for one in keyed]


@ON_POSTGRESQL
async def test_a_lease_that_another_process_took(open_ledger: Open) -> None:
    one, two = Clock(), Clock()
    two.now += 31
    first, second = await open_ledger("first", one), await open_ledger("second", two)
    (row,) = await put(first, 1)
    (mine,) = await first.deliveries.claim(BILLING, 1, 30)
    (taken,) = await second.deliveries.claim(BILLING, 1, 30)
    assert (taken.id, taken.lease, taken.expired) == (row.id, 2, True)
    assert await first.deliveries.settle([done(mine, entries=(acknowledged(mine),))]) == [False]
    assert await second.deliveries.settle([done(taken, entries=(acknowledged(taken),))]) == [True]
    assert await kinds(first, row.message_id) == ["stored", "acknowledged"]


@ON_POSTGRESQL
async def test_a_process_whose_shard_was_taken_writes_nothing(open_ledger: Open, sql: Sql) -> None:
    """Neither does what it asked for before it knew."""
    ledger = await open_ledger()
    (row,) = await put(ledger, 1)
    (claimed,) = await ledger.deliveries.claim(BILLING, 1, 60)
    new = owed()
    sql(f"UPDATE shards SET owner = NULL, fence = fence + 1 WHERE shard = {ledger.shard}")
    calls: list[Awaitable[Any]] = [
        ledger.deliveries.store([new], [stored(new)]),
        ledger.deliveries.settle([done(claimed, entries=(acknowledged(claimed),))]),
        ledger.deliveries.claim(BILLING, 1, 60),
    ]
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(result) for result in results] == [LedgerUnavailable] * 3
    assert sql("SELECT count(*) FROM deliveries") == [(1,)]
    assert await kinds(ledger, row.message_id) == ["stored"]
    assert await until_written(lambda: ledger.deliveries.settle([done(claimed)])) == [True]


@ON_POSTGRESQL
async def test_bodies_that_processes_share(open_ledger: Open, sql: Sql) -> None:
    """While one stores another delivery of a message, the other settles the last one: the body is there as long as
    somebody is owed it, and nobody waits in a circle."""
    ledgers = [await open_ledger(f"process-{number}") for number in range(3)]
    messages = [new_id() for _ in range(8)]
    deadlocks = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
    before = sql(deadlocks)

    async def work(ledger: Ledger, seed: int) -> None:
        chance = random.Random(seed)
        name = f"subscription-{seed}"
        for _ in range(40):
            some = chance.sample(messages, 5)
            rows = [owed(name, message_id=each, payload=each * 4) for each in some]
            await ledger.deliveries.store(rows)
            claimed = await ledger.deliveries.claim(name, 10, 60)
            assert Counter((each.message_id, each.payload) for each in claimed) == Counter(
                (each, each * 4) for each in some
            )
            chance.shuffle(claimed)
            assert await ledger.deliveries.settle([done(each) for each in claimed]) == [True] * 5

    await asyncio.gather(*(work(ledger, seed) for seed, ledger in enumerate(ledgers * 2)))
    assert sql("SELECT count(*) FROM bodies") == [(0,)]
    assert sql("SELECT count(*) FROM deliveries") == [(0,)]
    assert sql(deadlocks) == before


# ----------------------------------------------------------------------------------------------- cut connections


@ON_POSTGRESQL
@pytest.mark.parametrize("happened", [True, False])
async def test_a_commit_that_is_cut_off(
    url: str, open_ledger: Open, monkeypatch: pytest.MonkeyPatch, happened: bool
) -> None:
    """The answer is that of the database: what happened is told as done, and what did not can be done again."""
    ledger = await open_ledger(shard_lease=60.0)
    dialect = ledger._writer._engine.dialect
    commit = dialect.do_commit

    def cut_off(connection: Any) -> None:
        monkeypatch.setattr(dialect, "do_commit", commit)
        if happened:
            commit(connection)
        connection.dbapi_connection.close()
        raise psycopg.OperationalError("the connection is lost")

    async def cut(action: Callable[[], Awaitable[T]]) -> T:
        monkeypatch.setattr(dialect, "do_commit", cut_off)
        if not happened:
            with pytest.raises(LedgerUnavailable, match="lost"):
                await action()
        return await action()

    row = owed()
    await cut(lambda: ledger.deliveries.store([row], [stored(row)]))
    (claimed,) = await cut(lambda: ledger.deliveries.claim(BILLING, 9, 60, entries=delivered))
    assert (claimed.attempt, claimed.payload) == (1, row.payload)
    settlement = done(claimed, entries=(acknowledged(claimed),))
    assert await cut(lambda: ledger.deliveries.settle([settlement])) == [True]
    assert await kinds(ledger, row.message_id) == ["stored", "delivered", "acknowledged"]
    assert await ledger.deliveries.page() == ([], None)


@ON_POSTGRESQL
async def test_killed_in_the_middle_of_a_commit(url: str, open_ledger: Open) -> None:
    """The server is made slow at COMMIT, and its process is killed there."""
    ledger = await open_ledger(shard_lease=2.0)
    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as admin:
        admin.execute(
            "CREATE FUNCTION slow() RETURNS trigger AS 'BEGIN PERFORM pg_sleep(5); RETURN NULL; END' LANGUAGE plpgsql"
        )
        admin.execute(
            "CREATE CONSTRAINT TRIGGER slow AFTER INSERT OR DELETE ON deliveries DEFERRABLE INITIALLY DEFERRED "
            "FOR EACH ROW EXECUTE FUNCTION slow()"
        )

        async def killed(action: Awaitable[Any]) -> None:
            task = asyncio.ensure_future(action)
            async with asyncio.timeout(60):
                while not admin.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                    "WHERE query = 'COMMIT' AND state = 'active' AND datname = current_database()"
                ).fetchall():
                    await asyncio.sleep(0.01)
            with pytest.raises(LedgerUnavailable):
                await task

        row = owed()
        await killed(ledger.deliveries.store([row], [stored(row)]))
        assert admin.execute("SELECT count(*) FROM deliveries").fetchall() == [(0,)]
        admin.execute("ALTER TABLE deliveries DISABLE TRIGGER slow")
        await ledger.deliveries.store([row], [stored(row)])
        (claimed,) = await ledger.deliveries.claim(BILLING, 1, 60)
        admin.execute("ALTER TABLE deliveries ENABLE TRIGGER slow")
        await killed(ledger.deliveries.settle([done(claimed, entries=(acknowledged(claimed),))]))
        admin.execute("ALTER TABLE deliveries DISABLE TRIGGER slow")
        assert await ledger.deliveries.settle([done(claimed, entries=(acknowledged(claimed),))]) == [True]
    assert await kinds(ledger, row.message_id) == ["stored", "acknowledged"]


@ON_POSTGRESQL
async def test_killed_again_and_again_under_load(url: str, open_ledger: Open) -> None:
    """Nothing is lost, nothing is there twice, and every event once."""
    ledger = await open_ledger(shard_lease=2.0)
    rows = [owed() for _ in range(600)]
    steps = kills = 0

    def step() -> None:
        nonlocal steps
        steps += 1
        if steps % 40 == 0:
            due.set()

    async def kill() -> None:
        """Each time that something was done in between: a server that is killed all the time gets nowhere."""
        nonlocal kills
        async with await psycopg.AsyncConnection.connect(url.replace("+psycopg", ""), autocommit=True) as admin:
            while True:
                await due.wait()
                due.clear()
                found = await admin.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() "
                    "AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
                )
                kills += len(await found.fetchall())

    async def store(some: Sequence[Owed]) -> None:
        for row in some:
            await until_written(partial(ledger.deliveries.store, [row], [stored(row)]))
            step()

    async def consume() -> None:
        while claimed := await until_written(lambda: ledger.deliveries.claim(BILLING, 5, 600, entries=delivered)):
            step()
            settlements = [done(each, entries=(acknowledged(each),)) for each in claimed]
            await until_written(partial(ledger.deliveries.settle, settlements))
            step()

    due = asyncio.Event()
    killer = asyncio.create_task(kill())
    try:
        await asyncio.gather(*(store(rows[begin::20]) for begin in range(20)))
        await asyncio.gather(*(consume() for _ in range(20)))
    finally:
        killer.cancel()
        await asyncio.gather(killer, return_exceptions=True)
    assert kills >= 5
    left, _ = await until_written(lambda: ledger.deliveries.page(limit=1_000))
    # A claim of which nobody could tell is out until its lease ends: not lost, and not told to anybody.
    assert all(each.out and each.attempt == 1 for each in left)
    gone = {row.id for row in rows} - {each.id for each in left}
    for row in rows:
        expected = ["stored", "delivered"] + ["acknowledged"] * (row.id in gone)
        assert await until_written(partial(kinds, ledger, row.message_id)) == expected


# --------------------------------------------------------------------------------------------- callers that go


async def test_what_a_caller_that_went_away_claimed_is_given_back(open_ledger: Open, database: Database) -> None:
    """In its old place, and not as if it had been handed out."""
    ledger = await open_ledger(clock=Clock())
    rows = await put(ledger, 3)
    other = sa.create_engine(database.url)
    with other.connect() as connection:
        lock = {"sqlite": "BEGIN IMMEDIATE", "postgresql": "LOCK TABLE shards IN ACCESS EXCLUSIVE MODE"}
        connection.exec_driver_sql(lock[database.dialect])
        task = asyncio.create_task(ledger.deliveries.claim(BILLING, 2, 600, entries=delivered))
        await asyncio.sleep(0.1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        connection.rollback()
    other.dispose()
    async with asyncio.timeout(60):
        while await kinds(ledger, rows[1].message_id) != ["stored", "delivered", "released"]:
            await asyncio.sleep(0.01)
    found = await ledger.deliveries.claim(BILLING, 9, 600)
    assert [(each.id, each.attempt, each.lease) for each in found] == [
        (rows[0].id, 1, 2),
        (rows[1].id, 1, 2),
        (rows[2].id, 1, 1),
    ]


async def test_asking_for_what_is_not_there_writes_nothing(ledger: Ledger, sql: Sql) -> None:
    before = sql("SELECT commits, next_sequence FROM shards")
    assert await asyncio.gather(*(ledger.deliveries.claim(BILLING, 9, 60) for _ in range(9))) == [[]] * 9
    assert sql("SELECT commits, next_sequence FROM shards") == before
    await put(ledger, 1)
    both = await asyncio.gather(ledger.deliveries.claim("other", 9, 60), ledger.deliveries.claim(BILLING, 9, 60))
    assert [len(found) for found in both] == [0, 1]


async def test_what_is_too_much_for_one_transaction_goes_in_the_next(
    ledger: Ledger, sql: Sql, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.ledger.pending.delivery_rows.OCTETS_MAX", 100)
    for name in "abcd":
        await put(ledger, 3, name, size=60)
    before = sql("SELECT commits FROM shards")[0][0]
    found = await asyncio.gather(*(ledger.deliveries.claim(name, 3, 60) for name in "abcd"))
    assert [len(each) for each in found] == [1, 1, 1, 1]
    assert sql("SELECT commits FROM shards")[0][0] >= before + 2


async def test_sequence_numbers_have_no_gaps_whatever_takes_effect(ledger: Ledger) -> None:
    rows = await put(ledger, 4)
    event = LogEntry(rows[0].message_id, EventKind.RELEASED, NOW)
    calls: list[Awaitable[Any]] = [
        ledger.deliveries.settle([BacklogSettlement(new_id(), Ending.DONE, entries=(event, event))]),
        ledger.deliveries.claim(BILLING, 2, 60, entries=delivered),
        ledger.record([LogEntry(new_id(), EventKind.RECEIVED, NOW, message=message())]),
        ledger.deliveries.settle([BacklogSettlement(rows[3].id, Ending.DONE, entries=(event,))]),
        ledger.deliveries.claim(BILLING, 9, 60),
    ]
    await asyncio.gather(*calls)
    await ledger.record([LogEntry(new_id(), EventKind.RECEIVED, NOW, message=message())])
    events, _ = await ledger.events_after({})
    assert [event.sequence for event in events] == list(range(1, 10))
