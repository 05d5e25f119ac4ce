"""What can be asked of deliveries. Every method runs in a reader's thread, on a connection of its own."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Final

import sqlalchemy as sa

from gateway.fidelity.deaths import CODES, UNKNOWN
from gateway.ledger.db.encoding import octets, text
from gateway.ledger.db.engine import Database, clock_of
from gateway.ledger.db.ids import first_id
from gateway.ledger.db.models import bodies, deliveries
from gateway.ledger.db.prepared import StaticStatement
from gateway.ledger.pending.bodies import sound
from gateway.ledger.pending.delivery_rows import COLUMNS, OPEN, delivery
from gateway.ledger.pending.owed import BacklogCounts, BacklogEntry, BacklogStatus, DeadGroup, DeliveryFilter
from gateway.ledger.writing.dividing import place_of

COUNTED_MAX: Final = 1_000_000
"""Most dead deliveries that one request counts, in equal shares for its groups."""
_DEAD: Final = sa.literal_column("deliveries.status", sa.BigInteger) == sa.literal_column("2", sa.BigInteger)
_MINE = deliveries.c.subscription == sa.bindparam("of", type_=sa.LargeBinary)


class DeliveryReads:
    """The questions. ``clock``: in place of the database's, in microseconds (tests)."""

    def __init__(self, database: Database, clock: Callable[[], int] | None = None) -> None:
        self._clock = clock
        self._postgresql = database.is_postgresql
        self._statements = _statements(database.dialect, is_injected=clock is not None)

    def _times(self) -> dict[str, int]:
        return {} if self._clock is None else {"now": self._clock()}

    def due(
        self,
        connection: sa.Connection,
        subscription: str,
        limit: int,
        after: tuple[int, bytes] | None,
        payload: bool,
    ) -> list[BacklogEntry]:
        """Those that are not dead, in line."""
        if self._postgresql:  # see ``Database.writer``
            for plan in ("bitmapscan", "seqscan"):
                connection.execute(sa.text(f"SET LOCAL enable_{plan} = off"))
        values: dict[str, Any] = {"of": octets(subscription), "most": limit, **self._times()}
        if after is not None:
            values |= {"behind_due": after[0], "behind_id": after[1]}
        return [_of(row) for row in self._statements.lines[payload, after is not None].rows(connection, values)]

    def get(self, connection: sa.Connection, delivery_id: bytes, payload: bool) -> BacklogEntry | None:
        """One."""
        query = self._statements.select(payload).where(deliveries.c.id == delivery_id)
        row = connection.execute(query, self._times()).one_or_none()
        return None if row is None else _of(row)

    def page(
        self,
        connection: sa.Connection,
        where: DeliveryFilter,
        cursor: str | None,
        limit: int,
        newest_first: bool,
        payload: bool,
    ) -> tuple[list[BacklogEntry], str | None]:
        """Some, by id, and the cursor behind them."""
        this = deliveries.c.id
        query = self._statements.select(payload).where(*_conditions(where)).limit(limit + 1)
        query = query.order_by(this.desc() if newest_first else this)
        if cursor is not None:
            behind = place_of(cursor)
            query = query.where(this < behind if newest_first else this > behind)
        rows = connection.execute(query, self._times()).all()
        found = [_of(row) for row in rows[:limit]]
        return found, found[-1].id.hex() if len(rows) > limit else None

    def count(self, connection: sa.Connection, where: DeliveryFilter, most: int) -> int:
        """How many there are; not more than ``most`` are counted."""
        some = sa.select(deliveries.c.id).where(*_conditions(where)).limit(most).subquery()
        return connection.execute(sa.select(sa.func.count()).select_from(some)).scalar_one()

    def backlog(self, connection: sa.Connection, subscription: str) -> BacklogCounts:
        """Pending messages of a subscription."""
        values = {"of": octets(subscription), **self._times()}
        return _backlog(*self._statements.backlog.row(connection, values))

    def backlogs(self, connection: sa.Connection) -> dict[str, BacklogCounts]:
        """Pending messages of each one that has any."""
        rows = self._statements.backlogs.rows(connection, self._times())
        return {text(name): _backlog(*counts) for name, *counts in rows}

    def dead_groups(
        self, connection: sa.Connection, most: int, code: str | None, subscriptions: tuple[str, ...] | None
    ) -> tuple[list[DeadGroup], bool]:
        """See :func:`dead_groups`."""
        if self._postgresql:
            for plan in ("bitmapscan", "seqscan", "sort"):
                connection.execute(sa.text(f"SET LOCAL enable_{plan} = off"))
        return dead_groups(connection, most, code, subscriptions)


