"""Bridges: RabbitMQ to RabbitMQ beside its own Shovel, and to Broker-J in 0-10; where the CPU goes; memory.

Both move persistent messages from one durable classic queue, filled beforehand, to another of the same RabbitMQ, with
publisher confirms, acknowledged to the source when they are confirmed (``on-confirm``), and a prefetch of 1,000. Ours
writes each message into its ledger (SQLite) in between, and its ids into the message. Shovel runs inside of RabbitMQ
and is measured in both its forms: with connections of the Erlang node to itself ("Shovel"), and over TCP.

The clock runs from the first messages at the target to the last. CPU is that of the gateway's process; Shovel's cannot
be told from its broker's, so there is a row for both together. The split is made of three measurements: the ledger is
what the gateway's threads took that are not its loop; link and translation are programs of their own
(:mod:`tests.benchmarks.programs.bridge`); the rest is the bridge itself.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from uuid import uuid4

import pika
from pika.adapters.blocking_connection import BlockingChannel

from tests.benchmarks import programs
from tests.benchmarks.bench import SIZE, WINDOW, Bench
from tests.benchmarks.programs.clock import cpu_of, cpu_of_loop, largest
from tests.benchmarks.rows import OURS, ClientFailed, Row, Run, Sample, alternate
from tests.benchmarks.sections.link import PATIENCE
from tests.benchmarks.sections.publish import node
from tests.servers import RabbitMQ

PREFIX = "bench-"
PREFETCH = 1_000
NUMBER = 50_000
QUICK_NUMBER = 2_000
TO_BROKERJ = 20_000
QUEUED = (10_000, 1_000_000)
QUICK_QUEUED = (300, 1_000)
FILL = 100_000
"""Messages of one call of the program that fills a queue."""
THROUGH = 100_000
"""How many are forwarded of those that are queued, at most."""
POLL = 0.02
"""How often the depth of a queue is asked for, in seconds."""
STALLED = 30.0
"""A queue that does not grow for so long is not going to, in seconds."""
LAST = 0.3
"""What a gateway gets for its last records and acknowledgements, in seconds."""

SHOVEL, SHOVEL_TCP = "Shovel", "Shovel over TCP"
MOVE = "bridge: RabbitMQ to RabbitMQ"
TOGETHER = f"{MOVE}, with the broker's CPU"
COST = f"cost of {MOVE}"
ALL, LEDGER, LINK, TRANSLATION, BRIDGE = "all", "ledger", "link", "translation", "bridge"
TO_0_10 = "bridge: RabbitMQ {} to Broker-J 0-10"


def run(bench: Bench) -> list[Row]:
    """Beside Shovel, across versions, and with many queued."""
    rows = beside_shovel(bench)
    for version in ("0-8", "0-9-1"):
        client = partial(to_brokerj, bench, version)
        rows += alternate("bridge", [(OURS, client)], bench.rounds)
    return rows + memory(bench)


# ------------------------------------------------------------------------------------------- beside Shovel


def beside_shovel(bench: Bench) -> list[Row]:
    """RabbitMQ to RabbitMQ; and where our CPU goes."""
    number = bench.number(NUMBER, QUICK_NUMBER)
    shares: list[dict[str, Sample]] = []
    clients: list[tuple[str, Run]] = [(OURS, partial(ours, bench, number, shares))]
    if not bench.ours:
        port = bench.rabbitmq.port
        tcp = f"amqp://{bench.rabbitmq.user}:{bench.rabbitmq.password}@127.0.0.1:{port}/%2F"
        clients += [
            (client, partial(shovel, bench.rabbitmq, uri, number))
            for client, uri in ((SHOVEL, "amqp:///%2F"), (SHOVEL_TCP, tcp))
        ]
    rows = alternate("bridge", clients, bench.rounds)
    parts = [Row("bridge", COST, client, [share[client] for share in shares]) for client in shares[0]] if shares else []
    return rows + parts


def ours(bench: Bench, number: int, shares: list[dict[str, Sample]]) -> dict[str, Sample]:
    """One round of a bridge, and of its parts."""
    url = bench.rabbitmq.url("0-9-1")
    with queues(url, url, number) as (source, target):
        found = bridged(bench, url, url, source, target, number, node(bench.rabbitmq))
        emptied(url, source)
        back = {"source": url, "target": url, "from": target, "to": source, "number": number, "window": PREFETCH}
        link = Sample(**programs.run("bridge", {"stage": LINK, **back}))
    job = {"source": "0-9-1", "target": "0-9-1", "size": SIZE, "number": bench.number(20_000, 500)}
    translation = Sample(**programs.run("bridge", {"stage": TRANSLATION, **job}))
    sample = found.sample
    shares.append(split(sample, found.threads, link, translation))
    return {MOVE: sample, TOGETHER: Sample(sample.number, sample.seconds, sample.cpu + found.broker)}


def split(whole: Sample, ledger: float, link: Sample, translation: Sample) -> dict[str, Sample]:
    """Each part, as a sample of its own; ``ledger`` is the CPU of its threads, in seconds."""
    number = whole.number
    parts = {
        LEDGER: ledger,
        LINK: link.cpu / link.number * number,
        TRANSLATION: translation.cpu / translation.number * number,
    }
    parts[BRIDGE] = whole.cpu - sum(parts.values())
    return {ALL: Sample(number, cpu=whole.cpu), **{name: Sample(number, cpu=cpu) for name, cpu in parts.items()}}


def shovel(rabbitmq: RabbitMQ, uri: str, number: int) -> dict[str, Sample]:
    """One round of RabbitMQ's Shovel, both ends at ``uri``."""
    url, pid = rabbitmq.url("0-9-1"), node(rabbitmq)
    with queues(url, url, number) as (source, target):
        name = f"parameters/shovel/%2F/{source}"
        ends = {"src-protocol": "amqp091", "src-uri": uri, "src-queue": source}
        ends |= {"dest-protocol": "amqp091", "dest-uri": uri, "dest-queue": target}
        rabbitmq.api("PUT", name, {"value": {**ends, "ack-mode": "on-confirm", "src-prefetch-count": PREFETCH}})
        found = moved(url, target, number, pid)
        rabbitmq.api("DELETE", name)
        emptied(url, source)
    return {MOVE: Sample(found.number, found.seconds), TOGETHER: Sample(found.number, found.seconds, found.cpu[0])}


