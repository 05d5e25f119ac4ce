"""Run worlds by the ten thousand, over days: ``python -m tests.simulation.long_run --worlds 100000 --jobs 2``.

What is done is written block by block, and a further run goes on behind it. Blocks of earlier code stay in the file,
each with the commit that it ran.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Lock
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent.parent
RESULTS: Final = Path(__file__).with_name("long_run.json")
BLOCK: Final = 500
"""Worlds of one process."""
_DONE: Final = re.compile(r"^([0-9]+) worlds in .*, ([0-9.]+) s of CPU: .*; failed: (none|\[.*\])$", re.MULTILINE)


@dataclass(frozen=True)
class Stretch:
    """Worlds with seeds in a row that the same code ran."""

    code: str
    """The last commit that changed the gateway or how worlds are drawn."""
    first: int
    worlds: int
    cpu: float
    """Seconds."""
    failed: list[int]
    """Seeds."""

    @property
    def end(self) -> int:
        """The first seed behind it."""
        return self.first + self.worlds


def load(path: Path) -> list[Stretch]:
    """Return what was run, by seeds.

    Raises:
        ValueError: the file is no such list.
    """
    try:
        return [Stretch(**each) for each in json.loads(path.read_text())] if path.exists() else []
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path}: no list of worlds that were run ({error}); name another file with --file") from error


def joined(stretches: Sequence[Stretch]) -> list[Stretch]:
    """Return the same by seeds, neighbors of the same code as one."""
    found: list[Stretch] = []
    for each in sorted(stretches, key=lambda stretch: stretch.first):
        last = found[-1] if found else None
        if last is not None and (last.end, last.code) == (each.first, each.code):
            worlds, cpu = last.worlds + each.worlds, round(last.cpu + each.cpu, 1)
            found[-1] = Stretch(each.code, last.first, worlds, cpu, last.failed + each.failed)
        else:
            found.append(each)
    return found


def missing(stretches: Sequence[Stretch], worlds: int) -> Iterator[tuple[int, int]]:
    """Yield blocks that are to be run, as first seed and number of worlds, so that the first ``worlds`` seeds are."""
    at = 1
    for first, end in [*((each.first, each.end) for each in joined(stretches)), (worlds + 1, worlds + 1)]:
        stop = min(first, worlds + 1)
        for begin in range(at, stop, BLOCK):
            yield begin, min(BLOCK, stop - begin)
        at = max(at, end)


class LongRun:
    """A run over all that is missing."""

    def __init__(self, path: Path, seconds: float) -> None:
        self._path, self._until = path, time.monotonic() + seconds
        self._lock = Lock()
        self.stretches = load(path)
        self._code = subprocess.run(
            ["git", "log", "-1", "--abbrev=8", "--format=%h", "--", "gateway", "tests/simulation/worlds.py"],
            cwd=ROOT, capture_output=True, text=True, check=True,
        ).stdout.strip()  # fmt: skip

    def run(self, block: tuple[int, int]) -> None:
        """Run a block, unless the time is up, and write what came of it.

        Raises:
            SystemExit: the worlds could not be run.
        """
        if time.monotonic() > self._until:
            return
        first, worlds = block
        command = [sys.executable, "-m", "tests.simulation", "--first", str(first), "--worlds", str(worlds)]
        command += ["--keep-going", "--shrink", "0"]
        environ = {**os.environ, "PYTHONHASHSEED": "0"}
        said = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)
        if (done := _DONE.search(said.stdout)) is None:
            raise SystemExit(f"worlds {first} to {first + worlds - 1}:\n{said.stdout[-2_000:]}\n{said.stderr[-2_000:]}")
        failed = [] if done[3] == "none" else json.loads(done[3])
        for seed in failed:
            print(f"FAILED: python -m tests.simulation --seed {seed}", flush=True)
        with self._lock:
            self.stretches = joined([*self.stretches, Stretch(self._code, first, int(done[1]), float(done[2]), failed)])
            texts = [json.dumps(asdict(stretch)) for stretch in self.stretches]
            self._path.write_text("[\n" + ",\n".join(texts) + "\n]\n")


def main() -> int:
    """Run what is missing. Return the exit code."""
    parser = argparse.ArgumentParser("python -m tests.simulation.long_run")
    parser.add_argument("--worlds", type=int, default=100_000, help="how many there are to be, those of the file too")
    parser.add_argument("--jobs", type=int, default=1, help="how many processes run at a time")
    parser.add_argument("--seconds", type=float, default=1e9, help="begin nothing after so many seconds")
    parser.add_argument("--file", type=Path, default=RESULTS)
    options = parser.parse_args()
    if options.worlds < 1:
        parser.error(f"--worlds {options.worlds}: a run of no world shows nothing; ask for 1 or more")
    try:
        long_run = LongRun(options.file, options.seconds)
    except ValueError as error:
        parser.error(f"--file {error}")
    with ThreadPoolExecutor(options.jobs) as pool:
        for _ in pool.map(long_run.run, itertools.chain(missing(long_run.stretches, options.worlds))):
            pass
    failed = [seed for stretch in long_run.stretches for seed in stretch.failed]
    worlds, cpu = sum(each.worlds for each in long_run.stretches), sum(each.cpu for each in long_run.stretches)
    print(f"{worlds:,} worlds, {cpu:,.0f} s of CPU; failed: {failed or 'none'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
