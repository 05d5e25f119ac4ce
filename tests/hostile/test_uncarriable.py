"""Messages that came through one version and may be too large or too strange for another.

The embedded broker hands each over as it was, or skips it for those who cannot have it. Three good messages behind it
come to consumers of every version.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

import pytest

from gateway.amqp.message import Message, Properties, ReplyTo
from gateway.amqp.operations import (
    Consume,
    DeclareQueue,
    Deliver,
    Operation,
    Publish,
    SelectConfirm,
    Settlement,
)
from gateway.amqp.values import Timestamp, Typed, Value
from gateway.broker.server import EmbeddedBroker
from gateway.config import BrokerSettings, EmbeddedSettings
from gateway.limits import Limits
from gateway.link import Channel, Link
from gateway.observing.telemetry import Metrics
from gateway.upstreams import Delivery, Upstream
from gateway.upstreams.keeper import Dialer
from gateway.versions import client_session, version_named
from tests.pace import pace

E, C, N = VERSIONS = ("0-8", "0-9-1", "0-10")
CLASSIC: Final = frozenset({E, C})
LARGE: Final = Limits(header_max=8 << 20, table_depth=200, table_entries=60_000)
"""Of a publisher that does not keep to our limits."""
GOOD: Final = [b"good0", b"good1", b"good2"]
SOURCE: Final = "$source"
"""In a header: the name of the queue that the message is published to."""
WAIT_MAX: Final = 0.1
"""The longest wait of a neighbor, in seconds of CPU."""


@dataclass(frozen=True)
class Way:
    """One way to make a message that somebody cannot be given."""

    version: str
    """What it is published through."""
    properties: Mapping[str, Any]
    skipped_by: frozenset[str] = frozenset()
    """Versions whose consumers cannot have it."""
    dead_lettered: bool = False
    """It comes to the queue as a dead letter."""
    frame_max: int = 0
    """Of the consumers; 0: the default."""
    added: frozenset[str] = field(default=frozenset())
    """Headers that the broker adds or changes."""


def deep(depth: int, leaf: Value, kind: type) -> Value:
    for _ in range(depth):
        leaf = {"k": leaf} if kind is dict else [leaf]
    return leaf


def numbered(count: int, value: Value) -> dict[str, Value]:
    return {f"h{index:04}": value for index in range(count)}


DEATHS: Final = frozenset({"x-death", "x-first-death-exchange", "x-first-death-queue", "x-first-death-reason"})
LAST: Final = Timestamp((1 << 64) - 1)
TINY: Final = Decimal((0, (1,), -255))
U: Final = UUID(int=7)
BAD: Final = "\udcff"
"""An octet that is not UTF-8."""


def death(count: Value) -> dict[str, Value]:
    return {"headers": {"x-death": [{"queue": SOURCE, "reason": "rejected", "count": count}]}}


WAYS: Final[Mapping[str, Way]] = {
    "a header of 240 kB": Way(N, {"headers": numbered(4, "x" * 60_000)}, CLASSIC),
    "a death counted 2^63 - 1 times": Way(C, death((1 << 63) - 1), dead_lettered=True, added=DEATHS),
    "a dead letter that has grown": Way(
        C, {"headers": {"h": "x" * 130_930}}, CLASSIC, dead_lettered=True, added=DEATHS
    ),
    "a dead letter that has not grown too far": Way(
        C, {"headers": {"h": "x" * 130_000}}, dead_lettered=True, added=DEATHS
    ),
    "a death counted 2^64 - 1 times": Way(N, death(Typed("uint64", (1 << 64) - 1)), dead_lettered=True, added=DEATHS),
    "a death counted -1 times": Way(C, death(-1), dead_lettered=True, added=DEATHS),
    "a death counted in letters": Way(C, death("9" * 30), dead_lettered=True, added=DEATHS),
    "a death counted in a table": Way(C, death({"a": [1]}), dead_lettered=True, added=DEATHS),
    "deaths of a table": Way(C, {"headers": {"x-death": {"queue": SOURCE}}}, dead_lettered=True, added=DEATHS),
    "deaths nested 30 deep": Way(C, {"headers": {"x-death": deep(30, 1, list)}}, dead_lettered=True, added=DEATHS),
    "4,000 deaths": Way(
        C, {"headers": {"x-death": [{"queue": "q", "reason": "r"}] * 4_000}}, dead_lettered=True, added=DEATHS
    ),
    "3,000 UUIDs": Way(N, {"headers": numbered(3_000, U)}, CLASSIC),
    "4,090 entries of another type": Way(N, {"headers": numbered(4_090, Typed("bin128", bytes(16)))}, CLASSIC),
    "two properties of 65,535 octets": Way(
        N, {"correlation_id": b"\xff" * 65_535, "app_id": b"\xfe" * 65_535}, CLASSIC
    ),
    "a property of 60,000 octets": Way(N, {"app_id": "a" * 60_000}),
    "a correlation-id that is no UTF-8": Way(N, {"correlation_id": b"\xff\xfe"}),
    "a correlation-id of 300 octets": Way(N, {"correlation_id": "c" * 300}),
    "a type of 300 octets": Way(N, {"type": "t" * 300}, CLASSIC),
    "a type of 60,000 octets": Way(N, {"type": "t" * 60_000}, CLASSIC),
    "a long reply-to": Way(N, {"reply_to": ReplyTo("e" * 255, "k" * 255)}),
    "a reply-to that is no UTF-8": Way(C, {"reply_to": BAD * 255}),
    "times at the end of time": Way(C, {"timestamp": LAST, "headers": {"t": LAST}}),
    "scales of 255": Way(N, {"headers": {"a": TINY, "b": Typed("dec64", TINY)}}),
    "types that only 0-10 has": Way(
        N,
        {"headers": {"a": U, "b": Typed("bin1024", bytes(128)), "c": Typed("sequence-no", 5), "d": Typed("bit", True)}},
    ),
    "maps nested 31 deep": Way(N, {"headers": deep(31, U, dict)}),
    "lists nested 30 deep": Way(N, {"headers": {"l": deep(30, U, list)}}),
    "arrays nested 30 deep": Way(C, {"headers": {"l": deep(30, 1, list)}}),
    "4,000 voids": Way(N, {"headers": {"v": [None] * 4_000}}),
    "4,000 small numbers": Way(C, {"headers": numbered(4_000, Typed("uint8", 1))}),
    "a priority of 255": Way(C, {"priority": 255}),
    "an expiration of 2^64 - 1": Way(N, {"expiration": str((1 << 64) - 1)}),
    "NUL in a name and a value": Way(N, {"headers": {"a\0b": "x\0y", "\uffff": 1}, "content_type": "a\0b"}),
    "a name that is no UTF-8": Way(C, {"headers": {BAD * 255: 1}}),
    "a content-type that is no UTF-8": Way(C, {"content_type": BAD * 255}),
    "a content-encoding that brokers unpack": Way(N, {"content_encoding": "gzip"}),
    "a text of 100,000 octets": Way(C, {"headers": {"s": "x" * 100_000}}),
    "a text of 70,000 octets that is no UTF-8": Way(C, {"headers": {"s": Typed("string", b"\xff" * 70_000)}}),
    "100,000 octets": Way(C, {"headers": {"s": b"\xff" * 100_000}}),
    "a scale of 255": Way(E, {"headers": {"d": TINY}}),
    "a header that just fits": Way(C, {"headers": {"h": "x" * 131_030}}),
    "consumers with small frames": Way(C, {"headers": {"h": "x" * 20_000}}, CLASSIC, frame_max=4_096),
}  # fmt: skip


class Place:
    """The embedded broker, and an upstream in each version."""

    def __init__(self, broker: EmbeddedBroker, metrics: Metrics) -> None:
        self.broker = broker
        self.metrics = metrics
        self.upstreams: dict[str, Upstream] = {}

    def settings(self, version: str) -> BrokerSettings:
        return BrokerSettings(url=f"amqp://guest:guest@127.0.0.1:{self.broker.port}/?version={version}")

    async def start(self, *versions: str) -> None:
        for version in versions:
            upstream = self.upstreams[version] = Upstream(version, self.settings(version))
            await upstream.start()
        for upstream in self.upstreams.values():
            assert await upstream.wait_up(10)

    async def link(self, version: str, limits: Limits = LARGE) -> Link:
        dialer = Dialer("raw", self.settings(version))
        link = Link(client_session(version_named(version), replace(dialer.client_config("raw"), limits=limits)))
        await dialer._open(link, dialer.url, 10)
        return link

    async def put(self, version: str, queue: str, message: Message) -> None:
        link = await self.link(version)
        channel = link.channel(Channel)
        await channel.open()
        await channel.request(SelectConfirm(channel.number))
        await channel.request(Publish(channel.number, "", queue, message))
        await link.close()

    def ready(self, queue: str) -> int:
        return self.broker.broker.virtual_host("/").queues[queue].ready

    @property
    def counted(self) -> int:
        """How many messages were skipped, by the metrics."""
        lines = self.metrics.render().decode().splitlines()
        return int(sum(float(line.split()[-1]) for line in lines if line.startswith("amqpgw_embedded_skipped_total{")))


@pytest.fixture
async def place() -> AsyncIterator[Place]:
    metrics = Metrics("test")
    broker = EmbeddedBroker(EmbeddedSettings(port=0), metrics=metrics)
    await broker.start()
    place = Place(broker, metrics)
    yield place
    for upstream in place.upstreams.values():
        await upstream.close(0.5)
    await broker.stop()


def named(value: Value, source: str) -> Value:
    """A value with the name of the queue in it."""
    if isinstance(value, dict):
        return {key: named(item, source) for key, item in value.items()}
    if isinstance(value, list):
        return [named(item, source) for item in value]
    return source if value == SOURCE else value


async def make(place: Place, way: Way, queue: str) -> Message:
    """Have the message in a new queue, and three good ones behind it."""
    plain = place.upstreams[C]
    await plain.declare_queue(queue)
    source = queue
    if way.dead_lettered:
        source = f"source of {queue}"
        arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": queue}
        await plain.declare_queue(source, arguments=arguments)
    message = Message(b"bad", Properties(**named(dict(way.properties), source)))
    await place.put(way.version, source, message)
    if way.dead_lettered:
        (delivery,) = await place.upstreams[N].fetch(source, 1, 5.0)
        delivery.settle(Settlement.REJECT)
        async with asyncio.timeout(5):
            while not place.ready(queue):
                await asyncio.sleep(0.01)
    for body in GOOD:
        await plain.publish("", queue, Message(body))
    return message


async def take(upstream: Upstream, queue: str, wanted: int) -> list[Message]:
    """Fetch and accept until so many came, or no more come."""
    messages: list[Message] = []
    while True:
        deliveries = await upstream.fetch(queue, 10, 5.0 if len(messages) < wanted else 0.05)
        if not deliveries:
            return messages
        for delivery in deliveries:
            messages.append(delivery.message)
            delivery.settle(Settlement.ACCEPT)


def same(sent: Message, came: Message, added: frozenset[str]) -> None:
    """It came as it was, but for what the broker added."""
    for name, value in ((name, getattr(sent.properties, name)) for name in Properties.__slots__):
        if value is None:
            continue
        found = getattr(came.properties, name)
        if name == "headers":
            found = {key: item for key, item in found.items() if key not in added}
            value = {key: item for key, item in value.items() if key not in added}
        assert found == value, name


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
async def test_what_is_behind_it_comes(place: Place, way: Way, caplog: pytest.LogCaptureFixture) -> None:
    await place.start(*VERSIONS)
    lost: list[str] = []
    for upstream in place.upstreams.values():
        upstream.on_state.append(lambda changed: lost.append(f"{changed.name} {changed.state.value}"))
    with caplog.at_level(logging.WARNING, "gateway"):
        for version in VERSIONS:
            queue = f"q-{version}"
            sent = await make(place, way, queue)
            skips = version in way.skipped_by
            if way.frame_max and skips:
                assert await with_small_frames(place, version, queue, way.frame_max) == GOOD
            else:
                messages = await take(place.upstreams[version], queue, 3 if skips else 4)
                assert [message.body for message in messages if message.body != b"bad"] == GOOD
                bad = [message for message in messages if message.body == b"bad"]
                assert len(bad) == (not skips)
                for message in bad:
                    same(sent, message, way.added)
            assert place.ready(queue) == skips
    lines = [record for record in caplog.records if record.message == "embedded.skipped"]
    assert len(lines) == place.counted == len(way.skipped_by)
    assert lost == []
    for version in way.skipped_by:
        (message,) = await take(place.upstreams[N], f"q-{version}", 1)
        same(sent, message, way.added)


class Taker(Channel):
    """A consumer's channel: the bodies that came."""

    __slots__ = ("bodies",)

    def __init__(self, link: Link, number: int) -> None:
        super().__init__(link, number)
        self.bodies: list[bytes] = []

    def handle(self, operation: Operation) -> None:
        if isinstance(operation, Deliver):
            self.bodies.append(operation.message.body)


