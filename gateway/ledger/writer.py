"""The writer: one thread that owns the one connection that writes.

While a transaction commits, calls gather in a queue; the next transaction takes all of them, up to ``group_max``
rows. So a lone caller pays one commit, and a thousand callers pay one commit together. The event loop is asked
once a group to wake its callers.

A group fails as a whole only when the database cannot be written. When a row is at fault the group is written in
halves, and the halves in halves, until the row stands alone; everybody else's rows are written. When the
connection is lost while COMMIT is under way, the shard's count of commits says, once the database is back, whether
it happened.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import Any

import sqlalchemy as sa
from sqlalchemy import exc

from gateway.errors import EntriesRefused, LedgerUnavailable
from gateway.ledger.calls import Call, Claim, Record, Settle, Task
from gateway.ledger.engine import BAD_ROW_ERRORS, Database, is_deadlock, is_lost, unavailable
from gateway.ledger.group import Group
from gateway.ledger.keys import FREE, UNKNOWN
from gateway.ledger.records import Entry, New, Unknown
from gateway.ledger.shards import Fenced, Lease, Shards
from gateway.ledger.states import Kind

logger = logging.getLogger(__name__)

BAD_ROWS = (*BAD_ROW_ERRORS, AttributeError, KeyError, OverflowError, TypeError, ValueError)
"""What a row can be blamed for: by the database, or when it is encoded."""
FENCED = "another process took over the shard of this one; it takes a new one with its next write"
CLOSED = "the ledger is closed"


class BadRow(Exception):
    """A row is at fault; nothing was written. The cause says what is wrong with it."""


class CommitCutOff(Exception):
    """The connection was lost during COMMIT, and it did not happen, or may not have."""


class Writer:
    """The thread and its queue. ``submit`` belongs to the event loop; everything below it to the thread."""

    def __init__(
        self,
        database: Database,
        shards: Shards,
        group: Group,
        clock: Callable[[], float],
        *,
        group_max: int,
        queue_max: int,
        on_lease: Callable[[Lease], None],
    ) -> None:
        """``on_lease`` is called on the loop with each new lease."""
        self._database = database
        self._shards = shards
        self._group = group
        self._clock = clock
        self._group_max = group_max
        self._queue_max = queue_max
        self._on_lease = on_lease
        self._loop = asyncio.get_running_loop()
        self._engine = database.writer()
        self._connection: sa.Connection | None = None
        self._lease: Lease | None = None
        self._queue: SimpleQueue[Call | None] = SimpleQueue()
        self._rows = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._thread = threading.Thread(target=self._run, name="ledger-writer", daemon=True)
        self.closed = False
        self.trouble: str | None = None
        """Why the last transaction failed; None: it did not."""
        self._thread.start()

    # ------------------------------------------------------------------------------------- on the event loop

    async def submit(self, call: Call) -> Any:
        """Have a call written; returns its result or raises its error. Waits while the queue is full."""
        if self.closed:
            raise LedgerUnavailable(CLOSED)
        rows = call.rows
        if self._waiting or (self._rows and self._rows + rows > self._queue_max):
            turn: asyncio.Future[None] = self._loop.create_future()
            self._waiting.append((rows, turn))
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():  # its turn had come: hand it on
                    self._leave(rows)
                raise
        else:
            self._rows += rows
        if self.closed:
            raise LedgerUnavailable(CLOSED)
        self._queue.put(call)
        return await call.future

    async def close(self) -> None:
        """Write what waits, give the shard back, end the thread."""
        if self.closed:
            return
        self.closed = True
        while self._waiting:
            _, turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
        self._queue.put(None)
        await self._loop.run_in_executor(None, self._thread.join)

    def _leave(self, rows: int) -> None:
        """Rows left the queue; whoever waits for room takes it, in order."""
        self._rows -= rows
        while self._waiting and (self._rows == 0 or self._rows + self._waiting[0][0] <= self._queue_max):
            wanted, turn = self._waiting.popleft()
            if not turn.done():
                self._rows += wanted
                turn.set_result(None)

    def _deliver(self, calls: Sequence[Call]) -> None:
        rows = 0
        for call in calls:
            rows += call.rows
            future = call.future
            if future.done():
                if isinstance(call, Claim) and call.error is None:
                    self._give_back(call)
                continue
            if call.error is not None:
                future.set_exception(call.error)
            else:
                future.set_result(call.result)
        self._leave(rows)

    def _give_back(self, claim: Claim) -> None:
        """The caller of a claim went away before it got its answer, so nothing was sent."""
        if not isinstance(claim.result, New | Unknown):
            return
        ending, entries = UNKNOWN, []
        if isinstance(claim.result, New):
            ending = FREE
            entries = [Entry(each.message_id, Kind.NOT_SENT, each.at, each.broker) for each in claim.intents]
        future: asyncio.Future[Any] = self._loop.create_future()
        future.add_done_callback(lambda done: done.exception())  # the next process resolves what this one cannot
        end = Settle(future, claim.client, claim.key, ending, entries)
        self._rows += end.rows
        self._queue.put(end)

    # ------------------------------------------------------------------------------------------ on the thread

    def _run(self) -> None:
        while (call := self._queue.get()) is not None:
            calls = [call]
            rows = call.rows
            last = False
            while rows < self._group_max:
                try:
                    more = self._queue.get_nowait()
                except Empty:
                    break
                if more is None:
                    last = True
                    break
                calls.append(more)
                rows += more.rows
            self._settle(calls)
            self._loop.call_soon_threadsafe(self._deliver, calls)
            if last:
                break
        self._finish()

    def _settle(self, calls: list[Call]) -> None:
        """Bring every call to its result or error."""
        grouped = [call for call in calls if not isinstance(call, Task)]
        try:
            while grouped:
                grouped = self._write(grouped)
            for call in calls:
                if isinstance(call, Task):
                    self._write_task(call)
        except Exception as error:  # a defect of ours; nobody may wait for ever because of it
            logger.exception("the ledger's writer failed")
            self._drop_connection()
            self.trouble = f"the ledger's writer failed: {error!r}"
            for call in calls:
                if not call.settled:
                    call.error = LedgerUnavailable(self.trouble)

    def _write(self, calls: list[Call]) -> list[Call]:
        """Write calls in one transaction, or in halves. Returns those to be written again."""
        try:
            again: list[Call] = self._transaction(lambda connection, lease: self._write_group(connection, lease, calls))
        except LedgerUnavailable as error:
            again = []
            for call in calls:
                call.error = LedgerUnavailable(*error.args)
        except BadRow as error:
            if len(calls) > 1:
                middle = len(calls) // 2
                return self._write(calls[:middle]) + self._write(calls[middle:])
            (call,) = calls
            if isinstance(call, Record) and len(call.entries) > 1:
                self._write_entries(call)
            else:
                call.error = EntriesRefused({0: _why(error)})
            again = []
        for call in calls:
            call.settled = True
        for call in again:
            call.settled = False
        return again

    def _write_group(self, connection: sa.Connection, lease: Lease, calls: list[Call]) -> tuple[int, list[Call]]:
        written = self._group.write(connection, lease, calls, int(self._clock() * 1_000_000))
        return written.commits, written.deferred

    def _write_entries(self, call: Record) -> None:
        """A call of which some entry is bad, in halves."""
        middle = len(call.entries) // 2
        halves = Record(call.future, call.entries[:middle]), Record(call.future, call.entries[middle:])
        call.result = []
        refused: dict[int, str] = {}
        for begin, half in zip((0, middle), halves, strict=True):
            self._write([half])
            if isinstance(half.error, EntriesRefused):
                refused |= {begin + index: why for index, why in half.error.refused.items()}
            elif half.error is not None:
                call.error = half.error
                return
            call.result += half.result or []
        call.error = EntriesRefused(refused)

    def _write_task(self, call: Task) -> None:
        try:
            call.result = self._transaction(lambda connection, lease: (None, call.run(connection, lease)), call.proves)
        except BadRow as error:
            call.error = EntriesRefused({0: _why(error)}) if _is_database(error.__cause__) else error.__cause__
        except Exception as error:  # LedgerUnavailable, or what the task itself raises for its caller
            call.error = error
        call.settled = True

    def _transaction(self, work: Callable[[sa.Connection, Lease], tuple[int | None, Any]], proves: bool = True) -> Any:
        """Run ``work`` in a transaction under the lease. It returns the count of commits, where it entered the
        shard, and the result. Tried a second time where the first found a dead connection or a deadlock. Where its
        success ``proves`` that the ledger can be written, trouble is over.

        Raises:
            BadRow, LedgerUnavailable: nothing was written.
        """
        second = False
        while True:
            try:
                result = self._attempt(work)
            except Fenced:
                self._lease = None
                self.trouble = FENCED
                raise LedgerUnavailable(FENCED) from None
            except CommitCutOff as error:
                self._drop_connection()
                raise self._failed(error.__cause__ or error) from error
            except exc.SQLAlchemyError as error:
                self._drop_connection()
                if not second and (is_lost(error) or is_deadlock(error)):
                    second = True
                    continue
                raise self._failed(error) from error
            if proves and self.trouble is not None and self._database.has_room():
                self.trouble = None
            return result

    def _attempt(self, work: Callable[[sa.Connection, Lease], tuple[int | None, Any]]) -> Any:
        connection, lease = self._connect()
        transaction = connection.begin()
        try:
            commits, result = work(connection, lease)
        except BAD_ROWS as error:
            transaction.rollback()
            raise BadRow from error
        except BaseException as error:
            if not is_lost(error):
                transaction.rollback()
            raise
        try:
            transaction.commit()
        except exc.DBAPIError as error:
            if not is_lost(error):
                transaction.rollback()
                raise
            happened = self._happened(lease, commits)
            if happened is None:
                # Perhaps it happened, and nobody here knows of what it promised: let the lease run out, so that
                # all that stands under it comes to be in doubt.
                self._lease = None
            if not happened:
                raise CommitCutOff from error
        return result

    def _happened(self, lease: Lease, commits: int | None) -> bool | None:
        """Whether a transaction whose COMMIT was cut off is in the database. None: that cannot be told."""
        self._drop_connection()
        if commits is None:
            return None
        try:
            with self._engine.connect() as connection:
                found = self._shards.commits(connection, lease)
        except exc.SQLAlchemyError:
            return None
        return None if found is None else found >= commits

    def _connect(self) -> tuple[sa.Connection, Lease]:
        connection = self._connection
        if connection is None:
            connection = self._connection = self._engine.connect()
        lease = self._lease
        if lease is None:
            with connection.begin():
                lease = self._shards.acquire(connection)
            self._lease = lease
            self._loop.call_soon_threadsafe(self._on_lease, lease)
        return connection, lease

    def _drop_connection(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            try:
                connection.invalidate()
                connection.close()
            except exc.SQLAlchemyError:
                logger.debug("closing the ledger's connection failed", exc_info=True)

    def _failed(self, error: BaseException) -> LedgerUnavailable:
        told = unavailable(error)
        if self.trouble is None:  # one line when it begins, not one for each caller
            logger.warning("%s", told)
        self.trouble = str(told)
        return told

    def _finish(self) -> None:
        try:
            if self._lease is not None and self._connection is not None:
                with self._connection.begin():
                    self._shards.release(self._connection, self._lease)
        except exc.SQLAlchemyError as error:
            logger.warning(
                "the ledger's shard could not be given back and is free when its lease ends: %s", unavailable(error)
            )
        finally:
            if self._connection is not None:
                self._connection.close()
            self._engine.dispose()


def _is_database(error: BaseException | None) -> bool:
    return isinstance(error, exc.SQLAlchemyError)


def _why(error: BadRow) -> str:
    original = getattr(error.__cause__, "orig", None) or error.__cause__
    lines = str(original).strip().splitlines()
    return lines[0] if lines else type(original).__name__
