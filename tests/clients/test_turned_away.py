"""Clients that RabbitMQ 4.3 turns away; through a front to it they work."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pika
import pika.exceptions
import pytest

from tests.clients.libraries import SUITES
from tests.front.fronts import RunningFront
from tests.servers.process import HOST

pytestmark = pytest.mark.broker

LIMIT = 3
"""Deliveries that a client wants to hold at most."""
WITHIN = 20.0
"""Seconds that they may take to come."""
MORE_WITHIN = 2.0
"""Seconds in which more would have come."""
TOO_LONG_MS = 1_000
"""How long a client may keep a message of a queue, in milliseconds."""
CANCELED_WITHIN = 60.0
"""Seconds in which RabbitMQ notices that."""
AMQPLIB = Path(__file__).parent / "amqplib.cjs"


@pytest.fixture
def front(rabbitmq43: Any) -> Iterator[RunningFront]:
    """A front to RabbitMQ 4.3."""
    front = RunningFront(rabbitmq43.url("0-9-1"))
    yield front
    front.close()


def amqplib(port: int) -> str:
    """What the application on amqplib says."""
    environ = {
        **os.environ,
        "AMQP_URL": f"amqp://guest:guest@{HOST}:{port}",
        "NODE_PATH": str(SUITES / "node" / "node_modules"),
    }
    run = subprocess.run(["node", AMQPLIB], env=environ, capture_output=True, text=True, timeout=60)
    return run.stdout.strip() + run.stderr.strip()


def test_amqplib_with_small_frames(rabbitmq43: Any, front: RunningFront) -> None:
    assert amqplib(rabbitmq43.port).startswith("Error: ")
    assert amqplib(front.port) == "[1,5000,100000]"


def limited(port: int, queues: list[str]) -> int:
    """The most deliveries that a client with a prefetch for its whole channel holds, of two quorum queues."""
    connection = pika.BlockingConnection(pika.ConnectionParameters(HOST, port, heartbeat=0))
    try:
        channel = connection.channel()
        channel.basic_qos(prefetch_count=LIMIT, global_qos=True)
        held: list[int] = []
        for queue in queues:
            channel.queue_declare(queue, durable=True, arguments={"x-queue-type": "quorum"})
            for _ in range(5):
                channel.basic_publish("", queue, b"m")
            channel.basic_consume(queue, lambda _, method, *rest: held.append(method.delivery_tag))
        deadline = time.monotonic() + WITHIN
        while len(held) < LIMIT and time.monotonic() < deadline:
            connection.process_data_events(1)
        deadline = time.monotonic() + MORE_WITHIN
        while time.monotonic() < deadline:
            connection.process_data_events(0.2)
        most = len(held)
        channel.basic_ack(0, multiple=True)
        while len(held) < 10:
            connection.process_data_events(5)
            channel.basic_ack(0, multiple=True)
        for queue in queues:
            channel.queue_delete(queue)
        return most
    finally:
        if connection.is_open:
            connection.close()


def test_a_prefetch_for_the_whole_channel(
    rabbitmq43: Any, front: RunningFront, unique_name: Callable[[str], str]
) -> None:
    queues = [unique_name("global") for _ in range(2)]
    assert limited(front.port, queues) == LIMIT
    assert limited(rabbitmq43.port, queues) > LIMIT


def consumed_again(port: int, queue: str) -> bytes:
    """What a client gets that keeps a message for too long. RabbitMQ cancels its consumer, and it begins again with the
    same tag, as robust clients do."""
    connection = pika.BlockingConnection(pika.ConnectionParameters(HOST, port, heartbeat=0))
    try:
        channel = connection.channel()
        channel.queue_declare(
            queue, durable=True, arguments={"x-queue-type": "quorum", "x-consumer-timeout": TOO_LONG_MS}
        )
        canceled: list[Any] = []
        channel.add_on_cancel_callback(canceled.append)
        channel.basic_consume(queue, lambda *rest: None, consumer_tag="mine")
        channel.basic_publish("", queue, b"m")
        deadline = time.monotonic() + CANCELED_WITHIN
        while not canceled and time.monotonic() < deadline:
            connection.process_data_events(0.5)
        got: list[bytes] = []
        channel.basic_consume(queue, lambda _, method, properties, body: got.append(body), True, consumer_tag="mine")
        deadline = time.monotonic() + WITHIN
        while not got and time.monotonic() < deadline:
            connection.process_data_events(0.5)
        channel.queue_delete(queue)
        return got[0]
    finally:
        if connection.is_open:
            connection.close()


def test_a_consumer_that_begins_again_with_its_tag(
    rabbitmq43: Any, front: RunningFront, unique_name: Callable[[str], str]
) -> None:
    assert consumed_again(front.port, unique_name("late")) == b"m"
    assert front.call(lambda front: front.counts.restores) == 0
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker, match="attempt to reuse consumer tag"):
        consumed_again(rabbitmq43.port, unique_name("late"))
