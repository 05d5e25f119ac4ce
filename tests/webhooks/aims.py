"""One endpoint at work, with sources that a test plays, under a clock that is given."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from gateway.amqp.message import Message, Properties
from gateway.observing.telemetry import Metrics
from gateway.webhooks.attempts.forms import PushedMessage
from gateway.webhooks.attempts.items import PushDelivery
from gateway.webhooks.attempts.schedule import NextStep
from gateway.webhooks.attempts.sender import SendOutcome
from gateway.webhooks.counts import PushCounts
from gateway.webhooks.lines import Demand
from gateway.webhooks.targets import PushTarget, Targets
from tests.webhooks.pushed import Receivers
from tests.webhooks.virtual import now, run


class PlayedSource:
    """A subscription: messages that wait, and what it hears."""

    def __init__(self, name: str, targets: Targets, endpoint: str) -> None:
        self.name = name
        self._targets, self._endpoint = targets, endpoint
        self.waiting: list[PushDelivery] = []
        self.since = 0.0
        self.heard: list[Demand] = []
        """The target's demand, each time that it has changed."""
        self.next_steps: list[NextStep] = []
        """What follows from each request that has come to its end."""
        self.dropped_bodies: list[bytes] = []
        self.finishing = asyncio.Event()
        """Until it is set, what follows is not safe."""
        self.finishing.set()

    @property
    def target(self) -> PushTarget:
        """What serves it."""
        found = self._targets.get(self._endpoint)
        assert found is not None
        return found

    def put(self, *bodies: bytes, attempt: int = 1) -> None:
        """Messages wait here from now on."""
        self.since = self.since if self.waiting else now()
        for body in bodies:
            item = PushDelivery()
            item.message, item.attempt = Message(body, Properties()), attempt
            self.waiting.append(item)
        self.target.pump()

    def ripe_at(self, most: int, wait: float) -> float | None:
        if not self.waiting:
            return None
        return self.since if len(self.waiting) >= most else self.since + wait

    def take(self, most: int) -> list[PushDelivery]:
        items, self.waiting = self.waiting[:most], self.waiting[most:]
        self.since = now()
        return items

    def outgoing(self, item: PushDelivery) -> PushedMessage:
        return PushedMessage(
            id=self.name, message_id=self.name, subscription=self.name, broker="b", queue="q", exchange="",
            routing_key="q", message=item.message, attempt=item.attempt, redelivered=False, resent=False,
        )  # fmt: skip

    async def finished(
        self, items: Sequence[PushDelivery], outcome: SendOutcome, next_steps: Sequence[NextStep]
    ) -> None:
        await self.finishing.wait()
        self.next_steps += next_steps

    def dropped(self, items: Sequence[PushDelivery]) -> None:
        self.dropped_bodies += [item.message.body for item in items]

    def changed(self) -> None:
        target = self._targets.get(self._endpoint)
        self.heard.append(target.demand if target is not None else Demand.NOTHING)


class Aims:
    """Endpoints at work, and who uses them."""

    def __init__(self, *, places: int = 256) -> None:
        self.receivers = Receivers()
        self.metrics = Metrics("test")
        self.is_writable = True
        self.targets = Targets(
            self.receivers,
            self.receivers,
            PushCounts(self.metrics),
            places=places,
            chance=lambda: 0.5,
            clock=now,
            writable=lambda: self.is_writable,
        )
        self.receivers.on_change.append(self.targets.changed)

    async def join(self, source: str = "s", endpoint: str = "e") -> PlayedSource:
        """Have a source served."""
        played = PlayedSource(source, self.targets, endpoint)
        target = await self.targets.join(endpoint, played)
        target.look()
        return played

    def times(self, endpoint: str = "e") -> list[float]:
        """When requests were made, in seconds since the first."""
        at = [at for at, _ in self.receivers.requests.get(endpoint, [])]
        return [round(each - at[0], 3) for each in at]

    def value(self, name: str, **labels: str) -> float | None:
        """A metric."""
        return self.metrics.registry.get_sample_value(name, labels)


def with_aims(test: Callable[[Aims], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """Give the test endpoints of its own."""

    async def main() -> None:
        aims = Aims()
        try:
            await test(aims)
        finally:
            await aims.targets.close()

    def wrapped() -> None:
        run(main())

    wrapped.__name__, wrapped.__doc__ = test.__name__, test.__doc__
    return wrapped


def answers_after(seconds: float, *outcomes: SendOutcome) -> Callable[[Sequence[PushedMessage]], Any]:
    """Return what answers so late, with each of these and then with the last one."""
    left = list(outcomes)

    async def answer(_: Sequence[PushedMessage]) -> SendOutcome:
        outcome = left.pop(0) if len(left) > 1 else left[0]
        await asyncio.sleep(seconds)
        return outcome

    return answer
