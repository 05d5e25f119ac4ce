"""``make faults``, or ``python -m tests.faults``: the full form of every row, and the table.

Each row gets a RabbitMQ or Broker-J of its own kind. :mod:`tests.faults.commandline` says how a row is run.
"""

from __future__ import annotations

import sys
from dataclasses import replace

from tests.faults.commandline import Table, chosen, parser_of
from tests.faults.rows import ROWS, perform
from tests.servers import serving


def main() -> int:
    """The command line; returns the exit status."""
    parser = parser_of("tests.faults", __doc__, "broker and version: brokerj, 0-10, …")
    parser.add_argument("--messages", type=int, default=20_000, help="messages of each row (20,000)")
    parser.add_argument("--queue-type", default="", metavar="TYPE", help="of the queues: classic or quorum (RabbitMQ)")
    options = parser.parse_args()
    wanted = chosen(ROWS, options.rows, parser)
    if options.list:
        for row in wanted:
            print(f"{row.name:<32} {', '.join(' '.join(target) for target in row.full)}")
        return 0
    with Table() as table:
        for row in (replace(row, shape={**row.shape, "queue_type": options.queue_type}) for row in wanted):
            for kind, version in row.quick if options.quick else row.full:
                if options.on in f"{kind} {version}":
                    messages = row.messages if options.quick else round(options.messages * row.portion)
                    times = options.times or row.times[not options.quick]
                    server = table.server(serving(kind, version))
                    table.run(
                        f"{row.name}, {kind} {version}", perform(row, server, version, messages, times, options.seed)
                    )
        return table.end()


if __name__ == "__main__":
    sys.exit(main())
