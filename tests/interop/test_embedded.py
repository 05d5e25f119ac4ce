"""Foreign clients of different versions meet on the embedded broker."""

from __future__ import annotations

import itertools
from base64 import b64decode
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import amqp
import pika
import pytest

from tests.interop import samples
from tests.interop.embedded import Embedded
from tests.servers.judge import Judge, JudgeConnection
from tests.servers.judge import octets as base64
from tests.servers.process import HOST

pytestmark = pytest.mark.broker


@dataclass(frozen=True)
class Letter:
    """What every client of every version can say."""

    body: bytes
    content_type: str | None = None
    correlation_id: str | None = None
    delivery_mode: int | None = None
    priority: int | None = None
    number: int | None = None
    """A header ``n``."""
    text: str | None = None
    """A header ``s``."""


class Client(Protocol):
    """A foreign client."""

    def send(self, queue: str, letter: Letter) -> None: ...

    def receive(self, queue: str) -> Letter: ...

    def close(self) -> None: ...


class Pika:
    """pika, 0-9-1."""

    def __init__(self, port: int, judge: Judge) -> None:
        self._connection = pika.BlockingConnection(pika.ConnectionParameters(HOST, port, heartbeat=0))
        self._channel = self._connection.channel()
        self._channel.confirm_delivery()

    def send(self, queue: str, letter: Letter) -> None:
        properties = pika.BasicProperties(
            content_type=letter.content_type,
            correlation_id=letter.correlation_id,
            delivery_mode=letter.delivery_mode,
            priority=letter.priority,
            headers={"n": letter.number, "s": letter.text},
        )
        self._channel.basic_publish("", queue, letter.body, properties, mandatory=True)

    def receive(self, queue: str) -> Letter:
        method, properties, body = self._channel.basic_get(queue)
        self._channel.basic_ack(method.delivery_tag)
        return Letter(
            body,
            properties.content_type,
            properties.correlation_id,
            properties.delivery_mode,
            properties.priority,
            properties.headers["n"],
            properties.headers["s"],
        )

    def close(self) -> None:
        self._connection.close()


class PyAmqp:
    """py-amqp, 0-9-1, with a consumer instead of gets."""

    def __init__(self, port: int, judge: Judge) -> None:
        self._connection = amqp.Connection(f"{HOST}:{port}", confirm_publish=True)
        self._connection.connect()
        self._channel = self._connection.channel()
        self._channel.basic_qos(0, 1, False)

    def send(self, queue: str, letter: Letter) -> None:
        message = amqp.Message(
            letter.body,
            content_type=letter.content_type,
            correlation_id=letter.correlation_id,
            delivery_mode=letter.delivery_mode,
            priority=letter.priority,
            application_headers={"n": letter.number, "s": letter.text},
        )
        self._channel.basic_publish(message, routing_key=queue, mandatory=True)

    def receive(self, queue: str) -> Letter:
        came: list[Any] = []
        tag = self._channel.basic_consume(queue, callback=came.append)
        while not came:
            self._connection.drain_events(timeout=5)
        self._channel.basic_ack(came[0].delivery_tag)
        self._channel.basic_cancel(tag)
        got = came[0]
        return Letter(
            got.body.encode() if isinstance(got.body, str) else bytes(got.body),
            got.properties.get("content_type"),
            got.properties.get("correlation_id"),
            got.properties.get("delivery_mode"),
            got.properties.get("priority"),
            got.headers["n"],
            got.headers["s"],
        )

    def close(self) -> None:
        self._connection.close()


class Java:
    """Qpid's Java client, in the version of the subclass."""

    version = ""

    def __init__(self, port: int, judge: Judge) -> None:
        self._connection: JudgeConnection = judge.connect(self.version, port)

    def send(self, queue: str, letter: Letter) -> None:
        message = {
            "body": base64(letter.body),
            "content_type": letter.content_type,
            "correlation_id": self._correlation(letter.correlation_id),
            "delivery_mode": letter.delivery_mode,
            "priority": letter.priority,
            "headers": [["n", [self._integer, letter.number]], ["s", [self._string, letter.text]]],
        }
        self._connection.publish("", queue, message)

    def receive(self, queue: str) -> Letter:
        (got,) = self._connection.consume(queue)
        headers = dict(got["headers"])
        assert headers["n"][0] == self._integer
        assert headers["s"][0] == self._string
        return Letter(
            got["body"],
            got.get("content_type"),
            self._correlation_back(got.get("correlation_id")),
            got.get("delivery_mode"),
            got.get("priority"),
            headers["n"][1],
            headers["s"][1],
        )

    def close(self) -> None:
        self._connection.close()

    _integer, _string = "I", "S"

    def _correlation(self, text: str | None) -> str | None:
        return text

    def _correlation_back(self, text: str | None) -> str | None:
        return text


class Java08(Java):
    """0-8."""

    version = "0-8"


class Java091(Java):
    """0-9-1."""

    version = "0-9-1"


class Java010(Java):
    """0-10, whose correlation id is octets."""

    version = "0-10"
    _integer, _string = "Integer", "String"

    def _correlation(self, text: str | None) -> str | None:
        return None if text is None else base64(text.encode())

    def _correlation_back(self, text: str | None) -> str | None:
        return None if text is None else b64decode(text).decode()


CLIENTS: dict[str, Callable[[int, Judge], Client]] = {
    "pika": Pika,
    "py-amqp": PyAmqp,
    "java 0-8": Java08,
    "java 0-9-1": Java091,
    "java 0-10": Java010,
}


@pytest.fixture
def clients(embedded: Embedded, judge: Judge) -> Iterator[dict[str, Client]]:
    """All of them, connected."""
    connected = {name: make(embedded.port, judge) for name, make in CLIENTS.items()}
    yield connected
    for client in connected.values():
        client.close()


@pytest.fixture
def queue(embedded: Embedded, unique_name: Callable[[str], str]) -> Iterator[str]:
    connection = pika.BlockingConnection(pika.ConnectionParameters(HOST, embedded.port, heartbeat=0))
    channel = connection.channel()
    name = unique_name("meeting")
    channel.queue_declare(name)
    yield name
    channel.queue_delete(name)
    connection.close()


def test_each_reads_what_each_other_wrote(clients: dict[str, Client], queue: str) -> None:
    letter = Letter(b"to all \x00\xff", "application/x-letter", "correlation é", 2, 7, -70_000, "é ü")
    for writer, reader in itertools.product(clients, repeat=2):
        clients[writer].send(queue, letter)
        assert clients[reader].receive(queue) == letter, f"{writer} to {reader}"


@pytest.mark.parametrize("size", [0, 1, 65_535, 131_064, 131_065, 1_000_003])
def test_bodies_pass_between_versions(clients: dict[str, Client], queue: str, size: int) -> None:
    letter = Letter(samples.pattern(size), "application/x-letter", "c", 1, 0, 1, "")
    for writer, reader in itertools.product(("pika", "java 0-8", "java 0-10"), repeat=2):
        clients[writer].send(queue, letter)
        assert clients[reader].receive(queue) == letter, f"{writer} to {reader}"
