"""The simulation itself: it finds what is planted, and says the same each time."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.defects import DEFECTS

ROOT = Path(__file__).resolve().parent.parent.parent
SEEDS = {
    "a publish is answered before its confirm": (7, "lost"),
    "a delivery is acknowledged before the ledger's commit": (31, "lost"),
    "what is sent again has no mark": (15, "out in two leases at once"),
    "the answer under a key is forgotten": (5, "repeats without a mark"),
    "what is in doubt is not taken over": (261, "rows of obligations"),
    "messages with a key are handed out in any order": (54, "published before it with its key"),
}
"""Defect -> a seed whose world shows it, and a word of the problem."""


def simulation(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the simulation in a process of its own, whose hashes are not random."""
    command = [sys.executable, "-m", "tests.simulation", *arguments]
    environ = {**os.environ, "PYTHONHASHSEED": "0"}
    return subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=300, check=False)


def test_worlds_hold_what_the_gateway_promises() -> None:
    done = simulation("--first", "40", "--worlds", "25", "--shrink", "0")
    assert done.returncode == 0, done.stdout[-10_000:]
    assert "25 worlds" in done.stdout


def test_the_same_seed_gives_the_same_trace() -> None:
    first, second = (simulation("--seed", "3").stdout for _ in range(2))
    assert first == second
    assert "fault" in first
    assert "receive" in first


def test_every_defect_has_a_seed() -> None:
    assert SEEDS.keys() == DEFECTS.keys()


@pytest.mark.parametrize("name", SEEDS)
def test_a_planted_defect_is_found(name: str) -> None:
    seed, word = SEEDS[name]
    found = simulation("--seed", str(seed), "--defect", name, "--shrink", "0")
    assert found.returncode == 1, found.stdout[-5_000:]
    assert word in found.stdout
    assert f"replay with: python -m tests.simulation --seed {seed}" in found.stdout
