"""What of the logs goes, what stays, and what a reader is told in the middle of it."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

import pytest

from gateway.config import RetentionSettings
from gateway.ledger import EventKind, Ledger, Log, MessageIds
from gateway.ledger.db import schema
from gateway.ledger.db.ids import DAY_MS
from gateway.ledger.events.keeper import LedgerKeeper
from gateway.ledger.events.retention import DropOutcome
from gateway.ledger.logs import log_reads, log_retention
from gateway.observing import repeats
from tests.ledger.conftest import ON_POSTGRESQL, Clock, Open, entry, published
from tests.ledger.logs import heads, rows, spooled

DAY = 86_400.0
KEPT = RetentionSettings(history_days=5, log_days=3, log_octets=1 << 20)


class Past:
    """A ledger whose clock is put forward."""

    def __init__(self, ledger: Ledger, clock: Clock) -> None:
        self.ledger = ledger
        self.clock = clock
        self.ids = MessageIds(clock)

    async def go(self, days: float) -> None:
        self.clock.now += days * DAY
        await self.ledger._read(schema.make_partitions, self.clock.now)

    async def spool(self, count: int = 1, size: int = 5) -> None:
        at = int(self.clock.now * 1e6)
        await self.ledger.log.spool([spooled(message_id=self.ids(), at=at, body=b"x" * size) for _ in range(count)])

    async def trim(self) -> tuple[int, int]:
        """Let go; floor and head."""
        assert await self.ledger.history.keeper.trim()
        return (await heads(self.ledger))[0]

    async def there(self) -> int:
        """Rows that are in the database, below the floor too."""
        found: int = await self.ledger.read(
            lambda connection: connection.exec_driver_sql("SELECT count(*) FROM message_log").scalar_one()
        )
        return found


@pytest.fixture
async def past(open_ledger: Open, monkeypatch: pytest.MonkeyPatch) -> Past:
    clock = Clock()
    monkeypatch.setattr("gateway.runtime.clock.clock.now", clock)
    return Past(await open_ledger(clock=clock, retention=KEPT), clock)


async def test_what_all_cursors_have_read_goes(past: Past, caplog: pytest.LogCaptureFixture) -> None:
    log = past.ledger.log
    await past.spool(10)
    assert await past.trim() == (1, 10)  # nobody reads: it waits for somebody, until it is too old
    for name, last in (("a", 7), ("b", 4)):
        await log.claim_cursor(name, Log.MESSAGES, "one", {"0": last})
    with caplog.at_level(logging.INFO, "gateway"):
        assert await past.trim() == (5, 10)
    assert [row["sequence"] for row in await rows(past.ledger)] == [5, 6, 7, 8, 9, 10]
    assert await past.there() == 6
    assert [record.levelname for record in caplog.records if record.message == "ledger.log_floor"] == ["INFO"]
    await log.move_cursor("b", "one", 1, {"0": 10})
    assert await past.trim() == (8, 10)
    await log.release_cursor("a", "one", 1)
    await log.delete_cursor("a")
    assert await past.trim() == (11, 10)
    assert await past.there() == 0
    await past.spool()
    assert await past.trim() == (11, 11)
    assert [row["sequence"] for row in await rows(past.ledger)] == [11]


async def test_a_cursor_of_the_other_log_keeps_nothing(past: Past) -> None:
    await past.spool(3)
    await past.ledger.log.claim_cursor("e", Log.EVENTS, "one", "earliest")
    await past.ledger.log.claim_cursor("m", Log.MESSAGES, "one", "latest")
    assert await past.trim() == (4, 3)


async def test_a_cursor_that_stays_behind_holds_the_log_until_it_is_too_old(
    past: Past, caplog: pytest.LogCaptureFixture
) -> None:
    await past.spool(4)
    await past.ledger.log.claim_cursor("slow", Log.MESSAGES, "one", {"0": 1})
    await past.ledger.log.claim_cursor("fast", Log.MESSAGES, "one", {"0": 4})
    await past.go(2.9)
    await past.spool(2)
    assert await past.trim() == (2, 6)
    await past.go(0.2)
    with caplog.at_level(logging.INFO, "gateway"):
        assert await past.trim() == (5, 6)
    (record,) = [record for record in caplog.records if record.message == "ledger.log_floor"]
    assert record.levelname == "WARNING"
    assert vars(record)[repeats.FIELDS]["unread"] == "slow"
    _, floor = await past.ledger.log.extent(Log.MESSAGES, 0)
    assert (floor.floor, floor.reason, floor.at) == (5, "age", int(past.clock.now * 1e6))


async def test_what_is_too_much_goes_the_oldest_first(past: Past) -> None:
    await past.ledger.log.claim_cursor("slow", Log.MESSAGES, "one", "earliest")
    for _ in range(6):
        await past.spool(1, 300_000)
        await past.go(0.1)
    assert await past.trim() == (4, 6)
    _, floor = await past.ledger.log.extent(Log.MESSAGES, 0)
    assert floor.reason == "size"
    assert (await past.ledger.log.backlog(Log.MESSAGES, {})).octets < 1 << 20
    assert await past.trim() == (4, 6)
    await past.spool(1, 2_000_000)  # it alone is too much
    assert await past.trim() == (8, 7)


@ON_POSTGRESQL
async def test_of_several_shards_the_oldest_goes_first(open_ledger: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr("gateway.runtime.clock.clock.now", clock)
    one, other = [Past(await open_ledger(name, clock=clock, retention=KEPT), clock) for name in ("one", "other")]
    for past in (one, other, one, one, other):
        await past.spool(1, 300_000)
        await past.go(0.1)
    await one.ledger.history.keeper.trim()
    assert await heads(one.ledger) == {one.ledger.shard: (2, 3), other.ledger.shard: (2, 2)}


async def test_floors_are_raised_before_rows_go(past: Past, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed in between, what is below the floor is there and cannot be asked for; the next round takes it."""
    await past.spool(10)
    await past.ledger.log.claim_cursor("a", Log.MESSAGES, "one", {"0": 6})

    def killed(*_: Any, **__: Any) -> int:
        raise KeyError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(log_retention.LogRetention, "delete", killed)
        patch.setattr(log_retention, "drop_day", killed)
        with pytest.raises(KeyError):
            await past.trim()
    assert await past.there() == 10
    assert (await heads(past.ledger))[0] == (7, 10)
    monkeypatch.setattr(log_retention, "CHUNK", 2)
    assert await past.trim() == (7, 10)
    assert await past.there() == 4