async def with_small_frames(place: Place, version: str, queue: str, frame_max: int) -> list[bytes]:
    """What a consumer gets whose connection has frames of that size."""
    link = await place.link(version, Limits(frame_max=frame_max))
    channel = link.channel(Taker)
    await channel.open()
    await channel.request(Consume(channel.number, queue, "tag", no_ack=True))
    async with asyncio.timeout(5):
        while len(channel.bodies) < 3:
            await asyncio.sleep(0.01)
    await asyncio.sleep(0.05)
    assert channel.usable
    await link.close()
    return channel.bodies


async def test_consumers_of_all_versions_on_one_queue(place: Place) -> None:
    """Ten of each: those who can have them get all, the others what is between, and nobody is cut off."""
    await place.start(*VERSIONS)
    await place.upstreams[C].declare_queue("q")
    came: dict[str, list[bytes]] = {version: [] for version in VERSIONS}

    def taker(version: str) -> Callable[[Delivery], None]:
        def take(delivery: Delivery) -> None:
            came[version].append(delivery.message.body)
            delivery.settle(Settlement.ACCEPT)

        return take

    consumers = [
        await place.upstreams[version].consume("q", 5, taker(version)) for version in VERSIONS for _ in range(10)
    ]
    link = await place.link(N)
    channel = link.channel(Channel)
    await channel.open()
    await channel.request(SelectConfirm(channel.number))
    large = Message(b"large", Properties(headers=numbered(3, "x" * 60_000)))
    for number in range(60):
        channel.send(Publish(channel.number, "", "q", large if number % 6 == 0 else Message(b"%d" % number)))
    async with asyncio.timeout(20):
        while sum(map(len, came.values())) < 60:
            await asyncio.sleep(0.01)
    await asyncio.sleep(0.2)
    assert sorted(body for bodies in came.values() for body in bodies) == sorted(
        [b"large"] * 10 + [b"%d" % number for number in range(60) if number % 6]
    )
    assert came[N].count(b"large") == 10
    assert place.ready("q") == 0
    assert all(came.values())
    assert {upstream.state.value for upstream in place.upstreams.values()} == {"up"}
    for consumer in consumers:
        await consumer.close()
    await link.close()


