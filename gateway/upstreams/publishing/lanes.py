"""The channels that publish: a window of messages on each, and the line before it.

A window is a deque in the order of serials, so that the confirm of a range is a few pops and no look-ups.
:mod:`gateway.upstreams.publishing.publisher` explains :class:`Outlet`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final, Protocol

from gateway.amqp.operations import (
    Confirmed,
    Failed,
    Flow,
    Operation,
    Outcome,
    Publish,
    Refused,
    Returned,
    SelectConfirm,
)
from gateway.errors import GatewayError, OutcomeUnknown, PublishRefused, RemoteError, remote_error
from gateway.link import Channel, Link
from gateway.runtime.clock import clock
from gateway.session import Confirms
from gateway.upstreams.publishing import isolation
from gateway.upstreams.publishing.receipts import ROUTED, Entry, PublishReceipt, Waiting

NEVER: Final = float("inf")


class LaneOwner(Protocol):
    """What a lane tells the publisher it belongs to."""

    def freed(self, octets: int) -> None:
        """A window moved, and so many octets are not pending any more."""

    def flow_changed(self, active: bool) -> None:
        """The broker stopped or started a lane."""

    def named(self, outlet: Outlet, publish: Publish, error: RemoteError) -> None:
        """The broker said which publish it closes the channel over."""

    def lane_lost(self, lane: Lane, pending: list[Entry], error: GatewayError) -> None:
        """A lane is over, with these publishes without an outcome."""

    def answered(self, seconds: float) -> None:
        """The broker's word on a publish came so long after it was written."""


class Lane(Channel):
    """A channel that publishes to one exchange. Nothing but publishes is sent on it once it is ready, so that
    the serials in its window follow one another."""

    __slots__ = (
        "base", "measured", "measured_at", "named", "outlet", "progress", "ready", "sealed", "stopped_at",
        "transactional", "window",
    )  # fmt: skip

    def __init__(self, link: Link, number: int) -> None:
        super().__init__(link, number)
        self.outlet: Outlet
        self.ready = False
        self.window: deque[Entry | None] = deque()
        self.base = 0
        """Serial of the first entry of the window."""
        self.transactional = False
        self.sealed = False
        """A commit is on its way: nothing may follow it before it is answered."""
        self.stopped_at: float | None = None
        """Since when the broker wants no content on this channel."""
        self.progress = 0.0
        """When the window last moved or ceased to be empty."""
        self.measured = -1
        """Serial of the publish whose outcome is timed, one at a time; -1: of none."""
        self.measured_at = 0.0
        """When it was written."""
        self.named: int | None = None
        """The broker said which publish it closes the channel over (0-10): how many without an outcome were before it,
        none of which is to blame."""

    async def prepare(self) -> None:
        """Open the channel and ask for confirms."""
        await self.open()
        await self.request(SelectConfirm(self.number))
        self.transactional = self.link.capabilities.confirms is Confirms.TRANSACTION
        self.ready = True

    def receive(self, operation: Operation) -> None:
        kind = type(operation)
        if kind is Confirmed:
            self._resolve(operation.first, operation.last, ROUTED)  # type: ignore[attr-defined]  # hot: no isinstance
        elif not self.ready or not isinstance(operation, Outcome):
            super().receive(operation)
        elif isinstance(operation, Returned):
            if operation.final:
                receipt = PublishReceipt(False, operation.code, operation.text)
                self._resolve(operation.first, operation.last, receipt)
        elif isinstance(operation, Refused):
            told = f"{operation.code or ''} {operation.text}".strip()
            text = f"the broker refused the message: {told}".rstrip(": ")
            self._resolve(operation.first, operation.last, PublishRefused(text))
        elif isinstance(operation, Failed):
            self._failed(operation)

    def _failed(self, operation: Failed) -> None:
        error = remote_error(operation.code, operation.text)
        at = operation.first - self.base
        entry = self.window[at] if 0 <= at < len(self.window) else None
        if entry is not None:
            self.named = sum(self.window[index] is not None for index in range(at))
            self.outlet.publisher.named(self.outlet, entry[3], error)
        self._resolve(operation.first, operation.last, isolation.error_of(error))

    def handle(self, operation: Operation) -> None:
        if isinstance(operation, Flow):
            self.stopped_at = None if operation.active else clock.monotonic()
            self.outlet.publisher.flow_changed(operation.active)

    def time_out(self, now: float) -> float:
        """Fail those whose confirm is late, which stay in the window so that a late confirm finds them; the earliest
        deadline of the rest."""
        earliest = NEVER
        for entry in self.window:
            if entry is None or entry[0].done():
                continue
            deadline = entry[2]
            if deadline <= now:
                entry[0].set_exception(OutcomeUnknown("no confirm came in time"))
            elif deadline < earliest:
                earliest = deadline
        return earliest

    def waits(self, now: float) -> float:
        """For how long, at least, the oldest publish in the window has been there; 0: there is none."""
        if not self.window:
            return 0.0
        return max(0.0, now - (self.measured_at if self.measured >= 0 else self.progress))

    def seal(self) -> None:
        """The burst was written, with its commit."""
        self.sealed = bool(self.window)

    def _resolve(self, first: int, last: int, result: PublishReceipt | GatewayError) -> None:
        """The publishes ``first`` to ``last`` that have no outcome have this one."""
        window = self.window
        base = self.base
        freed = 0
        if first <= base:  # nearly always: brokers confirm in order
            while window and base <= last:
                entry = window.popleft()
                base += 1
                if entry is not None:
                    freed += entry[1]
                    settle(entry[0], result)
            while window and window[0] is None:
                window.popleft()
                base += 1
            self.base = base
        else:
            for index in range(first - base, min(last - base + 1, len(window))):
                entry = window[index]
                if entry is not None:
                    window[index] = None
                    freed += entry[1]
                    settle(entry[0], result)
        self.progress = self.link.now
        if first <= self.measured <= last:
            self.outlet.publisher.answered(self.progress - self.measured_at)
            self.measured = -1
        if self.sealed and not window:
            self.sealed = False
        outlet = self.outlet
        if outlet.limit < outlet.window:
            outlet.proved(last - first + 1)
        outlet.publisher.freed(freed)

    def lost(self, error: GatewayError) -> None:
        window, self.window = self.window, deque()
        self.outlet.lane_lost(self)
        self.outlet.publisher.lane_lost(self, [entry for entry in window if entry is not None], error)


