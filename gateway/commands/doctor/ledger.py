"""The ledger, looked at and not touched.

SQLite: a file that a gateway may have open is read beside it, without a lock; one that nobody has open is read
as if it could not change, so that not even a journal is made. Who has it the system's table of locks tells.
PostgreSQL: one connection, one transaction that is READ ONLY.
"""

from __future__ import annotations

import json
import os
import sqlite3
import stat
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from gateway.access.scopes import doubt
from gateway.commands.doctor.files import database_of, nearest, who, writable
from gateway.commands.doctor.findings import Report
from gateway.commands.doctor.network import Unreachable, addresses
from gateway.config import Config, broker_names
from gateway.core.broker_documents import BROKER_RESOURCE
from gateway.errors import ConfigurationError
from gateway.exits import DAMAGED, USAGE
from gateway.ledger.checking import check
from gateway.ledger.db.engine import NETWORK_FILESYSTEMS, Database, filesystem_of
from gateway.ledger.db.ids import DAY_MS
from gateway.ledger.db.models import PARTITIONED, metadata
from gateway.ledger.db.schema import HEAD, partition_name
from gateway.runtime.clock import clock
from gateway.runtime.threads import threads
from gateway.upstreams.keeper import is_loopback
from gateway.webhooks.settings.secrets import key_of, load_seals

if TYPE_CHECKING:
    import psycopg

CLOCK_LOW: Final = 2.0
"""Clocks that are further apart than this are worth a word, in seconds."""
CLOCK_MAX: Final = 60.0
"""Beyond this gateways take no requests from each other, in seconds."""
CONNECTIONS: Final = 8
"""What one gateway needs of them, and one to spare."""
STATES: Final[dict[str, tuple[str, str]]] = {
    "28P01": ("the password is wrong", "Correct it in ledger.url (GATEWAY_LEDGER_URL, or GATEWAY_LEDGER_URL_FILE)."),
    "28000": (
        "the login is not known, or not allowed from here",
        "Correct the user of ledger.url, or look at pg_hba.conf.",
    ),
    "3D000": ("there is no such database", "createdb, or correct the name in ledger.url; then gateway migrate."),
    "53300": ("it takes no more connections", "Raise max_connections, or put a pooler (session mode) before it."),
    "57P03": ("it is starting or stopping", "Wait a moment."),
}
"""SQLSTATE -> what it means, what to do."""
SEALED: Final = "SELECT spec FROM resources WHERE kind IN ('endpoint', 'endpoint-state', 'broker') LIMIT 20000"
"""Documents with secrets in them."""
KEYS: Final = (
    "SELECT id, client, scopes FROM api_keys WHERE revoked_at = 0 AND (expires_at = 0 OR expires_at > ?)"
    " ORDER BY client, id LIMIT 20000"
)
"""Live keys of callers."""
RESOURCES: Final = (
    "SELECT kind, name, spec FROM resources WHERE kind IN ('subscription', 'bridge', 'tap', 'broker') LIMIT 20000"
)
"""What names brokers, and brokers."""
FAILED_ONCE: Final = "SELECT subscription FROM deliveries WHERE status = 0 AND attempt > 0 LIMIT 10000"
"""Of each message that waits after an attempt, its subscription."""
STORED_SCOPES_MAX: Final = 20
"""Most scopes of theirs that are named."""
TEXTS: Final = (
    ("password authentication failed", "28P01"),
    ("no password supplied", "28P01"),
    ("no pg_hba.conf entry", "28000"),
    ('role "', "28000"),
    ("does not exist", "3D000"),
    ("too many clients", "53300"),
    ("remaining connection slots", "53300"),
    ("the database system is", "57P03"),
)
"""Of a connection that failed libpq has no SQLSTATE, but the server's words."""


