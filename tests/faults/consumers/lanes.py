"""Lanes: who consumes what, and how. Each has a queue, a subscription and a history of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tests.servers import serving

TARGETS: Final = (
    ("rabbitmq", "0-8"),
    ("rabbitmq", "0-9-1"),
    ("brokerj", "0-8"),
    ("brokerj", "0-9-1"),
    ("brokerj", "0-10"),
)
"""Brokers and versions."""
LEASES: Final = ("broker", "ledger")
PULL, PUSH, SSE, NDJSON = "pull", "push", "sse", "ndjson"
"""Ways to consume; the last two are streams, with acknowledgements on the side."""
PRODUCTS: Final = {"rabbitmq": "RabbitMQ", "brokerj": "Broker-J"}


@dataclass(frozen=True, slots=True)
class Lane:
    """Which broker, how, and under which lease."""

    way: str
    lease: str
    kind: str
    """Of broker."""
    version: str

    @property
    def name(self) -> str:
        """For the table and for ``--on``."""
        return f"{self.way} {self.lease}, {PRODUCTS[self.kind]} {self.version}"

    @property
    def slug(self) -> str:
        """As part of names."""
        return f"{self.way}-{self.lease}-{self.broker}"

    @property
    def server(self) -> str:
        """The kind of server: RabbitMQ has one for each version."""
        return serving(self.kind, self.version)

    @property
    def broker(self) -> str:
        """The broker's name in the gateway's configuration."""
        return f"{self.kind}-{self.version}"


LANES: Final = tuple(
    Lane(way, lease, kind, version) for way in (PULL, PUSH) for lease in LEASES for kind, version in TARGETS
)
"""Each way with each lease, from each broker and version."""
STREAMS: Final = (
    Lane(SSE, "broker", "rabbitmq", "0-9-1"),
    Lane(SSE, "ledger", "brokerj", "0-10"),
    Lane(NDJSON, "broker", "brokerj", "0-8"),
    Lane(NDJSON, "ledger", "rabbitmq", "0-8"),
)
"""Each kind of stream with each lease, once."""
