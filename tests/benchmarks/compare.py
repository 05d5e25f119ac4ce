"""``python -m tests.benchmarks.compare BASE [HEAD]``: our side of the benchmark on two commits, turn and turn about.

Each commit is laid out in a temporary folder with a virtual environment from its own lock file; without ``HEAD`` the
other side is the work tree. Both are measured by the same program, that of the work tree, which is laid over what the
commit has in ``tests/``, against the same servers. A commit whose insides the program does not fit cannot be compared
so: ``--own`` has each commit measured by itself, which needs this program on both sides.

A row is the median of HEAD's rounds over BASE's, round by round, with the smallest and the largest. Below 1.00 HEAD
takes less CPU, above 1.00 its rate is greater.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from statistics import median

from tests.benchmarks.__main__ import terminated
from tests.benchmarks.programs import ROOT
from tests.benchmarks.rows import Row, say
from tests.benchmarks.sections import SECTIONS

SERVERS = {
    "link": ("rabbitmq-3.10",),
    "versions": ("rabbitmq-3.10", "brokerj"),
    "publish": ("rabbitmq-3.10",),
    "pull": ("rabbitmq-3.10",),
    "bridge": ("brokerj", "rabbitmq-3.10"),
    "front": ("rabbitmq-3.10",),
    "ledger": ("postgresql",),
    "memory": ("rabbitmq-3.10",),
    "growth": ("rabbitmq-3.10",),
    "cost": ("rabbitmq-3.10",),
}
"""Section -> the servers that both sides share."""
WORK_TREE = "work tree"
MEASURES = ("microseconds", "rate")


class CannotCompare(Exception):
    """The text is one sentence that says why."""


@dataclass(frozen=True)
class Side:
    """One of the two."""

    name: str
    folder: Path
    python: Path


def git(*arguments: str) -> bytes:
    """What git says. Raises CannotCompare."""
    done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, check=False)
    if done.returncode:
        raise CannotCompare(f"git {arguments[0]}: {done.stderr.decode(errors='replace').strip()}")
    return done.stdout


@contextmanager
def side(commit: str | None, own: bool) -> Iterator[Side]:
    """A commit, laid out and installed; None is the work tree as it is."""
    if commit is None:
        yield Side(WORK_TREE, ROOT, Path(sys.executable))
        return
    name = git("rev-parse", "--short", "--verify", f"{commit}^{{commit}}").decode().strip()
    with tempfile.TemporaryDirectory(prefix=f"gateway-bench-{name}-") as folder:
        say(f"laying out {commit} ({name})")
        lay_out(name, Path(folder), own)
        yield Side(name, Path(folder), install(Path(folder)))


def lay_out(commit: str, folder: Path, own: bool) -> None:
    """The files of a commit; unless it is to be measured by its own program, with the tests of the work tree."""
    with tarfile.open(fileobj=BytesIO(git("archive", commit))) as archive:
        archive.extractall(folder, filter="data")
    if not own:
        shutil.rmtree(folder / "tests")
        shutil.copytree(ROOT / "tests", folder / "tests", ignore=shutil.ignore_patterns("__pycache__"))


def install(folder: Path) -> Path:
    """A virtual environment from the lock file there; its Python."""
    environ = {**os.environ, "UV_PROJECT_ENVIRONMENT": str(folder / ".venv")}
    command = [Path(sys.executable).parent / "uv", "sync", "--locked", "--quiet", "--python", sys.executable]
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CannotCompare(f"uv sync: {done.stderr.strip()[-500:]}")
    return folder / ".venv" / "bin" / "python"


def measure(side: Side, sections: Sequence[str], options: Sequence[str], folder: Path) -> dict[tuple[str, str], Row]:
    """One round of a side. Raises CannotCompare."""
    result = folder / "result.json"
    result.unlink(missing_ok=True)
    command = [side.python, "-m", "tests.benchmarks", "--ours", "--rounds", "1", "--json", result, *options, *sections]
    done = subprocess.run([str(part) for part in command], cwd=side.folder, capture_output=True, text=True, check=False)
    rows = [Row.from_json(each) for each in json.loads(result.read_text())] if result.exists() else []
    broken = [row.error for row in rows if row.error]
    if broken or not rows:
        why = broken[0] if broken else done.stderr.strip().rpartition("\n")[2]
        raise CannotCompare(f"{side.name} could not be measured: {why}")
    return {(row.work, row.client): row for row in rows}


@dataclass
class Compared:
    """One work and client on both sides, round by round."""

    work: str
    client: str
    base: list[Row]
    head: list[Row]

    def values(self, measure: str) -> list[tuple[float, float]]:
        """Base and head of each round, where both have it."""
        pairs = [(one.middle(measure), other.middle(measure)) for one, other in zip(self.base, self.head, strict=True)]
        return [(one, other) for one, other in pairs if one and other]


def collect(
    rounds: Sequence[tuple[dict[tuple[str, str], Row], dict[tuple[str, str], Row]]],
) -> list[Compared]:
    """By work and client; what only one side has is left out."""
    first = rounds[0]
    names = [name for name in first[0] if all(name in one for pair in rounds for one in pair)]
    return [Compared(*name, [one[name] for one, _ in rounds], [other[name] for _, other in rounds]) for name in names]


def table(compared: Sequence[Compared], base: str, head: str) -> str:
    """One line for each work and measure."""
    lines = [("work", "client", "measure", base, head, "ratio", "min", "max")]
    for each in compared:
        for measure in MEASURES:
            pairs = each.values(measure)
            if not pairs:
                continue
            ratios = [other / one for one, other in pairs]
            middles = [median(values) for values in zip(*pairs, strict=True)]
            form = ",.2f" if measure == "microseconds" else ",.0f"
            numbers = [f"{value:{form}}" for value in middles]
            shares = [f"{value:.3f}" for value in (median(ratios), min(ratios), max(ratios))]
            lines.append((each.work, each.client, "CPU µs" if form == ",.2f" else "per second", *numbers, *shares))
    widths = [max(len(line[at]) for line in lines) for at in range(len(lines[0]))]
    return "\n".join(
        "  ".join(
            f"{cell:<{width}}" if at < 3 else f"{cell:>{width}}"
            for at, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


@contextmanager
def servers(sections: Sequence[str], folder: Path) -> Iterator[list[str]]:
    """The servers that these sections need, for both sides; as options of the benchmark."""
    kinds = sorted({kind for section in sections for kind in SERVERS.get(section, ())})
    if not kinds:
        yield []
        return
    file = folder / "servers.json"
    command = [sys.executable, "-m", "tests.servers"]
    say(f"starting {', '.join(kinds)}")
    subprocess.run([*command, "up", "--file", str(file), "--only", *kinds], cwd=ROOT, check=True)
    try:
        yield ["--servers", str(file)]
    finally:
        subprocess.run([*command, "down", "--file", str(file)], cwd=ROOT, check=True)


def parser() -> argparse.ArgumentParser:
    """The options."""
    found = argparse.ArgumentParser(prog="python -m tests.benchmarks.compare", description=__doc__)
    found.add_argument("base", metavar="BASE", help="a commit")
    found.add_argument("head", metavar="HEAD", nargs="?", help="another; without it the work tree")
    found.add_argument("--sections", nargs="+", metavar="SECTION", default=["codec"], choices=list(SECTIONS))
    found.add_argument("--rounds", type=int, default=5, metavar="N", help="rounds of each side (5)")
    found.add_argument("--own", action="store_true", help="measure each commit by its own program")
    found.add_argument("--quick", action="store_true", help="show that it works")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Lay out, measure in turn, print; 1 where they cannot be compared."""
    options = parser().parse_args(arguments)
    quick = ["--quick"] if options.quick else []
    rounds = []
    try:
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gateway-compare-")))
            base = stack.enter_context(side(options.base, options.own))
            head = stack.enter_context(side(options.head, options.own))
            shared = stack.enter_context(servers(options.sections, folder))
            for number in range(options.rounds):
                say(f"round {number + 1} of {options.rounds}")
                order = (base, head) if number % 2 == 0 else (head, base)
                found = {each.name: measure(each, options.sections, [*quick, *shared], folder) for each in order}
                rounds.append((found[base.name], found[head.name]))
    except CannotCompare as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{', '.join(options.sections)}: {options.rounds} rounds, in turn; ratio is {head.name} over {base.name}\n")
    print(table(collect(rounds), base.name, head.name))
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, terminated)
    sys.exit(main())
