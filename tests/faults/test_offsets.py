"""A connection that is reset in the middle of a frame: at every octet of a publish, and at every octet of a delivery.

The proxy lets so many octets pass, counted from the moment before the publish (or the fetch), and resets the
connection. Whatever the offset: what was confirmed is in the queue, what is in the queue was published, a publish that
was cut off says ``unknown`` and not a failure, a delivery that was cut off comes again, and the next message goes on a
new connection.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from gateway.amqp.message import Message, Properties
from gateway.amqp.operations import Settlement
from gateway.config import BrokerSettings
from gateway.errors import BrokerUnavailable, LeaseLost, OutcomeUnknown
from gateway.upstreams import Upstream
from tests.faults.proxy import Direction, LimitData, Proxy
from tests.servers import BrokerJ, RabbitMQ, serving

pytestmark = pytest.mark.broker

TARGETS = [("rabbitmq", "0-9-1"), ("rabbitmq", "0-8"), ("brokerj", "0-8"), ("brokerj", "0-10")]
LINES = 4
OPENER = b"opens the channel"
PROPERTIES = Properties(message_id="m", content_type="text/plain", delivery_mode=2, headers={"n": 1})


class Line:
    """A broker as the gateway sees it, through a proxy, with a queue."""

    def __init__(self, server: RabbitMQ | BrokerJ, version: str, queue: str) -> None:
        self.server, self.queue = server, queue
        self.proxy = Proxy(server.port)
        url = server.url(version).replace(f":{server.port}/", f":{self.proxy.port}/")
        settings = BrokerSettings(url=url, reconnect_min=0.001, reconnect_max=0.01, annotate=False)
        self.upstream = Upstream("line", settings)

    async def __aenter__(self) -> Line:
        await self.upstream.start()
        assert await self.upstream.wait_up(10), self.upstream.reason
        await self.upstream.declare_queue(self.queue)
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.upstream.delete_queue(self.queue)
        await self.upstream.close()
        self.proxy.close()

    async def publish(self, body: bytes) -> None:
        """Publish and wait for the confirm."""
        await self.upstream.publish("", self.queue, Message(body, PROPERTIES), timeout=10)

    async def open_channel(self) -> None:
        """Publish until it is confirmed, so that the next publish is nothing but itself. Right after the end of a
        connection there may be nobody yet to publish to."""
        for _ in range(1_000):
            try:
                await self.publish(OPENER)
            except BrokerUnavailable:
                await asyncio.sleep(0.005)
            else:
                return
        raise AssertionError(self.upstream.reason)

    async def measure(self, direction: Direction, work: Callable[[], Any]) -> int:
        """How many octets some work takes in one direction."""
        await work()  # what is done only the first time is done
        before = self.proxy.octets[direction]
        await work()
        return self.proxy.octets[direction] - before

    async def take_all(self) -> list[bytes]:
        """Everything in the queue."""
        bodies: list[bytes] = []
        while deliveries := await self.upstream.fetch(self.queue, 100, 0.5):
            for delivery in deliveries:
                bodies.append(delivery.message.body)
                delivery.settle(Settlement.ACCEPT)
        return bodies


@pytest.fixture
def line(request: pytest.FixtureRequest, unique_name: Callable[[str], str]) -> Callable[[str, str], Line]:
    return lambda kind, version: Line(request.getfixturevalue(serving(kind, version)), version, unique_name("offsets"))


async def over_all(
    line: Callable[[str, str], Line], kind: str, version: str, work: Callable[[Line, int, int], Any]
) -> Counter[str]:
    """``work`` on several lines at once, each with its share of the offsets: most of the time is spent on waiting. What
    they counted, summed up."""

    async def one(number: int) -> Counter[str]:
        async with line(kind, version) as at:
            counted: Counter[str] = await work(at, number + 1, LINES)
            return counted

    return sum(await asyncio.gather(*(one(number) for number in range(LINES))), Counter())


async def cut_publishes(at: Line, first: int, step: int) -> Counter[str]:
    octets = await at.measure(Direction.UPSTREAM, lambda: at.publish(b"measured"))
    await at.take_all()
    confirmed, unknown, refused = [], [], []
    for offset in range(first, octets + 1, step):
        body = b"%08d" % offset
        await at.open_channel()
        at.proxy.add(LimitData(offset, reset=True, once=True), Direction.UPSTREAM)
        try:
            await at.publish(body)
        except OutcomeUnknown:
            unknown.append(body)
        except BrokerUnavailable:
            refused.append(body)
        else:
            confirmed.append(body)
        at.proxy.clear()
        assert await at.upstream.wait_up(10), f"after {offset} of {octets} octets: {at.upstream.reason}"
    there = [body for body in await at.take_all() if body != OPENER]
    assert set(confirmed) <= set(there), "what was confirmed is there"
    assert set(there) <= set(confirmed) | set(unknown), "what is there was published"
    assert len(there) == len(set(there)), "nothing was sent twice by itself"
    assert not refused, "it was written, so nobody can say that it was not sent"
    assert len(unknown) >= octets // step - 1, f"{len(unknown)} of {octets // step} were cut"
    recovered = len(set(there) - set(confirmed))
    return Counter(offsets=len(confirmed) + len(unknown), confirmed=len(confirmed), recovered=recovered)


async def cut_deliveries(at: Line, first: int, step: int) -> Counter[str]:
    await at.publish(b"the only one")

    async def fetch() -> None:
        [delivery] = await at.upstream.fetch(at.queue, 1, 5)
        delivery.settle(Settlement.RELEASE)

    octets = await at.measure(Direction.DOWNSTREAM, fetch)
    cut = 0
    for offset in range(first, octets + 1, step):
        at.proxy.add(LimitData(offset, reset=True, once=True), Direction.DOWNSTREAM)
        try:
            deliveries = await at.upstream.fetch(at.queue, 1, 5)
        except BrokerUnavailable:
            deliveries = []
        for delivery in deliveries:
            assert delivery.message.body == b"the only one", f"half of a message after {offset} octets"
            try:
                delivery.settle(Settlement.RELEASE)
            except LeaseLost:
                deliveries = []
        cut += not deliveries
        at.proxy.clear()
        assert await at.upstream.wait_up(10), f"after {offset} of {octets} octets: {at.upstream.reason}"
    assert cut >= octets // step // 2, f"{cut} of {octets // step} were cut"
    assert await at.take_all() == [b"the only one"]
    return Counter(offsets=len(range(first, octets + 1, step)), cut=cut)


@pytest.mark.parametrize(("kind", "version"), TARGETS)
async def test_a_publish_is_cut_at_every_offset(line: Callable[[str, str], Line], kind: str, version: str) -> None:
    await over_all(line, kind, version, cut_publishes)


@pytest.mark.parametrize(("kind", "version"), TARGETS)
async def test_a_delivery_is_cut_at_every_offset(line: Callable[[str, str], Line], kind: str, version: str) -> None:
    await over_all(line, kind, version, cut_deliveries)
