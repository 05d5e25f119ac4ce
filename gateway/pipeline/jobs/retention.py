"""Delete old days of an archive.

A day goes when it is older than what is to be kept and everybody who reads the log has read beyond it. The latter
matters since the log deletes rows by age and size as well: then the archive has the only copy of what a reader has
still to read. A day that holds rows above the lowest cursor stays, and the report names the cursor.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Final

from gateway.pipeline.archive.table import ArchiveTable, Dropped, Vacuumed
from gateway.pipeline.jobs.base import Context, Option, Outcome
from gateway.pipeline.jobs.upkeep import KEEP_HOURS, LOG, archives, days_ago
from gateway.pipeline.reports import Number, Numbers, Section, Table
from gateway.pipeline.service import Service, decoded

CURSORS: Final = "/v1/log/cursors"


class Retention:
    """The job."""

    name: ClassVar[str] = "retention"
    help: ClassVar[str] = (
        "Delete old days of an archive.\n\n"
        "Those before the last --days, but none that holds rows above the lowest cursor of the log. Run it with "
        "--dry-run first."
    )
    options: ClassVar[tuple[Option, ...]] = (
        LOG,
        Option("days", "Days to keep, today included.", "whole", required=True, least=1),
        KEEP_HOURS,
    )

    def run(self, context: Context) -> Outcome:
        """See the module.

        Raises:
            NoSuchResource: there is no archive.
            ServiceUnreachable: the gateway does not say how far its readers are, so nothing goes.
        """
        first = days_ago(context.options["days"] - 1)
        found: list[tuple[ArchiveTable, Dropped, str]] = []
        deleted: list[Vacuumed] = []
        cursors = list(all_cursors(context.service))
        for table in archives(context):
            own = [each for each in cursors if each["log"] == table.log]
            context.say(f"{table.log}: days before {first}")
            dropped = table.drop_before(first, floor_of(own, table.position()), dry_run=context.dry_run)
            found.append((table, dropped, held_back_by(own) if dropped.kept else ""))
            if not context.dry_run:
                deleted.append(table.vacuum(context.options["keep_hours"] * 3_600))
        return _outcome(str(first), found, deleted)


def all_cursors(service: Service) -> Iterator[Mapping[str, Any]]:
    """Every cursor, page by page."""
    path: str | None = f"{CURSORS}?limit=1000"
    while path is not None:
        answer = service.exchange("GET", path)
        yield from decoded(service.url, answer)["cursors"]
        path = answer.links.get("next", {}).get("url")


def floor_of(cursors: list[Mapping[str, Any]], position: Mapping[str, int]) -> dict[str, int] | None:
    """Shard -> the lowest number that some reader has read; None: nobody reads the log."""
    if not cursors:
        return None
    return {shard: min(each["position"].get(shard, 0) for each in cursors) for shard in position}


def held_back_by(cursors: list[Mapping[str, Any]]) -> str:
    """The cursor with the longest backlog."""
    return str(max(cursors, key=lambda each: each["backlog"])["name"])


def _outcome(first: str, found: list[tuple[ArchiveTable, Dropped, str]], deleted: list[Vacuumed]) -> Outcome:
    rows = sum(each.rows for _, each, _ in found)
    detail = {
        "before": first,
        "days": {table.log: list(each.days) for table, each, _ in found},
        "kept": {table.log: {"days": list(each.kept), "cursor": cursor} for table, each, cursor in found if each.kept},
        "files": sum(each.files for _, each, _ in found),
        "deleted": sum(each.files for each in deleted),
        "deleted_octets": sum(each.octets for each in deleted),
    }
    sections: list[Section] = [
        Numbers(f"Before {first}", [
            Number("rows deleted", rows),
            Number("files deleted", detail["files"]),
            Number("files deleted", detail["deleted"], "that had been replaced or dropped long enough ago"),
        ]),
        Table("Days", ("log", "day"), [(table.log, day) for table, each, _ in found for day in each.days]),
        Table("Days that stay, since a reader has not come so far", ("log", "day", "cursor furthest behind"),
              [(table.log, day, cursor) for table, each, cursor in found for day in each.kept], bad=True),
    ]  # fmt: skip
    return Outcome(rows, detail, sections)