async def test_the_neighbors_hardly_wait(place: Place) -> None:
    """Two hundred at the head of a queue with many consumers, and a neighbor with a queue of its own."""
    await place.start(*VERSIONS)
    plain = place.upstreams[C]
    await plain.declare_queue("q")
    await plain.declare_queue("neighbor")
    link = await place.link(N)
    channel = link.channel(Channel)
    await channel.open()
    await channel.request(SelectConfirm(channel.number))
    large = Message(b"large", Properties(headers=numbered(4, "x" * 60_000)))
    for _ in range(20):
        await asyncio.gather(*(channel.request(Publish(channel.number, "", "q", large)) for _ in range(10)))
    other = await place.link(C)
    neighbor = other.channel(Channel)
    await neighbor.open()
    await neighbor.request(SelectConfirm(neighbor.number))
    slowest, ended = 0.0, False

    async def watch() -> None:
        nonlocal slowest
        while not ended:
            begun = time.thread_time()  # all of them run in this thread: what it works on makes the neighbor wait
            await neighbor.request(Publish(neighbor.number, "", "neighbor", Message(b"x")))
            slowest = max(slowest, time.thread_time() - begun)

    watching = asyncio.create_task(watch())
    came: list[bytes] = []

    def take_one(delivery: Delivery) -> None:
        came.append(delivery.message.body)
        delivery.settle(Settlement.ACCEPT)

    consumers = [await place.upstreams[version].consume("q", 5, take_one) for version in (E, C) for _ in range(10)]
    for body in GOOD:
        await plain.publish("", "q", Message(body))
    async with asyncio.timeout(20):
        while len(came) < 3:
            await asyncio.sleep(0.01)
    ended = True
    await watching
    assert sorted(came) == GOOD
    assert place.ready("q") == place.counted == 200
    assert slowest < WAIT_MAX * pace()
    for consumer in consumers:
        await consumer.close()
    for each in (link, other):
        await each.close()


