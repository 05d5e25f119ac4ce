"""``gateway pipeline archive``: what is in an archive, for people and for other engines.

An archive of plain Parquet is looked at without Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
import msgspec

from gateway.exits import DAMAGED, DONE
from gateway.pipeline.schema import COLUMNS, MESSAGES
from gateway.terminal import note, output_options, print_json, print_table

if TYPE_CHECKING:
    from gateway.pipeline.archive.table import ArchiveTable

F = TypeVar("F", bound=Callable[..., Any])


def _options(function: F) -> F:
    for option in (
        output_options,
        click.option("--storage", metavar="FOLDER", help="Where the archive is (pipeline.storage)."),
        click.option("--config", envvar="GATEWAY_CONFIG", show_envvar=True, metavar="FILE",
                     help="Configuration file (TOML); its [pipeline] counts."),
        click.argument("log", type=click.Choice(tuple(COLUMNS)), default=MESSAGES),
    ):  # fmt: skip
        function = option(function)
    return function


@click.group(short_help="Show what is in an archive.")
def archive() -> None:
    """Show what is in an archive of LOG, messages unless given.

    \b
    gateway pipeline archive files > files.txt         the files that are the table, for any other engine
    gateway pipeline archive check --deep              reads all of it
    """


@archive.command("days")
@_options
def days(log: str, as_json: bool, **given: Any) -> None:
    """Show the days of an archive.

    \b
    Example:
      gateway pipeline archive days messages
    """
    with _opened(log, **given) as table:
        found = table.days()
        position = table.position()
    if as_json:
        print_json([asdict(each) for each in found])
        return
    print_table(("DAY", "FILES", "ROWS", "OCTETS"), ((each.day, each.files, each.rows, each.octets) for each in found))
    note(f"archived up to {position}")


@archive.command("files")
@_options
def files(log: str, as_json: bool, **given: Any) -> None:
    """Print the Parquet files that are the table, by day and sequence.

    Other files in its folder are of writers at work, or replaced: other programs that read the archive read these.

    \b
    Example:
      gateway pipeline archive files messages
    """
    with _opened(log, **given) as table:
        found = [(_path(table.path, each.path), each) for each in table.files()]
    if as_json:
        print_json([{**msgspec.to_builtins(each), "path": path} for path, each in found])
        return
    for path, _ in found:
        click.echo(path)


@archive.command("check")
@click.option("--deep", is_flag=True, help="Read all rows, and check pages by their checksums.")
@_options
def check(log: str, as_json: bool, deep: bool, **given: Any) -> None:
    """Say whether every file is there and is what it was; the exit status is 9 if not.

    \b
    Example:
      gateway pipeline archive check messages --deep
    """
    with _opened(log, **given) as table:
        found = table.check(deep=deep)
    if as_json:
        print_json([asdict(found)])
    else:
        for problem in found.problems:
            click.echo(problem)
        for stray in found.strays:
            click.echo(f"{stray}: of nobody; it is not read")
        note(f"{found.files:,} files, {found.rows:,} rows; {len(found.problems):,} problems")
    click.get_current_context().exit(DAMAGED if found.problems else DONE)


def _path(archive_path: str, path: str) -> str:
    return f"{archive_path}/{path}" if "://" in archive_path else str(Path(archive_path) / path)


@contextmanager
def _opened(log: str, config: str | None, storage: str | None) -> Iterator[ArchiveTable]:
    """The archive, with Spark where that is needed to look at it."""
    from gateway.pipeline.archive.parquet import ParquetTable
    from gateway.pipeline.settings import load

    pipeline = load(config, {"storage": storage})
    if pipeline.settings.archive == "parquet":
        yield ParquetTable.opened(None, pipeline.place("archive", log), log, create=False)
        return
    from gateway.pipeline.archive.opening import archive_of
    from gateway.pipeline.session import close_session, spark_session

    spark = spark_session(pipeline, app="gateway archive", delta=True)
    try:
        yield archive_of(spark, pipeline, log)
    finally:
        close_session(spark)
