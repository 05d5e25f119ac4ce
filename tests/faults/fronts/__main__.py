"""``python -m tests.faults.fronts``: the full form of every row about clients of a front, and the table.

Each row gets a broker that nobody else uses. A row that fails is printed with all there is to know and the others go
on; the status is 1 then. The same seed makes the same messages, not the same moments.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import traceback
from datetime import UTC, datetime

from tests.faults import checker
from tests.faults.fronts.rows import ROWS, perform
from tests.servers import PRIVATE_KINDS, Server


def main() -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.fronts", description=__doc__)
    parser.add_argument("rows", nargs="*", metavar="ROW", help="names of rows; unless given: all")
    parser.add_argument("--messages", type=int, default=20_000, help="messages of each row (20,000)")
    parser.add_argument("--times", type=int, help="how often the fault happens, instead of the row's own number")
    parser.add_argument("--seed", type=int, default=1, help="of messages, moments and proxies (1)")
    parser.add_argument("--on", default="", metavar="BROKER", help="only on this broker: brokerj, rabbitmq-4.3, …")
    parser.add_argument("--quick", action="store_true", help="the quick form of each row, as make test-all runs it")
    parser.add_argument("--list", action="store_true", help="print the rows and end")
    options = parser.parse_args()
    wanted = [row for row in ROWS if not options.rows or row.name in options.rows]
    if not wanted:
        parser.error(f"there is no such row; there are {', '.join(row.name for row in ROWS)}")
    if options.list:
        for row in wanted:
            print(f"{row.name:<36} {', '.join(' '.join(target) for target in row.full)}")
        return 0
    signal.signal(signal.SIGTERM, lambda number, frame: signal.raise_signal(signal.SIGINT))  # and servers are ended
    servers: dict[str, Server] = {}
    lines: list[tuple[str, ...]] = []
    notes: list[str] = []
    failed: list[str] = []
    try:
        for row in wanted:
            for kind, version in row.quick if options.quick else row.full:
                if options.on and options.on != kind:
                    continue
                if kind not in servers:
                    servers[kind] = PRIVATE_KINDS[kind]().start()
                elif not servers[kind].running:
                    servers[kind].restart()
                name = f"{row.name}, {kind} {version}"
                print(f"{datetime.now(UTC):%H:%M:%S} {name}", file=sys.stderr, flush=True)
                messages = row.messages if options.quick else options.messages
                times = options.times or row.times[not options.quick]
                try:
                    run = asyncio.run(perform(row, servers[kind], version, messages, times, options.seed))
                except Exception:  # the other rows are run all the same
                    failed.append(name)
                    traceback.print_exc()
                    servers[kind].resume()
                else:
                    lines.append(run.row())
                    notes.append(f"{name}: {run.notes}")
                    print(checker.table(lines[-1:]), notes[-1], sep="\n", file=sys.stderr, flush=True)
    finally:
        for server in servers.values():
            server.stop()
    print(checker.table(lines), "", *notes, sep="\n")
    for name in failed:
        print(f"FAILED: {name}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
