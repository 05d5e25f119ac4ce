"""The keeper: counts events per hour every few seconds, deletes unneeded rows of the log of messages every minute, and
old rows every hour.

On a ledger that several processes share, one of them does it at a time: the one that gets PostgreSQL's advisory lock
for a round. Nothing depends on that but the work that is done twice otherwise: counts are added once, by any process,
and a row can be deleted only once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import sqlalchemy as sa
from sqlalchemy import exc

from gateway.config import RetentionSettings
from gateway.errors import LedgerUnavailable
from gateway.ledger.access import audit
from gateway.ledger.db.engine import Database, unavailable
from gateway.ledger.db.ids import DAY_MS, first_id
from gateway.ledger.db.shards import ShardLease
from gateway.ledger.events import reads, retention, statistics
from gateway.ledger.events.retention import DropOutcome, Sweep
from gateway.ledger.events.statistics import Statistics, StatisticsPage
from gateway.ledger.logs import log_reads, log_retention, pipeline_runs
from gateway.ledger.logs.log_cursors import Cursors
from gateway.ledger.logs.log_retention import LogRetention, Raise
from gateway.ledger.pending import bodies
from gateway.ledger.pending.bodies import Bodies
from gateway.logs import Log
from gateway.observing.telemetry import log
from gateway.runtime.clock import clock
from gateway.runtime.threads import threads

if TYPE_CHECKING:
    from gateway.ledger.store import Ledger

COUNT_EVERY: Final = 10.0
"""Pause between two rounds of counting, in seconds."""
RETAIN_EVERY: Final = 3_600.0
"""Pause between two rounds of letting go, in seconds."""
LOG_EVERY: Final = 60.0
"""Pause between two rounds of letting go of the log of messages, in seconds."""
RETAIN_AGAIN: Final = 60.0
"""The same where somebody used what was to be dropped."""
TRIES: Final = 5
"""How often a day is tried to be dropped in one round."""
TRY_PAUSE: Final = 1.0
"""Pause between two of them, in seconds."""
ADVISORY_LOCK: Final = 0x6B656570
"""Held on PostgreSQL for a round ("keep")."""

R = TypeVar("R")


class LedgerKeeper:
    """See the module."""

    def __init__(
        self,
        ledger: Ledger,
        database: Database,
        clock: Callable[[], int],
        settings: RetentionSettings,
        kept: Bodies,
        cursors: Cursors,
    ) -> None:
        """``clock`` is the ledger's, in microseconds."""
        self._ledger = ledger
        self._database = database
        self._clock = clock
        self._statistics = Statistics(database)
        self._settings = settings
        self._bodies = kept
        self._sweep = Sweep(database)
        self._log = LogRetention(database, cursors, settings)
        self._engine = database.writer()
        self._task: asyncio.Task[None] | None = None

    def reconfigure(self, settings: RetentionSettings) -> None:
        """Go by other settings from the next sweep on."""
        self._settings = self._log.settings = settings

    def start(self) -> None:
        """Work in the background."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name="ledger-history")

    async def close(self) -> None:
        """Stop; what is under way in the database comes to its end."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def _run(self) -> None:
        due = log_due = clock.monotonic()
        while True:
            await clock.sleep(COUNT_EVERY)
            try:
                if clock.monotonic() >= log_due:
                    log_due = clock.monotonic() + LOG_EVERY
                    await self.trim()
                if clock.monotonic() < due:
                    await self.count()
                elif await self.retain() is DropOutcome.BUSY:
                    due = clock.monotonic() + RETAIN_AGAIN
                else:
                    due = clock.monotonic() + RETAIN_EVERY
            except LedgerUnavailable as error:
                log("ledger.retention_waits", logging.DEBUG, reason=str(error))
            except Exception as error:  # a defect of ours; counts and old days can wait for its repair
                log("ledger.retention_failed", logging.ERROR, error)
                due = clock.monotonic() + RETAIN_EVERY

    # ----------------------------------------------------------------------------------------------- counting

    async def count(self) -> bool:
        """Count the events that are not counted. False: another process does that now.

        Raises:
            LedgerUnavailable: they cannot be read or written; the counts are as they were, or further.
        """
        return await self._alone(self._count)

    async def _count(self) -> None:
        end = await self._ledger.read(reads.end)  # and not what comes meanwhile, or it would never be done
        while (page := await self._ledger.read(partial(self._next_page, end))) is not None:
            await self._ledger.task(partial(self._add, page))

    def _next_page(self, end: dict[str, int], connection: sa.Connection) -> StatisticsPage | None:
        return self._statistics.next_page(connection, end)

    def _add(self, page: StatisticsPage, connection: sa.Connection, _: ShardLease) -> bool:
        return self._statistics.add(connection, page)

    # ----------------------------------------------------------------------------------------------- letting go

    async def retain(self) -> DropOutcome | None:
        """Delete what is too old. BUSY: some of it could not be let go now. None: another process does that now.

        Raises:
            LedgerUnavailable: the ledger cannot be read or written; some of it went perhaps.
        """
        found: list[DropOutcome] = []

        async def retain() -> None:
            found.append(await self._retain())

        return found[0] if await self._alone(retain) else None

    async def _retain(self) -> DropOutcome:
        now = self._clock()
        today = now // (DAY_MS * 1000)
        begin = today - self._settings.history_days
        read = await self._begin(begin * DAY_MS * 1000, now)
        await self._count()
        await self._raise(lambda connection: self._log.raise_history(connection, read, now))
        await self._forget(lambda connection: self._bodies.forget_expired(connection, now), bodies.CHUNK)
        hour = (today - self._settings.statistics_days) * 24
        await self._forget(lambda connection: statistics.forget(connection, hour), statistics.CHUNK)
        days = self._settings.audit_days
        while await self._ledger.audit.trim(now, days) == audit.CHUNK:
            pass
        run = now - self._settings.statistics_days * DAY_MS * 1000
        await self._forget(lambda connection: pipeline_runs.forget(connection, run), pipeline_runs.CHUNK)
        found = DropOutcome.GONE
        if self._database.is_postgresql:
            for day in await self._ledger.read(retention.days):
                if day < begin and found is not DropOutcome.BUSY:
                    found = await self._drop(day, read)
        await self._clean(first_id(begin * DAY_MS), begin * DAY_MS * 1000, read)
        return found

    async def _begin(self, since: int, now: int) -> dict[str, int]:
        """The position up to which all events are from before ``since``. It is not found by halving, as a report may:
        one that is written late would hide those before it, and they would go."""
        position = {}
        for each in await self._ledger.read(lambda connection: log_reads.extents(connection, Log.EVENTS)):
            reached, ends = each.floor - 1, False
            while not ends:
                step = partial(log_reads.old_events, shard=each.shard, after=reached, since=since, until=now)
                reached, ends = await self._ledger.read(step)
            position[str(each.shard)] = reached
        return position

    async def _forget(self, forget: Callable[[sa.Connection], int], chunk: int) -> None:
        while await self._ledger.task(lambda connection, _: forget(connection)) == chunk:
            pass

    async def _drop(self, day: int, read: dict[str, int]) -> DropOutcome:
        found = DropOutcome.BUSY
        for _ in range(TRIES):
            found = await self._aside(lambda connection: retention.drop_day(connection, day, read))
            if found is not DropOutcome.BUSY:
                break
            await clock.sleep(TRY_PAUSE)
        log("ledger.day", logging.WARNING if found is DropOutcome.BUSY else logging.INFO, day=day, became=found.value)
        return found

    async def _clean(self, before: bytes, recent: int, read: dict[str, int]) -> None:
        after: bytes | None = b""
        gone = busy = 0
        while after is not None:
            try:
                number, after = await self._step(after, before, recent, read)
                gone += number
            except LedgerUnavailable:
                busy += 1
                if not self._database.is_postgresql or busy > TRIES:
                    raise
                await clock.sleep(TRY_PAUSE)
        if gone:
            log("ledger.swept", messages=gone)
        if not self._database.is_postgresql:
            left, before_this = 0, -1
            while left != before_this:
                before_this, left = left, await self._ledger.task(lambda connection, _: retention.give_back(connection))

    async def _step(self, after: bytes, before: bytes, recent: int, read: dict[str, int]) -> tuple[int, bytes | None]:
        return await self._apart(lambda connection: self._sweep.step(connection, after, before, recent, read))

    # ------------------------------------------------------------------------------------ the log of messages

    async def trim(self) -> bool:
        """Delete unneeded rows of the log of messages, and those that are too old or too many. False: another
        process does that now.

        Raises:
            LedgerUnavailable: the ledger cannot be read or written; some of it went perhaps.
        """
        return await self._alone(self._trim)

    async def _trim(self) -> None:
        now = self._clock()
        await self._raise(lambda connection: self._log.raise_messages(connection, now))
        if self._database.is_postgresql:
            today = now // (DAY_MS * 1000)
            for day in await self._ledger.read(log_retention.days):
                if day < today:
                    found = await self._aside(partial(log_retention.drop_day, day=day))
                    if found is DropOutcome.BUSY:
                        break  # it is tried again in the next round
        floors = await self._ledger.read(lambda connection: log_reads.floors(connection, Log.MESSAGES))
        for shard, low in floors.items():
            while await self._apart(partial(self._log.delete, shard=shard, floor=low.floor)):
                pass

    async def _raise(self, work: Callable[[sa.Connection], list[Raise]]) -> None:
        for each in await self._apart(work):
            level = logging.WARNING if each.passed else logging.INFO
            log("ledger.log_floor", level, log=each.log.value, shard=each.shard, floor=each.floor, reason=each.reason,
                unread=", ".join(each.passed))  # fmt: skip

    # ------------------------------------------------------------------------------------- whose turn it is

    async def _alone(self, work: Callable[[], Any]) -> bool:
        """Do something if no other process does it."""
        if not self._database.is_postgresql:
            await work()
            return True
        seat = await threads.run(self._take_seat)
        if seat is None:
            return False
        try:
            await work()
        finally:
            await threads.run(self._leave_seat, seat)
        return True

    def _take_seat(self) -> sa.Connection | None:
        try:
            connection = self._engine.connect()
            try:
                found = connection.execute(sa.select(sa.func.pg_try_advisory_lock(ADVISORY_LOCK))).scalar()
                connection.commit()
            except BaseException:
                connection.close()
                raise
        except exc.DBAPIError as error:
            raise unavailable(error) from error
        if found:
            return connection
        connection.close()
        return None

    def _leave_seat(self, seat: sa.Connection) -> None:
        try:
            seat.execute(sa.select(sa.func.pg_advisory_unlock(ADVISORY_LOCK)))  # the server takes its time to notice
        except exc.DBAPIError as error:
            log("ledger.retention_cut_off", logging.DEBUG, reason=str(unavailable(error)))
        finally:
            seat.close()

    async def _apart(self, work: Callable[[sa.Connection], R]) -> R:
        """Run something in a transaction: beside the writer's where that is possible."""

        def transaction(connection: sa.Connection) -> R:
            with connection.begin():
                return work(connection)

        if self._database.is_postgresql:
            return await self._aside(transaction)
        found: R = await self._ledger.task(lambda connection, _: work(connection))
        return found

    async def _aside(self, work: Callable[[sa.Connection], R]) -> R:
        """Run something on a connection of its own, in no transaction."""

        def run() -> R:
            try:
                with self._engine.connect() as connection:
                    return work(connection)
            except exc.DBAPIError as error:
                raise unavailable(error) from error

        return await threads.run(run)
