"""Publish over HTTP: the gateway, confirmed and in its ledger (SQLite), beside RabbitMQ's management API.

Both put a persistent message into the same durable queue of the same RabbitMQ and answer when the broker has
confirmed it; ours is also durable in the ledger by then. The same generator loads both (:mod:`tests.benchmarks.
programs.load`). CPU is that of the gateway's process; of the management API it is RabbitMQ's, which does it all.
"""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Mapping
from typing import Any
from uuid import uuid4

from tests.benchmarks import programs
from tests.benchmarks.aims import BATCH
from tests.benchmarks.bench import SIZE, Bench, Running
from tests.benchmarks.programs.clock import largest, watched
from tests.benchmarks.rows import OURS, Row, Run, Sample, alternate
from tests.servers import RabbitMQ

CONNECTIONS = (1, 64)
BATCH_CONNECTIONS = (1, 4)
MANAGEMENT = "management"
PATIENCE = 60.0
"""How long the last answers may take, in seconds."""


def run(bench: Bench) -> list[Row]:
    """One message a request, then batches."""
    rabbitmq = bench.rabbitmq
    queue = f"bench-{uuid4().hex}"
    rows: list[Row] = []
    with bench.gateway({"rabbit": rabbitmq.url("0-9-1")}) as gateway:
        ask(gateway, "PUT", f"/v1/brokers/rabbit/queues/{queue}", {"durable": True})
        for connections in CONNECTIONS:
            work = single(connections)
            clients = [(OURS, turn(bench, gateway, work, queue, connections))]
            if not bench.ours:
                clients.append((MANAGEMENT, management(bench, work, queue, connections)))
            rows += alternate("publish", clients, bench.rounds)
        for connections in BATCH_CONNECTIONS:
            client = (OURS, turn(bench, gateway, batches(connections), queue, connections, BATCH))
            rows += alternate("publish", [client], bench.rounds)
    rabbitmq.delete_queue(queue)
    return rows


def single(connections: int) -> str:
    """The work: one message a request."""
    return f"HTTP publish, {count(connections)}"


def batches(connections: int) -> str:
    """The work: many messages a request."""
    return f"HTTP publish, batches of {BATCH:,}, {count(connections)}"


def count(connections: int) -> str:
    """``1 connection``, ``64 connections``."""
    return f"{connections} connection{'s' if connections > 1 else ''}"


def turn(bench: Bench, gateway: Running, work: str, queue: str, connections: int, batch: int = 1) -> Run:
    """One round of the gateway."""
    job = {"script": "publish", "port": gateway.http, "login": False, "count": batch}
    load = {
        **job,
        "queue": queue,
        "size": SIZE,
        "connections": connections,
        "seconds": bench.seconds,
        "patience": PATIENCE,
    }
    return lambda: {work: loaded(load, gateway.pid, bench.rabbitmq, queue)}


def management(bench: Bench, work: str, queue: str, connections: int) -> Run:
    """One round of the management API."""
    rabbitmq = bench.rabbitmq
    job = {"script": "management-publish", "port": rabbitmq.state.ports["management"], "login": True, "count": 1}
    load = {
        **job,
        "queue": queue,
        "size": SIZE,
        "connections": connections,
        "seconds": bench.seconds,
        "patience": PATIENCE,
    }
    return lambda: {work: loaded(load, node(rabbitmq), rabbitmq, queue)}


def loaded(job: Mapping[str, Any], pid: int, rabbitmq: RabbitMQ, queue: str) -> Sample:
    """A round of load on the server of this process; the queue is empty before it."""
    rabbitmq.api("DELETE", f"queues/%2F/{queue}/contents")
    with watched(pid) as server:
        found = programs.run("load", job)
    return Sample(**found, cpu=server.cpu, memory=largest(pid))


def node(rabbitmq: RabbitMQ) -> int:
    """The process in which RabbitMQ runs: the largest of those that it started."""
    from tests.servers.process import tree

    return max((each.pid for each in tree(rabbitmq.state.processes[rabbitmq.main])), key=largest_or_none)


def largest_or_none(pid: int) -> int:
    """Octets of memory, 0 of a process that has ended meanwhile."""
    try:
        return largest(pid)
    except (FileNotFoundError, ProcessLookupError, LookupError):
        return 0


def ask(gateway: Running, method: str, path: str, body: Any = None) -> Any:
    """A request that is not on the clock."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{gateway.http}{path}",
        data=None if body is None else json.dumps(body).encode(),
        method=method,
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.loads(answer.read())
