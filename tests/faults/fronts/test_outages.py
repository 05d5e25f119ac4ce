"""A real broker is killed, and the gateway with it: publishes that the front has confirmed arrive, in order."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pika
import pika.exceptions
import pytest

from gateway.fidelity.reserved import RESERVED
from tests.faults.harness import GatewayProcess
from tests.servers import RabbitMQ
from tests.servers.process import HOST, free_port

pytestmark = pytest.mark.broker

EACH = 200
"""Publishes in each part of the test."""
WITHIN = 60.0
"""Seconds that a connection may take."""


class Publisher:
    """Publishes numbers with confirms, and connects again whenever it is cut off, as an application does."""

    def __init__(self, port: int, queue: str) -> None:
        self.confirmed: list[int] = []
        self.doubtful: set[int] = set()
        """Published more than once, because their confirm was lost."""
        self._port = port
        self._queue = queue
        self._channel: Any = None

    def connect(self) -> None:
        deadline = time.monotonic() + WITHIN
        while True:
            try:
                connection = pika.BlockingConnection(
                    pika.ConnectionParameters(HOST, self._port, heartbeat=0, socket_timeout=10)
                )
                break
            except (OSError, pika.exceptions.AMQPError):
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
        self._channel = connection.channel()
        self._channel.confirm_delivery()

    def declare(self) -> None:
        self._channel.queue_declare(self._queue, durable=True)

    def publish(self, count: int, at: Callable[[int], None] = lambda number: None) -> None:
        """Publish further numbers; ``at`` is called before each."""
        for number in range(count):
            at(number)
            value = len(self.confirmed)
            while True:
                try:
                    self._channel.basic_publish("", self._queue, b"%d" % value, pika.BasicProperties(delivery_mode=2))
                    break
                except (OSError, pika.exceptions.AMQPError):
                    self.doubtful.add(value)
                    self.connect()
            self.confirmed.append(value)

    def close(self) -> None:
        self._channel.connection.close()

    def take_all(self) -> list[tuple[int, bool]]:
        """What comes to the queue until it has all that was confirmed: number, and whether the gateway has marked it as
        possibly a duplicate."""
        found: list[tuple[int, bool]] = []
        deadline = time.monotonic() + WITHIN
        while True:
            method, properties, body = self._channel.basic_get(self._queue, auto_ack=True)
            if method is None:
                if len({number for number, _ in found}) >= len(self.confirmed) or time.monotonic() > deadline:
                    return found
                time.sleep(0.05)  # on a slow machine the last part was stored, too, and follows the rest
                continue
            mark = (properties.headers or {}).get(RESERVED) or {}
            found.append((int(body), bool(mark.get("resent"))))


@pytest.fixture
def gateway(private_server: Callable[[str], Any], tmp_path: Path) -> Iterator[tuple[GatewayProcess, RabbitMQ, int]]:
    """A gateway with a front to a RabbitMQ of its own, and the front's port."""
    rabbitmq, port = private_server("rabbitmq-4.0"), free_port()
    tables = {
        "data_dir": str(tmp_path / "data"),
        "brokers": {"modern": {"url": rabbitmq.url("0-9-1"), "reconnect_min": 0.1, "reconnect_max": 0.5}},
        "fronts": {"legacy": {"port": port, "broker": "modern", "store": "when-down"}},
    }
    process = GatewayProcess(tmp_path, tables)
    with process.config.open("a", encoding="utf-8") as config:
        config.write('[[fronts.legacy.users]]\nname = "guest"\npassword = "guest"\n')
    process.start()
    yield process, rabbitmq, port
    if process.running:
        process.kill()


def test_confirmed_publishes_survive_the_broker_and_the_gateway(
    gateway: tuple[GatewayProcess, RabbitMQ, int], unique_name: Callable[[str], str]
) -> None:
    """The broker is killed while publishes go on; so is the gateway, while the broker is away; both come back."""
    process, rabbitmq, port = gateway
    publisher = Publisher(port, unique_name("outage"))
    publisher.connect()
    publisher.declare()

    def kill_broker(number: int) -> None:
        if number == EACH // 2:
            rabbitmq.kill()

    def kill_gateway(number: int) -> None:
        if number == EACH // 2:
            process.kill()
            process.start()

    def restart_broker(number: int) -> None:
        if number == EACH // 2:
            rabbitmq.restart(wait=False)

    publisher.publish(EACH, kill_broker)
    publisher.publish(EACH, kill_gateway)
    publisher.publish(EACH, restart_broker)
    stored = len(publisher.confirmed)
    publisher.publish(EACH)  # most of these go to the broker itself, behind what was stored
    found = publisher.take_all()
    publisher.close()
    process.terminate()

    assert stored == 3 * EACH
    arrived = [number for number, _ in found]
    assert set(arrived) == set(publisher.confirmed), "confirmed publishes are lost"
    firsts = list(dict.fromkeys(arrived))
    assert firsts == sorted(firsts), "publishes have overtaken others"
    seen: set[int] = set()
    for number, is_marked in found:
        assert number not in seen or is_marked or number in publisher.doubtful, f"{number} is there twice, unmarked"
        seen.add(number)
