"""Draw mutants of the gateway, run the tests that cover each, and print how many are killed.

``python -m tests.mutants --seed 7 --mutants 200``. A run that was stopped continues: what is judged stays in its file.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import nullcontext
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from tests.mutants.coverage_map import CoverageMap
from tests.mutants.drawing import PACKAGES, Mutant, draw, files_of
from tests.mutants.judging import BEYOND, SURVIVING, Chooser, Judgement, Tree, Verdict, judge, judge_by_worlds, measure
from tests.mutants.naming import NamedTests
from tests.servers import VARIABLE
from tests.suites import Servers

ROOT = Path(__file__).resolve().parent.parent.parent
EQUIVALENT = Path(__file__).parent / "equivalent.json"
"""Mutants that change nothing that anybody can see, by name, each with the reason."""


def digest(root: Path) -> str:
    """Return a digest of the code that is mutated."""
    whole = hashlib.sha256()
    for path in files_of(root):
        whole.update(path.encode() + (root / path).read_bytes())
    return whole.hexdigest()[:16]


class Judged:
    """The file of a run: what became of each mutant so far."""

    def __init__(self, file: Path, seed: int, code: str) -> None:
        self.file = file
        self.rows: dict[str, dict[str, Any]] = {}
        head = {"seed": seed, "code": code}
        if not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps(head) + "\n")
            return
        first, *lines = file.read_text().splitlines()
        if json.loads(first) != head:
            raise SystemExit(f"{file} is of another seed or of other code: name another file with --file")
        for number, line in enumerate(lines, 2):
            try:
                row = json.loads(line)
                self.rows[f"{row['name']} {row['start']}"] = row
            except (ValueError, KeyError, TypeError) as error:
                text = f"{file}: line {number} is no mutant; remove the line, and the mutant is judged again"
                raise SystemExit(text) from error

    def get(self, mutant: Mutant) -> dict[str, Any] | None:
        """Return what became of a mutant; None: it is not judged yet."""
        return self.rows.get(f"{mutant.name} {mutant.start}")

    def of_tests(self, mutant: Mutant) -> Judgement | None:
        """Return what the tests said of a mutant; None: it is not judged yet."""
        row = self.get(mutant)
        return None if row is None else Judgement(Verdict(row["verdict"]), row["test"], row["seconds"])

    def is_done(self, mutant: Mutant, worlds: int) -> bool:
        """Whether a mutant is killed, or so many worlds were tried, too."""
        row = self.get(mutant)
        return row is not None and (Verdict(row["verdict"]) not in SURVIVING or row.get("worlds", 0) >= worlds)

    def add(self, mutant: Mutant, judgement: Judgement) -> None:
        """Keep what became of a mutant."""
        row = {
            "name": mutant.name, "start": mutant.start, "line": mutant.line, "change": mutant.change,
            "verdict": judgement.verdict.value, "test": judgement.test, "seconds": round(judgement.seconds, 1),
            "worlds": judgement.worlds,
        }  # fmt: skip
        self.rows[f"{mutant.name} {mutant.start}"] = row
        with self.file.open("a") as file:
            file.write(json.dumps(row) + "\n")


def table(rows: list[dict[str, Any]], equivalent: dict[str, str]) -> str:
    """Return the score of each package, and every mutant that was not killed."""
    counts: dict[str, Counter[str]] = {}
    left = []
    for row in rows:
        package = row["name"].split("/")[1]
        kind = row["verdict"].partition(":")[0]
        if kind == Verdict.SURVIVED and row["name"] in equivalent:
            kind = "equivalent"
        if kind != Verdict.KILLED:
            why = equivalent.get(row["name"], "")
            left.append(f"{kind}: {row['name']} (line {row['line']}; {why or row['test'] or row['verdict']})")
        counts.setdefault(package, Counter())[kind] += 1
    names = ("killed", "survived", "equivalent", "unclear")
    lines = ["package     drawn  " + "  ".join(names) + "  score"]
    total: Counter[str] = sum(counts.values(), Counter())
    for package, of_package in [*sorted(counts.items()), ("all", total)]:
        told = of_package["killed"] + of_package["survived"]
        score = f"{100 * of_package['killed'] / told:.1f} %" if told else "-"
        cells = "  ".join(f"{of_package[name]:>{len(name)}}" for name in names)
        lines.append(f"{package:<10} {of_package.total():>6}  {cells}  {score}")
    return "\n".join([*lines, "", *left])


def main() -> int:
    """Run what the arguments ask for. Return the exit code."""
    parser = argparse.ArgumentParser("python -m tests.mutants", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--mutants", type=int, default=200, help="how many are drawn")
    parser.add_argument("--packages", nargs="+", default=PACKAGES, choices=PACKAGES)
    parser.add_argument("--file", type=Path, help="what is judged, kept from run to run (default: .mutants/SEED.jsonl)")
    parser.add_argument("--map", type=Path, default=ROOT / ".mutants" / "map.json", help="which test runs what")
    parser.add_argument("--measure", nargs="*", metavar="TESTS", help="measure these tests (default: all) again first")
    parser.add_argument("--named", action="store_true", help="run the test files that name the code, without a map")
    parser.add_argument("--most", type=float, default=120.0, help="most seconds of tests for a mutant that survives")
    parser.add_argument("--worlds", type=int, default=300, help="so many worlds try a mutant that the tests let pass")
    parser.add_argument("--jobs", type=int, default=1, help="mutants at a time")
    parser.add_argument("--list", action="store_true", help="print the mutants and the number of their tests only")
    parser.add_argument("--table", action="store_true", help="print the table of the file only")
    options = parser.parse_args()
    if options.mutants < 1:
        parser.error(f"--mutants {options.mutants}: a run of no mutant shows nothing; ask for 1 or more")
    known = NamedTests(ROOT, (*PACKAGES, *BEYOND)) if options.named else CoverageMap(options.map)
    mutants = draw(ROOT, options.seed, options.mutants, options.packages)
    if options.list:
        for mutant in mutants:
            print(f"{len(known.tests_of(mutant.path, mutant.function)):>4} tests  {mutant.name}")
        return 0
    judged = Judged(options.file or ROOT / ".mutants" / f"{options.seed}.jsonl", options.seed, digest(ROOT))
    if not options.table:
        run(options, known, mutants, judged)
    rows = [row for mutant in mutants if (row := judged.get(mutant)) is not None]
    equivalent = json.loads(EQUIVALENT.read_text())
    print(table(rows, equivalent))
    bad = [row for row in rows if row["verdict"].startswith("survived") and row["name"] not in equivalent]
    return 1 if bad or len(rows) < len(mutants) else 0


def run(options: argparse.Namespace, known: Chooser, mutants: list[Mutant], judged: Judged) -> None:
    """Measure what is missing, and judge the mutants that are not judged yet."""
    with tempfile.TemporaryDirectory(prefix="mutants-") as name:
        folder = Path(name)
        file = folder / "servers.json"
        with nullcontext() if os.environ.get(VARIABLE) else Servers(file) as servers:
            if servers is not None:
                servers.ready.wait()
                if servers.why:
                    raise SystemExit(servers.why)
                os.environ[VARIABLE] = str(file)
            trees: SimpleQueue[Tree] = SimpleQueue()
            for number in range(options.jobs):
                trees.put(Tree(ROOT, folder / f"tree{number}"))
            if isinstance(known, CoverageMap) and (options.measure is not None or not known.tests):
                folders = [f"tests/{each}" for each in (*PACKAGES, *BEYOND)]
                everything = [
                    str(path.relative_to(ROOT)) for each in folders for path in (ROOT / each).glob("test_*.py")
                ]
                tree = trees.get()
                measure(tree, known, options.measure or sorted(everything), 3_600.0)
                trees.put(tree)

            def judge_in_turn(mutant: Mutant) -> tuple[Mutant, Judgement]:
                tree = trees.get()
                try:
                    found = judged.of_tests(mutant) or judge(mutant, tree, known, options.most)
                    if options.worlds and found.verdict in SURVIVING:
                        found = judge_by_worlds(mutant, tree, found, options.worlds)
                    return mutant, found
                finally:
                    trees.put(tree)

            with ThreadPoolExecutor(options.jobs) as threads:
                left = [each for each in mutants if not judged.is_done(each, options.worlds)]
                tasks = [threads.submit(judge_in_turn, each) for each in left]
                try:
                    for task in as_completed(tasks):
                        mutant, judgement = task.result()
                        judged.add(mutant, judgement)
                        took = f"{judgement.seconds:.0f} s"
                        print(f"{len(judged.rows)}/{len(mutants)} {judgement.verdict} {took} {mutant.name}", flush=True)
                finally:
                    threads.shutdown(wait=False, cancel_futures=True)  # a run that is interrupted does not begin them


if __name__ == "__main__":
    sys.exit(main())
