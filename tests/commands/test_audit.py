"""``gateway audit``: checked and written out, beside the ledger's own process."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from gateway.access.heads import Heads
from gateway.app import audit_keys
from gateway.config import AuditSettings, Config, LedgerSettings, RetentionSettings
from gateway.ledger import Ledger
from gateway.observing.telemetry import Metrics
from tests.commands.conftest import Run

Ask = Callable[..., Result]


@pytest.fixture
def ask(run: Run, tmp_path: Path) -> Ask:
    async def fill() -> None:
        ledger = await opened(tmp_path)
        for number in range(3):
            await ledger.audit.append([(number + 1, {"action": "a", "number": number})])
        await ledger.close()

    asyncio.run(fill())
    return lambda *arguments: run(*arguments, "--data-dir", str(tmp_path))


async def opened(folder: Path, **options: Any) -> Ledger:
    """The ledger of a data folder, with the keys that are there."""
    keys = audit_keys(Config(data_dir=str(folder)))
    url = f"sqlite:///{folder}/ledger.db"
    return await Ledger.open(url, LedgerSettings(), owner="test", migrate=True, audit_keys=keys, **options)


def keep_head(folder: Path) -> None:
    """Have the gateway's file say what it would."""

    async def keep() -> None:
        ledger = await opened(folder)
        heads = Heads(ledger, AuditSettings(), folder, Metrics(""))
        await heads.start()
        await heads.close()
        await ledger.close()

    asyncio.run(keep())


def test_a_sound_log(ask: Ask) -> None:
    found = ask("audit", "verify")
    *_, end, last = found.stderr.splitlines()
    assert (found.exit_code, found.stderr.splitlines()[0], last) == (0, "3 rows, sound.", "The head:")
    assert "A cut at the end cannot be seen" in end
    head = found.stdout.strip()
    with_head = ask("audit", "verify", "--head", head)
    assert (with_head.exit_code, with_head.stderr) == (0, "3 rows, sound.\nThe head:\n")
    (mac,) = json.loads(ask("audit", "export", "--after", "2").stdout)["mac"].split()
    assert json.loads(ask("audit", "verify", "--json").stdout) == {
        "rows": 3, "first": 1, "head": head, "mac": mac, "broken": None, "why": "", "first_with_mac": 1,
        "later_without_mac": 0, "end_checked": False,
    }  # fmt: skip


def test_the_file_with_the_head_is_enough(ask: Ask, tmp_path: Path) -> None:
    keep_head(tmp_path)
    assert (tmp_path / "audit.head").stat().st_mode & 0o777 == 0o600
    found = ask("audit", "verify")
    assert (found.exit_code, found.stderr) == (0, "3 rows, sound.\nThe head:\n")
    assert json.loads(ask("audit", "verify", "--json").stdout)["end_checked"]
    with sqlite3.connect(tmp_path / "ledger.db") as connection:
        connection.execute("DELETE FROM audit_log WHERE sequence = 3")
    found = ask("audit", "verify")
    assert (found.exit_code, "the chain ends before row 3: it was cut off" in found.stderr) == (9, True)
    (tmp_path / "audit.head").write_text("{}")
    found = ask("audit", "verify")
    assert (found.exit_code, "not a head of the audit log" in found.stderr) == (2, True)


def test_a_log_of_an_earlier_release(ask: Ask, tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "ledger.db") as connection:
        connection.execute("UPDATE audit_log SET mac = NULL, mac_key = NULL")
    found = ask("audit", "verify")
    assert (found.exit_code, "no row has a MAC: start the gateway once" in found.stderr) == (9, True)
    assert ask("audit", "verify", "--accept", "1-3").exit_code == 0
    keep_head(tmp_path)
    found = ask("audit", "verify")
    assert found.exit_code == 0
    assert found.stderr.splitlines()[:2] == [
        "4 rows, sound.", "Rows before 4 are of an earlier release, and have no MAC of their own.",
    ]  # fmt: skip
    (line,) = ask("audit", "export", "--after", "3").stdout.splitlines()
    assert json.loads(line)["entry"] == {"action": "audit.keyed"}


def test_without_the_key(ask: Ask, tmp_path: Path) -> None:
    (tmp_path / "secrets.key").unlink()
    found = ask("audit", "verify")
    assert (found.exit_code, "and the file of keys has none" in found.stderr) == (9, True)
    assert not (tmp_path / "secrets.key").exists()


