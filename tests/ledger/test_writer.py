"""The writer when the database is locked, full, gone, or cut off in the middle."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa

from gateway.config import LedgerSettings
from gateway.errors import CommitUnknown, LedgerUnavailable
from gateway.ledger import EventKind, Ledger, New, OutboxEntry, StoredAnswer
from gateway.ledger.db import engine
from gateway.ledger.db.engine import Database
from gateway.ledger.writing import writer
from tests.ledger.conftest import Open, entry, intent, new_id, published


async def recovered(ledger: Ledger) -> list[int]:
    """Record until it succeeds."""
    async with asyncio.timeout(60):
        while True:
            try:
                return await ledger.record(published(new_id()))
            except LedgerUnavailable:
                await asyncio.sleep(0.05)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Locks are waited for a moment only."""
    monkeypatch.setattr(engine, "BUSY_TIMEOUT", 0.2)
    options = engine.POSTGRESQL_DEFAULTS["options"].replace("lock_timeout=5s", "lock_timeout=200ms")
    monkeypatch.setitem(engine.POSTGRESQL_DEFAULTS, "options", options)


@pytest.mark.usefixtures("impatient")
async def test_locked_by_another(open_ledger: Open, database: Database, caplog: pytest.LogCaptureFixture) -> None:
    ledger = await open_ledger()
    await ledger.record(published(one := new_id()))
    other = sa.create_engine(database.url)
    with other.connect() as connection:
        lock = {"sqlite": "BEGIN EXCLUSIVE", "postgresql": "LOCK TABLE shards IN ACCESS EXCLUSIVE MODE"}
        connection.exec_driver_sql(lock[database.dialect])
        with caplog.at_level(logging.WARNING):
            for _ in range(2):
                calls = [ledger.record(published(new_id())) for _ in range(20)]
                results = await asyncio.gather(*calls, return_exceptions=True)
                assert {type(result) for result in results} == {LedgerUnavailable}
        assert len(caplog.records) == 1  # the beginning of the trouble, not every caller of it
        with pytest.raises(LedgerUnavailable, match="lock"):
            await ledger.claim_key("shop", "k", b"f", [intent(new_id())])
        healthy, why = ledger.ready()
        assert not healthy
        assert "lock" in why
        if database.dialect == "sqlite":  # WAL: readers do not wait for the lock
            assert await ledger.timeline(one)
        connection.rollback()
    other.dispose()
    assert await recovered(ledger) == [3, 4]
    assert ledger.healthy
    assert await ledger.claim_key("shop", "k", b"f", [intent(new_id())]) == New()


