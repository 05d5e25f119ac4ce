"""Other brokers under the names of those that there are, while the gateway runs: what a reload and a change over HTTP
share.

The links of new brokers are made first. Where one takes the place of a broker that is up, the change waits until it is
up, too, or cannot be. Then all of them take effect in one turn of the event loop: what begins from now on goes over the
new links, and what has begun ends on the old ones (:mod:`gateway.core.retired`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from typing import Final

from gateway.core.gateway import UP, Gateway
from gateway.upstreams import Upstream, UpstreamState

UP_MARGIN: Final = 2.0
"""How long a broker's links may take to be good for something, beyond ``connect_timeout``, in seconds."""


class BrokerChange:
    """Brokers that are about to take the place of others."""

    def __init__(self, gateway: Gateway, made: Mapping[str, Upstream], gone: Collection[str] = ()) -> None:
        """``made``: those that are new or have other settings, not started, by name; ``gone``: those that go."""
        self.made = dict(made)
        self.gone = sorted(gone)
        self._gateway = gateway

    async def connect(self) -> None:
        """Start the new ones, and wait for those whose predecessor is up: until each is up, or has failed, or its time
        is over. One that is not up afterwards has :attr:`Upstream.reason`.

        Raises:
            Overloaded: too many brokers that were replaced are still at work. Nothing has changed.
        """
        brokers = self._gateway.brokers
        self._gateway.retired.check_room(len((self.made.keys() | set(self.gone)) & brokers.keys()))
        try:
            for upstream in self.made.values():
                await upstream.start()
            await asyncio.gather(*(_settled(each) for name, each in self.made.items() if is_up(brokers.get(name))))
        except BaseException:
            await self.drop()
            raise

    def losses(self) -> list[Upstream]:
        """Return the new ones that are not up, and whose predecessor is."""
        brokers = self._gateway.brokers
        return [each for name, each in self.made.items() if is_up(brokers.get(name)) and not is_up(each)]

    def commit(self) -> None:
        """Have them count."""
        self._gateway.change_brokers(self.made, [name for name in self.gone if name in self._gateway.brokers])

    async def drop(self) -> None:
        """Close the new ones: they do not count."""
        await asyncio.gather(*(upstream.close(0.0) for upstream in self.made.values()))


def is_up(upstream: Upstream | None) -> bool:
    """Whether there is such a broker, and it is up."""
    return upstream is not None and upstream.state in UP


async def _settled(upstream: Upstream) -> None:
    """Wait until all links of a broker are up, or one has failed."""
    changed = asyncio.Event()

    def look(upstream: Upstream) -> None:
        if upstream.state in (UpstreamState.DOWN, UpstreamState.FAILED):
            changed.set()

    upstream.on_state.append(look)
    look(upstream)
    up = asyncio.ensure_future(upstream.wait_up(upstream.settings.connect_timeout + UP_MARGIN))
    failed = asyncio.ensure_future(changed.wait())
    try:
        await asyncio.wait((up, failed), return_when=asyncio.FIRST_COMPLETED)
    finally:
        upstream.on_state.remove(look)
        for task in (up, failed):
            task.cancel()
        await asyncio.gather(up, failed, return_exceptions=True)
