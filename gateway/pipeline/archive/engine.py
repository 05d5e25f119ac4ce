"""Who reads and writes the rows of an archive: Spark.

An archive of Parquet files decides which files are the table, and leaves what is in them to an :class:`Engine`. That is
Spark at work, and something smaller where the decisions alone are tested.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from gateway.errors import DiskFull
from gateway.pipeline.archive.table import TIME
from gateway.pipeline.faults import fault_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Columns = tuple[tuple[str, str], ...]
"""Names and types, as Spark spells them."""
ORDER: Final = ("shard", "sequence")
CODEC: Final = "zstd"
CONFIGURATION: Final = {
    # The default, INT96, has no statistics, and other engines have given it up.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # Pages have checksums, and by default nobody looks at them.
    "parquet.page.verify-checksum.enabled": "true",
    # Files are named one by one: with the defaults, looking at more than 32 of them starts a task for each.
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "100000",
}
"""Settings that hold from the moment a session first opens an archive."""


class Digest(NamedTuple):
    """What tells one set of rows from another without comparing them one by one."""

    rows: int
    xor: int
    sum: int


class Engine(Protocol):
    """Reads and writes Parquet files."""

    def columns(self, rows: DataFrame) -> Columns:
        """The columns of rows that are to be appended."""

    def write(self, rows: DataFrame, log: str, folder: Path) -> None:
        """Write rows into ``folder/day=DAY/*.parquet``, each file in order."""

    def read(self, archive: Path, files: Sequence[str], columns: Columns) -> DataFrame:
        """These files of an archive as rows with these columns, and ``day``."""

    def rewrite(self, archive: Path, files: Sequence[str], columns: Columns, folder: Path, parts: int) -> None:
        """Write the rows of these files, of one day, into so many new ones, in order over all of them."""

    def digest(self, rows: DataFrame, columns: Columns) -> Digest:
        """The digest of rows, over these columns."""


class SparkEngine:
    """Spark."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        for name, value in CONFIGURATION.items():
            spark.conf.set(name, value)

    def columns(self, rows: DataFrame) -> Columns:
        return tuple((each.name, each.dataType.simpleString()) for each in rows.schema)

    def write(self, rows: DataFrame, log: str, folder: Path) -> None:
        with spoken(folder):
            write_days(by_day(rows, log), folder)

    def read(self, archive: Path, files: Sequence[str], columns: Columns) -> DataFrame:
        schema = ", ".join(f"`{name}` {kind}" for name, kind in (*columns, ("day", "date")))
        if not files:
            return self._spark.createDataFrame([], schema)
        reader = self._spark.read.schema(schema).option("basePath", str(archive))
        with spoken(archive):
            return reader.parquet(*(str(archive / file) for file in files))

    def rewrite(self, archive: Path, files: Sequence[str], columns: Columns, folder: Path, parts: int) -> None:
        rows = self.read(archive, files, columns)
        with spoken(folder):
            write_days(in_order(rows, parts), folder)

    def digest(self, rows: DataFrame, columns: Columns) -> Digest:
        return digest(rows, [name for name, _ in columns])


def by_day(rows: DataFrame, log: str) -> DataFrame:
    """Rows with their ``day``, in order within each day of each partition."""
    from pyspark.sql import functions

    return rows.withColumn("day", functions.to_date(TIME[log])).sortWithinPartitions("day", *ORDER)


def in_order(rows: DataFrame, parts: int) -> DataFrame:
    """Rows in so many partitions, in order within each and from one to the next."""
    if parts == 1:
        return rows.repartition(1).sortWithinPartitions("day", *ORDER)
    return rows.repartitionByRange(parts, *ORDER).sortWithinPartitions("day", *ORDER)


def write_days(rows: DataFrame, folder: Path) -> None:
    """Write rows that are in order, one folder a day."""
    rows.write.partitionBy("day").option("compression", CODEC).parquet(str(folder))


def digest(rows: DataFrame, names: Sequence[str]) -> Digest:
    """Count, exclusive or and sum of the hashes of the rows, over these columns.

    The exclusive or alone does not see rows that are there twice more, nor does the sum alone see what makes up for
    each other; hashes pass nulls over, so which columns are null is hashed as well.
    """
    from pyspark.sql import functions

    present = [name for name in names if name in rows.columns]
    code = functions.xxhash64(*present, *(functions.isnull(name) for name in present))
    with spoken(Path()):
        found = rows.select(code.alias("code")).agg(
            functions.count("*").alias("rows"),
            functions.coalesce(functions.bit_xor("code"), functions.lit(0)).alias("xor"),
            functions.coalesce(functions.sum(functions.col("code").cast("decimal(20,0)")), functions.lit(0)).alias(
                "sum"
            ),
        )
        row = found.first()
    assert row is not None, "an aggregation of everything has one row"
    return Digest(int(row["rows"]), int(row["xor"]), int(row["sum"]))


@contextmanager
def spoken(place: Path) -> Iterator[None]:
    """Say in our words what Spark fails with in the block; ``place`` is what it was writing or reading."""
    try:
        yield
    except Exception as error:
        fault = fault_of(error)
        if isinstance(fault, DiskFull):
            fault = DiskFull(f"{place}: {fault}; what was committed is safe")
        raise fault from error
