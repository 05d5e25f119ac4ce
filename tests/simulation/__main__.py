"""Run worlds: ``python -m tests.simulation --worlds 1000``, or one again: ``--seed 17``."""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from itertools import count, islice

from tests.simulation.adding import ADDED, added
from tests.simulation.defects import DEFECTS, SEEDS, planted
from tests.simulation.mutations import MUTATIONS
from tests.simulation.scene import Result
from tests.simulation.shrinking import shrink
from tests.simulation.simulation import simulate
from tests.simulation.undoing import VARIABLE, is_in_place
from tests.simulation.worlds import KINDS, World, draw

WORLDS_PER_DEFECT = 600
"""So many worlds are tried for a planted defect. The first one shows it until a change makes its steps others."""
SEARCH = 100_000
"""How many seeds in a row are looked at for a world of the kinds asked for. Of the rarest kind is one in about 300."""


def show(result: Result, options: argparse.Namespace) -> None:
    """Print what failed: the problems, the smallest world that still fails, its trace, and how to see it again."""
    seed = result.world.seed
    defect = f" --defect '{options.defect}'" if options.defect else ""
    defect += f" --also {options.also}" if options.also else ""
    defect += f" --mutation '{options.mutation}'" if options.mutation else ""
    print(f"FAILED seed {seed}", *result.problems, sep="\n  - ")
    if options.shrink and not options.keep_going:
        small = shrink(result, simulate, options.shrink)
        print("the smallest world found that fails:", small.world, *small.trace, sep="\n")
        print("its problems:", *small.problems, sep="\n  - ")
    print(f"replay with: python -m tests.simulation --seed {seed}{defect}")


def main() -> int:
    """Run what the arguments ask for. Return the exit code."""
    parser = argparse.ArgumentParser("python -m tests.simulation")
    parser.add_argument("--seed", type=int, help="run this world, and print its trace")
    parser.add_argument("--worlds", type=int, default=100)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--kind", default="", help="run only worlds of these kinds, see KINDS in worlds.py")
    parser.add_argument("--seeds", type=int, nargs="+", help="run these worlds instead")
    parser.add_argument("--also", choices=ADDED, help="add such a fault to each world, see tests/simulation/adding.py")
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--cpu-seconds", type=float, default=1e9, help="run worlds until this much CPU is used")
    parser.add_argument("--keep-going", action="store_true", help="run on after a failure")
    parser.add_argument("--defect", default="", help="plant a defect, see tests/simulation/defects.py")
    parser.add_argument("--mutation", default="", help="run mutated code, see tests/simulation/mutations.py")
    parser.add_argument("--fingerprints", action="store_true", help="print a digest of each world's trace")
    parser.add_argument("--defects", action="store_true", help="plant each defect, and run worlds until one shows it")
    parser.add_argument("--shrink", type=float, default=60.0, help="seconds for making a world that failed smaller")
    options = parser.parse_args()
    if wrong := what_is_wrong(options):
        parser.error(wrong)
    begin_with({"PYTHONHASHSEED": "0", VARIABLE: options.mutation})
    if options.mutation and not is_in_place(options.mutation):
        parser.error(f"--mutation {options.mutation!r}: no world imports the module that it changes")
    if options.defects:
        return plant(options)
    with planted(options.defect) if options.defect else nullcontext():
        return run(options)


def what_is_wrong(options: argparse.Namespace) -> str:
    """Return why there is no world that the arguments ask for, and what to do; empty: there may be one."""
    if unknown := [kind for kind in options.kind.split(",") if kind not in KINDS]:
        return f"--kind {unknown[0]!r}: no kind of worlds has this name; expected {', '.join(filter(None, KINDS))}"
    if options.worlds < 1:
        return f"--worlds {options.worlds}: a run of no world shows nothing; ask for 1 or more"
    if options.defect and options.defect not in DEFECTS:
        return f"--defect {options.defect!r}: unknown. The names are in tests/simulation/defects.py."
    if options.mutation and options.mutation not in MUTATIONS:
        return f"--mutation {options.mutation!r}: unknown. The names are in tests/simulation/mutations.py."
    return ""


def begin_with(environ: Mapping[str, str], module: str = "tests.simulation") -> None:
    """Have these environment variables from the start of the process, which begins again where they differ."""
    if any(os.environ.get(name, "") != value for name, value in environ.items()):
        os.environ.update(environ)
        os.execv(sys.executable, [sys.executable, "-m", module, *sys.argv[1:]])


def plant(options: argparse.Namespace) -> int:
    """Run worlds for each planted defect until one shows it. Return 1 if one of them is not found."""
    missed = 0
    for name, (first, word) in SEEDS.items():
        options.defect = name
        with planted(name):
            for seed in (first, *range(1, WORLDS_PER_DEFECT)):
                result = simulate(draw(seed))
                if is_found := any(word in problem for problem in result.problems):
                    show(result, options)
                    break
        print(f"{'found' if is_found else 'NOT FOUND'}: {name} (seed {seed}: {word})\n")
        missed += not is_found
    print(f"{len(SEEDS) - missed} of {len(SEEDS)} defects found")
    return 1 if missed else 0


def world_of(seed: int, options: argparse.Namespace) -> World:
    """Return the world of a seed, with what the arguments add to it."""
    world = draw(seed)
    return added(options.also, world) if options.also else world


def worlds_of(options: argparse.Namespace) -> Iterator[World]:
    """Yield the worlds that the arguments ask for; without seeds they have no end, unless no more are found."""
    found = options.first
    for seed in options.seeds or count(options.first):
        world = world_of(seed, options)
        if all(KINDS[kind](world) for kind in options.kind.split(",")):
            found = seed
            yield world
        elif seed - found > SEARCH and not options.seeds:
            return


def run(options: argparse.Namespace) -> int:
    """Run worlds. Return the exit code."""
    if options.seed is not None:
        result = simulate(world_of(options.seed, options))
        print(*result.trace, sep="\n")
        print(f"{result.fingerprint} {result.steps} steps, {result.seconds:.1f} s of virtual time")
        if result.problems:
            show(result, options)
        return 1 if result.problems else 0
    used = time.process_time()
    began, counts, failed, done = time.monotonic(), Counter[str](), list[int](), 0
    traces, drawn = hashlib.sha256(), 0
    for world in islice(worlds_of(options), options.worlds):
        seed = world.seed
        drawn += len(world.faults)
        result = simulate(world)
        done += 1
        counts += result.counts
        if options.fingerprints:
            print(f"seed {seed} {result.fingerprint}")
        traces.update(result.fingerprint.encode())
        if result.problems:
            failed.append(seed)
            show(result, options)
            if not options.keep_going:
                break
        if time.monotonic() - began > options.seconds or time.process_time() - used > options.cpu_seconds:
            break
    if not done:
        print(f"FAILED: no world is of the kinds {options.kind!r}: that shows nothing; ask for other kinds")
        return 1
    seconds, cpu = time.monotonic() - began, time.process_time() - used
    speed = f"{cpu:.1f} s of CPU: {done / cpu:.1f} a second of one core"
    print(f"{done} worlds in {seconds:.1f} s, {speed}; failed: {failed or 'none'}")
    print(f"next seed {seed + 1}")
    print(f"traces {traces.hexdigest()[:16]}")
    print(", ".join(f"{name} {number}" for name, number in sorted(counts.items())))
    if drawn and not counts["fault"]:
        print(f"FAILED: none of the {drawn} faults of these worlds happened: a run without faults shows nothing")
        return 1
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
