"""The two databases: how to connect, what to set, and which of their errors mean what.

SQLite is a file of one process: WAL, ``synchronous=FULL``, and a lock file beside it that says whose it is.
PostgreSQL is shared; a connection that hangs must not hang the gateway, so everything there has a deadline, and
``synchronous_commit=off`` is switched back on, since a commit that can be lost is no promise.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, TypeVar
from urllib.parse import quote

import sqlalchemy as sa
from sqlalchemy import exc
from sqlalchemy.pool import NullPool

from gateway.durable import make_folder
from gateway.errors import ConfigurationError, LedgerDamaged, LedgerFull, LedgerUnavailable

T = TypeVar("T")
Row = tuple[Any, ...]
BUSY_TIMEOUT = 5.0
"""How long a statement waits for SQLite's lock, in seconds."""
ROOM = 1 << 20
"""Least free space, in octets, with which a ledger that was in trouble counts as healthy."""
DISK_FULL = "53100"
"""PostgreSQL's code for a full disk."""
STATEMENTS = 256
"""Prepared statements that a connection to SQLite keeps; :mod:`gateway.ledger.writing.inserts` has up to 80."""
READERS = 4
"""Connections that read."""
WRITER_CACHE = 4_000
"""Pages that SQLite keeps for the connection that writes, in KiB. Keys lie anywhere in their index, so they fill
what there is: among 160,000 keys 16,000 took 8 MB more memory than 4,000, and no less CPU."""
READER_CACHE = 500
"""The same for each that reads. A commit of others empties it, so it serves one transaction at most; and a look-up that
touches each run of the inbox fills as much of it as there is. With 16,000 memory grew with the inbox, up to 14 MB for
each reader, and 1,000 keys among a million rows took 118 to 135 ms of CPU; with 2,000 it was 106 to 108. 1,000 messages
and 1,000 keys, anywhere in a ledger of 340 MB, took 29 to 44 ms with 250, 500, 1,000, 2,000 and 4,000 alike."""
MOUNTS = Path("/proc/self/mountinfo")
NETWORK_FILESYSTEMS = frozenset(
    {"9p", "afs", "ceph", "cifs", "fuse.glusterfs", "fuse.s3fs", "fuse.sshfs", "gfs2", "nfs", "nfs4", "smb3", "smbfs"}
)
"""Where file locks and shared memory do not do what SQLite needs of them."""
POSTGRESQL_DEFAULTS = {
    "connect_timeout": "5",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "15000",
    "application_name": "amqp-gateway",
    "options": "-c statement_timeout=30s -c lock_timeout=5s -c idle_in_transaction_session_timeout=5s",
}
"""libpq parameters, where the URL does not set them."""
ARROW_SETTINGS = {
    "jit": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "enable_seqscan": "off",
    "default_transaction_read_only": "on",
}
"""Further settings of PostgreSQL for readers of ranges of a log: a range is found by an index, and its messages one
by one by theirs, in spite of the planner's view of tables that grow faster than it counts them."""

BAD_ROW_ERRORS = (exc.IntegrityError, exc.DataError)
"""The database will not have this row; another may be fine."""
SQLITE_CLOCK = "CAST((julianday('now') - 2440587.5) * 86400000000 AS INTEGER)"
POSTGRESQL_CLOCK = "CAST(extract(epoch FROM clock_timestamp()) * 1000000 AS BIGINT)"


