"""Work claimed, balanced, handed over and lost, over rows in memory; on SQLite all at once."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Collection, Iterable
from pathlib import Path
from typing import Any

import pytest

from gateway.config import LedgerSettings
from gateway.core.work import ownership as module
from gateway.core.work.ownership import Ownership, share, to_hand_over
from gateway.core.work.peers import Peers
from gateway.errors import LedgerUnavailable
from gateway.ledger import Ledger
from gateway.ledger.db.shards import ShardLease
from gateway.ledger.work import Peer, View
from gateway.observing.telemetry import Metrics


class Rows:
    """What several processes see of one ledger."""

    def __init__(self) -> None:
        self.owners: dict[tuple[str, str], tuple[int, int]] = {}
        self.alive: dict[int, int] = {}
        """Shard -> fence."""
        self.peers: dict[int, Peer] = {}
        self.lapsed: set[int] = set()

    def owner(self, kind: str, name: str) -> int | None:
        found = self.owners.get((kind, name))
        return found[0] if found is not None and self.alive.get(found[0]) == found[1] else None


class FakeWork:
    """One process's hold on the rows."""

    shared = True

    def __init__(self, rows: Rows, ledger: FakeLedger) -> None:
        self.rows = rows
        self.ledger = ledger
        self.failing = False
        self.views = 0

    def _check(self) -> tuple[int, int]:
        mine = self.ledger.shard, self.ledger.fence
        if self.failing or self.rows.alive.get(mine[0]) != mine[1]:
            raise LedgerUnavailable("away")
        return mine

    async def announce(self, peer: Peer) -> None:
        shard, _ = self._check()
        self.rows.peers[shard] = peer

    async def view(self) -> View:
        self.views += 1
        if self.failing:
            raise LedgerUnavailable("away")
        rows = self.rows
        counts: dict[str, dict[int, int]] = {}
        for kind, name in rows.owners:
            if (shard := rows.owner(kind, name)) is not None:
                counts.setdefault(kind, {}).setdefault(shard, 0)
                counts[kind][shard] += 1
        peers = [peer for shard, peer in sorted(rows.peers.items()) if rows.alive.get(shard) == peer.fence]
        return View(peers, counts, lapsed=bool(rows.lapsed))

    async def remove_lapsed(self) -> bool:
        self._check()
        for shard in self.rows.lapsed:
            self.rows.alive.pop(shard, None)
        found, self.rows.lapsed = bool(self.rows.lapsed), set()
        return found

    async def claim(self, kind: str, names: Collection[str]) -> set[str]:
        mine = self._check()
        free = {name for name in names if self.rows.owner(kind, name) in (None, mine[0])}
        self.rows.owners |= {(kind, name): mine for name in free}
        return free

    async def release(self, kind: str, names: Collection[str]) -> None:
        mine = self._check()
        for name in names:
            if self.rows.owners.get((kind, name)) == mine:
                del self.rows.owners[kind, name]

    async def taken(self, kind: str) -> dict[str, int]:
        found = {name: self.rows.owner(of, name) for of, name in self.rows.owners if of == kind}
        return {name: shard for name, shard in found.items() if shard is not None}

    async def owner(self, kind: str, name: str) -> int | None:
        return self.rows.owner(kind, name)


class FakeLedger:
    """A process's shard."""

    def __init__(self, rows: Rows, shard: int) -> None:
        self.shard, self.fence, self.holds = shard, 1, True
        self.on_fenced: Callable[[], None] | None = None
        rows.alive[shard] = 1
        self.work = FakeWork(rows, self)

    @property
    def lease(self) -> ShardLease:
        return ShardLease(self.shard, self.fence)


