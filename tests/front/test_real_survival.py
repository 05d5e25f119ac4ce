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
