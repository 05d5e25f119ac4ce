"""The ledger's verbs.

Everything here runs on the event loop and only passes work on: writes to the writer thread
(:mod:`gateway.ledger.writing.writer`), which groups what waits into one transaction, reads to a small pool of threads.
When a verb returns, what it wrote is on disk.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import IO, Any, Concatenate, Final, NamedTuple, ParamSpec, TypeVar

import sqlalchemy as sa
from sqlalchemy import exc

from gateway.budgets import Holdings
from gateway.config import LedgerSettings, RetentionSettings
from gateway.errors import CommitUnknown, EntriesRefused, GatewayError, LedgerDamaged, LedgerUnavailable
from gateway.ledger import resources
from gateway.ledger.access.api_keys import ApiKeys
from gateway.ledger.access.audit import Audit
from gateway.ledger.db import schema
from gateway.ledger.db.commit_count import CommitCount, check_commits
from gateway.ledger.db.disk import Disk
from gateway.ledger.db.engine import READERS, Database, unavailable
from gateway.ledger.db.files import RESTORE, check_files
from gateway.ledger.db.ids import DAY_MS
from gateway.ledger.db.readers import Readers
from gateway.ledger.db.shards import ShardLease, Shards
from gateway.ledger.events import reads, searches, windows
from gateway.ledger.events.history import History
from gateway.ledger.events.scans import Scans
from gateway.ledger.events.windows import Happened
from gateway.ledger.logs.log import Logs
from gateway.ledger.pending import inbox, keys
from gateway.ledger.pending.bodies import Bodies
from gateway.ledger.pending.branches import BranchStore
from gateway.ledger.pending.deliveries import DeliveryStore
from gateway.ledger.pending.delivery_reads import DeliveryReads
from gateway.ledger.pending.delivery_rows import DeliveryRows
from gateway.ledger.pending.inbox import Inbox
from gateway.ledger.pending.keyring import Keyring
from gateway.ledger.pending.keys import ANSWERED, FREE, UNKNOWN, KeyStatements
from gateway.ledger.pending.outbox import OutboxRows, OutboxStore
from gateway.ledger.pending.promises import Promises
from gateway.ledger.work import Alone, LedgerWork, Shared
from gateway.ledger.writing.calls import Claim, Record, SettleKey, Task, WriterCall
from gateway.ledger.writing.group import GroupCommit
from gateway.ledger.writing.records import (
    InboxRow,
    KeyClaim,
    LogEntry,
    MessageFilter,
    New,
    OutboxEntry,
    RecordedEvent,
    ResourceRecord,
    Seen,
    StoredAnswer,
    StoredMessage,
    Timeline,
    Unknown,
)
from gateway.ledger.writing.states import EventKind
from gateway.ledger.writing.writer import CLOSED, Writer, WriterEvents
from gateway.runtime.clock import clock, wall_time
from gateway.runtime.threads import threads

logger = logging.getLogger(__name__)

RESOURCES_PAGE: Final = 500
"""Resources that are read at a time where all of a kind are wanted."""
LAPSED = "the lease of the shard has run out; it is being renewed"

P = ParamSpec("P")
R = TypeVar("R")


class Opened(NamedTuple):
    """A database that can be used."""

    lock: IO[bytes] | None
    """On SQLite: while it is open, the file is this process's."""
    readers: Readers


NO_LEASE: Final = ShardLease(-1, -1)
"""A lease that nobody has."""


