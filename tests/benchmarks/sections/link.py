"""Confirmed publish, and consume with an acknowledgement each, at the link: ours beside every other client.

All publish persistent messages, mandatory, to a durable queue of RabbitMQ with the same window, and take them back
with a prefetch of the window. The clock runs from the first publish (or ``basic.consume``) to the answer to the close
of the channel, so that whatever was sent is there. Afterwards the queue must be empty.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from uuid import uuid4

import pika

from tests.benchmarks import golang, programs
from tests.benchmarks.bench import SIZE, WINDOW, Bench
from tests.benchmarks.rows import OURS, ClientFailed, Row, Run, Sample, alternate

WORKS = {"publish": "publish, confirmed", "consume": "consume, one ack each"}
"""Work of a job -> as the table has it."""
PEERS = ("pika", "amqp", "aiormq", "aio_pika")
NAMES = {"amqp": "py-amqp", "aio_pika": "aio-pika"}
"""Program -> client, where the two differ."""
GO = "amqp091-go"
NUMBER = 20_000
FEWER = {"aiormq": 10_000, "aio_pika": 10_000}
"""Messages of a round of those that take long for one."""
PATIENCE = 5.0
"""How long a queue may take to be empty, in seconds."""

Call = Callable[[dict[str, object]], dict[str, Sample]]
"""Have a client do a job: its samples by work."""


def run(bench: Bench) -> list[Row]:
    """Everybody on RabbitMQ, in 0-9-1."""
    return compare(bench, bench.rabbitmq.url("0-9-1"), () if bench.ours else (*PEERS, GO))


def compare(bench: Bench, url: str, peers: tuple[str, ...]) -> list[Row]:
    """Ours and these peers on the broker of ``url``."""
    plain = url.partition("?")[0]
    clients: list[tuple[str, Run]] = [(OURS, turn(bench, url, partial(program, OURS)))]
    failed = []
    for name in peers:
        client = NAMES.get(name, name)
        try:
            call = partial(go, golang.build(bench.folder)) if name == GO else partial(program, name)
        except ClientFailed as error:
            failed.append(Row("link", "-", client, error=str(error)))
        else:
            clients.append((client, turn(bench, plain, call, full=FEWER.get(name, NUMBER))))
    return alternate("link", clients, bench.rounds) + failed


def program(name: str, job: dict[str, object]) -> dict[str, Sample]:
    """One of ours in Python."""
    return programs.samples(programs.run(name, job))


def go(built: Path, job: dict[str, object]) -> dict[str, Sample]:
    """The one in Go."""
    return programs.samples(programs.call([built], job, GO))


def turn(bench: Bench, url: str, call: Call, prefix: str = "", full: int = NUMBER) -> Run:
    """One round of a client: a queue of its own, filled and emptied."""

    def run() -> dict[str, Sample]:
        queue = f"bench-{uuid4().hex}"
        number = bench.number(full, 300)
        job: dict[str, object] = {"url": url, "queue": queue, "size": SIZE, "number": number, "window": WINDOW}
        found = call({**job, "works": list(WORKS)})
        if left := delete_queue(url, queue):
            raise ClientFailed(f"{left} messages were left in the queue, of {number}")
        return {f"{prefix}{WORKS[work]}": sample for work, sample in found.items()}

    return run


def delete_queue(url: str, queue: str) -> int:
    """Delete it; how many messages it still held. A broker that carries out acknowledgements after it has answered
    the close of the channel gets some time for them."""
    connection = pika.BlockingConnection(pika.URLParameters(url.partition("?")[0]))
    channel = connection.channel()
    until = time.monotonic() + PATIENCE
    while channel.queue_declare(queue, passive=True).method.message_count and time.monotonic() < until:
        time.sleep(0.05)
    left: int = channel.queue_delete(queue).method.message_count
    connection.close()
    return left
