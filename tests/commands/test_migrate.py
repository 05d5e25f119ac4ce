"""``gateway migrate``: which database, and what it says when that cannot be had."""

from __future__ import annotations

import fcntl
import os
import sqlite3
import threading
import time
from contextlib import closing
from pathlib import Path

from gateway import commands
from tests.commands.conftest import Run


def tables(path: Path) -> set[str]:
    """The tables of an SQLite file."""
    with closing(sqlite3.connect(path)) as database:
        return {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}


def test_the_file_in_the_data_folder(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    for _ in range(2):
        result = run("migrate", "--data-dir", os.fspath(folder))
        assert (result.exit_code, result.stdout, result.stderr) == (0, "", "The ledger is up to date.\n")
    assert "alembic_version" in tables(folder / "ledger.db")


def test_a_url(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    assert run("migrate", "--url", f"sqlite:///{path}").exit_code == 0
    assert "alembic_version" in tables(path)


def test_a_url_that_is_none(run: Run) -> None:
    result = run("migrate", "--url", "nonsense")
    assert result.exit_code == commands.USAGE
    assert "ledger.url" in result.stderr


def test_a_database_that_is_away(run: Run) -> None:
    assert run("migrate", "--url", "postgresql://nobody@127.0.0.1:1/none").exit_code == commands.UNREACHABLE


def test_a_database_that_comes_later(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "late.db"
    path.touch(mode=0o600)
    with path.with_name("late.db.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        began = time.monotonic()
        threading.Timer(0.3, fcntl.flock, (lock, fcntl.LOCK_UN)).start()
        result = run("migrate", "--url", f"sqlite:///{path}", "--wait", "30")
    assert (result.exit_code, time.monotonic() - began > 0.3) == (0, True), result.stderr
    assert result.stderr.count("trying again") == 1
    assert "alembic_version" in tables(path)


def test_a_database_that_never_comes(run: Run) -> None:
    result = run("migrate", "--url", "postgresql://nobody@127.0.0.1:1/none", "--wait", "0.2")
    assert result.exit_code == commands.UNREACHABLE
    assert result.stderr.count("trying again") == 1
