"""What the jobs that look after archives have in common: which archives, and which days are closed."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date, timedelta
from typing import Final

from gateway.errors import NoSuchResource
from gateway.pipeline.archive.opening import archive_of
from gateway.pipeline.archive.table import KEEP_SECONDS, ArchiveTable
from gateway.pipeline.jobs.base import Context, Option
from gateway.pipeline.schema import COLUMNS
from gateway.runtime.clock import clock

ALL: Final = "all"

LOG: Final = Option("log", "Of which log the archive is.", "choice", ALL, (ALL, *COLUMNS))
KEEP_HOURS: Final = Option(
    "keep_hours", "Hours for which files that are replaced or dropped stay for their readers.", "number",
    KEEP_SECONDS / 3_600, least=0,
)  # fmt: skip


def archives(context: Context) -> Iterator[ArchiveTable]:
    """The archives that are there and that the option names.

    Raises:
        NoSuchResource: there is none.
    """
    wanted = tuple(COLUMNS) if context.options["log"] == ALL else (context.options["log"],)
    found = 0
    for log in wanted:
        try:
            table = archive_of(context.spark, context.pipeline, log)
        except NoSuchResource:
            continue
        found += 1
        yield table
    if not found:
        raise NoSuchResource(f"{context.pipeline.place('archive')}: there is no archive of {' or '.join(wanted)}")


def today() -> date:
    """The day that is not over yet, UTC."""
    return clock.utc().date()


def days_ago(days: int) -> date:
    """So many days before today."""
    return today() - timedelta(days=days)
