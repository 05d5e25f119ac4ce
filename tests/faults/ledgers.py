"""Ledgers that can be hurt: a SQLite file that somebody locks, a disk that fills up, a PostgreSQL behind a proxy.

A :class:`Place` is where a run keeps its ledger. What must hold of its rows when the run is over is in
:meth:`Place.check`: every event once and behind one that it may follow, sequence numbers without a gap, nothing owed to
anybody.
"""

from __future__ import annotations

import atexit
import contextlib
import resource
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psycopg

from gateway.ledger import EventKind
from gateway.ledger.writing.states import LATE_KINDS
from tests.faults.proxy import Proxy
from tests.ledgers import sqlite_ledger
from tests.servers import PostgreSQL
from tests.servers.process import HOST
from tests.traces import QUERY, impossible_traces

if TYPE_CHECKING:
    from tests.faults.harness import Run

DISK: Final = 64 << 20
"""Size of the disk that fills up, in octets."""
_LOCKER: Final = """\
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=30)
connection.execute("BEGIN EXCLUSIVE")
print("locked", flush=True)
sys.stdin.read()
connection.execute("ROLLBACK")
"""
_OF_COPIES: Final = ", ".join(f"'{kind.value}'" for kind in (*LATE_KINDS, EventKind.DUPLICATE_DROPPED))
_CHECKS: Final = {
    "events that are there twice": f"""
        SELECT count(*) FROM (
            SELECT 1 FROM events AS each GROUP BY message_id, kind, at HAVING count(*) > 1 + CASE
                WHEN kind IN ({_OF_COPIES}) THEN
                    (SELECT count(*) FROM events AS sent
                        WHERE sent.message_id = each.message_id AND sent.kind = 'resent')
                ELSE 0 END) AS doubled""",
    "messages that were accepted twice": """
        SELECT count(*) FROM (
            SELECT 1 FROM events WHERE kind = 'accepted' GROUP BY message_id HAVING count(*) > 1) AS doubled""",
    "shards with gaps in their sequence": """
        SELECT count(*) FROM (
            SELECT 1 FROM events GROUP BY shard HAVING max(sequence) - min(sequence) + 1 <> count(*)) AS gaps""",
    "answers that are still owed": "SELECT count(*) FROM obligations WHERE status <> 'parked'",
}
"""What must be 0 at the end of a run -> how to count it. A message that was sent again may be in its queue twice. Where
one pull hands out both copies, each has its event, at one time."""


class Place:
    """Where a run keeps its ledger."""

    url: str

    def __enter__(self) -> Place:
        return self

    def __exit__(self, *exc: object) -> None:
        return None

    def query(self, statement: str) -> list[tuple[Any, ...]]:
        """Ask the database itself."""
        raise NotImplementedError

    def check(self, run: Run) -> None:
        """When the run is over: what its rows must be like."""
        for what, statement in _CHECKS.items():
            ((count,),) = self.query(statement)
            assert count == 0, f"{run.name}: {count} {what}"
        traces = impossible_traces(self.query(QUERY))
        assert not traces, f"{run.name}: {len(traces)} {traces[:5]}"


class SqliteFile(Place):
    """A file in a folder of its own."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="gateway-ledger-"))
        self.file = self.folder / "ledger.db"
        self.url = f"sqlite:///{self.file}"

    def __enter__(self) -> SqliteFile:
        sqlite_ledger(self.folder)
        return self

    def __exit__(self, *exc: object) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def query(self, statement: str) -> list[tuple[Any, ...]]:
        with contextlib.closing(sqlite3.connect(self.file)) as connection:
            return connection.execute(statement).fetchall()

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Another process holds ``BEGIN EXCLUSIVE`` while the context lasts."""
        command = [sys.executable, "-c", _LOCKER, str(self.file)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as locker:
            assert locker.stdout is not None
            assert locker.stdout.readline() == "locked\n"
            try:
                yield
            finally:
                locker.communicate("")


class SmallDisk(SqliteFile):
    """A file on a disk that can be filled up: a tmpfs, or, where none can be mounted, a limit to the size of files,
    which the system reports as another error (EFBIG in place of ENOSPC)."""

    def __init__(self) -> None:
        super().__init__()
        command = ["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", str(self.folder)]
        try:
            self.mounted = subprocess.run(command, capture_output=True).returncode == 0
        except OSError:
            self.mounted = False
        self._ballast = self.folder / "ballast"

    def __exit__(self, *exc: object) -> None:
        if self.mounted:
            subprocess.run(["umount", str(self.folder)], check=True)
        super().__exit__(*exc)

    @contextlib.contextmanager
    def full(self, pid: int) -> Iterator[None]:
        """There is no room for what the process ``pid`` writes to the ledger, while the context lasts."""
        if not self.mounted:
            sizes = [path.stat().st_size for path in self.folder.glob("ledger.db*")]
            before = resource.prlimit(pid, resource.RLIMIT_FSIZE)
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (max(sizes), before[1]))
            try:
                yield
            finally:
                resource.prlimit(pid, resource.RLIMIT_FSIZE, before)
            return
        size = 1 << 20
        with self._ballast.open("wb", buffering=0) as ballast:
            while size >= 512:  # to the last octet
                try:
                    ballast.write(bytes(size))
                except OSError:
                    size //= 2
        try:
            yield
        finally:
            self._ballast.unlink()


class Postgres(Place):
    """A PostgreSQL of its own, behind a proxy."""

    def __init__(self, options: str = "") -> None:
        """``options``: of libpq, over the gateway's own."""
        self._options = options

    def __enter__(self) -> Postgres:
        self.server = _postgresql()
        self._database = self.server.create_database().rpartition("/")[2]
        self.proxy = Proxy(self.server.port)
        query = f"?options={self._options.replace(' ', '%20').replace('=', '%3D')}" if self._options else ""
        self.url = f"postgresql://gateway@{HOST}:{self.proxy.port}/{self._database}{query}"
        return self

    def __exit__(self, *exc: object) -> None:
        self.proxy.close()

    def connect(self, **options: Any) -> psycopg.Connection[Any]:
        """A connection of our own, past the proxy."""
        return psycopg.connect(host=HOST, port=self.server.port, user="gateway", dbname=self._database, **options)

    def query(self, statement: str) -> list[tuple[Any, ...]]:
        with self.connect(autocommit=True) as connection:
            return connection.execute(statement.encode()).fetchall()

    def terminate_backends(self) -> int:
        """End every backend that serves the gateway; how many these were."""
        ended = self.query(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        return len(ended)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Nobody gets at the table of events while the context lasts."""
        with self.connect() as connection:
            connection.execute("LOCK TABLE events IN ACCESS EXCLUSIVE MODE")
            yield


_started: list[PostgreSQL] = []


def _postgresql() -> PostgreSQL:
    """One for all runs of this process, each with a database of its own; ended with the process."""
    if not _started:
        _started.append(PostgreSQL().start())
        atexit.register(_started[0].stop)
    server = _started[0]
    if not server.running:
        server.restart()
    return server