class Database:
    """A ledger's database: dialect, and how to get a connection."""

    def __init__(self, url: str) -> None:
        """
        Raises:
            ConfigurationError: no URL of a database that we know.
        """
        self.url = _parse(url)
        self.dialect = self.url.get_backend_name()
        """``sqlite`` or ``postgresql``."""
        self.path = Path(self.url.database or "") if self.dialect == "sqlite" else None
        self.clock = clock_of(self.dialect)
        """The database's clock, in microseconds since 1970."""

    @property
    def arrow_uri(self) -> str:
        """Where it is, for ADBC's drivers: to read from, and not to be shown, since a password may be in it. SQLite's
        must not be used in a process that has the ledger open (:mod:`gateway.logs.arrow`)."""
        if self.path is not None:
            return f"file:{quote(str(self.path.absolute()))}?mode=ro"
        query = dict(self.url.query)
        more = (f"-c {name}={value}" for name, value in ARROW_SETTINGS.items())
        query["options"] = " ".join((str(query.get("options", "")), *more)).strip()
        text = self.url.set(drivername="postgresql", query=query).render_as_string(hide_password=False)
        where, mark, parameters = text.partition("?")
        return where + mark + parameters.replace("+", "%20")  # libpq takes a plus for a plus

    @property
    def shared(self) -> bool:
        """Other processes may write too."""
        return self.dialect != "sqlite"

    @property
    def is_postgresql(self) -> bool:
        """Statements may use what only PostgreSQL has."""
        return self.dialect == "postgresql"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Own the file while the context lasts (PostgreSQL: nothing to own)."""
        lock = self.lock()
        try:
            yield
        finally:
            if lock is not None:
                lock.close()

    def lock(self) -> IO[bytes] | None:
        """Lock the file for this process; closing what is returned unlocks it.

        Raises:
            LedgerUnavailable: another process has it, or its folder cannot be written.
            ConfigurationError: it lies on a network filesystem.
        """
        if self.path is None:
            return None
        try:
            make_folder(self.path.parent)
            filesystem = filesystem_of(self.path.parent)
            if filesystem in NETWORK_FILESYSTEMS:
                raise ConfigurationError(
                    f"ledger.url: {self.path} is on a network filesystem ({filesystem}); SQLite needs a local disk"
                )
            # The ledger holds messages: for its owner only. SQLite's other files follow the first one's mode.
            os.close(os.open(self.path, os.O_CREAT | os.O_RDWR, 0o600))
            lock = open(f"{self.path}.lock", "a+b")  # noqa: SIM115
        except OSError as error:
            raise LedgerUnavailable(f"the ledger {self.path} cannot be opened: {error.strerror}") from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.seek(0)
            holder = lock.read(20).decode("ascii", "replace").strip() or "unknown"
            lock.close()
            raise LedgerUnavailable(
                f"the ledger {self.path} is in use by another process (pid {holder}); SQLite serves one process, "
                "use PostgreSQL for several"
            ) from None
        lock.truncate(0)
        lock.write(b"%d\n" % os.getpid())
        lock.flush()
        return lock

    def has_room(self) -> bool:
        """Whether its disk has room for more than what is left over by chance: a write that fails for want of space
        may be followed by one that finds some in a file that is there already. PostgreSQL knows for itself."""
        if self.path is None:
            return True
        try:
            return shutil.disk_usage(self.path.parent).free >= ROOM
        except OSError:
            return False

    def writer(self, *, keyed: bool = False) -> sa.Engine:
        """The engine of the one connection that writes. ``keyed``: all that it runs finds its rows by an index, and
        PostgreSQL gets a hint. Tables of pending entries fill and empty faster than it counts them: it would read all
        of a table that it takes for empty, or sort 100,000 rows to hand out the first ten."""
        engine = self._engine("BEGIN IMMEDIATE", WRITER_CACHE, poolclass=NullPool)
        if keyed and self.is_postgresql:
            sa.event.listen(engine, "connect", _tune_keyed)
        return engine

    def readers(self) -> sa.Engine:
        """The engine of those that read."""
        return self._engine("BEGIN", READER_CACHE, pool_size=READERS, max_overflow=0, pool_pre_ping=self.shared)

    def _engine(self, begin: str, cache: int, **options: Any) -> sa.Engine:
        """``cache``: of a connection to SQLite, in KiB."""
        if self.dialect == "sqlite":
            options["connect_args"] = {
                "timeout": BUSY_TIMEOUT,
                "check_same_thread": False,
                "isolation_level": None,
                "cached_statements": STATEMENTS,
            }
        engine = sa.create_engine(self.url, **options)
        if self.dialect == "sqlite":
            sa.event.listen(engine, "connect", lambda connection, _: _tune_sqlite(connection, cache))
            # The driver's own BEGIN comes before writes only; this one also covers a transaction of several reads. The
            # dialect says it, because each statement of an engine that has events asks for them.
            dialect: Any = engine.dialect
            dialect.do_begin = lambda connection: connection.execute(begin)
        else:
            sa.event.listen(engine, "connect", _tune_postgresql)
        return engine


def clock_of(dialect: str) -> sa.ColumnElement[int]:
    """Return the clock of a database, in microseconds since 1970."""
    return sa.literal_column(SQLITE_CLOCK if dialect == "sqlite" else POSTGRESQL_CLOCK, sa.BigInteger)


def run(connection: sa.Connection, text: str, parameters: Sequence[Any] | Mapping[str, Any] = ()) -> list[Row]:
    """Execute a statement in the driver's words, inside the connection's transaction; all that it returns. Errors are
    SQLAlchemy's, but its cursors, contexts and rows, which cost as much as a small statement, are left out."""
    return _execute(connection, text, parameters, _returned)


