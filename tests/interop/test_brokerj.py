"""Qpid's Java client reads what the gateway published to Broker-J, and the reverse, in each of its versions."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from gateway.amqp.message import Message, Properties
from gateway.amqp.operations import Settlement
from gateway.fidelity import RESERVED
from gateway.upstreams import Upstream
from tests.interop import octets, samples
from tests.interop.conftest import Connect
from tests.servers import BrokerJ
from tests.servers.judge import Judge, JudgeConnection
from tests.servers.judge import octets as base64
from tests.servers.relay import SERVER, Relay, relay_to

pytestmark = pytest.mark.broker

CLASSIC = ("0-8", "0-9", "0-9-1")
VERSIONS = (*CLASSIC, "0-10")


@pytest.fixture
def relay(brokerj: BrokerJ) -> Iterator[Relay]:
    with relay_to(brokerj.port) as relay:
        yield relay


@pytest.fixture
def java(version: str, brokerj: BrokerJ, relay: Relay, judge: Judge) -> Iterator[JudgeConnection]:
    """A connection of the Java client, in the version of the test, through the relay."""
    connection = judge.connect(version, relay.port, brokerj.virtual_host)
    yield connection
    connection.close()


@pytest.fixture
def queue(java: JudgeConnection, unique_name: Callable[[str], str]) -> Iterator[str]:
    name = unique_name("interop")
    java.declare(name)
    yield name
    java.delete(name)


@pytest.fixture
async def upstream(version: str, brokerj: BrokerJ, connect: Connect) -> Upstream:
    return await connect(brokerj.url(version))


async def take(upstream: Upstream, queue: str) -> Message:
    (delivery,) = await upstream.fetch(queue, 1, wait=5)
    delivery.settle(Settlement.ACCEPT)
    return delivery.message


def one(java: JudgeConnection, queue: str) -> dict[str, Any]:
    messages = java.consume(queue)
    assert len(messages) == 1, "the queue is empty"
    return messages[0]


def about_the_ttl(milliseconds: float) -> bool:
    return samples.TTL - 60_000 < milliseconds <= samples.TTL + 1_000


@pytest.mark.parametrize("version", CLASSIC)
async def test_java_reads_what_the_gateway_published(upstream: Upstream, java: JudgeConnection, queue: str) -> None:
    receipt = await upstream.publish("", queue, samples.message(samples.JAVA_CLASSIC_PROPERTIES))
    assert receipt.routed
    got = one(java, queue)
    assert about_the_ttl(got.pop("expiration") - time.time() * 1000)  # absolute, on this broker
    where = {"exchange": "", "routing_key": queue, "redelivered": False}
    (reserved,) = [entry for entry in got["headers"] if entry[0] == RESERVED]
    got["headers"].remove(reserved)
    assert "properties" in dict(reserved[1][1]), "that the expiration was a time to live"
    assert got == {"body": samples.BODY, **samples.java_classic(written=False), **where}


@pytest.mark.parametrize("version", CLASSIC)
async def test_the_gateway_reads_what_java_published(upstream: Upstream, java: JudgeConnection, queue: str) -> None:
    body = base64(samples.BODY)
    expiration = int(time.time() * 1000) + samples.TTL
    java.publish("", queue, {"body": body, "expiration": expiration, **samples.java_classic(written=True)})
    message = await take(upstream, queue)
    assert message.body == samples.BODY
    assert message.properties.expiration is not None
    assert about_the_ttl(int(message.properties.expiration))
    assert replace(message.properties, expiration=str(samples.TTL)) == samples.JAVA_CLASSIC_PROPERTIES


@pytest.mark.parametrize("version", ["0-10"])
async def test_java_reads_every_field_of_0_10(upstream: Upstream, java: JudgeConnection, queue: str) -> None:
    receipt = await upstream.publish("", queue, samples.message(samples.NATIVE_PROPERTIES))
    assert receipt.routed
    got = one(java, queue)
    assert about_the_ttl(got.pop("ttl"))
    for set_by_the_broker in ("timestamp", "expiration"):
        got.pop(set_by_the_broker, None)
    headers = dict(got.pop("headers"))
    reserved = dict(headers.pop(RESERVED)[1])
    assert {path[0] for path, _ in json.loads(reserved["types"][1])} == {"uint8", "uint16", "uint32", "uint64", "time"}
    assert headers == dict(samples.JAVA_NATIVE)
    assert got.pop("exchange", "") == ""
    assert got == {
        "body": samples.BODY,
        "routing_key": queue,
        "redelivered": False,
        **samples.JAVA_NATIVE_MESSAGE,
    }


@pytest.mark.parametrize("version", ["0-10"])
async def test_the_gateway_reads_every_field_of_0_10(upstream: Upstream, java: JudgeConnection, queue: str) -> None:
    headers = [entry for entry in samples.JAVA_NATIVE if entry[0] in samples.JAVA_WRITES]
    sent = {"body": base64(samples.BODY), "ttl": samples.TTL, "headers": headers, **samples.JAVA_NATIVE_MESSAGE}
    java.publish("", queue, sent)
    message = await take(upstream, queue)
    assert message.body == samples.BODY
    assert message.properties.expiration is not None
    assert about_the_ttl(int(message.properties.expiration))
    assert replace(message.properties, expiration=str(samples.TTL), timestamp=None) == replace(
        samples.NATIVE_PROPERTIES, headers={name: samples.NATIVE_HEADERS[name] for name in samples.JAVA_WRITES}
    )


@pytest.mark.parametrize("version", ["0-10"])
async def test_what_0_10_has_no_field_for_comes_back(upstream: Upstream, java: JudgeConnection, queue: str) -> None:
    """A message of 0-9-1 through 0-10: the same afterwards, and sensible to a reader that knows nothing of us."""
    sent = replace(samples.PROPERTIES, headers={"n": 3}, expiration=None)
    await upstream.publish("", queue, Message(b"", sent))
    assert (await take(upstream, queue)).properties == sent
    await upstream.publish("", queue, Message(b"", sent))
    got = one(java, queue)
    headers = dict(got["headers"])
    assert headers.pop("n") == ["Integer", 3]
    assert headers.pop("x-jms-type") == ["String", sent.type]
    assert list(headers) == ["x-gateway"]
    assert got["reply_to"] == [None, "answers"]
    assert got["correlation_id"] == base64("correlation é".encode())


@pytest.mark.parametrize("version", VERSIONS)
async def test_no_properties_are_no_properties(
    version: str, upstream: Upstream, relay: Relay, java: JudgeConnection, queue: str
) -> None:
    await upstream.publish("", queue, Message(b"bare"))
    got = one(java, queue)
    assert got["body"] == b"bare"
    if version == "0-10":
        assert not got.keys() & {"headers", "message_id", "content_type", "correlation_id", "reply_to", "ttl"}
    else:  # this client cannot tell no headers from headers without entries
        stream = b"".join(data for who, data in relay.connections[0] if who == SERVER)
        assert list(octets.content_headers(stream))[-1] == b"\x00\x00"
    java.publish("", queue, {"body": base64(b"bare")})
    message = await take(upstream, queue)
    assert message.body == b"bare"
    if version == "0-10":  # the broker adds to the delivery properties
        assert replace(message.properties, timestamp=None, delivery_mode=None, priority=None) == Properties()
    else:
        assert message.properties == Properties()


@pytest.mark.parametrize("version", VERSIONS)
async def test_bodies_of_every_size_in_both_directions(upstream: Upstream, java: JudgeConnection, queue: str) -> None:
    for size in samples.SIZES:
        body = samples.pattern(size)
        await upstream.publish("", queue, Message(body))
        assert one(java, queue)["body"] == body, size
        java.publish("", queue, {"body": base64(body)})
        assert (await take(upstream, queue)).body == body, size


@pytest.mark.parametrize("version", VERSIONS)
async def test_order_is_kept_in_both_directions(upstream: Upstream, java: JudgeConnection, queue: str) -> None:
    sent = [b"%d" % number for number in range(300)]
    await asyncio.gather(*(upstream.publish("", queue, Message(body), order="one") for body in sent))
    assert [message["body"] for message in java.consume(queue, 300)] == sent
    java.publish("", queue, *({"body": base64(body)} for body in sent))
    taken: list[bytes] = []
    while len(taken) < len(sent):
        for delivery in await upstream.fetch(queue, 50, wait=5):
            taken.append(delivery.message.body)
            delivery.settle(Settlement.ACCEPT)
    assert taken == sent


@pytest.mark.parametrize("version", VERSIONS)
async def test_what_one_releases_the_other_sees_as_redelivered(
    upstream: Upstream, java: JudgeConnection, queue: str
) -> None:
    await upstream.publish("", queue, Message(b"back and forth"))
    (first,) = await upstream.fetch(queue, 1, wait=5)
    assert not first.redelivered
    first.settle(Settlement.RELEASE)
    (second,) = await asyncio.to_thread(java.consume, queue, settlement="release")
    assert second["redelivered"]
    (third,) = await upstream.fetch(queue, 1, wait=5)
    assert third.redelivered
    third.settle(Settlement.ACCEPT)


@pytest.mark.parametrize("version", VERSIONS)
async def test_what_was_settled_just_before_its_channel_closed_is_gone(
    version: str, brokerj: BrokerJ, connect: Connect, unique_name: Callable[[str], str]
) -> None:
    """Of a session that is detached before its accepts are carried out, Broker-J keeps persistent messages."""
    upstream = await connect(brokerj.url(version))
    queue = unique_name("settled")
    await upstream.declare_queue(queue)
    message = Message(b"body", Properties(delivery_mode=2))
    await asyncio.gather(*(upstream.publish_nowait("", queue, message) for _ in range(50)))
    taken = await upstream.fetch(queue, 50, 1)
    for delivery in taken:
        delivery.settle(Settlement.ACCEPT)
    taken[0]._channel.abandon()  # as the sweep of old channels does
    await asyncio.sleep(0.5)
    assert (await upstream.query_queue(queue)).message_count == 0
    await upstream.delete_queue(queue)
