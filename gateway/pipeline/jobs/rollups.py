"""Where the rollups are kept: Parquet, a folder for each run and hour, and one manifest that says which of them count.

::

    rollups/manifest.json                    replaced as a whole, atomically
    rollups/run=TOKEN/hour=496970/….parquet  written once, never changed

A run writes the hours that it touches into a folder of its own, and then replaces the manifest. So an hour is as it was
or as the run made it, never in between; all hours of a run change at the same moment, together with the position up to
which events are counted; and a run that dies leaves a folder that nobody reads and the next run removes. Files of the
manifest before stay for one more run, for their readers.

The manifest knows of each hour how many events it has, and how many of them came late: after a run had counted the
hour although it was over.

Replacing a file needs a file system; one process writes at a time, under a lock.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gateway.durable import flush, make_folder
from gateway.errors import ArchiveDamaged, ArchiveTooNew, StateError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

VERSION: Final = 1
"""Of the manifest and the columns."""
MANIFEST: Final = "manifest.json"
LOCK: Final = "lock"
COLUMNS: Final = (
    "hour bigint, route string, version string, kind string, events bigint, octets bigint, timed bigint, latency binary"
)
"""The columns of a rollup: hours since 1970; of how many events ``latency``, a KLL sketch of milliseconds, tells."""


@dataclass(frozen=True, slots=True)
class Hour:
    """What the manifest knows of an hour."""

    run: str
    """Whose folder has it."""
    events: int
    late: int = 0
    """Events that came after the hour had been counted although it was over."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """Which rollups count."""

    hours: Mapping[int, Hour] = field(default_factory=dict)
    """Hours since 1970."""
    position: Mapping[str, int] = field(default_factory=dict)
    """Up to where the log is in them."""
    counted_at: int = 0
    """When the last run looked at the log, in hours since 1970: hours before that were over."""
    before: frozenset[str] = frozenset()
    """Runs that the manifest before this one named, too."""

    @property
    def named(self) -> frozenset[str]:
        """The runs whose folders somebody may read."""
        return self.before | {each.run for each in self.hours.values()}

    def free(self, token: str) -> str:
        """``token``, or with a number behind it where its folder counts already: a run that was killed when it had
        written the manifest comes again under its id, and must not remove what is counted."""
        names = (token, *(f"{token}.{number}" for number in range(1, len(self.named) + 1)))
        return next(name for name in names if name not in self.named)


class Rollups:
    """The rollups in a folder."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    def manifest(self) -> Manifest:
        """What counts now; an empty one where nothing was ever written.

        Raises:
            ArchiveDamaged: the manifest cannot be read.
            ArchiveTooNew: it is of a later release.
        """
        path = self.folder / MANIFEST
        try:
            found: dict[str, Any] = json.loads(path.read_bytes())
            if found["version"] > VERSION:
                raise ArchiveTooNew(f"{path} is of version {found['version']}, and this release reads up to {VERSION}")
            return Manifest(
                hours={int(hour): Hour(*values) for hour, values in found["hours"].items()},
                position={str(shard): int(last) for shard, last in found["position"].items()},
                counted_at=int(found["counted_at"]),
                before=frozenset(found["before"]),
            )
        except FileNotFoundError:
            return Manifest()
        except (ValueError, KeyError, TypeError) as error:
            raise ArchiveDamaged(f"{path} is no manifest of rollups: {error!r}") from None

    def read(self, spark: SparkSession, hours: Iterable[int] | None = None) -> DataFrame:
        """The rollups of these hours, or of all, one row an hour, route, version and kind."""
        known = self.manifest().hours
        wanted = set(known if hours is None else hours) & known.keys()
        return self._read(spark, {hour: known[hour].run for hour in wanted})

    def _read(self, spark: SparkSession, runs: Mapping[int, str]) -> DataFrame:
        empty = spark.createDataFrame([], COLUMNS)
        if not runs:
            return empty
        paths = [str(self._hour(run, hour)) for hour, run in sorted(runs.items())]
        names = [column.name for column in empty.schema]
        return (
            spark.read.schema("run string, " + COLUMNS)
            .option("basePath", str(self.folder))
            .option("recursiveFileLookup", "false")
            .parquet(*paths)
            .select(*names)
        )

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Write alone.

        Raises:
            StateError: another process writes.
        """
        make_folder(self.folder)
        with (self.folder / LOCK).open("ab") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise StateError(f"another run writes the rollups in {self.folder}; wait until it has ended") from None
            yield

    def write(self, rows: DataFrame, token: str) -> dict[int, int]:
        """Write rows into the folder of a run, in place of what an earlier attempt left there. They do not count until
        :meth:`swap`. Returns how many events each hour has."""
        folder = self.folder / f"run={token}"
        shutil.rmtree(folder, ignore_errors=True)
        rows.repartition(1).sortWithinPartitions("hour", "route", "kind").write.partitionBy("hour").parquet(str(folder))
        there = sorted(folder.glob("hour=*"))
        if not there:
            return {}
        spark = rows.sparkSession
        counted = spark.read.schema(COLUMNS).parquet(str(folder)).groupBy("hour").sum("events").collect()
        return {int(hour): int(events) for hour, events in counted}

    def swap(self, manifest: Manifest, token: str, hours: Mapping[int, Hour], **more: Any) -> Manifest:
        """Let the hours that a run wrote count, all at once; ``more`` are other fields of the manifest. What nobody
        reads any more is removed."""
        new = replace(
            manifest,
            hours={**manifest.hours, **hours},
            before=frozenset(each.run for each in manifest.hours.values()),
            **more,
        )
        document = {
            "version": VERSION,
            "hours": {str(hour): [each.run, each.events, each.late] for hour, each in sorted(new.hours.items())},
            "position": dict(new.position),
            "counted_at": new.counted_at,
            "before": sorted(new.before),
        }
        path = self.folder / f"{MANIFEST}.new"
        with path.open("w", encoding="utf-8") as file:
            json.dump(document, file)
            file.flush()
            os.fsync(file.fileno())
        path.replace(self.folder / MANIFEST)
        flush(self.folder)
        self._tidy({*new.before, *(each.run for each in new.hours.values())})
        return new

    def _tidy(self, named: Sequence[str] | set[str]) -> None:
        """Remove the folders of runs that no manifest names."""
        for path in self.folder.glob("run=*"):
            if path.name.removeprefix("run=") not in named:
                shutil.rmtree(path, ignore_errors=True)

    def _hour(self, run: str, hour: int) -> Path:
        return self.folder / f"run={run}" / f"hour={hour}"
