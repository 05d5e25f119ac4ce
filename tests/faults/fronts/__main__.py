"""``python -m tests.faults.fronts``: the full form of every row about clients of a front, and the table.

:mod:`tests.faults.commandline` says how a row is run.
"""

from __future__ import annotations

import sys

from tests.faults.commandline import Table, chosen, parser_of
from tests.faults.fronts.rows import ROWS, perform


def main() -> int:
    """The command line; returns the exit status."""
    parser = parser_of("tests.faults.fronts", __doc__, "broker and version: brokerj, rabbitmq-4.3, 0-10, …")
    parser.add_argument("--messages", type=int, default=20_000, help="messages of each row (20,000)")
    options = parser.parse_args()
    wanted = chosen(ROWS, options.rows, parser)
    if options.list:
        for row in wanted:
            print(f"{row.name:<36} {', '.join(' '.join(target) for target in row.full)}")
        return 0
    with Table() as table:
        for row in wanted:
            for kind, version in row.quick if options.quick else row.full:
                if options.on in f"{kind} {version}".split() or not options.on:
                    messages = row.messages if options.quick else options.messages
                    times = options.times or row.times[not options.quick]
                    server = table.server(kind)
                    table.run(
                        f"{row.name}, {kind} {version}", perform(row, server, version, messages, times, options.seed)
                    )
        return table.end()


if __name__ == "__main__":
    sys.exit(main())
