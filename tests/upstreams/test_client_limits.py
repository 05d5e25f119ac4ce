"""What old clients cannot do is found by product and version, is documented, and is true."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pika
import pytest

from gateway.upstreams.client_limits import CLIENT_LIMITS, client_limits
from tests.servers import RabbitMQ
from tests.servers.process import HOST

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "brokers.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("product", "version", "number"),
    [
        ("RabbitMQ", "3.10.8", 0),
        ("RabbitMQ", "4.0.5", 4),
        ("RabbitMQ", "4.1.0", 5),
        ("RabbitMQ", "4.3.6", 7),
        ("RabbitMQ", "5.0.0-beta.1", 7),
        ("RabbitMQ", "", 0),
        ("RabbitMQ", "unknown", 0),
        ("qpid", "9.2.1", 0),
    ],
)
def test_by_product_and_version(product: str, version: str, number: int) -> None:
    assert len(client_limits(product, version)) == number


def test_each_is_documented() -> None:
    for row in CLIENT_LIMITS:
        major, minor = row.since
        assert f"| {major}.{minor} | {row.what} | {row.instead} |" in PAGE, row.what


@pytest.mark.broker
def test_they_are_as_the_broker_has_them(rabbitmq: RabbitMQ, unique_name: Callable[[str], str]) -> None:
    """The rows of the release that runs, and of no other one: its version may move."""
    limits = " ".join(row.what for row in client_limits("RabbitMQ", ".".join(map(str, rabbitmq.release))))
    parameters = pika.ConnectionParameters(HOST, rabbitmq.port, heartbeat=0, connection_attempts=1)
    queue = unique_name("limits")

    def refused(**arguments: object) -> bool:
        connection = pika.BlockingConnection(parameters)
        try:
            channel = connection.channel()
            channel.queue_declare(queue, durable=True, arguments=arguments)
            channel.queue_delete(queue)
        except pika.exceptions.ChannelClosedByBroker:
            return True
        finally:
            connection.close()
        return False

    assert refused(**{"x-queue-version": 1}) == ("x-queue-version" in limits)
    small = pika.ConnectionParameters(HOST, rabbitmq.port, heartbeat=0, connection_attempts=1, frame_max=4096)
    try:
        pika.BlockingConnection(small).close()
        dropped = False
    except pika.exceptions.AMQPConnectionError:
        dropped = True
    assert dropped == ("frame_max" in limits)
    with pika.BlockingConnection(parameters) as connection:
        channel = connection.channel()
        channel.queue_declare(queue, durable=True)
        for _ in range(9):
            channel.basic_publish("", queue, b"x")
        channel.basic_qos(prefetch_count=2, global_qos=True)
        out: list[bytes] = []
        for _ in range(3):
            channel.basic_consume(queue, lambda channel, method, properties, body: out.append(body))
        for _ in range(20):
            connection.process_data_events(0.05)
        assert len(out) == (6 if "basic.qos with global" in limits else 2)
        channel.queue_delete(queue)
