"""Faults that are added to worlds, and which states of messages faults hit."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest

from tests.simulation.adding import ADDED, added
from tests.simulation.states import EMPTY, FAULTS, IN_LEDGER, RESULTS, STATES, empty
from tests.simulation.undoing import ROOT
from tests.simulation.worlds import draw

WORLDS = 40
"""How many run with each added fault."""


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "PYTHONHASHSEED": "0"}
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)


def test_the_table_has_every_fault_and_every_state() -> None:
    results = json.loads(RESULTS.read_text())
    assert list(results["faults"]) == list(dict.fromkeys(FAULTS.values()))
    assert all(row["times"] > 0 and list(row["hits"]) == list(STATES) for row in results["faults"].values())
    assert results["states"] == STATES
    assert results["added"].keys() == ADDED.keys()
    assert results["empty"] == EMPTY
    assert results["failed"] == []


def test_every_empty_cell_is_explained() -> None:
    assert empty() == {fault: list(states) for fault, states in EMPTY.items()}


def test_the_states_of_the_ledger_are_such() -> None:
    assert IN_LEDGER.keys() < STATES.keys()


@pytest.mark.parametrize("kind", ADDED)
def test_a_world_gets_one_fault_more(kind: str) -> None:
    seeds = range(1, 200)
    drawn = [draw(seed) for seed in seeds]
    more = [added(kind, world) for world in drawn]
    assert more == [added(kind, draw(seed)) for seed in seeds]
    for before, after in zip(drawn, more, strict=True):
        if before.moment:
            assert after == before
        else:
            assert after.without(faults=after.faults[:-1]) == before
            assert after.faults[-1].kind == kind
    assert any(world.moment for world in drawn)


@pytest.mark.parametrize("kind", ADDED)
def test_worlds_with_an_added_fault(kind: str) -> None:
    run = python("-m", "tests.simulation", "--also", kind, "--worlds", str(WORLDS), "--shrink", "0")
    assert re.search(rf"^{WORLDS} worlds in .* failed: none$", run.stdout, re.MULTILINE), run.stdout[-10_000:]


def test_what_fails_with_an_added_fault_can_be_replayed() -> None:
    defect = "a publish is answered before its confirm"
    arguments = ("--also", "reset", "--defect", defect, "--shrink", "0")
    run = python("-m", "tests.simulation", *arguments, "--worlds", "50")
    found = re.search(
        rf"^replay with: (python) (-m .* --seed [0-9]+) --defect '{defect}' --also reset$", run.stdout, re.M
    )
    assert found is not None, run.stdout[-10_000:]
    again = python(*found[2].split(), *arguments)
    assert "FAILED seed" in again.stdout


def test_who_watches_changes_nothing() -> None:
    code = """
from tests.simulation.simulation import simulate
from tests.simulation.states import WatchedScene, watch
from tests.simulation.worlds import draw

worlds = [draw(seed) for seed in (2, 3, 4, 93)]
alone = [simulate(world).fingerprint for world in worlds]
print([result.fingerprint for result in watch(worlds)] == alone)
hits, times = WatchedScene.hits, WatchedScene.times
print(hits.total() > 0 and all(0 < count <= times[fault] for (fault, _), count in hits.items()))
"""
    run = python("-c", code)
    assert (run.stdout, run.stderr) == ("True\nTrue\n", "")