# ------------------------------------------------------------------------------------- other versions, memory


def to_brokerj(bench: Bench, version: str) -> dict[str, Sample]:
    """One round from a version on RabbitMQ to 0-10 on Broker-J, which keeps the messages on disk."""
    number = bench.number(TO_BROKERJ, 500)
    source_url, target_url = bench.rabbitmq.url(version), bench.brokerj.url("0-10")
    with queues(source_url, target_url, number) as (source, target):
        found = bridged(bench, source_url, target_url, source, target, number)
        emptied(source_url, source)
    return {TO_0_10.format(version): found.sample}


def memory(bench: Bench) -> list[Row]:
    """The gateway at its largest with few messages queued at the source, and with many: once, not once a round. The
    source keeps its messages on disk (a lazy queue), or RabbitMQ would be the one that runs out of memory."""
    rabbitmq, url = bench.rabbitmq, bench.rabbitmq.url("0-9-1")
    policy = f"policies/%2F/{PREFIX}lazy"
    lazy = {"pattern": f"^{PREFIX}lazy-", "definition": {"queue-mode": "lazy"}, "apply-to": "queues"}
    rabbitmq.api("PUT", policy, lazy)
    rows = []
    for number in QUICK_QUEUED if bench.quick else QUEUED:
        with queues(url, url, number, f"{PREFIX}lazy-") as (source, target):
            found = bridged(bench, url, url, source, target, min(number, THROUGH))
        rows.append(Row("bridge", queued(number), OURS, [Sample(memory=found.sample.memory)]))
    rabbitmq.api("DELETE", policy)
    return rows


def queued(number: int) -> str:
    """The work: with so many at the source."""
    return f"bridge: {number:,} messages queued"


# ---------------------------------------------------------------------------------------------- one bridge


