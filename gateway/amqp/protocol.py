"""What a version is to the rest of the gateway, as one value.

Each version's folder exports a :class:`Protocol`, and :mod:`gateway.versions` lists them. Everything else asks these
values and names no version.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from gateway.classic.dialect import Dialect
from gateway.session import ClientConfig, ServerConfig, Session, Version

HARD_CODES: Final = frozenset({503, 504, 530, 540, 541})
"""Reply codes of the classic versions that cost the connection (0-9-1 section 1.2)."""


@dataclass(frozen=True, slots=True)
class VersionRules:
    """Where the versions ask for different answers to the same request."""

    immediate: bool
    """``immediate`` is honored; else refused with 540, as RabbitMQ does."""
    always_confirms: bool
    """Every publish has an outcome, without being asked (0-10: completion)."""
    strict_settlement: bool
    """Settling a delivery that is not out closes the channel (406)."""
    durable_exclusive_stays: bool
    """A durable and exclusive queue outlives its connection: Qpid's durable subscriptions."""
    qos_on_running: bool
    """Qos applies to the consumers that run already too (0-8; in 0-9-1 RabbitMQ's reading holds)."""
    connection_codes: frozenset[int]
    """Reply codes that cost the connection, not only the channel."""
    queries_survive: bool
    """A query for what is not there has an answer, and costs nothing."""
    confirms_in_transactions: bool
    """A channel may have both confirms and transactions; a publish is then confirmed when it is noted."""
    transactional_release: bool
    """Releasing and rejecting wait for the commit, as accepting does (RabbitMQ); else they are done at once."""
    unbinds_by_key: bool
    """Unbinding names no arguments: all bindings with that key go."""
    untransacted_code: int
    """Reply code of tx.commit and tx.rollback without tx.select."""
    redelivers_first: bool
    """basic.recover without requeue sends the messages again before its answer, as Broker-J does."""
    stops_publishers: bool
    """Channels that publish are asked to stop (channel.flow, message.stop) where connection.blocked is not known."""


@dataclass(frozen=True, slots=True, eq=False)
class Protocol:
    """One version, or a draft of it that has sessions of its own."""

    version: Version
    client: Callable[[ClientConfig], Session]
    """Makes a session in the client role."""
    server: Callable[[ServerConfig], Session]
    """Makes a session in the server role."""
    rules: VersionRules
    """What the embedded broker answers its clients."""
    auto_rank: int
    """When ``version=auto`` tries it: the lowest first."""
    dialects: Mapping[str, Dialect] = field(default_factory=dict)
    """Product -> how it speaks a classic version; empty: the version is not a classic one."""
    draft: str = ""
    """``dialect`` of a configuration that asks for this draft of a version, which has the same header; empty: final."""
    products: frozenset[str] = frozenset({"rabbitmq", "qpid"})
    """Products of which one speaks it, as ``product`` of an explanation names them."""

    @property
    def name(self) -> str:
        """The version's name in URLs, in the API and in the ledger."""
        return self.version.value

    @property
    def is_classic(self) -> bool:
        """Whether it has the methods and the content of AMQP 0-8 and its successors up to 0-9-1."""
        return bool(self.dialects)
