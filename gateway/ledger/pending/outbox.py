"""``ledger.outbox``: publishes that still have to be sent, each an :class:`OutboxEntry`.

An entry is in one of two tables, and goes with its outcome. ``outbox`` has what the ledger took for its callers (202),
to be sent when it is due. ``obligations`` has what a caller waits for: the request sends it at once, and holds it for
its Idempotency-Key. Who holds a row does so by shard and fence (:mod:`gateway.ledger.db.shards`). What a process held
that died is free at once, and handed out again with a higher ``attempt``, to be marked as a possible duplicate:

* of ``outbox``, by ``claim``, to the process that sends for the broker, while the broker is up;
* of ``obligations``, by ``take_over``, to the first process that asks. It is sent again, or waits for the repeat of
  its key.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

import msgspec
import sqlalchemy as sa

from gateway.errors import KeyRunning, LedgerUnavailable
from gateway.ledger.db.batch import RowBatch, select_rows
from gateway.ledger.db.checksums import DAMAGED, checksum, is_sound
from gateway.ledger.db.encoding import document, octets, parse, text
from gateway.ledger.db.engine import Database
from gateway.ledger.db.models import events, outbox
from gateway.ledger.db.prepared import PreparedStatement, StaticStatement, once
from gateway.ledger.db.shards import INSERT, ShardLease, alive
from gateway.ledger.pending.bodies import matching
from gateway.ledger.pending.delivery_rows import when
from gateway.ledger.pending.keys import ANSWERED, KeyStatements
from gateway.ledger.pending.owed import OutboxFilter
from gateway.ledger.writing.calls import Claim, Put, SettleKey, SettleOutbox, SettlePublishes, WriterCall
from gateway.ledger.writing.dividing import divided, future, place_of
from gateway.ledger.writing.records import KeyClaim, LogEntry, New, OutboxEntry, StoredAnswer, Unknown
from gateway.ledger.writing.states import EventKind

NOBODY = -1
"""``shard`` of a row that nobody holds."""
OCTETS_MAX = 64 << 20
"""Most octets of payloads that are claimed at once, unless it is only one."""
FIND_MAX = 50_000
"""Most rows that a search looks at."""
NEVER = 1 << 62
"""``due_at`` of a row that was refused for good, and is kept."""
OLD_PLACE = -1
"""Of a retry, in place of a time: due when it was due before."""

_SHARD, _FENCE = sa.bindparam("my_shard", type_=sa.BigInteger), sa.bindparam("my_fence", type_=sa.BigInteger)
_HELD = alive(outbox.c.shard, outbox.c.fence)


class OutboxRows:
    """The statements on ``outbox``, within a transaction of the writer's."""

    @once
    def __init__(self, database: Database) -> None:
        dialect = database.dialect
        columns = [column for column in outbox.c if column.name not in ("shard", "fence")]
        rows, _ = select_rows(
            dialect, columns, shard=sa.literal(NOBODY, sa.BigInteger), fence=sa.literal(0, sa.BigInteger)
        )
        self._put = PreparedStatement(
            database,
            INSERT[dialect](outbox)
            .from_select(list(rows.selected_columns.keys()), rows)
            .on_conflict_do_nothing(index_elements=[outbox.c.message_id]),
        )
        named, _ = select_rows(dialect, (outbox.c.message_id,))
        scheduled = (events.c.message_id.in_(named), events.c.kind == EventKind.SCHEDULED.value)
        self._known = PreparedStatement(database, sa.select(events.c.message_id).where(*scheduled))
        mine = (outbox.c.shard == _SHARD) & (outbox.c.fence == _FENCE)
        self._done = PreparedStatement(database, matching(dialect, outbox, named, mine).returning(outbox.c.message_id))
        later = select_rows(dialect, (outbox.c.due_at, outbox.c.message_id, outbox.c.reason))[0].subquery("later")
        self._retry = PreparedStatement(
            database,
            sa.update(outbox)
            .where(outbox.c.message_id == later.c.message_id, mine)
            .values(
                due_at=sa.case((later.c.due_at < 0, outbox.c.due_at), else_=later.c.due_at),
                reason=later.c.reason,
                shard=NOBODY,
                fence=0,
            )
            .returning(outbox.c.message_id),
        )
        self._release = sa.update(outbox).where(mine).values(shard=NOBODY, fence=0)
        self._due = (
            sa.select(
                outbox.c.message_id,
                sa.func.length(outbox.c.payload).label("octets"),
                (outbox.c.shard != NOBODY).label("doubtful"),
            )
            .where(
                outbox.c.due_at <= sa.bindparam("now", type_=sa.BigInteger),
                outbox.c.broker.in_(sa.bindparam("brokers", expanding=True)),
                ~_HELD,
            )
            .order_by(outbox.c.due_at, outbox.c.message_id)
            .limit(sa.bindparam("most"))
            .with_for_update(skip_locked=True, of=outbox)
        )
        self._claim = StaticStatement(
            sa.update(outbox)
            .where(outbox.c.message_id.in_(named))
            .values(shard=_SHARD, fence=_FENCE, attempt=outbox.c.attempt + 1)
            .returning(*outbox.c, sa.true().label("held"))
        )
        this = outbox.c.message_id == sa.bindparam("this", type_=sa.LargeBinary)
        self._cancel = sa.delete(outbox).where(this, ~_HELD).returning(outbox.c.reason, outbox.c.shard)
        self._revive = (
            sa.update(outbox)
            .where(this, outbox.c.due_at == NEVER)
            .values(due_at=outbox.c.at)
            .returning(outbox.c.message_id)
        )
        waits = (this, outbox.c.due_at != NEVER, ~_HELD)
        self._waiting = sa.select(outbox.c.reason).where(*waits).with_for_update(of=outbox)
        self._reschedule = (
            sa.update(outbox)
            .where(*waits)
            .values(due_at=sa.bindparam("due", type_=sa.BigInteger), reason=sa.bindparam("why", type_=sa.LargeBinary))
            .returning(outbox.c.message_id)
        )

    def find_known(self, connection: sa.Connection, calls: Sequence[Put]) -> None:
        """Find out which of the resent messages are scheduled already; :meth:`put` leaves them out."""
        batch = RowBatch()
        for call in calls:
            for message_id in call.resent:
                batch.add((), message_id)
        known = {row[0] for row in self._known.run(connection, batch.parameters())} if batch else set()
        for call in calls:
            call.known = known.intersection(call.resent)

    def put(self, connection: sa.Connection, calls: Sequence[Put], now: int, there: int) -> None:
        """Promise. Clocks as in :meth:`gateway.ledger.pending.delivery_rows.DeliveryRows.store`."""
        batch = RowBatch()
        for call in calls:
            for row in call.promised:
                if row.message_id in call.known:
                    continue
                due_at = when(row.due_at, row.at, now, there)
                exchange, routing_key, client = octets(row.exchange), octets(row.routing_key), octets(row.client)
                sent = (row.message_id, row.broker.encode(), exchange, routing_key, row.payload, client)
                batch.add(
                    (row.broker, row.at, due_at, row.attempt, checksum(*sent)),
                    row.message_id,
                    exchange,
                    routing_key,
                    row.payload,
                    client,
                    document(row.reason),
                )
                if batch.is_full:
                    self._put.run(connection, batch.parameters())
                    batch = RowBatch()
        if batch:
            self._put.run(connection, batch.parameters())

    def settle(
        self, connection: sa.Connection, lease: ShardLease, calls: Sequence[SettleOutbox], there: int
    ) -> list[LogEntry]:
        """End or postpone what this process holds, and set the calls' results. Returns the events of what it held."""
        mine = {"my_shard": lease.shard, "my_fence": lease.fence}
        done, later = RowBatch(), RowBatch()
        for call in calls:
            for message_id, _ in call.done:
                done.add((), message_id)
            for message_id, due_in, reason in call.retry:
                due_at = OLD_PLACE if due_in < 0 else there + int(due_in * 1_000_000)
                later.add((due_at,), message_id, document(reason))
            for message_id, _, reason in call.kept:
                later.add((NEVER,), message_id, document(reason))
        took: set[Any] = set()
        if done:
            took.update(row[0] for row in self._done.run(connection, done.parameters(**mine)))
        if later:
            took.update(row[0] for row in self._retry.run(connection, later.parameters(**mine)))
        for call in calls:
            call.result = [each[0] in took for each in (*call.done, *call.retry, *call.kept)]
        told = [each for call in calls for each in call.done]
        told += [(message_id, entries) for call in calls for message_id, entries, _ in call.kept]
        return [entry for message_id, entries in told if message_id in took for entry in entries]

    def claim(
        self, connection: sa.Connection, lease: ShardLease, limit: int, brokers: Collection[str], there: int
    ) -> list[OutboxEntry]:
        """Take what is due and nobody's."""
        due = connection.execute(self._due, {"now": there, "brokers": list(brokers), "most": limit}).all()
        batch = RowBatch()
        octets = 0
        for row in due:
            octets += row.octets
            if batch and octets > OCTETS_MAX:
                break
            batch.add((), row.message_id)
        if not batch:
            return []
        rows = self._claim.rows(connection, batch.parameters(my_shard=lease.shard, my_fence=lease.fence))
        doubtful = {row.message_id for row in due if row.doubtful}
        found = [_entry(row, doubtful=row.message_id in doubtful) for row in rows]
        return sorted(found, key=lambda row: (row.due_at, row.message_id))

    def release(self, connection: sa.Connection, lease: ShardLease) -> int:
        """Release all entries of this process; how many."""
        return connection.execute(self._release, {"my_shard": lease.shard, "my_fence": lease.fence}).rowcount

    def cancel(self, connection: sa.Connection, message_id: bytes) -> bool | None:
        """Delete what nobody is about to send; whether it may have been sent before. None: there is no such row."""
        found = connection.execute(self._cancel, {"this": message_id}).first()
        if found is None:
            return None
        return found.shard != NOBODY or bool(parse(found.reason).get("resent"))

    def revive(self, connection: sa.Connection, message_id: bytes) -> bool:
        """Make what was refused for good due at once; whether there was such a row."""
        return connection.execute(self._revive, {"this": message_id}).first() is not None

    def reschedule(self, connection: sa.Connection, message_id: bytes, due_at: int, reason: Mapping[str, Any]) -> bool:
        """Give what nobody is about to send another time; whether there was such a row. Its reason keeps all but the
        text, as a mark may have come in since somebody looked at it."""
        found = connection.execute(self._waiting, {"this": message_id}).first()
        if found is None:
            return False
        kept = {name: value for name, value in parse(found.reason).items() if name != "text"}
        values = {"this": message_id, "due": due_at, "why": document({**kept, **reason})}
        return connection.execute(self._reschedule, values).first() is not None