async def examine(report: Report, config: Config, within: float, *, deep: bool = False) -> None:
    """All of it. ``deep``: read every row of a ledger on SQLite, too."""
    try:
        database = database_of(config)
    except ConfigurationError as error:
        do = "sqlite:////absolute/path.db, or postgresql://user:password@host/database"
        report.fail("ledger.address", "ledger.url", str(error), do=do, status=USAGE)
        return
    if database.path is not None:
        await threads.run(_sqlite, report, config, database.path)
        if deep and database.path.exists():
            await threads.run(_content, report, database.path)
    else:
        await _postgresql(report, config, database, within)


def _revision(report: Report, where: str, found: int, *, by_itself: bool) -> None:
    """``by_itself``: the gateway brings the tables up to date when it starts."""
    needed = f"this release needs {HEAD:04}"
    if found == HEAD:
        report.ok("ledger.schema", where, f"its tables are of revision {found:04}, as this release needs them")
    elif not found and by_itself:
        report.ok("ledger.schema", where, "it has no tables yet; the next start makes them")
    elif found < HEAD and by_itself:
        what = f"its tables are of revision {found:04}, {needed}"
        report.warn(
            "ledger.schema", where, what, why="The next start brings them up to date; an older release then refuses.",
            do="Keep a copy of the file if you may want to go back.",
        )  # fmt: skip
    elif found < HEAD:
        what = f"its tables are of revision {found:04}, {needed}" if found else "it has no tables yet"
        report.fail("ledger.schema", where, what, why="gateway serve refuses to start.", do="Run gateway migrate.")
    elif found == HEAD + 1:
        report.warn(
            "ledger.schema", where, f"its tables are of revision {found:04}, one newer than this release knows",
            why="That is meant for the time of an upgrade.", do="Bring this gateway up to the newer release.",
        )  # fmt: skip
    else:
        report.fail(
            "ledger.schema", where, f"its tables are of revision {found:04}, this release knows {HEAD:04}",
            why="gateway serve refuses to start.", do="Use the newer release that made them.",
        )  # fmt: skip


def _sealed(report: Report, config: Config, specs: Iterable[bytes]) -> None:
    """Whether every secret in the ledger was sealed with a key that we have. ``specs``: the documents with them."""
    found: Counter[str] = Counter()
    for spec in specs:
        with suppress(ValueError):
            document = json.loads(spec)
            texts = [document.get("sealed"), *(key.get("sealed") for key in document.get("keys") or ())]
            found.update(key_of(text) for text in texts if text)
    file = Path(config.ledger.secrets_file or Path(config.data_dir) / "secrets.key")
    known: tuple[str, ...] = ()
    with suppress(ConfigurationError):
        known = load_seals(str(file), file).names if file.exists() else ()
    missing = {name: number for name, number in found.items() if name not in known}
    if missing:
        text = ", ".join(f"{number} with the key {name}" for name, number in sorted(missing.items()))
        report.fail(
            "files.secret", f"ledger.secrets_file {file}", f"the ledger has secrets that it does not open: {text}",
            why="Their endpoints and brokers are not called until the key is there, or the secrets are set again.",
            do="Put the file back with which they were sealed, as one more line: gateway secrets list.",
        )  # fmt: skip
    elif found:
        report.ok("files.secret", f"ledger.secrets_file {file}", f"it opens all {found.total()} secrets of the ledger")


