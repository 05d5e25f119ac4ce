"""The keeper's rounds: what is done when, how often it is tried, and that one process does it at a time.

What the rounds do to rows is tested in ``test_retention`` and ``test_log_retention``. Here nothing is connected to.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from sqlalchemy import exc

from gateway.config import RetentionSettings
from gateway.errors import LedgerUnavailable
from gateway.ledger.access import audit
from gateway.ledger.db.engine import Database
from gateway.ledger.db.ids import DAY_MS
from gateway.ledger.events import keeper as module
from gateway.ledger.events import retention, statistics
from gateway.ledger.events.keeper import (
    COUNT_EVERY,
    LOG_EVERY,
    RETAIN_AGAIN,
    RETAIN_EVERY,
    TRIES,
    TRY_PAUSE,
    LedgerKeeper,
)
from gateway.ledger.events.retention import DropOutcome
from gateway.ledger.logs import log_reads, log_retention, pipeline_runs
from gateway.ledger.logs.log_cursors import Cursors
from gateway.ledger.logs.log_retention import Raise
from gateway.ledger.pending import bodies
from gateway.logs import Log
from tests.ledger.conftest import NOW

POSTGRESQL, SQLITE = "postgresql://127.0.0.1:1/ledger", "sqlite:////nowhere/ledger.db"
GONE, WHOLE, BUSY = DropOutcome.GONE, DropOutcome.WHOLE, DropOutcome.BUSY
TODAY = NOW // (DAY_MS * 1_000)
SETTINGS = RetentionSettings(history_days=5, statistics_days=20, audit_days=400)


class Fake:
    """A ledger that runs what it is given on no connection."""

    def __init__(self) -> None:
        self.connection = SimpleNamespace()
        self.trims: list[int] = []
        self.audit = SimpleNamespace(trim=self.trim)

    async def read(self, run: Callable[[Any], Any]) -> Any:
        return run(self.connection)

    async def task(self, run: Callable[[Any, Any], Any]) -> Any:
        return run(self.connection, None)

    async def trim(self, now: int, days: int) -> int:
        assert (now, days) == (NOW, 400)
        return self.trims.pop(0)


@pytest.fixture
def ledger() -> Fake:
    return Fake()


Make = Callable[[str], LedgerKeeper]


@pytest.fixture
def make(ledger: Fake) -> Make:
    def make(url: str) -> LedgerKeeper:
        there: Any = ledger
        database = Database(url)
        kept: Any = SimpleNamespace(forget_expired=lambda connection, now: 0)
        return LedgerKeeper(there, database, lambda: NOW, SETTINGS, kept, Cursors(database))

    return make


class Said:
    """What was logged, and how long was slept."""

    def __init__(self) -> None:
        self.events: list[tuple[str, int | None, dict[str, Any]]] = []
        self.slept: list[float] = []

    def log(self, event: str, level: int | None = None, error: Any = None, **fields: Any) -> None:
        self.events.append((event, level, fields))

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> Said:
    said = Said()
    monkeypatch.setattr(module, "log", said.log)
    monkeypatch.setattr("gateway.runtime.clock.clock.sleep", said.sleep)
    return said


class Script:
    """A method that answers, or raises, one after the other."""

    def __init__(self, *answers: Any) -> None:
        self.left = list(answers)

    async def __call__(self, *_: Any) -> Any:
        found = self.left.pop(0)
        if isinstance(found, Exception):
            raise found
        return found


def nothing(keeper: LedgerKeeper, monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Have these methods do nothing."""

    async def done(*_: Any) -> Any:
        return {}

    for name in names:
        monkeypatch.setattr(keeper, name, done)


# ---------------------------------------------------------------------------------------------------------- rounds


class Rounds:
    """The keeper's loop, by a clock that goes on when it sleeps."""

    def __init__(self, keeper: LedgerKeeper, monkeypatch: pytest.MonkeyPatch, end: float) -> None:
        self.now = 0.0
        self.end = end
        self.done: list[tuple[str, float]] = []
        self.outcomes: list[Any] = []
        for name in ("trim", "count", "retain"):
            monkeypatch.setattr(keeper, name, self.noted(name))
        monkeypatch.setattr("gateway.runtime.clock.clock.monotonic", lambda: self.now)
        monkeypatch.setattr("gateway.runtime.clock.clock.sleep", self.sleep)

    def noted(self, name: str) -> Callable[[], Any]:
        async def run() -> Any:
            self.done.append((name, self.now))
            found = self.outcomes.pop(0) if name == "retain" and self.outcomes else GONE
            if isinstance(found, Exception):
                raise found
            return found

        return run

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
        if self.now > self.end:
            raise asyncio.CancelledError

    def times(self, name: str) -> list[float]:
        return [at for what, at in self.done if what == name]


