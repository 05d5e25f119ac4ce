"""Work that a process claims: what it tells, what it asks for and how often, and what those who change it wait for."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Collection
from typing import Any

import pytest
from msgspec import structs

from gateway.core.work import ownership as module
from gateway.core.work.ownership import share
from gateway.core.work.peers import TellRequest
from gateway.errors import LedgerUnavailable
from gateway.ledger.work import Peer
from gateway.observing.repeats import FIELDS
from tests.core.test_ownership import JOBS, Process, Recorder, Rows, begin, spread, until


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look about every few milliseconds."""
    monkeypatch.setattr(module, "LOOK_EVERY", 0.005)
    monkeypatch.setattr(module, "PAUSE_MIN", 0.005)


@pytest.fixture
async def processes() -> AsyncIterator[list[Process]]:
    made: list[Process] = []
    yield made
    for process in made:
        await process.close()


@pytest.fixture
def rows() -> Rows:
    return Rows()


@pytest.fixture
def process(rows: Rows, processes: list[Process]) -> Process:
    """One that has not begun: it looks when it is asked to."""
    processes.append(Process(rows, 0, ["a", "b"]))
    return processes[0]


def number_of(process: Process) -> float | None:
    return process.metrics.registry.get_sample_value("amqpgw_work", {"kind": "job"})


def told(process: Process, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, Any]]]:
    """What the other processes hear."""
    found: list[tuple[str, dict[str, Any]]] = []
    monkeypatch.setattr(process.peers, "tell", lambda topic, news: found.append((topic, dict(news))))
    return found


async def looks(process: Process, count: int = 3) -> None:
    """Wait until it has looked this many times more."""
    seen = process.ledger.work.views
    await until(lambda: process.ledger.work.views > seen + count)


def lines(caplog: pytest.LogCaptureFixture, event: str) -> list[tuple[int, str]]:
    return [
        (record.levelno, getattr(record, FIELDS).get("reason", ""))
        for record in caplog.records
        if record.getMessage() == event
    ]


# ------------------------------------------------------------------------------------------------------ looking


async def test_the_work_of_a_process_is_counted(rows: Rows, processes: list[Process]) -> None:
    process = Process(rows, 0, ["a", "b"])
    assert number_of(process) == 0
    await process.ownership.start()
    await until(lambda: process.running == {"a", "b"})
    assert number_of(process) == 2
    process.ledger.on_fenced()
    assert number_of(process) == 0
    await until(lambda: process.running == {"a", "b"})
    await process.close()
    assert number_of(process) == 0


