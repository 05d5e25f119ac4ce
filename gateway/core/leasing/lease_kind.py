"""What every kind of lease can do: those that a broker holds, and those that the ledger holds."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

from gateway.budgets import ShareHolder
from gateway.core.leasing.pulled import AckOutcome, Pulled
from gateway.core.subscriptions import SubscriptionResource
from gateway.limits import PULL_MAX


class LeaseKind(Protocol):
    """Who holds messages that are out with consumers, and what becomes of them.

    Each verb of settling takes ack ids of this kind, each once, and returns the outcome of each, in their order.
    """

    async def pull(
        self,
        subscription: SubscriptionResource,
        max_messages: int,
        wait: float,
        seconds: float | None,
        gone: asyncio.Future[None] | None,
        client: ShareHolder,
        bytes_max: int = PULL_MAX,
    ) -> list[Pulled]:
        """Take messages and lease them: see :meth:`gateway.core.leasing.consuming.Consuming.pull`."""

    async def acknowledge(self, subscription: SubscriptionResource, ack_ids: Sequence[str]) -> list[AckOutcome]:
        """The consumer is done with the messages: they are gone. A repeated acknowledgement succeeds."""

    async def release(
        self, subscription: SubscriptionResource, ack_ids: Sequence[str], delay: float = 0.0
    ) -> list[AckOutcome]:
        """Give messages back, to be handed out again ``delay`` seconds from now."""

    async def extend(
        self, subscription: SubscriptionResource, ack_ids: Sequence[str], seconds: int
    ) -> list[AckOutcome]:
        """Let leases last ``seconds`` from now."""

    async def reject(
        self, subscription: SubscriptionResource, ack_ids: Sequence[str], reason: str, *, discard: bool = False
    ) -> list[AckOutcome]:
        """Give messages up: they are dead letters, with the reason. ``discard``: drop them instead."""

    def hand_back(self, pulled: Sequence[Pulled], reason: str) -> None:
        """Give those messages back that were leased by this kind and were not handed over."""

    async def close(self) -> None:
        """Give back what cannot stay out without this process."""
