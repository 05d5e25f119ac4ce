"""Messages that the broker has and we do not take: over ``message_max``, over ``header_max``, with headers beyond the
limits of a table. Each is dealt with once: nothing is offered again and again, no connection is lost over it, and
what lies behind it in the queue comes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.amqp.message import Message, Properties, RawProperties
from gateway.amqp.operations import Publish, SelectConfirm, Settlement
from gateway.amqp.values import Table, Value
from gateway.app import running
from gateway.config import load
from gateway.errors import FrameSyntaxError, GatewayError
from gateway.limits import Limits
from gateway.link import Channel, Link
from gateway.upstreams import Delivery, Upstream
from gateway.upstreams.consuming.deliveries import Oversized
from gateway.upstreams.keeper import Dialer
from gateway.v010.translate import DIALECT_OF_BROKER_J, decode
from gateway.versions import client_session, version_named
from tests.conformance.conftest import FarEnd
from tests.ledgers import sqlite_ledger

LARGE = Limits(message_max=64 << 20, header_max=8 << 20, table_depth=200, table_entries=60_000)
"""Of a publisher that has other limits than ours."""
SMALL = 4_096
"""``message_max`` of the upstream under test, in octets."""


class Sender:
    """A publisher with limits of its own."""

    def __init__(self, link: Link, channel: Channel) -> None:
        self.link, self.channel = link, channel

    async def put(self, queue: str, *messages: Message) -> None:
        """Publish, and wait until all are safe."""
        for message in messages:
            await self.channel.request(Publish(self.channel.number, "", queue, message))


async def sender_of(far_end: FarEnd, version: str) -> Sender:
    dialer = Dialer("sender", far_end.settings(version=version))
    config = replace(dialer.client_config("sender"), limits=LARGE)
    link = Link(client_session(version_named(version), config))
    await dialer._open(link, dialer.url, 20)
    channel = link.channel(Channel)
    await channel.open()
    await channel.request(SelectConfirm(channel.number))
    return Sender(link, channel)


@pytest.fixture
async def sender(far_end: FarEnd) -> AsyncIterator[Sender]:
    sender = await sender_of(far_end, far_end.version)
    yield sender
    await sender.link.close()


@pytest.fixture
async def limited(far_end: FarEnd) -> Upstream:
    """An upstream that takes messages of up to :data:`SMALL` octets."""
    return await far_end.upstream(message_max=SMALL)


@pytest.fixture
def told(limited: Upstream) -> list[Oversized]:
    """What it was told of messages over its limit."""
    seen: list[Oversized] = []
    limited.on_oversized.append(seen.append)
    return seen


def large(number: int = 0) -> Message:
    return Message(bytes(SMALL + 1 + number), Properties(delivery_mode=2))


def small(number: int) -> Message:
    return Message(b"%d" % number + bytes(SMALL - 1), Properties(delivery_mode=2))


def number(delivery: Delivery) -> int:
    return int(delivery.message.body.rstrip(b"\x00"))


async def take(upstream: Upstream, queue: str, wanted: int, wait: float = 5.0) -> list[int]:
    """Fetch and accept until ``wanted`` came, or nothing comes any more; their numbers."""
    taken: list[int] = []
    while len(taken) < wanted:
        deliveries = await upstream.fetch(queue, wanted - len(taken), wait)
        if not deliveries:
            break
        for delivery in deliveries:
            taken.append(number(delivery))
            delivery.settle(Settlement.ACCEPT)
    return taken


async def test_a_pull_passes_over_what_is_too_large(
    limited: Upstream, queue: str, sender: Sender, told: list[Oversized]
) -> None:
    await sender.put(queue, large(), large(1), small(0), small(1), large(2), small(2))
    assert sorted(await take(limited, queue, 3)) == [0, 1, 2]
    assert sorted((item.queue, item.size, item.limit) for item in told) == [
        (queue, SMALL + 1 + extra, SMALL) for extra in range(3)
    ]
    until = time.monotonic() + 1.5
    while time.monotonic() < until:
        assert await limited.fetch(queue, 10, 0.2) == []
    assert len(told) == 3, "they were offered again"
    await sender.put(queue, small(3))
    assert await take(limited, queue, 1) == [3]
    assert limited.state.value == "up"


async def test_a_pull_that_waits_is_not_ended_by_what_is_too_large(
    limited: Upstream, queue: str, sender: Sender, told: list[Oversized]
) -> None:
    pull = asyncio.ensure_future(take(limited, queue, 1, 20.0))
    await asyncio.sleep(0.1)
    await sender.put(queue, large())
    await asyncio.sleep(0.1)
    await sender.put(queue, small(7))
    assert await asyncio.wait_for(pull, 15) == [7]
    assert len(told) == 1


async def test_a_consumer_passes_over_what_is_too_large(
    limited: Upstream, queue: str, sender: Sender, told: list[Oversized]
) -> None:
    """More of them than its prefetch."""
    came: list[int] = []

    def on_delivery(delivery: Delivery) -> None:
        came.append(number(delivery))
        delivery.settle(Settlement.ACCEPT)

    consumer = await limited.consume(queue, 3, on_delivery)
    await sender.put(queue, *[large(extra) for extra in range(5)], *[small(index) for index in range(10)])
    async with asyncio.timeout(15):
        while len(came) < 10:
            await asyncio.sleep(0.02)
    await asyncio.sleep(0.5)
    assert sorted(came) == list(range(10))
    assert sorted(item.size for item in told) == [SMALL + 1 + extra for extra in range(5)]
    await consumer.close()


def mapped(table: Table) -> bytes:
    """A map of 0-10, however deep and long: the encoder has limits of its own."""
    parts = [b"%c%b%b" % (len(key), key.encode(), value_octets(value)) for key, value in table.items()]
    body = len(parts).to_bytes(4, "big") + b"".join(parts)
    return len(body).to_bytes(4, "big") + body


def value_octets(value: Value) -> bytes:
    if isinstance(value, dict):
        return b"\xa8" + mapped(value)
    if isinstance(value, list):
        return b"\xa9" + (4 + len(value)).to_bytes(4, "big") + len(value).to_bytes(4, "big") + b"\xf0" * len(value)
    return b"\x21" + int(value).to_bytes(4, "big")


def with_headers(headers: Table, version: str) -> Message:
    """A message whose headers no encoder of ours would write in 0-10."""
    if version != "0-10":
        return Message(b"1", Properties(headers=headers))
    fields = b"\x04\x03\x00\x01" + mapped(headers)
    octets = len(fields).to_bytes(4, "big") + fields
    return Message(b"1", None, RawProperties(octets, DIALECT_OF_BROKER_J, decode))


def nested(depth: int) -> Table:
    table: Table = {"end": True}
    for _ in range(depth - 1):
        table = {"in": table}
    return table


@pytest.mark.parametrize(
    "headers",
    [nested(33), nested(60), {f"h{index}": index for index in range(4_097)}, {"array": [None] * 4_097}],
    ids=["33 deep", "60 deep", "4097 entries", "4097 items"],
)
async def test_headers_beyond_the_limits_of_a_table(
    far_end: FarEnd, limited: Upstream, queue: str, sender: Sender, headers: Table
) -> None:
    """The message is handed over as it is; only who looks at its headers is told."""
    strange = with_headers(headers, far_end.version)
    if far_end.kind == "embedded":  # the same limits are its own
        with pytest.raises(GatewayError):
            await sender.put(queue, strange)
        assert await limited.fetch(queue, 1, 0.1) == []
        return
    await sender.put(queue, strange, small(2))
    one, two = sorted([*await limited.fetch(queue, 2, 5.0)], key=number)
    with pytest.raises(FrameSyntaxError):
        _ = one.message.properties
    assert number(two) == 2
    one.settle(Settlement.ACCEPT)
    two.settle(Settlement.ACCEPT)
    assert await limited.fetch(queue, 1, 0.3) == []
    assert limited.state.value == "up"


async def test_a_header_segment_over_the_limit(
    far_end: FarEnd, limited: Upstream, queue: str, sender: Sender, told: list[Oversized]
) -> None:
    """Only in 0-10 a header may be larger than a frame, and than our ``header_max``. Broker-J sends it to clients of
    the other versions all the same, in one frame."""
    large = (far_end.version == "0-10" and not far_end.dialect) or far_end.kind == "brokerj"
    if large:
        native = await sender_of(far_end, "0-10")
        headers: Table = {f"h{index}": "x" * 60_000 for index in range(20)}
        await native.put(queue, Message(b"1", Properties(headers=headers)))
        await native.link.close()
    else:
        await sender.put(queue, Message(b"1", Properties(headers={"long": "x" * 100_000})))
    await sender.put(queue, small(2))
    assert sorted(await take(limited, queue, 2, 3.0)) == ([2] if large else [1, 2])
    if not large or far_end.kind == "embedded":  # the embedded broker has refused it
        assert told == []
        return
    assert [item.limit for item in told] == [Limits().header_max]
    assert told[0].size > told[0].limit
    assert await limited.fetch(queue, 1, 0.5) == []
    assert len(told) == 1
    assert limited.state.value == "up"


async def put_large_header(far_end: FarEnd, queue: str) -> None:
    """Put a message into the queue whose header no frame of a classic connection holds: as a dead letter that has grown
    by ``x-death`` where the broker is RabbitMQ, else by 0-10."""
    if far_end.kind == "rabbitmq":
        source = far_end.name("source")
        arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": queue}
        other = await far_end.upstream()
        await other.declare_queue(source, arguments={**far_end.arguments, **arguments})
        await other.publish("", source, Message(b"1", Properties(headers={"h": "x" * 130_930}, delivery_mode=2)))
        (delivery,) = await other.fetch(source, 1, 5.0)
        delivery.settle(Settlement.REJECT)
        async with asyncio.timeout(10):
            while (await other.query_queue(queue)).message_count == 0:
                await asyncio.sleep(0.05)
        await other.delete_queue(source)
    else:
        other = await far_end.upstream(version="0-10")
        headers = {f"h{index}": "x" * 60_000 for index in range(4)}
        await other.publish("", queue, Message(b"1", Properties(headers=headers, delivery_mode=2)))


async def test_a_header_that_no_frame_holds(
    far_end: FarEnd, limited: Upstream, queue: str, sender: Sender, told: list[Oversized]
) -> None:
    """Real brokers send it in a frame over ``frame_max``, and it is taken. The embedded one skips it for those who
    cannot have it. Either way no connection is lost, and what lies behind it comes."""
    if far_end.dialect:
        return  # the draft has one version of its own on the port
    lost: list[str] = []
    limited.on_state.append(lambda changed: lost.append(changed.state.value))
    await put_large_header(far_end, queue)
    await sender.put(queue, small(2), small(3), small(4))
    skips = far_end.kind == "embedded" and far_end.version != "0-10"
    wanted = [2, 3, 4] if skips else [1, 2, 3, 4]
    assert sorted(await take(limited, queue, len(wanted))) == wanted
    assert await limited.fetch(queue, 1, 0.3) == []
    assert told == []
    assert lost == []
    if skips:
        other = await far_end.upstream(version="0-10")
        assert await take(other, queue, 1) == [1]


async def test_the_http_api_hands_over_what_it_can(far_end: FarEnd, queue: str, sender: Sender, tmp_path: Path) -> None:
    """What is too large is passed over, and counted; headers that cannot be read do not hold the message back."""
    strange = [] if far_end.kind == "embedded" else [with_headers(nested(33), far_end.version)]
    await sender.put(queue, large(), *strange, small(2))
    settings = {
        "http.port": 0, "ops.port": 0, "data_dir": str(tmp_path), "brokers.peer.url": far_end.settings().url,
        "brokers.peer.message_max": SMALL,
    }  # fmt: skip
    sqlite_ledger(tmp_path)
    async with running(load(None, {}, settings)) as app, httpx.AsyncClient(base_url=app.url, timeout=30) as client:
        assert await app.gateway.brokers["peer"].wait_up(20)
        path = "/v1/subscriptions/limited"
        await client.put(path, json={"broker": "peer", "queue": queue})
        messages: list[Any] = []
        while len(messages) < 1 + len(strange):
            response = await client.post(f"{path}:pull", json={"max_messages": 10, "wait": 5})
            assert response.status_code == 200, response.text
            assert response.json()["messages"], "the queue is stuck"
            messages += response.json()["messages"]
        assert len(messages) == 1 + len(strange)
        response = await client.post(f"{path}:acknowledge", json={"ack_ids": [item["ack_id"] for item in messages]})
        assert {item["status"] for item in response.json()["results"]} == {"SUCCESS"}
        response = await client.post(f"{path}:pull", json={"max_messages": 10, "wait": 0})
        assert response.json()["messages"] == []
        assert b'amqpgw_deliveries_total{broker="peer",event="oversized"} 1.0' in app.gateway.metrics.render()
