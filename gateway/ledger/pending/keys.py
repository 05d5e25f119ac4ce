"""Idempotency-Keys and obligations, within a transaction of the writer's.

A key is ``running`` while a request with it is under way: held by the shard and fence of its process, and with one
obligation for each message that was promised. It ends ``done``, with the answer; or ``unknown``, with the
obligations parked for the repeat; or it is gone, when nothing was sent. One whose holder died counts as unknown.

Keys are always touched in the order of their digests, after the shard's own row: two processes that claim the same
keys wait for each other, but never in a circle.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import sqlalchemy as sa

from gateway.errors import LedgerDamaged
from gateway.ledger.db.batch import RowBatch, select_rows
from gateway.ledger.db.checksums import DAMAGED, checksum, is_sound
from gateway.ledger.db.encoding import document, octets, parse, text
from gateway.ledger.db.engine import Database
from gateway.ledger.db.models import keys, obligations
from gateway.ledger.db.prepared import PreparedStatement, once
from gateway.ledger.db.shards import INSERT, ShardLease, alive
from gateway.ledger.writing.calls import Claim, SettleKey, WriterCall
from gateway.ledger.writing.records import (
    KeyClaim,
    KeyLost,
    LogEntry,
    Mismatch,
    New,
    OutboxEntry,
    RunningRequest,
    StoredAnswer,
    Unknown,
)
from gateway.ledger.writing.states import EventKind

RUNNING, ANSWERED, UNKNOWN = "running", "done", "unknown"
"""Status of a key."""
FREE = "free"
"""An ending that leaves no key."""
PENDING, PARKED = "pending", "parked"
"""Status of an obligation."""
ID = 16
"""Octets of a message's id."""
CHUNK = 1_000
"""Most keys that are forgotten in one transaction."""
IN_DOUBT = {"reason": "the process that accepted it ended without an outcome"}
"""Detail of the ``unknown`` events that end what is in doubt."""
LOST = "the Idempotency-Key was taken over by another process, or is not claimed"

_SHARD, _FENCE = sa.bindparam("my_shard", type_=sa.BigInteger), sa.bindparam("my_fence", type_=sa.BigInteger)
_NOW, _EXPIRES = sa.bindparam("now", type_=sa.BigInteger), sa.bindparam("expires", type_=sa.BigInteger)
_NOTHING = sa.literal(b"", sa.LargeBinary)


class KeyRow(NamedTuple):
    """A key, as a claim finds it."""

    id: bytes
    client: bytes
    key: bytes
    fingerprint: bytes
    message_ids: bytes
    status: str
    shard: int
    fence: int
    answer_status: int
    answer_headers: bytes
    answer_body: bytes
    checksum: int
    expires_at: int
    alive: bool
    """Its process lives."""


class ObligationRow(NamedTuple):
    """An obligation of a key that is taken over."""

    message_id: bytes
    key_id: bytes
    item: int
    broker: str
    exchange: bytes
    routing_key: bytes
    payload: bytes
    at: int
    attempt: int
    checksum: int


