"""The writer: one thread that owns the one connection that writes.

While a transaction commits, calls gather in a queue; the next transaction takes all of them, up to ``group_max``
rows or :data:`GROUP_OCTETS`. So a lone caller pays one commit, and a thousand callers pay one commit together. The
event loop is asked once a group to wake its callers.

A group fails as a whole only when the database cannot be written. When a row is at fault the group is written in
halves, and the halves in halves, until the row stands alone; everybody else's rows are written. When the
connection is lost while COMMIT is under way, the shard's count of commits says, once the database is back, whether
it happened.

Every transaction renews the lease of the shard; while nothing is written the thread does so alone, so that an event
loop that stalls does not cost the lease. (One that stays silent for :data:`SILENCE` leases is as good as dead.) When
the lease is lost, all writers under it learn it before any call that came meanwhile is answered, and those calls are
refused: their writers might not have made them had they known.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy import exc

from gateway.budgets import ALONE, ON_BEHALF, RESOURCES, Holdings, ShareHolder
from gateway.config import LedgerSettings
from gateway.errors import CommitUnknown, EntriesRefused, LedgerUnavailable
from gateway.ledger.db.engine import BAD_ROW_ERRORS, Database, is_deadlock, is_lost, unavailable
from gateway.ledger.db.shards import Fenced, ShardLease, Shards
from gateway.ledger.pending.keys import FREE, UNKNOWN
from gateway.ledger.writing.calls import GROUP_OCTETS, Claim, Hand, SettleKey, Task, WriterCall
from gateway.ledger.writing.dividing import partly
from gateway.ledger.writing.group import NOTHING, GroupCommit
from gateway.ledger.writing.places import Places
from gateway.ledger.writing.records import KeyLost, LogEntry, New, Unknown
from gateway.ledger.writing.states import EventKind
from gateway.runtime.clock import clock, monotonic_time
from gateway.runtime.threads import threads

logger = logging.getLogger(__name__)

BAD_ROWS = (*BAD_ROW_ERRORS, AttributeError, KeyError, OverflowError, TypeError, ValueError)
"""What a row can be blamed for: by the database, or when it is encoded."""
FENCED = "another process took over the shard of this one; it takes a new one with its next write"
CLOSED = "the ledger is closed"
SILENCE = 10
"""For how many times the length of a lease it is renewed while nothing is heard of the event loop."""
ASKED = 3
"""How often the database is asked for the fate of a transaction, where it cuts the connection each time."""
COSTLY = 1.0
"""A write that fails after this many seconds is not tried at once for each of those that wait beside it."""
AGAIN = 1.0
"""Pause before the lease is renewed, or a claim given back, where that failed, in seconds."""


class BadRow(Exception):
    """A row is at fault; nothing was written. The cause says what is wrong with it."""


class CommitCutOff(Exception):
    """The connection was lost during COMMIT, and it did not happen."""


class CommitInDoubt(CommitCutOff):
    """It may have happened."""


class WriterEvents(NamedTuple):
    """What the writer calls when something has happened."""

    on_lease: Callable[[ShardLease], None]
    """On the loop, with each new lease."""
    on_fenced: Callable[[], None]
    """On the loop, when the lease is lost."""
    on_commit: Callable[[float, ShardLease, int | None], None] = lambda seconds, lease, commits: None
    """On the thread, with the seconds that a transaction took, its lease and the count of commits of its shard."""
    on_outdated: Callable[[], None] = lambda: None
    """On the thread, when a call is refused because its lease is lost."""


class Writer:
    """The thread and its queue. ``submit`` belongs to the event loop; everything below it to the thread."""

    def __init__(
        self,
        database: Database,
        shards: Shards,
        group: GroupCommit,
        settings: LedgerSettings,
        events: WriterEvents,
        clock: Callable[[], float],
    ) -> None:
        self._database = database
        self._shards = shards
        self._group = group
        self._clock = clock
        self._group_max = settings.group_max
        rows = Holdings(RESOURCES["ledger_rows"])
        rows.configure(settings.queue_max, 1.0, 0.0, {})
        self.places = Places(settings.queue_max, rows)
        """Those in the queue."""
        self._lease_seconds = settings.shard_lease
        self._on_lease, self._on_fenced, self._on_commit, self._on_outdated = events
        self._loop = asyncio.get_running_loop()
        self._engine = database.writer(keyed=True)
        self._connection: sa.Connection | None = None
        self._lease: ShardLease | None = None
        self._abandoned: ShardLease | None = None
        """A lease that is not used any more, and still stands."""
        self._known: ShardLease | None = None
        """The lease, as far as the loop knows."""
        self._until = 0.0 if database.shared else float("inf")
        """How long the lease lasts, on the monotonic clock."""
        self._renew_at = 0.0
        self._heard_at = monotonic_time()
        """When the event loop was heard of last."""
        self._queue: SimpleQueue[Sequence[WriterCall] | None] = SimpleQueue()
        """Calls that came together, so that the thread does not begin a transaction with the first of them."""
        self._calls: deque[WriterCall] = deque()
        """Those that the thread has taken out of the queue, and not begun."""
        self._guard = threads.guard()
        self.closed = False
        self._locked = False
        """Whether a transaction of this round has waited for SQLite's lock and not got it."""
        self.trouble: str | None = None
        """Why the last transaction failed; None: it did not."""
        self._thread = threads.start(self._run, name="ledger-writer")

    # ------------------------------------------------------------------------------------- on the event loop

    @property
    def lease(self) -> ShardLease | None:
        """The lease that is written under, as far as the loop knows; None: there is none now."""
        return self._known

    @property
    def holds(self) -> bool:
        """Whether the lease lasts, counted from before it was asked for."""
        return clock.monotonic() < self._until

    @property
    def waiting(self) -> int:
        """Rows that are in the queue, or in the transaction under way."""
        return self.places.rows

    def hear(self) -> None:
        """The event loop turns."""
        self._heard_at = clock.monotonic()

    async def submit(self, call: WriterCall) -> Any:
        """Have a call written; returns its result or raises its error. Waits while the queue is full. A caller that is
        cancelled while it waits leaves behind nothing that was claimed."""
        if self.closed:
            raise LedgerUnavailable(CLOSED)
        call.lease = self._known
        call.holder = client = ON_BEHALF.get()
        call.places = rows = call.rows
        if not self.places.take_now(client, rows):
            await self._take(client, rows)
        self._put((call,))
        try:
            return await call.future
        except asyncio.CancelledError:
            if not call.future.cancelled() and call.future.exception() is None:  # in the turn in which it came
                self._give_back(call)
            raise
        except Exception:
            del call.future  # it holds the error, which holds whoever holds the call until the collector comes by
            raise

    async def submit_all(self, calls: Sequence[WriterCall]) -> list[Any]:
        """Have many calls written, in one transaction where they fit into one: the result or the error of each, in
        order. A caller that is cancelled while it waits leaves behind nothing that was claimed."""
        if self.closed:
            raise LedgerUnavailable(CLOSED)
        client = ON_BEHALF.get()
        for call in calls:
            call.lease = self._known
            call.holder = client
            call.places = call.rows
        rows = sum(call.places for call in calls)
        if not self.places.take_now(client, rows):
            await self._take(client, rows)
        if calls:
            self._put(calls)
        try:
            return await asyncio.gather(*(call.future for call in calls), return_exceptions=True)
        except asyncio.CancelledError:
            for call in calls:  # those that have no answer yet are cancelled, and given back when they have
                if not call.future.cancelled() and call.future.exception() is None:
                    self._give_back(call)
            raise

    async def _take(self, client: ShareHolder, rows: int) -> None:
        """Wait for room in the queue. Raises LedgerUnavailable where the ledger is closed meanwhile."""
        await self.places.take(client, rows)
        if self.closed:
            raise LedgerUnavailable(CLOSED)

    async def close(self) -> None:
        """Write what waits, give the shard back, end the thread."""
        if self.closed:
            return
        self.closed = True
        self.places.close()
        self._queue.put(None)
        await threads.run(self._thread.join)
        self._guard.close()

    def _leased(self, lease: ShardLease) -> None:
        self._known = lease
        self._on_lease(lease)

    def _fenced(self) -> None:
        self._known = None
        self._on_fenced()

    def _deliver(self, calls: Sequence[WriterCall]) -> None:
        left: dict[ShareHolder, int] = {}
        holder, places = ALONE, 0
        for call in calls:
            if call.holder is not holder:
                left[holder] = left.get(holder, 0) + places
                holder, places = call.holder, 0
            places += call.places
            future = call.future
            if future.done():
                if call.error is None:
                    self._give_back(call)
                continue
            error, call.error = call.error, None  # else the error would hold, by its frames, who holds it
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(call.result)
        left[holder] = left.get(holder, 0) + places
        self.places.leave(left)
        self._guard.end(len(calls))

    def _put(self, calls: Sequence[WriterCall]) -> None:
        self._guard.begin(len(calls))
        self._queue.put(calls)

    def _give_back(self, call: WriterCall) -> None:
        """The caller of a claim went away before it got its answer, so nobody knows of what it claimed."""
        if self.closed:  # it is in doubt when the shard is given back
            return
        future: asyncio.Future[Any] = self._loop.create_future()
        end: WriterCall
        if isinstance(call, Claim) and isinstance(call.result, New | Unknown):
            ending, entries = UNKNOWN, []
            if isinstance(call.result, New):
                ending = FREE
                entries = [LogEntry(each.message_id, EventKind.NOT_SENT, each.at, each.broker) for each in call.intents]
            end = SettleKey(future, call.client, call.key, ending, entries, claimed=call.lease)
        elif isinstance(call, Hand) and call.result:
            end = call.given_back(future, int(self._clock() * 1_000_000))
        else:
            return
        future.add_done_callback(lambda done: self._given_back(call, done.exception()))
        end.places = end.rows
        self.places.add(end.holder, end.places)
        self._put((end,))

    def _given_back(self, call: WriterCall, error: BaseException | None) -> None:
        """Try again where the ledger was away: nobody else ends the claim while this process and its lease live."""
        if isinstance(error, LedgerUnavailable) and not isinstance(error, KeyLost):
            self._loop.call_later(AGAIN, self._give_back, call)

    # ------------------------------------------------------------------------------------------ on the thread

    def _run(self) -> None:
        while (call := self._next()) is not None:
            calls = [call]
            rows, octets = call.places, call.octets
            last = False
            while rows < self._group_max and octets < GROUP_OCTETS:
                if not self._calls:
                    try:
                        taken = self._queue.get_nowait()
                    except Empty:
                        break
                    if taken is None:
                        last = True
                        break
                    self._calls.extend(taken)
                more = self._calls.popleft()
                calls.append(more)
                rows += more.places
                octets += more.octets
            self._locked = False
            tasks = [call for call in calls if isinstance(call, Task)]
            self._settle([call for call in calls if not isinstance(call, Task)])
            for task in tasks:  # nobody's answer waits for somebody else's transaction
                self._settle([task])
            if last:
                break
        self._finish()

    def _next(self) -> WriterCall | None:
        """The next call; None: there will be no more. Renews the lease until there is one."""
        if not self._calls:
            calls = self._wait()
            if calls is None:
                return None
            self._calls.extend(calls)
        return self._calls.popleft()

    def _wait(self) -> Sequence[WriterCall] | None:
        while self._database.shared:
            now = clock.monotonic()
            wait = self._renew_at - now
            if wait <= 0:
                self._renew(now)
                wait = max(self._renew_at - clock.monotonic(), 0.0)
            try:
                return self._queue.get(timeout=wait)
            except Empty:
                pass
        return self._queue.get()

    def _renew(self, now: float) -> None:
        """Renew the lease. While there is trouble, or none yet, that is up to those who write."""
        self._renew_at = now + AGAIN
        if self._lease is None or self.trouble is not None or now - self._heard_at > SILENCE * self._lease_seconds:
            return
        try:
            self._transaction(lambda connection, lease: (self._shards.enter(connection, lease, 0)[1], None), False)
        except (LedgerUnavailable, BadRow):
            pass  # it is in ``trouble``
        except Exception:  # a defect of ours; the thread must live
            logger.exception("the lease of the ledger's shard could not be renewed")

    def _outdated(self, call: WriterCall) -> bool:
        """Whether it was submitted under a lease that is lost; then it is refused."""
        if call.lease is None or call.lease == self._lease:
            return False
        call.error = LedgerUnavailable(FENCED)
        call.settled = True
        self._on_outdated()
        return True

    def _settle(self, calls: Sequence[WriterCall]) -> None:
        """Bring every call to its result or error, and hand that over: a task's, or those of a group."""
        if not calls:
            return
        try:
            left = list(calls)
            while left:
                (call, *_) = left
                left = self._write_task(call) if isinstance(call, Task) else self._write(left)
        except Exception as error:  # a defect of ours; nobody may wait for ever because of it
            logger.exception("the ledger's writer failed")
            self._drop_connection()
            self.trouble = f"the ledger's writer failed: {error!r}"
            for call in calls:
                if not call.settled:
                    call.error = LedgerUnavailable(self.trouble)
        self._loop.call_soon_threadsafe(self._deliver, calls)

    def _write(self, calls: list[WriterCall]) -> list[WriterCall]:
        """Write calls in one transaction, or in halves. Returns those to be written again."""
        calls = [call for call in calls if not self._outdated(call)]
        if not calls:
            return []
        try:
            again: list[WriterCall] = self._transaction(
                lambda connection, lease: self._write_group(connection, lease, calls)
            )
        except LedgerUnavailable as error:
            again = []
            for call in calls:
                call.error = type(error)(*error.args)
        except BadRow as error:
            if len(calls) > 1:
                middle = len(calls) // 2
                return self._write(calls[:middle]) + self._write(calls[middle:])
            (call,) = calls
            if call.units > 1:
                self._write_halves(call)
            else:
                call.result, call.error = None, EntriesRefused({0: _why(error)})
            again = []
        for call in calls:
            call.settled = True
        for call in again:
            call.settled = False
        return again

    def _write_group(
        self, connection: sa.Connection, lease: ShardLease, calls: list[WriterCall]
    ) -> tuple[int, list[WriterCall]]:
        written = self._group.write(connection, lease, calls, int(self._clock() * 1_000_000))
        return written.commits, written.deferred

    def _write_halves(self, call: WriterCall) -> None:
        """A call of which some unit is bad, in halves."""
        begin = 0
        call.result = []
        refused: dict[int, str] = {}
        for half in call.parts((call.units + 1) // 2):
            half.lease = call.lease
            self._write([half])
            if isinstance(half.error, EntriesRefused):
                refused |= {begin + index: why for index, why in half.error.refused.items()}
            elif half.error is not None:
                call.error = half.error
                if isinstance(half.error, LedgerUnavailable):
                    partly(half.error, begin, refused)
                return
            call.result += half.result or [None] * half.units
            begin += half.units
        call.error = EntriesRefused(refused, call.result)

    def _write_task(self, call: Task) -> list[WriterCall]:
        """Run a task in a transaction of its own. Nothing is left to be written again."""
        if self._outdated(call):
            return []
        if self._locked and self.trouble is not None:
            call.error = LedgerUnavailable(self.trouble)
            call.settled = True
            return []

        def work(connection: sa.Connection, lease: ShardLease) -> tuple[int, Any]:
            _, commits = self._shards.enter(connection, lease, 0)
            return commits, call.run(connection, lease)

        try:
            call.result = self._transaction(work, call.proves)
        except BadRow as error:
            call.error = EntriesRefused({0: _why(error)}) if _is_database(error.__cause__) else error.__cause__
        except Exception as error:  # LedgerUnavailable, or what the task itself raises for its caller
            call.error = error
        call.settled = True
        return []

    def _transaction(
        self, work: Callable[[sa.Connection, ShardLease], tuple[int | None, Any]], proves: bool = True
    ) -> Any:
        """Run ``work`` in a transaction under the lease. It returns the count of commits, where it entered the shard
        (:data:`~gateway.ledger.writing.group.NOTHING`: there is nothing to commit), and the result. Tried a second time
        where the first found a dead connection or a deadlock. Where its success ``proves`` that the ledger can be
        written, trouble is over.

        Raises:
            CommitUnknown: it may have been written.
            BadRow, LedgerUnavailable: nothing was written.
        """
        second = False
        began = clock.monotonic()
        while True:
            try:
                written, result = self._attempt(work)
            except Fenced:
                self._lose()
                self.trouble = FENCED
                raise LedgerUnavailable(FENCED) from None
            except CommitCutOff as error:
                self._drop_connection()
                told = self._failed(error.__cause__ or error)
                if isinstance(error, CommitInDoubt):
                    told = CommitUnknown(f"{told}; it may have been written all the same")
                try:
                    raise told from error
                finally:
                    del told  # it holds this frame, which held it until the collector came by
            except exc.SQLAlchemyError as error:
                self._drop_connection()
                if not second and (is_lost(error) or is_deadlock(error)):
                    second = True
                    continue
                self._locked = not self._database.shared and clock.monotonic() - began > COSTLY
                raise self._failed(error) from error
            if written and proves and self.trouble is not None and self._database.has_room():
                self.trouble = None
            return result

    def _attempt(self, work: Callable[[sa.Connection, ShardLease], tuple[int | None, Any]]) -> tuple[bool, Any]:
        """One attempt: whether anything was written, and the result."""
        connection, lease = self._connect()
        began = clock.monotonic()
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
        if commits == NOTHING:
            transaction.rollback()
            return False, result
        try:
            transaction.commit()
        except exc.DBAPIError as error:
            if not is_lost(error):
                transaction.rollback()
                raise
            happened = self._happened(lease, commits)
            if happened is None:
                # Nobody here knows of what it promised: give up the lease, so that all that stands under it comes to be
                # in doubt.
                self._abandoned = lease
                self._lose()
                raise CommitInDoubt from error
            if not happened:
                raise CommitCutOff from error
        self._renewed(began)
        self._on_commit(clock.monotonic() - began, lease, commits)
        return True, result

    def _renewed(self, began: float) -> None:
        """The lease lasts from ``began`` at least, on the monotonic clock."""
        if self._database.shared:
            self._until = began + self._lease_seconds
            self._renew_at = began + self._lease_seconds / 3

    def _lose(self) -> None:
        """The lease is lost, or to be given up."""
        self._lease = None
        if self._database.shared:
            self._until = 0.0
        self._loop.call_soon_threadsafe(self._fenced)

    def _happened(self, lease: ShardLease, commits: int | None) -> bool | None:
        """Whether a transaction whose COMMIT was cut off is in the database. None: that cannot be told."""
        self._drop_connection()
        for _ in range(ASKED if commits is not None else 0):
            try:
                with self._engine.connect() as connection:
                    found = self._shards.commits(connection, lease)
            except exc.SQLAlchemyError as error:
                if is_lost(error):
                    continue  # cut off again; a database that is away does not come back so soon
                break
            return None if found is None or commits is None else found >= commits
        return None

    def _connect(self) -> tuple[sa.Connection, ShardLease]:
        connection = self._connection
        if connection is None:
            connection = self._connection = self._engine.connect()
        lease = self._lease
        if lease is None:
            began = clock.monotonic()
            with connection.begin():
                if self._abandoned is not None:
                    self._shards.release(connection, self._abandoned)
                lease = self._shards.acquire(connection)
            self._lease, self._abandoned = lease, None
            self._renewed(began)
            self._loop.call_soon_threadsafe(self._leased, lease)
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
