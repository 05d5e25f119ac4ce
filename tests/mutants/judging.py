"""Run the tests that cover a mutant, in a copy of the tree, and say whether one of them fails."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from tests.mutants.coverage_map import CoverageMap
from tests.mutants.drawing import Mutant

BEYOND = ("api", "access", "front", "outbound", "budgets", "hostile", "definitions", "management")
"""Folders whose tests are measured, too: they reach what the mutated packages do."""
TESTS_FAILED = 1
"""Exit status of pytest when tests failed."""
FAILED_WORLD = re.compile(r"^FAILED seed ([0-9]+)$", re.MULTILINE)
WORLD_SECONDS = 0.5
"""Most seconds that a world of the simulation may take, on average."""
LINKS = (".venv", ".servers")
"""Folders of the tree that the copy shares."""


class Verdict(StrEnum):
    """What became of a mutant."""

    KILLED = "killed"
    HUNG = "killed: hangs"
    SURVIVED = "survived"
    UNCLEAR = "unclear"
    """A test failed, and it fails without the mutant, too."""
    UNCOVERED = "survived: no test runs it"


SURVIVING = (Verdict.SURVIVED, Verdict.UNCOVERED)
"""What nothing has killed so far."""


class Chooser(Protocol):
    """Knows which tests may kill a mutant, and how long each takes."""

    seconds: dict[str, float]

    def tests_of(self, path: str, function: str) -> list[str]:
        """Return the tests of a function, in the order in which they are to run."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """What became of a mutant, and by which test."""

    verdict: Verdict
    test: str
    seconds: float
    worlds: int = 0
    """So many worlds of the simulation were tried, too."""


class Tree:
    """Copy of the project that mutants are put into."""

    def __init__(self, source: Path, folder: Path) -> None:
        self.source, self.folder = source, folder
        self.log = folder / "said.log"
        """What the last process of tests printed."""
        folder.mkdir(parents=True)
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=source, capture_output=True, check=True).stdout
        for name in listed.decode().split("\0"):
            if name and (source / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source / name, folder / name)
        for name in LINKS:
            if (source / name).exists():
                (folder / name).symlink_to(source / name)

    def put(self, mutant: Mutant) -> None:
        """Write a mutant into its file."""
        mutant.apply(self.folder)
        self._forget(mutant.path)

    def restore(self, path: str) -> None:
        """Undo the mutant of a file."""
        shutil.copyfile(self.source / path, self.folder / path)
        self._forget(path)

    def _forget(self, path: str) -> None:
        """Remove the bytecode of a file: one of the same size, written in the same second, would be taken for it."""
        Path(importlib.util.cache_from_source(str(self.folder / path))).unlink(missing_ok=True)

    def pytest(self, tests: Sequence[str], seconds: float, *options: str, under: Sequence[str] = ()) -> int | None:
        """Run tests. Return the exit status; None: they took longer than ``seconds``."""
        return self._run([*(under or ("-m",)), "pytest", "-x", *options, *tests], seconds)

    def worlds(self, seconds: float, *options: str) -> int | None:
        """Run worlds of the simulation until one fails. Return as :meth:`pytest` does."""
        return self._run(["-m", "tests.simulation", "--shrink", "0", *options], seconds)

    def _run(self, arguments: Sequence[str], seconds: float) -> int | None:
        environ = {**os.environ, "PYTHONPATH": str(self.folder), "PYTHONDONTWRITEBYTECODE": ""}
        command = [sys.executable, *arguments]
        with self.log.open("wb") as log:
            process = subprocess.Popen(
                command, cwd=self.folder, env=environ, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )
            try:
                return process.wait(seconds)
            except subprocess.TimeoutExpired:
                return None
            finally:
                try:
                    os.killpg(process.pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass  # nothing was left
                process.wait()

    def said(self) -> str:
        """The last line that was printed."""
        return self.log.read_text(errors="replace").strip().rpartition("\n")[2]

    def failed_world(self) -> str:
        """The seed of the world that failed; "" if none did."""
        found = FAILED_WORLD.search(self.log.read_text(errors="replace"))
        return found[1] if found else ""

    def failed(self, report: Path) -> str:
        """Return the test that failed, from the report of a run; "" if none did."""
        if not report.exists():
            return ""
        for case in ElementTree.parse(report).getroot().iter("testcase"):
            if case.find("failure") is not None or case.find("error") is not None:
                return _name_of(case, self.folder)
        return ""


def _name_of(case: ElementTree.Element, root: Path) -> str:
    """Return a test as pytest takes it on its command line, without its parameters."""
    names = case.get("classname", "").split(".")
    count = len(names)
    while count > 1 and not (root / ("/".join(names[:count]) + ".py")).exists():
        count -= 1
    parts = ["/".join(names[:count]) + ".py", *names[count:]]
    return "::".join([*parts, case.get("name", "").partition("[")[0]])


def judge(mutant: Mutant, tree: Tree, known: Chooser, most: float) -> Judgement:
    """Run the tests that cover a mutant, for at most ``most`` seconds where none fails or hangs."""
    began = time.monotonic()
    tests = known.tests_of(mutant.path, mutant.function)
    chosen: list[str] = []
    expected = 0.0
    for test in tests:
        expected += known.seconds.get(test, 1.0)
        if chosen and expected > most:
            break
        chosen.append(test)
    if not chosen:
        return Judgement(Verdict.UNCOVERED, "", 0.0)
    report = tree.folder / "report.xml"
    report.unlink(missing_ok=True)
    allowed = 30.0 + 3 * min(expected, most)
    tree.put(mutant)
    try:
        status = tree.pytest(chosen, allowed, f"--junit-xml={report}")
    finally:
        tree.restore(mutant.path)
    if status == 0:
        cut = f"{len(chosen)} of {len(tests)} tests"
        return Judgement(Verdict.SURVIVED, cut, time.monotonic() - began)
    if status is None:
        # The machine may be slow: without the mutant the same tests must end in that time.
        clean = tree.pytest(chosen, allowed)
        verdict, test = (Verdict.HUNG, "") if clean == 0 else (Verdict.UNCLEAR, tree.said())
        return Judgement(verdict, test, time.monotonic() - began)
    test = tree.failed(report)
    if not test:  # the package cannot even be imported
        said = tree.said()
        verdict = Verdict.UNCLEAR
        if status != TESTS_FAILED and tree.pytest(chosen, allowed) == 0:  # else it is no doing of the mutant's
            verdict = Verdict.KILLED
        return Judgement(verdict, said[:200], time.monotonic() - began)
    clean = tree.pytest([test], 60.0 + 5 * known.seconds.get(test, 1.0))
    verdict = Verdict.KILLED if clean == 0 else Verdict.UNCLEAR
    return Judgement(verdict, test, time.monotonic() - began)


def judge_by_worlds(mutant: Mutant, tree: Tree, by_tests: Judgement, worlds: int) -> Judgement:
    """Run the first worlds of the simulation with a mutant that the tests let pass. Without it they are clean."""
    began = time.monotonic() - by_tests.seconds
    allowed = 60.0 + WORLD_SECONDS * worlds
    tree.put(mutant)
    try:
        status = tree.worlds(allowed, "--worlds", str(worlds))
    finally:
        tree.restore(mutant.path)
    if status == 0:
        tried = f"{by_tests.test}, {worlds} worlds".removeprefix(", ")
        return Judgement(by_tests.verdict, tried, time.monotonic() - began, worlds)
    seed, said = tree.failed_world(), tree.said()
    clean = tree.worlds(allowed, *(("--seeds", seed) if seed else ("--worlds", str(worlds))))
    killed = Verdict.HUNG if status is None else Verdict.KILLED
    verdict, test = (killed, f"world {seed}" if seed else said[:200]) if clean == 0 else (Verdict.UNCLEAR, tree.said())
    return Judgement(verdict, test, time.monotonic() - began, worlds)


def measure(tree: Tree, known: CoverageMap, tests: Sequence[str], most: float) -> None:
    """Run tests under coverage, and keep which functions each of them runs."""
    report, data = tree.folder / "report.xml", tree.folder / ".coverage.map"
    for test in tests:
        data.unlink(missing_ok=True)
        report.unlink(missing_ok=True)
        under = ("-m", "coverage", "run", f"--data-file={data}", "--source=gateway", "-m")
        options = (f"--junit-xml={report}", "-p", "tests.mutants.coverage_map", "--maxfail=1000")
        status = tree.pytest([test], most, *options, under=under)
        if status != 0:
            print(f"{test}: pytest ended with {status}: {tree.said()}", flush=True)
        if not report.exists() or not data.exists():
            continue
        seconds: dict[str, float] = {}
        for case in ElementTree.parse(report).getroot().iter("testcase"):
            name = _name_of(case, tree.folder)
            seconds[name] = seconds.get(name, 0.0) + float(case.get("time", 0.0))
        known.read(tree.folder, data, seconds)
        known.write()
        print(f"{test}: {len(seconds)} tests", flush=True)