@pytest.mark.parametrize("rows", ["", "x", "0", "5-3", "1-2-3"])
def test_rows_that_are_none(ask: Ask, rows: str) -> None:
    assert ask("audit", "verify", "--accept", rows).exit_code == 2


def test_a_log_that_was_changed(ask: Ask, tmp_path: Path) -> None:
    head = ask("audit", "verify").stdout.strip()
    with sqlite3.connect(tmp_path / "ledger.db") as connection:
        connection.execute("DELETE FROM audit_log WHERE sequence = 3")
    found = ask("audit", "verify", "--head", head)
    assert found.exit_code == 9
    assert "row 3 of the audit log: the chain ends before row 3: it was cut off" in found.stderr
    with sqlite3.connect(tmp_path / "ledger.db") as connection:
        connection.execute("UPDATE audit_log SET at = 9 WHERE sequence = 2")
    found = ask("audit", "verify", "--json")
    assert (found.exit_code, json.loads(found.stdout)["broken"]) == (9, 2)


@pytest.mark.parametrize("head", ["", "3", "x:00", "3:00", "0:" + "00" * 32])
def test_heads_that_are_none(ask: Ask, head: str) -> None:
    assert ask("audit", "verify", "--head", head).exit_code == 2


def test_written_out_it_can_be_checked_elsewhere(ask: Ask, tmp_path: Path) -> None:
    lines = [json.loads(line) for line in ask("audit", "export").stdout.splitlines()]
    assert [line["entry"]["number"] for line in lines] == [0, 1, 2]
    previous = bytes(32)
    for line in lines:
        assert line["previous"] == previous.hex()
        octets = line["sequence"].to_bytes(8) + line["at"].to_bytes(8) + previous + line["text"].encode()
        previous = sha256(octets).digest()
        assert line["hash"] == previous.hex()
    assert len(ask("audit", "export", "--after", "2").stdout.splitlines()) == 1
    with sqlite3.connect(tmp_path / "ledger.db") as connection:
        connection.execute("UPDATE audit_log SET entry = CAST('broken' AS BLOB) WHERE sequence = 3")
    assert json.loads(ask("audit", "export", "--after", "2").stdout)["entry"] is None


def test_no_ledger(run: Run, tmp_path: Path) -> None:
    found = run("audit", "verify", "--data-dir", str(tmp_path / "none"))
    assert found.exit_code == 2
    assert "gateway migrate" in found.stderr


def test_a_log_whose_old_rows_have_gone(ask: Ask, tmp_path: Path) -> None:
    async def age() -> None:
        ledger = await opened(tmp_path, retention=RetentionSettings(audit_days=30))
        await ledger.history.keeper.retain()
        await ledger.close()

    asyncio.run(age())
    config = tmp_path / "gateway.toml"
    config.write_text("[retention]\naudit_days = 30\n")
    found = ask("audit", "verify", "--config", str(config))
    assert (found.exit_code, found.stderr.splitlines()[0]) == (0, "2 rows from row 3 on, sound.")
    assert json.loads(ask("audit", "verify", "--json", "--config", str(config)).stdout)["first"] == 3
    found = ask("audit", "verify")
    assert (found.exit_code, "after 30 days, and retention.audit_days is 400" in found.stderr) == (9, True)
    assert ask("audit", "verify", "--accept", "4").exit_code == 0


@pytest.mark.broker
def test_on_postgresql(run: Run, tmp_path: Path, postgresql_ledger: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GATEWAY_LEDGER_URL", postgresql_ledger)

    async def fill() -> str:
        keys = audit_keys(Config(data_dir=str(tmp_path)))
        ledger = await Ledger.open(postgresql_ledger, LedgerSettings(), owner="test", audit_keys=keys)
        for number in range(300):
            await ledger.audit.append([(number + 1, {"action": "a", "number": number})])
        head = ledger.audit.head
        await ledger.close()
        assert head is not None
        return f"{head.sequence}:{head.hash.hex()}"

    head = asyncio.run(fill())
    folder = ("--data-dir", str(tmp_path))
    found = run("audit", "verify", "--head", head, *folder)
    assert (found.exit_code, found.stdout, found.stderr) == (0, head + "\n", "300 rows, sound.\nThe head:\n")
    assert len(run("audit", "export", *folder).stdout.splitlines()) == 300
