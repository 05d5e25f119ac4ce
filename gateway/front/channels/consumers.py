"""Consumers of a client, and the deliveries that it has not settled."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from gateway.amqp.operations import Consume, Deliver
from gateway.amqp.selectors import Selector
from gateway.broker.consumers import CreditBalance


class Window:
    """How many deliveries of one consumer may be unsettled at the upstream: :mod:`gateway.front.channels.windows`."""

    __slots__ = (
        "further",
        "growing",
        "is_fixed",
        "is_watched",
        "newest",
        "number",
        "peak",
        "settled",
        "size",
        "undecided",
    )

    def __init__(self) -> None:
        self.size = 0
        """0: the upstream does not know the consumer."""
        self.growing: dict[str, int] = {}
        """What it has grown by, step by step: the tag of a further consumer -> its prefetch."""
        self.further: dict[str, bool] = {}
        """Tags of further consumers whose deliveries may come -> the upstream has said that they consume."""
        self.number = 0
        """Of the last one."""
        self.is_fixed = False
        """It cannot grow."""
        self.is_watched = False
        """It is looked at in a while."""
        self.newest = 0
        """The client's number of the delivery that has used it up."""
        self.undecided = 0
        """Deliveries that the client has settled, and the upstream holds until the transaction is over."""
        self.settled = 0
        self.peak = 0
        """Of the deliveries settled last: how many, and the most that were unsettled meanwhile."""


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
        "window",
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
        self.window = Window()

    @property
    def is_used_up(self) -> bool:
        """The client holds all that the upstream may send before it settles something."""
        return self.out + self.window.undecided >= self.window.size

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
    id: bytes = b""
    """Of its timeline; empty: it has none."""
    fingerprint: int = 0
    """See :func:`gateway.front.handed.fingerprint`."""
