"""What an archive is and can do, however it is kept.

A table of one log's rows, one folder a day (of the time at which a message was spooled, or an event happened, UTC), in
order of sequence within each file. Rows are appended, never changed. Small files become large ones, old days go, and
neither disturbs readers or writers.

**Exactly once.** An append carries a :class:`Token`. Rows that were appended under a token, or a later one of the same
app, are there and are not appended again, after a kill at any point. Where the rows come from a log, the app is the
log's shard and the version the last sequence number: then :meth:`ArchiveTable.position` says how far the log is
archived, and can say nothing else than what is there.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import TYPE_CHECKING, Final, NamedTuple

from gateway.errors import ConfigurationError
from gateway.pipeline.archive.commits import File
from gateway.pipeline.schema import EVENTS, MESSAGES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


TIME: Final[Mapping[str, str]] = {EVENTS: "at", MESSAGES: "accepted_at"}
"""Log -> the column whose day is the day of a row."""
FILE_OCTETS: Final = 128 << 20
"""Octets that a compacted file should have."""
KEEP_SECONDS: Final = 48 * 3600
"""How long files that are not of the table any more stay for their readers."""
GLOBS: Final = frozenset("*?[]{}\\")
"""Characters in a path that Spark takes for a pattern."""


SHARD: Final = "shard-"
"""How the apps of a log's shards begin."""


class Token(NamedTuple):
    """What makes an append happen once: versions of one app only grow."""

    app: str
    version: int
    after: int | None = None
    """The version that must be the app's last one; None: any that is lower."""

    @classmethod
    def of(cls, shard: str, upto: int, after: int | None = None) -> Token:
        """Of the rows of a log's shard ``after < sequence <= upto``."""
        return cls(f"{SHARD}{shard}", upto, after)

    def passed(self, versions: Mapping[str, int]) -> bool:
        """Whether the app has got so far already, or beyond where this append begins."""
        last = versions.get(self.app)
        return last is not None and (last >= self.version or (self.after is not None and last > self.after))


@dataclass(frozen=True, slots=True)
class Appended:
    """What an append did."""

    rows: int = 0
    files: int = 0
    octets: int = 0
    repeated: bool = False
    """It, or some of it, was there already; nothing was appended."""


@dataclass(frozen=True, slots=True)
class Day:
    """A day of the table."""

    day: str
    files: int
    rows: int
    octets: int
    last: Mapping[str, int]
    """Shard -> highest sequence number of the day."""


@dataclass(frozen=True, slots=True)
class Compacted:
    """What a compaction did."""

    day: str
    before: int = 0
    """Files that were made into ``after`` larger ones; 0: there was nothing to do."""
    after: int = 0
    rows: int = 0
    overtaken: bool = False
    """Somebody else changed the day meanwhile; nothing was done."""


@dataclass(frozen=True, slots=True)
class Dropped:
    """What went, and what stayed since somebody has not read so far."""

    days: tuple[str, ...] = ()
    files: int = 0
    rows: int = 0
    kept: tuple[str, ...] = ()
    """Days before the limit that hold rows above the floor."""


@dataclass(frozen=True, slots=True)
class Vacuumed:
    """What was deleted."""

    files: int = 0
    octets: int = 0
    attempts: int = 0
    """Writers that had been killed, behind whom was cleaned up."""


@dataclass(frozen=True, slots=True)
class Checked:
    """What a check found."""

    files: int
    rows: int
    problems: tuple[str, ...] = ()
    strays: tuple[str, ...] = field(default=())
    """Data files that no commit names and that no writer at work has: nobody reads them."""


class ArchiveTable(ABC):
    """An archive. ``path`` is its folder or URL, ``log`` the log whose rows it holds, ``id`` its own and no other's."""

    path: str
    log: str
    id: str

    @abstractmethod
    def append(self, rows: DataFrame, token: Token) -> Appended:
        """Append rows of the log, all or none, once per token. They are on the disk when this returns.

        Where somebody else has appended beyond the token's ``after`` meanwhile, nothing is appended; ask
        :meth:`position` where to go on.

        Columns that the archive does not have yet are added to it; those that ``rows`` lacks are null.

        Raises:
            PipelineFault: a column is of another type than in the archive, or a row has no day, shard or sequence.
            DiskFull: no room; nothing was appended.
        """

    @abstractmethod
    def versions(self) -> dict[str, int]:
        """App -> version of its last append."""

    def position(self) -> dict[str, int]:
        """How far the log is archived: shard -> last sequence number."""
        prefix = Token.of("", 0).app
        return {app.removeprefix(prefix): version for app, version in self.versions().items() if app.startswith(prefix)}

    @abstractmethod
    def read(
        self, columns: Sequence[str] = (), since: date | str | None = None, until: date | str | None = None
    ) -> DataFrame:
        """The rows of the days from ``since`` to ``until``, both included, as they are now; all unless given.

        Args:
            columns: which, in the order of the archive; empty: all, and ``day`` at the end.

        Raises:
            ArchiveDamaged: a file is missing, or not as long as it was.
        """

    @abstractmethod
    def days(self) -> list[Day]:
        """The days, in order."""

    @abstractmethod
    def compact(self, day: str, octets: int = FILE_OCTETS) -> Compacted:
        """Make large files of the small ones of a day: the same rows, counted and compared before they count.

        Args:
            day: ``2026-11-01``.
            octets: what a file should have; those with less than half of that are small.

        Raises:
            ArchiveDamaged: what was written is not what was read; nothing was changed.
            DiskFull: no room; nothing was changed.
        """

    @abstractmethod
    def drop_before(self, day: date | str, floor: Mapping[str, int] | None = None, *, dry_run: bool = False) -> Dropped:
        """Take the days before ``day`` out of the table, except those with rows above ``floor``.

        Args:
            day: first day that stays.
            floor: shard -> highest sequence number that may go; a shard that it does not name keeps its rows. None: no
                floor.
            dry_run: only tell.
        """

    @abstractmethod
    def vacuum(self, keep_seconds: float = KEEP_SECONDS) -> Vacuumed:
        """Delete files that have not been of the table for so long, and what writers left that were killed."""

    @abstractmethod
    def files(self) -> list[File]:
        """The files that are the table, by day and first sequence number; paths are below :attr:`path`."""

    @abstractmethod
    def check(self, *, deep: bool = False) -> Checked:
        """Look whether every file is there and is what it was.

        Args:
            deep: read all of it, and check order and checksums; else sizes and footers only.
        """


def as_day(day: date | str) -> str:
    """A day as archives write it.

    Raises: ConfigurationError: it is malformed.
    """
    try:
        return day.isoformat() if isinstance(day, date) else date.fromisoformat(day).isoformat()
    except ValueError as error:
        raise ConfigurationError(f"{day!r} is no day like 2026-11-01 ({error})") from None


def may_go(last: Mapping[str, int], floor: Mapping[str, int] | None) -> bool:
    """Whether a day whose shards end at ``last`` is all below the floor."""
    return floor is None or all(number <= floor.get(shard, 0) for shard, number in last.items())
