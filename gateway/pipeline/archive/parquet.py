"""An archive of plain Parquet files on a file system, with a commit log of its own.

::

    ARCHIVE/_commits/…                        which files are the table (gateway.pipeline.archive.commits)
    ARCHIVE/_attempts/…                       who is at work, and what they have not committed yet (…archive.attempts)
    ARCHIVE/day=2026-11-01/NAME-00000.parquet the rows

Anyone who reads Parquet can read it: the files that count are in :meth:`ParquetTable.files`, and the folders say the
day the way that most engines know. It needs a file system that has hard links and locks, on one machine or over NFS; an
object store has neither.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Self

from gateway.durable import make_folder
from gateway.errors import ArchiveDamaged, ConfigurationError, DiskFull, NoSuchResource
from gateway.pipeline.archive import attempts, commits
from gateway.pipeline.archive.attempts import attempt
from gateway.pipeline.archive.commits import Commit, Commits, File, Made, State
from gateway.pipeline.archive.disk import room
from gateway.pipeline.archive.layout import days_of, intact, merged, ordered, unlike, whole, wrong
from gateway.pipeline.archive.parquet_files import written
from gateway.pipeline.archive.table import (
    FILE_OCTETS,
    KEEP_SECONDS,
    Appended,
    ArchiveTable,
    Checked,
    Compacted,
    Day,
    Dropped,
    Token,
    Vacuumed,
    as_day,
    may_go,
)
from gateway.pipeline.schema import COLUMNS, SCHEMA_VERSION
from gateway.runtime.clock import clock
from gateway.runtime.ids import ids

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from gateway.pipeline.archive.engine import Columns, Engine


class ParquetTable(ArchiveTable):
    """The archive in a folder."""

    def __init__(
        self, engine: Engine | None, path: str | os.PathLike[str], made: Made, clock: Callable[[], int] | None = None
    ) -> None:
        """See :meth:`opened`."""
        self.path = str(path)
        self.log, self.id = made.log, made.id
        self._given = engine
        self._archive = Path(path)
        self._commits = Commits(self._archive)
        self._clock = clock or _microseconds

    @classmethod
    def opened(
        cls,
        engine: Engine | None,
        path: str | os.PathLike[str],
        log: str = "",
        *,
        create: bool = True,
        clock: Callable[[], int] | None = None,
    ) -> Self:
        """Open the archive in a folder, or make one; see :func:`gateway.pipeline.archive.opening.open_table`.

        Args:
            engine: who reads and writes rows; None: nobody, the archive is only looked at.
            clock: tells microseconds since 1970; the machine's unless given.
        """
        place = Path(path).absolute()
        if "://" in str(path):
            raise ConfigurationError(
                f'{path}: an archive of plain Parquet needs a file system; set pipeline.archive = "delta"'
            )
        if (place / "_delta_log").exists():
            raise ConfigurationError(f"{place}: this is a Delta archive, and not one of plain Parquet")
        made = Commits(place).load().made or (_made(place, log) if create else None)
        if made is None:
            raise NoSuchResource(f"{place}: there is no archive")
        if log and made.log != log:
            raise ConfigurationError(f"{place}: an archive of {made.log}, and not of {log}")
        return cls(engine, place, made, clock)

    @property
    def _engine(self) -> Engine:
        assert self._given is not None, "an archive that is only looked at reads and writes no rows"
        return self._given

    # ------------------------------------------------------------------------------------------------- rows

    def append(self, rows: DataFrame, token: Token) -> Appended:
        if token.passed(self._commits.load().versions):
            return Appended(repeated=True)
        columns = self._engine.columns(rows)
        with attempt(self._archive, self._commits) as own:
            self._engine.write(rows, self.log, own.rows)
            new = list(written(own.rows, own.name))
            files = tuple(file for _, file in new)
            own.place(new)
            repeated = False

            def change(state: State) -> Commit | None:
                nonlocal repeated
                repeated = token.passed(state.versions)
                if repeated:
                    return None
                both = merged(state.columns, columns)
                return Commit(
                    "append",
                    self._clock(),
                    SCHEMA_VERSION,
                    files,
                    app=token.app,
                    version=token.version,
                    columns=both if both != state.columns else (),
                )

            self._commit(change, own)
        if repeated:
            return Appended(repeated=True)
        return Appended(sum(file.rows for file in files), len(files), sum(file.octets for file in files))

    def versions(self) -> dict[str, int]:
        return dict(self._commits.load().versions)

    def read(
        self, columns: Sequence[str] = (), since: date | str | None = None, until: date | str | None = None
    ) -> DataFrame:
        state = self._commits.load()
        first, last = as_day(since or date.min), as_day(until or date.max)
        files = [file for file in ordered(state.files.values()) if first <= file.day <= last]
        whole(self._archive, files)
        rows = self._engine.read(self._archive, [file.path for file in files], state.columns)
        if not columns:
            return rows
        known = [name for name, _ in (*state.columns, ("day", "date"))]
        if unknown := sorted(set(columns) - set(known)):
            raise ConfigurationError(f"{self.path}: there is no column {unknown[0]!r}; there are {', '.join(known)}")
        return rows.select([name for name in known if name in columns])

    def days(self) -> list[Day]:
        return days_of(self._commits.load().files.values())

    # ------------------------------------------------------------------------------------------------- upkeep

    def compact(self, day: str, octets: int = FILE_OCTETS) -> Compacted:
        day = as_day(day)
        state = self._commits.load()
        small = [file for file in ordered(state.files.values()) if file.day == day and file.octets < octets // 2]
        parts = max(1, ceil(sum(file.octets for file in small) / octets))
        if parts >= len(small):
            return Compacted(day)
        whole(self._archive, small)
        intact(self._archive, small)
        paths = [file.path for file in small]
        overtaken = False
        with attempt(self._archive, self._commits) as own:
            self._engine.rewrite(self._archive, paths, state.columns, own.rows, parts)
            new = list(written(own.rows, own.name))
            files = tuple(file for _, file in new)
            self._same(paths, [str(path.relative_to(own.rows)) for path, _ in new], own.rows, state.columns)
            own.place(new)

            def change(state: State) -> Commit | None:
                nonlocal overtaken
                overtaken = any(path not in state.files for path in paths)
                if overtaken:
                    return None
                return Commit("compact", self._clock(), SCHEMA_VERSION, files, tuple(paths))

            self._commit(change, own)
        if overtaken:
            return Compacted(day, overtaken=True)
        return Compacted(day, len(small), len(files), sum(file.rows for file in files))

    def _same(self, before: Sequence[str], after: Sequence[str], folder: Path, columns: Columns) -> None:
        """Raise :class:`ArchiveDamaged` unless both sets of files hold the same rows."""
        was = self._engine.digest(self._engine.read(self._archive, before, columns), columns)
        now = self._engine.digest(self._engine.read(folder, after, columns), columns)
        if was != now:
            raise ArchiveDamaged(
                f"{self.path}: {was.rows:,} rows of {len(before)} files came out as {now.rows:,} others; the files are "
                "as they were"
            )

    def drop_before(self, day: date | str, floor: Mapping[str, int] | None = None, *, dry_run: bool = False) -> Dropped:
        first = as_day(day)
        dropped = Dropped()

        def change(state: State) -> Commit | None:
            nonlocal dropped
            old = [each for each in days_of(state.files.values()) if each.day < first]
            going = {each.day for each in old if may_go(each.last, floor)}
            files = [file for file in ordered(state.files.values()) if file.day in going]
            dropped = Dropped(
                tuple(sorted(going)),
                len(files),
                sum(file.rows for file in files),
                tuple(each.day for each in old if each.day not in going),
            )
            if not files or dry_run:
                return None
            return Commit("drop", self._clock(), SCHEMA_VERSION, remove=tuple(file.path for file in files))

        if dry_run:
            change(self._commits.load())
        else:
            with attempt(self._archive, self._commits) as own:
                self._commit(change, own)
        return dropped

    def vacuum(self, keep_seconds: float = KEEP_SECONDS) -> Vacuumed:
        swept = attempts.sweep(self._archive, self._commits)
        state = self._commits.load()
        limit = self._clock() - int(keep_seconds * 1_000_000)
        gone = [path for path, at in state.removed.items() if at <= limit]
        octets = 0
        for path in gone:
            octets += self._deleted(self._archive / path)
        if gone:
            # Deleted first, forgotten then: whoever is killed in between leaves names of files that are not there.
            with attempt(self._archive, self._commits) as own:
                self._commit(lambda now: _forgetting(now, gone, self._clock()), own)
        for folder in self._archive.glob("day=*"):
            try:
                folder.rmdir()
            except OSError:
                pass  # it is not empty
        return Vacuumed(len(gone), octets, swept)

    @staticmethod
    def _deleted(path: Path) -> int:
        """Delete a file; returns its octets."""
        try:
            octets = path.stat().st_size
            path.unlink()
        except FileNotFoundError:
            return 0
        return octets

    def _commit(self, change: Callable[[State], Commit | None], own: attempts.Attempt) -> None:
        after = self._commits.commit(change, own.folder)
        try:
            self._commits.checkpoint(after, own.folder)
        except DiskFull:
            pass  # the commit stands, the log is only longer than it might be; whoever commits next tries again

    # ------------------------------------------------------------------------------------------------- looking

    def files(self) -> list[File]:
        return ordered(self._commits.load().files.values())

    def check(self, *, deep: bool = False) -> Checked:
        files = self.files()
        problems = [
            problem
            for file in files
            if (problem := wrong(self._archive, file) or unlike(self._archive, file, deep=deep))
        ]
        # Names are taken first: a file is moved to its day by an attempt whose name was there before.
        names = attempts.at_work(self._archive)
        there = sorted(str(path.relative_to(self._archive)) for path in self._archive.glob("day=*/*"))
        state = self._commits.load()
        strays = [
            path
            for path in there
            if path not in state.files
            and path not in state.removed
            and Path(path).name.partition("-")[0] not in names | attempts.at_work(self._archive)
        ]
        return Checked(len(files), sum(file.rows for file in files), tuple(problems), tuple(strays))


def _made(place: Path, log: str) -> Made:
    """Make the archive; if somebody makes it at the same time, it is theirs."""
    if log not in COLUMNS:
        raise ConfigurationError(f"{place}: there is no log {log!r} to archive; there are {', '.join(COLUMNS)}")
    if place.exists() and (found := sorted(set(os.listdir(place)) - {commits.FOLDER, attempts.FOLDER})):
        if any(name.startswith("day=") for name in found):
            raise ArchiveDamaged(f"{place}: {found[0]} is there, and {commits.FOLDER} has no commits")
        raise ConfigurationError(f"{place}: holds {found[0]!r}, and is no archive")
    with room(place):
        make_folder(place)
        for name in (commits.FOLDER, attempts.FOLDER):
            make_folder(place / name)
    log_of = Commits(place)
    first = Commit(
        "make",
        _microseconds(),
        SCHEMA_VERSION,
        columns=tuple((column.name, column.type) for column in COLUMNS[log]),
        made=Made(ids.uuid().hex, log),
    )
    with attempt(place, log_of) as own:
        made = log_of.commit(lambda state: None if state.made else first, own.folder).made
    assert made is not None, "the first commit says what was made"
    return made


def _forgetting(state: State, gone: Iterable[str], at: int) -> Commit | None:
    left = tuple(path for path in gone if path in state.removed)
    return Commit("vacuum", at, SCHEMA_VERSION, forget=left) if left else None


def _microseconds() -> int:
    """The wall time, in microseconds since 1970."""
    return clock.now_ns() // 1_000
