"""``python -m tests.translation.live``: every pair in full, and the table.

Every source sends its own messages: the first ``--messages`` of ``--seed``. The status is 1 if anything was lost, came
twice, out of order or changed, and then it is said what.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime

from tests.servers import BrokerJ, MainRabbitMQ, RabbitMQ310, started
from tests.translation.live.ends import PAIRS, End, Servers, ends, running
from tests.translation.live.run import HEADINGS, Result, there_and_back


@contextmanager
def servers(file: str | None) -> Iterator[Servers]:
    """Those of the file, else private ones."""
    if file is not None:
        yield running(file)
        return
    with started(MainRabbitMQ()) as rabbitmq, started(RabbitMQ310()) as old, started(BrokerJ()) as brokerj:
        yield Servers(rabbitmq, old, brokerj)


def table(results: Sequence[Result]) -> str:
    """The results as markdown."""
    lines = ["| " + " | ".join(HEADINGS) + " |", "| --- " + "| ---: " * (len(HEADINGS) - 1) + "|"]
    return "\n".join([*lines, *("| " + " | ".join(result.row()) + " |" for result in results)])


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.translation.live", description=__doc__)
    parser.add_argument("--messages", type=int, default=10_000, help="messages of each pair (10,000)")
    parser.add_argument("--seed", type=int, default=1, help="of the messages (1)")
    parser.add_argument("--pair", nargs=2, metavar=("FROM", "TO"), help="rabbitmq-0-8, brokerj, 0-10, all, …")
    parser.add_argument("--servers", metavar="FILE", help="running servers, instead of private ones")
    options = parser.parse_args(arguments)
    pairs: Sequence[tuple[End, End]] = PAIRS
    if options.pair:
        try:
            pairs = [(source, target) for source in ends(options.pair[0]) for target in ends(options.pair[1])]
        except ValueError as error:
            parser.error(str(error))
    results: list[Result] = []
    with servers(options.servers) as brokers:
        for source, target in pairs:
            result = asyncio.run(there_and_back(source, target, brokers, options.seed, options.messages))
            results.append(result)
            print(f"{datetime.now(UTC):%H:%M:%S}", *result.row(), sep="  ", file=sys.stderr, flush=True)
            for note in result.notes():
                print("  ", note[:500], file=sys.stderr, flush=True)
    print(table(results))
    return 0 if all(result.perfect for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
