"""Migrations, the revision check, partitions."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path
from time import time
from typing import Any

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.script import ScriptDirectory

from gateway.config import LedgerSettings
from gateway.errors import ConfigurationError
from gateway.ledger import InboxRow, Ledger, OutboxEntry, Owed
from gateway.ledger.db import schema
from gateway.ledger.db.engine import Database
from gateway.ledger.db.ids import DAY_MS, first_id
from gateway.ledger.db.models import metadata
from tests.ledger.conftest import NOW, SHA, Open, new_id, published


@pytest.fixture
def url(bare_url: str) -> str:
    """Here the ledgers bring their databases up to date themselves."""
    return bare_url


def tables(database: Database) -> set[str]:
    engine = database.readers()
    with engine.connect() as connection:
        found = set(sa.inspect(connection).get_table_names())
    engine.dispose()
    return found


def test_head_is_the_newest_migration() -> None:
    script = ScriptDirectory.from_config(schema.alembic_config())
    assert script.get_current_head() == f"{schema.HEAD:04}"


def test_migrations_are_found_in_a_checkout_and_in_an_installation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (schema.migrations_folder() / "env.py").is_file()
    installed = tmp_path / "gateway" / "_migrations"
    installed.mkdir(parents=True)
    monkeypatch.setattr(schema, "__file__", str(tmp_path / "gateway" / "ledger" / "db" / "schema.py"))
    assert schema.migrations_folder() == installed


async def test_up_and_down_with_data(database: Database, open_ledger: Open) -> None:
    ledger = await open_ledger()
    await ledger.record(published(new_id()))
    await ledger.claim_key("shop", "k", b"f", [])
    await ledger.close()
    assert set(metadata.tables) <= tables(database)
    schema.migrate(database, "base")
    assert tables(database) == {"alembic_version"}
    ledger = await open_ledger()
    assert await ledger.record(published(new_id())) == [1, 2]


async def test_the_inbox_up_and_down_with_data(database: Database, open_ledger: Open) -> None:
    """The history stays when the inbox goes."""
    ledger = await open_ledger()
    one = new_id()
    await ledger.record(published(one), [InboxRow("east", "k", SHA, one, NOW * 2)])
    await ledger.close()
    schema.migrate(database, "0001")
    assert "inbox" not in tables(database)
    ledger = await open_ledger()
    assert await ledger.seen("east", ["k"]) == {}
    timeline = await ledger.timeline(one)
    assert timeline is not None
    assert len(timeline.events) == 2
    await ledger.record([], [InboxRow("east", "k", SHA, one, NOW * 2)])
    assert set(await ledger.seen("east", ["k"])) == {"k"}


async def test_deliveries_up_and_down_with_data(database: Database, open_ledger: Open) -> None:
    """History and inbox stay when they go, and what is owed is owed again only where it is stored again."""
    ledger = await open_ledger()
    one, two = new_id(), new_id()
    owed = Owed(id=one, message_id=two, subscription="billing", at=NOW, payload=b"hello", size=5)
    later = OutboxEntry(message_id=two, broker="rabbit", exchange="", routing_key="q", payload=b"x", at=NOW)
    await ledger.record(published(two), [InboxRow("east", "k", SHA, two, NOW * 2)])
    await ledger.deliveries.store([owed])
    await ledger.outbox.put([later])
    await ledger.close()
    schema.migrate(database, "0002")
    assert not {"deliveries", "bodies", "outbox"} & tables(database)
    ledger = await open_ledger()
    assert await ledger.timeline(two) is not None
    assert set(await ledger.seen("east", ["k"])) == {"k"}
    assert await ledger.deliveries.page() == ([], None)
    assert await ledger.deliveries.body(two) is None
    await ledger.deliveries.store([owed])
    assert [each.payload for each in await ledger.deliveries.claim("billing", 1, 60)] == [b"hello"]
    assert await ledger.outbox.page() == ([], None)


def test_migrating_twice_changes_nothing(database: Database) -> None:
    schema.migrate(database)
    before = tables(database)
    schema.migrate(database)
    assert tables(database) == before


@pytest.mark.parametrize("bare_url", ["sqlite"], indirect=True)
def test_a_file_of_an_earlier_release_comes_to_give_its_pages_back(database: Database) -> None:
    """That rewrites it, in no transaction."""
    schema.migrate(database)
    assert database.path is not None

    def says() -> Any:
        with closing(sqlite3.connect(database.path or "")) as file:
            return file.execute("PRAGMA auto_vacuum").fetchone()[0]

    assert says() == 2
    with closing(sqlite3.connect(database.path)) as file:
        file.execute("PRAGMA journal_mode=DELETE")
        file.execute("PRAGMA auto_vacuum=NONE")
        file.execute("VACUUM")
    assert says() == 0
    schema.migrate(database)
    assert says() == 2


@pytest.mark.parametrize("bare_url", ["sqlite"], indirect=True)
def test_a_migration_leaves_the_count_of_commits(database: Database) -> None:
    """Only where all of the ledger goes nothing is left to be compared with it."""
    schema.migrate(database, "0007")
    assert database.path is not None
    counted = database.path.with_name("ledger.db.commits")
    counted.write_bytes(b"")
    schema.migrate(database)
    assert counted.exists()
    schema.migrate(database, "0008")
    assert counted.exists()
    schema.migrate(database, "base")
    assert not counted.exists()


def test_no_drift_between_models_and_migrations(database: Database) -> None:
    schema.migrate(database)
    engine = database.writer()
    with engine.connect() as connection:
        command.check(schema.alembic_config(connection))
    engine.dispose()


def test_drift_would_be_found(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    schema.migrate(database)
    other = sa.MetaData()
    for table in metadata.tables.values():
        table.to_metadata(other)
    other.tables["shards"].c.owner.type = sa.LargeBinary()
    other.tables["messages"].c.size.type = sa.Text()
    monkeypatch.setattr(schema, "metadata", other)
    engine = database.writer()
    with engine.connect() as connection, pytest.raises(Exception, match=r"(?s)messages.*size.*shards.*owner"):
        command.check(schema.alembic_config(connection))
    engine.dispose()


async def test_an_older_schema_is_refused_with_what_to_do(url: str, database: Database, sql: Any) -> None:
    with pytest.raises(ConfigurationError, match="no schema yet: run 'gateway migrate'"):
        await Ledger.open(url, LedgerSettings(), owner="test")
    schema.migrate(database)
    sql("UPDATE alembic_version SET version_num = '0000'")
    with pytest.raises(ConfigurationError, match="run 'gateway migrate'"):
        await Ledger.open(url, LedgerSettings(), owner="test")


async def test_a_schema_that_is_newer_by_one_is_taken_and_by_two_is_not(url: str, database: Database, sql: Any) -> None:
    schema.migrate(database)
    sql(f"UPDATE alembic_version SET version_num = '{schema.HEAD + 1:04}'")
    ledger = await Ledger.open(url, LedgerSettings(), owner="test")
    await ledger.close()
    sql(f"UPDATE alembic_version SET version_num = '{schema.HEAD + 2:04}'")
    with pytest.raises(ConfigurationError, match="use a newer release"):
        await Ledger.open(url, LedgerSettings(), owner="test")


def test_tables_that_are_newer_by_one_need_no_migration_and_by_two_are_refused(
    url: str, database: Database, sql: Any
) -> None:
    """A process of the release before, which starts again while a new one is rolled out, migrates first."""
    schema.migrate(database)
    sql(f"UPDATE alembic_version SET version_num = '{schema.HEAD + 1:04}'")
    Ledger.migrate(url)
    sql(f"UPDATE alembic_version SET version_num = '{schema.HEAD + 2:04}'")
    with pytest.raises(ConfigurationError, match="use a newer release"):
        Ledger.migrate(url)


def test_ledger_migrate(url: str, database: Database) -> None:
    Ledger.migrate(url)
    assert set(metadata.tables) <= tables(database)


def test_migrations_can_be_read_as_sql(capsys: pytest.CaptureFixture[str]) -> None:
    command.upgrade(schema.alembic_config(), "head", sql=True)
    assert "CREATE TABLE messages_default PARTITION OF messages DEFAULT" in capsys.readouterr().out


@pytest.mark.broker
async def test_partitions_are_made_while_the_ledger_runs(postgresql_url: str, caplog: pytest.LogCaptureFixture) -> None:
    """A reader that holds the tables delays them, and nothing else."""
    database = Database(postgresql_url)
    schema.migrate(database)
    later = time() + 30 * 86_400
    reader = database.readers()
    with reader.connect() as connection:
        connection.exec_driver_sql("LOCK TABLE messages IN ACCESS SHARE MODE")
        ledger = await Ledger.open(postgresql_url, LedgerSettings(shard_lease=3.0), owner="test", clock=lambda: later)
        async with asyncio.timeout(60):
            while "could not be made yet" not in caplog.text:
                await ledger.record(published(new_id()))
        assert ledger.healthy
        connection.rollback()
    expected = schema.partition_name("events", int(later * 1000) // DAY_MS)
    async with asyncio.timeout(60):
        while expected not in tables(database):
            await asyncio.sleep(0.1)
    reader.dispose()
    await ledger.close()


@pytest.mark.broker
async def test_history_is_partitioned_by_day(postgresql_url: str) -> None:
    database = Database(postgresql_url)
    schema.migrate(database)
    today = int(time() * 1000) // DAY_MS
    for table in ("messages", "events", "message_log"):
        expected = {f"{table}_d{today + ahead}" for ahead in range(schema.DAYS_AHEAD + 1)}
        assert expected <= tables(database)
    ledger = await Ledger.open(postgresql_url, LedgerSettings(), owner="test")
    now = new_id()
    before = first_id((today - 1) * DAY_MS + 5)
    await ledger.record([*published(now), *published(before)])
    await ledger.close()
    engine = database.readers()
    with engine.begin() as connection:
        where = sa.text("SELECT tableoid::regclass::text, count(*) FROM events GROUP BY 1")
        assert dict(map(tuple, connection.execute(where))) == {f"events_d{today}": 2, "events_default": 2}
        # A day that is in the default partition already stays there; the next is made.
        made = schema.ensure_partitions(connection, (today - 1) * DAY_MS / 1000)
        assert made == [f"message_log_d{today - 1}"]  # of the log nothing is there
        made = schema.ensure_partitions(connection, (today + 1) * DAY_MS / 1000)
        assert made == [f"{table}_d{today + 8}" for table in ("messages", "events", "message_log")]
    engine.dispose()
