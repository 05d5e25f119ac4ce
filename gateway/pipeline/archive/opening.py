"""Opening an archive of either kind."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from gateway.errors import ConfigurationError
from gateway.pipeline.archive.table import GLOBS, ArchiveTable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from gateway.pipeline.settings import Pipeline


def open_table(
    spark: SparkSession, path: str | os.PathLike[str], kind: str, log: str = "", *, create: bool = True
) -> ArchiveTable:
    """Open an archive, or make one.

    Args:
        spark: the session that reads and writes; with Delta's jars for ``delta``.
        path: its folder, or for ``delta`` a URL that Spark knows.
        kind: ``parquet`` or ``delta``.
        log: the log that it is to hold; empty: whichever it holds.
        create: make it where there is none.

    Raises:
        NoSuchResource: there is none, and it is not to be made.
        ConfigurationError: it is of the other kind or of the other log, or its place cannot be used.
        ArchiveTooNew: a newer release wrote to it.
        ArchiveDamaged: its commit log is damaged.
    """
    from gateway.pipeline.archive.delta import DeltaTable
    from gateway.pipeline.archive.engine import SparkEngine
    from gateway.pipeline.archive.parquet import ParquetTable

    place = str(path)
    if found := sorted(GLOBS.intersection(place)):
        raise ConfigurationError(
            f"the archive's path {place!r} has {found[0]!r} in it, which Spark takes for a pattern"
        )
    if kind == "delta":
        return DeltaTable.opened(spark, place, log, create=create)
    return ParquetTable.opened(SparkEngine(spark), place, log, create=create)


def archive_of(spark: SparkSession, pipeline: Pipeline, log: str, *, create: bool = False) -> ArchiveTable:
    """The archive of a log, where and as the settings say."""
    return open_table(spark, pipeline.place("archive", log), pipeline.settings.archive, log, create=create)
