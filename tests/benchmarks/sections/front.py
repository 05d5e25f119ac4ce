"""The front door: clients of one version through it, beside the same clients directly and through a plain TCP relay.

The client, its window and its queue are those of the section ``link``. CPU is that of what stands between client and
broker: the gateway's process, or the relay's; directly there is nothing. Clients of 0-10 work on RabbitMQ in 0-9-1.

Two rows more: what one more idle client takes of the gateway's memory, and clients that connect, publish one message
each and leave. These must not add a connection at the broker: a round in which they do has failed.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from uuid import uuid4

from tests.benchmarks import programs
from tests.benchmarks.aims import DIRECT, FRONT_WORKS, IDLE_CLIENT, RELAY, SHORT, THROUGH, TRANSLATED
from tests.benchmarks.bench import SIZE, WINDOW, Bench, Running
from tests.benchmarks.programs.clock import Watched, resident, watched
from tests.benchmarks.rows import OURS, ClientFailed, Row, Run, Sample, alternate
from tests.benchmarks.sections.link import delete_queue

NUMBER = 20_000
NAME = "bench"
IDLE_COUNTS = (100, 10_000)
SHORT_NUMBER = 2_000
AT_ONCE = 32
COUNTED_AFTER = 6.0
"""Seconds after which RabbitMQ's counters are up to date: it adds them up every 5."""
SETTINGS = f"""
[budgets]
share = 1.0
reserve = 0.0
[fronts.{NAME}]
port = 0
broker = "rabbit"
connections = 20000
connections_per_address = 20000
[[fronts.{NAME}.users]]
name = "guest"
password = "guest"
scopes = ["admin"]
"""


@dataclass(frozen=True)
class Way:
    """How a client comes to the broker."""

    client: str
    url: str
    pid: int | None
    """The process between them; None: there is none."""


def run(bench: Bench) -> list[Row]:
    """Everything on RabbitMQ."""
    rabbitmq = bench.rabbitmq
    direct = rabbitmq.url("0-9-1")
    with bench.gateway({"rabbit": direct}, SETTINGS) as gateway, relay(rabbitmq.port) as (port, pid):
        ways = [
            Way(DIRECT, direct, None),
            Way(RELAY, _at(direct, port), pid),
            Way(THROUGH, through(gateway, "0-9-1"), gateway.pid),
            Way(TRANSLATED, through(gateway, "0-10"), gateway.pid),
        ]
        if bench.ours:
            ways = ways[2:]
        rows = alternate("front", [(way.client, turn(bench, way, direct)) for way in ways], bench.rounds)
        rows += alternate("front", [(THROUGH, partial(short, bench, gateway))], bench.rounds)
    return rows + alternate("front", [(THROUGH, partial(idle, bench))], 1)


def through(gateway: Running, version: str) -> str:
    """The URL of a client of this version."""
    return f"amqp://guest:guest@127.0.0.1:{gateway.fronts[NAME]}/%2F?version={version}"


@contextmanager
def relay(port: int) -> Iterator[tuple[int, int]]:
    """A relay to this port: its own, and its process."""
    command = [sys.executable, "-m", "tests.benchmarks.programs", "relay", json.dumps({"port": port})]
    with subprocess.Popen(
        command, cwd=programs.ROOT, env=programs.environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield json.loads(process.stdout.readline())["port"], process.pid
        finally:
            process.stdin.close()
            process.wait()


def turn(bench: Bench, way: Way, direct: str) -> Run:
    """One round of a client: a queue of its own, filled and emptied."""

    def run() -> dict[str, Sample]:
        queue = f"bench-{uuid4().hex}"
        number = bench.number(NUMBER, 300)
        job = {"url": way.url, "queue": queue, "size": SIZE, "number": number, "window": WINDOW}
        found = {}
        for work, name in FRONT_WORKS.items():
            with nothing() if way.pid is None else watched(way.pid) as between:
                seconds = programs.samples(programs.run(OURS, {**job, "works": [work]}))[work].seconds
            found[name] = Sample(number, seconds, between.cpu)
        if left := delete_queue(direct, queue):
            raise ClientFailed(f"{left} messages were left in the queue, of {number}")
        return found

    return run


@contextmanager
def nothing() -> Iterator[Watched]:
    """There is no process between client and broker."""
    yield Watched()


def short(bench: Bench, gateway: Running) -> dict[str, Sample]:
    """Clients that publish one message each, and what they cost the broker in connections."""
    rabbitmq, queue, number = bench.rabbitmq, f"bench-{uuid4().hex}", bench.number(SHORT_NUMBER, 20)
    direct = rabbitmq.url("0-9-1")
    url = through(gateway, "0-9-1")
    job = {"url": url, "queue": queue, "size": SIZE, "number": 1, "window": 1, "works": ["publish"]}
    programs.run(OURS, job)  # the queue is there, and a connection to the broker
    before = opened(bench)
    with watched(gateway.pid) as between:
        found = programs.run("short", {**job, "number": number, "at_once": AT_ONCE})
    more = opened(bench) - before
    left = delete_queue(direct, queue)
    if more:
        raise ClientFailed(f"{number} short connections opened {more} at the broker")
    if left != number + 1:
        raise ClientFailed(f"{left} of {number + 1} messages were in the queue")
    return {SHORT: Sample(number, found["seconds"], between.cpu)}


def opened(bench: Bench) -> int:
    """How many connections the broker has accepted so far. It tells with a delay."""
    time.sleep(COUNTED_AFTER)
    churn: int = bench.rabbitmq.api("GET", "overview")["churn_rates"]["connection_created"]
    return churn


def idle(bench: Bench) -> dict[str, Sample]:
    """A gateway with few and with many clients that do nothing."""
    counts = (2, 6) if bench.quick else IDLE_COUNTS
    with bench.gateway({"rabbit": bench.rabbitmq.url("0-9-1")}, SETTINGS) as gateway:
        before = resident(gateway.pid)
        job = {"url": through(gateway, "0-9-1"), "kind": "connections", "counts": counts, "pid": gateway.pid}
        found = programs.run("holder", job)["found"][-1]["server"]
    return {IDLE_CLIENT: Sample(memory=(found - before) / counts[1])}


def _at(url: str, port: int) -> str:
    """The same URL at another port of this machine."""
    login, _, rest = url.partition("@")
    return f"{login}@127.0.0.1:{port}/{rest.partition('/')[2]}"