class Recorder:
    """A worker that keeps what it is told."""

    def __init__(self, *names: str) -> None:
        self.there = set(names)
        self.running: set[str] = set()
        self.said: list[str] = []
        self.failing: set[str] = set()
        self.outdated: list[str] = []
        self.slow = asyncio.Event()
        self.slow.set()

    async def names(self) -> Collection[str]:
        return self.there

    async def start(self, name: str) -> None:
        await self.slow.wait()
        if name in self.failing:
            self.failing.discard(name)
            raise LedgerUnavailable(f"{name} cannot start")
        assert name not in self.running
        self.running.add(name)
        self.said.append(f"start {name}")

    async def stop(self, name: str, within: float) -> None:
        await asyncio.sleep(0)
        self.running.discard(name)
        self.said.append(f"stop {name}")

    def lost(self, name: str) -> None:
        self.running.discard(name)
        self.said.append(f"lost {name}")

    async def refresh(self, name: str) -> None:
        if name in self.failing:
            self.failing.discard(name)
            raise LedgerUnavailable(f"{name} cannot be read")
        self.said.append(f"refresh {name}")


class Process:
    """One gateway."""

    def __init__(self, rows: Rows, shard: int, names: Iterable[str], *, takes_work: bool = True) -> None:
        self.ledger: Any = FakeLedger(rows, shard)
        self.metrics = Metrics("test")
        self.peers = Peers(self.ledger, self.metrics, name=f"host:{shard}")
        self.ownership = Ownership(self.ledger, self.peers, self.metrics, takes_work=takes_work)
        self.worker = Recorder(*names)
        self.ownership.register("job", self.worker)

    @property
    def running(self) -> set[str]:
        return self.worker.running

    async def close(self) -> None:
        await self.ownership.close(1.0)
        await self.peers.close()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look about every few milliseconds."""
    monkeypatch.setattr(module, "LOOK_EVERY", 0.005)
    monkeypatch.setattr(module, "PAUSE_MIN", 0.005)


@pytest.fixture
def rows() -> Rows:
    return Rows()


@pytest.fixture
async def processes(rows: Rows) -> AsyncIterator[list[Process]]:
    made: list[Process] = []
    yield made
    for process in made:
        await process.close()


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.002)


async def begin(rows: Rows, processes: list[Process], count: int, names: Collection[str]) -> None:
    for shard in range(count):
        process = Process(rows, shard, names)
        processes.append(process)
        await process.ownership.start()


def spread(processes: Iterable[Process], names: Collection[str]) -> Callable[[], bool]:
    """Everything is owned once, and nobody has two more than another."""

    def even() -> bool:
        running = [process.running for process in processes]
        assert sum(map(len, running)) == len(set().union(*running)), "two at a time"
        sizes = [len(each) for each in running]
        return sum(sizes) == len(names) and max(sizes) - min(sizes) <= 1

    return even


JOBS = [f"j{number}" for number in range(7)]


@pytest.mark.parametrize("count", [1, 2, 3, 4])
async def test_all_work_is_done_once_and_spread_evenly(rows: Rows, processes: list[Process], count: int) -> None:
    await begin(rows, processes, count, JOBS)
    await until(spread(processes, JOBS))


async def test_one_that_joins_gets_its_share_and_no_more_moves(rows: Rows, processes: list[Process]) -> None:
    await begin(rows, processes, 1, JOBS)
    await until(spread(processes, JOBS))
    (first,) = processes
    second = Process(rows, 1, JOBS)
    processes.append(second)
    await second.ownership.start()
    await until(spread(processes, JOBS))
    await asyncio.sleep(0.1)
    assert sum(said.startswith("stop") for said in first.worker.said) == 3
    assert not any(said.startswith("stop") for said in second.worker.said)


async def test_one_that_leaves_hands_over_everything_before_anybody_else_has_it(
    rows: Rows, processes: list[Process]
) -> None:
    await begin(rows, processes, 2, JOBS)
    await until(spread(processes, JOBS))
    first, second = processes
    mine = set(first.running)
    first.worker.said.clear()
    await first.ownership.close(1.0)
    assert {said for said in first.worker.said if said.startswith("stop")} == {f"stop {name}" for name in mine}
    await until(lambda: second.running == set(JOBS))
    assert not any(said.startswith("lost") for said in first.worker.said)


async def test_the_work_of_the_dead_goes_to_the_living(rows: Rows, processes: list[Process]) -> None:
    await begin(rows, processes, 3, JOBS)
    await until(spread(processes, JOBS))
    dead, *living = processes
    assert dead.ownership._runner is not None
    dead.ownership._runner.cancel()
    mine = set(dead.running)
    rows.lapsed.add(0)
    await until(lambda: mine <= living[0].running | living[1].running)
    await until(spread(living, JOBS))


async def test_what_was_granted_under_a_lease_that_is_lost_is_not_begun(
    rows: Rows, processes: list[Process], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process slept between the claim and its answer, and another one does the work by now."""
    process = Process(rows, 0, ["a"])
    processes.append(process)
    claim, fenced = process.ledger.work.claim, []

    async def slept(kind: str, names: Collection[str]) -> set[str]:
        found: set[str] = await claim(kind, names)
        if not fenced:
            fenced.append(found)
            taken = process.ledger.work.taken

            async def late(kind: str) -> dict[str, int]:
                monkeypatch.setattr(process.ledger.work, "taken", taken)
                process.ledger.fence = 2
                process.ledger.on_fenced()
                rows.alive |= {0: 2, 1: 1}
                rows.owners["job", "a"] = 1, 1
                result: dict[str, int] = await taken(kind)
                return result

            monkeypatch.setattr(process.ledger.work, "taken", late)
        return found

    monkeypatch.setattr(process.ledger.work, "claim", slept)
    await process.ownership.start()
    await until(lambda: fenced)
    await asyncio.sleep(0.05)
    assert fenced == [{"a"}]
    assert not process.running
    assert not process.ownership.has("job", "a")


