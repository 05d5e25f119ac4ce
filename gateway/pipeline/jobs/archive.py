"""Keep a log for good: what taps have spooled, or what happened, from the gateway's log into the archive.

The archive itself says how far a log is archived, in the same commit that adds the rows
(:mod:`gateway.pipeline.archive.table`). So the job has no state of its own: it asks the archive where to begin, the
gateway where the log ends, and appends what lies between in ranges, each under a token that names its end. Killed
anywhere, it begins again where the archive ends; two of them at once archive each row once. Only then does the cursor
move, and the gateway may delete the rows.

A commit is as large as rows of about :data:`COMMIT_OCTETS` make it, so that a hundred thousand small messages and a
hundred large ones make files of about the same size.
"""

from __future__ import annotations

import getpass
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Final
from urllib.parse import quote

from gateway.errors import GatewayError, NoSuchResource, PipelineFault, SourceGone
from gateway.pipeline.archive.opening import archive_of
from gateway.pipeline.archive.table import ArchiveTable, Token
from gateway.pipeline.jobs.base import Context, Option, Outcome
from gateway.pipeline.reports import Number, Numbers, Section, Table
from gateway.pipeline.schema import EVENTS, MESSAGES
from gateway.pipeline.source.offsets import RANGE_MAX, Head, Position, backlog, check, described, furthest, head_of
from gateway.runtime.clock import block

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

COMMIT_OCTETS: Final = 128 << 20
"""Octets of rows, as they lie in the archive, that one commit should have."""
FIRST_ROWS: Final = 50_000
"""Rows of the first commit of a run, from which it learns how large they are."""
TASK_ROWS_MIN: Final = 10_000
"""Fewest rows for which a further task is started."""
OVERTAKEN_MAX: Final = 10
"""How often an append is tried again that others have overtaken without appending, as a change of Delta's may."""
EVERY: Final = 60.0
"""How often a job that goes on looks for new rows, in seconds."""

LOG: Final = Option("log", "The log.", "choice", MESSAGES, (MESSAGES, EVENTS))


class Archive:
    """The job."""

    name: ClassVar[str] = "archive"
    help: ClassVar[str] = (
        "Keep a log for good: append what is new in it to the archive.\n\n"
        "Every row once, in order of sequence, whenever it is killed. It ends when it has reached the end that the log "
        "had when it began, or goes on with --continuous. The gateway deletes archived rows."
    )
    options: ClassVar[tuple[Option, ...]] = (
        LOG,
        Option("rows", "Most rows of one commit.", "whole", RANGE_MAX, least=1, identity=False),
        Option("continuous", "Go on until it is stopped.", "flag", False, identity=False),
        Option("every", "With --continuous: seconds from one look at the log to the next.", "number", EVERY, least=0,
               identity=False),
        Option("skip_gone", "Go on behind rows that retention took from the log before they were archived.", "flag",
               False),
        Option("take_over", "Take the archive's cursor from another machine that was heard of lately.", "flag", False,
               identity=False),
    )  # fmt: skip

    def __init__(self, sleep: Callable[[float], None] = block) -> None:
        self._sleep = sleep

    def run(self, context: Context) -> Outcome:
        """See the module.

        Raises:
            CursorOwned: another machine archives the same log into the same archive.
            SourceGone: rows went before they were archived, or the archive belongs to another ledger.
            ArchiveTooNew, ArchiveDamaged, DiskFull: the archive cannot be written.
        """
        log = context.options["log"]
        if context.dry_run:
            return self._told(context, log)
        table = archive_of(context.spark, context.pipeline, log, create=True)
        held = table.position()
        check(held, head_of_log(context, log), fail=False)  # of this ledger, before anything is asked of it
        cursor = _Cursor(context, table)
        done = _Done()
        begin = cursor.claim(held)
        try:
            while True:
                self._round(context, table, cursor, begin, done)
                if not context.options["continuous"]:
                    break
                self._sleep(context.options["every"])
        finally:
            cursor.release()
        return done.outcome(table)

    def _round(self, context: Context, table: ArchiveTable, cursor: _Cursor, begin: Position, done: _Done) -> None:
        """Archive what is there now."""
        held = table.position()  # before the log's end, which is never behind it then, whoever archives meanwhile
        head = head_of_log(context, table.log)
        # What the cursor says of a shard that the archive has nothing of counts only where it is behind: the archive
        # may have been put back from a backup, and what it lost since may still be in the log.
        fresh = {shard: min(begin.get(shard, 0), after) for shard, after in head.start.items() if shard not in held}
        start, gone = check({**fresh, **held}, head, fail=False)
        if gone and not context.options["skip_gone"]:
            raise SourceGone(
                f"rows of the log of {head.log} are gone that were not archived: {described(gone)}; "
                "--skip-gone goes on behind them"
            )
        done.gone.extend(map(str, gone))
        done.before |= {shard: after for shard, after in fresh.items() if shard not in done.before}
        total = backlog(start, head.end)
        cursor.tell(start)
        for shard, last in head.end.items():
            after, tries = start.get(shard, 0), OVERTAKEN_MAX
            while after < last:
                upto = min(last, after + min(done.next_rows, context.options["rows"], RANGE_MAX))
                appended = table.append(_rows(context, table.log, shard, after, upto), Token.of(shard, upto, after))
                if appended.repeated:
                    # Somebody else was quicker; what they have is there.
                    reached = table.position().get(shard, after)
                    tries = tries - 1 if reached <= after else OVERTAKEN_MAX
                    if not tries:
                        raise PipelineFault(
                            f"{table.path}: {OVERTAKEN_MAX} appends of shard {shard} behind {after} were overtaken, "
                            "but nobody appended; try again"
                        )
                    after = max(after, reached)
                    continue
                done.add(appended.rows, upto - after, appended.files, appended.octets)
                after = upto
                cursor.tell({shard: upto})
                context.progress(done.span, total if not context.options["continuous"] else None, commits=done.commits)

    def _told(self, context: Context, log: str) -> Outcome:
        """What would be archived."""
        try:
            held = archive_of(context.spark, context.pipeline, log).position()
        except NoSuchResource:
            held = {}
        head = head_of_log(context, log)
        start, gone = check({**head.start, **held}, head, fail=False)
        waiting = backlog(start, head.end)
        shards = [
            (int(shard), held.get(shard, 0), last, last - start.get(shard, 0)) for shard, last in head.end.items()
        ]
        sections: list[Section] = [
            Numbers("What would be archived", [Number("rows", waiting), Number("gone", described(gone) or "nothing",
                                                                              bad=bool(gone))]),
            Table("By shard", ("shard", "archived up to", "log ends at", "to archive"), shards),
        ]  # fmt: skip
        return Outcome(waiting, {"rows_waiting": waiting, "position": held, "gone": list(map(str, gone))}, sections)


