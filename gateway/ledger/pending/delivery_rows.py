"""Deliveries within a transaction of the writer's: stored, handed out, settled.

Handing out is ``FOR UPDATE SKIP LOCKED``: any number of processes claim at once, and none waits for another nor gets
the same row. A settlement locks its rows, looks at what they are and follows a table
(:data:`gateway.ledger.pending.owed.ENDINGS`), so that several of one row in one group have the effect that they would
have one after the other.

**In order.** Of the deliveries with the same key only the oldest that is not dead may be handed out. That is asked of
each row, when it is claimed, and nothing is remembered of it, so that nothing can be forgotten. Usually the first rows
that are due hold enough that are the oldest of their keys (:data:`WINDOW`). Where they do not, as when one key has
50,000 rows, the claim goes from key to key instead, one step along the index for each, and begins where the last one
ended, so that each key has its turn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import sqlalchemy as sa

from gateway.fidelity.deaths import code_of
from gateway.ledger.db.batch import RowBatch, select_rows
from gateway.ledger.db.encoding import document, octets, parse, text
from gateway.ledger.db.engine import Database, Row
from gateway.ledger.db.models import deliveries
from gateway.ledger.db.prepared import PreparedStatement, once
from gateway.ledger.pending.bodies import Bodies, Key, digest_of, matching
from gateway.ledger.pending.owed import ENDINGS, BacklogEntry, BacklogSettlement, BacklogStatus, Claimed, Ending
from gateway.ledger.writing.calls import Hand, SettleOwed, Store, WriterCall
from gateway.ledger.writing.inserts import Insert, insert
from gateway.ledger.writing.records import LogEntry

WINDOW: Final = 4
"""In order: how many rows are looked at for each that is wanted, before it goes from key to key."""
WINDOW_MIN: Final = 200
STEPS: Final = 500
"""Keys that one statement goes along."""
STARTS: Final = 10_000
"""Most subscriptions of which is remembered where the last claim ended."""
OCTETS_MAX: Final = 256 << 20
"""Most octets of bodies that are handed out in one transaction, unless it is only one row."""

WAITING, OUT, DEAD, GONE = (int(status) for status in BacklogStatus)
OPEN: Final = sa.text("deliveries.status < 2")
COLUMNS: Final = tuple(
    deliveries.c[name]
    for name in (
        "id", "message_id", "digest", "subscription", "order_key", "at", "due_at", "attempt", "lease", "status", "size",
        "reason",
    )
)  # fmt: skip
"""What is read of a row, in the order that :func:`delivery` takes it."""


class DeliveryRows:
    """The statements on ``deliveries``."""

    def __init__(self, database: Database, bodies: Bodies) -> None:
        self.bodies = bodies
        self._starts: dict[bytes, bytes] = {}
        self._prepare(database)
        self._prepare_claims(database)

    @once
    def _prepare(self, database: Database) -> None:
        dialect = database.dialect
        self._insert: Insert = insert(database, deliveries, (deliveries.c.id,), returning=(deliveries.c.id,))
        named, _ = select_rows(dialect, (deliveries.c.id,))
        self._find = PreparedStatement(
            database,
            sa.select(*COLUMNS).where(deliveries.c.id.in_(named)).order_by(deliveries.c.id).with_for_update(),
        )
        under = select_rows(dialect, (deliveries.c.lease, deliveries.c.id))[0].subquery("under")
        held = deliveries.alias("held")
        ended = sa.select(held.c.id).where(held.c.id == under.c.id, held.c.lease == under.c.lease, held.c.status == OUT)
        if dialect != "sqlite":  # locked in this order, and only while they are as they were found
            ended = ended.order_by(held.c.id).with_for_update(of=held)
        self._finish = PreparedStatement(
            database,
            sa.delete(deliveries)
            .where(deliveries.c.id.in_(ended))
            .returning(deliveries.c.id, deliveries.c.message_id, deliveries.c.digest),
        )
        """Done, under a lease: see :func:`_simple`."""
        self._delete = PreparedStatement(database, matching(dialect, deliveries, named))
        changing = tuple(deliveries.c[name] for name in ("due_at", "attempt", "lease", "status", "code"))
        changed = select_rows(dialect, (*changing, deliveries.c.id, deliveries.c.reason))[0].subquery("changed")
        self._change = PreparedStatement(
            database,
            sa.update(deliveries)
            .where(deliveries.c.id == changed.c.id)
            .values({column: changed.c[column.name] for column in (*changing, deliveries.c.reason)}),
        )

    @once
    def _prepare_claims(self, database: Database) -> None:
        dialect = database.dialect
        now, most = sa.bindparam("now", type_=sa.BigInteger), sa.bindparam("most", type_=sa.BigInteger)
        mine = deliveries.c.subscription == sa.bindparam("of", type_=sa.LargeBinary)
        due = sa.and_(mine, OPEN, deliveries.c.due_at <= now)
        in_line = (deliveries.c.due_at, deliveries.c.id)
        self._claim = PreparedStatement(
            database,
            sa.select(*COLUMNS).where(due).order_by(*in_line).limit(most).with_for_update(skip_locked=True),
        )
        # Whose turn it is, is found along the index of the keys, and nothing else will do: so places in its order are
        # compared, not its columns one by one, for which the database may take another index that it thinks as good.
        before = deliveries.alias("before")
        in_turn = (before.c.subscription, before.c.order_key, before.c.id)
        same = sa.and_(before.c.subscription == deliveries.c.subscription, before.c.order_key == deliveries.c.order_key)
        blocked = (
            sa.select(same)
            .where(
                sa.text("length(before.order_key) > 0 AND before.status < 2"),
                sa.tuple_(*in_turn) < sa.tuple_(deliveries.c.subscription, deliveries.c.order_key, deliveries.c.id),
            )
            .order_by(*(column.desc() for column in in_turn))
            .limit(1)
            .correlate(deliveries)
            .scalar_subquery()
        )
        self._window = PreparedStatement(
            database,
            sa.select(deliveries.c.id, blocked.label("blocked")).where(due).order_by(*in_line).limit(most),
        )
        # Some keys, each by a step along the index, and of each the oldest row.
        of, start = sa.bindparam("of", type_=sa.LargeBinary), sa.bindparam("start", type_=sa.LargeBinary)
        key_after = (
            sa.select(sa.case((deliveries.c.subscription == of, deliveries.c.order_key)))
            .where(OPEN, sa.text("length(deliveries.order_key) > 0"))
            .order_by(deliveries.c.subscription, deliveries.c.order_key)
            .limit(1)
        )
        place = sa.tuple_(deliveries.c.subscription, deliveries.c.order_key)
        first = key_after.where(place > sa.tuple_(of, start))
        steps = sa.select(sa.literal(1, sa.BigInteger).label("step"), first.scalar_subquery().label("key")).cte(
            "steps", recursive=True
        )
        following = key_after.where(place > sa.tuple_(of, steps.c.key)).correlate(steps)
        steps = steps.union_all(
            sa.select(steps.c.step + 1, following.scalar_subquery()).where(
                steps.c.key.is_not(None), steps.c.step < most
            )
        )
        each = deliveries.alias("each_one")
        in_turn = (each.c.subscription, each.c.order_key, each.c.id)
        oldest = (
            sa.select(each.c.id)
            .where(
                sa.text("length(each_one.order_key) > 0 AND each_one.status < 2"),
                sa.tuple_(*in_turn) > sa.tuple_(of, steps.c.key, sa.literal(b"", sa.LargeBinary)),
            )
            .order_by(*in_turn)
            .limit(1)
            .correlate(steps)
            .scalar_subquery()
        )
        self._by_key = PreparedStatement(
            database,
            sa.select(steps.c.key, deliveries.c.id, deliveries.c.due_at <= now)
            .select_from(steps.join(deliveries, deliveries.c.id == oldest))
            .where(steps.c.key.is_not(None))
            .order_by(steps.c.step),
        )
        self._without_key = PreparedStatement(
            database,
            sa.select(deliveries.c.id)
            .where(due, sa.text("length(deliveries.order_key) = 0"))
            .order_by(*in_line)
            .limit(most),
        )
        named, _ = select_rows(dialect, (deliveries.c.id,))
        self._lock = PreparedStatement(
            database,
            sa.select(*COLUMNS)
            .where(deliveries.c.id.in_(named), OPEN, deliveries.c.due_at <= now)
            .order_by(*in_line)
            .with_for_update(skip_locked=True),
        )
        handed = select_rows(dialect, (deliveries.c.due_at, deliveries.c.id))[0].subquery("handed")
        self._hand_out = PreparedStatement(
            database,
            sa.update(deliveries)
            .where(deliveries.c.id == handed.c.id)
            .values(
                due_at=handed.c.due_at,
                attempt=deliveries.c.attempt + 1,
                lease=deliveries.c.lease + 1,
                status=sa.literal(OUT, sa.BigInteger),
            ),
        )

    # ----------------------------------------------------------------------------------------- store and settle

    def write(
        self,
        connection: sa.Connection,
        stores: Sequence[Store],
        settles: Sequence[SettleOwed],
        now: int,
        there: int,
    ) -> list[LogEntry]:
        """Store what is new of it, settle, set the calls' results, and return the entries of the settlements that took
        effect. ``now`` is the ledger's clock, ``there`` the database's, in microseconds."""
        needed = self._store(connection, stores, now, there) if stores else {}
        entries: list[LogEntry] = []
        released: dict[Key, int] = {}
        if settles:
            entries, released = self._settle(connection, settles, there)
        if needed or released:
            self.bodies.write(connection, needed, released, now)
        return entries

    def _store(
        self, connection: sa.Connection, calls: Sequence[Store], now: int, there: int
    ) -> dict[Key, tuple[bytes, int, int]]:
        """Store; the payloads that are needed for it, as :meth:`Bodies.add` takes them."""
        rows = self._insert.rows()
        payloads: dict[bytes, tuple[Key, bytes, int]] = {}
        keep_until = self.bodies.kept_until(now)
        for call in calls:
            call.fresh = call.entries  # another attempt may have found other rows
            for owed in call.owed:
                if owed.id in payloads:
                    continue
                key = (owed.message_id, digest_of(owed.payload))
                payloads[owed.id] = (key, owed.payload, keep_until if owed.size <= self.bodies.body_max else 0)
                due_at, attempt, lease, status = when(owed.due_at, owed.at, now, there), owed.attempt, 0, WAITING
                if owed.dead:
                    status = DEAD
                elif owed.lease_seconds > 0:
                    due_at = there + _microseconds(owed.lease_seconds)
                    attempt, lease, status = max(attempt, 1), 1, OUT
                rows.add(
                    (owed.at, due_at, attempt, lease, status, owed.size, _code(owed.reason) if owed.dead else ""),
                    owed.id,
                    *key,
                    octets(owed.subscription),
                    owed.order_key,
                    document(owed.reason),
                )
        if not payloads:
            return {}
        stored = self._insert.run(connection, rows, 0, 0)
        if len(stored) < len(payloads):
            new = {delivery_id for (delivery_id,) in stored}
            for call in calls:
                call.forget_repeated(new)
        needed: dict[Key, tuple[bytes, int, int]] = {}
        for (delivery_id,) in stored:
            key, payload, kept_until = payloads[delivery_id]
            before = needed.get(key)
            needed[key] = (payload, 1 if before is None else before[1] + 1, kept_until)
        return needed

    def _settle(
        self, connection: sa.Connection, calls: Sequence[SettleOwed], there: int
    ) -> tuple[list[LogEntry], dict[Key, int]]:
        """Settle; the entries of what took effect, and how many deliveries of each payload went."""
        simple = _simple(calls)
        released: dict[Key, int] = {}
        finished: set[bytes] = set()
        if simple:
            batch = RowBatch()
            for delivery_id in sorted(simple):
                batch.add((simple[delivery_id],), delivery_id)
            for delivery_id, *key in self._finish.run(connection, batch.parameters()):
                finished.add(delivery_id)
                _count(released, tuple(key))
        batch = RowBatch()
        for delivery_id in sorted({each.id for call in calls for each in call.settlements if each.id not in simple}):
            batch.add((), delivery_id)
        found = {row[0]: _State(row) for row in self._find.run(connection, batch.parameters())} if batch else {}
        entries: list[LogEntry] = []
        for call in calls:
            call.result = results = []
            for settlement in call.settlements:
                if settlement.id in simple:
                    took = settlement.id in finished
                else:
                    state = found.get(settlement.id)
                    took = state is not None and state.apply(settlement, there)
                results.append(took)
                if took:
                    entries += settlement.entries
        gone, changed = RowBatch(), RowBatch()
        for delivery_id, state in found.items():
            if state.status == GONE:
                gone.add((), delivery_id)
                _count(released, state.body)
            elif state.changed:
                values = (state.due_at, state.attempt, state.lease, state.status, state.code)
                changed.add(values, delivery_id, state.reason)
        if gone:
            self._delete.run(connection, gone.parameters())
        if changed:
            self._change.run(connection, changed.parameters())
        return entries, released

    # ------------------------------------------------------------------------------------------------- claim

    def claim(
        self, connection: sa.Connection, calls: Sequence[Hand], there: int
    ) -> tuple[list[LogEntry], list[WriterCall]]:
        """Hand out, set the calls' results, and return the entries and the calls that have to wait for the next
        transaction, since this one has enough octets. Calls for the same subscription are asked for together, and get
        theirs in their order."""
        lines: dict[tuple[bytes, bool], list[Hand]] = {}
        for call in calls:
            lines.setdefault((octets(call.subscription), call.ordered), []).append(call)
        shares: list[tuple[Hand, list[Row], bool]] = []
        deferred: list[WriterCall] = []
        octets_left = OCTETS_MAX
        for (subscription, ordered), line in lines.items():
            if octets_left <= 0:
                deferred += line
                continue
            most = sum(call.limit for call in line)
            pick = self._pick_ordered if ordered else self._pick
            rows = iter(pick(connection, subscription, most, there))
            row = next(rows, None)
            for call in line:
                share: list[Row] = []
                room = min(call.octets_max, octets_left)
                while row is not None and len(share) < call.limit and (not share or row[_SIZE] <= room):
                    share.append(row)
                    room -= row[_SIZE]
                    octets_left -= row[_SIZE]
                    row = next(rows, None)
                shares.append((call, share, row is not None and len(share) < call.limit))
        handed = RowBatch()
        for call, share, _ in shares:
            due_at = there + _microseconds(call.seconds)
            for row in share:
                handed.add((due_at,), row[0])
        payloads: dict[Key, bytes] = {}
        if handed:
            self._hand_out.run(connection, handed.parameters())
            payloads = self.bodies.payloads(connection, {(row[1], row[2]) for _, share, _ in shares for row in share})
        entries: list[LogEntry] = []
        for call, share, is_cut in shares:
            due_at = there + _microseconds(call.seconds)
            call.result = Claimed(
                [delivery(row, there, payloads.get((row[1], row[2])), leased_until=due_at) for row in share]
            )
            call.result.is_cut = is_cut
            if call.result:
                entries += call.entries(call.result)
        return entries, deferred

    def _pick(self, connection: sa.Connection, subscription: bytes, most: int, there: int) -> list[Row]:
        return self._claim.run(connection, {"of": subscription, "now": there, "most": most})

    def _pick_ordered(self, connection: sa.Connection, subscription: bytes, most: int, there: int) -> list[Row]:
        window = max(WINDOW_MIN, most * WINDOW)
        where = {"of": subscription, "now": there}
        seen = self._window.run(connection, {**where, "most": window})
        ids = {delivery_id: None for delivery_id, blocked in seen if not blocked}
        if len(ids) < most and len(seen) == window:
            ids |= {delivery_id: None for (delivery_id,) in self._without_key.run(connection, {**where, "most": most})}
            ids |= dict.fromkeys(self._by_keys(connection, subscription, most, there))
        batch = RowBatch()
        for delivery_id in list(ids)[:most]:
            batch.add((), delivery_id)
        return self._lock.run(connection, batch.parameters(now=there)) if batch else []

    def _by_keys(self, connection: sa.Connection, subscription: bytes, most: int, there: int) -> list[bytes]:
        """The oldest of each key, where they are due; from key to key, once around."""
        begin = start = self._starts.pop(subscription, b"")
        found: list[bytes] = []
        around = False
        while True:
            where = {"of": subscription, "now": there, "start": start, "most": STEPS}
            steps = self._by_key.run(connection, where)
            for key, delivery_id, is_due in steps:
                start = key
                if is_due:
                    found.append(delivery_id)
                if len(found) == most:
                    break
            if len(found) == most or (around and start >= begin):
                break
            if len(steps) < STEPS:  # those were the last keys
                if around or not begin:
                    start = b""
                    break
                around, start = True, b""
        if len(self._starts) >= STARTS:
            self._starts.clear()
        self._starts[subscription] = start
        return found


_SIZE = 10


def _simple(calls: Sequence[SettleOwed]) -> dict[bytes, int]:
    """Most settlements: done, under a lease, and nothing else of that delivery. Its lease by its id; one statement will
    do for all of them."""
    simple: dict[bytes, int] = {}
    others: set[bytes] = set()
    for call in calls:
        for settlement in call.settlements:
            delivery_id, lease = settlement.id, settlement.lease
            if settlement.ending is Ending.DONE and lease and delivery_id not in simple and delivery_id not in others:
                simple[delivery_id] = lease
            else:
                others.add(delivery_id)
                simple.pop(delivery_id, None)
    return simple


def _count(counts: dict[Key, int], key: Key) -> None:
    counts[key] = counts.get(key, 0) + 1


class _State:
    """What a row is while the settlements of a group are applied to it."""

    __slots__ = ("at", "attempt", "body", "changed", "code", "due_at", "lease", "reason", "status")

    def __init__(self, row: Row) -> None:
        self.body: Key = (row[1], row[2])
        self.at: int = row[5]
        self.due_at: int = row[6]
        self.attempt: int = row[7]
        self.lease: int = row[8]
        self.status: int = row[9]
        self.reason: bytes = row[11]
        self.code = ""
        self.changed = False

    def apply(self, settlement: BacklogSettlement, there: int) -> bool:
        """Whether it takes effect."""
        status, ending = self.status, settlement.ending
        if settlement.lease is not None and not self._is_under(settlement.lease):
            return False
        after = _ENDINGS[status].get(ending)
        if after is None:
            return False
        self.changed = True
        self.status = after
        if ending in _MOVES:
            if settlement.front and settlement.due_in <= 0:
                self.due_at = min(self.at, there)
            else:
                self.due_at = there + _microseconds(max(0.0, settlement.due_in))
            if settlement.attempt is not None and ending is not Ending.EXTEND:
                self.attempt = settlement.attempt
        if settlement.reason:
            self.reason = document(settlement.reason)
        self.code = _code(settlement.reason or parse(self.reason)) if after == DEAD else ""
        return True

    def _is_under(self, lease: int) -> bool:
        if self.status == OUT:
            return self.lease == lease
        return self.status == WAITING and self.lease == lease == 0


_ENDINGS: Final[dict[int, dict[Ending, int]]] = {
    int(status): {ending: int(after) for ending, after in endings.items()} for status, endings in ENDINGS.items()
}
_MOVES: Final = frozenset({Ending.RETRY, Ending.EXTEND, Ending.REVIVE})


def delivery(row: Row, there: int, payload: bytes | None = None, leased_until: int | None = None) -> BacklogEntry:
    """A row of :data:`COLUMNS`. ``leased_until``: it was handed out just now."""
    (delivery_id, message_id, _, subscription, order_key, at, due_at, attempt, lease, status, size, reason) = row
    expired = False
    if leased_until is not None:
        expired = status == OUT
        due_at, attempt, lease, status = leased_until, attempt + 1, lease + 1, OUT
    return BacklogEntry(
        id=delivery_id,
        message_id=message_id,
        subscription=text(subscription),
        order_key=order_key,
        at=at,
        due_at=due_at,
        attempt=attempt,
        lease=lease,
        dead=status == DEAD,
        reason=parse(reason),
        size=size,
        payload=payload,
        out=status == OUT,
        expired=expired,
        due_in=(due_at - there) / 1_000_000,
    )


def when(due_at: int, at: int, now: int, there: int) -> int:
    """A due time of this process's clock on the database's. At once: in the order of arrival, but not later than now,
    by the database's clock."""
    return there + due_at - now if due_at > now else min(due_at or at, there)


def _code(reason: Mapping[str, Any]) -> str:
    """The code of a dead one, as it is counted."""
    return code_of(str(reason.get("code", "")))


def _microseconds(seconds: float) -> int:
    return int(seconds * 1_000_000)
