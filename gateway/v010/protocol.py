"""AMQP 0-10 for the registry."""

from __future__ import annotations

from typing import Final

from gateway.amqp.protocol import Protocol, VersionRules
from gateway.v010.session import ClientSession, ServerSession
from gateway.v010.version import V0_10

RULES: Final = VersionRules(
    immediate=True,
    always_confirms=True,
    strict_settlement=False,
    durable_exclusive_stays=True,
    qos_on_running=False,
    connection_codes=frozenset(),
    queries_survive=True,
    confirms_in_transactions=True,
    transactional_release=False,
    unbinds_by_key=True,
    untransacted_code=409,
    redelivers_first=False,
    stops_publishers=True,
)

AMQP_0_10: Final = Protocol(
    V0_10,
    ClientSession,
    ServerSession,
    RULES,
    auto_rank=1,
    products=frozenset({"qpid"}),
)
