"""What goes, what stays, and that nobody waits for it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from gateway.config import RetentionSettings
from gateway.ledger import (
    BacklogSettlement,
    Ending,
    EventKind,
    HourFilter,
    KeptBody,
    Ledger,
    LogEntry,
    MessageFilter,
    MessageIds,
    OutboxEntry,
    Owed,
)
from gateway.ledger.db import schema
from gateway.ledger.db.engine import Database
from gateway.ledger.db.ids import DAY_MS
from gateway.ledger.events import retention
from tests.ledger.conftest import (
    DATABASES,
    NOW,
    ON_POSTGRESQL,
    Clock,
    Open,
    entry,
    intent,
    message,
    new_id,
    published,
)
from tests.ledgers import sqlite_ledger

DAY = 86_400
TODAY = NOW // (DAY * 1_000_000)
DAYS = RetentionSettings(history_days=5, statistics_days=20, bodies="days", body_days=8)


@pytest.fixture(params=DATABASES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """One that is brought up to date by a ledger whose clock says another day: it makes the partitions."""
    found: str = sqlite_ledger(tmp_path) if request.param == "sqlite" else request.getfixturevalue("postgresql_url")
    return found


class History:
    """A ledger whose clock is put forward, and messages of any day."""

    def __init__(self, ledger: Ledger, clock: Clock) -> None:
        self.ledger = ledger
        self.clock = clock
        self.ids = MessageIds(clock)

    @property
    def now(self) -> int:
        return int(self.clock.now * 1_000_000)

    async def go(self, days: float) -> None:
        """So many days later; partitions are made as they come."""
        self.clock.now += days * DAY
        await self.ledger._read(schema.make_partitions, self.clock.now)

    async def publish(self, **fields: Any) -> bytes:
        """A message of now."""
        one = self.ids()
        await self.ledger.record(published(one, self.now, **fields))
        return one

    async def retain(self) -> retention.DropOutcome:
        found = await self.ledger.history.keeper.retain()
        assert found is not None
        return found

    async def known(self) -> list[bytes]:
        """The messages that have a timeline, oldest first."""
        page, cursor = await self.ledger.messages(MessageFilter(), None, 1_000)
        assert cursor is None
        found = [each.id for each in page][::-1]
        for one in found:
            timeline = await self.ledger.timeline(one)
            assert timeline is not None
            assert timeline.events
        return found


@pytest.fixture
async def history(open_ledger: Open, monkeypatch: pytest.MonkeyPatch) -> History:
    clock = Clock()
    monkeypatch.setattr("gateway.runtime.clock.clock.now", clock)
    return History(await open_ledger(clock=clock, retention=DAYS), clock)


async def test_messages_go_when_their_days_are_over(history: History, sql: Any) -> None:
    old = [await history.publish() for _ in range(3)]
    await history.go(5.5)
    young = await history.publish()
    await history.retain()
    assert await history.known() == [*old, young]
    await history.go(1)
    await history.retain()
    assert await history.known() == [young]
    assert sql("SELECT count(*) FROM events") == [(2,)]
    assert await history.ledger.timeline(old[0]) is None


async def test_counts_stay_when_events_go_and_go_later(history: History) -> None:
    await history.publish()

    async def counted() -> int:
        found, _ = await history.ledger.history.statistics(HourFilter(), None, 10, ())
        return sum(each.events for each in found)

    for days, expected in ((6, 2), (14, 2), (1, 0)):
        await history.go(days)
        await history.retain()
        assert await history.known() == []
        assert await counted() == expected, days


async def test_what_is_owed_stays_with_its_timeline(history: History) -> None:
    """A delivery that waits, one that is dead, a publish of later, a key's message, a body that is kept."""
    ledger = history.ledger
    waits, dead, later, kept, gone = [await history.publish() for _ in range(5)]
    keyed = history.ids()
    await ledger.claim_key("shop", "k", b"f", [intent(keyed)])
    for one in (waits, dead):
        await ledger.deliveries.store(
            [owed(one, dead=one is dead)],
            [LogEntry(one, EventKind.STORED, history.now, "rabbit", "0-9-1", {}, message())],
        )
    await ledger.outbox.put(
        [
            OutboxEntry(
                message_id=later, broker="rabbit", exchange="", routing_key="q", payload=b"p", at=history.now,
                due_at=history.now + 100 * DAY * 1_000_000,
            )
        ],
        [entry(later, EventKind.SCHEDULED, history.now)],
    )  # fmt: skip
    await ledger.deliveries.keep_bodies([KeptBody(kept, b"payload", 7)])
    await history.go(7)
    for _ in range(2):
        await history.retain()
        assert sorted(await history.known()) == sorted([waits, dead, later, kept, keyed])
    assert gone not in await history.known()
    timeline = await ledger.timeline(waits)
    assert timeline is not None
    assert [event.kind for event in timeline.events] == [EventKind.ACCEPTED, EventKind.CONFIRMED, EventKind.STORED]
    await history.go(2)
    await history.retain()
    assert sorted(await history.known()) == sorted([waits, dead, later, keyed])
    assert await ledger.deliveries.body(kept) is None
    assert await ledger.deliveries.body(waits) == b"payload"


