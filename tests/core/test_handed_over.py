"""Work that comes to an end here: stopped once, given back, and dropped at once where it is lost."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Collection

import pytest

from gateway.core.work import ownership as module
from gateway.errors import LedgerUnavailable
from tests.core.test_owned_work import Slow, lines, looks, told
from tests.core.test_ownership import Process, Recorder, Rows, begin, until


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look about every few milliseconds."""
    monkeypatch.setattr(module, "LOOK_EVERY", 0.005)
    monkeypatch.setattr(module, "PAUSE_MIN", 0.005)


@pytest.fixture
def rows() -> Rows:
    return Rows()


@pytest.fixture
async def processes() -> AsyncIterator[list[Process]]:
    made: list[Process] = []
    yield made
    for process in made:
        await process.close()


@pytest.fixture
async def process(rows: Rows, processes: list[Process]) -> Process:
    """One that does ``a`` and ``b``."""
    await begin(rows, processes, 1, ["a", "b"])
    await until(lambda: processes[0].running == {"a", "b"})
    return processes[0]


class Stopping(Recorder):
    """One whose work ends when it may."""

    def __init__(self, *names: str) -> None:
        super().__init__(*names)
        self.may_end = asyncio.Event()

    async def stop(self, name: str, within: float) -> None:
        self.said.append(f"stopping {name}")
        await self.may_end.wait()
        await super().stop(name, within)


async def run_with(process: Process, worker: Recorder) -> None:
    """Another worker does the work of the kind from now on."""
    process.ownership._groups["job"].worker = process.worker = worker
    worker.running = {"a", "b"}


