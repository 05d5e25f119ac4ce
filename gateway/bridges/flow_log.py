"""What the log says of a bridge's messages: at most one line a second of each kind."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from gateway.bridges.items import BridgeDelivery
from gateway.observing.telemetry import log
from gateway.tracing import trace_of

LOG_EVERY: Final = 1.0
"""Seconds between two lines of one kind."""


class FlowLog:
    """The log lines of one bridge's messages."""

    def __init__(self, bridge: str) -> None:
        self._bridge = bridge
        self._lossy_at = self._dead_lettered_at = -LOG_EVERY
        """When a loss, and a dead letter, was logged last."""
        self._unlogged = 0
        """Dead letters since then."""

    def lossy(self, item: BridgeDelivery, now: float) -> None:
        """Log what the message lost at the target."""
        if now - self._lossy_at >= LOG_EVERY:
            self._lossy_at = now
            log(
                "bridge.loss", logging.WARNING, bridge=self._bridge, message_id=item.text,
                losses=[f"{loss.name}: {loss.field}" for loss in item.losses], trace_id=trace_of(item.delivery.message),
            )  # fmt: skip

    def dead_lettered(self, items: Sequence[BridgeDelivery], now: float) -> None:
        """Log that these were dead-lettered."""
        self._unlogged += len(items)
        if now - self._dead_lettered_at >= LOG_EVERY:
            log(
                "bridge.dead_lettered", logging.WARNING,
                bridge=self._bridge, count=self._unlogged, reason=items[-1].reason,
            )  # fmt: skip
            self._dead_lettered_at, self._unlogged = now, 0