def owed(message_id: bytes, **fields: Any) -> Owed:
    """A delivery to a subscription."""
    values: dict[str, Any] = {
        "id": new_id(),
        "message_id": message_id,
        "subscription": "billing",
        "at": NOW,
        "payload": b"payload",
        "size": 7,
    }
    return Owed(**(values | fields))


async def test_a_subscription_paused_for_ten_days_loses_nothing(history: History) -> None:
    """Stored, ten days of retention at five days of history, resumed: every message is handed out, and says why."""
    ledger = history.ledger
    ids = []
    for _ in range(5):
        day = [history.ids() for _ in range(20)]
        for one in day:
            await ledger.deliveries.store(
                [owed(one)], [LogEntry(one, EventKind.STORED, history.now, "rabbit", "0-9-1", {}, message())]
            )
        ids += day
        for _ in range(5):
            await history.publish()  # and what nobody is owed
        await history.go(1)
    for _ in range(10):
        await history.go(1)
        await history.retain()
    assert sorted(await history.known()) == sorted(ids)
    claimed: list[bytes] = []
    while page := await ledger.deliveries.claim(
        "billing",
        30,
        60.0,
        entries=lambda found: [entry(each.message_id, EventKind.DELIVERED, history.now) for each in found],
    ):
        claimed += [each.message_id for each in page]
        assert all(each.payload == b"payload" for each in page)
    assert sorted(claimed) == sorted(ids)
    for one in ids:
        timeline = await ledger.timeline(one)
        assert timeline is not None
        assert [event.kind for event in timeline.events] == [EventKind.STORED, EventKind.DELIVERED]


async def test_what_somebody_does_with_an_old_message_is_remembered(history: History) -> None:
    """It was in a broker's queue for longer than the history is."""
    one = await history.publish()
    await history.go(6)
    await history.retain()
    assert await history.known() == []
    delivered = LogEntry(
        one, EventKind.DELIVERED, history.now, "rabbit", "0-9-1", {"subscription": "billing"}, message()
    )
    await history.ledger.record([delivered])
    await history.retain()
    assert await history.known() == [one]
    await history.go(6)
    await history.retain()
    assert await history.known() == []


async def test_a_day_in_use_of_late_stays_readable(history: History) -> None:
    """Before its day goes, too."""
    one, other = await history.publish(), await history.publish()
    await history.go(5.9)
    await history.ledger.record([entry(one, EventKind.ACKNOWLEDGED, history.now)])
    await history.go(0.9)
    await history.retain()
    assert await history.known() == [one]
    assert await history.ledger.timeline(other) is None


async def test_events_of_a_message_that_is_gone_go_too(history: History, sql: Any) -> None:
    one = await history.publish()
    await history.go(6)
    await history.retain()
    await history.ledger.record([entry(one, EventKind.LEASE_EXPIRED, history.now - 6 * DAY * 1_000_000)])
    assert sql("SELECT count(*) FROM events") == [(1,)]
    await history.retain()
    assert sql("SELECT count(*) FROM events") == [(0,)]
    found, _ = await history.ledger.history.statistics(None, None, 100, ())
    assert sum(each.events for each in found) == 3  # counted before it went


async def test_sweeps_go_in_chunks(history: History, sql: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "CHUNK", 7)
    monkeypatch.setattr(retention, "CHUNK_EVENTS", 10)
    history.clock.now -= 40 * DAY  # before all partitions
    kept = [await history.publish() for _ in range(30)][::10]
    for one in kept:
        await history.ledger.deliveries.store([owed(one)])
    await history.go(40)
    steps = []
    step = retention.Sweep.step

    def count(self: Any, *arguments: Any) -> Any:
        found = step(self, *arguments)
        steps.append(found[0])
        return found

    monkeypatch.setattr(retention.Sweep, "step", count)
    await history.retain()
    assert await history.known() == kept
    assert sum(steps) == 27
    assert max(steps) <= 7
    assert len(steps) >= 6


