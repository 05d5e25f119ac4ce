"""A broker that is killed and comes back: what was up is up again, and nothing that was confirmed is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from gateway.amqp.message import Message, Properties
from gateway.amqp.operations import Settlement
from gateway.broker.server import EmbeddedBroker
from gateway.config import EmbeddedSettings
from gateway.errors import BrokerUnavailable, GatewayError, OutcomeUnknown
from gateway.upstreams import ConsumerState, Delivery, Upstream, UpstreamState
from gateway.versions import VERSION_NAMES
from tests.conformance.conftest import FarEnd
from tests.servers import serving
from tests.upstreams.fake import until

REAL = [
    ("rabbitmq", "0-8"),
    ("rabbitmq", "0-9-1"),
    ("rabbitmq", "0-9-1", "quorum"),
    ("brokerj", "0-8"),
    ("brokerj", "0-9"),
    ("brokerj", "0-9-1"),
    ("brokerj", "0-10"),
]


@pytest.mark.broker
@pytest.mark.parametrize("real", REAL, ids="-".join)
async def test_killed_and_back(real: tuple[str, ...], private_server: Callable[[str], Any]) -> None:
    kind, version, *more = real
    server = private_server(serving(kind, version))
    end = FarEnd(kind, version, server.port, "/" if kind == "rabbitmq" else "default")
    upstream = await end.upstream()
    queue, exchange = end.name("queue"), end.name("exchange")
    await upstream.declare_queue(queue, arguments={"x-queue-type": more[0]} if more else None)
    await upstream.declare_exchange(exchange, "fanout", durable=False)  # does not outlive the broker
    await upstream.bind_queue(queue, exchange)
    if (
        kind == "rabbitmq"
    ):  # killed within seconds of its first start, it can forget a durable queue (docs/reference/brokers.md)
        await asyncio.to_thread(server.write_tables)
    got: list[Delivery] = []
    consumer = await upstream.consume(queue, 10, got.append)
    persistent = Properties(delivery_mode=2)
    await upstream.publish(exchange, "", Message(b"before", persistent))
    await until(lambda: len(got) == 1)

    pending = [upstream.publish_nowait(exchange, "", Message(b"%d" % index, persistent)) for index in range(200)]
    await asyncio.sleep(0)
    await asyncio.to_thread(server.kill)
    results = await asyncio.gather(*pending, return_exceptions=True)
    confirmed = {index for index, result in enumerate(results) if not isinstance(result, BaseException)}
    assert all(
        isinstance(result, (OutcomeUnknown, BrokerUnavailable)) for result in results if isinstance(result, Exception)
    )
    await until(lambda: upstream.state is UpstreamState.DOWN)
    assert got[0].lost
    with pytest.raises(BrokerUnavailable):
        await upstream.publish(exchange, "", Message(b"away"))

    got.clear()
    await asyncio.to_thread(server.restart)
    assert await upstream.wait_up(60), upstream.reason
    await until(lambda: consumer.state is ConsumerState.RUNNING, 60)  # a quorum queue elects a leader first
    assert (await upstream.publish(exchange, "", Message(b"after", persistent))).routed
    # A quorum queue hands out again what was out with the dead consumer when it has noticed, maybe after what is new.
    await until(lambda: {b"before", b"after", *(b"%d" % index for index in confirmed)} <= _drained(got), 60)
    await consumer.close()
    await upstream.delete_queue(queue)
    await end.close()


def _drained(got: list[Delivery]) -> set[bytes]:
    """Accept all that is out; the bodies of all that came."""
    for delivery in got:
        if not delivery.settled and not delivery.lost:
            delivery.settle(Settlement.ACCEPT)
    return {delivery.message.body for delivery in got}


@pytest.mark.parametrize("version", VERSION_NAMES)
async def test_the_embedded_broker_restarted(version: str) -> None:
    broker = EmbeddedBroker(EmbeddedSettings(port=0))
    await broker.start()
    end = FarEnd("embedded", version, broker.port)
    upstream = await end.upstream()
    await upstream.declare_queue("q")
    await upstream.declare_exchange("e", "fanout")
    await upstream.bind_queue("q", "e")
    got: list[Delivery] = []
    await upstream.consume("q", 10, got.append)
    await broker.stop()
    await until(lambda: upstream.state is UpstreamState.DOWN)
    again = EmbeddedBroker(EmbeddedSettings(port=end.port))
    await again.start()
    assert await upstream.wait_up(10)
    assert (await upstream.publish("e", "", Message(b"after"))).routed
    await until(lambda: got)
    await end.close()
    await again.stop()


@pytest.mark.broker
async def test_a_memory_alarm_blocks_publishers_and_nobody_else(private_server: Callable[[str], Any]) -> None:
    """RabbitMQ stops reading the connection that publishes. In 0-9-1 it says so, in 0-8 it says nothing."""
    server = private_server("rabbitmq-3.10")
    ends = [FarEnd("rabbitmq", version, server.port) for version in ("0-8", "0-9-1")]
    upstreams: list[Upstream] = [await end.upstream() for end in ends]
    queue = ends[0].name("queue")
    await upstreams[0].declare_queue(queue)
    for upstream in upstreams:
        await upstream.publish("", queue, Message(b"x"))
    await asyncio.to_thread(server.memory_alarm, True)
    pending = [upstream.publish_nowait("", queue, Message(b"y")) for upstream in upstreams]
    try:
        for upstream in upstreams:
            await until(lambda one=upstream: one.state is UpstreamState.BLOCKED, 15)  # type: ignore[misc]
            with pytest.raises(BrokerUnavailable):
                await upstream.publish("", queue, Message(b"z"))
            (delivery,) = await upstream.fetch(queue, 1)  # consuming goes on, acknowledgements included
            delivery.settle(Settlement.ACCEPT)
    finally:
        await asyncio.to_thread(server.memory_alarm, False)
    for outcome in await asyncio.gather(*pending, return_exceptions=True):
        assert not isinstance(outcome, GatewayError), outcome
    for upstream in upstreams:
        await until(lambda one=upstream: one.state is UpstreamState.UP, 15)  # type: ignore[misc]
    await upstreams[0].delete_queue(queue)
    for end in ends:
        await end.close()
