"""URLs, the file lock, what is set on connections."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy import exc

from gateway.errors import ConfigurationError, LedgerDamaged, LedgerFull, LedgerUnavailable
from gateway.ledger.db import engine
from gateway.ledger.db.engine import Database, filesystem_of, is_deadlock, is_lost, run, unavailable
from tests.ledger.conftest import ON_POSTGRESQL


@pytest.mark.parametrize(
    "url",
    [
        "", "nothing", "mysql://host/x", "sqlite://", "sqlite:///:memory:", "sqlite://host/x", "sqlite:///x?mode=ro",
        "postgresql://host:port/x", "postgresql://host:99999999999x/x",
    ],
)  # fmt: skip
def test_urls_that_are_none_of_ours(url: str) -> None:
    with pytest.raises(ConfigurationError, match=r"ledger\.url"):
        Database(url)


@pytest.mark.parametrize("scheme", ["postgresql", "postgres", "postgresql+psycopg"])
def test_postgresql_urls(scheme: str) -> None:
    database = Database(f"{scheme}://user:secret@host:1234/ledger?connect_timeout=9")
    assert (database.dialect, database.shared, database.path) == ("postgresql", True, None)
    assert database.url.query["connect_timeout"] == "9"
    assert "statement_timeout" in database.url.query["options"]


def test_settings_of_connections(database: Database) -> None:
    settings: dict[str, dict[str, Any]] = {
        "sqlite": {"journal_mode": "wal", "synchronous": 2, "busy_timeout": 5000},
        "postgresql": {"synchronous_commit": "on", "lock_timeout": "5s", "application_name": "amqp-gateway"},
    }
    asked = settings[database.dialect]
    ask = "PRAGMA " if database.dialect == "sqlite" else "SHOW "
    for made in (database.writer(), database.readers()):
        with made.connect() as connection:
            found = {name: connection.exec_driver_sql(ask + name).scalar() for name in asked}
        made.dispose()
        assert found == asked


@pytest.mark.broker
def test_a_commit_that_could_be_lost_is_switched_off(postgresql_url: str) -> None:
    made = Database(postgresql_url + "?options=-c%20synchronous_commit%3Doff").writer()
    with made.connect() as connection:
        assert connection.exec_driver_sql("SHOW synchronous_commit").scalar() == "on"
    made.dispose()


def test_the_clock_is_the_time(database: Database) -> None:
    made = database.readers()
    with made.connect() as connection:
        first, second = (connection.execute(sa.select(database.clock)).scalar_one() for _ in range(2))
    made.dispose()
    assert 1.6e15 < first <= second < first + 5_000_000


def test_a_second_process_is_refused(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path}/deep/ledger.db")
    program = (
        "import sys\nfrom gateway.ledger.db.engine import Database\n"
        "lock = Database(sys.argv[1]).lock()\nprint('locked', flush=True)\nsys.stdin.read()\n"
    )
    arguments = [sys.executable, "-c", program, str(database.url)]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"locked\n"
        with pytest.raises(LedgerUnavailable, match=rf"in use by another process \(pid {other.pid}\).*PostgreSQL"):
            database.lock()
        other.communicate()
    assert database.path is not None
    assert database.path.stat().st_mode & 0o777 == 0o600
    with database.locked(), pytest.raises(LedgerUnavailable), database.locked():
        pass
    lock = database.lock()
    assert lock is not None
    lock.close()


def test_who_is_refused_is_told_of_the_last_process_that_locked_the_file(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path}/ledger.db")
    (tmp_path / "ledger.db.lock").write_text("123456789\n")  # of a process that is gone
    with database.locked(), pytest.raises(LedgerUnavailable, match=rf"\(pid {os.getpid()}\)"):
        database.lock()


def test_a_folder_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LedgerUnavailable, match="cannot be opened"):
        Database(f"sqlite:///{tmp_path}/file/ledger.db").lock()


def test_network_filesystems_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounts = tmp_path / "mountinfo"
    (tmp_path / "a share").mkdir()
    escaped = str(tmp_path / "a share").replace(" ", "\\040")
    mounts.write_text(f"1 0 8:1 / / rw - ext4 /dev/x rw\n2 1 0:5 / {escaped} rw shared:1 - nfs4 server:/ rw\n")
    monkeypatch.setattr(engine, "MOUNTS", mounts)
    assert filesystem_of(tmp_path) == "ext4"
    with pytest.raises(ConfigurationError, match="network filesystem"):
        Database(f"sqlite:///{tmp_path}/a share/ledger.db").lock()
    monkeypatch.setattr(engine, "MOUNTS", tmp_path / "missing")
    assert filesystem_of(tmp_path) == ""


def test_what_errors_mean() -> None:
    lost = exc.OperationalError("s", {}, Exception("gone\nand more"), connection_invalidated=True)
    assert is_lost(lost)
    assert not is_lost(ValueError())
    assert str(unavailable(lost)) == "the ledger cannot be written: gone"
    assert str(unavailable(ValueError())) == "the ledger cannot be written: ValueError"
    assert is_deadlock(exc.OperationalError("s", {}, psycopg.errors.DeadlockDetected()))
    assert not is_deadlock(lost)


@ON_POSTGRESQL
def test_a_statement_on_a_dead_connection_says_so(database: Database) -> None:
    """What is run past SQLAlchemy's cursors fails as it would have failed there."""
    engine = database.writer()
    with engine.connect() as connection:
        ((process,),) = run(connection, "SELECT pg_backend_pid()")
        with engine.connect() as other:
            assert run(other, "SELECT pg_terminate_backend(%(process)s, 5000)", {"process": process}) == [(True,)]
        with pytest.raises(exc.DBAPIError) as caught:
            run(connection, "SELECT 1")
        assert is_lost(caught.value)
        assert connection.invalidated
    engine.dispose()


