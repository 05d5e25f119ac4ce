"""The transaction of a group commit.

It begins with the shard's own row (:mod:`gateway.ledger.shards`), which keeps everybody else from that shard and
this process from writing without its lease, and continues with one statement for each table and kind of change,
each over all rows of the group (:mod:`gateway.ledger.batch`). A statement without rows is not run.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa

from gateway.ledger.batch import Batch, select_rows
from gateway.ledger.calls import Call, Claim, Record, Settle
from gateway.ledger.encoding import document, octets
from gateway.ledger.engine import Database
from gateway.ledger.keys import PARKED, PENDING, Keys
from gateway.ledger.models import events, messages, obligations, uint64_in_json
from gateway.ledger.prepared import Prepared
from gateway.ledger.records import Entry, NewMessage
from gateway.ledger.shards import INSERT, Lease, Shards
from gateway.ledger.states import RULES, Effect, Kind

_EFFECTS = {kind: rule.effect for kind, rule in RULES.items()}


class Written(NamedTuple):
    """What a transaction brought, provided that it commits."""

    commits: int
    """The shard's count of transactions, this one included."""
    deferred: list[Call]
    """Claims that have to be tried again after the commit."""


class Rows:
    """The rows of a group, table by table."""

    __slots__ = ("events", "messages", "opened", "parked", "settled")

    def __init__(self) -> None:
        self.events = Batch()
        self.messages = Batch()
        self.opened = Batch()
        self.settled = Batch()
        self.parked = Batch()

    def add(self, entries: Iterable[Entry]) -> None:
        """The rows of one call. An obligation that is opened and settled in the same call is none."""
        opened: dict[bytes, Entry] = {}
        for entry in entries:
            message_id, kind = entry.message_id, entry.kind
            detail = entry.detail
            self.events.add(
                (kind, entry.at, entry.broker, entry.version), message_id, document(detail) if detail else b""
            )
            if entry.message is not None:
                self._add_message(message_id, entry.at, entry.message)
            effect = _EFFECTS[kind]
            if effect is Effect.NONE:
                continue
            if effect is Effect.OPENS:
                opened[message_id] = entry
            elif opened.pop(message_id, None) is None:
                (self.settled if effect is Effect.SETTLES else self.parked).add((), message_id)
        for message_id, entry in opened.items():
            self.opened.add((0, entry.broker, entry.at), message_id, b"", b"", b"", b"")

    def add_claim(self, claim: Claim) -> None:
        """Messages, ``accepted`` events and obligations of a new claim."""
        for item, intent in enumerate(claim.intents):
            message_id, broker, message = intent.message_id, intent.broker, intent.message
            if message is None:
                raise ValueError(f"intent {item} comes without its message")
            self.events.add((Kind.ACCEPTED, intent.at, broker, message.version), message_id, b"")
            self._add_message(message_id, intent.at, message)
            exchange, routing_key = octets(intent.exchange), octets(intent.routing_key)
            self.opened.add((item, broker, intent.at), message_id, claim.key_id, exchange, routing_key, intent.payload)

    def _add_message(self, message_id: bytes, at: int, message: NewMessage) -> None:
        self.messages.add(
            (at, message.broker, message.version, uint64_in_json(message.size), message.origin),
            message_id,
            octets(message.exchange),
            octets(message.routing_key),
            message.sha256,
            octets(message.client),
            document(message.properties),
        )


class Group:
    """The statements of a group commit."""

    def __init__(self, database: Database, shards: Shards, keys: Keys) -> None:
        self._shards = shards
        self._keys = keys
        dialect = database.dialect
        insert = INSERT[dialect]
        shard, fence = sa.bindparam("my_shard", type_=sa.BigInteger), sa.bindparam("my_fence", type_=sa.BigInteger)

        columns = [column for column in events.c if column.name not in ("shard", "sequence")]
        rows, index = select_rows(dialect, columns)
        rows = rows.add_columns(
            shard.label("shard"), (sa.bindparam("first", type_=sa.BigInteger) + index).label("sequence")
        )
        self._events = Prepared(database, insert(events).from_select(list(rows.selected_columns.keys()), rows))

        rows, _ = select_rows(dialect, list(messages.c))
        self._messages = Prepared(
            database,
            insert(messages)
            .from_select(list(rows.selected_columns.keys()), rows)
            .on_conflict_do_nothing(index_elements=[messages.c.id]),
        )
        columns = [column for column in obligations.c if column.name not in ("attempt", "status", "shard", "fence")]
        rows, _ = select_rows(
            dialect,
            columns,
            attempt=sa.literal(1, sa.BigInteger),
            status=sa.literal(PENDING),
            shard=shard,
            fence=fence,
        )
        self._open = Prepared(database, insert(obligations).from_select(list(rows.selected_columns.keys()), rows))

        named = obligations.c.message_id.in_(select_rows(dialect, (obligations.c.message_id,))[0])
        plain = obligations.c.key_id == sa.literal(b"", sa.LargeBinary)
        self._settle = Prepared(database, sa.delete(obligations).where(named))
        self._settle_plain = Prepared(database, sa.delete(obligations).where(named, plain))
        self._park = Prepared(database, sa.update(obligations).where(named).values(status=PARKED))

    def write(self, connection: sa.Connection, lease: Lease, calls: Sequence[Call], now: int) -> Written:
        """Write the calls, inside a transaction of the caller's, and set their results. ``now`` is the ledger's
        clock in microseconds.

        Raises:
            Fenced: the lease is gone; nothing may be committed.
            Exception: the database's, or that of a row that cannot be encoded.
        """
        rows = Rows()
        claims: list[Claim] = []
        settles: list[Settle] = []
        records: list[tuple[Record, int]] = []
        for call in calls:
            if isinstance(call, Record):
                records.append((call, len(rows.events)))
                rows.add(call.entries)
            elif isinstance(call, Settle):
                settles.append(call)
                rows.add(call.entries)
            else:
                assert isinstance(call, Claim)
                claims.append(call)
        first, commits = self._shards.enter(connection, lease, len(rows.events))
        for call, offset in records:
            call.result = list(range(first + offset, first + offset + len(call.entries)))
        deferred: list[Call] = []
        if claims:
            before = len(rows.events)
            new, deferred = self._keys.claim(connection, lease, claims, now)
            for claim in new:
                rows.add_claim(claim)
            if len(rows.events) > before:
                self._shards.extend(connection, lease, len(rows.events) - before)
        self._insert(connection, lease, rows, first)
        if settles:
            self._keys.settle(connection, lease, settles, now)
        return Written(commits, deferred)

    def append(self, connection: sa.Connection, lease: Lease, entries: Iterable[Entry]) -> None:
        """Write entries inside a transaction that has not entered its shard yet.

        Raises:
            Fenced: the lease is gone; nothing may be committed.
        """
        rows = Rows()
        rows.add(entries)
        first, _ = self._shards.enter(connection, lease, len(rows.events))
        self._insert(connection, lease, rows, first)

    def _insert(self, connection: sa.Connection, lease: Lease, rows: Rows, first: int) -> None:
        mine: dict[str, Any] = {"my_shard": lease.shard, "my_fence": lease.fence}
        if rows.messages:
            self._messages.run(connection, rows.messages.parameters())
        if rows.events:
            self._events.run(connection, rows.events.parameters(first=first, my_shard=lease.shard))
        if rows.opened:
            self._open.run(connection, rows.opened.parameters(**mine))
        if rows.settled:
            self._settle.run(connection, rows.settled.parameters())
        if rows.parked:
            self._settle_plain.run(connection, rows.parked.parameters())
            self._park.run(connection, rows.parked.parameters())
