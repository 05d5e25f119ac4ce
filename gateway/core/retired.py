"""Brokers that others have taken the place of, until nothing is under way there any more.

When a broker gets other settings, later work goes to new links. What has begun goes on over the old
ones: publishes come to their outcomes, messages that are out are settled where they were taken, pulls that wait end by
themselves. A broker that has had nothing of that for :data:`REST` seconds is closed.
"""

from __future__ import annotations

import asyncio
from typing import Final

from gateway.errors import Overloaded
from gateway.observing.telemetry import log
from gateway.runtime.clock import clock
from gateway.upstreams import Upstream

REST: Final = 3.0
"""How long nothing must have been under way, in seconds: a request may just have found the broker, and not used it
yet."""
LOOK_EVERY: Final = 0.5
"""How often it is looked, in seconds."""
RETIRED_MAX: Final = 40
"""Most brokers that are kept for that; they have three connections each."""
CLOSE_WITHIN: Final = 5.0
"""How long publishes may take that came all the same, in seconds."""


class Retired:
    """All of them. Belongs to the event loop."""

    def __init__(self) -> None:
        self._tasks: dict[asyncio.Task[None], Upstream] = {}

    def __len__(self) -> int:
        return len(self._tasks)

    def check_room(self, more: int) -> None:
        """Whether so many more can be kept. Raises Overloaded."""
        if len(self) + more > RETIRED_MAX:
            raise Overloaded(
                f"{len(self)} brokers that were replaced still have messages out or publishes under way; wait for them"
            )

    def add(self, upstream: Upstream) -> None:
        """Nothing begins there any more."""
        task = asyncio.get_running_loop().create_task(self._see_off(upstream), name=f"retired {upstream.name}")
        self._tasks[task] = upstream
        task.add_done_callback(lambda task: self._tasks.pop(task, None))

    async def _see_off(self, upstream: Upstream) -> None:
        since = clock.monotonic()
        while clock.monotonic() - since < REST:
            await clock.sleep(LOOK_EVERY)
            if not upstream.idle:
                since = clock.monotonic()
        await upstream.close(CLOSE_WITHIN)
        log("broker.retired", broker=upstream.name, host=upstream.url.host, port=upstream.url.port)

    async def close(self, within: float) -> None:
        """Close all, once publishes under way have come to their end or ``within`` seconds have passed."""
        tasks = dict(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
            await asyncio.gather(*(upstream.close(within) for upstream in tasks.values()))
