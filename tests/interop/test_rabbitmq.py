"""pika and py-amqp read octet by octet what the gateway published to RabbitMQ, and the reverse.

The other side speaks 0-9-1; the gateway speaks 0-8 or 0-9-1 to the same broker. What is compared is what RabbitMQ
sends to pika, taken off the wire by a relay, with property lists written by hand.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import amqp
import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from gateway.amqp.message import Message, Properties
from gateway.amqp.operations import Settlement
from gateway.upstreams import Upstream
from tests.interop import octets, samples
from tests.interop.conftest import Connect
from tests.interop.raw import Octets
from tests.servers import RabbitMQ
from tests.servers.process import HOST
from tests.servers.relay import SERVER, Relay, relay_to

pytestmark = pytest.mark.broker

VERSIONS = ("0-8", "0-9-1")


@pytest.fixture
def rabbitmq(rabbitmq_of_version: RabbitMQ) -> RabbitMQ:
    """The one that speaks the version of the test."""
    return rabbitmq_of_version


@pytest.fixture
def relay(rabbitmq: RabbitMQ) -> Iterator[Relay]:
    with relay_to(rabbitmq.port) as relay:
        yield relay


@pytest.fixture
def channel(relay: Relay) -> Iterator[BlockingChannel]:
    """A channel of pika's, through the relay."""
    connection = pika.BlockingConnection(pika.ConnectionParameters(HOST, relay.port, heartbeat=0))
    channel = connection.channel()
    channel.confirm_delivery()
    yield channel
    connection.close()


@pytest.fixture
def queue(channel: BlockingChannel, unique_name: Callable[[str], str]) -> Iterator[str]:
    name = unique_name("interop")
    channel.queue_declare(name, durable=True)
    yield name
    channel.queue_delete(name)


def seen(relay: Relay) -> list[bytes]:
    """Property lists of all messages that the broker sent to pika."""
    stream = b"".join(data for who, data in relay.connections[0] if who == SERVER)
    return list(octets.content_headers(stream))


async def take(upstream: Upstream, queue: str) -> Message:
    (delivery,) = await upstream.fetch(queue, 1, wait=5)
    delivery.settle(Settlement.ACCEPT)
    return delivery.message


def get(channel: BlockingChannel, queue: str) -> tuple[pika.BasicProperties, bytes]:
    method, properties, body = channel.basic_get(queue, auto_ack=True)
    assert method is not None, "the queue is empty"
    return properties, body


@pytest.mark.parametrize("version", VERSIONS)
async def test_pika_reads_what_the_gateway_published(
    version: str, rabbitmq: RabbitMQ, connect: Connect, relay: Relay, channel: BlockingChannel, queue: str
) -> None:
    upstream = await connect(rabbitmq.url(version))
    receipt = await upstream.publish("", queue, samples.message())
    assert receipt.routed
    properties, body = get(channel, queue)
    assert body == samples.BODY
    assert seen(relay) == [octets.properties(**samples.on_the_wire(in_order=version == "0-8"))]
    assert {name: properties.headers[name] for name in samples.AS_PYTHON} == samples.AS_PYTHON
    assert properties.headers["octets as string"] == b"\xff\xfe"


@pytest.mark.parametrize("version", VERSIONS)
async def test_the_gateway_reads_what_pika_published(
    version: str, rabbitmq: RabbitMQ, connect: Connect, channel: BlockingChannel, queue: str
) -> None:
    channel.basic_publish("", queue, samples.BODY, Octets(octets.properties(**samples.ON_THE_WIRE)))
    message = await take(await connect(rabbitmq.url(version)), queue)
    assert message.body == samples.BODY
    assert message.properties == samples.PROPERTIES
    assert message.properties.headers is not None
    assert list(message.properties.headers) == (
        sorted(samples.HEADERS) if version == "0-9-1" else list(samples.HEADERS)
    )


@pytest.mark.parametrize("version", VERSIONS)
async def test_what_passes_through_the_gateway_is_unchanged(
    version: str, rabbitmq: RabbitMQ, connect: Connect, relay: Relay, channel: BlockingChannel, queue: str
) -> None:
    """Published by pika, taken and published again by the gateway, read by pika: the same octets."""
    wire = octets.properties(**samples.ON_THE_WIRE)
    channel.basic_publish("", queue, samples.BODY, Octets(wire))
    upstream = await connect(rabbitmq.url(version))
    message = await take(upstream, queue)
    await upstream.publish("", queue, message)
    _, body = get(channel, queue)
    handed_out = octets.properties(**samples.on_the_wire(in_order=version == "0-8"))
    assert (seen(relay), body) == ([handed_out], samples.BODY)


