"""The draft of AMQP 0-10 for the registry."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from gateway.amqp.protocol import Protocol
from gateway.v010.protocol import RULES
from gateway.v010.version import V0_10
from gateway.v010_draft.session import ClientSession, ServerSession

AMQP_0_10_DRAFT: Final = Protocol(
    V0_10,
    ClientSession,
    ServerSession,
    replace(RULES, unbinds_by_key=False),  # its queue.unbind has arguments
    auto_rank=1,
    draft="transitional",
    products=frozenset(),
)
"""The draft of July 2007."""
