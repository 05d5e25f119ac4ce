"""``make faults``, or ``python -m tests.faults``: the full form of every row, and the table.

Each row gets a RabbitMQ or Broker-J of its own kind that nobody else uses. A row that fails is printed with all there
is to know and the others go on; the status is 1 then. The same seed makes the same messages, not the same moments.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import traceback
from dataclasses import replace
from datetime import UTC, datetime

from tests.faults import checker
from tests.faults.rows import ROWS, perform
from tests.servers import PRIVATE_KINDS, Server, serving


def main() -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("rows", nargs="*", metavar="ROW", help="parts of the names of rows; unless given: all")
    parser.add_argument("--messages", type=int, default=20_000, help="messages of each row (20,000)")
    parser.add_argument("--times", type=int, help="how often the fault happens, instead of the row's own number")
    parser.add_argument("--seed", type=int, default=1, help="of the messages, the proxy and the consumers (1)")
    parser.add_argument("--on", default="", metavar="BROKER", help="only on this broker or version: brokerj, 0-10, …")
    parser.add_argument("--queue-type", default="", metavar="TYPE", help="of the queues: classic or quorum (RabbitMQ)")
    parser.add_argument("--quick", action="store_true", help="the quick form of each row, as make test runs it")
    parser.add_argument("--list", action="store_true", help="print the rows and end")
    options = parser.parse_args()
    wanted = [row for row in ROWS if not options.rows or any(part in row.name for part in options.rows)]
    if not wanted:
        parser.error(f"there is no such row; there are {', '.join(row.name for row in ROWS)}")
    if options.list:
        for row in wanted:
            print(f"{row.name:<32} {', '.join(' '.join(target) for target in row.full)}")
        return 0
    servers: dict[str, Server] = {}
    lines: list[tuple[str, ...]] = []
    notes: list[str] = []
    failed: list[str] = []
    try:
        for row in (replace(row, shape={**row.shape, "queue_type": options.queue_type}) for row in wanted):
            for kind, version in row.quick if options.quick else row.full:
                if options.on not in f"{kind} {version}":
                    continue
                wanted_kind = serving(kind, version)
                server = servers.get(wanted_kind)
                if server is None:
                    server = servers[wanted_kind] = PRIVATE_KINDS[wanted_kind]().start()
                elif not server.running:
                    server.restart()
                name = f"{row.name}, {kind} {version}"
                print(f"{datetime.now(UTC):%H:%M:%S} {name}", file=sys.stderr, flush=True)
                messages = row.messages if options.quick else round(options.messages * row.portion)
                times = options.times or row.times[not options.quick]
                try:
                    run = asyncio.run(perform(row, server, version, messages, times, options.seed))
                except Exception:  # the other rows are run all the same
                    failed.append(name)
                    traceback.print_exc()
                    server.resume()
                else:
                    lines.append(run.row())
                    notes.append(f"{name}: {run.notes}" if run.notes else name)
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