async def test_nobody_waits_for_the_lock_again_and_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of those who wait together, one waits for the lock; and who records does not wait for tasks behind him."""
    busy = 1.0
    monkeypatch.setattr(engine, "BUSY_TIMEOUT", busy)
    monkeypatch.setattr(writer, "COSTLY", busy / 2)
    url = f"sqlite:///{tmp_path}/ledger.db"
    ledger = await Ledger.open(url, LedgerSettings(), owner="test", migrate=True)
    await ledger.record(published(new_id()))
    order: list[str] = []

    async def refused(what: str, call: Awaitable[Any]) -> None:
        with pytest.raises(LedgerUnavailable, match="locked"):
            await call
        order.append(what)

    with sqlite3.connect(tmp_path / "ledger.db", isolation_level=None) as other:
        other.execute("BEGIN EXCLUSIVE")
        began = time.monotonic()
        ahead = refused("ahead", ledger.record(published(new_id())))
        tasks = [refused("task", ledger.task(lambda connection, lease: None)) for _ in range(12)]
        await asyncio.gather(ahead, *tasks)
        assert time.monotonic() - began < 10 * busy  # each for himself: 13
        assert order == ["ahead"] + ["task"] * 12
        other.execute("ROLLBACK")
    other.close()
    await recovered(ledger)
    await ledger.close()


@pytest.mark.broker
@pytest.mark.usefixtures("impatient")
async def test_trouble_lasts_until_events_can_be_written(
    postgresql_ledger: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A lease that can be renewed says nothing of the tables that cannot be written: whoever published meanwhile would
    be told that it was not recorded."""
    ledger = await Ledger.open(postgresql_ledger, LedgerSettings(shard_lease=1.0), owner="test", migrate=True)
    address = postgresql_ledger.replace("+psycopg", "")
    with psycopg.connect(address) as connection, caplog.at_level(logging.WARNING):
        connection.execute("LOCK TABLE events IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(LedgerUnavailable):
            await ledger.record(published(new_id()))
        for _ in range(30):
            assert not ledger.healthy
            await asyncio.sleep(0.05)
    async with asyncio.timeout(60):
        while not ledger.healthy:
            await asyncio.sleep(0.02)
    assert len(caplog.records) == 1
    assert await ledger.record(published(new_id())) == [1, 2]  # the attempts have left nothing behind
    await ledger.close()


async def test_trouble_is_over_without_a_write(open_ledger: Open, database: Database, impatient: None) -> None:
    ledger = await open_ledger()
    other = sa.create_engine(database.url)
    with other.connect() as connection:
        lock = {"sqlite": "BEGIN EXCLUSIVE", "postgresql": "LOCK TABLE shards IN ACCESS EXCLUSIVE MODE"}
        connection.exec_driver_sql(lock[database.dialect])
        with pytest.raises(LedgerUnavailable):
            await ledger.record(published(new_id()))
        connection.rollback()
    other.dispose()
    async with asyncio.timeout(60):
        while not ledger.healthy:
            await asyncio.sleep(0.05)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """``disk["pages"]`` is the size of SQLite's disk; the writer finds out when it connects."""
    pages = {"pages": 1 << 30}
    tune = engine._tune_sqlite

    def limited(connection: Any, cache: int) -> None:
        tune(connection, cache)
        connection.execute(f"PRAGMA max_page_count={pages['pages']}")

    monkeypatch.setattr(engine, "_tune_sqlite", limited)
    return pages


async def test_a_full_disk(tmp_path: Path, disk: dict[str, int]) -> None:
    disk["pages"] = 60
    url = f"sqlite:///{tmp_path}/ledger.db"
    ledger = await Ledger.open(url, LedgerSettings(), owner="test", migrate=True)
    written = 0

    async def fill() -> None:
        nonlocal written
        while written < 2_000:
            await ledger.record(published(new_id()))
            written += 1

    with pytest.raises(LedgerUnavailable, match="full"):
        await fill()
    assert written > 10
    for _ in range(25):  # it does not recover for as long as nobody writes, to fail again with the first who does
        assert not ledger.healthy
        await asyncio.sleep(0.1)
    disk["pages"] = 1 << 30
    await recovered(ledger)
    events, _ = await ledger.events_after({}, 10_000)
    assert [event.sequence for event in events] == list(range(1, 2 * (written + 1) + 1))
    await ledger.close()


async def test_trouble_lasts_while_there_is_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit that finds room by chance does not end it: the next one would begin it again."""
    ledger = await Ledger.open(f"sqlite:///{tmp_path}/ledger.db", LedgerSettings(), owner="test", migrate=True)
    with monkeypatch.context() as patch:
        patch.setattr(engine, "ROOM", 1 << 60)
        await ledger.record(published(new_id()))
        assert ledger.healthy  # nothing was wrong
        ledger._writer.trouble = "the ledger cannot be written: database or disk is full"
        await ledger.record(published(new_id()))
        await asyncio.sleep(1.2)
        assert not ledger.healthy
    async with asyncio.timeout(60):
        while not ledger.healthy:
            await asyncio.sleep(0.02)
    await ledger.close()


async def test_trouble_lasts_while_nobody_can_tell_how_much_room_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(_: Path) -> Any:
        raise OSError("Stale file handle")

    ledger = await Ledger.open(f"sqlite:///{tmp_path}/ledger.db", LedgerSettings(), owner="test", migrate=True)
    ledger._writer.trouble = "the ledger cannot be written: database or disk is full"
    with monkeypatch.context() as patch:
        patch.setattr(engine.shutil, "disk_usage", unknown)
        await ledger.record(published(new_id()))
        assert not ledger.healthy
    await ledger.record(published(new_id()))
    assert ledger.healthy
    await ledger.close()


async def test_what_a_task_raises_is_its_callers(ledger: Ledger) -> None:
    def run(connection: Any, lease: Any) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await ledger._task(run)
    assert await ledger.record(published(new_id())) == [1, 2]


async def test_a_defect_of_the_writer_leaves_nobody_waiting(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: Any) -> Any:
        raise ZeroDivisionError

    with monkeypatch.context() as patched:
        patched.setattr(ledger._group, "write", broken)
        with pytest.raises(LedgerUnavailable, match="ZeroDivisionError"):
            await ledger.record(published(new_id()))
    assert "the ledger's writer failed" in caplog.text
    assert not ledger.healthy
    assert await ledger.record(published(new_id())) == [1, 2]


@pytest.mark.broker
async def test_connections_that_are_cut_off_again_and_again(postgresql_ledger: str) -> None:
    """What was acknowledged is there once, what failed is there at most once, and the sequence has no gap."""
    ledger = await Ledger.open(postgresql_ledger, LedgerSettings(), owner="test", migrate=True)
    acknowledged: set[bytes] = set()
    tried: set[bytes] = set()
    done = asyncio.Event()

    async def write() -> None:
        while not done.is_set():
            tried.add(one := new_id())
            try:
                await ledger.record(published(one))
                acknowledged.add(one)
            except LedgerUnavailable:
                await asyncio.sleep(0.01)

    writers = [asyncio.create_task(write()) for _ in range(8)]
    killer = sa.create_engine(Database(postgresql_ledger).url, isolation_level="AUTOCOMMIT")
    with killer.connect() as connection:
        for _ in range(50):
            connection.exec_driver_sql(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
            await asyncio.sleep(0.02)
    killer.dispose()
    async with asyncio.timeout(60):
        while len(acknowledged) <= 50:
            await asyncio.sleep(0.1)
    done.set()
    await asyncio.gather(*writers)
    await recovered(ledger)
    events, _ = await ledger.events_after({}, 1_000_000)
    for shard in {event.shard for event in events}:  # a commit of which nobody can tell costs the shard
        sequences = [event.sequence for event in events if event.shard == shard]
        assert sequences == list(range(1, len(sequences) + 1))
    confirmed = [event.message_id for event in events if event.kind is EventKind.CONFIRMED]
    assert len(confirmed) == len(set(confirmed))
    assert acknowledged <= set(confirmed)
    assert len(set(confirmed) - tried) == 1  # the one of recovered()
    await ledger.close()


async def test_what_waits_as_the_lease_is_lost_is_not_written_under_the_next_one(url: str) -> None:
    ledger = await Ledger.open(url, LedgerSettings(shard_lease=60.0), owner="test", migrate=True)
    writer, began, ended = ledger._writer, threading.Event(), threading.Event()

    def lose(*_: Any) -> None:
        began.set()
        assert ended.wait(60)
        writer._lose()

    losing = asyncio.create_task(ledger.task(lose))
    await asyncio.to_thread(began.wait, 60)
    waiting = asyncio.create_task(ledger.record(published(one := new_id())))
    while not writer._queue.qsize():
        await asyncio.sleep(0.01)
    ended.set()
    await asyncio.wait([losing])
    with pytest.raises(LedgerUnavailable, match="took over"):
        await waiting
    await ledger.record(published(other := new_id()))
    assert await ledger.timeline(one) is None
    assert await ledger.timeline(other) is not None
    await ledger.close()


@pytest.mark.broker
@pytest.mark.parametrize("happened", [True, False, None])
async def test_a_commit_that_is_cut_off(
    postgresql_ledger: str, monkeypatch: pytest.MonkeyPatch, happened: bool | None
) -> None:
    """The connection is lost during COMMIT: the shard's count says whether it happened. None: it cannot be asked."""
    ledger = await Ledger.open(postgresql_ledger, LedgerSettings(shard_lease=60.0), owner="test", migrate=True)
    dialect = ledger._writer._engine.dialect
    commit = dialect.do_commit

    def cut_off(connection: Any) -> None:
        monkeypatch.setattr(dialect, "do_commit", commit)
        if happened:
            commit(connection)
        if happened is None:
            monkeypatch.setattr(ledger._writer._shards, "commits", lambda connection, lease: None)
        connection.dbapi_connection.close()
        raise psycopg.OperationalError("the connection is lost")

    monkeypatch.setattr(dialect, "do_commit", cut_off)
    claim = ledger.claim_key("shop", "k", b"f", [intent(one := new_id())])
    if happened:
        assert await claim == New()
        await ledger.finish_key("shop", "k", 200, b"x", [entry(one, EventKind.CONFIRMED)])
        assert await ledger.claim_key("shop", "k", b"f", []) == StoredAnswer(200, {}, b"x")
    else:
        with pytest.raises(LedgerUnavailable, match="lost") as told:
            await claim
        assert isinstance(told.value, CommitUnknown) is (happened is None)
        assert await ledger.timeline(one) is None
        assert await ledger.claim_key("shop", "k", b"f", []) == New()
    await ledger.close()


@pytest.mark.broker
async def test_a_commit_of_which_nobody_can_tell_comes_to_be_in_doubt(
    postgresql_ledger: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once: nobody waits for the end of the lease."""
    ledger = await Ledger.open(postgresql_ledger, LedgerSettings(shard_lease=600.0), owner="test", migrate=True)
    dialect = ledger._writer._engine.dialect
    commit, connect = dialect.do_commit, dialect.connect

    def cut_off(connection: Any) -> None:
        commit(connection)
        monkeypatch.setattr(dialect, "do_commit", commit)
        monkeypatch.setattr(dialect, "connect", refused)
        connection.dbapi_connection.close()
        raise psycopg.OperationalError("the connection is lost")

    def refused(*_: Any, **__: Any) -> Any:
        monkeypatch.setattr(dialect, "connect", connect)
        raise psycopg.OperationalError("refused")

    monkeypatch.setattr(dialect, "do_commit", cut_off)
    with pytest.raises(LedgerUnavailable, match="lost"):
        await ledger.claim_key("shop", "k", b"f", [intent(one := new_id(), b"promised")])
    taken: list[OutboxEntry] = []
    async with asyncio.timeout(60):
        while not taken:
            await asyncio.sleep(0.05)
            taken = await ledger.outbox.take_over()
    assert [(each.message_id, each.payload) for each in taken] == [(one, b"promised")]
    await ledger.close()


@pytest.mark.broker
async def test_the_server_is_killed_and_comes_back(private_server: Callable[[str], Any]) -> None:
    server = private_server("postgresql")
    url = server.create_database()
    ledger = await Ledger.open(url, LedgerSettings(shard_lease=2.0), owner="test", migrate=True)
    await ledger.record(published(one := new_id()))
    await asyncio.to_thread(server.kill)
    with pytest.raises(LedgerUnavailable):
        await ledger.record(published(new_id()))
    with pytest.raises(LedgerUnavailable):
        await ledger.timeline(one)
    assert not ledger.healthy
    await asyncio.to_thread(server.restart)
    assert await recovered(ledger)
    assert await ledger.timeline(one)
    assert ledger.healthy
    await ledger.close()


@pytest.mark.broker
async def test_closing_while_the_database_is_away(private_server: Callable[[str], Any]) -> None:
    server = private_server("postgresql")
    ledger = await Ledger.open(server.create_database(), LedgerSettings(), owner="test", migrate=True)
    await asyncio.to_thread(server.kill)
    await asyncio.wait_for(ledger.close(), 30)
    with pytest.raises(LedgerUnavailable):
        await ledger.record(published(new_id()))
