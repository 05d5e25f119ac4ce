"""What a ledger does beside its verbs: its upkeep in the background, what it tells its owner, and how it ends."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.config import LedgerSettings, RetentionSettings
from gateway.errors import CommitUnknown, LedgerUnavailable
from gateway.ledger import EventKind, Ledger, Mismatch, New, StoredAnswer, Unknown
from gateway.ledger.db.shards import ShardLease
from gateway.ledger.pending import inbox, keys
from gateway.ledger.store import LAPSED, NO_LEASE
from gateway.ledger.writing.writer import CLOSED
from tests.ledger.conftest import NOW, Open, entry, intent, new_id, published
from tests.ledgers import sqlite_ledger

DAY = 86_400


class Bench:
    """A ledger of which only the upkeep is there, by a clock that goes on when it sleeps."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, lease: float = 6.0, shared: bool = False) -> None:
        self.now = 0.0
        self.end = 100.0
        self.done: list[tuple[str, float]] = []
        self.answers: dict[str, list[Any]] = {}
        ledger: Any = Ledger.__new__(Ledger)
        self.ledger = ledger
        ledger._lease_seconds = lease
        ledger._database = SimpleNamespace(shared=shared)
        ledger._writer = SimpleNamespace(
            trouble=None, closed=False, holds=True, hear=lambda: self.note("hear"), lease=ShardLease(0, 1)
        )
        ledger._commits = SimpleNamespace(
            catch_up=lambda: self.note("catch up"), count=lambda *told: self.note("count")
        )
        ledger.disk = SimpleNamespace(is_watched=True, is_low=False, reason="low", look=lambda: self.note("look"))
        ledger.on_keys = lambda client, count: self.note(f"{client} {count}")
        self.proves: list[bool] = []
        monkeypatch.setattr(ledger, "_task", self.task)
        monkeypatch.setattr(ledger, "_partition", self.partition)
        monkeypatch.setattr("gateway.runtime.clock.clock.monotonic", lambda: self.now)
        monkeypatch.setattr("gateway.runtime.clock.clock.sleep", self.sleep)

    def note(self, what: str) -> None:
        self.done.append((what, self.now))

    async def task(self, run: Any, proves: bool = False) -> Any:
        name = run.__name__
        self.note(name)
        if proves:
            self.proves.append(proves)
        answers = self.answers.get(name, [])
        found = answers.pop(0) if answers else {"_renew": [], "_forget_keys": {}, "_forget_inbox": 0}[name]
        if isinstance(found, Exception):
            raise found
        return found

    async def partition(self) -> None:
        self.note("partition")

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
        if self.now > self.end:
            raise asyncio.CancelledError

    async def run(self, end: float) -> None:
        self.end = end
        with pytest.raises(asyncio.CancelledError):
            await self.ledger._keep()

    def times(self, name: str) -> list[float]:
        return [at for what, at in self.done if what == name]


@pytest.mark.parametrize(("shared", "pause"), [(False, 6.0), (True, 2.0)])
async def test_upkeep_comes_with_the_lease(monkeypatch: pytest.MonkeyPatch, shared: bool, pause: float) -> None:
    """Once in its time, or three times where there may be dead ones."""
    bench = Bench(monkeypatch, shared=shared)
    await bench.run(13.0)
    expected = [pause * number for number in range(1, int(13 / pause) + 1)]
    for name in ("_renew", "_forget_keys", "_forget_inbox", "partition"):
        assert bench.times(name) == expected
    for name in ("hear", "catch up", "look"):
        assert bench.times(name) == list(range(1, 14)), "every second"
    assert bench.proves == [True] * len(expected)


async def test_upkeep_of_a_short_lease_keeps_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch, lease=1.5, shared=True)
    await bench.run(2.0)
    assert bench.times("_renew") == [0.5, 1.0, 1.5, 2.0]


async def test_while_something_is_wrong_it_is_tried_each_second(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch, lease=60.0)
    bench.ledger._commits = None
    bench.ledger.disk.is_watched = False
    bench.ledger._writer.trouble = "full"
    await bench.run(3.0)
    assert bench.times("_renew") == [1.0, 2.0, 3.0]
    assert bench.times("catch up") == bench.times("look") == []


@pytest.mark.parametrize("error", [LedgerUnavailable("away"), ZeroDivisionError()], ids=str)
async def test_upkeep_that_fails_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench(monkeypatch, lease=2.0)
    bench.answers["_renew"] = [error]
    with caplog.at_level(logging.DEBUG, "gateway.ledger.store"):
        await bench.run(4.0)
    assert bench.times("_renew") == [2.0, 4.0]
    assert bench.times("partition") == [4.0]
    assert [record.levelname for record in caplog.records] == [
        "DEBUG" if isinstance(error, LedgerUnavailable) else "ERROR"
    ]


async def test_a_disk_that_is_full_costs_the_count_only(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch, lease=1.0)

    def full(*_: Any) -> None:
        raise OSError

    bench.ledger._commits = SimpleNamespace(catch_up=full, count=full)
    await bench.run(2.0)
    assert bench.times("_renew") == [1.0, 2.0]
    bench.ledger._committed(0.1, ShardLease(0, 1), 7)


