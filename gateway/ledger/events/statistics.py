"""Counts per hour, which stay when the events are gone.

Events are counted by their sequence numbers: a page of a shard's events is summed up by a reader, and written in one
transaction that also moves the shard's row of ``counted`` from where the page began to where it ended. If that row is
somewhere else by then, another process has counted them, and nothing is written. So each event counts once, in any
process, and through crashes.

The hour is that of which the event tells. Names of subscriptions, endpoints and bridges come from its detail; callers
choose some of them, so an hour holds :data:`ROWS_MAX` different counts at most, and what would make more of them is
counted under :data:`OTHER`.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import sqlalchemy as sa

from gateway.ledger.db.batch import RowBatch, select_rows
from gateway.ledger.db.encoding import octets, parse, text
from gateway.ledger.db.engine import Database
from gateway.ledger.db.models import MAX_INT64, counted, events, messages, shards, statistics
from gateway.ledger.db.prepared import PreparedStatement, once
from gateway.ledger.db.shards import INSERT
from gateway.ledger.writing.records import HourFilter, HourlyEvents
from gateway.ledger.writing.states import EventKind

HOUR_US: Final = 3_600_000_000
SPAN: Final = 5_000
"""Sequence numbers of a page."""
ROWS_MAX: Final = 5_000
"""Most rows of an hour, but for one of each kind and broker."""
CHUNK: Final = 1_000
"""Most rows that are forgotten in one transaction."""
OTHER: Final = "(other)"
"""The name under which the counts are that an hour has no room for."""
BY: Final = ("kind", "broker", "subscription", "endpoint", "bridge")
"""Names by which the counts of an hour can be grouped."""


class Names(msgspec.Struct, frozen=True):
    """What of a detail is counted by."""

    subscription: str = ""
    endpoint: str = ""
    bridge: str = ""


class StatisticsKey(NamedTuple):
    """A row of ``statistics``."""

    hour: int
    kind: str
    broker: str
    subscription: str
    endpoint: str
    bridge: str


class StatisticsPage(NamedTuple):
    """Events of a shard, summed up."""

    shard: int
    begin: int
    """The last sequence number before them."""
    end: int
    """Their last."""
    counts: dict[StatisticsKey, tuple[int, int]]
    """Events, and octets of their messages' bodies."""


_decode = msgspec.json.Decoder(Names).decode
_BEHIND = (
    sa.select(shards.c.shard, sa.func.coalesce(counted.c.sequence, 0).label("begin"), shards.c.next_sequence)
    .select_from(shards.outerjoin(counted, counted.c.shard == shards.c.shard))
    .where(shards.c.next_sequence - 1 > sa.func.coalesce(counted.c.sequence, 0))
    .order_by((shards.c.next_sequence - sa.func.coalesce(counted.c.sequence, 0)).desc())
)
_SUMS = (
    sa.select(
        events.c.kind,
        events.c.broker,
        events.c.detail,
        sa.func.count().label("events"),
        sa.func.sum(sa.func.coalesce(messages.c.size, 0)).label("octets"),
    )
    .select_from(events.outerjoin(messages, messages.c.id == events.c.message_id))
    .where(
        events.c.shard == sa.bindparam("this", type_=sa.BigInteger),
        events.c.sequence > sa.bindparam("begin", type_=sa.BigInteger),
        events.c.sequence <= sa.bindparam("end", type_=sa.BigInteger),
    )
)


