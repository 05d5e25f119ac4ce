"""``python -m tests.faults.bridges``: rows of bridges on a bad day, and the table.

Each row gets a RabbitMQ and a Broker-J that nobody else uses. A row that fails is printed with all there is to know and
the others go on; the status is 1 then. The same seed makes the same messages, not the same moments.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import traceback
from datetime import UTC, datetime

from tests.faults.bridges.checker import COLUMNS
from tests.faults.bridges.rows import QUICK, ROWS, perform
from tests.faults.checker import table
from tests.servers import PRIVATE_KINDS, Server


def main() -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.bridges", description=__doc__)
    parser.add_argument("rows", nargs="*", metavar="ROW", help="parts of the names of rows; unless given: all")
    parser.add_argument("--on", default="", metavar="DIRECTION", help='only in this direction: "0-8 to 0-10"')
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--full", action="store_true", help="the full form of each row (unless --quick is given)")
    form.add_argument("--quick", action="store_true", help="the quick form of each row, as make test runs it")
    parser.add_argument("--times", type=int, default=0, help="how often the fault happens, instead of the row's number")
    parser.add_argument("--seed", type=int, default=1, help="of messages, moments and proxies (1)")
    parser.add_argument("--list", action="store_true", help="print the rows and end")
    options = parser.parse_args()
    wanted = [
        (direction, row)
        for direction, row in (QUICK if options.quick else [(each, row) for row in ROWS for each in row.directions])
        if options.on in direction.name and (not options.rows or any(part in row.name for part in options.rows))
    ]
    if not wanted:
        parser.error(f"there is no such row; there are {', '.join(row.name for row in ROWS)}")
    if options.list:
        for direction, row in wanted:
            print(f"{direction.name:<16} {row.name}")
        return 0
    signal.signal(signal.SIGTERM, lambda number, frame: signal.raise_signal(signal.SIGINT))  # and servers are ended
    servers: dict[str, Server] = {}

    def server(kind: str) -> Server:
        if kind not in servers:
            servers[kind] = PRIVATE_KINDS[kind]().start()
        elif not servers[kind].running:
            servers[kind].restart()
        return servers[kind]

    lines: list[tuple[str, ...]] = []
    notes: list[str] = []
    failed: list[str] = []
    try:
        for direction, row in wanted:
            name = f"{row.name}, {direction.name}"
            print(f"{datetime.now(UTC):%H:%M:%S} {name}", file=sys.stderr, flush=True)
            try:
                run = asyncio.run(
                    perform(row, direction, server, full=not options.quick, seed=options.seed, times=options.times)
                )
            except Exception:  # the other rows are run all the same
                failed.append(name)
                traceback.print_exc()
                for each in servers.values():
                    each.resume()
            else:
                lines.append(run.row())
                notes.append(f"{name}: {run.notes}")
                print(table(lines[-1:], COLUMNS), notes[-1], sep="\n", file=sys.stderr, flush=True)
    finally:
        for each in servers.values():
            each.stop()
    print(table(lines, COLUMNS), "", *notes, sep="\n")
    for name in failed:
        print(f"FAILED: {name}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
