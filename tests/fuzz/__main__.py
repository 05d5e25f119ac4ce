"""``python -m tests.fuzz``: a million cases, or one again.

::

    python -m tests.fuzz --cases 1000000 --seed 7      # make fuzz
    python -m tests.fuzz --case FILE                   # repeat one that failed
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from tests.fuzz.oracle import Broken, Case
from tests.fuzz.run import run
from tests.fuzz.targets import play


def main() -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description="Throw octets at sessions.")
    parser.add_argument("--cases", type=int, default=1_000_000, help="how many (1,000,000)")
    parser.add_argument("--seed", default=None, help="from which they are made (the time)")
    parser.add_argument("--processes", type=int, default=2, help="how many at a time (2)")
    parser.add_argument("--failures", type=Path, default=None, help="folder for cases that fail")
    parser.add_argument("--case", type=Path, default=None, help="repeat the case in this file")
    options = parser.parse_args()
    if options.case is not None:
        return repeat(options.case)
    seed = options.seed if options.seed is not None else str(int(time.time()))
    folder = options.failures or Path(tempfile.gettempdir()) / f"gateway-fuzz-{seed}"
    print(f"seed {seed}; cases that fail are written to {folder}", flush=True)
    told = 0

    def tell(done: int, seconds: float) -> None:
        nonlocal told
        if done // 50_000 > told:
            told = done // 50_000
            print(f"{done:,} cases after {seconds:,.0f} s", flush=True)

    report = run(seed, options.cases, folder, options.processes, tell)
    print(f"\n{report}", flush=True)
    return 1 if report.failures else 0


def repeat(path: Path) -> int:
    """Play one case again."""
    case = Case.read(path)
    try:
        verdict = play(case)
    except Broken as broken:
        print(broken)
        return 1
    print(f"{case.target} {case.version.value} {case.role.value} {case.state}: {verdict.ended}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
