"""Consumers of a client, and the deliveries that it has not settled."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from gateway.amqp.operations import Consume, Deliver
from gateway.amqp.selectors import Selector
from gateway.broker.consumers import CreditBalance


class FrontConsumer:
    """One consumer."""

    __slots__ = (
        "acks",
        "credit",
        "held",
        "held_bytes",
        "is_running",
        "limit",
        "no_ack",
        "no_local",
        "out",
        "request",
        "selector",
        "takes_once",
        "waiting",
    )

    def __init__(self, request: Consume, no_ack: bool, acks: bool, limit: int, credit: bool) -> None:
        self.request = request
        """As it was sent upstream."""
        self.no_ack = no_ack
        """The client does not acknowledge."""
        self.acks = acks
        """The front acknowledges for it, when it has written the message."""
        self.limit = limit
        """Most deliveries that the client has not settled; 0: no limit."""
        self.credit = CreditBalance() if credit else None
        self.selector: Selector | None = None
        """What it wants, where the front finds that out; None: all."""
        self.no_local = False
        """It wants nothing that its own connection has published, and the front finds that out."""
        self.takes_once = False
        """It has asked for what is there and no more, and is served by gets."""
        self.waiting: Consume | None = None
        """What is sent upstream when it is known how it is to be served."""
        self.out = 0
        """Deliveries that the client has not settled."""
        self.held: deque[Deliver] = deque()
        """Deliveries that wait for the client. The upstream's prefetch bounds them."""
        self.held_bytes = 0
        self.is_running = False
        """The upstream has said that it consumes."""

    @property
    def has_credit(self) -> bool:
        """It is steered by credit, not by a prefetch."""
        return self.credit is not None

    def admits(self, size: int) -> bool:
        """Whether the client may have one more of that size."""
        if self.credit is not None:
            return self.credit.admits(size)
        return self.no_ack or not self.limit or self.out < self.limit

    def spend(self, size: int) -> None:
        """One more was written."""
        if self.credit is not None:
            self.credit.spend(size)


class Outstanding(NamedTuple):
    """A delivery that the client has not settled."""

    number: int
    """The upstream's."""
    consumer: FrontConsumer | None
    """None: it answered a Get."""