def _stored_resources(
    report: Report, config: Config, rows: Sequence[tuple[object, ...]], tried: Iterable[tuple[object, ...]]
) -> None:
    """What the ledger defines: whether its brokers are configured, and whether pushed messages wait after a failure.
    ``rows``: kind, name and document; ``tried``: for each message that was tried, the name of its subscription."""
    brokers, missing, count = _brokers(config, rows), list[tuple[str, str]](), 0
    pushed = {name: settings.push for name, settings in config.subscriptions.items()}
    for kind, raw, spec in rows:
        if kind == BROKER_RESOURCE:
            continue
        name, count = _text(raw), count + 1
        with suppress(ValueError, AttributeError):
            document = json.loads(bytes(spec))  # type: ignore[call-overload]
            if kind == "subscription":
                pushed.setdefault(name, str(document.get("push", "")))
            for part in (document, document.get("source") or {}, document.get("target") or {}):
                for setting in ("broker", "dead_letter_broker"):
                    broker = part.get(setting)
                    if broker and broker not in brokers:
                        missing.append((f"{kind} {name}", str(broker)))
    for where, broker in missing[:STORED_SCOPES_MAX]:
        report.fail(
            "ledger.resources", where, f"no broker {broker!r} is configured", why="It takes no messages.",
            do=f"Add [brokers.{broker}] to the configuration, or delete the {where}.",
        )  # fmt: skip
    if len(missing) > STORED_SCOPES_MAX:
        report.fail(
            "ledger.resources", "the ledger", f"{len(missing)} names of brokers in all are not configured",
            do="Add them to the configuration.",
        )  # fmt: skip
    if count and not missing:
        text = "brokers of all subscriptions, bridges and taps of the ledger are configured"
        report.ok("ledger.resources", "the ledger", text)
    waiting = Counter(name for (raw,) in tried if pushed.get(name := _text(raw)))
    for name, messages in waiting.most_common(STORED_SCOPES_MAX):
        what = "1 message waits" if messages == 1 else f"{messages} messages wait"
        report.warn(
            "ledger.waiting", f"subscription {name}", f"{what} for endpoint {pushed[name]} after a failed attempt",
            do=f"gateway endpoints test {pushed[name]} shows what it answers.",
        )  # fmt: skip


def _brokers(config: Config, rows: Iterable[tuple[object, ...]]) -> frozenset[str]:
    """The brokers of the configuration, and those of the ledger. ``rows``: kind, name and document."""
    return broker_names(config).union(_text(name) for kind, name, _ in rows if kind == BROKER_RESOURCE)


def _text(name: object) -> str:
    """A name as the ledger has it, as text."""
    return bytes(name).decode("utf-8", "replace")  # type: ignore[call-overload, no-any-return]


def _stored_scopes(report: Report, brokers: Collection[str], rows: Iterable[tuple[object, ...]]) -> None:
    """Scopes of live keys of the ledger that can match nothing, a few of them by name. A broker may have gone since."""
    found = list[tuple[str, str, str]]()
    for key, client, scopes in rows:
        with suppress(ValueError, TypeError):
            for scope in json.loads(bytes(scopes)):  # type: ignore[call-overload]
                try:
                    why = doubt(str(scope), brokers)
                except ConfigurationError as error:
                    why = str(error).removeprefix("scopes: ")
                if why:
                    found.append((f"key {key} of {client}", str(scope), why))
    for where, scope, why in found[:STORED_SCOPES_MAX]:
        report.warn(
            "access.keys", where, f"the scope {scope}: {why}",
            do="Make a key with other scopes, and revoke this one: gateway keys create --help.",
        )  # fmt: skip
    if len(found) > STORED_SCOPES_MAX:
        report.warn(
            "access.keys",
            "keys of the ledger",
            f"{len(found)} scopes in all can match nothing",
            do="See gateway keys list.",
        )


# -------------------------------------------------------------------------------------------------- SQLite


