"""An archive of Parquet files: what is in it, by the files that are the table and nothing else."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gateway.errors import ArchiveDamaged, ArchiveTooNew, ConfigurationError, NoSuchResource, PipelineFault
from gateway.pipeline.archive import commits
from gateway.pipeline.archive.parquet import ParquetTable
from gateway.pipeline.archive.table import Appended, Compacted, Token
from gateway.pipeline.schema import EVENTS, MESSAGES
from tests.pipeline.unit.archive.arrow_engine import ArrowEngine, messages


class Clock:
    """A clock that one sets; microseconds."""

    def __init__(self) -> None:
        self.seconds = 1_000

    def __call__(self) -> int:
        return self.seconds * 1_000_000


def opened(path: Path, *, parts: int = 1, clock: Callable[[], int] | None = None) -> ParquetTable:
    return ParquetTable.opened(ArrowEngine(parts), path / "archive", MESSAGES, clock=clock)


def numbers(table: ParquetTable, **of: str) -> list[int]:
    return table.read(["sequence"], **of).column("sequence").to_pylist()


# ----------------------------------------------------------------------------------------------------- append, read


def test_what_was_appended_is_read(tmp_path: Path) -> None:
    table = opened(tmp_path)
    rows = messages(1, 5)
    assert table.append(rows, Token.of("0", 5)) == Appended(5, 1, table.files()[0].octets)
    read = table.read()
    assert read.select(rows.column_names).equals(rows)
    assert [str(day) for day in read.column("day").unique().to_pylist()] == ["2026-11-01"]


def test_rows_of_several_days_lie_in_folders_of_their_days(tmp_path: Path) -> None:
    table = opened(tmp_path)
    table.append(messages(990, 2_010), Token.of("0", 2_010))
    assert [(file.day, file.rows, file.ranges) for file in table.files()] == [
        ("2026-11-01", 10, {"0": (990, 999)}),
        ("2026-11-02", 1_000, {"0": (1_000, 1_999)}),
        ("2026-11-03", 11, {"0": (2_000, 2_010)}),
    ]
    assert all(file.path.startswith(f"day={file.day}/") for file in table.files())
    assert numbers(table, since="2026-11-03") == list(range(2_000, 2_011))
    assert numbers(table, until="2026-11-01") == list(range(990, 1_000))
    assert [(day.day, day.files, day.rows, day.last) for day in table.days()] == [
        ("2026-11-01", 1, 10, {"0": 999}),
        ("2026-11-02", 1, 1_000, {"0": 1_999}),
        ("2026-11-03", 1, 11, {"0": 2_010}),
    ]


def test_the_same_token_again_appends_nothing(tmp_path: Path) -> None:
    table = opened(tmp_path)
    table.append(messages(1, 5), Token.of("0", 5))
    assert table.append(messages(1, 5), Token.of("0", 5)).repeated
    assert table.append(messages(1, 3), Token.of("0", 3)).repeated, "one before it is there as well"
    assert not table.append(messages(1, 2, shard=1), Token.of("1", 2)).repeated, "another shard is another app"
    assert numbers(table) == [1, 2, 3, 4, 5, 1, 2]
    assert table.position() == {"0": 5, "1": 2}


def test_an_append_that_begins_before_the_end_appends_nothing(tmp_path: Path) -> None:
    """Two jobs read where the archive ends, and cut what follows into other pieces."""
    table = opened(tmp_path)
    table.append(messages(1, 5), Token.of("0", 5, after=0))
    assert table.append(messages(1, 8), Token.of("0", 8, after=0)).repeated

    class Beside(ArrowEngine):
        def write(self, *arguments: object) -> None:
            super().write(*arguments)  # type: ignore[arg-type]
            if not table.append(messages(6, 7), Token.of("0", 7, after=5)).repeated:
                beside.append(7)

    beside: list[int] = []
    slow = ParquetTable.opened(Beside(), tmp_path / "archive")
    assert slow.append(messages(6, 8), Token.of("0", 8, after=5)).repeated
    assert (beside, numbers(table), table.position()) == ([7], [1, 2, 3, 4, 5, 6, 7], {"0": 7})
    assert len(left(tmp_path)) == 2
    assert not table.append(messages(8, 8), Token.of("0", 8, after=7)).repeated


def test_a_version_without_rows_counts_too(tmp_path: Path) -> None:
    table = opened(tmp_path)
    assert table.append(messages(1, 0), Token.of("0", 7)) == Appended()
    assert table.append(messages(6, 7), Token.of("0", 7)).repeated
    assert numbers(table) == []


def test_apps_of_others_are_no_position(tmp_path: Path) -> None:
    table = opened(tmp_path)
    table.append(messages(1, 2), Token("copied", 1))
    assert (table.position(), table.versions()) == ({}, {"copied": 1})


def test_a_column_that_is_added_later_reads_back(tmp_path: Path) -> None:
    table = opened(tmp_path)
    table.append(messages(1, 2), Token.of("0", 2))
    table.append(messages(3, 4).append_column("colour", pa.array(["red", "blue"])), Token.of("0", 4))
    table.append(messages(5, 5).drop_columns("tap"), Token.of("0", 5))
    again = opened(tmp_path)
    assert again.read(["colour"]).column("colour").to_pylist() == [None, None, "red", "blue", None]
    assert again.read(["tap"]).column("tap").to_pylist() == ["orders"] * 4 + [None]


def test_a_column_of_another_type_is_refused(tmp_path: Path) -> None:
    table = opened(tmp_path)
    rows = messages(1, 2).drop_columns("tap").append_column("tap", pa.array([1, 2]))
    with pytest.raises(PipelineFault, match="column tap is string in the archive, and bigint in the rows"):
        table.append(rows, Token.of("0", 2))
    assert (table.position(), table.files(), left(tmp_path)) == ({}, [], [])


def test_columns_are_chosen_and_unknown_ones_named(tmp_path: Path) -> None:
    table = opened(tmp_path)
    assert table.read(["sequence", "shard"]).column_names == ["shard", "sequence"], "in the order of the log"
    with pytest.raises(ConfigurationError, match="there is no column 'colour'; there are shard, sequence"):
        table.read(["colour"])


@pytest.mark.parametrize(("column", "says"), [("shard", "without a shard or a sequence"), ("accepted_at", "time")])
def test_rows_that_cannot_be_archived_are_refused_whole(tmp_path: Path, column: str, says: str) -> None:
    class Nulls(ArrowEngine):
        def write(self, rows: pa.Table, log: str, folder: Path) -> None:
            super().write(rows, log, folder)
            if column == "accepted_at":
                (folder / "day=2026-11-01").rename(folder / "day=__HIVE_DEFAULT_PARTITION__")

    table = ParquetTable.opened(Nulls(), tmp_path / "archive", MESSAGES)
    rows = messages(1, 2)
    if column == "shard":
        rows = rows.set_column(0, "shard", pa.nulls(2, pa.int32()))
    with pytest.raises(PipelineFault, match=says):
        table.append(rows, Token.of("0", 2))
    assert (table.files(), left(tmp_path)) == ([], [])


def test_rows_out_of_order_and_rows_twice_are_refused(tmp_path: Path) -> None:
    table = opened(tmp_path)
    twice = pa.concat_tables([messages(1, 3), messages(3, 4)])
    with pytest.raises(PipelineFault, match="row 3 of shard 0 comes after row 3 of shard 0"):
        table.append(twice, Token.of("0", 4))
    assert numbers(table) == []


def left(path: Path) -> list[str]:
    """What lies in the archive besides its commits."""
    found = [str(each.relative_to(path / "archive")) for each in (path / "archive").rglob("*") if each.is_file()]
    return [each for each in found if not each.startswith("_commits/")]


# ----------------------------------------------------------------------------------------------------- opening


def test_an_archive_is_what_it_was_made_to_be(tmp_path: Path) -> None:
    made = opened(tmp_path)
    assert (opened(tmp_path).id, opened(tmp_path).log) == (made.id, MESSAGES)
    assert ParquetTable.opened(ArrowEngine(), tmp_path / "archive").log == MESSAGES
    with pytest.raises(ConfigurationError, match="an archive of messages, and not of events"):
        ParquetTable.opened(ArrowEngine(), tmp_path / "archive", EVENTS)


def test_a_folder_that_is_no_archive_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "photos").write_text("")
    with pytest.raises(ConfigurationError, match="holds 'photos', and is no archive"):
        ParquetTable.opened(ArrowEngine(), tmp_path, MESSAGES)
    with pytest.raises(NoSuchResource, match="there is no archive"):
        ParquetTable.opened(ArrowEngine(), tmp_path / "none", MESSAGES, create=False)
    with pytest.raises(ConfigurationError, match="there is no log 'letters' to archive; there are events, messages"):
        ParquetTable.opened(ArrowEngine(), tmp_path / "none", "letters")
    with pytest.raises(ConfigurationError, match="needs a file system"):
        ParquetTable.opened(ArrowEngine(), "s3a://bucket/archive", MESSAGES)
    (tmp_path / "delta" / "_delta_log").mkdir(parents=True)
    with pytest.raises(ConfigurationError, match="this is a Delta archive"):
        ParquetTable.opened(ArrowEngine(), tmp_path / "delta", MESSAGES)
    assert sorted(os.listdir(tmp_path)) == ["delta", "photos"]


def test_without_hard_links_nothing_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def link(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", link)
    with pytest.raises(ConfigurationError, match="this file system has no hard links"):
        opened(tmp_path)
    assert left(tmp_path) == []


# ----------------------------------------------------------------------------------------------------- compaction


def test_small_files_of_a_day_become_large_ones_in_order(tmp_path: Path) -> None:
    table = opened(tmp_path)
    for upto in range(10, 101, 10):
        table.append(messages(upto - 9, upto), Token.of("0", upto))
        table.append(messages(upto - 9, upto, shard=1), Token.of("1", upto))
    table.append(messages(1_000, 1_001), Token.of("0", 1_001))
    before = table.read().sort_by([("shard", "ascending"), ("sequence", "ascending")])
    assert table.compact("2026-11-01") == Compacted("2026-11-01", 20, 1, 200)
    assert [(file.day, file.rows, file.ranges) for file in table.files()] == [
        ("2026-11-01", 200, {"0": (1, 100), "1": (1, 100)}),
        ("2026-11-02", 2, {"0": (1_000, 1_001)}),
    ]
    assert table.read().sort_by([("shard", "ascending"), ("sequence", "ascending")]).equals(before)
    assert table.compact("2026-11-01") == Compacted("2026-11-01"), "nothing is left to do"
    assert table.position() == {"0": 1_001, "1": 100}
    assert table.append(messages(91, 100), Token.of("0", 100)).repeated


def test_large_files_are_left_alone_and_the_wanted_size_is_kept(tmp_path: Path) -> None:
    table = opened(tmp_path)
    for upto in range(10, 101, 10):
        table.append(messages(upto - 9, upto), Token.of("0", upto))
    size = table.files()[0].octets
    assert table.compact("2026-11-01", octets=size * 2 - 2).before == 0, "each has half of that"
    done = table.compact("2026-11-01", octets=size * 3)
    assert (done.before, done.after, done.rows) == (10, 4, 100)
    assert [file.ranges["0"] for file in table.files()] == [(1, 25), (26, 50), (51, 75), (76, 100)]


def test_a_compaction_that_changes_rows_changes_nothing(tmp_path: Path) -> None:
    class Careless(ArrowEngine):
        def rewrite(self, archive: Path, files: object, columns: object, folder: Path, parts: int) -> None:
            self._write(self.read(archive, files, columns).slice(1), folder, parts)  # type: ignore[arg-type]

    opened(tmp_path).append(messages(1, 2), Token.of("0", 2))
    opened(tmp_path).append(messages(3, 4), Token.of("0", 4))
    careless = ParquetTable.opened(Careless(), tmp_path / "archive", MESSAGES)
    with pytest.raises(ArchiveDamaged, match="4 rows of 2 files came out as 3 others"):
        careless.compact("2026-11-01")
    assert (numbers(opened(tmp_path)), len(left(tmp_path))) == ([1, 2, 3, 4], 2)


def test_a_writer_commits_while_a_compaction_runs(tmp_path: Path) -> None:
    table = opened(tmp_path)

    class Beside(ArrowEngine):
        def rewrite(self, *arguments: object) -> None:
            super().rewrite(*arguments)  # type: ignore[arg-type]
            table.append(messages(5, 6), Token.of("0", 6))

    table.append(messages(1, 2), Token.of("0", 2))
    table.append(messages(3, 4), Token.of("0", 4))
    assert ParquetTable.opened(Beside(), tmp_path / "archive").compact("2026-11-01").after == 1
    assert [file.ranges["0"] for file in table.files()] == [(1, 4), (5, 6)]


def test_of_two_compactions_at_once_one_counts(tmp_path: Path) -> None:
    table = opened(tmp_path)

    class Beside(ArrowEngine):
        def rewrite(self, *arguments: object) -> None:
            super().rewrite(*arguments)  # type: ignore[arg-type]
            assert table.compact("2026-11-01").after == 1

    table.append(messages(1, 2), Token.of("0", 2))
    table.append(messages(3, 4), Token.of("0", 4))
    second = ParquetTable.opened(Beside(), tmp_path / "archive").compact("2026-11-01")
    assert second == Compacted("2026-11-01", overtaken=True)
    assert (numbers(table), len(table.files())) == ([1, 2, 3, 4], 1)
    assert len(left(tmp_path)) == 3, "the table's file and the two it was made of"


def test_a_day_that_was_dropped_is_not_compacted_back(tmp_path: Path) -> None:
    table = opened(tmp_path)

    class Beside(ArrowEngine):
        def rewrite(self, *arguments: object) -> None:
            super().rewrite(*arguments)  # type: ignore[arg-type]
            table.drop_before("2026-11-02")

    table.append(messages(1, 2), Token.of("0", 2))
    table.append(messages(3, 4), Token.of("0", 4))
    assert ParquetTable.opened(Beside(), tmp_path / "archive").compact("2026-11-01").overtaken
    assert numbers(table) == []


# ----------------------------------------------------------------------------------------------------- retention


def test_days_are_dropped_up_to_the_floor_and_never_above(tmp_path: Path) -> None:
    table = opened(tmp_path)
    table.append(messages(998, 3_001), Token.of("0", 3_001))
    table.append(messages(998, 1_002, shard=1), Token.of("1", 1_002))
    floor = {"0": 1_998, "1": 5_000}
    told = table.drop_before("2026-11-04", floor, dry_run=True)
    assert len(numbers(table)) == 2_009, "a dry run does nothing"
    assert (told.days, told.files, told.rows, told.kept) == (("2026-11-01",), 2, 4, ("2026-11-02", "2026-11-03"))
    assert table.drop_before("2026-11-04", floor) == told
    assert [day.day for day in table.days()] == ["2026-11-02", "2026-11-03", "2026-11-04"]
    assert table.drop_before("2026-11-03", {"0": 1_999}).kept == ("2026-11-02",), "nobody said how far shard 1 is"
    assert table.drop_before("2026-11-03", {"0": 1_999, "1": 1_002}).days == ("2026-11-02",)
    assert table.position() == {"0": 3_001, "1": 1_002}, "what went stays archived, and is not appended again"


def test_a_reader_reads_on_while_days_go(tmp_path: Path) -> None:
    clock = Clock()
    table = opened(tmp_path, clock=clock)
    table.append(messages(1, 1_001), Token.of("0", 1_001))
    being_read = [tmp_path / "archive" / file.path for file in table.files()]
    table.drop_before("2026-11-02")
    clock.seconds += 99
    assert table.vacuum(keep_seconds=100).files == 0
    assert all(path.exists() for path in being_read)
    clock.seconds += 1
    gone = being_read[0].stat().st_size
    done = table.vacuum(keep_seconds=100)
    assert (done.files, done.octets) == (1, gone)
    assert [path.exists() for path in being_read] == [False, True]
    assert not being_read[0].parent.exists(), "nor is its empty folder"
    assert table.vacuum(keep_seconds=0).files == 0, "it is forgotten"


def test_a_deleted_file_that_was_not_forgotten_is_no_trouble(tmp_path: Path) -> None:
    table = opened(tmp_path)
    table.append(messages(1, 2), Token.of("0", 2))
    (path,) = [tmp_path / "archive" / file.path for file in table.files()]
    table.drop_before("2026-11-02")
    path.unlink()
    assert (table.vacuum(0).files, table.vacuum(0).files) == (1, 0)


# ----------------------------------------------------------------------------------------------------- many writers


def test_writers_at_once_lose_nothing_and_append_nothing_twice(tmp_path: Path) -> None:
    opened(tmp_path)
    writers, rounds = 4, 10

    def write(shard: int) -> None:
        table = opened(tmp_path)
        for upto in range(1, rounds + 1):
            assert not table.append(messages(upto, upto, shard), Token.of(str(shard), upto)).repeated
            table.append(messages(upto, upto, shard), Token.of(str(shard), upto))

    def compact() -> None:
        table = opened(tmp_path)
        while not stop.is_set():
            table.compact("2026-11-01")
            table.vacuum(0)

    stop = threading.Event()
    threads = [threading.Thread(target=write, args=(shard,)) for shard in range(writers)]
    compacting = threading.Thread(target=compact)
    for thread in (compacting, *threads):
        thread.start()
    for thread in threads:
        thread.join()
    stop.set()
    compacting.join()
    table = opened(tmp_path)
    found = sorted(zip(*table.read(["shard", "sequence"]).to_pydict().values(), strict=True))
    assert found == [(shard, number) for shard in range(writers) for number in range(1, rounds + 1)]
    table.vacuum(0)
    assert len(left(tmp_path)) == len(table.files())
    assert table.check(deep=True).problems == ()


# ----------------------------------------------------------------------------------------------------- damage


def test_a_file_that_is_missing_or_cut_short_is_named(tmp_path: Path) -> None:
    table = opened(tmp_path)
    for upto in (2, 4):
        table.append(messages(upto - 1, upto), Token.of("0", upto))
    first, second = table.files()
    path = tmp_path / "archive" / first.path
    os.truncate(path, 100)
    with pytest.raises(ArchiveDamaged, match=f"{first.path} has 100 octets, not {first.octets:,}"):
        table.read()
    assert table.check().problems == (f"{first.path} has 100 octets, not {first.octets:,}",)
    with pytest.raises(ArchiveDamaged, match="has 100 octets"):
        table.compact("2026-11-01")
    path.unlink()
    with pytest.raises(ArchiveDamaged, match=f"{first.path} is missing"):
        table.read()
    assert table.read(since="2026-11-02").num_rows == 0, "days that are whole can be read"
    assert [file.path for file in table.files()] == [first.path, second.path]


def test_a_check_finds_what_has_the_right_size_and_other_content(tmp_path: Path) -> None:
    table = opened(tmp_path)
    table.append(messages(1, 500), Token.of("0", 500))
    (file,) = table.files()
    path = tmp_path / "archive" / file.path
    whole = path.read_bytes()
    at = whole.index(b"body 1")
    path.write_bytes(whole[:at] + b"BODY" + whole[at + 4 :])
    assert table.check().problems == ()
    (problem,) = table.check(deep=True).problems
    assert file.path in problem
    path.write_bytes(whole[:-4] + b"none")
    assert len(table.check().problems) == 1


def test_a_check_names_files_that_nobody_vouches_for(tmp_path: Path) -> None:
    table = opened(tmp_path)
    table.append(messages(1, 2), Token.of("0", 2))
    stray = tmp_path / "archive" / "day=2026-11-01" / "copied.parquet"
    pq.write_table(messages(7, 8), stray)
    found = table.check()
    assert (found.files, found.rows, found.problems, found.strays) == (1, 2, (), ("day=2026-11-01/copied.parquet",))
    assert numbers(table) == [1, 2]
    table.vacuum(0)
    assert stray.exists(), "it is somebody's, and not ours"


@pytest.mark.parametrize(
    ("harm", "error", "says"),
    [
        (lambda path: path.unlink(), ArchiveDamaged, "commit 2 is missing, and there is a commit 4"),
        (lambda path: os.truncate(path, 60), ArchiveDamaged, "60 octets that are no whole commit"),
        (lambda path: os.truncate(path, 0), ArchiveDamaged, "0 octets that are no whole commit"),
        (
            lambda path: path.write_bytes(path.read_bytes().replace(b'"rows":1', b'"rows":7')),
            ArchiveDamaged,
            "not what its digest says",
        ),
        (
            lambda path: path.write_bytes(path.read_bytes().replace(b'"format":1', b'"format":2')),
            ArchiveTooNew,
            "of format 2, and this release knows 1",
        ),
    ],
    ids=["missing", "cut", "empty", "changed", "newer"],
)
def test_a_damaged_commit_is_named_and_nothing_is_done(
    tmp_path: Path, harm: Callable[[Path], None], error: type[Exception], says: str
) -> None:
    table = opened(tmp_path)
    for upto in range(1, 5):
        table.append(messages(upto, upto), Token.of("0", upto))
    log = tmp_path / "archive" / "_commits"
    harm(log / f"{2:020}.json")
    before = sorted(os.listdir(log))
    for act in (
        table.read,
        table.files,
        table.vacuum,
        lambda: table.append(messages(5, 5), Token.of("0", 5)),
        lambda: table.compact("2026-11-01"),
        lambda: table.drop_before("2026-11-02"),
        lambda: opened(tmp_path),
    ):
        with pytest.raises(error, match=says):
            act()
    assert sorted(os.listdir(log)) == before
    assert len(left(tmp_path)) == 4


def test_a_newer_schema_is_not_touched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened(tmp_path).append(messages(1, 1), Token.of("0", 1))
    monkeypatch.setattr("gateway.pipeline.archive.parquet.SCHEMA_VERSION", 2)
    monkeypatch.setattr(commits, "SCHEMA_VERSION", 2)
    opened(tmp_path).append(messages(2, 2), Token.of("0", 2))
    assert numbers(opened(tmp_path)) == [1, 2]
    monkeypatch.undo()
    with pytest.raises(ArchiveTooNew, match="of schema version 2, and this release knows 1"):
        opened(tmp_path)


def test_rows_without_a_commit_log_are_no_new_archive(tmp_path: Path) -> None:
    table = opened(tmp_path)
    table.append(messages(1, 1), Token.of("0", 1))
    for path in (tmp_path / "archive" / "_commits").iterdir():
        path.unlink()
    with pytest.raises(ArchiveDamaged, match="day=2026-11-01 is there, and _commits has no commits"):
        opened(tmp_path)


# ----------------------------------------------------------------------------------------------------- checkpoints


def test_opening_reads_a_checkpoint_and_few_commits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commits, "CHECKPOINT_EVERY", 10)
    table = opened(tmp_path)
    for upto in range(1, 48):
        table.append(messages(upto, upto), Token.of("0", upto))
    there = sorted(os.listdir(tmp_path / "archive" / "_commits"))
    checkpoints = [int(name[:20]) for name in there if "checkpoint" in name]
    numbered = [int(name[:20]) for name in there if "checkpoint" not in name]
    # The first commit, which is number 0, is 10 behind "none" when it is number 9.
    assert (checkpoints, numbered) == ([29, 39], list(range(30, 48)))
    read: list[str] = []
    read_bytes = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: read.append(path.name) or read_bytes(path))
    assert len(opened(tmp_path).files()) == 47
    assert len(set(read)) == 1 + 8
    monkeypatch.undo()
    assert numbers(opened(tmp_path)) == list(range(1, 48))
    assert opened(tmp_path).position() == {"0": 47}


def test_a_damaged_checkpoint_is_named_and_the_one_before_still_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commits, "CHECKPOINT_EVERY", 10)
    table = opened(tmp_path)
    for upto in range(1, 34):
        table.append(messages(upto, upto), Token.of("0", upto))
    newest = tmp_path / "archive" / "_commits" / f"{29:020}.checkpoint.json"
    os.truncate(newest, 1_000)
    with pytest.raises(ArchiveDamaged, match=rf"{newest.name}: 1000 octets"):
        opened(tmp_path)
    newest.unlink()
    assert numbers(opened(tmp_path)) == list(range(1, 34))


def test_a_full_disk_at_the_checkpoint_costs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commits, "CHECKPOINT_EVERY", 3)
    replace = os.replace

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    table = opened(tmp_path)
    monkeypatch.setattr(os, "replace", full)
    for upto in range(1, 6):
        table.append(messages(upto, upto), Token.of("0", upto))
    names = os.listdir(tmp_path / "archive" / "_commits")
    assert (len(names), any("checkpoint" in name for name in names)) == (6, False)
    monkeypatch.setattr(os, "replace", replace)
    table.append(messages(6, 6), Token.of("0", 6))
    assert any("checkpoint" in name for name in os.listdir(tmp_path / "archive" / "_commits"))
    assert numbers(table) == list(range(1, 7))


def test_the_log_is_plain_to_read(tmp_path: Path) -> None:
    table = opened(tmp_path)
    table.append(messages(1, 1), Token.of("0", 1))
    document = json.loads((tmp_path / "archive" / "_commits" / f"{1:020}.json").read_text())
    (file,) = table.files()
    assert document["body"]["add"] == [
        {
            "path": file.path,
            "day": "2026-11-01",
            "rows": 1,
            "octets": file.octets,
            "ranges": {"0": [1, 1]},
            "sha256": file.sha256,
        }
    ]


def test_a_bit_that_flipped_is_named_and_not_copied(tmp_path: Path) -> None:
    table = opened(tmp_path, parts=2)
    table.append(messages(1, 50), Token.of("0", 50))
    assert table.check(deep=True).problems == ()
    file = table.files()[0]
    path = tmp_path / "archive" / file.path
    octets = path.read_bytes()
    for place in range(0, len(octets), 97):
        path.write_bytes(octets[:place] + bytes([octets[place] ^ 16]) + octets[place + 1 :])
        assert table.check(deep=True).problems == (f"{file.path} is damaged: its SHA-256 is not the one in its commit",)
    with pytest.raises(ArchiveDamaged, match="its SHA-256 is not the one in its commit"):
        table.compact(file.day)
    path.write_bytes(octets)
    assert table.compact(file.day).after == 1


def test_a_commit_that_is_no_text_is_named(tmp_path: Path) -> None:
    table = opened(tmp_path)
    table.append(messages(1, 5), Token.of("0", 5))
    path = tmp_path / "archive" / "_commits" / f"{1:020}.json"
    path.write_bytes(path.read_bytes().replace(b'"sha256":"', b'"sha256":"\xe4'))
    with pytest.raises(ArchiveDamaged, match="are no whole commit"):
        table.files()
