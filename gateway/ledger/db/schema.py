"""The schema: migrations, the revision check at start, the partitions of the days to come.

Migrations are Alembic's, in ``migrations/`` of a checkout and ``gateway/_migrations`` of an installation; there is
no ``alembic.ini``. Revisions are numbered ``0001``, ``0002``, ... A process refuses an older schema than its own
and takes one that is newer by one, so that a release can be rolled out while the one before it still runs (expand,
migrate, contract).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy import exc

from gateway.errors import ConfigurationError
from gateway.ledger.db.commit_count import forget_commits
from gateway.ledger.db.engine import Database, unavailable
from gateway.ledger.db.ids import DAY_MS, first_id
from gateway.ledger.db.models import PARTITIONED, UInt64, metadata
from gateway.runtime.clock import clock

if TYPE_CHECKING:
    from alembic.config import Config as AlembicConfig
    from alembic.runtime.migration import MigrationContext

HEAD = 10
"""The number of the revision that this code is written for."""
DAYS_AHEAD = 7
"""For how many days after today there are partitions."""
ADVISORY_LOCK = 0x616D7170
"""Held on PostgreSQL while the schema changes ("amqp")."""


def migrations_folder() -> Path:
    """Where the migrations are: in the installed package, or beside it in a checkout."""
    package = Path(__file__).resolve().parents[2]
    installed = package / "_migrations"
    return installed if installed.is_dir() else package.parent / "migrations"


def alembic_config(connection: sa.Connection | None = None) -> AlembicConfig:
    """Alembic's configuration, with the connection that ``env.py`` is to use."""
    from alembic.config import Config as AlembicConfig  # imported late: it is as slow as all the rest together

    config = AlembicConfig()
    config.set_main_option("script_location", str(migrations_folder()).replace("%", "%%"))
    config.attributes["connection"] = connection
    return config


def configuration() -> dict[str, Any]:
    """What ``env.py`` tells Alembic: the tables, and how to compare them with a database."""
    return {
        "target_metadata": metadata,
        "transactional_ddl": True,
        "include_name": lambda name, kind, _: not (kind == "table" and _PARTITION.fullmatch(name or "")),
        "compare_type": _type_differs,
    }


_IS_MADE = {
    "sqlite": "SELECT EXISTS (SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'alembic_version')",
    "postgresql": "SELECT to_regclass('alembic_version') IS NOT NULL",
}
"""Dialect -> whether there is a schema."""
_PARTITION = re.compile(rf"({'|'.join(PARTITIONED)})_(default|d\d+)")


def _type_differs(context: MigrationContext, _inspected: Any, _column: Any, there: Any, ours: Any) -> bool:
    assert context.dialect is not None
    if isinstance(ours, UInt64) and context.dialect.name == "sqlite":
        return not isinstance(there, sa.Numeric)  # so SQLAlchemy calls SQLite's ANY
    return str(there.compile(context.dialect)) != str(ours.compile(context.dialect))


def migrate(database: Database, revision: str = "head") -> None:
    """Upgrade (or, to a lower number, downgrade) the schema. Blocks. The caller holds the file's lock.

    Raises:
        LedgerUnavailable: the database is away or locked.
        ConfigurationError: it is newer by more than one revision.
    """
    engine = database.writer()
    try:
        with engine.connect() as connection:
            if database.is_postgresql:
                # Waits for another migration as long as that takes; the tables themselves are not waited for.
                connection.execute(sa.text("SET statement_timeout = 0"))
                connection.execute(sa.text("SET lock_timeout = 0"))
                # Between two statements Alembic reads its files, which takes its time on a machine that is busy.
                connection.execute(sa.text("SET idle_in_transaction_session_timeout = '60s'"))
                connection.execute(sa.text("SELECT pg_advisory_lock(:key)"), {"key": ADVISORY_LOCK})
                connection.execute(sa.text("SET lock_timeout = '2s'"))
                connection.commit()
            if revision != "head" or current(connection) < HEAD:
                _run(connection, revision)
                if database.path is not None and not current(connection):
                    forget_commits(database.path)  # all of it is gone, as was asked for
            if revision == "head":
                check(connection)  # one that is newer is as it should be, or cannot be helped by this release
            if current(connection) >= HEAD:
                ensure_partitions(connection, clock.now())
                connection.commit()
            if not database.is_postgresql:
                _give_pages_back(connection)
    except exc.DBAPIError as error:
        raise unavailable(error) from error
    finally:
        engine.dispose()