async def test_who_is_found_dead_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    for listener in (None, "told"):
        bench = Bench(monkeypatch, lease=1.0)
        bench.answers["_renew"] = [[], [3], []]
        bench.ledger.on_takeover = None if listener is None else lambda bench=bench: bench.note("took over")
        await bench.run(3.0)
        assert bench.times("took over") == ([] if listener is None else [2.0])
        assert len(bench.times("partition")) == 3


async def test_what_has_expired_goes_in_chunks_while_there_is_time(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch, lease=10.0)
    half = keys.CHUNK // 2
    bench.answers["_forget_keys"] = [Counter(a=keys.CHUNK), Counter(a=half, b=half), Counter(b=3)]
    bench.answers["_forget_inbox"] = [inbox.CHUNK, inbox.CHUNK - 1]
    await bench.run(10.0)
    assert len(bench.times("_forget_keys")) == 3
    assert len(bench.times("_forget_inbox")) == 2
    told = [what for what, _ in bench.done if what[:2] in ("a ", "b ")]
    assert told == [f"a -{keys.CHUNK}", f"a -{half}", f"b -{half}", "b -3"]
    bench = Bench(monkeypatch, lease=10.0)
    bench.answers["_forget_keys"] = [Counter(a=keys.CHUNK)] * 9
    bench.answers["_forget_inbox"] = [inbox.CHUNK] * 9
    run = bench.task

    async def slow(work: Any, proves: bool = False) -> Any:
        found = await run(work, proves)
        bench.now += 5.0 * (work.__name__ != "_renew")
        return found

    monkeypatch.setattr(bench.ledger, "_task", slow)
    await bench.run(11.0)
    assert bench.times("_forget_keys") == [10.0, 15.0], "until it is due again"
    assert bench.times("_forget_inbox") == [20.0]
    assert bench.times("partition") == [25.0]


