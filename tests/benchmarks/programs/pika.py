"""pika on its quickest connection: callbacks, no thread, no blocking adapter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pika
from pika.adapters.select_connection import SelectConnection

from tests.benchmarks.programs.clock import Stopwatch, answer


class Worker:
    """A connection with one channel; the clock runs from :meth:`begin` until the channel is closed."""

    def __init__(self, job: dict[str, Any]) -> None:
        self.queue, self.left, self.window = job["queue"], job["number"], job["window"]
        self.watch = Stopwatch()
        self.connection = SelectConnection(
            pika.URLParameters(job["url"]),
            on_open_callback=lambda connection: connection.channel(on_open_callback=self.opened),
            on_close_callback=lambda connection, _: connection.ioloop.stop(),
        )

    def opened(self, channel: Any) -> None:
        """The channel is open."""
        self.channel = channel
        channel.add_on_close_callback(self.closed)
        self.prepare(channel)

    def prepare(self, channel: Any) -> None:
        """What is not on the clock."""
        raise NotImplementedError

    def begin(self, work: Callable[[], object]) -> None:
        """Start the clock and the work."""
        self.watch.__enter__()
        work()

    def closed(self, channel: Any, reason: Any) -> None:
        """The channel is closed, behind everything that was sent on it."""
        self.watch.__exit__()
        self.connection.close()

    def run(self) -> Stopwatch:
        """Until the connection is closed."""
        self.connection.ioloop.start()
        self.connection.ioloop.close()
        assert not self.left, f"closed with {self.left} messages to go"
        return self.watch


class Publisher(Worker):
    """Publishes with at most ``window`` unconfirmed."""

    def __init__(self, job: dict[str, Any]) -> None:
        super().__init__(job)
        self.body = b"x" * job["size"]
        self.to_publish = job["number"]
        self.confirmed = 0
        self.properties = pika.BasicProperties(content_type="text/plain", delivery_mode=2)

    def prepare(self, channel: Any) -> None:
        channel.queue_declare(self.queue, durable=True, callback=self.declared)

    def declared(self, _: Any) -> None:
        """The queue is there."""
        ready = lambda _: self.begin(lambda: self.publish(self.window))  # noqa: E731
        self.channel.confirm_delivery(self.confirm, callback=ready)

    def publish(self, number: int) -> None:
        """So many more, if so many are left."""
        number = min(number, self.to_publish)
        self.to_publish -= number
        for _ in range(number):
            self.channel.basic_publish("", self.queue, self.body, self.properties, mandatory=True)

    def confirm(self, frame: Any) -> None:
        """A confirm, of one or of many."""
        assert frame.method.NAME == "Basic.Ack", frame
        number = frame.method.delivery_tag - self.confirmed if frame.method.multiple else 1
        self.confirmed = frame.method.delivery_tag
        self.left -= number
        self.publish(number)
        if not self.left:
            self.channel.close()


class Consumer(Worker):
    """Takes messages and acknowledges each."""

    def prepare(self, channel: Any) -> None:
        ready = lambda _: self.begin(lambda: channel.basic_consume(self.queue, self.received))  # noqa: E731
        channel.basic_qos(prefetch_count=self.window, callback=ready)

    def received(self, channel: Any, method: Any, properties: Any, body: bytes) -> None:
        """A message."""
        channel.basic_ack(method.delivery_tag)
        self.left -= 1
        if not self.left:
            channel.close()


def main(job: dict[str, Any]) -> dict[str, Any]:
    """The program."""
    kinds = {"publish": Publisher, "consume": Consumer}
    return answer({work: kinds[work](job).run().result(job["number"]) for work in job["works"]})
