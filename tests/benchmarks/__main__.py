"""``python -m tests.benchmarks [SECTION …]``: run, and print the table. See the package for what it means."""

from __future__ import annotations

import argparse
import json
import re
import shlex
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path

from tests.benchmarks import machine
from tests.benchmarks.aims import AIMS
from tests.benchmarks.bench import SIZE, WINDOW, Bench
from tests.benchmarks.rows import ClientFailed, Row, say
from tests.benchmarks.sections import SECTIONS
from tests.benchmarks.table import LEGEND, summary, table
from tests.servers import ServerUnavailable


def parser() -> argparse.ArgumentParser:
    """The options."""
    found = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    found.add_argument("sections", nargs="*", metavar="SECTION", help=f"only these of {', '.join(SECTIONS)}")
    found.add_argument("--quick", action="store_true", help="show that it works, not how fast")
    found.add_argument("--ours", action="store_true", help="without the peers")
    found.add_argument("--rounds", type=int, metavar="N", help="rounds of each comparison (3)")
    found.add_argument("--page", type=Path, metavar="FILE", help="put what is printed into the block of a page as well")
    found.add_argument("--json", type=Path, metavar="FILE", help="write every round to FILE")
    found.add_argument("--servers", type=Path, metavar="FILE", help="use the servers of `python -m tests.servers up`")
    return found


def measure(bench: Bench, sections: Sequence[str]) -> list[Row]:
    """The rows of these sections; a section that cannot be measured is a row that says why."""
    rows: list[Row] = []
    for name in sections:
        began = time.monotonic()
        say(f"── {name}")
        try:
            rows += SECTIONS[name](bench)
        except (ClientFailed, ServerUnavailable) as error:
            say(f"  {name}: {error}")
            rows.append(Row(name, "-", "-", error=str(error)))
        except Exception as error:  # whatever it is, the other sections are measured all the same
            traceback.print_exc()
            rows.append(Row(name, "-", "-", error=f"{type(error).__name__}: {error}"))
        say(f"── {name}: {time.monotonic() - began:.1f} s")
    return rows


BLOCK = re.compile(r"(<!-- output of make bench -->\n\n```\n).*?(\n```\n)", re.DOTALL)
"""Where a page shows a run."""


def put(page: str, text: str) -> str:
    """The page with this run in its block."""
    found, count = BLOCK.subn(lambda match: match[1] + text + match[2], page)
    if count != 1:
        raise SystemExit(f"the page has {count} blocks for the output, not one")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Run and print; 1 where something could not be measured."""
    options = parser().parse_args(arguments)
    if unknown := [name for name in options.sections if name not in SECTIONS]:
        parser().error(f"there is no section {unknown[0]!r}; there are {', '.join(SECTIONS)}")
    given = sys.argv[1:] if arguments is None else arguments
    lines = list(machine.header(["python", "-m", "tests.benchmarks", *map(shlex.quote, given)]))
    began = time.monotonic()
    with Bench(quick=options.quick, ours=options.ours, rounds=options.rounds, servers=options.servers) as bench:
        with redirect_stdout(sys.stderr):
            rows = measure(bench, options.sections or list(SECTIONS))
        used = bench.versions()
    if not options.ours:
        lines.append(machine.peers())
    lines += [
        machine.brokers(used),
        f"work      {SIZE} octets, persistent, durable queues; window and prefetch {WINDOW}; rounds {bench.rounds}",
        f"ended     after {time.monotonic() - began:.0f} s, load average {machine.load()}",
    ]
    aims = () if options.quick else AIMS  # a quick run says nothing of speed
    lines += ["", table(rows, aims), "", LEGEND, "", summary(rows, aims)]
    text = "\n".join(lines)
    print(text, flush=True)
    if options.page is not None:
        options.page.write_text(put(options.page.read_text(encoding="utf-8"), text), encoding="utf-8")
    if options.json is not None:
        options.json.write_text(json.dumps([row.to_json() for row in rows], indent=1) + "\n")
    return 1 if any(row.error for row in rows) else 0


def terminated(number: int, frame: object) -> None:
    """Servers are ended in good order when the run is told to end."""
    raise KeyboardInterrupt


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, terminated)
    sys.exit(main())
