"""The commit log of an archive of Parquet files: which files are the table.

A folder full of Parquet files says nothing about which of them belong together: a writer that was killed leaves files
without a commit, and a job that makes one large file of many small ones has, for a while, both. So there is a log, the
folder ``_commits``, and **a file belongs to the table because a commit names it**, for no other reason.

::

    _commits/00000000000000000041.json             what changed: files added, files removed, how far a log is archived
    _commits/00000000000000000041.checkpoint.json  all of it up to 41, so that nobody reads the 41 before it

A commit is written to the side, flushed to the disk, and then linked to the next free number. One writer only can make
that link, on any POSIX file system and over NFS; the second writer reads the commit of the first and tries the next
number, if its own change still makes sense. So there is no lock and no server, and nothing between "not there" and
"there". Numbers have no gaps: one that is missing means that the log is damaged.

:class:`State` is the table as of one commit. What a change depends on is decided in :meth:`Commits.commit`, by a
function from the state to the commit, which is asked again for every number that is tried:

* An **append** carries an ``app`` and a ``version``; an app's versions only grow. One that is not above the app's last
  is there already, and appends nothing. The archive job's app is a shard of a log and its version the last sequence
  number, so the commits themselves say how far the archive goes, however the job ended.
* A **compaction** removes the files that it has read and adds those that it wrote; if one of the former is gone by
  now, somebody else was quicker, and it gives up.
* A file that is **removed** stays on the disk for its readers, and is remembered until it is deleted.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from gateway.durable import flush
from gateway.errors import ArchiveDamaged, ArchiveTooNew, ConfigurationError, PipelineFault
from gateway.pipeline.archive.disk import room, write_flushed
from gateway.pipeline.schema import SCHEMA_VERSION

FORMAT: Final = 1
"""Of the commit log. Grows when an older release would misread it."""
FOLDER: Final = "_commits"
CHECKPOINT_EVERY: Final = 100
"""Commits between two checkpoints: the most that opening an archive reads beside one checkpoint."""
TRIES: Final = 1_000
"""Numbers that a commit tries. Each that is taken means that somebody else got on."""
RELISTS: Final = 5
"""How often the log is listed again because a checkpoint has replaced what was listed."""
NO_LINKS: Final = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)
"""What file systems say that have no hard links."""

_NAME = re.compile(r"(\d{20})(\.checkpoint)?\.json")


class File(msgspec.Struct, frozen=True):
    """A data file of the table."""

    path: str
    """Below the archive: ``day=2026-11-01/3f….parquet``."""
    day: str
    """Day of its rows, ``2026-11-01``, UTC."""
    rows: int
    octets: int
    ranges: dict[str, tuple[int, int]]
    """Shard -> first and last sequence number in it."""
    sha256: str = ""
    """SHA-256 of the file, as hexadecimal digits; empty: it was written by a release that took none."""


class Made(msgspec.Struct, frozen=True):
    """What the first commit says of the archive."""

    id: str
    """Of this archive and no other, 32 hexadecimal digits."""
    log: str
    """The log that it holds."""


class Commit(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one commit changes."""

    kind: str
    at: int
    """When, in microseconds since 1970."""
    schema_version: int
    add: tuple[File, ...] = ()
    remove: tuple[str, ...] = ()
    """Paths that are not of the table any more; the files are still there."""
    forget: tuple[str, ...] = ()
    """Paths of removed files that are deleted by now."""
    app: str = ""
    version: int = 0
    columns: tuple[tuple[str, str], ...] = ()
    """All columns, name and type, where they are other ones than before."""
    made: Made | None = None


class State(msgspec.Struct, frozen=True):
    """The table as of a commit."""

    number: int
    """Of that commit; -1: there is no table yet."""
    schema_version: int
    columns: tuple[tuple[str, str], ...]
    files: dict[str, File]
    """Path -> file, of those that are the table."""
    removed: dict[str, int]
    """Path -> when it was removed, of files that are not deleted yet."""
    versions: dict[str, int]
    """App -> version of its last append."""
    made: Made | None

    def then(self, commits: Iterable[Commit]) -> State:
        """The table after these as well."""
        number, schema_version, columns, made = self.number, self.schema_version, self.columns, self.made
        files, removed, versions = dict(self.files), dict(self.removed), dict(self.versions)
        for commit in commits:
            number += 1
            schema_version = max(schema_version, commit.schema_version)
            columns = commit.columns or columns
            made = made or commit.made
            for path in commit.remove:
                files.pop(path, None)
                removed[path] = commit.at
            files.update((file.path, file) for file in commit.add)
            for path in commit.forget:
                removed.pop(path, None)
            if commit.app:
                versions[commit.app] = commit.version
        return State(number, schema_version, columns, files, removed, versions, made)


NOTHING: Final = State(-1, 0, (), {}, {}, {}, None)
"""Where there is no table yet."""


class _Envelope(msgspec.Struct, frozen=True):
    """How commits and checkpoints lie on the disk: with a digest, so that what is damaged is not believed."""

    format: int
    sha256: str
    """Of ``body``, octet for octet as it stands here."""
    body: msgspec.Raw


_Kind = TypeVar("_Kind", Commit, State)


