"""Attempts: what a writer has on the disk before a commit names it, and who cleans up behind one that was killed.

Each writer to an archive of Parquet files has a unique name, a folder ``_attempts/NAME`` and a lock on
``_attempts/NAME.lock``. Rows are written into the folder, looked at, flushed, and moved into the folder of their day
under that name: ``day=2026-11-01/NAME-00000.parquet``. Then they are committed, and folder and lock are removed.

The lock is the kernel's: it ends with the process that holds it, in any way. So an attempt whose lock anyone
can have is over, and :func:`sweep` removes what it left, unless a commit names it; an attempt whose lock is held is
somebody's who is at work, however long that takes, and is left alone. No clock decides.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from gateway.durable import flush, make_folder
from gateway.pipeline.archive.commits import Commits, File
from gateway.pipeline.archive.disk import room
from gateway.runtime.ids import ids

FOLDER: Final = "_attempts"
TRIES: Final = 10
"""How often the folder of a day is made, while others remove it since it is empty."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """A writer at work."""

    archive: Path
    name: str
    placed: list[Path] = field(default_factory=list)
    """Files that were moved to their day."""

    @property
    def folder(self) -> Path:
        """Its own folder."""
        return self.archive / FOLDER / self.name

    @property
    def rows(self) -> Path:
        """Where the rows are written first, in folders of their days. It is not there yet."""
        return self.folder / "rows"

    def place(self, written: Iterable[tuple[Path, File]]) -> None:
        """Flush files, and move them to where the commit will say that they are.

        Args:
            written: where each is now, and what the commit will say.

        Raises:
            DiskFull: no room.
        """
        with room(self.archive):
            folders = set[Path]()
            for path, file in written:
                flush(path)
                wanted = self.archive / file.path
                self.placed.append(wanted)
                _move(path, wanted)
                folders.add(wanted.parent)
            for folder in folders:
                flush(folder)


def _move(path: Path, wanted: Path) -> None:
    tries = TRIES
    while True:
        make_folder(wanted.parent)
        try:
            os.rename(path, wanted)
        except FileNotFoundError:
            tries -= 1
            if not tries or not path.exists():
                raise
        else:
            return


@contextmanager
def attempt(archive: Path, commits: Commits) -> Iterator[Attempt]:
    """Be a writer for as long as the block lasts. What no commit names by then is removed.

    Raises:
        DiskFull: no room for as much as a folder.
    """
    with room(archive):
        own, lock = _begun(archive)
    try:
        yield own
    finally:
        _remove(own, own.placed, commits)
        os.close(lock)


def _begun(archive: Path) -> tuple[Attempt, int]:
    while True:
        own = Attempt(archive, ids.uuid().hex)
        lock = os.open(_lock_of(own), os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o644)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(lock).st_nlink:
                os.mkdir(own.folder)
                return own, lock
        except BlockingIOError:
            pass  # someone sweeps, and took it for one that is over, in between
        except BaseException:
            os.unlink(_lock_of(own))
            os.close(lock)
            raise
        os.close(lock)


def sweep(archive: Path, commits: Commits) -> int:
    """Remove what attempts left behind whose writer is gone; returns how many there were."""
    swept = 0
    for path in sorted((archive / FOLDER).glob("*.lock")):
        try:
            lock = os.open(path, os.O_RDWR)
        except FileNotFoundError:
            continue  # it ended, or somebody else swept it
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(lock).st_nlink:
                _remove(Attempt(archive, path.stem), archive.glob(f"day=*/{path.stem}-*"), commits)
                swept += 1
        except BlockingIOError:
            pass  # at work
        finally:
            os.close(lock)
    return swept


def _remove(over: Attempt, placed: Iterable[Path], commits: Commits) -> None:
    """Remove an attempt, with what no commit names. Its lock, which goes last, is held by the caller."""
    if found := list(placed):
        state = commits.load()
        for path in found:
            name = str(path.relative_to(over.archive))
            if name not in state.files and name not in state.removed:
                path.unlink(missing_ok=True)
    # Where somebody still writes, as Spark's tasks do whose driver was killed, both stay for the next sweep.
    shutil.rmtree(over.folder, ignore_errors=True)
    if not over.folder.exists():
        _lock_of(over).unlink()


def _lock_of(of: Attempt) -> Path:
    return of.archive / FOLDER / f"{of.name}.lock"


def at_work(archive: Path) -> set[str]:
    """Names of the attempts that are not removed yet, whether somebody is at work on them or not."""
    return {path.stem for path in (archive / FOLDER).glob("*.lock")}
