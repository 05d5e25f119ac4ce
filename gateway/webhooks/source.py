"""The consumer of a pushed subscription's queue, turned up and down.

How many messages are wanted at a time changes: none while the endpoint is held, one while it fails, ``prefetch`` while
it is well. Brokers take a new prefetch for new consumers only, so each change ends one consumer and begins another.
What the old one has delivered and is under way may still be settled, and counts against what is wanted; what was not
begun is given back by its holder. Nothing that is not wanted stays out: that is the place of another message.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final
from urllib.parse import quote

from gateway.errors import GatewayError, NotFound
from gateway.observing.telemetry import log
from gateway.runtime.backoff import Backoff
from gateway.runtime.tasks import Tasks
from gateway.upstreams import Consumer, ConsumerState, Delivery, Upstream

PAUSE_MIN, PAUSE_MAX = 0.5, 30.0
"""Pause before a consumer that could not be started is tried again, in seconds; doubled each time."""
CANCEL_WITHIN: Final = 5.0
"""How long the broker may take to say that it delivers no more, in seconds."""
SETTLE_WITHIN: Final = 1_500.0
"""How long what is under way on a consumer that has ended may still be settled, in seconds: not as long as brokers let
a delivery be out, but longer than a ledger is away as a rule."""


class EndpointSource:
    """The consumer of one queue."""

    def __init__(
        self,
        subscription: str,
        upstream: Upstream,
        queue: str,
        on_delivery: Callable[[Delivery], None],
        on_less: Callable[[], None],
        prepare: Callable[[], Awaitable[None]],
    ) -> None:
        """
        Args:
            on_delivery: called with each.
            on_less: called when a consumer has ended, and less is wanted than it had out: what was not begun is to
                be given back.
            prepare: called before each start; its errors are those of the start.
        """
        self.trouble = ""
        """Why there is no consumer although one is wanted."""
        self._subscription = subscription
        self._upstream = upstream
        self._queue = queue
        self._on_delivery = on_delivery
        self._on_less = on_less
        self._prepare = prepare
        self.wanted = 0
        """So many may be out at a time."""
        self._consumer: Consumer | None = None
        self._ended: dict[Consumer, asyncio.TimerHandle] = {}
        """Those that take nothing more and have something out, and until when."""
        self._closing = Tasks("consumer")
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def flowing(self) -> bool:
        """Messages come, if there are any."""
        return self._consumer is not None and self._consumer.state is ConsumerState.RUNNING

    @property
    def reason(self) -> str:
        """Why none come although they are wanted; empty: they come, or are not wanted."""
        if self._consumer is not None and not self.flowing:
            return self._consumer.reason
        return self.trouble

    def want(self, prefetch: int) -> None:
        """Have so many out at a time; 0: none."""
        if prefetch != self.wanted:
            self.wanted = prefetch
            self._changed.set()
            if self._task is None and prefetch:
                self._task = asyncio.get_running_loop().create_task(self._run(), name=f"tap {self._subscription}")

    async def _run(self) -> None:
        backoff = Backoff(PAUSE_MIN, PAUSE_MAX)
        while True:
            wanted, prepared = self.wanted, False
            self._changed.clear()
            try:
                if self._consumer is not None and self._consumer.prefetch != wanted:
                    await self._end()
                if self._consumer is None and wanted > sum(each.out for each in self._ended):
                    await self._prepare()
                    prepared = True
                    if wanted == self.wanted:
                        self._consumer = await self._upstream.consume(
                            self._queue, wanted, self._on_delivery, holder=("push", self._subscription)
                        )
                self.trouble = ""
                backoff.reset()
            except Exception as error:  # the broker's; a fault of ours must not end the trying
                reason = str(error) or repr(error)
                if prepared and isinstance(error, NotFound):
                    reason = (
                        f"queue {self._queue!r}: not found on broker {self._upstream.name!r}. Declare it: "
                        f"PUT /v1/brokers/{self._upstream.name}/queues/{quote(self._queue, safe='')} ({reason})"
                    )
                if not self.trouble:
                    shown, name = None if isinstance(error, GatewayError) else error, self._subscription
                    log("push.no_consumer", logging.WARNING, exc_info=shown, subscription=name, reason=reason[:500])
                self.trouble = reason
                with suppress(TimeoutError):
                    async with asyncio.timeout(backoff.next()):
                        await self._changed.wait()
                continue
            await self._changed.wait()

    async def _end(self) -> None:
        """Take nothing more from the present consumer, and let what is under way come to its end."""
        consumer = self._consumer
        if consumer is None:
            return
        await consumer.cancel(CANCEL_WITHIN)
        self._consumer = None
        self._on_less()
        if consumer.out:
            loop = asyncio.get_running_loop()
            self._ended[consumer] = loop.call_later(SETTLE_WITHIN, self._close, consumer)
        else:
            self._close(consumer)

    def settled(self) -> None:
        """Something was settled: consumers that have ended and have nothing out any more are closed."""
        if self._ended:
            for consumer in [each for each in self._ended if not each.out]:
                self._close(consumer)
            self._changed.set()

    def _close(self, consumer: Consumer) -> asyncio.Task[bool]:
        timer = self._ended.pop(consumer, None)
        if timer is not None:
            timer.cancel()
        return self._closing.start(consumer.close())

    async def stop(self) -> None:
        """Take nothing more, for good. What is out may be settled until :meth:`close`."""
        self.wanted = 0
        await self._cancel_task()
        if self._consumer is not None:
            await self._consumer.cancel(CANCEL_WITHIN)

    async def close(self) -> None:
        """What is out goes back to its queue."""
        await self._cancel_task()
        consumer, self._consumer = self._consumer, None
        for each in [*self._ended, *([consumer] if consumer is not None else [])]:
            self._close(each)
        await self._closing.join()

    async def _cancel_task(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