async def test_work_is_stopped_once_and_the_others_are_told(process: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    """However often it is looked meanwhile; and nobody can acquire it here until it has ended."""
    worker = Stopping("b")
    await run_with(process, worker)
    heard = told(process, monkeypatch)
    process.ownership._told({"kind": "job"})
    await until(lambda: worker.said)
    await looks(process)
    assert not await process.ownership.acquire("job", "a")
    assert worker.said == ["stopping a"]
    assert heard == []
    worker.may_end.set()
    await until(lambda: not process.ownership.has("job", "a"))
    await until(lambda: heard)
    assert worker.said == ["stopping a", "stop a"]
    assert heard == [("work", {"kind": "job"})]
    assert process.ownership.has("job", "b")


@pytest.mark.parametrize("shared", [True, False])
async def test_what_comes_back_while_it_ends_is_begun_again_at_once(
    rows: Rows, processes: list[Process], monkeypatch: pytest.MonkeyPatch, shared: bool
) -> None:
    monkeypatch.setattr(module, "LOOK_EVERY", 60.0)
    process = Process(rows, 0, ["a", "b"])
    processes.append(process)
    process.ledger.work.shared = shared
    await process.ownership.start()
    await until(lambda: process.running == {"a", "b"})
    worker = Stopping("b")
    await run_with(process, worker)
    process.ownership.changed("job")
    await until(lambda: worker.said)
    worker.there.add("a")
    process.ownership.changed("job")
    await asyncio.sleep(0.02)
    worker.may_end.set()
    await until(lambda: worker.said[-1] == "start a")


async def test_a_start_that_does_not_end_is_given_up_where_the_work_goes(process: Process) -> None:
    process.worker.slow.clear()
    process.worker.there.add("c")
    acquiring = asyncio.create_task(process.ownership.acquire("job", "c"))
    await until(lambda: process.ownership.has("job", "c"))
    process.worker.there.discard("c")
    process.ownership.changed("job")
    assert not await acquiring
    await until(lambda: not process.ownership.has("job", "c"))
    process.worker.slow.set()
    await asyncio.sleep(0.01)
    assert [said for said in process.worker.said if said.endswith(" c")] == ["stop c"]


async def test_what_fails_to_stop_is_dropped(rows: Rows, process: Process, caplog: pytest.LogCaptureFixture) -> None:
    class Failing(Recorder):
        async def stop(self, name: str, within: float) -> None:
            raise RuntimeError("a fault of ours")

    await run_with(process, Failing("b"))
    process.ownership.changed("job")
    await until(lambda: rows.owner("job", "a") is None)
    assert process.worker.said == ["lost a"]
    assert "work.not_stopped" in [record.getMessage() for record in caplog.records]
    await process.close()


async def test_what_cannot_be_released_yet_is_released_later(rows: Rows, process: Process) -> None:
    """It was stopped, and belongs to this process until the ledger says otherwise."""
    await run_with(process, Slow("b"))
    release, failures = process.ledger.work.release, 3

    async def failing(kind: str, names: Collection[str]) -> None:
        nonlocal failures
        if failures:
            failures -= 1
            raise LedgerUnavailable("away")
        await release(kind, names)

    process.ledger.work.release = failing
    process.ownership.changed("job")
    await until(lambda: failures < 3)
    assert process.ownership.has("job", "a")
    await until(lambda: rows.owner("job", "a") is None)
    assert failures == 0
    assert process.worker.said == ["stop a"]
    await until(lambda: not process.ownership.has("job", "a"))


async def test_a_release_that_fails_is_not_tried_again_at_once(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PAUSE_MIN", 60.0)
    monkeypatch.setattr(module, "PAUSE_MAX", 60.0)
    tries = []

    async def failing(kind: str, names: Collection[str]) -> None:
        tries.append(names)
        if len(tries) < 3:
            raise LedgerUnavailable("away")

    process.ledger.work.release = failing
    process.worker.there.discard("a")
    process.ownership.changed("job")
    await until(lambda: tries)
    await asyncio.sleep(0.02)
    assert tries == [["a"]]
    await process.ownership.close(0.0)


# -------------------------------------------------------------------------------------------------- reading again


class Unreadable(Recorder):
    """One that cannot read a name again."""

    async def refresh(self, name: str) -> None:
        self.said.append(f"refresh {name}")
        raise LedgerUnavailable("away") if name == "a" else ValueError("a fault of ours")


async def test_what_goes_is_read_again_no_more(process: Process, caplog: pytest.LogCaptureFixture) -> None:
    await run_with(process, Unreadable("a", "b"))
    process.ownership._told({"kind": "job", "name": "a"})
    await until(lambda: process.worker.said.count("refresh a") > 1)
    process.worker.there.discard("a")
    process.ownership.changed("job")
    await until(lambda: "stop a" in process.worker.said)
    await looks(process)
    assert process.worker.said[-1] == "stop a"
    assert set(lines(caplog, "work.not_started")) == {(logging.WARNING, "away")}
    process.ownership._told({"kind": "job", "name": "b"})
    await until(lambda: "refresh b" in process.worker.said)
    assert lines(caplog, "work.not_started")[-1] == (logging.ERROR, "a fault of ours")
    process.ledger.on_fenced()
    seen = len(process.worker.said)
    await asyncio.sleep(0.02)
    assert "refresh b" not in process.worker.said[seen:]


async def test_a_name_that_cannot_be_read_again_is_not_tried_at_once(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PAUSE_MIN", 60.0)
    monkeypatch.setattr(module, "PAUSE_MAX", 60.0)
    await run_with(process, Unreadable("a", "b"))
    process.ownership._told({"kind": "job", "name": "a"})
    await until(lambda: process.worker.said)
    await asyncio.sleep(0.02)
    assert process.worker.said == ["refresh a"]
    await process.ownership.close(0.0)


# ---------------------------------------------------------------------------------------------- lost, left behind


async def test_a_start_that_was_lost_never_begins(rows: Rows, process: Process) -> None:
    process.worker.slow.clear()
    process.worker.there.add("c")
    process.ownership.changed("job")
    await until(lambda: process.ownership.has("job", "c"))
    rows.alive[0] = 2
    process.ledger.on_fenced()
    process.worker.slow.set()
    await asyncio.sleep(0.02)
    assert "start c" not in process.worker.said
    assert "lost c" in process.worker.said
    assert not process.running


async def test_what_is_lost_before_its_start_is_not_acquired(
    rows: Rows, process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim = process.ledger.work.claim

    async def claiming(kind: str, names: Collection[str]) -> set[str]:
        found: set[str] = await claim(kind, names)
        rows.alive[0] = 2
        asyncio.get_running_loop().call_soon(process.ledger.on_fenced)
        return found

    monkeypatch.setattr(process.ledger.work, "claim", claiming)
    async with asyncio.timeout(5):
        assert not await process.ownership.acquire("job", "new")
    assert "start new" not in process.worker.said


async def test_a_worker_at_fault_does_not_keep_the_rest_from_being_dropped(process: Process) -> None:
    class Failing(Recorder):
        def lost(self, name: str) -> None:
            super().lost(name)
            raise RuntimeError("a fault of ours")

    await run_with(process, Failing("a", "b"))
    process.ledger.on_fenced()
    assert sorted(process.worker.said) == ["lost a", "lost b"]


async def test_a_process_that_leaves_says_so_first_and_takes_nothing_more(rows: Rows, process: Process) -> None:
    """The others claim what it gives back, and count on it no more."""
    worker = Stopping("a", "b")
    await run_with(process, worker)
    closing = asyncio.create_task(process.ownership.close(5.0))
    await until(lambda: len(worker.said) == 2)
    assert rows.peers[0].kinds == frozenset()
    assert not await process.ownership.acquire("job", "new")
    assert rows.owner("job", "new") is None
    worker.may_end.set()
    await closing
    assert not rows.owners
    process.ownership.changed("job")
    await process.ownership._look()
    assert not rows.owners


async def test_a_process_leaves_while_the_ledger_is_away(process: Process, caplog: pytest.LogCaptureFixture) -> None:
    """Its work is free when its lease ends."""
    process.ledger.work.failing = True
    async with asyncio.timeout(5):
        await process.ownership.close(1.0)
    assert not process.running
    assert sorted(process.worker.said[-2:]) == ["stop a", "stop b"]
    assert lines(caplog, "work.not_released") == [(logging.WARNING, "away")]


class Lasting(Recorder):
    """One whose first work takes longer to end."""

    def __init__(self, seconds: float, *names: str) -> None:
        super().__init__(*names)
        self.seconds = seconds

    async def stop(self, name: str, within: float) -> None:
        self.said.append(f"stopping {name}")
        if name == "a":
            await asyncio.sleep(self.seconds)
        await super().stop(name, within)


async def test_a_process_waits_for_what_it_hands_over_when_it_leaves(rows: Rows, process: Process) -> None:
    worker = Lasting(0.05, "b")
    await run_with(process, worker)
    process.ownership.changed("job")
    await until(lambda: worker.said)
    await process.ownership.close(5.0)
    assert worker.said == ["stopping a", "stopping b", "stop b", "stop a"]
    assert not rows.owners


async def test_a_process_that_leaves_does_not_wait_for_ever(rows: Rows, process: Process) -> None:
    worker = Lasting(60.0, "b")
    await run_with(process, worker)
    process.ownership.changed("job")
    await until(lambda: worker.said)
    async with asyncio.timeout(5):
        await process.ownership.close(0.01)
    await asyncio.sleep(0.01)
    assert set(rows.owners) == {("job", "a")}, "it is free when the lease ends"
    assert not [task for task in asyncio.all_tasks() if task.get_name() == "ownership"]