async def test_who_is_fenced_drops_everything_and_begins_anew(rows: Rows, processes: list[Process]) -> None:
    await begin(rows, processes, 2, JOBS)
    await until(spread(processes, JOBS))
    zombie, other = processes
    mine = set(zombie.running)
    zombie.ledger.holds = False
    assert not any(zombie.ownership.owns("job", name) for name in mine), "its lease has run out"
    assert all(zombie.ownership.has("job", name) for name in mine)
    rows.lapsed.add(0)
    await until(lambda: other.running == set(JOBS))
    zombie.ledger.on_fenced()
    assert not zombie.running
    assert {said for said in zombie.worker.said if said.startswith("lost")} == {f"lost {name}" for name in mine}
    assert zombie.metrics.registry.get_sample_value("amqpgw_fenced_total") == 1
    rows.alive[0] = zombie.ledger.fence = 2  # a new lease
    zombie.ledger.holds = True
    await until(spread(processes, JOBS))


async def test_what_is_lost_while_it_starts_or_stops_is_lost(rows: Rows, processes: list[Process]) -> None:
    await begin(rows, processes, 1, ["a", "b"])
    (process,) = processes
    await until(lambda: process.running == {"a", "b"})
    process.worker.slow.clear()
    process.worker.there.add("c")
    process.ownership.changed("job")
    await until(lambda: process.ownership.has("job", "c"))
    process.ledger.on_fenced()
    process.worker.slow.set()
    await asyncio.sleep(0.02)
    assert "start c" not in process.worker.said[: process.worker.said.index("lost c")]
    assert {"lost a", "lost b", "lost c"} <= set(process.worker.said)


