"""Taking messages from a broker for somebody who waits, and no longer than that."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from gateway.amqp.operations import Settlement
from gateway.errors import LeaseLost, StateError
from gateway.limits import PULL_MAX
from gateway.upstreams import Delivery, Upstream


class Fetch:
    """One fetch that is under way. :meth:`close` gives back what nobody took."""

    def __init__(self, upstream: Upstream, queue: str, wanted: int, wait: float, bytes_max: int = PULL_MAX) -> None:
        loop = asyncio.get_running_loop()
        self._task = loop.create_task(upstream.fetch(queue, wanted, wait, bytes_max), name="fetch")

    @property
    def done(self) -> bool:
        """There is something to take: messages, or an error."""
        return self._task.done()

    async def wait(self, others: Iterable[asyncio.Future[Any]], timeout: float | None = None) -> None:  # noqa: ASYNC109  # a turn of the caller's loop
        """Until it is done, one of ``others`` is, or the time is up."""
        await asyncio.wait([self._task, *others], timeout=timeout, return_when=asyncio.FIRST_COMPLETED)

    async def end(self) -> list[Delivery]:
        """What it has; one that is under way is ended, and gives back what comes for it. Call it once, as the last."""
        task = self._task
        del self._task  # its error holds the frames of callers, which hold this
        task.cancel()  # nothing happens to one that is done
        try:
            return await task
        except asyncio.CancelledError:
            if not task.cancelled():
                task.add_done_callback(_give_back)  # it is we who were cancelled
                raise
            return []
        finally:
            del task

    def close(self) -> None:
        """Nobody waits for it any more."""
        if not self._task.cancel():
            _give_back(self._task)
        else:
            self._task.add_done_callback(_give_back)  # it may be done before the cancelling comes


def _give_back(fetch: asyncio.Task[list[Delivery]]) -> None:
    if fetch.cancelled() or fetch.exception() is not None:
        return
    for delivery in fetch.result():
        settle(delivery, Settlement.RELEASE)


def settle(delivery: Delivery, settlement: Settlement) -> bool:
    """Settle at the broker, if the lease still holds; False: it does not, and its broker delivers it again."""
    with suppress(LeaseLost, StateError):
        delivery.settle(settlement)
        return True
    return False
