"""Measure how soon worlds show each mutation: ``python -m tests.simulation.measuring --jobs 2``.

Each mutation has a process of its own, which runs worlds until one shows a problem, or its seconds of CPU are used.
What is known is written after each of them, and a further run begins with what is missing.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import Any, Final

from tests.simulation.defects import DEFECTS
from tests.simulation.mutations import DEFECT_KINDS, FIXES, MUTATIONS

ROOT: Final = Path(__file__).resolve().parent.parent.parent
RESULTS: Final = Path(__file__).with_name("mutations.json")
SECONDS: Final = 600.0
"""How much CPU the worlds of one mutation may take, in seconds."""
WORDS_MAX: Final = 70
"""Most characters of a problem that are kept."""
_DONE: Final = re.compile(r"^([0-9]+) worlds in .*, ([0-9.]+) s of CPU: .*$", re.MULTILINE)
_NEXT: Final = re.compile(r"^next seed ([0-9]+)$", re.MULTILINE)
_NAMES: Final = re.compile(r" of [0-9a-f]{32}$")
_FAILED: Final = re.compile(r"^FAILED seed ([0-9]+)\n  - (.*)$", re.MULTILINE)


def entries() -> dict[str, dict[str, Any]]:
    """Return what is to be measured: name -> commit of the fix, kind and first seed of its worlds."""
    found = {
        name: {"commit": FIXES.get(name, ""), "kind": DEFECT_KINDS.get(name, ""), "first": 1, "option": "--defect"}
        for name in DEFECTS
    }
    for mutation in MUTATIONS.values():
        found[mutation.name] = {
            "commit": mutation.commit, "kind": mutation.kind, "first": mutation.first, "option": "--mutation",
        }  # fmt: skip
    return found


def results() -> dict[str, dict[str, Any]]:
    """Return what was measured: name -> its result."""
    found: dict[str, dict[str, Any]] = json.loads(RESULTS.read_text())
    return found


def in_few_words(problem: str) -> str:
    """Return what a problem is, without the messages that show it."""
    head = _NAMES.sub("", problem.split(" (", 1)[0])
    if " was handed out before " in head:
        return "handed out before an earlier message of its key"
    if not problem.startswith(("a failure", "task ", "not drained")):
        head = _NAMES.sub("", head.split(": ", 1)[0])
    return head if len(head) <= WORDS_MAX else head[: WORDS_MAX - 1].rstrip() + "…"


class Measurement:
    """A run over all mutations, which writes each result as it comes."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._lock = Lock()
        self._known = results() if RESULTS.exists() else {}
        self._code = subprocess.run(
            ["git", "log", "-1", "--abbrev=8", "--format=%h", "--", "gateway"],
            cwd=ROOT, capture_output=True, text=True, check=True,
        ).stdout.strip()  # fmt: skip
        """The last commit that changed the gateway."""

    def missing(self) -> list[str]:
        """Return the names that were not found yet and have CPU left, those that have used least first."""
        names = [
            name
            for name in entries()
            if self._known.get(name, {}).get("seed") is None and self._used(name) < self._seconds
        ]
        return sorted(names, key=self._used)

    def _used(self, name: str) -> float:
        return float(self._known.get(name, {}).get("seconds", 0.0))

    def measure(self, name: str) -> None:
        """Run worlds with this mutation, behind those of earlier runs."""
        entry, before = entries()[name], self._known.get(name, {})
        command = [
            sys.executable, "-m", "tests.simulation", entry["option"], name, "--kind", entry["kind"], "--shrink", "0",
            "--first", str(before.get("next", entry["first"])), "--worlds", "1000000",
            "--cpu-seconds", str(self._seconds - self._used(name)),
        ]  # fmt: skip
        environ = {**os.environ, "PYTHONHASHSEED": "0"}
        said = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)
        done, following = _DONE.search(said.stdout), _NEXT.search(said.stdout)
        if done is None or following is None:
            raise SystemExit(f"{name!r} could not be measured:\n{said.stdout[-2_000:]}\n{said.stderr[-2_000:]}")
        failed = _FAILED.search(said.stdout)
        result = {
            "commit": entry["commit"],
            "kind": entry["kind"],
            "first": entry["first"],
            "worlds": before.get("worlds", 0) + int(done[1]),
            "seconds": round(self._used(name) + float(done[2]), 1),
            "seed": int(failed[1]) if failed is not None else None,
            "problem": in_few_words(failed[2]) if failed is not None else "",
            "next": int(following[1]),
            "code": self._code,
        }
        with self._lock:
            self._known[name] = result
            self._write()
        print(name, result, flush=True)

    def _write(self) -> None:
        known = {name: self._known[name] for name in entries() if name in self._known}
        RESULTS.write_text(json.dumps(known, indent=1, ensure_ascii=False) + "\n")


def spurious(found: Mapping[str, Mapping[str, Any]]) -> str:
    """Run the world that shows each mutation without any. Return what fails all the same; empty: nothing does."""
    seeds = sorted({result["seed"] for result in found.values() if result["seed"] is not None})
    command = [sys.executable, "-m", "tests.simulation", "--shrink", "0", "--keep-going", "--seeds", *map(str, seeds)]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return said.stdout if said.returncode else ""


def main() -> int:
    """Measure what is missing. Return the exit code."""
    parser = argparse.ArgumentParser("python -m tests.simulation.measuring")
    parser.add_argument("--jobs", type=int, default=1, help="how many mutations are measured at a time")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="CPU for each, in seconds")
    parser.add_argument("--names", nargs="+", help="only these")
    parser.add_argument("--check", action="store_true", help="run the worlds found without the mutations instead")
    options = parser.parse_args()
    if unknown := [name for name in options.names or () if name not in entries()]:
        parser.error(f"--names {unknown[0]!r}: unknown. The names are in mutations.py and defects.py.")
    if options.check:
        failed = spurious(results())
        print(failed or "all of these worlds are clean without the mutations")
        return 1 if failed else 0
    measurement = Measurement(options.seconds)
    names = [name for name in measurement.missing() if not options.names or name in options.names]
    with ThreadPoolExecutor(options.jobs) as pool:
        for _ in pool.map(measurement.measure, names):
            pass
    return 0


if __name__ == "__main__":
    sys.exit(main())
