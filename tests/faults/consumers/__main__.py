"""``python -m tests.faults.consumers``: rows of consumers on a bad day, and the table.

The lanes of a row share a gateway, and the RabbitMQ and Broker-J that nobody else uses. A row that fails is printed
with all there is to know and the others go on; the status is 1 then. The same seed makes the same messages, not the
same moments.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import traceback
from datetime import UTC, datetime

from tests.faults.checker import table
from tests.faults.consumers.checker import COLUMNS
from tests.faults.consumers.lanes import LANES, STREAMS
from tests.faults.consumers.rows import QUICK, ROWS, perform, together
from tests.faults.ledgers import Postgres, SqliteFile
from tests.servers import PRIVATE_KINDS, Server


def main() -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.consumers", description=__doc__)
    parser.add_argument("rows", nargs="*", metavar="ROW", help="parts of the names of rows; unless given: all")
    parser.add_argument("--on", default="", metavar="LANE", help='only lanes with this in the name: "push ledger"')
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--full", action="store_true", help="the full form of each row (unless --quick is given)")
    form.add_argument("--quick", action="store_true", help="the quick form of each row, as make test runs it")
    parser.add_argument("--together", action="store_true", help="all rows in one run, one after the other")
    parser.add_argument("--messages", type=int, default=0, help="of each lane, instead of those of the form")
    parser.add_argument("--rate", type=float, default=0.0, help="messages a second of each lane, likewise")
    parser.add_argument("--times", type=int, default=0, help="how often the fault happens, instead of the row's number")
    parser.add_argument("--postgresql", action="store_true", help="keep the ledger there and not in SQLite")
    parser.add_argument("--seed", type=int, default=1, help="of messages, moments and consumers (1)")
    parser.add_argument("--list", action="store_true", help="print rows and lanes, and end")
    options = parser.parse_args()
    rows = [row for row in ROWS if not options.rows or any(part in row.name for part in options.rows)]
    if not rows:
        parser.error(f"there is no such row; there are {', '.join(row.name for row in ROWS)}")
    if options.together:
        rows = [together(*(row.name for row in rows))]
    wanted = QUICK if options.quick and not options.rows else [((*LANES, *STREAMS), row) for row in rows]
    wanted = [([lane for lane in lanes if options.on in lane.name], row) for lanes, row in wanted]
    if not all(lanes for lanes, _ in wanted):
        parser.error(f"there is no such lane; there are {', '.join(lane.name for lane in (*LANES, *STREAMS))}")
    if options.list:
        for lanes, row in wanted:
            print(f"{row.name}: {', '.join(lane.name for lane in lanes)}")
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
        for lanes, row in wanted:
            print(f"{datetime.now(UTC):%H:%M:%S} {row.name}, {len(lanes)} lanes", file=sys.stderr, flush=True)
            try:
                run = asyncio.run(
                    perform(
                        row,
                        lanes,
                        server,
                        full=not options.quick,
                        seed=options.seed,
                        times=options.times,
                        messages=options.messages,
                        rate=options.rate,
                        ledger=Postgres if options.postgresql else SqliteFile,
                    )
                )
            except Exception:  # the other rows are run all the same
                failed.append(row.name)
                traceback.print_exc()
            else:
                lines += run.rows()
                notes.append(f"{row.name}: {run.notes}")
                print(table(run.rows(), COLUMNS), notes[-1], sep="\n", file=sys.stderr, flush=True)
    finally:
        for each in servers.values():
            each.stop()
    print(table(lines, COLUMNS), "", *notes, sep="\n")
    for name in failed:
        print(f"FAILED: {name}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