async def test_a_floor_is_never_lowered(past: Past) -> None:
    await past.spool(5)
    await past.ledger.log.claim_cursor("a", Log.MESSAGES, "one", {"0": 4})
    assert await past.trim() == (5, 5)
    await past.ledger.log.claim_cursor("b", Log.MESSAGES, "one", {"0": 1})  # a position from somewhere
    assert await past.trim() == (5, 5)
    later = log_retention.LogRetention(
        past.ledger._database, past.ledger.log.cursors, RetentionSettings(log_days=3, log_octets=1 << 20)
    )
    wanted = {0: (2, "age")}
    await past.ledger.task(lambda connection, _: later._write(connection, Log.MESSAGES, wanted, 1))
    assert (await heads(past.ledger))[0] == (5, 5)


async def test_events_go_with_the_history_and_leave_no_gap(past: Past) -> None:
    """A message that is old and of which something happened lately keeps its old events; they are below the floor."""
    ledger = past.ledger

    async def publish(one: bytes | None = None) -> bytes:
        found = one or past.ids()
        await ledger.record(published(found, int(past.clock.now * 1e6)))
        return found

    old = [await publish() for _ in range(3)]
    await past.go(4)
    await publish(old[1])
    await past.go(2)
    await publish()
    await ledger.history.keeper.retain()
    assert await heads(ledger, Log.EVENTS) == {0: (7, 10)}
    assert [row["sequence"] for row in await rows(ledger, Log.EVENTS)] == [7, 8, 9, 10]
    everything, _ = await ledger.events_after({}, 100)
    assert [event.sequence for event in everything] == [3, 4, 7, 8, 9, 10]
    _, floor = await ledger.log.extent(Log.EVENTS, 0)
    assert floor.reason == "history"


async def test_events_that_are_written_late_stay_until_the_log_is_behind_them(past: Past) -> None:
    """What happened before the history began and was written after: it is not a hole in the log."""
    ledger = past.ledger
    before = past.ids()
    at = int(past.clock.now * 1e6)
    await past.go(5.9)
    await ledger.record(published(past.ids(), int(past.clock.now * 1e6)))
    await ledger.record(published(before, at))
    await past.go(0.1)
    await ledger.history.keeper.retain()
    assert await heads(ledger, Log.EVENTS) == {0: (1, 4)}
    assert [row["sequence"] for row in await rows(ledger, Log.EVENTS)] == [1, 2, 3, 4]
    await past.go(6)
    await ledger.history.keeper.retain()
    assert await heads(ledger, Log.EVENTS) == {0: (5, 4)}
    assert await ledger.events_after({}, 100) == ([], {"0": 4})


async def test_a_clock_that_was_ahead_holds_nothing_up(past: Past) -> None:
    ledger = past.ledger
    now = int(past.clock.now * 1e6)
    await ledger.record(published(past.ids(), now))
    await ledger.record([entry(past.ids(), EventKind.DELIVERED, now + int(400 * DAY * 1e6))])
    await ledger.record(published(past.ids(), now))
    await past.go(7)
    await ledger.record(published(past.ids(), int(past.clock.now * 1e6)))
    await ledger.history.keeper.retain()
    assert await heads(ledger, Log.EVENTS) == {0: (6, 7)}