class KeyStatements:
    """The statements on ``idempotency_keys`` and ``obligations``."""

    def __init__(self, database: Database, retention: float) -> None:
        self.retention = int(retention * 1_000_000)
        self._prepare(database)

    @once
    def _prepare(self, database: Database) -> None:
        dialect = database.dialect
        insert = INSERT[dialect]

        claimed = (keys.c.id, keys.c.client, keys.c.key, keys.c.fingerprint, keys.c.message_ids)
        rows, _ = select_rows(
            dialect,
            claimed,
            status=sa.literal(RUNNING),
            shard=_SHARD,
            fence=_FENCE,
            answer_status=sa.literal(0, sa.BigInteger),
            answer_headers=_NOTHING,
            answer_body=_NOTHING,
            expires_at=_EXPIRES,
        )
        self._claim = PreparedStatement(
            database,
            insert(keys)
            .from_select(list(rows.selected_columns.keys()), rows)
            .on_conflict_do_nothing(index_elements=[keys.c.id])
            .returning(keys.c.id),
        )
        named, _ = select_rows(dialect, (keys.c.id,))
        found = [keys.c[name] for name in KeyRow._fields[:-1]]
        self._find = PreparedStatement(
            database,
            sa.select(*found, alive(keys.c.shard, keys.c.fence).label("alive"))
            .where(keys.c.id.in_(named))
            .order_by(keys.c.id)
            .with_for_update(of=keys),
        )
        held = (keys.c.shard == _SHARD) & (keys.c.fence == _FENCE) & (keys.c.status == RUNNING)
        answered = (keys.c.id, keys.c.answer_status, keys.c.answer_headers, keys.c.answer_body, keys.c.checksum)
        answers, _ = select_rows(dialect, answered)
        answer = answers.subquery("answer")
        self._done = PreparedStatement(
            database,
            sa.update(keys)
            .where(keys.c.id == answer.c.id, held)
            .values(
                status=ANSWERED,
                answer_status=answer.c.answer_status,
                answer_headers=answer.c.answer_headers,
                answer_body=answer.c.answer_body,
                checksum=answer.c.checksum,
                expires_at=_EXPIRES,
            )
            .returning(keys.c.id),
        )
        self._free = PreparedStatement(database, sa.delete(keys).where(keys.c.id.in_(named), held).returning(keys.c.id))
        self._unknown = PreparedStatement(
            database,
            sa.update(keys)
            .where(keys.c.id.in_(named), held)
            .values(status=UNKNOWN, expires_at=_EXPIRES)
            .returning(keys.c.id),
        )
        owed_by, _ = select_rows(dialect, (obligations.c.key_id,))
        of_keys = obligations.c.key_id.in_(owed_by)
        self._drop = PreparedStatement(database, sa.delete(obligations).where(of_keys))
        self._park = PreparedStatement(database, sa.update(obligations).where(of_keys).values(status=PARKED))

        self._take_keys = PreparedStatement(
            database,
            sa.update(keys)
            .where(keys.c.id.in_(named))
            .values(status=RUNNING, shard=_SHARD, fence=_FENCE, expires_at=_EXPIRES),
        )
        self._take_obligations = PreparedStatement(
            database,
            sa.update(obligations)
            .where(of_keys)
            .values(status=PENDING, shard=_SHARD, fence=_FENCE, attempt=obligations.c.attempt + 1)
            .returning(*(obligations.c[name] for name in ObligationRow._fields)),
        )
        self._forget = PreparedStatement(database, sa.delete(keys).where(keys.c.id.in_(named)))

        orphaned = (obligations.c.status == PENDING) & ~alive(obligations.c.shard, obligations.c.fence)
        most = sa.bindparam("most", type_=sa.Integer)
        self._plain_in_doubt = PreparedStatement(
            database,
            sa.select(obligations.c.message_id, obligations.c.broker, obligations.c.at)
            .where(orphaned, obligations.c.key_id == _NOTHING)
            .order_by(obligations.c.message_id)
            .limit(most)
            .with_for_update(skip_locked=True),
        )
        self._keys_in_doubt = PreparedStatement(
            database,
            sa.select(keys.c.id, keys.c.client, keys.c.key, sa.func.length(keys.c.message_ids).label("octets"))
            .where(
                keys.c.status == RUNNING,
                keys.c.id.in_(sa.select(obligations.c.key_id).where(orphaned, obligations.c.key_id != _NOTHING)),
            )
            .order_by(keys.c.id)
            .limit(most)
            .with_for_update(skip_locked=True, of=keys),
        )
        expired = (
            sa.select(keys.c.id)
            .where(
                keys.c.expires_at < _NOW,
                (keys.c.status != RUNNING)
                | (~alive(keys.c.shard, keys.c.fence) & ~sa.exists().where(obligations.c.key_id == keys.c.id)),
            )
            .order_by(keys.c.expires_at)
            .limit(most)
            .with_for_update(skip_locked=True, of=keys)
        )
        self._forget_expired = PreparedStatement(
            database, sa.delete(keys).where(keys.c.id.in_(expired)).returning(keys.c.id, keys.c.client)
        )

    # ------------------------------------------------------------------------------------------ claim, settle

    def claim(
        self, connection: sa.Connection, lease: ShardLease, claims: Iterable[Claim], now: int
    ) -> tuple[list[Claim], list[WriterCall]]:
        """Claim keys. Sets the result of every claim but those that are to be tried again after this
        transaction, which it returns behind the new ones."""
        first: dict[bytes, Claim] = {}
        deferred: list[WriterCall] = []
        for claim in claims:
            if claim.key_id in first:
                deferred.append(claim)
            else:
                first[claim.key_id] = claim
        batch = RowBatch()
        for key_id in sorted(first):
            claim = first[key_id]
            ids = b"".join(intent.message_id for intent in claim.intents)
            batch.add((), key_id, octets(claim.client), octets(claim.key), claim.fingerprint, ids)
        times = {"now": now, "expires": now + self.retention}
        mine = {"my_shard": lease.shard, "my_fence": lease.fence}
        made = self._claim.run(connection, batch.parameters(expires=times["expires"], **mine))
        new = []
        for (key_id,) in made:
            claim = first.pop(key_id)
            claim.result, claim.lease = New(), lease
            new.append(claim)
        if first:
            expired: list[bytes] = []
            unknown: list[tuple[Claim, KeyRow]] = []
            for found_row in self._find.run(connection, _ids(sorted(first)).parameters()):
                row = KeyRow(*found_row)
                claim = first.pop(row.id)
                if row.expires_at < now and not (row.status == RUNNING and row.alive):
                    expired.append(row.id)
                    deferred.append(claim)
                elif not _is_sound(row):
                    claim.error = LedgerDamaged("the answer under this Idempotency-Key is not what was written")
                elif (found := _settled(lease, claim, row)) is not None:
                    claim.result = found
                else:
                    unknown.append((claim, row))
            if expired:
                self._drop.run(connection, _ids(expired).parameters())
                self._forget.run(connection, _ids(expired).parameters())
            names = {row.id: (text(row.client), text(row.key)) for _, row in unknown}
            taken = self._take(connection, names, mine | {"expires": times["expires"]})
            for claim, row in unknown:
                claim.result, claim.lease = Unknown(_message_ids(row), tuple(taken[row.id])), lease
            deferred += first.values()  # gone between the two statements
        return new, deferred

    def _take(
        self, connection: sa.Connection, names: Mapping[bytes, tuple[str, str]], hold: Mapping[str, int]
    ) -> dict[bytes, list[OutboxEntry]]:
        """Make keys and their obligations this process's. ``names`` has client and key of each, by its id; returns its
        intents by its id."""
        taken: dict[bytes, list[OutboxEntry]] = {id: [] for id in names}
        if not names:
            return taken
        self._take_keys.run(connection, _ids(taken).parameters(**hold))
        owed = [ObligationRow(*row) for row in self._take_obligations.run(connection, _ids(taken).parameters(**hold))]
        for row in sorted(owed, key=lambda row: row.item):
            client, key = names[row.key_id]
            sent = (row.message_id, row.key_id, row.exchange, row.routing_key, row.payload)
            taken[row.key_id].append(
                OutboxEntry(
                    message_id=row.message_id,
                    broker=row.broker,
                    exchange=text(row.exchange),
                    routing_key=text(row.routing_key),
                    payload=row.payload if is_sound(row.checksum, row.broker.encode(), *sent) else DAMAGED,
                    at=row.at,
                    client=client,
                    key=key,
                    attempt=row.attempt,
                    doubtful=True,
                )
            )
        return taken

    def settle(self, connection: sa.Connection, lease: ShardLease, settles: Sequence[SettleKey], now: int) -> None:
        """End claims. Those whose key is not this lease's any more get an error. So does the second end of one key, and
        one that was claimed under an earlier lease: a process that has lost its shard and leased another one may have
        taken over the key of its own request."""
        endings = {ANSWERED: RowBatch(), FREE: RowBatch(), UNKNOWN: RowBatch()}
        first: dict[bytes, SettleKey] = {}
        for call in settles:
            if call.claimed in (None, lease):
                first.setdefault(call.key_id, call)
        for key_id in sorted(first):
            call = first[key_id]
            if call.answer is not None:
                answer, headers = call.answer, document(call.answer.headers)
                code = checksum(call.key_id, b"%d" % answer.status, headers, answer.body)
                endings[ANSWERED].add((answer.status, code), call.key_id, headers, answer.body)
            else:
                endings[call.ending].add((), call.key_id)
        mine = {"my_shard": lease.shard, "my_fence": lease.fence}
        later = {"expires": now + self.retention}
        ended: set[bytes] = set()
        parked: list[bytes] = []
        if endings[ANSWERED]:
            ended.update(id for (id,) in self._done.run(connection, endings[ANSWERED].parameters(**mine, **later)))
        if endings[FREE]:
            ended.update(id for (id,) in self._free.run(connection, endings[FREE].parameters(**mine)))
        if endings[UNKNOWN]:
            parked += [id for (id,) in self._unknown.run(connection, endings[UNKNOWN].parameters(**mine, **later))]
        if ended:
            self._drop.run(connection, _ids(ended).parameters())
        if parked:
            self._park.run(connection, _ids(parked).parameters())
        ended.update(parked)
        for call in settles:
            call.error = None if call.key_id in ended and first.get(call.key_id) is call else KeyLost(LOST)

    # ------------------------------------------------------------------------------------------------ doubt

    def plain_in_doubt(self, connection: sa.Connection, limit: int, now: int) -> list[LogEntry]:
        """Accepted messages whose process died, promised to nobody: the ``unknown`` that ends each, never before its
        ``accepted``, in spite of differing clocks."""
        return [
            LogEntry(message_id, EventKind.UNKNOWN, max(now, at + 1), broker, "", IN_DOUBT)
            for message_id, broker, at in self._plain_in_doubt.run(connection, {"most": limit})
        ]

    def take_in_doubt(self, connection: sa.Connection, lease: ShardLease, limit: int, now: int) -> list[OutboxEntry]:
        """Take over keys whose process died, until there are about ``limit`` intents or no more keys. The intents of
        one key stay together."""
        hold = {"my_shard": lease.shard, "my_fence": lease.fence, "expires": now + self.retention}
        names: dict[bytes, tuple[str, str]] = {}
        promised = 0
        for id, client, key, length in self._keys_in_doubt.run(connection, {"most": limit}):
            names[id] = text(client), text(key)
            promised += length // ID
            if promised >= limit:
                break
        return [intent for intents in self._take(connection, names, hold).values() for intent in intents]

    def forget_expired(self, connection: sa.Connection, now: int) -> Mapping[str, int]:
        """Forget keys that are older than the retention; at most :data:`CHUNK`. Returns how many of each client."""
        gone = self._forget_expired.run(connection, {"now": now, "most": CHUNK})
        if gone:
            self._drop.run(connection, _ids([id for id, _ in gone]).parameters())
        return Counter(text(client) for _, client in gone)


def _settled(lease: ShardLease, claim: Claim, row: KeyRow) -> KeyClaim | None:
    """What is to be said of a key that is there; None: it has no outcome, and nobody works on it."""
    if row.fingerprint != claim.fingerprint and row.fingerprint not in claim.older():
        return Mismatch()
    if row.status == ANSWERED:
        return StoredAnswer(row.answer_status, parse(row.answer_headers), row.answer_body)
    if row.status == RUNNING and row.alive:
        return RunningRequest((row.shard, row.fence) == lease, _message_ids(row))
    return None


def _is_sound(row: KeyRow) -> bool:
    """Whether the answer of a key is what was written."""
    answer = (row.id, b"%d" % row.answer_status, row.answer_headers, row.answer_body)
    return row.status != ANSWERED or is_sound(row.checksum, *answer)


def _message_ids(row: KeyRow) -> tuple[bytes, ...]:
    return tuple(row.message_ids[begin : begin + ID] for begin in range(0, len(row.message_ids), ID))


def _ids(digests: Iterable[bytes]) -> RowBatch:
    batch = RowBatch()
    for digest in digests:
        batch.add((), digest)
    return batch
