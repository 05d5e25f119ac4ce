"""Flows of a bridge that is paused, whose deliveries a test hands over itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from gateway.amqp.message import Message, Properties, RawProperties
from gateway.amqp.operations import Settlement
from gateway.bridges.flow import BridgeFlow
from gateway.errors import FrameSyntaxError, LeaseLost
from gateway.runtime.clock import clock

if TYPE_CHECKING:
    from tests.bridges.conftest import Estate

OCTETS = 1 << 16
"""The smallest ``prefetch_octets``."""


class Given:
    """A delivery, as far as a flow looks at it."""

    def __init__(
        self,
        size: int = 1,
        channel: str = "one",
        *,
        settled: bool = False,
        redelivered: bool = False,
        body: bytes = b"",
        **properties: Any,
    ) -> None:
        self.message = Message(body or b"x" * size, Properties(**properties))
        self.channel = channel
        self.settled = settled
        self.redelivered = redelivered
        self.lost = False
        self.queue = self.routing_key = "in"
        self.exchange = ""
        self.at = clock.monotonic()
        self.told: Settlement | None = None

    def settle(self, settlement: Settlement) -> None:
        """Note it; what is lost cannot be settled."""
        if self.lost:
            raise LeaseLost("its channel is gone")
        self.settled = True
        self.told = settlement


def given(*arguments: Any, **options: Any) -> Any:
    """A :class:`Given` that passes for a delivery."""
    return Given(*arguments, **options)


def unreadable(body: bytes) -> Message:
    """A message whose properties cannot be read."""

    def decode(octets: bytes) -> Properties:
        raise FrameSyntaxError("no properties")

    return Message(body, None, RawProperties(b"\xff", "x", decode))


class Hand:
    """Flows whose deliveries a test hands over itself."""

    def __init__(self, estate: Estate) -> None:
        self.estate = estate
        self.full: list[bool] = []
        """What the flow has said of its octets."""
        self.crashes: list[BaseException] = []
        self._flows: list[BridgeFlow] = []

    async def flow(self, **settings: Any) -> BridgeFlow:
        """Make the flow of a bridge that is paused."""
        await self.estate.bridge(paused=True, **{"prefetch_octets": OCTETS, **settings})
        flow = self.estate.bridges._here["b"]._make_flow()
        flow._on_full = self.full.append
        flow._on_crash = self.crashes.append
        self._flows.append(flow)
        return flow

    async def close(self) -> None:
        """End them."""
        for flow in self._flows:
            flow.abandon()
            await flow._tasks.close()


class Timer:
    """Notes when it is to wake somebody."""

    def __init__(self, asked: list[float]) -> None:
        self.wake_at: Callable[[float], None] = asked.append

    def cancel(self) -> None:
        """There is nothing to cancel."""


def arrive(flow: BridgeFlow, *deliveries: Any) -> None:
    """Hand them to the flow."""
    for delivery in deliveries:
        flow.arrive(delivery)


def bodies(items: list[Any]) -> list[bytes]:
    return [item.delivery.message.body for item in items]
