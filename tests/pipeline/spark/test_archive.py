"""What an archive is and can do, kept as plain Parquet or as Delta: one suite for both."""

from __future__ import annotations

import os
import resource
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession, functions
from pyspark.sql.types import StructType

from gateway.errors import ArchiveDamaged, ArchiveTooNew, ConfigurationError, DiskFull, NoSuchResource, PipelineFault
from gateway.exits import exit_status
from gateway.pipeline.archive import delta
from gateway.pipeline.archive.engine import digest
from gateway.pipeline.archive.opening import open_table
from gateway.pipeline.archive.table import ArchiveTable, Token
from gateway.pipeline.faults import fault_of
from gateway.pipeline.schema import MESSAGES, ddl

START = datetime(2026, 11, 1, tzinfo=UTC)
A_DAY = 1_000
"""Sequence numbers of one day."""
RANDOM = "unhex(array_join(transform(sequence(1, 10000), each -> sha2(concat(sequence, ':', each), 256)), ''))"
"""320,000 octets that no compression makes less."""


@pytest.fixture(params=["parquet", "delta"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


Open = Callable[[], ArchiveTable]
PREPARED = (("0", 1_010, 990), ("0", 1_020, 1_010), ("1", 10, 0))
"""Shard, last sequence number and the one before the first, of the appends that most tests begin with."""


@pytest.fixture(scope="module")
def prepared(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """An archive of each kind, which nobody touches."""
    found = {}
    for kind in ("parquet", "delta"):
        found[kind] = tmp_path_factory.mktemp(kind) / "archive"
        table = open_table(spark, found[kind], kind, MESSAGES)
        for shard, upto, after in PREPARED:
            rows = messages(spark, after + 1, upto, int(shard))
            assert table.append(rows, Token.of(shard, upto, after)).rows == upto - after
    return found


@pytest.fixture
def opened(spark: SparkSession, tmp_path: Path, kind: str, prepared: dict[str, Path]) -> Open:
    """Open the test's own copy of the archive, as another process would."""
    shutil.copytree(prepared[kind], tmp_path / "archive")
    return lambda: open_table(spark, tmp_path / "archive", kind, MESSAGES)


def messages(spark: SparkSession, first: int, last: int, shard: int = 0, parts: int = 2) -> DataFrame:
    """Rows of the message log from ``first`` to ``last``; each thousand is a day, from 2026-11-01 on."""
    number = functions.col("id")
    seconds = int(START.timestamp()) + number * 86_400 / A_DAY
    text = functions.concat(functions.lit("body "), number)
    rows = spark.range(first, last + 1, numPartitions=parts).select(
        functions.lit(shard).alias("shard"),
        number.alias("sequence"),
        functions.concat_ws("-", functions.lit(shard), number).alias("message_id"),
        functions.lit("orders").alias("tap"),
        functions.timestamp_micros((seconds * 1_000_000).cast("bigint")).alias("accepted_at"),
        (number % 7 == 0).alias("redelivered"),
        functions.encode(text, "utf-8").alias("body"),
        functions.length(text).cast("bigint").alias("size"),
        functions.sha2(text, 256).alias("sha256"),
    )
    schema = StructType.fromDDL(ddl(MESSAGES))
    return rows.select(
        *(
            functions.col(field.name)
            if field.name in rows.columns
            else functions.lit(None).cast(field.dataType).alias(field.name)
            for field in schema
        )
    )


def numbers(rows: DataFrame) -> list[tuple[int, int]]:
    return sorted((row.shard, row.sequence) for row in rows.select("shard", "sequence").collect())


def sequence(*spans: tuple[int, int], shard: int = 0) -> list[tuple[int, int]]:
    return [(shard, number) for first, last in spans for number in range(first, last + 1)]


def in_order(path: Path, table: ArchiveTable) -> None:
    """Every file of the table is in order of shard and sequence."""
    for file in table.files():
        found = pq.ParquetFile(path / file.path).read(["shard", "sequence"]).to_pydict()
        rows = list(zip(found["shard"], found["sequence"], strict=True))
        assert rows == sorted(rows)
        assert (len(rows), len(set(rows))) == (file.rows, file.rows)


THERE = sequence((991, 1_020)) + sequence((1, 10), shard=1)
"""The rows of the archive that was prepared."""


def test_rows_are_appended_once_read_back_and_stay_as_they_were(
    spark: SparkSession, opened: Open, tmp_path: Path
) -> None:
    table = opened()
    assert table.position() == {"0": 1_020, "1": 10}
    assert table.append(messages(spark, 1_011, 1_020), Token.of("0", 1_020, 1_010)).repeated
    assert table.append(messages(spark, 1_011, 1_030), Token.of("0", 1_030, 1_010)).repeated, "some of it is there"
    read = table.read()
    rows = messages(spark, 991, 1_020).union(messages(spark, 1, 10, shard=1))
    assert read.columns == [*rows.columns, "day"]
    assert digest(read, rows.columns) == digest(rows, rows.columns)
    assert [(day.day, day.rows, day.last) for day in table.days()] == [
        ("2026-11-01", 19, {"0": 999, "1": 10}), ("2026-11-02", 21, {"0": 1_020}),
    ]  # fmt: skip
    assert numbers(table.read(["sequence", "shard"], since="2026-11-02")) == sequence((1_000, 1_020))
    assert table.read(["body"], until="2026-11-01").where("body = encode('body 993', 'utf-8')").count() == 1
    in_order(tmp_path / "archive", table)
    found = table.check(deep=True)
    assert (found.problems, found.rows) == ((), 40)
    with pytest.raises(ConfigurationError, match="there is no column 'colour'; there are shard, sequence"):
        table.read(["colour"])
    assert table.append(messages(spark, 1, 0), Token.of("2", 7)).rows == 0
    assert opened().position() == {"0": 1_020, "1": 10, "2": 7}, "a version without rows counts too"


def test_an_append_whose_rows_came_meanwhile_repeats_none(
    spark: SparkSession, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody else appends between the look at the archive and the commit."""
    table, other = opened(), opened()
    passed = Token.passed

    def stale(token: Token, versions: Mapping[str, int]) -> bool:
        monkeypatch.setattr(Token, "passed", passed)
        assert other.append(messages(spark, 1_021, 1_025), Token.of("0", 1_025, 1_020)).rows == 5
        return False

    monkeypatch.setattr(Token, "passed", stale)
    table.append(messages(spark, 1_021, 1_030), Token.of("0", 1_030, 1_020))
    after = table.position()["0"]
    assert after in (1_025, 1_030), "nothing, or the rest"
    assert numbers(opened().read()) == sorted(THERE + sequence((1_021, after)))


def test_small_files_become_large_ones_while_writers_and_readers_go_on(
    spark: SparkSession, opened: Open, tmp_path: Path
) -> None:
    table = opened()
    before = table.read()
    was = digest(before, before.columns)
    done = table.compact("2026-11-01")
    assert (done.before >= 3, done.after, done.rows) == (True, 1, 19)
    assert (table.files()[0].rows, table.files()[0].ranges) == (19, {"0": (991, 999), "1": (1, 10)})
    in_order(tmp_path / "archive", table)
    assert digest(before, before.columns) == was, "who reads the files of before reads them still"
    now = opened().read()
    assert digest(now, now.columns) == was
    assert opened().compact("2026-11-01").before == 0, "nothing is left to do"
    assert table.append(messages(spark, 1_011, 1_020), Token.of("0", 1_020)).repeated


def test_days_go_up_to_the_floor_and_their_files_later(
    spark: SparkSession, opened: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = opened()
    floor = {"0": 1_019, "1": 10}
    told = table.drop_before("2026-11-03", floor, dry_run=True)
    assert (told.days, told.rows, told.kept) == (("2026-11-01",), 19, ("2026-11-02",))
    assert table.drop_before("2026-11-03", {"0": 1_019}).days == (), "nobody said how far shard 1 is read"
    being_read = table.read()
    assert table.drop_before("2026-11-03", floor) == told
    table.vacuum()
    assert being_read.count() == 40, "a reader reads on"
    assert numbers(opened().read()) == sequence((1_000, 1_020))
    monkeypatch.setattr(delta, "KEEP_MIN_SECONDS", 0.0)
    assert table.vacuum(0).files == told.files
    listed = {str(tmp_path / "archive" / file.path) for file in table.files()}
    assert {str(path) for path in (tmp_path / "archive").glob("day=*/*.parquet")} == listed
    assert opened().position() == {"0": 1_020, "1": 10}
    with pytest.raises(Exception, match=r"FILE|does not exist") as failed:
        being_read.collect()
    assert isinstance(fault_of(failed.value), ArchiveDamaged), "and fails when it takes too long, rather than read less"


def test_a_column_that_is_added_later_reads_back(spark: SparkSession, opened: Open) -> None:
    table = opened()
    table.append(messages(spark, 1_021, 1_022).withColumn("colour", functions.lit("red")), Token.of("0", 1_022))
    found = opened().read(["sequence", "colour"], since="2026-11-02").where("sequence > 1019").orderBy("sequence")
    assert [tuple(row) for row in found.collect()] == [(1_020, None), (1_021, "red"), (1_022, "red")]
    with pytest.raises(PipelineFault, match="column tap is string in the archive, and int in the rows"):
        table.append(messages(spark, 1_023, 1_023).withColumn("tap", functions.lit(1)), Token.of("0", 1_023))
    assert opened().position()["0"] == 1_022


def test_an_archive_is_what_it_was_made_to_be(spark: SparkSession, opened: Open, tmp_path: Path, kind: str) -> None:
    made = opened()
    assert (opened().id, opened().log) == (made.id, MESSAGES)
    other = {"parquet": "delta", "delta": "parquet"}[kind]
    with pytest.raises(ConfigurationError, match=r"this is an? .*(Parquet|Delta)"):
        open_table(spark, tmp_path / "archive", other, MESSAGES)
    with pytest.raises(ConfigurationError, match="an archive of messages, and not of events"):
        open_table(spark, tmp_path / "archive", kind, "events")
    with pytest.raises(NoSuchResource, match="there is no archive"):
        open_table(spark, tmp_path / "none", kind, create=False)
    with pytest.raises(ConfigurationError, match="takes for a pattern"):
        open_table(spark, tmp_path / "[a]", kind, MESSAGES)
    assert sorted(os.listdir(tmp_path)) == ["archive"]


def test_a_newer_schema_is_not_touched(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.pipeline.archive.commits.SCHEMA_VERSION", 0)
    monkeypatch.setattr("gateway.pipeline.archive.delta.SCHEMA_VERSION", 0)
    with pytest.raises(ArchiveTooNew, match="of schema version 1, and this release knows 0"):
        opened()
    assert exit_status(ArchiveTooNew) == 9


def test_a_file_that_is_cut_short_or_missing_is_named(opened: Open, tmp_path: Path) -> None:
    file = opened().files()[0]
    read_before = opened().read()
    os.truncate(tmp_path / "archive" / file.path, 500)
    with pytest.raises(ArchiveDamaged, match=f"{file.path} has 500 octets, not {file.octets:,}"):
        opened().read()
    (problem,) = opened().check().problems
    assert f"{file.path} has 500 octets" in problem
    with pytest.raises(Exception, match=r"footer|Parquet|length") as failed:  # whoever had planned to read it
        read_before.collect()
    assert isinstance(fault_of(failed.value), ArchiveDamaged)
    (tmp_path / "archive" / file.path).unlink()
    with pytest.raises(ArchiveDamaged, match=f"{file.path} is missing"):
        opened().read()
    assert exit_status(ArchiveDamaged) == 9


@pytest.mark.parametrize("harm", ["missing", "cut"])
def test_a_damaged_commit_log_is_named(spark: SparkSession, opened: Open, tmp_path: Path, kind: str, harm: str) -> None:
    log = tmp_path / "archive" / {"parquet": "_commits", "delta": "_delta_log"}[kind]
    commit = log / f"{1 if harm == 'missing' else 2:020}.json"
    commit.unlink() if harm == "missing" else os.truncate(commit, commit.stat().st_size - 40)
    (log / f".{commit.name}.crc").unlink(missing_ok=True)
    before = sorted(str(path) for path in (tmp_path / "archive").rglob("*"))
    with pytest.raises(ArchiveDamaged):
        opened().read().count()
    with pytest.raises(ArchiveDamaged):
        opened().append(messages(spark, 1_021, 1_021), Token.of("0", 1_021))
    assert sorted(str(path) for path in (tmp_path / "archive").rglob("*")) == before


def test_a_full_disk_appends_nothing(spark: SparkSession, opened: Open) -> None:
    rows = messages(spark, 1_021, 1_022, parts=1).withColumn("body", functions.expr(RANDOM))
    with no_file_above(spark, 200_000), pytest.raises(DiskFull, match="File too large"):
        opened().append(rows, Token.of("0", 1_022))
    assert exit_status(DiskFull) == 10
    assert opened().position()["0"] == 1_020
    assert numbers(opened().read()) == sorted(THERE)
    assert opened().append(rows, Token.of("0", 1_022)).rows == 2
    assert opened().check().problems == ()


@contextmanager
def no_file_above(spark: SparkSession, octets: int) -> Iterator[None]:
    """Spark's JVM cannot make a file larger than this."""
    process = spark.sparkContext._gateway.proc.pid
    before = resource.prlimit(process, resource.RLIMIT_FSIZE, (octets, resource.RLIM_INFINITY))
    try:
        yield
    finally:
        resource.prlimit(process, resource.RLIMIT_FSIZE, before)
