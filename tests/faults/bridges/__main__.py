"""``python -m tests.faults.bridges``: rows of bridges on a bad day, and the table.

Each row gets a RabbitMQ and a Broker-J. :mod:`tests.faults.commandline` says how a row is run.
"""

from __future__ import annotations

import sys

from tests.faults.bridges.checker import COLUMNS
from tests.faults.bridges.rows import QUICK, ROWS, perform
from tests.faults.commandline import Table, chosen, parser_of


def main() -> int:
    """The command line; returns the exit status."""
    parser = parser_of("tests.faults.bridges", __doc__, 'direction: "0-8 to 0-10"')
    options = parser.parse_args()
    rows = chosen(ROWS, options.rows, parser)
    wanted = [
        (direction, row)
        for direction, row in (QUICK if options.quick else [(each, row) for row in ROWS for each in row.directions])
        if options.on in direction.name and row in rows
    ]
    if options.list:
        for direction, row in wanted:
            print(f"{direction.name:<16} {row.name}")
        return 0
    with Table(COLUMNS) as table:
        for direction, row in wanted:
            run = perform(row, direction, table.server, full=not options.quick, seed=options.seed, times=options.times)
            table.run(f"{row.name}, {direction.name}", run)
        return table.end()


if __name__ == "__main__":
    sys.exit(main())