async def test_where_the_history_begins_is_looked_for_by_steps(past: Past, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_reads, "STEP", 3)
    ledger = past.ledger
    for count in (7, 4):
        await ledger.record([entry(past.ids(), EventKind.DELIVERED, int(past.clock.now * 1e6)) for _ in range(count)])
        await past.go(4)
    await ledger.history.keeper.retain()
    assert await heads(ledger, Log.EVENTS) == {0: (8, 11)}


@ON_POSTGRESQL
async def test_a_day_that_is_read_is_dropped(past: Past, sql: Any) -> None:
    def partitions() -> set[int]:
        found = sql("SELECT relname FROM pg_class WHERE relname LIKE 'message_log_d%' AND relkind = 'r'")
        return {int(name.removeprefix("message_log_d")) for (name,) in found if name != "message_log_default"}

    today = int(past.clock.now * 1000) // DAY_MS
    await past.ledger.log.claim_cursor("a", Log.MESSAGES, "one", "earliest")
    await past.spool(4)
    await past.go(1)
    await past.spool(2)
    await past.ledger.log.move_cursor("a", "one", 1, {"0": 3})
    assert await past.trim() == (4, 6)
    assert today in partitions()
    await past.ledger.log.move_cursor("a", "one", 1, {"0": 4})
    assert await past.trim() == (5, 6)
    assert today not in partitions()
    assert today + 1 in partitions()
    assert [row["sequence"] for row in await rows(past.ledger)] == [5, 6]


@ON_POSTGRESQL
@pytest.mark.parametrize("mode", ["ACCESS EXCLUSIVE", "ACCESS SHARE"])
async def test_nobody_waits_long_for_a_day_that_is_in_use(past: Past, mode: str) -> None:
    """Neither to look at it, where another process is about to drop it, nor to take it out while it is read."""
    await past.spool(1)
    day = int(past.clock.now * 1000) // DAY_MS
    await past.ledger.log.claim_cursor("a", Log.MESSAGES, "one", "latest")
    await past.ledger.history.keeper._raise(
        lambda connection: past.ledger.history.keeper._log.raise_messages(connection, int(past.clock.now * 1e6))
    )
    engine = past.ledger._database.writer()
    with engine.connect() as connection:
        with engine.begin() as other:
            other.exec_driver_sql(f"LOCK TABLE message_log_d{day} IN {mode} MODE")
            began = time.monotonic()
            assert log_retention.drop_day(connection, day) is DropOutcome.BUSY
            assert time.monotonic() - began < 3.0, "without a limit of its own it would wait for five"
        assert day in log_retention.days(connection)
        connection.rollback()
        assert log_retention.drop_day(connection, day) is DropOutcome.GONE
        assert day not in log_retention.days(connection)
    engine.dispose()


@ON_POSTGRESQL
async def test_a_message_of_an_old_day_that_comes_while_the_day_is_dropped_stays(past: Past) -> None:
    await past.spool(1)
    day = int(past.clock.now * 1000) // DAY_MS
    late = past.ids()
    await past.ledger.log.claim_cursor("a", Log.MESSAGES, "one", "latest")
    await past.go(1)
    await past.ledger.history.keeper._raise(
        lambda connection: past.ledger.history.keeper._log.raise_messages(connection, int(past.clock.now * 1e6))
    )
    engine = past.ledger._database.writer()

    def between() -> None:
        with engine.begin() as connection:
            connection.exec_driver_sql("UPDATE shards SET next_log = 3")
            connection.exec_driver_sql(
                "INSERT INTO message_log SELECT shard, 2, %(id)s, tap, at, broker, version, queue, exchange, "
                "routing_key, redelivered, origin_id, properties, body, sha256, octets FROM message_log LIMIT 1",
                {"id": late},
            )

    other = past.ledger._database.writer()
    with other.connect() as connection:
        assert log_retention.drop_day(connection, day, between) is DropOutcome.WHOLE
    assert [row["sequence"] for row in await rows(past.ledger)] == [2]
    engine.dispose()
    other.dispose()


async def test_it_lets_go_by_itself(open_ledger: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    trimmed = asyncio.Event()

    async def trim(keeper: LedgerKeeper) -> bool:
        trimmed.set()
        return True

    monkeypatch.setattr("gateway.ledger.events.keeper.COUNT_EVERY", 0.01)
    monkeypatch.setattr(LedgerKeeper, "trim", trim)
    ledger = await open_ledger("first")
    ledger.history.start()
    async with asyncio.timeout(20):
        await trimmed.wait()
    await ledger.history.close()
