"""``gateway audit``: checked and written out, beside the ledger's own process."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest
from click.testing import Result

from gateway.config import LedgerSettings, RetentionSettings
from gateway.ledger import Ledger
from tests.commands.conftest import Run

Ask = Callable[..., Result]


@pytest.fixture
def ask(run: Run, tmp_path: Path) -> Ask:
    async def fill() -> None:
        ledger = await Ledger.open(f"sqlite:///{tmp_path}/ledger.db", LedgerSettings(), owner="test", migrate=True)
        for number in range(3):
            await ledger.audit.append([(number + 1, {"action": "a", "number": number})])
        await ledger.close()

    asyncio.run(fill())
    return lambda *arguments: run(*arguments, "--data-dir", str(tmp_path))


def test_a_sound_log(ask: Ask) -> None:
    found = ask("audit", "verify")
    assert (found.exit_code, found.stderr) == (0, "3 rows, sound. The head:\n")
    head = found.stdout.strip()
    assert ask("audit", "verify", "--head", head).exit_code == 0
    assert json.loads(ask("audit", "verify", "--json").stdout) == {
        "rows": 3, "first": 1, "head": head, "broken": None, "why": "",
    }  # fmt: skip


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
        settings = RetentionSettings(audit_days=30)
        ledger = await Ledger.open(
            f"sqlite:///{tmp_path}/ledger.db", LedgerSettings(), owner="test", retention=settings
        )
        await ledger.history.keeper.retain()
        await ledger.close()

    asyncio.run(age())
    found = ask("audit", "verify")
    assert (found.exit_code, found.stderr) == (0, "2 rows from row 3 on, sound. The head:\n")
    assert json.loads(ask("audit", "verify", "--json").stdout)["first"] == 3
