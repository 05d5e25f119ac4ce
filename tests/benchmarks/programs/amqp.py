"""py-amqp: one thread that publishes up to the window and then waits for what comes."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote, urlsplit

import amqp

from tests.benchmarks.programs.clock import Stopwatch, answer


def connect(job: dict[str, Any]) -> Any:
    """A connection, open."""
    url = urlsplit(job["url"])
    connection = amqp.Connection(
        host=f"{url.hostname}:{url.port}",
        userid=url.username,
        password=url.password,
        virtual_host=unquote(url.path[1:]),
    )
    connection.connect()
    return connection


def publish(job: dict[str, Any]) -> Stopwatch:
    """Publish with at most ``window`` unconfirmed."""
    connection = connect(job)
    channel = connection.channel()
    queue, number, window = job["queue"], job["number"], job["window"]
    message = amqp.Message(b"x" * job["size"], content_type="text/plain", delivery_mode=2)
    channel.queue_declare(queue, durable=True, auto_delete=False)
    channel.confirm_select()
    confirmed = 0

    def on_ack(tag: int, multiple: bool) -> None:
        nonlocal confirmed
        confirmed = tag if multiple else confirmed + 1

    channel.events["basic_ack"].add(on_ack)
    with Stopwatch() as watch:
        published = 0
        while confirmed < number:
            while published < number and published - confirmed < window:
                channel.basic_publish(message, routing_key=queue, mandatory=True)
                published += 1
            connection.drain_events()
        channel.close()
    connection.close()
    return watch


def consume(job: dict[str, Any]) -> Stopwatch:
    """Take messages and acknowledge each."""
    connection = connect(job)
    channel = connection.channel()
    left = job["number"]

    def received(message: Any) -> None:
        nonlocal left
        channel.basic_ack(message.delivery_tag)
        left -= 1

    channel.basic_qos(0, job["window"], False)
    with Stopwatch() as watch:
        channel.basic_consume(job["queue"], callback=received)
        while left:
            connection.drain_events()
        channel.close()
    connection.close()
    return watch


def main(job: dict[str, Any]) -> dict[str, Any]:
    """The program."""
    works = {"publish": publish, "consume": consume}
    return answer({work: works[work](job).result(job["number"]) for work in job["works"]})