class _Statements:
    """What is asked again and again."""

    def __init__(self, now: sa.ColumnElement[int]) -> None:
        self._now = now
        out = (deliveries.c.status == int(BacklogStatus.OUT)) & (deliveries.c.due_at > now)
        dead = deliveries.c.status == int(BacklogStatus.DEAD)
        counted = (
            sa.func.count().filter(~dead & ~out),
            sa.func.count().filter(out),
            sa.func.count().filter(dead),
            sa.func.coalesce(sa.func.sum(deliveries.c.size), 0),
            sa.func.min(deliveries.c.at).filter(~dead),
            sa.func.min(deliveries.c.due_at).filter(~dead),
            sa.func.count().filter(~dead & ~out & (deliveries.c.attempt > 0)),
        )
        self.backlog = StaticStatement(sa.select(*counted).where(_MINE))
        self.backlogs = StaticStatement(
            sa.select(deliveries.c.subscription, *counted).group_by(deliveries.c.subscription)
        )
        place = sa.tuple_(deliveries.c.due_at, deliveries.c.id)
        behind = place > sa.tuple_(
            sa.bindparam("behind_due", type_=sa.BigInteger), sa.bindparam("behind_id", type_=sa.LargeBinary)
        )
        self.lines: dict[tuple[bool, bool], StaticStatement] = {}
        """Those that are not dead, in line: whether with payloads, and whether behind a place -> the statement."""
        for payload in (False, True):
            line = self.select(payload).where(_MINE, OPEN).order_by(deliveries.c.due_at, deliveries.c.id)
            line = line.limit(sa.bindparam("most", type_=sa.Integer))
            self.lines[payload, False] = StaticStatement(line)
            self.lines[payload, True] = StaticStatement(line.where(behind))

    def select(self, payload: bool) -> sa.Select[Any]:
        """Return the statement that asks for deliveries, without conditions."""
        columns: list[Any] = [*COLUMNS, self._now.label("there")]
        if not payload:
            return sa.select(*columns)
        return sa.select(*columns, bodies.c.payload).outerjoin_from(
            deliveries,
            bodies,
            (bodies.c.message_id == deliveries.c.message_id) & (bodies.c.digest == deliveries.c.digest),
        )


@cache
def _statements(dialect: str, *, is_injected: bool) -> _Statements:
    """Those of a database. ``is_injected``: the time is a parameter, in place of the database's clock."""
    now: sa.ColumnElement[int] = sa.bindparam("now", type_=sa.BigInteger) if is_injected else clock_of(dialect)
    return _Statements(sa.select(now).scalar_subquery())


def dead_groups(
    connection: sa.Connection, most: int, code: str | None, subscriptions: tuple[str, ...] | None
) -> tuple[list[DeadGroup], bool]:
    """Dead deliveries by code and subscription; at most so many groups, and whether there are more. From group to group
    it is a step along an index, and so are the first and the last of each."""
    found: list[tuple[str, bytes]] = []
    if subscriptions is None:
        # A pair that is compared as one is found by SQLite by reading all that equal it: so code by code.
        of = deliveries.c.code == sa.bindparam("this", type_=sa.Text)
        behind = deliveries.c.subscription > sa.bindparam("of", type_=sa.LargeBinary)
        step = sa.select(deliveries.c.subscription).where(_DEAD, of, behind)
        step = step.order_by(deliveries.c.subscription).limit(1)
        for each in ("", *CODES) if code is None else _spelled(code):
            last = b""
            while len(found) <= most:
                row = connection.execute(step, {"this": each, "of": last}).one_or_none()
                if row is None:
                    break
                last = row[0]
                found.append((each, last))
    else:
        this = deliveries.c.code == sa.bindparam("this", type_=sa.Text)
        probe = sa.select(sa.literal(1)).where(_DEAD, this, _MINE).limit(1)
        for name in dict.fromkeys(map(octets, subscriptions)):
            codes = ("", *CODES) if code is None else _spelled(code)
            probes = ((each, connection.execute(probe, {"this": each, "of": name}).scalar()) for each in codes)
            found += [(each, name) for each, one in probes if one is not None]
            if len(found) > most:
                break
    share = COUNTED_MAX // max(1, min(len(found), most))
    groups: dict[tuple[str, str], DeadGroup] = {}
    for each, name in found[:most]:
        group = _group(connection, each, name, share)
        if group is not None:
            before = groups.get((group.code, group.subscription))
            groups[group.code, group.subscription] = group if before is None else _joined(before, group)
    return list(groups.values()), len(found) > most