class Ledger:
    """One process's hold on the database: a shard to write to, and readers.

    On SQLite a process owns the file alone. On PostgreSQL any number of processes write, each to its own shard.
    """

    shard: int
    """The shard this process writes to."""
    fence: int
    """The fencing number of its lease; a greater one means that somebody else took over."""
    on_takeover: Callable[[], None] | None = None
    """Called on the loop when another process was found dead and fenced: call ``outbox.take_over``."""
    on_fenced: Callable[[], None] | None = None
    """Called on the loop when this process has lost its shard, before any write is answered that came later: what is
    owned by shard and fence is another's now."""
    on_keys: Callable[[str, int], None] = staticmethod(lambda client, count: None)
    """Called on the loop with a client and how many of its Idempotency-Keys are kept now, or, below 0, no more."""
    on_commit: Callable[[float], None] | None = None
    """Called on the writer's thread with the seconds that a transaction took, its commit included."""
    on_outdated: Callable[[], None] | None = None
    """Called on the writer's thread when a write is refused because the lease that it was asked for under is lost."""

    # ------------------------------------------------------------------------------------------- open, close

    @staticmethod
    def migrate(url: str) -> None:
        """Bring the schema to this release's revision and make the partitions of the coming days. Blocks; under
        an advisory lock on PostgreSQL, so that two may run at once.

        Raises:
            ConfigurationError: the URL is wrong.
            LedgerUnavailable: the database is away, or the SQLite file is in use by another process.
            LedgerDamaged: a file of SQLite is not what was written.
        """
        database = Database(url)
        with database.locked():
            _check(database)
            schema.migrate(database)

    @classmethod
    async def open(
        cls,
        url: str,
        settings: LedgerSettings,
        *,
        owner: str,
        migrate: bool = False,
        clock: Callable[[], float] = wall_time,
        retention: RetentionSettings = RetentionSettings(),  # noqa: B008  # frozen
        audit_keys: Mapping[str, bytes] = MappingProxyType({}),
    ) -> Ledger:
        """Open the ledger and lease a shard.

        Args:
            url: ``sqlite:///relative.db``, ``sqlite:////absolute.db`` or ``postgresql://user:password@host/database``.
            owner: who we are, for the shard's row: host and process, say.
            migrate: bring the schema up to date first (development; ``gateway migrate`` is for production).
            clock: seconds since 1970, for the age of keys. Leases of shards go by the database's clock, and so do those
                of deliveries, unless this is another clock than the system's.
            retention: which bodies are kept.
            audit_keys: keys of the MACs of the audit log, by name; the first one makes them. None: rows get no MAC.

        Raises:
            ConfigurationError: the URL is wrong, or the schema is older than this release (run
                ``gateway migrate``) or newer by more than one revision.
            LedgerUnavailable: the database is away, or the SQLite file is in use by another process.
            LedgerDamaged: a file of SQLite is not what was written.
        """
        database = Database(url)
        loop = asyncio.get_running_loop()
        opened = await threads.run(_prepare, database, migrate)
        ledger = cls(database, settings, owner, clock, opened, retention, audit_keys)
        try:
            await ledger._writer.submit(Task(loop.create_future(), lambda connection, lease: None))
        except BaseException:
            await ledger.close()
            raise
        return ledger

    def __init__(
        self,
        database: Database,
        settings: LedgerSettings,
        owner: str,
        clock: Callable[[], float],
        opened: Opened,
        retention: RetentionSettings,
        audit_keys: Mapping[str, bytes],
    ) -> None:
        """Use ``open``."""
        self._database = database
        self._clock = clock
        self._lock, self._readers = opened
        self._lease_seconds = settings.shard_lease
        self._group_max = settings.group_max
        self.headers: tuple[str, ...] = tuple(settings.headers)
        """Names of the headers that it keeps of each message."""
        self._loop = asyncio.get_running_loop()
        self._shards = Shards(database, owner, settings.shard_lease)
        self._keys = KeyStatements(database, settings.key_retention)
        self._inbox = Inbox(database)
        self._bodies = Bodies(database, retention)
        injected = clock is not wall_time
        rows = DeliveryRows(database, self._bodies)
        publishes = OutboxRows(database)
        self._group = GroupCommit(
            database,
            self._shards,
            self._keys,
            self._inbox,
            rows,
            publishes,
            injected=injected,
        )
        self._group.headers = settings.headers
        there = self._now if injected else None
        reads = DeliveryReads(database, there)
        self.deliveries = DeliveryStore(self, reads, settings.group_max, retention.bodies != "never")
        """Pending messages of subscriptions."""
        db_now = self._now if injected else lambda: self._shards.now
        self.outbox = OutboxStore(
            self, publishes, self._keys, self._group.append, settings.group_max, self._now, db_now
        )
        """Publishes that still have to be sent."""
        self.branches = BranchStore(self, database, self._inbox, self._group.append, self._now)
        """Branches of distributed transactions."""
        self.keyring = Keyring(self)
        """Many Idempotency-Keys at once."""
        self.log = Logs(self, database, settings.group_max, self._now, there)
        """What jobs read: the logs of events and of messages, and what taps spool."""
        self.scans = Scans(self)
        """Messages, oldest first, step by step."""
        self.api_keys = ApiKeys(self)
        """Keys of callers."""
        self.audit = Audit(self, audit_keys, shared=database.shared)
        """Who changed what."""
        self.promises = Promises(self, database)
        """Whether all that was promised is accounted for."""
        self._commits = CommitCount(database.path) if database.path is not None else None
        self._pool = threads.pool(READERS, "ledger-reader")
        self._guard = threads.guard()
        self._partitioned_day = 0
        self.disk = Disk(database.path, settings.disk_reserve)
        """How much room there is for what is new."""
        self.disk.look()
        self._writer = Writer(
            database,
            self._shards,
            self._group,
            settings,
            WriterEvents(self._leased, self._lost, self._committed, self._outdated),
            clock,
        )
        self.work: LedgerWork = Alone()
        """Which process does what."""
        if database.shared:
            self.work = Shared(database, self, self._shards.fence_lapsed, self._taken_over, self._now)
        self.history = History(self, database, self._now, retention, self._bodies, self.log.cursors)
        """The feed, counts per hour, retention."""
        self._keeper = self._loop.create_task(self._keep(), name="ledger-keeper")

    def reconfigure(self, headers: Sequence[str], retention: RetentionSettings) -> None:
        """Keep other headers of the messages that come, and everything for another time. A kept body goes at the time
        of its promise."""
        self.headers = self._group.headers = tuple(headers)
        self._bodies.retention = retention
        self.deliveries.keeps_bodies = retention.bodies != "never"
        self.history.keeper.reconfigure(retention)

    async def close(self) -> None:
        """Write what still waits, give the shard back, close all connections. Verbs raise LedgerUnavailable
        afterwards."""
        await self.history.close()
        await self.log.close()
        self._keeper.cancel()
        await asyncio.gather(self._keeper, return_exceptions=True)
        await self._writer.close()
        await threads.run(self._pool.shutdown)
        self._guard.close()
        self._readers.close()
        if self._commits is not None:
            self._commits.close()
            self._commits = None
        _unlock(self._lock)
        self._lock = None

    @property
    def healthy(self) -> bool:
        """Whether the last write or lease renewal succeeded, and the lease lasts."""
        return self._writer.trouble is None and not self._writer.closed and self._writer.holds

    @property
    def lease(self) -> ShardLease:
        """Under which lease is written now, or one that nobody has. Who has claimed a key says so at its end: under
        another one it is in doubt, and may be taken over, also by this process."""
        return self._writer.lease or NO_LEASE

    @property
    def holds(self) -> bool:
        """Whether the lease of the shard lasts, counted from before it was asked for: no other process can have fenced
        this one. Always on SQLite."""
        return self._writer.holds

    @property
    def waiting(self) -> int:
        """Rows that wait for the writer, or are in the transaction under way."""
        return self._writer.waiting

    def share_queue(self, holdings: Holdings) -> None:
        """Give each client its share of the rows that wait for the writer; until then there is none."""
        self._writer.places.count_in(holdings)

    def ready(self) -> tuple[bool, str]:
        """``healthy``, and a sentence for the one who asks why not."""
        if self._writer.closed:
            return False, CLOSED
        trouble = self._writer.trouble
        if trouble is None and not self._writer.holds:
            trouble = LAPSED
        return trouble is None, trouble or f"writes to shard {self.shard}"

    def takes(self) -> tuple[bool, str]:
        """Whether something new may be promised: the ledger can be written, and more than the reserve of its disk is
        free; and a sentence for the one who asks why not."""
        ready, reason = self.ready()
        return (False, self.disk.reason) if ready and self.disk.is_low else (ready, reason)

    # ------------------------------------------------------------------------------------------------- write

    async def record(self, entries: Sequence[LogEntry], inbox: Sequence[InboxRow] = ()) -> list[int]:
        """Append events, and the messages that come with them; remember ``inbox`` in the same commit. Durable when it
        returns.

        Entries of one call are written in order, and in one transaction unless there are more than
        ``group_max`` of them or one is bad. An ``accepted`` without its outcome in the same call opens an
        obligation (without payload), which a later ``confirmed``, ``unroutable``, ``refused``, ``not_sent`` or
        ``unknown`` settles. A row of the inbox is written if the last entry of its message is, and replaces that of
        the same scope and key. Waits while ``queue_max`` rows are waiting.

        Returns:
            The sequence number of each entry in ``self.shard``.

        Raises:
            LedgerUnavailable: nothing was written: locked, full, away, closed or fenced. Recovers without help.
            EntriesRefused: some entries cannot be stored; the others are durable.
        """
        if not entries and not inbox:
            return []
        call = Record(self._loop.create_future(), entries, inbox)
        if len(entries) > self._group_max:
            return await self._record_parts(call)
        found: list[int] = await self._writer.submit(call)
        return found

    async def _record_parts(self, call: Record) -> list[int]:
        sequences: list[int] = []
        refused: dict[int, str] = {}
        for number, part in enumerate(call.parts(self._group_max)):
            part.future = self._loop.create_future()
            try:
                sequences += await self._writer.submit(part)
            except EntriesRefused as error:
                begin = number * self._group_max
                refused |= {begin + index: why for index, why in error.refused.items()}
        if refused:
            raise EntriesRefused(refused)
        return sequences

    async def unrecorded(self, entries: Sequence[LogEntry]) -> list[LogEntry]:
        """Those events that the ledger does not have: after a call that failed, for its commit may have happened all
        the same. Asked behind everything that was to be written before.

        Raises:
            LedgerUnavailable: it cannot be read.
        """
        ids = {entry.message_id for entry in entries}
        known = await self._task(lambda connection, lease: reads.known(connection, ids))
        return [entry for entry in entries if (entry.message_id, entry.kind.value, entry.at) not in known]

    async def seen(self, scope: str, keys: Sequence[str]) -> dict[str, Seen]:
        """What the inbox remembers of these keys; one that it does not know, or that has expired, is not in the answer.

        For deliveries that may be redeliveries, and best for many at once: the price grows with the rows that there
        are. 1,000 keys among 400,000 rows took 85 ms of CPU on SQLite.

        Raises:
            LedgerUnavailable: it cannot be read.
        """
        return await self._read(self._inbox.seen, scope, keys, self._now()) if keys else {}

    async def claim_key(
        self,
        client: str,
        key: str,
        fingerprint: bytes,
        intents: Sequence[OutboxEntry],
        older: Callable[[], Collection[bytes]] = tuple,
    ) -> KeyClaim:
        """Claim an Idempotency-Key, and with it promise ``intents``: messages, ``accepted`` events and
        obligations are durable when the answer is New. With any other answer nothing was written but, for
        Unknown, who the key and its intents belong to now. A caller that is cancelled while it waits leaves
        nothing behind: the key is given back.

        Args:
            fingerprint: a digest of the request; another one under the same key is a Mismatch.
            older: makes other digests that stand for the same request.

        Raises:
            LedgerUnavailable, EntriesRefused: nothing was written; do not publish. LedgerFull: its disk is.
            CommitUnknown: it may have been, and is in doubt then; do not publish.
        """
        self.disk.check(sum([len(intent.payload) for intent in intents]))
        call = Claim(self._loop.create_future(), client, key, fingerprint, intents, older)
        claim: KeyClaim = await self._writer.submit(call)
        if isinstance(claim, New):
            self.on_keys(client, 1)
        if (error := self.doubt(claim, call.lease)) is not None:
            raise error
        return claim

    def doubt(self, claim: KeyClaim | GatewayError, lease: ShardLease | None) -> CommitUnknown | None:
        """Return the error of a claim whose lease was lost before its caller hears of it: the key is in doubt."""
        if isinstance(claim, New | Unknown) and lease != self.lease:
            return CommitUnknown("the lease under which the Idempotency-Key was claimed is lost")
        return None

    async def finish_key(
        self,
        client: str,
        key: str,
        status: int,
        body: bytes,
        entries: Sequence[LogEntry] = (),
        *,
        headers: Mapping[str, str] | None = None,
        claimed: ShardLease | None = None,
    ) -> None:
        """Keep the final answer under a key this process holds, in one commit with the outcomes ``entries``.
        ``claimed``: under which :attr:`lease` it was claimed.

        Raises:
            KeyLost: the key was taken over meanwhile, or its lease was lost. Nothing is written: outcome and answer
                will be those of the process that takes it over.
            LedgerUnavailable: not written.
        """
        answer = StoredAnswer(status, dict(headers or {}), body)
        await self._writer.submit(
            SettleKey(self._loop.create_future(), client, key, ANSWERED, entries, answer, claimed)
        )

    async def free_key(
        self, client: str, key: str, entries: Sequence[LogEntry] = (), *, claimed: ShardLease | None = None
    ) -> None:
        """Forget a key this process holds, because nothing was sent (503): it may be used again at once. The
        intents go; ``entries`` says what became of them (``not_sent``).

        Raises:
            KeyLost, LedgerUnavailable: as in ``finish_key``.
        """
        await self._writer.submit(SettleKey(self._loop.create_future(), client, key, FREE, entries, None, claimed))
        self.on_keys(client, -1)

    async def unknown_key(
        self, client: str, key: str, entries: Sequence[LogEntry] = (), *, claimed: ShardLease | None = None
    ) -> None:
        """Remember that a key this process holds ended without an outcome (504). The intents without a final
        outcome in ``entries`` stay, for the repeat to send again.

        Raises:
            KeyLost, LedgerUnavailable: as in ``finish_key``.
        """
        await self._writer.submit(SettleKey(self._loop.create_future(), client, key, UNKNOWN, entries, None, claimed))

    # ---------------------------------------------------------------------------------------------- in doubt

    # --------------------------------------------------------------------------------------------- resources

    async def put_resource(
        self, kind: str, name: str, spec: Mapping[str, Any], if_match: str | None = None
    ) -> tuple[str, bool]:
        """Create or replace a resource.

        Args:
            if_match: an etag: only if it is still that; ``*``: only if it exists; ``""``: only if it does not;
                None: in any case.

        Returns:
            Its etag, and whether it was created.

        Raises:
            EtagMismatch: not as ``if_match`` says; nothing was written.
        """
        now = self._now()
        put: tuple[str, bool] = await self._task(
            lambda connection, _: resources.put(connection, kind, name, spec, if_match, now)
        )
        return put

    async def get_resource(self, kind: str, name: str) -> ResourceRecord | None:
        """A resource by name."""
        return await self._read(resources.get, kind, name)

    async def list_resources(
        self, kind: str, cursor: str | None = None, limit: int = 100
    ) -> tuple[list[ResourceRecord], str | None]:
        """Resources by name, and the cursor of the next page (None: that was the last)."""
        return await self._read(resources.page, kind, cursor, limit)

    async def all_resources(self, kind: str) -> AsyncIterator[ResourceRecord]:
        """Yield the resources of a kind by name, page by page. Raises LedgerUnavailable."""
        cursor: str | None = None
        while True:
            page, cursor = await self.list_resources(kind, cursor, RESOURCES_PAGE)
            for item in page:
                yield item
            if cursor is None:
                return

    async def delete_resource(self, kind: str, name: str, if_match: str | None = None) -> bool:
        """Delete a resource; False: there was none (and no ``if_match``).

        Raises:
            EtagMismatch: as in ``put_resource``.
        """
        deleted: bool = await self._task(lambda connection, _: resources.delete(connection, kind, name, if_match))
        return deleted

    # ----------------------------------------------------------------------------------------------- reading

    async def timeline(self, message_id: bytes) -> Timeline | None:
        """A message and its events, oldest first. None: there is no such message."""
        return await self._read(reads.timeline, message_id)

    async def messages(
        self, where: MessageFilter | None = None, cursor: str | None = None, limit: int = 100
    ) -> tuple[list[StoredMessage], str | None]:
        """Messages, newest first, and the cursor of the next page (None: that was the last). A page of what is rare may
        have few or none, and a cursor all the same (:mod:`gateway.ledger.events.searches`).

        Raises:
            ValueError: the cursor is malformed.
        """
        return await self._read(searches.list_messages, where or MessageFilter(), cursor, limit)

    async def events_after(
        self, position: Mapping[str, int], limit: int = 1_000
    ) -> tuple[list[RecordedEvent], dict[str, int]]:
        """The events behind a position, in order within each shard, and the position behind them.

        A position is the last sequence seen of each shard, ``{"0": 812, "3": 77}``; a shard that is missing is
        read from its beginning. Following it misses no event and sees none twice.
        """
        return await self._read(reads.events_after, position, limit)

    async def events_between(
        self, kinds: Collection[EventKind], since: int, until: int
    ) -> AsyncGenerator[list[Happened], None]:
        """Events of these kinds from ``since`` until before ``until``, in microseconds since 1970: by pages, of which
        some may be empty. Events that were written more than an hour late may be left out.

        Raises:
            LedgerUnavailable: it cannot be read.
        """
        position = await self._read(windows.begin, since, until)
        while position.left:
            found, position = await self._read(windows.page, position, kinds, since, until)
            yield found

    # ---------------------------------------------------------------------------------------------- internals

    async def submit(self, call: WriterCall) -> Any:
        """For the ledger's own parts: have a call written with the other calls that wait."""
        return await self._writer.submit(call)

    async def submit_all(self, calls: Sequence[WriterCall]) -> list[Any]:
        """For the ledger's own parts: have calls written, in one transaction where they fit into one; the result or the
        error of each."""
        return await self._writer.submit_all(calls)

    async def task(self, run: Callable[[sa.Connection, ShardLease], Any]) -> Any:
        """For the ledger's own parts: run in a transaction of the writer's, under its lease."""
        return await self._task(run)

    async def read(self, run: Callable[[sa.Connection], Any]) -> Any:
        """For the ledger's own parts: run on a connection of a reader's."""
        return await self._read(run)

    def _taken_over(self) -> None:
        if self.on_takeover is not None:
            self.on_takeover()

    def _now(self) -> int:
        return int(self._clock() * 1_000_000)

    async def written(self) -> None:
        """Wait until all that was asked for before has been written, and reported.

        Raises:
            LedgerUnavailable: nobody can tell.
        """
        await self._task(lambda connection, lease: None)

    async def _task(self, run: Callable[[sa.Connection, ShardLease], Any], proves: bool = False) -> Any:
        return await self._writer.submit(Task(self._loop.create_future(), run, proves))

    async def _read(
        self, function: Callable[Concatenate[sa.Connection, P], R], *arguments: P.args, **options: P.kwargs
    ) -> R:
        if self._writer.closed:
            raise LedgerUnavailable(CLOSED)

        def run() -> R:
            try:
                return self._readers.run(function, *arguments, **options)
            except exc.DBAPIError as error:
                raise unavailable(error) from error

        self._guard.begin()
        try:
            return await threads.submit(self._pool, run)
        finally:
            self._guard.end()

    def _committed(self, seconds: float, lease: ShardLease, commits: int | None) -> None:
        if self._commits is not None and commits is not None:
            with suppress(OSError):  # a full disk: the file says less, and the commit stands
                self._commits.count(lease.shard, commits)
        if self.on_commit is not None:
            self.on_commit(seconds)

    def _outdated(self) -> None:
        if self.on_outdated is not None:
            self.on_outdated()

    def _lost(self) -> None:
        if self.on_fenced is not None:
            self.on_fenced()

    def _leased(self, lease: ShardLease) -> None:
        first = not hasattr(self, "shard")
        self.shard, self.fence = lease
        if not first and self.on_takeover is not None:
            self.on_takeover()  # what was ours under the old fence is in doubt

    async def _keep(self) -> None:
        """Renew the lease, fence the dead, forget what has expired, make partitions: three times in the time of a
        lease, and every second while something is wrong; once in that time on SQLite, where there are no dead. What has
        expired waits for the next time where there is too much of it."""
        third = self._lease_seconds / (3 if self._database.shared else 1)
        due = clock.monotonic() + third
        while True:
            await clock.sleep(min(1.0, third))
            self._writer.hear()
            if self._commits is not None:
                with suppress(OSError):
                    self._commits.catch_up()
            if self.disk.is_watched:
                await threads.run(self.disk.look)
            if self.healthy and clock.monotonic() < due:
                continue
            due = clock.monotonic() + third
            try:
                if await self._task(self._renew, proves=True) and self.on_takeover is not None:
                    self.on_takeover()
                while self._forgot(await self._task(self._forget_keys)) == keys.CHUNK and clock.monotonic() < due:
                    pass
                while await self._task(self._forget_inbox) == inbox.CHUNK and clock.monotonic() < due:
                    pass
                await self._partition()
            except GatewayError as error:
                logger.debug("ledger maintenance: %s", error)
            except Exception:  # a defect of ours, or of on_takeover; the lease must be renewed all the same
                logger.exception("ledger maintenance failed")

    def _renew(self, connection: sa.Connection, lease: ShardLease) -> list[int]:
        first, _ = self._shards.enter(connection, lease, 0)
        if self._writer.trouble is not None:
            self._group.probe(connection, lease, first, self._now())
        return self._shards.fence_lapsed(connection) if self._database.shared else []

    def _forget_keys(self, connection: sa.Connection, _: ShardLease) -> Mapping[str, int]:
        return self._keys.forget_expired(connection, self._now())

    def _forgot(self, clients: Mapping[str, int]) -> int:
        for client, count in clients.items():
            self.on_keys(client, -count)
        return sum(clients.values())

    def _forget_inbox(self, connection: sa.Connection, _: ShardLease) -> int:
        return self._inbox.forget_expired(connection, self._now())

    async def _partition(self) -> None:
        """Once a day. Past the writer: it may have to wait for readers of the tables, and then rather fails and
        is tried again next time."""
        day = self._now() // (DAY_MS * 1000)
        if day == self._partitioned_day:
            return
        try:
            await self._read(schema.make_partitions, self._clock())
        except LedgerUnavailable as error:
            logger.warning("the partitions of the coming days could not be made yet: %s", error)
        else:
            self._partitioned_day = day


