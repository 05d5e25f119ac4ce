"""The ledger, looked at and not touched."""

from __future__ import annotations

import hashlib
import json
import re
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest

from gateway.commands.doctor import ledger as looked_at
from gateway.commands.doctor.findings import Report
from gateway.exits import DAMAGED, FAILED, REFUSED, UNREACHABLE, USAGE
from gateway.ledger.db import schema
from gateway.ledger.db.engine import Database
from gateway.webhooks.settings.secrets import Seals
from tests.doctor.conftest import Look
from tests.ledgers import sqlite_ledger
from tests.servers import PostgreSQL
from tests.servers.process import free_port

HEAD = schema.HEAD


def fingerprint(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """An SQLite ledger, up to date."""
    sqlite_ledger(tmp_path / "data")
    (tmp_path / "data").chmod(0o700)
    return tmp_path / "data" / "ledger.db"


def execute(path: Path, statement: str, *parameters: object) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(statement, parameters)


def test_a_file_that_is_fine(look: Look, file: Path) -> None:
    before = fingerprint(file.parent)
    found = look("", "ledger")
    assert (found.failed, found.warned) == ([], []), found.text
    assert f"revision {HEAD:04}" in found.one("ledger.schema").what
    assert fingerprint(file.parent) == before, "looking leaves nothing behind"


def test_a_file_that_is_not_there(look: Look, tmp_path: Path) -> None:
    found = look("", "ledger")
    assert found.one("ledger.reach").what == "it will be made at the first start"
    assert list(tmp_path.iterdir()) == [tmp_path / "gateway.toml"]


@pytest.mark.parametrize(
    ("revision", "failed", "what"),
    [
        (f"{HEAD - 1:04}", False, f"its tables are of revision {HEAD - 1:04}, this release needs {HEAD:04}"),
        (f"{HEAD + 1:04}", False, "one newer than this release knows"),
        (f"{HEAD + 2:04}", True, f"its tables are of revision {HEAD + 2:04}, this release knows {HEAD:04}"),
    ],
)
def test_a_file_of_another_release(look: Look, file: Path, revision: str, failed: bool, what: str) -> None:
    execute(file, "UPDATE alembic_version SET version_num = ?", revision)
    found = look("", "ledger")
    assert what in found.one("ledger.schema").what
    assert (found.failed, found.exit) == ((["ledger.schema"], DAMAGED) if failed else ([], 0))


def test_a_file_without_tables(look: Look, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir(mode=0o700)
    (tmp_path / "data" / "ledger.db").touch(mode=0o600)
    found = look("", "ledger")
    assert (found.failed, found.warned) == ([], [])
    assert found.one("ledger.schema").what == "it has no tables yet; the next start makes them"


def test_a_file_that_is_none(look: Look, file: Path) -> None:
    file.write_bytes(b"this is no database, and was never one" * 100)
    found = look("", "ledger")
    assert (found.failed, found.exit) == (["ledger.reach"], DAMAGED)


def test_a_file_that_others_can_read(look: Look, file: Path) -> None:
    file.chmod(0o644)
    assert "mode 0644" in look("", "ledger").one("ledger.write").what


@pytest.mark.parametrize("url", ["nonsense", "postgresql://a:b@h:x/d", "mysql://a:b@h/d", "sqlite://"])
def test_a_url_that_is_none(look: Look, url: str) -> None:
    found = look(f'[ledger]\nurl = "{url}"', "ledger")
    assert (found.failed, found.exit) == (["ledger.address"], USAGE)


def test_a_file_on_a_network(look: Look, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(looked_at, "filesystem_of", lambda _: "nfs4")
    assert look("", "ledger").one("ledger.write").what == "it is on a network filesystem (nfs4)"


def test_scopes_of_stored_keys_that_match_nothing(look: Look, file: Path) -> None:
    scopes = ["history", "publish:gone/x", "route:gone/x/#", "publish:*/x"]
    for number, (revoked, expires) in enumerate([(0, 0), (1, 0), (0, 1)]):
        execute(
            file, "INSERT INTO api_keys VALUES (?, ?, ?, ?, ?, ?, 1, ?, ?, 0, ?, NULL, NULL)", f"k{number}", "shop",
            bytes([number] * 32), "h", json.dumps(scopes).encode(), "me", expires, revoked, number,
        )  # fmt: skip
    found = [each for each in look("", "ledger").report.findings if each.check == "access.keys"]
    assert [(each.where, each.severity.value) for each in found] == [("key k0 of shop", "warn")] * 2
    assert found[0].what.startswith("the scope publish:gone/x: it can match nothing: there is no broker 'gone'.")
    execute(file, "UPDATE api_keys SET scopes = ?", json.dumps(["publish:gone/x"] * 30).encode())
    found = [each for each in look("", "ledger").report.findings if each.check == "access.keys"]
    assert (len(found), found[-1].what) == (21, "30 scopes in all can match nothing")


def test_what_the_ledger_defines_and_what_waits(look: Look, file: Path) -> None:
    specs = [
        ("subscription", b"fine", {"broker": "local-0-10", "queue": "q", "push": "shop"}),
        ("subscription", b"lost", {"broker": "gone", "queue": "q", "push": "shop"}),
        ("bridge", b"move", {"source": {"broker": "local-0-8"}, "target": {"broker": "away"}}),
        ("tap", b"log", {"broker": "local-0-9"}),
    ]
    for kind, name, spec in specs:
        execute(file, "INSERT INTO resources VALUES (?, ?, ?, 'e', 1, 1)", kind, name, json.dumps(spec).encode())
    for number, (name, attempt, status) in enumerate(
        [(b"fine", 1, 0), (b"fine", 2, 0), (b"fine", 0, 0), (b"fine", 1, 2)]
    ):
        identity = bytes([number]) * 16
        execute(
            file, "INSERT INTO deliveries VALUES (?, ?, ?, ?, ?, 1, 1, ?, 0, ?, 1, ?, '')", identity, identity,
            b"d" * 32, name, b"", attempt, status, b"",
        )  # fmt: skip
    found = look("[embedded]\nenabled = true", "ledger")
    assert [(each.where, each.what) for each in found.all("ledger.resources")] == [
        ("bridge move", "no broker 'away' is configured"),
        ("subscription lost", "no broker 'gone' is configured"),
    ]
    assert found.exit == FAILED
    (waits,) = found.all("ledger.waiting")
    assert (waits.where, waits.what) == (
        "subscription fine", "2 messages wait for endpoint shop after a failed attempt"
    )  # fmt: skip
    execute(file, "DELETE FROM resources WHERE name IN (?, ?)", b"lost", b"move")
    found = look("[embedded]\nenabled = true", "ledger")
    assert (found.one("ledger.resources").severity.value, found.failed) == ("ok", [])


def test_secrets_that_no_key_opens(look: Look, file: Path, tmp_path: Path) -> None:
    ours, other = Seals([b"a" * 32]), Seals([b"b" * 32])
    keys = [{"scheme": "v1", "id": "1", "sealed": ours.seal("x", "y")}]
    rows = {"endpoint": {"sealed": other.seal("x", "y")}, "endpoint-state": {"keys": keys}}
    for kind, document in rows.items():
        execute(file, "INSERT INTO resources VALUES (?, ?, ?, 'e', 0, 0)", kind, b"shop", json.dumps(document).encode())
    path = tmp_path / "keys"
    path.write_text("YWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWE=\n")
    text = f'[ledger]\nsecrets_file = "{path}"'
    found = look(text, "ledger")
    what = f"the ledger has secrets that it does not open: 1 with the key {other.name}"
    assert found.one("files.secret").what == what
    with path.open("a") as keyring:
        keyring.write("YmJiYmJiYmJiYmJiYmJiYmJiYmJiYmJiYmJiYmJiYmI=\n")
    assert look(text, "ledger").one("files.secret").what == "it opens all 2 secrets of the ledger"


# ------------------------------------------------------------------------------------------------ PostgreSQL


def settings(url: str) -> str:
    return f'[ledger]\nurl = "{url}"'


@pytest.mark.broker
def test_a_database_that_is_fine(look: Look, postgresql_ledger: str) -> None:
    found = look(settings(postgresql_ledger), "ledger")
    assert (found.failed, found.warned) == ([], ["ledger.durable"]), "the tests' server does not wait for the disk"
    assert f"revision {HEAD:04}" in found.one("ledger.schema").what
    assert "there are partitions for today and tomorrow" in found.text
    assert "0 gateways work on it" in found.text


@pytest.mark.broker
def test_a_database_without_tables(look: Look, postgresql_url: str) -> None:
    found = look(settings(postgresql_url), "ledger")
    finding = found.one("ledger.schema")
    assert (finding.what, finding.do) == ("it has no tables yet", "Run gateway migrate.")
    assert (found.failed, found.exit) == (["ledger.schema"], DAMAGED)


@pytest.mark.broker
def test_a_database_of_an_older_release(look: Look, postgresql_url: str) -> None:
    schema.migrate(Database(postgresql_url), f"{HEAD - 1:04}")
    found = look(settings(postgresql_url), "ledger")
    finding = found.one("ledger.schema")
    assert finding.what == f"its tables are of revision {HEAD - 1:04}, this release needs {HEAD:04}"
    assert (finding.do, found.exit) == ("Run gateway migrate.", DAMAGED)
    with psycopg.connect(postgresql_url.replace("+psycopg", "")) as connection:
        row = connection.execute("SELECT version_num FROM alembic_version").fetchone()
    assert row == (f"{HEAD - 1:04}",), "it was looked at, not brought up to date"


@pytest.mark.broker
@pytest.mark.parametrize(
    ("given", "what", "status"),
    [
        ({"port": "closed"}, "it does not let us in", UNREACHABLE),
        ({"database": "no_such_database"}, "there is no such database", UNREACHABLE),
        ({"user": "nobody_at_all"}, "the login is not known", REFUSED),
        ({"host": "no-such-host.invalid"}, "the host no-such-host.invalid has no address", UNREACHABLE),
    ],
)
def test_a_database_that_cannot_be_had(
    look: Look, postgresql: PostgreSQL, given: dict[str, str], what: str, status: int
) -> None:
    port = free_port() if given.get("port") else postgresql.port
    place = {"user": "gateway", "host": "127.0.0.1", "database": "postgres", **given}
    url = f"postgresql://{place['user']}:my-secret-word@{place['host']}:{port}/{place['database']}"
    found = look(settings(url), "ledger")
    (finding,) = (each for each in found.report.findings if each.check in found.failed)
    assert finding.what.startswith(what), found.text
    assert found.exit == status
    assert "my-secret-word" not in found.text


@pytest.mark.parametrize(
    ("said", "what", "status"),
    [
        ('FATAL:  password authentication failed for user "a"', "the password is wrong", REFUSED),
        ('FATAL:  no pg_hba.conf entry for host "10.0.0.1"', "the login is not known, or not allowed", REFUSED),
        ("FATAL:  sorry, too many clients already", "it takes no more connections", UNREACHABLE),
        ("FATAL:  the database system is starting up", "it is starting or stopping", UNREACHABLE),
        ("connection timeout expired", "it does not let us in: connection timeout expired", UNREACHABLE),
    ],
)
def test_what_a_server_says(said: str, what: str, status: int) -> None:
    report = Report()
    looked_at._refused(report, "PostgreSQL", psycopg.OperationalError(f"connection failed: {said}".removeprefix(
        "connection failed: " if said.startswith("connection") else ""
    )))  # fmt: skip
    assert report.findings[0].what.startswith(what)
    assert report.exit() == status


@pytest.fixture
def role(postgresql: PostgreSQL) -> Iterator[str]:
    name = f"r{uuid4().hex}"
    postgresql.execute(f"CREATE ROLE {name} LOGIN")
    yield name
    postgresql.execute(f"REASSIGN OWNED BY {name} TO gateway")
    postgresql.execute(f"DROP ROLE {name}")


def as_role(url: str, name: str) -> str:
    return re.sub("//gateway(:[^@]*)?@", f"//{name}@", url)


@pytest.mark.broker
def test_a_role_that_may_only_read(look: Look, postgresql_url: str, role: str) -> None:
    schema.migrate(Database(postgresql_url))
    with psycopg.connect(postgresql_url.replace("+psycopg", "")) as connection:
        connection.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {role}".encode())
    try:
        found = look(settings(as_role(postgresql_url, role)), "ledger")
    finally:
        with psycopg.connect(postgresql_url.replace("+psycopg", "")) as connection:
            connection.execute(f"DROP OWNED BY {role}".encode())
    assert found.failed == ["ledger.write"], found.text
    assert f"{role} may not write " in found.one("ledger.write").what
    assert "ledger.partitions" in found.warned
    assert found.exit == REFUSED


@pytest.mark.broker
def test_a_role_without_rights(look: Look, postgresql_url: str, role: str) -> None:
    schema.migrate(Database(postgresql_url))
    found = look(settings(as_role(postgresql_url, role)), "ledger")
    assert found.failed == ["ledger.write"], found.text
    assert f"{role} may not read its tables" in found.one("ledger.write").what


@pytest.mark.broker
def test_transactions_that_are_read_only(look: Look, postgresql: PostgreSQL, postgresql_ledger: str) -> None:
    name = postgresql_ledger.rpartition("/")[2]
    postgresql.execute(f'ALTER DATABASE "{name}" SET default_transaction_read_only = on')
    try:
        found = look(settings(postgresql_ledger), "ledger")
    finally:
        postgresql.execute(f'ALTER DATABASE "{name}" RESET default_transaction_read_only')
    assert found.failed == ["ledger.write"], found.text
    assert (found.all("ledger.write")[0].what, found.exit) == ("its transactions are read-only", REFUSED)


@pytest.mark.broker
@pytest.mark.parametrize(("apart", "status"), [(-120.0, FAILED), (120.0, FAILED), (10.0, 0)])
def test_clocks_that_differ(
    look: Look, postgresql_ledger: str, monkeypatch: pytest.MonkeyPatch, apart: float, status: int
) -> None:
    monkeypatch.setattr("gateway.runtime.clock.clock.now", lambda: time.time() + apart)
    found = look(settings(postgresql_ledger), "ledger")
    assert "s apart" in found.one("ledger.clock").what
    assert found.exit == status


@pytest.mark.broker
def test_partitions_that_are_missing(look: Look, postgresql_url: str) -> None:
    schema.migrate(Database(postgresql_url))
    with psycopg.connect(postgresql_url.replace("+psycopg", "")) as connection:
        (tables,) = connection.execute(
            "SELECT string_agg(relname, ', ') FROM pg_class WHERE relispartition AND relname ~ '_d[0-9]+$'"
            " AND relkind = 'r'"
        ).fetchone() or ("",)
        connection.execute(f"DROP TABLE {tables}".encode())
    found = look(settings(postgresql_url), "ledger")
    assert "that are missing" in found.one("ledger.partitions").what
    assert found.failed == []


@pytest.mark.broker
def test_few_connections(look: Look, postgresql_ledger: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(looked_at, "CONNECTIONS", 100_000)
    found = look(settings(postgresql_ledger), "ledger")
    assert "connections are left" in "".join(finding.what for finding in found.all("ledger.processes")), found.text