async def test_partitions_are_made_once_a_day(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ledger: Any = Ledger.__new__(Ledger)
    now = 20 * DAY + 5.0
    made: list[float] = []
    failing = [LedgerUnavailable("locked")]

    async def read(function: Any, at: float) -> None:
        made.append(at)
        if failing:
            raise failing.pop()

    ledger._clock, ledger._read, ledger._partitioned_day = (lambda: now), read, 0
    await ledger._partition()
    assert "the partitions of the coming days could not be made yet: locked" in caplog.text
    for _ in range(2):
        await ledger._partition()
    assert made == [now, now], "it is tried again where it failed"
    now = 21.0 * DAY
    for _ in range(2):
        await ledger._partition()
    assert made[2:] == [now]


# ------------------------------------------------------------------------------------------------ what it reports


@pytest.mark.parametrize(
    ("trouble", "closed", "holds", "low", "ready", "takes"),
    [
        (None, False, True, False, (True, "writes to shard 3"), (True, "writes to shard 3")),
        (None, False, True, True, (True, "writes to shard 3"), (False, "low")),
        ("full", False, True, True, (False, "full"), (False, "full")),
        (None, False, False, True, (False, LAPSED), (False, LAPSED)),
        ("full", False, False, False, (False, "full"), (False, "full")),
        (None, True, True, False, (False, CLOSED), (False, CLOSED)),
        ("full", True, False, True, (False, CLOSED), (False, CLOSED)),
    ],
)
async def test_whether_it_is_ready_and_why_not(
    monkeypatch: pytest.MonkeyPatch, trouble: Any, closed: bool, holds: bool, low: bool, ready: Any, takes: Any
) -> None:
    bench = Bench(monkeypatch)
    writer = bench.ledger._writer
    writer.trouble, writer.closed, writer.holds, bench.ledger.shard = trouble, closed, holds, 3
    bench.ledger.disk.is_low = low
    assert bench.ledger.ready() == ready
    assert bench.ledger.takes() == takes
    assert bench.ledger.healthy is ready[0]
    assert bench.ledger.holds is holds


async def test_what_its_owner_hears_of(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch)
    ledger = bench.ledger
    ledger.on_takeover = ledger.on_fenced = ledger.on_outdated = ledger.on_commit = None
    del ledger.__dict__["on_keys"]
    quiet = (ledger._taken_over, ledger._lost, ledger._outdated, lambda: ledger._committed(0.5, ShardLease(0, 1), None))
    for call in quiet:
        call()
    ledger._leased(ShardLease(0, 1))
    assert (ledger.shard, ledger.fence, bench.done) == (0, 1, [])
    for name in ("on_takeover", "on_fenced", "on_outdated"):
        monkeypatch.setattr(ledger, name, lambda name=name: bench.note(name))
    monkeypatch.setattr(ledger, "on_commit", lambda seconds: bench.note(f"committed {seconds}"))
    for call in quiet:
        call()
    ledger._committed(0.25, ShardLease(0, 1), 7)
    told = ["on_takeover", "on_fenced", "on_outdated", "committed 0.5", "count", "committed 0.25"]
    assert [what for what, _ in bench.done] == told
    ledger._leased(ShardLease(0, 2))
    assert bench.done[-1][0] == "on_takeover", "what it had under the old fence is in doubt"
    assert (ledger.shard, ledger.fence) == (0, 2)
    ledger._commits = None
    ledger._committed(0.1, ShardLease(0, 1), 8)
    assert bench.done[-1][0] == "committed 0.1"


async def test_its_first_lease_is_no_takeover(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch)
    bench.ledger.on_takeover = lambda: bench.note("took over")
    bench.ledger._leased(ShardLease(0, 1))
    assert bench.done == []


@pytest.mark.parametrize(
    ("claim", "is_claimed"),
    [(New(), True), (Unknown((), ()), True), (Mismatch(), False), (StoredAnswer(200, {}, b""), False)],
    ids=str,
)
async def test_a_claim_under_a_lease_that_is_lost_is_in_doubt(
    monkeypatch: pytest.MonkeyPatch, claim: Any, is_claimed: bool
) -> None:
    ledger = Bench(monkeypatch).ledger
    assert ledger.doubt(claim, ShardLease(0, 1)) is None
    assert isinstance(ledger.doubt(claim, ShardLease(0, 2)), CommitUnknown) is is_claimed
    ledger._writer.lease = None
    assert ledger.lease == NO_LEASE
    assert isinstance(ledger.doubt(claim, ShardLease(0, 1)), CommitUnknown) is is_claimed


# ------------------------------------------------------------------------------------------------------ the ledger


async def test_keys_that_are_kept_are_counted(open_ledger: Open) -> None:
    ledger = await open_ledger()
    counted: list[tuple[str, int]] = []
    ledger.on_keys = lambda client, count: counted.append((client, count))
    assert await ledger.claim_key("shop", "k", b"f", [intent(new_id())]) == New()
    await ledger.claim_key("shop", "k", b"f", [])
    assert counted == [("shop", 1)]
    await ledger.free_key("shop", "k")
    assert counted == [("shop", 1), ("shop", -1)]
    with pytest.raises(LedgerUnavailable):
        await ledger.free_key("shop", "k")
    assert len(counted) == 2, "it was free"
    await ledger.claim_key("shop", "k", b"f", [])
    await ledger.finish_key("shop", "k", 200, b"x", headers={"a": "b"})
    assert await ledger.claim_key("shop", "k", b"f", []) == StoredAnswer(200, {"a": "b"}, b"x")
    assert counted == [("shop", 1), ("shop", -1), ("shop", 1)]


@pytest.mark.parametrize("number", [0, 1, 4, 5, 8, 9])
async def test_a_call_of_exactly_a_group_is_one(open_ledger: Open, number: int, sql: Any) -> None:
    ledger = await open_ledger(group_max=4)
    before = sql("SELECT commits FROM shards")[0][0]
    rows = [entry(new_id(), EventKind.RECEIVED) for _ in range(number)]
    assert await ledger.record(rows) == list(range(1, number + 1))
    assert sql("SELECT commits FROM shards")[0][0] - before == -(-number // 4)


async def test_settings_are_changed_while_it_runs(open_ledger: Open) -> None:
    ledger: Any = await open_ledger(retention=RetentionSettings(bodies="never"))
    assert not ledger.deliveries.keeps_bodies
    days = RetentionSettings(bodies="days", history_days=3)
    ledger.reconfigure(["x-shop"], days)
    assert ledger.headers == ledger._group.headers == ("x-shop",)
    assert ledger._bodies.retention is ledger.history.keeper._settings is days
    assert ledger.deliveries.keeps_bodies
    ledger.reconfigure([], RetentionSettings(bodies="never"))
    assert (ledger.headers, ledger.deliveries.keeps_bodies) == ((), False)


async def test_when_it_is_closed_nothing_of_it_is_left(tmp_path: Path) -> None:
    url = sqlite_ledger(tmp_path)
    for _ in range(2):  # the file is free at once
        ledger = await Ledger.open(url, LedgerSettings(), owner="test")
        await ledger.record(published(new_id()))
        await ledger.close()
        assert not ledger._writer._thread.is_alive()
        assert ledger._keeper.done()
        with pytest.raises(LedgerUnavailable, match="closed"):
            await ledger.timeline(new_id())
        with pytest.raises(LedgerUnavailable, match="closed"):
            await ledger.record(published(new_id()))
        with pytest.raises(RuntimeError, match="shutdown"):
            ledger._pool.submit(lambda: None)
        await ledger.close()
    assert not (tmp_path / "ledger.db-wal").exists(), "all connections are closed"


async def test_a_ledger_that_cannot_be_opened_leaves_the_file_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = sqlite_ledger(tmp_path)

    def fails(*_: Any) -> Callable[[], None]:
        raise ZeroDivisionError

    for name in ("gateway.ledger.store.check_files", "gateway.ledger.store.schema.check"):
        with monkeypatch.context() as patch:
            patch.setattr(name, fails)
            with pytest.raises(ZeroDivisionError):
                await Ledger.open(url, LedgerSettings(), owner="test")
    ledger = await Ledger.open(url, LedgerSettings(), owner="test", clock=lambda: NOW / 1e6)
    await ledger.close()