def _prepare(database: Database, migrate: bool) -> Opened:
    """Lock the file, bring the schema up to date if that is asked for, and check it. The readers have a connection
    then."""
    lock = database.lock()
    try:
        _check(database)
        if migrate:
            schema.migrate(database)
        readers = Readers(database)
        try:
            readers.run(schema.check)
        except BaseException as error:
            readers.close()
            if isinstance(error, exc.DBAPIError):
                raise unavailable(error) from error
            raise
    except BaseException:
        _unlock(lock)
        raise
    return Opened(lock, readers)


def _check(database: Database) -> None:
    """Look at the files of SQLite before anything is written to them.

    Raises:
        LedgerDamaged: they are not what was written, or commits are gone.
        LedgerUnavailable: they cannot be read.
    """
    if database.path is None:
        return
    try:
        check_files(database.path)
        check_commits(database.path)
    except OSError as error:
        raise LedgerUnavailable(f"the ledger {database.path} cannot be read: {error.strerror}") from None
    except sqlite3.Error as error:
        raise unavailable(error) from None
    except UnicodeDecodeError:  # the driver's, of a name in the schema
        raise LedgerDamaged(f"the ledger {database.path} is damaged: its schema cannot be read. {RESTORE}") from None


def _unlock(lock: IO[bytes] | None) -> None:
    if lock is not None:
        lock.close()
