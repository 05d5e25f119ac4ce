"""A tap's flow on a fake broker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa

from gateway.amqp.message import Message, Properties
from gateway.config import TapSettings
from gateway.core import Gateway
from gateway.core.sources.own_queues import OwnQueues
from gateway.core.work.supervised import SupervisedResource
from gateway.ledger.db.models import message_log
from gateway.runtime.clock import clock
from gateway.taps.counts import TapCounts
from gateway.taps.flow import TapFlow
from tests.core.fakes import FakeUpstream


class Tapped:
    """A flow on the fake broker's queue ``orders``."""

    def __init__(self, gateway: Gateway, upstream: FakeUpstream, *, begins: bool = True, **settings: Any) -> None:
        self.gateway = gateway
        self.upstream = upstream
        self.counts = TapCounts("t", gateway.metrics)
        self.done: list[str] = []
        self.changes = 0
        self.log_octets = 1 << 30
        self.flow = TapFlow(
            replace(gateway.parts, own_queues=OwnQueues(gateway.broker, "tap")),
            SupervisedResource("t", TapSettings(broker="fake", queue="orders", **settings), "1"),
            upstream,  # type: ignore[arg-type]  # of its shape
            self.counts,
            log_octets=lambda: self.log_octets,
            on_change=self._changed,
            on_done=self.done.append,
        )
        if begins:
            self.flow.begin()

    def _changed(self) -> None:
        self.changes += 1

    def put(self, *messages: Message, redelivered: bool = False) -> None:
        """Have the queue hold these, too."""
        for message in messages:
            self.upstream.queues["orders"].ready.append((message, "shop", "k", redelivered))
        self.upstream.pump()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until something holds."""
        async with asyncio.timeout(10):
            while not condition():
                await asyncio.sleep(0.005)

    async def rows(self) -> list[Any]:
        """What is in the log."""
        query = sa.select(message_log).order_by(message_log.c.sequence)
        found: list[Any] = await self.gateway.ledger.read(lambda connection: connection.execute(query).all())
        return found


def numbered(count: int) -> list[Message]:
    """Make this number of messages."""
    return [Message(b"%d" % number, Properties(message_id=f"m-{number}")) for number in range(count)]


@pytest.fixture
async def idle(gateway: Gateway, upstream: FakeUpstream) -> AsyncIterator[Tapped]:
    """A flow that has not begun: a test calls its parts."""
    found = Tapped(gateway, upstream, begins=False, until="depth")
    yield found
    await found.flow.stop(0.0)


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, as its only element."""
    time = [1_000.0]
    monkeypatch.setattr(clock, "monotonic", lambda: time[0])
    return time
