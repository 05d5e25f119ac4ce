"""What both kinds of archive have in common: files by day, and whether they are what they were."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gateway.errors import ArchiveDamaged, GatewayError, PipelineFault
from gateway.pipeline.archive.commits import File
from gateway.pipeline.archive.parquet_files import scan, sha256_of
from gateway.pipeline.archive.table import Day

if TYPE_CHECKING:
    from gateway.pipeline.archive.engine import Columns

NAMED: Final = 5
"""Most files that a message names."""


def ordered(files: Iterable[File]) -> list[File]:
    """Files by day, shard and first sequence number."""
    return sorted(files, key=lambda file: (file.day, min((int(shard), span) for shard, span in file.ranges.items())))


def days_of(files: Iterable[File]) -> list[Day]:
    """The days of files, in order."""
    days = defaultdict[str, list[File]](list)
    for file in files:
        days[file.day].append(file)
    return [_day(day, found) for day, found in sorted(days.items())]


def _day(day: str, files: list[File]) -> Day:
    last = defaultdict[str, int](int)
    for file in files:
        for shard, (_, upto) in file.ranges.items():
            last[shard] = max(last[shard], upto)
    return Day(
        day,
        len(files),
        sum(file.rows for file in files),
        sum(file.octets for file in files),
        dict(sorted(last.items())),
    )


def merged(columns: Columns, new: Columns) -> Columns:
    """The columns of an archive, and behind them those that are new.

    Raises:
        PipelineFault: one has another type.
    """
    types = dict(columns)
    for name, kind in new:
        if types.setdefault(name, kind) != kind:
            raise PipelineFault(f"column {name} is {types[name]} in the archive, and {kind} in the rows to append")
    return tuple(types.items())


def wrong(archive: Path, file: File) -> str:
    """What is wrong with a file that one sees without reading it; empty: nothing."""
    try:
        octets = os.stat(archive / file.path).st_size
    except FileNotFoundError:
        return f"{file.path} is missing"
    return "" if octets == file.octets else f"{file.path} has {octets:,} octets, not {file.octets:,}"


def whole(archive: Path, files: Iterable[File]) -> None:
    """Raise :class:`ArchiveDamaged` unless each file is there and as long as it was."""
    if found := [problem for file in files if (problem := wrong(archive, file))]:
        more = f", and {len(found) - NAMED} files more" if len(found) > NAMED else ""
        raise ArchiveDamaged(f"{archive}: {'; '.join(found[:NAMED])}{more}")


def intact(archive: Path, files: Iterable[File]) -> None:
    """Read each file, and raise :class:`ArchiveDamaged` unless it is as it was written."""
    for file in files:
        if problem := changed(archive, file):
            raise ArchiveDamaged(f"{archive}: {problem}")


def changed(archive: Path, file: File) -> str:
    """What is wrong with the bytes of a file; empty: nothing, or nobody knows."""
    if file.sha256 in ("", sha256_of(archive / file.path)):
        return ""
    return f"{file.path} is damaged: its SHA-256 is not the one in its commit"


def unlike(archive: Path, file: File, *, deep: bool) -> str:
    """What is in a file that its commit does not say; empty: nothing."""
    try:
        if deep and (problem := changed(archive, file)):
            return problem
        rows, ranges = scan(archive / file.path, deep=deep)
    except GatewayError as error:
        return str(error)
    if rows != file.rows or ranges != file.ranges:
        return f"{file.path} has {rows:,} rows, {ranges}, and not {file.rows:,}, {file.ranges}"
    return ""
