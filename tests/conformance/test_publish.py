"""Publishing: every property, every header type, every size, and what brokers say of a message."""

from __future__ import annotations

import asyncio
from dataclasses import fields, replace
from decimal import Decimal
from uuid import UUID

import pytest

from gateway.amqp.message import Message, Properties
from gateway.amqp.operations import Settlement
from gateway.amqp.values import Table, Timestamp, Typed, Value, type_of
from gateway.errors import EncodeError, NotFound
from gateway.upstreams import Delivery, PublishReceipt, Upstream
from tests.conformance.conftest import FarEnd
from tests.upstreams.fake import until

HEADERS: Table = {
    "void": None,
    "true": True,
    "false": False,
    "int8": Typed("int8", -128),
    "uint8": Typed("uint8", 255),
    "int16": Typed("int16", -32768),
    "uint16": Typed("uint16", 65535),
    "int32": -(1 << 31),
    "uint32": Typed("uint32", (1 << 32) - 1),
    "int64": -(1 << 63),
    "float": Typed("float", 1.5),
    "double": 1e300,
    "decimal": Decimal("123.45"),
    "string": "grün ☃",
    "empty": "",
    "bytes": bytes(range(256)),
    "timestamp": Timestamp(4_000_000_000),
    "table": {"a": 1, "b": {"c": "deep"}},
    "array": [1, "two", {"three": 3}],
    "k" * 255: "the longest key",
}
"""A value of every type that classic field tables have."""

