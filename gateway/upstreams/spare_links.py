"""Further links for consumers, once those on the first one have used up their share of its channels.

A connection has as many channels as both ends agreed upon (at most 2,047 here), and each consumer has one. A share of
the first link's is left to leases. A spare link is opened when a consumer finds no room, serves those that come after
it as well, and is closed a while after its last channel. Nothing keeps it alive: when it ends, so do its consumers,
which ask for a link again.
"""

from __future__ import annotations

import asyncio
from typing import Final

from gateway.errors import BrokerUnavailable, GatewayError, LimitExceeded
from gateway.link import Link
from gateway.observing.telemetry import log
from gateway.runtime.clock import clock
from gateway.upstreams.keeper import Dialer

IDLE: Final = 60.0
"""How long a spare link may be without channels until it is closed, in seconds."""
LOOK_EVERY: Final = 10.0
"""How often it is looked whether one is, in seconds."""


class SpareLinks:
    """The further links of one broker."""

    def __init__(self, dialer: Dialer, purpose: str, most: int) -> None:
        """``most``: how many there may be."""
        self._dialer = dialer
        self._purpose = purpose
        self._most = most
        self._links: list[Link] = []
        self._empty_since: dict[Link, float] = {}
        self._opening = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self._made = 0

    async def get(self) -> Link:
        """A link with room for one channel more; it is opened if there is none.

        Raises:
            LimitExceeded: there are as many as there may be, and all are full.
            BrokerUnavailable: none could be opened.
        """
        async with self._opening:
            self._links = [link for link in self._links if link.ended is None]
            for link in self._links:
                if room(link) > 0:
                    return link
            if len(self._links) >= self._most:
                raise LimitExceeded(
                    f"broker {self._dialer.name}: all channels of {self._most + 1} connections are in use",
                    "consume_connections",
                )
            self._made += 1
            try:
                link = await self._dialer.open(f"{self._purpose} {self._made + 1}")
            except BrokerUnavailable:
                raise
            except GatewayError as error:
                raise BrokerUnavailable(f"broker {self._dialer.name}: no further connection: {error}") from error
            self._links.append(link)
            log("broker.spare_link", broker=self._dialer.name, links=len(self._links))
            if self._task is None:
                self._task = asyncio.create_task(self._tidy(), name=f"spare links {self._dialer.name}")
            return link

    async def close(self) -> None:
        """Close them all. Where it was given up, a further call closes those that are left."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
        async with self._opening:
            while self._links:
                if self._links[-1].ended is None:
                    await self._links[-1].close()
                self._links.pop()

    async def _tidy(self) -> None:
        """Close those that have had no channel for a while."""
        while True:
            await clock.sleep(LOOK_EVERY)
            async with self._opening:
                idle = {link for link in self._links if link.ended is None and not link.channels}
                now = clock.monotonic()
                self._empty_since = {link: self._empty_since.get(link, now) for link in idle}
                for link, since in self._empty_since.items():
                    if now - since >= IDLE:
                        self._links.remove(link)
                        await link.close()


def room(link: Link, kept: int = 0) -> int:
    """How many channels may still be opened, if so many are ``kept`` for others; at most half of all are."""
    most = link.capabilities.channel_max or 0xFFFF
    return most - min(kept, most // 2) - link.channels
