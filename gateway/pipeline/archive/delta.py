"""An archive as a Delta table: for object stores, and for those who have Delta already.

Delta has a commit log of its own, and transactions that name an application and a version; those are an append's token.
This module only maps the archive's verbs to Delta:

* A second append of a version of an app is silently skipped by Delta; this module reports it.
* A day is compacted by rewriting it in order, as a change that changes no rows. Delta plans the reading inside of
  the transaction, so rows that others appended meanwhile are among those written, or the transaction fails and the day
  is as it was. Delta's own OPTIMIZE does not keep the order of sequence.
* Delta flushes nothing to the disk. On a file system of this machine that is done here, after its commit and before the
cursor moves. On an object store, what is stored is stored.

Deletion vectors stay off, for other engines' sake.
"""

from __future__ import annotations

import json
import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self
from urllib.parse import unquote, urlsplit

from gateway.durable import flush
from gateway.errors import ArchiveDamaged, ArchiveTooNew, ConfigurationError, GatewayError, NoSuchResource
from gateway.pipeline.archive import commits
from gateway.pipeline.archive.commits import File
from gateway.pipeline.archive.disk import room
from gateway.pipeline.archive.engine import CODEC, SparkEngine, by_day, digest, in_order, spoken
from gateway.pipeline.archive.layout import days_of, merged, ordered, unlike, whole, wrong
from gateway.pipeline.archive.table import (
    FILE_OCTETS,
    KEEP_SECONDS,
    SHARD,
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
from gateway.runtime.ids import ids

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from gateway.pipeline.archive.engine import Columns

LOG: Final = "_delta_log"
KEEP_MIN_SECONDS: Final = 3_600.0
"""Shortest time that files stay which are not of the table. Delta knows no writers at work, only times: files that a
writer has not committed yet are younger than this."""
CONFIGURATION: Final = {
    "spark.databricks.delta.retentionDurationCheck.enabled": "false",  # our own least time is KEEP_MIN_SECONDS
    "spark.databricks.delta.vacuum.logging.enabled": "true",
}
"""Settings that hold from the moment a session first opens an archive."""
CONFLICTS: Final = ("DELTA_CONCURRENT_", "ConcurrentAppendException", "ConcurrentDeleteReadException")
"""What Delta says when somebody else was quicker."""


class DeltaTable(ArchiveTable):
    """The archive as a Delta table."""

    def __init__(self, spark: SparkSession, path: str, log: str, archive_id: str) -> None:
        """See :meth:`opened`."""
        self.path, self.log, self.id = path, log, archive_id
        self._spark = spark
        self._name = f"delta.`{path}`"
        self._folder = _folder(path)

    @classmethod
    def opened(cls, spark: SparkSession, path: str, log: str = "", *, create: bool = True) -> Self:
        """Open the archive at a path, or make one; see :func:`gateway.pipeline.archive.opening.open_table`."""
        SparkEngine(spark)  # its settings
        for name, value in CONFIGURATION.items():
            spark.conf.set(name, value)
        place = path if "://" in path else os.path.abspath(path)
        if "`" in place:
            raise ConfigurationError(f"the archive's path {place!r} has a ` in it")
        folder = _folder(place)
        if folder is not None and (folder / commits.FOLDER).exists():
            raise ConfigurationError(f"{place}: this is an archive of plain Parquet, and not a Delta table")
        found = _properties(spark, place)
        if found is None:
            if not create:
                raise NoSuchResource(f"{place}: there is no archive")
            _make(spark, place, log)
            found = _properties(spark, place)
        if not found or "gateway.log" not in found:
            raise ConfigurationError(f"{place}: a Delta table, and no archive of the gateway")
        if (version := int(found["gateway.schema_version"])) > SCHEMA_VERSION:
            raise ArchiveTooNew(f"{place}: of schema version {version}, and this release knows {SCHEMA_VERSION}")
        if log and found["gateway.log"] != log:
            raise ConfigurationError(f"{place}: an archive of {found['gateway.log']}, and not of {log}")
        return cls(spark, place, found["gateway.log"], found["gateway.id"])

    # ------------------------------------------------------------------------------------------------- rows

    def append(self, rows: DataFrame, token: Token) -> Appended:
        columns, versions, before = self._known()
        if token.passed(versions):
            return Appended(repeated=True)
        merged(columns, tuple((each.name, each.dataType.simpleString()) for each in rows.schema))
        own = ids.uuid().hex
        try:
            with spoken(Path(self.path)):
                (
                    by_day(self._new(rows, token), self.log)
                    .write.format("delta")
                    .mode("append")
                    .option("mergeSchema", "true")
                    .option("compression", CODEC)
                    .option("txnAppId", token.app)
                    .option("txnVersion", str(token.version))
                    .option("userMetadata", own)
                    .save(self.path)
                )
        except GatewayError as error:
            if any(words in str(error) for words in CONFLICTS):
                return Appended(repeated=True)
            raise
        for commit in self._flushed(before):
            if commit["commitInfo"].get("userMetadata") == own:
                metrics = commit["commitInfo"]["operationMetrics"]
                return Appended(int(metrics["numOutputRows"]), int(metrics["numFiles"]), int(metrics["numOutputBytes"]))
        return Appended(repeated=True)  # somebody else was quicker, and Delta passed it over

    def _new(self, rows: DataFrame, token: Token) -> DataFrame:
        """Rows that are not there, as the transaction sees it that appends them.

        Delta itself passes over versions that are not above the app's last, not those that begin below it. Files that
        hold nothing behind ``after``, which are all of them unless somebody else was quicker, are not opened.
        """
        if token.after is None:
            return rows
        there = self._spark.read.format("delta").load(self.path).select("shard", "sequence")
        there = there.where((there.shard == int(token.app.removeprefix(SHARD))) & (there.sequence > token.after))
        return rows.join(there.hint("broadcast"), ["shard", "sequence"], "left_anti").select(*rows.columns)

    def versions(self) -> dict[str, int]:
        return self._known()[1]

    def read(
        self, columns: Sequence[str] = (), since: date | str | None = None, until: date | str | None = None
    ) -> DataFrame:
        first, last = as_day(since or date.min), as_day(until or date.max)
        if self._folder is not None:
            whole(self._folder, [file for file in self._listed() if first <= file.day <= last])
        # Else each action on the rows would look at the table anew, and two could see two tables.
        rows = self._as_of(self._known()[2])
        known = [*(name for name in rows.columns if name != "day"), "day"]
        if unknown := sorted(set(columns) - set(known)):
            raise ConfigurationError(f"{self.path}: there is no column {unknown[0]!r}; there are {', '.join(known)}")
        if since is not None:
            rows = rows.where(rows.day >= first)
        if until is not None:
            rows = rows.where(rows.day <= last)
        return rows.select(*(name for name in known if not columns or name in columns))

    def days(self) -> list[Day]:
        return days_of(self.files())

    # ------------------------------------------------------------------------------------------------- upkeep

    def compact(self, day: str, octets: int = FILE_OCTETS) -> Compacted:
        day = as_day(day)
        files = [file for file in self._listed() if file.day == day]
        small = [file for file in files if file.octets < octets // 2]
        parts = max(1, ceil(sum(file.octets for file in files) / octets))
        if len(small) < 2 or parts >= len(files):
            return Compacted(day)
        columns, _, before = self._known()
        names = [name for name, _ in columns]
        of_day = f"day = '{day}'"
        was = digest(self._as_of(before).where(of_day), names)
        try:
            with spoken(Path(self.path)):
                rows = self._spark.read.format("delta").load(self.path).where(of_day)
                (
                    in_order(rows, parts)
                    .write.format("delta")
                    .mode("overwrite")
                    .option("compression", CODEC)
                    .option("replaceWhere", of_day)
                    .option("dataChange", "false")
                    .save(self.path)
                )
        except GatewayError as error:
            if any(words in str(error) for words in CONFLICTS):
                return Compacted(day, overtaken=True)
            raise
        commits_since = self._flushed(before)
        now = digest(self._as_of(before + len(commits_since)).where(of_day), names)
        if now != was and len(commits_since) == 1:
            raise ArchiveDamaged(
                f"{self.path}: {was.rows:,} rows of {day} came out as {now.rows:,} others; version {before} has them "
                "as they were, until it is vacuumed"
            )
        return Compacted(day, len(files), sum(file.day == day for file in self._listed()), now.rows)

    def _as_of(self, version: int) -> DataFrame:
        """The table as of a version of Delta's."""
        with spoken(Path(self.path)):
            return self._spark.read.format("delta").option("versionAsOf", version).load(self.path)

    def drop_before(self, day: date | str, floor: Mapping[str, int] | None = None, *, dry_run: bool = False) -> Dropped:
        first = as_day(day)
        files = [file for file in self.files() if file.day < first]
        old = days_of(files)
        going = tuple(each.day for each in old if may_go(each.last, floor))
        if going and not dry_run:
            _, _, before = self._known()
            with spoken(Path(self.path)):
                self._spark.sql(f"DELETE FROM {self._name} WHERE day IN ({', '.join(map(repr, going))})")  # noqa: S608
            self._flushed(before)
        gone = [file for file in files if file.day in going]
        return Dropped(
            going, len(gone), sum(file.rows for file in gone), tuple(each.day for each in old if each.day not in going)
        )

    def vacuum(self, keep_seconds: float = KEEP_SECONDS) -> Vacuumed:
        hours = max(keep_seconds, KEEP_MIN_SECONDS) / 3_600
        _, _, before = self._known()
        with spoken(Path(self.path)):
            self._spark.sql(f"VACUUM {self._name} RETAIN {hours:f} HOURS")
        metrics = Counter[str]()
        for commit in self._flushed(before):
            if commit["commitInfo"]["operation"].startswith("VACUUM"):
                metrics.update({name: int(number) for name, number in commit["commitInfo"]["operationMetrics"].items()})
        return Vacuumed(metrics["numDeletedFiles"], metrics["sizeOfDataToDelete"])

    # ------------------------------------------------------------------------------------------------- looking

    def files(self) -> list[File]:
        from pyspark.sql import functions

        listed = {file.path: file for file in self._listed()}
        ranges = defaultdict[str, dict[str, tuple[int, int]]](dict)
        rows = defaultdict[str, int](int)
        with spoken(Path(self.path)):
            read = self._spark.read.format("delta").load(self.path)
            found = (
                read.groupBy(functions.col("_metadata.file_path").alias("file"), "shard")
                .agg(
                    functions.min("sequence").alias("first"),
                    functions.max("sequence").alias("last"),
                    functions.count("*").alias("rows"),
                )
                .collect()
            )
        for each in found:
            path = _below(each["file"])
            ranges[path][str(each["shard"])] = (each["first"], each["last"])
            rows[path] += each["rows"]
        return ordered(
            File(path, file.day, rows[path], file.octets, ranges[path]) for path, file in listed.items() if rows[path]
        )

    def check(self, *, deep: bool = False) -> Checked:
        if self._folder is None:
            files = self.files()
            return Checked(len(files), sum(file.rows for file in files))
        listed = self._listed()
        problems = [problem for file in listed if (problem := wrong(self._folder, file))]
        if problems:
            return Checked(len(listed), sum(file.rows for file in listed), tuple(problems))
        files = self.files()
        problems = [problem for file in files if (problem := unlike(self._folder, file, deep=deep))]
        return Checked(len(files), sum(file.rows for file in files), tuple(problems))

    # ------------------------------------------------------------------------------------------------- Delta

    def _known(self) -> tuple[Columns, dict[str, int], int]:
        """The columns, the version of each app, and the version of the table."""
        from pyspark.sql.types import StructType

        with spoken(Path(self.path)):
            snapshot = _snapshot(self._spark, self.path)
            schema = StructType.fromJson(json.loads(snapshot.schema().json()))
            versions = _mapping(self._spark, snapshot.transactions())
            columns = tuple((each.name, each.dataType.simpleString()) for each in schema if each.name != "day")
            return columns, versions, int(snapshot.version())

    def _listed(self) -> list[File]:
        """The files by Delta's log alone: without their ranges, and with rows as Delta counted them."""
        from pyspark.sql import DataFrame

        with spoken(Path(self.path)):
            found = DataFrame(_snapshot(self._spark, self.path).allFiles().toDF(), self._spark)
            rows = found.select("path", "partitionValues", "size", "stats").collect()
        return [
            File(
                unquote(row["path"]),
                row["partitionValues"]["day"],
                json.loads(row["stats"] or "{}").get("numRecords", 0),
                row["size"],
                {},
            )
            for row in rows
        ]

    def _flushed(self, before: int) -> list[dict[str, Any]]:
        """What was committed since a version, by kind of action, once it is on the disk, for a local disk."""
        jvm: Any = self._spark._jvm
        found = list[dict[str, Any]]()
        with spoken(Path(self.path)):
            log = _snapshot(self._spark, self.path).deltaLog()
            changes = log.getChanges(before + 1, jvm.scala.Option.empty(), True)
            while changes.hasNext():
                actions = _scala_list(self._spark, changes.next()._2())
                found.append(_by_kind(json.loads(action.json()) for action in actions))
        if self._folder is not None:
            folders = {self._folder, self._folder / LOG}
            paths = [self._folder / LOG / f"{before + 1 + number:020}.json" for number in range(len(found))]
            paths += [self._folder / unquote(file["path"]) for commit in found for file in commit["added"]]
            with room(self._folder):
                for path in paths:
                    if path.exists():  # else others have compacted it by now
                        flush(path)
                        folders.add(path.parent)
                for folder in sorted(folders):
                    flush(folder)
        return found


def _folder(path: str) -> Path | None:
    """The folder of this machine that a path names; None: it is elsewhere."""
    parts = urlsplit(path)
    if "://" not in path:
        return Path(path)
    return Path(unquote(parts.path)) if parts.scheme == "file" else None


def _below(url: str) -> str:
    """A data file's path below the table, of its URL."""
    return "/".join(unquote(urlsplit(url).path).rsplit("/", 2)[-2:])


def _properties(spark: SparkSession, path: str) -> Mapping[str, str] | None:
    """The properties of a Delta table; None: there is none."""
    with spoken(Path(path)):
        snapshot = _snapshot(spark, path)
        return None if snapshot.version() < 0 else _mapping(spark, snapshot.metadata().configuration())


def _snapshot(spark: SparkSession, path: str) -> Any:
    """The table as it is now, as Delta's own log has it; of version -1 where there is none."""
    # How far an application got, and which files there are, Delta says nowhere in SQL.
    jvm: Any = spark._jvm
    return jvm.org.apache.spark.sql.delta.DeltaLog.forTableWithSnapshot(spark._jsparkSession, path)._2()


def _by_kind(actions: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """A commit: its ``commitInfo``, and the files that it ``added``."""
    found: dict[str, Any] = {"commitInfo": {}, "added": []}
    for action in actions:
        if "add" in action:
            found["added"].append(action["add"])
        found["commitInfo"] = action.get("commitInfo", found["commitInfo"])
    return found


def _scala_list(spark: SparkSession, found: Any) -> list[Any]:
    """A sequence of Scala's."""
    jvm: Any = spark._jvm
    return list(jvm.scala.jdk.javaapi.CollectionConverters.asJava(found))


def _mapping(spark: SparkSession, found: Any) -> dict[str, Any]:
    """A map of Scala's."""
    jvm: Any = spark._jvm
    return dict(jvm.scala.jdk.javaapi.CollectionConverters.asJava(found))


def _make(spark: SparkSession, path: str, log: str) -> None:
    if log not in COLUMNS:
        raise ConfigurationError(f"{path}: there is no log {log!r} to archive; there are {', '.join(COLUMNS)}")
    columns = ", ".join(f"`{column.name}` {column.type}" for column in COLUMNS[log])
    properties = {
        "gateway.id": ids.uuid().hex,
        "gateway.log": log,
        "gateway.schema_version": str(SCHEMA_VERSION),
        "delta.enableDeletionVectors": "false",
    }
    said = ", ".join(f"'{name}' = '{value}'" for name, value in properties.items())
    with spoken(Path(path)):
        spark.sql(
            f"CREATE TABLE IF NOT EXISTS delta.`{path}` ({columns}, day date) USING delta PARTITIONED BY (day) "
            f"TBLPROPERTIES ({said})"
        )
