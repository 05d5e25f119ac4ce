"""A mutation is found by the command line, and its problem told in few words."""

from __future__ import annotations

import os
import re
import subprocess
import sys

from tests.simulation.measuring import ROOT, in_few_words
from tests.simulation.undoing import VARIABLE

QUICK = "the auditor goes on when the gateway stops"
"""A mutation that the first worlds show."""


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.simulation", *arguments]
    environ = {name: value for name, value in os.environ.items() if name != VARIABLE}
    return subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)


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
