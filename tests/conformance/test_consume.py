"""Getting, consuming, and settling in every way."""

from __future__ import annotations

import asyncio

import pytest

from gateway.amqp.message import Message
from gateway.amqp.operations import Consume, DeclareQueue, DeleteQueue, Settlement
from gateway.errors import NotFound, Unroutable, Unsupported
from gateway.link import Channel
from gateway.upstreams import Delivery, Oversized, Upstream
from tests.conformance.conftest import FarEnd
from tests.upstreams.fake import until


async def put(upstream: Upstream, queue: str, count: int) -> None:
    """Publish ``0`` to ``count - 1``."""
    await asyncio.gather(
        *(upstream.publish_nowait("", queue, Message(b"%d" % index), order="put") for index in range(count))
    )


def numbers(deliveries: list[Delivery]) -> list[int]:
    return [int(delivery.message.body) for delivery in deliveries]


async def empty(upstream: Upstream, queue: str) -> None:
    """Nothing is left in the queue, neither ready nor out, once the broker has read the settlements."""
    async with asyncio.timeout(10):
        while (await upstream.query_queue(queue)).message_count:
            await asyncio.sleep(0.02)


async def test_get_and_accept(upstream: Upstream, queue: str) -> None:
    await put(upstream, queue, 150)
    found = await upstream.fetch(queue, 150)
    assert numbers(found) == list(range(150))
    assert await upstream.fetch(queue, 1) == []
    for delivery in found:  # one range per channel: a multiple ack
        delivery.settle(Settlement.ACCEPT)
    await empty(upstream, queue)


async def test_accept_out_of_order(upstream: Upstream, queue: str) -> None:
    await put(upstream, queue, 20)
    found = await upstream.fetch(queue, 20)
    for delivery in found[::-2] + found[::2]:
        delivery.settle(Settlement.ACCEPT)
    await empty(upstream, queue)


async def test_wait_for_a_message(upstream: Upstream, queue: str) -> None:
    waiting = asyncio.create_task(upstream.fetch(queue, 10, 10.0))
    await asyncio.sleep(0.1)
    await put(upstream, queue, 1)
    found = await waiting
    assert numbers(found) == [0]
    found[0].settle(Settlement.ACCEPT)
    loop = asyncio.get_running_loop()
    began = loop.time()
    assert await upstream.fetch(queue, 10, 0.3) == []
    assert 0.3 <= loop.time() - began < 10
    await empty(upstream, queue)


async def test_release_sets_redelivered(upstream: Upstream, queue: str) -> None:
    await put(upstream, queue, 5)
    found = await upstream.fetch(queue, 5)
    assert not any(delivery.redelivered for delivery in found)
    for delivery in found:
        delivery.settle(Settlement.RELEASE)
    again: list[Delivery] = []
    while len(again) < 5:
        batch = await upstream.fetch(queue, 5, 5.0)
        assert batch
        again += batch
    assert sorted(numbers(again)) == list(range(5))
    assert all(delivery.redelivered for delivery in again)
    for delivery in again:
        delivery.settle(Settlement.ACCEPT)
    await empty(upstream, queue)


async def test_consume_within_the_prefetch(upstream: Upstream, queue: str) -> None:
    await put(upstream, queue, 30)
    got: list[Delivery] = []
    consumer = await upstream.consume(queue, 10, got.append)
    await until(lambda: len(got) == 10)
    await asyncio.sleep(0.1)
    assert len(got) == 10
    for delivery in got[:10]:
        delivery.settle(Settlement.ACCEPT)
    await until(lambda: len(got) == 20)
    for delivery in got[10:20]:
        delivery.settle(Settlement.ACCEPT)
    await until(lambda: len(got) == 30)
    assert numbers(got) == list(range(30))
    await consumer.close()  # what is out goes back
    again = await upstream.fetch(queue, 30, 5.0)
    assert sorted(numbers(again)) == list(range(20, 30))
    assert all(delivery.redelivered for delivery in again)
    for delivery in again:
        delivery.settle(Settlement.ACCEPT)
    await empty(upstream, queue)


async def test_two_consumers_share_a_queue(upstream: Upstream, queue: str) -> None:
    counts = [0, 0]

    def taker(index: int):  # type: ignore[no-untyped-def]
        def take(delivery: Delivery) -> None:
            counts[index] += 1
            delivery.settle(Settlement.ACCEPT)

        return take

    consumers = [await upstream.consume(queue, 5, taker(index)) for index in range(2)]
    await put(upstream, queue, 100)
    await until(lambda: sum(counts) == 100, 10)
    assert all(counts)
    for consumer in consumers:
        await consumer.close()