@pytest.mark.parametrize("version", VERSIONS)
async def test_no_properties_are_no_properties(
    version: str, rabbitmq: RabbitMQ, connect: Connect, relay: Relay, channel: BlockingChannel, queue: str
) -> None:
    upstream = await connect(rabbitmq.url(version))
    await upstream.publish("", queue, Message(b"bare"))
    assert get(channel, queue)[1] == b"bare"
    assert seen(relay) == [b"\x00\x00"]
    channel.basic_publish("", queue, b"bare", Octets(b"\x00\x00"))
    assert await take(upstream, queue) == Message(b"bare", Properties())
    await upstream.publish("", queue, Message(b"", Properties(headers={})))
    assert get(channel, queue)[1] == b""
    assert seen(relay)[1:] == [octets.properties(headers=[])]


@pytest.mark.parametrize("version", ["0-8"])
async def test_cluster_id_is_carried_in_0_8(
    version: str, rabbitmq: RabbitMQ, connect: Connect, relay: Relay, channel: BlockingChannel, queue: str
) -> None:
    """0-9-1 has it no more, so there it comes back only between gateways."""
    message = Message(b"", Properties(cluster_id="cluster"))
    await (await connect(rabbitmq.url(version))).publish("", queue, message)
    assert get(channel, queue)[0].cluster_id == "cluster"
    assert seen(relay) == [octets.properties(cluster_id="cluster")]
    modern = await connect(rabbitmq.url("0-9-1"))
    await modern.publish("", queue, message)
    assert await take(modern, queue) == message


@pytest.mark.parametrize("version", VERSIONS)
async def test_bodies_of_every_size_in_both_directions(
    version: str, rabbitmq: RabbitMQ, connect: Connect, channel: BlockingChannel, queue: str
) -> None:
    upstream = await connect(rabbitmq.url(version))
    for size in samples.SIZES:
        body = samples.pattern(size)
        await upstream.publish("", queue, Message(body))
        assert get(channel, queue)[1] == body, size
        channel.basic_publish("", queue, body)
        assert (await take(upstream, queue)).body == body, size


@pytest.mark.parametrize("version", VERSIONS)
async def test_order_is_kept_in_both_directions(
    version: str, rabbitmq: RabbitMQ, connect: Connect, channel: BlockingChannel, queue: str
) -> None:
    upstream = await connect(rabbitmq.url(version))
    sent = [b"%d" % number for number in range(300)]
    await asyncio.gather(*(upstream.publish("", queue, Message(body), order="one") for body in sent))
    assert [get(channel, queue)[1] for _ in sent] == sent
    for body in sent:
        channel.basic_publish("", queue, body)
    taken: list[bytes] = []
    while len(taken) < len(sent):
        for delivery in await upstream.fetch(queue, 50, wait=5):
            taken.append(delivery.message.body)
            delivery.settle(Settlement.ACCEPT)
    assert taken == sent


@pytest.mark.parametrize("version", VERSIONS)
async def test_py_amqp_reads_and_writes_the_same(
    version: str, rabbitmq: RabbitMQ, connect: Connect, queue: str
) -> None:
    """A second judge, for the floats that pika does not read."""
    upstream = await connect(rabbitmq.url(version))
    await upstream.publish("", queue, samples.message())
    with amqp.Connection(f"{HOST}:{rabbitmq.port}", heartbeat=0) as connection:
        channel = connection.channel()
        got = channel.basic_get(queue, no_ack=True)
        body = got.body.encode() if isinstance(got.body, str) else bytes(got.body)
        assert body == samples.BODY
        expected: dict[str, Any] = {
            **samples.AS_PYTHON,
            "time": datetime.fromtimestamp(samples.WHEN, UTC).replace(tzinfo=None),
            "float": 1.5,
            "double": 0.1,
        }
        headers = got.headers
        assert {name: headers[name] for name in expected} == expected
        properties = got.properties
        plain = {name: value for name, value in samples.ON_THE_WIRE.items() if name not in ("headers", "timestamp")}
        assert {name: properties[name] for name in plain} == plain
        channel.basic_publish(
            amqp.Message(samples.BODY, application_headers={"double": 0.1, "n": 3, "big": 1 << 40}, **plain),
            routing_key=queue,
        )
        message = await take(upstream, queue)
        assert message.body == samples.BODY
        assert message.properties == replace(
            samples.PROPERTIES, timestamp=None, headers={"double": 0.1, "n": 3, "big": 1 << 40}
        )