@pytest.mark.parametrize(
    ("first", "again"),
    [
        (GONE, RETAIN_EVERY),
        (WHOLE, RETAIN_EVERY),
        (None, RETAIN_EVERY),
        (BUSY, RETAIN_AGAIN),
        (LedgerUnavailable("away"), COUNT_EVERY),
        (ZeroDivisionError(), RETAIN_EVERY),
    ],
    ids=str,
)
async def test_what_is_done_when(
    make: Make, monkeypatch: pytest.MonkeyPatch, said: Said, first: Any, again: float
) -> None:
    keeper = make(SQLITE)
    rounds = Rounds(keeper, monkeypatch, COUNT_EVERY + RETAIN_EVERY + 1)
    rounds.outcomes = [first]
    with pytest.raises(asyncio.CancelledError):
        await keeper._run()
    assert rounds.times("retain")[:2] == [COUNT_EVERY, COUNT_EVERY + again]
    trims = rounds.times("trim")
    assert trims[:3] == [COUNT_EVERY, COUNT_EVERY + LOG_EVERY, COUNT_EVERY + 2 * LOG_EVERY]
    counts = rounds.times("count")
    rest = sorted([*counts, *rounds.times("retain")])
    assert rest == [COUNT_EVERY * number for number in range(1, len(rest) + 1)], "one of both each time"
    failed = [event for event, _, _ in said.events]
    if isinstance(first, LedgerUnavailable):
        assert failed == ["ledger.retention_waits"]
    else:
        assert failed == ["ledger.retention_failed"] * isinstance(first, ZeroDivisionError)


