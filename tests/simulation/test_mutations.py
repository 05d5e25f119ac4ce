"""The table of mutations fits the code of today, and one of them is found by the command line."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest

from tests.simulation.defects import DEFECTS
from tests.simulation.measuring import RESULTS, ROOT, entries, in_few_words
from tests.simulation.mutations import ALL, DEFECT_KINDS, FIXES, MUTATIONS
from tests.simulation.undoing import VARIABLE, mutated
from tests.simulation.worlds import KINDS

QUICK = "the auditor goes on when the gateway stops"
"""A mutation that the first worlds show."""


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.simulation", *arguments]
    environ = {name: value for name, value in os.environ.items() if name != VARIABLE}
    return subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_mutation_replaces_one_text_of_its_file_and_the_rest_compiles(name: str) -> None:
    mutation = MUTATIONS[name]
    source = mutated(mutation)
    assert source != (ROOT / mutation.path).read_text()
    compile(source, mutation.path, "exec")


def test_names_are_unique() -> None:
    assert len(ALL) == len(MUTATIONS)
    assert not MUTATIONS.keys() & DEFECTS.keys()
    assert FIXES.keys() | DEFECT_KINDS.keys() <= DEFECTS.keys()


@pytest.mark.parametrize("name", entries())
def test_commits_and_kinds_are_such(name: str) -> None:
    entry = entries()[name]
    assert re.fullmatch("[0-9a-f]{8}|", entry["commit"])
    assert set(entry["kind"].split(",")) <= KINDS.keys()


def test_the_results_are_of_these_mutations() -> None:
    results = json.loads(RESULTS.read_text())
    assert results.keys() <= entries().keys()
    for name, result in results.items():
        entry = entries()[name]
        assert all(result[key] == entry[key] for key in ("commit", "kind", "first")), name
        assert (result["seed"] is None) == (result["problem"] == ""), name


def test_a_mutation_is_found_from_the_command_line() -> None:
    found = run("--mutation", QUICK, "--worlds", "5", "--shrink", "0")
    assert found.returncode == 1, found.stdout + found.stderr
    problem = r"^FAILED seed [0-9]+\n  - task ledger audit of gateway left$"
    assert re.search(problem, found.stdout, re.MULTILINE) is not None, found.stdout
    assert f"--mutation '{QUICK}'" in found.stdout


def test_an_unknown_mutation_is_an_error() -> None:
    found = run("--mutation", "what nobody knows", "--worlds", "1")
    assert found.returncode != 0
    assert "--mutation 'what nobody knows': unknown. The names are in tests/simulation/mutations.py." in found.stderr


def test_problems_are_told_in_few_words() -> None:
    assert in_few_words("3 lost: m1.0, m2.0") == "3 lost"
    assert in_few_words("2 repeats without a mark: m1.0 (a at 1.0, b at 2.0)") == "2 repeats without a mark"
    assert in_few_words(f"impossible events of {'0a' * 16}: sent twice") == "impossible events"
    assert in_few_words("task outbox of gateway left") == "task outbox of gateway left"
    assert len(in_few_words("a failure in gateway: " + "x" * 200)) == 70
