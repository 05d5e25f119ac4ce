"""What is in a Parquet file, seen from outside of Spark: rows, sequence numbers, order, damage."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from gateway.errors import ArchiveDamaged, PipelineFault
from gateway.pipeline.archive.commits import File

BATCH: Final = 65_536
"""Rows that are looked at at a time."""
NO_DAY: Final = "__HIVE_DEFAULT_PARTITION__"
"""Day under which Spark writes rows that have none."""


def written(folder: Path, name: str) -> Iterator[tuple[Path, File]]:
    """What a writer has put into ``folder/day=DAY/``: each file, and what a commit has to say of it.

    Args:
        folder: where it wrote.
        name: what the files shall be called, each with a number behind.

    Raises:
        PipelineFault: rows without a day, a shard or a sequence number, or not in the order of those.
    """
    found = sorted(path for path in folder.glob("day=*/*.parquet") if not path.name.startswith((".", "_")))
    for number, path in enumerate(found):
        day = path.parent.name.removeprefix("day=")
        if day == NO_DAY:
            raise PipelineFault("rows without the time that says their day cannot be archived")
        rows, ranges = scan(path)
        if rows:
            relative = f"day={day}/{name}-{number:05}.parquet"
            yield path, File(relative, day, rows, path.stat().st_size, ranges, sha256_of(path))


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file, as hexadecimal digits. Raises OSError."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def scan(path: Path, *, deep: bool = False) -> tuple[int, dict[str, tuple[int, int]]]:
    """How many rows a file has, and the first and the last sequence number of each shard.

    Args:
        path: the file.
        deep: read every column, and check each page by its checksum; else shard and sequence number only.

    Raises:
        ArchiveDamaged: it cannot be read.
        PipelineFault: its rows are not in the order of shard and sequence number.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows, ranges = 0, dict[str, tuple[int, int]]()
    last = (-1, -1)
    try:
        with pq.ParquetFile(path, page_checksum_verification=deep) as file:
            for batch in file.iter_batches(BATCH, columns=None if deep else ["shard", "sequence"]):
                rows += batch.num_rows
                last = _follow(path, batch.column("shard"), batch.column("sequence"), last, ranges)
    except (pa.ArrowException, OSError) as error:
        raise ArchiveDamaged(f"{path}: {error}") from None
    return rows, ranges


def _follow(path: Path, shard: Any, sequence: Any, last: tuple[int, int], ranges: dict[str, tuple[int, int]]) -> Any:
    """Take note of a batch's rows, behind those of which ``last`` was the last; returns the last one now."""
    import numpy as np

    if not len(shard):
        return last
    if shard.null_count or sequence.null_count:
        raise PipelineFault(f"{path}: rows without a shard or a sequence number cannot be archived")
    shards, numbers = shard.to_numpy(), sequence.to_numpy()
    before_shards, before = np.append(last[0], shards[:-1]), np.append(last[1], numbers[:-1])
    in_order = (shards > before_shards) | ((shards == before_shards) & (numbers > before))
    if not in_order.all():
        at = int(np.argmin(in_order))
        raise PipelineFault(
            f"{path}: row {numbers[at]} of shard {shards[at]} comes after row {before[at]} of shard {before_shards[at]}"
        )
    for each in np.unique(shards):
        own = numbers[shards == each]
        first = ranges[str(each)][0] if str(each) in ranges else int(own[0])
        ranges[str(each)] = (first, int(own[-1]))
    return int(shards[-1]), int(numbers[-1])
