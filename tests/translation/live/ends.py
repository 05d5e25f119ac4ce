"""The ends: each broker in each version that it speaks."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gateway.classic.tables import QPID_TAGS, RABBITMQ_TAGS
from gateway.v010.encoders import ENCODERS
from tests.servers import BrokerJ, MainRabbitMQ, RabbitMQ, RabbitMQ310
from tests.servers.process import State


@dataclass(frozen=True)
class End:
    """A broker as one version sees it."""

    broker: str
    """``rabbitmq`` or ``brokerj``."""
    version: str
    types: frozenset[str]
    """The types of header values that its publishers have."""

    @property
    def name(self) -> str:
        """As in the tables."""
        return f"{_PRODUCTS[self.broker]} {self.version}"

    @property
    def id(self) -> str:
        """As on the command line, and in names of queues."""
        return f"{self.broker}-{self.version}"

    @property
    def native(self) -> bool:
        """0-10, whose properties are others."""
        return self.version == "0-10"

    @property
    def keeps_order(self) -> bool:
        """False: it hands out the headers sorted by name (RabbitMQ 4)."""
        return (self.broker, self.version) != ("rabbitmq", "0-9-1")

    @property
    def instants(self) -> bool:
        """The classic versions of Broker-J, where an expiration is an instant."""
        return self.broker == "brokerj" and not self.native

    def url(self, servers: Servers) -> str:
        """Where it listens."""
        if self.broker == "rabbitmq":
            return (servers.rabbitmq310 if self.version == "0-8" else servers.rabbitmq).url(self.version)
        return servers.brokerj.url(self.version)


@dataclass(frozen=True)
class Servers:
    """The brokers."""

    rabbitmq: RabbitMQ
    rabbitmq310: RabbitMQ
    """For 0-8."""
    brokerj: BrokerJ


def running(file: str) -> Servers:
    """Those that ``python -m tests.servers up --file FILE`` has started."""
    states = json.loads(Path(file).read_text())
    main, old, qpid = (State.from_json(states[kind.kind]) for kind in (MainRabbitMQ, RabbitMQ310, BrokerJ))
    return Servers(MainRabbitMQ(main), RabbitMQ310(old), BrokerJ(qpid))


_PRODUCTS: Final[Mapping[str, str]] = {"rabbitmq": "RabbitMQ", "brokerj": "Broker-J"}

ENDS: Final = (
    End("rabbitmq", "0-8", frozenset(RABBITMQ_TAGS.values())),
    End("rabbitmq", "0-9-1", frozenset(RABBITMQ_TAGS.values())),
    End("brokerj", "0-8", frozenset(QPID_TAGS.values())),
    End("brokerj", "0-9", frozenset(QPID_TAGS.values())),
    End("brokerj", "0-9-1", frozenset(QPID_TAGS.values())),
    End("brokerj", "0-10", frozenset(ENCODERS)),
)
PAIRS: Final = tuple((source, target) for source in ENDS for target in ENDS)
"""All: among them every pair of versions."""


def ends(name: str) -> list[End]:
    """The ends of that name, of that version or of that broker, or ``all``.

    Raises:
        ValueError: there is none.
    """
    found = [end for end in ENDS if name in (end.id, end.version, end.broker, "all")]
    if not found:
        raise ValueError(f"there is no end {name!r}; there are {', '.join(end.id for end in ENDS)}")
    return found
