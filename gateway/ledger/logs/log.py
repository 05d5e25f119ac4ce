"""``ledger.log``: the logs that jobs read, that of events and that of messages.

A tap spools messages, and acknowledges them to their broker once that has returned. A reader asks for a range of
numbers of a shard, any number of times, and keeps a cursor that says how far it is; what no cursor needs any more goes
(:mod:`gateway.ledger.logs.log_retention`).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Any, Concatenate, Final, ParamSpec, Protocol, TypeVar

import sqlalchemy as sa

from gateway.errors import NoSuchCursor, NoSuchRun
from gateway.ledger.db.engine import Database
from gateway.ledger.db.shards import ShardLease
from gateway.ledger.logs import log_cursors, log_reads, pipeline_runs
from gateway.ledger.logs.arrow_pool import ArrowPool
from gateway.ledger.logs.log_cursors import Cursors
from gateway.ledger.logs.logged import Extent, Floor, Run, Spooled, StoredCursor, UnreadLog
from gateway.ledger.writing.calls import SpoolCall, WriterCall
from gateway.ledger.writing.dividing import divided, future
from gateway.ledger.writing.records import InboxRow, LogEntry
from gateway.logs import Log, columns
from gateway.logs.columns import Field

P = ParamSpec("P")
R = TypeVar("R")

SEGMENT: Final = 16_384
"""Most rows that are read at a time as Arrow."""
PAGE: Final = 1_000
"""Most rows that are read at a time otherwise."""
SEGMENT_OCTETS: Final = 8 << 20
"""Most octets of messages that are read at a time, unless it is only one."""
HEAVY: Final = frozenset({"body", "properties"})
"""Columns that may be large: a range without them is bounded by its rows alone."""


class LogAccess(Protocol):
    """The ledger, as its parts see it."""

    async def submit(self, call: WriterCall) -> Any: ...
    async def task(self, run: Callable[[sa.Connection, ShardLease], Any]) -> Any: ...
    async def read(self, run: Callable[[sa.Connection], Any]) -> Any: ...


class Logs:
    """The verbs. All of them raise LedgerUnavailable where the ledger cannot be read or written."""

    def __init__(
        self,
        ledger: LogAccess,
        database: Database,
        group_max: int,
        clock: Callable[[], int],
        there: Callable[[], int] | None,
    ) -> None:
        """``clock`` is the ledger's, in microseconds; ``there`` stands for the database's (tests)."""
        self._ledger = ledger
        self._group_max = group_max
        self._clock = clock
        self._dialect = database.dialect
        self.cursors = Cursors(database, there)
        """The statements on cursors."""
        self.arrow = ArrowPool(database)
        """The processes that make Arrow."""
        self.readers = 0
        """How many ranges are being read, as those who read them say."""

    async def close(self) -> None:
        """End what makes Arrow."""
        await self.arrow.close()

    # ------------------------------------------------------------------------------------------------- write

    async def spool(
        self, messages: Sequence[Spooled], entries: Sequence[LogEntry] = (), inbox: Sequence[InboxRow] = ()
    ) -> list[int]:
        """Append messages to the log, in their order; with their events and rows of the inbox in one commit, unless
        there are more than ``group_max`` or one is bad. Durable when it returns: then, and only then, acknowledge them.

        Returns:
            The sequence number of each message in the ledger's shard.

        Raises:
            LedgerUnavailable: nothing was written, or it cannot be told: the messages are to be taken again.
            EntriesRefused: some messages cannot be stored, by their index, nor events and inbox rows of theirs; the
                others are durable, with their numbers in ``results``.
        """
        if not messages and not entries and not inbox:
            return []
        found: list[int] = await divided(self._ledger, SpoolCall(future(), messages, entries, inbox), self._group_max)
        return found

    # -------------------------------------------------------------------------------------------------- read

    async def extents(self, log: Log) -> list[Extent]:
        """What can be read of each shard."""
        return await self._read(log_reads.extents, log)

    async def extent(self, log: Log, shard: int) -> tuple[Extent, Floor]:
        """What can be read of one shard, and why not more."""
        return await self._read(log_reads.extent, log, shard)

    async def segment(self, log: Log, shard: int, after: int, upto: int, chosen: Sequence[Field], rows: int) -> int:
        """How far to read at once: at most ``rows`` rows behind ``after``, and not more octets than are to be held."""
        end = min(after + rows, upto)
        if log is Log.EVENTS or end <= after + 1 or HEAVY.isdisjoint(field.name for field in chosen):
            return end
        return await self._read(log_reads.segment, shard, after, end, SEGMENT_OCTETS)

    async def rows(
        self, log: Log, shard: int, after: int, upto: int, chosen: Sequence[Field], where: Mapping[str, Sequence[str]]
    ) -> list[dict[str, Any]]:
        """Rows of a range, in order, as a reader gets them. All of them are held: ask for a segment."""
        text = columns.select(self._dialect, log, shard, after, upto, chosen, where)
        return columns.shaped(chosen, await self._read(log_reads.rows, text))

    def record_batches(
        self,
        log: Log,
        shard: int,
        after: int,
        upto: int,
        chosen: Sequence[Field],
        where: Mapping[str, Sequence[str]],
        begin: bool,
    ) -> AsyncGenerator[bytes | int, None]:
        """The same as encapsulated Arrow record batches, and last how many rows they are; with the schema before them,
        where it is to ``begin`` with that. Close the generator. Raises NoArrow."""
        self.arrow.require()
        return self.arrow.segment(log, shard, after, upto, [field.name for field in chosen], where, begin)

    # ----------------------------------------------------------------------------------------------- cursors

    async def claim_cursor(
        self,
        name: str,
        log: Log,
        owner: str,
        start: str | Mapping[str, int] = log_cursors.EARLIEST,
        take_over: bool = False,
    ) -> StoredCursor:
        """Own a cursor from now on; the first claim makes it. See ``Cursors.claim``."""
        found: StoredCursor = await self._ledger.task(
            lambda connection, _: self.cursors.claim(connection, name, log, owner, start, take_over)
        )
        return found

    async def move_cursor(self, name: str, owner: str, epoch: int, position: Mapping[str, int]) -> StoredCursor:
        """Say how far its owner is. See :meth:`gateway.ledger.logs.log_cursors.Cursors.move`."""
        found: StoredCursor = await self._ledger.task(
            lambda connection, _: self.cursors.move(connection, name, owner, epoch, position)
        )
        return found

    async def release_cursor(self, name: str, owner: str, epoch: int) -> StoredCursor:
        """Own it no more. See :meth:`gateway.ledger.logs.log_cursors.Cursors.release`."""
        found: StoredCursor = await self._ledger.task(
            lambda connection, _: self.cursors.release(connection, name, owner, epoch)
        )
        return found

    async def delete_cursor(self, name: str) -> None:
        """Forget it. See :meth:`gateway.ledger.logs.log_cursors.Cursors.delete`."""
        await self._ledger.task(lambda connection, _: self.cursors.delete(connection, name))

    async def get_cursor(self, name: str) -> StoredCursor:
        """One by name. Raises NoSuchCursor."""
        found = await self._read(log_cursors.get, name)
        if found is None:
            raise NoSuchCursor(f"there is no cursor {name!r}")
        return found

    async def list_cursors(self, cursor: str | None = None, limit: int = 100) -> tuple[list[StoredCursor], str | None]:
        """Cursors by name, and the cursor of the next page (None: that was the last)."""
        return await self._read(log_cursors.page, cursor, limit)

    async def backlog(self, log: Log, position: Mapping[str, int]) -> UnreadLog:
        """What is behind a position, and there."""
        return await self._read(log_cursors.backlog, log, position)

    async def held(self) -> UnreadLog:
        """What of the log of messages is there that not every cursor has passed: what readers have still to read, or
        all of it where nobody reads. Raises LedgerUnavailable."""
        return await self._read(log_cursors.unread, Log.MESSAGES)

    # -------------------------------------------------------------------------------------------------- runs

    async def put_run(self, run: Run) -> bool:
        """Remember what a job tells of a run; whether it is the first word of it.

        Raises:
            StateError: the run of that id is done, or is one of another job.
        """
        now = self._clock()
        created: bool = await self._ledger.task(lambda connection, _: pipeline_runs.put(connection, run, now))
        return created

    async def get_run(self, run_id: str) -> Run:
        """One by id. Raises NoSuchRun."""
        found = await self._read(pipeline_runs.get, run_id)
        if found is None:
            raise NoSuchRun(f"there is no run {run_id!r}")
        return found

    async def list_runs(
        self, job: str | None = None, state: str | None = None, cursor: str | None = None, limit: int = 100
    ) -> tuple[list[Run], str | None]:
        """Runs, the newest first, and the cursor of the next page (None: that was the last).

        Raises:
            ValueError: the cursor is malformed.
        """
        return await self._read(pipeline_runs.page, job, state, cursor, limit)

    async def _read(
        self, function: Callable[Concatenate[sa.Connection, P], R], *arguments: P.args, **options: P.kwargs
    ) -> R:
        found: R = await self._ledger.read(lambda connection: function(connection, *arguments, **options))
        return found