def _run(connection: sa.Connection, revision: str) -> None:
    from alembic import command  # imported late: it is as slow as all the rest together

    config = alembic_config(connection)
    down = revision == "base" or (revision.isdigit() and int(revision) < current(connection))
    (command.downgrade if down else command.upgrade)(config, revision)
    if connection.in_transaction():
        connection.commit()


def _give_pages_back(connection: sa.Connection) -> None:
    """SQLite: have a file that was made without it keep account of its pages, so that what is deleted can be given back
    to the disk. That rewrites the file."""
    driver: Any = connection.connection.dbapi_connection
    if connection.in_transaction():
        connection.commit()
    if driver.execute("PRAGMA auto_vacuum").fetchone() == (0,):
        driver.execute("PRAGMA auto_vacuum = INCREMENTAL")
        driver.execute("VACUUM")


def current(connection: sa.Connection) -> int:
    """The number of the database's revision; 0: there is no schema yet."""
    if not connection.exec_driver_sql(_IS_MADE[connection.dialect.name]).scalar():
        return 0
    found = connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar()
    return int(found) if found is not None else 0


def check(connection: sa.Connection) -> None:
    """
    Raises:
        ConfigurationError: the schema is older than this code, or newer by more than one revision.
    """
    found = current(connection)
    if found < HEAD:
        what = "has no schema yet" if found == 0 else f"has schema revision {found:04}, this release needs {HEAD:04}"
        raise ConfigurationError(f"the ledger {what}: run 'gateway migrate'")
    if found > HEAD + 1:
        raise ConfigurationError(
            f"the ledger has schema revision {found:04}, this release knows {HEAD:04} and tolerates one more: "
            "use a newer release"
        )


def make_partitions(connection: sa.Connection, now: float) -> None:
    """:func:`ensure_partitions` beside running traffic: alone, committed, and with little patience for locks."""
    if connection.dialect.name == "postgresql":
        connection.execute(sa.text("SET LOCAL lock_timeout = '1s'"))
        connection.execute(sa.text("SELECT pg_advisory_xact_lock(:key)"), {"key": ADVISORY_LOCK})
        ensure_partitions(connection, now)
        connection.commit()


def ensure_partitions(connection: sa.Connection, now: float) -> list[str]:
    """Make the partitions of today and the next :data:`DAYS_AHEAD` days (PostgreSQL; elsewhere there are none).

    A day whose rows are already in the default partition, because nobody made it in time, stays there. ``now`` is
    in seconds since 1970. Returns the names of the new partitions.
    """
    if connection.dialect.name != "postgresql":
        return []
    made = []
    today = int(now * 1000) // DAY_MS
    existing = set(sa.inspect(connection).get_table_names())
    for table, column in PARTITIONED.items():
        for day in range(today, today + DAYS_AHEAD + 1):
            name = partition_name(table, day)
            low, high = first_id(day * DAY_MS), first_id((day + 1) * DAY_MS)
            if name in existing or _in_default(connection, table, column, low, high):
                continue
            connection.execute(
                sa.text(
                    f"CREATE TABLE IF NOT EXISTS {name} PARTITION OF {table} "
                    f"FOR VALUES FROM ('\\x{low.hex()}') TO ('\\x{high.hex()}')"
                )
            )
            made.append(name)
    return made


def partition_name(table: str, day: int) -> str:
    """The partition of a day, counted in days since 1970: ``events_d20454``."""
    return f"{table}_d{day}"


def _in_default(connection: sa.Connection, table: str, column: str, low: bytes, high: bytes) -> bool:
    default = sa.table(f"{table}_default", sa.column(column, sa.LargeBinary))
    there = sa.select(sa.exists().where(default.c[column] >= low, default.c[column] < high))
    return bool(connection.execute(there).scalar())