@pytest.mark.parametrize("version", VERSIONS)
async def test_small_frames_do_not_speak_for_large_ones(version: str) -> None:
    """What does not fit the frames of one consumer goes to another of the same version whose frames hold it. With the
    transitional draft of 0-10, which has one frame for it too."""
    broker = EmbeddedBroker(EmbeddedSettings(port=0, transitional=True))
    await broker.start()
    place = Place(broker, Metrics("test"))
    dialect = "transitional" if version == N else None
    links, channels = [], []
    for frame_max in (4_096, 131_072):
        dialer = Dialer("raw", place.settings(version))
        config = replace(dialer.client_config("raw"), limits=Limits(frame_max=frame_max), dialect=dialect)
        link = Link(client_session(version_named(version), config))
        await dialer._open(link, dialer.url, 10)
        channel = link.channel(Taker)
        await channel.open()
        links.append(link)
        channels.append(channel)
    small, large = channels
    await large.request(DeclareQueue(large.number, "q"))
    await large.request(SelectConfirm(large.number))
    for headers in ({"h": "x" * 10_000}, {"h": "x"}):
        await large.request(Publish(large.number, "", "q", Message(b"1", Properties(headers=headers))))
    await small.request(Consume(small.number, "q", "small", no_ack=True))
    await asyncio.sleep(0.1)
    assert (len(small.bodies), place.ready("q")) == (1, 1)
    await large.request(Consume(large.number, "q", "large", no_ack=True))
    async with asyncio.timeout(5):
        while not large.bodies:
            await asyncio.sleep(0.01)
    assert place.ready("q") == 0
    assert small.usable
    for link in links:
        await link.close()
    await broker.stop()
