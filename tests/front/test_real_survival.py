"""pika through a front to real brokers, whose connections are cut: nothing is lost, and pika stays connected."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pika
import pytest

from gateway.front.server import Front
from tests.front.fronts import RunningFront
from tests.servers import serving
from tests.servers.process import HOST

pytestmark = pytest.mark.broker

MESSAGES = 240
CUTS = 6


def cut(front: Front) -> None:
    """End the front's connections to the broker."""
    for links in front.pool.links.values():
        for link in links:
            if link._link is not None and link._link.stream is not None:
                link._link.stream.abort()


@pytest.mark.parametrize(("kind", "version"), [("rabbitmq", "0-9-1"), ("rabbitmq", "0-8"), ("brokerj", "0-10")])
def test_cuts(kind: str, version: str, request: pytest.FixtureRequest, unique_name: Callable[[str], str]) -> None:
    """While it publishes, and while it consumes."""
    server: Any = request.getfixturevalue(serving(kind, version))
    queue = unique_name("front")
    front = RunningFront(server.url(version))
    try:
        connection = pika.BlockingConnection(pika.ConnectionParameters(HOST, front.port, heartbeat=0))
        channel = connection.channel()
        channel.queue_declare(queue, durable=True)
        channel.confirm_delivery()
        for number in range(MESSAGES):
            if number % (MESSAGES // CUTS) == 0:
                front.call(cut)
            channel.basic_publish("", queue, b"%d" % number, pika.BasicProperties(delivery_mode=2), mandatory=True)
        channel.basic_qos(prefetch_count=10)
        found: set[bytes] = set()
        for at, (method, _, body) in enumerate(channel.consume(queue)):
            if at % (MESSAGES // CUTS) == 0:
                front.call(cut)
            channel.basic_ack(method.delivery_tag)
            found.add(body)
            if len(found) == MESSAGES:
                break
        assert found == {b"%d" % number for number in range(MESSAGES)}
        channel.cancel()
        channel.queue_delete(queue)
        assert connection.is_open
        connection.close()
    finally:
        front.close()


def test_a_fault_on_broker_j_costs_another_client_nothing(brokerj: Any, unique_name: Callable[[str], str]) -> None:
    """For these Broker-J ends a connection of 0-9-1, which the clients of a front share."""
    front = RunningFront(brokerj.url("0-9-1"))
    queue = unique_name("front")
    try:
        one, other = (
            pika.BlockingConnection(pika.ConnectionParameters(HOST, front.port, heartbeat=0)) for _ in range(2)
        )
        channel = one.channel()
        channel.queue_declare(queue, durable=True)
        channel.basic_publish("", queue, b"m")
        method, _, _ = channel.basic_get(queue)
        with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="NOT_FOUND"):
            other.channel().basic_get(unique_name("nowhere"))
        arguments: Any = {"x-message-ttl": 1_000}
        with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="PRECONDITION_FAILED"):
            other.channel().queue_declare(unique_name("short"), arguments=arguments)
        again = other.channel()
        assert again.basic_get(queue) == (None, None, None)
        channel.basic_ack(method.delivery_tag)
        assert channel.queue_declare(queue, passive=True).method.message_count == 0
        channel.queue_delete(queue)
        assert front.call(lambda front: front.counts.restores) == 0
        one.close()
        other.close()
    finally:
        front.close()