HEADERS_0_10: Table = {
    **HEADERS,
    "char": Typed("char", "é"),
    "str8": Typed("str8", "short"),
    "uint64": (1 << 64) - 1,
    "vbin8": Typed("vbin8", b"\x00\xff"),
    "vbin16": Typed("vbin16", b"\x00\xff"),
    "str8-latin": Typed("str8-latin", "é"),
    "str8-utf16": Typed("str8-utf16", "é☃"),
    "str16-latin": Typed("str16-latin", "é"),
    "str16-utf16": Typed("str16-utf16", "é☃"),
    "char-utf32": Typed("char-utf32", "☃"),
    "dec64": Typed("dec64", Decimal("-12345678901.25")),
    "uuid": UUID(int=1 << 100),
    "bit": Typed("bit", True),
    **{f"bin{width}": Typed(f"bin{width}", bytes(range(width // 8))) for width in (8, 16, 32, 40, 64, 72, 128, 256)},
}
"""And of those that only 0-10 has."""

SIMPLE = Properties(
    content_type="text/plain",
    content_encoding="utf-8",
    delivery_mode=2,
    priority=9,
    correlation_id="c" * 255,
    reply_to="reply",
    message_id="m-1",
    timestamp=1_700_000_000,
    type="kind",
    user_id="guest",
    app_id="app",
)


def headers(far_end: FarEnd) -> Table:
    """What the version has a type for."""
    return HEADERS_0_10 if far_end.version == "0-10" else HEADERS


async def collect(upstream: Upstream, queue: str, count: int, seconds: float = 30.0) -> list[Delivery]:
    """Consume and accept so many."""
    got: list[Delivery] = []

    def take(delivery: Delivery) -> None:
        got.append(delivery)
        delivery.settle(Settlement.ACCEPT)

    consumer = await upstream.consume(queue, 100, take)
    await until(lambda: len(got) >= count, seconds)
    await consumer.close()
    return got


def messages(far_end: FarEnd) -> list[Message]:
    """1,000 messages: each property alone, each header alone, all together, over and over."""
    kinds: list[Properties] = [Properties(), SIMPLE, replace(SIMPLE, headers=headers(far_end))]
    kinds += [Properties(**{f.name: getattr(SIMPLE, f.name)}) for f in fields(SIMPLE) if f.name not in ("headers",)]
    kinds += [Properties(headers={key: value}) for key, value in headers(far_end).items()]
    kinds.append(Properties(cluster_id="cluster") if far_end.version == "0-8" else Properties(delivery_mode=1))
    return [Message(b"%06d" % index * (index % 50 + 1), kinds[index % len(kinds)]) for index in range(1000)]


async def test_a_thousand_confirmed_messages_with_everything(far_end: FarEnd, upstream: Upstream, queue: str) -> None:
    sent = messages(far_end)
    futures = [upstream.publish_nowait("", queue, message, order="one") for message in sent]
    assert await asyncio.gather(*futures) == [PublishReceipt(True)] * 1000
    got = await collect(upstream, queue, 1000)
    assert len(got) == 1000
    # Broker-J lets transient messages overtake persistent ones, RabbitMQ's quorum queues those of a priority above 4.
    if far_end.kind == "brokerj" or far_end.queue_type == "quorum":
        got.sort(key=lambda delivery: int(delivery.message.body[:6]))
    for index, (message, delivery) in enumerate(zip(sent, got, strict=True)):
        assert delivery.message.body == message.body, index
        got_properties = as_sent(delivery.message.properties, message.properties)
        assert got_properties == message.properties, index
        wanted = message.properties.headers
        if wanted and not far_end.keeps_header_order:
            wanted = dict(sorted(wanted.items(), key=lambda entry: entry[0].encode("utf-8", "surrogateescape")))
        assert exact(got_properties.headers) == exact(wanted), index
        assert not delivery.redelivered
        assert (delivery.exchange, delivery.routing_key) == ("", queue)


def exact(value: Value) -> object:
    """A value in which equal numbers of different wire types differ, and the order of keys counts."""
    if isinstance(value, dict):
        return [(key, exact(item)) for key, item in value.items()]
    if isinstance(value, list):
        return ["array", *map(exact, value)]
    return type_of(value), value


def as_sent(got: Properties, sent: Properties) -> Properties:
    """``got`` without what a broker adds of its own accord: a delivery mode where none was given."""
    if sent.delivery_mode is None and got.delivery_mode == 1:
        got = replace(got, delivery_mode=None)
    if sent.priority is None and got.priority in (0, 4):
        got = replace(got, priority=None)
    if sent.timestamp is None and got.timestamp is not None:
        got = replace(got, timestamp=None)
    if not sent.headers and not got.headers:
        got = replace(got, headers=sent.headers)
    return got


async def test_expiration_means_the_same_everywhere(upstream: Upstream, queue: str) -> None:
    await upstream.publish("", queue, Message(b"stays", Properties(expiration="60000")))
    (delivery,) = await upstream.fetch(queue, 1, 5.0)
    expiration = delivery.message.properties.expiration
    assert expiration is not None
    assert 50_000 < int(expiration) <= 60_000
    delivery.settle(Settlement.ACCEPT)
    await upstream.publish("", queue, Message(b"goes", Properties(expiration="30")))
    await asyncio.sleep(0.2)
    assert await upstream.fetch(queue, 1) == []


async def test_bodies_of_every_size(upstream: Upstream, queue: str) -> None:
    capabilities = upstream.capabilities
    assert capabilities is not None
    frame = capabilities.frame_max
    sizes = sorted({0, 1, *(k * (frame - o) + d for k in (1, 2) for o in (0, 8, 12) for d in (-1, 0, 1)), 10 << 20})
    pattern = bytes(range(251))
    for size in sizes:
        body = (pattern * (size // 251 + 1))[:size]
        assert (await upstream.publish("", queue, Message(body, Properties(delivery_mode=1)))).routed
        (delivery,) = await upstream.fetch(queue, 1, 10.0)
        assert delivery.message.body == body, size
        delivery.settle(Settlement.ACCEPT)


async def test_unroutable_is_reported(far_end: FarEnd, upstream: Upstream, queue: str) -> None:
    receipt = await upstream.publish("", far_end.name("nowhere"), Message(b"x"))
    assert not receipt.routed
    assert receipt.reply_code == 312
    routes = [queue, far_end.name("nowhere"), queue, far_end.name("nowhere")] * 25
    futures = [upstream.publish_nowait("", route, Message(b"same body")) for route in routes]
    assert [receipt.routed for receipt in await asyncio.gather(*futures)] == [True, False, True, False] * 25
    assert len(await collect(upstream, queue, 50)) == 50


async def test_an_unknown_exchange_is_reported_and_no_queue_grows(upstream: Upstream, queue: str) -> None:
    with pytest.raises(NotFound):
        await upstream.publish(queue, queue, Message(b"x"))  # an exchange by the name of a queue
    with pytest.raises(NotFound):
        await upstream.publish("no such exchange", queue, Message(b"x"))
    assert (await upstream.query_queue(queue)).message_count == 0
    assert (await upstream.publish("", queue, Message(b"x"))).routed


async def test_through_exchanges(far_end: FarEnd, upstream: Upstream, queue: str) -> None:
    exchange = far_end.name("exchange")
    await upstream.declare_exchange(exchange, "topic")
    await upstream.bind_queue(queue, exchange, "a.*")
    assert (await upstream.publish(exchange, "a.b", Message(b"1"))).routed
    assert not (await upstream.publish(exchange, "b.b", Message(b"2"))).routed
    (delivery,) = await upstream.fetch(queue, 5, 5.0)
    assert (delivery.exchange, delivery.routing_key, delivery.message.body) == (exchange, "a.b", b"1")
    delivery.settle(Settlement.ACCEPT)
    await upstream.unbind_queue(queue, exchange, "a.*")
    assert not (await upstream.publish(exchange, "a.b", Message(b"3"))).routed
    await upstream.delete_exchange(exchange)
    with pytest.raises(NotFound):
        await upstream.query_exchange(exchange)


async def test_what_brokers_close_channels_for_is_refused_before_the_wire(upstream: Upstream, queue: str) -> None:
    for properties in (
        Properties(user_id="mallory"),
        Properties(expiration="soon"),
        Properties(headers={"k" * 256: 1}),
        Properties(message_id="m" * 70_000),
    ):
        with pytest.raises(EncodeError):
            await upstream.publish("", queue, Message(b"x", properties))
    assert (await upstream.publish("", queue, Message(b"x"))).routed