class Commits:
    """The commit log of one archive."""

    def __init__(self, archive: Path) -> None:
        self._archive = archive
        self.folder = archive / FOLDER

    # ------------------------------------------------------------------------------------------------- reading

    def load(self) -> State:
        """The table as it is now; :data:`NOTHING` where nobody has made one.

        Raises:
            ArchiveTooNew: a newer release wrote to it.
            ArchiveDamaged: a commit is missing, cut short, or not what was written.
        """
        tries = RELISTS
        while True:
            try:
                return self._loaded()
            except FileNotFoundError as error:
                # Replaced by a checkpoint between the listing and the reading.
                tries -= 1
                if not tries:
                    raise ArchiveDamaged(f"{error.filename}: listed, and not there") from None

    def _loaded(self) -> State:
        commits, checkpoints = self._listed()
        state = _read(self.folder / _checkpoint(max(checkpoints)), State) if checkpoints else NOTHING
        last, found = max(commits, default=-1), list[Commit]()
        for number in range(state.number + 1, last + 1):
            try:
                found.append(_read(self.folder / _commit(number), Commit))
            except FileNotFoundError:
                # A listing may miss what was made meanwhile, but a number that was passed over is never made later.
                if number in commits or max(self._listed()[1], default=-1) >= number:
                    raise
                raise ArchiveDamaged(
                    f"{self.folder}: commit {number} is missing, and there is a commit {last}; restore "
                    f"{_commit(number)} from a backup"
                ) from None
        state = state.then(found)
        if state.schema_version > SCHEMA_VERSION:
            raise ArchiveTooNew(
                f"{self._archive}: of schema version {state.schema_version}, and this release knows {SCHEMA_VERSION}"
            )
        return state

    def _listed(self) -> tuple[set[int], set[int]]:
        """Numbers of the commits, and of the checkpoints, that are there."""
        commits, checkpoints = set[int](), set[int]()
        try:
            names = os.listdir(self.folder)
        except FileNotFoundError:
            names = []
        for match in filter(None, map(_NAME.fullmatch, names)):
            (checkpoints if match[2] else commits).add(int(match[1]))
        return commits, checkpoints

    # ------------------------------------------------------------------------------------------------- writing

    def commit(self, change: Callable[[State], Commit | None], beside: Path) -> State:
        """Make a change; returns the table after it.

        Args:
            change: from the table as it is to what changes, or to None where nothing does, which commits nothing. It is
                asked again each time that somebody else was quicker, and may raise.
            beside: a folder of the caller's own on the same file system, for what is being written.

        Raises:
            ConfigurationError: the file system has no hard links; nothing is committed.
            DiskFull: no room; nothing is committed.
            PipelineFault: too many others commit at the same time; nothing is committed.
        """
        for _ in range(TRIES):
            state = self.load()
            commit = change(state)
            if commit is None:
                return state
            if self._link(state.number + 1, commit, beside):
                return state.then([commit])
        raise PipelineFault(f"{self.folder}: {TRIES} commits of others came first; try again")

    def _link(self, number: int, commit: Commit, beside: Path) -> bool:
        """Give a commit its number; False: somebody has it."""
        written = beside / "commit"
        with room(self._archive):
            _write(written, commit)
            try:
                os.link(written, self.folder / _commit(number))
            except FileExistsError:
                return False
            except OSError as error:
                if error.errno in NO_LINKS:
                    raise ConfigurationError(
                        f"{self._archive}: this file system has no hard links ({error.strerror}), and an archive of "
                        'plain Parquet needs them: put it elsewhere, or set pipeline.archive = "delta"'
                    ) from None
                raise
            finally:
                written.unlink()
            flush(self.folder)
        return True

    def checkpoint(self, state: State, beside: Path) -> bool:
        """Write a checkpoint if that is due, and delete the commits before the checkpoint before.

        The one before stays, with the commits after it: if the newest one is damaged, there is one to go back to.

        Raises:
            DiskFull: no room; the log is as it was.
        """
        commits, checkpoints = self._listed()
        if state.number - max(checkpoints, default=-1) < CHECKPOINT_EVERY:
            return False
        written = beside / "checkpoint"
        with room(self._archive):
            _write(written, state)
            os.replace(written, self.folder / _checkpoint(state.number))
            flush(self.folder)
        keep = max(checkpoints, default=-1)
        for number in sorted(commits):
            if number <= keep:
                (self.folder / _commit(number)).unlink(missing_ok=True)
        for number in sorted(checkpoints - {keep}):
            (self.folder / _checkpoint(number)).unlink(missing_ok=True)
        return True


def _commit(number: int) -> str:
    return f"{number:020}.json"


def _checkpoint(number: int) -> str:
    return f"{number:020}.checkpoint.json"


def _write(path: Path, content: Commit | State) -> None:
    body = msgspec.json.encode(content)
    write_flushed(path, msgspec.json.encode(_Envelope(FORMAT, hashlib.sha256(body).hexdigest(), msgspec.Raw(body))))


def _read(path: Path, kind: type[_Kind]) -> _Kind:
    data = path.read_bytes()
    try:
        envelope = msgspec.json.decode(data, type=_Envelope)
        if envelope.format > FORMAT:
            raise ArchiveTooNew(f"{path}: of format {envelope.format}, and this release knows {FORMAT}")
        if hashlib.sha256(envelope.body).hexdigest() != envelope.sha256:
            raise ArchiveDamaged(f"{path}: its content is not what its digest says; restore it from a backup")
        return msgspec.json.decode(envelope.body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ArchiveDamaged(
            f"{path}: {len(data)} octets that are no whole commit ({error}); restore it from a backup"
        ) from None
