"""The count of commits beside a ledger: when it is written, and what it says of a ledger that has fewer."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from gateway.errors import LedgerDamaged
from gateway.ledger.db.commit_count import PAUSE, SIZE, CommitCount, check_commits, forget_commits


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A database with two shards."""
    path = tmp_path / "a ledger.db"
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("CREATE TABLE shards (shard INTEGER, commits INTEGER)")
        database.execute("INSERT INTO shards VALUES (0, 7), (1, 3)")
    return path


@pytest.fixture
def counted(path: Path) -> Iterator[CommitCount]:
    counted = CommitCount(path)
    yield counted
    counted.close()


def said(path: Path) -> list[int]:
    return [int(each) for each in path.with_name(f"{path.name}.commits").read_bytes().split()[:2]]


def test_it_is_written_again_after_a_pause(path: Path, counted: CommitCount, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("gateway.runtime.clock.clock.monotonic", lambda: now)
    assert said(path) == []
    counted.catch_up()
    assert said(path) == [], "nothing was counted yet"
    counted.count(0, 1)
    assert said(path) == [0, 1]
    now = PAUSE / 2
    counted.count(0, 3)
    assert said(path) == [0, 1]
    now = PAUSE
    counted.count(0, 5)
    assert said(path) == [0, 5]
    now = PAUSE * 1.5
    counted.count(0, 6)
    assert said(path) == [0, 5]
    counted.catch_up()
    assert said(path) == [0, 6]
    assert path.with_name(f"{path.name}.commits").stat().st_size == SIZE
    assert path.with_name(f"{path.name}.commits").stat().st_mode & 0o777 == 0o600


def test_what_is_written_is_not_written_again(
    path: Path, counted: CommitCount, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted.count(1, 2)
    counted.catch_up()
    monkeypatch.setattr("gateway.ledger.db.commit_count.os.pwrite", lambda *_: pytest.fail("it is there"))
    counted.catch_up()


def test_it_is_closed_with_what_came_last(path: Path) -> None:
    counted = CommitCount(path)
    counted.count(0, 1)
    counted.count(0, 2)
    counted.close()
    assert said(path) == [0, 2]
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(counted._file)


def says(path: Path, shard: int, commits: int) -> None:
    counted = CommitCount(path)
    counted.count(shard, commits)
    counted.close()


@pytest.mark.parametrize(
    ("shard", "commits", "gone"), [(0, 7, 0), (0, 6, 0), (0, 8, 1), (1, 3, 0), (1, 5, 2), (2, 1, 1), (2, 4, 4)]
)
@pytest.mark.parametrize("journal", [False, True])
def test_a_ledger_that_has_fewer_commits(path: Path, shard: int, commits: int, gone: int, journal: bool) -> None:
    if journal:
        path.with_name(f"{path.name}-wal").write_bytes(b"")
    says(path, shard, commits)
    if gone:
        with pytest.raises(LedgerDamaged, match=f"the last {gone} commits are gone"):
            check_commits(path)
    else:
        check_commits(path)


def test_one_that_has_no_shards_has_lost_all(path: Path) -> None:
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("DROP TABLE shards")
    says(path, 0, 1)
    with pytest.raises(LedgerDamaged, match="the last 1 commits are gone"):
        check_commits(path)


def test_what_is_only_in_the_journal_counts(path: Path) -> None:
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("UPDATE shards SET commits = 9 WHERE shard = 0")
        database.commit()
        says(path, 0, 9)
        check_commits(path)
        says(path, 0, 10)
        with pytest.raises(LedgerDamaged, match="the last 1 commits are gone"):
            check_commits(path)


def test_a_file_that_says_nothing_is_no_witness(path: Path, tmp_path: Path) -> None:
    check_commits(path)
    says(path, 0, 100)
    beside = path.with_name(f"{path.name}.commits")
    octets = beside.read_bytes()
    for changed in (octets[:-1], octets.replace(b"100", b"101"), b"0 100", octets + b" "):
        beside.write_bytes(changed)
        check_commits(path)
    beside.write_bytes(octets)
    path.write_bytes(b"")
    check_commits(path)  # nothing is in it


def test_it_is_forgotten_with_the_ledger(path: Path) -> None:
    says(path, 0, 100)
    forget_commits(path)
    forget_commits(path)
    check_commits(path)
    assert not path.with_name(f"{path.name}.commits").exists()
