"""The simulation itself: it finds what is planted, and says the same each time."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.simulation.defects import DEFECTS, SEEDS

ROOT = Path(__file__).resolve().parent.parent.parent
WORLDS = 1_000
PROCESSES = 2
FOUND = (
    12, 28, 30, 106, 107, 192, 237, 292, 308, 684, 1183, 1350, 1579, 1835, 2640, 2711, 2919, 3540, 3990, 4602, 6377,
    17841, 20893, 20960, 31200, 31251, 35123, 42036, 42305, 43672, 53670, 60546, 60641, 62960, 63667,
    103620, 105060, 107604, 120032, 157620, 169380, 218693, 239929, 299235, 375071, 422239,
)  # fmt: skip
"""Seeds of worlds that failed once, beyond the first ones. A branch was prepared before its confirms were there.
Outcomes were not recorded. A subscription was stopped while its broker was silent. Copies of a message in a dead-letter
queue were replayed without a mark. A branch of an idle bridge was not undone. A process whose work another one had
taken over left a task, and gave back its last messages before the others. A front left a channel open at its broker
whose client had gone in a commit, and gave back at once what a rollback was to undo. A connection that was made while a
process ended was served for as long as it asked, over HTTP and at a front. A body that was to be kept for replays was
not, because the ledger was away. A replay was begun twice. What a caller believed to be not sent was in the ledger,
which had been lost in the commit. One of two equal messages was taken for a repeat of the other. The first of several
that waited for room was left out, and came behind the others. A process that had lost its lease took over a key while
its own request with it still ran. A process slept between its claim of some work and the answer, and began what another
one had by then. A message came again, and to another pull, while the first one stored it: it was handed out twice at
once. A resume found nothing to do while a pause was being written. A tap ran twice that was lost and taken again while
its configuration changed. A claim of what was to be sent was made under the next lease, and newer publishes passed it.
A subscription was resumed without notice to its owner, and rested on. An intake that was lost while it stopped started
its consumer later. A message was described as a tap had got it, and a replay by its routing key missed it. A request
that took longer than a gateway waits at its end was answered in plain text. A replay ended while its broker still kept
what a process had sent that was cut off, and the next one sent that without a mark. A subscription that stopped gave up
what its ledger did not take, and stored what came behind that. And the simulation had mistakes of its own.
The traces of the first two depended on where objects lay in memory. What a thread told could be overtaken by what it
told later, and a process that had just been killed in a commit was to end in good order. The judge did not know a limit
that the docs name: what a broker keeps for a process that sleeps, later messages of its key pass."""


class Runs:
    """Runs of the simulation, each in a process of its own, whose hashes are not random: as many at a time as there are
    processors, since a process needs seconds to begin."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(PROCESSES)
        self._processes: list[subprocess.Popen[str]] = []
        share = WORLDS // PROCESSES
        self.worlds = [
            self._start("--worlds", str(share), "--first", str(1 + share * number), "--fingerprints")
            for number in range(PROCESSES)
        ]
        self.defects = self._start("--defects")
        self.found = self._start("--fingerprints", "--seeds", *map(str, FOUND))
        self.alone = self._start("--seed", "93")

    def _start(self, *arguments: str) -> Future[str]:
        return self._pool.submit(self._run, *arguments)

    def _run(self, *arguments: str) -> str:
        command = [sys.executable, "-m", "tests.simulation", *arguments, "--shrink", "0"]
        environ = {**os.environ, "PYTHONHASHSEED": "0"}
        process = subprocess.Popen(command, cwd=ROOT, env=environ, stdout=subprocess.PIPE, text=True)
        self._processes.append(process)
        return process.communicate()[0]

    def close(self) -> None:
        """End what nobody has asked for."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        for process in self._processes:
            process.kill()
        self._pool.shutdown()


@pytest.fixture(scope="module")
def runs() -> Iterator[Runs]:
    started = Runs()
    yield started
    started.close()


@pytest.fixture
def worlds(runs: Runs) -> list[str]:
    """What the processes say that run the first worlds, each its share of them."""
    return [each.result() for each in runs.worlds]


def test_worlds_hold_what_the_gateway_promises(worlds: list[str]) -> None:
    for said in worlds:
        print(said[-2_000:])
        done = re.search(rf"^{WORLDS // PROCESSES} worlds in .* failed: none$", said, re.MULTILINE)
        assert done is not None, said[-10_000:]


def test_worlds_that_failed_once(runs: Runs) -> None:
    said = runs.found.result()
    assert re.search(rf"^{len(FOUND)} worlds in .* failed: none$", said, re.MULTILINE), said[-10_000:]


def test_the_same_seed_gives_the_same_trace(worlds: list[str], runs: Runs) -> None:
    """Alone, and after others in other processes; with a front and its clients."""
    alone = runs.alone.result()
    digest = alone.strip().rpartition("\n")[2].split()[0]
    lines = {line for said in worlds for line in said.splitlines()}
    assert f"seed 93 {digest}" in lines
    assert "receive" in alone
    again = [line for line in runs.found.result().splitlines() if re.match(r"seed [0-9]{1,3} ", line)]
    assert len(again) == len([seed for seed in FOUND if seed < WORLDS])
    assert not set(again) - lines


@pytest.mark.parametrize("number", range(PROCESSES))
def test_worlds_do_something(worlds: list[str], number: int) -> None:
    """Every way of sending and receiving, and every kind of fault."""
    last = worlds[number].strip().rpartition("\n")[2]
    counts = dict(each.rsplit(" ", 1) for each in last.split(", "))
    for name in (
        "acknowledge",
        "amqp",
        "answer",
        "copy",
        "duplicated",
        "fault",
        "gateway2",
        "log",
        "operator",
        "publish",
        "receive",
        "reject",
        "release",
        "replay",
        "rotate",
    ):
        assert int(counts.get(name, "0")) > 0, name


def test_every_defect_has_a_seed() -> None:
    assert SEEDS.keys() == DEFECTS.keys()


@pytest.mark.parametrize("name", SEEDS)
def test_a_planted_defect_is_found(runs: Runs, name: str) -> None:
    defects = runs.defects.result()
    line = rf"^found: {re.escape(name)} \(seed ([0-9]+): {re.escape(SEEDS[name][1])}\)$"
    found = re.search(line, defects, re.MULTILINE)
    assert found is not None, defects[-10_000:]
    assert f"replay with: python -m tests.simulation --seed {found[1]} --defect '{name}'" in defects.splitlines()


def test_nothing_of_a_world_stays_in_memory() -> None:
    code = """
import weakref
from tests.simulation import simulation
from tests.simulation.worlds import draw

scenes = []

class Known(simulation.Scene):
    def __init__(self, *given):
        super().__init__(*given)
        scenes.append(weakref.ref(self))

simulation.Scene = Known
for seed in (1, 2):
    simulation.simulate(draw(seed))
print(len(scenes), sum(scene() is not None for scene in scenes))
"""
    environ = {**os.environ, "PYTHONHASHSEED": "0"}
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environ, capture_output=True, text=True, check=False
    )
    assert (run.stdout, run.stderr) == ("2 0\n", "")
