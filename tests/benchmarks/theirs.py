"""pika, the same work in the same window, on its quickest connection (callbacks, no thread, no blocking adapter)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pika
from pika.adapters.select_connection import SelectConnection

from tests.benchmarks.measure import Measured, stopwatch


def connect(url: str, opened: Callable[[Any], object]) -> SelectConnection:
    """A connection with one channel; its loop stops when it is closed."""
    return SelectConnection(
        pika.URLParameters(url),
        on_open_callback=lambda connection: connection.channel(on_open_callback=opened),
        on_close_callback=lambda connection, _: connection.ioloop.stop(),
    )


def run_loop(connection: SelectConnection) -> None:
    """Run until the connection is closed, and leave nothing open."""
    connection.ioloop.start()
    connection.ioloop.close()


class Publisher:
    """Publishes ``number`` messages with at most ``window`` unconfirmed."""

    def __init__(self, url: str, queue: str, body: bytes, number: int, window: int) -> None:
        self._queue, self._body, self._window = queue, body, window
        self._left = self._unconfirmed = number
        self._confirmed = 0
        self._properties = pika.BasicProperties(content_type="text/plain", delivery_mode=1)
        self.connection = connect(url, self._opened)

    def _opened(self, channel: Any) -> None:
        self._channel = channel
        channel.queue_declare(self._queue, callback=self._declared)

    def _declared(self, _: Any) -> None:
        self._channel.confirm_delivery(self._confirm, callback=self._ready)

    def _ready(self, _: Any) -> None:
        self._watch = stopwatch()
        self.watch = self._watch.__enter__()
        self._publish(self._window)

    def _publish(self, number: int) -> None:
        number = min(number, self._left)
        self._left -= number
        for _ in range(number):
            self._channel.basic_publish("", self._queue, self._body, self._properties, mandatory=True)

    def _confirm(self, frame: Any) -> None:
        assert frame.method.NAME == "Basic.Ack", frame
        number = frame.method.delivery_tag - self._confirmed if frame.method.multiple else 1
        self._confirmed = frame.method.delivery_tag
        self._unconfirmed -= number
        self._publish(number)
        if not self._unconfirmed:
            self._watch.__exit__(None, None, None)
            self.connection.close()


class Consumer:
    """Takes ``number`` messages and acknowledges every ``ack_every``."""

    def __init__(self, url: str, queue: str, number: int, window: int, ack_every: int) -> None:
        self._queue, self._left, self._window, self._ack_every = queue, number, window, ack_every
        self.connection = connect(url, self._opened)

    def _opened(self, channel: Any) -> None:
        self._channel = channel
        channel.basic_qos(prefetch_count=self._window, callback=self._ready)

    def _ready(self, _: Any) -> None:
        self._watch = stopwatch()
        self.watch = self._watch.__enter__()
        self._channel.basic_consume(self._queue, self._received, consumer_tag="bench")

    def _received(self, channel: Any, method: Any, properties: Any, body: bytes) -> None:
        self._left -= 1
        if self._left % self._ack_every == 0:
            channel.basic_ack(method.delivery_tag, multiple=True)
        if not self._left:
            self._watch.__exit__(None, None, None)
            self.connection.close()


def run(url: str, queue: str, body: bytes, number: int, window: int, ack_every: int) -> tuple[Measured, Measured]:
    """Publish ``number`` messages and take them back."""
    publisher = Publisher(url, queue, body, number, window)
    run_loop(publisher.connection)
    consumer = Consumer(url, queue, number, window, ack_every)
    run_loop(consumer.connection)
    return (
        Measured("", "pika", number, publisher.watch.seconds, publisher.watch.cpu),
        Measured("", "pika", number, consumer.watch.seconds, consumer.watch.cpu),
    )
