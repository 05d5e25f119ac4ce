"""The transaction of a group commit.

It begins with the shard's own row (:mod:`gateway.ledger.db.shards`). That keeps everybody else from the shard, and this
process from writing without its lease. Then it goes table by table and with each kind of change, over all rows of the
group: the history in a few statements (:mod:`gateway.ledger.writing.inserts`), all else in one each
(:mod:`gateway.ledger.db.batch`). A statement without rows is not run.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any, NamedTuple

import sqlalchemy as sa

from gateway.ledger.db.batch import RowBatch, select_rows
from gateway.ledger.db.checksums import NONE, checksum
from gateway.ledger.db.encoding import document, header_texts, octets
from gateway.ledger.db.engine import Database
from gateway.ledger.db.models import events, messages, obligations, uint64_in_json
from gateway.ledger.db.prepared import PreparedStatement, once
from gateway.ledger.db.shards import INSERT, ShardLease, Shards
from gateway.ledger.logs.log_rows import LogRows
from gateway.ledger.pending.delivery_rows import DeliveryRows
from gateway.ledger.pending.inbox import Inbox, digests
from gateway.ledger.pending.keys import PARKED, PENDING, KeyStatements
from gateway.ledger.pending.outbox import OutboxRows
from gateway.ledger.writing.calls import (
    Claim,
    Hand,
    Keep,
    Put,
    Record,
    SettleKey,
    SettleOutbox,
    SettleOwed,
    SettlePublishes,
    SpoolCall,
    Store,
    WriterCall,
)
from gateway.ledger.writing.inserts import Insert, PendingRows, insert
from gateway.ledger.writing.records import InboxRow, LogEntry, NewMessage
from gateway.ledger.writing.states import RULES, Effect, EventKind

_RULES = {kind: (kind.value, rule.effect) for kind, rule in RULES.items()}
"""Kind -> its plain text, which a driver binds without looking for an adapter, and its effect."""

_scope = attrgetter("scope")

KINDS = (Claim, SettleKey, SettlePublishes, Store, SettleOwed, Hand, Put, SettleOutbox, Keep, SpoolCall)
"""The kinds of call beside :class:`Record`."""
NOTHING = 0
"""In place of a count of commits: there is nothing to commit. Those who ask for deliveries that are not there yet would
otherwise pay the disk for the answer."""
PROBED = 32
"""Rows that are written to find out whether rows can be written."""
PUBLISHED = ("front", "http", "replay")
"""``origin`` of messages that the gateway published."""
BEGINNINGS = frozenset({EventKind.ACCEPTED, EventKind.SCHEDULED})
"""Kinds of event with the time at which a publish began."""


class GroupResult(NamedTuple):
    """What a transaction brought, provided that it commits."""

    commits: int
    """The shard's count of transactions, this one included; :data:`NOTHING`: it has written nothing."""
    deferred: list[WriterCall]
    """Claims that have to be tried again after the commit."""