async def test_it_ends_when_it_is_closed(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    keeper = make(SQLITE)
    await keeper.close()
    running = asyncio.Event()
    ended: list[str] = []

    async def run() -> None:
        running.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append("ended")

    monkeypatch.setattr(keeper, "_run", run)
    keeper.start()
    await running.wait()
    await keeper.close()
    assert ended == ["ended"], "what is under way comes to its end first"
    await keeper.close()


async def test_it_goes_by_other_settings(make: Make) -> None:
    keeper = make(SQLITE)
    other = RetentionSettings(history_days=9)
    keeper.reconfigure(other)
    assert keeper._settings is keeper._log.settings is other


# ------------------------------------------------------------------------------------------------------ letting go


@pytest.mark.parametrize(
    ("outcomes", "dropped", "found"),
    [
        ([GONE, GONE], 2, GONE),
        ([GONE, WHOLE], 2, WHOLE),
        ([WHOLE, GONE], 2, GONE),
        ([BUSY], 1, BUSY),
        ([GONE, BUSY], 2, BUSY),
    ],
)
async def test_days_that_are_over_are_dropped_until_one_is_in_use(
    make: Make, monkeypatch: pytest.MonkeyPatch, ledger: Fake, outcomes: list[Any], dropped: int, found: DropOutcome
) -> None:
    begin = TODAY - 5
    for url in (POSTGRESQL, SQLITE):
        keeper = make(url)
        nothing(keeper, monkeypatch, "_begin", "_count", "_raise", "_forget", "_clean")
        monkeypatch.setattr(retention, "days", lambda _: [begin - 2, begin - 1, begin, begin + 1])
        days: list[int] = []
        drop = Script(*outcomes)

        async def noted(day: int, read: Any, days: list[int] = days, drop: Any = drop) -> Any:
            days.append(day)
            return await drop()

        monkeypatch.setattr(keeper, "_drop", noted)
        ledger.trims = [0]
        if url is SQLITE:
            assert (await keeper.retain(), days) == (GONE, []), "it has none"
        else:
            assert await keeper._retain() is found
            assert days == [begin - 2, begin - 1][:dropped]


async def test_everything_is_forgotten_in_chunks(make: Make, monkeypatch: pytest.MonkeyPatch, ledger: Fake) -> None:
    keeper = make(SQLITE)
    nothing(keeper, monkeypatch, "_begin", "_clean")
    done: list[Any] = []

    async def count() -> None:
        done.append("count")

    async def raised(work: Any) -> None:
        done.append("raise")

    def forget(name: str, chunk: int, expected: int) -> Callable[[Any, int], int]:
        left = [chunk, chunk, chunk - 1]

        def run(connection: Any, before: int) -> int:
            assert before == expected
            done.append(name)
            return left.pop(0)

        return run

    monkeypatch.setattr(keeper, "_count", count)
    monkeypatch.setattr(keeper, "_raise", raised)
    hour, day = (TODAY - 20) * 24, NOW - 20 * DAY_MS * 1_000
    monkeypatch.setattr(keeper._bodies, "forget_expired", forget("bodies", bodies.CHUNK, NOW))
    monkeypatch.setattr(statistics, "forget", forget("statistics", statistics.CHUNK, hour))
    monkeypatch.setattr(pipeline_runs, "forget", forget("runs", pipeline_runs.CHUNK, day))
    ledger.trims = [audit.CHUNK, audit.CHUNK, 7]
    assert await keeper.retain() is GONE
    assert ledger.trims == []
    assert done == ["count", "raise", *["bodies"] * 3, *["statistics"] * 3, *["runs"] * 3]


@pytest.mark.parametrize("busy", [0, 1, TRIES - 1, TRIES])
async def test_a_day_that_is_in_use_is_tried_again(
    make: Make, monkeypatch: pytest.MonkeyPatch, said: Said, busy: int
) -> None:
    keeper = make(POSTGRESQL)
    monkeypatch.setattr(keeper, "_aside", tries := Script(*[BUSY] * busy, GONE))
    found = await keeper._drop(TODAY - 9, {})
    assert found is (BUSY if busy == TRIES else GONE)
    assert said.slept == [TRY_PAUSE] * busy
    assert len(tries.left) == (busy == TRIES)
    ((event, level, fields),) = said.events
    assert (event, fields) == ("ledger.day", {"day": TODAY - 9, "became": found.value})
    assert level == (30 if found is BUSY else 20), "it is a warning where it is not done"


@pytest.mark.parametrize("busy", [0, 1, TRIES, TRIES + 1])
async def test_a_sweep_goes_on_where_it_was_held_up(
    make: Make, monkeypatch: pytest.MonkeyPatch, said: Said, busy: int
) -> None:
    keeper = make(POSTGRESQL)
    away = LedgerUnavailable("locked")
    monkeypatch.setattr(keeper, "_step", Script((2, b"a"), *[away] * busy, (0, b"b"), (3, None)))
    if busy > TRIES:
        with pytest.raises(LedgerUnavailable, match="locked"):
            await keeper._clean(b"", 0, {})
    else:
        await keeper._clean(b"", 0, {})
        assert said.events == [("ledger.swept", None, {"messages": 5})]
    assert said.slept == [TRY_PAUSE] * min(busy, TRIES)


async def test_on_sqlite_a_sweep_is_not_held_up_by_anybody(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    keeper = make(SQLITE)
    monkeypatch.setattr(keeper, "_step", Script(LedgerUnavailable("full")))
    with pytest.raises(LedgerUnavailable, match="full"):
        await keeper._clean(b"", 0, {})


@pytest.mark.parametrize(("left", "tries"), [([0], 1), ([9, 4, 4], 3), ([7, 7], 2), ([1, 0, 0], 3)])
async def test_pages_are_given_back_until_no_more_go(
    make: Make, monkeypatch: pytest.MonkeyPatch, said: Said, left: list[int], tries: int
) -> None:
    keeper = make(SQLITE)
    monkeypatch.setattr(keeper, "_step", Script((0, None)))
    asked: list[int] = []

    def give_back(_: Any) -> int:
        asked.append(1)
        return left[len(asked) - 1]

    monkeypatch.setattr(retention, "give_back", give_back)
    await keeper._clean(b"", 0, {})
    assert (len(asked), said.events) == (tries, []), "nothing was swept, so nothing is said"
    elsewhere = make(POSTGRESQL)
    monkeypatch.setattr(elsewhere, "_step", Script((0, None)))
    await elsewhere._clean(b"", 0, {})
    assert len(asked) == tries, "PostgreSQL does that for itself"


@pytest.mark.parametrize(("outcomes", "dropped"), [([GONE, WHOLE], 2), ([BUSY], 1), ([WHOLE, BUSY], 2)])
async def test_days_of_the_log_are_dropped_before_today(
    make: Make, monkeypatch: pytest.MonkeyPatch, outcomes: list[Any], dropped: int
) -> None:
    monkeypatch.setattr(log_retention, "days", lambda _: [TODAY - 2, TODAY - 1, TODAY])
    monkeypatch.setattr(log_reads, "floors", lambda *_: {0: SimpleNamespace(floor=7)})
    for url in (POSTGRESQL, SQLITE):
        keeper = make(url)
        nothing(keeper, monkeypatch, "_raise")
        monkeypatch.setattr(keeper, "_aside", tries := Script(*outcomes, GONE, GONE))
        monkeypatch.setattr(keeper, "_apart", deleted := Script(1_000, 3, 0, GONE))
        await keeper._trim()
        assert len(tries.left) == len(outcomes) + 2 - (dropped if url is POSTGRESQL else 0)
        assert deleted.left == [GONE], "until none is left"


async def test_a_floor_that_passes_a_cursor_is_a_warning(
    make: Make, monkeypatch: pytest.MonkeyPatch, said: Said
) -> None:
    keeper = make(SQLITE)
    raised = [Raise(Log.MESSAGES, 0, 7, "age"), Raise(Log.MESSAGES, 1, 8, "size", ("a", "b"))]
    await keeper._raise(lambda connection: raised)
    told = {"log": "messages", "shard": 0, "floor": 7, "reason": "age", "unread": ""}
    assert said.events == [
        ("ledger.log_floor", 20, told),
        ("ledger.log_floor", 30, told | {"shard": 1, "floor": 8, "reason": "size", "unread": "a, b"}),
    ]


# ---------------------------------------------------------------------------------------------------------- alone


async def test_one_process_at_a_time(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    keeper = make(POSTGRESQL)
    done: list[str] = []
    seats: list[Any] = [None, "seat", "seat"]
    monkeypatch.setattr(keeper, "_take_seat", lambda: seats.pop(0))
    monkeypatch.setattr(keeper, "_leave_seat", lambda seat: done.append(f"left {seat}"))

    async def work() -> None:
        done.append("work")

    async def fails() -> None:
        raise ZeroDivisionError

    assert await keeper._alone(work) is False
    assert done == []
    assert await keeper._alone(work) is True
    assert done == ["work", "left seat"]
    with pytest.raises(ZeroDivisionError):
        await keeper._alone(fails)
    assert done == ["work", "left seat", "left seat"]
    assert await make(SQLITE)._alone(work) is True
    assert done[3:] == ["work"]
    monkeypatch.setattr(keeper, "_take_seat", lambda: None)
    assert await keeper.retain() is None


class Seat:
    """A connection of PostgreSQL."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.done: list[str] = []

    def execute(self, statement: Any) -> Any:
        self.done.append("unlock" if "unlock" in str(statement) else "lock")
        if isinstance(self.answer, Exception):
            raise self.answer
        return SimpleNamespace(scalar=lambda: self.answer)

    def commit(self) -> None:
        self.done.append("commit")

    def close(self) -> None:
        self.done.append("close")


GONE_AWAY = exc.OperationalError("statement", {}, psycopg.OperationalError("gone"))


def test_a_seat_that_is_taken_is_left(make: Make, monkeypatch: pytest.MonkeyPatch, said: Said) -> None:
    keeper = make(POSTGRESQL)

    def take(answer: Any) -> tuple[Any, Any]:
        seat = Seat(answer)
        monkeypatch.setattr(keeper, "_engine", SimpleNamespace(connect=lambda: seat))
        return seat, keeper._take_seat()

    seat, found = take(True)
    assert found is seat
    assert seat.done == ["lock", "commit"], "in no transaction, which would time out"
    keeper._leave_seat(found)
    assert seat.done[2:] == ["unlock", "close"]
    seat, found = take(False)
    assert (found, seat.done) == (None, ["lock", "commit", "close"])
    failed = Seat(GONE_AWAY)
    monkeypatch.setattr(keeper, "_engine", SimpleNamespace(connect=lambda: failed))
    with pytest.raises(LedgerUnavailable, match="gone"):
        keeper._take_seat()
    assert failed.done == ["lock", "close"]
    broken: Any = Seat(GONE_AWAY)
    keeper._leave_seat(broken)
    assert broken.done == ["unlock", "close"], "the server lets go of it with its connection"


async def test_work_beside_the_writer_where_that_is_possible(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    keeper = make(SQLITE)
    assert await keeper._apart(lambda connection: "the writer's") == "the writer's"
    keeper = make(POSTGRESQL)
    done: list[str] = []

    class Connection:
        def __enter__(self) -> Connection:
            return self

        def __exit__(self, *_: Any) -> None:
            done.append("closed")

        def begin(self) -> Connection:
            done.append("begin")
            return Connection()

    monkeypatch.setattr(keeper, "_engine", SimpleNamespace(connect=Connection))
    assert await keeper._apart(lambda connection: "its own") == "its own"
    assert done == ["begin", "closed", "closed"]