class OutboxAccess(Protocol):
    """The ledger, as this part sees it."""

    @property
    def lease(self) -> ShardLease: ...
    async def submit(self, call: WriterCall) -> Any: ...
    async def task(self, run: Callable[[sa.Connection, ShardLease], Any]) -> Any: ...
    async def read(self, run: Callable[[sa.Connection], Any]) -> Any: ...


class OutboxStore:
    """The verbs."""

    def __init__(
        self,
        ledger: OutboxAccess,
        rows: OutboxRows,
        keys: KeyStatements,
        append: Callable[[sa.Connection, ShardLease, list[LogEntry]], None],
        group_max: int,
        now: Callable[[], int],
        db_now: Callable[[], int],
    ) -> None:
        """``append`` writes events in a transaction that has not entered its shard; ``now`` is this process's clock,
        ``db_now`` the database's, as a transaction of the writer's has read it; both in microseconds."""
        self._ledger = ledger
        self._rows = rows
        self._keys = keys
        self._append = append
        self._group_max = group_max
        self._now = now
        self._db_now = db_now

    async def put(self, rows: Sequence[OutboxEntry], entries: Sequence[LogEntry] = ()) -> None:
        """Owe publishes from now on, with their events in one commit, unless there are more than ``group_max`` or one
        is bad. A message whose id is there already is left alone; one with ``resent`` in its reason also if it is there
        no more, because it has its outcome. Durable when it returns.

        Raises:
            LedgerUnavailable: nothing was written, or it cannot be told: put the same again.
            EntriesRefused: some of ``rows`` cannot be stored, by their index; the others are durable.
        """
        if rows or entries:
            await divided(self._ledger, Put(future(), rows, entries), self._group_max)

    async def put_keyed(
        self,
        client: str,
        key: str,
        fingerprint: bytes,
        rows: Sequence[OutboxEntry],
        entries: Sequence[LogEntry],
        *,
        status: int,
        headers: Mapping[str, str],
        body: bytes,
        older: Callable[[], Collection[bytes]] = tuple,
    ) -> KeyClaim:
        """Owe publishes from now on, and keep the answer under the Idempotency-Key, in one commit with their events:
        no crash can leave one without the other. New: that is done. StoredAnswer, Mismatch, RunningRequest: nothing was
        written.

        Raises:
            KeyRunning: a request with this key ended without an outcome, and is another's to resolve.
            LedgerUnavailable, EntriesRefused: nothing was written.
        """

        def put(connection: sa.Connection, lease: ShardLease) -> KeyClaim:
            now = self._now()
            while True:
                claim = Claim(_nobody(), client, key, fingerprint, (), older)
                _, deferred = self._keys.claim(connection, lease, [claim], now)
                if not deferred:
                    break
            if claim.error is not None:
                raise claim.error
            found: KeyClaim = claim.result
            if isinstance(found, Unknown):  # rolls back: the key is another's
                raise KeyRunning("an earlier request with this Idempotency-Key has no outcome yet")
            if not isinstance(found, New):
                return found
            self._append(connection, lease, list(entries))
            self._rows.put(connection, [Put(_nobody(), rows)], now, self._db_now())
            end = SettleKey(_nobody(), client, key, ANSWERED, (), StoredAnswer(status, dict(headers), body))
            self._keys.settle(connection, lease, [end], now)
            if end.error is not None:
                raise end.error
            return found

        answer: KeyClaim = await self._ledger.task(put)
        return answer

    async def take_over(self, limit: int = 1_000) -> list[OutboxEntry]:
        """Take over what dead processes held for requests (at start, on ``Ledger.on_takeover``, and until it returns
        nothing).

        Messages without a key end as ``unknown`` here: nobody can repeat them. Those of a key are returned, at most
        ``limit`` of them: now this process's, with ``attempt`` one higher, to be sent again with the same id, recorded
        as ``resent`` and settled with their key.

        Raises:
            LedgerUnavailable: nothing was taken over, or it is in doubt again, as the lease is lost.
        """

        def take_over(connection: sa.Connection, lease: ShardLease) -> tuple[ShardLease, list[OutboxEntry]]:
            now = self._now()
            plain = self._keys.plain_in_doubt(connection, limit, now)
            self._append(connection, lease, plain)
            found = self._keys.take_in_doubt(connection, lease, limit, now)
            return (lease, found) if found or len(plain) < limit else take_over(connection, lease)

        return self._mine(*await self._ledger.task(take_over))

    async def claim(self, limit: int, brokers: Collection[str]) -> list[OutboxEntry]:
        """What is due at these brokers and held by nobody that lives: this process's from now on, with ``attempt`` one
        higher. ``doubtful``: another process held it and died, so that it may have been sent.

        Raises:
            LedgerUnavailable: nothing was claimed, or it is free again, as the lease is lost.
        """

        def claim(connection: sa.Connection, lease: ShardLease) -> tuple[ShardLease, list[OutboxEntry]]:
            return lease, self._rows.claim(connection, lease, limit, brokers, self._db_now())

        return self._mine(*await self._ledger.task(claim))

    def _mine(self, lease: ShardLease, found: list[OutboxEntry]) -> list[OutboxEntry]:
        """What was claimed under a lease, which may be lost before that is heard of."""
        if found and lease != self._ledger.lease:
            raise LedgerUnavailable("the lease under which it was taken over is lost")
        return found

    async def settle(
        self,
        done: Sequence[tuple[bytes, Sequence[LogEntry]]],
        retry: Sequence[tuple[bytes, float, dict[str, Any]]] = (),
        kept: Sequence[tuple[bytes, Sequence[LogEntry], dict[str, Any]]] = (),
    ) -> list[bool]:
        """End what this process claimed: ``done`` goes, its events are written in the same commit; ``retry`` is due
        again this many seconds from now (below 0: in its old place), for any claimant, with a reason; ``kept`` is not
        due any more until it is revived, its events are written in the same commit. Where a row is another process's by
        now, nothing is written of it: that process sends the message again, and its outcome counts.

        Returns:
            For each of ``done``, then ``retry``, then ``kept``: whether it was this process's.

        Raises:
            LedgerUnavailable: nothing was written, or it cannot be told: settle the same again.
            EntriesRefused: some cannot be written, by their index; the others are.
        """
        if not done and not retry and not kept:
            return []
        results: list[bool] = await divided(self._ledger, SettleOutbox(future(), done, retry, kept), self._group_max)
        return results

    async def settle_publishes(self, done: Sequence[tuple[bytes, Sequence[LogEntry]]]) -> list[bool]:
        """End publishes without a key that :meth:`Ledger.record` has as accepted, each with its events in the same
        commit. Of one that another process has taken over nothing is written: it is ``unknown`` there, and stays so.

        Returns:
            For each: whether it was this process's.

        Raises:
            LedgerUnavailable: nothing was written, or it cannot be told: settle the same again.
            EntriesRefused: some cannot be written, by their index; the others are.
        """
        results: list[bool] = await divided(self._ledger, SettlePublishes(future(), done), self._group_max)
        return results

    async def release(self) -> int:
        """Release everything that this process holds, for a worker that begins again; how many."""

        found: int = await self._ledger.task(self._rows.release)
        return found

    async def cancel(self, message_id: bytes, entry: LogEntry, doubtful: LogEntry | None = None) -> bool:
        """Take a publish back, unless a process that lives is about to send it. True: it is gone, and ``entry`` is
        written, or ``doubtful`` where it may have been sent before. False: there is none, or it is too late."""

        def cancel(connection: sa.Connection, lease: ShardLease) -> bool:
            may_be_sent = self._rows.cancel(connection, message_id)
            if may_be_sent is None:
                return False
            self._append(connection, lease, [doubtful if may_be_sent and doubtful is not None else entry])
            return True

        found: bool = await self._ledger.task(cancel)
        return found

    async def revive(self, message_id: bytes, entry: LogEntry) -> bool:
        """Send what was refused for good once more. True: it is due, and ``entry`` is written. False: there is none."""

        def revive(connection: sa.Connection, lease: ShardLease) -> bool:
            if not self._rows.revive(connection, message_id):
                return False
            self._append(connection, lease, [entry])
            return True

        found: bool = await self._ledger.task(revive)
        return found

    async def reschedule(
        self, message_id: bytes, due_at: int, now: int, reason: Mapping[str, Any], entry: LogEntry
    ) -> bool:
        """Give a publish another time, unless a process that lives is about to send it, or it is kept for a retry.

        Args:
            due_at: on this process's clock, in microseconds since 1970.
            now: that clock.
            reason: goes into the one that the row has.
            entry: written with the change.

        Returns:
            False: there is no such publish, or it is too late.
        """

        def reschedule(connection: sa.Connection, lease: ShardLease) -> bool:
            if not self._rows.reschedule(connection, message_id, when(due_at, now, now, self._db_now()), reason):
                return False
            self._append(connection, lease, [entry])
            return True

        found: bool = await self._ledger.task(reschedule)
        return found

    async def get(self, message_id: bytes) -> OutboxEntry | None:
        """One by id. None: it is sent or taken back, or never was."""
        found, _ = await self.page(OutboxFilter(message_id=message_id), limit=1)
        return found[0] if found else None

    async def page(
        self, where: OutboxFilter | None = None, cursor: str | None = None, limit: int = 100
    ) -> tuple[list[OutboxEntry], str | None]:
        """Publishes in the order of their ids, and the cursor of the next page (None: that was the last).

        Raises:
            ValueError: the cursor is malformed.
        """
        query = sa.select(outbox, _HELD.label("held")).order_by(outbox.c.message_id).limit(limit + 1)
        if where is not None:
            if where.message_id is not None:
                query = query.where(outbox.c.message_id == where.message_id)
            if where.broker is not None:
                query = query.where(outbox.c.broker == where.broker)
            if where.client is not None:
                query = query.where(outbox.c.client == octets(where.client))
            if where.dead is not None:
                query = query.where((outbox.c.due_at == NEVER) == sa.literal(where.dead))
        if cursor is not None:
            query = query.where(outbox.c.message_id > place_of(cursor))

        def page(connection: sa.Connection) -> tuple[list[OutboxEntry], str | None]:
            found = [_entry(row) for row in connection.execute(query)]
            return found[:limit], found[limit - 1].message_id.hex() if len(found) > limit else None

        answer: tuple[list[OutboxEntry], str | None] = await self._ledger.read(page)
        return answer

    async def find(
        self, sought: str, client: str | None, cursor: str | None, limit: int
    ) -> tuple[list[OutboxEntry], str | None]:
        """Publishes with a text in their exchange or routing key, in the order of their ids and without payloads, and
        where to go on (None: that was all). At most :data:`FIND_MAX` are looked at, so there may be none, and more.

        Args:
            client: only those of this client; None: of all.

        Raises:
            ValueError: the cursor is malformed.
            LedgerUnavailable: it cannot be read.
        """
        after = b"" if cursor is None else place_of(cursor)

        def find(connection: sa.Connection) -> tuple[list[OutboxEntry], str | None]:
            ids = sa.select(outbox.c.message_id).where(outbox.c.message_id > after).order_by(outbox.c.message_id)
            edge: bytes | None = connection.execute(ids.offset(FIND_MAX - 1).limit(1)).scalar()
            part = sa.literal(octets(sought), sa.LargeBinary)
            position = sa.func.instr if connection.dialect.name == "sqlite" else sa.func.pg_catalog.position
            columns = [column for column in outbox.c if column.name not in ("payload", "checksum")]
            query = (
                sa.select(*columns, _HELD.label("held"))
                .where(
                    outbox.c.message_id > after,
                    sa.or_(position(outbox.c.exchange, part) > 0, position(outbox.c.routing_key, part) > 0),
                )
                .order_by(outbox.c.message_id)
                .limit(limit + 1)
            )
            if edge is not None:
                query = query.where(outbox.c.message_id <= edge)
            if client is not None:
                query = query.where(outbox.c.client == octets(client))
            found = [_without_payload(row) for row in connection.execute(query)]
            if len(found) > limit:
                edge = found[limit - 1].message_id
            return found[:limit], None if edge is None else edge.hex()

        answer: tuple[list[OutboxEntry], str | None] = await self._ledger.read(find)
        return answer

    async def oldest(self, broker: str, client: str, by: int) -> int | None:
        """When the first of a client's publishes was put that keeps its place: what was scheduled for later, postponed
        or refused for good has none. In microseconds since 1970; None: there is none.

        Args:
            by: only those that were due at this time. It keeps the query short.
        """
        query = (
            sa.select(outbox.c.at)
            .where(
                outbox.c.due_at <= by,
                outbox.c.due_at <= outbox.c.at,
                outbox.c.broker == broker,
                outbox.c.client == octets(client),
            )
            .order_by(outbox.c.due_at)
            .limit(1)
        )
        found: int | None = await self._ledger.read(lambda connection: connection.execute(query).scalar())
        return found


def _entry(row: Any, *, doubtful: bool = False) -> OutboxEntry:
    """A row; one that is not what was written has no payload, and cannot be sent."""
    sent = (row.message_id, row.broker.encode(), row.exchange, row.routing_key, row.payload, row.client)
    payload = row.payload if is_sound(row.checksum, *sent) else DAMAGED
    return msgspec.structs.replace(_without_payload(row), payload=payload, doubtful=doubtful)


def _without_payload(row: Any) -> OutboxEntry:
    """A row of which the payload was not read."""
    return OutboxEntry(
        message_id=row.message_id,
        broker=row.broker,
        exchange=text(row.exchange),
        routing_key=text(row.routing_key),
        payload=b"",
        at=row.at,
        due_at=row.due_at,
        attempt=row.attempt,
        reason=parse(row.reason),
        client=text(row.client),
        claimed=bool(row.held),
        dead=row.due_at == NEVER,
    )


def _nobody() -> Any:
    """In place of a call's future: what is done here is done within one call, and nobody waits for it."""
    return None