async def test_what_has_not_changed_is_neither_told_nor_asked_for_again(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look costs a read of the ledger, and writes nothing."""
    counts = {"announce": 0, "remove_lapsed": 0, "names": 0}

    def counted(owner: Any, name: str) -> None:
        real = getattr(owner, name)

        async def call(*args: Any) -> Any:
            counts[name] += 1
            return await real(*args)

        monkeypatch.setattr(owner, name, call)

    for name in ("announce", "remove_lapsed"):
        counted(process.ledger.work, name)
    counted(process.worker, "names")
    await process.ownership.start()
    await looks(process, 5)
    assert counts == {"announce": 1, "remove_lapsed": 0, "names": 1}
    process.ownership.changed("job")
    await looks(process, 5)
    assert counts == {"announce": 1, "remove_lapsed": 0, "names": 2}
    process.peers.configured("another")
    await looks(process, 5)
    assert counts["announce"] == 2
    monkeypatch.setattr(module, "NAMES_EVERY", 0.0)
    await looks(process, 5)
    assert counts["names"] > 4


async def test_news_are_looked_at_at_once(
    rows: Rows, processes: list[Process], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOOK_EVERY", 60.0)
    await begin(rows, processes, 1, ["a"])
    (process,) = processes
    await until(lambda: process.running == {"a"})
    process.worker.there.add("b")
    process.ownership.changed("job", "b")
    await until(lambda: process.running == {"a", "b"})
    process.worker.there.add("c")
    process.peers.heard(TellRequest("work", {"kind": "job"}))
    await until(lambda: process.running == {"a", "b", "c"})
    late = Recorder("x")
    process.ownership.register("late", late)
    await until(lambda: late.running == {"x"})
    process.ledger.on_fenced()
    await until(lambda: process.running == {"a", "b", "c"})


@pytest.mark.parametrize("shared", [True, False])
async def test_names_that_cannot_be_read_are_asked_for_again(
    process: Process, caplog: pytest.LogCaptureFixture, shared: bool
) -> None:
    """The log names each trouble once."""
    process.ledger.work.shared = shared
    troubles: list[Exception] = [LedgerUnavailable("away"), LedgerUnavailable("away"), KeyError()]

    class Failing(Recorder):
        async def names(self) -> Collection[str]:
            if troubles:
                raise troubles.pop(0)
            return await super().names()

    process.ownership._groups["job"].worker = process.worker = Failing("a")
    await process.ownership.start()
    await until(lambda: process.running == {"a"})
    assert lines(caplog, "work.waits") == [(logging.WARNING, "away"), (logging.ERROR, "KeyError()")]


@pytest.mark.parametrize("shared", [True, False])
async def test_nobody_looks_without_a_reason(
    rows: Rows, process: Process, monkeypatch: pytest.MonkeyPatch, shared: bool
) -> None:
    monkeypatch.setattr(module, "LOOK_EVERY", 60.0)
    process.ledger.work.shared = shared
    process.worker.there.add("elsewhere")
    rows.alive[1], rows.owners["job", "elsewhere"] = 1, (1, 1)
    asked = 0

    async def counted(kind: str, names: Collection[str]) -> set[str]:
        nonlocal asked
        asked += 1
        return set(names) - {"elsewhere"}

    monkeypatch.setattr(process.ledger.work, "claim", counted)
    await process.ownership.start()
    await until(lambda: process.running == {"a", "b"})
    process.ownership.changed("job")
    await asyncio.sleep(0.05)
    assert asked + process.ledger.work.views <= 4


async def test_a_ledger_that_cannot_be_looked_at_is_said_once(
    process: Process, caplog: pytest.LogCaptureFixture
) -> None:
    process.ledger.work.failing = True
    process.peers.configured("another")
    assert not await process.ownership.reconsider(["job"], 5.0)
    await process.ownership.start()
    await asyncio.sleep(0.03)
    assert lines(caplog, "work.waits") == [(logging.WARNING, "away")]
    process.ledger.work.failing = False
    await until(lambda: process.running == {"a", "b"})


async def test_claims_ask_for_no_more_than_there_is_to_have(
    rows: Rows, process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    process.worker.there = set(JOBS)
    rows.alive[1], rows.peers[1] = 1, Peer(b"2" * 8, 1, 1, "other", "", "", frozenset({"job"}))
    claim, taken, claims, reads = process.ledger.work.claim, process.ledger.work.taken, [], []

    async def claiming(kind: str, names: Collection[str]) -> set[str]:
        claims.append(set(names))
        found: set[str] = await claim(kind, names)
        return found

    async def reading(kind: str) -> dict[str, int]:
        found: dict[str, int] = await taken(kind)
        reads.append(len(found))
        return found

    monkeypatch.setattr(process.ledger.work, "claim", claiming)
    monkeypatch.setattr(process.ledger.work, "taken", reading)
    await process.ownership.review("job")
    assert (claims, reads) == ([process.running], [0, 4])
    assert process.ledger.work.views == 1
    assert [peer.name for peer in process.peers.others] == ["other"]
    assert len(process.running) == 4, "of seven, for two processes"
    del rows.alive[1]
    await process.ownership.review("job")
    assert (len(claims), reads) == (2, [0, 4, 4, 7])
    assert process.running == set(JOBS)


async def test_the_work_of_a_process_whose_lease_has_ended_is_claimed_at_the_same_look(
    rows: Rows, process: Process
) -> None:
    rows.alive[1], rows.peers[1] = 1, Peer(b"2" * 8, 1, 1, "other", "", "", frozenset({"job"}))
    rows.owners["job", "a"] = rows.owners["job", "b"] = 1, 1
    rows.lapsed = {1}
    await process.ownership.review("job")
    assert process.running == {"a", "b"}


async def test_processes_prefer_other_names(rows: Rows, processes: list[Process]) -> None:
    """So that two of them rarely want the same."""
    names = [f"n{number}" for number in range(40)]
    chosen = []
    for identity in (b"1" * 8, b"2" * 8, b"1" * 8):
        alone = Rows()
        alone.alive[1], alone.peers[1] = 1, Peer(b"3" * 8, 1, 1, "other", "", "", frozenset({"job"}))
        process = Process(alone, 0, names)
        process.peers.me = structs.replace(process.peers.me, id=identity)
        processes.append(process)
        await process.ownership.review("job")
        chosen.append(set(process.running))
    assert [len(each) for each in chosen] == [20, 20, 20]
    assert chosen[0] == chosen[2] != chosen[1]


async def test_the_second_of_two_gets_one_of_two(rows: Rows, processes: list[Process]) -> None:
    await begin(rows, processes, 1, ["a", "b"])
    await until(lambda: processes[0].running == {"a", "b"})
    processes.append(Process(rows, 1, ["a", "b"]))
    await processes[1].ownership.start()
    await until(spread(processes, ["a", "b"]))


@pytest.mark.parametrize(
    ("counts", "total", "most"),
    [
        ((1, 1), 3, 2),
        ((1, 1, 1), 5, 2),
        ((1, 3, 0), 5, 1),  # the last one is for the third, who has none
        ((2, 2), 4, 2),
    ],
)
def test_a_process_claims_the_last_ones_once_all_have_their_part(
    counts: tuple[int, ...], total: int, most: int
) -> None:
    assert share(dict(enumerate(counts)), total) == most


# ----------------------------------------------------------------------------------------------------- changing


async def test_a_review_lists_the_names_and_waits_for_the_start(process: Process) -> None:
    process.worker.slow.clear()
    asyncio.get_running_loop().call_later(0.02, process.worker.slow.set)
    await process.ownership.review("job")
    assert process.running == {"a", "b"}
    process.worker.there.add("c")
    await process.ownership.review("job")
    assert process.running == {"a", "b", "c"}


async def test_a_name_is_read_again_and_the_others_are_told(process: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    heard = told(process, monkeypatch)
    await process.ownership.review("job")
    process.ownership.reread("job", "a")
    process.ownership.reread("none", "x")
    await process.ownership.review("job")
    await until(lambda: "refresh a" in process.worker.said)
    assert heard == [("work", {"kind": "job", "name": "a"}), ("work", {"kind": "none", "name": "x"})]


async def test_a_name_is_read_again_once_it_has_started(process: Process) -> None:
    process.worker.slow.clear()
    process.worker.there = {"a"}
    reviewing = asyncio.create_task(process.ownership.review("job"))
    await until(lambda: process.ownership.has("job", "a"))
    process.ownership.reread("job", "a")
    await process.ownership._look()
    await asyncio.sleep(0.01)
    process.worker.slow.set()
    await reviewing
    await until(lambda: len(process.worker.said) == 2)
    assert process.worker.said == ["start a", "refresh a"]


async def test_a_worker_that_reads_nothing_again_is_left_alone(
    process: Process, caplog: pytest.LogCaptureFixture
) -> None:
    class Plain:
        names, start, stop, lost = Recorder.names, Recorder.start, Recorder.stop, Recorder.lost
        __init__ = Recorder.__init__

    process.ownership.register("plain", Plain("x"))
    await process.ownership.review("plain")
    process.ownership.reread("plain", "x")
    await process.ownership.review("plain")
    await asyncio.sleep(0.02)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


class Slow(Recorder):
    """One that takes its time to read a name again."""

    async def refresh(self, name: str) -> None:
        await asyncio.sleep(0.02)
        await super().refresh(name)


async def test_another_configuration_is_waited_for(process: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    """All names are listed, and what is owned is read again."""
    process.ownership._groups["job"].worker = process.worker = Slow("a", "b")
    await process.ownership.review("job")
    heard = told(process, monkeypatch)
    process.worker.there = {"a", "b", "c"}
    assert await process.ownership.reconsider(["job", "unknown"], 5.0)
    assert sorted(process.worker.said) == ["refresh a", "refresh b", "start a", "start b", "start c"]
    assert heard == [("work", {"kind": "job"})]
    process.worker.slow.clear()
    process.worker.there.add("d")
    asyncio.get_running_loop().call_later(0.03, process.worker.slow.set)
    assert await process.ownership.reconsider(["job"], 5.0)
    assert "d" in process.running


async def test_another_configuration_that_takes_too_long_is_said_to(process: Process) -> None:
    await process.ownership.review("job")
    process.worker.slow.clear()
    process.worker.there.add("late")
    assert not await process.ownership.reconsider(["job"], 0.01)
    await asyncio.sleep(0)
    assert not [task for task in asyncio.all_tasks() if "Event.wait" in repr(task.get_coro())]
    process.worker.slow.set()
    assert await process.ownership.reconsider(["job"], 5.0)
    assert "late" in process.running


@pytest.mark.parametrize("names", [[], ["a"]])
async def test_a_configuration_that_cannot_be_read_is_said_to_be_in_trouble(process: Process, names: list[str]) -> None:
    failing = False

    class Failing(Recorder):
        async def names(self) -> Collection[str]:
            if failing:
                raise LedgerUnavailable("away")
            return await super().names()

    process.ownership._groups["job"].worker = process.worker = Failing(*names)
    assert await process.ownership.reconsider(["job"], 5.0)
    assert process.running == set(names)
    failing = True
    assert not await process.ownership.reconsider(["job"], 5.0)


# ---------------------------------------------------------------------------------------------------- acquiring


async def test_what_was_acquired_stays_until_its_name_is_listed(rows: Rows, processes: list[Process]) -> None:
    await begin(rows, processes, 1, ["a"])
    (process,) = processes
    await until(lambda: process.running == {"a"})
    assert await process.ownership.acquire("job", "new")
    await looks(process)
    assert "new" in process.running
    assert "stop new" not in process.worker.said


async def test_what_could_not_be_started_is_acquired_all_the_same(
    process: Process, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its owner says why; and tries it again, after a pause."""
    monkeypatch.setattr(module, "PAUSE_MIN", 60.0)
    monkeypatch.setattr(module, "PAUSE_MAX", 60.0)
    process.worker.failing = {"new"}
    assert await process.ownership.acquire("job", "new")
    await asyncio.sleep(0.02)
    assert not process.running
    assert lines(caplog, "work.not_started") == [(logging.WARNING, "new cannot start")]


async def test_each_trouble_of_a_start_is_said_once(process: Process, caplog: pytest.LogCaptureFixture) -> None:
    troubles: list[Exception] = [LedgerUnavailable("away"), LedgerUnavailable("away"), ValueError("a fault")]

    class Failing(Recorder):
        async def start(self, name: str) -> None:
            if troubles:
                raise troubles.pop(0)
            await super().start(name)

    process.ownership._groups["job"].worker = process.worker = Failing("a")
    await process.ownership.review("job")
    await until(lambda: process.running == {"a"})
    assert lines(caplog, "work.not_started") == [(logging.WARNING, "away"), (logging.ERROR, "a fault")]


async def test_who_takes_no_work_tells_those_who_do(rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    idle = Process(rows, 0, [], takes_work=False)
    heard = told(idle, monkeypatch)
    assert not await idle.ownership.acquire("job", "new")
    assert heard == [("work", {"kind": "job", "name": "new"})]
    await idle.close()
