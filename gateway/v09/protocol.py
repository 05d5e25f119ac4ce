"""AMQP 0-9 for the registry."""

from __future__ import annotations

from typing import Final

from gateway.amqp.protocol import HARD_CODES, Protocol, VersionRules
from gateway.v09.dialect import DIALECTS
from gateway.v09.session import ClientSession, ServerSession
from gateway.v09.version import V0_9

RULES: Final = VersionRules(
    immediate=True,
    always_confirms=False,
    strict_settlement=True,
    durable_exclusive_stays=True,
    qos_on_running=True,
    connection_codes=HARD_CODES,
    queries_survive=False,
    confirms_in_transactions=False,
    transactional_release=True,
    unbinds_by_key=False,
    untransacted_code=406,
    redelivers_first=False,
    stops_publishers=True,
)

AMQP_0_9: Final = Protocol(V0_9, ClientSession, ServerSession, RULES, auto_rank=3, dialects=DIALECTS)