def _sqlite(report: Report, config: Config, path: Path) -> None:
    where, folder = f"SQLite {path}", nearest(path.parent)
    filesystem = filesystem_of(folder)
    if filesystem in NETWORK_FILESYSTEMS:
        report.fail(
            "ledger.write", where, f"it is on a network filesystem ({filesystem})",
            why="Locks and shared memory do not do there what SQLite needs.", do="Use a local disk, or PostgreSQL.",
        )  # fmt: skip
    if not writable(folder):
        report.fail(
            "ledger.write", where, f"{who()} cannot write in {folder}",
            do="chown it to the user of the service, or set ledger.url or data_dir elsewhere.",
        )  # fmt: skip
    if not path.exists():
        report.ok("ledger.reach", where, "it will be made at the first start")
        return
    if not os.access(path, os.R_OK) or not writable(path):
        report.fail(
            "ledger.write", where, f"{who()} cannot read and write it", do="chown it to the user of the service."
        )
        return
    if path.stat().st_mode & 0o077:
        mode = stat.S_IMODE(path.stat().st_mode)
        do = f"chmod 600 {path}*"
        report.warn("ledger.write", where, f"others can read it (mode {mode:04o})", why="It has messages.", do=do)
    holder = holder_of(path)
    if holder:
        report.ok("ledger.processes", where, f"the process {holder} has it; SQLite serves one process")
    try:
        with closing(_open(path)) as connection:
            tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            rows = connection.execute("SELECT version_num FROM alembic_version").fetchall() if (
                "alembic_version" in tables
            ) else []  # fmt: skip
            specs = connection.execute(SEALED).fetchall() if "resources" in tables else []
            keys = connection.execute(KEYS, (int(clock.now() * 1e6),)).fetchall() if "api_keys" in tables else []
            found = connection.execute(RESOURCES).fetchall() if "resources" in tables else []
            tried = connection.execute(FAILED_ONCE).fetchall() if "deliveries" in tables else []
    except sqlite3.Error as error:
        damaged = isinstance(error, sqlite3.DatabaseError) and not isinstance(error, sqlite3.OperationalError)
        report.fail(
            "ledger.reach", where, f"it cannot be read: {error}", status=DAMAGED if damaged else None,
            do="Name another file, or put a copy back." if damaged else "Look at its rights, and who has it open.",
        )  # fmt: skip
        return
    report.ok("ledger.reach", where, "it can be read")
    _revision(report, where, int(rows[0][0]) if rows else 0, by_itself=True)
    _sealed(report, config, (bytes(spec) for (spec,) in specs))
    _stored_scopes(report, _brokers(config, found), keys)
    _stored_resources(report, config, found, tried)


def _content(report: Report, path: Path) -> None:
    found = check(path, is_open=bool(holder_of(path)))
    for what in found:
        report.fail(
            "ledger.content", f"SQLite {path}", what, why="The disk, or somebody, has changed it.",
            do="Stop the gateway, look at the disk, and restore a backup.",
        )  # fmt: skip
    if not found:
        report.ok("ledger.content", f"SQLite {path}", "every row that has a checksum is what was written")


def _open(path: Path) -> sqlite3.Connection:
    """Read it without leaving anything behind: with a journal beside it, it is open or was; else it cannot change."""
    name = quote(str(path.absolute()))
    journal = Path(f"{path}-wal").exists() and Path(f"{path}-shm").exists()
    mode = "mode=ro" if journal else "mode=ro&immutable=1"
    return sqlite3.connect(f"file:{name}?{mode}", uri=True, timeout=2.0)


def holder_of(path: Path) -> str:
    """The process that owns the ledger, by the system's table of locks; empty: none, or it does not tell."""
    lock = Path(f"{path}.lock")
    try:
        found = lock.stat()
        table = Path("/proc/locks").read_text()
    except OSError:
        return ""
    here = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
    for line in table.splitlines():
        fields = line.split()
        if len(fields) > 5 and fields[1] == "FLOCK" and fields[3] == "WRITE" and fields[5] == here:
            with suppress(OSError):
                return lock.read_text(encoding="ascii", errors="replace").strip() or fields[4]
            return fields[4]
    return ""


# ----------------------------------------------------------------------------------------------- PostgreSQL


async def _postgresql(report: Report, config: Config, database: Database, within: float) -> None:
    url = database.url
    host, port = str(url.host or ""), url.port or 5432
    where = f"PostgreSQL {f'{host}:{port}' if host else 'local socket'}/{url.database or ''}"
    if url.host and "," not in host:  # a socket has no name, and of several servers one will do
        try:
            await addresses(host, within)
        except Unreachable as error:
            report.fail("ledger.address", where, error.what, do=error.do)
            return
    await threads.run(_look, report, config, database, where, within)


