"""``gateway pipeline archive``: days, files and damage, without Spark."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from gateway.errors import NoSuchResource
from gateway.pipeline.archive.cli import archive
from gateway.pipeline.archive.parquet import ParquetTable
from gateway.pipeline.archive.table import Token
from gateway.pipeline.schema import MESSAGES
from tests.pipeline.unit.archive.arrow_engine import ArrowEngine, messages


@pytest.fixture
def table(tmp_path: Path) -> ParquetTable:
    found = ParquetTable.opened(ArrowEngine(), tmp_path / "archive" / MESSAGES, MESSAGES)
    found.append(messages(998, 1_001), Token.of("0", 1_001))
    return found


def said(tmp_path: Path, *arguments: str) -> Result:
    return CliRunner().invoke(archive, [*arguments, "--storage", str(tmp_path)], catch_exceptions=False)


def test_the_files_that_are_the_table_can_be_read_by_anyone(tmp_path: Path, table: ParquetTable) -> None:
    (tmp_path / "archive" / MESSAGES / "day=2026-11-01" / "left-behind.parquet").write_bytes(b"by somebody")
    found = said(tmp_path, "files")
    assert (found.exit_code, len(found.stdout.splitlines())) == (0, 2)
    rows = pq.ParquetDataset(found.stdout.splitlines(), partitioning="hive").read()
    assert rows.column("sequence").to_pylist() == [998, 999, 1_000, 1_001]
    documents = json.loads(said(tmp_path, "files", "--json").stdout)
    assert [(each["path"], each["rows"], each["ranges"]) for each in documents] == [
        (path, 2, {"0": [first, first + 1]})
        for path, first in zip(found.stdout.splitlines(), (998, 1_000), strict=True)
    ]


def test_days(tmp_path: Path, table: ParquetTable) -> None:
    found = said(tmp_path, "days", MESSAGES)
    assert [line.split()[:3] for line in found.stdout.splitlines()] == [
        ["DAY", "FILES", "ROWS"], ["2026-11-01", "1", "2"], ["2026-11-02", "1", "2"],
    ]  # fmt: skip
    assert "archived up to {'0': 1001}" in found.stderr
    assert [each["rows"] for each in json.loads(said(tmp_path, "days", "--json").stdout)] == [2, 2]


def test_damage_is_named_and_the_exit_status_says_so(tmp_path: Path, table: ParquetTable) -> None:
    whole = said(tmp_path, "check", "--deep")
    assert (whole.exit_code, whole.stdout, "2 files, 4 rows; 0 problems" in whole.stderr) == (0, "", True)
    first, _ = table.files()
    path = tmp_path / "archive" / MESSAGES / first.path
    path.write_bytes(path.read_bytes()[:-1])
    found = said(tmp_path, "check")
    assert found.exit_code == 9
    assert found.stdout == f"{first.path} has {first.octets - 1:,} octets, not {first.octets:,}\n"
    (document,) = json.loads(said(tmp_path, "check", "--json").stdout)
    assert len(document["problems"]) == 1


def test_where_there_is_no_archive_none_is_made(tmp_path: Path) -> None:
    with pytest.raises(NoSuchResource, match="there is no archive"):
        said(tmp_path, "files")
    assert list(tmp_path.iterdir()) == []


def test_no_spark_is_started_for_it(tmp_path: Path, table: ParquetTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark.sql", None)
    monkeypatch.setitem(sys.modules, "pyspark", None)
    assert said(tmp_path, "check", "--deep").exit_code == 0
