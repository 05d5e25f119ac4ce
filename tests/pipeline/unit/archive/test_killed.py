"""An archive of Parquet files whose writers are killed: before every single step that changes the disk, one after the
other.

A child process does the work and kills itself with SIGKILL before its k-th step, for k = 0, 1, 2 … until it comes to
its end. After each, the table must be what it was before, or what it would have been after, and nothing else; whoever
comes next finds it so, and cleans up.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from gateway.pipeline.archive import commits
from gateway.pipeline.archive.parquet import ParquetTable
from gateway.pipeline.archive.table import Token
from gateway.pipeline.schema import MESSAGES
from tests.pipeline.unit.archive.arrow_engine import ArrowEngine, messages

# A child of a process with threads may find locks held for ever; Arrow's are made anew after a fork.
pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")

STEPS = ("link", "mkdir", "rename", "replace", "rmdir", "unlink", "fsync")
"""What changes the disk; files are written by ``open`` and Arrow, between these."""
MOST = 200
"""More steps than any of these takes."""


def in_a_child(work: Callable[[], object], die_before: int) -> bool:
    """Do it in a child that kills itself before that step; whether it came to its end."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            _arm(die_before)
            work()
            status = 0
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return False
    assert os.WEXITSTATUS(status) == 0, "it failed"
    return True


def _arm(die_before: int) -> None:
    left = die_before

    def armed(step: Callable[..., object]) -> Callable[..., object]:
        def act(*arguments: object, **options: object) -> object:
            nonlocal left
            if not left:
                os.kill(os.getpid(), signal.SIGKILL)
            left -= 1
            return step(*arguments, **options)

        return act

    for name in STEPS:
        setattr(os, name, armed(getattr(os, name)))


def killed_everywhere(path: Path, prepare: Callable[[Path], None], work: Callable[[Path], object]) -> Iterator[Path]:
    """A fresh archive for each step at which one can be killed, as it is after that."""
    prepared = path / "prepared"
    prepared.mkdir()
    prepare(prepared)
    for step in range(MOST):
        place = path / str(step)
        shutil.copytree(prepared, place)
        done = in_a_child(lambda place=place: work(place), step)
        yield place
        if done:
            assert step > 3, "nothing was armed"
            return
    pytest.fail(f"it takes more than {MOST} steps")


def opened(place: Path) -> ParquetTable:
    return ParquetTable.opened(ArrowEngine(), place / "archive", MESSAGES)


def numbers(place: Path) -> list[int]:
    return sorted(opened(place).read(["sequence"]).column("sequence").to_pylist())


def data_files(place: Path) -> set[str]:
    return {str(path.relative_to(place / "archive")) for path in (place / "archive").glob("day=*/*")}


def clean(place: Path) -> None:
    """After a vacuum nothing is left but the table, and it is whole."""
    table = opened(place)
    table.vacuum(0)
    assert data_files(place) == {file.path for file in table.files()}
    assert not list((place / "archive" / "_attempts").iterdir())
    assert all(name.endswith(".json") for name in os.listdir(place / "archive" / "_commits"))
    found = table.check(deep=True)
    assert (found.problems, found.strays) == ((), ())


def three(place: Path) -> None:
    table = opened(place)
    for upto in range(1, 4):
        table.append(messages(upto, upto), Token.of("0", upto))


def test_while_it_is_made(tmp_path: Path) -> None:
    for place in killed_everywhere(tmp_path, lambda _: None, opened):
        opened(place).append(messages(1, 2), Token.of("0", 2))
        assert numbers(place) == [1, 2]
        clean(place)


def test_while_it_appends(tmp_path: Path) -> None:
    outcomes = set()
    for place in killed_everywhere(
        tmp_path, three, lambda place: opened(place).append(messages(995, 1_004), Token.of("0", 1_004))
    ):
        after = numbers(place)
        assert after in ([1, 2, 3], [1, 2, 3, *range(995, 1_005)]), "all or none, of both days"
        # Before anyone cleans up: the same append once more, as the job does it when it is started again.
        again = opened(place).append(messages(995, 1_004), Token.of("0", 1_004))
        assert again.repeated == (len(after) > 3)
        assert numbers(place) == [1, 2, 3, *range(995, 1_005)]
        outcomes.add((again.repeated, data_files(place) == {file.path for file in opened(place).files()}))
        clean(place)
    assert outcomes >= {(False, False), (False, True), (True, True)}, "with orphans, without, and after the commit"


