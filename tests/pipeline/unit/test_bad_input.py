"""Each row of the table of errors in ``docs/explanation/pipeline.md``.

Each goes through the command, with its exit status, its sentence, and nothing half done. What only Spark can show (a
filter that is no expression, a disk that fills up, files that are cut short under a reader) is in
``tests/pipeline/spark``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner, Result

from gateway import commands
from gateway.pipeline import cli, session
from gateway.pipeline.archive.parquet import ParquetTable
from gateway.pipeline.archive.table import Token
from gateway.pipeline.jobs.base import JOBS
from gateway.pipeline.schema import MESSAGES
from tests.pipeline.unit import toy
from tests.pipeline.unit.archive.arrow_engine import ArrowEngine, messages
from tests.pipeline.unit.board import Board, problem

Run = Callable[..., Result]
PLAY = ("run", "toy", "--where", "x", "--id", "t1")


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Run]:
    """One verb of ``gateway pipeline``, with a storage of its own."""
    for variable in ("GATEWAY_URL", "GATEWAY_API_KEY", "GATEWAY_CONFIG", "JAVA_HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setitem(JOBS, "toy", ("tests.pipeline.unit.toy:Toy", "Play."))  # type: ignore[arg-type]
    monkeypatch.setattr(cli.signal, "signal", lambda *_: None)
    session.java.cache_clear()
    more = ("--storage", str(tmp_path / "storage"))
    yield lambda *words: CliRunner().invoke(commands.cli, ["pipeline", *words, *more], catch_exceptions=False)
    session.java.cache_clear()
    toy.SEEN.clear()


@pytest.fixture
def board(monkeypatch: pytest.MonkeyPatch) -> Board:
    """The gateway that is asked."""
    board = Board()
    monkeypatch.setattr("gateway.pipeline.jobs.base.Service", board.service)
    return board


def test_a_wrong_url(run: Run, tmp_path: Path) -> None:
    found = run(*PLAY, "--url", "http://127.0.0.1:1")
    assert found.exit_code == 5
    assert "http://127.0.0.1:1 cannot be reached" in found.stderr
    assert not toy.SEEN
    assert not (tmp_path / "storage").exists()


def test_a_wrong_key(run: Run, board: Board) -> None:
    board.before = lambda request: problem(401, "unauthorized", "no key of this gateway's")
    found = run(*PLAY)
    assert found.exit_code == 4
    assert "no key of this gateway's Set GATEWAY_API_KEY or pipeline.api_key_file" in found.stderr
    assert not toy.SEEN
    assert not board.runs


def test_a_gateway_that_goes_in_the_middle(run: Run, board: Board, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GATEWAY_PIPELINE__UNAVAILABLE_TIMEOUT", "0.01")

    def gone(request: httpx.Request) -> httpx.Response | None:
        if toy.SEEN:
            raise httpx.ConnectError("Connection refused")
        return None

    board.before = gone
    found = run(*PLAY)
    assert found.exit_code == 5
    assert "went away" in found.stderr
    assert board.runs["t1"]["state"] == "running", "nobody says that it is done"
    toy.SEEN.clear()
    board.before = lambda request: None
    assert run(*PLAY).exit_code == 0
    assert len(toy.SEEN) == 1, "it was run again, and not taken for done"
    assert board.runs["t1"]["state"] == "done"


@pytest.mark.parametrize("version", ["", 'openjdk version "11.0.2" 2019-01-15'])
def test_java_that_is_missing_or_too_old(
    run: Run, board: Board, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin" if version else str(tmp_path))
    if version:
        java = tmp_path / "java"
        java.write_text(f"#!/bin/sh\necho '{version}' >&2\n")
        java.chmod(0o755)
    board.others["/v1/log/head"] = {"position": {}, "start": {}}
    found = run("run", "rollup", "--id", "r1")
    assert found.exit_code == 8
    assert ("is Java 11, and Spark needs 17" if version else "there is none on the PATH: install") in found.stderr
    assert board.runs["r1"]["state"] == "failed"
    assert not list((tmp_path / "storage").glob("rollups/*.json")), "nothing was counted"


def test_a_file_of_an_archive_or_its_commit_log_that_is_cut_short_and_one_of_a_newer_release(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = ParquetTable.opened(ArrowEngine(), tmp_path / "archive" / MESSAGES, MESSAGES)
    table.append(messages(998, 1_001), Token.of("0", 1_001))

    def checked() -> Result:
        return CliRunner().invoke(commands.cli, ["pipeline", "archive", "check", "--storage", str(tmp_path)])

    assert checked().exit_code == 0
    with monkeypatch.context() as patch:
        patch.setattr("gateway.pipeline.archive.commits.SCHEMA_VERSION", 0)
        found = checked()
        assert found.exit_code == 9
        assert "of schema version 1, and this release knows 0" in found.stderr
    name = table.files()[0].path
    file = tmp_path / "archive" / MESSAGES / name
    octets = file.read_bytes()
    os.truncate(file, 500)
    found = checked()
    assert found.exit_code == 9
    assert f"{name} has 500 octets" in found.stdout + found.stderr
    file.write_bytes(octets)
    assert checked().exit_code == 0
    commit = max((tmp_path / "archive" / MESSAGES / "_commits").glob("*.json"))
    os.truncate(commit, commit.stat().st_size - 40)
    found = checked()
    assert found.exit_code == 9
    assert commit.name in found.stderr
