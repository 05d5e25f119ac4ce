"""Queues, exchanges, bindings and their names."""

from __future__ import annotations

import asyncio

import pytest

from gateway.amqp.message import Message
from gateway.amqp.operations import Settlement
from gateway.errors import PreconditionFailed, RemoteError, ResourceLocked
from gateway.upstreams import Upstream
from tests.conformance.conftest import FarEnd

NAMES = ("with/slash", "with:colon", "with%percent", "wíth é", "with  spaces ", "q" * 255)


@pytest.mark.parametrize("stem", NAMES, ids=["slash", "colon", "percent", "accent", "spaces", "255"])
async def test_names(far_end: FarEnd, upstream: Upstream, stem: str) -> None:
    unique = far_end.name()
    name = (unique + stem).encode()[:255].decode()
    exchange = name[::-1]  # Broker-J's 0-10 would send what is for an exchange to the queue of that name
    await upstream.declare_queue(name)
    await upstream.declare_exchange(exchange, "direct")
    await upstream.bind_queue(name, exchange, name)
    assert (await upstream.publish(exchange, name, Message(b"x"))).routed
    (delivery,) = await upstream.fetch(name, 1, 5.0)
    assert (delivery.exchange, delivery.routing_key) == (exchange, name)
    delivery.settle(Settlement.ACCEPT)
    assert (await upstream.query_queue(name)).queue == name
    await upstream.unbind_queue(name, exchange, name)
    await upstream.delete_exchange(exchange)
    await upstream.delete_queue(name)


async def test_declaring_again(far_end: FarEnd, upstream: Upstream, queue: str) -> None:
    await upstream.declare_queue(queue, arguments=far_end.arguments)
    if (far_end.kind, far_end.version) == ("brokerj", "0-10"):  # which takes anything for the queue that is there
        await upstream.declare_queue(queue, auto_delete=True, durable=False)
    else:
        with pytest.raises((PreconditionFailed, ResourceLocked)):  # 405 is Broker-J's word for it
            await upstream.declare_queue(queue, auto_delete=True, durable=False)
    await upstream.declare_queue(queue, arguments=far_end.arguments)


async def test_a_name_chosen_by_the_broker(upstream: Upstream) -> None:
    found = await upstream.declare_queue("")
    assert found.queue
    assert (await upstream.publish("", found.queue, Message(b"x"))).routed
    await upstream.delete_queue(found.queue)


async def test_exclusive(far_end: FarEnd, upstream: Upstream) -> None:
    name = far_end.name("mine")
    await upstream.declare_queue(name, durable=False, exclusive=True)
    other = await far_end.upstream()
    with pytest.raises(RemoteError) as caught:
        await other.fetch(name, 1)
    assert caught.value.reply_code in (405, 530)  # Broker-J ends the connection that asks
    assert (await upstream.publish("", name, Message(b"x"))).routed
    if far_end.version != "0-10":  # where it belongs to the session that declared it, not to the connection
        (delivery,) = await upstream.fetch(name, 1, 5.0)
        delivery.settle(Settlement.ACCEPT)
    await upstream.delete_queue(name)


async def test_purge_and_depth(upstream: Upstream, queue: str) -> None:
    await asyncio.gather(*(upstream.publish_nowait("", queue, Message(b"x")) for _ in range(20)))
    assert (await upstream.query_queue(queue)).message_count == 20
    assert await upstream.purge_queue(queue) in (20, None)
    assert (await upstream.query_queue(queue)).message_count == 0


async def test_a_mistake_costs_only_who_made_it(far_end: FarEnd, upstream: Upstream, queue: str) -> None:
    await upstream.publish("", queue, Message(b"x"))
    (delivery,) = await upstream.fetch(queue, 1, 5.0)
    with pytest.raises(RemoteError):
        await upstream.declare_exchange(far_end.name("exchange"), "no-such-type")
    assert (await upstream.query_queue(queue)).queue == queue
    assert not delivery.lost
    delivery.settle(Settlement.ACCEPT)
