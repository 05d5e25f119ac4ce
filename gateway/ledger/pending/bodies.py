"""Payloads: stored once for each message, for any number of subscriptions, and gone with the last of them.

A row counts the deliveries that need it. Counting, not looking for them, is what makes it safe between processes: one
that stores a second delivery of a message and one that settles the first wait for each other at the row, and the second
one sees the other's count.

Two messages may say that they have the same id: one that was consumed, changed and published again with its headers
does. So a payload is found by its digest as well; a pending message is never changed by somebody else's.

A payload may be kept longer than it is pending, until a time (``[retention]``), so that it can be replayed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import sqlalchemy as sa

from gateway.config import RetentionSettings
from gateway.ledger.db.batch import RowBatch, select_rows
from gateway.ledger.db.checksums import DAMAGED
from gateway.ledger.db.engine import Database
from gateway.ledger.db.ids import DAY_MS
from gateway.ledger.db.models import bodies
from gateway.ledger.db.prepared import PreparedStatement, once
from gateway.ledger.db.shards import INSERT
from gateway.ledger.writing.calls import Keep
from gateway.ledger.writing.states import EventKind

DEFAULTS = RetentionSettings()
SETTLED = frozenset({EventKind.ACKNOWLEDGED, EventKind.REJECTED, EventKind.DISCARDED, EventKind.DEAD_LETTERED})
"""How a consumer is done with a message."""
NONE: frozenset[EventKind] = frozenset()
CHUNK = 1_000
"""Most payloads that are forgotten in one transaction."""
DIGEST = 16
"""Octets of a digest."""

Key: TypeAlias = tuple[bytes, bytes]
"""Message id and digest."""

_ONLY_LOCKED = (b"", 0, 0)
"""In place of a payload that is added: its row is there."""


class Bodies:
    """The statements on ``bodies``; they belong to the writer's thread."""

    def __init__(self, database: Database, retention: RetentionSettings = DEFAULTS) -> None:
        self.retention = retention
        """Which bodies are kept; may be replaced at any time, from any thread."""
        self._postgresql = database.is_postgresql
        self._prepare(database)

    @once
    def _prepare(self, database: Database) -> None:
        dialect = database.dialect
        rows, _ = select_rows(dialect, list(bodies.c))
        insert = INSERT[dialect](bodies).from_select(list(rows.selected_columns.keys()), rows)
        later = sa.case(
            (bodies.c.kept_until > insert.excluded.kept_until, bodies.c.kept_until), else_=insert.excluded.kept_until
        )
        self._add = PreparedStatement(
            database,
            insert.on_conflict_do_update(
                index_elements=[bodies.c.message_id, bodies.c.digest],
                set_={"owed": bodies.c.owed + insert.excluded.owed, "kept_until": later},
                where=(insert.excluded.owed > 0) | (insert.excluded.kept_until > 0),  # a row is locked either way
            ),
        )
        named, _ = select_rows(dialect, (bodies.c.message_id, bodies.c.digest))
        counted, _ = select_rows(dialect, (bodies.c.owed, bodies.c.message_id, bodies.c.digest))
        given = counted.subquery("given")
        now = sa.bindparam("now", type_=sa.BigInteger)
        self._remove = PreparedStatement(
            database,
            matching(dialect, bodies, named, bodies.c.owed == 1, bodies.c.kept_until <= now).returning(
                bodies.c.message_id, bodies.c.digest
            ),
        )
        self._give = PreparedStatement(
            database,
            sa.update(bodies)
            .where(bodies.c.message_id == given.c.message_id, bodies.c.digest == given.c.digest)
            .values(owed=bodies.c.owed - given.c.owed),
        )
        self._clear = PreparedStatement(
            database, matching(dialect, bodies, named, bodies.c.owed <= 0, bodies.c.kept_until <= now)
        )
        these = sa.tuple_(bodies.c.message_id, bodies.c.digest)
        self._payloads = PreparedStatement(
            database, sa.select(bodies.c.message_id, bodies.c.digest, bodies.c.payload).where(these.in_(named))
        )
        expired = (
            sa.select(bodies.c.message_id, bodies.c.digest)
            .where(sa.text("bodies.kept_until > 0"), bodies.c.kept_until <= now)
            .order_by(bodies.c.kept_until)
            .limit(sa.bindparam("most", type_=sa.BigInteger))
            .with_for_update(skip_locked=True)
        )
        self._expired = PreparedStatement(database, expired)
        messages, _ = select_rows(dialect, (bodies.c.message_id,))
        self._let_go = PreparedStatement(
            database,
            sa.update(bodies).where(bodies.c.message_id.in_(messages), bodies.c.kept_until > 0).values(kept_until=0),
        )
        self._clear_all = PreparedStatement(
            database, matching(dialect, bodies, messages, bodies.c.owed <= 0, bodies.c.kept_until <= now)
        )
        self._unkeep = PreparedStatement(database, sa.update(bodies).where(these.in_(named)).values(kept_until=0))

    @property
    def body_max(self) -> int:
        """Largest body that is kept longer than it is pending, in bytes."""
        return self.retention.body_max

    @property
    def until_consumed(self) -> frozenset[EventKind]:
        """Kinds of event after which a body is not kept any more."""
        return SETTLED if self.retention.bodies == "until-settled" else NONE

    def kept_until(self, now: int) -> int:
        """Until when a body is kept at least; 0: it goes once nothing is pending."""
        retention = self.retention
        return _until(retention, now) if retention.bodies == "days" else 0

    def keep(self, connection: sa.Connection, calls: Sequence[Keep], now: int) -> None:
        """Keep bodies without a pending delivery."""
        retention = self.retention
        until = _until(retention, now)
        rows = {
            (row.message_id, digest_of(row.payload)): (row.payload, 0, until)
            for call in calls
            for row in call.kept
            if row.size <= retention.body_max
        }
        if rows:
            self.add(connection, rows)

    def let_go(self, connection: sa.Connection, message_ids: Iterable[bytes], now: int) -> None:
        """Keep bodies of these messages no longer than they are pending."""
        batch = RowBatch()
        for message_id in sorted(message_ids):
            batch.add((), message_id)
        self._let_go.run(connection, batch.parameters())
        self._clear_all.run(connection, batch.parameters(now=now))

    def add(self, connection: sa.Connection, rows: Mapping[Key, tuple[bytes, int, int]]) -> None:
        """Add payloads: what they are, how many more deliveries need them, and until when they are kept (0: not)."""
        batch = RowBatch()
        for key in sorted(rows):  # the same order in every process: they may share messages
            payload, owed, kept_until = rows[key]
            batch.add((owed, kept_until), *key, payload)
            if batch.is_full:
                self._add.run(connection, batch.parameters())
                batch = RowBatch()
        if batch:
            self._add.run(connection, batch.parameters())

    def write(
        self,
        connection: sa.Connection,
        added: Mapping[Key, tuple[bytes, int, int]],
        released: Mapping[Key, int],
        now: int,
    ) -> None:
        """Add payloads, and release those that so many deliveries do not need any more. Those that nobody needs go;
        ``now`` in microseconds, by the ledger's clock."""
        if released and self._postgresql:
            # Those to be released are locked on the way, so that every process locks in the same order, and two that
            # share messages never wait for each other in a circle.
            added = dict.fromkeys(released, _ONLY_LOCKED) | dict(added)
        if added:
            self.add(connection, added)
        if not released:
            return
        ordered = sorted(released)
        single = [key for key in ordered if released[key] == 1]
        gone: set[Any] = set()
        if single:
            gone.update(self._remove.run(connection, keys(single).parameters(now=now)))
        if len(gone) == len(ordered):
            return
        rest = RowBatch()
        left = [key for key in ordered if key not in gone]
        for key in left:
            rest.add((released[key],), *key)
        self._give.run(connection, rest.parameters())
        self._clear.run(connection, keys(left).parameters(now=now))

    def payloads(self, connection: sa.Connection, wanted: Iterable[Key]) -> dict[Key, bytes]:
        """The payloads of these; of one that is not what was written :data:`DAMAGED`."""
        found = self._payloads.run(connection, keys(wanted).parameters())
        return {(message_id, digest): sound(payload, digest) for message_id, digest, payload in found}

    def forget_expired(self, connection: sa.Connection, now: int) -> int:
        """Forget that payloads are kept whose time is over, at most :data:`CHUNK`, and delete those that nobody is
        owed; how many."""
        found: list[Any] = self._expired.run(connection, {"now": now, "most": CHUNK})
        if found:
            batch = keys(sorted(found)).parameters()
            self._unkeep.run(connection, batch)
            self._clear.run(connection, {**batch, "now": now})
        return len(found)


