"""F07: how much of a slow link is used: 300 ms there and back, and as many octets as the link takes.

The link is the proxy's. Two limits: so many octets a second, and so many publishes in flight for so long.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final
from urllib.parse import quote
from uuid import uuid4

from gateway.amqp.message import Message, Properties
from gateway.config import BrokerSettings
from gateway.upstreams import PublishReceipt, Upstream
from tests.chaos.figures import Figures
from tests.chaos.parts import Context
from tests.faults.proxy import Bandwidth, Direction, Latency, Proxy
from tests.servers.process import HOST

DELAY: Final = 0.15
"""Each way, in seconds."""
RATE: Final = 256_000
"""Octets a second, where that is the limit."""
BODY: Final = 1_000
WINDOW: Final = 1_000
"""Publishes in flight."""
MESSAGES: Final = {False: 600, True: 8_000}
"""Where octets are the limit, in the quick and in the full form."""
FLIGHTS: Final = 10
"""How many windows are published where the window is the limit, which is in the full form only: it asks for more of a
processor than a machine that does other work may have."""
SHARE: Final = 0.7
"""Of the limit, at least."""
ROUNDS: Final = 3
"""How often it is tried; in the quick form until it is near enough."""


async def _publish(upstream: Upstream, queue: str, number: int) -> tuple[float, int]:
    """So many, a window of them in flight; how long it took and how many were confirmed."""
    room = asyncio.Semaphore(WINDOW)
    began = time.monotonic()
    message = Message(bytes(BODY), Properties(delivery_mode=2))
    confirmed = 0

    async def one() -> None:
        nonlocal confirmed
        try:
            receipt: PublishReceipt = await upstream.publish("", queue, message, timeout=60.0)
            confirmed += receipt.routed
        finally:
            room.release()

    tasks = []
    for _ in range(number):
        await room.acquire()
        tasks.append(asyncio.create_task(one()))
    await asyncio.gather(*tasks)
    return time.monotonic() - began, confirmed


class Limit:
    """One limit, and how near it came in several rounds: the best one counts, for the machine may do other work."""

    def __init__(self, name: str, messages: int) -> None:
        self.name = name
        self.messages = messages
        self.best = 0.0
        self._rounds: list[tuple[float, int]] = []

    def take(self, seconds: float, confirmed: int, share: float) -> None:
        """A round is over."""
        self._rounds.append((seconds, confirmed))
        self.best = max(self.best, share)

    def figures(self) -> Figures:
        """All rounds."""
        number = self.messages * len(self._rounds)
        confirmed = sum(confirmed for _, confirmed in self._rounds)
        least = min(seconds for seconds, _ in self._rounds)
        extra = {"share_of_limit": round(self.best, 2), "a_second": round(self.messages / least)}
        found = Figures(f"{self.name}, RabbitMQ 0-9-1", number, confirmed, number - confirmed, 0, 0, 0, extra=extra)
        found.seconds = round(sum(seconds for seconds, _ in self._rounds), 1)
        found.must(self.best >= SHARE, f"{self.best:.0%} of what the link takes")
        return found


async def _play(context: Context) -> list[Figures]:
    server: Any = context.server("rabbitmq")
    proxy = Proxy(server.port, context.seed)
    host = quote(server.virtual_host, safe="")
    url = f"amqp://{server.user}:{server.password}@{HOST}:{proxy.port}/{host}?version=0-9-1"
    upstream = Upstream("slow", BrokerSettings(url=url, publish_window=2 * WINDOW))
    queue = f"link-{uuid4().hex[:12]}"
    found = []
    try:
        await upstream.start()
        assert await upstream.wait_up(20), upstream.reason
        await upstream.declare_queue(queue)
        await _publish(upstream, queue, 4 * WINDOW)  # so that the window is wide open
        published = 4 * WINDOW
        with proxy.toxic(Latency(DELAY)):
            if context.full:
                limit = Limit("window of 1,000 at 300 ms", FLIGHTS * WINDOW)
                for _ in range(ROUNDS):
                    seconds, confirmed = await _publish(upstream, queue, limit.messages)
                    limit.take(seconds, confirmed, limit.messages / seconds / (WINDOW / (2 * DELAY)))
                found.append(limit.figures())
            with proxy.toxic(Bandwidth(RATE), Direction.UPSTREAM):
                limit = Limit("256 kB/s at 300 ms", context.messages or MESSAGES[context.full])
                for _ in range(ROUNDS):
                    before = proxy.octets[Direction.UPSTREAM]
                    seconds, confirmed = await _publish(upstream, queue, limit.messages)
                    octets = proxy.octets[Direction.UPSTREAM] - before
                    # The first octet needs its time to get there, and the last confirm to come back.
                    limit.take(seconds, confirmed, octets / (seconds - 2 * DELAY) / RATE)
                    if not context.full and limit.best >= SHARE:
                        break
                found.append(limit.figures())
        published += sum(figures.attempted for figures in found)
        depth = (await upstream.query_queue(queue)).message_count or 0
        found[-1].must(depth == published, f"{depth} messages are there, not {published}")
    finally:
        await upstream.close(0.0)
        proxy.close()
        server.delete_queue(queue)
    return found


def link_limit(context: Context) -> list[Figures]:
    """Both limits; the one in octets only, in the quick form."""
    return asyncio.run(_play(context))
