"""A message between source and target, and what a bridge knows of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio

    from gateway.upstreams import Delivery, PublishReceipt


class BridgeDelivery:
    """One message on its way. Built per message, so with slots and without ceremony."""

    __slots__ = (
        "code", "delivery", "doubtful", "due", "exchange", "first", "future", "hops", "id", "key", "losses",
        "new", "number", "published", "reason", "refusals", "resent", "routing_key", "sent", "sha256", "size", "text",
        "via",
    )  # fmt: skip

    def __init__(self, delivery: Delivery, number: int) -> None:
        self.delivery = delivery
        self.number = number
        """Its place in the order of arrival."""
        self.size = len(delivery.message.body)
        self.exchange = delivery.exchange
        self.routing_key = delivery.routing_key
        """At first as it came, then as it is published."""
        self.id: bytes | None = None
        """The gateway's id of it: its own, or a new one."""
        self.text = ""
        """The same as text."""
        self.key = ""
        """The origin id; empty: it has none, and is never taken for a duplicate."""
        self.new = False
        """The origin id is not in its reserved header yet."""
        self.hops = 0
        """How many bridges it has passed."""
        self.via = ""
        """Which ones, as its reserved header has it."""
        self.doubtful = False
        """It may be a redelivery."""
        self.resent = False
        """It may be at the target already."""
        self.sha256 = b""
        """Of the body."""
        self.losses: Sequence[Any] = ()
        """What the target cannot carry of it."""
        self.reason = ""
        """Why it is not forwarded."""
        self.code = "not_forwarded"
        """The same in one of :data:`gateway.fidelity.deaths.CODES`."""
        self.future: asyncio.Future[PublishReceipt] | None = None
        self.first = 0
        """Which publish of the bridge its first was; 0: it was not published yet."""
        self.published = 0.0
        """When that was, on the loop's clock; only where it is traced."""
        self.sent = 0
        """Which publish of the bridge its last was."""
        self.refusals = 0
        """How often it was refused for what may be its own fault."""
        self.due = 0.0
        """When it may be tried again, on the loop's clock."""

    @property
    def strange(self) -> bool:
        """Its origin id was chosen by its publisher, who may have used it for other messages."""
        return self.key != self.text

    def doubt(self) -> None:
        """Mark it as a possible duplicate."""
        self.resent = True