async def test_a_sweep_goes_past_a_message_of_many_events(history: History, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "CHUNK_EVENTS", 3)
    history.clock.now -= 40 * DAY
    kept = await history.publish()
    await history.ledger.record([entry(kept, EventKind.EXTENDED, history.now) for _ in range(5)])
    await history.ledger.deliveries.store([owed(kept)])
    await history.publish()
    await history.go(40)
    async with asyncio.timeout(10):
        await history.retain()
    assert await history.known() == [kept]


async def test_a_sweep_leaves_the_message_at_its_end(
    history: History, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "CHUNK", 2)  # with it, the chunk would be full
    history.clock.now -= 40 * DAY
    await history.publish()
    end = await history.publish()
    await history.go(40)
    await history.ledger.history.keeper.count()
    sweep, read = retention.Sweep(database), {str(history.ledger.shard): 4}
    found = await history.ledger.task(lambda connection, _: sweep.step(connection, b"", end, history.now, read))
    assert found == (1, None)
    assert await history.known() == [end]


async def test_the_keeper_works_by_itself(history: History, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.ledger.events.keeper.COUNT_EVERY", 0.01)
    monkeypatch.setattr("gateway.ledger.events.keeper.RETAIN_EVERY", 0.01)
    one = await history.publish()
    history.ledger.history.start()
    async with asyncio.timeout(60):
        while not (await history.ledger.history.statistics())[0]:
            await asyncio.sleep(0.01)
        assert await history.known() == [one]
        await history.go(6)
        while (await history.ledger.messages())[0]:
            await asyncio.sleep(0.01)


# --------------------------------------------------------------------------------------------------- SQLite


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
async def test_the_file_shrinks(history: History, database: Database) -> None:
    assert database.path is not None
    entries = [each for _ in range(4_000) for each in published(history.ids(), history.now)]
    await history.ledger.record(entries)
    await history.go(6)

    def pages(engine: sa.Engine) -> tuple[int, int]:
        with engine.connect() as connection:
            every, free = (
                connection.exec_driver_sql(f"PRAGMA {name}").scalar_one() for name in ("page_count", "freelist_count")
            )
        return every, free

    engine = database.readers()
    before, _ = pages(engine)
    await history.retain()
    after, free = pages(engine)
    engine.dispose()
    assert after < before / 4
    assert free == 0


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
async def test_a_file_that_cannot_shrink_learns_it(database: Database, open_ledger: Open) -> None:
    """One that was made before there was retention."""
    await (await open_ledger()).close()
    assert database.path is not None
    engine = database.writer()
    with engine.connect() as connection:
        driver: Any = connection.connection.dbapi_connection
        driver.execute("PRAGMA auto_vacuum = NONE")
        driver.execute("VACUUM")
        assert driver.execute("PRAGMA auto_vacuum").fetchone() == (0,)
    await open_ledger()
    with engine.connect() as connection:
        assert connection.exec_driver_sql("PRAGMA auto_vacuum").scalar() == 2


# ----------------------------------------------------------------------------------------------- PostgreSQL


@pytest.fixture
def partitions(sql: Any) -> Callable[[], set[int]]:
    """The days, counted from today, that have partitions, or tables that were partitions."""
    return lambda: {
        int(name.rpartition("_d")[2]) - TODAY
        for (name,) in sql("SELECT relname FROM pg_class WHERE relname ~ '^(messages|events)_d[0-9]+$'")
    }


@ON_POSTGRESQL
async def test_days_are_dropped(history: History, partitions: Any, sql: Any) -> None:
    kept = await history.publish()
    await history.publish()
    await history.ledger.deliveries.store([owed(kept)])
    assert partitions() == set(range(8))
    await history.go(7)
    await history.retain()
    assert partitions() == set(range(2, 15))
    assert sql("SELECT count(*) FROM messages_default") == [(1,)]
    assert sql("SELECT count(*) FROM events_default") == [(2,)]
    assert await history.known() == [kept]


@ON_POSTGRESQL
async def test_a_day_of_which_too_much_is_owed_stays_whole(
    history: History, partitions: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "KEPT_MAX", 3)
    ids = [await history.publish() for _ in range(6)]
    rows = [owed(one) for one in ids[:4]]
    await history.ledger.deliveries.store(rows)
    await history.go(8)
    await history.retain()
    assert min(partitions()) == 0
    assert await history.known() == ids
    settled = BacklogSettlement(rows[0].id, Ending.PURGE)
    assert await history.ledger.deliveries.settle([settled]) == [True]
    await history.retain()
    assert min(partitions()) == 3
    assert sorted(await history.known()) == sorted(ids[1:4])


@ON_POSTGRESQL
async def test_what_a_new_process_wrote_is_not_counted_yet_and_stays(history: History) -> None:
    one = await history.publish()
    shard = history.ledger.shard

    async def kept(read: dict[str, int]) -> Any:
        return await history.ledger.task(lambda connection, _: retention._kept(connection, TODAY, read))

    assert await kept({}) == [one]
    assert shard == 0 or await kept({str(shard - 1): 1_000}) == [one]
    assert await kept({str(shard): 0}) == [one]
    assert await kept({str(shard): 1_000}) == []


@ON_POSTGRESQL
async def test_somebody_who_reads_is_not_waited_for_and_nobody_who_writes_waits(
    history: History, database: Database, partitions: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.ledger.events.keeper.TRY_PAUSE", 0.05)
    await history.publish()
    await history.go(8)
    engine = database.readers()
    with engine.connect() as reader:
        reader.exec_driver_sql("SELECT count(*) FROM messages")
        retaining = asyncio.create_task(history.retain())
        while not retaining.done():
            await history.publish()  # within the writer's own patience
        assert await retaining is retention.DropOutcome.BUSY
        assert min(partitions()) == 0
        reader.rollback()
    await history.retain()
    assert min(partitions()) == 3
    engine.dispose()


@ON_POSTGRESQL
async def test_a_day_that_was_taken_out_and_not_dropped_is_dropped(
    history: History, database: Database, partitions: Any, sql: Any
) -> None:
    """The process died between the two."""
    one = await history.publish()
    await history.go(8)
    sql(f"ALTER TABLE messages DETACH PARTITION messages_d{TODAY}")
    sql(f"ALTER TABLE events DETACH PARTITION events_d{TODAY}")
    assert await history.ledger.timeline(one) is None
    await history.retain()
    assert min(partitions()) == 3


@ON_POSTGRESQL
async def test_what_becomes_owed_while_its_day_is_dropped_stays(history: History, database: Database) -> None:
    """A writer stores a delivery between the look and the drop, as often as it takes: its message is there after."""
    for _ in range(3):
        one = await history.publish()
        await history.go(8)
        ledger = history.ledger
        stored = LogEntry(one, EventKind.STORED, history.now - 8 * DAY * 1_000_000, "rabbit", "0-9-1", {}, message())
        await asyncio.gather(history.retain(), ledger.deliveries.store([owed(one)], [stored]))
        timeline = await ledger.timeline(one)
        assert timeline is not None
        assert timeline.events[-1].kind is EventKind.STORED
        await history.retain()
        assert await ledger.timeline(one) is not None


@ON_POSTGRESQL
async def test_a_day_goes_at_once_whatever_is_in_it(history: History, sql: Any, partitions: Any) -> None:
    """The number of statements does not grow with the rows. (How long ten million take: docs/explanation/ledger.md.)"""
    low = schema.first_id(TODAY * DAY_MS).hex()[:12]
    sql(
        f"INSERT INTO messages SELECT decode('{low}' || lpad(to_hex(n), 20, '0'), 'hex'), {NOW}, 'b', '0-9-1', '', '', "
        "1, decode(repeat('00', 32), 'hex'), 'http', '', '' FROM generate_series(1, 50000) n"
    )
    sql(
        f"INSERT INTO events SELECT 0, n, decode('{low}' || lpad(to_hex(n), 20, '0'), 'hex'), 'confirmed', {NOW}, 'b', "
        "'0-9-1', '' FROM generate_series(1, 50000) n"
    )
    sql("UPDATE shards SET next_sequence = 50001")
    await history.go(8)
    statements: list[str] = []
    done = threading.Lock()

    def count(_: Any, __: Any, statement: str, *___: Any) -> None:
        with done:
            statements.append(statement)

    sa.event.listen(sa.Engine, "before_cursor_execute", count)
    try:
        await history.retain()
    finally:
        sa.event.remove(sa.Engine, "before_cursor_execute", count)
    assert min(partitions()) == 3
    assert len([each for each in statements if "DELETE" in each]) < 10
    assert len(statements) < 250
    assert await history.known() == []