def _look(report: Report, config: Config, database: Database, where: str, within: float) -> None:
    import psycopg

    _, given = database.url.get_dialect()().create_connect_args(database.url)
    more = {"connect_timeout": max(2, round(within)), "application_name": "gateway doctor"}
    try:
        connection = psycopg.connect(**{**given, **more})
    except psycopg.Error as error:
        _refused(report, where, error)
        return
    with closing(connection):
        connection.read_only = True
        try:
            _examine(report, config, connection, where, database)
        except psycopg.Error as error:
            report.fail(
                "ledger.reach", where, f"it cannot be asked: {_first_line(error)}", do="Look at the rights of its user."
            )


def _refused(report: Report, where: str, error: psycopg.Error) -> None:
    said = str(error)
    state = error.sqlstate or next((state for words, state in TEXTS if words in said), "")
    what, do = STATES.get(state, (f"it does not let us in: {_first_line(error)}", ""))
    if not do:
        refused = "refused" in said
        do = "Is it running? Compare host and port." if refused else "Look at its log, and at firewalls on the way."
    report.fail("ledger.reach", where, what, why=_first_line(error), do=do, status=4 if state[:2] == "28" else None)


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _examine(
    report: Report, config: Config, connection: psycopg.Connection[Any], where: str, database: Database
) -> None:
    def value(query: str, *parameters: object) -> Any:
        row = connection.execute(query.encode(), parameters).fetchone()
        return None if row is None else row[0]

    before = clock.now()
    theirs = float(value("SELECT extract(epoch FROM clock_timestamp())"))
    after = clock.now()
    report.ok("ledger.reach", where, f"PostgreSQL {value('SHOW server_version')} lets us in")
    _clock(report, where, max(before - theirs, theirs - after, 0.0))
    if not value("SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()") and not is_loopback(
        database.url.host or "localhost"
    ):
        report.warn(
            "ledger.reach", where, "the connection is not encrypted", why="Messages and the password travel in clear.",
            do="Add ?sslmode=verify-full to ledger.url.",
        )  # fmt: skip
    standby = value("SELECT pg_is_in_recovery()")
    closed = value("SELECT setting FROM pg_settings WHERE name = 'default_transaction_read_only'") == "on"
    if standby or closed:
        report.fail(
            "ledger.write", where, "it is a standby" if standby else "its transactions are read-only",
            why="The ledger must be written before anything is promised.",
            do="Name the primary in ledger.url (target_session_attrs=read-write finds it)." if standby
            else "ALTER ROLE … SET default_transaction_read_only = off.",
        )  # fmt: skip
    if value("SHOW fsync") == "off" or value("SHOW full_page_writes") == "off":
        report.warn(
            "ledger.durable", where, "fsync or full_page_writes is off",
            why="A loss of power can lose what was promised.", do="Set both to on.",
        )  # fmt: skip
    else:
        report.ok("ledger.durable", where, "fsync is on")
    free = value(
        "SELECT current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int"
        " - (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend')"
    )
    if free < CONNECTIONS:
        report.warn(
            "ledger.processes", where, f"{free} connections are left; a gateway needs up to {CONNECTIONS}",
            do="Raise max_connections, or put a pooler (session mode) before it.",
        )  # fmt: skip
    if value("SELECT to_regclass('alembic_version')") is None:
        _revision(report, where, 0, by_itself=False)
        _may_make(report, where, bool(value("SELECT has_schema_privilege(current_schema(), 'CREATE')")))
        return
    if not value("SELECT has_table_privilege('alembic_version', 'SELECT')"):
        user = value("SELECT current_user")
        report.fail("ledger.write", where, f"{user} may not read its tables", do=f"GRANT them to {user}.")
        return
    _revision(report, where, int(value("SELECT version_num FROM alembic_version") or 0), by_itself=False)
    _rights(report, config, connection, where)


def _may_make(report: Report, where: str, may: bool) -> None:
    if not may:
        report.fail(
            "ledger.write", where, "the login may make no tables there",
            do="GRANT CREATE ON SCHEMA public to it, or run gateway migrate with --url of one that may.",
        )  # fmt: skip