class Outlet:
    """One way into an exchange: a lane, and the line before it."""

    __slots__ = ("exchange", "lane", "limit", "line", "opening", "publisher", "suspects", "window")

    def __init__(self, publisher: LaneOwner, exchange: PublishedExchange, window: int) -> None:
        self.publisher = publisher
        self.exchange = exchange
        self.window = window
        """Most publishes in flight, ever."""
        self.limit = 0
        """Most publishes in flight now; see :mod:`gateway.upstreams.publishing.isolation`."""
        self.suspects = 0
        """How many at the head of the line go one at a time."""
        self.lane: Lane | None = None
        self.line: deque[Waiting] = deque()
        self.opening: asyncio.Task[None] | None = None

    def proved(self, count: int) -> None:
        """So many had an outcome, and the channel lives: let more in, unless one of these is looked for."""
        if self.limit and not self.suspects:
            self.limit = min(self.limit + count, self.window)

    def lane_lost(self, lane: Lane) -> None:
        """Its channel is gone; whether the exchange is still there must be asked."""
        if self.lane is lane:
            self.lane = None
            self.exchange.doubt()

    @property
    def busy(self) -> bool:
        """Something is pending or waits."""
        return bool(self.line) or self.opening is not None or (self.lane is not None and bool(self.lane.window))


class PublishedExchange:
    """What is known of one exchange that is published to."""

    __slots__ = ("checking", "known_at", "name", "outlets", "used_at")

    def __init__(self, publisher: LaneOwner, name: str, outlets: int, window: int) -> None:
        self.name = name
        self.outlets = [Outlet(publisher, self, window) for _ in range(outlets)]
        self.known_at = NEVER
        self.doubt()
        self.used_at = 0.0
        self.checking: asyncio.Task[None] | None = None

    def doubt(self) -> None:
        """It may be gone: ask before the next publish. The default exchange always exists, and RabbitMQ refuses the
        question (403)."""
        if self.name:
            self.known_at = -NEVER

    def outlet(self, order: str | None) -> Outlet:
        """The outlet of an order key; without one, the first that is not committing, so that its commit covers
        much, or the one with the shortest line."""
        outlets = self.outlets
        if order is not None:
            return outlets[hash(order) % len(outlets)]
        for outlet in outlets:
            if outlet.lane is None or not outlet.lane.sealed:
                return outlet
        return min(outlets, key=lambda outlet: len(outlet.line))


def settle(future: asyncio.Future[PublishReceipt], result: PublishReceipt | GatewayError) -> None:
    """Give a publish its outcome, unless it has one."""
    if future.done():
        return  # timed out or cancelled before: nobody wants to know any more
    if isinstance(result, PublishReceipt):
        future.set_result(result)
    else:
        future.set_exception(result)
