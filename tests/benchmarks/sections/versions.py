"""The versions beside each other, our link on both brokers: 0-8 and 0-10 beside 0-9-1.

On Broker-J twice: in the virtual host that keeps its messages on disk, where the disk decides, and in the one that
keeps them in memory, where the versions do.
"""

from __future__ import annotations

from functools import partial

from tests.benchmarks.bench import Bench
from tests.benchmarks.rows import OURS, Row, alternate
from tests.benchmarks.sections.link import program, turn
from tests.servers import BrokerJ, RabbitMQ

VERSIONS = ("0-9-1", "0-8", "0-10")
"""The one that the others are compared with comes first."""
NUMBER = 10_000
ON_DISK = 2_000
DISK, MEMORY = "Broker-J: ", "Broker-J in memory: "


def run(bench: Bench) -> list[Row]:
    """Three versions on Broker-J, two on RabbitMQ."""
    return [
        *on(bench, bench.brokerj, DISK, ON_DISK),
        *on(bench, bench.brokerj, MEMORY, NUMBER, "memory"),
        *on(bench, bench.rabbitmq, "RabbitMQ: ", NUMBER),
    ]


def on(
    bench: Bench, server: RabbitMQ | BrokerJ, prefix: str, number: int, virtual_host: str | None = None
) -> list[Row]:
    """The versions that a broker speaks."""
    clients = [
        (f"{OURS} {version}", turn(bench, server.url(version, virtual_host), partial(program, OURS), prefix, number))
        for version in VERSIONS
        if version in server.versions
    ]
    return alternate("versions", clients, bench.rounds)