class Statistics:
    """The statements on ``statistics`` and ``counted``."""

    @once
    def __init__(self, database: Database) -> None:
        # Integers divide to integers in both databases, but SQLAlchemy would have it otherwise.
        hour = sa.literal_column(f"(events.at / {HOUR_US})", sa.BigInteger).label("hour")
        self._sums = _SUMS.add_columns(hour).group_by(hour, events.c.kind, events.c.broker, events.c.detail)
        self._postgresql = database.is_postgresql

        this, begin, end = (sa.bindparam(name, type_=sa.BigInteger) for name in ("this", "begin", "end"))
        self._move = PreparedStatement(
            database,
            sa.update(counted)
            .where(counted.c.shard == this, counted.c.sequence == begin)
            .values(sequence=end)
            .returning(counted.c.shard),
        )
        self._begin = PreparedStatement(
            database,
            INSERT[database.dialect](counted)
            .values(shard=this, sequence=end)
            .on_conflict_do_nothing(index_elements=[counted.c.shard])
            .returning(counted.c.shard),
        )
        rows, _ = select_rows(database.dialect, list(statistics.c))
        insert = INSERT[database.dialect](statistics).from_select(list(rows.selected_columns.keys()), rows)
        self._add = insert.on_conflict_do_update(
            index_elements=list(statistics.primary_key),
            set_={name: statistics.c[name] + insert.excluded[name] for name in ("events", "octets")},
        )

    # ----------------------------------------------------------------------------------------------- counting

    def next_page(self, connection: sa.Connection, until: Mapping[str, int]) -> StatisticsPage | None:
        """The next events up to a position that are not counted, summed up. None: all are. Runs in a reader's
        thread."""
        rows = connection.execute(_BEHIND).all()
        row = next((row for row in rows if row.begin < until.get(str(row.shard), 0)), None)
        if row is None:
            return None
        end = min(row.begin + SPAN, until[str(row.shard)])
        if self._postgresql:  # the planner would rather read all messages than look up a few thousand
            connection.exec_driver_sql("SET LOCAL enable_hashjoin = off")
            connection.exec_driver_sql("SET LOCAL enable_mergejoin = off")
        counts: dict[StatisticsKey, tuple[int, int]] = {}
        for found in connection.execute(self._sums, {"this": row.shard, "begin": row.begin, "end": end}):
            names = _names(found.detail)
            key = StatisticsKey(found.hour, found.kind, found.broker, names.subscription, names.endpoint, names.bridge)
            number, size = counts.get(key, (0, 0))
            counts[key] = number + found.events, size + int(found.octets)
        return StatisticsPage(row.shard, row.begin, end, counts)

    def add(self, connection: sa.Connection, page: StatisticsPage) -> bool:
        """Add a page to the counts, inside a transaction of the writer's. False: somebody else did that."""
        moved = self._begin if page.begin == 0 else self._move
        if not moved.run(connection, {"this": page.shard, "begin": page.begin, "end": page.end}):
            return False
        sums: dict[StatisticsKey, tuple[int, int]] = {}
        for key, (number, size) in self._bounded(connection, page.counts).items():
            sums[key] = number, min(size, MAX_INT64)
        rows = RowBatch()
        for key in sorted(sums):  # the same order for every process
            number, size = sums[key]
            rows.add(
                (key.hour, key.kind, key.broker, number, size),
                octets(key.subscription),
                octets(key.endpoint),
                octets(key.bridge),
            )
        connection.execute(self._add, rows.parameters())
        return True

    def _bounded(
        self, connection: sa.Connection, counts: Mapping[StatisticsKey, tuple[int, int]]
    ) -> Mapping[StatisticsKey, tuple[int, int]]:
        """The same, where an hour that is full gets no new names."""
        full: dict[int, set[StatisticsKey]] = {}
        for hour in {key.hour for key in counts}:
            there = connection.execute(
                sa.select(sa.func.count()).select_from(statistics).where(statistics.c.hour == hour)
            ).scalar_one()
            if there + sum(key.hour == hour for key in counts) > ROWS_MAX:
                rows = connection.execute(sa.select(*list(statistics.c)[:6]).where(statistics.c.hour == hour))
                full[hour] = {StatisticsKey(*row[:3], *map(text, row[3:])) for row in rows}
        if not full:
            return counts
        bounded: dict[StatisticsKey, tuple[int, int]] = {}
        for key, (number, size) in counts.items():
            room = full.get(key.hour)
            if room is not None and key not in room:
                if len(room) < ROWS_MAX:
                    room.add(key)
                else:
                    names = (OTHER if name else "" for name in key[3:])
                    key = StatisticsKey(*key[:3], *names)
            before = bounded.get(key, (0, 0))
            bounded[key] = before[0] + number, before[1] + size
        return bounded


