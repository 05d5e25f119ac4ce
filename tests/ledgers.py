"""Ledgers for tests that only use them.

Bringing the schema up to date takes longer than most tests, so it is done once in a process. On SQLite each test gets a
copy of the file. On PostgreSQL, which takes as long for a copy, each test gets the database of the one before, emptied;
or a new one where more than rows were changed. Tests of the schema itself do without.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import psycopg

from gateway.ledger.db import schema
from gateway.ledger.db.engine import Database
from tests.servers import PostgreSQL

GROWTH: Final = 2 << 20
"""A database that has grown by so many octets is not used again."""
_ALIKE: Final = """
    SELECT string_agg(concat_ws(' ', oid, relname, relnatts, relispartition, relhastriggers), ',' ORDER BY oid),
        (SELECT string_agg(version_num, ' ') FROM alembic_version)
    FROM pg_class WHERE relnamespace = 'public'::regnamespace
"""
"""What is the same before and after a test that changed nothing but rows."""
_ALONE: Final = """
    SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid()
"""
"""Ends the other connections, and waits until they have."""
_TABLES: Final = """
    SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace
        AND relkind IN ('r', 'p') AND NOT relispartition AND relname <> 'alembic_version'
"""


@cache
def _migrated() -> bytes:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "ledger.db"
        schema.migrate(Database(f"sqlite:///{path}"))
        assert [each.name for each in path.parent.iterdir()] == [path.name], "nothing of it is in a journal"
        return path.read_bytes()


def sqlite_ledger(folder: Path) -> str:
    """The URL of a ledger in ``folder``, up to date and empty unless there was one."""
    path = folder / "ledger.db"
    if not path.exists():
        folder.mkdir(mode=0o700, exist_ok=True)
        path.touch(mode=0o600)
        path.write_bytes(_migrated())
    return f"sqlite:///{path}"


class PostgresqlLedgers:
    """Ledgers on a server, one at a time."""

    def __init__(self, server: PostgreSQL) -> None:
        self._server = server
        self._url = ""
        """Of the database that there is."""
        self._made: tuple[object, ...] = ()
        self._size = 0

    def take(self) -> str:
        """The SQLAlchemy URL of a ledger, up to date and empty."""
        if not self._url:
            self._url = self._server.create_database()
            schema.migrate(Database(self._url))
            with self._connect() as connection:
                self._made, self._size = self._alike(connection)
        return self._url

    def give_back(self) -> None:
        """The test is over that had it."""
        with self._connect() as connection:
            connection.execute(_ALONE)
            made, size = self._alike(connection)
            if made == self._made and size - self._size < GROWTH:
                for (table,) in connection.execute(_TABLES).fetchall():
                    connection.execute(f'DELETE FROM "{table}"')
                return
        self.close()

    def close(self) -> None:
        """Drop what there is."""
        if self._url:
            self._server.drop_database(self._url)
            self._url = ""

    def _connect(self) -> psycopg.Connection[tuple[object, ...]]:
        return psycopg.connect(self._url.replace("+psycopg", ""), autocommit=True)

    @staticmethod
    def _alike(connection: psycopg.Connection[tuple[object, ...]]) -> tuple[tuple[object, ...], int]:
        made = connection.execute(_ALIKE).fetchone()
        size = connection.execute("SELECT pg_database_size(current_database())").fetchone()
        assert made is not None
        assert size is not None
        return made, int(str(size[0]))
