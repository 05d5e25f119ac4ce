"""Make few large files of an archive's many small ones, a day at a time.

An archive that is kept up to date by the minute gets some files a minute, and what reads it opens them all. A day that
is over is rewritten into files of a good size, in order of sequence over all of them; counted and compared with what
was read before it counts. Writers and readers go on meanwhile, and a compaction that is killed has done nothing. The
small files stay for a while for their readers, then they are deleted.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from gateway.pipeline.archive.table import FILE_OCTETS, Compacted, Vacuumed, as_day
from gateway.pipeline.jobs.base import Context, Option, Outcome
from gateway.pipeline.jobs.upkeep import KEEP_HOURS, LOG, archives, today
from gateway.pipeline.reports import Number, Numbers, Section, Table


class Compact:
    """The job."""

    name: ClassVar[str] = "compact"
    help: ClassVar[str] = (
        "Make few large files of an archive's many small ones.\n\n"
        "Days that are over, or those that --day names; rows are counted and compared before the new files count, and "
        "readers and writers go on meanwhile."
    )
    options: ClassVar[tuple[Option, ...]] = (
        LOG,
        Option("day", "A day, 2026-11-01; may be repeated. Unless given, all that are over.", many=True, metavar="DAY"),
        Option("file_octets", "Octets that a file should have.", "whole", FILE_OCTETS, least=1 << 20),
        KEEP_HOURS,
    )

    def run(self, context: Context) -> Outcome:
        """See the module.

        Raises:
            NoSuchResource: there is no archive.
            ArchiveDamaged: a file is missing or damaged, or what was written is not what was read.
            DiskFull: no room for the new files; the archive is as it was.
        """
        named = tuple(map(as_day, context.options["day"]))
        done: list[tuple[str, Compacted]] = []
        deleted = Vacuumed()
        for table in archives(context):
            days = [each.day for each in table.days() if each.day in named or (not named and each.day < str(today()))]
            for number, day in enumerate(days):
                context.progress(number, len(days), log=table.log, day=day)
                if context.dry_run:
                    small = [
                        file for file in table.files()
                        if file.day == day and file.octets < context.options["file_octets"] // 2
                    ]  # fmt: skip
                    found = Compacted(day, len(small), rows=sum(file.rows for file in small))
                else:
                    found = table.compact(day, context.options["file_octets"])
                if found.before or found.overtaken:
                    done.append((table.log, found))
            if not context.dry_run:
                more = table.vacuum(context.options["keep_hours"] * 3_600)
                deleted = replace(
                    deleted,
                    files=deleted.files + more.files,
                    octets=deleted.octets + more.octets,
                    attempts=deleted.attempts + more.attempts,
                )
        return _outcome(done, deleted)


def _outcome(done: list[tuple[str, Compacted]], deleted: Vacuumed) -> Outcome:
    before, after = sum(each.before for _, each in done), sum(each.after for _, each in done)
    rows = sum(each.rows for _, each in done)
    detail = {
        "days": sorted({each.day for _, each in done}), "files_before": before, "files_after": after,
        "overtaken": sum(each.overtaken for _, each in done), "deleted": deleted.files,
        "deleted_octets": deleted.octets, "killed_writers": deleted.attempts,
    }  # fmt: skip
    sections: list[Section] = [
        Numbers("Compacted", [
            Number("days", len(done)),
            Number("small files", before),
            Number("large files", after),
            Number("files deleted", deleted.files, "that had been replaced or dropped long enough ago"),
            Number("killed writers", deleted.attempts, "behind whom was cleaned up"),
        ]),
        Table("Days", ("log", "day", "small files", "large files", "rows", "overtaken"),
              [(log, each.day, each.before, each.after, each.rows, each.overtaken) for log, each in done]),
    ]  # fmt: skip
    return Outcome(rows, detail, sections)
