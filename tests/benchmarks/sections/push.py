"""Webhooks: from a queue of RabbitMQ to an endpoint, with the ledger on, beside bare ``httpx.AsyncClient`` that posts
the same bodies to the same endpoint.

Ours takes a message from the queue, signs and posts it, reads the answer, writes what happened to the ledger and
acknowledges the message; httpx posts one body, which it has, again and again. Both have as many requests on their way.
Measured is from when a tenth of the messages have arrived to when all have; CPU is that of the gateway's process.
"""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import uuid4

from tests.benchmarks import programs
from tests.benchmarks.bench import SIZE, WINDOW, Bench
from tests.benchmarks.programs.clock import cpu_of, largest
from tests.benchmarks.rows import OURS, ClientFailed, Row, Run, Sample, alternate
from tests.benchmarks.sections.outbound import HTTPX, endpoint
from tests.benchmarks.sections.publish import PATIENCE, ask
from tests.benchmarks.sections.pull import LEASES

CONCURRENCY = (10, 64)
MESSAGES = 4_000
"""Of a round."""
_LOOK = 0.02
"""How often the endpoint is asked for its count, in seconds."""
_SETTINGS = """
[outbound]
allow = ["127.0.0.0/8"]
"""


def run(bench: Bench) -> list[Row]:
    """Few at once, and many."""
    queues = {(client, at_once): f"bench-{uuid4().hex}" for client in LEASES for at_once in CONCURRENCY}
    rows: list[Row] = []
    with endpoint() as port:
        brokers = {"rabbit": bench.rabbitmq.url("0-9-1")}
        with bench.gateway(brokers) as gateway:
            for queue in queues.values():
                ask(gateway, "PUT", f"/v1/brokers/rabbit/queues/{queue}", {"durable": True})
        tables = [_SETTINGS]
        for (client, at_once), queue in queues.items():
            tables.append(f'[endpoints.{queue}]\nurl = "http://127.0.0.1:{port}/hook"\nconcurrency = {at_once}\n')
            tables.append(
                f'[subscriptions.{queue}]\nbroker = "rabbit"\nqueue = "{queue}"\n'
                f'push = "{queue}"\nlease = "{LEASES[client]}"\n'
            )
        with bench.gateway(brokers, "\n".join(tables)) as gateway:
            for at_once in CONCURRENCY:
                clients: list[tuple[str, Run]] = [
                    (client, turn(bench, work(at_once), queues[client, at_once], port, gateway.pid))
                    for client in LEASES
                ]
                if not bench.ours:
                    clients.append((HTTPX, httpx(bench, work(at_once), at_once, port)))
                rows += alternate("push", clients, bench.rounds)
    for queue in queues.values():
        bench.rabbitmq.delete_queue(queue)
    return rows


def work(at_once: int) -> str:
    """As the table has it."""
    return f"webhooks, {at_once} at once"


def look(port: int) -> Mapping[str, Any]:
    """What the endpoint says of itself: ``count``, and the last ``body``."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=30) as answer:
        found: dict[str, Any] = json.loads(answer.read())
    return found


def turn(bench: Bench, name: str, queue: str, port: int, pid: int) -> Run:
    """One round of ours: so many messages, published at once."""

    def arrived(number: int, before: int) -> tuple[int, float, float]:
        """Wait for so many; how many there are then, when that is, and the gateway's CPU so far."""
        deadline = time.monotonic() + PATIENCE
        while (count := look(port)["count"] - before) < number:
            if time.monotonic() > deadline:
                raise ClientFailed(f"{count:,} of {number:,} webhooks came within {PATIENCE:.0f} s")
            time.sleep(_LOOK)
        return count, time.monotonic(), cpu_of(pid)

    def run() -> dict[str, Sample]:
        number = bench.number(MESSAGES, 100)
        before = look(port)["count"]
        job = {"url": bench.rabbitmq.url("0-9-1"), "queue": queue, "size": SIZE, "number": number, "window": WINDOW}
        with ThreadPoolExecutor(1) as pool:
            publishing = pool.submit(programs.run, OURS, {**job, "works": ["publish"]})
            first, last = arrived(number // 10, before), arrived(number, before)
            publishing.result()
        count, seconds, cpu = (after - earlier for after, earlier in zip(last, first, strict=True))
        return {name: Sample(int(count), seconds, cpu, memory=largest(pid))}

    return run


def httpx(bench: Bench, name: str, at_once: int, port: int) -> Run:
    """One round of httpx, with the body that ours posted last."""

    def run() -> dict[str, Sample]:
        job = {"url": f"http://127.0.0.1:{port}/hook", "callers": at_once, "seconds": bench.seconds}
        return {name: Sample(**programs.run("outbound", {**job, "client": "httpx", "body": look(port)["body"]}))}

    return run
