"""Pull and acknowledge over HTTP beside the management API's ``get`` with ``ack_requeue_false``.

A pull leases messages, writes that it did to the ledger, and a second request acknowledges them; ``get`` does both in
one request and keeps no record. With ``lease = "ledger"`` the message itself goes through the ledger too. Persistent
messages in a durable queue, one queue for each side. p50 and p99 are of the pair of requests.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import uuid4

from tests.benchmarks import programs
from tests.benchmarks.aims import LEDGER_LEASE
from tests.benchmarks.bench import SIZE, WINDOW, Bench
from tests.benchmarks.programs.clock import largest, watched
from tests.benchmarks.rows import OURS, Row, Run, Sample, alternate
from tests.benchmarks.sections.publish import PATIENCE, ask, node

COUNTS = {1: 6_000, 100: 30_000}
"""Messages of a pull -> messages in the queue when a round begins; enough for the time."""
GET = "management get"
LEASES = {OURS: "broker", LEDGER_LEASE: "ledger"}
"""Our clients -> who holds what is out."""


def run(bench: Bench) -> list[Row]:
    """One at a time, and a hundred."""
    rabbitmq = bench.rabbitmq
    queues = {client: f"bench-{uuid4().hex}" for client in (*LEASES, GET)}
    rows: list[Row] = []
    with bench.gateway({"rabbit": rabbitmq.url("0-9-1")}) as gateway:
        for queue in queues.values():
            ask(gateway, "PUT", f"/v1/brokers/rabbit/queues/{queue}", {"durable": True})
        for client, lease in LEASES.items():
            settings = {"broker": "rabbit", "queue": queues[client], "lease": lease}
            ask(gateway, "PUT", f"/v1/subscriptions/{queues[client]}", settings)
        for number in COUNTS:
            clients = []
            for client in LEASES:
                job = {"script": "pull", "port": gateway.http, "login": False, "queue": queues[client], "count": number}
                clients.append((client, turn(bench, work(number), job, gateway.pid)))
            if not bench.ours:
                port = rabbitmq.state.ports["management"]
                job = {"script": "management-get", "port": port, "login": True, "queue": queues[GET], "count": number}
                clients.append((GET, turn(bench, work(number), job, node(rabbitmq))))
            rows += alternate("pull", clients, bench.rounds)
    for queue in queues.values():
        rabbitmq.delete_queue(queue)
    return rows


def work(number: int) -> str:
    """As the table has it."""
    return f"HTTP pull and ack, {number} at a time"


def turn(bench: Bench, name: str, job: Mapping[str, Any], pid: int) -> Run:
    """One round: a full queue, taken from for some seconds."""

    def run() -> dict[str, Sample]:
        rabbitmq, queue = bench.rabbitmq, job["queue"]
        rabbitmq.api("DELETE", f"queues/%2F/{queue}/contents")
        number = bench.number(COUNTS[job["count"]], 200)
        fill = {"url": rabbitmq.url("0-9-1"), "queue": queue, "size": SIZE, "number": number, "window": WINDOW}
        programs.run(OURS, {**fill, "works": ["publish"]})
        with watched(pid) as server:
            found = programs.run("load", {**job, "connections": 1, "seconds": bench.seconds / 2, "patience": PATIENCE})
        return {name: Sample(**found, cpu=server.cpu, memory=largest(pid))}

    return run
