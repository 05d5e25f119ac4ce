"""``make chaos``, or ``python -m tests.chaos [F01 ...]``: the experiments, and the table.

::

    python -m tests.chaos                        the quick form of all
    python -m tests.chaos F04 F18 --full         the full form of two; hours for all of them
    python -m tests.chaos F01 --full --on 0-10 --seed 7
    python -m tests.chaos F34 --full --minutes 60
    python -m tests.chaos F24 --full --keep      and write the JSON that the report is made of
    python -m tests.chaos report                 write RELIABILITY.md from that

Brokers are started for the run, and are nobody else's. A part that fails is printed with all there is to know and the
others go on; the status is 1 then. The same seed makes the same messages and chances, not the same moments.
"""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from tests.chaos import figures, report
from tests.chaos.figures import Form, Line
from tests.chaos.parts import Context, Experiment
from tests.chaos.table import EXPERIMENTS


def run(experiment: Experiment, context: Context, command: str, folder: Path | None, part: str) -> list[Line]:
    """Run one, or those parts of it that have ``part`` in their names; every line, printed and kept as it comes."""
    lines: list[Line] = []
    for each in experiment.parts:
        if context.form not in each.forms or part not in each.name:
            continue
        print(f"{datetime.now(UTC):%H:%M:%S} {experiment.id} {each.name}", file=sys.stderr, flush=True)
        at, machine, code = figures.now(), figures.machine(), figures.code()
        found = [
            Line(experiment.id, context.form, context.seed, at, command, machine, line, code)
            for line in each.run(context)
        ]
        for line in found:
            print("  " + " | ".join(line.cells()), file=sys.stderr, flush=True)
        if folder is not None:
            figures.keep(folder, found)
        lines += found
    return lines


def command_of(experiment: Experiment, options: argparse.Namespace) -> str:
    """What repeats one experiment of these."""
    words = ["python -m tests.chaos", experiment.id]
    words += ["--full"] if options.full else []
    for name in ("seed", "on", "part", "messages", "times", "minutes"):
        value = getattr(options, name)
        if value and (name, value) != ("seed", 1):
            words.append(f"--{name} {value:g}" if isinstance(value, float) else f"--{name} {shlex.quote(str(value))}")
    return " ".join(words)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__.partition("\n")[0])
    made.add_argument("experiments", nargs="*", metavar="F01", help="unless given: all; report: write RELIABILITY.md")
    form = made.add_mutually_exclusive_group()
    form.add_argument("--full", action="store_true", help="the full form; unless given: the quick one")
    form.add_argument("--quick", action="store_true", help="the quick form, as make test has it")
    made.add_argument("--seed", type=int, default=1, help="of messages and chances (1)")
    made.add_argument("--on", default="", metavar="BROKER", help="only on this broker, version or direction")
    made.add_argument("--part", default="", help="only parts with this in their names")
    made.add_argument("--messages", type=int, default=0, help="of each part, instead of those of the form")
    made.add_argument("--times", type=int, default=0, help="how often a fault happens, likewise")
    made.add_argument("--minutes", type=float, default=0.0, help="of a soak in real time (10)")
    made.add_argument("--keep", action="store_true", help="write the JSON that the report is made of")
    made.add_argument("--json", type=Path, metavar="FOLDER", help="write the JSON there")
    made.add_argument("--list", action="store_true", help="print experiments and parts, and end")
    return made


def _ended(number: int, frame: object) -> None:
    """Servers are ended in good order when the run is told to end."""
    raise KeyboardInterrupt


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = parser().parse_args(given)
    if options.experiments == ["report"]:
        report.PATH.write_text(report.render(figures.load_all()), encoding="utf-8")
        print(f"wrote {report.PATH.name}")
        return 0
    names = {name.upper() for name in options.experiments}
    if unknown := names - {each.id for each in EXPERIMENTS}:
        parser().error(f"there is no experiment {', '.join(sorted(unknown))}; there are F01 to {EXPERIMENTS[-1].id}")
    wanted = [each for each in EXPERIMENTS if not names or each.id in names]
    if options.list:
        for each in wanted:
            print(f"{each.id} {each.title}")
            for part in each.parts:
                print(f"    {part.name} ({', '.join(part.forms)})")
        return 0
    signal.signal(signal.SIGTERM, _ended)
    context = Context(
        Form.FULL if options.full else Form.QUICK,
        options.seed,
        on=options.on,
        messages=options.messages,
        times=options.times,
        minutes=options.minutes,
        keeps=options.keep,
    )
    folder = options.json or (figures.RUNS if options.keep else None)
    lines: list[Line] = []
    try:
        for each in wanted:
            lines += run(each, context, command_of(each, options), folder, options.part)
    finally:
        context.close()
    print(figures.table(line.cells() for line in lines))
    failed = [line for line in lines if not line.figures.passed]
    for line in failed:
        print(f"FAILED: {line.experiment} {line.figures.what}: {'; '.join(line.figures.problems)[:2_000]}")
    print(f"\n{len(lines)} runs, {len(failed)} failed, {os.cpu_count()} cores")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