def _spelled(code: str) -> tuple[str, ...]:
    """How a code is kept. A release before 0009 that still runs keeps none."""
    return ("", UNKNOWN) if code == UNKNOWN else (code,)


def _group(connection: sa.Connection, code: str, name: bytes, most: int) -> DeadGroup | None:
    """Count one; None: it is gone."""
    mine = (_DEAD, deliveries.c.code == code, deliveries.c.subscription == name)
    some = sa.select(deliveries.c.id).where(*mine).limit(most + 1).subquery()
    count = connection.execute(sa.select(sa.func.count()).select_from(some)).scalar_one()
    ends = [
        connection.execute(sa.select(deliveries.c.at).where(*mine).order_by(order).limit(1)).scalar()
        for order in (deliveries.c.id, deliveries.c.id.desc())
    ]
    if not count or ends[0] is None or ends[1] is None:
        return None
    return DeadGroup(
        code=code or UNKNOWN, subscription=text(name), count=min(count, most), more=count > most,
        first_at=ends[0], last_at=ends[1],
    )  # fmt: skip


def _joined(one: DeadGroup, other: DeadGroup) -> DeadGroup:
    return DeadGroup(
        code=one.code, subscription=one.subscription, count=one.count + other.count, more=one.more or other.more,
        first_at=min(one.first_at, other.first_at), last_at=max(one.last_at, other.last_at),
    )  # fmt: skip


def newest(connection: sa.Connection, subscription: str) -> bytes | None:
    """The id of the newest."""
    query = sa.select(deliveries.c.id).where(_MINE).order_by(deliveries.c.id.desc()).limit(1)
    found: bytes | None = connection.execute(query, {"of": octets(subscription)}).scalar()
    return found


def body(connection: sa.Connection, message_id: bytes) -> bytes | None:
    """A payload of a message; where several say that they are it, any of them."""
    query = sa.select(bodies.c.payload, bodies.c.digest).where(bodies.c.message_id == message_id).limit(1)
    found = connection.execute(query).one_or_none()
    return None if found is None else sound(*found)


def _conditions(where: DeliveryFilter) -> list[sa.ColumnElement[bool]]:
    conditions: list[sa.ColumnElement[bool]] = []
    if where.subscription is not None:
        conditions.append(deliveries.c.subscription == octets(where.subscription))
    if where.message_id is not None:
        conditions.append(deliveries.c.message_id == where.message_id)
    if where.order_key is not None:
        conditions.append(deliveries.c.order_key == where.order_key)
    if where.subscriptions is not None:
        conditions.append(deliveries.c.subscription.in_([octets(name) for name in where.subscriptions]))
    if where.code is not None:
        conditions += [_DEAD, deliveries.c.code.in_(_spelled(where.code))]
    if where.dead is not None:
        conditions.append(_DEAD if where.dead else ~_DEAD)
    if where.since is not None:
        conditions.append(deliveries.c.id >= first_id(max(0, where.since // 1000)))
    if where.until is not None:
        conditions.append(deliveries.c.id < first_id(max(0, where.until // 1000)))
    if where.until_id is not None:
        conditions.append(deliveries.c.id <= where.until_id)
    return conditions


_DIGEST: Final = COLUMNS.index(deliveries.c.digest)


def _of(row: Any) -> BacklogEntry:
    values = tuple(row)
    payload = values[len(COLUMNS) + 1] if len(values) > len(COLUMNS) + 1 else None
    if payload is not None:
        payload = sound(payload, values[_DIGEST])
    return delivery(values[: len(COLUMNS)], values[len(COLUMNS)], payload)


def _backlog(
    waiting: int, out: int, dead: int, size: Any, oldest_at: int | None, next_due_at: int | None, tried: int
) -> BacklogCounts:
    return BacklogCounts(waiting, out, dead, int(size), oldest_at, next_due_at, tried)
