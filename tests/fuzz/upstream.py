"""The way up under a hostile broker: a whole :class:`~gateway.upstreams.Upstream` over memory streams.

The far end is a real broker of ours until the octets of the case come, in the middle of a publish that waits, a fetch
that waits and a consumer that runs. Whoever waits must hear, nothing may raise into the loop, and the upstream comes
back to a healthy broker by itself.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from gateway.amqp.message import Message
from gateway.amqp.operations import Settlement
from gateway.config import BrokerSettings
from gateway.errors import GatewayError
from gateway.session import Version
from gateway.transports.memory import memory_pair
from gateway.transports.stream import Stream, StreamUser
from gateway.upstreams import Upstream
from tests.broker.clients import Client
from tests.fuzz.broker import Hosted, _declare, _new_broker
from tests.fuzz.oracle import Broken, Case

PATIENCE: Final = 5.0
"""How long anything may take to come to an end, in seconds of real time."""


class Far:
    """A broker's end of one stream."""

    def __init__(self, hosted: Hosted) -> None:
        self.hosted = hosted
        self.stream = Stream(self)
        self.hostile = b""

    def data_received(self, data: bytes) -> None:
        """Octets of the upstream. Once the far end is hostile it does not listen any more."""
        if not self.hostile:
            self.hosted.broker.receive(self.hosted.connection, self.hosted.session.receive_data(data, 0.0), 0.0)
            self.stream.wake()

    def stream_lost(self, error: Exception | None) -> None:
        """The upstream hung up."""
        self.hosted.end()

    def data_to_send(self) -> list[bytes]:
        """What the broker says, and the octets of the case behind it."""
        told = [self.hosted.flush()]
        if self.hostile:
            told.append(self.hostile)
        return [octets for octets in told if octets]

    def writable_again(self) -> None:
        """There is always room."""


class World:
    """A broker, and the streams that lead to it."""

    def __init__(self, version: Version) -> None:
        self.version = version
        self.broker = _new_broker()
        self.fars: list[Far] = []
        owner = Client(self.broker)
        for request in _declare():
            owner(request)

    async def dial(self, user: StreamUser, timeout: float) -> Stream:  # the connector's shape
        """A connector for the upstream."""
        hosted = Hosted(self.broker, self.version)
        far = Far(hosted)
        hosted.connection.wake = far.stream.wake
        self.fars.append(far)
        stream = Stream(user)
        memory_pair(stream, far.stream)
        return stream


async def _play(case: Case) -> str:
    loop = asyncio.get_running_loop()
    faults: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda loop, context: faults.append(context))
    world = World(case.version)
    settings = BrokerSettings(
        url=f"amqp://guest:guest@localhost/?version={case.version.value}", reconnect_min=0.001, reconnect_max=0.002
    )
    upstream = Upstream("fuzzed", settings, connector=world.dial)
    await upstream.start()
    if not await upstream.wait_up(PATIENCE):
        raise Broken(f"it did not come up: {upstream.reason}")
    await upstream.consume("q", 5, lambda delivery: delivery.settle(Settlement.ACCEPT))
    before = list(world.fars)
    waiting = [
        asyncio.ensure_future(upstream.publish("e", "k", Message(b"one"))),
        asyncio.ensure_future(upstream.fetch("q", 5, 0.01)),
    ]
    await asyncio.sleep(0)
    for far in before:
        far.hostile = b"".join(case.chunks)
        far.stream.wake()
        far.stream.flush()
    for _ in range(5):
        await asyncio.sleep(0)
    for far in before:
        far.stream.close()
    done = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), PATIENCE)
    for result in done:
        if isinstance(result, BaseException) and not isinstance(result, GatewayError):
            raise Broken(f"whoever waited was told {result!r}")
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                await upstream.publish("e", "k", Message(b"two"))
                break
            except GatewayError:
                await asyncio.sleep(0.002)
    await upstream.close(1.0)
    if faults:
        raise Broken(f"a fault in the loop: {faults[0].get('exception')!r} {faults[0]['message']}")
    return "recovered"


def play(case: Case) -> str:
    """Play a case. Raises :class:`~tests.fuzz.oracle.Broken`."""
    return asyncio.run(_play(case))