def test_while_it_writes_a_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commits, "CHECKPOINT_EVERY", 2)

    def checkpoints(place: Path) -> list[int]:
        return sorted(int(name[:20]) for name in os.listdir(place / "archive" / "_commits") if "checkpoint" in name)

    def four(place: Path) -> None:
        three(place)
        opened(place).append(messages(4, 4), Token.of("0", 4))
        assert checkpoints(place) == [1, 3]

    found = set()
    for place in killed_everywhere(
        tmp_path, four, lambda place: opened(place).append(messages(5, 5), Token.of("0", 5))
    ):
        found.add((len(numbers(place)), *checkpoints(place)))
        assert numbers(place) in ([1, 2, 3, 4], [1, 2, 3, 4, 5])
        opened(place).append(messages(5, 5), Token.of("0", 5))
        opened(place).append(messages(6, 6), Token.of("0", 6))
        assert numbers(place) == [1, 2, 3, 4, 5, 6]
        assert max(checkpoints(place)) >= 5, "one that was missed is made up for"
        clean(place)
    assert found >= {(4, 1, 3), (5, 1, 3), (5, 1, 3, 5), (5, 3, 5)}


def test_while_it_compacts(tmp_path: Path) -> None:
    states = set()
    for place in killed_everywhere(tmp_path, three, lambda place: opened(place).compact("2026-11-01")):
        assert numbers(place) == [1, 2, 3]
        states.add(len(opened(place).files()))
        opened(place).append(messages(4, 4), Token.of("0", 4))
        assert opened(place).compact("2026-11-01").after == 1
        assert numbers(place) == [1, 2, 3, 4]
        clean(place)
    assert states == {1, 3}


def test_while_days_go_and_their_files(tmp_path: Path) -> None:
    def drop(place: Path) -> None:
        opened(place).drop_before("2026-11-02")
        opened(place).vacuum(0)

    def prepare(place: Path) -> None:
        opened(place).append(messages(990, 1_004), Token.of("0", 1_004))

    for place in killed_everywhere(tmp_path, prepare, drop):
        assert numbers(place) in (list(range(990, 1_005)), list(range(1_000, 1_005)))
        drop(place)
        assert numbers(place) == list(range(1_000, 1_005))
        clean(place)


def test_what_is_committed_is_on_the_disk_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The power fails after an append: its files, their folders and the commit had been flushed, in that order."""
    three(tmp_path)
    flushed: list[int] = []
    missing: list[str] = []
    fsync, link = os.fsync, os.link

    def note(descriptor: int) -> None:
        flushed.append(os.fstat(descriptor).st_ino)
        fsync(descriptor)

    def commit(written: Path, path: Path) -> None:
        archive = tmp_path / "archive"
        new = {archive / name for name in data_files(tmp_path)} - before
        assert len(new) == 2
        wanted = (written, *new, *(path.parent for path in new), archive)
        missing.extend(str(each) for each in wanted if each.stat().st_ino not in flushed)
        link(written, path)
        flushed.clear()

    before = {tmp_path / "archive" / name for name in data_files(tmp_path)}
    monkeypatch.setattr(os, "fsync", note)
    monkeypatch.setattr(os, "link", commit)
    opened(tmp_path).append(messages(995, 1_004), Token.of("0", 1_004))
    assert missing == []
    assert (tmp_path / "archive" / "_commits").stat().st_ino in flushed, "and the commit's own name, before it returns"


def test_a_killed_writers_rows_are_never_read_and_a_living_ones_never_removed(tmp_path: Path) -> None:
    """One was killed between its files and its commit, another stands there: only the former is cleaned up."""
    three(tmp_path)

    class Waiting(ArrowEngine):
        def write(self, *arguments: object) -> None:
            super().write(*arguments)  # type: ignore[arg-type]
            (tmp_path / "written").touch()
            os.read(go, 1)

    go, tell = os.pipe()
    child = os.fork()
    if child == 0:
        ParquetTable.opened(Waiting(), tmp_path / "archive").append(messages(5, 5, shard=1), Token.of("1", 5))
        os._exit(0)
    while not (tmp_path / "written").exists():
        assert os.waitpid(child, os.WNOHANG) == (0, 0)
    step = 0
    while len(data_files(tmp_path)) == 3:
        assert not in_a_child(lambda: opened(tmp_path).append(messages(4, 4), Token.of("0", 4)), step)
        step += 1
    assert numbers(tmp_path) == [1, 2, 3]
    assert opened(tmp_path).check().strays == (), "it may be one who is at work"
    opened(tmp_path).vacuum(0)
    assert len(data_files(tmp_path)) == 3
    assert len(list((tmp_path / "archive" / "_attempts").glob("*.lock"))) == 1, "the one who is at work"
    os.write(tell, b"!")
    assert os.waitpid(child, 0)[1] == 0
    assert numbers(tmp_path) == [1, 2, 3, 5]
    clean(tmp_path)


def test_other_engines_read_the_files_that_are_listed(tmp_path: Path) -> None:
    three(tmp_path)
    listed = [tmp_path / "archive" / file.path for file in opened(tmp_path).files()]
    found = pq.ParquetDataset(listed, partitioning="hive").read()
    assert found.column("sequence").to_pylist() == [1, 2, 3]
    assert {str(day) for day in found.column("day").to_pylist()} == {"2026-11-01"}
