"""Losses of power and damaged disks: ``python -m tests.powerloss --points 10000``.

A run is a seed, and has :data:`POINTS` points. With ``--results FILE`` each run is a line of that file, and
a command that is given again goes on behind the runs that are there.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sqlite3
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tests.powerloss.archive import archive_rot
from tests.powerloss.found import Found
from tests.powerloss.losses import lose
from tests.powerloss.rot import rot

POINTS: Final = 500
"""Points of a run."""
OPERATIONS: Final = 360
"""Operations of a run."""
PARTS: Final[dict[str, Callable[[int, int], Found]]] = {
    "losses": lambda seed, points: lose(seed, OPERATIONS, points),
    "rot": rot,
    "archive": archive_rot,
}


def main() -> int:
    """Run what the arguments ask for. Return the exit code."""
    parser = argparse.ArgumentParser("python -m tests.powerloss")
    parser.add_argument("parts", nargs="*", help=f"{', '.join(PARTS)}; all of them otherwise")
    parser.add_argument("--points", type=int, default=10_000, help="of each part")
    parser.add_argument("--seed", type=int, default=1, help="the first one")
    parser.add_argument("--results", type=Path, help="file with a line for each run")
    options = parser.parse_args()
    if wrong := [part for part in options.parts if part not in PARTS]:
        parser.error(f"no such part: {', '.join(wrong)}; expected {', '.join(PARTS)}")
    if options.points < 1:
        parser.error(f"--points {options.points}: a run of no point shows nothing; ask for 1 or more")
    logging.disable()
    try:
        known = _known(options.results)
    except ValueError as error:
        parser.error(f"--results {error}")
    failed = False
    for part in options.parts or PARTS:
        total, began, used = Found(), time.monotonic(), _used()
        for seed in range(options.seed, options.seed + -(-options.points // POINTS)):
            found = known.get((part, seed))
            if found is None:
                found = PARTS[part](seed, POINTS)
                if options.results is not None:
                    with options.results.open("a") as file:
                        line = {"part": part, "seed": seed, "points": found.points, "problems": found.problems[:100]}
                        file.write(json.dumps(line) + "\n")
                print(f"{part}, seed {seed}: {found.points.total()} points, {len(found.problems)} problems", flush=True)
                print(*found.problems[:20], sep="\n", end="\n" if found.problems else "", flush=True)
            total.points += found.points
            total.problems += found.problems
        seconds = f"{time.monotonic() - began:.0f} s, {_used() - used:.0f} s of CPU"
        print(f"{part}: {total.points.total()} points, {len(total.problems)} problems, {seconds}")
        print("  " + ", ".join(f"{name} {number}" for name, number in sorted(total.points.items())))
        if not total.points.total():
            print(f"FAILED: {part} has lost and damaged nothing: that shows nothing")
            failed = True
        failed = failed or bool(total.problems)
    print(f"SQLite {sqlite3.sqlite_version}, Python {sys.version.split()[0]}")
    return 1 if failed else 0


def _known(results: Path | None) -> dict[tuple[str, int], Found]:
    """Return the runs that a file has, by part and seed.

    Raises:
        ValueError: a line of the file is no run.
    """
    known: dict[tuple[str, int], Found] = {}
    lines = results.read_text().splitlines() if results is not None and results.exists() else []
    for number, line in enumerate(lines, 1):
        try:
            said = json.loads(line)
            known[said["part"], said["seed"]] = Found(Counter(said["points"]), said["problems"])
        except (ValueError, KeyError, TypeError) as error:
            text = f"{results}: line {number} is no run; remove the line, and the run is made again"
            raise ValueError(text) from error
    return known


def _used() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


if __name__ == "__main__":
    sys.exit(main())