async def test_reject_to_a_dead_letter_place(far_end: FarEnd, upstream: Upstream) -> None:
    """By the broker where it can, else by a copy; either way the message is there and gone here."""
    assert upstream.capabilities is not None
    dead, name = far_end.name("dead"), far_end.name("queue")
    await upstream.declare_queue(dead)
    exchange = far_end.name("dead-letters")
    await upstream.declare_exchange(exchange, "fanout")
    await upstream.bind_queue(dead, exchange)
    native = upstream.capabilities.native_dead_letter
    await upstream.declare_queue(name, arguments={"x-dead-letter-exchange": exchange} if native else {})
    await put(upstream, name, 3)
    for delivery in await upstream.fetch(name, 3):
        if native:
            await upstream.reject(delivery)
        else:
            with pytest.raises(Unsupported):
                await upstream.reject(delivery)
            await upstream.reject(delivery, (exchange, ""))
    found: list[Delivery] = []
    while len(found) < 3:
        batch = await upstream.fetch(dead, 3, 5.0)
        assert batch
        found += batch
    assert sorted(numbers(found)) == [0, 1, 2]
    for delivery in found:
        delivery.settle(Settlement.ACCEPT)
    for queue in (name, dead):
        await empty(upstream, queue)
        await upstream.delete_queue(queue)
    await upstream.delete_exchange(exchange)


async def test_reject_by_copy_where_the_queue_names_no_place(far_end: FarEnd, upstream: Upstream, queue: str) -> None:
    """0-10 tells whether it does; 0-9-1 and 0-8 do not, and there the word of the broker's product holds."""
    assert upstream.capabilities is not None
    if upstream.capabilities.native_dead_letter and far_end.version != "0-10":
        return
    dead = far_end.name("dead")
    await upstream.declare_queue(dead)
    await put(upstream, queue, 1)
    (delivery,) = await upstream.fetch(queue, 1)
    with pytest.raises(Unroutable):
        await upstream.reject(delivery, ("", far_end.name("nowhere")))
    await upstream.reject(delivery, ("", dead))
    (copy,) = await upstream.fetch(dead, 1, 5.0)
    assert numbers([copy]) == [0]
    copy.settle(Settlement.ACCEPT)
    await empty(upstream, queue)
    await upstream.delete_queue(dead)


async def test_a_message_over_the_limit_is_set_aside(far_end: FarEnd, upstream: Upstream, queue: str) -> None:
    small = await far_end.upstream(message_max=2048)
    seen: list[Oversized] = []
    small.on_oversized.append(seen.append)
    await upstream.publish("", queue, Message(bytes(5000)))
    await put(upstream, queue, 2)
    found = await small.fetch(queue, 10)
    assert numbers(found) == [0, 1]
    assert [(one.queue, one.size, one.limit) for one in seen] == [(queue, 5000, 2048)]
    for delivery in found:
        delivery.settle(Settlement.ACCEPT)
    assert await small.fetch(queue, 10, 0.2) == []
    assert len(seen) == 1
    await small.close()
    (whole,) = await upstream.fetch(queue, 10, 5.0)
    assert len(whole.message.body) == 5000


async def test_a_missing_queue_costs_nothing(far_end: FarEnd, upstream: Upstream, queue: str) -> None:
    await put(upstream, queue, 1)
    (delivery,) = await upstream.fetch(queue, 1)
    missing = far_end.name("missing")
    for attempt in (
        upstream.query_queue(missing),
        upstream.declare_queue(missing, passive=True),
        upstream.fetch(missing, 5),
        upstream.fetch(missing, 5, 1.0),
        upstream.consume(missing, 5, lambda delivery: None),
    ):
        with pytest.raises(NotFound):
            await attempt
    assert not delivery.lost
    delivery.settle(Settlement.ACCEPT)
    await empty(upstream, queue)


async def test_the_queue_of_a_consumer_goes_and_comes_back(far_end: FarEnd, upstream: Upstream) -> None:
    assert upstream.capabilities is not None
    name = far_end.name("queue")
    await upstream.declare_queue(name)
    got: list[Delivery] = []
    consumer = await upstream.consume(name, 5, got.append)
    await upstream.delete_queue(name)
    if upstream.capabilities.consumer_cancel_notify:
        await until(lambda: consumer.state.value == "cancelled")
        await upstream.declare_queue(name)
        await put(upstream, name, 1)
        await until(lambda: got)
        await upstream.delete_queue(name)
    await consumer.close()


async def test_the_queue_of_a_consumer_goes_while_its_channel_is_closed(far_end: FarEnd) -> None:
    """The broker's cancel crosses our close, and nothing may follow that: RabbitMQ would end the connection."""
    link = await far_end.link()
    name = far_end.name("queue")
    for _ in range(20):
        channel = link.channel(Channel)
        await channel.open()
        await channel.request(DeclareQueue(channel.number, name, durable=True))
        await channel.request(Consume(channel.number, name, "tag"))
        await channel.request(DeleteQueue(channel.number, name))
        await channel.close()
    other = link.channel(Channel)
    await other.open()
    await other.close()
    assert link.ended is None