async def test_what_is_lost_while_it_is_handed_over_is_not_given_up_again(
    rows: Rows, processes: list[Process], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of the lease fails the release, and the process has claimed the name once more when it tries again."""
    await begin(rows, processes, 1, ["a"])
    (process,) = processes
    await until(lambda: process.running == {"a"})
    release, tried = process.ledger.work.release, []

    async def fenced(kind: str, names: Collection[str]) -> None:
        tried.append(set(names))
        if len(tried) == 1:
            rows.alive[0] = process.ledger.fence = 2
            process.ledger.on_fenced()
            process.worker.there.add("a")
            process.ownership.changed("job")
            raise LedgerUnavailable("another process took over the shard of this one")
        await release(kind, names)

    monkeypatch.setattr(process.ledger.work, "release", fenced)
    monkeypatch.setattr(module, "PAUSE_MIN", 0.05)
    process.worker.there.discard("a")
    process.ownership.changed("job")
    await until(lambda: tried and process.running == {"a"})
    await asyncio.sleep(0.1)
    assert process.running == {"a"}
    assert rows.owner("job", "a") == 0, "no other process may claim what this one does"


async def test_what_is_granted_again_before_its_start_has_ended_runs_on(rows: Rows, processes: list[Process]) -> None:
    """It was lost while it was handed over, and its start takes a while to end."""
    await begin(rows, processes, 1, [])
    (process,) = processes
    start, began, ended = process.worker.start, list[str](), asyncio.Event()

    async def slow(name: str) -> None:
        began.append(name)
        if len(began) == 1:
            try:
                await asyncio.Event().wait()
            finally:
                await ended.wait()
        await start(name)

    process.worker.start = slow  # type: ignore[method-assign]
    process.worker.there.add("a")
    process.ownership.changed("job")
    await until(lambda: began)
    handing = asyncio.create_task(process.ownership._hand_over(process.ownership._groups["job"], ["a"], 1.0))
    await asyncio.sleep(0.01)
    rows.alive[0] = process.ledger.fence = 2
    process.ledger.on_fenced()
    await until(lambda: process.running == {"a"})
    ended.set()
    await handing
    assert process.running == {"a"}


async def test_names_come_and_go(rows: Rows, processes: list[Process]) -> None:
    await begin(rows, processes, 1, ["a"])
    (process,) = processes
    await until(lambda: process.running == {"a"})
    process.worker.there = {"b"}
    process.ownership.changed("job")
    await until(lambda: process.running == {"b"})
    assert rows.owner("job", "a") is None


async def test_work_that_cannot_start_is_tried_again(rows: Rows, processes: list[Process]) -> None:
    process = Process(rows, 0, ["a", "b"])
    processes.append(process)
    process.worker.failing = {"a"}
    await process.ownership.start()
    await until(lambda: process.running == {"a", "b"})


async def test_a_ledger_that_is_away_costs_no_work_by_itself(rows: Rows, processes: list[Process]) -> None:
    await begin(rows, processes, 1, JOBS)
    (process,) = processes
    await until(lambda: process.running == set(JOBS))
    process.ledger.work.failing = True
    views = process.ledger.work.views
    await until(lambda: process.ledger.work.views > views + 3)
    assert process.running == set(JOBS)
    process.ledger.work.failing = False
    process.worker.there = {*JOBS, "late"}
    process.ownership.changed("job")
    await until(lambda: "late" in process.running)


async def test_a_worker_at_fault_keeps_no_other_kind_from_its_work(rows: Rows, processes: list[Process]) -> None:
    class Broken(Recorder):
        async def names(self) -> Collection[str]:
            raise RuntimeError("a fault of ours")

    process = Process(rows, 0, ["a"])
    processes.append(process)
    process.ownership._groups = {"broken": module.OwnedWork("broken", Broken()), **process.ownership._groups}
    await process.ownership.start()
    await until(lambda: process.running == {"a"})


async def test_one_piece_can_be_acquired_beyond_ones_share(rows: Rows, processes: list[Process]) -> None:
    await begin(rows, processes, 2, JOBS)
    await until(spread(processes, JOBS))
    first, second = processes
    assert await first.ownership.acquire("job", "new")
    assert "new" in first.running
    assert not await second.ownership.acquire("job", "new")
    owner = await second.ownership.owner("job", "new")
    assert owner is not None
    assert owner.name == "host:0"
    assert second.ownership.elsewhere(owner)
    assert not first.ownership.elsewhere(await first.ownership.owner("job", "new"))
    assert await first.ownership.owner("job", "nothing") is None


async def test_what_is_lost_while_it_starts_is_not_acquired(rows: Rows, processes: list[Process]) -> None:
    """A caller who hears that it is here looks for it, and answers that there is none."""
    await begin(rows, processes, 1, [])
    (process,) = processes
    process.worker.there.add("new")
    process.worker.slow.clear()
    acquiring = asyncio.create_task(process.ownership.acquire("job", "new"))
    await until(lambda: process.ownership.has("job", "new"))
    process.ledger.on_fenced()
    assert not await acquiring
    process.worker.slow.set()


async def test_another_process_says_that_a_name_stands_for_something_else(rows: Rows, processes: list[Process]) -> None:
    await begin(rows, processes, 1, ["a", "b"])
    (process,) = processes
    await until(lambda: process.running == {"a", "b"})
    process.ownership._told({"kind": "job", "name": "a"})
    await until(lambda: "refresh a" in process.worker.said)
    process.ownership._told({"kind": "none", "name": "a"})
    await asyncio.sleep(0.02)
    assert process.worker.said.count("refresh a") == 1
    assert "refresh b" not in process.worker.said


async def test_what_was_changed_without_notice_is_read_again_where_names_are_listed(
    rows: Rows, processes: list[Process], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The notice of another process may be lost."""
    monkeypatch.setattr(module, "NAMES_EVERY", 0.02)
    await begin(rows, processes, 1, ["a", "b"])
    (process,) = processes
    await until(lambda: process.running == {"a", "b"})
    process.worker.outdated = ["a", "elsewhere"]
    await until(lambda: "refresh a" in process.worker.said)
    process.worker.outdated = []
    assert not {"refresh b", "refresh elsewhere"} & set(process.worker.said)


async def test_what_is_being_read_again_is_not_read_beside_that(
    rows: Rows, processes: list[Process], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Settings that cannot be read are outdated each time."""
    monkeypatch.setattr(module, "NAMES_EVERY", 0.005)
    await begin(rows, processes, 1, ["a"])
    (process,) = processes
    await until(lambda: process.running == {"a"})
    reads, go_on = list[str](), asyncio.Event()

    async def refresh(name: str) -> None:
        reads.append(name)
        await go_on.wait()

    process.worker.refresh = refresh  # type: ignore[method-assign]
    process.worker.outdated = ["a"]
    await until(lambda: reads)
    await asyncio.sleep(0.05)
    assert reads == ["a"]
    go_on.set()
    await until(lambda: len(reads) > 1)
    process.worker.outdated = []


async def test_what_could_not_be_read_again_is_tried_again(
    rows: Rows, processes: list[Process], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PAUSE_MIN", 0.01)
    await begin(rows, processes, 1, ["a"])
    (process,) = processes
    await until(lambda: process.running == {"a"})
    process.worker.failing.add("a")
    process.ownership._told({"kind": "job", "name": "a"})
    await until(lambda: "refresh a" in process.worker.said)


async def test_work_of_a_kind_that_another_does_not_take_stays(rows: Rows, processes: list[Process]) -> None:
    """Two releases side by side: the older one does not know the kind."""
    await begin(rows, processes, 1, JOBS)
    older = Process(rows, 1, ())
    older.ownership._groups.clear()
    processes.append(older)
    await older.ownership.start()
    await until(lambda: 1 in rows.peers and processes[0].running == set(JOBS))
    await asyncio.sleep(0.05)
    assert processes[0].running == set(JOBS)


async def test_a_kind_that_is_registered_while_the_others_are_told_is_told_as_well(
    rows: Rows, processes: list[Process], monkeypatch: pytest.MonkeyPatch
) -> None:
    process = Process(rows, 0, ["a"])
    processes.append(process)
    announce = process.ledger.work.announce

    async def slow(peer: Peer) -> None:
        await announce(peer)
        if "late" not in process.ownership._groups:
            process.ownership.register("late", Recorder())

    monkeypatch.setattr(process.ledger.work, "announce", slow)
    await process.ownership.start()
    await until(lambda: rows.peers[0].kinds == {"job", "late"} if rows.peers else False)


async def test_work_that_goes_before_it_is_handed_over_is_no_trouble(rows: Rows, processes: list[Process]) -> None:
    await begin(rows, processes, 1, ["a", "b"])
    (process,) = processes
    await until(lambda: process.running == {"a", "b"})
    group = process.ownership._groups["job"]
    await process.ownership._hand_over(group, ["a", "gone", "b"], 1.0)
    assert "stop a" in process.worker.said
    assert "stop b" in process.worker.said


@pytest.mark.parametrize("count", range(1, 6))
@pytest.mark.parametrize("total", [0, 1, 2, 5, 12])
def test_what_is_handed_over_makes_it_even_in_a_few_steps(count: int, total: int) -> None:
    """From every way to divide the work: who has too little claims what is free, up to its share."""
    for start in itertools.islice(divided(total, count), 300):
        counts = dict(enumerate(start))
        for _ in range(2 * count + 2):
            giving = {shard: to_hand_over(counts, shard, total) for shard in counts}
            counts = {shard: number - giving[shard] for shard, number in counts.items()}
            free = total - sum(counts.values())
            for shard in sorted(counts, key=lambda shard: counts[shard]):
                counts[shard] += max(0, min(free, share(counts, total) - counts[shard]))
                free = total - sum(counts.values())
            if not any(giving.values()):
                break
        assert sum(counts.values()) == total
        assert max(counts.values()) - min(counts.values()) <= 1, start
        assert not any(to_hand_over(counts, shard, total) for shard in counts), "what is even stays"


def divided(total: int, count: int) -> Iterable[tuple[int, ...]]:
    """All ways to divide ``total`` among ``count``."""
    if count == 1:
        yield (total,)
        return
    for first in range(total + 1):
        for rest in divided(total - first, count - 1):
            yield (first, *rest)


async def test_on_sqlite_all_is_granted_at_once(tmp_path: Path) -> None:
    ledger = await Ledger.open(f"sqlite:///{tmp_path}/ledger.db", LedgerSettings(), owner="test", migrate=True)
    metrics = Metrics("test")
    peers = Peers(ledger, metrics)
    ownership = Ownership(ledger, peers, metrics)
    worker = Recorder(*JOBS)
    ownership.register("job", worker)
    await ownership.start()
    await ownership.review("job")
    assert worker.running == set(JOBS)
    assert all(ownership.owns("job", name) for name in JOBS)
    assert await ownership.owner("job", "j1") is peers.me
    assert await ownership.owner("job", "none") is None
    assert not peers.shared
    worker.there = {"j1", "new"}
    ownership.changed("job")
    await until(lambda: worker.running == {"j1", "new"})
    late = Recorder("x")
    ownership.register("late", late)
    await until(lambda: late.running == {"x"})
    await ownership.close(1.0)
    assert not worker.running
    assert not late.running
    await peers.close()
    await ledger.close()


async def test_a_process_that_takes_no_work_leaves_it_to_the_others(rows: Rows, processes: list[Process]) -> None:
    names = {f"n{number}" for number in range(4)}
    for shard in range(3):
        processes.append(Process(rows, shard, names, takes_work=shard != 2))
        await processes[-1].ownership.start()
    first, second, idle = processes
    await until(lambda: first.running | second.running == names)
    await until(lambda: 2 in rows.peers)
    assert (rows.peers[2].kinds, rows.peers[0].kinds) == (frozenset(), frozenset({"job"}))
    assert not await idle.ownership.acquire("job", "n0")
    await idle.ownership.review("job")
    await until(lambda: len(first.running) == len(second.running) == 2)
    assert not idle.worker.said


async def test_what_nobody_takes_stays_free_until_there_is_a_worker(rows: Rows, processes: list[Process]) -> None:
    processes.append(Process(rows, 0, {"n"}, takes_work=False))
    await processes[0].ownership.start()
    await until(lambda: 0 in rows.peers)
    assert not await processes[0].ownership.acquire("job", "n")
    assert await processes[0].ownership.owner("job", "n") is None
    processes.append(Process(rows, 1, {"n"}))
    await processes[1].ownership.start()
    await until(lambda: processes[1].running == {"n"})