class GroupRows:
    """The rows of a group, table by table."""

    __slots__ = (
        "_headers", "_watched", "consumed", "events", "inbox", "messages", "opened", "parked", "published", "settled",
    )  # fmt: skip

    def __init__(
        self,
        events: PendingRows | None = None,
        messages: PendingRows | None = None,
        watched: frozenset[EventKind] = frozenset(),
        headers: Sequence[str] = (),
    ) -> None:
        """``watched``: kinds of event of which the messages are to be in ``consumed``; ``headers``: names of headers
        that are kept."""
        self.events = RowBatch() if events is None else events
        self.messages = RowBatch() if messages is None else messages
        self.published: list[tuple[bytes, int, NewMessage]] = []
        """Those of the messages that the gateway published, and when that began."""
        self.opened: list[RowBatch] = []
        self.settled = RowBatch()
        self.parked = RowBatch()
        self.inbox: dict[bytes, InboxRow] = {}
        self.consumed: set[bytes] = set()
        self._watched = watched
        self._headers = headers

    def add(self, entries: Iterable[LogEntry], *, ended: bool = False) -> None:
        """The rows of one call. An obligation that is opened and settled in the same call does not count. ``ended``:
        the obligations of these are gone already."""
        opened: dict[bytes, LogEntry] = {}
        last: dict[str, Any] | None = None
        encoded = b""
        watched = self._watched
        for entry in entries:
            message_id = entry.message_id
            kind, effect = _RULES[entry.kind]
            detail = entry.detail
            if detail is not last:  # often one and the same for a whole batch
                last, encoded = detail, document(detail)
            self.events.add((kind, entry.at, entry.broker, entry.version), message_id, encoded)
            if entry.message is not None:
                self._add_message(message_id, entry.at, entry.message)
                if entry.message.origin in PUBLISHED:
                    self.published.append((message_id, _began(entry), entry.message))
            if entry.kind in watched:
                self.consumed.add(message_id)
            if effect is Effect.NONE or ended:
                continue
            if effect is Effect.OPENS:
                opened[message_id] = entry
            elif opened.pop(message_id, None) is None:
                (self.settled if effect is Effect.SETTLES else self.parked).add((), message_id)
        for message_id, entry in opened.items():
            self._open((0, entry.broker, entry.at, NONE), message_id, b"", b"", b"", b"")

    def add_inbox(self, rows: Sequence[InboxRow]) -> None:
        """Rows of the inbox, of which the last with the same scope and key counts."""
        for scope, each in groupby(rows, _scope):
            same = list(each)
            self.inbox.update(zip(digests(scope, [row.key for row in same]), same, strict=True))

    def add_claim(self, claim: Claim) -> None:
        """Messages, ``accepted`` events and obligations of a new claim."""
        for item, intent in enumerate(claim.intents):
            message_id, broker, message = intent.message_id, intent.broker, intent.message
            if message is None:
                raise ValueError(f"intent {item} comes without its message")
            self.events.add((EventKind.ACCEPTED.value, intent.at, broker, message.version), message_id, b"")
            self._add_message(message_id, intent.at, message)
            exchange, routing_key = octets(intent.exchange), octets(intent.routing_key)
            sent = (message_id, claim.key_id, exchange, routing_key, intent.payload)
            self._open((item, broker, intent.at, checksum(broker.encode(), *sent)), *sent)

    def _open(self, plain: tuple[Any, ...], *octets: bytes) -> None:
        if not self.opened or self.opened[-1].is_full:
            self.opened.append(RowBatch())
        self.opened[-1].add(plain, *octets)

    def _add_message(self, message_id: bytes, at: int, message: NewMessage) -> None:
        self._describe(self.messages, message_id, at, message)

    def described(self) -> RowBatch:
        """What is published, once more, with the time at which that began."""
        batch = RowBatch()
        for message_id, began, message in self.published:
            self._describe(batch, message_id, began, message)
        return batch

    def _describe(self, batch: PendingRows, message_id: bytes, at: int, message: NewMessage) -> None:
        properties = message.properties
        if self._headers and message.headers:
            kept = header_texts(message.headers, self._headers)
            if kept:
                properties = {**(properties or {}), "headers": kept}
        batch.add(
            (at, message.broker, message.version, uint64_in_json(message.size), message.origin),
            message_id,
            octets(message.exchange),
            octets(message.routing_key),
            message.sha256,
            octets(message.client),
            document(properties),
        )


