"""The real brokers in each of their versions, as the suite of conformance sees them."""

from __future__ import annotations

from typing import Final

from tests.chaos.parts import Context
from tests.conformance.conftest import FarEnd
from tests.servers import serving

PAIRS: Final = (
    ("rabbitmq", "0-8"),
    ("rabbitmq", "0-9-1"),
    ("brokerj", "0-8"),
    ("brokerj", "0-9-1"),
    ("brokerj", "0-10"),
)
"""Kinds and versions."""


def far_ends(context: Context) -> list[FarEnd]:
    """All of them that are asked for; the servers run."""
    return [
        FarEnd(kind, version, context.server(serving(kind, version)).port, "memory" if kind == "brokerj" else "/")
        for kind, version in PAIRS
        if context.wants(f"{kind} {version}")
    ]
