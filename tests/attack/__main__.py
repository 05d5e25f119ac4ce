"""``make attack``, or ``python -m tests.attack``: every row of attacks in its full form, and the table.

The gateways are processes of their own, on free ports of loopback. A row that fails is printed with its reasons and
the others go on; the status is 1 then.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import time

from tests.attack.judge import table
from tests.attack.lab import Lab, Row
from tests.attack.rows import ROWS


async def attack(rows: list[Row], full: bool) -> int:
    """Carry out rows and print the table; returns the exit status."""
    began = time.monotonic()
    lab = Lab()
    lines, reasons, notes = [], [], []
    try:
        for row in rows:
            outcome = await lab.perform(row, full)
            lines.append(outcome.line())
            reasons += [f"FAILED: {row.name}: {fault}" for fault in outcome.faults()]
            notes += [f"{row.name}: {name} {text}" for name, text in outcome.record.notes.items()]
            print(f"{outcome.seconds:6.1f} s  {'  '.join(lines[-1])}", file=sys.stderr, flush=True)
            for fault in outcome.faults():
                print(f"          {fault}", file=sys.stderr, flush=True)
    finally:
        lab.close()
    print(table(lines), "", *notes, *reasons, sep="\n")
    failed = sum(line[-1] != "ok" for line in lines)
    print(f"\n{len(lines) - failed} rows ok, {failed} FAILED, {time.monotonic() - began:.0f} s")
    return 1 if failed else 0


def main() -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.attack", description=__doc__)
    parser.add_argument("rows", nargs="*", metavar="ROW", help="parts of the names of rows; unless given: all")
    parser.add_argument("--quick", action="store_true", help="the quick form of each row, as make test runs it")
    parser.add_argument("--list", action="store_true", help="print the rows and end")
    options = parser.parse_args()
    wanted = [row for row in ROWS if not options.rows or any(part in row.name for part in options.rows)]
    wanted = [row for row in wanted if row.quick or not options.quick]
    if not wanted:
        parser.error(f"there is no such row; there are {', '.join(row.name for row in ROWS)}")
    if options.list:
        for row in wanted:
            print(f"{row.name:<28} {row.on:<8} {'quick and full' if row.quick else 'full'}")
        return 0
    signal.signal(signal.SIGTERM, lambda number, frame: signal.raise_signal(signal.SIGINT))  # and gateways are ended
    return asyncio.run(attack(wanted, not options.quick))


if __name__ == "__main__":
    sys.exit(main())
