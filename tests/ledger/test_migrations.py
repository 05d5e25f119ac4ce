"""Migrations one by one: what they do to data, and that they may run beside traffic."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from alembic.script import ScriptDirectory

from gateway.ledger import EventKind, InboxRow, Log, OutboxEntry, Owed, Run
from gateway.ledger.access.api_keys import ApiKey
from gateway.ledger.db import schema
from gateway.ledger.db.engine import Database
from tests.ledger.conftest import NOW, SHA, Open, entry, intent, new_id, published
from tests.ledger.logs import spooled

REVISIONS = [f"{number:04}" for number in range(1, schema.HEAD + 1)]
SESSION = "SET lock_timeout = '2s';\nSET statement_timeout = '1h';\n"
"""As ``schema.migrate`` sets them, but that it lets a statement run for ever."""
ALEMBICS_OWN = re.compile(r"BEGIN;|COMMIT;|CREATE TABLE alembic_version \(.*?\);", re.DOTALL)


def sql_of(revision: str, capsys: pytest.CaptureFixture[str]) -> str:
    """What a migration runs on PostgreSQL."""
    before = f"{int(revision) - 1:04}"
    command.upgrade(schema.alembic_config(), revision if before == "0000" else f"{before}:{revision}", sql=True)
    return SESSION + ALEMBICS_OWN.sub("", capsys.readouterr().out)


def squawk(sql: str, path: Path) -> subprocess.CompletedProcess[str]:
    """Lint SQL for what hurts a database in use: locks, rewrites of tables, what cannot be taken back."""
    path.write_text(sql)
    program = Path(sys.executable).with_name("squawk")
    line = [program, "--assume-in-transaction", "--reporter", "gcc", path]
    return subprocess.run(line, capture_output=True, text=True, check=False)


def test_there_is_one_line_of_revisions() -> None:
    script = ScriptDirectory.from_config(schema.alembic_config())
    assert [each.revision for each in script.walk_revisions()][::-1] == REVISIONS


@pytest.mark.parametrize("revision", REVISIONS)
def test_squawk_has_nothing_to_say(revision: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    sql = sql_of(revision, capsys)
    assert "CREATE TABLE" in sql or "ALTER TABLE" in sql
    found = squawk(sql, tmp_path / f"{revision}.sql")
    assert (found.returncode, found.stdout) == (0, ""), found.stdout + found.stderr


def test_squawk_would_have(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    sql = sql_of("0005", capsys) + "ALTER TABLE messages ADD COLUMN worse INTEGER NOT NULL;\n"
    found = squawk(sql, tmp_path / "bad.sql")
    assert found.returncode == 1
    assert "adding-required-field" in found.stdout


async def test_down_and_up_again_with_data(open_ledger: Open, database: Database, sql: Any) -> None:
    """Step by step to the first revision and back: what the older tables hold stays."""
    ledger = await open_ledger()
    one = new_id()
    await ledger.record([*published(one), entry(one, EventKind.DELIVERED)], [InboxRow("east", "k", SHA, one, NOW * 2)])
    await ledger.claim_key("shop", "k", b"f", [intent(new_id())])
    await ledger.deliveries.store(
        [Owed(id=new_id(), message_id=one, subscription="billing", at=NOW, payload=b"payload", size=7)]
    )
    later = OutboxEntry(
        message_id=new_id(), broker="b", exchange="", routing_key="q", payload=b"p", at=NOW, due_at=2 * NOW
    )
    await ledger.outbox.put([later], [])
    dead = [
        Owed(
            id=new_id(),
            message_id=one,
            subscription="sales",
            at=NOW,
            payload=b"payload",
            size=7,
            dead=True,
            reason=each,
        )
        for each in (
            {"reason": 'of "code":"expired"', "code": "rejected"},
            {"reason": "\x00\udcff", "code": "maxlen"},
            {},
        )
    ]
    await ledger.deliveries.store(dead)
    await ledger.history.keeper.count()
    await ledger.log.spool([spooled(), spooled()])
    await ledger.log.claim_cursor("archive", Log.MESSAGES, "one")
    await ledger.log.put_run(Run(id="r", job="j", state="done", started_at=1, ended_at=2, fingerprint="", detail={}))
    await ledger.api_keys.add(ApiKey("k", "shop", SHA, "h", ("admin",), "me", NOW, 0), NOW, {"action": "test"})
    await ledger.close()
    counts = {
        "api_keys": ("0007", 1), "audit_log": ("0007", 1),
        "message_log": ("0006", 2), "log_cursors": ("0006", 1), "pipeline_runs": ("0006", 1), "log_floors": ("0006", 0),
        "statistics": ("0005", 3), "counted": ("0005", 1), "deliveries": ("0003", 4), "bodies": ("0003", 1),
        "outbox": ("0003", 1), "inbox": ("0002", 1), "messages": ("0001", 2), "events": ("0001", 4),
        "idempotency_keys": ("0001", 1), "obligations": ("0001", 1),
    }  # fmt: skip
    assert {table: sql(f"SELECT count(*) FROM {table}")[0][0] for table in counts} == {
        table: count for table, (_, count) in counts.items()
    }
    schema.migrate(database, "0008")
    schema.migrate(database)
    codes = dict(sql("SELECT code, count(*) FROM deliveries WHERE status = 2 GROUP BY code"))
    assert codes == {"rejected": 1, "maxlen": 1, "": 1}
    for revision in REVISIONS[-2::-1]:
        schema.migrate(database, revision)
        there = {table: count for table, (since, count) in counts.items() if since <= revision}
        assert {table: sql(f"SELECT count(*) FROM {table}")[0][0] for table in there} == there, revision
    ledger = await open_ledger()
    timeline = await ledger.timeline(one)
    assert timeline is not None
    assert len(timeline.events) == 3
    await ledger.history.keeper.count()
    assert sum(each.events for each in (await ledger.history.statistics())[0]) == 4