def _clock(report: Report, where: str, apart: float) -> None:
    if apart > CLOCK_MAX:
        report.fail(
            "ledger.clock", where, f"its clock and this machine's are {apart:.0f} s apart",
            why="Leases go by its clock, retries and events by this machine's; gateways do not trust each other.",
            do="Set both by NTP.",
        )  # fmt: skip
    elif apart > CLOCK_LOW:
        report.warn(
            "ledger.clock", where, f"its clock and this machine's are {apart:.1f} s apart",
            why="Times in the history do not fit each other.", do="Set both by NTP.",
        )  # fmt: skip
    else:
        report.ok("ledger.clock", where, f"its clock and this machine's agree ({apart * 1000:.0f} ms)")


def _rights(report: Report, config: Config, connection: psycopg.Connection[Any], where: str) -> None:
    tables = sorted(metadata.tables)
    rows = connection.execute(
        "SELECT c.relname, has_table_privilege(c.oid, 'SELECT') AND has_table_privilege(c.oid, 'INSERT')"
        " AND has_table_privilege(c.oid, 'UPDATE') AND has_table_privilege(c.oid, 'DELETE'),"
        " pg_has_role(c.relowner, 'USAGE')"
        " FROM pg_class c WHERE c.relname = ANY(%s) AND c.relnamespace = to_regnamespace(current_schema())",
        (tables,),
    ).fetchall()
    barred = [name for name, may, _ in rows if not may]
    user = (connection.execute("SELECT current_user").fetchone() or ("?",))[0]
    if barred:
        report.fail(
            "ledger.write", where, f"{user} may not write {', '.join(barred[:5])}",
            do=f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {user}.",
        )  # fmt: skip
    else:
        report.ok("ledger.write", where, f"{user} may write its tables")
    owned = {name: owner for name, _, owner in rows}
    makes = all(owned.get(table, False) for table in PARTITIONED)
    today = int(clock.now() * 1000) // DAY_MS
    wanted = [partition_name(table, day) for table in PARTITIONED for day in (today, today + 1)]
    there = connection.execute("SELECT relname FROM pg_class WHERE relname = ANY(%s)", (wanted,)).fetchall()
    missing = sorted(set(wanted) - {name for (name,) in there})
    if not makes:
        report.warn(
            "ledger.partitions", where, f"{user} does not own the tables with partitions, so it can make none",
            why="A day without a partition goes to the default one, where it cannot be dropped as a whole.",
            do=f"Give it the tables' owner as a role, or run gateway migrate every day. Missing now: {len(missing)}.",
        )  # fmt: skip
    elif missing:
        report.warn(
            "ledger.partitions", where, f"there is no partition {missing[0]}, of {len(missing)} that are missing",
            why="A gateway that runs makes them each day.", do="Start a gateway, or run gateway migrate.",
        )  # fmt: skip
    else:
        report.ok("ledger.partitions", where, "there are partitions for today and tomorrow")
    if not barred:
        specs = connection.execute(SEALED).fetchall()
        _sealed(report, config, (bytes(spec) for (spec,) in specs))
        keys = connection.execute(KEYS.replace("?", "%s").encode(), (int(clock.now() * 1e6),)).fetchall()
        resources = connection.execute(RESOURCES).fetchall()
        _stored_scopes(report, _brokers(config, resources), keys)
        _stored_resources(report, config, resources, connection.execute(FAILED_ONCE).fetchall())
        holders = connection.execute(
            "SELECT owner FROM shards WHERE owner IS NOT NULL"
            " AND expires_at > extract(epoch FROM clock_timestamp()) * 1000000 ORDER BY owner"
        ).fetchall()
        names = ", ".join(str(name) for (name,) in holders[:8])
        report.ok("ledger.processes", where, f"{len(holders)} gateways work on it{f': {names}' if names else ''}")