def matching(dialect: str, table: sa.Table, named: sa.Select[Any], *conditions: sa.ColumnElement[bool]) -> sa.Delete:
    """DELETE of the rows of a batch, in the order of the batch where the database has a word for that: two processes
    that delete the same rows then wait for each other, but not in a circle."""
    columns = [table.c[column.name] for column in named.selected_columns]
    if dialect == "sqlite":
        this: Any = columns[0] if len(columns) == 1 else sa.tuple_(*columns)
        return sa.delete(table).where(this.in_(named), *conditions)
    rows = named.subquery("named")
    return sa.delete(table).where(*(column == rows.c[column.name] for column in columns), *conditions)


def keys(wanted: Iterable[Key]) -> RowBatch:
    """The batch of these keys."""
    batch = RowBatch()
    for key in wanted:
        batch.add((), *key)
    return batch


def digest_of(payload: bytes) -> bytes:
    """What tells payloads of one message id apart."""
    return hashlib.sha256(payload).digest()[:DIGEST]


def sound(payload: bytes, digest: bytes) -> bytes:
    """A payload of the ledger; :data:`DAMAGED` where it is not what was written."""
    return payload if digest_of(payload) == digest else DAMAGED


def _until(retention: RetentionSettings, now: int) -> int:
    return now + retention.body_days * DAY_MS * 1_000
