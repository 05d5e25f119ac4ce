"""``python -m tests.cluster``: several gateways on one PostgreSQL on a bad day, and the table.

A RabbitMQ and a PostgreSQL are started for the run. A row that fails is printed with all there is to know and the
others go on; the status is 1 then.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import traceback

from tests.cluster.harness import COLUMNS
from tests.cluster.rows import ROWS, perform
from tests.faults.checker import table
from tests.servers import MainRabbitMQ, PostgreSQL, started


def main() -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.cluster", description=__doc__)
    parser.add_argument("rows", nargs="*", metavar="ROW", help="parts of the names of rows; unless given: all")
    parser.add_argument("--full", action="store_true", help="the full form of each row")
    parser.add_argument("--times", type=int, default=0, help="how often it happens, instead of the row's number")
    parser.add_argument("--seed", type=int, default=1, help="of messages and moments (1)")
    parser.add_argument("--list", action="store_true", help="print the rows and end")
    options = parser.parse_args()
    wanted = [row for row in ROWS if not options.rows or any(part in row.name for part in options.rows)]
    if not wanted:
        parser.error(f"there is no such row; there are {', '.join(row.name for row in ROWS)}")
    if options.list:
        print("\n".join(row.name for row in wanted))
        return 0
    signal.signal(signal.SIGTERM, lambda number, frame: signal.raise_signal(signal.SIGINT))  # and servers are ended
    lines: list[tuple[str, ...]] = []
    notes: list[str] = []
    failed: list[str] = []
    with started(MainRabbitMQ()) as broker, started(PostgreSQL()) as database:
        for row in wanted:
            try:
                cluster = asyncio.run(
                    perform(row, broker, database, full=options.full, seed=options.seed, times=options.times)
                )
            except Exception:  # the other rows are run all the same
                failed.append(row.name)
                traceback.print_exc()
            else:
                lines.append(cluster.row())
                notes.append(f"{row.name}: {cluster.notes}")
                print(table(lines[-1:], COLUMNS), notes[-1], sep="\n", file=sys.stderr, flush=True)
    print(table(lines, COLUMNS), "", *notes, sep="\n")
    for name in failed:
        print(f"FAILED: {name}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
