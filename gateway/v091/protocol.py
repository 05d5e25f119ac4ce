"""AMQP 0-9-1 for the registry."""

from __future__ import annotations

from typing import Final

from gateway.amqp.protocol import HARD_CODES, Protocol, VersionRules
from gateway.v091.dialect import DIALECTS
from gateway.v091.session import ClientSession, ServerSession
from gateway.v091.version import V0_9_1

RULES: Final = VersionRules(
    immediate=False,
    always_confirms=False,
    strict_settlement=True,
    durable_exclusive_stays=False,
    qos_on_running=False,
    connection_codes=HARD_CODES,
    queries_survive=False,
    confirms_in_transactions=False,
    transactional_release=True,
    unbinds_by_key=False,
    untransacted_code=406,
    redelivers_first=False,
    stops_publishers=False,
)

AMQP_0_9_1: Final = Protocol(V0_9_1, ClientSession, ServerSession, RULES, auto_rank=0, dialects=DIALECTS)
