"""What is missing is told, all of it at once."""

from __future__ import annotations

import sqlite3
from datetime import UTC, datetime
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from gateway import errors
from gateway.exits import DONE, FAILED, MISSING, REFUSED, UNREACHABLE, USAGE
from gateway.pipeline import doctor
from gateway.pipeline.doctor import CHECKS, Finding, examine_pipeline
from gateway.pipeline.settings import Pipeline
from tests.pipeline.unit.board import URL, Board, problem

HEAD: dict[str, Any] = {"log": "events", "shards": [{"shard": 0, "floor": 12, "head": 812}], "arrow": True}
CURSOR: dict[str, Any] = {"name": "archive", "backlog": 5}


@pytest.fixture
def board(monkeypatch: pytest.MonkeyPatch) -> Board:
    board = Board()
    board.others |= {"/v1/log/head": dict(HEAD), "/v1/log/cursors": {"cursors": [dict(CURSOR)]}}
    now = format_datetime(datetime.now(UTC), usegmt=True)
    board.others["/v1/pipeline/runs"] = {"runs": []}
    tell(board, now)
    monkeypatch.setattr(doctor, "Service", board.service)
    monkeypatch.setattr(doctor.session, "java", lambda: ("/usr/bin/java", 17))
    return board


def tell(board: Board, now: str) -> None:
    """The gateway's clock says this."""

    def answer(request: httpx.Request) -> httpx.Response | None:
        value = board.others.get(request.url.path)
        return None if value is None else httpx.Response(200, json=value, headers={"date": now} if now else {})

    board.before = answer


def found(pipeline: Pipeline) -> dict[str, Finding]:
    return {each.name: each for each in examine_pipeline(lambda: pipeline)}


@pytest.fixture
def pipeline(tmp_path: Path) -> Pipeline:
    return Pipeline(url=URL, storage=str(tmp_path / "not" / "yet"))


def with_settings(pipeline: Pipeline, **changes: Any) -> Pipeline:
    settings = msgspec.structs.replace(pipeline.settings, **changes)
    return Pipeline(settings, pipeline.url, pipeline.api_key, pipeline.ledger_dsn, pipeline.storage)


def test_where_all_is_well(board: Board, pipeline: Pipeline, tmp_path: Path) -> None:
    findings = found(pipeline)
    assert list(findings) == [name for name, _ in CHECKS]
    assert {each.mark for each in findings.values()} <= {"ok", "note"}, findings
    assert findings["java"].text == "Java 17, /usr/bin/java"
    assert findings["gateway"].text == f"{URL} answers, with Arrow; 801 events in 1 shards"
    assert findings["cursors"].text == "archive 5 behind"
    assert findings["clock"].text == "as the gateway's"
    assert "can be made" in findings["storage"].text
    assert list(tmp_path.iterdir()) == [], "looking leaves nothing behind"


def test_settings_that_cannot_be_read_are_the_only_finding() -> None:
    def settings() -> Pipeline:
        raise errors.ConfigurationError("pipeline.url is wrong")

    assert examine_pipeline(settings) == [Finding("settings", "FAIL", "pipeline.url is wrong", USAGE)]


def test_without_java(board: Board, pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> tuple[str, int]:
        raise errors.JavaMissing("Spark needs Java 17: install it")

    monkeypatch.setattr(doctor.session, "java", none)
    findings = found(pipeline)
    assert findings["java"] == Finding("java", "FAIL", "Spark needs Java 17: install it", MISSING)
    assert findings["gateway"].mark == "ok", "one that fails does not hide the others"


def test_without_the_gateway(pipeline: Pipeline, tmp_path: Path) -> None:
    findings = found(Pipeline(url="http://127.0.0.1:9", storage=str(tmp_path)))
    for name in ("gateway", "key", "cursors", "clock"):
        assert (findings[name].mark, findings[name].exit) == ("FAIL", UNREACHABLE)
    assert findings["storage"].mark == "ok"


def test_with_a_wrong_key(board: Board, pipeline: Pipeline) -> None:
    board.before = lambda request: problem(401, "unauthorized", "no valid API key")
    finding = found(pipeline)["key"]
    assert (finding.mark, finding.exit) == ("FAIL", REFUSED)
    assert finding.text == f"{URL}: no valid API key Set GATEWAY_API_KEY or pipeline.api_key_file."


def test_a_gateway_without_arrow_works_but_slowly(board: Board, pipeline: Pipeline) -> None:
    board.others["/v1/log/head"]["arrow"] = False
    finding = found(pipeline)["gateway"]
    assert (finding.mark, finding.exit) == ("note", DONE)
    assert "read as NDJSON" in finding.text


def test_a_cursor_that_is_far_behind_is_told(board: Board, pipeline: Pipeline) -> None:
    board.others["/v1/log/cursors"]["cursors"][0]["backlog"] = 2_000_000
    assert found(pipeline)["cursors"].mark == "note"


@pytest.mark.parametrize(("now", "mark"), [("Sun, 22 Nov 2020 00:00:00 GMT", "FAIL"), ("", "note")])
def test_clocks_that_are_apart(board: Board, pipeline: Pipeline, now: str, mark: str) -> None:
    tell(board, now)
    assert found(pipeline)["clock"].mark == mark


def test_deltas_jars(board: Board, pipeline: Pipeline, tmp_path: Path) -> None:
    (tmp_path / "jars").mkdir()
    delta = with_settings(pipeline, archive="delta", jars=str(tmp_path / "jars"))
    assert found(delta)["delta jars"].exit == USAGE
    (tmp_path / "jars" / "delta-spark_4.2_2.13-4.4.0.jar").touch()
    assert found(delta)["delta jars"].text == f"1 in {tmp_path / 'jars'}"


def test_a_storage_that_cannot_be_written(board: Board, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    finding = found(Pipeline(url=URL, storage=str(tmp_path / "file" / "below")))["storage"]
    assert (finding.mark, finding.exit) == ("FAIL", FAILED)
    assert "Not a directory" in finding.text
    assert found(Pipeline(url=URL, storage="s3a://bucket/x"))["storage"].mark == "note"


def test_little_room_is_told(board: Board, pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "SPACE_LOW", 1 << 60)
    assert found(pipeline)["storage"].mark == "note"


def test_the_ledger_is_read_where_it_is_read_straight(board: Board, tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    missing = found(Pipeline(url=URL, ledger_dsn=f"sqlite:///{path}", storage=str(tmp_path)))["ledger"]
    assert (missing.mark, missing.text) == ("FAIL", f"PipelineFault: there is no ledger at {path}".partition(": ")[2])
    assert not path.exists()
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE shards (shard INTEGER)")
        connection.execute("INSERT INTO shards VALUES (0), (1)")
    connection.close()
    there = found(Pipeline(url=URL, ledger_dsn=f"sqlite:///{path}", storage=str(tmp_path)))["ledger"]
    assert there.text == "adbc_driver_sqlite reads it: 2 shards"


def test_as_json() -> None:
    assert Finding("java", "ok", "x").as_dict() == {"name": "java", "mark": "ok", "text": "x", "exit": 0}