def test_a_statement_that_returns_nothing(database: Database) -> None:
    engine = database.writer()
    with engine.connect() as connection:
        assert run(connection, "CREATE TABLE t (n INTEGER)") == []
        assert run(connection, "INSERT INTO t VALUES (1), (2) RETURNING n") == [(1,), (2,)]
        with pytest.raises(exc.DBAPIError) as caught:
            run(connection, "SELECT nothing FROM nowhere")
        assert not is_lost(caught.value)
        connection.rollback()
    engine.dispose()


def test_connections_keep_few_pages(tmp_path: Path) -> None:
    """Four readers that kept 16 MB each were 60 MB after a few hours."""
    database = Database(f"sqlite:///{tmp_path}/ledger.db")
    for made, kept in ((database.writer(), -4_000), (database.readers(), -500)):
        with made.connect() as connection:
            assert run(connection, "PRAGMA cache_size") == [(kept,)]
        made.dispose()


def test_adbc_is_told_where_postgresql_is_as_libpq_reads_it() -> None:
    """A space is ``%20`` there, and a plus is a plus: in the password, and not between options."""
    uri = Database("postgresql://me:a%2Bb@127.0.0.1:5433/ledger?options=-c%20work_mem%3D8MB").arrow_uri
    assert uri.startswith("postgresql://me:a+b@127.0.0.1:5433/ledger?")
    parameters = uri.partition("?")[2]
    assert "+" not in parameters
    assert "options=-c%20work_mem%3D8MB%20-c%20" in parameters


# ---------------------------------------------------------------------------------------- what needs no server

POSTGRESQL = "postgresql://me:secret@127.0.0.1:1/ledger"


def test_postgresql_needs_neither_a_file_nor_a_disk() -> None:
    database = Database(POSTGRESQL)
    assert database.lock() is None
    assert database.has_room()
    with database.locked():
        pass
    assert (database.is_postgresql, database.shared, database.path) == (True, True, None)
    assert not Database("sqlite:///ledger.db").is_postgresql


def test_adbc_reads_a_file_of_sqlite_and_no_more(tmp_path: Path) -> None:
    assert Database(f"sqlite:///{tmp_path}/a b.db").arrow_uri == f"file:{tmp_path}/a%20b.db?mode=ro"


@pytest.mark.parametrize("query", ["", "?options=-c%20work_mem%3D8MB"])
def test_adbc_only_reads_from_postgresql(query: str) -> None:
    uri = Database(POSTGRESQL + query).arrow_uri
    assert uri.startswith("postgresql://me:secret@127.0.0.1:1/ledger?")
    assert "default_transaction_read_only%3Don" in uri


@pytest.mark.parametrize(
    ("url", "is_keyed", "hinted", "tuned"),
    [
        (POSTGRESQL, True, True, True),
        (POSTGRESQL, False, False, True),
        ("sqlite:///ledger.db", True, False, False),
        ("sqlite:///ledger.db", False, False, False),
    ],
)
def test_which_connections_are_tuned(url: str, is_keyed: bool, hinted: bool, tuned: bool) -> None:
    """Hints are for statements that find rows by an index, and a commit that can be lost is switched off for all."""
    writer, readers = Database(url).writer(keyed=is_keyed), Database(url).readers()
    assert sa.event.contains(writer, "connect", engine._tune_keyed) is hinted
    assert not sa.event.contains(readers, "connect", engine._tune_keyed)
    for each in (writer, readers):
        assert sa.event.contains(each, "connect", engine._tune_postgresql) is tuned


class Noted:
    """A connection to PostgreSQL that runs nothing."""

    def __init__(self) -> None:
        self.ran: list[str] = []

    def execute(self, text: str) -> None:
        self.ran.append(text)

    def commit(self) -> None:
        self.ran.append("commit")


def test_what_a_connection_to_postgresql_is_told() -> None:
    keyed, plain = Noted(), Noted()
    engine._tune_keyed(keyed, None)
    engine._tune_postgresql(plain, None)
    assert keyed.ran == [
        *(f"SET enable_{plan} = off" for plan in ("bitmapscan", "hashjoin", "mergejoin", "seqscan")), "commit",
    ]  # fmt: skip
    assert ["synchronous_commit" in text for text in plain.ran] == [True, False]
    assert plain.ran[-1] == "commit", "else the setting goes with the transaction"