class GroupCommit:
    """The statements of a group commit."""

    def __init__(
        self,
        database: Database,
        shards: Shards,
        keys: KeyStatements,
        inbox: Inbox,
        deliveries: DeliveryRows,
        outbox: OutboxRows,
        *,
        injected: bool = False,
    ) -> None:
        """``injected``: the ledger's clock stands for the database's, too (tests)."""
        self.headers: Sequence[str] = ()
        """Names of headers that are kept of each message. May be replaced at any time, from any thread."""
        self._shards = shards
        self._keys = keys
        self._inbox = inbox
        self._bodies = deliveries.bodies
        self._deliveries = deliveries
        self._outbox = outbox
        self._injected = injected
        self._log = LogRows(database, shards)
        self._prepare(database)

    @once
    def _prepare(self, database: Database) -> None:
        dialect = database.dialect
        shard, fence = sa.bindparam("my_shard", type_=sa.BigInteger), sa.bindparam("my_fence", type_=sa.BigInteger)
        given = select_rows(dialect, [*messages.c])[0].subquery("given")
        self._publish = PreparedStatement(
            database,
            sa.update(messages)
            .where(
                messages.c.id == given.c.id,
                messages.c.at >= given.c.at,
                *(messages.c.origin != each for each in PUBLISHED),
            )
            .values({column.name: given.c[column.name] for column in messages.c if column.name not in ("id", "at")}),
        )

        self._events: Insert = insert(database, events)
        self._messages: Insert = insert(database, messages, (messages.c.id,))
        columns = [column for column in obligations.c if column.name not in ("attempt", "status", "shard", "fence")]
        rows, _ = select_rows(
            dialect,
            columns,
            attempt=sa.literal(1, sa.BigInteger),
            status=sa.literal(PENDING),
            shard=shard,
            fence=fence,
        )
        opened = INSERT[dialect](obligations).from_select(list(rows.selected_columns.keys()), rows)
        self._open = PreparedStatement(database, opened)

        named = obligations.c.message_id.in_(select_rows(dialect, (obligations.c.message_id,))[0])
        plain = obligations.c.key_id == sa.literal(b"", sa.LargeBinary)
        mine = (obligations.c.shard == shard) & (obligations.c.fence == fence)
        self._end = PreparedStatement(
            database, sa.delete(obligations).where(named, plain, mine).returning(obligations.c.message_id)
        )
        self._settle = PreparedStatement(database, sa.delete(obligations).where(named))
        self._settle_plain = PreparedStatement(database, sa.delete(obligations).where(named, plain))
        self._park = PreparedStatement(database, sa.update(obligations).where(named).values(status=PARKED))

    def write(self, connection: sa.Connection, lease: ShardLease, calls: Sequence[WriterCall], now: int) -> GroupResult:
        """Write the calls, inside a transaction of the caller's, and set their results. ``now`` is the ledger's
        clock in microseconds.

        Raises:
            Fenced: the lease is gone; nothing may be committed.
            Exception: the database's, or that of a row that cannot be encoded.
        """
        rows = GroupRows(self._events.rows(), self._messages.rows(), self._bodies.until_consumed, self.headers)
        by_kind: dict[type[WriterCall], list[Any]] = {kind: [] for kind in KINDS}
        records: list[tuple[Record, int]] = []
        for call in calls:
            if isinstance(call, Record):
                records.append((call, len(rows.events)))
            else:
                by_kind[type(call)].append(call)
            if isinstance(call, Record | SpoolCall):
                rows.add(call.entries)
            if isinstance(call, Record | Store | SpoolCall) and call.inbox:
                rows.add_inbox(call.inbox)
        claims, settles, publishes, stores, endings, hands, puts, sent, kept, spooled = by_kind.values()
        # What most likely comes of what is owed is taken at once; the rest, either way, when it is known.
        taken = len(rows.events) + sum(len(call.entries) for call in (*stores, *puts))
        taken += sum(len(each.entries) for call in endings for each in call.settlements)
        taken += sum(len(call.entries) for call in settles)
        taken += sum(len(entries) for call in (*publishes, *sent) for _, entries in call.done)
        taken += sum(len(entries) for call in sent for _, entries, _ in call.kept)
        first, commits = self._shards.enter(connection, lease, taken)
        for call, offset in records:
            call.result = list(range(first + offset, first + offset + len(call.entries)))
        deferred: list[WriterCall] = []
        if claims:
            new, deferred = self._keys.claim(connection, lease, claims, now)
            for claim in new:
                rows.add_claim(claim)
        if settles:
            self._keys.settle(connection, lease, settles, now)
            for call in settles:
                if call.error is None:  # else another process sends the messages again, and its outcome counts
                    rows.add(call.entries)
        if publishes:
            rows.add(self._end_publishes(connection, lease, publishes), ended=True)
        there = now if self._injected else self._shards.now
        if puts:
            self._outbox.find_known(connection, puts)
            for call in puts:
                rows.add([each for each in call.entries if each.message_id not in call.known])
            self._outbox.put(connection, puts, now, there)
        if sent:
            rows.add(self._outbox.settle(connection, lease, sent, there))
        if stores or endings:
            entries = self._deliveries.write(connection, stores, endings, now, there)
            for call in stores:
                rows.add(call.fresh)
            rows.add(entries)
        if hands:
            entries, later = self._deliveries.claim(connection, hands, there)
            rows.add(entries)
            deferred += later
            if len(hands) == len(calls) and not any(call.result for call in hands):
                return GroupResult(NOTHING, deferred)
        if len(rows.events) != taken:
            self._shards.extend(connection, lease, len(rows.events) - taken)
        self._insert(connection, lease, rows, first)
        if spooled:
            self._log.write(connection, lease, spooled)
        if rows.inbox:
            self._inbox.write(connection, rows.inbox, now)
        if kept:
            self._bodies.keep(connection, kept, now)
        if rows.consumed:
            self._bodies.let_go(connection, rows.consumed, now)
        return GroupResult(commits, deferred)

    def _end_publishes(
        self, connection: sa.Connection, lease: ShardLease, calls: Sequence[SettlePublishes]
    ) -> list[LogEntry]:
        """End obligations of this process, and set the calls' results. Returns the events of those that it had."""
        batch = RowBatch()
        for call in calls:
            for message_id, _ in call.done:
                batch.add((), message_id)
        mine = {"my_shard": lease.shard, "my_fence": lease.fence}
        ended = {row[0] for row in self._end.run(connection, batch.parameters(**mine))}
        for call in calls:
            call.result = [message_id in ended for message_id, _ in call.done]
        return [
            entry for call in calls for message_id, entries in call.done if message_id in ended for entry in entries
        ]

    def append(self, connection: sa.Connection, lease: ShardLease, entries: Iterable[LogEntry]) -> None:
        """Write entries inside a transaction that has not entered its shard yet.

        Raises:
            Fenced: the lease is gone; nothing may be committed.
        """
        rows = GroupRows(self._events.rows(), self._messages.rows(), headers=self.headers)
        rows.add(entries)
        first, _ = self._shards.enter(connection, lease, len(rows.events))
        self._insert(connection, lease, rows, first)

    def probe(self, connection: sa.Connection, lease: ShardLease, first: int, now: int) -> None:
        """Find out whether events and messages can be written, inside a transaction that has entered its shard; nothing
        of it stays."""
        rows = GroupRows(self._events.rows(), self._messages.rows(), headers=self.headers)
        message = NewMessage(broker="", version="", exchange="", routing_key="", size=0, sha256=bytes(32), origin="")
        milliseconds = (now // 1000).to_bytes(6, "big")  # ids are dates to the ledger
        for number in range(PROBED):
            message_id = milliseconds + bytes((0x70, 0, 0x80, 0)) + number.to_bytes(6, "big")
            rows.add([LogEntry(message_id, EventKind.RECEIVED, now, "", "", None, message)])
        with connection.begin_nested() as attempt:
            self._insert(connection, lease, rows, first)
            attempt.rollback()

    def _insert(self, connection: sa.Connection, lease: ShardLease, rows: GroupRows, first: int) -> None:
        mine: dict[str, Any] = {"my_shard": lease.shard, "my_fence": lease.fence}
        if rows.messages:
            there = len(rows.messages) - self._messages.write(connection, rows.messages, lease.shard, first)
            if there and rows.published:
                # A consumer may have written of a message before its publish had its outcome: that one says more.
                self._publish.run(connection, rows.described().parameters())
        if rows.events:
            self._events.run(connection, rows.events, lease.shard, first)
        for opened in rows.opened:
            self._open.run(connection, opened.parameters(**mine))
        if rows.settled:
            self._settle.run(connection, rows.settled.parameters())
        if rows.parked:
            self._settle_plain.run(connection, rows.parked.parameters())
            self._park.run(connection, rows.parked.parameters())


def _began(entry: LogEntry) -> int:
    """When a publish began, in microseconds since 1970: with the first of its events, or when it was given its id."""
    if entry.kind in BEGINNINGS:
        return entry.at
    return min(entry.at, int.from_bytes(entry.message_id[:6], "big") * 1000)