def forget(connection: sa.Connection, before: int) -> int:
    """Delete counts of hours before this one, at most :data:`CHUNK` rows; how many."""
    key = sa.tuple_(*statistics.primary_key)
    old = sa.select(*statistics.primary_key).where(statistics.c.hour < before).order_by(*statistics.primary_key)
    return connection.execute(sa.delete(statistics).where(key.in_(old.limit(CHUNK)))).rowcount


# -------------------------------------------------------------------------------------------------- reading


def page(
    connection: sa.Connection, where: HourFilter, cursor: str | None, limit: int, by: Collection[str] = BY
) -> tuple[list[HourlyEvents], str | None]:
    """Counts, the newest hour first, and the cursor of the next page (None: that was the last). What they are not told
    apart ``by`` is summed up, and empty.

    Raises:
        ValueError: the cursor is malformed.
    """
    told = [statistics.c[name] for name in BY if name in by]
    query = (
        sa.select(
            statistics.c.hour,
            *told,
            sa.func.sum(statistics.c.events).label("events"),
            sa.func.sum(statistics.c.octets).label("octets"),
        )
        .group_by(statistics.c.hour, *told)
        .order_by(statistics.c.hour.desc(), *told)
        .limit(limit + 1)
    )
    if where.since is not None:
        query = query.where(statistics.c.hour >= where.since)
    if where.until is not None:
        query = query.where(statistics.c.hour < where.until)
    if where.kinds is not None:
        query = query.where(statistics.c.kind.in_([str(kind) for kind in where.kinds]))
    if where.broker is not None:
        query = query.where(statistics.c.broker == where.broker)
    for name in Names.__struct_fields__:
        value = getattr(where, name)
        if value is not None:
            query = query.where(statistics.c[name] == octets(value))
    if cursor is not None:
        hour, *values = _cursor(cursor, told)
        last = [sa.literal(value, column.type) for column, value in zip(told, values, strict=True)]
        following = statistics.c.hour < hour
        if told:
            following |= (statistics.c.hour == hour) & (sa.tuple_(*told) > sa.tuple_(*last))
        query = query.where(following)
    rows = connection.execute(query).all()
    found = [_hour(row._asdict()) for row in rows[:limit]]
    if len(rows) <= limit:
        return found, None
    return found, urlsafe_b64encode(msgspec.json.encode(list(rows[limit - 1])[:-2])).decode()


def _hour(row: Mapping[str, Any]) -> HourlyEvents:
    names = {name: text(row.get(name, b"")) for name in Names.__struct_fields__}
    return HourlyEvents(
        hour=row["hour"],
        kind=EventKind(row["kind"]) if "kind" in row else None,
        broker=row.get("broker", ""),
        events=int(row["events"]),
        octets=int(row["octets"]),
        **names,
    )


def _cursor(cursor: str, told: Sequence[sa.Column[Any]]) -> tuple[Any, ...]:
    kinds: Any = tuple(bytes if isinstance(column.type, sa.LargeBinary) else str for column in told)
    try:
        found: tuple[Any, ...] = msgspec.json.decode(urlsafe_b64decode(cursor), type=tuple[(int, *kinds)])
    except (ValueError, msgspec.DecodeError):
        raise ValueError(f"{cursor!r:.80} is no cursor of this list") from None
    return found


def _names(detail: bytes) -> Names:
    if not detail:
        return Names()
    try:
        return _decode(detail)
    except (msgspec.DecodeError, UnicodeDecodeError):  # escaped surrogates, or a name that is none
        found = parse(detail)
        given = {name: found[name] for name in Names.__struct_fields__ if isinstance(found.get(name), str)}
        return Names(**given)
