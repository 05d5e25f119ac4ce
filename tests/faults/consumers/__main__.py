"""``python -m tests.faults.consumers``: rows of consumers on a bad day, and the table.

The lanes of a row share a gateway, a RabbitMQ and a Broker-J. :mod:`tests.faults.commandline` says how a row is run.
"""

from __future__ import annotations

import sys

from tests.faults.commandline import Table, chosen, parser_of
from tests.faults.consumers.checker import COLUMNS
from tests.faults.consumers.lanes import LANES, STREAMS
from tests.faults.consumers.rows import QUICK, ROWS, perform, together
from tests.faults.ledgers import Postgres, SqliteFile


def main() -> int:
    """The command line; returns the exit status."""
    parser = parser_of("tests.faults.consumers", __doc__, 'lane: "push ledger"')
    parser.add_argument("--together", action="store_true", help="all rows in one run, one after the other")
    parser.add_argument("--messages", type=int, default=0, help="of each lane, instead of those of the form")
    parser.add_argument("--rate", type=float, default=0.0, help="messages a second of each lane, likewise")
    parser.add_argument("--postgresql", action="store_true", help="keep the ledger there and not in SQLite")
    options = parser.parse_args()
    rows = chosen(ROWS, options.rows, parser)
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
    with Table(COLUMNS) as table:
        for lanes, row in wanted:
            run = perform(
                row,
                lanes,
                table.server,
                full=not options.quick,
                seed=options.seed,
                times=options.times,
                messages=options.messages,
                rate=options.rate,
                ledger=Postgres if options.postgresql else SqliteFile,
            )
            table.run(f"{row.name}, {len(lanes)} lanes", run)
        return table.end()


if __name__ == "__main__":
    sys.exit(main())