def write(connection: sa.Connection, text: str, parameters: Sequence[Any] | Mapping[str, Any] = ()) -> int:
    """The same; how many rows it wrote or deleted."""
    return _execute(connection, text, parameters, _written)


def _returned(cursor: Any) -> list[Row]:
    return cursor.fetchall() if cursor.description else []


def _written(cursor: Any) -> int:
    return int(cursor.rowcount)


def _execute(
    connection: sa.Connection, text: str, parameters: Sequence[Any] | Mapping[str, Any], what: Callable[[Any], T]
) -> T:
    driver: Any = connection.connection.dbapi_connection
    dialect = connection.dialect
    try:
        return what(driver.execute(text, parameters))
    except dialect.loaded_dbapi.Error as error:
        lost = dialect.is_disconnect(error, driver, None)
        if lost:
            connection.invalidate(error)
        raise exc.DBAPIError.instance(
            text,
            parameters,
            error,
            dialect.loaded_dbapi.Error,
            hide_parameters=True,
            connection_invalidated=lost,
            dialect=dialect,
        ) from error


def is_lost(error: BaseException) -> bool:
    """The connection died under the statement."""
    return isinstance(error, exc.DBAPIError) and error.connection_invalidated


def is_deadlock(error: BaseException) -> bool:
    """PostgreSQL chose this transaction to end a deadlock or a conflict; the same again may go through."""
    return getattr(getattr(error, "orig", None), "sqlstate", None) in ("40P01", "40001")


def unavailable(error: BaseException) -> LedgerUnavailable:
    """The text for callers about a database error."""
    original = getattr(error, "orig", None) or error
    text = str(original).strip().splitlines() or [type(original).__name__]
    if getattr(original, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return LedgerDamaged(f"the ledger is damaged: {text[0]}. Stop the gateway, and restore a backup")
    is_full = (
        getattr(original, "sqlstate", None) == DISK_FULL
        or getattr(original, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL
    )
    return (LedgerFull if is_full else LedgerUnavailable)(f"the ledger cannot be written: {text[0]}")


def filesystem_of(folder: Path) -> str:
    """The type of the filesystem a folder is on; empty where the system does not tell."""
    try:
        lines = MOUNTS.read_text("utf-8", "surrogateescape").splitlines()
    except OSError:
        return ""
    place = str(folder.resolve()) + "/"
    found, longest = "", -1
    for line in lines:
        mount, _, source = line.partition(" - ")
        point = mount.split(" ")[4].encode().decode("unicode_escape").rstrip("/") + "/"
        if place.startswith(point) and len(point) >= longest:
            found, longest = source.split(" ")[0], len(point)
    return found


def _parse(url: str) -> sa.URL:
    try:
        parsed = sa.make_url(url)
    except (exc.ArgumentError, ValueError):  # the latter where the port is no number
        raise ConfigurationError("ledger.url: no URL of a database") from None
    scheme = parsed.drivername
    if scheme == "sqlite":
        if parsed.host or parsed.query or not parsed.database or parsed.database == ":memory:":
            raise ConfigurationError("ledger.url: SQLite is sqlite:///PATH, a file and nothing else")
        return parsed
    if scheme in ("postgresql", "postgres", "postgresql+psycopg"):
        missing = {name: value for name, value in POSTGRESQL_DEFAULTS.items() if name not in parsed.query}
        return parsed.set(drivername="postgresql+psycopg").update_query_dict(missing)
    raise ConfigurationError(f"ledger.url: scheme is {scheme!r}, not sqlite or postgresql")


def _tune_sqlite(connection: Any, cache: int) -> None:
    if connection.execute("PRAGMA page_count").fetchone()[0] == 0:
        # Of a new file, and before anything else is written to it. It takes the lock, which readers must not wait for.
        connection.execute("PRAGMA auto_vacuum=INCREMENTAL")
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute(f"PRAGMA cache_size=-{cache}")


def _tune_keyed(connection: Any, _: Any) -> None:
    for plan in ("bitmapscan", "hashjoin", "mergejoin", "seqscan"):
        connection.execute(f"SET enable_{plan} = off")
    connection.commit()


def _tune_postgresql(connection: Any, _: Any) -> None:
    connection.execute(
        "SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'"
    )
    connection.commit()