def test_no_more_readers_than_there_may_be(tmp_path: Path) -> None:
    made = Database(f"sqlite:///{tmp_path}/ledger.db").readers()
    pool: Any = made.pool
    pool._timeout = 0.01
    connections = [made.connect() for _ in range(engine.READERS)]
    with pytest.raises(exc.TimeoutError):
        made.connect()
    for connection in connections:
        connection.close()
    made.connect().close()
    made.dispose()


def test_a_new_file_gives_its_pages_back(tmp_path: Path) -> None:
    """One that is there keeps what it has."""
    database = Database(f"sqlite:///{tmp_path}/ledger.db")
    for _ in range(2):
        made = database.writer()
        with made.begin() as connection:
            connection.exec_driver_sql("CREATE TABLE IF NOT EXISTS t (n INTEGER)")
            assert connection.exec_driver_sql("PRAGMA auto_vacuum").scalar() == 2
        made.dispose()
    with sqlite3.connect(tmp_path / "old.db") as old:
        old.execute("CREATE TABLE t (n INTEGER)")
    old.close()
    made = Database(f"sqlite:///{tmp_path}/old.db").writer()
    with made.begin() as connection:
        assert connection.exec_driver_sql("PRAGMA auto_vacuum").scalar() == 0
    made.dispose()


@pytest.mark.parametrize(("free", "has_room"), [(-1, False), (0, True), (1, True)])
def test_room_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, has_room: bool) -> None:
    usage = SimpleNamespace(free=engine.ROOM + free)
    monkeypatch.setattr("gateway.ledger.db.engine.shutil.disk_usage", lambda _: usage)
    assert Database(f"sqlite:///{tmp_path}/ledger.db").has_room() is has_room


def test_a_lock_file_that_says_nothing(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path}/ledger.db")
    with database.locked():
        (tmp_path / "ledger.db.lock").write_text("")
        with pytest.raises(LedgerUnavailable, match=r"\(pid unknown\)"):
            database.lock()
    with database.locked():
        assert (tmp_path / "ledger.db.lock").read_text() == f"{os.getpid()}\n"


def test_the_last_of_the_mounts_at_a_place_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounts = tmp_path / "mountinfo"
    monkeypatch.setattr(engine, "MOUNTS", mounts)
    for kinds in (("ext4", "nfs4"), ("nfs4", "ext4")):
        lines = [f"{number} 0 8:1 / {tmp_path} rw - {kind} /dev/x rw" for number, kind in enumerate(kinds)]
        mounts.write_text(
            "\n".join(["9 0 8:1 / / rw - xfs /dev/y rw", *lines, "10 0 8:1 / /elsewhere/long rw - tmpfs x rw"])
        )
        assert filesystem_of(tmp_path) == kinds[1]
    mounts.write_text(f"1 0 8:1 / {tmp_path}/other rw - nfs4 x rw\n9 0 8:1 / / rw - xfs /dev/y rw\n")
    assert filesystem_of(tmp_path) == "xfs"


def failed(code: int) -> sqlite3.Error:
    error = sqlite3.OperationalError("it failed")
    error.sqlite_errorcode = code
    return error


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (failed(sqlite3.SQLITE_FULL), LedgerFull),
        (failed(sqlite3.SQLITE_CORRUPT), LedgerDamaged),
        (failed(sqlite3.SQLITE_CORRUPT | 3 << 8), LedgerDamaged),
        (failed(sqlite3.SQLITE_NOTADB), LedgerDamaged),
        (failed(sqlite3.SQLITE_BUSY), LedgerUnavailable),
        (psycopg.errors.DiskFull("it failed"), LedgerFull),
        (psycopg.errors.AdminShutdown("it failed"), LedgerUnavailable),
    ],
)
def test_what_an_error_of_the_database_means(error: Exception, kind: type[LedgerUnavailable]) -> None:
    for each in (error, exc.OperationalError("statement", {}, error)):
        found = unavailable(each)
        assert type(found) is kind
        assert "it failed" in str(found)


class Cut:
    """A connection whose next statement fails."""

    def __init__(self, is_lost: bool) -> None:
        self.invalidated: list[BaseException | None] = []
        self.connection = SimpleNamespace(dbapi_connection=self)
        dbapi = SimpleNamespace(Error=psycopg.Error)
        self.dialect = SimpleNamespace(
            loaded_dbapi=dbapi, is_disconnect=lambda *_: is_lost, name="postgresql", dbapi_exception_translation_map={}
        )

    def execute(self, text: str, parameters: Any) -> Any:
        raise psycopg.OperationalError("the server closed the connection")

    def invalidate(self, error: BaseException) -> None:
        self.invalidated.append(error)


@pytest.mark.parametrize("lost", [True, False])
def test_a_connection_that_is_lost_is_not_used_again(lost: bool) -> None:
    cut: Any = Cut(lost)
    with pytest.raises(exc.OperationalError) as caught:
        run(cut, "INSERT INTO t VALUES (%(a)s)", {"a": "a secret"})
    assert is_lost(caught.value) is lost
    assert len(cut.invalidated) == lost
    assert "a secret" not in str(caught.value), "what a message holds is in no error"