def head_of_log(context: Context, log: str) -> Head:
    """Where the log begins and ends now."""
    return head_of(context.service.ask("GET", "/v1/log/head", query={"log": log}), context.service.url)


def _rows(context: Context, log: str, shard: str, after: int, upto: int) -> DataFrame:
    """The rows of a range, in as many tasks as there are cores for them."""
    from gateway.pipeline.source import read

    tasks = context.spark.sparkContext.defaultParallelism
    each = max(TASK_ROWS_MIN, -(-(upto - after) // tasks))
    return read(
        context.spark, context.pipeline, log, start={shard: after}, end={shard: upto},
        rows_max=str(min(each, context.pipeline.settings.rows_max)),
    )  # fmt: skip


@dataclass(slots=True)
class _Done:
    """What a run has done."""

    rows: int = 0
    span: int = 0
    """Sequence numbers, with those of rows that retention took."""
    commits: int = 0
    files: int = 0
    octets: int = 0
    next_rows: int = field(default_factory=lambda: FIRST_ROWS)
    """Rows of the next commit."""
    gone: list[str] = field(default_factory=list)
    before: dict[str, int] = field(default_factory=dict)
    """Shard -> rows that the log had deleted before this archive began: it never gets them."""

    def add(self, rows: int, span: int, files: int, octets: int) -> None:
        """A commit."""
        self.rows += rows
        self.span += span
        self.commits += 1
        self.files += files
        self.octets += octets
        if rows:
            # Not more than four times as many as before: the next rows may be larger.
            self.next_rows = max(1, min(4 * self.next_rows, COMMIT_OCTETS * rows // max(1, octets)))

    def outcome(self, table: ArchiveTable) -> Outcome:
        """As a run's."""
        position = table.position()
        before = sum(self.before.values())
        detail = {
            "commits": self.commits, "files": self.files, "octets": self.octets, "position": position,
            "gaps": self.span - self.rows, "gone": self.gone[:100], "before": before, "archive": table.path,
        }  # fmt: skip
        numbers = [
            Number("rows", self.rows),
            Number("commits", self.commits),
            Number("files", self.files),
            Number("octets", self.octets),
            Number("passed over", self.span - self.rows, "numbers of rows that retention took"),
            Number("gone", "; ".join(self.gone[:5]) or "nothing", bad=bool(self.gone)),
            Number("before it began", before, "numbers that the log had deleted by then", bad=bool(before)),
        ]
        sections: list[Section] = [
            Numbers(f"Archived: {table.log}", numbers),
            Table("By shard", ("shard", "archived up to"), [(int(shard), last) for shard, last in position.items()]),
        ]
        return Outcome(self.rows, detail, sections)


class _Cursor:
    """The archive's cursor in the log: how far the gateway may delete rows."""

    def __init__(self, context: Context, table: ArchiveTable) -> None:
        self._context = context
        self._table = table
        # Another archive of the same log is another reader, which begins where the log begins.
        self.name = f"archive-{table.log}-{table.id[:8]}"
        self._owner = f"{getpass.getuser()}@{socket.gethostname()}"
        self._epoch = 0

    def claim(self, held: Position) -> Position:
        """Own it; returns where it is. One that is not there begins where the archive ends."""
        found = self._ask(
            "POST",
            ":claim",
            log=self._table.log,
            owner=self._owner,
            start=held or "earliest",
            take_over=self._context.options["take_over"],
        )
        self._epoch = found["epoch"]
        return furthest(found["position"], {})

    def tell(self, position: Mapping[str, int]) -> None:
        """Say that rows up to there are archived."""
        self._ask("PUT", "", owner=self._owner, epoch=self._epoch, position=dict(position))

    def release(self) -> None:
        """Release it."""
        try:
            self._ask("POST", ":release", owner=self._owner, epoch=self._epoch)
        except GatewayError as error:
            # Whoever has it now, or a gateway that is away, is no fault of what is archived; a minute later it is free.
            self._context.say(f"the cursor {self.name} could not be released: {error}")

    def _ask(self, method: str, verb: str, **body: Any) -> Any:
        return self._context.service.ask(method, f"/v1/log/cursors/{quote(self.name, safe='')}{verb}", body=body)