@dataclass(frozen=True)
class Bridged:
    """A bridge that has moved its messages."""

    sample: Sample
    """With CPU and memory of the gateway's process."""
    threads: float
    """CPU of the threads of that process that are not its loop, in seconds."""
    broker: float
    """CPU of the watched broker, in seconds."""


def bridged(
    bench: Bench, source_url: str, target_url: str, source: str, target: str, number: int, pid: int | None = None
) -> Bridged:
    """Have a gateway move so many messages. ``pid`` is a broker's, to be watched."""
    bridge = (
        f'[bridges.bench]\nprefetch = {PREFETCH}\nsource = {{ broker = "source", queue = "{source}" }}\n'
        f'target = {{ broker = "target", routing_key = "{target}" }}\n'
    )
    with bench.gateway({"source": source_url, "target": target_url}, bridge) as gateway:
        found = moved(target_url, target, number, gateway.pid, *([] if pid is None else [pid]), loop=gateway.pid)
        peak = largest(gateway.pid)
    whole, *others = found.cpu
    sample = Sample(found.number, found.seconds, whole, memory=peak)
    return Bridged(sample, whole - found.loop, sum(others))


@dataclass(frozen=True)
class Moved:
    """Messages that have come to a queue while somebody watched."""

    number: int
    seconds: float
    cpu: list[float]
    """Of each process that was watched meanwhile, in seconds."""
    loop: float
    """Of the first thread of one of them, in seconds."""


def moved(url: str, queue: str, number: int, *pids: int, loop: int | None = None) -> Moved:
    """Wait until so many messages are in the queue. What is counted begins with the first that are seen there, so
    that nobody's start is."""

    def spent() -> list[float]:
        return [*map(cpu_of, pids), 0.0 if loop is None else cpu_of_loop(loop)]

    with connected(url) as channel:
        began, first = time.perf_counter(), 0
        before = spent()
        grown, last = began, 0
        while (depth := depth_of(channel, queue)) < number:
            now = time.perf_counter()
            if depth > last:
                grown, last = now, depth
            elif now - grown > STALLED:
                raise ClientFailed(f"{depth} of {number} messages came, and no more")
            if not first:
                began, before, first = now, spent(), depth
            time.sleep(POLL)
        seconds = time.perf_counter() - began
    time.sleep(LAST)
    *cpu, of_loop = (after - earlier for earlier, after in zip(before, spent(), strict=True))
    return Moved(number - first, seconds, cpu, of_loop)


# --------------------------------------------------------------------------------------------------- queues


@contextmanager
def queues(source_url: str, target_url: str, number: int, prefix: str = PREFIX) -> Iterator[tuple[str, str]]:
    """A full one and an empty one, each with a name of its own, deleted at the end."""
    source, target = (f"{prefix}{uuid4().hex}" for _ in range(2))
    try:
        with connected(target_url) as channel:
            channel.queue_declare(target, durable=True)
        while number > 0:
            part = min(number, FILL)
            fill = {"url": source_url, "queue": source, "size": SIZE, "number": part, "window": WINDOW}
            programs.run(OURS, {**fill, "works": ["publish"]})
            number -= part
        yield source, target
    finally:
        for url, queue in ((source_url, source), (target_url, target)):
            with connected(url) as channel:
                channel.queue_delete(queue)


def emptied(url: str, queue: str) -> None:
    """Nothing may be left: what is at the target is acknowledged at the source. Raises ClientFailed."""
    with connected(url) as channel:
        until = time.monotonic() + PATIENCE
        while left := depth_of(channel, queue):
            if time.monotonic() > until:
                raise ClientFailed(f"{left} messages were left at the source")
            time.sleep(POLL)


@contextmanager
def connected(url: str) -> Iterator[BlockingChannel]:
    """A channel of a peer, for a look at queues."""
    connection = pika.BlockingConnection(pika.URLParameters(url.partition("?")[0]))
    try:
        yield connection.channel()
    finally:
        connection.close()


def depth_of(channel: BlockingChannel, queue: str) -> int:
    """Messages that are ready."""
    depth: int = channel.queue_declare(queue, passive=True).method.message_count
    return depth
